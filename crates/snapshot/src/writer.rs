//! Keeps a moment of a machine in a file.

use std::fs;
use std::io::{self, Write};
use std::path::Path;
use std::sync::{Arc, mpsc};
use std::time::{SystemTime, UNIX_EPOCH};

use flate2::Compression;
use flate2::write::DeflateEncoder;
use ring3_block::storage::{HostFile, Storage};
use ring3_block::{Unfinished, remove_left};
use ring3_core::device::DeviceId;
use ring3_core::memory::{FullPages, Memory};
use ring3_vm::control::{DriveInfo, Ended, KeepError, Moment};
use ring3_vm::drives::{Drive, KeepDiskError, KeptDisk};
use ring3_vm::file_bytes::START_LEN;
use ring3_vm::{Control, FileBytes, SavedMachine};

use crate::error::SaveError;
use crate::format::{HEADER_LEN, Header, Index, MEMORY_AT, PART_MAX, Part, SavedDrive, VERSION};
use crate::reader::Snapshot;

/// Bytes of a page of memory, the unit in which zeros are looked for.
const PAGE: usize = 4096;
/// Fewer zeros than this between two parts are written as well, so that there are not too many parts.
const GAP: usize = 64 << 10;

/// How a machine is saved.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SaveOptions {
    /// Whether to compress memory and what was written over disks. The file is smaller, but takes longer to
    /// write, and all of it is read before the machine continues.
    pub compress: bool,
}

/// The description of a machine that was saved.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Saved {
    /// Bytes of memory that are not zero.
    pub memory: u64,
    /// Room that the file takes on the host, in bytes.
    pub file: u64,
}

/// Saves the machine behind `control` in a file at `target`, which replaces a file of that name once it is
/// complete. The machine stands still while its memory is written.
pub fn save(control: &Control, target: &Path, options: SaveOptions) -> Result<Saved, SaveError> {
    // For a symbolic link the file behind it is replaced, and not the link.
    let real = fs::canonicalize(target).unwrap_or_else(|_| target.to_owned());
    let target = real.as_path();
    if fs::metadata(target).is_ok_and(|data| !data.is_file()) {
        return Err(SaveError::NotAFile(target.to_owned()));
    }
    remove_left(target);
    let before = Snapshot::open(target).ok();
    let unfinished = Unfinished::make(target)?;
    let file = Arc::clone(unfinished.file());
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let name = format!("ring3-{}.{:09}", now.as_secs(), now.subsec_nanos());
    let (sender, receiver) = mpsc::channel();
    let keeper = {
        let (file, name, target) = (Arc::clone(&file), name.clone(), target.to_owned());
        move |moment: Moment<'_>| {
            let drives: Vec<_> = moment.drives.iter().map(|(_, drive)| Arc::clone(drive)).collect();
            let written = Writer::new(&file, options).write(moment, &name, now.as_secs());
            let written = written.map_err(|failure| match failure {
                Failure::Write(source) => SaveError::Write { path: target, source },
                Failure::Disk(disk, source) => SaveError::Disk { disk, source },
            });
            // Nobody is there any more who could be told of an error.
            let _ = sender.send((drives, written));
        }
    };
    control.keep(keeper)?;
    let (drives, written) = receiver.recv().map_err(|_| KeepError::Ended(Ended))?;
    let drop_kept = |name: &str| {
        for drive in &drives {
            if let Err(error) = drive.drop_kept(name) {
                tracing::warn!("a snapshot that is not needed any more stays in a disk: {error}");
            }
        }
    };
    let finished = written.and_then(|memory| {
        file.flush().map_err(|source| SaveError::Write { path: target.to_owned(), source })?;
        let saved = Saved { memory, file: file.allocated().unwrap_or(0) };
        unfinished.finish(target)?;
        Ok(saved)
    });
    match &finished {
        Ok(_) => before.iter().flat_map(Snapshot::names).for_each(drop_kept),
        Err(_) => drop_kept(&name),
    }
    finished
}

/// Why a moment is not kept.
enum Failure {
    Write(io::Error),
    Disk(String, KeepDiskError),
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Failure {
        Failure::Write(error)
    }
}

/// Writes a file.
struct Writer<'a> {
    file: &'a HostFile,
    options: SaveOptions,
    /// The offset behind everything that was written.
    end: u64,
}

impl Writer<'_> {
    fn new(file: &HostFile, options: SaveOptions) -> Writer<'_> {
        Writer { file, options, end: MEMORY_AT }
    }

    /// Writes everything. Returns the bytes of memory that are not zero.
    fn write(&mut self, moment: Moment<'_>, name: &str, saved_at: u64) -> Result<u64, Failure> {
        let Moment { mut machine, memory, drives } = moment;
        let memory_len = memory.all_contents().len() as u64;
        let parts = self.write_memory(memory)?;
        let written = parts.iter().map(|part| u64::from(part.len)).sum();
        let drives = drives
            .iter()
            .map(|(info, drive)| self.write_drive(info, &**drive, name))
            .collect::<Result<_, Failure>>()?;
        let files = machine.take_files();
        let files = files.iter().map(|file| self.write_file(file)).collect::<io::Result<_>>()?;
        let index: Index<&SavedMachine> =
            Index { machine: &machine, files, saved_at, memory_len, memory: parts, drives };
        let mut bytes = Vec::new();
        ciborium::into_writer(&index, &mut bytes).map_err(io::Error::other)?;
        let index_at = self.end;
        self.file.write_at(&bytes, index_at)?;
        let header = Header {
            version: VERSION,
            file_len: index_at + bytes.len() as u64,
            index_at,
            index_len: bytes.len() as u64,
            index_crc: crc32fast::hash(&bytes),
        };
        self.file.write_at(&header.bytes(), 0)?;
        Ok(written)
    }

    fn write_memory(&mut self, memory: &Memory) -> io::Result<Vec<Part>> {
        let mut runs = Runs { memory: memory.full_pages(), at: 0 };
        let memory = memory.all_contents();
        if !self.options.compress {
            self.end = MEMORY_AT + memory.len() as u64;
        }
        let mut parts = Vec::new();
        while let Some((start, end)) = runs.next() {
            for (to, bytes) in
                (start..end).step_by(PART_MAX).zip(memory[start..end].chunks(PART_MAX))
            {
                parts.push(if self.options.compress {
                    self.append(to as u64, bytes)?
                } else {
                    self.put(to as u64, MEMORY_AT + to as u64, bytes)?
                });
            }
        }
        Ok(parts)
    }

    /// Writes a file that the guest starts from. What is needed without a reset is a part of its own.
    fn write_file(&mut self, file: &FileBytes) -> io::Result<Vec<Part>> {
        let bytes = file.read().map_err(io::Error::other)?;
        let (start, rest) = bytes.split_at(bytes.len().min(START_LEN));
        let pieces = start.chunks(PART_MAX).chain(rest.chunks(PART_MAX));
        let mut to = 0;
        let parts = pieces.map(|piece| {
            let part = self.append(to, piece)?;
            to += piece.len() as u64;
            Ok(part)
        });
        parts.collect()
    }

    fn write_drive(
        &mut self,
        info: &DriveInfo,
        drive: &dyn Drive,
        name: &str,
    ) -> Result<SavedDrive, Failure> {
        let mut written = Vec::new();
        // What is in flash memory is a part of the machine's memory.
        if info.drive.device == DeviceId::FLASH {
            let file = info.file.as_deref().map(std::path::absolute).transpose()?;
            return Ok(SavedDrive::of(info, file, KeptDisk::InFile, written));
        }
        let kept = drive.keep(name, &mut |sector, bytes| {
            written.push(self.append(sector * ring3_core::disk::SECTOR_SIZE as u64, bytes)?);
            Ok(())
        });
        let kept: KeptDisk = kept.map_err(|error| {
            let of_file = info.file.as_ref().map(|file| file.display().to_string());
            Failure::Disk(of_file.unwrap_or_else(|| info.drive.device.name().to_owned()), error)
        })?;
        let file = info.file.as_deref().map(std::path::absolute).transpose()?;
        Ok(SavedDrive::of(info, file, kept, written))
    }

    /// Writes a part behind everything else, compressed if that is asked for and helps.
    fn append(&mut self, to: u64, bytes: &[u8]) -> io::Result<Part> {
        let at = self.end;
        let mut part = None;
        if self.options.compress {
            let mut encoder = DeflateEncoder::new(Vec::new(), Compression::fast());
            encoder.write_all(bytes)?;
            let packed = encoder.finish()?;
            if packed.len() < bytes.len() {
                let crc = crc32fast::hash(&packed);
                self.file.write_at(&packed, at)?;
                let (len, stored) = (bytes.len() as u32, packed.len() as u32);
                part = Some(Part { to, len, at, stored, crc });
            }
        }
        let part = part.map_or_else(|| self.put(to, at, bytes), Ok)?;
        self.end += u64::from(part.stored);
        Ok(part)
    }

    /// Writes a part at offset `at`.
    fn put(&self, to: u64, at: u64, bytes: &[u8]) -> io::Result<Part> {
        self.file.write_at(bytes, at)?;
        let len = bytes.len() as u32;
        Ok(Part { to, len, at, stored: len, crc: crc32fast::hash(bytes) })
    }
}

/// The runs of pages that are not all zero. Short runs of zeros belong to them.
struct Runs<'a> {
    memory: FullPages<'a>,
    /// Where to go on.
    at: usize,
}

impl Runs<'_> {
    fn next(&mut self) -> Option<(usize, usize)> {
        let len = self.memory.len();
        let start = (self.at..len).step_by(PAGE).find(|at| self.memory.at(*at).is_some())?;
        let mut end = start + PAGE;
        self.at = len;
        for at in (end..len).step_by(PAGE) {
            if at >= end + GAP {
                self.at = at;
                break;
            }
            if self.memory.at(at).is_some() {
                end = at + PAGE;
            }
        }
        Some((start, end))
    }
}

const _: () = assert!(HEADER_LEN.is_multiple_of(PAGE));

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_leave_out_long_zeros() {
        let mut memory = Memory::new(1 << 20).unwrap();
        for page in [0, 3, 40, 98, 99] {
            memory.write(page * PAGE as u64 + 5, &[1]);
        }
        let mut runs = Runs { memory: memory.full_pages(), at: 0 };
        let found: Vec<_> = std::iter::from_fn(|| runs.next()).collect();
        assert_eq!(found, [(0, 4 * PAGE), (40 * PAGE, 41 * PAGE), (98 * PAGE, 100 * PAGE)]);
    }
}
