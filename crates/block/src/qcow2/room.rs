//! Taking room for data that are not yet written.

use std::io;

use super::Qcow2;
use super::alloc::Room;
use super::entry::{COPIED, Cluster};
use super::state::State;
use crate::error::Result;
use crate::preallocation::Preallocation;
use crate::storage::Storage;

impl Qcow2 {
    /// Takes room for the clusters of the disk that begin at `offset` or later and have none yet, in their
    /// order.
    pub(super) fn take_room(&self, offset: u64, mode: Preallocation) -> Result<()> {
        if mode == Preallocation::Off {
            return Ok(());
        }
        let mut state = self.alone();
        let mut offset = offset.next_multiple_of(state.header.cluster_size());
        while offset < state.header.size {
            offset += state.preallocate(&*self.storage, offset, mode)?;
            self.commit_if_many(&mut state)?;
        }
        let end = state.end;
        if self.storage.size()? < end {
            self.storage.set_size(end)?;
        }
        Ok(())
    }
}

/// Makes the host keep this room, which then reads as zeros.
fn make_room(storage: &dyn Storage, room: Room, len: u64, mode: Preallocation) -> io::Result<()> {
    if !room.fresh {
        // Earlier contents of these clusters must not show on the disk.
        storage.write_zeroes(room.at, len)?;
    }
    match mode {
        Preallocation::Off | Preallocation::Metadata => Ok(()),
        Preallocation::Falloc | Preallocation::Full => {
            storage.take_room(room.at, len, mode == Preallocation::Full)
        }
    }
}

impl State {
    /// Takes consecutive clusters for the disk from `offset` on, where it reads as zeros. Returns the number
    /// of bytes that are done.
    fn preallocate(
        &mut self,
        storage: &dyn Storage,
        offset: u64,
        mode: Preallocation,
    ) -> Result<u64> {
        self.own_table(storage, offset)?;
        if let Some(at) = self.table_at(offset)? {
            self.load(storage, at)?;
        }
        let size = self.header.cluster_size();
        let left = (self.header.size - offset).min(self.left_in_table(offset)).div_ceil(size);
        let mut wanted = 0;
        while wanted < left && self.has_no_room(offset + wanted * size)? {
            wanted += 1;
        }
        if wanted == 0 {
            return Ok(size);
        }
        let room = self.take_some(storage, wanted)?;
        let len = room.clusters * size;
        if let Err(error) = make_room(storage, room, len, mode) {
            // The host gets back the room that was already taken. An error here changes nothing.
            let _ = storage.discard(room.at, len);
            self.give_back(storage, room)?;
            return Err(error.into());
        }
        for inside in (0..len).step_by(size as usize) {
            self.set_entry(offset + inside, (room.at + inside) | COPIED)?;
        }
        Ok(len)
    }

    fn has_no_room(&self, offset: u64) -> Result<bool> {
        Ok(matches!(self.cluster(offset)?, Cluster::Absent | Cluster::Zero { at: None, .. }))
    }
}
