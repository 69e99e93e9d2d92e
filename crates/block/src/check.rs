//! The findings of a check of an image.

/// The changes that a check may make.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Repair {
    /// No changes.
    Nothing,
    /// Gives back room that nothing uses.
    Leaks,
    /// Repairs all that can be made consistent.
    All,
}

/// The findings of a check.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Report {
    /// Number of places where the image contradicts itself.
    pub corruptions: u64,
    /// Number of clusters that count as used although nothing uses them.
    pub leaks: u64,
    /// Number of corruptions that were repaired.
    pub corruptions_fixed: u64,
    /// Number of leaks that were repaired.
    pub leaks_fixed: u64,
    /// Number of clusters of the disk.
    pub total_clusters: u64,
    /// Number of these clusters that have room in the file.
    pub allocated_clusters: u64,
    /// Number of these clusters that are compressed.
    pub compressed_clusters: u64,
    /// End of the last used cluster in the file, in bytes.
    pub end: u64,
    /// One line for each finding, for the first [`Report::MESSAGES_MAX`] of them.
    pub messages: Vec<String>,
}

impl Report {
    /// Upper bound of the lines in [`Report::messages`].
    pub const MESSAGES_MAX: usize = 100;

    /// Returns whether the image has no corruptions, or no longer has any.
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

    /// Adds a line about something that is neither a corruption nor a leak.
    pub(crate) fn say(&mut self, message: String) {
        if self.messages.len() < Report::MESSAGES_MAX {
            self.messages.push(message);
        }
    }
}
