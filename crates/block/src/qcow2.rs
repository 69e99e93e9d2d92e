//! qcow2, QEMU's format, versions 2 and 3.
//!
//! The specification is docs/interop/qcow2.txt in QEMU's sources, and names here are its terms. Images with
//! extended L2 entries, and encrypted ones, are only read. Images with their data in another file are
//! refused.
//!
//! * [`header`], [`entry`]: the numbers in the file;
//! * [`state`]: the tables in memory; [`refcounts`]: the reference counts;
//! * [`alloc`]: writes that need new clusters; [`commit`]: the order in which tables are written;
//! * [`compression`]; [`snapshots`]; [`check`]; [`resize`]; [`mod@create`].
//!
//! A lock protects the tables. Reads, and writes to existing clusters, share it. They hold it until their
//! bytes are read or written, so that no cluster is given to other data meanwhile. Changes of tables need the
//! lock alone.

mod alloc;
mod check;
mod commit;
mod compression;
mod create;
mod entry;
mod header;
mod refcounts;
mod resize;
mod room;
mod snapshots;
mod state;

use std::sync::{Mutex, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use crate::check::{Repair, Report};
use crate::encryption::{Encryption, Password, luks};
use crate::error::{Fault, Result};
use crate::format::{
    BackingName, Below, Details, Driver, Extent, Kind, Nothing, Snapshot, SnapshotAct,
};
use crate::preallocation::Preallocation;
use crate::storage::{Storage, read_padded};
use alloc::{Host, extended};
use compression::pack;
use entry::{Cluster, OFFSET};
use header::{Crypt, HEAD_MAX, Header, LAZY_REFCOUNTS, incompatible};
use refcounts::{BLOCK_OFFSET, Refcounts};
use state::{State, read_table};

pub(crate) use create::{Qcow2Options, create};

/// A qcow2 image.
#[derive(Debug)]
pub(crate) struct Qcow2 {
    storage: Box<dyn Storage>,
    state: RwLock<State>,
    /// The snapshots in the file.
    snapshots: Mutex<Vec<snapshots::Entry>>,
    /// The compressed cluster that was read last, with its offset on the disk. Each change of tables drops
    /// it.
    unpacked: Mutex<Option<(u64, Vec<u8>)>>,
    encryption: Option<Encryption>,
    /// The properties of the LUKS header, if there is one.
    luks: Vec<(&'static str, String)>,
}

impl Qcow2 {
    /// Opens the image in `storage`.
    pub(crate) fn open(
        storage: Box<dyn Storage>,
        writes: bool,
        password: Password<'_>,
    ) -> Result<Qcow2> {
        let mut head = vec![0; HEAD_MAX as usize];
        read_padded(&*storage, &mut head, 0)?;
        let mut header = Header::parse(&head)?;
        if writes && header.incompatible & incompatible::CORRUPT != 0 {
            return Err(Fault::damaged(
                "it is marked as corrupt; repair it with \"ring3 img check -r all\", or open it for reading only",
            ));
        }
        if writes && header.has_subclusters() {
            return Err(extended());
        }
        if writes && header.crypt != Crypt::None {
            return Err(Fault::OnlyRead("encrypted images"));
        }
        let (encryption, luks) = match header.crypt {
            Crypt::None => (None, vec![]),
            Crypt::Aes => (Some(Encryption::aes(password)?), vec![]),
            Crypt::Luks { at, len } => {
                let luks = luks::Header::read(&*storage, at, len)?;
                (Some(Encryption::luks(&luks, &*storage, password)?), luks.specific())
            }
        };
        let l1 = read_table(&*storage, header.l1_offset, u64::from(header.l1_entries))?;
        let end = storage.size()?.next_multiple_of(header.cluster_size());
        let snapshots = snapshots::load(&*storage, &header)?;
        let refcounts = if writes {
            Refcounts::load(&*storage, &header)
        } else {
            Ok(Refcounts::empty(&header))
        };
        let is_dirty = header.incompatible & incompatible::DIRTY != 0;
        let refcounts = match refcounts {
            // The check below counts all references again.
            Err(Fault::Damaged(_)) if is_dirty => Refcounts::empty(&header),
            refcounts => refcounts?,
        };
        let clears = writes && header.autoclear != 0;
        if clears {
            // Bitmaps and the like are out of date after a write by a program that does not know them.
            header.autoclear = 0;
        }
        let mut state = State::new(header, l1, refcounts, end);
        if writes {
            state.find_metadata(&snapshots)?;
        }
        if clears {
            state.write_header(&*storage)?;
        }
        let image = Qcow2 {
            storage,
            state: RwLock::new(state),
            snapshots: Mutex::new(snapshots),
            unpacked: Mutex::new(None),
            encryption,
            luks,
        };
        if writes && is_dirty {
            tracing::info!("the image was not closed properly; counting its references again");
            let report = image.check(Repair::All)?;
            if !report.is_sound() {
                return Err(Fault::damaged(
                    "it was not closed properly and cannot be repaired completely; \"ring3 img check\" lists the errors",
                ));
            }
        }
        Ok(image)
    }

    fn shared(&self) -> RwLockReadGuard<'_, State> {
        self.state.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn alone(&self) -> RwLockWriteGuard<'_, State> {
        *self.unpacked.lock().unwrap_or_else(PoisonError::into_inner) = None;
        self.state.write().unwrap_or_else(PoisonError::into_inner)
    }

    fn snapshots(&self) -> Vec<snapshots::Entry> {
        self.snapshots.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Returns the state for reading once the L2 table for `offset` is in memory.
    fn loaded(&self, offset: u64) -> Result<RwLockReadGuard<'_, State>> {
        loop {
            let state = self.shared();
            if state.is_loaded(offset)? {
                return Ok(state);
            }
            drop(state);
            let mut state = self.state.write().unwrap_or_else(PoisonError::into_inner);
            if let Some(at) = state.table_at(offset)? {
                state.load(&*self.storage, at)?;
            }
        }
    }

    /// Returns the state for changes, with the L2 table for `offset` in memory.
    fn loaded_alone(&self, offset: u64) -> Result<RwLockWriteGuard<'_, State>> {
        let mut state = self.alone();
        if let Some(at) = state.table_at(offset)? {
            state.load(&*self.storage, at)?;
        }
        Ok(state)
    }

    fn host<'a>(&'a self, below: &'a dyn Below) -> Host<'a> {
        Host { storage: &*self.storage, below }
    }

    /// Copies bytes from the compressed cluster that contains `offset`, and keeps the cluster for the next
    /// read.
    fn read_packed(&self, state: &State, bytes: &mut [u8], offset: u64) -> Result<()> {
        let inside = (offset % state.header.cluster_size()) as usize;
        let start = offset - inside as u64;
        let mut kept = self.unpacked.lock().unwrap_or_else(PoisonError::into_inner);
        let cluster = match kept.take() {
            Some((of, cluster)) if of == start => cluster,
            _ => state.unpack(&*self.storage, offset)?,
        };
        bytes.copy_from_slice(&cluster[inside..inside + bytes.len()]);
        *kept = Some((start, cluster));
        Ok(())
    }

    /// Writes the tables before too many of them differ from the file.
    fn commit_if_many(&self, state: &mut State) -> Result<()> {
        let many = state.dirty_tables() >= state.tables_max() / 2 || state.freed.len() > 0x1_0000;
        if many || !state.refcounts.replaced.is_empty() {
            state.commit(&*self.storage)
        } else {
            Ok(())
        }
    }
}

impl State {
    /// Notes which clusters contain metadata.
    fn find_metadata(&mut self, snapshots: &[snapshots::Entry]) -> Result<()> {
        let size = self.header.cluster_size();
        self.add_metadata(0, 1);
        self.add_metadata(self.header.l1_offset, (self.l1.len() as u64 * 8).div_ceil(size));
        self.add_metadata(self.header.refcount_offset, u64::from(self.header.refcount_clusters));
        for snapshot in snapshots {
            self.add_metadata(
                snapshot.l1_offset,
                (u64::from(snapshot.l1_entries) * 8).div_ceil(size),
            );
        }
        let len = snapshots::table_len(snapshots);
        self.add_metadata(self.header.snapshots_offset, len.div_ceil(size));
        for index in 0..self.l1.len() {
            if let Some(at) = self.table_of(self.l1[index])? {
                self.add_metadata(at, 1);
            }
        }
        for index in 0..self.refcounts.table.len() {
            let at = self.refcounts.table[index] & BLOCK_OFFSET;
            if at != 0 {
                self.add_metadata(at, 1);
            }
        }
        Ok(())
    }
}

impl Driver for Qcow2 {
    fn size(&self) -> u64 {
        self.shared().header.size
    }

    fn extent(&self, offset: u64, max: u64) -> Result<Extent> {
        self.loaded(offset)?.extent(offset, max)
    }

    fn read(&self, bytes: &mut [u8], offset: u64, below: &dyn Below) -> Result<()> {
        let (mut offset, mut rest) = (offset, bytes);
        while !rest.is_empty() {
            let state = self.loaded(offset)?;
            let extent = state.extent(offset, rest.len() as u64)?;
            let (part, after) = rest.split_at_mut(extent.len as usize);
            match (extent.kind, &self.encryption) {
                (Kind::Data { at: None }, _) => self.read_packed(&state, part, offset)?,
                (Kind::Data { at: Some(at) }, Some(encryption)) => {
                    encryption.read(&*self.storage, part, at, offset, 0)?;
                }
                _ => state.read(self.host(below), part, offset)?,
            }
            (offset, rest) = (offset + extent.len, after);
        }
        Ok(())
    }

    fn write(&self, bytes: &[u8], offset: u64, below: &dyn Below) -> Result<()> {
        let (mut offset, mut rest) = (offset, bytes);
        while !rest.is_empty() {
            let state = self.loaded(offset)?;
            let len = state.writable_in_place(offset, rest.len() as u64)?;
            if let Some((at, len)) = len {
                self.storage.write_at(&rest[..len as usize], at)?;
                (offset, rest) = (offset + len, &rest[len as usize..]);
                continue;
            }
            drop(state);
            let mut state = self.loaded_alone(offset)?;
            let len = state.write(self.host(below), rest, offset)?;
            self.commit_if_many(&mut state)?;
            (offset, rest) = (offset + len, &rest[len as usize..]);
        }
        Ok(())
    }

    fn write_zeroes(&self, offset: u64, len: u64, below: &dyn Below) -> Result<()> {
        let (size, disk, has_zeros) = {
            let state = self.shared();
            (state.header.cluster_size(), state.header.size, state.header.version >= 3)
        };
        let end = offset + len;
        let mut at = offset;
        while at < end {
            let next = (at / size + 1) * size;
            // If the disk ends within the last cluster, the part before its end counts as the whole cluster.
            let whole = at.is_multiple_of(size) && next.min(disk) <= end;
            if whole && (has_zeros || below.size() <= at) {
                let mut state = self.loaded_alone(at)?;
                state.clear(self.host(below), at)?;
                self.commit_if_many(&mut state)?;
            } else {
                self.write_zero_bytes(at, next.min(end) - at, below)?;
            }
            at = next;
        }
        Ok(())
    }

    fn discard(&self, offset: u64, len: u64, below: &dyn Below) -> Result<()> {
        let size = self.shared().header.cluster_size();
        let start = offset.next_multiple_of(size);
        let disk = self.size();
        let end = if offset + len == disk { disk } else { (offset + len) / size * size };
        if start < end { self.write_zeroes(start, end - start, below) } else { Ok(()) }
    }

    fn flush(&self) -> Result<()> {
        if self.shared().is_clean() {
            return Ok(self.storage.flush()?);
        }
        self.alone().commit(&*self.storage)
    }

    fn is_behind(&self) -> bool {
        !self.shared().is_clean()
    }

    fn preallocate(&self, offset: u64, mode: Preallocation) -> Result<()> {
        self.take_room(offset, mode)
    }

    fn resize(&self, size: u64) -> Result<()> {
        if !self.snapshots().is_empty() {
            return Err(Fault::refused(
                "it has snapshots, which have the present size; delete them first",
            ));
        }
        let old = self.size();
        if size < old {
            // Data after the new end must not come back when the disk grows again.
            self.write_zeroes(size, old - size, &Nothing)?;
        }
        self.alone().resize(&*self.storage, size)
    }

    fn check(&self, repair: Repair) -> Result<Report> {
        let snapshots = self.snapshots();
        self.alone().check(&*self.storage, &snapshots, repair)
    }

    fn write_compressed(&self, bytes: &[u8], offset: u64) -> Result<()> {
        let (size, disk, kind) = {
            let state = self.shared();
            (state.header.cluster_size(), state.header.size, state.header.compression)
        };
        let whole = bytes.len() as u64 == size || offset + bytes.len() as u64 == disk;
        if !offset.is_multiple_of(size) || bytes.len() as u64 > size || !whole {
            return Err(Fault::refused(format!(
                "compressed data must be written in whole clusters of {size} bytes"
            )));
        }
        let mut cluster = bytes.to_vec();
        cluster.resize(size as usize, 0);
        // Compression needs no lock, so several threads can compress at the same time.
        let packed = pack(kind, &cluster);
        let mut state = self.loaded_alone(offset)?;
        state.write_packed(self.host(&Nothing), &cluster, packed.as_deref(), offset)?;
        self.commit_if_many(&mut state)
    }

    fn details(&self) -> Details {
        let state = self.shared();
        let header = &state.header;
        let flag = |on: bool| if on { "true" } else { "false" }.to_owned();
        let mut specific =
            vec![("compat", if header.version == 2 { "0.10" } else { "1.1" }.to_owned())];
        specific.push(("compression type", header.compression.name().to_owned()));
        if header.version >= 3 {
            specific.push(("lazy refcounts", flag(header.compatible & LAZY_REFCOUNTS != 0)));
        }
        specific.push(("refcount bits", (1 << header.refcount_order).to_string()));
        if header.version >= 3 {
            specific.push(("corrupt", flag(header.incompatible & incompatible::CORRUPT != 0)));
            specific.push(("extended l2", flag(header.has_subclusters())));
        }
        let mut how = self.luks.clone();
        how.extend(self.encryption.iter().map(|how| ("format", how.format.to_owned())));
        let snapshots: Vec<Snapshot> =
            self.snapshots().iter().map(|entry| entry.shown.clone()).collect();
        Details {
            cluster_size: Some(header.cluster_size()),
            specific,
            snapshots,
            dirty: header.incompatible & incompatible::DIRTY != 0,
            is_encrypted: self.encryption.is_some(),
            encryption: how,
        }
    }

    fn backing(&self) -> Option<BackingName> {
        self.shared().header.backing.clone()
    }

    fn set_backing(&self, backing: Option<&BackingName>) -> Result<()> {
        let mut state = self.alone();
        let before = state.header.backing.take();
        state.header.backing = backing.cloned();
        let Some(bytes) = state.header.encode() else {
            state.header.backing = before;
            return Err(Fault::refused(
                "the name of the backing file does not fit into the header",
            ));
        };
        state.commit(&*self.storage)?;
        self.storage.write_at(&bytes, 0)?;
        Ok(self.storage.flush()?)
    }

    fn make_empty(&self) -> Result<()> {
        if !self.snapshots().is_empty() {
            return Err(Fault::refused("it has snapshots; delete them first"));
        }
        self.alone().make_empty(&*self.storage)
    }

    fn show_snapshot(&self, which: &str) -> Result<()> {
        self.alone().show_snapshot(&*self.storage, &self.snapshots(), which)
    }

    fn snapshot(&self, act: &SnapshotAct) -> Result<()> {
        let mut state = self.alone();
        let mut snapshots = self.snapshots.lock().unwrap_or_else(PoisonError::into_inner);
        state.snapshot(&*self.storage, &mut snapshots, act)
    }

    fn allocated(&self) -> Option<u64> {
        self.storage.allocated()
    }
}

impl Qcow2 {
    /// Writes zeros within a cluster, unless the bytes already read as zeros.
    fn write_zero_bytes(&self, offset: u64, len: u64, below: &dyn Below) -> Result<()> {
        let extent = self.extent(offset, len)?;
        let is_zero = match extent.kind {
            Kind::Zero { .. } => true,
            Kind::Absent => below.size() <= offset,
            Kind::Data { .. } => false,
        };
        if is_zero && extent.len >= len {
            Ok(())
        } else {
            self.write(&vec![0; len as usize], offset, below)
        }
    }
}

impl State {
    /// Returns the offset in the file at which bytes from `offset` on can be written without a change of
    /// tables, and their number. Returns None if there is none.
    fn writable_in_place(&self, offset: u64, max: u64) -> Result<Option<(u64, u64)>> {
        let size = self.header.cluster_size();
        let max = max.min(self.left_in_table(offset));
        let index = self.indices(offset).0;
        let Some(_) = self.table_at(offset)? else { return Ok(None) };
        if !self.owns_table(index) {
            return Ok(None);
        }
        let Cluster::Data { at, copied: true } = self.cluster(offset)? else { return Ok(None) };
        let inside = offset % size;
        let mut len = size - inside;
        while len < max
            && self.cluster(offset + len)?
                == (Cluster::Data { at: at + inside + len, copied: true })
        {
            len += size;
        }
        let len = len.min(max);
        debug_assert_eq!(at & !OFFSET, 0);
        self.check_place(at + inside, len)?;
        Ok(Some((at + inside, len)))
    }
}
