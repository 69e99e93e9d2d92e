//! The table by which translated 64-bit code finds the code for the target of a branch.
//!
//! It has three parts. For the [`index`] of an address there are the address whose code is known, with its sign
//! changed, so that its sum with that address is 0, and that code. For each *slot* there is the code for the
//! one address to which direct branches from other pages lead by it.

/// Number of indices.
const ENTRIES: usize = 1 << 16;
/// Number of slots in the tables of the supervisor and of users.
pub(crate) const SLOTS: [usize; 2] = [1 << 15, 1 << 13];
/// Number of bits by which an address is rotated to the right before it is added to itself for the index.
pub(crate) const INDEX_ROTATION: u32 = 12;
/// The offsets in bytes of the second and third part.
pub(crate) const CODE: u32 = (ENTRIES * size_of::<u64>()) as u32;
pub(crate) const SLOT_CODE: u32 = 2 * CODE;

/// Returns the index of `linear`.
fn index(linear: u64) -> usize {
    linear.wrapping_add(linear.rotate_right(INDEX_ROTATION)) as usize & (ENTRIES - 1)
}

/// See the module.
#[derive(Debug)]
pub(crate) struct JumpTable {
    parts: Vec<u64>,
    is_user: bool,
    /// The code to which slots lead that have none.
    miss: u32,
}

impl JumpTable {
    /// Returns a table without code, whose slots lead to `miss`.
    pub(crate) fn new(is_user: bool, miss: u32) -> JumpTable {
        let mut table = JumpTable { parts: Vec::new(), is_user, miss };
        table.clear();
        table
    }

    /// Returns its address.
    pub(crate) fn address(&self) -> u64 {
        self.parts.as_ptr().addr() as u64
    }

    /// Forgets all code.
    pub(crate) fn clear(&mut self) {
        // Zeros take no memory before they are touched. Only at the first index a zero would be an address: that
        // number is of one with another index.
        self.parts = vec![0; 2 * ENTRIES + SLOTS[usize::from(self.is_user)]];
        self.parts[0] = 1;
        self.parts[2 * ENTRIES..].fill(self.miss.into());
    }

    /// Makes branches to `linear`, and those by `slot`, go to `code`.
    pub(crate) fn note(&mut self, linear: u64, slot: Option<u32>, code: u32) {
        let index = index(linear);
        self.parts[index] = linear.wrapping_neg();
        self.parts[ENTRIES + index] = code.into();
        if let Some(slot) = slot {
            self.parts[2 * ENTRIES + slot as usize] = code.into();
        }
    }
}
