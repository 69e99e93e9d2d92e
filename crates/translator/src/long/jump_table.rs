//! The table by which translated 64-bit code finds the code for the target of a branch.
//!
//! It has three parts. For the [`index`] of an address there are the address whose code is known, with its sign
//! changed, so that its sum with that address is 0, and that code. For each *slot* there is the code for the
//! one address to which direct branches from other pages lead by it.

use std::mem;

/// Number of indices.
pub(crate) const ENTRIES: usize = 1 << 16;
/// Number of slots in the tables of the supervisor and of users.
pub(crate) const SLOTS: [usize; 2] = [1 << 15, 1 << 13];
/// Number of bits by which an address is rotated to the right before it is added to itself for the index.
pub(crate) const INDEX_ROTATION: u32 = 12;
/// The offsets in bytes of the second and third part.
pub(crate) const CODE: u32 = (ENTRIES * size_of::<u64>()) as u32;
const SLOT_CODE: u32 = 2 * CODE;

/// Returns the offset in a table of the code for the target of `slot`.
pub(crate) fn slot_offset(slot: u32) -> u64 {
    (SLOT_CODE + slot * 8).into()
}

/// Upper bound of the places for which code is noted. Some may be counted again after it was forgotten.
const MOST_NOTED: usize = 4 * ENTRIES;

/// Returns the number that stands for no address at `index`: one of an address with another index.
fn no_address(index: usize) -> u64 {
    u64::from(index == 0)
}

/// Returns the index of `linear`.
fn index(linear: u64) -> usize {
    linear.wrapping_add(linear.rotate_right(INDEX_ROTATION)) as usize & (ENTRIES - 1)
}

/// See the module.
#[derive(Debug)]
pub(crate) struct JumpTable {
    parts: Vec<u64>,
    /// The code to which slots lead that have none.
    miss: u32,
    /// The places in `parts` of the addresses, and of the slots, for which code was noted.
    noted: Vec<u32>,
}

impl JumpTable {
    /// Returns a table without code, whose slots lead to `miss`.
    pub(crate) fn new(is_user: bool, miss: u32) -> JumpTable {
        // Zeros take no memory before they are touched.
        let mut parts = vec![0; 2 * ENTRIES + SLOTS[usize::from(is_user)]];
        parts[0] = no_address(0);
        parts[2 * ENTRIES..].fill(miss.into());
        JumpTable { parts, miss, noted: Vec::new() }
    }

    /// Returns its address.
    pub(crate) fn address(&self) -> u64 {
        self.parts.as_ptr().addr() as u64
    }

    /// Forgets all code.
    pub(crate) fn clear(&mut self) {
        for place in mem::take(&mut self.noted) {
            self.forget_at(place as usize);
        }
    }

    fn forget_at(&mut self, place: usize) {
        let is_slot = place >= 2 * ENTRIES;
        self.parts[place] = if is_slot { self.miss.into() } else { no_address(place) };
    }

    /// Forgets the code for branches to `linear`, and for those by `slot`.
    pub(crate) fn forget(&mut self, linear: u64, slot: Option<u32>) {
        let index = index(linear);
        if self.parts[index] == linear.wrapping_neg() {
            self.forget_at(index);
        }
        if let Some(slot) = slot {
            self.forget_at(2 * ENTRIES + slot as usize);
        }
    }

    /// Returns the code to which branches to `linear` go, if there is any.
    pub(crate) fn find(&self, linear: u64) -> Option<u32> {
        let index = index(linear);
        let is_known = self.parts[index] == linear.wrapping_neg();
        is_known.then(|| self.parts[ENTRIES + index] as u32)
    }

    /// Makes branches to `linear`, and those by `slot`, go to `code`.
    pub(crate) fn note(&mut self, linear: u64, slot: Option<u32>, code: u32) {
        if self.noted.len() >= MOST_NOTED {
            self.clear();
        }
        let index = index(linear);
        if self.parts[index] == no_address(index) {
            self.noted.push(index as u32);
        }
        self.parts[index] = linear.wrapping_neg();
        self.parts[ENTRIES + index] = code.into();
        if let Some(slot) = slot {
            let place = 2 * ENTRIES + slot as usize;
            if self.parts[place] == u64::from(self.miss) {
                self.noted.push(place as u32);
            }
            self.parts[place] = code.into();
        }
    }
}
