//! The jump tables of segmented code in one address space: one for each mode.

use crate::code::block_store::JumpTarget;
use crate::context::index;
use crate::map::Map;
use crate::mode::{ModeNumber, SEGMENTED_INDEX_MASK};

/// Upper bound of the tables in an address space.
const MOST_TABLES: usize = 64;

/// See the module. The tables have the form of the one for flat code, but no slots, and their addresses are
/// in CS.
#[derive(Debug)]
pub(crate) struct SegmentedTables {
    tables: Map<ModeNumber, Vec<u32>>,
    /// The entry for addresses without code: the address of code that leaves translated code.
    miss: u32,
    /// How often tables were dropped.
    generation: u64,
}

impl SegmentedTables {
    /// Returns an empty set of tables for the entry `miss`.
    pub(crate) fn new(miss: u32) -> SegmentedTables {
        SegmentedTables { tables: Map::default(), miss, generation: 0 }
    }

    /// Returns the address of the table of `mode`. It remains valid while [`SegmentedTables::generation`]
    /// stays the same.
    pub(crate) fn table(&mut self, mode: ModeNumber) -> u64 {
        if self.tables.len() == MOST_TABLES && !self.tables.contains_key(&mode) {
            self.forget_modes();
        }
        let empty = || vec![self.miss; SEGMENTED_INDEX_MASK as usize + 1];
        self.tables.entry(mode).or_insert_with(empty).as_ptr().addr() as u64
    }

    /// Returns the host address at which an indirect branch to `eip` continues.
    pub(crate) fn target(&self, mode: ModeNumber, eip: u32) -> u32 {
        let table = self.tables.get(&mode);
        let target = table.and_then(|table| table.get(index(eip, SEGMENTED_INDEX_MASK) as usize));
        target.copied().unwrap_or(self.miss)
    }

    fn entry(&mut self, block: &JumpTarget) -> Option<&mut u32> {
        let table = self.tables.get_mut(&block.mode)?;
        table.get_mut(index(block.eip, SEGMENTED_INDEX_MASK) as usize)
    }

    /// Makes branches by the table go to `block`, if there is a table for its mode.
    pub(crate) fn note(&mut self, block: &JumpTarget) {
        if let Some(entry) = self.entry(block) {
            *entry = block.checked_entry;
        }
    }

    /// Removes `block` from its table.
    pub(crate) fn forget(&mut self, block: &JumpTarget) {
        let miss = self.miss;
        if let Some(entry) = self.entry(block)
            && *entry == block.checked_entry
        {
            *entry = miss;
        }
    }

    /// Empties all tables. They keep their addresses.
    pub(crate) fn clear(&mut self) {
        for table in self.tables.values_mut() {
            table.fill(self.miss);
        }
    }

    /// Drops the tables, since the modes get new numbers.
    pub(crate) fn forget_modes(&mut self) {
        self.generation += 1;
        self.tables.clear();
    }

    /// Returns a number that changes when tables are dropped.
    pub(crate) fn generation(&self) -> u64 {
        self.generation
    }
}
