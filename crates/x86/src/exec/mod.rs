//! The semantics of the instructions, a file a chapter of the manual.
//!
//! A handler reads its operands, computes, and changes the state only when
//! nothing can fail any more. Operands that ModRM names are a [`Place`]: in
//! memory or in a register, decided when the instruction is decoded.

// All handlers have one type, those that cannot fail too.
#![allow(clippy::unnecessary_wraps)]

mod arithmetic;
mod bcd;
mod bits;
mod branch;
mod data;
mod flag_control;
mod multiply;
mod port;
mod shift;
mod stack;
mod string;
mod system;
mod x87;

use ring3_core::memory::Memory;

use crate::cpu::Cpu;
use crate::decode::Op;
use crate::exception::Stopped;
use crate::flags::Status;
use crate::report::Missing;
use crate::table::Rows;
use crate::word::Word;

/// Adds all forms to the instruction table.
pub(crate) fn forms(rows: &mut Rows) {
    data::forms(rows);
    stack::forms(rows);
    arithmetic::forms(rows);
    multiply::forms(rows);
    bcd::forms(rows);
    shift::forms(rows);
    bits::forms(rows);
    branch::forms(rows);
    string::forms(rows);
    port::forms(rows);
    flag_control::forms(rows);
    system::forms(rows);
    x87::forms(rows);
}

/// What a handler returns.
pub(crate) type Done = Result<(), Stopped>;

/// #UD: the bytes are no instruction of this processor.
pub(crate) fn undefined_instruction(cpu: &mut Cpu, _: &mut Memory, _: &Op) -> Done {
    Err(cpu.undefined_opcode())
}

/// #GP: the instruction has more bytes than an instruction can have (SDM vol. 2, 2.3.11).
pub(crate) fn overlong_instruction(cpu: &mut Cpu, _: &mut Memory, _: &Op) -> Done {
    Err(cpu.general_protection(0))
}

/// An instruction that the processor should have and that is not in the table. The
/// report names it by its disassembly.
pub(crate) fn missing_instruction(cpu: &mut Cpu, _: &mut Memory, _: &Op) -> Done {
    Err(cpu.missing(Missing::Instruction))
}

impl Op {
    /// The effective address of the memory operand (SDM vol. 1, 3.7.5).
    #[inline(always)]
    pub(crate) fn effective_address(&self, cpu: &Cpu) -> u64 {
        let address = (cpu.gpr(self.base) as u32)
            .wrapping_add((cpu.gpr(self.index) as u32) << (self.scale & 3))
            .wrapping_add(self.disp);
        u64::from(address & self.address_mask())
    }

    /// The immediate operand in the size of the instruction.
    #[inline(always)]
    pub(crate) fn immediate<W: Word>(&self) -> W {
        W::truncate(u64::from(self.imm))
    }
}

/// The operand that ModRM.rm names.
pub(crate) trait Place {
    /// It is a general register.
    const IS_REGISTER: bool;

    /// Reads it.
    fn read<W: Word>(cpu: &mut Cpu, memory: &mut Memory, op: &Op) -> Result<W, Stopped>;

    /// Writes it.
    fn write<W: Word>(cpu: &mut Cpu, memory: &mut Memory, op: &Op, value: W) -> Done;

    /// Reads it, and writes what `change` makes of it and of the status flags.
    fn modify<W: Word>(
        cpu: &mut Cpu,
        memory: &mut Memory,
        op: &Op,
        change: impl FnOnce(Status, W) -> (W, Status),
    ) -> Done;
}

/// The operand is a general register.
pub(crate) struct Reg;

impl Place for Reg {
    const IS_REGISTER: bool = true;

    #[inline(always)]
    fn read<W: Word>(cpu: &mut Cpu, _: &mut Memory, op: &Op) -> Result<W, Stopped> {
        Ok(cpu.get(op.rm))
    }

    #[inline(always)]
    fn write<W: Word>(cpu: &mut Cpu, _: &mut Memory, op: &Op, value: W) -> Done {
        cpu.set(op.rm, value);
        Ok(())
    }

    #[inline(always)]
    fn modify<W: Word>(
        cpu: &mut Cpu,
        _: &mut Memory,
        op: &Op,
        change: impl FnOnce(Status, W) -> (W, Status),
    ) -> Done {
        let (value, status) = change(cpu.status, cpu.get(op.rm));
        cpu.set(op.rm, value);
        cpu.status = status;
        Ok(())
    }
}

/// The operand is in memory.
pub(crate) struct Mem;

impl Place for Mem {
    const IS_REGISTER: bool = false;

    #[inline(always)]
    fn read<W: Word>(cpu: &mut Cpu, memory: &mut Memory, op: &Op) -> Result<W, Stopped> {
        cpu.read(memory, op.segment, op.effective_address(cpu))
    }

    #[inline(always)]
    fn write<W: Word>(cpu: &mut Cpu, memory: &mut Memory, op: &Op, value: W) -> Done {
        cpu.write(memory, op.segment, op.effective_address(cpu), value)
    }

    #[inline(always)]
    fn modify<W: Word>(
        cpu: &mut Cpu,
        memory: &mut Memory,
        op: &Op,
        change: impl FnOnce(Status, W) -> (W, Status),
    ) -> Done {
        let address = op.effective_address(cpu);
        let old = cpu.read_for_write(memory, op.segment, address)?;
        let (value, status) = change(cpu.status, old);
        cpu.write(memory, op.segment, address, value)?;
        cpu.status = status;
        Ok(())
    }
}
