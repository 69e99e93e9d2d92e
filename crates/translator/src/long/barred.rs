//! Instructions of 64-bit code that raise signals again and again, and are left to the interpreter for a while
//! ([`patience`](crate::patience)).

use crate::map::{Map, Set};
use crate::patience::{Patience, SIGNALS, Signals};

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
        let soon = self.signals.entry(linear).or_default().note(instructions);
        soon >= SIGNALS && self.bar(linear)
    }

    /// Notes a signal for which a page is mapped, as [`Barred::note_signal`] does.
    pub(crate) fn note_mapping(&mut self, linear: u64, instructions: u64) -> bool {
        let soon = self.signals.entry(linear).or_default().note_mapping(instructions);
        soon >= SIGNALS && self.bar(linear)
    }

    /// Notes that the interpreter executes the instruction at `linear` after a signal. Returns as
    /// [`Barred::note_signal`] does.
    pub(crate) fn note_leaving(&mut self, linear: u64) -> bool {
        self.is_often(linear) && self.bar(linear)
    }

    /// Notes that the interpreter executes the instruction at `linear` after a signal. Returns whether that is often
    /// so.
    pub(crate) fn is_often(&mut self, linear: u64) -> bool {
        self.signals.entry(linear).or_default().note_leaving()
    }

    fn bar(&mut self, linear: u64) -> bool {
        self.signals.remove(&linear);
        self.patience.entry(linear).or_default();
        self.now.insert(linear)
    }

    /// Counts one more execution by the interpreter of the instruction at `linear`. Returns whether it was barred
    /// and is no longer, and must be translated anew.
    pub(crate) fn count(&mut self, linear: u64) -> bool {
        if !self.now.contains(&linear) {
            return false;
        }
        let is_over = self.patience.get_mut(&linear).is_some_and(Patience::count);
        is_over && self.now.remove(&linear)
    }

    /// Lets the instruction at `linear` be translated again.
    pub(crate) fn allow(&mut self, linear: u64) {
        self.now.remove(&linear);
        self.signals.remove(&linear);
    }

    /// Forgets all instructions.
    pub(crate) fn clear(&mut self) {
        *self = Barred::default();
    }
}
