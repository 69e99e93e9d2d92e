//! Instructions of long mode (SDM vol. 2): SYSCALL and SYSRET, SWAPGS, and RDFSBASE to WRGSBASE.

use ring3_core::memory::Memory;

use crate::cpu::{Cpu, Cr4, reg};
use crate::decode::Op;
use crate::exec::Done;
use crate::flags::{ALWAYS_ONE, Eflags};
use crate::long_mode::{FlatCode, RETURNED_FLAGS};
use crate::segment::sreg;
use crate::system_calls::Gate;
use crate::table::{Rows, branches, last, plain};
use crate::word::Word;

/// Adds the forms of this file to the instruction table.
pub(super) fn forms(rows: &mut Rows) {
    branches!(rows, [Syscall], last!(syscall));
    branches!(rows, [Sysretd], last!(sysret::<u32>));
    branches!(rows, [Sysretq], last!(sysret::<u64>));
    plain!(rows, [Swapgs], swapgs);
    plain!(rows, [Rdfsbase_r32], read_base::<u32, { sreg::FS }>);
    plain!(rows, [Rdfsbase_r64], read_base::<u64, { sreg::FS }>);
    plain!(rows, [Rdgsbase_r32], read_base::<u32, { sreg::GS }>);
    plain!(rows, [Rdgsbase_r64], read_base::<u64, { sreg::GS }>);
    plain!(rows, [Wrfsbase_r32], write_base::<u32, { sreg::FS }>);
    plain!(rows, [Wrfsbase_r64], write_base::<u64, { sreg::FS }>);
    plain!(rows, [Wrgsbase_r32], write_base::<u32, { sreg::GS }>);
    plain!(rows, [Wrgsbase_r64], write_base::<u64, { sreg::GS }>);
}

/// R11, which holds RFLAGS across a system call.
const R11: u8 = 11;

/// Raises #UD unless SYSCALL and SYSRET are enabled, for 64-bit code only as on Intel's processors.
fn require_system_calls(cpu: &mut Cpu) -> Done {
    let exist = cpu.msrs.long.system_calls && cpu.is_in_64_bit_mode();
    if exist { Ok(()) } else { Err(cpu.undefined_opcode()) }
}

fn syscall(cpu: &mut Cpu, memory: &mut Memory, _: &Op) -> Done {
    require_system_calls(cpu)?;
    let caller = cpu.begin_system_call(Gate::LongCall)?;
    let before = cpu.attention;
    let long = cpu.msrs.long;
    cpu.set_gpr(reg::CX, cpu.ip);
    let image = Eflags::from_bits_retain(cpu.eflags_image()) - Eflags::RF;
    cpu.set_gpr(R11, image.bits().into());
    let cleared = Eflags::from_bits_truncate(long.flag_mask as u32);
    cpu.change_eflags(Eflags::empty(), cleared | Eflags::RF);
    if cleared.contains(Eflags::TF) {
        cpu.hold_trap_back(before);
    }
    cpu.enter_system();
    cpu.ip = long.lstar;
    cpu.end_system_call(memory, caller);
    Ok(())
}

/// Performs SYSRET to 64-bit code, or with operand size 32 to compatibility mode.
fn sysret<W: Word>(cpu: &mut Cpu, memory: &mut Memory, _: &Op) -> Done {
    require_system_calls(cpu)?;
    cpu.require_cpl0()?;
    let is_awaited = cpu.begin_system_return()?;
    let target = cpu.get::<W>(reg::CX).zero_extend();
    cpu.require_canonical(target)?;
    let code = if W::BITS == 64 { FlatCode::Bits64 } else { FlatCode::Bits32 };
    let flags = cpu.get::<u32>(R11) & RETURNED_FLAGS | ALWAYS_ONE;
    cpu.leave_system(code);
    cpu.set_eflags(Eflags::from_bits_truncate(flags));
    cpu.ip = target;
    cpu.end_system_return(memory, is_awaited);
    Ok(())
}

fn swapgs(cpu: &mut Cpu, _: &mut Memory, _: &Op) -> Done {
    cpu.require_cpl0()?;
    let base = cpu.segment(sreg::GS).base;
    cpu.set_gs_bases(cpu.msrs.long.kernel_gs_base, base);
    Ok(())
}

/// Raises #UD unless the operating system lets programs access the bases of FS and GS.
fn require_base_access(cpu: &mut Cpu) -> Done {
    if cpu.cr4.contains(Cr4::FSGSBASE) { Ok(()) } else { Err(cpu.undefined_opcode()) }
}

fn read_base<W: Word, const REGISTER: u8>(cpu: &mut Cpu, _: &mut Memory, op: &Op) -> Done {
    require_base_access(cpu)?;
    cpu.set(op.rm, W::truncate(cpu.segment(REGISTER).base));
    Ok(())
}

fn write_base<W: Word, const REGISTER: u8>(cpu: &mut Cpu, _: &mut Memory, op: &Op) -> Done {
    require_base_access(cpu)?;
    let base = cpu.get::<W>(op.rm).zero_extend();
    cpu.require_canonical(base)?;
    cpu.set_base(REGISTER, base);
    Ok(())
}
