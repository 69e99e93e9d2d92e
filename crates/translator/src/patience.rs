//! How many signals an instruction may raise before it is left to the interpreter, and for how long it then is.
//!
//! A signal takes longer than a thousand instructions, so no instruction may raise signals for ever. Whatever
//! the reason is, in time the instruction is *barred* from translation and left to the interpreter. It stays
//! there for so long that the signals of another attempt do not matter.

/// After this many signals that made the interpreter execute one instruction, the instruction is left to the
/// interpreter.
const LEAVINGS: u8 = 3;
/// It is also left to the interpreter after this many signals of any kind, if each comes [soon](SOON) after
/// the one before.
pub(crate) const SIGNALS: u8 = 8;
/// A signal is soon after another one if fewer instructions than this lie between them.
const SOON: u64 = 1000;
/// Executions by the interpreter after which the instruction is translated again the first time. The number
/// doubles each time.
const FIRST_PATIENCE: u32 = 256;

/// The signals of one instruction.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Signals {
    /// Number of signals after which the interpreter had to execute it.
    leavings: u8,
    /// Number of signals of any kind, each soon after the one before.
    soon: u8,
    /// The count of instructions at the last signal.
    last: u64,
}

impl Signals {
    /// Notes a signal after so many `instructions`. Returns how many have come, each soon after the one before.
    pub(crate) fn note(&mut self, instructions: u64) -> u8 {
        let is_soon = instructions.wrapping_sub(self.last) < SOON;
        self.soon = if is_soon { self.soon + 1 } else { 1 };
        self.last = instructions;
        self.soon
    }

    /// Notes a signal after so many `instructions` for which a page is mapped. It is one of those that come soon after
    /// another one only if no instruction was executed between: a page is mapped once, and a program may touch many.
    /// Returns as [`Signals::note`] does.
    pub(crate) fn note_mapping(&mut self, instructions: u64) -> u8 {
        self.soon = if instructions == self.last { self.soon + 1 } else { 1 };
        self.last = instructions;
        self.soon
    }

    /// Notes that the interpreter executes the instruction after a signal. Returns true if this has happened so
    /// often that one signal for each execution is too much, and then counts anew.
    pub(crate) fn note_leaving(&mut self) -> bool {
        self.leavings += 1;
        let is_often = self.leavings >= LEAVINGS;
        if is_often {
            self.leavings = 0;
        }
        is_often
    }
}

/// How long a barred instruction is left to the interpreter.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Patience {
    /// How often the interpreter has executed it.
    executed: u32,
    /// How often the interpreter executes it before it is translated again.
    most: u32,
}

impl Default for Patience {
    fn default() -> Patience {
        Patience { executed: 0, most: FIRST_PATIENCE }
    }
}

impl Patience {
    /// Counts one more execution by the interpreter. Returns true if there were enough, and has twice the patience
    /// the next time.
    pub(crate) fn count(&mut self) -> bool {
        self.executed += 1;
        let is_over = self.executed >= self.most;
        if is_over {
            *self = Patience { executed: 0, most: self.most.saturating_mul(2) };
        }
        is_over
    }
}
