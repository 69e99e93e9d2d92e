//! A machine that runs goes on as one that was saved: another [`Vm`] takes its place, behind the same door and
//! on the same networks.

use std::fmt;
use std::mem;
use std::sync::Arc;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use ring3_core::channel::{ChannelEvent, ChannelStatus};
use ring3_core::device::{DeviceId, Output};
use ring3_core::input::{DeviceInput, Input};
use thiserror::Error;

use crate::control::{Control, DRIVES_MAX, DriveInfo, Ended, NotHere, Request};
use crate::door::Door;
use crate::drives::Drive;
use crate::engines::{EngineChoice, EngineIn};
use crate::machine::{SavedMachine, Vm};

/// The reasons why no other machine takes the place of the one that runs, which goes on then.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum LoadError {
    /// The machine has ended.
    #[error(transparent)]
    Ended(#[from] Ended),
    /// The machine that runs is not whole.
    #[error(transparent)]
    NotHere(#[from] NotHere),
    /// Drives have not answered all requests.
    #[error(
        "the drives have not finished their work: try it again, or see what is wrong with them"
    )]
    DrivesAreBusy,
    /// The run is recorded, logged or verified.
    #[error(
        "the run is recorded, logged or verified, and could not be repeated if another machine were loaded on the way"
    )]
    Logged,
    /// One of the machines is deterministic, and the other is not.
    #[error("of the saved machine and the one that runs, only one is deterministic")]
    Deterministic,
    /// The saved machine has other cards.
    #[error("the saved machine has other network cards or serial cards than the one that runs")]
    Cards,
    /// The saved machine has another number of serial ports.
    #[error("the saved machine has {saved} serial ports, and the one that runs has {running}")]
    SerialPorts {
        /// The number that the saved machine has.
        saved: u8,
        /// The number that the running machine has.
        running: u8,
    },
}

/// The machine that runs, between two instructions, when another one is to take its place.
#[derive(Debug)]
pub struct Running<'a> {
    vm: &'a Vm,
    /// The drives, and what does the work of each, which nobody uses now.
    pub drives: Vec<(DriveInfo, Arc<dyn Drive>)>,
}

impl Running<'_> {
    /// Checks that `saved` can take the place of this machine: who is connected to it stays connected.
    pub fn check(&self, saved: &SavedMachine) -> Result<(), LoadError> {
        let (old, new) = (&self.vm.config, saved.config());
        if old.deterministic != new.deterministic {
            return Err(LoadError::Deterministic);
        }
        if old.serial_ports != new.serial_ports {
            let (saved, running) = (new.serial_ports, old.serial_ports);
            return Err(LoadError::SerialPorts { saved, running });
        }
        let addresses = |(device, nic): (DeviceId, &crate::Nic)| (device, nic.mac);
        let has_same_lines = old.serial_cards == new.serial_cards;
        if !has_same_lines || !old.cards().map(addresses).eq(new.cards().map(addresses)) {
            return Err(LoadError::Cards);
        }
        Ok(())
    }

    /// Returns the engine of this machine.
    pub fn engine(&self) -> EngineIn {
        let choice = match self.vm.engine() {
            "interpreter" => EngineChoice::Interpreter,
            _ => EngineChoice::Translator,
        };
        EngineIn { choice, directory: self.vm.memory_directory() }
    }
}

/// A function that makes the machine that takes the place of the one that runs.
pub struct Loader(Box<dyn FnOnce(Running<'_>) -> Option<Vm> + Send>);

impl fmt::Debug for Loader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Loader").finish_non_exhaustive()
    }
}

impl Control {
    /// Lets the machine that `make` returns take the place of the one that runs, which stands still meanwhile.
    /// If `make` fails, the present one goes on. A machine that was paused or off is paused afterwards. While
    /// drives work, this waits for up to [`DRIVES_MAX`].
    pub fn load<E: From<LoadError> + Send + 'static>(
        &self,
        make: impl FnOnce(Running<'_>) -> Result<Vm, E> + Send + 'static,
    ) -> Result<(), E> {
        self.hold().map_err(LoadError::Ended)?;
        let loaded = self.load_in_pause(make);
        self.release().map_err(LoadError::Ended)?;
        loaded
    }

    fn load_in_pause<E: From<LoadError> + Send + 'static>(
        &self,
        make: impl FnOnce(Running<'_>) -> Result<Vm, E> + Send + 'static,
    ) -> Result<(), E> {
        let until = Instant::now() + DRIVES_MAX;
        // The answers of drives are taken by a paused machine, too.
        while !self.ask(Request::AreDrivesIdle).map_err(LoadError::Ended)? {
            if Instant::now() > until {
                return Err(LoadError::DrivesAreBusy.into());
            }
            thread::sleep(Duration::from_millis(1));
        }
        let (sender, failed) = mpsc::sync_channel(1);
        let make = move |running: Running<'_>| {
            // There is room for the only error.
            make(running).map_err(|error| sender.try_send(error)).ok()
        };
        let asked = self.ask(|reply| Request::Load(Loader(Box::new(make)), reply));
        asked.map_err(LoadError::Ended)??;
        failed.try_recv().map_or(Ok(()), Err)
    }
}

impl Vm {
    /// Tells the guest's ends of the channels, which were saved elsewhere, of the clients that there are now, and the
    /// clients that what they have sent to the ends `before` waits no more.
    fn meet_clients(&mut self, before: &[ChannelStatus]) {
        for (channel, (now, before)) in (0..).zip(self.channels().iter().zip(before)) {
            let mut events = vec![ChannelEvent::Taken(now.sent), ChannelEvent::Closed];
            if before.is_connected {
                events.push(ChannelEvent::Opened);
            }
            for event in events {
                let input = DeviceInput::Channel { channel, event };
                self.take_input(Input::Device { device: DeviceId::CHANNELS, input });
            }
            let event = ChannelEvent::Taken(before.waiting as u32);
            self.board.put_out(Output::Channel { channel, event });
        }
    }

    /// Lets the machine that `loader` makes take the place of this one. Returns whether it does.
    pub(super) fn load(&mut self, door: &mut Door, loader: Loader) -> Result<bool, LoadError> {
        door.check_is_here()?;
        if self.is_logged() || self.system_calls.is_some() {
            return Err(LoadError::Logged);
        }
        if self.drives.are_waiting() {
            return Err(LoadError::DrivesAreBusy);
        }
        let drives = self.drives();
        let Some(mut new) = loader.0(Running { vm: self, drives }) else { return Ok(false) };
        new.config.reboots = self.config.reboots;
        new.config.stays_when_off = self.config.stays_when_off;
        new.config.ends_when_stuck = self.config.ends_when_stuck;
        new.networks = mem::take(&mut self.networks);
        new.serial_lines = mem::take(&mut self.serial_lines);
        new.taps = mem::take(&mut self.taps);
        let stays = |card: &DeviceId| {
            let are_there = DeviceId::NIC.iter().chain(&DeviceId::PCI_SERIAL);
            are_there.chain(&[DeviceId::BALLOON, DeviceId::EXTRA_MEMORY]).any(|other| other == card)
        };
        let ids = self.ids.iter().filter(|(card, _)| stays(card));
        new.ids.extend(ids.map(|(card, id)| (*card, id.clone())));
        new.drives.inherit(&self.drives);
        if !new.config.deterministic {
            new.drives.answer_at(door.sender());
        }
        let cards: Vec<_> = new.config.cards().map(|(device, _)| device).collect();
        let channels = self.channels();
        new.profile = self.profile.take();
        new.be_frugal_as(self);
        (new.cpu_limit, new.cpu_rests) = (self.cpu_limit, self.cpu_rests);
        new.take_debugger_of(self);
        *self = new;
        let now = self.now();
        if let Some(profile) = &mut self.profile {
            profile.restart(now);
        }
        for device in cards {
            // The congestion in which the machine may have been saved is over, and nobody will say so.
            let input = DeviceInput::Congestion(false);
            self.take_input(Input::Device { device, input });
        }
        self.meet_clients(&channels);
        door.go_back_to(self.now());
        Ok(true)
    }
}
