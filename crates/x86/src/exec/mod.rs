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
pub(crate) mod pair;
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

    /// The same operand, read and written in all cases.
    type Any: Place;

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
    type Any = Reg;

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
    type Any = Mem;

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
        let linear = cpu.linear_for_write(op.segment, op.effective_address(cpu), W::BYTES)?;
        let old = cpu.read_linear_for_write(memory, linear)?;
        let (value, status) = change(cpu.status, old);
        cpu.write_linear(memory, linear, value, cpu.is_user())?;
        cpu.status = status;
        Ok(())
    }
}

/// The operand is in memory, at an address that `A` computes, and the TLB knows all about it. Where
/// that is not so, it stops without a reason, and the instruction is to be executed with [`Mem`].
pub(crate) struct Quick<A>(PhantomData<A>);

/// How a linear address is computed for [`Quick`] operands.
pub(crate) trait Address {
    /// The linear address, where the segment lets everything there be read.
    fn for_read(cpu: &Cpu, op: &Op) -> Result<u64, Stopped>;

    /// The linear address, where the segment lets everything there be written.
    fn for_write(cpu: &Cpu, op: &Op) -> Result<u64, Stopped>;
}

/// Any effective address in any segment.
pub(crate) struct Segmented;

impl Address for Segmented {
    #[inline(always)]
    fn for_read(cpu: &Cpu, op: &Op) -> Result<u64, Stopped> {
        let segment = cpu.segment(op.segment);
        let linear = segment.base.wrapping_add(op.effective_address(cpu)) & 0xffff_ffff;
        if segment.reads_freely { Ok(linear) } else { Err(Stopped) }
    }

    #[inline(always)]
    fn for_write(cpu: &Cpu, op: &Op) -> Result<u64, Stopped> {
        let segment = cpu.segment(op.segment);
        let linear = segment.base.wrapping_add(op.effective_address(cpu)) & 0xffff_ffff;
        if segment.writes_freely { Ok(linear) } else { Err(Stopped) }
    }
}

/// A base register and a displacement in a flat segment, which most operands are: [`Op::is_flat`]
/// says when.
pub(crate) struct Flat;

impl Flat {
    /// The effective address, which is the linear one.
    #[inline(always)]
    pub(crate) fn address(cpu: &Cpu, op: &Op) -> u64 {
        u64::from((cpu.gpr(op.base) as u32).wrapping_add(op.disp))
    }
}

impl Address for Flat {
    #[inline(always)]
    fn for_read(cpu: &Cpu, op: &Op) -> Result<u64, Stopped> {
        Ok(Flat::address(cpu, op))
    }

    #[inline(always)]
    fn for_write(cpu: &Cpu, op: &Op) -> Result<u64, Stopped> {
        Ok(Flat::address(cpu, op))
    }
}

impl<A: Address> Place for Quick<A> {
    const IS_REGISTER: bool = false;
    type Any = Mem;

    #[inline(always)]
    fn read<W: Word>(cpu: &mut Cpu, memory: &mut Memory, op: &Op) -> Result<W, Stopped> {
        cpu.load_at_once(memory, A::for_read(cpu, op)?)
    }

    #[inline(always)]
    fn write<W: Word>(cpu: &mut Cpu, memory: &mut Memory, op: &Op, value: W) -> Done {
        let place = cpu.place_at_once::<W>(A::for_write(cpu, op)?)?;
        value.store(memory, place);
        Ok(())
    }

    #[inline(always)]
    fn modify<W: Word>(
        cpu: &mut Cpu,
        memory: &mut Memory,
        op: &Op,
        change: impl FnOnce(Status, W) -> (W, Status),
    ) -> Done {
        let place = cpu.place_at_once::<W>(A::for_write(cpu, op)?)?;
        let (value, status) = change(cpu.status, W::load(memory, place));
        value.store(memory, place);
        cpu.status = status;
        Ok(())
    }
}
