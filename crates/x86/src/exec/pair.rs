//! A comparison and the conditional jump after it, executed by one handler.
//!
//! They stand together all the time, and what one mispredicted indirect call costs the host is
//! as much as both of them. They stay two instructions, in the count and where something stops.

use ring3_core::memory::Memory;

use crate::cpu::Cpu;
use crate::decode::{CodeMode, Op};
use crate::exec::Done;
use crate::exec::branch::{Condition, jump_if_by_link};
use crate::table::Exec;

/// What executes a comparison and the jump after it, by the number that the jump's condition has in
/// its opcode (SDM vol. 1, appendix B).
#[derive(Debug)]
pub(crate) struct Pairs {
    /// When the comparison's ModRM operand is in memory.
    pub(crate) memory: [Exec; 16],
    /// The same for [`Op::is_flat`] operands.
    pub(crate) flat: [Exec; 16],
    /// When it is a register.
    pub(crate) register: [Exec; 16],
}

/// Lets `first` execute `second` as well, the instruction after it, if there is a handler for both.
pub(crate) fn join(first: &mut Op, second: &Op, mode: CodeMode) {
    let condition = second.form.form().and_then(|form| form.condition);
    let pairs = first.form.form().and_then(|form| form.pairs);
    if let Some((condition, pairs)) = condition.zip(pairs) {
        let by_condition = if !first.has_memory_operand() {
            &pairs.register
        } else if mode.is_flat && first.is_flat() {
            &pairs.flat
        } else {
            &pairs.memory
        };
        first.exec = by_condition[usize::from(condition & 15)];
    }
}

/// Executes `op` by `compare` and the jump after it; where `compare` stops, `slow` begins again and
/// executes `op` alone.
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

/// The handlers for `compare` and a jump, by condition.
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

/// Says that comparisons, whose rows were added before, can be executed with the jump after them:
/// `handler` is generic in place and word.
macro_rules! pairs {
    ($rows:ident, $size:ty, [$($code:ident)+], $handler:ident $(, $parameter:ty)*) => {{
        use $crate::exec::pair::{Pairs, by_condition};
        use $crate::exec::{Flat, Mem, Quick, Reg, Segmented};
        const SLOW: $crate::table::Exec =
            $crate::table::slow!($handler::<Mem, $size $(, $parameter)*>);
        const REGISTER: $crate::table::Exec =
            $crate::table::slow!($handler::<Reg, $size $(, $parameter)*>);
        static PAIRS: Pairs = Pairs {
            memory: by_condition!($handler::<Quick<Segmented>, $size $(, $parameter)*>, SLOW),
            flat: by_condition!($handler::<Quick<Flat>, $size $(, $parameter)*>, SLOW),
            register: by_condition!($handler::<Reg, $size $(, $parameter)*>, REGISTER),
        };
        $rows.pair(&[$(iced_x86::Code::$code),+], &PAIRS);
    }};
}

pub(crate) use {by_condition, pairs};
