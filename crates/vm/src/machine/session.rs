//! The part of every run that deals with the world outside, in a normal and in a deterministic run.

use std::path::PathBuf;
use std::sync::Arc;

use ring3_core::clock::Time;
use ring3_core::device::GuestFailure;
use ring3_core::disk::{DiskError, DriveId, Medium};
use ring3_core::input::{DeviceInput, Input};
use tracing::{debug, trace, warn};

use crate::config::OnPanic;
use crate::control::{
    DriveInfo, Event, KeepError, Keeper, LinkError, MediumHeld, Moment, Request, Status,
};
use crate::debug::Stop;
use crate::door::Door;
use crate::drives::{Action, Drive, DriveFailure, LimitError, Limits, ResizeError};
use crate::machine::flight::{KeepLastError, KeptLast, Occasion};
use crate::machine::{Console, Ending, Vm, VmError};
use crate::pace::Slack;
use crate::stats::Stats;

/// What a run remembers from one slice to the next.
#[derive(Debug, Default)]
pub(super) struct Session {
    pub(super) slack: Slack,
    /// The number of resets at which it was reported that the guest is stuck.
    pub(super) told_stuck: Option<u64>,
    /// Whether the reset button was pressed since the last slice.
    reset_pressed: bool,
}

impl Session {
    /// Notes that `input` has come through the door, and tells the subscribers.
    pub(super) fn note(&mut self, door: &mut Door, input: &Input) {
        self.slack.input();
        match input {
            Input::Reset => self.reset_pressed = true,
            Input::Device { input: DeviceInput::PowerButton, .. } => door.tell(&Event::PowerButton),
            _ => {}
        }
    }
}

impl Vm {
    /// Runs the machine until it ends. Inputs and requests come by `door`, which is of no use afterwards;
    /// outputs go to `console`.
    pub fn run(&mut self, door: &mut Door, console: &mut dyn Console) -> Result<Ending, VmError> {
        let ended = if self.config.deterministic {
            self.run_deterministically(door, console)
        } else {
            self.drives.answer_at(door.sender());
            self.run_paced(door, console)
        };
        if let Ok(Ending::Stopped(_) | Ending::Stuck(_) | Ending::For64Bits) = &ended {
            self.write_last_for(&Occasion::Stopped);
        }
        if !self.config.deterministic {
            self.wait_for_drives(door);
        }
        let ended = ended.and_then(|ending| {
            self.finish(&ending, console)?;
            Ok(ending)
        });
        self.end_session(door, ended, |ending| Event::Ended(ending.clone()))
    }

    /// Returns how late, in nanoseconds, the guest that waits for a timer at `next_timer` may wake up.
    pub(super) fn slack(&mut self, session: &mut Session, next_timer: Option<Time>) -> u64 {
        let now = self.now();
        let timer_nanos = next_timer.map(|at| at.nanos_since(now));
        session.slack.sleep(self.cpu.instructions, self.cpu.take_users(), timer_nanos)
    }

    /// Waits for all answers of drives, so that they are part of a saved state.
    fn wait_for_drives(&mut self, door: &mut Door) {
        self.drives.hurry();
        while self.drives.are_waiting() {
            let answer = door.wait_for(|input| {
                matches!(input, Input::Device { input: DeviceInput::Disk(_), .. })
            });
            self.take_input(answer);
        }
        self.drives.answer_at_once();
    }

    /// Ends the run as `ended` says: tells everyone at the door, by an `event` if nothing failed.
    pub(super) fn end_session<T>(
        &mut self,
        door: &mut Door,
        ended: Result<T, VmError>,
        event: impl FnOnce(&T) -> Event,
    ) -> Result<T, VmError> {
        self.stats.host_time = door.host_time();
        door.end(&match &ended {
            Ok(came) => event(came),
            Err(error) => Event::Failed(error.to_string()),
        });
        ended
    }

    /// Hands out the outputs of a slice, and tells the subscribers of events. Returns how the run ends, if it
    /// does.
    pub(super) fn finish_slice(
        &mut self,
        session: &mut Session,
        door: &mut Door,
        console: &mut dyn Console,
    ) -> Result<Option<Ending>, VmError> {
        let resets = self.stats.resets;
        if self.has_faulted() {
            self.write_last_for(&Occasion::TripleFault);
        }
        let ended = self.hand_out(console)?;
        self.stop_for_debugger(door);
        self.tell_of_cards(door);
        if door.is_off() && !self.is_off {
            door.switch_on();
        }
        let reset_pressed = std::mem::take(&mut session.reset_pressed);
        if self.stats.resets != resets {
            door.tell(&Event::Reset { by_guest: !reset_pressed });
        }
        if ended.is_none() && self.is_off && !door.is_off() {
            door.switch_off();
        }
        self.tell_of_balloon(door);
        self.tell_of_extra_memory(door);
        self.tell_of_failure(door);
        Ok(ended)
    }

    /// Tells the subscribers that the guest's system has failed, if it has said so, and pauses where
    /// [`Config::on_panic`](crate::Config::on_panic) says so.
    fn tell_of_failure(&mut self, door: &mut Door) {
        let Some(failure) = self.failure.take() else { return };
        self.write_last_for(&Occasion::Panic);
        let action = match failure {
            GuestFailure::Panic => self.config.on_panic.unwrap_or(OnPanic::Continue),
            GuestFailure::CrashLoaded => OnPanic::Continue,
        };
        let event = Event::GuestFailed(failure, action);
        if action == OnPanic::Pause && !door.is_off() {
            door.stop_at(&event, Status::Panicked);
        } else {
            door.tell(&event);
        }
    }

    /// Sleeps until host time `until`, if it is given, or until there is an input, a drive's answer or a
    /// request. Returns how long it slept, in nanoseconds.
    pub(super) fn sleep(&mut self, door: &mut Door, until: Option<Time>) -> u64 {
        let slept_from = door.host_time();
        trace!(instructions = self.cpu.instructions, ?until, "idle");
        self.stats.sleeps += 1;
        door.wait_with(until, &self.drives, |input| self.accepts(input));
        let slept = door.host_time().nanos_since(slept_from);
        self.stats.asleep_nanos += slept;
        slept
    }

    /// Sleeps until there is an input, a drive's answer or a request.
    pub(super) fn stand_still(&self, door: &mut Door) {
        if self.takes_inputs() {
            door.wait_with(None, &self.drives, |input| self.accepts(input));
        } else {
            door.wait(None, |input| self.accepts(input));
        }
    }

    /// Returns whether `input` can be taken now.
    pub(super) fn accepts(&self, input: &Input) -> bool {
        match input {
            Input::Quit => true,
            _ if !self.takes_inputs() => false,
            Input::Device { device, .. } => self.board.takes_input(*device),
            Input::HostTime { .. } | Input::Plug { .. } | Input::Reset | Input::Nmi => true,
            // They come only where the guest, or the machine itself, has asked for them.
            Input::HostClocks(_) | Input::Checkpoint => false,
        }
    }

    /// Answers the requests to the machine, which do not change the guest. Returns whether another machine has
    /// taken the place of this one.
    pub(super) fn answer_requests(&mut self, door: &mut Door) -> bool {
        let mut is_other = false;
        for request in door.take_requests() {
            if self.is_replayed() && request.is_change() {
                // Whoever has sent it learns that nothing has come of it.
                debug!("a run that is repeated cannot be changed");
                continue;
            }
            match request {
                Request::Pause(reply) => {
                    door.pause();
                    self.debugging.tell(Stop::Paused);
                    reply.answer(());
                }
                Request::Resume(reply) => {
                    door.resume();
                    if !door.is_paused() {
                        self.drives.do_again();
                    }
                    reply.answer(());
                }
                Request::Nothing(reply) => reply.answer(()),
                Request::Picture(reply) => reply.answer(self.picture()),
                Request::ChangeMedium { at, drive, force, reply } => {
                    reply.answer(self.change_medium(at, drive, force));
                }
                Request::LimitDrive { drive, limits, reply } => {
                    reply.answer(self.limit_drive(drive, limits));
                }
                Request::ResizeDrive { drive, bytes, reply } => {
                    reply.answer(self.resize_drive(drive, bytes));
                }
                Request::DriveResized(drive) => self.note_size(drive),
                Request::PlugDisk(new, reply) => reply.answer(self.plug_disk(*new)),
                Request::PlaceFor { kind, id, slot, reply } => {
                    reply.answer(self.place_for(kind, id.as_deref(), slot));
                }
                Request::PlugNic(new, reply) => reply.answer(self.plug_nic(*new)),
                Request::PlugSerial(new, reply) => reply.answer(self.plug_serial(new)),
                Request::Unplug(id, reply) => reply.answer(self.ask_for_card(&id)),
                Request::SetLink { id, is_up, reply } => reply.answer(self.set_link(&id, is_up)),
                Request::ExtraMemory(bytes, reply) => reply.answer(self.request_memory(bytes)),
                Request::Balloon(request, reply) => reply.answer(self.ask_balloon(request)),
                Request::DriveFailed(failure) => self.note_failure(door, failure),
                Request::Drives(reply) => reply.answer(self.describe_drives()),
                Request::Processor(reply) => reply.answer(Box::new(self.processor())),
                Request::Memory(range, reply) => reply.answer(self.peek(range)),
                Request::Physical(linear, reply) => reply.answer(self.physical(linear)),
                Request::Registers(reply) => reply.answer(Box::new(self.registers())),
                Request::SetRegisters(registers, reply) => {
                    reply.answer(self.set_registers(&registers));
                }
                Request::WriteMemory(range, bytes, reply) => {
                    reply.answer(self.poke(range, &bytes));
                }
                Request::Debug(run, waiter, reply) => {
                    self.debug(door, run, waiter);
                    reply.answer(());
                }
                Request::EndDebugging(reply) => {
                    self.end_debugging();
                    reply.answer(());
                }
                Request::GoesBack(reply) => reply.answer(self.goes_back()),
                Request::PciFunctions(reply) => reply.answer(self.pci_functions()),
                Request::Describe(reply) => reply.answer(Box::new(self.describe())),
                Request::Tap(tap, reply) => {
                    self.taps.add(tap);
                    reply.answer(());
                }
                Request::AreDrivesIdle(reply) => reply.answer(self.are_drives_idle()),
                Request::KeepLast(file, reply) => reply.answer(self.keep_last_now(file)),
                Request::Visit(visitor) => (visitor.0)(self, door),
                Request::Keep(keeper, reply) => reply.answer(self.keep(door, keeper)),
                Request::Load(loader, reply) => {
                    let loaded = self.load(door, loader);
                    is_other |= loaded == Ok(true);
                    reply.answer(loaded.map(drop));
                }
                Request::Stats(reply) => {
                    let stats = Stats { host_time: door.host_time(), ..self.stats() };
                    reply.answer(Box::new(stats));
                }
            }
        }
        is_other
    }

    /// Describes the drives.
    pub(crate) fn describe_drives(&self) -> Vec<DriveInfo> {
        let mut drives = self.drives.describe(&self.config);
        for drive in &mut drives {
            drive.locked = self.board.holds_medium(drive.drive);
            let card = self.ids.get(&drive.drive.device).cloned();
            drive.id = card.or_else(|| drive.names.device.clone());
        }
        drives
    }

    /// Passes this moment to `keeper`.
    fn keep(&mut self, door: &Door, keeper: Keeper) -> Result<(), KeepError> {
        door.check_is_here()?;
        if self.drives.are_waiting() {
            return Err(KeepError::DrivesAreBusy);
        }
        let drives = self.drives();
        let machine = self.save_without_contents();
        keeper.0(Moment { machine, memory: &self.memory, drives });
        Ok(())
    }

    /// Writes the last seconds of the run, for somebody outside.
    fn keep_last_now(&mut self, file: Option<PathBuf>) -> Result<KeptLast, KeepLastError> {
        let kept = self.write_last(&Occasion::Asked(file))?;
        kept.ok_or(KeepLastError::NotKept)
    }

    /// Handles an operation that the host could not execute: tells the subscribers, and pauses if the
    /// policy says so.
    fn note_failure(&mut self, door: &mut Door, failure: DriveFailure) {
        let stops = failure.action == Action::Stop;
        let stopped = if stops { self.drives.stop(&failure) } else { None };
        let is_full = failure.error == DiskError::NoSpace;
        let was_paused = door.is_paused();
        if self.drives.tells(&failure) {
            door.tell(&Event::DriveFailed(failure));
        }
        let Some(file) = stopped else { return };
        door.stop(Status::Stopped);
        if !was_paused {
            let file = file.display();
            let why =
                if is_full { "the host has no space left for" } else { "the host cannot access" };
            let hint = if is_full { "free some space" } else { "repair this" };
            warn!("{why} {file}: the machine is paused; {hint}, and it continues where it stopped");
        }
    }

    /// Plugs in, or unplugs, the cable of a network card.
    fn set_link(&mut self, id: &str, is_up: bool) -> Result<(), LinkError> {
        let found = self.config.cards().find(|(card, _)| self.is_called(*card, id));
        let (device, _) = found.ok_or(LinkError::NoCard)?;
        // An input of a device never ends the run.
        self.take_input(Input::Device { device, input: DeviceInput::Link(is_up) });
        Ok(())
    }

    /// Sets the limits of a drive.
    fn limit_drive(&mut self, drive: DriveId, limits: Limits) -> Result<(), LimitError> {
        self.check_limits(&limits)?;
        self.drives.limit(drive, limits)
    }

    /// Changes the size of a drive's medium.
    fn resize_drive(&mut self, drive: DriveId, bytes: u64) -> Result<(), ResizeError> {
        self.note_new_medium(drive);
        let medium = self.drives.resize(drive, bytes)?;
        self.tell_size(drive, medium);
        Ok(())
    }

    /// Notes that others have changed the size of a drive's medium.
    fn note_size(&mut self, drive: DriveId) {
        self.note_new_medium(drive);
        let medium = self.drives.resized(drive);
        if medium.is_some() {
            self.tell_size(drive, medium);
        }
    }

    fn tell_size(&mut self, drive: DriveId, medium: Option<Medium>) {
        let DriveId { device, unit } = drive;
        let input = DeviceInput::Medium { unit, medium };
        // An input of a device never ends the run.
        self.take_input(Input::Device { device, input });
    }

    /// Changes the medium of a drive. One that the guest holds is changed only by `force`; otherwise the
    /// guest is asked for it.
    fn change_medium(
        &mut self,
        at: DriveId,
        drive: Box<dyn Drive>,
        force: bool,
    ) -> Result<(), MediumHeld> {
        let DriveId { device, unit } = at;
        let held = !force && self.board.holds_medium(at);
        let input = if held {
            DeviceInput::EjectRequest { unit }
        } else {
            let medium = drive.medium();
            self.note_new_medium(at);
            self.drives.replace(at, Arc::from(drive));
            DeviceInput::Medium { unit, medium }
        };
        // An input of a device never ends the run.
        self.take_input(Input::Device { device, input });
        if held { Err(MediumHeld) } else { Ok(()) }
    }
}
