//! Flash memory with the firmware and its variables, at the end of the first 4 GiB.
//!
//! Chips of Intel's basic command set, as in the data sheet "3 Volt Intel StrataFlash Memory, 28F128J3, 28F640J3,
//! 28F320J3" (290667), whose names are used here, with the Common Flash Interface (JESD68). Up to two chips: the
//! first one ends at 4 GiB, where the processor starts, and the second one ends where the first begins, as in
//! QEMU's PCs; UEFI firmware is made for this. The chips are 8 bits wide and have erase blocks of 4 KiB.
//!
//! After a reset a chip is memory that cannot be written: the guest executes and reads it like a ROM, and a write is
//! a command. Between a command and "read array", reads give the status or a description of the chip. Programming
//! clears bits, and only erasing a block sets them. Operations are complete at once, so there is nothing to suspend.
//!
//! The contents are an area of guest memory, which belongs to a saved machine. A drive behind the chip gets what
//! changes: sectors that the guest programs one by one are sent together, when it returns to reading or a
//! millisecond later. If the guest is quicker than the drive, all sectors between those that changed wait until the
//! drive has answered.
//!
//! One thing is not as in the data sheet but as in QEMU: "clear status register" clears the bit that says that the
//! chip is ready, too, until the next operation. OVMF tells by that whether it is on flash memory.

mod query;

use ring3_core::clock::Tag;
use ring3_core::device::{Context, Device, DeviceId, Width};
use ring3_core::disk::{DiskAnswer, DiskOperation, DiskRequest, Medium, SECTOR_SIZE};
use ring3_core::input::DeviceInput;
use ring3_core::memory::{Area, Backing};
use ring3_core::state::{RestoreError, SavedState};
use serde::{Deserialize, Serialize};

const VERSION: u32 = 1;

/// How many chips there can be.
pub const CHIPS: usize = 2;
/// Bytes of an erase block.
pub const BLOCK_LEN: u64 = 4096;
/// log2 of the bytes of the write buffer.
const BUFFER_SHIFT: u8 = 8;
const BUFFER_LEN: usize = 1 << BUFFER_SHIFT;
const ERASED: u8 = 0xff;
const FOUR_GIB: u64 = 1 << 32;

/// How long what was programmed may wait for more, in nanoseconds.
const DELAY: u64 = 1_000_000;
/// The most requests that a drive has at a time.
const MOST_REQUESTS: u32 = 8;

/// Commands (data sheet, table "Command Bus-Cycle Definitions").
mod command {
    pub(super) const PROGRAM: u8 = 0x40;
    pub(super) const ALTERNATE_PROGRAM: u8 = 0x10;
    pub(super) const BLOCK_ERASE: u8 = 0x20;
    pub(super) const CLEAR_STATUS: u8 = 0x50;
    pub(super) const LOCK_BITS: u8 = 0x60;
    pub(super) const SET_LOCK_BIT: u8 = 0x01;
    pub(super) const READ_STATUS: u8 = 0x70;
    pub(super) const READ_IDENTIFIER: u8 = 0x90;
    pub(super) const READ_QUERY: u8 = 0x98;
    pub(super) const CONFIRM: u8 = 0xd0;
    pub(super) const WRITE_TO_BUFFER: u8 = 0xe8;
}

/// The status register. Its bits for errors stay set until they are cleared.
mod status {
    pub(super) const READY: u8 = 1 << 7;
    pub(super) const ERASE_ERROR: u8 = 1 << 5;
    pub(super) const PROGRAM_ERROR: u8 = 1 << 4;
    /// The block is protected.
    pub(super) const LOCKED: u8 = 1 << 1;
}

/// What reads give.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
enum Reads {
    #[default]
    Array,
    Status,
    Identifier,
    Query,
}

/// What the next write is, if it is not a command.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
enum Expected {
    #[default]
    Command,
    /// Bytes to program.
    Data,
    /// Confirmation of an erasure.
    Erasure,
    /// A change of lock bits, of which there are none.
    LockBits,
    /// The number of bytes for the write buffer, less 1.
    Count,
    /// Bytes for the write buffer.
    Buffer {
        /// Those that are there, by their offsets.
        bytes: Vec<(u32, u8)>,
        /// How many there will be.
        count: u16,
    },
}

/// A chip.
#[derive(Debug, Clone, Copy)]
struct Chip {
    /// Where its contents begin in the area.
    offset: u64,
    /// In bytes.
    len: u64,
    /// The guest-physical address where it begins.
    start: u64,
    read_only: bool,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
struct State {
    reads: Reads,
    expected: Expected,
    status: u8,
    /// Sectors that the drive does not know yet: the first one, and the one after the last.
    unsent: Option<(u32, u32)>,
    /// How many requests were sent.
    requests: u64,
    /// How many of them the drive has not answered.
    unanswered: u32,
}

/// The flash memory of a machine, device `flash`. The chips are the units of its drives and its memory regions.
#[derive(Debug, Clone)]
pub struct Flash {
    area: Area,
    chips: Vec<Chip>,
    states: Vec<State>,
}

impl Flash {
    /// Returns chips with the contents of `area`, which the last bytes of the first medium end. The media, whose sizes
    /// are multiples of [`BLOCK_LEN`], fill it.
    ///
    /// # Panics
    /// If they do not: a mistake of whoever builds a machine.
    pub fn new(area: Area, media: &[Medium]) -> Flash {
        let (mut offset, mut end) = (area.size(), FOUR_GIB);
        let chips = media.iter().take(CHIPS).map(|medium| {
            let len = medium.sectors * SECTOR_SIZE as u64;
            assert!(len.is_multiple_of(BLOCK_LEN), "a chip has whole blocks");
            offset -= len;
            end -= len;
            Chip { offset, len, start: end, read_only: medium.read_only }
        });
        let chips: Vec<_> = chips.collect();
        assert_eq!(offset, 0, "the chips have the whole area");
        let states = vec![State::default(); chips.len()];
        Flash { area, chips, states }
    }

    fn chip(&mut self, unit: u8) -> Option<ChipOf<'_>> {
        let (area, unit_index) = (self.area, usize::from(unit));
        let chip = *self.chips.get(unit_index)?;
        Some(ChipOf { area, unit, chip, state: self.states.get_mut(unit_index)? })
    }
}

/// One of the chips, with its state.
struct ChipOf<'a> {
    area: Area,
    unit: u8,
    chip: Chip,
    state: &'a mut State,
}

impl ChipOf<'_> {
    /// Decides what reads give from now on.
    fn read_as(&mut self, context: &mut Context<'_>, reads: Reads) {
        let was_array = self.state.reads == Reads::Array;
        self.state.reads = reads;
        if was_array != (reads == Reads::Array) {
            self.map(context);
        }
    }

    /// Maps the contents for reads, or sends reads here. Writes always come here.
    fn map(&self, context: &mut Context<'_>) {
        let Chip { offset, len, start, .. } = self.chip;
        let reads = match self.state.reads {
            Reads::Array => Backing::Area(self.area, offset),
            _ => Backing::Device,
        };
        let mapped = context.memory.map(start, len, reads, Backing::Device);
        mapped.expect("the chips fit below 4 GiB and into their area");
    }

    fn contents<'a>(&self, context: &'a Context<'_>) -> &'a [u8] {
        let Chip { offset, len, .. } = self.chip;
        &context.memory.area(self.area)[offset as usize..][..len as usize]
    }

    /// Returns the byte at `offset` of the chip.
    fn read_byte(&self, context: &Context<'_>, offset: u64) -> u8 {
        match self.state.reads {
            Reads::Array => self.contents(context).get(offset as usize).copied().unwrap_or(0xff),
            Reads::Status => self.state.status,
            Reads::Identifier => query::identifier(offset),
            Reads::Query => query::query(offset, self.chip.len),
        }
    }

    fn write(&mut self, context: &mut Context<'_>, offset: u64, width: Width, value: u32) {
        let low = value as u8;
        match std::mem::take(&mut self.state.expected) {
            Expected::Command => self.begin(context, low),
            Expected::Data => {
                let bytes = value.to_le_bytes();
                let bytes = (offset as u32..).zip(bytes).take(width.bytes().into());
                self.program(context, &bytes.collect::<Vec<_>>());
            }
            Expected::Erasure if low == command::CONFIRM => self.erase(context, offset),
            Expected::LockBits if [command::CONFIRM, command::SET_LOCK_BIT].contains(&low) => {
                self.state.status |= status::READY;
            }
            Expected::Count if usize::from(low) < BUFFER_LEN => {
                let (bytes, count) = (Vec::new(), u16::from(low) + 1);
                self.state.expected = Expected::Buffer { bytes, count };
            }
            Expected::Buffer { mut bytes, count } if bytes.len() < usize::from(count) => {
                let added = (offset as u32..).zip(value.to_le_bytes());
                bytes.extend(added.take(width.bytes().into()));
                self.state.expected = Expected::Buffer { bytes, count };
            }
            Expected::Buffer { bytes, .. } if low == command::CONFIRM => {
                self.program(context, &bytes);
            }
            Expected::Erasure | Expected::LockBits | Expected::Count | Expected::Buffer { .. } => {
                self.improper();
            }
        }
    }

    /// Takes the first byte of a command. One that does not exist is "read array".
    fn begin(&mut self, context: &mut Context<'_>, command: u8) {
        let (reads, expected) = match command {
            command::PROGRAM | command::ALTERNATE_PROGRAM => (Reads::Status, Expected::Data),
            command::BLOCK_ERASE => (Reads::Status, Expected::Erasure),
            command::LOCK_BITS => (Reads::Status, Expected::LockBits),
            command::WRITE_TO_BUFFER => {
                // The buffer is free.
                self.state.status |= status::READY;
                (Reads::Status, Expected::Count)
            }
            command::READ_STATUS => (Reads::Status, Expected::Command),
            command::READ_IDENTIFIER => (Reads::Identifier, Expected::Command),
            command::READ_QUERY => (Reads::Query, Expected::Command),
            command::CLEAR_STATUS => {
                self.state.status = 0;
                (self.state.reads, Expected::Command)
            }
            _ => (Reads::Array, Expected::Command),
        };
        self.state.expected = expected;
        self.read_as(context, reads);
        if reads == Reads::Array {
            self.send(context);
        }
    }

    /// Notes an improper sequence of commands: both errors.
    fn improper(&mut self) {
        self.state.status |= status::READY | status::ERASE_ERROR | status::PROGRAM_ERROR;
    }

    /// Programs bytes at these offsets: 1 becomes 0, and 0 stays 0.
    fn program(&mut self, context: &mut Context<'_>, bytes: &[(u32, u8)]) {
        self.state.status |= status::READY;
        if self.chip.read_only {
            self.state.status |= status::PROGRAM_ERROR | status::LOCKED;
            return;
        }
        for (offset, byte) in bytes {
            let Some(old) = self.contents(context).get(*offset as usize).copied() else { continue };
            if old & byte != old {
                self.change(context, (*offset).into(), &[old & byte]);
            }
        }
    }

    /// Erases the block with this offset in it.
    fn erase(&mut self, context: &mut Context<'_>, offset: u64) {
        self.state.status |= status::READY;
        if self.chip.read_only {
            self.state.status |= status::ERASE_ERROR | status::LOCKED;
            return;
        }
        let start = offset - offset % BLOCK_LEN;
        if start < self.chip.len {
            self.change(context, start, &[ERASED; BLOCK_LEN as usize]);
        }
    }

    /// Changes the contents.
    fn change(&mut self, context: &mut Context<'_>, offset: u64, bytes: &[u8]) {
        let sector = |offset: u64| (offset / SECTOR_SIZE as u64) as u32;
        let (first, end) = (sector(offset), sector(offset + bytes.len() as u64 - 1) + 1);
        match self.state.unsent {
            Some((unsent, unsent_end))
                if self.is_busy() || first <= unsent_end && unsent <= end =>
            {
                self.state.unsent = Some((unsent.min(first), unsent_end.max(end)));
            }
            _ => {
                self.send(context);
                self.state.unsent = Some((first, end));
                let at = context.now.plus_nanos(DELAY);
                context.set_timer(self.unit.into(), at);
            }
        }
        context.memory.write_area(self.area, self.chip.offset + offset, bytes);
    }

    /// Returns whether the drive has as many requests as it may have.
    fn is_busy(&self) -> bool {
        self.state.unanswered >= MOST_REQUESTS
    }

    /// Sends the drive what it does not know yet, unless it is busy.
    fn send(&mut self, context: &mut Context<'_>) {
        if self.is_busy() {
            return;
        }
        let Some((first, end)) = self.state.unsent.take() else { return };
        context.cancel_timer(self.unit.into());
        let [start, end] = [first, end].map(|sector| sector as usize * SECTOR_SIZE);
        let data = self.contents(context)[start..end].to_vec();
        // Both chips are behind one device: the tag's remainder is the chip.
        let tag = self.state.requests * CHIPS as u64 + u64::from(self.unit);
        self.state.requests += 1;
        self.state.unanswered += 1;
        let operation = DiskOperation::Write { sector: first.into(), data };
        context.ask_disk(self.unit, DiskRequest { tag, operation });
    }
}

impl Device for Flash {
    fn id(&self) -> DeviceId {
        DeviceId::FLASH
    }

    /// The contents stay as they are.
    fn reset(&mut self, context: &mut Context<'_>) {
        for unit in 0..self.chips.len() as u8 {
            let Some(mut chip) = self.chip(unit) else { continue };
            chip.send(context);
            let State { unsent, requests, unanswered, .. } = *chip.state;
            let kept = State { unsent, requests, unanswered, ..State::default() };
            *chip.state = State { status: status::READY, ..kept };
            chip.map(context);
            context.claim_memory(unit, chip.chip.start, chip.chip.len);
        }
    }

    fn read_memory(
        &mut self,
        context: &mut Context<'_>,
        region: u8,
        offset: u64,
        width: Width,
    ) -> u32 {
        let Some(chip) = self.chip(region) else { return width.mask() };
        let bytes = [0, 1, 2, 3].map(|byte| {
            if byte < width.bytes() {
                chip.read_byte(context, offset.wrapping_add(byte.into()))
            } else {
                0
            }
        });
        u32::from_le_bytes(bytes)
    }

    fn write_memory(
        &mut self,
        context: &mut Context<'_>,
        region: u8,
        offset: u64,
        width: Width,
        value: u32,
    ) {
        if let Some(mut chip) = self.chip(region) {
            chip.write(context, offset, width, value);
        }
    }

    fn timer(&mut self, context: &mut Context<'_>, tag: Tag) {
        if let Some(mut chip) = u8::try_from(tag).ok().and_then(|unit| self.chip(unit)) {
            chip.send(context);
        }
    }

    /// A drive that fails is an error of programming, which the guest may have stopped to look for.
    fn input(&mut self, context: &mut Context<'_>, input: DeviceInput) {
        let DeviceInput::Disk(DiskAnswer { tag, result }) = input else { return };
        let Some(mut chip) = self.chip((tag % CHIPS as u64) as u8) else { return };
        if result.is_err() {
            chip.state.status |= status::PROGRAM_ERROR;
        }
        let was_busy = chip.is_busy();
        chip.state.unanswered = chip.state.unanswered.saturating_sub(1);
        if was_busy {
            chip.send(context);
        }
    }

    fn save(&self) -> SavedState {
        SavedState::new(self.name(), VERSION, &self.states)
    }

    fn restore(&mut self, saved: &SavedState) -> Result<(), RestoreError> {
        let states: Vec<State> = saved.load(self.name(), VERSION)?;
        let fits = |(chip, state): (&Chip, &State)| {
            let buffered = match &state.expected {
                Expected::Buffer { bytes, count } => {
                    bytes.len() < BUFFER_LEN + 4 && usize::from(*count) <= BUFFER_LEN
                }
                _ => true,
            };
            let sectors = chip.len / SECTOR_SIZE as u64;
            let unsent =
                state.unsent.is_none_or(|(first, end)| first < end && u64::from(end) <= sectors);
            buffered && unsent && state.unanswered <= MOST_REQUESTS
        };
        if states.len() != self.chips.len() || !self.chips.iter().zip(&states).all(fits) {
            return Err(saved.damaged("the state of the chips is impossible"));
        }
        self.states = states;
        Ok(())
    }
}

#[cfg(test)]
mod tests;
