//! The commands of an ATA disk.
//!
//! From ATA/ATAPI-6 (T13/1410D), whose names the commands have here, chapters 8 and 9; DATA SET MANAGEMENT from ACS-2
//! (T13/2015-D), 7.5. A command's
//! sectors go in parts of [`PART_SECTORS`]: each is read from the medium at once, or
//! written at once when the host has given all of it.

use ring3_core::disk::{DiskError, DiskOperation, Medium, SECTOR_SIZE};
use serde::{Deserialize, Serialize};

use super::DriveModel;
use super::drive::{CommandSet, Power};
use super::identify::{DiskIdentity, DmaMode, Geometry, LBA28_SECTORS};
use super::interface::{DEVICE_HEAD, DEVICE_LBA, Interface, PART_SECTORS, Phase, error};

/// The largest block of READ MULTIPLE, in sectors; it divides a part.
const MAX_MULTIPLE: u8 = 16;

/// The most blocks of ranges that DATA SET MANAGEMENT takes.
const TRIM_BLOCKS: u16 = 8;
/// Bytes of a range: a 48-bit address, and 16 bits for the number of sectors.
const RANGE: usize = 8;
/// The most ranges.
const TRIM_RANGES: usize = TRIM_BLOCKS as usize * SECTOR_SIZE / RANGE;

/// What a command does with sectors.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
enum Action {
    Read,
    Write,
    /// Read, and the data thrown away.
    Verify,
    /// What was written reaches the medium for good.
    Flush,
    /// The data is in the buffer, and no medium has part in it.
    Identify,
    /// The data tells which sectors are not needed any more.
    Trim,
}

/// How data goes between host and drive.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
enum Way {
    /// Through the data register, with so many sectors (1 to [`MAX_MULTIPLE`]) under one data request.
    Pio(u8),
    /// By the bus master.
    Dma,
}

/// A command that is being executed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
struct Transfer {
    action: Action,
    way: Way,
    /// The first sector of the present part.
    first: u64,
    /// Sectors that are still to do, the present part among them: up to 65536.
    left: u32,
    /// The command has 48-bit addresses.
    extended: bool,
}

impl Transfer {
    /// Sectors of the present part.
    fn part(&self) -> u32 {
        self.left.min(PART_SECTORS)
    }

    /// Bytes of the present part.
    fn part_bytes(&self) -> usize {
        self.part() as usize * SECTOR_SIZE
    }
}

/// What SET FEATURES and its like change.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
struct Settings {
    geometry: Geometry,
    /// Sectors a block of READ MULTIPLE and WRITE MULTIPLE; 0 when they are off.
    multiple: u8,
    dma: DmaMode,
    write_cache: bool,
    look_ahead: bool,
    /// A software reset brings the settings back to those of power-on.
    reverts: bool,
}

impl Settings {
    fn of(sectors: u64) -> Settings {
        Settings {
            geometry: Geometry::of(sectors),
            multiple: 0,
            dma: DmaMode::DEFAULT,
            write_cache: true,
            look_ahead: true,
            reverts: false,
        }
    }
}

/// What a disk saves.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct DiskState {
    settings: Settings,
    power: Power,
    transfer: Option<Transfer>,
    /// What is still to be trimmed: sectors, and how many.
    #[serde(default)]
    trims: Vec<(u64, u32)>,
}

/// A hard disk.
#[derive(Debug)]
pub(super) struct Disk {
    model: String,
    serial: String,
    second: bool,
    medium: Medium,
    /// It has DATA SET MANAGEMENT.
    trims: bool,
    pub(super) state: DiskState,
}

impl Disk {
    pub(super) fn new(model: &DriveModel, medium: Medium, second: bool) -> Disk {
        let settings = Settings::of(medium.sectors);
        let state = DiskState { settings, power: Power::Active, transfer: None, trims: Vec::new() };
        let trims = model.trims && !medium.read_only;
        let (model, serial) = (model.model.clone(), model.serial.clone());
        Disk { model, serial, second, medium, trims, state }
    }

    pub(super) fn power_on(&mut self) {
        let settings = Settings::of(self.medium.sectors);
        self.state =
            DiskState { settings, power: Power::Active, transfer: None, trims: Vec::new() };
    }

    /// True when such a disk can be in `state`, with a command in progress where it is `busy`.
    pub(super) fn fits(&self, state: &DiskState, busy: bool) -> bool {
        let transfer_fits = state.transfer.is_none_or(|transfer| {
            let range_fits = transfer
                .first
                .checked_add(transfer.left.into())
                .is_some_and(|end| end <= self.medium.sectors);
            let sectors = matches!(transfer.action, Action::Read | Action::Write | Action::Verify);
            let block_fits = match transfer.way {
                Way::Pio(block) => (1..=MAX_MULTIPLE).contains(&block),
                Way::Dma => true,
            };
            block_fits && (!sectors || range_fits && (1..=0x1_0000).contains(&transfer.left))
        });
        let trims_fit = state.trims.len() <= TRIM_RANGES
            && state.trims.iter().all(|(first, count)| self.has(*first, (*count).into()));
        transfer_fits
            && trims_fit
            && state.transfer.is_some() == busy
            && state.settings.multiple <= MAX_MULTIPLE
    }

    /// All of these sectors are on the disk.
    fn has(&self, first: u64, count: u64) -> bool {
        first.checked_add(count).is_some_and(|end| end <= self.medium.sectors)
    }

    /// The address in the registers, when it is on the disk.
    fn address(&self, interface: &Interface, extended: bool) -> Option<u64> {
        let registers = &interface.registers;
        let lba = if extended {
            registers.lba48()
        } else if registers.device & DEVICE_LBA != 0 {
            registers.lba28()
        } else {
            let [cylinder_low, cylinder_high] =
                [registers.lba_mid.current, registers.lba_high.current];
            let cylinder = u16::from_le_bytes([cylinder_low, cylinder_high]);
            let head = registers.device & DEVICE_HEAD;
            self.state.settings.geometry.lba(cylinder, head, registers.lba_low.current)?
        };
        (lba < self.medium.sectors).then_some(lba)
    }

    /// Begins a command that reads, writes or verifies sectors.
    fn start(&mut self, interface: &mut Interface, action: Action, way: Way, extended: bool) {
        self.state.power = Power::Active;
        let left = match (extended, interface.registers.count) {
            (true, count) => u32::from(count.wide().wrapping_sub(1)) + 1,
            (false, count) => u32::from(count.current.wrapping_sub(1)) + 1,
        };
        let first = self.address(interface, extended);
        let Some(first) = first.filter(|first| first + u64::from(left) <= self.medium.sectors)
        else {
            interface.fail(error::IDNF);
            return;
        };
        if action == Action::Write && self.medium.read_only {
            interface.fail(error::ABRT);
            return;
        }
        self.state.transfer = Some(Transfer { action, way, first, left, extended });
        self.next_part(interface, false);
    }

    /// READ MULTIPLE and WRITE MULTIPLE.
    fn start_multiple(&mut self, interface: &mut Interface, action: Action, extended: bool) {
        match self.state.settings.multiple {
            0 => interface.fail(error::ABRT),
            block => self.start(interface, action, Way::Pio(block), extended),
        }
    }

    /// Goes on with the next part. The host is interrupted where it has to give data, but
    /// for the first time.
    fn next_part(&mut self, interface: &mut Interface, interrupt: bool) {
        let Some(transfer) = self.state.transfer else { return };
        if transfer.action == Action::Write {
            interface.expect(transfer.part_bytes());
            self.next_block(interface, interrupt);
        } else {
            interface.ask(DiskOperation::Read { sector: transfer.first, count: transfer.part() });
        }
    }

    /// Requests the next data of the buffer from the host, or gives it.
    fn next_block(&self, interface: &mut Interface, interrupt: bool) {
        let Some(transfer) = self.state.transfer else { return };
        let write = transfer.action == Action::Write;
        match transfer.way {
            Way::Pio(sectors) => {
                let phase = if write { Phase::PioOut } else { Phase::PioIn };
                interface.begin_block(phase, usize::from(sectors) * SECTOR_SIZE);
                interface.interrupt |= interrupt;
            }
            Way::Dma => interface.begin_dma(if write { Phase::DmaOut } else { Phase::DmaIn }),
        }
    }

    /// The present part is done. True when there is another.
    fn part_done(&mut self) -> bool {
        let Some(transfer) = &mut self.state.transfer else { return false };
        let part = transfer.part();
        transfer.first += u64::from(part);
        transfer.left -= part;
        transfer.left != 0
    }

    fn finish(&mut self, interface: &mut Interface, interrupt: bool) {
        self.state.transfer = None;
        interface.finish(interrupt);
    }

    /// Flushes, and then the command is done.
    fn flush(&mut self, interface: &mut Interface) {
        let way = Way::Pio(1);
        self.state.transfer =
            Some(Transfer { action: Action::Flush, way, first: 0, left: 0, extended: false });
        interface.ask(DiskOperation::Flush);
    }

    /// DATA SET MANAGEMENT, of which there is TRIM.
    fn manage_data_set(&mut self, interface: &mut Interface) {
        let registers = &interface.registers;
        let blocks = registers.count.wide();
        if !self.trims
            || registers.features.current & 1 == 0
            || !(1..=TRIM_BLOCKS).contains(&blocks)
        {
            return interface.fail(error::ABRT);
        }
        self.state.power = Power::Active;
        let (action, way) = (Action::Trim, Way::Dma);
        self.state.transfer =
            Some(Transfer { action, way, first: 0, left: blocks.into(), extended: true });
        interface.expect(usize::from(blocks) * SECTOR_SIZE);
        interface.begin_dma(Phase::DmaOut);
    }

    /// The ranges of TRIM have come. Those that follow each other are put together, and trimmed one after the other.
    fn take_ranges(&mut self, interface: &mut Interface, data: &[u8]) {
        let mut trims: Vec<(u64, u32)> = Vec::new();
        for range in data.chunks_exact(RANGE).take(TRIM_RANGES) {
            let range = u64::from_le_bytes(range.try_into().expect("it has eight bytes"));
            let (first, count) = (range & 0xffff_ffff_ffff, (range >> 48) as u32);
            if !self.has(first, count.into()) {
                return self.fail(interface, DiskError::OutOfRange);
            }
            match trims.last_mut() {
                _ if count == 0 => {}
                Some(last) if last.0 + u64::from(last.1) == first => last.1 += count,
                _ => trims.push((first, count)),
            }
        }
        trims.reverse();
        self.state.trims = trims;
        self.next_trim(interface);
    }

    fn next_trim(&mut self, interface: &mut Interface) {
        match self.state.trims.pop() {
            Some((sector, count)) => interface.ask(DiskOperation::Discard { sector, count }),
            None => self.finish(interface, true),
        }
    }

    fn identify(&mut self, interface: &mut Interface) {
        let settings = &self.state.settings;
        let identity = DiskIdentity {
            model: &self.model,
            serial: &self.serial,
            second: self.second,
            sectors: self.medium.sectors,
            geometry: settings.geometry,
            multiple: (MAX_MULTIPLE, settings.multiple),
            dma: settings.dma,
            write_cache: settings.write_cache,
            look_ahead: settings.look_ahead,
            trim_blocks: self.trims.then_some(TRIM_BLOCKS),
        };
        interface.offer(identity.data());
        let (action, way) = (Action::Identify, Way::Pio(1));
        self.state.transfer = Some(Transfer { action, way, first: 0, left: 0, extended: false });
        self.next_block(interface, true);
    }

    fn set_features(&mut self, interface: &mut Interface) {
        let settings = &mut self.state.settings;
        match interface.registers.features.current {
            0x02 => settings.write_cache = true,
            0x03 => match settings.dma.choose(interface.registers.count.current) {
                Some(dma) => settings.dma = dma,
                None => return interface.fail(error::ABRT),
            },
            0x55 => settings.look_ahead = false,
            0x66 => settings.reverts = false,
            0x82 => {
                settings.write_cache = false;
                return self.flush(interface);
            }
            0xaa => settings.look_ahead = true,
            0xcc => settings.reverts = true,
            _ => return interface.fail(error::ABRT),
        }
        interface.finish(true);
    }

    /// INITIALIZE DEVICE PARAMETERS: another translation of cylinders, heads and sectors.
    fn initialize_parameters(&mut self, interface: &mut Interface) {
        let heads = (interface.registers.device & DEVICE_HEAD) + 1;
        let sectors = interface.registers.count.current;
        if sectors == 0 {
            return interface.fail(error::ABRT);
        }
        self.state.settings.geometry = Geometry::with(self.medium.sectors, heads, sectors);
        interface.finish(true);
    }

    fn set_multiple(&mut self, interface: &mut Interface) {
        let sectors = interface.registers.count.current;
        let possible = sectors == 0 || sectors.is_power_of_two() && sectors <= MAX_MULTIPLE;
        self.state.settings.multiple = if possible { sectors } else { 0 };
        if possible { interface.finish(true) } else { interface.fail(error::ABRT) }
    }

    fn seek(&mut self, interface: &mut Interface) {
        self.state.power = Power::Active;
        match self.address(interface, false) {
            Some(_) => interface.finish(true),
            None => interface.fail(error::IDNF),
        }
    }

    /// READ NATIVE MAX ADDRESS (EXT).
    fn native_max(&self, interface: &mut Interface, extended: bool) {
        let last = self.medium.sectors.saturating_sub(1);
        if extended {
            interface.registers.set_lba48(last);
        } else {
            interface.registers.set_lba28(last.min(LBA28_SECTORS - 1));
        }
        interface.finish(true);
    }

    /// The medium could not do it: the registers tell where, by the first sector of the part.
    fn fail(&mut self, interface: &mut Interface, reason: DiskError) {
        let Some(transfer) = self.state.transfer.take() else { return };
        self.state.trims.clear();
        if !matches!(transfer.action, Action::Flush | Action::Trim) {
            if transfer.extended {
                interface.registers.set_lba48(transfer.first);
            } else if interface.registers.device & DEVICE_LBA != 0 {
                interface.registers.set_lba28(transfer.first);
            }
        }
        interface.fail(match (reason, transfer.action) {
            (DiskError::OutOfRange, _) => error::IDNF,
            (DiskError::Host, Action::Read | Action::Verify) => error::UNC,
            _ => error::ABRT,
        });
    }
}

impl CommandSet for Disk {
    fn command(&mut self, interface: &mut Interface, command: u8) {
        let one = Way::Pio(1);
        if self.state.power == Power::Sleep || self.state.power.command(interface, command) {
            return;
        }
        match command {
            0x06 => self.manage_data_set(interface),
            // RECALIBRATE.
            0x10..=0x1f => interface.finish(true),
            // READ SECTOR(S), READ SECTOR(S) EXT, READ DMA EXT, READ MULTIPLE EXT.
            0x20 | 0x21 => self.start(interface, Action::Read, one, false),
            0x24 => self.start(interface, Action::Read, one, true),
            0x25 => self.start(interface, Action::Read, Way::Dma, true),
            0x27 => self.native_max(interface, true),
            0x29 => self.start_multiple(interface, Action::Read, true),
            // WRITE SECTOR(S), WRITE SECTOR(S) EXT, WRITE DMA EXT, WRITE MULTIPLE EXT.
            0x30 | 0x31 => self.start(interface, Action::Write, one, false),
            0x34 => self.start(interface, Action::Write, one, true),
            0x35 => self.start(interface, Action::Write, Way::Dma, true),
            0x39 => self.start_multiple(interface, Action::Write, true),
            // READ VERIFY SECTOR(S), READ VERIFY SECTOR(S) EXT.
            0x40 | 0x41 => self.start(interface, Action::Verify, one, false),
            0x42 => self.start(interface, Action::Verify, one, true),
            0x70..=0x7f => self.seek(interface),
            0x91 => self.initialize_parameters(interface),
            // READ MULTIPLE, WRITE MULTIPLE, SET MULTIPLE MODE, READ DMA, WRITE DMA.
            0xc4 => self.start_multiple(interface, Action::Read, false),
            0xc5 => self.start_multiple(interface, Action::Write, false),
            0xc6 => self.set_multiple(interface),
            0xc8 | 0xc9 => self.start(interface, Action::Read, Way::Dma, false),
            0xca | 0xcb => self.start(interface, Action::Write, Way::Dma, false),
            // FLUSH CACHE, FLUSH CACHE EXT.
            0xe7 | 0xea => self.flush(interface),
            0xec => self.identify(interface),
            0xef => self.set_features(interface),
            0xf8 => self.native_max(interface, false),
            _ => interface.fail(error::ABRT),
        }
    }

    fn moved(&mut self, interface: &mut Interface) {
        let Some(transfer) = self.state.transfer else { return };
        if interface.left() != 0 {
            self.next_block(interface, true);
        } else if transfer.action == Action::Write {
            let data = interface.take_data();
            interface.ask(DiskOperation::Write { sector: transfer.first, data });
        } else if transfer.action == Action::Trim {
            let data = interface.take_data();
            self.take_ranges(interface, &data);
        } else if transfer.action == Action::Read && self.part_done() {
            self.next_part(interface, false);
        } else {
            self.finish(interface, transfer.way == Way::Dma);
        }
    }

    fn answered(&mut self, interface: &mut Interface, result: Result<Vec<u8>, DiskError>) {
        let Some(transfer) = self.state.transfer else { return };
        let data = match result {
            Ok(data) => data,
            Err(reason) => return self.fail(interface, reason),
        };
        match transfer.action {
            Action::Read | Action::Verify if data.len() != transfer.part_bytes() => {
                self.fail(interface, DiskError::Host);
            }
            Action::Read => {
                interface.offer(data);
                self.next_block(interface, true);
            }
            Action::Verify | Action::Write => {
                if self.part_done() {
                    self.next_part(interface, true);
                } else if transfer.action == Action::Write && !self.state.settings.write_cache {
                    self.flush(interface);
                } else {
                    self.finish(interface, true);
                }
            }
            Action::Trim => self.next_trim(interface),
            Action::Flush | Action::Identify => self.finish(interface, true),
        }
    }

    fn reset(&mut self) {
        self.state.transfer = None;
        self.state.trims.clear();
        self.state.power = Power::Active;
        if self.state.settings.reverts {
            self.state.settings = Settings::of(self.medium.sectors);
        }
    }
}
