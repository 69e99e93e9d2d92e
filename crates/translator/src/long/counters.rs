//! What the translator for 64-bit code counts.

/// See the module.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Counters {
    /// Blocks that were made since all were dropped.
    pub(crate) blocks: usize,
    pub(crate) entries: u64,
    pub(crate) links: u64,
    pub(crate) look_ups: u64,
    pub(crate) fills: u64,
    pub(crate) signals: u64,
    pub(crate) flushes: u64,
    /// How often the interpreter has executed a single instruction.
    pub(crate) steps: u64,
    /// Instructions that it has executed then: iterations, for a repeated one.
    pub(crate) interpreted: u64,
    /// Instructions of [cold code](super::cold), which are more that it has executed.
    pub(crate) cold: u64,
    /// Instructions of [sweeps](super::page_faults), which are more, too.
    pub(crate) swept: u64,
    /// Blocks that are not executed, since the [checker](super::verify) was not convinced of them.
    pub(crate) unproven: u64,
}

impl Counters {
    /// Returns how many instructions the interpreter has executed.
    pub(crate) fn all_interpreted(&self) -> u64 {
        self.interpreted + self.cold + self.swept
    }
}
