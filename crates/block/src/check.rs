//! What a check of an image finds.

/// What a check may change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Repair {
    /// Nothing.
    Nothing,
    /// Only room that nobody uses, which is given back.
    Leaks,
    /// All that can be made consistent.
    All,
}

/// What a check has found.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Report {
    /// Places where the image contradicts itself.
    pub corruptions: u64,
    /// Clusters that are taken and that nobody uses.
    pub leaks: u64,
    /// How many of the corruptions are repaired.
    pub corruptions_fixed: u64,
    /// How many of the leaks are repaired.
    pub leaks_fixed: u64,
    /// Clusters of the disk.
    pub total_clusters: u64,
    /// How many of them have room in the file.
    pub allocated_clusters: u64,
    /// How many of those are compressed.
    pub compressed_clusters: u64,
    /// Where the last cluster in use ends in the file.
    pub end: u64,
    /// A line for each finding, [`Report::MESSAGES_MAX`] of them at most.
    pub messages: Vec<String>,
}

impl Report {
    /// The most lines in [`Report::messages`].
    pub const MESSAGES_MAX: usize = 100;

    /// Nothing is wrong, or nothing is wrong any more.
    pub fn is_sound(&self) -> bool {
        self.corruptions == self.corruptions_fixed
    }

    pub(crate) fn corruption(&mut self, message: impl Into<String>) {
        self.corruptions += 1;
        self.say(message.into());
    }

    pub(crate) fn leak(&mut self, message: impl Into<String>) {
        self.leaks += 1;
        self.say(message.into());
    }

    /// Adds a line on what is neither.
    pub(crate) fn say(&mut self, message: String) {
        if self.messages.len() < Report::MESSAGES_MAX {
            self.messages.push(message);
        }
    }
}
