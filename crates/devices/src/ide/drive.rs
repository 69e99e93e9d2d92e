//! A drive on the cable: its interface and the commands that it knows.

use ring3_core::disk::{DiskError, DiskOperation, Medium};
use serde::{Deserialize, Serialize};

use super::ata::{Disk, DiskState};
use super::atapi::{CdRom, CdRomState};
use super::interface::{DEVICE_DEV, Interface, Phase};
use super::{DriveKind, DriveModel};

/// DEVICE RESET, the one command that a packet device takes while it is busy.
const DEVICE_RESET: u8 = 0x08;

/// What a kind of drive does with commands. Each call leaves the interface in the phase that follows.
pub(super) trait CommandSet {
    /// The host has written the command register.
    fn command(&mut self, interface: &mut Interface, command: u8);

    /// A block went through the data register, or all of the buffer by DMA.
    fn moved(&mut self, interface: &mut Interface);

    /// The medium has answered.
    fn answered(&mut self, interface: &mut Interface, result: Result<Vec<u8>, DiskError>);

    /// A software reset or DEVICE RESET has stopped what was going on.
    fn reset(&mut self);
}

/// What kind of drive it is.
#[derive(Debug)]
enum Kind {
    Disk(Disk),
    CdRom(CdRom),
}

/// A drive.
#[derive(Debug)]
pub(super) struct Drive {
    interface: Interface,
    kind: Kind,
    /// The tag of the request whose answer it waits for.
    waiting: Option<u64>,
}

/// A drive as it is saved.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct DriveState {
    interface: Interface,
    kind: KindState,
    waiting: Option<u64>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
enum KindState {
    Disk(DiskState),
    CdRom(CdRomState),
}

impl Drive {
    /// A drive after power-on; `second` for device 1 of its cable.
    pub(super) fn new(model: &DriveModel, second: bool) -> Drive {
        let kind = match model.kind {
            DriveKind::Disk(medium) => Kind::Disk(Disk::new(model, medium, second)),
            DriveKind::CdRom(medium) => Kind::CdRom(CdRom::new(model, medium, second)),
        };
        let interface = Interface::after_reset(matches!(kind, Kind::CdRom(_)));
        Drive { interface, kind, waiting: None }
    }

    /// Power goes off and on: all but the medium in the drive is as in the beginning.
    pub(super) fn power_on(&mut self) {
        match &mut self.kind {
            Kind::Disk(disk) => disk.power_on(),
            Kind::CdRom(drive) => drive.power_on(),
        }
        self.stop();
    }

    /// A software reset (ATA-6, 9.2).
    pub(super) fn reset(&mut self) {
        self.commands().0.reset();
        self.stop();
    }

    /// EXECUTE DEVICE DIAGNOSTIC: a reset that may end with an interrupt.
    pub(super) fn diagnose(&mut self, interrupt: bool) {
        self.reset();
        self.interface.interrupt = interrupt;
    }

    /// Drops what is going on. An answer that is still to come is for nobody.
    fn stop(&mut self) {
        self.interface = Interface::after_reset(self.is_packet_device());
        self.waiting = None;
    }

    fn is_packet_device(&self) -> bool {
        matches!(self.kind, Kind::CdRom(_))
    }

    fn commands(&mut self) -> (&mut dyn CommandSet, &mut Interface) {
        let commands: &mut dyn CommandSet = match &mut self.kind {
            Kind::Disk(disk) => disk,
            Kind::CdRom(drive) => drive,
        };
        (commands, &mut self.interface)
    }

    pub(super) fn interface(&mut self) -> &mut Interface {
        &mut self.interface
    }

    pub(super) fn status(&self) -> u8 {
        self.interface.status()
    }

    pub(super) fn interrupt(&self) -> bool {
        self.interface.interrupt
    }

    /// False while the device has its registers for itself.
    pub(super) fn takes_registers(&self) -> bool {
        self.interface.phase() == Phase::Ready
    }

    /// The host writes the command register of the selected drive, other than EXECUTE DEVICE DIAGNOSTIC.
    pub(super) fn command(&mut self, command: u8) {
        if command == DEVICE_RESET && self.is_packet_device() {
            let selected = self.interface.registers.device & DEVICE_DEV;
            self.reset();
            self.interface.registers.device = selected;
        } else if self.takes_registers() {
            self.interface.begin_command();
            let (commands, interface) = self.commands();
            commands.command(interface, command);
        }
    }

    /// A block has gone to or from the host.
    pub(super) fn moved(&mut self) {
        let (commands, interface) = self.commands();
        commands.moved(interface);
    }

    /// What it now asks its medium; `tag` is for that.
    pub(super) fn take_request(&mut self, tag: u64) -> Option<DiskOperation> {
        let request = self.interface.take_request()?;
        self.waiting = Some(tag);
        Some(request)
    }

    /// True when this drive waits for the answer to request `tag`.
    pub(super) fn awaits(&self, tag: u64) -> bool {
        self.waiting == Some(tag)
    }

    /// The request that this drive waits for has been answered.
    pub(super) fn answered(&mut self, result: Result<Vec<u8>, DiskError>) {
        self.waiting = None;
        let (commands, interface) = self.commands();
        commands.answered(interface, result);
    }

    /// A person has changed the medium; disks have theirs for good.
    pub(super) fn change_medium(&mut self, medium: Option<Medium>) {
        if let Kind::CdRom(drive) = &mut self.kind {
            drive.change_medium(medium);
        }
    }

    /// A person asks for the medium that software holds.
    pub(super) fn request_eject(&mut self) {
        if let Kind::CdRom(drive) = &mut self.kind {
            drive.request_eject();
        }
    }

    /// Software forbids the removal of the medium.
    pub(super) fn holds_medium(&self) -> bool {
        matches!(&self.kind, Kind::CdRom(drive) if drive.holds_medium())
    }

    pub(super) fn save(&self) -> DriveState {
        let kind = match &self.kind {
            Kind::Disk(disk) => KindState::Disk(disk.state.clone()),
            Kind::CdRom(drive) => KindState::CdRom(drive.state.clone()),
        };
        DriveState { interface: self.interface.clone(), kind, waiting: self.waiting }
    }

    /// True when `state` is one that such a drive can have.
    pub(super) fn fits(&self, state: &DriveState) -> bool {
        let phase = state.interface.phase();
        let busy = !matches!(phase, Phase::Ready);
        let kind_fits = match (&self.kind, &state.kind) {
            (Kind::Disk(disk), KindState::Disk(state)) => disk.fits(state, busy),
            (Kind::CdRom(_), KindState::CdRom(state)) => state.is_possible(busy),
            _ => false,
        };
        kind_fits
            && state.interface.is_possible()
            && state.waiting.is_some() == (phase == Phase::Waiting)
    }

    /// Takes over a state that fits.
    pub(super) fn restore(&mut self, state: DriveState) {
        self.interface = state.interface;
        self.waiting = state.waiting;
        match (&mut self.kind, state.kind) {
            (Kind::Disk(disk), KindState::Disk(state)) => disk.state = state,
            (Kind::CdRom(drive), KindState::CdRom(state)) => drive.state = state,
            _ => unreachable!("the caller has asked whether it fits"),
        }
    }
}

/// The power management commands (ATA-6, 6.9).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Power {
    Active,
    Idle,
    Standby,
    /// Nothing but a reset is heard.
    Sleep,
}

impl Power {
    /// Executes `command`. False when it is none of these commands.
    pub(super) fn command(&mut self, interface: &mut Interface, command: u8) -> bool {
        match command {
            0x94 | 0x96 | 0xe0 | 0xe2 => *self = Power::Standby,
            0x95 | 0x97 | 0xe1 | 0xe3 => *self = Power::Idle,
            0x98 | 0xe5 => {
                interface.registers.count.current = match self {
                    Power::Active => 0xff,
                    Power::Idle => 0x80,
                    Power::Standby | Power::Sleep => 0x00,
                };
            }
            0x99 | 0xe6 => *self = Power::Sleep,
            _ => return false,
        }
        interface.finish(true);
        true
    }
}
