//! AVX and what came after it: vector instructions with a VEX prefix (SDM vol. 1, chapter 14; vol. 2, 2.3 and 2.4).
//!
//! Most of them do what an instruction of SSE does, on one or two [`Lanes`] of 128 bits, with a destination of its own.
//! Their rows follow from that instruction's row ([`Rows::add_vex`]), and they share its operation. The others are in
//! the files of this folder.
//!
//! They all clear what is above the part of the destination that they write.

mod float;
mod fused;
mod masked;
mod moves;
mod permute;

use ring3_core::memory::Memory;

pub(super) use float::{low, whole};

use super::shift::count;
use super::{Vector, immediate};
use crate::cpu::{Cpu, Cr0};
use crate::decode::Op;
use crate::exception::{Fault, Stopped, vector};
use crate::exec::bmi::require_vex;
use crate::exec::{Done, Mem, Place, Reg};
use crate::table::Rows;
use crate::word::Word;

/// Adds the forms of this chapter to the instruction table that have no row yet.
pub(super) fn forms(rows: &mut Rows) {
    moves::forms(rows);
    masked::forms(rows);
    permute::forms(rows);
    float::forms(rows);
    fused::forms(rows);
}

/// Rows for the forms of AVX that correspond to one of SSE, executed by a handler of this file.
macro_rules! row {
    ($rows:ident, $code:ident, $handler:ident $(::<$bits:block>)?, $change:expr) => {
        $rows.add_vex(
            iced_x86::Code::$code,
            vex::handlers!(vex::$handler, 1 $(; $bits)?, $change),
            Some(vex::handlers!(vex::$handler, 2 $(; $bits)?, $change)),
        );
    };
}

/// The handlers of such a form for an operand in memory and for one in a register.
macro_rules! handlers {
    ($($handler:ident)::+, $lanes:literal $(; $bits:block)?, $change:expr) => {{
        use $crate::exec::{Mem, Reg};
        use $crate::table::{Handlers, exec};
        let handlers: Handlers = (
            exec!(|cpu, memory, op| {
                $($handler)::+::<Mem, $lanes $(, $bits)?>(cpu, memory, op, $change)
            }),
            exec!(|cpu, memory, op| {
                $($handler)::+::<Reg, $lanes $(, $bits)?>(cpu, memory, op, $change)
            }),
        );
        handlers
    }};
}

/// Rows for the given forms, one on vectors of 128 bits and one on those of 256 bits.
macro_rules! pair {
    ($rows:ident, [$narrow:ident $wide:ident], $handler:ident $(::<$bits:block>)?, $change:expr) => {{
        let (memory, register) = handlers!($handler, 1 $(; $bits)?, $change);
        $rows.add(iced_x86::Code::$narrow, memory, register);
        let (memory, register) = handlers!($handler, 2 $(; $bits)?, $change);
        $rows.add(iced_x86::Code::$wide, memory, register);
    }};
}

/// Rows for forms whose handler is generic in where the operand is, and has the other given parameters.
macro_rules! either {
    ($rows:ident, [], $handler:ident $(, $parameter:tt)*) => {};
    ($rows:ident, [$code:ident $($rest:ident)*], $handler:ident $(, $parameter:tt)*) => {
        $rows.add(
            iced_x86::Code::$code,
            $crate::table::exec!($handler::<$crate::exec::Mem $(, $parameter)*>),
            $crate::table::exec!($handler::<$crate::exec::Reg $(, $parameter)*>),
        );
        either!($rows, [$($rest)*], $handler $(, $parameter)*);
    };
}

pub(super) use {either, handlers, pair, row};

/// The two halves of a vector of 256 bits, the lower one first. In one of 128 bits the upper half is 0, or not used.
pub(super) type Lanes = [u128; 2];

/// Checks for the exceptions that come before any memory access (SDM vol. 2, 2.4).
pub(super) fn begin(cpu: &mut Cpu) -> Done {
    require_vex(cpu)?;
    if !cpu.is_avx_enabled() {
        return Err(cpu.undefined_opcode());
    }
    if cpu.cr0().contains(Cr0::TS) {
        return Err(cpu.fault(Fault::new(vector::NM)));
    }
    Ok(())
}

/// The vector operand that ModRM.rm specifies.
pub(super) trait Source {
    /// Reads `COUNT` times 128 bits of it, which in memory must be aligned if `aligned` is true.
    fn lanes<const COUNT: usize>(
        cpu: &mut Cpu,
        memory: &mut Memory,
        op: &Op,
        aligned: bool,
    ) -> Result<Lanes, Stopped>;

    /// Writes `COUNT` times 128 bits to it in the same way.
    fn set_lanes<const COUNT: usize>(
        cpu: &mut Cpu,
        memory: &mut Memory,
        op: &Op,
        lanes: Lanes,
        aligned: bool,
    ) -> Done;

    /// Reads its low bits, if an instruction needs no others.
    fn low<W: Word>(cpu: &mut Cpu, memory: &mut Memory, op: &Op) -> Result<W, Stopped>;

    /// Writes its low quadword. The rest of a register becomes 0.
    fn set_low(cpu: &mut Cpu, memory: &mut Memory, op: &Op, value: u64) -> Done;

    /// Checks that `size` bytes of it can be written.
    fn check_writable(cpu: &mut Cpu, memory: &mut Memory, op: &Op, size: usize) -> Done;
}

impl Source for Mem {
    fn lanes<const COUNT: usize>(
        cpu: &mut Cpu,
        memory: &mut Memory,
        op: &Op,
        aligned: bool,
    ) -> Result<Lanes, Stopped> {
        let offset = op.effective_address(cpu);
        let mut lanes = [0; 2];
        cpu.read_lanes(memory, op.segment, offset, &mut lanes[..COUNT], aligned)?;
        Ok(lanes)
    }

    fn set_lanes<const COUNT: usize>(
        cpu: &mut Cpu,
        memory: &mut Memory,
        op: &Op,
        lanes: Lanes,
        aligned: bool,
    ) -> Done {
        let offset = op.effective_address(cpu);
        cpu.write_lanes(memory, op.segment, offset, &lanes[..COUNT], aligned)
    }

    fn low<W: Word>(cpu: &mut Cpu, memory: &mut Memory, op: &Op) -> Result<W, Stopped> {
        <Mem as Place>::read(cpu, memory, op)
    }

    fn set_low(cpu: &mut Cpu, memory: &mut Memory, op: &Op, value: u64) -> Done {
        <Mem as Place>::write(cpu, memory, op, value)
    }

    fn check_writable(cpu: &mut Cpu, memory: &mut Memory, op: &Op, size: usize) -> Done {
        cpu.check_writable(memory, op.segment, op.effective_address(cpu), size)
    }
}

impl Source for Reg {
    fn lanes<const COUNT: usize>(
        cpu: &mut Cpu,
        _: &mut Memory,
        op: &Op,
        _: bool,
    ) -> Result<Lanes, Stopped> {
        Ok(cpu.sse.ymm(op.rm))
    }

    fn set_lanes<const COUNT: usize>(
        cpu: &mut Cpu,
        _: &mut Memory,
        op: &Op,
        source: Lanes,
        _: bool,
    ) -> Done {
        cpu.sse.set_ymm(op.rm, lanes::<COUNT>(|lane| source[lane]));
        Ok(())
    }

    fn low<W: Word>(cpu: &mut Cpu, _: &mut Memory, op: &Op) -> Result<W, Stopped> {
        Ok(W::truncate(cpu.sse.xmm(op.rm) as u64))
    }

    fn set_low(cpu: &mut Cpu, _: &mut Memory, op: &Op, value: u64) -> Done {
        cpu.sse.set_ymm(op.rm, [value.into(), 0]);
        Ok(())
    }

    fn check_writable(_: &mut Cpu, _: &mut Memory, _: &Op, _: usize) -> Done {
        Ok(())
    }
}

/// Makes `COUNT` lanes; `lane` makes each by its number.
#[inline(always)]
pub(super) fn lanes<const COUNT: usize>(mut lane: impl FnMut(usize) -> u128) -> Lanes {
    let mut lanes = [0; 2];
    for (number, place) in lanes[..COUNT].iter_mut().enumerate() {
        *place = lane(number);
    }
    lanes
}

/// Sets each lane of the destination to the value that `change` computes from the lanes of both sources.
pub(super) fn combine<S: Source, const COUNT: usize>(
    cpu: &mut Cpu,
    memory: &mut Memory,
    op: &Op,
    change: impl Fn(u128, u128) -> u128,
) -> Done {
    begin(cpu)?;
    let (a, b) = (cpu.sse.ymm(op.vvvv()), S::lanes::<COUNT>(cpu, memory, op, false)?);
    cpu.sse.set_ymm(op.reg, lanes::<COUNT>(|lane| change(a[lane], b[lane])));
    Ok(())
}

/// Does the same with the immediate operand, which is shifted by so many bits for the upper lane.
pub(super) fn combine_by<S: Source, const COUNT: usize, const SHIFT: usize>(
    cpu: &mut Cpu,
    memory: &mut Memory,
    op: &Op,
    change: impl Fn(u128, u128, usize) -> u128,
) -> Done {
    begin(cpu)?;
    let (a, b) = (cpu.sse.ymm(op.vvvv()), S::lanes::<COUNT>(cpu, memory, op, false)?);
    let by = immediate(op);
    let result = lanes::<COUNT>(|lane| change(a[lane], b[lane], by >> (SHIFT * lane)));
    cpu.sse.set_ymm(op.reg, result);
    Ok(())
}

/// Shifts the lanes by a count in a vector of 128 bits.
pub(super) fn counted<S: Source, const COUNT: usize>(
    cpu: &mut Cpu,
    memory: &mut Memory,
    op: &Op,
    shift: impl Fn(u128, u64) -> u128,
) -> Done {
    begin(cpu)?;
    let (a, b) = (cpu.sse.ymm(op.vvvv()), S::lanes::<1>(cpu, memory, op, false)?);
    cpu.sse.set_ymm(op.reg, lanes::<COUNT>(|lane| shift(a[lane], count(b[0]))));
    Ok(())
}

/// Shifts the lanes of the register that ModRM.rm specifies by the immediate operand. The destination is in VEX.vvvv.
pub(super) fn by_immediate<S: Source, const COUNT: usize>(
    cpu: &mut Cpu,
    memory: &mut Memory,
    op: &Op,
    shift: impl Fn(u128, u64) -> u128,
) -> Done {
    begin(cpu)?;
    let a = S::lanes::<COUNT>(cpu, memory, op, false)?;
    cpu.sse.set_ymm(op.vvvv(), lanes::<COUNT>(|lane| shift(a[lane], immediate(op) as u64)));
    Ok(())
}

/// Sets the destination to the value that `change` computes from the first source and the low bits of the second one.
pub(super) fn combine_low<S: Source, W: Word>(
    cpu: &mut Cpu,
    memory: &mut Memory,
    op: &Op,
    change: impl Fn(u128, W) -> Lanes,
) -> Done {
    begin(cpu)?;
    let b = S::low::<W>(cpu, memory, op)?;
    cpu.sse.set_ymm(op.reg, change(cpu.sse.xmm(op.vvvv()), b));
    Ok(())
}

/// An XMM register of an instruction with a VEX prefix. Its first source is in VEX.vvvv.
#[derive(Debug, Clone, Copy)]
pub(super) struct Xmm(u128);

impl Vector for Xmm {
    const BITS: usize = 128;

    #[inline(always)]
    fn wide(self) -> u128 {
        self.0
    }

    #[inline(always)]
    fn of(bits: u128) -> Xmm {
        Xmm(bits)
    }

    fn begin(cpu: &mut Cpu) -> Done {
        begin(cpu)
    }

    #[inline(always)]
    fn first(op: &Op) -> u8 {
        op.vvvv()
    }

    #[inline(always)]
    fn get(cpu: &Cpu, number: u8) -> Xmm {
        Xmm(cpu.sse.xmm(number))
    }

    #[inline(always)]
    fn set(cpu: &mut Cpu, number: u8, value: Xmm) {
        cpu.sse.set_ymm(number, [value.0, 0]);
    }

    fn load(cpu: &mut Cpu, memory: &mut Memory, op: &Op, aligned: bool) -> Result<Xmm, Stopped> {
        u128::load(cpu, memory, op, aligned).map(Xmm)
    }

    fn store(self, cpu: &mut Cpu, memory: &mut Memory, op: &Op, aligned: bool) -> Done {
        self.0.store(cpu, memory, op, aligned)
    }
}
