//! The stack (SDM vol. 1, 7.3.1.3 and 7.3.13): PUSH, POP, PUSHA, POPA, ENTER, LEAVE, PUSHF, POPF.

use iced_x86::Code;
use ring3_core::memory::Memory;

use crate::cpu::{Cpu, reg};
use crate::decode::Op;
use crate::exec::pair::Part;
use crate::exec::{Done, Flat, Long, Mem, Place, Quick, Reg};
use crate::flags::Eflags;
use crate::segment::sreg;
use crate::table::{Rows, ending, exec, plain, plain_flat_stack, quick, rm, rm_wide, slow, wide};
use crate::virtual_8086::InterruptFlag;
use crate::word::Word;

/// Adds the forms of this file to the instruction table.
pub(super) fn forms(rows: &mut Rows) {
    rm!(rows, u16, [Push_rm16], push);
    rows.add_with_flat(
        Code::Push_rm32,
        exec!(push::<Mem, u32>),
        quick!(push_at_once::<Quick<Flat>, u32>, slow!(push::<Mem, u32>)),
        exec!(push::<Reg, u32>),
    );
    rows.add(Code::Push_rm64, exec!(push::<Mem, u64>), exec!(push::<Reg, u64>));
    rows.with_long(
        &[Code::Push_rm64],
        quick!(push_at_once::<Quick<Long>, u64>, slow!(push::<Mem, u64>)),
    );
    plain!(rows, [Push_r16], push::<Reg, u16>);
    plain_flat_stack!(rows, [Push_r32], push_at_once::<Reg, u32>, push::<Reg, u32>);
    plain_flat_stack!(rows, [Push_r64], push_at_once::<Reg, u64>, push::<Reg, u64>);
    rows.parts(Code::Push_r32, None, Some(Part::Push));
    rm_wide!(rows, [Pop_rm16 Pop_rm32 Pop_rm64], pop);
    plain!(rows, [Pop_r16], pop::<Reg, u16>);
    plain_flat_stack!(rows, [Pop_r32], pop_at_once::<u32>, pop::<Reg, u32>);
    plain_flat_stack!(rows, [Pop_r64], pop_at_once::<u64>, pop::<Reg, u64>);
    rows.parts(Code::Pop_r32, None, Some(Part::Pop));
    plain!(rows, [Push_imm16 Pushw_imm8], push_immediate::<u16>);
    plain_flat_stack!(
        rows,
        [Pushd_imm32 Pushd_imm8],
        push_immediate_at_once::<u32>,
        push_immediate::<u32>
    );
    plain_flat_stack!(
        rows,
        [Pushq_imm32 Pushq_imm8],
        push_immediate_at_once::<u64>,
        push_immediate::<u64>
    );
    wide!(rows, [Pushaw Pushad], push_all);
    wide!(rows, [Popaw Popad], pop_all);
    wide!(rows, [Pushfw Pushfd Pushfq], push_flags);
    wide!(rows, [Popfw Popfd Popfq], pop_flags);
    wide!(rows, [Enterw_imm16_imm8 Enterd_imm16_imm8 Enterq_imm16_imm8], enter);
    plain!(rows, [Leavew], leave::<u16>);
    plain_flat_stack!(rows, [Leaved], leave_at_once::<u32>, leave::<u32>);
    plain_flat_stack!(rows, [Leaveq], leave_at_once::<u64>, leave::<u64>);

    wide!(rows, [Pushw_ES Pushd_ES], push_segment, { sreg::ES });
    wide!(rows, [Pushw_CS Pushd_CS], push_segment, { sreg::CS });
    wide!(rows, [Pushw_SS Pushd_SS], push_segment, { sreg::SS });
    wide!(rows, [Pushw_DS Pushd_DS], push_segment, { sreg::DS });
    wide!(rows, [Pushw_FS Pushd_FS Pushq_FS], push_segment, { sreg::FS });
    wide!(rows, [Pushw_GS Pushd_GS Pushq_GS], push_segment, { sreg::GS });
    wide!(rows, [Popw_ES Popd_ES], pop_segment, { sreg::ES });
    wide!(rows, [Popw_SS Popd_SS], pop_segment, { sreg::SS });
    wide!(rows, [Popw_DS Popd_DS], pop_segment, { sreg::DS });
    wide!(rows, [Popw_FS Popd_FS Popq_FS], pop_segment, { sreg::FS });
    wide!(rows, [Popw_GS Popd_GS Popq_GS], pop_segment, { sreg::GS });
    // The interrupt flag, the trap flag, the interrupt shadow or the segments that decoded code assumes to be
    // flat may have changed.
    ending!(rows, [Popfw Popfd Popfq Popw_SS Popd_SS Popw_DS Popd_DS Popw_ES Popd_ES]);
}

/// Performs PUSH. PUSH ESP pushes the old value (SDM vol. 2, PUSH).
pub(super) fn push<P: Place, W: Word>(cpu: &mut Cpu, memory: &mut Memory, op: &Op) -> Done {
    let value = P::read::<W>(cpu, memory, op)?;
    cpu.push(memory, value)
}

pub(super) fn push_at_once<P: Place, W: Word>(cpu: &mut Cpu, memory: &mut Memory, op: &Op) -> Done {
    let value = P::read::<W>(cpu, memory, op)?;
    cpu.push_at_once(memory, value)
}

/// Performs POP. An address with ESP is computed after ESP was incremented, and POP ESP keeps the popped
/// value (SDM vol. 2, POP).
pub(super) fn pop<P: Place, W: Word>(cpu: &mut Cpu, memory: &mut Memory, op: &Op) -> Done {
    let old = cpu.gpr(reg::SP);
    let value = cpu.pop::<W>(memory)?;
    let written = P::write(cpu, memory, op, value);
    if written.is_err() {
        cpu.set_gpr(reg::SP, old);
    }
    written
}

pub(super) fn pop_at_once<W: Word>(cpu: &mut Cpu, memory: &mut Memory, op: &Op) -> Done {
    let value = cpu.peek_at_once::<W>(memory)?;
    cpu.release_flat::<W>(W::BYTES as u64);
    cpu.set(op.rm, value);
    Ok(())
}

fn push_immediate_at_once<W: Word>(cpu: &mut Cpu, memory: &mut Memory, op: &Op) -> Done {
    cpu.push_at_once(memory, op.immediate::<W>())
}

fn push_immediate<W: Word>(cpu: &mut Cpu, memory: &mut Memory, op: &Op) -> Done {
    cpu.push(memory, op.immediate::<W>())
}

fn push_all<W: Word>(cpu: &mut Cpu, memory: &mut Memory, _: &Op) -> Done {
    let old = cpu.gpr(reg::SP);
    for register in reg::AX..=reg::DI {
        let value = if register == reg::SP { W::truncate(old) } else { cpu.get::<W>(register) };
        if let Err(stopped) = cpu.push(memory, value) {
            cpu.set_gpr(reg::SP, old);
            return Err(stopped);
        }
    }
    Ok(())
}

fn pop_all<W: Word>(cpu: &mut Cpu, memory: &mut Memory, _: &Op) -> Done {
    let mut values = [W::truncate(0); 8];
    for (depth, value) in (0..).zip(&mut values) {
        *value = cpu.peek(memory, depth)?;
    }
    cpu.set_stack_pointer(cpu.stack_pointer().wrapping_add(8 * W::BYTES as u64));
    for (register, value) in (reg::AX..=reg::DI).zip(values.into_iter().rev()) {
        if register != reg::SP {
            cpu.set(register, value);
        }
    }
    Ok(())
}

/// Performs PUSHF. RF and VM are pushed as 0.
fn push_flags<W: Word>(cpu: &mut Cpu, memory: &mut Memory, _: &Op) -> Done {
    match cpu.flag_of_popf(W::BITS >= 32) {
        InterruptFlag::Real => {}
        InterruptFlag::Virtual => return cpu.push(memory, cpu.virtual_flags_image()),
        InterruptFlag::Forbidden => return Err(cpu.general_protection(0)),
    }
    let image = cpu.eflags_image() & !(Eflags::RF | Eflags::VM).bits();
    cpu.push(memory, W::truncate(image.into()))
}

fn pop_flags<W: Word>(cpu: &mut Cpu, memory: &mut Memory, _: &Op) -> Done {
    let interrupt_flag = cpu.flag_of_popf(W::BITS >= 32);
    if interrupt_flag == InterruptFlag::Forbidden {
        return Err(cpu.general_protection(0));
    }
    if interrupt_flag == InterruptFlag::Virtual {
        let value = cpu.peek::<u16>(memory, 0)?;
        let flags = Eflags::from_bits_truncate(value.into());
        cpu.check_virtual_flags(flags)?;
        cpu.set_stack_pointer(cpu.stack_pointer().wrapping_add(2));
        cpu.load_virtual_flags(flags);
        return Ok(());
    }
    let value = cpu.pop::<W>(memory)?;
    let mut mask = cpu.flags_mask(W::BITS >= 32);
    if W::BITS >= 32 {
        // POPF clears RF (SDM vol. 2, POPF). In virtual-8086 mode IOPL does not change.
        mask |= Eflags::RF;
    }
    let flags = Eflags::from_bits_truncate(value.zero_extend() as u32) - Eflags::RF;
    cpu.change_eflags(flags, mask);
    Ok(())
}

/// Performs ENTER: makes the stack frame of a procedure at nesting level `op.disp` (SDM vol. 2, ENTER).
fn enter<W: Word>(cpu: &mut Cpu, memory: &mut Memory, op: &Op) -> Done {
    let (size, level) = (u64::from(op.imm & 0xffff), op.disp & 31);
    let (old, frame) = (cpu.gpr(reg::SP), cpu.gpr(reg::BP));
    let result = enter_frame::<W>(cpu, memory, size, level, frame);
    if result.is_err() {
        cpu.set_gpr(reg::SP, old);
    }
    result
}

fn enter_frame<W: Word>(
    cpu: &mut Cpu,
    memory: &mut Memory,
    size: u64,
    level: u32,
    frame: u64,
) -> Done {
    cpu.push(memory, W::truncate(frame))?;
    let new_frame = cpu.gpr(reg::SP);
    for depth in 1..u64::from(level) {
        let offset = frame.wrapping_sub(depth * W::BYTES as u64) & cpu.stack_mask();
        let pointer = cpu.read::<W>(memory, sreg::SS, offset)?;
        cpu.push(memory, pointer)?;
    }
    if level > 0 {
        cpu.push(memory, W::truncate(new_frame))?;
    }
    let top = cpu.stack_pointer().wrapping_sub(size) & cpu.stack_mask();
    // The new top of the stack must be writable, although nothing is written yet.
    cpu.check_writable(memory, sreg::SS, top, W::BYTES)?;
    cpu.set_stack_pointer(top);
    cpu.set(reg::BP, W::truncate(new_frame));
    Ok(())
}

fn leave<W: Word>(cpu: &mut Cpu, memory: &mut Memory, _: &Op) -> Done {
    let frame = cpu.gpr(reg::BP) & cpu.stack_mask();
    let value = cpu.read::<W>(memory, sreg::SS, frame)?;
    cpu.set_stack_pointer(frame.wrapping_add(W::BYTES as u64));
    cpu.set(reg::BP, value);
    Ok(())
}

fn leave_at_once<W: Word>(cpu: &mut Cpu, memory: &mut Memory, _: &Op) -> Done {
    let frame = cpu.get::<W>(reg::BP).zero_extend();
    let value = cpu.load_at_once::<W>(memory, frame)?;
    cpu.set(reg::SP, W::truncate(frame.wrapping_add(W::BYTES as u64)));
    cpu.set(reg::BP, value);
    Ok(())
}

fn push_segment<W: Word, const REGISTER: u8>(cpu: &mut Cpu, memory: &mut Memory, _: &Op) -> Done {
    let selector = cpu.segment(REGISTER).selector;
    if W::BITS == 16 {
        return cpu.push(memory, selector);
    }
    // Only the low word is written (SDM vol. 2, PUSH, on recent processors).
    let top = cpu.stack_pointer().wrapping_sub(W::BYTES as u64) & cpu.stack_mask();
    cpu.write(memory, sreg::SS, top, selector)?;
    cpu.set_stack_pointer(top);
    Ok(())
}

fn pop_segment<W: Word, const REGISTER: u8>(cpu: &mut Cpu, memory: &mut Memory, _: &Op) -> Done {
    let selector = cpu.peek::<W>(memory, 0)?.zero_extend() as u16;
    let released = cpu.stack_pointer().wrapping_add(W::BYTES as u64);
    // The pop changes ESP in the size of the old stack segment.
    let mask = cpu.stack_mask();
    cpu.load_segment(memory, REGISTER, selector)?;
    cpu.set_gpr(reg::SP, cpu.gpr(reg::SP) & !mask | released & mask);
    if REGISTER == sreg::SS {
        cpu.hold_interrupts_back();
    }
    Ok(())
}
