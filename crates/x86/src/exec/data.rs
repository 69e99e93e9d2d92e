//! Data transfer (SDM vol. 1, 7.3.1): MOV, CMOVcc, XCHG, LEA, MOVZX, MOVSX, XLAT, conversions of the
//! accumulator, SETcc, and loads of segment registers.

use iced_x86::Code;
use ring3_core::memory::Memory;

use crate::cpu::{Cpu, reg};
use crate::decode::Op;
use crate::exec::branch::*;
use crate::exec::pair::Part;
use crate::exec::{Done, Flat, Mem, Place, Reg};
use crate::segment::sreg;
use crate::table::{Rows, ending, exec, plain, rm, rm_long, rm_sizes, rm_wide};
use crate::word::Word;

/// Adds the forms of this file to the instruction table.
pub(super) fn forms(rows: &mut Rows) {
    rm_sizes!(rows, [Mov_rm8_r8 Mov_rm16_r16 Mov_rm32_r32 Mov_rm64_r64], move_to_rm);
    rm_sizes!(rows, [Mov_r8_rm8 Mov_r16_rm16 Mov_r32_rm32 Mov_r64_rm64], move_to_register);
    rows.parts(Code::Mov_rm32_r32, Some(Part::Store), Some(Part::Copy));
    rows.parts(Code::Mov_r32_rm32, Some(Part::Load), None);
    rm_sizes!(rows, [Mov_rm8_imm8 Mov_rm16_imm16 Mov_rm32_imm32 Mov_rm64_imm32], move_immediate);
    rm_sizes!(rows, [Mov_r8_imm8 Mov_r16_imm16 Mov_r32_imm32], move_immediate);
    plain!(rows, [Mov_r64_imm64], move_long_immediate);
    rm_sizes!(rows, [Mov_AL_moffs8 Mov_AX_moffs16 Mov_EAX_moffs32 Mov_RAX_moffs64], move_to_register);
    rm_sizes!(rows, [Mov_moffs8_AL Mov_moffs16_AX Mov_moffs32_EAX Mov_moffs64_RAX], move_to_rm);
    absolute_moves(rows);
    rows.parts(Code::Mov_EAX_moffs32, Some(Part::Load), None);
    rows.parts(Code::Mov_moffs32_EAX, Some(Part::Store), None);
    rm_sizes!(rows, [Xchg_rm8_r8 Xchg_rm16_r16 Xchg_rm32_r32 Xchg_rm64_r64], exchange);
    rm_wide!(rows, [Xchg_r16_AX Xchg_r32_EAX Xchg_r64_RAX], exchange);
    rm_wide!(rows, [Lea_r16_m Lea_r32_m Lea_r64_m], load_effective_address);
    rows.parts(Code::Lea_r32_m, Some(Part::Address), None);

    rm!(rows, u8, [Movzx_r16_rm8], move_zero_extended, u16);
    rm!(rows, u8, [Movzx_r32_rm8], move_zero_extended, u32);
    rm!(rows, u16, [Movzx_r16_rm16], move_zero_extended, u16);
    rm!(rows, u16, [Movzx_r32_rm16], move_zero_extended, u32);
    rm_long!(rows, u8, [Movzx_r64_rm8], move_zero_extended, u64);
    rm_long!(rows, u16, [Movzx_r64_rm16], move_zero_extended, u64);
    rm!(rows, u8, [Movsx_r16_rm8], move_sign_extended, u16);
    rm!(rows, u8, [Movsx_r32_rm8], move_sign_extended, u32);
    rm!(rows, u16, [Movsx_r16_rm16], move_sign_extended, u16);
    rm!(rows, u16, [Movsx_r32_rm16], move_sign_extended, u32);
    rm_long!(rows, u8, [Movsx_r64_rm8], move_sign_extended, u64);
    rm_long!(rows, u16, [Movsx_r64_rm16], move_sign_extended, u64);
    rm_long!(rows, u16, [Movsxd_r16_rm16], move_sign_extended, u16);
    rm_long!(rows, u32, [Movsxd_r64_rm32], move_sign_extended, u64);
    rm_long!(rows, u32, [Movsxd_r32_rm32], move_sign_extended, u32);
    plain!(rows, [Cbw], sign_extend_accumulator::<u8, u16>);
    plain!(rows, [Cwde], sign_extend_accumulator::<u16, u32>);
    plain!(rows, [Cdqe], sign_extend_accumulator::<u32, u64>);
    plain!(rows, [Cwd], spread_sign::<u16>);
    plain!(rows, [Cdq], spread_sign::<u32>);
    plain!(rows, [Cqo], spread_sign::<u64>);
    plain!(rows, [Xlat_m8], xlat);

    rm_wide!(rows, [Cmovo_r16_rm16 Cmovo_r32_rm32 Cmovo_r64_rm64], conditional_move, IfOverflow);
    rm_wide!(rows, [Cmovno_r16_rm16 Cmovno_r32_rm32 Cmovno_r64_rm64], conditional_move, IfNotOverflow);
    rm_wide!(rows, [Cmovb_r16_rm16 Cmovb_r32_rm32 Cmovb_r64_rm64], conditional_move, IfBelow);
    rm_wide!(rows, [Cmovae_r16_rm16 Cmovae_r32_rm32 Cmovae_r64_rm64], conditional_move, IfAboveOrEqual);
    rm_wide!(rows, [Cmove_r16_rm16 Cmove_r32_rm32 Cmove_r64_rm64], conditional_move, IfEqual);
    rm_wide!(rows, [Cmovne_r16_rm16 Cmovne_r32_rm32 Cmovne_r64_rm64], conditional_move, IfNotEqual);
    rm_wide!(rows, [Cmovbe_r16_rm16 Cmovbe_r32_rm32 Cmovbe_r64_rm64], conditional_move, IfBelowOrEqual);
    rm_wide!(rows, [Cmova_r16_rm16 Cmova_r32_rm32 Cmova_r64_rm64], conditional_move, IfAbove);
    rm_wide!(rows, [Cmovs_r16_rm16 Cmovs_r32_rm32 Cmovs_r64_rm64], conditional_move, IfSign);
    rm_wide!(rows, [Cmovns_r16_rm16 Cmovns_r32_rm32 Cmovns_r64_rm64], conditional_move, IfNotSign);
    rm_wide!(rows, [Cmovp_r16_rm16 Cmovp_r32_rm32 Cmovp_r64_rm64], conditional_move, IfParity);
    rm_wide!(rows, [Cmovnp_r16_rm16 Cmovnp_r32_rm32 Cmovnp_r64_rm64], conditional_move, IfNotParity);
    rm_wide!(rows, [Cmovl_r16_rm16 Cmovl_r32_rm32 Cmovl_r64_rm64], conditional_move, IfLess);
    rm_wide!(rows, [Cmovge_r16_rm16 Cmovge_r32_rm32 Cmovge_r64_rm64], conditional_move, IfGreaterOrEqual);
    rm_wide!(rows, [Cmovle_r16_rm16 Cmovle_r32_rm32 Cmovle_r64_rm64], conditional_move, IfLessOrEqual);
    rm_wide!(rows, [Cmovg_r16_rm16 Cmovg_r32_rm32 Cmovg_r64_rm64], conditional_move, IfGreater);

    rm!(rows, u8, [Seto_rm8], set_byte, IfOverflow);
    rm!(rows, u8, [Setno_rm8], set_byte, IfNotOverflow);
    rm!(rows, u8, [Setb_rm8], set_byte, IfBelow);
    rm!(rows, u8, [Setae_rm8], set_byte, IfAboveOrEqual);
    rm!(rows, u8, [Sete_rm8], set_byte, IfEqual);
    rm!(rows, u8, [Setne_rm8], set_byte, IfNotEqual);
    rm!(rows, u8, [Setbe_rm8], set_byte, IfBelowOrEqual);
    rm!(rows, u8, [Seta_rm8], set_byte, IfAbove);
    rm!(rows, u8, [Sets_rm8], set_byte, IfSign);
    rm!(rows, u8, [Setns_rm8], set_byte, IfNotSign);
    rm!(rows, u8, [Setp_rm8], set_byte, IfParity);
    rm!(rows, u8, [Setnp_rm8], set_byte, IfNotParity);
    rm!(rows, u8, [Setl_rm8], set_byte, IfLess);
    rm!(rows, u8, [Setge_rm8], set_byte, IfGreaterOrEqual);
    rm!(rows, u8, [Setle_rm8], set_byte, IfLessOrEqual);
    rm!(rows, u8, [Setg_rm8], set_byte, IfGreater);

    rows.add(
        Code::Mov_rm16_Sreg,
        exec!(store_segment::<Mem, u16>),
        exec!(store_segment::<Reg, u16>),
    );
    // To memory it stores a word at any operand size (SDM vol. 2, MOV).
    rows.add(
        Code::Mov_r32m16_Sreg,
        exec!(store_segment::<Mem, u16>),
        exec!(store_segment::<Reg, u32>),
    );
    rows.add(
        Code::Mov_r64m16_Sreg,
        exec!(store_segment::<Mem, u16>),
        exec!(store_segment::<Reg, u64>),
    );
    rm!(rows, u16, [Mov_Sreg_rm16 Mov_Sreg_r32m16 Mov_Sreg_r64m16], load_segment);
    ending!(rows, [Mov_Sreg_rm16 Mov_Sreg_r32m16 Mov_Sreg_r64m16]);
    rm_wide!(rows, [Les_r16_m1616 Les_r32_m1632], load_far_pointer, Es);
    rm_wide!(rows, [Lds_r16_m1616 Lds_r32_m1632], load_far_pointer, Ds);
    rm_wide!(rows, [Lss_r16_m1616 Lss_r32_m1632 Lss_r64_m1664], load_far_pointer, Ss);
    ending!(rows, [Les_r16_m1616 Les_r32_m1632 Lds_r16_m1616 Lds_r32_m1632]);
    ending!(rows, [Lss_r16_m1616 Lss_r32_m1632 Lss_r64_m1664]);
    rm_wide!(rows, [Lfs_r16_m1616 Lfs_r32_m1632 Lfs_r64_m1664], load_far_pointer, Fs);
    rm_wide!(rows, [Lgs_r16_m1616 Lgs_r32_m1632 Lgs_r64_m1664], load_far_pointer, Gs);
}

/// In 64-bit code, MOV between the accumulator and an absolute address has an address of 64 bits.
fn absolute_moves(rows: &mut Rows) {
    rows.with_long(&[Code::Mov_AL_moffs8], exec!(load_absolute::<u8>));
    rows.with_long(&[Code::Mov_AX_moffs16], exec!(load_absolute::<u16>));
    rows.with_long(&[Code::Mov_EAX_moffs32], exec!(load_absolute::<u32>));
    rows.with_long(&[Code::Mov_RAX_moffs64], exec!(load_absolute::<u64>));
    rows.with_long(&[Code::Mov_moffs8_AL], exec!(store_absolute::<u8>));
    rows.with_long(&[Code::Mov_moffs16_AX], exec!(store_absolute::<u16>));
    rows.with_long(&[Code::Mov_moffs32_EAX], exec!(store_absolute::<u32>));
    rows.with_long(&[Code::Mov_moffs64_RAX], exec!(store_absolute::<u64>));
}

/// Returns the number of 64 bits whose halves are in an [`Op`].
fn long_number(high: u32, low: u32) -> u64 {
    u64::from(high) << 32 | u64::from(low)
}

fn load_absolute<W: Word>(cpu: &mut Cpu, memory: &mut Memory, op: &Op) -> Done {
    let value: W = cpu.read(memory, op.segment, long_number(op.imm, op.disp))?;
    cpu.set(reg::AX, value);
    Ok(())
}

fn store_absolute<W: Word>(cpu: &mut Cpu, memory: &mut Memory, op: &Op) -> Done {
    let value = cpu.get::<W>(reg::AX);
    cpu.write(memory, op.segment, long_number(op.imm, op.disp), value)
}

fn move_long_immediate(cpu: &mut Cpu, _: &mut Memory, op: &Op) -> Done {
    cpu.set_gpr(op.rm, long_number(op.disp, op.imm));
    Ok(())
}

pub(super) fn move_to_rm<P: Place, W: Word>(cpu: &mut Cpu, memory: &mut Memory, op: &Op) -> Done {
    P::write(cpu, memory, op, cpu.get::<W>(op.reg)).inspect_err(|_| cpu.note_store::<W>(op))
}

pub(super) fn move_to_register<P: Place, W: Word>(
    cpu: &mut Cpu,
    memory: &mut Memory,
    op: &Op,
) -> Done {
    let value = P::read::<W>(cpu, memory, op).inspect_err(|_| cpu.note_load::<W, W>(op))?;
    cpu.set(op.reg, value);
    Ok(())
}

fn move_immediate<P: Place, W: Word>(cpu: &mut Cpu, memory: &mut Memory, op: &Op) -> Done {
    P::write(cpu, memory, op, op.immediate::<W>()).inspect_err(|_| cpu.note_store::<W>(op))
}

fn exchange<P: Place, W: Word>(cpu: &mut Cpu, memory: &mut Memory, op: &Op) -> Done {
    let new = cpu.get::<W>(op.reg);
    let mut old = new;
    P::modify(cpu, memory, op, |status, value| {
        old = value;
        (new, status)
    })?;
    cpu.set(op.reg, old);
    Ok(())
}

/// Performs LEA. With a register operand the instruction is invalid, which decoding detects.
fn load_effective_address<P: Place, W: Word>(cpu: &mut Cpu, _: &mut Memory, op: &Op) -> Done {
    let address = op.effective_address(cpu);
    cpu.set(op.reg, W::truncate(address));
    Ok(())
}

/// Performs LEA with a flat operand.
pub(super) fn flat_address(cpu: &mut Cpu, _: &mut Memory, op: &Op) -> Done {
    cpu.set(op.reg, Flat::address(cpu, op) as u32);
    Ok(())
}

fn move_zero_extended<P: Place, W: Word, To: Word>(
    cpu: &mut Cpu,
    memory: &mut Memory,
    op: &Op,
) -> Done {
    let value = P::read::<W>(cpu, memory, op).inspect_err(|_| cpu.note_load::<W, To>(op))?;
    cpu.set(op.reg, To::truncate(value.zero_extend()));
    Ok(())
}

fn move_sign_extended<P: Place, W: Word, To: Word>(
    cpu: &mut Cpu,
    memory: &mut Memory,
    op: &Op,
) -> Done {
    let value = P::read::<W>(cpu, memory, op)?;
    cpu.set(op.reg, To::truncate(value.sign_extend()));
    Ok(())
}

/// Performs CBW, CWDE and CDQE.
fn sign_extend_accumulator<W: Word, To: Word>(cpu: &mut Cpu, _: &mut Memory, _: &Op) -> Done {
    cpu.set(reg::AX, To::truncate(cpu.get::<W>(reg::AX).sign_extend()));
    Ok(())
}

/// Performs CWD, CDQ and CQO, which fill DX with the sign of AX.
fn spread_sign<W: Word>(cpu: &mut Cpu, _: &mut Memory, _: &Op) -> Done {
    let is_negative = cpu.get::<W>(reg::AX).zero_extend() & W::SIGN != 0;
    cpu.set(reg::DX, W::truncate(if is_negative { u64::MAX } else { 0 }));
    Ok(())
}

fn xlat(cpu: &mut Cpu, memory: &mut Memory, op: &Op) -> Done {
    let offset = cpu.gpr(reg::BX).wrapping_add(cpu.get::<u8>(reg::AX).into());
    let byte: u8 = cpu.read(memory, op.segment, offset & op.address_mask())?;
    cpu.set(reg::AX, byte);
    Ok(())
}

/// Performs CMOVcc, which reads the source even if the condition is false (SDM vol. 2, CMOVcc).
fn conditional_move<P: Place, W: Word, C: Condition>(
    cpu: &mut Cpu,
    memory: &mut Memory,
    op: &Op,
) -> Done {
    let value = P::read::<W>(cpu, memory, op)?;
    let result = if C::holds(cpu.status) { value } else { cpu.get(op.reg) };
    cpu.set(op.reg, result);
    Ok(())
}

fn set_byte<P: Place, W: Word, C: Condition>(cpu: &mut Cpu, memory: &mut Memory, op: &Op) -> Done {
    let value = W::truncate(u64::from(C::holds(cpu.status)));
    P::write(cpu, memory, op, value)
}

fn store_segment<P: Place, W: Word>(cpu: &mut Cpu, memory: &mut Memory, op: &Op) -> Done {
    let selector = cpu.segment(op.reg).selector;
    P::write(cpu, memory, op, W::truncate(selector.into()))
}

fn load_segment<P: Place, W: Word>(cpu: &mut Cpu, memory: &mut Memory, op: &Op) -> Done {
    if op.reg == sreg::CS {
        return Err(cpu.undefined_opcode());
    }
    let selector = P::read::<W>(cpu, memory, op)?;
    cpu.load_segment(memory, op.reg, selector.zero_extend() as u16)?;
    if op.reg == sreg::SS {
        cpu.hold_interrupts_back();
    }
    Ok(())
}

/// The segment register that LDS or a similar instruction loads.
trait SegmentRegister {
    /// Its number.
    const NUMBER: u8;
}

macro_rules! segment_registers {
    ($($name:ident $number:ident),*) => {
        $(struct $name;

        impl SegmentRegister for $name {
            const NUMBER: u8 = sreg::$number;
        })*
    };
}

segment_registers!(Es ES, Ss SS, Ds DS, Fs FS, Gs GS);

fn load_far_pointer<P: Place, W: Word, S: SegmentRegister>(
    cpu: &mut Cpu,
    memory: &mut Memory,
    op: &Op,
) -> Done {
    let offset = P::read::<W>(cpu, memory, op)?;
    let behind = op.displaced(cpu, W::BYTES as u64);
    let selector = P::read::<u16>(cpu, memory, &behind)?;
    cpu.load_segment(memory, S::NUMBER, selector)?;
    cpu.set(op.reg, offset);
    Ok(())
}
