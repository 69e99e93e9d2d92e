//! Caches the decoded blocks at linear addresses, which makes jumps to other pages, returns and indirect
//! jumps cheap.

/// The number of blocks in the cache; a power of two.
const BLOCKS: usize = 8192;

/// The block at a linear address.
#[derive(Debug, Clone, Copy)]
struct Block {
    /// The linear address, with the other values that determine what is executed there.
    key: u64,
    /// The number of its first decoded instruction.
    at: u32,
}

/// An entry without a block; no block has this number.
const NONE: Block = Block { key: u64::MAX, at: u32::MAX };

/// The blocks that were found last.
#[derive(Debug, Clone)]
pub(crate) struct Jumps {
    blocks: Box<[Block; BLOCKS]>,
    /// A bit for each page from which code was fetched, by the low bits of the page's number.
    fetched: [u64; 64],
}

impl Default for Jumps {
    fn default() -> Self {
        // This is made on the heap, since it is large for the stack.
        let blocks = vec![NONE; BLOCKS].try_into().expect("so many");
        Jumps { blocks, fetched: [0; 64] }
    }
}

impl Jumps {
    /// Notes that the block of `key` begins with decoded instruction number `at`.
    pub(crate) fn note(&mut self, key: u64, at: usize) {
        self.blocks[slot(key)] = Block { key, at: at as u32 };
    }

    /// Returns the number of the first decoded instruction of the block of `key`, if it was noted.
    #[inline(always)]
    pub(crate) fn find(&self, key: u64) -> Option<usize> {
        let block = &self.blocks[slot(key)];
        (block.key == key).then_some(block.at as usize)
    }

    /// Notes that code is fetched from the page of `linear`.
    pub(crate) fn note_fetch(&mut self, linear: u64) {
        let (word, bit) = page_bit(linear);
        self.fetched[word] |= bit;
    }

    /// Returns whether code may have been fetched from the page of `linear` since [`Jumps::forget_fetches`].
    pub(crate) fn has_fetched(&self, linear: u64) -> bool {
        let (word, bit) = page_bit(linear);
        self.fetched[word] & bit != 0
    }

    /// Begins a new generation.
    pub(crate) fn forget_fetches(&mut self) {
        self.fetched = [0; 64];
    }
}

/// Returns the slot of the block of `key`.
#[inline(always)]
fn slot(key: u64) -> usize {
    (key ^ key >> 13) as usize % BLOCKS
}

fn page_bit(linear: u64) -> (usize, u64) {
    let page = linear >> 12;
    ((page >> 6) as usize % 64, 1 << (page % 64))
}
