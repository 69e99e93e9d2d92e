//! The tables in memory, and their meaning.

use std::collections::{BTreeSet, HashMap};
use std::sync::atomic::{AtomicU64, Ordering};

use super::entry::{COPIED, Cluster, OFFSET, SUBCLUSTERS};
use super::header::Header;
use super::refcounts::Refcounts;
use crate::error::{Fault, Result};
use crate::format::{Extent, Kind};
use crate::storage::Storage;

/// Number of bytes of L2 tables that are kept in memory.
const TABLES_MAX: u64 = 32 << 20;
/// Number of L2 tables that are kept at least.
const TABLES_MIN: usize = 16;

/// An L2 table.
#[derive(Debug)]
pub(super) struct Table {
    pub(super) entries: Vec<u64>,
    used: AtomicU64,
}

/// The part of an image that changes while it is in use.
#[derive(Debug)]
pub(super) struct State {
    pub(super) header: Header,
    pub(super) l1: Vec<u64>,
    /// The sectors of the L1 table that differ from the file.
    pub(super) l1_dirty: BTreeSet<usize>,
    /// The L2 tables in memory, by their offset in the file.
    pub(super) tables: HashMap<u64, Table>,
    /// The offsets of those L2 tables that differ from the file.
    pub(super) dirty: BTreeSet<u64>,
    pub(super) refcounts: Refcounts,
    /// Clusters to which no table in memory leads any more, but perhaps one in the file: number of the first
    /// one, number of clusters, and whether they contained data. The next commit gives them back.
    pub(super) freed: Vec<(u64, u64, bool)>,
    /// Clusters with metadata, to which no entry may lead as data.
    pub(super) metadata: BTreeSet<u64>,
    /// End of the clusters that were ever taken. The file after it was never written.
    pub(super) end: u64,
    /// Offset at which the next compressed cluster can begin.
    pub(super) packed_end: Option<u64>,
    clock: AtomicU64,
}

/// Reads a table of big-endian numbers, which must be wholly in the file.
pub(super) fn read_table(storage: &dyn Storage, at: u64, entries: u64) -> Result<Vec<u64>> {
    let outside = || Fault::damaged(format!("the table at {at:#x} is not completely in the file"));
    let len = entries * 8;
    let end = at.checked_add(len).ok_or_else(outside)?;
    if end > storage.size()? {
        return Err(outside());
    }
    let mut bytes = vec![0; len as usize];
    storage.read_at(&mut bytes, at)?;
    let number = |bytes: &[u8]| u64::from_be_bytes(bytes.try_into().expect("eight bytes"));
    Ok(bytes.chunks_exact(8).map(number).collect())
}

/// Returns the bytes of a table in the file.
pub(super) fn table_bytes(entries: &[u64]) -> Vec<u8> {
    entries.iter().flat_map(|entry| entry.to_be_bytes()).collect()
}

impl State {
    pub(super) fn new(header: Header, l1: Vec<u64>, refcounts: Refcounts, end: u64) -> State {
        State {
            header,
            l1,
            l1_dirty: BTreeSet::new(),
            tables: HashMap::new(),
            dirty: BTreeSet::new(),
            refcounts,
            freed: Vec::new(),
            metadata: BTreeSet::new(),
            end,
            packed_end: None,
            clock: AtomicU64::new(0),
        }
    }

    /// Returns the number of 64-bit words in an L2 table.
    pub(super) fn table_len(&self) -> usize {
        (self.header.cluster_size() / 8) as usize
    }

    /// Returns the upper bound of the tables in memory.
    pub(super) fn tables_max(&self) -> usize {
        ((TABLES_MAX / self.header.cluster_size()) as usize).max(TABLES_MIN)
    }

    /// Returns the index into the L1 table, and the one into the L2 table, of the cluster that contains byte
    /// `offset` of the disk.
    pub(super) fn indices(&self, offset: u64) -> (usize, usize) {
        let cluster = offset >> self.header.cluster_bits;
        let l2 = cluster & ((1 << self.header.l2_bits()) - 1);
        ((cluster >> self.header.l2_bits()) as usize, l2 as usize)
    }

    /// Returns the number of bytes from `offset` to the end of the range that its L2 table describes.
    pub(super) fn left_in_table(&self, offset: u64) -> u64 {
        let span = 1_u64 << (self.header.cluster_bits + self.header.l2_bits());
        span - offset % span
    }

    /// Returns the offset of the L2 table for byte `offset` of the disk, or None if there is none.
    pub(super) fn table_at(&self, offset: u64) -> Result<Option<u64>> {
        let entry = self.l1.get(self.indices(offset).0).copied().unwrap_or(0);
        self.table_of(entry)
    }

    /// Returns the offset of the L2 table to which an entry of an L1 table leads, or None if it leads to
    /// none.
    pub(super) fn table_of(&self, entry: u64) -> Result<Option<u64>> {
        let at = entry & OFFSET;
        if !at.is_multiple_of(self.header.cluster_size()) {
            return Err(Fault::damaged(format!(
                "its L1 table has an L2 table at {at:#x}, where no cluster begins"
            )));
        }
        Ok((at != 0).then_some(at))
    }

    /// Returns whether the L2 table for `offset` is in memory, if there is one.
    pub(super) fn is_loaded(&self, offset: u64) -> Result<bool> {
        Ok(self.table_at(offset)?.is_none_or(|at| self.tables.contains_key(&at)))
    }

    /// Reads the L2 table at `at` into memory.
    pub(super) fn load(&mut self, storage: &dyn Storage, at: u64) -> Result<()> {
        if !self.tables.contains_key(&at) {
            self.make_room();
            let entries = read_table(storage, at, self.table_len() as u64)?;
            self.insert(at, entries, false);
        }
        Ok(())
    }

    /// Puts an L2 table into memory.
    pub(super) fn insert(&mut self, at: u64, entries: Vec<u64>, dirty: bool) {
        let used = AtomicU64::new(self.clock.fetch_add(1, Ordering::Relaxed));
        self.tables.insert(at, Table { entries, used });
        if dirty {
            self.dirty.insert(at);
        }
    }

    /// If there are too many tables, drops a quarter of them: those that were not used for the longest time.
    fn make_room(&mut self) {
        if self.tables.len() < self.tables_max() {
            return;
        }
        let clean = self.tables.iter().filter(|(at, _)| !self.dirty.contains(at));
        let mut ages: Vec<_> =
            clean.map(|(at, table)| (table.used.load(Ordering::Relaxed), *at)).collect();
        ages.sort_unstable();
        for (_, at) in ages.into_iter().take(self.tables_max() / 4) {
            self.tables.remove(&at);
        }
    }

    /// Returns the number of tables in memory that differ from the file.
    pub(super) fn dirty_tables(&self) -> usize {
        self.dirty.len()
    }

    /// Returns the place of the cluster that contains `offset`. Its table must be in memory.
    pub(super) fn cluster(&self, offset: u64) -> Result<Cluster> {
        let Some(at) = self.table_at(offset)? else { return Ok(Cluster::Absent) };
        let Some(table) = self.tables.get(&at) else { return Err(not_loaded()) };
        table.used.store(self.clock.fetch_add(1, Ordering::Relaxed), Ordering::Relaxed);
        let index = self.indices(offset).1;
        if self.header.has_subclusters() {
            Cluster::of(table.entries[index * 2], table.entries[index * 2 + 1], &self.header)
        } else {
            Cluster::of(table.entries[index], 0, &self.header)
        }
    }

    /// Changes the L2 entry of the cluster that contains `offset`. Its table must be in memory, and no
    /// snapshot may share it.
    pub(super) fn set_entry(&mut self, offset: u64, entry: u64) -> Result<()> {
        let index = self.indices(offset).1;
        let at = self.table_at(offset)?.ok_or_else(not_loaded)?;
        let table = self.tables.get_mut(&at).ok_or_else(not_loaded)?;
        table.entries[index] = entry;
        self.dirty.insert(at);
        Ok(())
    }

    /// Changes an entry of the L1 table.
    pub(super) fn set_l1(&mut self, index: usize, entry: u64) {
        self.l1[index] = entry;
        // A sector contains 64 entries.
        self.l1_dirty.insert(index / 64);
    }

    /// Returns the contents of the bytes from `offset` on, at most up to the end of the range that its L2
    /// table describes. This table must be in memory.
    pub(super) fn extent(&self, offset: u64, max: u64) -> Result<Extent> {
        let max = max.min(self.left_in_table(offset));
        if self.table_at(offset)?.is_none() {
            return Ok(Extent { kind: Kind::Absent, len: max });
        }
        let mut whole = self.piece(offset)?;
        while whole.len < max {
            let Extent { kind, len } = self.piece(offset + whole.len)?;
            let goes_on = match (whole.kind, kind) {
                (Kind::Absent, Kind::Absent)
                | (Kind::Zero { at: None }, Kind::Zero { at: None }) => true,
                (Kind::Data { at: Some(first) }, Kind::Data { at: Some(next) })
                | (Kind::Zero { at: Some(first) }, Kind::Zero { at: Some(next) }) => {
                    first + whole.len == next
                }
                _ => false,
            };
            if !goes_on {
                break;
            }
            whole.len += len;
        }
        whole.len = whole.len.min(max);
        Ok(whole)
    }

    /// Returns the contents of the bytes from `offset` on, up to the end of the cluster or subcluster.
    fn piece(&self, offset: u64) -> Result<Extent> {
        let cluster_size = self.header.cluster_size();
        let inside = offset % cluster_size;
        let left = cluster_size - inside;
        let behind = |at: Option<u64>| at.map(|at| at + inside);
        let (kind, len) = match self.cluster(offset)? {
            Cluster::Absent => (Kind::Absent, left),
            Cluster::Zero { at, .. } => (Kind::Zero { at: behind(at) }, left),
            Cluster::Data { at, .. } => (Kind::Data { at: behind(Some(at)) }, left),
            Cluster::Compressed { .. } => (Kind::Data { at: None }, left),
            Cluster::Parts { at, data, zero } => {
                let size = cluster_size / SUBCLUSTERS;
                let bit = 1_u32 << (inside / size);
                let kind = match (data & bit != 0, zero & bit != 0) {
                    (true, true) => {
                        return Err(Fault::damaged(
                            "a subcluster is marked both as data and as zeros",
                        ));
                    }
                    (true, false) if at.is_none() => {
                        return Err(Fault::damaged(
                            "a subcluster has data, but its cluster has no place in the file",
                        ));
                    }
                    (true, false) => Kind::Data { at: behind(at) },
                    (false, true) => Kind::Zero { at: behind(at) },
                    (false, false) => Kind::Absent,
                };
                (kind, size - inside % size)
            }
        };
        Ok(Extent { kind, len })
    }

    /// Refuses bytes from `at` on that cannot be written in place because they are outside of the file, or
    /// metadata.
    pub(super) fn check_place(&self, at: u64, len: u64) -> Result<()> {
        let (first, last) =
            (at >> self.header.cluster_bits, (at + len - 1) >> self.header.cluster_bits);
        if at + len > self.end {
            return Err(Fault::damaged(format!(
                "the cluster at {at:#x} is after the end of the file"
            )));
        }
        if self.metadata.range(first..=last).next().is_some() {
            return Err(Fault::damaged(format!("the data cluster at {at:#x} overlaps a table")));
        }
        Ok(())
    }

    /// Notes that `count` clusters from the one at `at` on contain metadata.
    pub(super) fn add_metadata(&mut self, at: u64, count: u64) {
        let first = at >> self.header.cluster_bits;
        self.metadata.extend(first..first + count);
    }

    /// Notes that `count` clusters from the one at `at` on no longer contain metadata. The next commit gives
    /// them back.
    pub(super) fn free_metadata(&mut self, at: u64, count: u64) {
        let first = at >> self.header.cluster_bits;
        for cluster in first..first + count {
            self.metadata.remove(&cluster);
        }
        self.freed.push((first, count, false));
    }

    /// Lets the next commit give back the clusters to which an L2 entry leads.
    pub(super) fn free_cluster(&mut self, cluster: Cluster) {
        let bits = self.header.cluster_bits;
        match cluster {
            Cluster::Absent | Cluster::Zero { at: None, .. } | Cluster::Parts { at: None, .. } => {}
            Cluster::Zero { at: Some(at), .. }
            | Cluster::Data { at, .. }
            | Cluster::Parts { at: Some(at), .. } => self.freed.push((at >> bits, 1, true)),
            Cluster::Compressed { at, len } => {
                // This cluster may soon be free, so no further compressed bytes may follow in it.
                self.packed_end = None;
                let (first, last) = (at >> bits, (at + len - 1) >> bits);
                self.freed.push((first, last - first + 1, true));
            }
        }
    }

    /// Returns whether the table to which entry `index` of the L1 table leads belongs to this image alone.
    pub(super) fn owns_table(&self, index: usize) -> bool {
        self.l1[index] & COPIED != 0
    }
}

fn not_loaded() -> Fault {
    Fault::Io(std::io::Error::other("an L2 table is not in memory"))
}
