//! Flag control (SDM vol. 1, 7.3.13): CLC to STD, LAHF, SAHF, SALC, CLI, STI, CLAC and STAC; and NOP.

use ring3_core::memory::Memory;

use crate::cpu::{Attention, Cpu, reg};
use crate::decode::Op;
use crate::exec::Done;
use crate::flags::{ALWAYS_ONE, Eflags, Status};
use crate::table::{Rows, ending, plain};
use crate::virtual_8086::InterruptFlag;

/// Adds the forms of this file to the instruction table.
pub(super) fn forms(rows: &mut Rows) {
    plain!(rows, [Clc], clc);
    plain!(rows, [Stc], stc);
    plain!(rows, [Cmc], cmc);
    plain!(rows, [Cld], cld);
    plain!(rows, [Std], std);
    plain!(rows, [Cli], cli);
    plain!(rows, [Sti], sti);
    ending!(rows, [Sti]);
    plain!(rows, [Clac], change_access::<false>);
    plain!(rows, [Stac], change_access::<true>);
    plain!(rows, [Lahf], lahf);
    plain!(rows, [Sahf], sahf);
    plain!(rows, [Salc], salc);
    plain!(rows, [Nopw Nopd Nopq Nop_rm16 Nop_rm32 Nop_rm64 Pause], nop);
    hints(rows);
}

/// The opcodes 0F 0D, and 0F 18 to 0F 1F, which are reserved for hints since the P6 (SDM vol. 2, table A-3).
/// On processors that do not know a hint it is a NOP. So compilers put ENDBR32 into programs for all of them.
fn hints(rows: &mut Rows) {
    plain!(rows, [Reservednop_rm16_r16_0F18 Reservednop_rm16_r16_0F19 Reservednop_rm16_r16_0F1A], nop);
    plain!(rows, [Reservednop_rm16_r16_0F1B Reservednop_rm16_r16_0F1C Reservednop_rm16_r16_0F1D], nop);
    plain!(rows, [Reservednop_rm16_r16_0F1E Reservednop_rm16_r16_0F1F], nop);
    plain!(rows, [Reservednop_rm32_r32_0F18 Reservednop_rm32_r32_0F19 Reservednop_rm32_r32_0F1A], nop);
    plain!(rows, [Reservednop_rm32_r32_0F1B Reservednop_rm32_r32_0F1C Reservednop_rm32_r32_0F1D], nop);
    plain!(rows, [Reservednop_rm32_r32_0F1E Reservednop_rm32_r32_0F1F], nop);
    plain!(rows, [Reservednop_rm64_r64_0F18 Reservednop_rm64_r64_0F19 Reservednop_rm64_r64_0F1A], nop);
    plain!(rows, [Reservednop_rm64_r64_0F1B Reservednop_rm64_r64_0F1C Reservednop_rm64_r64_0F1D], nop);
    plain!(rows, [Reservednop_rm64_r64_0F1E Reservednop_rm64_r64_0F1F Reservednop_rm64_r64_0F0D], nop);
    plain!(rows, [Cldemote_m8 Endbr32 Endbr64 Rdsspd_r32 Rdsspq_r64 Prefetchit0_m8 Prefetchit1_m8], nop);
    plain!(rows, [Reservednop_rm16_r16_0F0D Reservednop_rm32_r32_0F0D], nop);
    plain!(rows, [Prefetch_m8 Prefetchw_m8 Prefetchwt1_m8 Prefetchreserved3_m8], nop);
    plain!(rows, [Prefetchreserved4_m8 Prefetchreserved5_m8 Prefetchreserved6_m8 Prefetchreserved7_m8], nop);
}

const AH: u8 = reg::AX | reg::HIGH_BYTE;

fn clc(cpu: &mut Cpu, _: &mut Memory, _: &Op) -> Done {
    cpu.status = cpu.status.with_carry(false);
    Ok(())
}

fn stc(cpu: &mut Cpu, _: &mut Memory, _: &Op) -> Done {
    cpu.status = cpu.status.with_carry(true);
    Ok(())
}

fn cmc(cpu: &mut Cpu, _: &mut Memory, _: &Op) -> Done {
    cpu.status = cpu.status.with_carry(!cpu.status.carry());
    Ok(())
}

fn cld(cpu: &mut Cpu, _: &mut Memory, _: &Op) -> Done {
    cpu.system_flags.remove(Eflags::DF);
    Ok(())
}

fn std(cpu: &mut Cpu, _: &mut Memory, _: &Op) -> Done {
    cpu.system_flags.insert(Eflags::DF);
    Ok(())
}

fn cli(cpu: &mut Cpu, _: &mut Memory, _: &Op) -> Done {
    match cpu.flag_of_cli() {
        InterruptFlag::Real => cpu.system_flags.remove(Eflags::IF),
        InterruptFlag::Virtual => cpu.system_flags.remove(Eflags::VIF),
        InterruptFlag::Forbidden => return Err(cpu.general_protection(0)),
    }
    Ok(())
}

/// Performs STI. Interrupts are taken after one more instruction, if they were disabled (SDM vol. 2, STI).
/// The monitor must deliver a pending virtual interrupt.
fn sti(cpu: &mut Cpu, _: &mut Memory, _: &Op) -> Done {
    match cpu.flag_of_cli() {
        InterruptFlag::Real if !cpu.has_flag(Eflags::IF) => {
            cpu.system_flags.insert(Eflags::IF);
            cpu.attention |= Attention::SHADOW;
        }
        InterruptFlag::Real => {}
        InterruptFlag::Virtual if !cpu.has_flag(Eflags::VIP) => {
            cpu.system_flags.insert(Eflags::VIF);
        }
        InterruptFlag::Virtual | InterruptFlag::Forbidden => return Err(cpu.general_protection(0)),
    }
    Ok(())
}

/// Performs CLAC and STAC, which raise #UD unless the privilege level is 0 (SDM vol. 2).
fn change_access<const AC: bool>(cpu: &mut Cpu, _: &mut Memory, _: &Op) -> Done {
    if cpu.cpl() != 0 {
        return Err(cpu.undefined_opcode());
    }
    cpu.set_alignment_flag(AC);
    Ok(())
}

/// The flags that LAHF and SAHF move: all status flags except OF.
const LOW_FLAGS: Eflags = Eflags::STATUS.difference(Eflags::OF);

fn lahf(cpu: &mut Cpu, _: &mut Memory, _: &Op) -> Done {
    let image = (cpu.status.to_eflags() & LOW_FLAGS).bits() | ALWAYS_ONE;
    cpu.set(AH, image as u8);
    Ok(())
}

fn sahf(cpu: &mut Cpu, _: &mut Memory, _: &Op) -> Done {
    let image = Eflags::from_bits_truncate(cpu.get::<u8>(AH).into());
    cpu.status = Status::from_eflags((cpu.status.to_eflags() - LOW_FLAGS) | (image & LOW_FLAGS));
    Ok(())
}

/// Performs SALC: AL becomes FFh if CF is set, and 0 if not. It is undocumented, and all processors have it.
fn salc(cpu: &mut Cpu, _: &mut Memory, _: &Op) -> Done {
    let value = if cpu.status.carry() { 0xff } else { 0u8 };
    cpu.set(reg::AX, value);
    Ok(())
}

fn nop(_: &mut Cpu, _: &mut Memory, _: &Op) -> Done {
    Ok(())
}
