//! The PIIX3's IDE function with its two channels, and the disks and CD-ROM drives on them.
//!
//! From Intel's data sheet 290550 (PIIX3), which has the PCI function and the bus master (module
//! `bus_master`), from ATA/ATAPI-6 (T13/1410D), which has the registers of drives (`channel`, `interface`)
//! and the commands of disks (`ata`), and from the standards of CD-ROM drives (`atapi`).
//!
//! The channels are in compatibility mode for good: ports 1F0h to 1F7h and 3F6h with IRQ 14, ports 170h to 177h and 376h with
//! IRQ 15. Firmware enables them: by bit 0 of the command register, and bit 2 of that for DMA. A board that starts a
//! kernel without firmware does the same. Bit 15 of each channel's timing register (40h, 42h) disables it; other than
//! in the data sheet it is set after a reset, since UEFI firmware for emulators does not know it.
//!
//! Drives take no time but for what their media take: timings are stored and mean nothing.
//!
//! ```
//! use ring3_core::device::{Device, TestBench, Width};
//! use ring3_core::disk::Medium;
//! use ring3_devices::ide::{DriveKind, DriveModel, Ide};
//!
//! let medium = Medium { sectors: 20480, read_only: false };
//! let kind = DriveKind::Disk(medium);
//! let disk = DriveModel { kind, model: "a disk".to_owned(), serial: "1".to_owned(), trims: false };
//! let (mut bench, mut ide) = (TestBench::default(), Ide::new(&[Some(disk), None, None, None]));
//! bench.write(&mut ide, 0x1f7, 0xec); // IDENTIFY DEVICE
//! assert_eq!(bench.read(&mut ide, 0x1f7), 0x58); // Ready, with data.
//! assert_eq!(ide.read_port(&mut bench.context(), 0x1f0, Width::Word), 0x0040);
//! ```

use ring3_core::bus::PortRange;
use ring3_core::device::{Context, Device, DeviceId, Width};
use ring3_core::disk::Medium;
use ring3_core::input::DeviceInput;
use ring3_core::state::{RestoreError, SavedState};
use serde::{Deserialize, Serialize};

use self::channel::{Channel, ChannelState, DATA};
use self::drive::Drive;
use crate::bytewise;
use crate::pci::{Function, Identity, command, registers};

mod ata;
mod atapi;
mod bus_master;
mod channel;
mod drive;
mod identify;
mod interface;

/// Number of drives: primary master and slave, secondary master and slave.
pub const UNITS: u8 = 4;

/// A drive that is attached to a channel.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DriveModel {
    /// What it is.
    pub kind: DriveKind,
    /// Its name, up to 40 characters of ASCII; what is more or other is left out.
    pub model: String,
    /// Its serial number, up to 20 characters.
    pub serial: String,
    /// A disk that wants to know which sectors software does not need any more: DATA SET MANAGEMENT.
    #[serde(default)]
    pub trims: bool,
}

/// What a drive is, and what is in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum DriveKind {
    /// A hard disk; up to 2^48 - 1 sectors of it are used.
    Disk(Medium),
    /// A CD-ROM drive, perhaps with a disc: whole blocks of four sectors.
    CdRom(Option<Medium>),
}

// Registers of the PCI function that are not those of all functions.
/// Timing of the primary channel, two bytes; those of the secondary follow.
const IDETIM: u8 = 0x40;
/// Timing of the slaves, one byte.
const SIDETIM: u8 = 0x44;
/// Master latency timer, one byte.
const LATENCY_TIMER: u8 = 0x0d;

/// The upper byte's bit of a timing register that lets the channel answer at its ports.
const DECODE_ENABLE: u32 = 1 << 15;

/// What the claims of a channel's ports are called; those of the second channel are two more.
const COMMAND_BLOCK_REGION: u8 = 0;
const CONTROL_REGION: u8 = 1;
/// The bus master's ports, by base address register 4 (BMIBA).
const BUS_MASTER_REGION: u8 = 4;

/// First ports of the channels' command blocks, and where the device control registers are.
const COMMAND_BLOCKS: [u16; 2] = [0x1f0, 0x170];
const CONTROLS: [u16; 2] = [0x3f6, 0x376];
const IRQS: [u8; 2] = [14, 15];
/// Ports of the bus master: eight for each channel.
const BUS_MASTER_PORTS: u16 = 16;

const VERSION: u32 = 2;

/// The state as it is saved.
#[derive(Debug, Serialize, Deserialize)]
struct State {
    #[serde(with = "serde_bytes")]
    config: Vec<u8>,
    channels: [ChannelState; 2],
    next_tag: u64,
}

/// What an access at a port concerns.
enum Place {
    /// A register of a channel's command block.
    Command(usize, u16),
    /// A channel's device control and alternate status register.
    Control(usize),
    /// A register of a channel's bus master.
    Master(usize, u16),
}

/// The IDE function, device `ide`.
#[derive(Debug)]
pub struct Ide {
    function: Function,
    channels: [Channel; 2],
    /// The tag of the next request.
    next_tag: u64,
}

impl Ide {
    /// The function with its drives: primary master and slave, secondary master and slave. They are units 0 to 3 of the
    /// requests that this device makes.
    pub fn new(drives: &[Option<DriveModel>; UNITS as usize]) -> Ide {
        let [a, b, c, d] = drives.each_ref().map(Option::as_ref);
        let channels = [Channel::new(IRQS[0], 0, [a, b]), Channel::new(IRQS[1], 2, [c, d])];
        Ide { function: function(), channels, next_tag: 0 }
    }

    /// Drive `unit`, if there is one.
    fn drive(&self, unit: u8) -> Option<&Drive> {
        self.channels.get(usize::from(unit / 2))?.drive(unit % 2)
    }

    fn drive_mut(&mut self, unit: u8) -> Option<&mut Drive> {
        self.channels.get_mut(usize::from(unit / 2))?.drive_mut(unit % 2)
    }

    /// Claims the ports of the two channels, where they are enabled.
    fn claim_channels(&self, context: &mut Context<'_>) {
        let io = self.function.may(command::IO);
        for index in 0..2 {
            let timing = self.function.read(IDETIM + 2 * index, Width::Word);
            let regions = [COMMAND_BLOCK_REGION, CONTROL_REGION].map(|region| region + 2 * index);
            if io && timing & DECODE_ENABLE != 0 {
                let index = usize::from(index);
                context.claim_ports(regions[0], PortRange::new(COMMAND_BLOCKS[index], 8));
                context.claim_ports(regions[1], PortRange::new(CONTROLS[index], 1));
            } else {
                for region in regions {
                    context.release(region);
                }
            }
        }
    }

    fn place(&self, port: u16) -> Option<Place> {
        for index in 0..2 {
            let register = port.wrapping_sub(COMMAND_BLOCKS[index]);
            if register < 8 {
                return Some(Place::Command(index, register));
            }
            if port == CONTROLS[index] {
                return Some(Place::Control(index));
            }
        }
        let offset = self.function.port_offset(BUS_MASTER_REGION, port);
        (offset < BUS_MASTER_PORTS).then(|| Place::Master(usize::from(offset / 8), offset % 8))
    }

    fn read_byte(&mut self, port: u16) -> u8 {
        match self.place(port) {
            Some(Place::Command(index, register)) => self.channels[index].read(register),
            Some(Place::Control(index)) => self.channels[index].alternate_status(),
            Some(Place::Master(index, offset)) => self.channels[index].read_master(offset),
            None => 0xff,
        }
    }

    fn write_byte(&mut self, port: u16, value: u8) {
        match self.place(port) {
            Some(Place::Command(index, register)) => self.channels[index].write(register, value),
            Some(Place::Control(index)) => self.channels[index].write_control(value),
            Some(Place::Master(index, offset)) => {
                self.channels[index].write_master(offset, value);
            }
            None => {}
        }
    }

    fn settle(&mut self, context: &mut Context<'_>) {
        let mastering = self.function.may(command::MASTER);
        for channel in &mut self.channels {
            channel.settle(context, mastering, &mut self.next_tag);
        }
    }
}

/// The PCI function.
fn function() -> Function {
    // An IDE controller in compatibility mode that can be bus master.
    let identity = Identity { vendor: 0x8086, device: 0x7010, revision: 0, class: 0x010180 };
    Function::new(identity)
        .command(command::IO | command::MASTER)
        // Fast back-to-back; medium DEVSEL# timing; the aborts that a bus master notes are cleared by ones.
        .status(0x0280)
        .clearable(registers::STATUS, &[0, 0x38])
        .writable(LATENCY_TIMER, &[0xf0])
        .ports(BUS_MASTER_REGION, BUS_MASTER_PORTS)
        .fixed(IDETIM, &[0x00, 0x80, 0x00, 0x80])
        .writable(IDETIM, &[0xff; 4])
        .writable(SIDETIM, &[0xff])
}

impl Device for Ide {
    fn id(&self) -> DeviceId {
        DeviceId::IDE
    }

    fn reset(&mut self, context: &mut Context<'_>) {
        self.function.reset();
        self.channels.iter_mut().for_each(Channel::power_on);
        self.function.claim(context);
        self.claim_channels(context);
        self.settle(context);
    }

    fn read_port(&mut self, context: &mut Context<'_>, port: u16, width: Width) -> u32 {
        let value = match self.place(port) {
            Some(Place::Command(index, DATA)) => self.channels[index].read_data(width),
            _ => bytewise::read(port, width, |port| self.read_byte(port)),
        };
        self.settle(context);
        value
    }

    fn write_port(&mut self, context: &mut Context<'_>, port: u16, width: Width, value: u32) {
        match self.place(port) {
            Some(Place::Command(index, DATA)) => self.channels[index].write_data(width, value),
            _ => bytewise::write(port, width, value, |port, byte| self.write_byte(port, byte)),
        }
        self.settle(context);
    }

    fn read_port_string(&mut self, port: u16, width: Width, bytes: &mut [u8]) -> usize {
        match self.place(port) {
            Some(Place::Command(index, DATA)) => {
                self.channels[index].read_data_string(width, bytes)
            }
            _ => 0,
        }
    }

    fn write_port_string(&mut self, port: u16, width: Width, bytes: &[u8]) -> usize {
        match self.place(port) {
            Some(Place::Command(index, DATA)) => {
                self.channels[index].write_data_string(width, bytes)
            }
            _ => 0,
        }
    }

    fn read_config(
        &mut self,
        _context: &mut Context<'_>,
        _function: u8,
        offset: u8,
        width: Width,
    ) -> u32 {
        self.function.read(offset, width)
    }

    fn write_config(
        &mut self,
        context: &mut Context<'_>,
        _function: u8,
        offset: u8,
        width: Width,
        value: u32,
    ) {
        self.function.write(context, offset, width, value);
        self.claim_channels(context);
        self.settle(context);
    }

    fn input(&mut self, context: &mut Context<'_>, input: DeviceInput) {
        match input {
            DeviceInput::Disk(answer) => {
                let mut drives = self.channels.iter_mut().flat_map(Channel::drives_mut);
                if let Some(drive) = drives.find(|drive| drive.awaits(answer.tag)) {
                    drive.answered(answer.result);
                }
            }
            DeviceInput::Medium { unit, medium } => {
                if let Some(drive) = self.drive_mut(unit) {
                    drive.change_medium(medium);
                }
            }
            DeviceInput::EjectRequest { unit } => {
                if let Some(drive) = self.drive_mut(unit) {
                    drive.request_eject();
                }
            }
            _ => {}
        }
        self.settle(context);
    }

    fn holds_medium(&self, unit: u8) -> bool {
        self.drive(unit).is_some_and(Drive::holds_medium)
    }

    fn save(&self) -> SavedState {
        let channels = self.channels.each_ref().map(Channel::save);
        let state = State { config: self.function.save(), channels, next_tag: self.next_tag };
        SavedState::new(self.name(), VERSION, &state)
    }

    fn restore(&mut self, saved: &SavedState) -> Result<(), RestoreError> {
        let state: State = saved.load(self.name(), VERSION)?;
        if !self.channels.iter().zip(&state.channels).all(|(channel, state)| channel.fits(state)) {
            return Err(saved.damaged("it is of other drives, or a drive is in no possible state"));
        }
        self.function = self.function.restored(saved, &state.config)?;
        for (channel, state) in self.channels.iter_mut().zip(state.channels) {
            channel.restore(state);
        }
        self.next_tag = state.next_tag;
        Ok(())
    }
}

#[cfg(test)]
mod tests;
