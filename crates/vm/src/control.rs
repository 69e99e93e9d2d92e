//! The control handle: what a person's or a tool's front-end asks of a running machine.
//!
//! A [`Control`] is a [`Sender`] with more to it. What changes the guest goes by the door as an input (a key, the reset
//! button); what does not is a [`Request`], which the machine answers between two slices, asleep or paused as it
//! may be: for a picture of the screen, its drives, its counters, to pause or to go on. Whoever
//! wants to know what happens to the machine subscribes to its [`Event`]s.
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
use std::sync::mpsc::{self, Receiver, SyncSender, TrySendError};

use ring3_core::disk::{DiskError, Medium};
use ring3_core::display::Picture;
use ring3_core::input::{DeviceInput, Input, Key, MouseMove};
use thiserror::Error;
use tracing::warn;

use crate::cards::{NewDisk, PlugError, UnplugError};
use crate::door::Sender;
use crate::drives::{
    Cache, Counts, DetectZeroes, Drive, DriveFailure, DriveNames, LimitError, Limits, ResizeError,
};
use crate::inspect::{Description, MemoryRange, PciFunction, Processor};
use crate::machine::Ending;
use crate::stats::Stats;

/// The devices for which a person's inputs are.
const KEYBOARD: &str = "i8042";
const POWER_MANAGEMENT: &str = "acpi_pm";

/// Events that wait for a subscriber at most; what comes then is lost to it.
const EVENTS_WAITING: usize = 256;

/// The machine has ended and answers nothing any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("the machine has ended")]
pub struct Ended;

/// The guest has locked the tray of a drive. It was asked to open it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("the guest has locked the tray")]
pub struct MediumHeld;

/// Why the medium of a drive is not changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum ChangeError {
    /// There is no machine any more.
    #[error(transparent)]
    Ended(#[from] Ended),
    /// The guest holds the medium.
    #[error(transparent)]
    Held(#[from] MediumHeld),
}

/// Why the cable of a network card is left as it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum LinkError {
    /// There is no machine any more.
    #[error(transparent)]
    Ended(#[from] Ended),
    /// Nothing is called that.
    #[error("there is no such network card")]
    NoCard,
}

/// What a machine does.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Status {
    /// It runs, or is about to.
    #[default]
    Running,
    /// It stands still between two instructions, and virtual time with it.
    Paused,
    /// The same, as the host could not do what a drive was asked; when it goes on, that is tried again.
    Stopped,
    /// The guest has switched it off; it stands still until it is reset and then told to go on.
    Off,
    /// It does nothing any more.
    Ended,
}

/// What has happened to a machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// It stands still.
    Paused,
    /// It goes on.
    Resumed,
    /// The host could not do what a drive was asked.
    DriveFailed(DriveFailure),
    /// It was reset.
    Reset {
        /// The guest has done it, not a person outside.
        by_guest: bool,
    },
    /// The power button was pressed.
    PowerButton,
    /// The guest has let go of a card, which was taken out.
    CardGone {
        /// The name that its device had.
        device: String,
        /// What people called it.
        id: Option<String>,
    },
    /// The guest has switched it off, and [`Config::stays_when_off`](crate::Config::stays_when_off) says that this is not
    /// the end.
    Off,
    /// It has ended, and this is the last event.
    Ended(Ending),
    /// It has ended because the host could not go on, for this reason; the last event too.
    Failed(String),
}

/// What a drive is, for a person to read.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DriveInfo {
    /// The name of the device to which it is attached.
    pub device: String,
    /// Which of that device's drives it is, from 0.
    pub unit: u8,
    /// What people call the device, where it is a card.
    pub id: Option<String>,
    /// What people call the drive.
    pub names: DriveNames,
    /// Its medium can be changed.
    pub removable: bool,
    /// The guest forbids that the medium is taken out.
    pub locked: bool,
    /// The medium that is in it.
    pub medium: Option<Medium>,
    /// The file with the sectors of that medium.
    pub file: Option<PathBuf>,
    /// The format of that file, as qemu-img calls it.
    pub format: Option<&'static str>,
    /// What becomes of writes to it.
    pub cache: Cache,
    /// What becomes of writes that are zeros.
    pub detect_zeroes: DetectZeroes,
    /// What it does at most.
    pub limits: Limits,
    /// Why the machine stands still, if that is for this drive.
    pub stopped: Option<DiskError>,
    /// What it has done.
    pub counts: Counts,
}

/// What a [`Control`] asks of the machine.
#[derive(Debug)]
pub enum Request {
    /// Only to answer.
    Nothing(Reply<()>),
    /// Stand still.
    Pause(Reply<()>),
    /// Go on.
    Resume(Reply<()>),
    /// What the screen shows; nothing where there is no screen.
    Picture(Reply<Option<Picture>>),
    /// Put `drive`, with the medium in it, in the place of drive `unit` of the device `device`.
    ChangeMedium {
        /// The name of the device.
        device: String,
        /// Which of its drives.
        unit: u8,
        /// What is to do its work.
        drive: Box<dyn Drive>,
        /// Though the guest may hold the medium.
        force: bool,
        /// It has been done, or the guest holds the medium.
        reply: Reply<Result<(), MediumHeld>>,
    },
    /// Give drive `unit` of the device `device` other limits.
    LimitDrive {
        /// The name of the device.
        device: String,
        /// Which of its drives.
        unit: u8,
        /// What it is to do at most.
        limits: Limits,
        /// It has been done, or cannot be.
        reply: Reply<Result<(), LimitError>>,
    },
    /// Give the medium of drive `unit` of the device `device` another size, and tell the guest.
    ResizeDrive {
        /// The name of the device.
        device: String,
        /// Which of its drives.
        unit: u8,
        /// What it is to have, whole sectors.
        bytes: u64,
        /// It has been done, or cannot be.
        reply: Reply<Result<(), ResizeError>>,
    },
    /// The drives.
    Drives(Reply<Vec<DriveInfo>>),
    /// Put a disk into a slot.
    PlugDisk(Box<NewDisk>, Reply<Result<(), PlugError>>),
    /// Ask the guest for the card that people call that.
    Unplug(String, Reply<Result<(), UnplugError>>),
    /// Know that the host could not do what a drive was asked, and stand still if that is to be done about it. It comes from the drive.
    DriveFailed(DriveFailure),
    /// Plug the cable of the network card that people call that in or out.
    SetLink {
        /// What people call the card, or what is behind it.
        id: String,
        /// The cable leads somewhere.
        is_up: bool,
        /// It has been done, or there is no such card.
        reply: Reply<Result<(), LinkError>>,
    },
    /// What has been counted so far.
    Stats(Reply<Box<Stats>>),
    /// The state of the processor.
    Processor(Reply<Box<Processor>>),
    /// What is in memory; nothing where a page of it is not mapped.
    Memory(MemoryRange, Reply<Option<Vec<u8>>>),
    /// The physical address of a linear one, if it is mapped.
    Physical(u64, Reply<Option<u64>>),
    /// What is on the PCI bus.
    PciFunctions(Reply<Vec<PciFunction>>),
    /// What it is made of.
    Describe(Reply<Box<Description>>),
}

/// Where the answer to a request goes. Without one the request fails with [`Ended`].
#[derive(Debug)]
pub struct Reply<T>(SyncSender<T>);

impl<T> Reply<T> {
    /// Answers; nobody may be left who waits for it.
    pub fn answer(self, answer: T) {
        // There is room for the one answer.
        let _ = self.0.try_send(answer);
    }
}

/// A handle to a machine, for any thread.
#[derive(Debug, Clone)]
pub struct Control {
    sender: Sender,
}

impl Sender {
    /// A control handle to the same machine.
    pub fn control(&self) -> Control {
        Control { sender: self.clone() }
    }
}

impl Control {
    /// The way for inputs.
    pub fn sender(&self) -> &Sender {
        &self.sender
    }

    /// What the machine does.
    pub fn status(&self) -> Status {
        self.sender.status()
    }

    /// Stops the machine between two instructions; it stands still when this returns. Inputs still reach its
    /// devices, and the guest sees them when it goes on.
    pub fn pause(&self) -> Result<(), Ended> {
        self.ask(Request::Pause)
    }

    /// Lets the machine go on, unless it is off.
    pub fn resume(&self) -> Result<(), Ended> {
        self.ask(Request::Resume)
    }

    /// What the screen shows; nothing where there is no screen.
    pub fn picture(&self) -> Result<Option<Picture>, Ended> {
        self.ask(Request::Picture)
    }

    /// The drives.
    pub fn drives(&self) -> Result<Vec<DriveInfo>, Ended> {
        self.ask(Request::Drives)
    }

    /// Changes the medium of drive `unit` of the device `device`, which takes removable ones: `drive` is what does its work from now
    /// on, with or without a medium. If the guest holds the medium that is there, it is asked for it as by the eject button, and
    /// nothing is changed; with `force` it is not asked.
    pub fn change_medium(
        &self,
        device: &str,
        unit: u8,
        drive: Box<dyn Drive>,
        force: bool,
    ) -> Result<(), ChangeError> {
        let device = device.to_owned();
        let changed =
            self.ask(|reply| Request::ChangeMedium { device, unit, drive, force, reply })?;
        Ok(changed?)
    }

    /// Gives drive `unit` of the device `device` other limits.
    pub fn limit_drive(&self, device: &str, unit: u8, limits: Limits) -> Result<(), LimitError> {
        let device = device.to_owned();
        self.ask(|reply| Request::LimitDrive { device, unit, limits, reply })?
    }

    /// Gives the medium of drive `unit` of the device `device` another size, and tells the guest.
    pub fn resize_drive(&self, device: &str, unit: u8, bytes: u64) -> Result<(), ResizeError> {
        let device = device.to_owned();
        self.ask(|reply| Request::ResizeDrive { device, unit, bytes, reply })?
    }

    /// Puts a disk into a slot, and tells the guest.
    pub fn plug_disk(&self, new: NewDisk) -> Result<(), PlugError> {
        self.ask(|reply| Request::PlugDisk(Box::new(new), reply))?
    }

    /// Asks the guest for the card that people call `id`. When it has let go of it, [`Event::CardGone`] tells; a reset of the machine
    /// takes it out, too. It may be asked again, as a guest may not have listened yet.
    pub fn unplug(&self, id: &str) -> Result<(), UnplugError> {
        self.ask(|reply| Request::Unplug(id.to_owned(), reply))?
    }

    /// Plugs the cable of a network card in, or out. The guest hears of it where the card has a way to tell; packets of either direction
    /// are lost while it is out. `id` is what people call the card or what is behind it, or the name of its device.
    pub fn set_link(&self, id: &str, is_up: bool) -> Result<(), LinkError> {
        self.ask(|reply| Request::SetLink { id: id.to_owned(), is_up, reply })?
    }

    /// What has been counted so far.
    pub fn stats(&self) -> Result<Stats, Ended> {
        self.ask(Request::Stats).map(|stats| *stats)
    }

    /// The state of the processor.
    pub fn processor(&self) -> Result<Processor, Ended> {
        self.ask(Request::Processor).map(|processor| *processor)
    }

    /// What is in memory; nothing where a page of it is not mapped, or it is more than [`READ_MAX`](crate::inspect::READ_MAX).
    pub fn read_memory(&self, range: MemoryRange) -> Result<Option<Vec<u8>>, Ended> {
        self.ask(|reply| Request::Memory(range, reply))
    }

    /// The physical address of a linear one, if it is mapped.
    pub fn physical(&self, linear: u64) -> Result<Option<u64>, Ended> {
        self.ask(|reply| Request::Physical(linear, reply))
    }

    /// What is on the PCI bus.
    pub fn pci_functions(&self) -> Result<Vec<PciFunction>, Ended> {
        self.ask(Request::PciFunctions)
    }

    /// What the machine is made of.
    pub fn describe(&self) -> Result<Description, Ended> {
        self.ask(Request::Describe).map(|description| *description)
    }

    /// A key was pressed or released; waits while the keyboard has too much of it.
    pub fn key(&self, key: Key, pressed: bool) {
        self.send(KEYBOARD, DeviceInput::Key { key, pressed });
    }

    /// The mouse was moved or a button of it changed; waits while there is too much of it.
    pub fn mouse(&self, moved: MouseMove) {
        self.send(KEYBOARD, DeviceInput::Mouse(moved));
    }

    /// Presses the power button for a moment: most guests shut down then.
    pub fn press_power_button(&self) {
        self.send(POWER_MANAGEMENT, DeviceInput::PowerButton);
    }

    /// Presses the reset button. When this returns the machine was reset: one that was off can be resumed.
    pub fn reset(&self) {
        self.sender.send(Input::Reset);
        // What is asked after a reset is answered after it. A machine that has ended needs none.
        let _ = self.ask(Request::Nothing);
    }

    /// Presses the button of the non-maskable interrupt: many guests show then what they do, or stop.
    pub fn inject_nmi(&self) {
        self.sender.send(Input::Nmi);
    }

    /// Ends the run.
    pub fn quit(&self) {
        self.sender.send(Input::Quit);
    }

    /// The same because of a signal that has come to this process.
    pub fn quit_by_signal(&self) {
        self.sender.quit_by_signal();
    }

    /// A signal was a reason to end the run.
    pub fn was_signalled(&self) -> bool {
        self.sender.was_signalled()
    }

    /// All that happens from now on, until the machine ends.
    pub fn subscribe(&self) -> Events {
        let (subscriber, events) = mpsc::sync_channel(EVENTS_WAITING);
        self.sender.subscribe(Subscriber { events: subscriber, misses: Cell::new(false) });
        Events(events)
    }

    fn send(&self, device: &str, input: DeviceInput) {
        self.sender.send(Input::Device { name: device.to_owned(), input });
    }

    fn ask<T>(&self, request: impl FnOnce(Reply<T>) -> Request) -> Result<T, Ended> {
        let (reply, answer) = mpsc::sync_channel(1);
        self.sender.request(request(Reply(reply)));
        answer.recv().map_err(|_| Ended)
    }
}

/// What happens to a machine, one event after the other; it ends with the machine.
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
    /// It has missed an event, and that was told.
    misses: Cell<bool>,
}

impl Subscriber {
    /// Tells `event`; false when nobody listens any more.
    pub(crate) fn tell(&self, event: &Event) -> bool {
        match self.events.try_send(event.clone()) {
            Ok(()) => true,
            Err(TrySendError::Full(event)) => {
                // A guest can have events come thousands of times a second: one word is for all of them.
                if !self.misses.replace(true) {
                    warn!(
                        "a subscriber does not keep up with events and misses some: {event:?} first"
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
    fn a_machine_that_has_ended_answers_nothing() {
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
    fn events_that_nobody_reads_do_not_pile_up() {
        let (sender, mut door) = door();
        let events = sender.control().subscribe();
        for _ in 0..=EVENTS_WAITING {
            door.tell(&Event::PowerButton);
        }
        door.end(&Event::Ended(Ending::Quit));
        assert_eq!(events.count(), EVENTS_WAITING);
    }

    #[test]
    fn host_time_stands_still_while_paused() {
        let (_sender, mut door) = door();
        door.pause();
        let time = door.host_time();
        std::thread::sleep(std::time::Duration::from_millis(2));
        assert_eq!(door.host_time(), time);
        door.resume();
        assert!(door.host_time() >= time);
    }
}
