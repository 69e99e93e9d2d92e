//! Instructions of 64-bit code that raise signals again and again, and are left to the interpreter. See the file
//! of the same name in [`crate::translator`].

use crate::map::{Map, Set};

/// After this many signals that made the interpreter execute one instruction, the instruction is left to it.
const LEAVINGS: u8 = 3;
/// It is also left to it after this many signals of any kind, each [soon](SOON) after the one before.
const SIGNALS: u8 = 8;
/// A signal is soon after another one if fewer instructions than this lie between them.
const SOON: u64 = 1000;
/// Executions by the interpreter after which an instruction is translated again the first time. The number
/// doubles each time.
const FIRST_PATIENCE: u32 = 256;

/// The signals of one instruction.
#[derive(Debug, Clone, Copy, Default)]
struct Signals {
    leavings: u8,
    soon: u8,
    last: u64,
}

/// How often the interpreter executes an instruction before it is translated again.
#[derive(Debug, Clone, Copy)]
struct Patience {
    executed: u32,
    most: u32,
}

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Barred {
    signals: Map<u64, Signals>,
    patience: Map<u64, Patience>,
    /// The linear addresses of barred instructions.
    now: Set<u64>,
}

impl Barred {
    pub(crate) fn now(&self) -> &Set<u64> {
        &self.now
    }

    /// Notes a signal for the instruction at `linear`, after so many `instructions`. Returns whether it is
    /// barred now, and must be translated anew.
    pub(crate) fn note_signal(&mut self, linear: u64, instructions: u64) -> bool {
        let signals = self.signals.entry(linear).or_default();
        let is_soon = instructions.wrapping_sub(signals.last) < SOON;
        signals.soon = if is_soon { signals.soon + 1 } else { 1 };
        signals.last = instructions;
        signals.soon >= SIGNALS && self.bar(linear)
    }

    /// Notes that the interpreter executes the instruction at `linear` after a signal. Returns as
    /// [`Barred::note_signal`] does.
    pub(crate) fn note_leaving(&mut self, linear: u64) -> bool {
        let signals = self.signals.entry(linear).or_default();
        signals.leavings += 1;
        signals.leavings >= LEAVINGS && self.bar(linear)
    }

    fn bar(&mut self, linear: u64) -> bool {
        self.signals.remove(&linear);
        self.patience.entry(linear).or_insert(Patience { executed: 0, most: FIRST_PATIENCE });
        self.now.insert(linear)
    }

    /// Counts one more execution by the interpreter of the instruction at `linear`. Returns whether it was barred
    /// and is no longer, and must be translated anew.
    pub(crate) fn count(&mut self, linear: u64) -> bool {
        if !self.now.contains(&linear) {
            return false;
        }
        let Some(patience) = self.patience.get_mut(&linear) else { return false };
        patience.executed += 1;
        if patience.executed < patience.most {
            return false;
        }
        *patience = Patience { executed: 0, most: patience.most.saturating_mul(2) };
        self.now.remove(&linear)
    }

    /// Forgets all instructions.
    pub(crate) fn clear(&mut self) {
        *self = Barred::default();
    }
}
