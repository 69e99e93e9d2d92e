//! What ATA disks and ATAPI drives have in common: the registers that the host sees, and the way of data
//! between them and a buffer.

use ring3_core::device::Width;
use ring3_core::disk::{DiskOperation, SECTOR_SIZE};
use serde::{Deserialize, Serialize};

/// Sectors of 512 bytes that a drive asks for at once: what bounds its buffer.
pub(super) const PART_SECTORS: u32 = 256;
/// Bytes of such a part.
pub(super) const PART_BYTES: usize = PART_SECTORS as usize * SECTOR_SIZE;

/// Bits of the status register (ATA-6, 7.15).
pub(super) mod status {
    /// Busy: the device has its registers for itself.
    pub(in super::super) const BSY: u8 = 0x80;
    /// Device ready.
    pub(in super::super) const DRDY: u8 = 0x40;
    /// Device seek complete; it is always complete here.
    pub(in super::super) const DSC: u8 = 0x10;
    /// Data request.
    pub(in super::super) const DRQ: u8 = 0x08;
    /// Error, or check condition for a packet.
    pub(in super::super) const ERR: u8 = 0x01;
}

/// Bits of the error register (ATA-6, 7.9).
pub(super) mod error {
    /// Uncorrectable data.
    pub(in super::super) const UNC: u8 = 0x40;
    /// ID not found: the address is outside of the medium.
    pub(in super::super) const IDNF: u8 = 0x10;
    /// Command aborted.
    pub(in super::super) const ABRT: u8 = 0x04;
}

/// Diagnostic code: passed (ATA-6, EXECUTE DEVICE DIAGNOSTIC).
pub(super) const DIAGNOSTIC_PASSED: u8 = 0x01;

/// The device register selects device 1.
pub(super) const DEVICE_DEV: u8 = 0x10;
/// The address is an LBA and no cylinder, head and sector.
pub(super) const DEVICE_LBA: u8 = 0x40;
/// The head, or bits 27:24 of an LBA.
pub(super) const DEVICE_HEAD: u8 = 0x0f;

/// A register that remembers the value before: what 48-bit commands take as its upper byte.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Pair {
    /// What was written last.
    pub(super) current: u8,
    /// What was written before that.
    pub(super) previous: u8,
}

impl Pair {
    fn write(&mut self, value: u8) {
        *self = Pair { current: value, previous: self.current };
    }

    /// Both bytes.
    pub(super) fn wide(self) -> u16 {
        u16::from_le_bytes([self.current, self.previous])
    }

    fn set_wide(&mut self, value: u16) {
        [self.current, self.previous] = value.to_le_bytes();
    }

    /// The value before with HOB, the last one without.
    fn read(self, hob: bool) -> u8 {
        if hob { self.previous } else { self.current }
    }
}

/// The command block registers that take parameters (ATA-6, 7.7 to 7.14).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct TaskFile {
    pub(super) features: Pair,
    /// Sector count; the interrupt reason of a packet command.
    pub(super) count: Pair,
    pub(super) lba_low: Pair,
    /// LBA mid or cylinder low; the byte count's low byte of a packet command.
    pub(super) lba_mid: Pair,
    /// LBA high or cylinder high; the byte count's high byte.
    pub(super) lba_high: Pair,
    pub(super) device: u8,
}

impl TaskFile {
    /// The host writes register 1 to 6.
    pub(super) fn write(&mut self, register: u16, value: u8) {
        match register {
            1 => self.features.write(value),
            2 => self.count.write(value),
            3 => self.lba_low.write(value),
            4 => self.lba_mid.write(value),
            5 => self.lba_high.write(value),
            _ => self.device = value,
        }
    }

    /// The host reads register 2 to 6; with `hob`, the values before the last.
    pub(super) fn read(&self, register: u16, hob: bool) -> u8 {
        match register {
            2 => self.count.read(hob),
            3 => self.lba_low.read(hob),
            4 => self.lba_mid.read(hob),
            5 => self.lba_high.read(hob),
            // Bits 7 and 5 are obsolete and read 1.
            _ => self.device | 0xa0,
        }
    }

    /// The address as 28 bits, whatever the LBA bit says.
    pub(super) fn lba28(&self) -> u64 {
        u64::from(u32::from_le_bytes([
            self.lba_low.current,
            self.lba_mid.current,
            self.lba_high.current,
            self.device & DEVICE_HEAD,
        ]))
    }

    /// The address as 48 bits.
    pub(super) fn lba48(&self) -> u64 {
        let [low, mid, high] = [self.lba_low, self.lba_mid, self.lba_high];
        u64::from_le_bytes([
            low.current,
            mid.current,
            high.current,
            low.previous,
            mid.previous,
            high.previous,
            0,
            0,
        ])
    }

    pub(super) fn set_lba28(&mut self, lba: u64) {
        let bytes = lba.to_le_bytes();
        self.lba_low.current = bytes[0];
        self.lba_mid.current = bytes[1];
        self.lba_high.current = bytes[2];
        self.device = self.device & !DEVICE_HEAD | bytes[3] & DEVICE_HEAD;
    }

    pub(super) fn set_lba48(&mut self, lba: u64) {
        let bytes = lba.to_le_bytes();
        self.lba_low.set_wide(u16::from_le_bytes([bytes[0], bytes[3]]));
        self.lba_mid.set_wide(u16::from_le_bytes([bytes[1], bytes[4]]));
        self.lba_high.set_wide(u16::from_le_bytes([bytes[2], bytes[5]]));
    }

    /// The signature by which software tells disks and packet devices apart after a
    /// reset (ATA-6, 9.12).
    pub(super) fn set_signature(&mut self, packet_device: bool) {
        let (mid, high) = if packet_device { (0x14, 0xeb) } else { (0, 0) };
        let one = |current| Pair { current, previous: 0 };
        self.count = one(1);
        self.lba_low = one(1);
        self.lba_mid = one(mid);
        self.lba_high = one(high);
        self.device &= DEVICE_DEV;
    }
}

/// What the device and the host are at.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Phase {
    /// The device waits for a command.
    Ready,
    /// The device waits for its medium.
    Waiting,
    /// The host reads the data register.
    PioIn,
    /// The host writes the data register.
    PioOut,
    /// The bus master takes data.
    DmaIn,
    /// The bus master gives data.
    DmaOut,
}

/// The host's side of a device.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Interface {
    pub(super) registers: TaskFile,
    pub(super) error: u8,
    /// The status register but for BSY and DRQ, which follow from the phase.
    ready: u8,
    /// The device asks for an interrupt.
    pub(super) interrupt: bool,
    phase: Phase,
    /// Data on its way, at most [`PART_BYTES`].
    #[serde(with = "serde_bytes")]
    buffer: Vec<u8>,
    /// How much of it has gone.
    position: usize,
    /// Where the block ends that goes under one data request.
    block_end: usize,
    /// What the device wants of its medium and nobody has taken to it yet.
    #[serde(skip)]
    request: Option<DiskOperation>,
}

impl Interface {
    /// After power-on or a reset: the diagnostics are passed, and the signature stands in the registers. A packet
    /// device is not ready before its first command.
    pub(super) fn after_reset(packet_device: bool) -> Interface {
        let mut registers = TaskFile::default();
        registers.set_signature(packet_device);
        Interface {
            registers,
            error: DIAGNOSTIC_PASSED,
            ready: if packet_device { 0 } else { status::DRDY | status::DSC },
            interrupt: false,
            phase: Phase::Ready,
            buffer: Vec::new(),
            position: 0,
            block_end: 0,
            request: None,
        }
    }

    /// The status register.
    pub(super) fn status(&self) -> u8 {
        match self.phase {
            Phase::Ready => self.ready,
            Phase::Waiting => self.ready | status::BSY,
            _ => self.ready | status::DRQ,
        }
    }

    pub(super) fn phase(&self) -> Phase {
        self.phase
    }

    /// What the device now wants of its medium.
    pub(super) fn take_request(&mut self) -> Option<DiskOperation> {
        self.request.take()
    }

    /// A new command begins: the error of the last one is gone.
    pub(super) fn begin_command(&mut self) {
        self.interrupt = false;
        self.error = 0;
        self.ready = status::DRDY | status::DSC;
    }

    /// The command has ended well; `interrupt` says whether it ends with an interrupt.
    pub(super) fn finish(&mut self, interrupt: bool) {
        self.phase = Phase::Ready;
        self.interrupt |= interrupt;
        self.buffer = Vec::new();
        (self.position, self.block_end) = (0, 0);
    }

    /// The command has failed with these bits of the error register.
    pub(super) fn fail(&mut self, error: u8) {
        self.finish(true);
        self.error = error;
        self.ready |= status::ERR;
    }

    /// Asks the medium; the device is busy until it answers.
    pub(super) fn ask(&mut self, operation: DiskOperation) {
        self.phase = Phase::Waiting;
        self.request = Some(operation);
    }

    /// Puts `data` into the buffer for the host.
    pub(super) fn offer(&mut self, data: Vec<u8>) {
        self.buffer = data;
        (self.position, self.block_end) = (0, 0);
    }

    /// Makes room in the buffer for `len` bytes from the host.
    pub(super) fn expect(&mut self, len: usize) {
        self.offer(vec![0; len]);
    }

    /// The next `len` bytes of the buffer, or what is left of it, go through the data
    /// register in one block.
    pub(super) fn begin_block(&mut self, phase: Phase, len: usize) -> usize {
        self.phase = phase;
        let len = len.min(self.left());
        self.block_end = self.position + len;
        len
    }

    /// All that is in the buffer goes by DMA.
    pub(super) fn begin_dma(&mut self, phase: Phase) {
        self.begin_block(phase, self.left());
    }

    /// Bytes of the buffer that have yet to go.
    pub(super) fn left(&self) -> usize {
        self.buffer.len() - self.position
    }

    /// The data that the host has given.
    pub(super) fn take_data(&mut self) -> Vec<u8> {
        (self.position, self.block_end) = (0, 0);
        std::mem::take(&mut self.buffer)
    }

    /// The bytes that the block still has, for the data register or the bus master.
    pub(super) fn block(&mut self) -> &mut [u8] {
        &mut self.buffer[self.position..self.block_end]
    }

    /// `len` bytes of the block have gone. True when it is complete.
    pub(super) fn advance(&mut self, len: usize) -> bool {
        self.position = (self.position + len).min(self.block_end);
        self.position == self.block_end
    }

    /// The host reads the data register: the value, and whether the block is complete now. Where there is
    /// no data, it reads ones; the odd last byte of a packet's data has a byte to pad.
    pub(super) fn read_data(&mut self, width: Width) -> (u32, bool) {
        if self.phase != Phase::PioIn {
            return (width.mask(), false);
        }
        let mut bytes = [0; 4];
        let len = self.block().len().min(width.bytes().into());
        bytes[..len].copy_from_slice(&self.block()[..len]);
        (u32::from_le_bytes(bytes), self.advance(len))
    }

    /// The host writes the data register. True when the block is complete now.
    pub(super) fn write_data(&mut self, width: Width, value: u32) -> bool {
        if self.phase != Phase::PioOut {
            return false;
        }
        let len = self.block().len().min(width.bytes().into());
        self.block()[..len].copy_from_slice(&value.to_le_bytes()[..len]);
        self.advance(len)
    }

    /// The host reads the data register of `width` again and again: gives it `bytes` as far as the block goes on after them, and returns how many accesses
    /// that took.
    pub(super) fn read_string(&mut self, width: Width, bytes: &mut [u8]) -> usize {
        let (len, accesses) = self.within_block(Phase::PioIn, width, bytes.len());
        bytes[..len].copy_from_slice(&self.block()[..len]);
        self.advance(len);
        accesses
    }

    /// The host writes the data register in the same way.
    pub(super) fn write_string(&mut self, width: Width, bytes: &[u8]) -> usize {
        let (len, accesses) = self.within_block(Phase::PioOut, width, bytes.len());
        self.block()[..len].copy_from_slice(&bytes[..len]);
        self.advance(len);
        accesses
    }

    /// How many bytes, of `len` at most, go in `phase` by accesses of `width` after which the block is not complete; and how many accesses those are.
    fn within_block(&mut self, phase: Phase, width: Width, len: usize) -> (usize, usize) {
        if self.phase != phase {
            return (0, 0);
        }
        let width = usize::from(width.bytes());
        let accesses = len.min(self.block().len().saturating_sub(1)) / width;
        (accesses * width, accesses)
    }

    /// False for what no treatment of the device can lead to.
    pub(super) fn is_possible(&self) -> bool {
        let moving = !matches!(self.phase, Phase::Ready | Phase::Waiting);
        self.buffer.len() <= PART_BYTES
            && self.position <= self.block_end
            && self.block_end <= self.buffer.len()
            && (!moving || self.position < self.block_end)
            && self.ready & (status::BSY | status::DRQ) == 0
    }
}
