//! The diskette controller: an Intel 82077AA with up to two drives, wired as in a PC/AT.
//!
//! From Intel's data sheet "82077AA CHMOS Single-Chip Floppy Disk Controller" (290166); the names of registers and commands are
//! its own. Diskettes are images of sectors of 512 bytes, so what an image does not keep is not there: single
//! density, marks of deleted data, gaps, other sizes of sectors, and a format other than the one which the size of
//! the image stands for. The SCAN commands, which nothing uses, are invalid; so is PART ID, as the
//! data sheet wants it: that is how software tells this chip from its successors.
//!
//! Heads and diskettes are some hundred times as quick as real ones; but a command that interrupts does so
//! some time after the port access that started it, as software expects.
//!
//! ```
//! use ring3_core::device::TestBench;
//! use ring3_devices::floppy::{DriveKind, Floppy};
//!
//! let mut bench = TestBench::default();
//! let mut floppy = Floppy::new([Some(DriveKind::Mb1_44), None], [None, None]);
//! bench.write(&mut floppy, 0x3f2, 0x0c); // out of reset, interrupts and DMA on
//! bench.advance(&mut floppy, 1_000_000);
//! bench.write(&mut floppy, 0x3f5, 0x10); // VERSION
//! assert_eq!(bench.read(&mut floppy, 0x3f5), 0x90);
//! ```

mod command;
mod execution;
mod media;

use std::collections::VecDeque;

use ring3_core::bus::PortRange;
use ring3_core::clock::Tag;
use ring3_core::device::{Context, Device, DeviceId, Width};
use ring3_core::disk::Medium;
use ring3_core::dma::DmaBytes;
use ring3_core::input::DeviceInput;
use ring3_core::state::{RestoreError, SavedState};
use serde::{Deserialize, Serialize};

use crate::bytewise;
use command::{Command, LONGEST_COMMAND, Task};
use execution::Execution;
use media::Drive;
pub use media::{DriveKind, cmos_drive_types, cmos_equipment};

/// Its IRQ line.
pub const IRQ: u8 = 6;
/// Its DMA channel.
pub const DMA_CHANNEL: u8 = 2;
const VERSION: u32 = 1;

// Status registers A and B at 3F0h and 3F1h are not there in the PC/AT mode, and 3F6h is the fixed disk's.
const DIGITAL_OUTPUT: u16 = 0x3f2;
const TAPE_DRIVE: u16 = 0x3f3;
/// Main status for reads, data rate select for writes.
const MAIN_STATUS: u16 = 0x3f4;
const DATA: u16 = 0x3f5;
/// Digital input for reads, configuration control for writes.
const DIGITAL_INPUT: u16 = 0x3f7;

// Digital output register.
const DOR_RUN: u8 = 1 << 2;
/// Interrupt and DMA request reach the bus.
const DOR_GATE: u8 = 1 << 3;
const DOR_MOTOR_0: u8 = 1 << 4;

// Data rate select register.
const DSR_RESET: u8 = 1 << 7;
const RATE: u8 = 0x03;

const DIR_CHANGED: u8 = 1 << 7;

// Main status register; bits 3:0 tell of drives that seek.
const MSR_REQUEST: u8 = 1 << 7;
/// The processor is to read.
const MSR_TO_HOST: u8 = 1 << 6;
const MSR_NON_DMA: u8 = 1 << 5;
const MSR_BUSY: u8 = 1 << 4;

// Status register 0.
const ST0_ABNORMAL: u8 = 1 << 6;
const ST0_INVALID: u8 = 1 << 7;
const ST0_READY_CHANGED: u8 = 3 << 6;
const ST0_SEEK_END: u8 = 1 << 5;
const ST0_EQUIPMENT_CHECK: u8 = 1 << 4;

// Status register 3.
const ST3_PROTECTED: u8 = 1 << 6;
const ST3_TRACK_0: u8 = 1 << 4;
/// Bits that are always set.
const ST3_ONES: u8 = 0x28;

/// In the second byte of SPECIFY's options.
const NON_DMA: u8 = 1 << 0;
// CONFIGURE's second byte.
const IMPLIED_SEEK: u8 = 1 << 6;
const FIFO_OFF: u8 = 1 << 5;
const FIFO_THRESHOLD: u8 = 0x0f;
const CONFIGURE_BITS: u8 = 0x7f;
const LOCK: u8 = 1 << 7;
/// In the option of PERPENDICULAR: the drives' bits are to be taken over.
const OVERWRITE: u8 = 1 << 7;
const PERPENDICULAR_DRIVES: u8 = 0x3c;
const PERPENDICULAR_MODE: u8 = 0x03;

/// The answer to VERSION: an enhanced controller.
const ENHANCED: u8 = 0x90;

/// Timers: a reset is over; a sector is under the head; drives 0 to 3 have found their tracks.
const RESET_OVER: Tag = 0;
const SECTOR: Tag = 1;
const SOUGHT: Tag = 2;

const RESET_NANOS: u64 = 200_000;
const STEP_NANOS: u64 = 20_000;
/// For the head to come to rest, steps or none.
const SETTLE_NANOS: u64 = 100_000;
/// The most steps of RECALIBRATE.
const RECALIBRATE_STEPS: i16 = 80;
const LONGEST_RESULT: usize = 10;

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct State {
    digital_output: u8,
    tape_drive: u8,
    rate: u8,
    /// A reset takes its time.
    starting: bool,
    /// What has come of a command so far.
    command: Vec<u8>,
    execution: Option<Execution>,
    result: VecDeque<u8>,
    /// The INT pin, before the gate.
    interrupt: bool,
    /// Status register 0 of drives for SENSE INTERRUPT STATUS.
    attention: [Option<u8>; 4],
    /// Drives that seek, a bit each, and status register 0 for when they are there.
    seeking: u8,
    seek_status: [u8; 4],
    /// Where the controller believes the heads to be ("PCN").
    cylinders: [u8; 4],
    drives: [Drive; 2],
    /// The options of SPECIFY, CONFIGURE and PERPENDICULAR.
    specify: [u8; 2],
    configure: u8,
    precompensation: u8,
    perpendicular: u8,
    locked: bool,
    /// What DUMPREG says of the last track: sectors of FORMAT, or the last one.
    sectors: u8,
    next_tag: u64,
}

impl State {
    fn power_on(media: [Option<Medium>; 2], next_tag: u64) -> State {
        State {
            digital_output: 0,
            tape_drive: 0,
            rate: 2,
            starting: false,
            command: Vec::new(),
            execution: None,
            result: VecDeque::new(),
            interrupt: false,
            attention: [None; 4],
            seeking: 0,
            seek_status: [0; 4],
            cylinders: [0; 4],
            drives: media.map(Drive::new),
            specify: [0; 2],
            configure: FIFO_OFF,
            precompensation: 0,
            perpendicular: 0,
            locked: false,
            sectors: 0,
            next_tag,
        }
    }

    fn is_possible(&self) -> bool {
        self.command.len() < LONGEST_COMMAND
            && self.result.len() <= LONGEST_RESULT
            && self.rate <= RATE
            && self.drives.iter().all(Drive::is_possible)
            && self.execution.as_ref().is_none_or(Execution::is_possible)
    }
}

/// The diskette controller, device `floppy`, with its drives, units 0 (A) and 1 (B).
#[derive(Debug)]
pub struct Floppy {
    kinds: [Option<DriveKind>; 2],
    state: State,
}

impl Floppy {
    /// A controller with drives of those kinds and with diskettes in them.
    pub fn new(kinds: [Option<DriveKind>; 2], media: [Option<Medium>; 2]) -> Floppy {
        Floppy { kinds, state: State::power_on(media, 0) }
    }

    /// The ports at which the board attaches the device.
    pub fn ports(&self) -> [PortRange; 2] {
        [PortRange::new(0x3f0, 6), PortRange::new(DIGITAL_INPUT, 1)]
    }

    /// Drive `number`, with its kind.
    fn drive(&self, number: u8) -> Option<(DriveKind, &Drive)> {
        let index = usize::from(number);
        Some(((*self.kinds.get(index)?)?, self.state.drives.get(index)?))
    }

    /// The motor of drive `number` runs.
    fn motor_runs(&self, number: u8) -> bool {
        self.state.digital_output & DOR_MOTOR_0 << (number & 3) != 0
    }

    fn is_running(&self) -> bool {
        self.state.digital_output & DOR_RUN != 0
    }

    fn main_status(&self) -> u8 {
        let state = &self.state;
        if !self.is_running() || state.starting {
            return 0;
        }
        let phase = match &state.execution {
            Some(execution) => MSR_BUSY | execution.main_status(),
            None if !state.result.is_empty() => MSR_REQUEST | MSR_TO_HOST | MSR_BUSY,
            None if !state.command.is_empty() => MSR_REQUEST | MSR_BUSY,
            None => MSR_REQUEST,
        };
        phase | state.seeking
    }

    fn digital_input(&self) -> u8 {
        let selected = self.state.digital_output & 3;
        let changed = self.drive(selected).is_some_and(|(_, drive)| drive.changed);
        if changed && self.motor_runs(selected) { DIR_CHANGED } else { 0 }
    }

    fn write_digital_output(&mut self, context: &mut Context<'_>, value: u8) {
        let ran = self.is_running();
        self.state.digital_output = value;
        match (ran, self.is_running()) {
            (true, false) => self.enter_reset(context),
            (false, true) => self.leave_reset(context),
            _ => {}
        }
    }

    fn write_data_rate(&mut self, context: &mut Context<'_>, value: u8) {
        self.state.rate = value & RATE;
        if value & DSR_RESET != 0 {
            self.enter_reset(context);
            if self.is_running() {
                self.leave_reset(context);
            }
        }
    }

    /// What every reset does, by hardware or software ("Reset"): what LOCK keeps and SPECIFY has set stays.
    fn enter_reset(&mut self, context: &mut Context<'_>) {
        for tag in RESET_OVER..SOUGHT + 4 {
            context.cancel_timer(tag);
        }
        let state = &mut self.state;
        let kept =
            if state.locked { state.configure & (FIFO_OFF | FIFO_THRESHOLD) } else { FIFO_OFF };
        state.configure = kept;
        if !state.locked {
            state.precompensation = 0;
        }
        state.perpendicular &= PERPENDICULAR_DRIVES;
        state.starting = false;
        state.command.clear();
        state.execution = None;
        state.result.clear();
        state.interrupt = false;
        state.attention = [None; 4];
        state.seeking = 0;
        state.cylinders = [0; 4];
    }

    fn leave_reset(&mut self, context: &mut Context<'_>) {
        self.state.starting = true;
        context.set_timer(RESET_OVER, context.now.plus_nanos(RESET_NANOS));
    }

    fn read_data(&mut self, context: &mut Context<'_>) -> u8 {
        if self.state.execution.is_some() {
            return self.read_byte(context);
        }
        match self.state.result.pop_front() {
            Some(byte) => {
                self.state.interrupt = false;
                byte
            }
            None => 0xff,
        }
    }

    fn write_data(&mut self, context: &mut Context<'_>, byte: u8) {
        if self.state.execution.is_some() {
            return self.write_byte(context, byte);
        }
        if self.main_status() & (MSR_REQUEST | MSR_TO_HOST) != MSR_REQUEST {
            return;
        }
        self.state.command.push(byte);
        let command = Command::of(self.state.command[0]);
        if self.state.command.len() >= command.len() {
            let mut bytes = [0; LONGEST_COMMAND];
            bytes[..self.state.command.len()].copy_from_slice(&self.state.command);
            self.state.command.clear();
            self.execute(context, command, bytes);
        }
    }

    fn execute(
        &mut self,
        context: &mut Context<'_>,
        command: Command,
        bytes: [u8; LONGEST_COMMAND],
    ) {
        let [opcode, first, second, third, ..] = bytes;
        let drive = first & 3;
        match command {
            Command::Sectors(work) => {
                let task = Task::new(work, bytes);
                self.state.sectors = if work == command::Work::Format { second } else { task.last };
                self.start(context, Execution::of_sectors(task));
            }
            Command::ReadId => self.start(context, Execution::of_read_id(opcode, first)),
            Command::Specify => self.state.specify = [first, second],
            Command::SenseDrive => {
                let status = self.drive_status(drive);
                self.reply(&[status | first & 0x07]);
            }
            Command::Recalibrate => self.recalibrate(context, drive),
            Command::Seek => {
                let steps = i16::from(second) - i16::from(self.state.cylinders[usize::from(drive)]);
                self.seek(context, drive, steps, second);
            }
            Command::RelativeSeek => {
                let inwards = opcode & 0x40 != 0;
                let from = self.state.cylinders[usize::from(drive)];
                let (steps, to) = if inwards {
                    (i16::from(second), from.wrapping_add(second))
                } else {
                    (-i16::from(second), from.wrapping_sub(second))
                };
                self.seek(context, drive, steps, to);
            }
            Command::SenseInterrupt => self.sense_interrupt(),
            Command::DumpRegisters => self.dump_registers(),
            Command::Version => self.reply(&[ENHANCED]),
            Command::Perpendicular => {
                let drives = if first & OVERWRITE != 0 { first } else { self.state.perpendicular };
                self.state.perpendicular =
                    drives & PERPENDICULAR_DRIVES | first & PERPENDICULAR_MODE;
            }
            Command::Configure => {
                self.state.configure = second & CONFIGURE_BITS;
                self.state.precompensation = third;
            }
            Command::Lock => {
                self.state.locked = opcode & LOCK != 0;
                self.reply(&[u8::from(self.state.locked) << 4]);
            }
            Command::Invalid => self.reply(&[ST0_INVALID]),
        }
    }

    /// Status register 3.
    fn drive_status(&self, number: u8) -> u8 {
        let Some((_, drive)) = self.drive(number) else { return ST3_ONES };
        let protected = drive.medium.is_some_and(|medium| medium.read_only);
        ST3_ONES
            | if protected { ST3_PROTECTED } else { 0 }
            | if drive.track == 0 { ST3_TRACK_0 } else { 0 }
    }

    fn sense_interrupt(&mut self) {
        self.state.interrupt = false;
        let pending = (0..4).find_map(|drive| Some((drive, self.state.attention[drive].take()?)));
        match pending {
            Some((drive, status)) => self.reply(&[status, self.state.cylinders[drive]]),
            // Nothing has happened: the command is invalid.
            None => self.reply(&[ST0_INVALID]),
        }
    }

    fn dump_registers(&mut self) {
        let state = &self.state;
        let [a, b, c, d] = state.cylinders;
        let [rates, load] = state.specify;
        let perpendicular = u8::from(state.locked) << 7 | state.perpendicular;
        let (configure, precompensation) = (state.configure, state.precompensation);
        let sectors = state.sectors;
        self.reply(&[a, b, c, d, rates, load, sectors, perpendicular, configure, precompensation]);
    }

    /// Moves the head of a drive by `steps`, after which the controller believes it at `cylinder`.
    fn seek(&mut self, context: &mut Context<'_>, drive: u8, steps: i16, cylinder: u8) {
        let index = usize::from(drive);
        if self.drive(drive).is_some() {
            self.state.drives[index].step(steps);
        }
        self.state.cylinders[index] = cylinder;
        self.begin_seek(context, drive, steps, ST0_SEEK_END | drive);
    }

    /// Steps outwards until the signal of track 0 comes, or for as long as there may be tracks.
    fn recalibrate(&mut self, context: &mut Context<'_>, drive: u8) {
        let index = usize::from(drive);
        let mut status = ST0_SEEK_END | drive;
        let mut steps = RECALIBRATE_STEPS;
        if self.drive(drive).is_some() {
            let head = &mut self.state.drives[index];
            steps = steps.min(head.track.into());
            head.step(-steps);
        }
        if self.drive_status(drive) & ST3_TRACK_0 == 0 {
            status |= ST0_ABNORMAL | ST0_EQUIPMENT_CHECK;
        }
        self.state.cylinders[index] = 0;
        self.begin_seek(context, drive, steps, status);
    }

    fn begin_seek(&mut self, context: &mut Context<'_>, drive: u8, steps: i16, status: u8) {
        self.state.seeking |= 1 << drive;
        self.state.seek_status[usize::from(drive)] = status;
        let nanos = SETTLE_NANOS + u64::from(steps.unsigned_abs()) * STEP_NANOS;
        context.set_timer(SOUGHT + Tag::from(drive), context.now.plus_nanos(nanos));
    }

    fn reply(&mut self, bytes: &[u8]) {
        self.state.result.extend(bytes);
    }

    /// Drives the IRQ and the DMA request line, which the gate of DOR cuts off.
    fn update_lines(&self, context: &mut Context<'_>) {
        let gate = self.state.digital_output & DOR_GATE != 0;
        let transfer = self.state.execution.as_ref().and_then(Execution::transfer);
        let interrupt = self.state.interrupt || transfer == Some(execution::Transfer::Bytes);
        context.irq.set(IRQ, gate && interrupt);
        context.request_dma(DMA_CHANNEL, gate && transfer == Some(execution::Transfer::Dma));
    }
}

impl Device for Floppy {
    fn id(&self) -> DeviceId {
        DeviceId::FLOPPY
    }

    /// Diskettes stay in their drives.
    fn reset(&mut self, _context: &mut Context<'_>) {
        let media = self.state.drives.map(|drive| drive.medium);
        self.state = State::power_on(media, self.state.next_tag);
    }

    fn read_port(&mut self, context: &mut Context<'_>, port: u16, width: Width) -> u32 {
        let value = bytewise::read(port, width, |port| match port {
            DIGITAL_OUTPUT => self.state.digital_output,
            TAPE_DRIVE => self.state.tape_drive,
            MAIN_STATUS => self.main_status(),
            DATA => self.read_data(context),
            DIGITAL_INPUT => self.digital_input(),
            _ => 0xff,
        });
        self.update_lines(context);
        value
    }

    fn write_port(&mut self, context: &mut Context<'_>, port: u16, width: Width, value: u32) {
        bytewise::write(port, width, value, |port, byte| match port {
            DIGITAL_OUTPUT => self.write_digital_output(context, byte),
            TAPE_DRIVE => self.state.tape_drive = byte & 0x03,
            MAIN_STATUS => self.write_data_rate(context, byte),
            DATA => self.write_data(context, byte),
            DIGITAL_INPUT => self.state.rate = byte & RATE,
            _ => {}
        });
        self.update_lines(context);
    }

    fn dma(&mut self, context: &mut Context<'_>, _channel: u8, bytes: DmaBytes<'_>) -> usize {
        let moved = self.transfer(context, bytes);
        self.update_lines(context);
        moved
    }

    fn timer(&mut self, context: &mut Context<'_>, tag: Tag) {
        match tag {
            RESET_OVER => {
                // The controller polls its drives and finds that all have changed ("Polling").
                self.state.starting = false;
                self.state.attention = [0, 1, 2, 3].map(|drive| Some(ST0_READY_CHANGED | drive));
                self.state.interrupt = true;
            }
            SECTOR => self.sector_found(context),
            _ => {
                let drive = (tag - SOUGHT) as usize % 4;
                self.state.seeking &= !(1 << drive);
                self.state.attention[drive] = Some(self.state.seek_status[drive]);
                self.state.interrupt = true;
            }
        }
        self.update_lines(context);
    }

    fn input(&mut self, context: &mut Context<'_>, input: DeviceInput) {
        match input {
            DeviceInput::Disk(answer) => self.take_answer(context, answer),
            DeviceInput::Medium { unit, medium } => {
                if let Some(drive) = self.state.drives.get_mut(usize::from(unit)) {
                    drive.medium = medium;
                    drive.changed = true;
                }
            }
            _ => return,
        }
        self.update_lines(context);
    }

    fn save(&self) -> SavedState {
        SavedState::new(self.name(), VERSION, &self.state)
    }

    fn restore(&mut self, saved: &SavedState) -> Result<(), RestoreError> {
        let state: State = saved.load(self.name(), VERSION)?;
        if !state.is_possible() {
            return Err(saved.damaged("the controller cannot be in that state"));
        }
        self.state = state;
        Ok(())
    }
}

#[cfg(test)]
mod tests;
