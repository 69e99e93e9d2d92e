//! The control handle: the requests of a front-end, for a person or a tool, to a running machine.
//!
//! A [`Control`] is an extended [`Sender`]. Requests that change the guest go by the door as inputs (a key,
//! the reset button). All others are a [`Request`], which the machine answers between two slices, even when
//! it sleeps or is paused: for a picture of the screen, its drives, its counters, to pause or to continue.
//! Those who want to know what happens to the machine subscribe to its [`Event`]s.
//!
//! Nothing here hangs: a machine that has ended answers with [`Ended`].
//!
//! ```
//! use std::thread;
//!
//! use ring3_vm::control::{Ended, Status};
//!
//! let (sender, mut door) = ring3_vm::door();
//! let control = sender.control();
//! // This machine is none; a real one has `door` in `Vm::run`.
//! let machine = thread::spawn(move || {
//!     door.wait(None, |_| true);
//!     door.take_requests();
//! });
//! assert_eq!(control.status(), Status::Running);
//! assert_eq!(control.pause(), Err(Ended));
//! machine.join().unwrap();
//! ```

use std::cell::Cell;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, SyncSender, TrySendError};
use std::thread;
use std::time::{Duration, Instant};

use ring3_core::balloon::BalloonRequest;
use ring3_core::device::{DeviceId, GuestFailure};
use ring3_core::disk::{DiskError, DriveId, Medium};
use ring3_core::display::Picture;
use ring3_core::input::{DeviceInput, Input, Key, MouseMove};
use ring3_core::memory::Memory;
use thiserror::Error;
use tracing::warn;

use crate::balloon::BalloonError;
use crate::cards::{Kind, NewDisk, NewNic, NewSerial, PlugError, UnplugError};
use crate::config::OnPanic;
use crate::debug::{DebugError, Registers, Run, Waiter};
use crate::door::{Door, Sender};
use crate::drives::{
    Cache, Counts, DetectZeroes, Drive, DriveFailure, DriveNames, ErrorPolicy, LimitError, Limits,
    ResizeError,
};
use crate::extra_memory::ExtraMemoryError;
use crate::inspect::{Description, MemoryRange, PciFunction, Processor};
pub use crate::machine::cpu_limit::{CPU_PERCENT_MAX, CpuTime};
pub use crate::machine::flight::{KeepLastError, KeptLast};
pub use crate::machine::host_memory::{LEAST_ROOM, MemoryUse, Scarce, Shortage};
pub use crate::machine::loading::{LoadError, Loader, Running};
use crate::machine::{Ending, SavedMachine, Vm};
use crate::stats::Stats;
use crate::taps::Tap;
use crate::tree::Tree;

/// Upper bound of the events that wait for a subscriber; later ones are lost to it.
const EVENTS_WAITING: usize = 256;

/// How long [`Control::keep`] waits for drives.
pub const DRIVES_MAX: Duration = Duration::from_secs(10);

/// The machine has ended and answers no more.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("the machine has ended")]
pub struct Ended;

/// The guest has locked the tray of a drive, and was asked to open it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("the guest has locked the tray")]
pub struct MediumHeld;

/// The reasons why the medium of a drive is not changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum ChangeError {
    /// The machine has ended.
    #[error(transparent)]
    Ended(#[from] Ended),
    /// The guest holds the medium.
    #[error(transparent)]
    Held(#[from] MediumHeld),
}

/// The reasons why the cable of a network card is not changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum LinkError {
    /// The machine has ended.
    #[error(transparent)]
    Ended(#[from] Ended),
    /// There is no card of this name.
    #[error("there is no such network card")]
    NoCard,
}

/// The state of a machine.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Status {
    /// It runs, or is about to.
    #[default]
    Running,
    /// It waits between two instructions, and virtual time stops.
    Paused,
    /// It waits as in [`Status::Paused`], because the host could not execute a request of a drive.
    /// When it continues, the request is tried again.
    Stopped,
    /// It waits as in [`Status::Paused`], because the guest's system has failed
    /// ([`OnPanic::Pause`]).
    Panicked,
    /// It waits as in [`Status::Paused`], because the host may soon have no memory for the guest. It goes on by itself
    /// when there is enough.
    Starved,
    /// The guest has switched it off. It waits until it is reset and then told to continue.
    Off,
    /// It is to come from another process, and its requests wait until it is here.
    Arriving,
    /// It has moved to another process, and stands still here for ever.
    Moved,
    /// It has not moved to another process, and waits as in [`Status::Paused`] until its disks are open again.
    WithoutDisks,
    /// It has ended.
    Ended,
}

/// An event of a machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// It was paused.
    Paused,
    /// It continues.
    Resumed,
    /// The host could not execute a request of a drive.
    DriveFailed(DriveFailure),
    /// It was reset.
    Reset {
        /// Whether the guest has reset it, rather than a person outside.
        by_guest: bool,
    },
    /// The power button was pressed.
    PowerButton,
    /// The guest has said that its system has failed, and the machine does this.
    GuestFailed(GuestFailure, OnPanic),
    /// Of the memory that comes and goes, so much is there now.
    ExtraMemory {
        /// The id of the device, if it has one.
        id: Option<String>,
        /// The number of bytes.
        bytes: u64,
    },
    /// The guest has this much memory for itself now, as its memory balloon has another size.
    Balloon {
        /// The number of bytes.
        guest_bytes: u64,
    },
    /// The host may soon have no memory for the guest, and the machine stands still.
    MemoryShort(Shortage),
    /// It has come from another process.
    Arrived,
    /// The guest has given up a card, which was removed.
    CardGone {
        /// The device that it was.
        device: DeviceId,
        /// The id by which people knew it.
        id: Option<String>,
    },
    /// The guest has switched it off, and [`Config::stays_when_off`](crate::Config::stays_when_off) says that
    /// this is not the end.
    Off,
    /// It has ended, and this is the last event.
    Ended(Ending),
    /// It has ended because the host could not continue, for this reason. This is the last event, too.
    Failed(String),
}

/// The description of a drive for people.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DriveInfo {
    /// The drive.
    pub drive: DriveId,
    /// The id by which people know the device, if it is a card.
    pub id: Option<String>,
    /// The names by which people know the drive.
    pub names: DriveNames,
    /// Whether its medium can be changed.
    pub removable: bool,
    /// Whether the guest forbids taking out the medium.
    pub locked: bool,
    /// The medium that is in it.
    pub medium: Option<Medium>,
    /// The file with the sectors of that medium.
    pub file: Option<PathBuf>,
    /// The format of that file, as qemu-img calls it.
    pub format: Option<&'static str>,
    /// How writes to it are cached.
    pub cache: Cache,
    /// How writes of zeros are treated.
    pub detect_zeroes: DetectZeroes,
    /// The limits of its rate.
    pub limits: Limits,
    /// The policy for errors of the host.
    pub errors: ErrorPolicy,
    /// The error because of which the machine is stopped, if it is one of this drive.
    pub stopped: Option<DiskError>,
    /// Counts of its operations.
    pub counts: Counts,
}

impl DriveInfo {
    /// Returns the id by which people know the device, or its name if it has no id.
    pub fn device(&self) -> &str {
        self.id.as_deref().unwrap_or_else(|| self.drive.device.name())
    }

    /// Returns the name of the drive, or its place if it has no name.
    pub fn name(&self) -> String {
        let DriveId { device, unit } = self.drive;
        self.names.drive.clone().unwrap_or_else(|| format!("{device}-{unit}"))
    }
}

/// A request of a [`Control`] to the machine.
#[derive(Debug)]
pub enum Request {
    /// Only answer.
    Nothing(Reply<()>),
    /// Stand still.
    Pause(Reply<()>),
    /// Continue.
    Resume(Reply<()>),
    /// Return the picture on the screen, or None if there is no screen.
    Picture(Reply<Option<Picture>>),
    /// Replace a drive, with the medium in it.
    ChangeMedium {
        /// The drive of the machine.
        at: DriveId,
        /// The drive that does its work from now on.
        drive: Box<dyn Drive>,
        /// Whether to do so even if the guest holds the medium.
        force: bool,
        /// The result: done, or the guest holds the medium.
        reply: Reply<Result<(), MediumHeld>>,
    },
    /// Give a drive other limits.
    LimitDrive {
        /// The drive.
        drive: DriveId,
        /// The new limits.
        limits: Limits,
        /// The result.
        reply: Reply<Result<(), LimitError>>,
    },
    /// Give the medium of a drive another size, and tell the guest.
    ResizeDrive {
        /// The drive.
        drive: DriveId,
        /// The new size, a whole number of sectors.
        bytes: u64,
        /// The result.
        reply: Reply<Result<(), ResizeError>>,
    },
    /// Tell the guest that others have given the medium of a drive another size.
    DriveResized(DriveId),
    /// Describe the drives.
    Drives(Reply<Vec<DriveInfo>>),
    /// Put a disk into a slot.
    PlugDisk(Box<NewDisk>, Reply<Result<(), PlugError>>),
    /// Return a place for a card.
    PlaceFor {
        /// What kind of card it is.
        kind: Kind,
        /// The id that the card is to have.
        id: Option<String>,
        /// Its PCI device number; None for the first free one.
        slot: Option<u8>,
        /// The result.
        reply: Reply<Result<DeviceId, PlugError>>,
    },
    /// Put a network card into its slot.
    PlugNic(Box<NewNic>, Reply<Result<(), PlugError>>),
    /// Put a serial card into its slot.
    PlugSerial(NewSerial, Reply<Result<(), PlugError>>),
    /// Ask the guest for the card with this id.
    Unplug(String, Reply<Result<(), UnplugError>>),
    /// Handle an operation that the host could not execute, and pause if the policy says so. The drive
    /// itself sends this request.
    DriveFailed(DriveFailure),
    /// Plug in, or unplug, the cable of the network card with this id.
    SetLink {
        /// The id of the card, or of its network.
        id: String,
        /// Whether the cable is plugged in.
        is_up: bool,
        /// The result: done, or there is no such card.
        reply: Reply<Result<(), LinkError>>,
    },
    /// Ask the guest to use so many bytes of the memory that comes and goes.
    ExtraMemory(u64, Reply<Result<(), ExtraMemoryError>>),
    /// Pass this to the memory balloon.
    Balloon(BalloonRequest, Reply<Result<(), BalloonError>>),
    /// Return the counters so far.
    Stats(Reply<Box<Stats>>),
    /// Describe the state of the processor.
    Processor(Reply<Box<Processor>>),
    /// Return the contents of memory, or None if one of its pages is not mapped.
    Memory(MemoryRange, Reply<Option<Vec<u8>>>),
    /// Return the physical address for a linear one, if it is mapped.
    Physical(u64, Reply<Option<u64>>),
    /// Return the registers of the processor.
    Registers(Reply<Box<Registers>>),
    /// Set the registers of the processor.
    SetRegisters(Box<Registers>, Reply<Result<(), DebugError>>),
    /// Write memory.
    WriteMemory(MemoryRange, Vec<u8>, Reply<Result<(), DebugError>>),
    /// Continue for a debugger.
    Debug(Run, Waiter, Reply<()>),
    /// Forget the debugger.
    EndDebugging(Reply<()>),
    /// Return whether a debugger can go back.
    GoesBack(Reply<bool>),
    /// Describe the functions on the PCI bus.
    PciFunctions(Reply<Vec<PciFunction>>),
    /// Describe the parts of the machine.
    Describe(Reply<Box<Description>>),
    /// Show the packets of network cards from now on.
    Tap(Tap, Reply<()>),
    /// Return whether drives have answered all requests.
    AreDrivesIdle(Reply<bool>),
    /// Write the last seconds of the run to this file, or to the usual one.
    KeepLast(Option<PathBuf>, Reply<Result<KeptLast, KeepLastError>>),
    /// Show the machine as it is at this moment, to be kept.
    Keep(Keeper, Reply<Result<(), KeepError>>),
    /// Receive a visitor.
    Visit(Visitor),
    /// Go on as another machine.
    Load(Loader, Reply<Result<(), LoadError>>),
}

impl Request {
    /// Returns whether it may change the machine. One that repeats a run does not answer such requests.
    pub(crate) fn is_change(&self) -> bool {
        matches!(
            self,
            Request::ChangeMedium { .. }
                | Request::LimitDrive { .. }
                | Request::ResizeDrive { .. }
                | Request::DriveResized(_)
                | Request::PlugDisk(..)
                | Request::PlugNic(..)
                | Request::PlugSerial(..)
                | Request::Unplug(..)
                | Request::DriveFailed(_)
                | Request::SetLink { .. }
                | Request::ExtraMemory(..)
                | Request::Balloon(..)
                | Request::Load(..)
        )
    }
}

/// The machine at one moment, between two instructions: everything from which it can continue, apart from
/// inputs that wait at the door.
#[derive(Debug)]
pub struct Moment<'a> {
    /// The machine, without the contents of memory.
    pub machine: SavedMachine,
    /// Memory, whose contents belong to it ([`Vm::fill_memory`](crate::Vm::fill_memory)).
    pub memory: &'a Memory,
    /// The drives, and what does the work of each, which nobody uses now.
    pub drives: Vec<(DriveInfo, Arc<dyn Drive>)>,
}

/// A function that keeps a [`Moment`]. The machine stands still meanwhile.
pub struct Keeper(pub(crate) Box<dyn FnOnce(Moment<'_>) + Send>);

impl std::fmt::Debug for Keeper {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Keeper").finish_non_exhaustive()
    }
}

/// A function that visits the machine between two slices.
pub struct Visitor(pub(crate) Box<Visit>);

type Visit = dyn FnOnce(&mut Vm, &mut Door) + Send;

impl std::fmt::Debug for Visitor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Visitor").finish_non_exhaustive()
    }
}

/// The reasons why a machine that has tried to move to another process is not whole here.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum NotHere {
    /// It has moved, or is about to: its disks are closed.
    #[error("the machine has moved to another process, and goes on there")]
    Moved,
    /// It has not moved, but its disks could not be opened again.
    #[error("the machine stands still without its disks; cont tries to open them again")]
    WithoutDisks,
}

/// The reasons why a moment of a machine cannot be kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum KeepError {
    /// The machine has ended.
    #[error(transparent)]
    Ended(#[from] Ended),
    /// The machine is not whole.
    #[error(transparent)]
    NotHere(#[from] NotHere),
    /// Drives have not answered all requests.
    #[error(
        "the drives have not finished their work: try it again, or see what is wrong with them"
    )]
    DrivesAreBusy,
}

/// The way back for the answer to a request. If it is dropped without an answer, the request fails with
/// [`Ended`].
#[derive(Debug)]
pub struct Reply<T>(SyncSender<T>);

impl<T> Reply<T> {
    /// Answers. It does not matter whether anyone still waits.
    pub fn answer(self, answer: T) {
        // There is room for the only answer.
        let _ = self.0.try_send(answer);
    }
}

/// A handle to a machine, for any thread.
#[derive(Debug, Clone)]
pub struct Control {
    sender: Sender,
}

impl Sender {
    /// Returns a control handle to the same machine.
    pub fn control(&self) -> Control {
        Control { sender: self.clone() }
    }
}

impl Control {
    /// Returns the sender for inputs.
    pub fn sender(&self) -> &Sender {
        &self.sender
    }

    /// Returns the state of the machine.
    pub fn status(&self) -> Status {
        self.sender.status()
    }

    /// Checks that the machine is here with its disks, although it may have tried to move to another process.
    pub fn check_is_here(&self) -> Result<(), NotHere> {
        match self.status() {
            Status::Moved => Err(NotHere::Moved),
            Status::WithoutDisks => Err(NotHere::WithoutDisks),
            _ => Ok(()),
        }
    }

    /// Pauses the machine between two instructions; it is paused when this returns. Inputs still reach its
    /// devices, and the guest sees them when it continues.
    pub fn pause(&self) -> Result<(), Ended> {
        self.ask(Request::Pause)
    }

    /// Lets the machine continue, unless it is off.
    pub fn resume(&self) -> Result<(), Ended> {
        self.ask(Request::Resume)
    }

    /// Returns the picture on the screen, or None if there is no screen.
    pub fn picture(&self) -> Result<Option<Picture>, Ended> {
        self.ask(Request::Picture)
    }

    /// Describes the drives.
    pub fn drives(&self) -> Result<Vec<DriveInfo>, Ended> {
        self.ask(Request::Drives)
    }

    /// Changes the medium of a drive, which must take removable media. From now on `drive` does the work of
    /// drive `at`, with or without a medium. If the guest holds the present medium, it is asked
    /// for it as by the eject button, and nothing is changed; with `force` it is not asked.
    pub fn change_medium(
        &self,
        at: DriveId,
        drive: Box<dyn Drive>,
        force: bool,
    ) -> Result<(), ChangeError> {
        Ok(self.ask(|reply| Request::ChangeMedium { at, drive, force, reply })??)
    }

    /// Sets the limits of a drive.
    pub fn limit_drive(&self, drive: DriveId, limits: Limits) -> Result<(), LimitError> {
        self.ask(|reply| Request::LimitDrive { drive, limits, reply })?
    }

    /// Sets the size of the medium of a drive, and tells the guest.
    pub fn resize_drive(&self, drive: DriveId, bytes: u64) -> Result<(), ResizeError> {
        self.ask(|reply| Request::ResizeDrive { drive, bytes, reply })?
    }

    /// Puts a disk into a slot, and tells the guest.
    pub fn plug_disk(&self, new: NewDisk) -> Result<(), PlugError> {
        self.ask(|reply| Request::PlugDisk(Box::new(new), reply))?
    }

    /// Returns the first free place for a card of this kind, or the one in PCI slot `slot`. The card with this `id`
    /// can be plugged in there ([`Control::plug_nic`], [`Control::plug_serial`]) unless another one is faster.
    pub fn place_for(
        &self,
        kind: Kind,
        id: Option<String>,
        slot: Option<u8>,
    ) -> Result<DeviceId, PlugError> {
        self.ask(|reply| Request::PlaceFor { kind, id, slot, reply })?
    }

    /// Puts a network card into its slot, and tells the guest.
    pub fn plug_nic(&self, new: NewNic) -> Result<(), PlugError> {
        self.ask(|reply| Request::PlugNic(Box::new(new), reply))?
    }

    /// Puts a serial card into its slot, and tells the guest.
    pub fn plug_serial(&self, new: NewSerial) -> Result<(), PlugError> {
        self.ask(|reply| Request::PlugSerial(new, reply))?
    }

    /// Asks the guest for the card with this id, this name of its device, such as `nic0`, or this id of its network.
    /// When the guest has given it up, [`Event::CardGone`] says so;
    /// a reset of the machine takes it out, too. The request can be repeated, since the guest may not have
    /// listened yet.
    pub fn unplug(&self, id: &str) -> Result<(), UnplugError> {
        self.ask(|reply| Request::Unplug(id.to_owned(), reply))?
    }

    /// Plugs in, or unplugs, the cable of a network card. The guest is told if the card has a way to do so;
    /// while the cable is unplugged, packets in both directions are lost. `id` is the id of the card or of
    /// its network, or the name of its device.
    pub fn set_link(&self, id: &str, is_up: bool) -> Result<(), LinkError> {
        self.ask(|reply| Request::SetLink { id: id.to_owned(), is_up, reply })?
    }

    /// Returns the counters so far.
    pub fn stats(&self) -> Result<Stats, Ended> {
        self.ask(Request::Stats).map(|stats| *stats)
    }

    /// Describes the state of the processor.
    pub fn processor(&self) -> Result<Processor, Ended> {
        self.ask(Request::Processor).map(|processor| *processor)
    }

    /// Returns the contents of memory, or None if one of the pages is not mapped, or if it is more than
    /// [`READ_MAX`](crate::inspect::READ_MAX).
    pub fn read_memory(&self, range: MemoryRange) -> Result<Option<Vec<u8>>, Ended> {
        self.ask(|reply| Request::Memory(range, reply))
    }

    /// Returns the physical address for a linear one, if it is mapped.
    pub fn physical(&self, linear: u64) -> Result<Option<u64>, Ended> {
        self.ask(|reply| Request::Physical(linear, reply))
    }

    /// Returns the registers of the processor.
    pub fn registers(&self) -> Result<Registers, Ended> {
        self.ask(Request::Registers).map(|registers| *registers)
    }

    /// Sets the registers of the processor, in a machine that is paused.
    pub fn set_registers(&self, registers: Registers) -> Result<(), DebugError> {
        self.ask(|reply| Request::SetRegisters(Box::new(registers), reply))?
    }

    /// Writes `bytes` to memory; the length in `range` does not matter. Nothing is written if one of the
    /// pages is not mapped.
    pub fn write_memory(&self, range: MemoryRange, bytes: Vec<u8>) -> Result<(), DebugError> {
        self.ask(|reply| Request::WriteMemory(range, bytes, reply))?
    }

    /// Lets the machine continue for a debugger. `waiter` is told when it stands still again.
    pub fn debug(&self, run: Run, waiter: Waiter) -> Result<(), Ended> {
        self.ask(|reply| Request::Debug(run, waiter, reply))
    }

    /// Removes the breakpoints and watchpoints of the debugger. The machine stays as it is, paused or not.
    pub fn end_debugging(&self) -> Result<(), Ended> {
        self.ask(Request::EndDebugging)
    }

    /// Returns whether a debugger can let the machine go back ([`Run::Back`]): it repeats a recorded run.
    pub fn goes_back(&self) -> Result<bool, Ended> {
        self.ask(Request::GoesBack)
    }

    /// Describes the functions on the PCI bus.
    pub fn pci_functions(&self) -> Result<Vec<PciFunction>, Ended> {
        self.ask(Request::PciFunctions)
    }

    /// Describes the parts of the machine.
    pub fn describe(&self) -> Result<Description, Ended> {
        self.ask(Request::Describe).map(|description| *description)
    }

    /// Returns the whole machine, with all its registers, as it is at this moment.
    pub fn tree(&self) -> Result<Tree, Ended> {
        self.visit(|vm, _| vm.tree())
    }

    /// Shows the machine as it is at this moment to `look`, for which it stands still, and returns what `look`
    /// returns.
    pub fn look<T: Send + 'static>(
        &self,
        look: impl FnOnce(&Vm) -> T + Send + 'static,
    ) -> Result<T, Ended> {
        self.visit(|vm, _| look(vm))
    }

    /// Writes the last seconds of the run as a recording, if they are kept ([`Vm::keep_last`](crate::Vm::keep_last)):
    /// to `file`, or to the usual one.
    pub fn keep_last(&self, file: Option<PathBuf>) -> Result<KeptLast, KeepLastError> {
        self.ask(|reply| Request::KeepLast(file, reply))?
    }

    /// Passes the machine as it is at this moment to `keeper`, for which it stands still. While drives work,
    /// this holds it for up to [`DRIVES_MAX`].
    pub fn keep(&self, keeper: impl FnOnce(Moment<'_>) + Send + 'static) -> Result<(), KeepError> {
        self.hold()?;
        let kept = if self.wait_for_drives()? {
            self.ask(|reply| Request::Keep(Keeper(Box::new(keeper)), reply))?
        } else {
            Err(KeepError::DrivesAreBusy)
        };
        self.release()?;
        kept
    }

    /// Pauses a machine that runs until [`Control::release`], for something that is soon done. A debugger is not
    /// told: its run goes on afterwards.
    pub fn hold(&self) -> Result<(), Ended> {
        self.visit(|_, door| door.hold())
    }

    /// Lets a machine go on that [`Control::hold`] has paused, unless somebody has paused it meanwhile.
    pub fn release(&self) -> Result<(), Ended> {
        self.visit(|_, door| door.release())
    }

    /// Waits until drives have answered all requests of a machine that is paused, which takes the answers, too.
    /// Returns false if they have not after [`DRIVES_MAX`].
    pub fn wait_for_drives(&self) -> Result<bool, Ended> {
        let until = Instant::now() + DRIVES_MAX;
        while !self.ask(Request::AreDrivesIdle)? {
            if Instant::now() > until {
                return Ok(false);
            }
            thread::sleep(Duration::from_millis(1));
        }
        Ok(true)
    }

    /// Lets `act` visit the machine between two slices, in its own thread and at its door, and returns what it
    /// returns. The machine waits meanwhile, so the visit must be short.
    pub fn visit<T: Send + 'static>(
        &self,
        act: impl FnOnce(&mut Vm, &mut Door) -> T + Send + 'static,
    ) -> Result<T, Ended> {
        let (sender, answer) = mpsc::sync_channel(1);
        let visitor = move |vm: &mut Vm, door: &mut Door| {
            // There is room for the only answer.
            let _ = sender.try_send(act(vm, door));
        };
        self.sender.request(Request::Visit(Visitor(Box::new(visitor))));
        answer.recv().map_err(|_| Ended)
    }

    /// Presses or releases a key. Waits while too many keys are queued.
    pub fn key(&self, key: Key, pressed: bool) {
        self.send(DeviceId::I8042, DeviceInput::Key { key, pressed });
    }

    /// Moves the mouse or changes one of its buttons. Waits while too much is queued.
    pub fn mouse(&self, moved: MouseMove) {
        self.send(DeviceId::I8042, DeviceInput::Mouse(moved));
    }

    /// Presses the power button for a moment: most guests shut down then.
    pub fn press_power_button(&self) {
        self.send(DeviceId::ACPI_PM, DeviceInput::PowerButton);
    }

    /// Presses the reset button. When this returns the machine was reset; one that was off can be resumed.
    pub fn reset(&self) {
        self.sender.send(Input::Reset);
        // Requests after a reset are answered after it. A machine that has ended needs no reset.
        let _ = self.ask(Request::Nothing);
    }

    /// Presses the button of the non-maskable interrupt: many guests then show their state, or stop.
    pub fn inject_nmi(&self) {
        self.sender.send(Input::Nmi);
    }

    /// Ends the run.
    pub fn quit(&self) {
        self.sender.send(Input::Quit);
    }

    /// Returns whether the run is to end, and the machine has not noticed it yet.
    pub fn is_to_quit(&self) -> bool {
        self.sender.is_to_quit()
    }

    /// Ends the run because of a signal to this process.
    pub fn quit_by_signal(&self) {
        self.sender.quit_by_signal();
    }

    /// Returns whether a signal was a reason to end the run.
    pub fn was_signalled(&self) -> bool {
        self.sender.was_signalled()
    }

    /// Subscribes to all events from now on, until the machine ends.
    pub fn subscribe(&self) -> Events {
        let (subscriber, events) = mpsc::sync_channel(EVENTS_WAITING);
        self.sender.subscribe(Subscriber { events: subscriber, misses: Cell::new(false) });
        Events(events)
    }

    fn send(&self, device: DeviceId, input: DeviceInput) {
        self.sender.send(Input::Device { device, input });
    }

    pub(crate) fn ask<T>(&self, request: impl FnOnce(Reply<T>) -> Request) -> Result<T, Ended> {
        let (reply, answer) = mpsc::sync_channel(1);
        self.sender.request(request(Reply(reply)));
        answer.recv().map_err(|_| Ended)
    }
}

/// The events of a machine, one after the other. The iterator ends with the machine.
#[derive(Debug)]
pub struct Events(Receiver<Event>);

impl Iterator for Events {
    type Item = Event;

    /// Waits for the next event.
    fn next(&mut self) -> Option<Event> {
        self.0.recv().ok()
    }
}

/// The machine's end of [`Events`].
#[derive(Debug)]
pub(crate) struct Subscriber {
    events: SyncSender<Event>,
    /// Whether it has missed an event, and the log says so.
    misses: Cell<bool>,
}

impl Subscriber {
    /// Sends `event`. Returns false if nobody listens any more.
    pub(crate) fn tell(&self, event: &Event) -> bool {
        match self.events.try_send(event.clone()) {
            Ok(()) => true,
            Err(TrySendError::Full(event)) => {
                // A guest can cause thousands of events a second, so one message stands for all missed ones.
                if !self.misses.replace(true) {
                    warn!(
                        "a subscriber is too slow for the events and misses some, {event:?} first"
                    );
                }
                true
            }
            Err(TrySendError::Disconnected(_)) => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::door::door;

    #[test]
    fn requests_to_a_machine_that_has_ended_fail() {
        let (sender, mut door) = door();
        let control = sender.control();
        let mut events = control.subscribe();
        door.end(&Event::Ended(Ending::PowerOff));
        assert_eq!(control.status(), Status::Ended);
        assert_eq!(control.pause(), Err(Ended));
        assert_eq!(control.picture(), Err(Ended));
        assert_eq!(events.next(), Some(Event::Ended(Ending::PowerOff)));
        assert_eq!(events.next(), None);
        assert_eq!(control.subscribe().next(), None);
    }

    #[test]
    fn a_request_without_an_answer_ends_with_the_machine() {
        let (sender, door) = door();
        let control = sender.control();
        let asker = std::thread::spawn(move || control.drives());
        while sender.status() == Status::Running && !door.has_requests() {
            std::thread::yield_now();
        }
        drop(door);
        assert_eq!(asker.join().unwrap(), Err(Ended));
    }

    #[test]
    fn unread_events_take_bounded_memory() {
        let (sender, mut door) = door();
        let events = sender.control().subscribe();
        for _ in 0..=EVENTS_WAITING {
            door.tell(&Event::PowerButton);
        }
        door.end(&Event::Ended(Ending::Quit));
        assert_eq!(events.count(), EVENTS_WAITING);
    }

    #[test]
    fn a_hold_ends_only_its_own_pause() {
        let (_sender, mut door) = door();
        door.hold();
        door.hold();
        door.release();
        assert!(door.is_paused());
        door.release();
        assert!(!door.is_paused());
        // Somebody pauses it meanwhile.
        door.hold();
        door.pause();
        door.release();
        assert!(door.is_paused());
        // A paused machine stays so.
        door.hold();
        door.release();
        assert!(door.is_paused());
        door.resume();
        door.hold();
        door.stop(Status::Stopped);
        door.release();
        assert!(door.is_paused());
    }

    #[test]
    fn host_time_stops_during_a_pause() {
        let (_sender, mut door) = door();
        door.pause();
        let time = door.host_time();
        std::thread::sleep(std::time::Duration::from_millis(2));
        assert_eq!(door.host_time(), time);
        door.resume();
        assert!(door.host_time() >= time);
    }
}
