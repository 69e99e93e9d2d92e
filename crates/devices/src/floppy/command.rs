//! Commands: their numbers and lengths, and what those that work on sectors have in common ("Command Set/Descriptions").

use serde::{Deserialize, Serialize};

/// What a command byte means.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Command {
    Sectors(Work),
    ReadId,
    Specify,
    SenseDrive,
    Recalibrate,
    SenseInterrupt,
    DumpRegisters,
    Seek,
    RelativeSeek,
    Version,
    Perpendicular,
    Configure,
    Lock,
    Invalid,
}

/// What is done with sectors.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Work {
    Read,
    /// Sectors that are marked as deleted, which no diskette here has.
    ReadDeleted,
    ReadTrack,
    Verify,
    /// With either mark: an image does not keep it.
    Write,
    Format,
}

impl Work {
    /// True when the processor is to give bytes.
    pub(super) fn is_from_host(self) -> bool {
        matches!(self, Work::Write | Work::Format)
    }
}

impl Command {
    /// The command that begins with `byte`. The three high bits are options of those that
    /// work on sectors.
    pub(super) fn of(byte: u8) -> Command {
        match byte {
            0x03 => Command::Specify,
            0x04 => Command::SenseDrive,
            0x07 => Command::Recalibrate,
            0x08 => Command::SenseInterrupt,
            0x0e => Command::DumpRegisters,
            0x0f => Command::Seek,
            0x8f | 0xcf => Command::RelativeSeek,
            0x10 => Command::Version,
            0x12 => Command::Perpendicular,
            0x13 => Command::Configure,
            0x14 | 0x94 => Command::Lock,
            _ => match byte & 0x1f {
                0x02 => Command::Sectors(Work::ReadTrack),
                0x05 | 0x09 => Command::Sectors(Work::Write),
                0x06 => Command::Sectors(Work::Read),
                0x0a => Command::ReadId,
                0x0c => Command::Sectors(Work::ReadDeleted),
                0x0d => Command::Sectors(Work::Format),
                0x16 => Command::Sectors(Work::Verify),
                _ => Command::Invalid,
            },
        }
    }

    /// How many bytes it has, its own included.
    pub(super) fn len(self) -> usize {
        match self {
            Command::Sectors(Work::Format) => 6,
            Command::Sectors(_) => LONGEST_COMMAND,
            Command::Configure => 4,
            Command::Specify | Command::Seek | Command::RelativeSeek => 3,
            Command::ReadId
            | Command::SenseDrive
            | Command::Recalibrate
            | Command::Perpendicular => 2,
            Command::SenseInterrupt
            | Command::DumpRegisters
            | Command::Version
            | Command::Lock
            | Command::Invalid => 1,
        }
    }
}

/// The bytes of the longest command.
pub(super) const LONGEST_COMMAND: usize = 9;

// Options in the first byte of a command that works on sectors.
/// Goes on with the other side ("MT").
const MULTI_TRACK: u8 = 1 << 7;
/// Double density ("MFM"), which is all that diskettes here have.
const MFM: u8 = 1 << 6;
/// Sectors with the other mark are skipped ("SK").
const SKIP: u8 = 1 << 5;
/// In the second byte of VERIFY: the last byte counts sectors ("EC").
const ENABLE_COUNT: u8 = 1 << 7;

/// The identification field of a sector.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct SectorId {
    pub(super) cylinder: u8,
    pub(super) head: u8,
    pub(super) sector: u8,
    /// 128 bytes times two to this power.
    pub(super) size: u8,
}

impl SectorId {
    pub(super) fn bytes(self) -> [u8; 4] {
        [self.cylinder, self.head, self.sector, self.size]
    }
}

/// A command that works on sectors.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Task {
    pub(super) work: Work,
    pub(super) drive: u8,
    /// The head that is selected.
    pub(super) head: u8,
    pub(super) multi_track: bool,
    pub(super) mfm: bool,
    pub(super) skip: bool,
    /// The sector that is next.
    pub(super) id: SectorId,
    /// The last sector of a track ("EOT").
    pub(super) last: u8,
    /// Sectors until it ends by itself, where that is counted.
    pub(super) left: Option<u8>,
    /// What a formatted sector is filled with.
    pub(super) filler: u8,
}

impl Task {
    /// From the bytes of the command, all of which must be there.
    pub(super) fn new(work: Work, bytes: [u8; LONGEST_COMMAND]) -> Task {
        let [options, select, a, b, c, d, last, _, length] = bytes;
        let task = Task {
            work,
            drive: select & 3,
            head: select >> 2 & 1,
            multi_track: options & MULTI_TRACK != 0,
            mfm: options & MFM != 0,
            skip: options & SKIP != 0,
            id: SectorId { cylinder: a, head: b, sector: c, size: d },
            last,
            left: None,
            filler: 0,
        };
        match work {
            // Size, number of sectors, gap and filler.
            Work::Format => Task {
                id: SectorId { size: a, ..SectorId::default() },
                left: Some(b),
                filler: d,
                multi_track: false,
                ..task
            },
            // All sectors from the index hole on, whatever their numbers.
            Work::ReadTrack => {
                Task { id: SectorId { sector: 1, ..task.id }, multi_track: false, ..task }
            }
            Work::Verify if select & ENABLE_COUNT != 0 => Task { left: Some(length), ..task },
            _ => task,
        }
    }

    /// A sector is done: the next one's identification ("Result Phase Table"). True when that was the
    /// last of the track, or of both sides.
    pub(super) fn advance(&mut self) -> bool {
        if self.id.sector != self.last {
            self.id.sector = self.id.sector.wrapping_add(1);
            return false;
        }
        self.id.sector = 1;
        if self.multi_track {
            self.id.head ^= 1;
            if self.head == 0 {
                self.head = 1;
                return false;
            }
        }
        self.id.cylinder = self.id.cylinder.wrapping_add(1);
        true
    }
}
