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
mod msr;
mod multiply;
mod port;
mod shift;
mod simd;
mod stack;
mod string;
mod system;
mod x87;

use std::marker::PhantomData;

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
    msr::forms(rows);
    x87::forms(rows);
    simd::forms(rows);
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

/// The operand is in memory, at an address that `A` computes.
pub(crate) struct At<A>(PhantomData<A>);

/// The operand is in memory, anywhere.
pub(crate) type Mem = At<Segmented>;

/// The operand is in memory, at a base register and a displacement of a flat segment.
pub(crate) type FlatMem = At<Flat>;

/// How the linear address of the memory operand is computed.
pub(crate) trait Address {
    /// The linear address, if `size` bytes there may be read.
    fn for_read(cpu: &mut Cpu, op: &Op, size: usize) -> Result<u64, Stopped>;

    /// The linear address, if `size` bytes there may be written.
    fn for_write(cpu: &mut Cpu, op: &Op, size: usize) -> Result<u64, Stopped>;
}

/// Any effective address in any segment.
pub(crate) struct Segmented;

impl Address for Segmented {
    #[inline(always)]
    fn for_read(cpu: &mut Cpu, op: &Op, size: usize) -> Result<u64, Stopped> {
        cpu.linear_for_read(op.segment, op.effective_address(cpu), size)
    }

    #[inline(always)]
    fn for_write(cpu: &mut Cpu, op: &Op, size: usize) -> Result<u64, Stopped> {
        cpu.linear_for_write(op.segment, op.effective_address(cpu), size)
    }
}

/// What most operands are: [`Op::is_flat`] says when.
pub(crate) struct Flat;

impl Flat {
    #[inline(always)]
    fn address(cpu: &Cpu, op: &Op) -> u64 {
        u64::from((cpu.gpr(op.base) as u32).wrapping_add(op.disp))
    }
}

impl Address for Flat {
    #[inline(always)]
    fn for_read(cpu: &mut Cpu, op: &Op, _: usize) -> Result<u64, Stopped> {
        Ok(Flat::address(cpu, op))
    }

    #[inline(always)]
    fn for_write(cpu: &mut Cpu, op: &Op, _: usize) -> Result<u64, Stopped> {
        Ok(Flat::address(cpu, op))
    }
}

impl<A: Address> Place for At<A> {
    const IS_REGISTER: bool = false;

    #[inline(always)]
    fn read<W: Word>(cpu: &mut Cpu, memory: &mut Memory, op: &Op) -> Result<W, Stopped> {
        let linear = A::for_read(cpu, op, W::BYTES)?;
        cpu.read_linear(memory, linear, cpu.is_user())
    }

    #[inline(always)]
    fn write<W: Word>(cpu: &mut Cpu, memory: &mut Memory, op: &Op, value: W) -> Done {
        let linear = A::for_write(cpu, op, W::BYTES)?;
        cpu.write_linear(memory, linear, value, cpu.is_user())
    }

    #[inline(always)]
    fn modify<W: Word>(
        cpu: &mut Cpu,
        memory: &mut Memory,
        op: &Op,
        change: impl FnOnce(Status, W) -> (W, Status),
    ) -> Done {
        let linear = A::for_write(cpu, op, W::BYTES)?;
        let old = cpu.read_linear_for_write(memory, linear)?;
        let (value, status) = change(cpu.status, old);
        cpu.write_linear(memory, linear, value, cpu.is_user())?;
        cpu.status = status;
        Ok(())
    }
}
