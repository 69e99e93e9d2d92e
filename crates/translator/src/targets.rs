//! The jump tables of segmented code, in one address space: one for each mode.

use crate::blocks::Target;
use crate::context::index;
use crate::map::Map;
use crate::mode::{ModeNumber, SEGMENTED_INDEX_MASK};

/// Tables in an address space at most.
const MOST_TABLES: usize = 64;

/// See the module. The tables are as that of flat code is, without slots, and by addresses in CS.
#[derive(Debug)]
pub(crate) struct Targets {
    tables: Map<ModeNumber, Vec<u32>>,
    /// What entries have that know nothing.
    miss: u32,
    /// How often tables have gone.
    generation: u64,
}

impl Targets {
    /// No tables.
    pub(crate) fn new(miss: u32) -> Targets {
        Targets { tables: Map::default(), miss, generation: 0 }
    }

    /// The address of the table of `mode`, which stays there while [`Targets::generation`] does.
    pub(crate) fn table(&mut self, mode: ModeNumber) -> u64 {
        if self.tables.len() == MOST_TABLES && !self.tables.contains_key(&mode) {
            self.forget_modes();
        }
        let empty = || vec![self.miss; SEGMENTED_INDEX_MASK as usize + 1];
        self.tables.entry(mode).or_insert_with(empty).as_ptr().addr() as u64
    }

    /// Where an indirect branch to `eip` goes.
    pub(crate) fn target(&self, mode: ModeNumber, eip: u32) -> u32 {
        let table = self.tables.get(&mode);
        let target = table.and_then(|table| table.get(index(eip, SEGMENTED_INDEX_MASK) as usize));
        target.copied().unwrap_or(self.miss)
    }

    fn entry(&mut self, block: &Target) -> Option<&mut u32> {
        let table = self.tables.get_mut(&block.mode)?;
        table.get_mut(index(block.eip, SEGMENTED_INDEX_MASK) as usize)
    }

    /// Branches by the table go to `block`, if there is one of its mode.
    pub(crate) fn note(&mut self, block: &Target) {
        if let Some(entry) = self.entry(block) {
            *entry = block.checked_entry;
        }
    }

    /// Branches by the table no longer go to `block`.
    pub(crate) fn forget(&mut self, block: &Target) {
        let miss = self.miss;
        if let Some(entry) = self.entry(block)
            && *entry == block.checked_entry
        {
            *entry = miss;
        }
    }

    /// Forgets where branches go. The tables stay where they are.
    pub(crate) fn clear(&mut self) {
        for table in self.tables.values_mut() {
            table.fill(self.miss);
        }
    }

    /// Forgets the tables, as the numbers of modes are given anew.
    pub(crate) fn forget_modes(&mut self) {
        self.generation += 1;
        self.tables.clear();
    }

    /// Another number when tables that were there are no longer.
    pub(crate) fn generation(&self) -> u64 {
        self.generation
    }
}
