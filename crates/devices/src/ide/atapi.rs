//! The commands of an ATAPI CD-ROM drive.
//!
//! The PACKET command is from ATA/ATAPI-6, what is in packets from SFF-8020i and its successors MMC and SPC,
//! whose names the commands have here. The disc has one data track of blocks of 2048 bytes. A disc
//! of more than 80 minutes is a DVD. What a drive would do with sound, it does not.

use ring3_core::disk::{DiskError, DiskOperation, Medium, SECTOR_SIZE};
use serde::{Deserialize, Serialize};

use self::replies::{DISC_BLOCKS_MAX, Disc};
use super::DriveModel;
use super::drive::{CommandSet, Power};
use super::identify::{self, DmaMode};
use super::interface::{Interface, PART_SECTORS, Phase, error};

mod replies;

/// Bytes of a packet.
const PACKET_LEN: usize = 12;
/// Bytes of a block of a CD.
const BLOCK_SIZE: usize = 2048;
const SECTORS_PER_BLOCK: u32 = (BLOCK_SIZE / SECTOR_SIZE) as u32;
/// Blocks that are read at once.
const PART_BLOCKS: u32 = PART_SECTORS / SECTORS_PER_BLOCK;

/// Data goes by DMA: bit 0 of the features register at PACKET; bit 1 is for overlapped commands, which there are not.
const FEATURE_DMA: u8 = 1 << 0;
const FEATURE_OVERLAP: u8 = 1 << 1;

// Interrupt reason register, in the place of the sector count (ATA-6, PACKET).
/// What is transferred is a packet, or nothing any more.
const REASON_COMMAND: u8 = 1 << 0;
/// The transfer is to the host.
const REASON_TO_HOST: u8 = 1 << 1;

/// Why a packet failed: sense key, additional sense code and its qualifier (MMC, annex on sense codes).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
struct Sense {
    /// 0 to 15.
    key: u8,
    code: u8,
    qualifier: u8,
}

impl Sense {
    const NONE: Sense = Sense::new(0, 0, 0);
    const NO_MEDIUM_TRAY_CLOSED: Sense = Sense::new(2, 0x3a, 1);
    const NO_MEDIUM_TRAY_OPEN: Sense = Sense::new(2, 0x3a, 2);
    const UNRECOVERED_READ_ERROR: Sense = Sense::new(3, 0x11, 0);
    const INVALID_COMMAND: Sense = Sense::new(5, 0x20, 0);
    const OUT_OF_RANGE: Sense = Sense::new(5, 0x21, 0);
    const INVALID_FIELD: Sense = Sense::new(5, 0x24, 0);
    const SAVING_NOT_SUPPORTED: Sense = Sense::new(5, 0x39, 0);
    const REMOVAL_PREVENTED: Sense = Sense::new(5, 0x53, 2);
    const ILLEGAL_MODE: Sense = Sense::new(5, 0x64, 0);
    const MEDIUM_CHANGED: Sense = Sense::new(6, 0x28, 0);

    const fn new(key: u8, code: u8, qualifier: u8) -> Sense {
        Sense { key, code, qualifier }
    }
}

/// What GET EVENT STATUS NOTIFICATION has to tell.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
enum MediaEvent {
    None,
    EjectRequest,
    NewMedia,
    Removal,
}

/// How far the command in progress is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
enum Stage {
    /// There is none.
    Idle,
    /// The host gives the packet.
    Packet,
    /// Identification goes to the host; an ATA command, which does not end as packets do.
    Identify,
    /// Data goes to the host; then `left` blocks are still to be read from block `next` on.
    Data { next: u32, left: u32 },
    /// `reading` blocks are read, then as above.
    Reading { reading: u32, next: u32, left: u32 },
    /// The medium is being taken out.
    Ejecting,
}

/// What a packet leads to.
enum Reply {
    Done,
    /// At most so many bytes of this, as the packet's allocation length says.
    Data(Vec<u8>, usize),
    Read {
        first: u32,
        count: u32,
    },
    Eject,
}

/// What a CD-ROM drive saves.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct CdRomState {
    medium: Option<Medium>,
    tray_open: bool,
    /// Software forbids that the medium is taken out.
    locked: bool,
    sense: Sense,
    /// The medium was changed and the next command is to say so.
    attention: bool,
    event: MediaEvent,
    mode: DmaMode,
    power: Power,
    stage: Stage,
    /// The packet's data goes by DMA.
    dma: bool,
    /// The most bytes that go under one data request: what the host wrote.
    byte_count: u16,
}

impl CdRomState {
    fn after_power_on(medium: Option<Medium>) -> CdRomState {
        CdRomState {
            medium,
            tray_open: false,
            locked: false,
            sense: Sense::NONE,
            attention: false,
            event: MediaEvent::None,
            mode: DmaMode::DEFAULT,
            power: Power::Active,
            stage: Stage::Idle,
            dma: false,
            byte_count: 0,
        }
    }

    /// False for what no treatment can lead to, with a command in progress where it is `busy`.
    pub(super) fn is_possible(&self, busy: bool) -> bool {
        let stage_fits = match self.stage {
            Stage::Idle => !busy,
            Stage::Data { next, left } => busy && next.checked_add(left).is_some(),
            Stage::Reading { reading, next, left } => {
                busy && reading <= PART_BLOCKS && next.checked_add(left).is_some()
            }
            _ => busy,
        };
        stage_fits && self.sense.key < 16
    }
}

/// A CD-ROM drive.
#[derive(Debug)]
pub(super) struct CdRom {
    model: String,
    serial: String,
    second: bool,
    pub(super) state: CdRomState,
}

impl CdRom {
    pub(super) fn new(model: &DriveModel, medium: Option<Medium>, second: bool) -> CdRom {
        let state = CdRomState::after_power_on(medium);
        CdRom { model: model.model.clone(), serial: model.serial.clone(), second, state }
    }

    pub(super) fn power_on(&mut self) {
        let CdRomState { medium, tray_open, .. } = self.state;
        self.state = CdRomState { tray_open, ..CdRomState::after_power_on(medium) };
    }

    /// The disc in the drive, if there is one that has a block.
    fn disc(&self) -> Result<Disc, Sense> {
        let blocks = |medium: Medium| medium.sectors / u64::from(SECTORS_PER_BLOCK);
        match self.state.medium.map(blocks) {
            Some(blocks @ 1..) => Ok(Disc { blocks: blocks.min(DISC_BLOCKS_MAX.into()) as u32 }),
            _ if self.state.tray_open => Err(Sense::NO_MEDIUM_TRAY_OPEN),
            _ => Err(Sense::NO_MEDIUM_TRAY_CLOSED),
        }
    }

    /// PREVENT ALLOW MEDIUM REMOVAL holds the tray.
    pub(super) fn holds_medium(&self) -> bool {
        self.state.locked && !self.state.tray_open
    }

    /// The eject button was pressed: software hears of it when it asks for events, and may open the tray (MMC, GET
    /// EVENT STATUS NOTIFICATION, media event "EjectRequest").
    pub(super) fn request_eject(&mut self) {
        self.state.event = MediaEvent::EjectRequest;
    }

    /// Somebody has changed the medium, and has broken a lock that was there.
    pub(super) fn change_medium(&mut self, medium: Option<Medium>) {
        self.state.medium = medium;
        self.state.locked = false;
        self.state.attention = medium.is_some();
        self.state.tray_open &= medium.is_none();
        self.state.event =
            if medium.is_some() { MediaEvent::NewMedia } else { MediaEvent::Removal };
    }

    /// PACKET: the host is to give the packet.
    fn begin_packet(&mut self, interface: &mut Interface) {
        let features = interface.registers.features.current;
        if features & FEATURE_OVERLAP != 0 {
            return interface.fail(error::ABRT);
        }
        let registers = &mut interface.registers;
        self.state.dma = features & FEATURE_DMA != 0;
        self.state.byte_count =
            u16::from_le_bytes([registers.lba_mid.current, registers.lba_high.current]);
        self.state.stage = Stage::Packet;
        registers.count.current = REASON_COMMAND;
        interface.expect(PACKET_LEN);
        interface.begin_block(Phase::PioOut, PACKET_LEN);
    }

    /// The packet has come.
    fn packet(&mut self, interface: &mut Interface) {
        let mut packet = [0; PACKET_LEN];
        for (to, from) in packet.iter_mut().zip(interface.take_data()) {
            *to = from;
        }
        match self.execute(&packet) {
            Ok(Reply::Data(mut data, allocation)) => {
                data.truncate(allocation);
                interface.offer(data);
                self.state.stage = Stage::Data { next: 0, left: 0 };
                self.next(interface);
            }
            Ok(Reply::Read { first, count }) => {
                interface.offer(Vec::new());
                self.state.stage = Stage::Data { next: first, left: count };
                self.next(interface);
            }
            Ok(Reply::Eject) => {
                self.state.stage = Stage::Ejecting;
                interface.ask(DiskOperation::Eject);
            }
            Ok(Reply::Done) => self.finish(interface),
            Err(sense) => self.fail(interface, sense),
        }
    }

    /// Goes on with a command that gives data: with what is in the buffer, or with the next blocks.
    fn next(&mut self, interface: &mut Interface) {
        let Stage::Data { next, left } = self.state.stage else { return };
        if interface.left() != 0 {
            self.next_chunk(interface);
        } else if left != 0 {
            let reading = left.min(PART_BLOCKS);
            self.state.stage =
                Stage::Reading { reading, next: next + reading, left: left - reading };
            interface.ask(DiskOperation::Read {
                sector: u64::from(next) * u64::from(SECTORS_PER_BLOCK),
                count: reading * SECTORS_PER_BLOCK,
            });
        } else {
            self.finish(interface);
        }
    }

    /// Gives what is in the buffer: by DMA all of it, else at most as much as the byte count register
    /// said, and then that says how much there is.
    fn next_chunk(&mut self, interface: &mut Interface) {
        if self.state.dma {
            interface.registers.count.current = REASON_TO_HOST;
            return interface.begin_dma(Phase::DmaIn);
        }
        if self.state.byte_count == 0 {
            self.state.stage = Stage::Idle;
            return interface.fail(error::ABRT);
        }
        // Only the last chunk of a command may be odd.
        let limit = (self.state.byte_count & !1).max(2);
        let len = interface.begin_block(Phase::PioIn, limit.into()) as u16;
        let [low, high] = len.to_le_bytes();
        interface.registers.lba_mid.current = low;
        interface.registers.lba_high.current = high;
        interface.registers.count.current = REASON_TO_HOST;
        interface.interrupt = true;
    }

    fn finish(&mut self, interface: &mut Interface) {
        self.state.stage = Stage::Idle;
        interface.registers.count.current = REASON_COMMAND | REASON_TO_HOST;
        interface.finish(true);
    }

    /// Check condition: the sense key is in the error register, and REQUEST SENSE tells the rest.
    fn fail(&mut self, interface: &mut Interface, sense: Sense) {
        self.state.stage = Stage::Idle;
        self.state.sense = sense;
        interface.registers.count.current = REASON_COMMAND | REASON_TO_HOST;
        interface.fail(sense.key << 4);
    }

    /// Executes a packet as far as it goes without the medium.
    fn execute(&mut self, packet: &[u8; PACKET_LEN]) -> Result<Reply, Sense> {
        let byte = |index: usize| usize::from(packet[index]);
        let word = |index: usize| u16::from_be_bytes([packet[index], packet[index + 1]]);
        let dword = |index: usize| u32::from(word(index)) << 16 | u32::from(word(index + 2));
        let allocation = usize::from(word(7));
        match packet[0] {
            // REQUEST SENSE.
            0x03 => return Ok(Reply::Data(self.request_sense(), byte(4))),
            // INQUIRY; vital product data are optional.
            0x12 if packet[1] & 1 != 0 || packet[2] != 0 => return Err(Sense::INVALID_FIELD),
            0x12 => return Ok(Reply::Data(replies::inquiry(&self.model), usize::from(word(3)))),
            // GET CONFIGURATION.
            0x46 => {
                let data = replies::configuration(self.disc().ok(), packet[1] & 3, word(2))?;
                return Ok(Reply::Data(data, allocation));
            }
            // GET EVENT STATUS NOTIFICATION; only polled.
            0x4a if packet[1] & 1 == 0 => return Err(Sense::INVALID_FIELD),
            0x4a => return Ok(Reply::Data(self.event_status(packet[4]), allocation)),
            _ => {}
        }
        // All others report a changed medium first (SPC, unit attention condition).
        if std::mem::take(&mut self.state.attention) {
            return Err(Sense::MEDIUM_CHANGED);
        }
        self.state.sense = Sense::NONE;
        match packet[0] {
            // TEST UNIT READY.
            0x00 => self.disc().map(|_| Reply::Done),
            // MODE SENSE (6) and (10).
            0x1a => Ok(Reply::Data(self.mode_sense(packet[2], false)?, byte(4))),
            0x5a => Ok(Reply::Data(self.mode_sense(packet[2], true)?, allocation)),
            // START STOP UNIT.
            0x1b => self.start_stop(packet[4]),
            // PREVENT ALLOW MEDIUM REMOVAL.
            0x1e => {
                self.state.locked = packet[4] & 1 != 0;
                Ok(Reply::Done)
            }
            // READ CD RECORDED CAPACITY, of old READ CAPACITY.
            0x25 => Ok(Reply::Data(self.disc()?.capacity(), usize::MAX)),
            // READ (10), READ (12).
            0x28 => self.read(dword(2), word(7).into()),
            0xa8 => self.read(dword(2), dword(6)),
            // SEEK (10), VERIFY (10).
            0x2b => self.disc()?.check(dword(2), 1).map(|()| Reply::Done),
            0x2f => self.disc()?.check(dword(2), word(7).into()).map(|()| Reply::Done),
            // READ SUB-CHANNEL.
            0x42 => {
                self.disc()?;
                let data = replies::sub_channel(packet[2] & 0x40 != 0, packet[3])?;
                Ok(Reply::Data(data, allocation))
            }
            // READ TOC. In SFF-8020i the format is in the last byte's upper bits.
            0x43 => {
                let old_format = packet[9] >> 6;
                let format = if packet[2] & 0x0f == 0 { old_format } else { packet[2] & 0x0f };
                let data = self.disc()?.toc(format, packet[1] & 2 != 0, packet[6])?;
                Ok(Reply::Data(data, allocation))
            }
            // STOP PLAY/SCAN, SET CD SPEED: nothing plays, and there is one speed.
            0x4e | 0xbb => Ok(Reply::Done),
            // READ DISC INFORMATION.
            0x51 => {
                self.disc()?;
                Ok(Reply::Data(replies::disc_information(), allocation))
            }
            // MECHANISM STATUS.
            0xbd => {
                let data = replies::mechanism_status(self.state.tray_open);
                Ok(Reply::Data(data, usize::from(word(8))))
            }
            // READ CD.
            0xbe => {
                let count = u32::from(packet[6]) << 16 | u32::from(word(7));
                self.read_cd(packet, dword(2), count)
            }
            _ => Err(Sense::INVALID_COMMAND),
        }
    }

    fn read(&mut self, first: u32, count: u32) -> Result<Reply, Sense> {
        self.state.power = Power::Active;
        self.disc()?.check(first, count)?;
        Ok(Reply::Read { first, count })
    }

    /// READ CD: of the block's parts only the user data can be had, or nothing.
    fn read_cd(
        &mut self,
        packet: &[u8; PACKET_LEN],
        first: u32,
        count: u32,
    ) -> Result<Reply, Sense> {
        const ANY_TYPE: u8 = 0;
        const MODE_1: u8 = 2;
        if !matches!(packet[1] >> 2 & 7, ANY_TYPE | MODE_1) {
            return Err(Sense::ILLEGAL_MODE);
        }
        match (packet[9], packet[10] & 7) {
            (0, 0) => self.disc()?.check(first, count).map(|()| Reply::Done),
            (0x10, 0) => self.read(first, count),
            _ => Err(Sense::INVALID_FIELD),
        }
    }

    /// REQUEST SENSE tells the sense once.
    fn request_sense(&mut self) -> Vec<u8> {
        let mut sense = std::mem::replace(&mut self.state.sense, Sense::NONE);
        if sense == Sense::NONE && std::mem::take(&mut self.state.attention) {
            sense = Sense::MEDIUM_CHANGED;
        }
        replies::sense(sense)
    }

    fn event_status(&mut self, classes: u8) -> Vec<u8> {
        const MEDIA: u8 = 1 << 4;
        if classes & MEDIA == 0 {
            return replies::no_event();
        }
        let event = std::mem::replace(&mut self.state.event, MediaEvent::None);
        replies::media_event(event, self.state.medium.is_some(), self.state.tray_open)
    }

    fn mode_sense(&self, page: u8, long: bool) -> Result<Vec<u8>, Sense> {
        // Page control: current, changeable, default or saved values.
        const CHANGEABLE: u8 = 1;
        const SAVED: u8 = 3;
        let (control, page) = (page >> 6, page & 0x3f);
        if control == SAVED {
            return Err(Sense::SAVING_NOT_SUPPORTED);
        }
        let disc = self.disc().ok();
        replies::mode_sense(page, control == CHANGEABLE, long, disc, self.state.locked)
    }

    fn start_stop(&mut self, operation: u8) -> Result<Reply, Sense> {
        const START: u8 = 1 << 0;
        const LOAD_EJECT: u8 = 1 << 1;
        match operation & (LOAD_EJECT | START) {
            LOAD_EJECT if self.state.locked => Err(Sense::REMOVAL_PREVENTED),
            LOAD_EJECT if self.state.medium.is_some() => Ok(Reply::Eject),
            LOAD_EJECT => {
                self.state.tray_open = true;
                Ok(Reply::Done)
            }
            START => self.disc().map(|_| Reply::Done),
            _ => {
                // Stop, or load.
                self.state.tray_open &= operation & LOAD_EJECT == 0;
                Ok(Reply::Done)
            }
        }
    }

    fn set_features(&mut self, interface: &mut Interface) {
        const SET_TRANSFER_MODE: u8 = 0x03;
        let features = interface.registers.features.current;
        let chosen = self.state.mode.choose(interface.registers.count.current);
        match chosen.filter(|_| features == SET_TRANSFER_MODE) {
            Some(mode) => {
                self.state.mode = mode;
                interface.finish(true);
            }
            None => interface.fail(error::ABRT),
        }
    }
}

impl CommandSet for CdRom {
    fn command(&mut self, interface: &mut Interface, command: u8) {
        if self.state.power == Power::Sleep || self.state.power.command(interface, command) {
            return;
        }
        match command {
            0xa0 => self.begin_packet(interface),
            // IDENTIFY PACKET DEVICE.
            0xa1 => {
                let (model, serial) = (&self.model, &self.serial);
                interface.offer(identify::cd_rom(model, serial, self.second, self.state.mode));
                self.state.stage = Stage::Identify;
                interface.begin_block(Phase::PioIn, SECTOR_SIZE);
                interface.interrupt = true;
            }
            // READ SECTOR(S) and IDENTIFY DEVICE tell by the signature that this is no disk.
            0x20 | 0xec => {
                interface.registers.set_signature(true);
                interface.fail(error::ABRT);
            }
            0xef => self.set_features(interface),
            _ => interface.fail(error::ABRT),
        }
    }

    fn moved(&mut self, interface: &mut Interface) {
        match self.state.stage {
            Stage::Packet => self.packet(interface),
            Stage::Identify => {
                self.state.stage = Stage::Idle;
                interface.finish(false);
            }
            _ => self.next(interface),
        }
    }

    fn answered(&mut self, interface: &mut Interface, result: Result<Vec<u8>, DiskError>) {
        match (self.state.stage, result) {
            (Stage::Reading { reading, next, left }, Ok(data)) => {
                if data.len() != reading as usize * BLOCK_SIZE {
                    return self.fail(interface, Sense::UNRECOVERED_READ_ERROR);
                }
                interface.offer(data);
                self.state.stage = Stage::Data { next, left };
                self.next(interface);
            }
            (Stage::Ejecting, Ok(_)) => {
                self.change_medium(None);
                self.state.tray_open = true;
                self.finish(interface);
            }
            (_, Ok(_)) => self.finish(interface),
            (_, Err(DiskError::OutOfRange)) => self.fail(interface, Sense::OUT_OF_RANGE),
            (_, Err(DiskError::NoMedium)) => self.fail(interface, Sense::NO_MEDIUM_TRAY_CLOSED),
            (Stage::Ejecting, Err(_)) => self.fail(interface, Sense::REMOVAL_PREVENTED),
            (_, Err(_)) => self.fail(interface, Sense::UNRECOVERED_READ_ERROR),
        }
    }

    fn reset(&mut self) {
        self.state.stage = Stage::Idle;
        self.state.power = Power::Active;
    }
}
