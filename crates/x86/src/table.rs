//! The instruction table: every instruction form that exists here, by its iced-x86
//! code (which names mnemonic and operand forms, such as `Add_rm32_r32`), and what executes it.
//!
//! The rows stand in the files of `exec`, each before the handlers that it
//! names. Dispatch, names in reports and histograms, and the forms that the
//! tests must cover all come from here.

use std::sync::LazyLock;

use iced_x86::{Code, FlowControl};
use ring3_core::memory::Memory;

use crate::cpu::Cpu;
use crate::decode::Op;
use crate::exception::Stopped;

/// Executes the first of the instructions given, of which there is one, and then all others:
/// each completes, or the state is as before it and the rest is not executed.
///
/// One goes on with the next by itself, so each kind of instruction has an indirect
/// call of its own, whose target the host predicts far better than that of
/// a loop's single one.
pub type Exec = fn(&mut Cpu, &mut Memory, &[Op]) -> Result<(), Stopped>;

/// Executes `ops`, the first one by `handler`. The call of the next is the last thing that is
/// done, which compilers turn into a jump; where they don't, blocks are short.
#[inline(always)]
pub(crate) fn chain(
    cpu: &mut Cpu,
    memory: &mut Memory,
    ops: &[Op],
    handler: impl Fn(&mut Cpu, &mut Memory, &Op) -> Result<(), Stopped>,
) -> Result<(), Stopped> {
    let Some((op, rest)) = ops.split_first() else {
        return Ok(());
    };
    if handler(cpu, memory, op).is_err() {
        cpu.not_executed = ops.len();
        return Err(Stopped);
    }
    match rest.first() {
        Some(next) => (next.exec)(cpu, memory, rest),
        None => Ok(()),
    }
}

/// Makes an [`Exec`] of a handler, which executes one instruction.
macro_rules! exec {
    ($handler:expr) => {
        |cpu, memory, ops| $crate::table::chain(cpu, memory, ops, $handler)
    };
}

/// One form of an instruction.
#[derive(Debug, Clone, Copy)]
pub struct Form {
    /// Mnemonic and operands.
    pub code: Code,
    /// What executes it when its ModRM operand is in memory.
    pub memory: Exec,
    /// The same for [`Op::is_flat`] operands.
    pub flat: Exec,
    /// What executes it when its ModRM operand is a register, or it has none.
    pub register: Exec,
    /// No instruction can be executed after it without looking at the state
    /// again: it transfers control, or changes mode, mapping or interrupt flag.
    pub ends_block: bool,
}

/// A row of the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FormId(u16);

impl FormId {
    /// No form: an invalid instruction, or one that is not in the table.
    pub const NONE: FormId = FormId(u16::MAX);

    /// The form's row.
    pub fn form(self) -> Option<&'static Form> {
        TABLE.forms.get(usize::from(self.0))
    }
}

struct Table {
    forms: Vec<Form>,
    /// By code: its row.
    by_code: Vec<FormId>,
}

static TABLE: LazyLock<Table> = LazyLock::new(|| {
    let mut rows = Rows(Vec::new());
    crate::exec::forms(&mut rows);
    let mut by_code = vec![FormId::NONE; Code::values().len()];
    for (index, form) in rows.0.iter().enumerate() {
        by_code[form.code as usize] = FormId(index as u16);
    }
    Table { forms: rows.0, by_code }
});

/// All forms.
pub fn forms() -> &'static [Form] {
    &TABLE.forms
}

/// The row of `code`.
pub fn find(code: Code) -> Option<(FormId, &'static Form)> {
    let id = TABLE.by_code[code as usize];
    id.form().map(|form| (id, form))
}

/// The table while it is made.
pub(crate) struct Rows(Vec<Form>);

impl Rows {
    /// Adds a form whose ModRM operand, if any, may be in memory or a register.
    pub(crate) fn add(&mut self, code: Code, memory: Exec, register: Exec) {
        self.add_with_flat(code, memory, memory, register);
    }

    /// The same with a handler of its own for flat operands.
    pub(crate) fn add_with_flat(&mut self, code: Code, memory: Exec, flat: Exec, register: Exec) {
        let ends_block = code.flow_control() != FlowControl::Next;
        self.0.push(Form { code, memory, flat, register, ends_block });
    }

    /// Adds forms that have no ModRM operand, or only one kind of it.
    pub(crate) fn add_all(&mut self, codes: &[Code], exec: Exec) {
        for code in codes {
            self.add(*code, exec, exec);
        }
    }

    /// Marks forms after which a block ends though they do not branch.
    pub(crate) fn end_block(&mut self, codes: &[Code]) {
        for form in self.0.iter_mut().filter(|form| codes.contains(&form.code)) {
            form.ends_block = true;
        }
    }
}

/// Rows for forms of a byte, a word and a doubleword: `handler` is generic in place and word.
macro_rules! rm_sizes {
    ($rows:ident, [$byte:ident $word:ident $dword:ident], $handler:ident $(, $parameter:ty)*) => {
        $crate::table::rm!($rows, u8, [$byte], $handler $(, $parameter)*);
        $crate::table::rm_wide!($rows, [$word $dword], $handler $(, $parameter)*);
    };
}

/// Rows for forms of a word and a doubleword: `handler` is generic in place and word.
macro_rules! rm_wide {
    ($rows:ident, [$word:ident $dword:ident], $handler:ident $(, $parameter:ty)*) => {
        $crate::table::rm!($rows, u16, [$word], $handler $(, $parameter)*);
        $crate::table::rm!($rows, u32, [$dword], $handler $(, $parameter)*);
    };
}

/// Rows for forms of the size given: `handler` is generic in place and word.
macro_rules! rm {
    ($rows:ident, $size:ty, [], $handler:ident $(, $parameter:ty)*) => {};
    ($rows:ident, $size:ty, [$code:ident $($rest:ident)*], $handler:ident $(, $parameter:ty)*) => {
        $rows.add_with_flat(
            iced_x86::Code::$code,
            $crate::table::exec!($handler::<$crate::exec::Mem, $size $(, $parameter)*>),
            $crate::table::exec!($handler::<$crate::exec::FlatMem, $size $(, $parameter)*>),
            $crate::table::exec!($handler::<$crate::exec::Reg, $size $(, $parameter)*>),
        );
        $crate::table::rm!($rows, $size, [$($rest)*], $handler $(, $parameter)*);
    };
}

/// Rows for forms of a byte, a word and a doubleword: `handler` is generic in the word.
macro_rules! sizes {
    ($rows:ident, [$byte:ident $word:ident $dword:ident], $handler:ident) => {
        $crate::table::plain!($rows, [$byte], $handler::<u8>);
        $crate::table::wide!($rows, [$word $dword], $handler);
    };
}

/// Rows for forms of a word and a doubleword: `handler` is generic in the word.
macro_rules! wide {
    ($rows:ident, [$word:ident $dword:ident], $handler:ident $(, $parameter:tt)*) => {
        $crate::table::plain!($rows, [$word], $handler::<u16 $(, $parameter)*>);
        $crate::table::plain!($rows, [$dword], $handler::<u32 $(, $parameter)*>);
    };
}

/// Rows for forms that `handler` executes as it is.
macro_rules! plain {
    ($rows:ident, [$($code:ident)+], $handler:expr) => {
        $rows.add_all(&[$(iced_x86::Code::$code),+], $crate::table::exec!($handler));
    };
}

/// Marks forms, added before, after which a block ends.
macro_rules! ending {
    ($rows:ident, [$($code:ident)+]) => {
        $rows.end_block(&[$(iced_x86::Code::$code),+]);
    };
}

pub(crate) use {ending, exec, plain, rm, rm_sizes, rm_wide, sizes, wide};

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn no_form_stands_twice() {
        let codes: HashSet<_> = forms().iter().map(|form| form.code).collect();
        assert_eq!(codes.len(), forms().len());
    }
}
