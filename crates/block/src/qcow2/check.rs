//! A check: all references are counted, and compared with the reference counts of the image.

use std::collections::BTreeSet;

use super::entry::{COPIED, Cluster, OFFSET};
use super::header::{REFCOUNT_TABLE_MAX, incompatible};
use super::refcounts::{BLOCK_OFFSET, Refcounts, put};
use super::snapshots;
use super::state::{State, read_table, table_bytes};
use crate::check::{Repair, Report};
use crate::error::{Fault, Result};
use crate::storage::Storage;

/// Upper bound of the clusters in a file that can be checked: their counts take 64 MiB.
const CLUSTERS_MAX: u64 = 16 << 20;

/// The references that were found so far.
struct Found<'a> {
    storage: &'a dyn Storage,
    /// The number of references to each cluster of the file.
    counts: Vec<u32>,
    bits: u32,
    report: Report,
}

impl Found<'_> {
    /// Counts a reference to the clusters that contain `len` bytes from `at` on, if they are in the file.
    /// Returns whether they are.
    fn refer(&mut self, at: u64, len: u64, what: &str) -> bool {
        if len == 0 {
            return true;
        }
        let (first, last) = (at >> self.bits, at.saturating_add(len - 1) >> self.bits);
        if last >= self.counts.len() as u64 {
            self.report.corruption(format!("{what} at {at:#x} is behind the end of the file"));
            return false;
        }
        for count in &mut self.counts[first as usize..=last as usize] {
            *count = count.saturating_add(1);
        }
        true
    }
}

impl State {
    /// Looks for damage, and repairs it as far as `repair` allows.
    pub(super) fn check(
        &mut self,
        storage: &dyn Storage,
        snapshots: &[snapshots::Entry],
        repair: Repair,
    ) -> Result<Report> {
        if !self.is_clean() {
            self.commit(storage)?;
        }
        if self.header.has_bitmaps() {
            return Err(Fault::unsupported(
                "it has bitmaps, which are not supported; check it with \"qemu-img check\"",
            ));
        }
        let size = self.header.cluster_size();
        let clusters = storage.size()?.div_ceil(size);
        if clusters > CLUSTERS_MAX {
            return Err(Fault::unsupported(format!(
                "its file has more than {CLUSTERS_MAX} clusters; check it with \"qemu-img check\""
            )));
        }
        let report =
            Report { total_clusters: self.header.size.div_ceil(size), ..Report::default() };
        let mut found = Found {
            storage,
            counts: vec![0; clusters as usize],
            bits: self.header.cluster_bits,
            report,
        };
        found.refer(0, size, "the header");
        found.refer(self.header.l1_offset, self.l1.len() as u64 * 8, "the L1 table");
        self.count_l1(&mut found, &self.l1, true);
        found.refer(
            self.header.snapshots_offset,
            snapshots::table_len(snapshots),
            "the snapshot table",
        );
        for snapshot in snapshots {
            let entries = u64::from(snapshot.l1_entries);
            if found.refer(snapshot.l1_offset, entries * 8, "the L1 table of a snapshot") {
                let l1 = read_table(storage, snapshot.l1_offset, entries)?;
                self.count_l1(&mut found, &l1, false);
            }
        }
        let without_counts = found.counts.clone();
        let mut counts = self.count_counts(&mut found)?;
        let mut is_wrong = counts.is_none();
        if let Some(counts) = &mut counts {
            is_wrong |= compare(&mut found, counts, repair)?;
            let end =
                found.counts.iter().rposition(|count| *count > 0).map_or(0, |last| last as u64 + 1);
            found.report.end = end * size;
            is_wrong |= self.check_copied(&mut found, counts, Repair::Nothing)?;
        }
        let mut report = found.report;
        if repair == Repair::Leaks && counts.is_some() {
            report.leaks_fixed = report.leaks;
            if let Some(counts) = counts {
                self.refcounts = counts;
            }
            self.refcounts.first_free = 0;
            self.commit(storage)?;
        }
        let is_marked =
            self.header.incompatible & (incompatible::DIRTY | incompatible::CORRUPT) != 0;
        if repair == Repair::All && (is_wrong || is_marked || report.leaks > 0) {
            self.count_anew(storage, without_counts)?;
            let again = self.check(storage, snapshots, Repair::Nothing)?;
            report.corruptions_fixed = report.corruptions.saturating_sub(again.corruptions);
            report.leaks_fixed = report.leaks.saturating_sub(again.leaks);
            if again.corruptions == 0 && is_marked {
                self.header.incompatible &= !(incompatible::DIRTY | incompatible::CORRUPT);
                self.write_header(storage)?;
                storage.flush()?;
            }
        }
        Ok(report)
    }

    /// Counts the references from an L1 table.
    fn count_l1(&self, found: &mut Found, l1: &[u64], is_active: bool) {
        let size = self.header.cluster_size();
        let mut seen = BTreeSet::new();
        for entry in l1 {
            let at = match self.table_of(*entry) {
                Ok(None) => continue,
                Ok(Some(at)) => at,
                Err(fault) => {
                    found.report.corruption(fault.to_string());
                    continue;
                }
            };
            if !found.refer(at, size, "an L2 table") {
                continue;
            }
            if !seen.insert(at) {
                found.report.corruption(format!("the L2 table at {at:#x} is used twice"));
                continue;
            }
            // The last cluster of a file may be cut short, but not a table.
            let Ok(table) = read_table(found.storage, at, self.table_len() as u64) else {
                found.report.corruption(format!("the L2 table at {at:#x} is cut short"));
                continue;
            };
            let step = if self.header.has_subclusters() { 2 } else { 1 };
            for entry in table.chunks_exact(step) {
                let cluster =
                    match Cluster::of(entry[0], entry.get(1).copied().unwrap_or(0), &self.header) {
                        Ok(cluster) => cluster,
                        Err(fault) => {
                            found.report.corruption(fault.to_string());
                            continue;
                        }
                    };
                let is_packed = matches!(cluster, Cluster::Compressed { .. });
                let (at, len) = match cluster {
                    Cluster::Absent => (entry[0] & OFFSET, size),
                    Cluster::Zero { at, .. } | Cluster::Parts { at, .. } => (at.unwrap_or(0), size),
                    Cluster::Data { at, .. } => (at, size),
                    // The last sector of compressed bytes may reach beyond the end of the file.
                    Cluster::Compressed { at, len } => (at, len),
                };
                if at == 0 && !is_packed {
                    continue;
                }
                found.refer(at, len, "a cluster");
                if is_active {
                    found.report.allocated_clusters += 1;
                    found.report.compressed_clusters += u64::from(is_packed);
                }
            }
        }
    }

    /// Counts the references to the refcount table and its blocks. Returns the reference counts, or None if
    /// they cannot be read.
    fn count_counts(&mut self, found: &mut Found) -> Result<Option<Refcounts>> {
        let size = self.header.cluster_size();
        let len = u64::from(self.header.refcount_clusters) * size;
        if !found.refer(self.header.refcount_offset, len, "the refcount table") {
            return Ok(None);
        }
        let counts = match Refcounts::load(found.storage, &self.header) {
            Ok(counts) => counts,
            Err(Fault::Damaged(what)) => {
                found.report.corruption(what);
                return Ok(None);
            }
            Err(fault) => return Err(fault),
        };
        for at in counts.table.iter().map(|entry| entry & BLOCK_OFFSET).filter(|at| *at != 0) {
            found.refer(at, size, "a refcount block");
        }
        Ok(Some(counts))
    }

    /// Compares the marks of entries as owners with the reference counts. With [`Repair::All`] it corrects
    /// them. Returns whether any was wrong.
    fn check_copied(
        &mut self,
        found: &mut Found,
        counts: &mut Refcounts,
        repair: Repair,
    ) -> Result<bool> {
        let bits = self.header.cluster_bits;
        let mut is_wrong = false;
        let mut is_owner = |found: &mut Found, entry: u64, what: &str| -> Result<u64> {
            let at = entry & OFFSET;
            let owns = counts.get(found.storage, at >> bits)? == 1;
            if owns == (entry & COPIED != 0) {
                return Ok(entry);
            }
            is_wrong = true;
            match repair {
                // This comes from a crash in the middle of a snapshot. Nothing is lost: the cluster is only
                // copied once more than needed.
                Repair::Nothing if owns => {
                    found.report.say(format!("{what} at {at:#x} is not marked as owned"));
                }
                Repair::Nothing => found
                    .report
                    .corruption(format!("{what} at {at:#x} is marked as owned and is not")),
                _ => {}
            }
            Ok(entry & !COPIED | if owns { COPIED } else { 0 })
        };
        for index in 0..self.l1.len() {
            let Ok(Some(at)) = self.table_of(self.l1[index]) else { continue };
            let Ok(mut table) = read_table(found.storage, at, self.table_len() as u64) else {
                continue;
            };
            let entry = is_owner(found, self.l1[index], "an L2 table")?;
            let step = if self.header.has_subclusters() { 2 } else { 1 };
            let mut has_changed = false;
            for inside in (0..table.len()).step_by(step) {
                let cluster = Cluster::of(table[inside], 0, &self.header);
                let is_plain =
                    matches!(cluster, Ok(Cluster::Data { .. } | Cluster::Zero { at: Some(_), .. }));
                if is_plain || self.header.has_subclusters() && table[inside] & OFFSET != 0 {
                    let entry = is_owner(found, table[inside], "a cluster")?;
                    has_changed |= entry != table[inside];
                    table[inside] = entry;
                }
            }
            if repair == Repair::All {
                if has_changed {
                    self.insert(at, table, true);
                }
                if entry != self.l1[index] {
                    self.set_l1(index, entry);
                }
            }
        }
        Ok(is_wrong)
    }

    /// Writes new reference counts. `counts` has the references, except for those to the old counts.
    fn count_anew(&mut self, storage: &dyn Storage, mut counts: Vec<u32>) -> Result<()> {
        let size = self.header.cluster_size();
        let (bits, order) = (self.header.cluster_bits, self.header.refcount_order);
        let per_block = 1_u64 << self.header.block_bits();
        let first = counts.len() as u64;
        let (mut blocks, mut clusters) = (1, 1);
        loop {
            let needed_blocks = (first + blocks + clusters).div_ceil(per_block);
            let needed = (needed_blocks * 8).div_ceil(size);
            if needed_blocks <= blocks && needed <= clusters {
                break;
            }
            (blocks, clusters) = (needed_blocks, needed);
        }
        if clusters * size > REFCOUNT_TABLE_MAX {
            return Err(Fault::refused(
                "the file is as large as the format allows with clusters of this size",
            ));
        }
        counts.resize((first + blocks + clusters) as usize, 1);
        let most = u64::MAX >> (64 - (1 << order));
        let mut table = vec![0; (clusters * size / 8) as usize];
        for block in 0..blocks {
            let mut bytes = vec![0; size as usize];
            let start = (block * per_block) as usize;
            for (inside, count) in counts.iter().skip(start).take(per_block as usize).enumerate() {
                put(&mut bytes, inside, order, u64::from(*count).min(most));
            }
            table[block as usize] = (first + block) << bits;
            storage.write_at(&bytes, (first + block) << bits)?;
        }
        let at = (first + blocks) << bits;
        storage.write_at(&table_bytes(&table), at)?;
        storage.flush()?;
        self.header.refcount_offset = at;
        self.header.refcount_clusters = clusters as u32;
        self.write_header(storage)?;
        storage.flush()?;
        let mut new = Refcounts::load(storage, &self.header)?;
        let mut found = Found { storage, counts, bits, report: Report::default() };
        self.refcounts = Refcounts::load(storage, &self.header)?;
        self.end = self.end.max((first + blocks + clusters) << bits);
        self.tables.clear();
        self.dirty.clear();
        self.check_copied(&mut found, &mut new, Repair::All)?;
        self.commit(storage)
    }
}

/// Compares the counts with the references that were found. With [`Repair::Leaks`] it lowers those that are
/// too high. Returns whether any is too low.
fn compare(found: &mut Found, counts: &mut Refcounts, repair: Repair) -> Result<bool> {
    let mut is_wrong = false;
    for cluster in 0..found.counts.len() {
        let (there, expected) =
            (counts.get(found.storage, cluster as u64)?, u64::from(found.counts[cluster]));
        if there < expected {
            is_wrong = true;
            found.report.corruption(format!(
                "cluster {cluster} has {expected} references, and {there} are counted"
            ));
        } else if there > expected {
            found.report.leak(format!(
                "cluster {cluster} has {expected} references, and {there} are counted"
            ));
            if repair == Repair::Leaks {
                counts.set(found.storage, cluster as u64, expected)?;
            }
        }
    }
    Ok(is_wrong)
}
