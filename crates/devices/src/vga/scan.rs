//! How the CRT controller walks through display memory, line by line.
//!
//! It counts addresses from the start address on. Each row has a number of lines (row scans), each of which may be
//! shown twice; a row further on, the counter is larger by the offset. At the line compare it begins again at 0 (split screen).
//! (FreeVGA, "CRT Controller Registers"; the Reference, "CRT Controller".)

use super::planar::Arrangement;
use super::registers::{Addressing, Registers};

/// One line of the screen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Line {
    /// The address counter at its left end.
    pub(super) start: u16,
    /// The line of the row that it is: 0 to 31.
    pub(super) row_scan: u8,
    /// Dots by which it is shifted to the left.
    pub(super) panning: usize,
    /// It is the first line of a row that is to be seen.
    pub(super) begins_row: bool,
}

/// The lines of the screen from the top, where a character has `dots` dots.
pub(super) fn lines(registers: &Registers, dots: usize) -> impl Iterator<Item = Line> {
    let mut line = Line {
        start: registers.start_address().wrapping_add(registers.byte_panning()),
        row_scan: registers.preset_row_scan(),
        panning: registers.pel_panning(dots),
        begins_row: true,
    };
    let mut is_second = false;
    (0..registers.lines()).map(move |number| {
        let this = line;
        if number == registers.line_compare() {
            is_second = false;
            line = after_line_compare(registers, line);
        } else if registers.is_double_scanned() && !is_second {
            is_second = true;
            line.begins_row = false;
        } else {
            is_second = false;
            line.begins_row = line.row_scan == registers.maximum_scan_line();
            if line.begins_row {
                line.row_scan = 0;
                line.start = line.start.wrapping_add(registers.row_offset());
            } else {
                line.row_scan = (line.row_scan + 1) & 0x1f;
            }
        }
        this
    })
}

fn after_line_compare(registers: &Registers, line: Line) -> Line {
    let (start, panning) = if registers.panning_ends_at_line_compare() {
        (0, 0)
    } else {
        (registers.byte_panning(), line.panning)
    };
    Line { start, row_scan: 0, panning, begins_row: true }
}

/// The plane offset that the address counter `counter` makes in a line with row scan `row_scan`.
///
/// Bits that come in from below are 0 in doubleword addressing; the Reference has bits 13 and 12 of the counter there, and has
/// their like on the processor's side, where this adapter has zeros too.
pub(super) fn plane_offset(registers: &Registers, counter: u16, row_scan: u8) -> u16 {
    let mut offset = match registers.addressing() {
        Addressing::Byte => counter,
        Addressing::Word => {
            let wrapped = if registers.wraps_at_64k() { counter >> 15 } else { counter >> 13 };
            counter << 1 | wrapped & 1
        }
        Addressing::Doubleword => counter << 2,
    };
    if registers.row_scan_0_is_address_13() {
        offset = offset & !(1 << 13) | u16::from(row_scan & 1) << 13;
    }
    if registers.row_scan_1_is_address_14() {
        offset = offset & !(1 << 14) | u16::from(row_scan >> 1 & 1) << 14;
    }
    offset
}

/// The planes of video memory.
#[derive(Debug, Clone, Copy)]
pub(super) struct Planes<'a> {
    pub(super) video: &'a [u8],
    pub(super) arrangement: Arrangement,
}

impl Planes<'_> {
    /// The bytes of the four planes at plane offset `offset`.
    pub(super) fn at(self, offset: u32) -> [u8; 4] {
        let [lower, upper] = self.arrangement.places(offset);
        let two = |place: u64| -> [u8; 2] {
            let bytes = self.video.get(place as usize..).and_then(|bytes| bytes.first_chunk());
            bytes.copied().unwrap_or_default()
        };
        let ([zero, one], [two, three]) = (two(lower), two(upper));
        [zero, one, two, three]
    }
}
