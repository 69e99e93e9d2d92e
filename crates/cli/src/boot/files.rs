//! Files without an option: recognizes each by its contents and size, and gives it a place in the machine.

use std::fs::{self, File, FileType};
use std::io::{self, Read};
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

use ring3_block::Format;
use ring3_vm::kernel_file::{self, KernelFile, NoKernel};
use thiserror::Error;

use crate::args::RunArguments;
use crate::drives::{BootOptions, DriveProperties};

/// The kind of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Found {
    Kernel,
    InitialRamDisk,
    Disk,
    Disc,
    Diskette,
    NoKernel(NoKernel),
    Archive,
    Unknown,
}

/// The reasons why a file gets no place.
#[derive(Debug, Error)]
pub(crate) enum FileError {
    #[error("there is no file {}; {}", .0.display(), what_was_meant(.0))]
    Missing(PathBuf),
    #[error("cannot read {path}: {source}", path = .path.display())]
    Read { path: PathBuf, source: io::Error },
    #[error("{path} {source}", path = .path.display())]
    NoKernel { path: PathBuf, source: NoKernel },
    #[error("{} is a directory: give a file with a disk, a disc, a diskette or a kernel", .0.display())]
    Directory(PathBuf),
    #[error("{} is an archive: unpack it, and give the disk in it", .0.display())]
    Archive(PathBuf),
    #[error("{} is an initial RAM disk without a kernel: give the kernel as well", .0.display())]
    NoKernelForIt(PathBuf),
    #[error(
        "{} is not recognized as a disk, disc, diskette or kernel: say what it is with --hda, --cdrom, --fda, --kernel or --bios",
        .0.display()
    )]
    Unknown(PathBuf),
    #[error("both {} and {} are kernels, but a machine starts only one: leave one out", .0.display(), .1.display())]
    TwoKernels(PathBuf, PathBuf),
    #[error("{path} is a kernel, which starts without firmware: leave {option} out", path = .path.display())]
    WithoutFirmware { path: PathBuf, option: &'static str },
    #[error("there is no room for the diskette {}: both drives have one", .0.display())]
    Diskettes(PathBuf),
}

/// Returns advice for a name that no file has.
fn what_was_meant(name: &Path) -> String {
    let text = name.to_string_lossy();
    match text.split_once('=') {
        _ if text == "help" => "\"ring3 run --help\" lists the options".to_owned(),
        Some((key, value)) if key.starts_with("ubd") => {
            format!("for a disk, give --drive file={value},if=virtio")
        }
        Some((key, value)) => format!("options begin with two hyphens: --{key} {value}"),
        None => "\"ring3 run FILE\" boots a disk, a disc, a diskette or a kernel".to_owned(),
    }
}

/// The beginning of an ISO 9660 file system (ECMA-119, 8.1), or of a UDF file system (ECMA-167, 2/9.1), on a
/// disc.
const DISC_AT: usize = 0x8001;
const DISC: [&[u8]; 2] = [b"CD001", b"BEA01"];
/// The end of a boot sector.
const BOOT_SIGNATURE_AT: usize = 510;
const BOOT_SIGNATURE: &[u8] = &[0x55, 0xaa];
/// The mark in the header of a tar archive, such as an OVA.
const TAR_AT: usize = 257;
const TAR: &[u8] = b"ustar";
/// The beginnings of cpio archives, which initial RAM disks are.
const CPIO: [&[u8]; 2] = [b"070701", b"070702"];
/// The part of a file that is examined.
const HEAD: u64 = 64 << 10;
const SECTOR: u64 = 512;
/// The sizes of diskettes, in KiB.
const DISKETTES: [u64; 8] = [160, 180, 320, 360, 720, 1200, 1440, 2880];
/// An unknown file of at least this size is taken for a disk without a boot sector, perhaps an empty one.
const DISK_MIN: u64 = 1 << 20;

/// Recognizes a file that begins with `head` and has `len` bytes.
fn recognize(head: &[u8], len: u64) -> Found {
    let has = |at: usize, bytes: &[u8]| head.get(at..).is_some_and(|rest| rest.starts_with(bytes));
    let kernel = kernel_file::recognize(head);
    let is_diskette = DISKETTES.iter().any(|kib| len == kib << 10);
    match kernel {
        // Its first sector ends as a boot sector does.
        KernelFile::Linux | KernelFile::Linux64 => {}
        _ if Format::probe(head) != Format::Raw => return Found::Disk,
        _ if DISC.iter().any(|magic| has(DISC_AT, magic)) => return Found::Disc,
        _ if is_diskette => return Found::Diskette,
        // GRUB on a disk has a Multiboot header within the first sectors.
        _ if has(BOOT_SIGNATURE_AT, BOOT_SIGNATURE) && len.is_multiple_of(SECTOR) => {
            return Found::Disk;
        }
        _ => {}
    }
    match kernel {
        KernelFile::Linux
        | KernelFile::Linux64
        | KernelFile::Multiboot
        | KernelFile::Multiboot2
        | KernelFile::Elf => Found::Kernel,
        KernelFile::Other(other) => Found::NoKernel(other),
        KernelFile::Unknown if CPIO.iter().any(|magic| has(0, magic)) => Found::InitialRamDisk,
        KernelFile::Unknown if has(TAR_AT, TAR) => Found::Archive,
        KernelFile::Unknown if len >= DISK_MIN && len.is_multiple_of(SECTOR) => Found::Disk,
        KernelFile::Unknown => Found::Unknown,
    }
}

/// Examines the file at `path`.
fn look_at(path: &Path) -> Result<Found, FileError> {
    let fails = |source: io::Error| match source.kind() {
        io::ErrorKind::NotFound => FileError::Missing(path.to_owned()),
        _ => FileError::Read { path: path.to_owned(), source },
    };
    let metadata = fs::metadata(path).map_err(fails)?;
    let kind: FileType = metadata.file_type();
    if kind.is_dir() {
        return Err(FileError::Directory(path.to_owned()));
    }
    if kind.is_block_device() {
        return Ok(Found::Disk);
    }
    if !kind.is_file() {
        return Err(FileError::Unknown(path.to_owned()));
    }
    let mut head = Vec::new();
    let file = File::open(path).map_err(fails)?;
    file.take(HEAD).read_to_end(&mut head).map_err(fails)?;
    Ok(recognize(&head, metadata.len()))
}

/// Returns the medium in the file at `path`, which was taken for something else, and the option for it.
pub(crate) fn medium_in(path: &Path) -> Option<(&'static str, &'static str)> {
    match look_at(path).ok()? {
        Found::Disk => Some(("a disk", "--hda")),
        Found::Disc => Some(("the image of a disc", "--cdrom")),
        Found::Diskette => Some(("a diskette", "--fda")),
        _ => None,
    }
}

impl RunArguments {
    /// Gives each file without an option its place in the machine.
    pub(crate) fn place_files(&mut self) -> Result<(), FileError> {
        let files = std::mem::take(&mut self.files);
        let found = files.into_iter().map(|path| look_at(&path).map(|found| (path, found)));
        let found: Vec<_> = found.collect::<Result<_, _>>()?;
        let has_kernel =
            self.kernel.is_some() || found.iter().any(|(_, found)| *found == Found::Kernel);
        let mut order = String::new();
        for (path, found) in found {
            let letter = match found {
                Found::Kernel => {
                    self.place_kernel(path)?;
                    None
                }
                Found::InitialRamDisk | Found::NoKernel(NoKernel::Compressed(_)) if has_kernel => {
                    self.initrd.push(path);
                    None
                }
                Found::InitialRamDisk => return Err(FileError::NoKernelForIt(path)),
                Found::Disk => {
                    self.place_drive(path, false);
                    Some('c')
                }
                Found::Disc => {
                    self.place_disc(path);
                    Some('d')
                }
                Found::Diskette => Some(self.place_diskette(path)?),
                Found::NoKernel(source) => return Err(FileError::NoKernel { path, source }),
                Found::Archive => return Err(FileError::Archive(path)),
                Found::Unknown => return Err(FileError::Unknown(path)),
            };
            order.extend(letter.filter(|letter| !order.contains(*letter)));
        }
        let boot = &mut self.drives.boot;
        if !has_kernel && boot.order.is_empty() && boot.once.is_empty() {
            boot.order = order;
        }
        Ok(())
    }

    fn place_kernel(&mut self, path: PathBuf) -> Result<(), FileError> {
        if let Some(other) = &self.kernel {
            return Err(FileError::TwoKernels(other.clone(), path));
        }
        if self.drives.boot != BootOptions::default() {
            return Err(FileError::WithoutFirmware { path, option: "--boot" });
        }
        self.kernel = Some(path);
        Ok(())
    }

    /// Adds a drive at the first free place.
    fn place_drive(&mut self, path: PathBuf, is_cdrom: bool) {
        let drive = DriveProperties { file: Some(path), is_cdrom, ..DriveProperties::default() };
        self.drives.drive.push(drive);
    }

    fn place_disc(&mut self, path: PathBuf) {
        let drives = &mut self.drives;
        if drives.cdrom.is_some() || drives.hdc.is_some() {
            self.place_drive(path, true);
        } else {
            drives.cdrom = Some(path);
        }
    }

    /// Puts a diskette into a drive, and returns the drive's letter.
    fn place_diskette(&mut self, path: PathBuf) -> Result<char, FileError> {
        let drives = [('a', &mut self.drives.fda), ('b', &mut self.drives.fdb)];
        for (letter, drive) in drives {
            if drive.is_none() {
                *drive = Some(path);
                return Ok(letter);
            }
        }
        Err(FileError::Diskettes(path))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Recognizes a file of `len` bytes with these parts at these offsets, and zeros elsewhere.
    fn found(len: usize, parts: &[(usize, &[u8])]) -> Found {
        let mut head = vec![0; len.min(HEAD as usize)];
        for (at, bytes) in parts {
            head[*at..at + bytes.len()].copy_from_slice(bytes);
        }
        recognize(&head, len as u64)
    }

    #[test]
    fn files_are_recognized_by_their_contents() {
        const MIB: usize = 1 << 20;
        let signature = (BOOT_SIGNATURE_AT, BOOT_SIGNATURE);
        let disc = (DISC_AT, DISC[0]);
        let multiboot: &[u8] = &[0x02, 0xb0, 0xad, 0x1b, 0, 0, 0, 0, 0xfe, 0x4f, 0x52, 0xe4];
        let linux = (0x202, &b"HdrS"[..]);
        for (len, parts, expected) in [
            (8 * MIB, &[signature][..], Found::Disk),
            (8 * MIB, &[], Found::Disk),
            // GRUB behind the partition table, and a disc that is also a disk.
            (8 * MIB, &[signature, (0x400, multiboot)], Found::Disk),
            (8 * MIB, &[signature, disc], Found::Disc),
            (8 * MIB, &[disc], Found::Disc),
            (8 * MIB, &[(DISC_AT, DISC[1])], Found::Disc),
            (1440 << 10, &[signature], Found::Diskette),
            (360 << 10, &[], Found::Diskette),
            // A boot sector alone, the image of somebody who writes one.
            (512, &[signature], Found::Disk),
            (3 * MIB, &[signature, linux], Found::Kernel),
            (1440 << 10, &[signature, linux], Found::Kernel),
            (3 * MIB + 1, &[(0x400, multiboot)], Found::Kernel),
            (3 * MIB + 1, &[(0, b"070701")], Found::InitialRamDisk),
            (3 * MIB, &[(0, &[0x1f, 0x8b])], Found::NoKernel(NoKernel::Compressed("gunzip"))),
            (3 * MIB, &[(TAR_AT, TAR)], Found::Archive),
            (10240, &[(TAR_AT, TAR)], Found::Archive),
            (200_000, &[(0, b"QFI\xfb\0\0\0\x03")], Found::Disk),
            (200_000, &[(0, b"#!/bin/sh")], Found::Unknown),
            (0, &[], Found::Unknown),
        ] {
            assert_eq!(found(len, parts), expected, "{len} {parts:?}");
        }
    }
}
