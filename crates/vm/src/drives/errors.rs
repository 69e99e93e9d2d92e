//! The treatment of requests that the host could not execute, in QEMU's words (`-drive`, `rerror` and
//! `werror`).

use ring3_core::disk::{DiskError, DiskOperation, SECTOR_SIZE};
use serde::{Deserialize, Serialize};

/// The treatment of an error of the host.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum OnError {
    /// The guest is told.
    #[default]
    Report,
    /// The guest is told that all went well.
    Ignore,
    /// The machine stands still, and the request is repeated when it continues.
    Stop,
    /// If the host has no room for a write, the machine stands still; otherwise the guest is told.
    StopWithoutRoom,
}

impl OnError {
    /// QEMU's words for them. The one for [`OnError::StopWithoutRoom`] is not for reads.
    pub const WORDS: [(&str, OnError); 4] = [
        ("report", OnError::Report),
        ("ignore", OnError::Ignore),
        ("stop", OnError::Stop),
        ("enospc", OnError::StopWithoutRoom),
    ];
}

/// The treatment of a drive's errors.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ErrorPolicy {
    /// Errors of reads.
    pub read: OnError,
    /// Errors of writes and flushes.
    pub write: OnError,
}

impl Default for ErrorPolicy {
    /// Returns QEMU's default.
    fn default() -> ErrorPolicy {
        ErrorPolicy { read: OnError::Report, write: OnError::StopWithoutRoom }
    }
}

/// The action that followed an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// The guest was told.
    Report,
    /// The guest was told that all went well.
    Ignore,
    /// The machine stands still.
    Stop,
}

impl ErrorPolicy {
    /// Returns the action that follows `error`, or None if it is not one of the host.
    pub(super) fn action(self, operation: &DiskOperation, error: DiskError) -> Option<Action> {
        let on_error = if is_read(operation) { self.read } else { self.write };
        let is_full = match error {
            DiskError::Host => false,
            DiskError::NoSpace => true,
            DiskError::OutOfRange | DiskError::ReadOnly | DiskError::NoMedium => return None,
        };
        Some(match on_error {
            OnError::Ignore => Action::Ignore,
            OnError::Stop => Action::Stop,
            OnError::StopWithoutRoom if is_full => Action::Stop,
            OnError::Report | OnError::StopWithoutRoom => Action::Report,
        })
    }
}

pub(super) fn is_read(operation: &DiskOperation) -> bool {
    matches!(operation, DiskOperation::Read { .. })
}

/// Returns the answer to `operation` if its error is ignored.
pub(super) fn ignored(operation: &DiskOperation) -> Vec<u8> {
    match operation {
        DiskOperation::Read { count, .. } => vec![0; *count as usize * SECTOR_SIZE],
        _ => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn by_default_only_a_full_host_stops_the_machine() {
        let policy = ErrorPolicy::default();
        let read = DiskOperation::Read { sector: 0, count: 1 };
        assert_eq!(policy.action(&read, DiskError::Host), Some(Action::Report));
        assert_eq!(policy.action(&read, DiskError::NoSpace), Some(Action::Report));
        let write = DiskOperation::Write { sector: 0, data: Vec::new() };
        for operation in [write, DiskOperation::Flush] {
            assert_eq!(policy.action(&operation, DiskError::Host), Some(Action::Report));
            assert_eq!(policy.action(&operation, DiskError::NoSpace), Some(Action::Stop));
            assert_eq!(policy.action(&operation, DiskError::OutOfRange), None);
        }
    }
}
