//! Reads the file of a saved machine.

use std::fs::File;
use std::io::{self, ErrorKind};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::{Arc, mpsc};

use ring3_block::{Image, OpenOptions, SnapshotAct};
use ring3_core::disk::SECTOR_SIZE;
use ring3_vm::drives::KeptDisk;
use ring3_vm::{Control, SavedMachine, Vm};

use crate::error::OpenError;
use crate::format::{
    HEADER_LEN, Header, INDEX_MAX, Index, MEMORY_AT, PART_MAX, Part, SavedDrive, VERSION,
    WITH_FILES,
};
use crate::parts::{KeptFile, Parts};

/// The file of a saved machine.
#[derive(Debug)]
pub struct Snapshot {
    parts: Parts,
    /// Its length in bytes.
    len: u64,
    index: Index<SavedMachine>,
}

impl Snapshot {
    /// Opens the file at `path` and reads its index. The other parts are checked as they are read.
    pub fn open(path: &Path) -> Result<Snapshot, OpenError> {
        let fails = |source| OpenError::Read { path: path.to_owned(), source };
        let damaged =
            |reason: &str| OpenError::Damaged { path: path.to_owned(), reason: reason.to_owned() };
        let file = File::open(path).map_err(fails)?;
        let len = file.metadata().map_err(fails)?.len();
        let mut bytes = [0; HEADER_LEN];
        match file.read_exact_at(&mut bytes, 0) {
            Err(error) if error.kind() == ErrorKind::UnexpectedEof => {
                return Err(OpenError::Other(path.to_owned()));
            }
            read => read.map_err(fails)?,
        }
        let (header, is_right) =
            Header::of(&bytes).ok_or_else(|| OpenError::Other(path.to_owned()))?;
        if header.version > VERSION {
            return Err(OpenError::TooNew { path: path.to_owned(), found: header.version });
        }
        if !is_right {
            return Err(damaged("its header has changed"));
        }
        if header.file_len != len {
            return Err(damaged(&format!("it has {len} bytes instead of {}", header.file_len)));
        }
        if header.index_len > INDEX_MAX
            || header.index_at.checked_add(header.index_len).is_none_or(|end| end > len)
        {
            return Err(damaged("its index is not in the file"));
        }
        let mut bytes = vec![0; header.index_len as usize];
        file.read_exact_at(&mut bytes, header.index_at).map_err(fails)?;
        if crc32fast::hash(&bytes) != header.index_crc {
            return Err(damaged("its index has changed"));
        }
        let mut index: Index<SavedMachine> =
            ciborium::from_reader(&*bytes).map_err(|error| damaged(&error.to_string()))?;
        let of_disks = index.drives.iter().flat_map(|drive| &drive.written);
        let is_possible = |part: &Part| {
            part.stored <= part.len
                && part.len as usize <= PART_MAX
                && part.to.checked_add(u64::from(part.len)).is_some()
                && part.at.checked_add(u64::from(part.stored)).is_some_and(|end| end <= len)
        };
        let is_in_memory = |part: &Part| part.to + u64::from(part.len) <= index.memory_len;
        let is_of_sectors =
            |part: &Part| (part.to | u64::from(part.len)).is_multiple_of(SECTOR_SIZE as u64);
        if !index.memory.iter().all(|part| is_possible(part) && is_in_memory(part))
            || !of_disks.clone().all(|part| is_possible(part) && is_of_sectors(part))
        {
            return Err(damaged("its index names parts that are not in the file"));
        }
        let parts = Parts { path: path.to_owned(), file: Arc::new(file) };
        let kept =
            index.files.iter().map(|file| KeptFile::bytes_in(parts.clone(), file, is_possible));
        let kept = kept.collect::<Option<Vec<_>>>();
        let is_complete =
            kept.is_some_and(|kept| header.version < WITH_FILES || index.machine.give_files(kept));
        if !is_complete {
            return Err(damaged("its index names files that it does not have"));
        }
        Ok(Snapshot { parts, len, index })
    }

    /// Returns the machine, without the contents of memory.
    pub fn machine(&self) -> &SavedMachine {
        &self.index.machine
    }

    /// Returns the time at which it was saved, in seconds since 1970-01-01 UTC.
    pub fn saved_at(&self) -> u64 {
        self.index.saved_at
    }

    /// Returns the drives.
    pub fn drives(&self) -> &[SavedDrive] {
        &self.index.drives
    }

    /// Returns the bytes of memory that are not zero, and whether some of them are compressed.
    pub fn memory(&self) -> (u64, bool) {
        let parts = &self.index.memory;
        let len = parts.iter().map(|part| u64::from(part.len)).sum();
        (len, parts.iter().any(|part| part.stored < part.len))
    }

    /// Gives `vm`, which was made from [`Snapshot::machine`], its contents of memory. If they are not
    /// compressed, they are read and copied when the guest touches them, without a look at their checksums.
    pub fn give_memory(&self, vm: &mut Vm) -> Result<(), OpenError> {
        let is_given = self.memory_in_file().is_some_and(|(file, at)| {
            self.index.memory_len == vm.memory_len() && vm.take_memory_of(file, at)
        });
        if is_given { Ok(()) } else { vm.fill_memory(|memory| self.fill_memory(memory)) }
    }

    /// Returns the file and the offset of the contents of memory there, if they are not compressed: from
    /// there on all of memory can be mapped. Nobody has compared them with their checksums.
    fn memory_in_file(&self) -> Option<(&File, u64)> {
        let is_in_place = |part: &Part| part.stored == part.len && part.at == MEMORY_AT + part.to;
        let Index { memory, memory_len, .. } = &self.index;
        let is_there = self.len.checked_sub(MEMORY_AT).is_some_and(|len| len >= *memory_len);
        (is_there && memory.iter().all(is_in_place)).then_some((&*self.parts.file, MEMORY_AT))
    }

    /// Fills `memory`, which is all zero, with the contents of memory.
    pub fn fill_memory(&self, memory: &mut [u8]) -> Result<(), OpenError> {
        if memory.len() as u64 != self.index.memory_len {
            return Err(self
                .parts
                .damaged("the machine has other memory than its configuration says"));
        }
        for part in &self.index.memory {
            let start = part.to as usize;
            self.parts.read(part, &mut memory[start..start + part.len as usize])?;
        }
        Ok(())
    }

    /// Passes the sectors that the guest has written over the file of `drive` to `write`: the number of the
    /// first one, and the contents of whole sectors from there on.
    pub fn written(
        &self,
        drive: &SavedDrive,
        mut write: impl FnMut(u64, Vec<u8>) -> io::Result<()>,
    ) -> Result<(), OpenError> {
        for part in &drive.written {
            let mut bytes = vec![0; part.len as usize];
            self.parts.read(part, &mut bytes)?;
            write(part.to / SECTOR_SIZE as u64, bytes)
                .map_err(|source| self.parts.fails(source))?;
        }
        Ok(())
    }

    /// Reads everything, to find out whether the file is as it was written.
    pub fn check(&self) -> Result<(), OpenError> {
        let of_disks = self.index.drives.iter().flat_map(|drive| &drive.written);
        let mut bytes = vec![0; PART_MAX];
        let of_files = self.index.files.iter().flatten();
        for part in self.index.memory.iter().chain(of_disks).chain(of_files) {
            self.parts.read(part, &mut bytes[..part.len as usize])?;
        }
        Ok(())
    }

    /// Returns the names of the snapshots in disks that belong to it.
    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        self.index.drives.iter().filter_map(|drive| match &drive.kept {
            KeptDisk::InSnapshot(name) | KeptDisk::UnderWrites(Some(name)) => Some(name.as_str()),
            KeptDisk::NoMedium | KeptDisk::InFile | KeptDisk::UnderWrites(None) => None,
        })
    }

    /// Deletes the file, and before it the snapshots in the disks of the machine behind `control` that belong
    /// to it.
    pub fn delete_with(self, control: &Control) -> Result<(), OpenError> {
        let names: Vec<String> = self.names().map(str::to_owned).collect();
        let (sender, receiver) = mpsc::channel();
        let asked = control.keep(move |moment| {
            let dropped = names.iter().try_for_each(|name| {
                moment.drives.iter().try_for_each(|(_, drive)| drive.drop_kept(name))
            });
            // Nobody is there any more who could be told of an error.
            let _ = sender.send(dropped);
        });
        asked.map_err(|error| self.parts.fails(io::Error::other(error)))?;
        if let Ok(dropped) = receiver.recv() {
            dropped?;
        }
        std::fs::remove_file(&self.parts.path).map_err(|source| self.parts.fails(source))
    }

    /// Deletes the file, and before it the snapshots in disks that belong to it. No machine may use the disks.
    pub fn delete(self) -> Result<(), OpenError> {
        for drive in &self.index.drives {
            let (KeptDisk::InSnapshot(name), Some(file)) = (&drive.kept, &drive.file) else {
                continue;
            };
            let options = OpenOptions { writes: true, ..OpenOptions::default() };
            let image = Image::open(file, &options)?;
            if image.snapshots().iter().any(|snapshot| snapshot.name == *name) {
                image.snapshot(&SnapshotAct::Delete(name.clone()))?;
            }
            image.close()?;
        }
        std::fs::remove_file(&self.parts.path).map_err(|source| self.parts.fails(source))
    }
}
