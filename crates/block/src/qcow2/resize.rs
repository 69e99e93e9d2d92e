//! Changes of the disk's size, and removal of all data.

use super::entry::COPIED;
use super::header::L1_ENTRIES_MAX;
use super::state::{State, table_bytes};
use crate::error::{Fault, Result};
use crate::storage::Storage;

impl State {
    /// Changes the size of the disk to `size` bytes. Data after the new end have been removed before.
    pub(super) fn resize(&mut self, storage: &dyn Storage, size: u64) -> Result<()> {
        let needed = self.header.l1_needed(size);
        if size > i64::MAX as u64 || needed > L1_ENTRIES_MAX {
            return Err(Fault::refused(format!(
                "an image with clusters of {} bytes cannot have {size} bytes",
                self.header.cluster_size()
            )));
        }
        self.commit(storage)?;
        let size = (size, std::mem::replace(&mut self.header.size, size));
        let result = if needed > self.l1.len() as u64 {
            let mut l1 = self.l1.clone();
            l1.resize(needed as usize, 0);
            self.replace_l1(storage, l1)
        } else {
            self.write_header(storage).and_then(|()| Ok(storage.flush()?))
        };
        if result.is_err() {
            self.header.size = size.1;
        }
        result
    }

    /// Writes `l1` to a new place and makes it the L1 table, together with other changes in the header.
    ///
    /// Everything to which it leads must already be in the file and counted.
    pub(super) fn replace_l1(&mut self, storage: &dyn Storage, l1: Vec<u64>) -> Result<()> {
        let size = self.header.cluster_size();
        let clusters = |entries: usize| (entries as u64 * 8).div_ceil(size);
        let count = clusters(l1.len()).max(1);
        let room = self.take(storage, count)?;
        storage.write_at(&table_bytes(&l1), room.at)?;
        // The clusters of the table must be counted before the header leads to it.
        self.commit(storage)?;
        let old = (self.header.l1_offset, self.header.l1_entries);
        (self.header.l1_offset, self.header.l1_entries) = (room.at, l1.len() as u32);
        if let Err(fault) = self.write_header(storage).and_then(|()| Ok(storage.flush()?)) {
            // The header may lead to either table, and both are complete.
            (self.header.l1_offset, self.header.l1_entries) = old;
            return Err(fault);
        }
        self.l1 = l1;
        self.add_metadata(room.at, count);
        if old.0 != 0 {
            self.free_metadata(old.0, clusters(old.1 as usize));
        }
        self.commit(storage)
    }

    /// Drops all clusters and L2 tables.
    pub(super) fn make_empty(&mut self, storage: &dyn Storage) -> Result<()> {
        self.commit(storage)?;
        let span = 1_u64 << (self.header.cluster_bits + self.header.l2_bits());
        let size = self.header.cluster_size();
        for index in 0..self.l1.len() {
            let start = index as u64 * span;
            let Some(at) = self.table_at(start)? else { continue };
            self.load(storage, at)?;
            for inside in (0..span).step_by(size as usize) {
                let cluster = self.cluster(start + inside)?;
                self.free_cluster(cluster);
            }
            let is_own = self.l1[index] & COPIED != 0;
            self.set_l1(index, 0);
            if is_own {
                self.free_metadata(at, 1);
            }
        }
        self.commit(storage)
    }
}
