//! The histogram of executed instructions, by their form in the [instruction table](crate::table) and by
//! privilege.
//!
//! The sum of all counts is the number of instructions that were executed meanwhile
//! ([`Cpu::instructions`](crate::cpu::Cpu::instructions)): each iteration of a repeated instruction counts,
//! and so does an instruction that faults. What counts as an instruction without being one has a row of its
//! own: a fault in fetching one or in delivering an exception, a breakpoint, and bytes that are no instruction.
//! The privilege is that before the instruction.

use std::collections::BTreeMap;
use std::fmt::{self, Display, Formatter};
use std::sync::OnceLock;

use serde::{Deserialize, Serialize};

use crate::cpu::{Cpu, reg};
use crate::guest_tools::Call;
use crate::hot_blocks::HotBlocks;
use crate::table::{self, FormId, Group};

/// The name of the row of what is no instruction.
const NO_INSTRUCTION: &str = "(no instruction)";

/// Counts of executed instructions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Histogram {
    /// For each form, and for what is no instruction: the counts of the supervisor and of users. A count may
    /// wrap below zero for a while, since engines take back what they have counted too early.
    counts: Vec<[u64; 2]>,
}

impl Default for Histogram {
    fn default() -> Histogram {
        Histogram { counts: vec![[0; 2]; table::forms().len() + 1] }
    }
}

/// A row of a histogram.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Row {
    /// The name of the form: its mnemonic and operands, as the manual writes them. All rows have different
    /// names.
    pub name: &'static str,
    /// The group of instructions to which the form belongs; None for what is no instruction.
    pub group: Option<Group>,
    /// The number of executions at privilege levels 0 to 2.
    pub supervisor: u64,
    /// The number of executions at privilege level 3.
    pub user: u64,
}

impl Row {
    /// The number of executions.
    pub fn total(&self) -> u64 {
        self.supervisor.wrapping_add(self.user)
    }
}

impl Histogram {
    /// Adds `count` executions of `form`, by a user or by the supervisor.
    #[inline]
    pub fn add(&mut self, form: FormId, is_user: bool, count: u64) {
        let place = &mut self.row(form)[usize::from(is_user)];
        *place = place.wrapping_add(count);
    }

    /// Takes back `count` executions that were added too early, or that will be added yet.
    #[inline]
    pub fn take_back(&mut self, form: FormId, is_user: bool, count: u64) {
        let place = &mut self.row(form)[usize::from(is_user)];
        *place = place.wrapping_sub(count);
    }

    #[inline]
    fn row(&mut self, form: FormId) -> &mut [u64; 2] {
        let last = self.counts.len() - 1;
        &mut self.counts[form.index().min(last)]
    }

    /// Adds all counts of `other`.
    pub fn add_all(&mut self, other: &Histogram) {
        self.combine(other, u64::wrapping_add);
    }

    /// Returns what was counted since `earlier`, an earlier state of this histogram.
    #[must_use]
    pub fn since(&self, earlier: &Histogram) -> Histogram {
        let mut difference = self.clone();
        difference.combine(earlier, u64::wrapping_sub);
        difference
    }

    fn combine(&mut self, other: &Histogram, function: impl Fn(u64, u64) -> u64) {
        for (count, other) in
            self.counts.as_flattened_mut().iter_mut().zip(other.counts.as_flattened())
        {
            *count = function(*count, *other);
        }
    }

    /// Returns all rows in the order of the instruction table, the last one being that of what is no
    /// instruction.
    pub fn rows(&self) -> impl ExactSizeIterator<Item = Row> {
        rows().iter().zip(&self.counts).map(|((name, group), [supervisor, user])| Row {
            name,
            group: *group,
            supervisor: *supervisor,
            user: *user,
        })
    }

    /// Returns the sum of all counts.
    pub fn total(&self) -> u64 {
        self.counts.as_flattened().iter().fold(0, |sum, count| sum.wrapping_add(*count))
    }
}

/// Returns name and group of each row.
fn rows() -> &'static [(String, Option<Group>)] {
    static ROWS: OnceLock<Vec<(String, Option<Group>)>> = OnceLock::new();
    ROWS.get_or_init(|| {
        let name = |form: &table::Form| form.code.op_code().instruction_string().to_owned();
        let mut uses = BTreeMap::<String, usize>::new();
        for form in table::forms() {
            *uses.entry(name(form)).or_default() += 1;
        }
        let row = |form: &table::Form| {
            let name = name(form);
            // Some forms have several encodings, of which the manual may list only one.
            let opcode = form.code.op_code().op_code_string();
            let is_unique = uses[&name] == 1;
            let name = if is_unique { name } else { format!("{name} ({opcode})") };
            (name, Some(form.group))
        };
        let forms = table::forms().iter().map(row);
        forms.chain([(NO_INSTRUCTION.to_owned(), None)]).collect()
    })
}

impl Display for Group {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Group::Moves => "moves",
            Group::Stack => "stack",
            Group::Arithmetic => "arithmetic",
            Group::Shifts => "shifts and bits",
            Group::Control => "control transfer",
            Group::Strings => "strings",
            Group::Ports => "ports",
            Group::Flags => "flags",
            Group::System => "system",
            Group::X87 => "x87",
            Group::Simd => "MMX and SSE",
        })
    }
}

/// How an instruction appears in the histogram.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Counted {
    pub(crate) form: FormId,
    /// Whether CPL was 3 before it.
    pub(crate) is_user: bool,
}

impl Counted {
    /// Nothing that is an instruction: a fetch that faults.
    pub(crate) fn nothing(cpu: &Cpu) -> Counted {
        Counted { form: FormId::NONE, is_user: cpu.is_user() }
    }

    /// Counts it.
    pub(crate) fn count(self, cpu: &mut Cpu) {
        cpu.count(self.form, self.is_user);
    }
}

/// What the processor counts, and for whom.
#[derive(Debug, Clone, Default)]
pub(crate) struct Counting {
    /// The counts, while anybody wants them.
    pub(crate) counts: Option<Box<Histogram>>,
    /// The hottest blocks, while the counts are wanted outside.
    pub(crate) blocks: Option<Box<HotBlocks>>,
    guest: GuestHistogram,
}

/// The histogram of the guest tool.
#[derive(Debug, Clone, Default)]
enum GuestHistogram {
    /// The guest has never measured.
    #[default]
    None,
    /// The guest measures since the counts were these.
    Since(Box<Histogram>),
    /// The guest has measured this.
    Measured(Box<Histogram>),
}

/// The saved form of the guest tool's histogram.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct SavedHistogram {
    is_measuring: bool,
    counts: Vec<[u64; 2]>,
}

impl Counting {
    /// Returns what the guest has measured and still measures, if it has ever done so.
    pub(crate) fn save(&self) -> Option<SavedHistogram> {
        let (is_measuring, measured) = match &self.guest {
            GuestHistogram::None => return None,
            GuestHistogram::Since(start) => (true, self.counts.as_ref()?.since(start)),
            GuestHistogram::Measured(measured) => (false, (**measured).clone()),
        };
        Some(SavedHistogram { is_measuring, counts: measured.counts })
    }

    /// Makes the guest's histogram that in a saved state. Returns false if it is of another instruction table.
    pub(crate) fn restore(&mut self, saved: Option<SavedHistogram>) -> bool {
        self.guest = GuestHistogram::None;
        if let Some(SavedHistogram { is_measuring, counts }) = saved {
            if counts.len() != table::forms().len() + 1 {
                return false;
            }
            let measured = Box::new(Histogram { counts });
            if is_measuring {
                let now = self.counts.get_or_insert_default();
                self.guest = GuestHistogram::Since(Box::new(now.since(&measured)));
            } else {
                self.guest = GuestHistogram::Measured(measured);
            }
        }
        self.stop_if_unused();
        true
    }

    fn stop_if_unused(&mut self) {
        if self.blocks.is_none() && !matches!(self.guest, GuestHistogram::Since(_)) {
            self.counts = None;
        }
    }
}

/// Bytes of the buffer that the guest fetches in one call.
const FETCHED: usize = 16;
/// Bytes of a counter in that buffer.
const COUNTER: usize = 8;

/// Returns the names in the guest's buffer, after each of which is a zero byte. There are two rows for each
/// form, of the supervisor and of users, whose names begin with a letter for the privilege.
fn names() -> &'static [u8] {
    static NAMES: OnceLock<Vec<u8>> = OnceLock::new();
    NAMES.get_or_init(|| {
        let both = rows().iter().flat_map(|(name, _)| [("s ", name), ("u ", name)]);
        both.flat_map(|(privilege, name)| [privilege.as_bytes(), name.as_bytes(), b"\0"].concat())
            .collect()
    })
}

impl Cpu {
    /// Returns whether executed instructions are counted by their form.
    pub fn counts_forms(&self) -> bool {
        self.counting.counts.is_some()
    }

    /// Counts executed instructions for somebody outside, or no longer. The counts begin at zero unless there
    /// are some already. They are only complete after
    /// [`Engine::complete_counts`](crate::engine::Engine::complete_counts).
    pub fn observe_forms(&mut self, is_observed: bool) {
        if is_observed {
            self.counting.counts.get_or_insert_default();
            self.counting.blocks.get_or_insert_default();
        } else {
            self.counting.blocks = None;
        }
        self.counting.stop_if_unused();
    }

    /// Returns the counts so far. They are only complete after
    /// [`Engine::complete_counts`](crate::engine::Engine::complete_counts).
    pub fn histogram(&self) -> Option<&Histogram> {
        self.counting.counts.as_deref()
    }

    /// Returns the counts, for an engine that adds to them.
    #[inline]
    pub fn histogram_mut(&mut self) -> Option<&mut Histogram> {
        self.counting.counts.as_deref_mut()
    }

    /// Counts an executed instruction.
    #[inline]
    pub(crate) fn count(&mut self, form: FormId, is_user: bool) {
        self.count_several(form, is_user, 1);
    }

    /// Counts iterations of a repeated instruction.
    #[inline]
    pub(crate) fn count_several(&mut self, form: FormId, is_user: bool, count: u64) {
        self.instructions += count;
        if let Some(counts) = &mut self.counting.counts {
            counts.add(form, is_user, count);
        }
    }

    /// Executes the call `call` of the tool that counts instructions. The counts must be
    /// [complete](crate::engine::Engine::complete_counts). Returns the values of EAX, EBX, ECX and EDX, or None
    /// if it is a call of another tool.
    pub fn execute_histogram(&mut self, call: Call) -> Option<[u32; 4]> {
        // The paper does not state what EAX and EDX are after start and stop.
        let [eax, edx] = [reg::AX, reg::DX].map(|register| self.get::<u32>(register));
        match call {
            Call::StartHistogram => {
                let counts = self.counting.counts.get_or_insert_default().clone();
                self.counting.guest = GuestHistogram::Since(counts);
                Some([eax, 0, 0, edx])
            }
            Call::StopHistogram => {
                let counts = self.counting.counts.as_deref();
                if let (GuestHistogram::Since(start), Some(counts)) = (&self.counting.guest, counts)
                {
                    let measured = Box::new(counts.since(start));
                    self.counting.guest = GuestHistogram::Measured(measured);
                    self.counting.stop_if_unused();
                }
                let counters = 2 * rows().len();
                let size = counters * COUNTER + names().len();
                Some([eax, counters as u32, size as u32, edx])
            }
            Call::FetchHistogram { index } => Some(self.fetch_histogram(index as usize)),
            Call::HostTime => None,
        }
    }

    /// Returns the four doublewords at `index` of the buffer with what the guest has measured, which is
    /// followed by zeros.
    fn fetch_histogram(&self, index: usize) -> [u32; 4] {
        let counters = match &self.counting.guest {
            GuestHistogram::Measured(measured) => measured.counts.as_flattened(),
            GuestHistogram::None | GuestHistogram::Since(_) => &[],
        };
        let in_counters = 2 * rows().len() * COUNTER;
        let byte = |at: usize| match at.checked_sub(in_counters) {
            None => counters.get(at / COUNTER).map_or(0, |count| count.to_le_bytes()[at % COUNTER]),
            Some(at) => names().get(at).copied().unwrap_or(0),
        };
        let bytes: [u8; FETCHED] = std::array::from_fn(|offset| byte(index.saturating_add(offset)));
        let word = |number: usize| bytes[4 * number..][..4].try_into().expect("four bytes");
        std::array::from_fn(|number| u32::from_le_bytes(word(number)))
    }
}
