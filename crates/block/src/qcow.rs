//! qcow, version 1: the format before qcow2 (block/qcow.c in QEMU).
//!
//! Numbers are big-endian. An L1 table leads to L2 tables, and these lead to clusters. There are no reference
//! counts, so room that is no longer used is lost. New clusters and tables go to the end of the file. The
//! contents of tables are written by the next flush.

use std::collections::{BTreeSet, HashMap};
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use flate2::{Decompress, FlushDecompress};

use crate::bytes::{be32, be64, pieces};
use crate::encryption::{Encryption, Password};
use crate::error::{Fault, Result};
use crate::format::{BackingName, Below, Details, Driver, Extent, Kind};
use crate::storage::{Storage, read_padded};

/// Number of bytes in the header.
const HEADER_LEN: usize = 48;
const MAGIC: &[u8; 8] = b"QFI\xfb\0\0\0\x01";
/// Flag of an entry whose cluster is compressed.
const COMPRESSED: u64 = 1 << 63;
/// Upper bound of the entries in an L1 table: 64 MiB.
const L1_ENTRIES_MAX: u64 = 8 << 20;
/// Number of bytes of L2 tables in memory at which the tables that do not differ from the file are dropped.
const TABLES_MAX: usize = 16 << 20;
/// For new images with a backing image and without one, as in QEMU: log2 of the cluster size, and of the
/// number of entries in an L2 table.
const BITS: [(u32, u32); 2] = [(9, 12), (12, 9)];

/// An image of this format.
#[derive(Debug)]
pub(crate) struct Qcow {
    storage: Box<dyn Storage>,
    size: u64,
    cluster_bits: u32,
    l2_bits: u32,
    l1_at: u64,
    backing: Option<BackingName>,
    encryption: Option<Encryption>,
    state: RwLock<State>,
}

#[derive(Debug)]
struct State {
    l1: Vec<u64>,
    /// The pieces of 64 entries of the L1 table that differ from the file.
    l1_dirty: BTreeSet<usize>,
    /// L2 tables by their index in the L1 table, and whether they differ from the file.
    tables: HashMap<usize, (Vec<u64>, bool)>,
    /// Offset in the file for the next new cluster.
    end: u64,
}

/// Returns whether `head` is the beginning of an image of this format.
pub(crate) fn is_one(head: &[u8]) -> bool {
    head.starts_with(MAGIC)
}

fn read_table(storage: &dyn Storage, at: u64, entries: u64) -> Result<Vec<u64>> {
    let end = at.checked_add(entries * 8);
    if end.is_none_or(|end| end > storage.size().unwrap_or(0)) {
        return Err(Fault::damaged(format!("the table at {at:#x} is not completely in the file")));
    }
    let mut bytes = vec![0; entries as usize * 8];
    storage.read_at(&mut bytes, at)?;
    Ok((0..entries as usize).map(|index| be64(&bytes, index * 8)).collect())
}

fn table_bytes(entries: &[u64]) -> Vec<u8> {
    entries.iter().flat_map(|entry| entry.to_be_bytes()).collect()
}

impl Qcow {
    /// Opens the image in `storage`.
    pub(crate) fn open(
        storage: Box<dyn Storage>,
        writes: bool,
        password: Password<'_>,
    ) -> Result<Qcow> {
        let mut head = vec![0; HEADER_LEN];
        read_padded(&*storage, &mut head, 0)?;
        if !is_one(&head) {
            return Err(Fault::refused("it is not a qcow image of version 1"));
        }
        let encryption = match be32(&head, 36) {
            0 => None,
            _ if writes => return Err(Fault::OnlyRead("encrypted images")),
            1 => Some(Encryption::aes(password)?),
            method => {
                return Err(Fault::unsupported(format!(
                    "it is encrypted by the unknown method {method}"
                )));
            }
        };
        let (size, cluster_bits, l2_bits) =
            (be64(&head, 24) / 512 * 512, u32::from(head[32]), u32::from(head[33]));
        if !(9..=16).contains(&cluster_bits) || !(6..=13).contains(&l2_bits) {
            return Err(Fault::damaged(format!(
                "clusters of 2 to the power of {cluster_bits} bytes in tables of 2 to the power of {l2_bits} entries are not valid"
            )));
        }
        let entries = size.div_ceil(1 << (cluster_bits + l2_bits));
        if entries > L1_ENTRIES_MAX {
            return Err(Fault::damaged(format!("its header says that the disk has {size} bytes")));
        }
        let l1_at = be64(&head, 40);
        let l1 = read_table(&*storage, l1_at, entries)?;
        let (name_at, name_len) = (be64(&head, 8), be32(&head, 16) as usize);
        let mut backing = None;
        if name_at != 0 && name_len != 0 {
            if name_len > 1023 {
                return Err(Fault::damaged("the name of its backing file is too long"));
            }
            let mut name = vec![0; name_len];
            read_padded(&*storage, &mut name, name_at)?;
            let name = String::from_utf8(name)
                .map_err(|_| Fault::unsupported("the name of its backing file is not in UTF-8"))?;
            backing = Some(BackingName { name, format: None });
        }
        let end = storage.size()?.next_multiple_of(1 << cluster_bits);
        let state = State { l1, l1_dirty: BTreeSet::new(), tables: HashMap::new(), end };
        Ok(Qcow {
            storage,
            size,
            cluster_bits,
            l2_bits,
            l1_at,
            backing,
            encryption,
            state: RwLock::new(state),
        })
    }

    /// Makes an image of `size` bytes.
    pub(crate) fn create(
        storage: &dyn Storage,
        size: u64,
        backing: Option<&BackingName>,
    ) -> Result<()> {
        let size = size.next_multiple_of(512);
        let (cluster_bits, l2_bits) = BITS[usize::from(backing.is_none())];
        let entries = size.div_ceil(1 << (cluster_bits + l2_bits));
        if entries > L1_ENTRIES_MAX {
            return Err(Fault::refused(format!(
                "a qcow image has at most {} bytes",
                L1_ENTRIES_MAX << (cluster_bits + l2_bits)
            )));
        }
        let name = backing.map_or("", |backing| backing.name.as_str());
        if name.len() > 1023 {
            return Err(Fault::refused(
                "the name of the backing file does not fit into the header",
            ));
        }
        let l1_at = (HEADER_LEN + name.len()).next_multiple_of(8) as u64;
        let mut head = vec![0; HEADER_LEN];
        let mut put = |at: usize, bytes: &[u8]| head[at..at + bytes.len()].copy_from_slice(bytes);
        put(0, MAGIC);
        if !name.is_empty() {
            put(8, &(HEADER_LEN as u64).to_be_bytes());
            put(16, &(name.len() as u32).to_be_bytes());
        }
        put(24, &size.to_be_bytes());
        put(32, &[cluster_bits as u8, l2_bits as u8]);
        put(40, &l1_at.to_be_bytes());
        head.extend(name.as_bytes());
        storage.set_size((l1_at + entries * 8).next_multiple_of(1 << cluster_bits))?;
        storage.flush()?;
        storage.write_at(&head, 0)?;
        Ok(storage.flush()?)
    }

    fn shared(&self) -> RwLockReadGuard<'_, State> {
        self.state.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn alone(&self) -> RwLockWriteGuard<'_, State> {
        self.state.write().unwrap_or_else(PoisonError::into_inner)
    }

    fn cluster_size(&self) -> u64 {
        1 << self.cluster_bits
    }

    /// Returns the index into the L1 table, and the one into the L2 table.
    fn indices(&self, offset: u64) -> (usize, usize) {
        let cluster = offset >> self.cluster_bits;
        ((cluster >> self.l2_bits) as usize, (cluster & ((1 << self.l2_bits) - 1)) as usize)
    }

    fn load(&self, state: &mut State, index: usize) -> Result<()> {
        let at = state.l1.get(index).copied().unwrap_or(0);
        if at == 0 || state.tables.contains_key(&index) {
            return Ok(());
        }
        if state.tables.len() << (self.l2_bits + 3) >= TABLES_MAX {
            state.tables.retain(|_, (_, is_dirty)| *is_dirty);
        }
        let table = read_table(&*self.storage, at, 1 << self.l2_bits)?;
        state.tables.insert(index, (table, false));
        Ok(())
    }

    /// Returns the state once the L2 table for `offset` is in memory.
    fn loaded(&self, offset: u64) -> Result<RwLockReadGuard<'_, State>> {
        let index = self.indices(offset).0;
        loop {
            let state = self.shared();
            if state.l1.get(index).is_none_or(|at| *at == 0) || state.tables.contains_key(&index) {
                return Ok(state);
            }
            drop(state);
            self.load(&mut self.alone(), index)?;
        }
    }

    /// Returns the entry of the cluster that contains `offset`, or 0 if there is none.
    fn entry(&self, state: &State, offset: u64) -> u64 {
        let (index, inside) = self.indices(offset);
        state.tables.get(&index).map_or(0, |(table, _)| table[inside])
    }

    fn unpack(&self, entry: u64) -> Result<Vec<u8>> {
        let at = entry & ((1 << (63 - self.cluster_bits)) - 1);
        let len = entry >> (63 - self.cluster_bits) & (self.cluster_size() - 1);
        let mut packed = vec![0; len as usize];
        read_padded(&*self.storage, &mut packed, at)?;
        let mut cluster = vec![0; self.cluster_size() as usize];
        let mut inflate = Decompress::new(false);
        let status = inflate.decompress(&packed, &mut cluster, FlushDecompress::Finish);
        match status {
            Ok(_) if inflate.total_out() == self.cluster_size() => Ok(cluster),
            Ok(_) => Err(Fault::damaged("a compressed cluster is too short")),
            Err(error) => {
                Err(Fault::damaged(format!("a compressed cluster cannot be read: {error}")))
            }
        }
    }

    /// Reads bytes that lie within one cluster.
    fn read_piece(
        &self,
        state: &State,
        bytes: &mut [u8],
        offset: u64,
        below: &dyn Below,
    ) -> Result<()> {
        let inside = offset % self.cluster_size();
        match self.entry(state, offset) {
            0 => below.read(bytes, offset),
            packed if packed & COMPRESSED != 0 => {
                let cluster = self.unpack(packed)?;
                bytes.copy_from_slice(&cluster[inside as usize..][..bytes.len()]);
                Ok(())
            }
            at => match &self.encryption {
                None => Ok(read_padded(&*self.storage, bytes, at.saturating_add(inside))?),
                Some(encryption) => encryption.read(&*self.storage, bytes, at, offset, inside),
            },
        }
    }

    /// Refuses a place at which no cluster of data can be.
    fn check_place(&self, state: &State, at: u64) -> Result<()> {
        let header_end = self.l1_at + state.l1.len() as u64 * 8;
        let is_inside = at.checked_add(self.cluster_size()).is_some_and(|end| end <= state.end);
        if at < header_end || !is_inside {
            return Err(Fault::damaged(format!(
                "a table has a cluster at {at:#x}, where no cluster can be"
            )));
        }
        Ok(())
    }

    /// Writes bytes that lie within one cluster.
    fn write_piece(&self, bytes: &[u8], offset: u64, below: &dyn Below) -> Result<()> {
        let inside = offset % self.cluster_size();
        {
            let state = self.loaded(offset)?;
            let at = self.entry(&state, offset);
            if at != 0 && at & COMPRESSED == 0 {
                self.check_place(&state, at)?;
                return Ok(self.storage.write_at(bytes, at + inside)?);
            }
        }
        let mut state = self.alone();
        let (index, entry) = self.indices(offset);
        if index >= state.l1.len() {
            return Err(Fault::damaged("the L1 table is too short"));
        }
        self.load(&mut state, index)?;
        let old = self.entry(&state, offset);
        if old != 0 && old & COMPRESSED == 0 {
            // Another thread has just given the cluster its room.
            self.check_place(&state, old)?;
            return Ok(self.storage.write_at(bytes, old + inside)?);
        }
        let mut cluster = vec![0; self.cluster_size() as usize];
        if bytes.len() < cluster.len() {
            self.read_piece(&state, &mut cluster, offset - inside, below)?;
        }
        cluster[inside as usize..][..bytes.len()].copy_from_slice(bytes);
        if state.l1[index] == 0 {
            let at = self.take(&mut state, 8 << self.l2_bits);
            state.l1[index] = at;
            state.l1_dirty.insert(index / 64);
            state.tables.insert(index, (vec![0; 1 << self.l2_bits], true));
        }
        let at = self.take(&mut state, self.cluster_size());
        self.storage.write_at(&cluster, at)?;
        if let Some((table, is_dirty)) = state.tables.get_mut(&index) {
            table[entry] = at;
            *is_dirty = true;
        }
        Ok(())
    }

    /// Takes room at the end of the file, and returns its offset.
    fn take(&self, state: &mut State, len: u64) -> u64 {
        let at = state.end;
        state.end += len.next_multiple_of(self.cluster_size());
        at
    }
}

impl Driver for Qcow {
    fn size(&self) -> u64 {
        self.size
    }

    fn extent(&self, offset: u64, max: u64) -> Result<Extent> {
        let state = self.loaded(offset)?;
        let size = self.cluster_size();
        let span = 1_u64 << (self.cluster_bits + self.l2_bits);
        let max = max.min(span - offset % span);
        if self.indices(offset).0 >= state.l1.len() || state.l1[self.indices(offset).0] == 0 {
            return Ok(Extent { kind: Kind::Absent, len: max });
        }
        let kind_at = |offset: u64| match self.entry(&state, offset) {
            0 => Kind::Absent,
            packed if packed & COMPRESSED != 0 => Kind::Data { at: None },
            at => Kind::Data { at: at.checked_add(offset % size) },
        };
        let kind = kind_at(offset);
        let mut len = size - offset % size;
        while len < max {
            let goes_on = match (kind, kind_at(offset + len)) {
                (Kind::Absent, Kind::Absent) => true,
                (Kind::Data { at: Some(first) }, Kind::Data { at: Some(next) }) => {
                    first.checked_add(len) == Some(next)
                }
                _ => false,
            };
            if !goes_on {
                break;
            }
            len += size;
        }
        Ok(Extent { kind, len: len.min(max) })
    }

    fn read(&self, bytes: &mut [u8], offset: u64, below: &dyn Below) -> Result<()> {
        for (start, len) in pieces(offset, bytes.len() as u64, self.cluster_size()) {
            let piece = &mut bytes[(start - offset) as usize..][..len as usize];
            self.read_piece(&*self.loaded(start)?, piece, start, below)?;
        }
        Ok(())
    }

    fn write(&self, bytes: &[u8], offset: u64, below: &dyn Below) -> Result<()> {
        for (start, len) in pieces(offset, bytes.len() as u64, self.cluster_size()) {
            let piece = &bytes[(start - offset) as usize..][..len as usize];
            self.write_piece(piece, start, below)?;
        }
        Ok(())
    }

    fn write_zeroes(&self, offset: u64, len: u64, below: &dyn Below) -> Result<()> {
        let zeros = vec![0; self.cluster_size() as usize];
        let end = offset + len;
        let mut offset = offset;
        while offset < end {
            let extent = self.extent(offset, end - offset)?;
            let mut len = extent.len;
            if extent.kind != Kind::Absent || below.size() > offset {
                len = (self.cluster_size() - offset % self.cluster_size()).min(end - offset);
                self.write_piece(&zeros[..len as usize], offset, below)?;
            }
            offset += len;
        }
        Ok(())
    }

    fn is_behind(&self) -> bool {
        let state = self.shared();
        !state.l1_dirty.is_empty() || state.tables.values().any(|(_, is_dirty)| *is_dirty)
    }

    fn flush(&self) -> Result<()> {
        let mut state = self.alone();
        self.storage.flush()?;
        let mut wrote = false;
        for (index, (table, is_dirty)) in &state.tables {
            if *is_dirty {
                self.storage.write_at(&table_bytes(table), state.l1[*index])?;
                wrote = true;
            }
        }
        if wrote {
            self.storage.flush()?;
        }
        if !state.l1_dirty.is_empty() {
            let bytes = table_bytes(&state.l1);
            for piece in &state.l1_dirty {
                let start = piece * 512;
                let end = (start + 512).min(bytes.len());
                self.storage.write_at(&bytes[start..end], self.l1_at + start as u64)?;
            }
            self.storage.flush()?;
        }
        state.l1_dirty.clear();
        state.tables.values_mut().for_each(|(_, is_dirty)| *is_dirty = false);
        Ok(())
    }

    fn details(&self) -> Details {
        Details {
            cluster_size: Some(self.cluster_size()),
            is_encrypted: self.encryption.is_some(),
            ..Details::default()
        }
    }

    fn backing(&self) -> Option<BackingName> {
        self.backing.clone()
    }

    fn allocated(&self) -> Option<u64> {
        self.storage.allocated()
    }
}
