//! Snapshots inside of an image: specification, "Snapshots".

use super::entry::{COPIED, Cluster, OFFSET};
use super::header::{Header, L1_ENTRIES_MAX};
use super::state::{State, read_table, table_bytes};
use crate::error::{Fault, Result};
use crate::format::{Snapshot, SnapshotAct};
use crate::storage::Storage;

/// Number of bytes of an entry in the snapshot table, without the fields of variable length.
const ENTRY_LEN: usize = 40;
/// Upper bound of the bytes in the snapshot table.
const TABLE_MAX: u64 = 64 << 20;
/// Upper bound of the bytes of extra data in an entry, as in QEMU.
const EXTRA_MAX: usize = 1024;
/// Upper bound of the bytes in the name of a new snapshot.
const NAME_MAX: usize = 256;

/// An entry of the snapshot table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) l1_offset: u64,
    pub(super) l1_entries: u32,
    /// The 64-bit size of the machine's state, the size of the disk, and further extra data.
    extra: Vec<u8>,
    pub(super) shown: Snapshot,
}

impl Entry {
    fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(ENTRY_LEN);
        let (id, name) = (self.shown.id.as_bytes(), self.shown.name.as_bytes());
        bytes.extend(self.l1_offset.to_be_bytes());
        bytes.extend(self.l1_entries.to_be_bytes());
        bytes.extend((id.len() as u16).to_be_bytes());
        bytes.extend((name.len() as u16).to_be_bytes());
        bytes.extend(self.shown.date_seconds.to_be_bytes());
        bytes.extend(self.shown.date_nanoseconds.to_be_bytes());
        bytes.extend(self.shown.clock.to_be_bytes());
        // The 32-bit size of the machine's state, or 0 if it does not fit.
        bytes.extend(u32::try_from(self.shown.state_size).unwrap_or(0).to_be_bytes());
        bytes.extend((self.extra.len() as u32).to_be_bytes());
        bytes.extend(&self.extra);
        bytes.extend(id);
        bytes.extend(name);
        bytes.resize(bytes.len().next_multiple_of(8), 0);
        bytes
    }

    /// Returns the size of the disk at the time of the snapshot, if the entry states it.
    fn disk_size(&self) -> Option<u64> {
        let bytes = self.extra.get(8..16)?;
        Some(u64::from_be_bytes(bytes.try_into().ok()?))
    }
}

/// Returns the number of bytes in the table.
pub(super) fn table_len(entries: &[Entry]) -> u64 {
    entries.iter().map(|entry| entry.encode().len() as u64).sum()
}

/// Reads the snapshot table.
pub(super) fn load(storage: &dyn Storage, header: &Header) -> Result<Vec<Entry>> {
    let mut entries = Vec::new();
    let mut at = header.snapshots_offset;
    for _ in 0..header.snapshots {
        let mut fixed = [0; ENTRY_LEN];
        storage.read_at(&mut fixed, at)?;
        let be32 =
            |at: usize| u32::from_be_bytes(fixed[at..at + 4].try_into().expect("four bytes"));
        let be64 =
            |at: usize| u64::from_be_bytes(fixed[at..at + 8].try_into().expect("eight bytes"));
        let (id_len, name_len) = ((be32(12) >> 16) as usize, (be32(12) & 0xffff) as usize);
        let extra_len = be32(36) as usize;
        if extra_len > EXTRA_MAX {
            return Err(Fault::damaged(format!("a snapshot has {extra_len} bytes of extra data")));
        }
        let mut rest = vec![0; extra_len + id_len + name_len];
        storage.read_at(&mut rest, at + ENTRY_LEN as u64)?;
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let extra = rest[..extra_len].to_vec();
        let long_size =
            extra.get(..8).map(|bytes| u64::from_be_bytes(bytes.try_into().expect("eight bytes")));
        let entry = Entry {
            l1_offset: be64(0),
            l1_entries: be32(8),
            shown: Snapshot {
                id: text(&rest[extra_len..extra_len + id_len]),
                name: text(&rest[extra_len + id_len..]),
                date_seconds: be32(16),
                date_nanoseconds: be32(20),
                clock: be64(24),
                state_size: long_size.unwrap_or(u64::from(be32(32))),
            },
            extra,
        };
        let is_place =
            entry.l1_offset.is_multiple_of(header.cluster_size()) && entry.l1_offset < 1 << 56;
        if !is_place || u64::from(entry.l1_entries) > L1_ENTRIES_MAX {
            return Err(Fault::damaged(format!(
                "the L1 table of snapshot {:?} is not valid",
                entry.shown.id
            )));
        }
        at += ((ENTRY_LEN + rest.len()) as u64).next_multiple_of(8);
        if at - header.snapshots_offset > TABLE_MAX {
            return Err(Fault::damaged("its snapshot table is too large"));
        }
        entries.push(entry);
    }
    Ok(entries)
}

impl State {
    /// Makes, applies or deletes a snapshot.
    pub(super) fn snapshot(
        &mut self,
        storage: &dyn Storage,
        entries: &mut Vec<Entry>,
        act: &SnapshotAct,
    ) -> Result<()> {
        self.commit(storage)?;
        match act {
            SnapshotAct::Create { name, date } => {
                self.create_snapshot(storage, entries, name, *date)
            }
            SnapshotAct::Apply(which) => {
                let index = find(entries, which)?;
                let entry = entries[index].clone();
                self.apply_snapshot(storage, &entry)
            }
            SnapshotAct::Delete(which) => {
                let index = find(entries, which)?;
                self.delete_snapshot(storage, entries, index)
            }
        }
    }

    /// Shows the disk from now on as it was in a snapshot. The image must be open for reading only.
    pub(super) fn show_snapshot(
        &mut self,
        storage: &dyn Storage,
        entries: &[Entry],
        which: &str,
    ) -> Result<()> {
        let (size, l1) = self.disk_of(storage, &entries[find(entries, which)?])?;
        (self.header.size, self.l1) = (size, l1);
        self.tables.clear();
        Ok(())
    }

    /// Returns the size of the disk in a snapshot, and its L1 table, without marks of ownership.
    fn disk_of(&self, storage: &dyn Storage, entry: &Entry) -> Result<(u64, Vec<u64>)> {
        let size = entry.disk_size().unwrap_or(self.header.size);
        if self.header.l1_needed(size) > u64::from(entry.l1_entries) {
            return Err(Fault::damaged("the L1 table of the snapshot is too short"));
        }
        let l1 = read_table(storage, entry.l1_offset, u64::from(entry.l1_entries))?;
        Ok((size, l1.iter().map(|entry| entry & !COPIED).collect()))
    }

    fn create_snapshot(
        &mut self,
        storage: &dyn Storage,
        entries: &mut Vec<Entry>,
        name: &str,
        date: (u32, u32),
    ) -> Result<()> {
        if name.is_empty()
            || name.len() > NAME_MAX
            || entries.iter().any(|entry| entry.shown.name == name)
        {
            return Err(Fault::refused(format!(
                "a snapshot needs a name that no other snapshot has, of at most {NAME_MAX} bytes"
            )));
        }
        let ids = entries.iter().filter_map(|entry| entry.shown.id.parse::<u64>().ok());
        let id = ids.max().unwrap_or(0).saturating_add(1).to_string();
        // First all entries lose their mark as owners. After a crash at this point, clusters are only copied
        // once more than needed.
        self.disown(storage)?;
        self.commit(storage)?;
        let l1: Vec<u64> = self.l1.iter().map(|entry| entry & !COPIED).collect();
        self.refer(storage, &l1, 1)?;
        let len = self.l1.len() as u64 * 8;
        let clusters = len.div_ceil(self.header.cluster_size()).max(1);
        let room = self.take(storage, clusters)?;
        self.add_metadata(room.at, clusters);
        storage.write_at(&table_bytes(&l1), room.at)?;
        self.commit(storage)?;
        // The extra data: no state of a machine, and the size of the disk.
        let extra = [0_u64.to_be_bytes(), self.header.size.to_be_bytes()].concat();
        let shown = Snapshot {
            id,
            name: name.to_owned(),
            date_seconds: date.0,
            date_nanoseconds: date.1,
            clock: 0,
            state_size: 0,
        };
        let mut new = entries.clone();
        new.push(Entry { l1_offset: room.at, l1_entries: l1.len() as u32, extra, shown });
        self.write_snapshots(storage, entries, new)
    }

    fn apply_snapshot(&mut self, storage: &dyn Storage, entry: &Entry) -> Result<()> {
        let (size, l1) = self.disk_of(storage, entry)?;
        self.refer(storage, &l1, 1)?;
        self.commit(storage)?;
        let old = self.l1.clone();
        self.header.size = size;
        self.replace_l1(storage, l1)?;
        self.refer(storage, &old, -1)?;
        self.commit(storage)?;
        self.own(storage)
    }

    fn delete_snapshot(
        &mut self,
        storage: &dyn Storage,
        entries: &mut Vec<Entry>,
        index: usize,
    ) -> Result<()> {
        let entry = entries[index].clone();
        let l1 = read_table(storage, entry.l1_offset, u64::from(entry.l1_entries))?;
        let mut new = entries.clone();
        new.remove(index);
        self.write_snapshots(storage, entries, new)?;
        self.refer(storage, &l1, -1)?;
        let len = u64::from(entry.l1_entries) * 8;
        self.free_metadata(entry.l1_offset, len.div_ceil(self.header.cluster_size()).max(1));
        self.commit(storage)?;
        self.own(storage)
    }

    /// Writes the snapshot table to a new place, and makes it the image's table.
    fn write_snapshots(
        &mut self,
        storage: &dyn Storage,
        entries: &mut Vec<Entry>,
        new: Vec<Entry>,
    ) -> Result<()> {
        let size = self.header.cluster_size();
        let bytes: Vec<u8> = new.iter().flat_map(Entry::encode).collect();
        let mut at = 0;
        if !bytes.is_empty() {
            let clusters = (bytes.len() as u64).div_ceil(size);
            at = self.take(storage, clusters)?.at;
            self.add_metadata(at, clusters);
            storage.write_at(&bytes, at)?;
            self.commit(storage)?;
        }
        let old = std::mem::replace(&mut self.header.snapshots_offset, at);
        self.header.snapshots = new.len() as u32;
        self.write_header(storage)?;
        storage.flush()?;
        let clusters = table_len(entries).div_ceil(size);
        if clusters > 0 {
            self.free_metadata(old, clusters);
        }
        *entries = new;
        self.commit(storage)
    }

    /// Adds `change` to the references of everything to which an L1 table leads. If it is negative, the next
    /// commit does that.
    fn refer(&mut self, storage: &dyn Storage, l1: &[u64], change: i64) -> Result<()> {
        let bits = self.header.cluster_bits;
        for entry in l1 {
            let Some(at) = self.table_of(*entry)? else { continue };
            self.load(storage, at)?;
            let table = self.tables.get(&at).map(|table| table.entries.clone()).unwrap_or_default();
            let mut ranges = vec![(at >> bits, 1, false)];
            for entry in table {
                match Cluster::of(entry, 0, &self.header)? {
                    Cluster::Data { at, .. } | Cluster::Zero { at: Some(at), .. } => {
                        ranges.push((at >> bits, 1, true));
                    }
                    Cluster::Compressed { at, len } => {
                        let (first, last) = (at >> bits, (at + len - 1) >> bits);
                        ranges.push((first, last - first + 1, true));
                    }
                    _ => {}
                }
            }
            if change < 0 {
                self.packed_end = None;
                self.freed.extend(ranges);
                continue;
            }
            for (first, count, _) in ranges {
                for cluster in first..first + count {
                    self.refcounts.add(storage, cluster, change)?;
                }
            }
        }
        self.note_growth();
        Ok(())
    }

    /// Removes the mark as owner from all entries.
    fn disown(&mut self, storage: &dyn Storage) -> Result<()> {
        self.mark(storage, &mut |_, _| Ok(false))
    }

    /// Marks all entries as owners that lead to something with one reference.
    fn own(&mut self, storage: &dyn Storage) -> Result<()> {
        self.mark(storage, &mut |state, at| {
            let cluster = at >> state.header.cluster_bits;
            Ok(state.refcounts.get(storage, cluster)? == 1)
        })?;
        self.commit(storage)
    }

    /// Sets or clears the mark as owner of each entry in the active tables.
    fn mark(
        &mut self,
        storage: &dyn Storage,
        owns: &mut dyn FnMut(&mut State, u64) -> Result<bool>,
    ) -> Result<()> {
        for index in 0..self.l1.len() {
            let Some(at) = self.table_of(self.l1[index])? else { continue };
            let with = |entry: u64, owned: bool| entry & !COPIED | if owned { COPIED } else { 0 };
            let owns_table = owns(self, at)?;
            // A table that a snapshot shares does not change: nothing in it is marked as owner.
            if owns_table || self.owns_table(index) {
                self.load(storage, at)?;
                let mut entries =
                    self.tables.get(&at).map(|table| table.entries.clone()).unwrap_or_default();
                let before = entries.clone();
                for entry in &mut entries {
                    let cluster = Cluster::of(*entry, 0, &self.header)?;
                    if matches!(cluster, Cluster::Data { .. } | Cluster::Zero { at: Some(_), .. }) {
                        *entry = with(*entry, owns(self, *entry & OFFSET)?);
                    }
                }
                if entries != before {
                    self.insert(at, entries, true);
                }
            }
            let entry = with(self.l1[index], owns_table);
            if entry != self.l1[index] {
                self.set_l1(index, entry);
            }
            if self.dirty_tables() >= self.tables_max() / 2 {
                self.commit(storage)?;
            }
        }
        Ok(())
    }
}

fn find(entries: &[Entry], which: &str) -> Result<usize> {
    let by_id = entries.iter().position(|entry| entry.shown.id == which);
    let by_name = || entries.iter().position(|entry| entry.shown.name == which);
    by_id.or_else(by_name).ok_or_else(|| Fault::refused(format!("there is no snapshot {which:?}")))
}
