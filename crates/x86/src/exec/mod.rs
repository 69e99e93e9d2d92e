//! The semantics of the instructions, a file a chapter of the manual.
//!
//! A handler reads its operands, computes, and changes the state only when nothing can fail any more. An
//! operand that ModRM specifies is a [`Place`], in memory or in a register. Decoding decides which.

// All handlers have the same type, including those that cannot fail.
#![allow(clippy::unnecessary_wraps)]

mod arithmetic;
mod bcd;
mod bits;
pub(crate) mod bmi;
mod branch;
mod data;
mod flag_control;
mod long_mode;
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

use crate::cpu::{Cpu, reg};
use crate::decode::Op;
use crate::exception::Stopped;
use crate::flags::Status;
use crate::table::{Group, Rows};
use crate::word::Word;

/// Adds all forms to the instruction table.
pub(crate) fn forms(rows: &mut Rows) {
    data::forms(rows.begin(Group::Moves));
    stack::forms(rows.begin(Group::Stack));
    arithmetic::forms(rows.begin(Group::Arithmetic));
    multiply::forms(rows);
    bcd::forms(rows);
    shift::forms(rows.begin(Group::Shifts));
    bits::forms(rows);
    bmi::forms(rows);
    branch::forms(rows.begin(Group::Control));
    string::forms(rows.begin(Group::Strings));
    port::forms(rows.begin(Group::Ports));
    flag_control::forms(rows.begin(Group::Flags));
    system::forms(rows.begin(Group::System));
    msr::forms(rows);
    long_mode::forms(rows);
    x87::forms(rows.begin(Group::X87));
    simd::forms(rows.begin(Group::Simd));
}

/// The result of a handler.
pub(crate) type Done = Result<(), Stopped>;

/// Raises #UD, because the bytes are not an instruction of this processor.
pub(crate) fn undefined_instruction(cpu: &mut Cpu, _: &mut Memory, _: &Op) -> Done {
    Err(cpu.undefined_opcode())
}

/// Raises #GP, because the instruction has more bytes than an instruction can have (SDM vol. 2, 2.3.11).
pub(crate) fn overlong_instruction(cpu: &mut Cpu, _: &mut Memory, _: &Op) -> Done {
    Err(cpu.general_protection(0))
}

impl Op {
    /// Returns the sum of base, scaled index and displacement.
    #[inline(always)]
    fn whole_address(&self, cpu: &Cpu) -> u64 {
        cpu.gpr(self.base)
            .wrapping_add(cpu.gpr(self.index) << (self.scale & 3))
            .wrapping_add(self.disp.sign_extend())
    }

    /// Returns the effective address of the memory operand (SDM vol. 1, 3.7.5).
    #[inline(always)]
    pub(crate) fn effective_address(&self, cpu: &Cpu) -> u64 {
        self.whole_address(cpu) & self.address_mask()
    }

    /// Returns the same instruction with a memory operand `bytes` further on. `cpu` keeps the address until
    /// this is called again.
    pub(crate) fn displaced(&self, cpu: &mut Cpu, bytes: u64) -> Op {
        let address = self.effective_address(cpu).wrapping_add(bytes);
        cpu.set_gpr(reg::ADDRESS, address);
        self.with_base_alone(reg::ADDRESS)
    }

    /// Returns the immediate operand in the size of the instruction.
    #[inline(always)]
    pub(crate) fn immediate<W: Word>(&self) -> W {
        W::truncate(self.imm.sign_extend())
    }
}

/// The operand that ModRM.rm specifies.
pub(crate) trait Place {
    /// Whether it is a general register.
    const IS_REGISTER: bool;

    /// The same kind of operand without the restrictions of [`Quick`].
    type Any: Place;

    /// Reads the operand.
    fn read<W: Word>(cpu: &mut Cpu, memory: &mut Memory, op: &Op) -> Result<W, Stopped>;

    /// Writes the operand.
    fn write<W: Word>(cpu: &mut Cpu, memory: &mut Memory, op: &Op, value: W) -> Done;

    /// Reads the operand, and writes the value that `change` computes from it and from the status flags.
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

/// The operand is in memory, at an address that `A` computes, and the TLB allows the access without further
/// checks. Otherwise the instruction stops without a reason and must be executed with [`Mem`].
pub(crate) struct Quick<A>(PhantomData<A>);

/// The computation of linear addresses for [`Quick`] operands.
pub(crate) trait Address {
    /// Returns the linear address, if every offset in the segment may be read.
    fn for_read(cpu: &Cpu, op: &Op) -> Result<u64, Stopped>;

    /// Returns the linear address, if every offset in the segment may be written.
    fn for_write(cpu: &Cpu, op: &Op) -> Result<u64, Stopped>;
}

/// Any effective address in any segment.
pub(crate) struct Segmented;

impl Address for Segmented {
    #[inline(always)]
    fn for_read(cpu: &Cpu, op: &Op) -> Result<u64, Stopped> {
        let view = cpu.view(op.segment);
        let linear = cpu.linear(view, op.effective_address(cpu));
        if view.reads_at_once { Ok(linear) } else { Err(Stopped) }
    }

    #[inline(always)]
    fn for_write(cpu: &Cpu, op: &Op) -> Result<u64, Stopped> {
        let view = cpu.view(op.segment);
        let linear = cpu.linear(view, op.effective_address(cpu));
        if view.writes_at_once { Ok(linear) } else { Err(Stopped) }
    }
}

/// A base register and a displacement in a flat segment, as in most operands; see [`Op::is_flat`].
pub(crate) struct Flat;

impl Flat {
    /// Returns the effective address, which is also the linear one.
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

/// A 64-bit address in a segment without a base; see [`Op::is_long`]. The TLB has no entry for an address
/// that is not canonical.
pub(crate) struct Long;

impl Address for Long {
    #[inline(always)]
    fn for_read(cpu: &Cpu, op: &Op) -> Result<u64, Stopped> {
        Ok(op.whole_address(cpu))
    }

    #[inline(always)]
    fn for_write(cpu: &Cpu, op: &Op) -> Result<u64, Stopped> {
        Ok(op.whole_address(cpu))
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
