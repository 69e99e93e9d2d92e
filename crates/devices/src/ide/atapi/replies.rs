//! The data that packets ask for, as bytes.

use super::{BLOCK_SIZE, MediaEvent, Sense};

/// The most blocks of a disc: what a block address reaches, with room for the lead-out's.
pub(super) const DISC_BLOCKS_MAX: u32 = 0x7fff_ffff;
/// Blocks of a CD of 80 minutes; what has more is a DVD.
const CD_BLOCKS_MAX: u32 = 80 * 60 * 75;
/// Frames before block 0, of which there are 75 in a second.
const LEAD_IN_FRAMES: u32 = 150;
/// Control field of a data track, address field of Q channel mode 1.
const DATA_TRACK: u8 = 0x14;
/// The track number of the lead-out area.
const LEAD_OUT: u8 = 0xaa;
/// 24 times the speed of music, in 1000 bytes a second.
const SPEED: u16 = 4234;

/// A disc with one data track.
#[derive(Debug, Clone, Copy)]
pub(super) struct Disc {
    /// Its size in blocks, 1 to [`DISC_BLOCKS_MAX`].
    pub(super) blocks: u32,
}

impl Disc {
    /// Whether `count` blocks from `first` on are there.
    pub(super) fn check(self, first: u32, count: u32) -> Result<(), Sense> {
        let end = first.checked_add(count);
        let inside = first < self.blocks && end.is_some_and(|end| end <= self.blocks);
        if inside { Ok(()) } else { Err(Sense::OUT_OF_RANGE) }
    }

    /// READ CAPACITY: the last block and the size of one.
    pub(super) fn capacity(self) -> Vec<u8> {
        [(self.blocks - 1).to_be_bytes(), (BLOCK_SIZE as u32).to_be_bytes()].concat()
    }

    /// The current profile of the drive.
    fn profile(self) -> u16 {
        if self.blocks > CD_BLOCKS_MAX { PROFILE_DVD_ROM } else { PROFILE_CD_ROM }
    }

    /// READ TOC (MMC): `format` 0 is the table of contents from track `first` on, 1 the last session, 2 the raw table.
    pub(super) fn toc(self, format: u8, msf: bool, first: u8) -> Result<Vec<u8>, Sense> {
        let address = |block: u32| if msf { minutes(block) } else { block.to_be_bytes() };
        let track = |number: u8, block: u32| [[0, DATA_TRACK, number, 0], address(block)].concat();
        let body = match format {
            0 => {
                if first > 1 && first != LEAD_OUT {
                    return Err(Sense::INVALID_FIELD);
                }
                let tracks = if first <= 1 { track(1, 0) } else { Vec::new() };
                [tracks, track(LEAD_OUT, self.blocks)].concat()
            }
            1 => track(1, 0),
            2 => {
                // First track, last track, lead-out and the track itself: session, control, track number, point, and
                // where that is in minutes, seconds and frames.
                let entry = |point: u8, place: [u8; 3]| {
                    [&[1, DATA_TRACK, 0, point, 0, 0, 0, 0][..], &place].concat()
                };
                let place = |block: u32| {
                    let [_, minute, second, frame] = minutes(block);
                    [minute, second, frame]
                };
                [
                    entry(0xa0, [1, 0, 0]),
                    entry(0xa1, [1, 0, 0]),
                    entry(0xa2, place(self.blocks)),
                    entry(1, place(0)),
                ]
                .concat()
            }
            _ => return Err(Sense::INVALID_FIELD),
        };
        let [high, low] = (body.len() as u16 + 2).to_be_bytes();
        Ok([vec![high, low, 1, 1], body].concat())
    }
}

/// A block as minutes, seconds and frames; what is past 255 minutes stays there.
fn minutes(block: u32) -> [u8; 4] {
    let frames = block.saturating_add(LEAD_IN_FRAMES);
    let minute = (frames / (60 * 75)).min(255) as u8;
    [0, minute, (frames / 75 % 60) as u8, (frames % 75) as u8]
}

/// REQUEST SENSE: fixed format, current error.
pub(super) fn sense(sense: Sense) -> Vec<u8> {
    let mut data = vec![0; 18];
    data[0] = 0x70;
    data[2] = sense.key;
    data[7] = 10;
    data[12] = sense.code;
    data[13] = sense.qualifier;
    data
}

/// INQUIRY: a CD-ROM drive with removable media by ATAPI; vendor, product and revision.
pub(super) fn inquiry(model: &str) -> Vec<u8> {
    let product = model.bytes().chain(std::iter::repeat(b' '));
    let mut data = vec![0x05, 0x80, 0x00, 0x21, 31, 0, 0, 0];
    data.extend(b"RING3   ");
    data.extend(
        product.map(|byte| if (0x20..0x7f).contains(&byte) { byte } else { b' ' }).take(16),
    );
    data.extend(b"1   ");
    data
}

const PROFILE_CD_ROM: u16 = 0x0008;
const PROFILE_DVD_ROM: u16 = 0x0010;

/// GET CONFIGURATION: the features from number `first` on; all, the current ones, or that one alone, as `which` says.
pub(super) fn configuration(disc: Option<Disc>, which: u8, first: u16) -> Result<Vec<u8>, Sense> {
    const ALL: u8 = 0;
    const CURRENT: u8 = 1;
    const ONE: u8 = 2;
    if which > ONE {
        return Err(Sense::INVALID_FIELD);
    }
    let profile = disc.map_or(0, Disc::profile);
    let (cd, dvd) = (profile == PROFILE_CD_ROM, profile == PROFILE_DVD_ROM);
    let listed = |number: u16, current: bool| {
        let [high, low] = number.to_be_bytes();
        [high, low, current.into(), 0]
    };
    let profiles = [listed(PROFILE_DVD_ROM, dvd), listed(PROFILE_CD_ROM, cd)].concat();
    // Number, version, whether persistent, whether current, and what the feature tells.
    let features: [(u16, u8, bool, bool, &[u8]); 5] = [
        (0x0000, 0, true, true, &profiles),
        // Core: the physical interface is ATAPI.
        (0x0001, 0, true, true, &[0, 0, 0, 2]),
        // Removable medium: a tray that locks and ejects.
        (0x0003, 0, true, true, &[0x29, 0, 0, 0]),
        // CD read, DVD read.
        (0x001e, 0, false, cd, &[0, 0, 0, 0]),
        (0x001f, 0, false, dvd, &[]),
    ];
    let mut body = Vec::new();
    for (number, version, persistent, current, told) in features {
        let wanted = match which {
            ALL => number >= first,
            CURRENT => number >= first && current,
            _ => number == first,
        };
        if wanted {
            body.extend(number.to_be_bytes());
            body.push(version << 2 | u8::from(persistent) << 1 | u8::from(current));
            body.push(told.len() as u8);
            body.extend(told);
        }
    }
    let mut data = (body.len() as u32 + 4).to_be_bytes().to_vec();
    data.extend([0, 0]);
    data.extend(profile.to_be_bytes());
    data.extend(body);
    Ok(data)
}

/// The classes of events that there are: media.
const EVENT_CLASSES: u8 = 1 << 4;

/// GET EVENT STATUS NOTIFICATION: none of the classes asked for exists.
pub(super) fn no_event() -> Vec<u8> {
    const NO_EVENT_AVAILABLE: u8 = 0x80;
    vec![0, 2, NO_EVENT_AVAILABLE, EVENT_CLASSES]
}

/// GET EVENT STATUS NOTIFICATION: the last event of the medium.
pub(super) fn media_event(event: MediaEvent, present: bool, tray_open: bool) -> Vec<u8> {
    const MEDIA_CLASS: u8 = 4;
    let code = match event {
        MediaEvent::None => 0,
        MediaEvent::EjectRequest => 1,
        MediaEvent::NewMedia => 2,
        MediaEvent::Removal => 3,
    };
    let status = u8::from(present) << 1 | u8::from(tray_open);
    vec![0, 6, MEDIA_CLASS, EVENT_CLASSES, code, status, 0, 0]
}

/// READ SUB-CHANNEL: nothing plays, and the disc has neither a catalogue number nor recording codes.
pub(super) fn sub_channel(wanted: bool, format: u8) -> Result<Vec<u8>, Sense> {
    let len: u8 = match (wanted, format) {
        (false, _) => 0,
        (true, 1) => 12,
        (true, 2 | 3) => 20,
        _ => return Err(Sense::INVALID_FIELD),
    };
    let mut data = vec![0; 4 + usize::from(len)];
    data[3] = len;
    if wanted {
        data[4] = format;
        data[5] = DATA_TRACK;
    }
    Ok(data)
}

/// READ DISC INFORMATION: one complete session of one track that nobody can add to.
pub(super) fn disc_information() -> Vec<u8> {
    const FINALIZED: u8 = 0b11_10;
    let mut data = vec![0; 34];
    data[1] = 32;
    data[2] = FINALIZED;
    data[3..7].fill(1);
    data[7] = 0x20; // Unrestricted use.
    data[16..24].fill(0xff); // No next session.
    data
}

/// MECHANISM STATUS.
pub(super) fn mechanism_status(tray_open: bool) -> Vec<u8> {
    vec![0, u8::from(tray_open) << 4, 0, 0, 0, 0, 0, 0]
}

/// MODE SENSE of `page`, or of all with 3Fh; of which bits can be changed (none) instead of what they are where
/// `changeable` is set. The header has 8 bytes where it is `long`, else 4.
pub(super) fn mode_sense(
    page: u8,
    changeable: bool,
    long: bool,
    disc: Option<Disc>,
    locked: bool,
) -> Result<Vec<u8>, Sense> {
    const ALL: u8 = 0x3f;
    let [speed_high, speed_low] = SPEED.to_be_bytes();
    // Read error recovery: everything that can be read is corrected, retried as the drive likes.
    let recovery = [0x01, 6, 0, 5, 0, 0, 0, 0];
    let capabilities = [
        0x2a,
        18,
        0x0b, // Reads CD-R, CD-RW and DVD-ROM.
        0,    // Writes nothing.
        0x70, // Mode 2 forms 1 and 2, several sessions.
        0,
        0x29 | u8::from(locked) << 1, // A tray that can be locked and ejected.
        0,
        speed_high,
        speed_low,
        0,
        0, // No volume levels.
        0,
        128, // KiB of buffer.
        speed_high,
        speed_low,
        0,
        0,
        0,
        0,
    ];
    let mut pages = Vec::new();
    for content in [&recovery[..], &capabilities] {
        if page == ALL || page == content[0] {
            pages.extend(&content[..2]);
            pages.extend(content[2..].iter().map(|byte| if changeable { 0 } else { *byte }));
        }
    }
    if pages.is_empty() {
        return Err(Sense::INVALID_FIELD);
    }
    // A data disc of 120 mm, or none.
    let medium_type = if disc.is_some() { 0x01 } else { 0x70 };
    let mut header = vec![0; if long { 8 } else { 4 }];
    let len = header.len() + pages.len();
    if long {
        header[..2].copy_from_slice(&(len as u16 - 2).to_be_bytes());
        header[2] = medium_type;
    } else {
        header[0] = len as u8 - 1;
        header[1] = medium_type;
    }
    Ok([header, pages].concat())
}
