//! Handlers that execute two or three instructions which are often adjacent: a comparison, or another
//! instruction that sets flags, with the conditional jump after it; and moves and stack operations with
//! instructions that often follow them.
//!
//! A mispredicted indirect call costs the host as much as all of these together. They still count as separate
//! instructions, and the execution can stop between them.

use std::marker::PhantomData;

use iced_x86::Code;
use ring3_core::memory::Memory;

use crate::cpu::Cpu;
use crate::decode::{CodeMode, Op};
use crate::exec::branch::{
    Condition, IfEqual, IfNotEqual, call_by_link, jump_if_by_link, quick_return,
};
use crate::exec::{Done, Flat, Mem, Quick, Reg, arithmetic, data, stack};
use crate::table::{Exec, go_on, slow};

/// The handlers of a comparison and the jump after it, by the number of the jump's condition in its opcode
/// (SDM vol. 1, appendix B).
#[derive(Debug)]
pub(crate) struct Pairs {
    /// For a comparison whose ModRM operand is in memory.
    pub(crate) memory: [Exec; 16],
    /// For a comparison whose memory operand is [`Op::is_flat`].
    pub(crate) flat: [Exec; 16],
    /// For a comparison whose ModRM operand is a register.
    pub(crate) register: [Exec; 16],
}

/// Makes the last instruction of `block` also execute `second`, the instruction after it, if there is a
/// handler for both, and the one before the last execute all three.
pub(crate) fn join(block: &mut [Op], second: &Op, mode: CodeMode) {
    let Some((first, before)) = block.split_last_mut() else { return };
    if let Some(condition) = second.form.form().and_then(|form| form.condition) {
        let Some(pairs) = first.form.form().and_then(|form| form.pairs) else { return };
        let by_condition = if !first.has_memory_operand() {
            &pairs.register
        } else if mode.is_flat && first.is_flat() {
            &pairs.flat
        } else {
            &pairs.memory
        };
        first.exec = by_condition[usize::from(condition & 15)];
        if let Some(before) = before.last_mut() {
            join_parts(before, test_and_jump(first, condition), mode);
        }
    } else {
        join_parts(first, part(second, mode), mode);
    }
}

/// Makes `first` also execute `second`, if there is a handler for both.
fn join_parts(first: &mut Op, second: Option<Part>, mode: CodeMode) {
    if let Some(second) = second
        && let Some(followers) = part(first, mode).and_then(|part| FOLLOWERS.get(part as usize))
    {
        first.exec = followers[second as usize];
    }
}

/// Returns the part that `op` can be in a pair, or None if segments are not flat.
fn part(op: &Op, mode: CodeMode) -> Option<Part> {
    let form = op.form.form().filter(|_| mode.is_flat)?;
    if !op.has_memory_operand() {
        form.register_part
    } else if op.is_flat() {
        form.flat_part
    } else {
        None
    }
}

/// Returns the part that `op` and a jump after it are together for the instruction before them, by the number
/// of the jump's condition.
fn test_and_jump(op: &Op, condition: u8) -> Option<Part> {
    let is_test = op.form.form().is_some_and(|form| form.code == Code::Test_rm32_r32);
    match condition {
        4 if is_test && !op.has_memory_operand() => Some(Part::TestAndJumpIfEqual),
        5 if is_test && !op.has_memory_operand() => Some(Part::TestAndJumpIfNotEqual),
        _ => None,
    }
}

/// The instructions that can be parts of a pair. Each of the first six can be followed by any of them.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Part {
    /// MOV from a flat memory operand.
    Load,
    /// MOV to a flat memory operand.
    Store,
    /// MOV to the register that ModRM.rm specifies.
    Copy,
    /// PUSH of a register.
    Push,
    /// POP to a register.
    Pop,
    /// LEA of a base register and a displacement.
    Address,
    /// A near RET.
    Return,
    /// A near relative CALL.
    Call,
    /// TEST of registers, and JE.
    TestAndJumpIfEqual,
    /// TEST of registers, and JNE.
    TestAndJumpIfNotEqual,
}

/// The handlers of two parts, by the numbers of the parts.
const FOLLOWERS: &[[Exec; 10]; 6] = &[
    followers::<Load>(),
    followers::<Store>(),
    followers::<Copy>(),
    followers::<Push>(),
    followers::<Pop>(),
    followers::<Address>(),
];

const fn followers<F: First>() -> [Exec; 10] {
    [
        two::<F, Load>,
        two::<F, Store>,
        two::<F, Copy>,
        two::<F, Push>,
        two::<F, Pop>,
        two::<F, Address>,
        two::<F, Return>,
        two::<F, Call>,
        two::<F, TestAndJump<IfEqual>>,
        two::<F, TestAndJump<IfNotEqual>>,
    ]
}

/// Executes the instruction `op` and the one after it.
fn two<F: First, S: Second>(
    cpu: &mut Cpu,
    memory: &mut Memory,
    op: &Op,
    ops: &[Op],
    at: usize,
) -> Done {
    if F::quick(cpu, memory, op).is_err() {
        return F::SLOW(cpu, memory, op, ops, at);
    }
    match ops.get(at + 1) {
        Some(second) => S::execute(cpu, memory, second, ops, at + 1),
        None => Ok(()),
    }
}

/// A part that others can follow.
trait First {
    /// Executes it, or stops without an effect.
    fn quick(cpu: &mut Cpu, memory: &mut Memory, op: &Op) -> Done;

    /// Executes it after `quick` has stopped, and continues.
    const SLOW: Exec;
}

/// A part that can follow others.
trait Second {
    /// Executes it and continues.
    fn execute(cpu: &mut Cpu, memory: &mut Memory, op: &Op, ops: &[Op], at: usize) -> Done;
}

macro_rules! firsts {
    ($($name:ident: $quick:expr, $slow:expr;)*) => {
        $(struct $name;

        impl First for $name {
            const SLOW: Exec = slow!($slow);

            #[inline(always)]
            fn quick(cpu: &mut Cpu, memory: &mut Memory, op: &Op) -> Done {
                $quick(cpu, memory, op)
            }
        })*
    };
}

firsts! {
    Load: data::move_to_register::<Quick<Flat>, u32>, data::move_to_register::<Mem, u32>;
    Store: data::move_to_rm::<Quick<Flat>, u32>, data::move_to_rm::<Mem, u32>;
    Copy: data::move_to_rm::<Reg, u32>, data::move_to_rm::<Reg, u32>;
    Push: stack::push_at_once::<Reg, u32>, stack::push::<Reg, u32>;
    Pop: stack::pop_at_once::<u32>, stack::pop::<Reg, u32>;
    Address: data::flat_address, data::flat_address;
}

impl<F: First> Second for F {
    #[inline(always)]
    fn execute(cpu: &mut Cpu, memory: &mut Memory, op: &Op, ops: &[Op], at: usize) -> Done {
        if F::quick(cpu, memory, op).is_err() {
            return F::SLOW(cpu, memory, op, ops, at);
        }
        go_on(cpu, memory, ops, at)
    }
}

struct Return;

impl Second for Return {
    #[inline(always)]
    fn execute(cpu: &mut Cpu, memory: &mut Memory, op: &Op, ops: &[Op], at: usize) -> Done {
        quick_return::<u32>(cpu, memory, op, ops, at)
    }
}

struct Call;

impl Second for Call {
    #[inline(always)]
    fn execute(cpu: &mut Cpu, memory: &mut Memory, op: &Op, ops: &[Op], at: usize) -> Done {
        call_by_link::<u32>(cpu, memory, op, ops, at)
    }
}

struct TestAndJump<C>(PhantomData<C>);

impl<C: Condition> Second for TestAndJump<C> {
    #[inline(always)]
    fn execute(cpu: &mut Cpu, memory: &mut Memory, op: &Op, ops: &[Op], at: usize) -> Done {
        const ALONE: Exec = slow!(arithmetic::test::<Reg, u32>);
        let test = arithmetic::test::<Reg, u32>;
        compare_and_jump::<C>(cpu, memory, op, ops, at, test, ALONE)
    }
}

/// Executes `op` by `compare`, which sets flags, and the jump after it. If `compare` stops, `slow` starts
/// again and executes `op` alone.
#[inline(always)]
pub(crate) fn compare_and_jump<C: Condition>(
    cpu: &mut Cpu,
    memory: &mut Memory,
    op: &Op,
    ops: &[Op],
    at: usize,
    compare: impl Fn(&mut Cpu, &mut Memory, &Op) -> Done,
    slow: Exec,
) -> Done {
    if compare(cpu, memory, op).is_err() {
        return slow(cpu, memory, op, ops, at);
    }
    match ops.get(at + 1) {
        Some(jump) => jump_if_by_link::<C>(cpu, memory, jump, ops, at + 1),
        None => Ok(()),
    }
}

/// Makes the handlers for `compare` and a jump, by condition.
macro_rules! by_condition {
    ($compare:expr, $slow:expr) => {
        $crate::exec::pair::by_condition!($compare, $slow,
            [IfOverflow IfNotOverflow IfBelow IfAboveOrEqual IfEqual IfNotEqual IfBelowOrEqual IfAbove
            IfSign IfNotSign IfParity IfNotParity IfLess IfGreaterOrEqual IfLessOrEqual IfGreater])
    };
    ($compare:expr, $slow:expr, [$($condition:ident)+]) => {
        [$(|cpu, memory, op, ops, at| {
            $crate::exec::pair::compare_and_jump::<$crate::exec::branch::$condition>(
                cpu, memory, op, ops, at, $compare, $slow,
            )
        }),+]
    };
}

/// Declares that comparisons, whose rows were added before, can be executed with the jump after them:
/// `handler` is generic in place and word.
macro_rules! pairs {
    ($rows:ident, $size:ty, [$($code:ident)+], $handler:ident $(, $parameter:ty)*) => {{
        use $crate::exec::pair::{Pairs, by_condition};
        use $crate::exec::{Flat, Mem, Quick, Reg, Segmented};
        const SLOW: $crate::table::Exec =
            $crate::table::slow!($handler::<Mem, $size $(, $parameter)*>);
        const REGISTER: $crate::table::Exec =
            $crate::table::slow!($handler::<Reg, $size $(, $parameter)*>);
        const PAIRS: &Pairs = &Pairs {
            memory: by_condition!($handler::<Quick<Segmented>, $size $(, $parameter)*>, SLOW),
            flat: by_condition!($handler::<Quick<Flat>, $size $(, $parameter)*>, SLOW),
            register: by_condition!($handler::<Reg, $size $(, $parameter)*>, REGISTER),
        };
        $rows.pair(&[$(iced_x86::Code::$code),+], PAIRS);
    }};
}

/// Declares the same of comparisons of quadwords, which have no flat operands.
macro_rules! long_pairs {
    ($rows:ident, [$($code:ident)+], $handler:ident $(, $parameter:ty)*) => {{
        use $crate::exec::pair::{Pairs, by_condition};
        use $crate::exec::{Mem, Quick, Reg, Segmented};
        const SLOW: $crate::table::Exec =
            $crate::table::slow!($handler::<Mem, u64 $(, $parameter)*>);
        const REGISTER: $crate::table::Exec =
            $crate::table::slow!($handler::<Reg, u64 $(, $parameter)*>);
        const MEMORY: [$crate::table::Exec; 16] =
            by_condition!($handler::<Quick<Segmented>, u64 $(, $parameter)*>, SLOW);
        const PAIRS: &Pairs = &Pairs {
            memory: MEMORY,
            flat: MEMORY,
            register: by_condition!($handler::<Reg, u64 $(, $parameter)*>, REGISTER),
        };
        $rows.pair(&[$(iced_x86::Code::$code),+], PAIRS);
    }};
}

pub(crate) use {by_condition, long_pairs, pairs};
