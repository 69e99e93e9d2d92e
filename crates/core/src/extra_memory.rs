//! What those outside know of memory that comes and goes while a machine runs.

use serde::{Deserialize, Serialize};

/// Memory that comes and goes, in bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExtraMemoryStatus {
    /// How much there is room for.
    pub region: u64,
    /// The guest-physical address at which the room begins.
    pub start: u64,
    /// How much should be there.
    pub requested: u64,
    /// How much is there.
    pub plugged: u64,
}
