//! Counts of a drive's operations, for observers outside. The guest sees none of them.

use std::time::{Duration, Instant};

use ring3_core::disk::{DiskError, DiskOperation, SECTOR_SIZE};

/// Counts of the operations of one kind that a drive has answered.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct OperationCounts {
    /// Operations that were executed.
    pub done: u64,
    /// The bytes that they concerned.
    pub bytes: u64,
    /// Operations that the host could not execute.
    pub failed: u64,
    /// Operations that are impossible: beyond the end, without a medium, or writes to a medium that cannot be
    /// written.
    pub invalid: u64,
    /// How long the executed ones took, in nanoseconds of the host, from the guest's request to the answer.
    pub nanos: u64,
}

/// Counts of a drive since the machine was made.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Reads.
    pub reads: OperationCounts,
    /// Writes, including those of zeros.
    pub writes: OperationCounts,
    /// Flushes.
    pub flushes: OperationCounts,
    /// Discards.
    pub discards: OperationCounts,
    /// The end of the write farthest from the beginning of the present medium, in bytes.
    pub highest_written: u64,
    /// When it last answered.
    pub last: Option<Instant>,
}

/// An operation as it is counted.
#[derive(Debug, Clone, Copy)]
pub(super) struct Counted {
    kind: Kind,
    /// The first byte that it concerns, and the one after the last.
    start: u64,
    end: u64,
    asked: Instant,
}

#[derive(Debug, Clone, Copy)]
enum Kind {
    Read,
    Write,
    Flush,
    Discard,
    Other,
}

impl Counted {
    /// Returns `operation` at the moment of its request.
    pub(super) fn new(operation: &DiskOperation) -> Counted {
        let sectors = |count: u32| u64::from(count) * SECTOR_SIZE as u64;
        let (kind, sector, bytes) = match operation {
            DiskOperation::Read { sector, count } => (Kind::Read, *sector, sectors(*count)),
            DiskOperation::Write { sector, data } => (Kind::Write, *sector, data.len() as u64),
            DiskOperation::WriteZeroes { sector, count, .. } => {
                (Kind::Write, *sector, sectors(*count))
            }
            DiskOperation::Discard { sector, count } => (Kind::Discard, *sector, sectors(*count)),
            DiskOperation::Flush => (Kind::Flush, 0, 0),
            DiskOperation::Eject => (Kind::Other, 0, 0),
        };
        // The guest may name any end until the operation was executed.
        let start = sector.saturating_mul(SECTOR_SIZE as u64);
        Counted { kind, start, end: start.saturating_add(bytes), asked: Instant::now() }
    }
}

impl Counts {
    /// Notes that `operation` has ended, with `result`.
    pub(super) fn note<T>(&mut self, operation: Counted, result: &Result<T, DiskError>) {
        let Counted { kind, start, end, asked } = operation;
        let counts = match kind {
            Kind::Read => &mut self.reads,
            Kind::Write => &mut self.writes,
            Kind::Flush => &mut self.flushes,
            Kind::Discard => &mut self.discards,
            Kind::Other => return,
        };
        let now = Instant::now();
        match result {
            Ok(_) => {
                counts.done += 1;
                counts.bytes = counts.bytes.saturating_add(end - start);
                counts.nanos = counts.nanos.saturating_add(nanos(now.duration_since(asked)));
                if matches!(kind, Kind::Write) {
                    self.highest_written = self.highest_written.max(end);
                }
            }
            Err(DiskError::Host | DiskError::NoSpace) => counts.failed += 1,
            Err(DiskError::OutOfRange | DiskError::ReadOnly | DiskError::NoMedium) => {
                counts.invalid += 1;
            }
        }
        self.last = Some(now);
    }

    /// Returns how long it has been idle, in nanoseconds, or None if it never had a request.
    pub fn idle_nanos(&self) -> Option<u64> {
        self.last.map(|last| nanos(last.elapsed()))
    }
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::sync::Arc;

    use ring3_core::device::DeviceId;
    use ring3_core::disk::{DiskRequest, DriveId, Medium};
    use ring3_core::input::{DeviceInput, Input};

    use super::*;
    use crate::door::door;
    use crate::drives::{Attachment, Drive, Drives};

    /// A drive that reads sectors before 100, and writes from sectors before 50 on.
    #[derive(Debug)]
    struct Disk {
        at_once: bool,
    }

    impl Drive for Disk {
        fn execute(&self, operation: &DiskOperation) -> Result<Vec<u8>, DiskError> {
            match operation {
                DiskOperation::Read { sector, count }
                    if sector.saturating_add(u64::from(*count)) <= 100 =>
                {
                    Ok(vec![0; *count as usize * SECTOR_SIZE])
                }
                DiskOperation::Read { .. } => Err(DiskError::OutOfRange),
                DiskOperation::Write { sector, .. } if *sector >= 50 => Err(DiskError::Host),
                _ => Ok(Vec::new()),
            }
        }

        fn execute_at_once(&self, operation: &DiskOperation) -> Option<Result<Vec<u8>, DiskError>> {
            self.at_once.then(|| self.execute(operation))
        }

        fn medium(&self) -> Option<Medium> {
            Some(Medium { sectors: 100, read_only: false })
        }

        fn file(&self) -> Option<&Path> {
            None
        }
    }

    const FIRST: DriveId = DriveId::new(DeviceId::IDE, 0);
    const SECOND: DriveId = DriveId::new(DeviceId::IDE, 1);

    /// Returns the counts of a machine's first drive after requests of all kinds.
    fn asked(mut drives: Drives, at_once: bool, later: bool) -> Counts {
        drives.attach(FIRST, Attachment::new(Arc::new(Disk { at_once })));
        drives.attach(SECOND, Attachment::new(Arc::new(Disk { at_once })));
        let (sender, mut door) = door();
        if later {
            drives.answer_at(sender);
        }
        let write = |sector, sectors: usize| DiskOperation::Write {
            sector,
            data: vec![0; sectors * SECTOR_SIZE],
        };
        let operations = [
            DiskOperation::Read { sector: 0, count: 8 },
            DiskOperation::Read { sector: 10, count: 1 },
            DiskOperation::Read { sector: u64::MAX - 1, count: 2 },
            write(40, 2),
            write(1, 1),
            write(60, 1),
            DiskOperation::WriteZeroes { sector: 44, count: 3, gives_up_room: false },
            DiskOperation::Flush,
            DiskOperation::Discard { sector: 90, count: 4 },
        ];
        for (tag, operation) in (0..).zip(operations) {
            if drives.ask(FIRST, DiskRequest { tag, operation }).is_some() {
                continue;
            }
            match door.wait_for(|_| true) {
                Input::Device { device, input: DeviceInput::Disk(answer) } => {
                    drives.note_answer(device, &answer);
                }
                other => panic!("{other:?}"),
            }
        }
        assert_eq!(drives.find(SECOND).unwrap().counts, Counts::default());
        drives.find(FIRST).unwrap().counts
    }

    #[test]
    fn each_request_is_counted_once() {
        for (at_once, later) in [(false, false), (true, true), (false, true)] {
            let counts = asked(Drives::default(), at_once, later);
            let told = |counts: OperationCounts| {
                (counts.done, counts.bytes, counts.failed, counts.invalid)
            };
            assert_eq!(told(counts.reads), (2, 9 * 512, 0, 1), "{at_once} {later}");
            assert_eq!(told(counts.writes), (3, 6 * 512, 1, 0), "{at_once} {later}");
            assert_eq!(told(counts.flushes), (1, 0, 0, 0));
            assert_eq!(told(counts.discards), (1, 4 * 512, 0, 0));
            assert_eq!(counts.highest_written, 47 * 512);
            assert!(counts.idle_nanos().is_some());
        }
    }
}
