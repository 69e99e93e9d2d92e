//! MMX, and the instructions of SSE to SSE4.2 other than floating-point arithmetic (SDM vol. 1, chapters 9 to
//! 12): moves, packed integers, shuffles, strings and the state.
//!
//! A vector is a [`Vector`]: an MMX or an XMM register, or as many bits in memory. The operation of an
//! instruction is a closure in its row of the table, usually on a single [`Lane`] or two of them:
//! `u8::wrapping_add` is PADDB.
//!
//! A handler follows the order of the processor: first it checks whether the extension may be used (#UD, #NM)
//! and, with MMX, whether an x87 exception is pending; then come memory faults; then the operation, which
//! cannot fail.

mod arithmetic;
mod float;
mod general;
mod shift;
mod shuffle;
mod state;
mod text;
mod transfer;
mod vex;
mod xsave;

use ring3_core::memory::Memory;

use crate::cpu::{Cpu, Cr0, Cr4};
use crate::decode::Op;
use crate::exception::{Fault, Stopped, vector};
use crate::exec::x87::require_no_exception;
use crate::exec::{Address, Done, Mem, Place, Quick, Reg};
use crate::table::Rows;
use crate::word::Word;

/// Adds the forms of this chapter to the instruction table.
pub(super) fn forms(rows: &mut Rows) {
    state::forms(rows);
    xsave::forms(rows);
    transfer::forms(rows);
    arithmetic::forms(rows);
    float::forms(rows);
    shift::forms(rows);
    shuffle::forms(rows);
    text::forms(rows);
    general::forms(rows);
    vex::forms(rows);
}

/// Rows for an MMX and an XMM form: `change` computes the new destination from destination and source.
macro_rules! both {
    ($rows:ident, [$mm:ident $xmm:ident], $change:expr) => {
        $crate::exec::simd::row!($rows, u64, [$mm], combine, $change);
        $crate::exec::simd::row!($rows, u128, [$xmm], combine, $change);
    };
}

/// Rows for an MMX and an XMM form whose `change` takes lanes, one of the destination and one of the source.
macro_rules! lanes {
    ($rows:ident, [$mm:ident $xmm:ident], $change:expr) => {
        $crate::exec::simd::both!($rows, [$mm $xmm], |a, b| {
            $crate::exec::simd::zip(a, b, $change)
        });
    };
    ($rows:ident, [$xmm:ident], $change:expr) => {
        $crate::exec::simd::row!($rows, u128, [$xmm], combine, |a, b| {
            $crate::exec::simd::zip(a, b, $change)
        });
    };
}

/// Rows for forms on vectors of the given type, executed by `handler` with `parameter`. Those on XMM registers with
/// the handlers `combine` and `combine_by` are followed by the corresponding ones of AVX, on each 128 bits of their
/// vectors. A number behind `combine_by` says by how many bits the immediate operand is shifted for the upper ones.
macro_rules! row {
    ($rows:ident, u128, [$($code:ident)+], combine, $change:expr) => {$(
        $crate::exec::simd::row!($rows, {u128}, [$code], combine, $change);
        {
            use $crate::exec::simd::vex;
            vex::row!($rows, $code, combine, $change);
        }
    )+};
    ($rows:ident, u128, [$($code:ident)+], combine_by, $change:expr) => {
        $crate::exec::simd::row!($rows, u128, [$($code)+], combine_by 0, $change);
    };
    ($rows:ident, u128, [$($code:ident)+], combine_by $shift:literal, $change:expr) => {$(
        $crate::exec::simd::row!($rows, {u128}, [$code], combine_by, $change);
        {
            use $crate::exec::simd::vex;
            vex::row!($rows, $code, combine_by::<{ $shift }>, $change);
        }
    )+};
    ($rows:ident, {$vector:ty}, [$code:ident], $handler:ident, $parameter:expr) => {
        $crate::exec::simd::row!($rows, $vector, [$code], $handler, $parameter);
    };
    ($rows:ident, $vector:ty, [$($code:ident)+], $handler:ident, $parameter:expr) => {$(
        $rows.add(iced_x86::Code::$code, $crate::table::exec!(|cpu, memory, op| {
                $crate::exec::simd::$handler::<$crate::exec::Mem, $vector>(
                    cpu, memory, op, $parameter,
                )
            }), $crate::table::exec!(|cpu, memory, op| {
                $crate::exec::simd::$handler::<$crate::exec::Reg, $vector>(
                    cpu, memory, op, $parameter,
                )
            }));
    )+};
}

use {both, lanes, row};

/// An element of a vector.
trait Lane: Copy + 'static {
    /// Its size in bits.
    const BITS: usize;
    /// Makes a lane of the low bits of `bits`.
    fn of(bits: u64) -> Self;
    /// Returns the lane, sign- or zero-extended to 64 bits.
    fn bits(self) -> u64;
}

macro_rules! lane {
    ($($lane:ty, $extended:ty;)+) => {$(
        impl Lane for $lane {
            const BITS: usize = <$lane>::BITS as usize;

            #[inline(always)]
            fn of(bits: u64) -> Self {
                bits as Self
            }

            #[inline(always)]
            fn bits(self) -> u64 {
                self as $extended as u64
            }
        }
    )+};
}

lane! { u8, u64; u16, u64; u32, u64; u64, u64; i8, i64; i16, i64; i32, i64; i64, i64; }

/// The contents of an MMX or an XMM register.
trait Vector: Copy + 'static {
    /// Its size in bits.
    const BITS: usize;

    /// Returns the vector, zero-extended.
    fn wide(self) -> u128;
    /// Makes a vector of the low bits of `bits`.
    fn of(bits: u128) -> Self;
    /// Checks for the exceptions of an instruction on such registers that come before any memory access, and makes its
    /// changes besides its destination.
    fn begin(cpu: &mut Cpu) -> Done;
    /// Returns the number of the register that is the first source: the destination, or another one with VEX.
    #[inline(always)]
    fn first(op: &Op) -> u8 {
        op.reg
    }
    /// Reads register `number`.
    fn get(cpu: &Cpu, number: u8) -> Self;
    /// Writes register `number`.
    fn set(cpu: &mut Cpu, number: u8, value: Self);
    /// Reads the memory operand.
    fn load(cpu: &mut Cpu, memory: &mut Memory, op: &Op, aligned: bool) -> Result<Self, Stopped>;
    /// Writes the memory operand.
    fn store(self, cpu: &mut Cpu, memory: &mut Memory, op: &Op, aligned: bool) -> Done;

    /// Returns lane `index`.
    #[inline(always)]
    fn lane<L: Lane>(self, index: usize) -> L {
        L::of((self.wide() >> (index * L::BITS)) as u64)
    }
}

/// An MMX register (SDM vol. 3, table 23-8 for the exceptions).
impl Vector for u64 {
    const BITS: usize = 64;

    #[inline(always)]
    fn wide(self) -> u128 {
        self.into()
    }

    #[inline(always)]
    fn of(bits: u128) -> u64 {
        bits as u64
    }

    fn begin(cpu: &mut Cpu) -> Done {
        if cpu.cr0().contains(Cr0::EM) {
            return Err(cpu.undefined_opcode());
        }
        if cpu.cr0().contains(Cr0::TS) {
            return Err(cpu.fault(Fault::new(vector::NM)));
        }
        require_no_exception(cpu)?;
        // Some processors make the changes before they access memory, and so they stay if that faults.
        cpu.fpu.enter_mmx();
        Ok(())
    }

    #[inline(always)]
    fn get(cpu: &Cpu, number: u8) -> u64 {
        cpu.fpu.mm(number)
    }

    #[inline(always)]
    fn set(cpu: &mut Cpu, number: u8, value: u64) {
        cpu.fpu.set_mm(number, value);
    }

    #[inline(always)]
    fn load(cpu: &mut Cpu, memory: &mut Memory, op: &Op, _: bool) -> Result<u64, Stopped> {
        Mem::read(cpu, memory, op)
    }

    #[inline(always)]
    fn store(self, cpu: &mut Cpu, memory: &mut Memory, op: &Op, _: bool) -> Done {
        Mem::write(cpu, memory, op, self)
    }
}

/// An XMM register (SDM vol. 3, tables 23-4 to 23-7 for the exceptions).
impl Vector for u128 {
    const BITS: usize = 128;

    #[inline(always)]
    fn wide(self) -> u128 {
        self
    }

    #[inline(always)]
    fn of(bits: u128) -> u128 {
        bits
    }

    fn begin(cpu: &mut Cpu) -> Done {
        if cpu.cr0().contains(Cr0::EM) || !cpu.cr4().contains(Cr4::OSFXSR) {
            return Err(cpu.undefined_opcode());
        }
        if cpu.cr0().contains(Cr0::TS) {
            return Err(cpu.fault(Fault::new(vector::NM)));
        }
        Ok(())
    }

    #[inline(always)]
    fn get(cpu: &Cpu, number: u8) -> u128 {
        cpu.sse.xmm(number)
    }

    #[inline(always)]
    fn set(cpu: &mut Cpu, number: u8, value: u128) {
        cpu.sse.set_xmm(number, value);
    }

    #[inline(always)]
    fn load(cpu: &mut Cpu, memory: &mut Memory, op: &Op, aligned: bool) -> Result<u128, Stopped> {
        cpu.read_16_bytes(memory, op.segment, op.effective_address(cpu), aligned)
    }

    #[inline(always)]
    fn store(self, cpu: &mut Cpu, memory: &mut Memory, op: &Op, aligned: bool) -> Done {
        cpu.write_16_bytes(memory, op.segment, op.effective_address(cpu), self, aligned)
    }
}

/// The vector operand that ModRM.rm specifies.
trait Source {
    /// Reads the operand.
    fn vector<V: Vector>(cpu: &mut Cpu, memory: &mut Memory, op: &Op) -> Result<V, Stopped>;

    /// Reads its low bits, if an instruction needs no others.
    fn low<V: Vector, W: Word>(cpu: &mut Cpu, memory: &mut Memory, op: &Op) -> Result<W, Stopped>;
}

impl Source for Mem {
    #[inline(always)]
    fn vector<V: Vector>(cpu: &mut Cpu, memory: &mut Memory, op: &Op) -> Result<V, Stopped> {
        V::load(cpu, memory, op, true)
    }

    #[inline(always)]
    fn low<V: Vector, W: Word>(cpu: &mut Cpu, memory: &mut Memory, op: &Op) -> Result<W, Stopped> {
        <Self as Place>::read(cpu, memory, op)
    }
}

impl<A: Address> Source for Quick<A> {
    #[inline(always)]
    fn vector<V: Vector>(cpu: &mut Cpu, memory: &mut Memory, op: &Op) -> Result<V, Stopped> {
        V::load(cpu, memory, op, true)
    }

    #[inline(always)]
    fn low<V: Vector, W: Word>(cpu: &mut Cpu, memory: &mut Memory, op: &Op) -> Result<W, Stopped> {
        <Self as Place>::read(cpu, memory, op)
    }
}

impl Source for Reg {
    #[inline(always)]
    fn vector<V: Vector>(cpu: &mut Cpu, _: &mut Memory, op: &Op) -> Result<V, Stopped> {
        Ok(V::get(cpu, op.rm))
    }

    #[inline(always)]
    fn low<V: Vector, W: Word>(cpu: &mut Cpu, _: &mut Memory, op: &Op) -> Result<W, Stopped> {
        Ok(W::truncate(V::get(cpu, op.rm).wide() as u64))
    }
}

/// Makes a vector; `lane` makes each lane by its index.
#[inline(always)]
fn vector<V: Vector, L: Lane>(mut lane: impl FnMut(usize) -> L) -> V {
    let mask = u64::MAX >> (64 - L::BITS);
    let bits = (0..V::BITS / L::BITS)
        .fold(0, |bits, index| bits | u128::from(lane(index).bits() & mask) << (index * L::BITS));
    V::of(bits)
}

/// Combines two vectors lane by lane.
#[inline(always)]
fn zip<V: Vector, L: Lane>(a: V, b: V, change: impl Fn(L, L) -> L) -> V {
    vector(|index| change(a.lane(index), b.lane(index)))
}

/// Changes one vector lane by lane.
#[inline(always)]
fn map<V: Vector, L: Lane>(a: V, change: impl Fn(L) -> L) -> V {
    vector(|index| change(a.lane(index)))
}

/// Sets the destination to the value that `change` computes from it and from the source.
#[inline(always)]
fn combine<S: Source, V: Vector>(
    cpu: &mut Cpu,
    memory: &mut Memory,
    op: &Op,
    change: impl Fn(V, V) -> V,
) -> Done {
    V::begin(cpu)?;
    let source = S::vector::<V>(cpu, memory, op)?;
    V::set(cpu, op.reg, change(V::get(cpu, op.reg), source));
    Ok(())
}

/// Sets the destination to the value that `change` computes from it, from the source and from the immediate
/// operand.
#[inline(always)]
fn combine_by<S: Source, V: Vector>(
    cpu: &mut Cpu,
    memory: &mut Memory,
    op: &Op,
    change: impl Fn(V, V, usize) -> V,
) -> Done {
    combine::<S, V>(cpu, memory, op, |a, b| change(a, b, immediate(op)))
}

/// Sets the destination to the value that `change` computes from it and from the source's low bits.
#[inline(always)]
fn combine_low<S: Source, V: Vector, W: Word>(
    cpu: &mut Cpu,
    memory: &mut Memory,
    op: &Op,
    change: impl Fn(V, W) -> V,
) -> Done {
    V::begin(cpu)?;
    let source = S::low::<V, W>(cpu, memory, op)?;
    V::set(cpu, op.reg, change(V::get(cpu, op.reg), source));
    Ok(())
}

/// Returns the immediate byte.
fn immediate(op: &Op) -> usize {
    usize::from(op.immediate::<u8>())
}
