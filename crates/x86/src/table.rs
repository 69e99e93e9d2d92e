//! The instruction table: every instruction form that exists here, identified by its iced-x86 code (which
//! contains mnemonic and operand forms, such as `Add_rm32_r32`), with its handlers.
//!
//! The rows stand in the files of `exec`, each before the handlers that it names. Dispatch, the names in
//! reports and histograms, and the list of forms that the tests must cover all come from here.

use std::sync::OnceLock;

use iced_x86::{Code, CpuidFeature, EncodingKind, FlowControl, MandatoryPrefix};
use ring3_core::memory::{Memory, PAGE_SIZE};

use crate::cpu::Cpu;
use crate::decode::Op;
use crate::exception::Stopped;
use crate::exec::pair::{Pairs, Part};

/// Executes an instruction, which is number `at` of `ops`, the list of all decoded instructions, and then the
/// instructions after it. Each one completes, or the state is as before it and the rest is not executed.
///
/// An instruction continues with the next one itself. So each kind of instruction has an indirect call of its
/// own, whose target the host predicts far better than that of a loop's single call. A near branch continues
/// with the block at its target in the same way.
pub type Exec =
    fn(cpu: &mut Cpu, memory: &mut Memory, op: &Op, ops: &[Op], at: usize) -> Result<(), Stopped>;

/// Continues with the instruction after number `at`. This call is the last act of a handler, so that
/// compilers turn it into a jump; where they do not, there are never very many nested calls.
#[inline(always)]
pub(crate) fn go_on(
    cpu: &mut Cpu,
    memory: &mut Memory,
    ops: &[Op],
    at: usize,
) -> Result<(), Stopped> {
    match ops.get(at + 1) {
        Some(next) => (next.exec)(cpu, memory, next, ops, at + 1),
        None => Ok(()),
    }
}

/// Executes `op` by `handler`, and continues.
#[inline(always)]
pub(crate) fn chain(
    cpu: &mut Cpu,
    memory: &mut Memory,
    op: &Op,
    ops: &[Op],
    at: usize,
    handler: impl Fn(&mut Cpu, &mut Memory, &Op) -> Result<(), Stopped>,
) -> Result<(), Stopped> {
    finish(cpu, memory, op, at, handler)?;
    go_on(cpu, memory, ops, at)
}

/// Executes `op` by `quick`, and continues. If `quick` stops, the instruction starts again with `slow`, which
/// is made by [`slow!`]. So the quick path contains no calls, for which it would have to save registers.
#[inline(always)]
pub(crate) fn chain_quick(
    cpu: &mut Cpu,
    memory: &mut Memory,
    op: &Op,
    ops: &[Op],
    at: usize,
    quick: impl Fn(&mut Cpu, &mut Memory, &Op) -> Result<(), Stopped>,
    slow: Exec,
) -> Result<(), Stopped> {
    if quick(cpu, memory, op).is_err() {
        return slow(cpu, memory, op, ops, at);
    }
    go_on(cpu, memory, ops, at)
}

/// Executes `op` by `handler`, and nothing after it.
#[inline(always)]
pub(crate) fn finish(
    cpu: &mut Cpu,
    memory: &mut Memory,
    op: &Op,
    at: usize,
    handler: impl Fn(&mut Cpu, &mut Memory, &Op) -> Result<(), Stopped>,
) -> Result<(), Stopped> {
    if handler(cpu, memory, op).is_err() {
        cpu.stopped_at = at;
        return Err(Stopped);
    }
    Ok(())
}

/// A near branch, or the end of a block without one, whose target in the decoded code is not known yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Unlinked {
    /// The number of the instruction.
    pub(crate) at: usize,
    /// The way that it goes.
    pub(crate) way: Way,
}

/// The ways that a near branch can go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Way {
    /// To its target.
    Taken,
    /// On to the next instruction.
    NotTaken,
}

/// Returns the block to which `op`, number `at`, goes, by its link for `way`, if the link exists and all
/// instructions of the block may be executed. The block must then be executed next. Links stay in the page,
/// whose limits the engine has checked.
#[inline(always)]
pub(crate) fn linked<'a>(
    cpu: &mut Cpu,
    op: &Op,
    ops: &'a [Op],
    at: usize,
    way: Way,
) -> Option<(usize, &'a Op)> {
    let link = op.link(way);
    if link == 0 {
        return None;
    }
    let at = at.wrapping_add_signed(link);
    let block = ops.get(at)?;
    cpu.left = cpu.left.checked_sub(u64::from(block.block_ops))?;
    cpu.block = at;
    cpu.ip = cpu.next_ip(cpu.code_base(), u64::from(block.block_end));
    Some((at, block))
}

/// Returns the block at EIP, if it is known and all of its instructions may be executed. The block must then
/// be executed next.
#[inline(always)]
fn known<'a>(cpu: &mut Cpu, ops: &'a [Op]) -> Option<(usize, &'a Op)> {
    let at = cpu.known_jump()?;
    let block = ops.get(at)?;
    cpu.left = cpu.left.checked_sub(u64::from(block.block_ops))?;
    cpu.block = at;
    cpu.set_code_base(cpu.ip.wrapping_sub(u64::from(block.offset)));
    cpu.ip = cpu.next_ip(cpu.code_base(), u64::from(block.block_end));
    Some((at, block))
}

/// Continues with the block at EIP, if possible.
#[inline(always)]
pub(crate) fn go_to(cpu: &mut Cpu, memory: &mut Memory, ops: &[Op]) -> Result<(), Stopped> {
    match known(cpu, ops) {
        Some((at, block)) => (block.exec)(cpu, memory, block, ops, at),
        None => Ok(()),
    }
}

/// Continues with the block at EIP after a branch, number `at`. If the target is in the same page, the engine
/// finds it and makes a link, unless it is too far away.
#[inline(never)]
pub(crate) fn go_or_link(
    cpu: &mut Cpu,
    memory: &mut Memory,
    ops: &[Op],
    at: usize,
    way: Way,
) -> Result<(), Stopped> {
    let is_far = ops.get(at).is_some_and(|op| op.is_far(way));
    if !is_far && cpu.ip.wrapping_sub(cpu.code_base()) < PAGE_SIZE {
        cpu.unlinked = Some(Unlinked { at, way });
        return Ok(());
    }
    go_to(cpu, memory, ops)
}

/// Ends a block after an instruction that does not branch, because the engine must check for events.
#[allow(clippy::unnecessary_wraps)] // It is an [`Exec`].
pub(crate) fn leave(
    _: &mut Cpu,
    _: &mut Memory,
    _: &Op,
    _: &[Op],
    _: usize,
) -> Result<(), Stopped> {
    Ok(())
}

/// Ends a block that is long enough, or one before an instruction that must begin a block; it also serves a
/// branch that is not taken.
#[inline(always)]
pub(crate) fn next_block(
    cpu: &mut Cpu,
    memory: &mut Memory,
    op: &Op,
    ops: &[Op],
    at: usize,
) -> Result<(), Stopped> {
    if let Some((at, block)) = linked(cpu, op, ops, at, Way::NotTaken) {
        return (block.exec)(cpu, memory, block, ops, at);
    }
    go_or_link(cpu, memory, ops, at, Way::NotTaken)
}

/// Makes an [`Exec`] of a handler, which executes one instruction.
macro_rules! exec {
    ($handler:expr) => {
        |cpu, memory, op, ops, at| $crate::table::chain(cpu, memory, op, ops, at, $handler)
    };
}

/// Makes an [`Exec`] of a handler that starts an instruction again after its quick handler has stopped. It
/// stays a function of its own: inside the quick one it would make that save registers.
macro_rules! slow {
    ($handler:expr) => {{
        #[inline(never)]
        fn slow(
            cpu: &mut $crate::cpu::Cpu,
            memory: &mut ring3_core::memory::Memory,
            op: &$crate::decode::Op,
            ops: &[$crate::decode::Op],
            at: usize,
        ) -> Result<(), $crate::exception::Stopped> {
            cpu.rewind_answers();
            $crate::table::chain(cpu, memory, op, ops, at, $handler)
        }
        slow
    }};
}

/// Makes an [`Exec`] of a quick handler and of the [`Exec`] to use where it stops.
macro_rules! quick {
    ($quick:expr, $slow:expr) => {
        |cpu, memory, op, ops, at| {
            $crate::table::chain_quick(cpu, memory, op, ops, at, $quick, $slow)
        }
    };
}

/// Makes an [`Exec`] of a handler of an instruction after which the engine checks for events.
macro_rules! last {
    ($handler:expr) => {
        |cpu, memory, op, _, at| $crate::table::finish(cpu, memory, op, at, $handler)
    };
}

/// Makes an [`Exec`] of a handler of a near branch.
macro_rules! near {
    ($handler:expr) => {
        |cpu, memory, op, ops, at| {
            $crate::table::finish(cpu, memory, op, at, $handler)?;
            $crate::table::go_to(cpu, memory, ops)
        }
    };
}

/// One form of an instruction.
#[derive(Debug, Clone, Copy)]
pub struct Form {
    /// Mnemonic and operands.
    pub code: Code,
    /// Its group.
    pub group: Group,
    /// Its handler when its ModRM operand is in memory.
    pub memory: Exec,
    /// Its handler for an [`Op::is_flat`] operand in memory.
    pub flat: Exec,
    /// Its handler for an [`Op::is_long`] operand in memory.
    pub long: Exec,
    /// Its handler when its ModRM operand is a register, or it has none.
    pub register: Exec,
    /// A quicker handler for [`CodeMode::is_flat`](crate::decode::CodeMode::is_flat) code, when no operand is
    /// in memory.
    pub(crate) flat_stack: Option<Exec>,
    /// Whether the state must be checked again after it before any other instruction: it transfers control,
    /// or changes the mode, mappings or the interrupt flag.
    pub ends_block: bool,
    /// Whether its handler does not continue with the instruction after it.
    pub branches: bool,
    /// For a conditional jump that uses links: the number of its condition.
    pub(crate) condition: Option<u8>,
    /// For a comparison or similar instruction: the handlers for it and such a jump together.
    pub(crate) pairs: Option<&'static Pairs>,
    /// Its part in a [`pair`](crate::exec::pair) with an [`Op::is_flat`] operand.
    pub(crate) flat_part: Option<Part>,
    /// Its part in a pair without an operand in memory.
    pub(crate) register_part: Option<Part>,
}

/// The groups of forms, each of which has files of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Group {
    /// MOV and other moves of data, and LEA.
    Moves,
    /// Stack operations.
    Stack,
    /// Integer arithmetic and logic, binary and decimal.
    Arithmetic,
    /// Shifts, rotations and operations on bits.
    Shifts,
    /// Jumps, calls, returns and interrupts.
    Control,
    /// String operations.
    Strings,
    /// Accesses to ports.
    Ports,
    /// Operations on flags, and NOP.
    Flags,
    /// Operations on the processor's system state.
    System,
    /// The x87.
    X87,
    /// MMX and SSE.
    Simd,
}

/// A row of the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FormId(u16);

impl FormId {
    /// The number that means no form: an invalid instruction, or one that is not in the table.
    pub const NONE: FormId = FormId(u16::MAX);

    /// Returns its number, from 0. [`FormId::NONE`] has a larger one than all forms.
    #[inline]
    pub fn index(self) -> usize {
        self.0.into()
    }

    /// Returns the row of the form.
    pub fn form(self) -> Option<&'static Form> {
        table().forms.get(usize::from(self.0))
    }
}

struct Table {
    forms: Vec<Form>,
    /// For each code, the number of its row.
    by_code: Vec<FormId>,
}

/// Returns the table. It is no `LazyLock`: as a static item that refers to all handlers, it would bring them into the
/// unit tests, which need none.
fn table() -> &'static Table {
    static TABLE: OnceLock<Table> = OnceLock::new();
    TABLE.get_or_init(make)
}

fn make() -> Table {
    let vex = Code::values().filter(|code| is_of_avx(*code)).collect();
    let mut rows = Rows { forms: Vec::new(), group: Group::Moves, vex };
    crate::exec::forms(&mut rows);
    let mut by_code = vec![FormId::NONE; Code::values().len()];
    for (index, form) in rows.forms.iter().enumerate() {
        by_code[form.code as usize] = FormId(index as u16);
    }
    Table { forms: rows.forms, by_code }
}

/// Returns all forms.
pub fn forms() -> &'static [Form] {
    &table().forms
}

/// Returns the row of `code`.
pub fn find(code: Code) -> Option<(FormId, &'static Form)> {
    let id = table().by_code[code as usize];
    id.form().map(|form| (id, form))
}

/// Returns whether `code` has a VEX prefix and belongs to AVX or AVX2.
fn is_of_avx(code: Code) -> bool {
    let is_of = |feature: &CpuidFeature| matches!(feature, CpuidFeature::AVX | CpuidFeature::AVX2);
    code.op_code().encoding() == EncodingKind::VEX && code.cpuid_features().iter().all(is_of)
}

/// The table while it is made.
pub(crate) struct Rows {
    forms: Vec<Form>,
    /// The group of the forms that are added next.
    group: Group,
    /// The codes of AVX and AVX2.
    vex: Vec<Code>,
}

/// The handlers of a form for an operand in memory, and for one in a register.
pub(crate) type Handlers = (Exec, Exec);

impl Rows {
    /// Begins a group of forms.
    pub(crate) fn begin(&mut self, group: Group) -> &mut Rows {
        self.group = group;
        self
    }

    /// Adds a form whose ModRM operand, if any, may be in memory or a register.
    pub(crate) fn add(&mut self, code: Code, memory: Exec, register: Exec) {
        self.add_with_flat(code, memory, memory, register);
    }

    /// Adds the forms with a VEX prefix that correspond to `code`, one of SSE: those with the same opcode and the
    /// prefix that stands for that of `code` (SDM vol. 2, 2.3.6). That for vectors of 128 bits, or for a part of a
    /// vector, has the handlers `narrow`, and that for vectors of 256 bits, if there are any, has `wide`.
    pub(crate) fn add_vex(&mut self, code: Code, narrow: Handlers, wide: Option<Handlers>) {
        let key = |code: Code| {
            let form = code.op_code();
            let prefix = match form.mandatory_prefix() {
                MandatoryPrefix::None => MandatoryPrefix::PNP,
                prefix => prefix,
            };
            (form.table(), prefix, form.op_code(), form.group_index())
        };
        let same: Vec<Code> =
            self.vex.iter().copied().filter(|vex| key(*vex) == key(code)).collect();
        for vex in same {
            let handlers = if vex.op_code().l() == 0 { Some(narrow) } else { wide };
            if let Some((memory, register)) = handlers {
                self.add(vex, memory, register);
            }
        }
    }

    /// Adds such a form with a handler of its own for flat operands.
    pub(crate) fn add_with_flat(&mut self, code: Code, memory: Exec, flat: Exec, register: Exec) {
        let ends_block = code.flow_control() != FlowControl::Next;
        self.forms.push(Form {
            code,
            group: self.group,
            memory,
            flat,
            long: memory,
            register,
            flat_stack: None,
            ends_block,
            branches: false,
            condition: None,
            pairs: None,
            flat_part: None,
            register_part: None,
        });
    }

    /// Adds forms that have no ModRM operand, or only one kind of it.
    pub(crate) fn add_all(&mut self, codes: &[Code], exec: Exec) {
        for code in codes {
            self.add(*code, exec, exec);
        }
    }

    /// Adds forms that branch by themselves.
    pub(crate) fn add_branches(
        &mut self,
        codes: &[Code],
        memory: Exec,
        flat: Exec,
        register: Exec,
    ) {
        for code in codes {
            self.add_with_flat(*code, memory, flat, register);
        }
        for form in self.added(codes) {
            form.branches = true;
        }
    }

    /// Returns the forms of `codes`, added before.
    fn added(&mut self, codes: &[Code]) -> impl Iterator<Item = &mut Form> {
        self.forms.iter_mut().filter(|form| codes.contains(&form.code))
    }

    /// Sets the handler of `codes`, added before, for a flat stack when no operand is in memory.
    pub(crate) fn with_flat_stack(&mut self, codes: &[Code], exec: Exec) {
        for form in self.added(codes) {
            form.flat_stack = Some(exec);
        }
    }

    /// Sets the handler of `codes`, added before, for an operand in memory with a 64-bit address.
    pub(crate) fn with_long(&mut self, codes: &[Code], exec: Exec) {
        for form in self.added(codes) {
            form.long = exec;
        }
    }

    /// Sets the number of the condition of the jumps `codes`, added before.
    pub(crate) fn condition(&mut self, codes: &[Code], condition: u8) {
        for form in self.added(codes) {
            form.condition = Some(condition);
        }
    }

    /// Sets the parts of `code`, added before, in a [`pair`](crate::exec::pair) with a flat operand and
    /// without one in memory.
    pub(crate) fn parts(&mut self, code: Code, flat: Option<Part>, register: Option<Part>) {
        for form in self.added(&[code]) {
            (form.flat_part, form.register_part) = (flat, register);
        }
    }

    /// Sets the handlers of the comparisons `codes`, added before, together with a jump.
    pub(crate) fn pair(&mut self, codes: &[Code], pairs: &'static Pairs) {
        for form in self.added(codes) {
            form.pairs = Some(pairs);
        }
    }

    /// Marks forms after which a block ends although they do not branch.
    pub(crate) fn end_block(&mut self, codes: &[Code]) {
        for form in self.added(codes) {
            form.ends_block = true;
        }
    }
}

/// Rows for forms of a byte, a word, a doubleword and perhaps a quadword: `handler` is generic in place and
/// word.
macro_rules! rm_sizes {
    ($rows:ident, [$byte:ident $($wide:ident)+], $handler:ident $(, $parameter:ty)*) => {
        $crate::table::rm!($rows, u8, [$byte], $handler $(, $parameter)*);
        $crate::table::rm_wide!($rows, [$($wide)+], $handler $(, $parameter)*);
    };
}

/// Rows for forms of a word, a doubleword and perhaps a quadword: `handler` is generic in place and word.
macro_rules! rm_wide {
    ($rows:ident, [$word:ident $dword:ident $($qword:ident)?], $handler:ident $(, $parameter:ty)*) => {
        $crate::table::rm!($rows, u16, [$word], $handler $(, $parameter)*);
        $crate::table::rm!($rows, u32, [$dword], $handler $(, $parameter)*);
        $crate::table::rm_long!($rows, u64, [$($qword)?], $handler $(, $parameter)*);
    };
}

/// Rows for forms of the size given: `handler` is generic in place and word.
macro_rules! rm {
    ($rows:ident, $size:ty, [], $handler:ident $(, $parameter:ty)*) => {};
    ($rows:ident, $size:ty, [$code:ident $($rest:ident)*], $handler:ident $(, $parameter:ty)*) => {
        {
            use $crate::exec::{Flat, Long, Mem, Quick, Reg, Segmented};
            const SLOW: $crate::table::Exec =
                $crate::table::slow!($handler::<Mem, $size $(, $parameter)*>);
            $rows.add_with_flat(
                iced_x86::Code::$code,
                $crate::table::quick!($handler::<Quick<Segmented>, $size $(, $parameter)*>, SLOW),
                $crate::table::quick!($handler::<Quick<Flat>, $size $(, $parameter)*>, SLOW),
                $crate::table::exec!($handler::<Reg, $size $(, $parameter)*>),
            );
            $rows.with_long(
                &[iced_x86::Code::$code],
                $crate::table::quick!($handler::<Quick<Long>, $size $(, $parameter)*>, SLOW),
            );
        }
        $crate::table::rm!($rows, $size, [$($rest)*], $handler $(, $parameter)*);
    };
}

/// Rows like those of [`rm!`] for forms that exist only in 64-bit code.
macro_rules! rm_long {
    ($rows:ident, $size:ty, [], $handler:ident $(, $parameter:ty)*) => {};
    ($rows:ident, $size:ty, [$code:ident $($rest:ident)*], $handler:ident $(, $parameter:ty)*) => {
        {
            use $crate::exec::{Long, Mem, Quick, Reg, Segmented};
            const SLOW: $crate::table::Exec =
                $crate::table::slow!($handler::<Mem, $size $(, $parameter)*>);
            $rows.add(
                iced_x86::Code::$code,
                $crate::table::quick!($handler::<Quick<Segmented>, $size $(, $parameter)*>, SLOW),
                $crate::table::exec!($handler::<Reg, $size $(, $parameter)*>),
            );
            $rows.with_long(
                &[iced_x86::Code::$code],
                $crate::table::quick!($handler::<Quick<Long>, $size $(, $parameter)*>, SLOW),
            );
        }
        $crate::table::rm_long!($rows, $size, [$($rest)*], $handler $(, $parameter)*);
    };
}

/// Rows for forms of a byte, a word, a doubleword and perhaps a quadword: `handler` is generic in the word.
macro_rules! sizes {
    ($rows:ident, [$byte:ident $($wide:ident)+], $handler:ident) => {
        $crate::table::plain!($rows, [$byte], $handler::<u8>);
        $crate::table::wide!($rows, [$($wide)+], $handler);
    };
}

/// Rows for forms of a word, a doubleword and perhaps a quadword: `handler` is generic in the word.
macro_rules! wide {
    ($rows:ident, [$word:ident $dword:ident], $handler:ident $(, $parameter:tt)*) => {
        $crate::table::plain!($rows, [$word], $handler::<u16 $(, $parameter)*>);
        $crate::table::plain!($rows, [$dword], $handler::<u32 $(, $parameter)*>);
    };
    ($rows:ident, [$word:ident $dword:ident $qword:ident], $handler:ident $(, $parameter:tt)*) => {
        $crate::table::wide!($rows, [$word $dword], $handler $(, $parameter)*);
        $crate::table::plain!($rows, [$qword], $handler::<u64 $(, $parameter)*>);
    };
}

/// Rows for forms that `handler` executes without parameters.
macro_rules! plain {
    ($rows:ident, [$($code:ident)+], $handler:expr) => {
        $rows.add_all(&[$(iced_x86::Code::$code),+], $crate::table::exec!($handler));
    };
}

/// Rows for forms that `handler` executes without parameters, and `quick` first where the stack is flat.
macro_rules! plain_flat_stack {
    ($rows:ident, [$($code:ident)+], $quick:expr, $handler:expr) => {{
        const SLOW: $crate::table::Exec = $crate::table::slow!($handler);
        $crate::table::plain!($rows, [$($code)+], $handler);
        $rows.with_flat_stack(&[$(iced_x86::Code::$code),+], $crate::table::quick!($quick, SLOW));
    }};
}

/// Rows for branches without a ModRM operand: an [`Exec`] that does not continue.
macro_rules! branches {
    ($rows:ident, [$($code:ident)+], $exec:expr) => {
        $rows.add_branches(&[$(iced_x86::Code::$code),+], $exec, $exec, $exec);
    };
}

/// Rows for branches with operand size word, doubleword and perhaps quadword that `handler` executes
/// completely.
macro_rules! wide_branches {
    ($rows:ident, [$word:ident $dword:ident $($qword:ident)?], $handler:ident) => {
        $crate::table::branches!($rows, [$word], $crate::table::last!($handler::<u16>));
        $crate::table::branches!($rows, [$dword], $crate::table::last!($handler::<u32>));
        $($crate::table::branches!($rows, [$qword], $crate::table::last!($handler::<u64>));)?
    };
}

/// Marks forms, added before, after which a block ends.
macro_rules! ending {
    ($rows:ident, [$($code:ident)+]) => {
        $rows.end_block(&[$(iced_x86::Code::$code),+]);
    };
}

pub(crate) use {
    branches, ending, exec, last, near, plain, plain_flat_stack, quick, rm, rm_long, rm_sizes,
    rm_wide, sizes, slow, wide, wide_branches,
};
