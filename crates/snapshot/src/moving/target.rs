//! The end to which a machine comes.

use std::fs::File;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use ring3_core::disk::{DiskOperation, SECTOR_SIZE};
use ring3_disk::{Access, ClientError, ImageFile, ImageOptions, Overlay, Served};
use ring3_host::listener::Listener;
use ring3_vm::drives::{Drive, Empty, KeptDisk};
use ring3_vm::{Control, FileBytes, SavedMachine, Vm};

use super::channel::{Channel, GoesOn};
use super::pages::{self, Known};
use super::stream::{self, Frame, Head, Kind, MovedDrive, Rest};
use super::{MoveError, Place};
use crate::drives::{self, RestoreDriveError};

/// Upper bound of the kernel and its files.
const FILES_MAX: u32 = 64;
/// Upper bound of the bytes that a guest can have written over images.
const SECTORS_MAX: usize = 1 << 30;
/// How long the source may take to close a disk.
const CLOSING: Duration = Duration::from_secs(2);
/// When a machine announces itself after its arrival, in milliseconds.
const ANNOUNCEMENTS: [u64; 6] = [0, 20, 50, 100, 300, 1000];

/// A place where a machine is awaited.
pub struct Incoming {
    source: Waiting,
    goes_on: GoesOn,
}

enum Waiting {
    Socket(Listener),
    File(File, PathBuf),
}

/// A machine that is coming.
pub struct Arriving {
    channel: Channel,
    head: Head,
}

/// A machine that is here, complete and with its disks, but still belongs to the other end.
pub struct Arrived {
    channel: Channel,
    /// Whether it ran before.
    runs: bool,
}

impl Incoming {
    /// Begins to wait at `place`, for as long as `goes_on` returns true.
    pub fn at(
        place: &Place,
        goes_on: impl Fn() -> bool + Send + Sync + 'static,
    ) -> Result<Incoming, MoveError> {
        let source = match place {
            Place::Unix(path) => Waiting::Socket(
                Listener::unix(path).map_err(ring3_host::listener::ListenError::Socket)?,
            ),
            Place::Tcp { host, port } => Waiting::Socket(Listener::tcp_of_this_host(host, *port)?),
            Place::File(path) => Waiting::File(open_file(path)?, path.clone()),
        };
        Ok(Incoming { source, goes_on: Box::new(goes_on) })
    }

    /// Waits for the machine, of which only the beginning is here then. If it must have a size of memory, this
    /// is `memory`.
    pub fn accept(self, memory: Option<u64>) -> Result<Arriving, MoveError> {
        let mut channel = match self.source {
            Waiting::Socket(listener) => Channel::accept(&listener, self.goes_on)?,
            Waiting::File(file, path) => Channel::file(file, path, self.goes_on),
        };
        match receive_head(&mut channel, memory) {
            Ok(head) => Ok(Arriving { channel, head }),
            Err(error) => Err(refuse(&mut channel, error)),
        }
    }
}

fn open_file(path: &Path) -> Result<File, MoveError> {
    File::open(path).map_err(|source| MoveError::File { path: path.to_owned(), source })
}

/// Tells the other end of `error`.
fn refuse(channel: &mut Channel, error: MoveError) -> MoveError {
    if channel.answers() {
        let frame = Frame::of(Kind::Failed, error.to_string().as_bytes());
        // The other end may be gone.
        let _ = stream::send(channel, frame);
    }
    error
}

fn receive_head(channel: &mut Channel, memory: Option<u64>) -> Result<Head, MoveError> {
    stream::receive_magic(channel)?;
    let mut head: Head = stream::unpacked(&stream::receive_bytes(channel)?)?;
    if head.files > FILES_MAX {
        return Err(stream::damaged("it has too many files"));
    }
    let files = (0..head.files).map(|_| Ok(FileBytes::from(stream::receive_bytes(channel)?)));
    let files = files.collect::<Result<Vec<_>, MoveError>>()?;
    if !head.machine.give_files(files) {
        return Err(stream::damaged("it has other files than its machine"));
    }
    let found = head.machine.config().memory_bytes;
    match memory {
        Some(expected) if expected != found => Err(MoveError::Memory { found, expected }),
        _ => Ok(head),
    }
}

impl Arriving {
    /// Returns the machine as it was when the transfer began.
    pub fn machine(&self) -> &SavedMachine {
        &self.head.machine
    }

    /// Receives the rest into `vm`, which was made of [`Arriving::machine`].
    pub fn receive(mut self, vm: &mut Vm) -> Result<Arrived, MoveError> {
        match self.receive_all(vm) {
            Ok(runs) => Ok(Arrived { channel: self.channel, runs }),
            Err(error) => Err(refuse(&mut self.channel, error)),
        }
    }

    fn receive_all(&mut self, vm: &mut Vm) -> Result<bool, MoveError> {
        if self.head.memory_len != vm.memory_len() {
            return Err(stream::damaged("it has other memory than its configuration says"));
        }
        let mut known = vm.fill_memory(|memory| Known::none(memory));
        let (mut sectors, mut len) = (Vec::new(), 0);
        loop {
            let (kind, bytes) = stream::receive(&mut self.channel)?;
            match kind {
                Kind::Pages => {
                    vm.fill_memory(|memory| pages::unpack(&bytes, memory, &mut known))?;
                }
                Kind::Sectors => {
                    len += bytes.len();
                    if len > SECTORS_MAX {
                        return Err(stream::damaged("more than 1 GiB was written over its images"));
                    }
                    sectors.push(bytes);
                }
                Kind::End => break,
                _ => return Err(stream::damaged("its parts are in the wrong order")),
            }
        }
        let rest: Rest = stream::unpacked(&stream::receive_bytes(&mut self.channel)?)?;
        vm.arrive(&rest.machine)?;
        attach(&rest.drives, &sectors, vm)?;
        Ok(rest.runs)
    }
}

impl Arrived {
    /// Takes the machine from the other end. After that it must go on here, and nothing may fail any more: the
    /// other end has let it go. Returns whether it ran before.
    pub fn take(mut self) -> Result<bool, MoveError> {
        let channel = &mut self.channel;
        if !channel.answers() {
            return Ok(self.runs);
        }
        let name = channel.here();
        stream::send(channel, Frame::of(Kind::Ready, name.as_bytes()))?;
        let (kind, _) = stream::receive(channel)?;
        if kind != Kind::Go {
            return Err(stream::damaged("it ends in another way than it should"));
        }
        match stream::send(channel, Frame::new(Kind::Gone)) {
            // The other end is gone, and the machine is nowhere else.
            Err(MoveError::Lost(error))
                if matches!(error.kind(), ErrorKind::BrokenPipe | ErrorKind::ConnectionReset) => {}
            sent => sent?,
        }
        Ok(self.runs)
    }
}

/// Attaches the drives, with the sectors that the guest has written over their images.
fn attach(moved: &[MovedDrive], sectors: &[Vec<u8>], vm: &mut Vm) -> Result<(), MoveError> {
    let saved: Vec<_> = moved.iter().map(|moved| moved.saved.clone()).collect();
    let mut number = 0_u32;
    drives::attach(&saved, vm, |saved, options| {
        let moved = &moved[number as usize];
        let drive = open(moved, options, |overlay| write_over(overlay, number, sectors));
        let path = saved.file.clone().unwrap_or_default();
        number += 1;
        drive.map_err(|error| error.of(&path))
    })
}

/// Why a disk is not opened.
enum NotOpen {
    Drive(RestoreDriveError),
    Server(ClientError),
    Sectors,
}

impl NotOpen {
    fn of(self, path: &Path) -> MoveError {
        match self {
            NotOpen::Drive(error) => error.into(),
            NotOpen::Server(error) => MoveError::Server(error),
            NotOpen::Sectors => {
                stream::damaged(&format!("sectors of {} are missing or wrong", path.display()))
            }
        }
    }
}

/// Opens what does the work of a drive. The source may still be closing it.
fn open(
    moved: &MovedDrive,
    options: ImageOptions,
    write_over: impl Fn(&Overlay) -> Option<()>,
) -> Result<Arc<dyn Drive>, NotOpen> {
    let Some(path) = &moved.saved.file else { return Ok(Arc::new(Empty)) };
    let until = Instant::now() + CLOSING;
    let access = if moved.writes { Access::ReadWrite } else { Access::ReadOnly };
    let options = ImageOptions { access, ..options };
    loop {
        let opened: Result<Arc<dyn Drive>, NotOpen> = match &moved.saved.kept {
            KeptDisk::NoMedium => return Ok(Arc::new(Empty)),
            _ if moved.is_served => match Served::connect(path, moved.read_only) {
                Ok(served) => Ok(Arc::new(served)),
                Err(error) => Err(NotOpen::Server(error)),
            },
            KeptDisk::InFile | KeptDisk::InSnapshot(_) => {
                match ImageFile::open(path, options.clone()) {
                    Ok(image) => Ok(Arc::new(image)),
                    Err(error) => Err(NotOpen::Drive(error.into())),
                }
            }
            KeptDisk::UnderWrites(shows) => {
                let options = ImageOptions { shows: shows.clone(), ..options.clone() };
                match Overlay::open(path, options) {
                    Ok(overlay) => {
                        write_over(&overlay).ok_or(NotOpen::Sectors)?;
                        Ok(Arc::new(overlay))
                    }
                    Err(error) => Err(NotOpen::Drive(error.into())),
                }
            }
        };
        match opened {
            Err(_) if path.exists() && Instant::now() < until => {
                thread::sleep(Duration::from_millis(2));
            }
            opened => return opened,
        }
    }
}

/// Writes the sectors of drive `number` over its image. Returns None if they do not fit.
fn write_over(overlay: &Overlay, number: u32, sectors: &[Vec<u8>]) -> Option<()> {
    for frame in sectors {
        let (of, rest) = frame.split_first_chunk()?;
        let (sector, data) = rest.split_first_chunk()?;
        if u32::from_le_bytes(*of) != number {
            continue;
        }
        if !data.len().is_multiple_of(SECTOR_SIZE) {
            return None;
        }
        let (sector, data) = (u64::from_le_bytes(*sector), data.to_vec());
        overlay.execute(&DiskOperation::Write { sector, data }).ok()?;
    }
    Some(())
}

/// Lets the cards of the machine behind `control`, which has just arrived, announce themselves for a second, so
/// that switches send packets for it here.
pub fn announce(control: &Control) {
    let begun = Instant::now();
    for at in ANNOUNCEMENTS.map(Duration::from_millis) {
        thread::sleep(at.saturating_sub(begun.elapsed()));
        if control.visit(|vm, _| vm.announce()).is_err() {
            return;
        }
    }
}
