//! Diskette drives, and the formats of the diskettes in them.

use ring3_core::disk::Medium;
use serde::{Deserialize, Serialize};

/// What a diskette drive of a PC can be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum DriveKind {
    /// 5.25 inches, 40 tracks: 360 KB.
    Kb360,
    /// 5.25 inches, high density: 1.2 MB, and 360 KB.
    Mb1_2,
    /// 3.5 inches, double density: 720 KB.
    Kb720,
    /// 3.5 inches, high density: 1.44 MB, and 720 KB.
    Mb1_44,
    /// 3.5 inches, extra density: 2.88 MB, and what the one before can.
    Mb2_88,
}

impl DriveKind {
    /// The kind that suits an image of `sectors` sectors; none for an image that is too large for any diskette.
    pub fn for_image(sectors: u64) -> Option<DriveKind> {
        Some(Format::of(sectors)?.drives[0].0)
    }

    /// Its number in the CMOS memory.
    const fn cmos(self) -> u8 {
        match self {
            DriveKind::Kb360 => 1,
            DriveKind::Mb1_2 => 2,
            DriveKind::Kb720 => 3,
            DriveKind::Mb1_44 => 4,
            DriveKind::Mb2_88 => 5,
        }
    }

    const fn tracks(self) -> u8 {
        match self {
            DriveKind::Kb360 => 40,
            _ => 80,
        }
    }
}

/// The byte of the CMOS memory (10h) that tells firmware which drives there are: A in bits 7:4, B in 3:0.
pub fn cmos_drive_types(drives: [Option<DriveKind>; 2]) -> u8 {
    let [a, b] = drives.map(|kind| kind.map_or(0, DriveKind::cmos));
    a << 4 | b
}

/// The bits of the equipment byte of the CMOS memory (14h) that tell how many drives there are.
pub fn cmos_equipment(drives: [Option<DriveKind>; 2]) -> u8 {
    match drives.iter().flatten().count() {
        0 => 0,
        count => (count as u8 - 1) << 6 | 1,
    }
}

// Data rates as in bits 1:0 of CCR and DSR.
const KBPS_500: u8 = 0;
const KBPS_300: u8 = 1;
const KBPS_250: u8 = 2;
const KBPS_1000: u8 = 3;

/// How a diskette is formatted, always with sectors of 512 bytes.
#[derive(Debug)]
pub(super) struct Format {
    pub(super) cylinders: u8,
    pub(super) heads: u8,
    /// Sectors on a track.
    pub(super) sectors: u8,
    /// The drives that read it, each with the data rate at which it does. The first suits best.
    drives: &'static [(DriveKind, u8)],
}

const FIVE_INCH_DOUBLE: &[(DriveKind, u8)] =
    &[(DriveKind::Kb360, KBPS_250), (DriveKind::Mb1_2, KBPS_300)];
const THREE_INCH_DOUBLE: &[(DriveKind, u8)] =
    &[(DriveKind::Mb1_44, KBPS_250), (DriveKind::Kb720, KBPS_250), (DriveKind::Mb2_88, KBPS_250)];
const THREE_INCH_HIGH: &[(DriveKind, u8)] =
    &[(DriveKind::Mb1_44, KBPS_500), (DriveKind::Mb2_88, KBPS_500)];

const fn format(
    cylinders: u8,
    heads: u8,
    sectors: u8,
    drives: &'static [(DriveKind, u8)],
) -> Format {
    Format { cylinders, heads, sectors, drives }
}

static FORMATS: [Format; 9] = [
    format(40, 1, 8, FIVE_INCH_DOUBLE),
    format(40, 1, 9, FIVE_INCH_DOUBLE),
    format(40, 2, 8, FIVE_INCH_DOUBLE),
    format(40, 2, 9, FIVE_INCH_DOUBLE),
    format(80, 2, 15, &[(DriveKind::Mb1_2, KBPS_500)]),
    format(80, 2, 9, THREE_INCH_DOUBLE),
    format(80, 2, 18, THREE_INCH_HIGH),
    // Microsoft's distribution format.
    format(80, 2, 21, THREE_INCH_HIGH),
    format(80, 2, 36, &[(DriveKind::Mb2_88, KBPS_1000)]),
];

impl Format {
    /// The format of an image of `sectors` sectors. One of an unusual size is the beginning of the smallest 3.5-inch
    /// diskette that it fits on.
    pub(super) fn of(sectors: u64) -> Option<&'static Format> {
        let exact = FORMATS.iter().find(|format| format.size() == sectors);
        let three_inch = &FORMATS[5..];
        exact.or_else(|| three_inch.iter().find(|format| format.size() >= sectors))
    }

    fn size(&self) -> u64 {
        u64::from(self.cylinders) * u64::from(self.heads) * u64::from(self.sectors)
    }

    /// Where a sector is in the image: `sector` counts from 1.
    pub(super) fn sector(&self, cylinder: u8, head: u8, sector: u8) -> u64 {
        let track = u64::from(cylinder) * u64::from(self.heads) + u64::from(head);
        track * u64::from(self.sectors) + u64::from(sector).saturating_sub(1)
    }
}

/// The innermost track that the head of a drive reaches.
const LAST_TRACK: u8 = 83;

/// A drive as it is now.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Drive {
    pub(super) medium: Option<Medium>,
    /// Where the head is.
    pub(super) track: u8,
    /// The drive has been opened since the head moved with a diskette in it (signal DSKCHG).
    pub(super) changed: bool,
}

impl Drive {
    pub(super) fn new(medium: Option<Medium>) -> Drive {
        Drive { medium, track: 0, changed: true }
    }

    pub(super) fn is_possible(&self) -> bool {
        self.track <= LAST_TRACK
    }

    /// Moves the head inwards, or outwards if `steps` is negative, as far as it goes.
    pub(super) fn step(&mut self, steps: i16) {
        self.track = (i16::from(self.track) + steps).clamp(0, i16::from(LAST_TRACK)) as u8;
        if steps != 0 && self.medium.is_some() {
            self.changed = false;
        }
    }

    /// The format of the diskette and the cylinder under the head, if a drive of kind `kind` can read it
    /// at data rate `rate`.
    pub(super) fn cylinder(&self, kind: DriveKind, rate: u8) -> Option<(&'static Format, u8)> {
        let format = Format::of(self.medium?.sectors)?;
        format.drives.iter().find(|drive| **drive == (kind, rate))?;
        // A diskette of 40 tracks in a drive of 80 has each under two positions of the head.
        let cylinder = self.track / (kind.tracks() / format.cylinders).max(1);
        (cylinder < format.cylinders).then_some((format, cylinder))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn images_have_formats_by_their_size() {
        let of = |sectors| Format::of(sectors).map(|f| (f.cylinders, f.heads, f.sectors));
        let known = [
            (720, (40, 2, 9)),
            (1440, (80, 2, 9)),
            (2400, (80, 2, 15)),
            (2880, (80, 2, 18)),
            (3360, (80, 2, 21)),
            (5760, (80, 2, 36)),
            (1, (80, 2, 9)),
            (1441, (80, 2, 18)),
        ];
        for (sectors, format) in known {
            assert_eq!(of(sectors), Some(format), "{sectors}");
        }
        assert_eq!(of(5761), None);
    }

    #[test]
    fn firmware_learns_of_the_drives() {
        let (a, b) = (DriveKind::for_image(2880), DriveKind::for_image(720));
        assert_eq!((cmos_drive_types([a, b]), cmos_equipment([a, b])), (0x41, 0x41));
        assert_eq!((cmos_drive_types([a, None]), cmos_equipment([a, None])), (0x40, 0x01));
        assert_eq!((cmos_drive_types([None; 2]), cmos_equipment([None; 2])), (0, 0));
        let kinds = [2400, 1440, 5760].map(DriveKind::for_image);
        assert_eq!(kinds, [DriveKind::Mb1_2, DriveKind::Mb1_44, DriveKind::Mb2_88].map(Some));
    }

    #[test]
    fn a_drive_reads_media_at_their_own_rate_only() {
        let mut drive = Drive::new(Some(Medium { sectors: 720, read_only: false }));
        drive.step(79);
        assert!(drive.cylinder(DriveKind::Kb360, KBPS_250).is_none(), "past its 40 cylinders");
        assert_eq!(drive.cylinder(DriveKind::Mb1_2, KBPS_300).unwrap().1, 39);
        assert!(drive.cylinder(DriveKind::Mb1_2, KBPS_500).is_none());
        assert!(drive.cylinder(DriveKind::Mb1_44, KBPS_250).is_none());
        drive.step(100);
        assert_eq!(drive.track, LAST_TRACK);
        assert!(drive.cylinder(DriveKind::Mb1_2, KBPS_300).is_none());
    }

    #[test]
    fn steps_with_a_diskette_take_the_change_back() {
        let mut drive = Drive::new(None);
        drive.step(3);
        assert!(drive.changed);
        drive.medium = Some(Medium { sectors: 2880, read_only: false });
        drive.step(0);
        assert!(drive.changed);
        drive.step(-1);
        assert_eq!((drive.changed, drive.track), (false, 2));
        drive.step(-9);
        assert_eq!(drive.track, 0);
    }
}
