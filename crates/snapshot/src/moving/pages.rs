//! Pages of memory in frames: their number (4 bytes), for each its own number with [`ZERO`] set if it has only
//! zeros (4 bytes each), and then the contents of the others.

use ring3_core::memory::Memory;

use super::MoveError;
use super::stream::{Frame, Kind, damaged};

/// Bytes of a page.
pub(super) const PAGE: usize = 4096;
/// Set in the number of a page of zeros.
const ZERO: u32 = 1 << 31;
/// Upper bound of the pages in a frame that have contents.
const FULL: usize = 256;
/// Upper bound of all pages in a frame.
const MOST: usize = 4096;

/// Takes pages from the front of `pages`, which ascend, until a frame of them is full. Returns the frame, and the number of its
/// pages that are not zero.
pub(super) fn pack(memory: &Memory, pages: &mut &[u32]) -> (Frame, usize) {
    let (mut numbers, mut full) = (Vec::new(), Vec::new());
    let mut memory = memory.full_pages();
    for page in pages.iter().take(MOST) {
        if full.len() == FULL {
            break;
        }
        let contents = memory.at(*page as usize * PAGE);
        numbers.push(if contents.is_some() { *page } else { page | ZERO });
        full.extend(contents);
    }
    *pages = &pages[numbers.len()..];
    let mut frame = Frame::new(Kind::Pages);
    let bytes = frame.bytes();
    bytes.reserve(4 + 4 * numbers.len() + full.len() * PAGE);
    bytes.extend((numbers.len() as u32).to_le_bytes());
    for number in &numbers {
        bytes.extend(number.to_le_bytes());
    }
    for contents in &full {
        bytes.extend(*contents);
    }
    (frame, full.len())
}

/// Puts the pages of a frame into `memory`. Pages that are zero already are not touched, so the host need not
/// have them.
pub(super) fn unpack(frame: &[u8], memory: &mut [u8], known: &mut Known) -> Result<(), MoveError> {
    let wrong = || damaged("it has pages where no memory is");
    let (count, rest) = frame.split_first_chunk().ok_or_else(wrong)?;
    let count = u32::from_le_bytes(*count) as usize;
    let (numbers, mut bytes) =
        count.checked_mul(4).and_then(|len| rest.split_at_checked(len)).ok_or_else(wrong)?;
    for number in numbers.chunks_exact(4) {
        let number = u32::from_le_bytes(number.try_into().expect("4 bytes"));
        let page = (number & !ZERO) as usize;
        let place = memory.get_mut(page * PAGE..(page + 1) * PAGE).ok_or_else(wrong)?;
        if number & ZERO != 0 {
            if known.0[page] {
                place.fill(0);
            }
            known.0[page] = false;
        } else {
            let (contents, after) = bytes.split_at_checked(PAGE).ok_or_else(wrong)?;
            place.copy_from_slice(contents);
            known.0[page] = true;
            bytes = after;
        }
    }
    if bytes.is_empty() { Ok(()) } else { Err(wrong()) }
}

/// Which pages of memory may not be zero.
pub(super) struct Known(Vec<bool>);

impl Known {
    /// Notes that `memory` has only zeros.
    pub(super) fn none(memory: &[u8]) -> Known {
        Known(vec![false; memory.len() / PAGE])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_survive_the_transfer() {
        let memory_of = |fill: &dyn Fn(&mut [u8])| {
            let mut memory = Memory::new(600 * PAGE as u64).unwrap();
            memory.change_contents(fill);
            memory
        };
        let memory = memory_of(&|bytes| {
            for page in (0..600).step_by(2) {
                bytes[page * PAGE + page] = page as u8 | 1;
            }
        });
        let all: Vec<u32> = (0..600).collect();
        let mut rest = &all[..];
        let mut other = vec![0; 600 * PAGE];
        let mut known = Known::none(&other);
        unpack(
            &pack(&memory_of(&|bytes| bytes.fill(7)), &mut &all[..200]).0.bytes()[12..],
            &mut other,
            &mut known,
        )
        .unwrap();
        let mut frames = Vec::new();
        while !rest.is_empty() {
            let (mut frame, full) = pack(&memory, &mut rest);
            assert!(full <= FULL);
            frames.push(frame.bytes()[12..].to_vec());
        }
        assert_eq!(frames.len(), 2);
        for frame in &frames {
            unpack(frame, &mut other, &mut known).unwrap();
        }
        assert!(other == memory.all_contents());
        // Pages beyond the end, too few bytes and too many.
        let frame = &frames[0];
        for bad in
            [&frame[..3], &frame[..100], &frame[..frame.len() - 1], &[&frame[..], &[0]].concat()]
        {
            assert!(unpack(bad, &mut other, &mut known).is_err());
        }
        assert!(unpack(frame, &mut other[..PAGE], &mut known).is_err());
        assert!(unpack(&[255; 8], &mut other, &mut known).is_err());
    }
}
