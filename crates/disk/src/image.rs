//! A disk image of any format, or a block device of the host.

use std::io::{self, ErrorKind};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use ring3_block::{Error, Fault, Format, Image, OpenOptions, SnapshotAct};
use ring3_core::disk::{DiskError, DiskOperation, Medium, SECTOR_SIZE};
use ring3_vm::drives::{
    Cache, DetectZeroes, Drive, KeepDiskError, KeptDisk, Opener, ResizeError, WrittenSectors,
};

use crate::introduced::introduce;
use crate::range::{bytes_of, check};
use crate::{Access, ImageError, ImageOptions};

/// A drive that keeps its data in a disk image, or in a block device of the host.
#[derive(Debug)]
pub struct ImageFile {
    image: Image,
    /// The size of the disk in sectors. It can change.
    sectors: AtomicU64,
    options: ImageOptions,
    /// Whether it was opened with a password.
    has_secret: bool,
    is_in_files: bool,
}

impl ImageFile {
    /// Opens the image at `path`, whose size must be a whole number of sectors.
    ///
    /// The image stays locked against other users until the drive is dropped.
    ///
    /// An image in a format that can only be read is opened for reading, with a warning.
    pub fn open(path: &Path, mut options: ImageOptions) -> Result<ImageFile, ImageError> {
        let ImageOptions { format, access, cache, no_external_files, .. } = options;
        let secret = options.secret.take();
        let has_secret = secret.is_some();
        let writes = access == Access::ReadWrite;
        let Cache { direct, no_flush, .. } = cache;
        let image = OpenOptions {
            format,
            writes,
            direct,
            no_flush,
            no_external_files,
            secret,
            ..OpenOptions::default()
        };
        let image = match Image::open(path, &image) {
            Err(Error::In { fault: Fault::OnlyRead(what), .. }) if writes => {
                tracing::warn!(
                    "{}: {what} cannot be written, so the guest cannot write to this disk; with snapshot=on it can, until the \
                     run ends",
                    path.display()
                );
                options.access = Access::ReadOnly;
                Image::open(path, &OpenOptions { writes: false, ..image })
            }
            opened => opened,
        }?;
        if let Some(snapshot) = &options.shows {
            image.show_snapshot(snapshot)?;
        }
        Ok(ImageFile { has_secret, ..ImageFile::of(image, options)? })
    }

    /// Lets the vblock server at `socket`, one of the machine's own, introduce it to the provider of `device`. No
    /// request goes through the server.
    pub fn introduced(
        socket: &Path,
        device: &str,
        read_only: bool,
    ) -> Result<ImageFile, ImageError> {
        introduce(socket, device, read_only)
    }

    pub(crate) fn of(image: Image, options: ImageOptions) -> Result<ImageFile, ImageError> {
        let (path, block) = (image.path(), options.block);
        // The `size` of a raw image is rounded up, so only its file tells whether it ends within a sector.
        let len = match (image.format(), std::fs::metadata(path)) {
            (Format::Raw, Ok(file)) if file.is_file() => file.len(),
            _ => image.size(),
        };
        if len == 0 || !len.is_multiple_of(block.bytes()) {
            let block = block.bytes();
            return Err(ImageError::Truncated { path: path.to_owned(), len, block });
        }
        let sectors = AtomicU64::new(len / SECTOR_SIZE as u64);
        let is_in_files = image.is_in_files();
        Ok(ImageFile { image, sectors, options, has_secret: false, is_in_files })
    }

    /// Returns the path of the file.
    pub fn path(&self) -> &Path {
        self.image.path()
    }

    /// Returns the snapshot in the image that it shows, instead of the image's present state.
    pub(crate) fn shown(&self) -> Option<&str> {
        self.options.shows.as_deref()
    }

    /// Returns the size of the medium at present, and whether it is read-only.
    fn present(&self) -> Medium {
        let sectors = self.sectors.load(Ordering::Relaxed);
        Medium { sectors, read_only: self.options.access == Access::ReadOnly }
    }

    /// Reads whole sectors from `sector` on. All of them must exist.
    pub(crate) fn read(&self, sector: u64, bytes: &mut [u8]) -> Result<(), DiskError> {
        warn_of(self.image.read_at(bytes, offset_of(sector)))
    }

    fn write(&self, data: &[u8], offset: u64) -> Result<(), Error> {
        match self.options.detect_zeroes {
            DetectZeroes::Off => self.image.write_at(data, offset),
            _ if !is_zero(data) => self.image.write_at(data, offset),
            DetectZeroes::On => self.image.write_zeroes_in_place(offset, data.len() as u64),
            DetectZeroes::Unmap => self.image.write_zeroes(offset, data.len() as u64),
        }
    }

    /// Finishes a write: flushes it, unless the cache may hold it until the guest asks for a flush.
    fn written(&self) -> Result<(), Error> {
        if self.options.cache.writeback { Ok(()) } else { self.image.flush() }
    }

    /// Returns whether `data` may be written unchanged, without a flush that follows.
    fn is_written_at_once(&self, data: &[u8]) -> bool {
        let as_zeros = self.options.detect_zeroes != DetectZeroes::Off && is_zero(data);
        self.options.cache.writeback && !as_zeros
    }
}

/// Returns the offset of a sector in bytes. The sector must exist, so that the product does not overflow.
pub(crate) fn offset_of(sector: u64) -> u64 {
    sector * SECTOR_SIZE as u64
}

fn is_zero(bytes: &[u8]) -> bool {
    bytes.iter().all(|byte| *byte == 0)
}

/// Returns the error that the guest's device gets for an error of the host.
pub(crate) fn kind_of(error: &io::Error) -> DiskError {
    match error.kind() {
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded => DiskError::NoSpace,
        _ => DiskError::Host,
    }
}

/// Logs an error as a warning, since the guest learns only its kind.
fn warn_of(result: Result<(), Error>) -> Result<(), DiskError> {
    result.map_err(|error| {
        tracing::warn!("{error}");
        match &error {
            Error::In { fault: Fault::Io(source), .. } => kind_of(source),
            _ => DiskError::Host,
        }
    })
}

impl Drive for ImageFile {
    fn execute(&self, operation: &DiskOperation) -> Result<Vec<u8>, DiskError> {
        check(operation, self.present())?;
        match operation {
            DiskOperation::Read { sector, count } => {
                let mut bytes = vec![0; bytes_of(*count) as usize];
                self.read(*sector, &mut bytes)?;
                return Ok(bytes);
            }
            DiskOperation::Write { sector, data } => {
                warn_of(self.write(data, offset_of(*sector)).and_then(|()| self.written()))?;
            }
            DiskOperation::Flush => warn_of(self.image.flush())?,
            DiskOperation::Discard { sector, count } => {
                if self.options.discard {
                    warn_of(self.image.discard(offset_of(*sector), bytes_of(*count)))?;
                }
            }
            DiskOperation::WriteZeroes { sector, count, gives_up_room } => {
                let (offset, len) = (offset_of(*sector), bytes_of(*count));
                let zeroed = if *gives_up_room && self.options.discard {
                    self.image.write_zeroes(offset, len)
                } else {
                    self.image.write_zeroes_in_place(offset, len)
                };
                warn_of(zeroed.and_then(|()| self.written()))?;
            }
            // The machine itself puts an empty drive in the place of this one.
            DiskOperation::Eject => {}
        }
        Ok(Vec::new())
    }

    fn execute_at_once(&self, operation: &DiskOperation) -> Option<Result<Vec<u8>, DiskError>> {
        check(operation, self.present()).ok()?;
        match operation {
            DiskOperation::Read { sector, count } => {
                let mut bytes = vec![0; bytes_of(*count) as usize];
                self.image.read_at_once(&mut bytes, offset_of(*sector)).then_some(Ok(bytes))
            }
            DiskOperation::Write { sector, data } => {
                let is_written = self.is_written_at_once(data)
                    && self.image.write_at_once(data, offset_of(*sector));
                is_written.then_some(Ok(Vec::new()))
            }
            DiskOperation::Flush
            | DiskOperation::Discard { .. }
            | DiskOperation::WriteZeroes { .. }
            | DiskOperation::Eject => None,
        }
    }

    fn keep(&self, name: &str, _written: WrittenSectors<'_>) -> Result<KeptDisk, KeepDiskError> {
        if self.present().read_only {
            let shown = self.options.shows.clone();
            return Ok(shown.map_or(KeptDisk::InFile, KeptDisk::InSnapshot));
        }
        if self.image.format() != Format::Qcow2 {
            return Err(KeepDiskError::Format(self.image.format().name()));
        }
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let date = (now.as_secs() as u32, now.subsec_nanos());
        self.image
            .snapshot(&SnapshotAct::Create { name: name.to_owned(), date })
            .map_err(|error| KeepDiskError::Image(error.into()))?;
        Ok(KeptDisk::InSnapshot(name.to_owned()))
    }

    fn has_kept(&self, name: &str) -> bool {
        self.image.snapshots().iter().any(|snapshot| snapshot.name == name)
    }

    fn go_back(&self, name: &str) -> Result<(), KeepDiskError> {
        let gone = self.image.snapshot(&SnapshotAct::Apply(name.to_owned()));
        self.sectors.store(self.image.size() / SECTOR_SIZE as u64, Ordering::Relaxed);
        gone.map_err(|error| KeepDiskError::Image(error.into()))
    }

    fn drop_kept(&self, name: &str) -> Result<(), KeepDiskError> {
        if !self.has_kept(name) {
            return Ok(());
        }
        self.image
            .snapshot(&SnapshotAct::Delete(name.to_owned()))
            .map_err(|error| KeepDiskError::Image(error.into()))
    }

    /// The image's files are locked.
    fn changes_only_here(&self) -> bool {
        self.is_in_files
    }

    fn reconnects(&self) -> bool {
        !self.is_in_files
    }

    fn end(&self) {
        self.image.give_up();
    }

    /// The password is not kept, so an encrypted image cannot be opened again.
    fn opener(&self) -> Option<Opener> {
        let (path, options) = (self.path().to_owned(), self.options.clone());
        let options = ImageOptions { format: Some(self.image.format()), ..options };
        let open = move || Ok(Arc::new(ImageFile::open(&path, options.clone())?) as Arc<dyn Drive>);
        (!self.has_secret).then(|| Box::new(open) as Opener)
    }

    fn medium(&self) -> Option<Medium> {
        Some(self.present())
    }

    fn file(&self) -> Option<&Path> {
        Some(self.path())
    }

    fn format(&self) -> Option<&'static str> {
        Some(self.image.format().name())
    }

    fn resize(&self, bytes: u64) -> Result<(), ResizeError> {
        if bytes == 0 || !bytes.is_multiple_of(self.options.block.bytes()) {
            return Err(ResizeError::Odd(bytes));
        }
        let sectors = bytes / SECTOR_SIZE as u64;
        // A request that runs during the change must lie within both the old and the new size.
        self.sectors.fetch_min(sectors, Ordering::Relaxed);
        let resized = self.image.resize(bytes);
        let sectors = if resized.is_ok() { bytes } else { self.image.size() } / SECTOR_SIZE as u64;
        self.sectors.store(sectors, Ordering::Relaxed);
        resized.map_err(|error| ResizeError::Image(error.into()))
    }

    fn cache(&self) -> Cache {
        self.options.cache
    }

    fn detect_zeroes(&self) -> DetectZeroes {
        self.options.detect_zeroes
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;
    use crate::{BlockSize, Overlay};

    fn image(directory: &tempfile::TempDir, len: usize) -> PathBuf {
        let path = directory.path().join("image");
        let bytes: Vec<u8> = (0..len).map(|index| (index / 512) as u8).collect();
        std::fs::write(&path, bytes).unwrap();
        path
    }

    fn options(format: Option<Format>, access: Access, block: BlockSize) -> ImageOptions {
        ImageOptions { format, access, block, ..ImageOptions::default() }
    }

    #[test]
    fn read_only_formats_are_opened_for_reading() {
        let directory = tempfile::tempdir().unwrap();
        let raw = image(&directory, 1 << 20);
        let path = directory.path().join("disk");
        let secret = "secret,id=s,data=swordfish";
        for (format, more) in [
            ("vhdx", vec![]),
            ("parallels", vec![]),
            ("qcow2", vec!["--object", secret, "-o", "encrypt.format=aes,encrypt.key-secret=s"]),
        ] {
            let mut made = std::process::Command::new("qemu-img");
            made.args(["convert", "-f", "raw", "-O", format]).args(more).arg(&raw).arg(&path);
            assert!(made.status().unwrap().success(), "{format}");
            let options = || ImageOptions {
                secret: Some(ring3_block::Secret::new(b"swordfish")),
                ..options(None, Access::ReadWrite, BlockSize::Disk)
            };
            let drive = ImageFile::open(&path, options()).unwrap();
            assert!(drive.medium().unwrap().read_only, "{format}");
            let read = DiskOperation::Read { sector: 9, count: 1 };
            assert_eq!(drive.execute(&read).unwrap(), [9; 512]);
            let write = DiskOperation::Write { sector: 9, data: vec![0; 512] };
            assert!(drive.execute(&write).is_err());
            drop(drive);
            // An overlay accepts writes, which are lost when the run ends.
            let drive = Overlay::open(&path, options()).unwrap();
            drive.execute(&write).unwrap();
            assert_eq!(drive.execute(&read).unwrap(), [0; 512]);
        }
    }

    fn with_discard(discard: bool) -> ImageOptions {
        ImageOptions { discard, ..options(None, Access::ReadWrite, BlockSize::Disk) }
    }

    fn message(path: &Path, access: Access, block: BlockSize) -> String {
        ImageFile::open(path, options(None, access, block)).unwrap_err().to_string()
    }

    #[test]
    fn sectors_are_read_and_written_in_place() {
        let directory = tempfile::tempdir().unwrap();
        let path = image(&directory, 4096);
        let drive =
            ImageFile::open(&path, options(None, Access::ReadWrite, BlockSize::CdRom)).unwrap();
        assert_eq!(drive.medium(), Some(Medium { sectors: 8, read_only: false }));
        let read = drive.execute(&DiskOperation::Read { sector: 2, count: 2 }).unwrap();
        assert_eq!(read, [[2; 512], [3; 512]].concat());
        let write = DiskOperation::Write { sector: 7, data: vec![9; 512] };
        assert_eq!(drive.execute(&write), Ok(Vec::new()));
        assert_eq!(drive.execute(&DiskOperation::Flush), Ok(Vec::new()));
        assert_eq!(std::fs::read(&path).unwrap()[7 * 512..], [9; 512]);
    }

    #[test]
    fn zeros_are_written_with_and_without_allocation() {
        let directory = tempfile::tempdir().unwrap();
        let path = image(&directory, 1 << 20);
        let drive = ImageFile::open(&path, with_discard(true)).unwrap();
        for (sector, count, gives_up_room) in [(1, 2, false), (1024, 1000, true), (300, 129, false)]
        {
            let zeroes = DiskOperation::WriteZeroes { sector, count, gives_up_room };
            assert_eq!(drive.execute_at_once(&zeroes), None);
            assert_eq!(drive.execute(&zeroes), Ok(Vec::new()));
            let read = DiskOperation::Read { sector: sector - 1, count: count + 2 };
            let (before, after) = ((sector - 1) as u8, (sector + u64::from(count)) as u8);
            let zeros = vec![0; count as usize * 512];
            let expected = [vec![before; 512], zeros, vec![after; 512]].concat();
            assert_eq!(drive.execute(&read), Ok(expected));
        }
    }

    #[test]
    fn discarded_sectors_take_no_space() {
        use std::os::unix::fs::MetadataExt;
        let directory = tempfile::tempdir().unwrap();
        let path = image(&directory, 1 << 20);
        let room = || std::fs::metadata(&path).unwrap().blocks();
        let before = room();
        let discard = DiskOperation::Discard { sector: 8, count: 1024 };
        let drive = ImageFile::open(&path, with_discard(false)).unwrap();
        assert_eq!(drive.execute(&discard), Ok(Vec::new()));
        assert_eq!(room(), before);
        drop(drive);
        let drive = ImageFile::open(&path, with_discard(true)).unwrap();
        assert_eq!(drive.execute(&discard), Ok(Vec::new()));
        assert!(room() + 1024 <= before, "{} blocks of {before}", room());
        let read = DiskOperation::Read { sector: 7, count: 1 };
        assert_eq!(drive.execute(&read), Ok(vec![7; 512]));
    }

    #[test]
    fn requests_that_leave_the_image_are_refused() {
        let directory = tempfile::tempdir().unwrap();
        let path = image(&directory, 4096);
        let drive =
            ImageFile::open(&path, options(None, Access::ReadWrite, BlockSize::Disk)).unwrap();
        for (sector, count) in [(8, 1), (7, 2), (u64::MAX, 1), (u64::MAX / 512, 1), (0, u32::MAX)] {
            let read = DiskOperation::Read { sector, count };
            assert_eq!(drive.execute(&read), Err(DiskError::OutOfRange));
        }
        for (sector, len) in [(8, 512), (0, 100)] {
            let write = DiskOperation::Write { sector, data: vec![0; len] };
            assert_eq!(drive.execute(&write), Err(DiskError::OutOfRange));
        }
        for (sector, count) in [(8, 1), (7, 2), (u64::MAX, 1), (0, u32::MAX)] {
            let discard = DiskOperation::Discard { sector, count };
            assert_eq!(drive.execute(&discard), Err(DiskError::OutOfRange));
            for gives_up_room in [false, true] {
                let zeroes = DiskOperation::WriteZeroes { sector, count, gives_up_room };
                assert_eq!(drive.execute(&zeroes), Err(DiskError::OutOfRange));
            }
        }
        assert_eq!(std::fs::metadata(&path).unwrap().len(), 4096);
    }

    #[test]
    fn an_image_for_reading_does_not_change() {
        let directory = tempfile::tempdir().unwrap();
        let path = image(&directory, 512);
        let drive =
            ImageFile::open(&path, options(None, Access::ReadOnly, BlockSize::Disk)).unwrap();
        let write = DiskOperation::Write { sector: 0, data: vec![9; 512] };
        assert_eq!(drive.execute(&write), Err(DiskError::ReadOnly));
        let discard = DiskOperation::Discard { sector: 0, count: 1 };
        assert_eq!(drive.execute(&discard), Err(DiskError::ReadOnly));
        assert_eq!(drive.execute(&DiskOperation::Flush), Ok(Vec::new()));
    }

    #[test]
    fn one_writer_or_many_readers_use_an_image() {
        let directory = tempfile::tempdir().unwrap();
        let path = image(&directory, 512);
        let first =
            ImageFile::open(&path, options(None, Access::ReadOnly, BlockSize::Disk)).unwrap();
        let second =
            ImageFile::open(&path, options(None, Access::ReadOnly, BlockSize::Disk)).unwrap();
        assert!(message(&path, Access::ReadWrite, BlockSize::Disk).contains("is in use"));
        drop((first, second));
        let _writer =
            ImageFile::open(&path, options(None, Access::ReadWrite, BlockSize::Disk)).unwrap();
        assert!(message(&path, Access::ReadOnly, BlockSize::Disk).contains("is in use"));
    }

    #[test]
    fn a_file_that_is_not_an_image_is_named_and_refused() {
        let directory = tempfile::tempdir().unwrap();
        let missing = directory.path().join("missing");
        let says = message(&missing, Access::ReadOnly, BlockSize::Disk);
        assert_eq!(says, format!("there is no image {}", missing.display()));
        for access in [Access::ReadOnly, Access::ReadWrite] {
            let says = message(directory.path(), access, BlockSize::Disk);
            assert!(says.ends_with("is neither a file nor a block device"), "{says}");
        }
        let pipe = directory.path().join("pipe");
        rustix::fs::mknodat(
            rustix::fs::CWD,
            &pipe,
            rustix::fs::FileType::Fifo,
            rustix::fs::Mode::RUSR,
            0,
        )
        .unwrap();
        let says = message(&pipe, Access::ReadOnly, BlockSize::Disk);
        assert!(says.ends_with("is neither a file nor a block device"), "{says}");
        for (len, block, size) in
            [(0, BlockSize::Disk, 512), (700, BlockSize::Disk, 512), (512, BlockSize::CdRom, 2048)]
        {
            let says = message(&image(&directory, len), Access::ReadOnly, block);
            let expected = format!("has {len} bytes, not a whole number of {size}-byte sectors");
            assert!(says.contains(&expected), "{says}");
        }
    }

    #[test]
    fn an_operation_that_an_image_refuses_is_an_error_for_the_guest() {
        let directory = tempfile::tempdir().unwrap();
        let path = image(&directory, 4096);
        let mut header = vec![0; 512];
        header[..8].copy_from_slice(b"QFI\xfb\0\0\0\x03");
        let write = DiskOperation::Write { sector: 0, data: header };
        // The format was not given, and an image that begins with these bytes would not be taken for a raw
        // one.
        let drive =
            ImageFile::open(&path, options(None, Access::ReadWrite, BlockSize::Disk)).unwrap();
        assert_eq!(drive.execute_at_once(&write), None);
        assert_eq!(drive.execute(&write), Err(DiskError::Host));
        drop(drive);
        let raw = Some(Format::Raw);
        let drive =
            ImageFile::open(&path, options(raw, Access::ReadWrite, BlockSize::Disk)).unwrap();
        assert_eq!(drive.execute(&write), Ok(Vec::new()));
    }

    fn write(byte: u8) -> DiskOperation {
        DiskOperation::Write { sector: 8, data: vec![byte; 64 << 10] }
    }

    #[test]
    fn writes_past_the_hosts_cache_are_in_the_file() {
        // Some hosts keep temporary files in a file system in memory, which may not allow access past the
        // host's cache.
        let directory = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        let path = image(&directory, 1 << 20);
        for mode in ["none", "directsync"] {
            let cache = Cache::of_mode(mode).unwrap();
            let options =
                ImageOptions { access: Access::ReadWrite, cache, ..ImageOptions::default() };
            let drive = match ImageFile::open(&path, options) {
                Err(ImageError::Image(Error::Direct { .. })) => {
                    ring3_skipped::host("this file system has no O_DIRECT");
                    return;
                }
                opened => opened.unwrap(),
            };
            assert_eq!(drive.execute_at_once(&write(9)), None);
            assert_eq!(drive.execute(&write(9)), Ok(Vec::new()));
            let read = drive.execute(&DiskOperation::Read { sector: 7, count: 2 }).unwrap();
            assert_eq!(read, [[7; 512], [9; 512]].concat(), "{mode}");
            drop(drive);
            assert_eq!(std::fs::read(&path).unwrap()[4096..4608], [9; 512]);
        }
    }

    #[test]
    fn writes_that_must_be_kept_are_not_written_at_once() {
        let directory = tempfile::tempdir().unwrap();
        let path = image(&directory, 1 << 20);
        let access = Access::ReadWrite;
        for (mode, writes) in [("writeback", true), ("unsafe", true), ("writethrough", false)] {
            let cache = Cache::of_mode(mode).unwrap();
            let options = ImageOptions { access, cache, ..ImageOptions::default() };
            let drive = ImageFile::open(&path, options).unwrap();
            // The host may always answer that the write would have to wait.
            let written = drive.execute_at_once(&write(1)).is_some();
            assert!(writes || !written, "{mode}");
            assert_eq!(drive.execute(&write(2)), Ok(Vec::new()));
            assert_eq!(drive.execute(&DiskOperation::Flush), Ok(Vec::new()));
        }
        assert_eq!(Cache::of_mode("fast"), None);
    }

    #[test]
    fn zeros_take_space_as_the_user_chooses() {
        let directory = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        for (detect_zeroes, gives_back) in
            [(DetectZeroes::Off, false), (DetectZeroes::On, false), (DetectZeroes::Unmap, true)]
        {
            let path = image(&directory, 1 << 20);
            std::fs::File::open(&path).unwrap().sync_all().unwrap();
            let access = Access::ReadWrite;
            let options = ImageOptions { access, detect_zeroes, ..ImageOptions::default() };
            let drive = ImageFile::open(&path, options).unwrap();
            let before = drive.image.allocated().unwrap();
            if detect_zeroes != DetectZeroes::Off {
                assert_eq!(drive.execute_at_once(&write(0)), None);
            }
            assert_eq!(drive.execute(&write(0)), Ok(Vec::new()));
            let after = drive.image.allocated().unwrap();
            assert_eq!(after < before, gives_back, "{detect_zeroes:?}: {before}, {after}");
            let read = drive.execute(&DiskOperation::Read { sector: 7, count: 2 }).unwrap();
            assert_eq!(read, [[7; 512], [0; 512]].concat());
        }
    }

    #[test]
    fn an_image_gets_another_size() {
        let directory = tempfile::tempdir().unwrap();
        let path = image(&directory, 4096);
        let drive = ImageFile::open(&path, with_discard(false)).unwrap();
        drive.resize(8192).unwrap();
        assert_eq!(drive.medium(), Some(Medium { sectors: 16, read_only: false }));
        let write = DiskOperation::Write { sector: 15, data: vec![3; 512] };
        assert_eq!(drive.execute(&write), Ok(Vec::new()));
        drive.resize(1024).unwrap();
        assert_eq!(drive.execute(&write), Err(DiskError::OutOfRange));
        for bytes in [0, 1000] {
            assert!(matches!(drive.resize(bytes), Err(ResizeError::Odd(_))));
        }
        drop(drive);
        let drive =
            ImageFile::open(&path, options(None, Access::ReadOnly, BlockSize::Disk)).unwrap();
        assert!(matches!(drive.resize(2048), Err(ResizeError::Image(_))));
        assert_eq!(drive.medium(), Some(Medium { sectors: 2, read_only: true }));
    }

    #[test]
    fn flushed_data_are_in_the_file_even_with_cache_unsafe() {
        let directory = tempfile::tempdir().unwrap();
        let (path, qcow2) = (directory.path().join("image"), Format::Qcow2);
        let new = ring3_block::CreateOptions {
            format: qcow2,
            size: 1 << 20,
            backing: None,
            specific: Vec::new(),
        };
        ring3_block::create(&path, &new).unwrap().finish().unwrap();
        let cache = Cache::of_mode("unsafe").unwrap();
        let options = ImageOptions { format: Some(qcow2), cache, ..with_discard(false) };
        let drive = ImageFile::open(&path, options).unwrap();
        drive.execute(&write(5)).unwrap();
        drive.execute(&DiskOperation::Flush).unwrap();
        // Another process would find the file in this state if this one were killed now.
        let shares = OpenOptions { shares: true, ..OpenOptions::default() };
        let found = Image::open(&path, &shares).unwrap();
        let mut bytes = [0; 2];
        found.read_at(&mut bytes, 8 * 512).unwrap();
        assert_eq!(bytes, [5; 2]);
    }
}
