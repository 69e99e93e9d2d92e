//! Allocation of clusters, and writes that need it.

use super::compression::unpack;
use super::entry::{COPIED, Cluster, ZERO, compressed};
use super::state::State;
use crate::error::{Fault, Result};
use crate::format::{Below, Kind};
use crate::storage::{Storage, read_padded};

/// The storage, and the image below, which writes need besides the tables.
#[derive(Clone, Copy)]
pub(super) struct Host<'a> {
    pub(super) storage: &'a dyn Storage,
    pub(super) below: &'a dyn Below,
}

/// Clusters that were taken.
#[derive(Debug, Clone, Copy)]
pub(super) struct Room {
    pub(super) at: u64,
    pub(super) clusters: u64,
    /// Whether the clusters were never written, so that they read as zeros.
    pub(super) fresh: bool,
}

impl State {
    /// Takes `clusters` consecutive clusters.
    pub(super) fn take(&mut self, storage: &dyn Storage, clusters: u64) -> Result<Room> {
        let from = self.refcounts.first_free;
        let first = self.refcounts.take(storage, from, clusters)?;
        if clusters == 1 || first == from {
            self.refcounts.first_free = first + clusters;
        }
        self.room(first, clusters)
    }

    /// Takes the first free cluster and the free ones that directly follow it, at most `max` in all.
    pub(super) fn take_some(&mut self, storage: &dyn Storage, max: u64) -> Result<Room> {
        let (first, clusters) =
            self.refcounts.take_some(storage, self.refcounts.first_free, max)?;
        self.refcounts.first_free = first + clusters;
        self.room(first, clusters)
    }

    fn room(&mut self, first: u64, clusters: u64) -> Result<Room> {
        self.note_growth();
        let bits = self.header.cluster_bits;
        if self.metadata.range(first..first + clusters).next().is_some() || first == 0 {
            return Err(Fault::damaged(format!(
                "cluster {first} holds a table but is marked as free; run \"ring3 img check -r all\""
            )));
        }
        let at = first << bits;
        let fresh = at >= self.end;
        self.end = self.end.max(at + (clusters << bits));
        Ok(Room { at, clusters, fresh })
    }

    /// Notes the clusters that the reference counts have taken for themselves.
    pub(super) fn note_growth(&mut self) {
        let bits = self.header.cluster_bits;
        for (first, count) in std::mem::take(&mut self.refcounts.new_metadata) {
            self.metadata.extend(first..first + count);
            self.end = self.end.max((first + count) << bits);
        }
    }

    /// Makes sure that there is an L2 table for `offset`, and that no snapshot shares it.
    pub(super) fn own_table(&mut self, storage: &dyn Storage, offset: u64) -> Result<()> {
        let index = self.indices(offset).0;
        if index >= self.l1.len() {
            return Err(Fault::damaged("the L1 table is too short"));
        }
        let old = self.table_at(offset)?;
        if old.is_some() && self.owns_table(index) {
            return Ok(());
        }
        let entries = match old {
            None => vec![0; self.table_len()],
            Some(at) => {
                self.load(storage, at)?;
                self.tables.get(&at).map(|table| table.entries.clone()).unwrap_or_default()
            }
        };
        let room = self.take(storage, 1)?;
        self.add_metadata(room.at, 1);
        self.insert(room.at, entries, true);
        self.set_l1(index, room.at | COPIED);
        if let Some(at) = old {
            // This image no longer uses the old table, but a snapshot does.
            self.freed.push((at >> self.header.cluster_bits, 1, false));
        }
        Ok(())
    }

    /// Writes the first ones of `bytes`, and takes clusters for them if needed. Returns how many were
    /// written.
    pub(super) fn write(&mut self, host: Host, bytes: &[u8], offset: u64) -> Result<u64> {
        self.own_table(host.storage, offset)?;
        let size = self.header.cluster_size();
        let inside = offset % size;
        let left = self.left_in_table(offset).min(bytes.len() as u64);
        let bytes = &bytes[..left as usize];
        let one = ((size - inside) as usize).min(bytes.len());
        match self.cluster(offset)? {
            Cluster::Data { at, copied: true } => {
                self.check_place(at, size)?;
                host.storage.write_at(&bytes[..one], at + inside)?;
                return Ok(one as u64);
            }
            Cluster::Zero { at: Some(at), copied: true } => {
                self.check_place(at, size)?;
                let room = Room { at, clusters: 1, fresh: false };
                self.fill(host, room, &bytes[..one], offset)?;
                self.set_entry(offset, at | COPIED)?;
                return Ok(one as u64);
            }
            Cluster::Parts { .. } => return Err(extended()),
            _ => {}
        }
        let mut clusters = 1;
        let wanted = (inside + bytes.len() as u64).div_ceil(size);
        while clusters < wanted && self.needs_room(offset - inside + clusters * size)? {
            clusters += 1;
        }
        let room = self.take_some(host.storage, clusters)?;
        let clusters = room.clusters;
        let len = (clusters * size - inside).min(bytes.len() as u64);
        if let Err(fault) = self.fill(host, room, &bytes[..len as usize], offset) {
            // No entry leads to the clusters yet.
            self.give_back(host.storage, room)?;
            return Err(fault);
        }
        for cluster in 0..clusters {
            let of = offset - inside + cluster * size;
            let old = self.cluster(of)?;
            self.set_entry(of, (room.at + cluster * size) | COPIED)?;
            self.free_cluster(old);
        }
        Ok(len)
    }

    /// Returns whether the cluster at `offset` cannot be written in place.
    fn needs_room(&self, offset: u64) -> Result<bool> {
        Ok(match self.cluster(offset)? {
            Cluster::Absent | Cluster::Zero { at: None, .. } | Cluster::Compressed { .. } => true,
            Cluster::Zero { copied, .. } | Cluster::Data { copied, .. } => !copied,
            Cluster::Parts { .. } => return Err(extended()),
        })
    }

    /// Gives back clusters to which no entry leads.
    pub(super) fn give_back(&mut self, storage: &dyn Storage, room: Room) -> Result<()> {
        let first = room.at >> self.header.cluster_bits;
        for cluster in first..first + room.clusters {
            self.refcounts.add(storage, cluster, -1)?;
        }
        Ok(())
    }

    /// Writes `bytes`, which begin in the first cluster of `room` and end in the last one. Fills the rest of
    /// these clusters with the present contents of the disk.
    fn fill(&self, host: Host, room: Room, bytes: &[u8], offset: u64) -> Result<()> {
        let size = self.header.cluster_size();
        let inside = offset % size;
        let end = inside + bytes.len() as u64;
        let whole = room.clusters * size;
        self.copy(host, room, 0, offset - inside, inside)?;
        host.storage.write_at(bytes, room.at + inside)?;
        self.copy(host, room, end, offset - inside + end, whole - end)
    }

    /// Copies `len` bytes of the disk from `offset` on to offset `start` of `room`.
    fn copy(&self, host: Host, room: Room, start: u64, offset: u64, len: u64) -> Result<()> {
        if len == 0 {
            return Ok(());
        }
        let is_zero = match self.cluster(offset)? {
            Cluster::Absent => host.below.size() <= offset,
            Cluster::Zero { .. } => true,
            _ => false,
        };
        if is_zero && room.fresh {
            return Ok(());
        }
        let mut bytes = vec![0; len as usize];
        if !is_zero {
            self.read(host, &mut bytes, offset)?;
        }
        Ok(host.storage.write_at(&bytes, room.at + start)?)
    }

    /// Reads `bytes` according to the tables, which must be in memory.
    pub(super) fn read(&self, host: Host, bytes: &mut [u8], offset: u64) -> Result<()> {
        let (mut offset, mut rest) = (offset, bytes);
        while !rest.is_empty() {
            let extent = self.extent(offset, rest.len() as u64)?;
            let (part, after) = rest.split_at_mut(extent.len as usize);
            match extent.kind {
                Kind::Data { at: Some(at) } => read_padded(host.storage, part, at)?,
                Kind::Data { at: None } => {
                    let cluster = self.unpack(host.storage, offset)?;
                    let inside = (offset % self.header.cluster_size()) as usize;
                    part.copy_from_slice(&cluster[inside..inside + part.len()]);
                }
                Kind::Zero { .. } => part.fill(0),
                Kind::Absent => host.below.read(part, offset)?,
            }
            (offset, rest) = (offset + extent.len, after);
        }
        Ok(())
    }

    /// Returns the contents of the compressed cluster that contains `offset`.
    pub(super) fn unpack(&self, storage: &dyn Storage, offset: u64) -> Result<Vec<u8>> {
        let Cluster::Compressed { at, len } = self.cluster(offset)? else {
            return Err(Fault::damaged("a cluster is not compressed"));
        };
        // Bytes after the compressed ones do not matter, so the file may end before them.
        let there = storage.size()?.saturating_sub(at).min(len);
        let mut packed = vec![0; there as usize];
        storage.read_at(&mut packed, at)?;
        let mut cluster = vec![0; self.header.cluster_size() as usize];
        unpack(self.header.compression, &packed, &mut cluster)?;
        Ok(cluster)
    }

    /// Writes a whole cluster, in compressed form if compression made it shorter (`packed`).
    pub(super) fn write_packed(
        &mut self,
        host: Host,
        cluster: &[u8],
        packed: Option<&[u8]>,
        offset: u64,
    ) -> Result<()> {
        self.own_table(host.storage, offset)?;
        if self.cluster(offset)? != Cluster::Absent {
            return Err(Fault::refused("a cluster that has data cannot be written compressed"));
        }
        let Some(packed) = packed else {
            self.write(host, cluster, offset)?;
            return Ok(());
        };
        let at = self.take_bytes(host.storage, packed.len() as u64)?;
        host.storage.write_at(packed, at)?;
        self.set_entry(offset, compressed(at, packed.len() as u64, self.header.cluster_bits))
    }

    /// Takes room for compressed bytes, if possible directly after the last ones. The references of each
    /// cluster that contains them are incremented.
    fn take_bytes(&mut self, storage: &dyn Storage, len: u64) -> Result<u64> {
        let size = self.header.cluster_size();
        let mut at = None;
        if let Some(end) = self.packed_end {
            let left = end.next_multiple_of(size) - end;
            let first = end >> self.header.cluster_bits;
            let has_room = left > 0 && self.refcounts.get(storage, first)? < self.refcounts.max();
            if has_room && len <= left {
                at = Some(end);
            } else if has_room {
                // The bytes continue in the next cluster, if that one is free.
                let room = self.take(storage, 1)?;
                if room.at == end + left {
                    at = Some(end);
                } else {
                    self.packed_end = Some(room.at + len);
                    return Ok(room.at);
                }
            }
            if at.is_some() {
                self.refcounts.add(storage, first, 1)?;
            }
        }
        let at = match at {
            Some(at) => at,
            None => self.take(storage, 1)?.at,
        };
        self.packed_end = Some(at + len);
        Ok(at)
    }

    /// Makes a whole cluster read as zeros without room. If the image below has nothing there, the entry
    /// becomes empty.
    pub(super) fn clear(&mut self, host: Host, offset: u64) -> Result<()> {
        let shows = host.below.size() > offset;
        let old = match self.table_at(offset)? {
            None => Cluster::Absent,
            Some(at) => {
                self.load(host.storage, at)?;
                self.cluster(offset)?
            }
        };
        match old {
            Cluster::Absent if !shows => return Ok(()),
            Cluster::Zero { at: None, .. } => return Ok(()),
            Cluster::Parts { .. } => return Err(extended()),
            _ => {}
        }
        self.own_table(host.storage, offset)?;
        self.set_entry(offset, if shows { ZERO } else { 0 })?;
        self.free_cluster(old);
        Ok(())
    }
}

/// Returns the error for writes to images with extended L2 entries.
pub(super) fn extended() -> Fault {
    Fault::OnlyRead("images with extended L2 entries")
}
