//! The differences between two engines, as a report for people.

use std::collections::BTreeMap;
use std::fmt::{self, Display, Formatter, Write};

use ciborium::Value;
use ring3_core::clock::Time;
use ring3_core::state::SavedState;
use ring3_x86::flags::Eflags;

use crate::machine::verify::Outcome;

/// Upper bound of the rows of memory, and of the fields, that are shown.
const ROWS: usize = 24;
/// Bytes in a row.
const ROW_LEN: usize = 16;

/// One of the machines that differ.
#[derive(Debug)]
pub(crate) struct Side {
    pub(crate) engine: &'static str,
    pub(crate) came: Outcome,
    pub(crate) instructions: u64,
    pub(crate) time: Time,
    pub(crate) cpu: SavedState,
    pub(crate) board: SavedState,
    /// The state of the processor as text.
    pub(crate) report: String,
    pub(crate) memory: Vec<u8>,
}

/// Undefined flags of an instruction that the guest has used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Undefined {
    /// The flags that differ.
    pub flags: Eflags,
    /// The instruction: address, bytes and disassembly.
    pub by: String,
}

/// A field of the state that differs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Field {
    /// Its path, as in `cpu.gpr[0]`.
    pub path: String,
    /// Its value with the engine that was verified; empty if it has none.
    pub tested: String,
    /// Its value with the reference engine.
    pub reference: String,
}

/// The address of a difference in memory, and the bytes of both machines there.
type Row = (usize, [Vec<u8>; 2]);

/// A difference between two engines.
#[derive(Debug)]
pub struct Difference {
    /// The number of instructions after which the machines were last equal.
    same: u64,
    /// The number of instructions after which they were not.
    different: u64,
    /// Whether the difference came again when this part of the run was repeated.
    repeated: bool,
    /// The undefined flags that cause it.
    undefined: Option<Undefined>,
    time: Time,
    engines: [&'static str; 2],
    fields: Vec<Field>,
    /// Rows of memory that differ, by their addresses.
    rows: Vec<Row>,
    bytes: usize,
    reports: [String; 2],
    /// The instructions executed before.
    trace: Vec<String>,
    /// The instruction that was executed next, and those after it in memory.
    next: Vec<String>,
    /// The state of the processor when the machines were equal.
    before: String,
}

impl Difference {
    /// Returns a difference that came again: it comes with the instruction after the first `same` ones.
    pub(crate) fn found(same: u64, sides: [Side; 2]) -> Difference {
        Difference::of(same, same.saturating_add(1), true, sides)
    }

    /// Returns a difference that did not come again. The machines were equal after `same` instructions.
    pub(crate) fn not_repeated(same: u64, different: u64, sides: [Side; 2]) -> Difference {
        Difference::of(same, different, false, sides)
    }

    /// Returns a difference that comes from flags which are undefined after the first `at` instructions, and
    /// are used before there are `different`.
    pub(crate) fn of_undefined(
        at: u64,
        different: u64,
        undefined: Undefined,
        sides: [Side; 2],
    ) -> Difference {
        Difference { undefined: Some(undefined), ..Difference::of(at, different, true, sides) }
    }

    fn of(same: u64, different: u64, repeated: bool, sides: [Side; 2]) -> Difference {
        let [tested, reference] = &sides;
        let mut fields = Vec::new();
        let mut compare = |path: &str, tested: &dyn Display, reference: &dyn Display| {
            let (tested, reference) = (tested.to_string(), reference.to_string());
            if tested != reference {
                fields.push(Field { path: path.to_owned(), tested, reference });
            }
        };
        compare("instructions", &tested.instructions, &reference.instructions);
        compare("time", &tested.time.as_nanos(), &reference.time.as_nanos());
        let ending = |side: &Side| match (&side.came.ending, side.came.diverged) {
            (Some(ending), _) => format!("{ending:?}"),
            (None, Some(at)) => format!("waits forever after {at} instructions"),
            (None, None) => "goes on".to_owned(),
        };
        compare("the run", &ending(tested), &ending(reference));
        let sent = |side: &Side| format!("\"{}\"", side.came.sent.escape_ascii());
        compare("sent", &sent(tested), &sent(reference));
        compare_states("cpu", &tested.cpu, &reference.cpu, &mut fields);
        compare_states("board", &tested.board, &reference.board, &mut fields);
        let (rows, bytes) = compare_memory(&tested.memory, &reference.memory);
        let (time, engines) = (reference.time, [tested.engine, reference.engine]);
        let reports = sides.map(|side| side.report);
        let (trace, next, before) = (Vec::new(), Vec::new(), String::new());
        Difference {
            same,
            different,
            repeated,
            undefined: None,
            time,
            engines,
            fields,
            rows,
            bytes,
            reports,
            trace,
            next,
            before,
        }
    }

    /// Adds the code: the instructions executed before, those that follow, and the processor at that point.
    pub(crate) fn describe_code(&mut self, trace: Vec<String>, next: Vec<String>, before: String) {
        (self.trace, self.next, self.before) = (trace, next, before);
    }

    /// Returns the number of instructions after which the machines were last known to be equal.
    pub fn instructions(&self) -> u64 {
        self.same
    }

    /// Returns the instruction after which they differ, with address, bytes and disassembly, or None if it
    /// was not found.
    pub fn instruction(&self) -> Option<&str> {
        self.next.first().map(String::as_str)
    }

    /// Returns the undefined flags that the guest has used, if the difference comes from these and not from
    /// an error of an engine.
    pub fn undefined(&self) -> Option<&Undefined> {
        self.undefined.as_ref()
    }

    /// Returns the fields that differ, without memory.
    pub fn fields(&self) -> &[Field] {
        &self.fields
    }
}

/// Returns some of the rows of memory that differ, and the number of bytes that differ in all.
fn compare_memory(tested: &[u8], reference: &[u8]) -> (Vec<Row>, usize) {
    let (mut rows, mut bytes) = (Vec::new(), 0);
    let pages = tested.chunks(4096).zip(reference.chunks(4096)).enumerate();
    for (page, (tested, reference)) in pages.filter(|(_, (tested, reference))| tested != reference)
    {
        for (row, (tested, reference)) in
            tested.chunks(ROW_LEN).zip(reference.chunks(ROW_LEN)).enumerate()
        {
            let differing =
                tested.iter().zip(reference).filter(|(one, other)| one != other).count();
            bytes += differing;
            if differing > 0 && rows.len() < ROWS {
                rows.push((page * 4096 + row * ROW_LEN, [tested.to_vec(), reference.to_vec()]));
            }
        }
    }
    (rows, bytes)
}

/// Adds the fields in which two states differ.
fn compare_states(
    name: &str,
    tested: &SavedState,
    reference: &SavedState,
    fields: &mut Vec<Field>,
) {
    let [mut tested, reference] = [tested, reference].map(|state| {
        let mut leaves = BTreeMap::new();
        if let Ok(value) = Value::serialized(state) {
            add_leaves(name.to_owned(), &value, &mut leaves);
        }
        leaves
    });
    for (path, reference) in reference {
        let tested = tested.remove(&path).unwrap_or_default();
        if tested != reference {
            fields.push(Field { path, tested, reference });
        }
    }
    let only = tested.into_iter();
    fields.extend(only.map(|(path, tested)| Field { path, tested, reference: String::new() }));
}

/// Adds all leaves in `value`, each with its path.
fn add_leaves(path: String, value: &Value, leaves: &mut BTreeMap<String, String>) {
    match value {
        Value::Map(entries) => {
            for (key, value) in entries {
                let path = match key.as_text() {
                    // Below this field is the whole state, so its name is left out.
                    Some("body") => path.clone(),
                    Some(key) => format!("{path}.{key}"),
                    None => format!("{path}.{key:?}"),
                };
                add_leaves(path, value, leaves);
            }
        }
        Value::Array(items) => {
            for (index, item) in items.iter().enumerate() {
                add_leaves(format!("{path}[{index}]"), item, leaves);
            }
        }
        Value::Integer(number) => {
            let number = i128::from(*number);
            leaves.insert(path, format!("{number:#x}"));
        }
        Value::Bool(is_set) => {
            leaves.insert(path, is_set.to_string());
        }
        Value::Text(text) => {
            leaves.insert(path, text.clone());
        }
        other => {
            leaves.insert(path, format!("{other:?}"));
        }
    }
}

impl Display for Difference {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let [tested, reference] = self.engines;
        let (same, different) = (self.same, self.different);
        writeln!(f, "the {tested} and the {reference} differ after {different} instructions")?;
        let nanos = self.time.as_nanos();
        let (seconds, nanos) = (nanos / 1_000_000_000, nanos % 1_000_000_000);
        writeln!(f, "({seconds}.{nanos:09} s of virtual time); they were the same after {same}")?;
        if let Some(Undefined { flags, by }) = &self.undefined {
            let names: Vec<_> = flags.iter_names().map(|(name, _)| name).collect();
            let flags = names.join(" and ");
            writeln!(
                f,
                "\nthat is no fault of an engine: the guest uses {flags} which {by} has left undefined;\n\
                executed until then:"
            )?;
            for line in &self.trace {
                writeln!(f, "    {line}")?;
            }
        } else if self.repeated {
            writeln!(f, "\nexecuted last, the one that differs (>), and what follows it:")?;
            for line in &self.trace {
                writeln!(f, "    {line}")?;
            }
            for (index, line) in self.next.iter().enumerate() {
                let mark = if index == 0 { '>' } else { ' ' };
                writeln!(f, "  {mark} {line}")?;
            }
        } else {
            writeln!(
                f,
                "\nthat part of the run was repeated from a saved machine, and they did not differ then:\n\
                what makes them differ began before it"
            )?;
        }
        writeln!(f, "\nwhat differs, with the {tested} and with the {reference}:")?;
        for Field { path, tested, reference } in self.fields.iter().take(ROWS) {
            writeln!(f, "    {path}: {tested} {reference}")?;
        }
        if self.fields.len() > ROWS {
            writeln!(f, "    and {} more", self.fields.len() - ROWS)?;
        }
        self.show_memory(f)?;
        if !self.before.is_empty() {
            write!(f, "\nthe processor before:\n{}", self.before)?;
        }
        self.show_reports(f)
    }
}

impl Difference {
    fn show_memory(&self, f: &mut Formatter<'_>) -> fmt::Result {
        if self.rows.is_empty() {
            return Ok(());
        }
        writeln!(f, "\n{} bytes of memory differ, by their physical addresses:", self.bytes)?;
        for (place, [tested, reference]) in &self.rows {
            let (mut first, mut second) = (String::new(), String::new());
            for (one, other) in tested.iter().zip(reference) {
                let mark = if one == other { ' ' } else { '*' };
                write!(first, "{mark}{one:02x}")?;
                write!(second, "{mark}{other:02x}")?;
            }
            writeln!(f, "    {place:08x} {:12}{first}", self.engines[0])?;
            writeln!(f, "             {:12}{second}", self.engines[1])?;
        }
        Ok(())
    }

    /// Shows both processors. Lines that differ have a mark.
    fn show_reports(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let [tested, reference] = &self.reports;
        writeln!(f, "\nthe processors then, with the lines that differ marked (*):")?;
        for (tested, reference) in tested.lines().zip(reference.lines()) {
            if tested == reference {
                writeln!(f, "  {:12}{tested}", "")?;
            } else {
                writeln!(f, "* {:12}{tested}", self.engines[0])?;
                writeln!(f, "* {:12}{reference}", self.engines[1])?;
            }
        }
        Ok(())
    }
}
