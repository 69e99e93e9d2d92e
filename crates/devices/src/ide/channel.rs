//! One cable: two drives, the registers by which the host sees them, and the bus master's half of it.

use ring3_core::device::{Context, Width};
use ring3_core::disk::DiskRequest;
use serde::{Deserialize, Serialize};

use super::DriveModel;
use super::bus_master::{BusMaster, Direction};
use super::drive::{Drive, DriveState};
use super::interface::{DEVICE_DEV, Phase, status};

/// EXECUTE DEVICE DIAGNOSTIC, the one command that both drives execute.
const EXECUTE_DEVICE_DIAGNOSTIC: u8 = 0x90;

/// The data register, which alone is wider than a byte.
pub(super) const DATA: u16 = 0;
const ERROR: u16 = 1;
/// The device register.
const DEVICE: u16 = 6;
/// Status when read, command when written.
const STATUS: u16 = 7;

// Device control register (ATA-6, 7.8).
const CONTROL_DISABLE_INTERRUPT: u8 = 1 << 1;
const CONTROL_RESET: u8 = 1 << 2;
/// The registers read as they were before the last write.
const CONTROL_HOB: u8 = 1 << 7;

/// One channel.
#[derive(Debug)]
pub(super) struct Channel {
    /// Its IRQ line.
    irq: u8,
    /// The unit number of its device 0; device 1 has the next.
    first_unit: u8,
    drives: [Option<Drive>; 2],
    lines: Lines,
    master: BusMaster,
}

/// What belongs to the cable and not to a drive.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Lines {
    /// Device 1 is selected.
    second: bool,
    /// The device control register.
    control: u8,
    /// The level of the interrupt line.
    interrupt: bool,
}

/// A channel as it is saved.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct ChannelState {
    drives: [Option<DriveState>; 2],
    lines: Lines,
    master: BusMaster,
}

impl Channel {
    pub(super) fn new(irq: u8, first_unit: u8, models: [Option<&DriveModel>; 2]) -> Channel {
        let [first, second] = models;
        let drives = [
            first.map(|model| Drive::new(model, false)),
            second.map(|model| Drive::new(model, true)),
        ];
        let (lines, master) = (Lines::default(), BusMaster::default());
        Channel { irq, first_unit, drives, lines, master }
    }

    /// Power goes off and on.
    pub(super) fn power_on(&mut self) {
        self.drives.iter_mut().flatten().for_each(Drive::power_on);
        (self.lines, self.master) = (Lines::default(), BusMaster::default());
    }

    fn selected(&mut self) -> Option<&mut Drive> {
        self.drives[usize::from(self.lines.second)].as_mut()
    }

    fn is_resetting(&self) -> bool {
        self.lines.control & CONTROL_RESET != 0
    }

    /// The host reads the data register.
    pub(super) fn read_data(&mut self, width: Width) -> u32 {
        let Some(drive) = self.selected() else { return 0 };
        let (value, complete) = drive.interface().read_data(width);
        if complete {
            drive.moved();
        }
        value
    }

    /// The host writes the data register.
    pub(super) fn write_data(&mut self, width: Width, value: u32) {
        let Some(drive) = self.selected() else { return };
        if drive.interface().write_data(width, value) {
            drive.moved();
        }
    }

    /// The host reads the data register again and again: how many accesses are done, into `bytes`, that change nothing but the place in the data.
    pub(super) fn read_data_string(&mut self, width: Width, bytes: &mut [u8]) -> usize {
        self.selected().map_or(0, |drive| drive.interface().read_string(width, bytes))
    }

    /// The host writes `bytes` there in the same way.
    pub(super) fn write_data_string(&mut self, width: Width, bytes: &[u8]) -> usize {
        self.selected().map_or(0, |drive| drive.interface().write_string(width, bytes))
    }

    /// The host reads command block register `register`. Where no drive is, everything reads 0: as
    /// an ATAPI device 0 alone answers for device 1, and on an empty cable so that nobody waits for a
    /// drive that seems busy.
    pub(super) fn read(&mut self, register: u16) -> u8 {
        let resetting = self.is_resetting();
        let hob = self.lines.control & CONTROL_HOB != 0;
        let Some(drive) = self.selected() else { return 0 };
        match register {
            DATA => self.read_data(Width::Byte) as u8,
            ERROR => drive.interface().error,
            STATUS => {
                if resetting {
                    return status::BSY;
                }
                drive.interface().interrupt = false;
                drive.status()
            }
            _ => drive.interface().registers.read(register, hob),
        }
    }

    /// The host reads the alternate status register, which leaves the interrupt alone.
    pub(super) fn alternate_status(&mut self) -> u8 {
        let resetting = self.is_resetting();
        match self.selected() {
            Some(_) if resetting => status::BSY,
            Some(drive) => drive.status(),
            None => 0,
        }
    }

    /// The host writes command block register `register`. Both drives hear it; while the selected one works on a command,
    /// nobody does, but for DEVICE RESET.
    pub(super) fn write(&mut self, register: u16, value: u8) {
        if register == DATA {
            return self.write_data(Width::Byte, value.into());
        }
        self.lines.control &= !CONTROL_HOB;
        if self.is_resetting() {
            return;
        }
        let takes_registers = self.selected().is_none_or(|drive| drive.takes_registers());
        match register {
            STATUS if value == EXECUTE_DEVICE_DIAGNOSTIC && takes_registers => self.diagnose(),
            STATUS => {
                if let Some(drive) = self.selected() {
                    drive.command(value);
                }
            }
            _ if takes_registers => {
                for drive in self.drives.iter_mut().flatten() {
                    drive.interface().registers.write(register, value);
                }
                if register == DEVICE {
                    self.lines.second = value & DEVICE_DEV != 0;
                }
            }
            _ => {}
        }
    }

    /// The host writes the device control register.
    pub(super) fn write_control(&mut self, value: u8) {
        let before = self.lines.control;
        self.lines.control = value & (CONTROL_DISABLE_INTERRUPT | CONTROL_RESET | CONTROL_HOB);
        if value & !before & CONTROL_RESET != 0 {
            self.drives.iter_mut().flatten().for_each(Drive::reset);
            self.lines.second = false;
        }
    }

    /// Device 0 is selected afterwards and interrupts for both.
    fn diagnose(&mut self) {
        for (drive, interrupt) in self.drives.iter_mut().zip([true, false]) {
            if let Some(drive) = drive {
                drive.diagnose(interrupt);
            }
        }
        self.lines.second = false;
    }

    /// The host reads the byte at `offset` (0 to 7) of the bus master's registers.
    pub(super) fn read_master(&self, offset: u16) -> u8 {
        self.master.read(offset)
    }

    /// The host writes there.
    pub(super) fn write_master(&mut self, offset: u16, value: u8) {
        self.master.write(offset, value);
    }

    /// The drives that there are.
    pub(super) fn drives_mut(&mut self) -> impl Iterator<Item = &mut Drive> {
        self.drives.iter_mut().flatten()
    }

    /// Drive `number` (0 or 1), if there is one.
    pub(super) fn drive(&self, number: u8) -> Option<&Drive> {
        self.drives.get(usize::from(number))?.as_ref()
    }

    /// The same, to be changed.
    pub(super) fn drive_mut(&mut self, number: u8) -> Option<&mut Drive> {
        self.drives.get_mut(usize::from(number))?.as_mut()
    }

    /// What follows from any change: the bus master moves data if it is ready and `mastering` lets it
    /// on the bus, drives ask their media, each by a tag of its own, and the interrupt line gets
    /// its level.
    pub(super) fn settle(
        &mut self,
        context: &mut Context<'_>,
        mastering: bool,
        next_tag: &mut u64,
    ) {
        if mastering {
            self.run_dma(context);
        }
        for (unit, drive) in (self.first_unit..).zip(&mut self.drives) {
            let request = drive.as_mut().and_then(|drive| drive.take_request(*next_tag));
            if let Some(operation) = request {
                context.ask_disk(unit, DiskRequest { tag: *next_tag, operation });
                *next_tag = next_tag.wrapping_add(1);
            }
        }
        let enabled = self.lines.control & CONTROL_DISABLE_INTERRUPT == 0;
        let level = enabled && self.selected().is_some_and(|drive| drive.interrupt());
        if level && !self.lines.interrupt {
            self.master.interrupt();
        }
        self.lines.interrupt = level;
        context.irq.set(self.irq, level);
    }

    /// Moves data between the selected drive and memory, as long as both have something to do.
    fn run_dma(&mut self, context: &mut Context<'_>) {
        let Some(drive) = self.drives[usize::from(self.lines.second)].as_mut() else { return };
        loop {
            let direction = match drive.interface().phase() {
                Phase::DmaIn => Direction::ToMemory,
                Phase::DmaOut => Direction::FromMemory,
                _ => return,
            };
            let data = drive.interface().block();
            let moved = self.master.transfer(context.memory, direction, data);
            if moved == 0 {
                return;
            }
            if drive.interface().advance(moved) {
                drive.moved();
            }
        }
    }

    pub(super) fn save(&self) -> ChannelState {
        let drives = self.drives.each_ref().map(|drive| drive.as_ref().map(Drive::save));
        ChannelState { drives, lines: self.lines, master: self.master.clone() }
    }

    /// True when `state` is one that this channel can have.
    pub(super) fn fits(&self, state: &ChannelState) -> bool {
        let control_bits = CONTROL_DISABLE_INTERRUPT | CONTROL_RESET | CONTROL_HOB;
        self.drives.iter().zip(&state.drives).all(|pair| match pair {
            (Some(drive), Some(state)) => drive.fits(state),
            (None, None) => true,
            _ => false,
        }) && state.master.is_possible()
            && state.lines.control & !control_bits == 0
    }

    /// Takes over a state that fits.
    pub(super) fn restore(&mut self, state: ChannelState) {
        for (drive, state) in self.drives.iter_mut().zip(state.drives) {
            if let (Some(drive), Some(state)) = (drive, state) {
                drive.restore(state);
            }
        }
        (self.lines, self.master) = (state.lines, state.master);
    }
}
