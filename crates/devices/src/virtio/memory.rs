//! Memory that comes and goes while the machine runs (virtio 1.2, 5.15).
//!
//! The device has a region of guest-physical addresses behind RAM, in blocks of [`BLOCK`]. Those outside say how much memory should be
//! there; the driver plugs blocks when its system has a use for them, and unplugs them when it can do without.
//!
//! Where no block is plugged, nothing is: reads return ones, writes are dropped, and the host holds nothing. The device offers
//! `VIRTIO_MEM_F_UNPLUGGED_INACCESSIBLE` and so tells drivers. A block that is plugged again has zeros. So the machine does the same
//! whatever the host does with the memory, and a replay needs no more than what was asked for.

use std::ops::Range;

use ring3_core::clock::Tag;
use ring3_core::device::{DeviceId, Output};
use ring3_core::extra_memory::ExtraMemoryStatus;
use ring3_core::input::DeviceInput;
use ring3_core::memory::Backing;
use ring3_core::state::{RestoreError, SavedState};
use serde::{Deserialize, Serialize};

use super::queue::Chain;
use super::segments::{scatter, take_front};
use super::telling::Telling;
use super::{DeviceType, Work};

/// Device ID (5.15.1).
const ID: u16 = 24;
/// A device of no class, as QEMU's.
const CLASS: u32 = 0x00ff00;

/// Descriptors of the queue.
const SIZE: u16 = 128;
/// The only queue (5.15.2).
const REQUESTS: u16 = 0;

/// Bytes of a block, as QEMU's: those of a large page.
pub const BLOCK: u64 = 2 << 20;

/// Features (5.15.3).
mod features {
    pub(super) const UNPLUGGED_INACCESSIBLE: u64 = 1 << 1;
}

/// The kinds of requests (5.15.6).
mod requests {
    pub(super) const PLUG: u16 = 0;
    pub(super) const UNPLUG: u16 = 1;
    pub(super) const UNPLUG_ALL: u16 = 2;
    pub(super) const STATE: u16 = 3;
    /// Bytes of `struct virtio_mem_req`.
    pub(super) const LEN: usize = 24;
}

/// The answers to them.
mod answers {
    pub(super) const ACK: u16 = 0;
    pub(super) const NACK: u16 = 1;
    pub(super) const ERROR: u16 = 3;
    /// Bytes of `struct virtio_mem_resp`.
    pub(super) const LEN: usize = 10;
}

/// The states of blocks.
mod states {
    pub(super) const PLUGGED: u16 = 0;
    pub(super) const UNPLUGGED: u16 = 1;
    pub(super) const MIXED: u16 = 2;
}

/// The timer to tell those outside.
const TELL: Tag = 0;

const VERSION: u32 = 1;

/// Memory that comes and goes, when the machine is switched on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExtraMemoryModel {
    /// Bytes that there is room for, a multiple of [`BLOCK`].
    pub region: u64,
    /// Bytes that should be there, a multiple of it up to that.
    pub requested: u64,
}

impl ExtraMemoryModel {
    /// Returns whether there can be such a device.
    pub fn is_possible(self) -> bool {
        self.region > 0 && self.region.is_multiple_of(BLOCK) && self.may_be(self.requested)
    }

    /// Returns whether so many bytes can be requested.
    pub fn may_be(self, requested: u64) -> bool {
        requested <= self.region && requested.is_multiple_of(BLOCK)
    }

    fn blocks(self) -> usize {
        (self.region / BLOCK) as usize
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct State {
    requested: u64,
    /// Which blocks are plugged.
    plugged: Vec<bool>,
    telling: Telling<u64>,
}

/// The device type of memory that comes and goes.
#[derive(Debug)]
pub struct ExtraMemory {
    model: ExtraMemoryModel,
    /// The guest-physical address of the region.
    start: u64,
    state: State,
}

/// What the driver is answered: the kind, and a state of blocks.
type Answer = (u16, u16);

impl ExtraMemory {
    /// The device type of `model`, which must be [possible](ExtraMemoryModel::is_possible), with the RAM that was added for
    /// the addresses from `start` on ([`Memory::add_later_ram`](ring3_core::memory::Memory::add_later_ram)).
    pub fn new(model: ExtraMemoryModel, start: u64) -> ExtraMemory {
        let state = State {
            requested: model.requested,
            plugged: vec![false; model.blocks()],
            telling: Telling::default(),
        };
        ExtraMemory { model, start, state }
    }

    fn plugged_bytes(&self) -> u64 {
        self.state.plugged.iter().filter(|is_plugged| **is_plugged).count() as u64 * BLOCK
    }

    /// The blocks of a request, if they are in the region.
    fn blocks(&self, address: u64, count: u16) -> Option<Range<usize>> {
        let offset = address.checked_sub(self.start).filter(|offset| offset % BLOCK == 0)?;
        let first = usize::try_from(offset / BLOCK).ok()?;
        let blocks = first..first.checked_add(count.into())?;
        (!blocks.is_empty() && blocks.end <= self.state.plugged.len()).then_some(blocks)
    }

    /// Plugs `blocks`, all of which are not, or unplugs them, all of which are.
    fn set(&mut self, work: &mut Work<'_, '_>, blocks: Range<usize>, is_plugged: bool) {
        let (offset, len) = (blocks.start as u64 * BLOCK, blocks.len() as u64 * BLOCK);
        let memory = &mut *work.context.memory;
        let Some(area) = memory.later_ram() else { return };
        let backing = if is_plugged {
            Backing::Area(area, offset)
        } else {
            memory.release_area(area, offset, len);
            Backing::Device
        };
        let mapped = memory.map(self.start + offset, len, backing, backing);
        debug_assert!(mapped.is_ok(), "the region was added for these addresses");
        self.state.plugged[blocks].fill(is_plugged);
    }

    fn unplug_all(&mut self, work: &mut Work<'_, '_>) {
        let plugged = self.state.plugged.clone();
        let mut first = 0;
        for run in plugged.chunk_by(|a, b| a == b) {
            let blocks = first..first + run.len();
            first = blocks.end;
            if run[0] {
                self.set(work, blocks, false);
            }
        }
        self.tell(work);
    }

    /// Does what the driver asks for (5.15.6.1 to 5.15.6.4).
    fn answer(&mut self, work: &mut Work<'_, '_>, request: [u8; requests::LEN]) -> Answer {
        const ERROR: Answer = (answers::ERROR, 0);
        let [k0, k1, _, _, _, _, _, _, a0, a1, a2, a3, a4, a5, a6, a7, c0, c1, ..] = request;
        let kind = u16::from_le_bytes([k0, k1]);
        if kind == requests::UNPLUG_ALL {
            self.unplug_all(work);
            return (answers::ACK, 0);
        }
        let address = u64::from_le_bytes([a0, a1, a2, a3, a4, a5, a6, a7]);
        let Some(blocks) = self.blocks(address, u16::from_le_bytes([c0, c1])) else { return ERROR };
        let there = &self.state.plugged[blocks.clone()];
        let (all, none) = (!there.contains(&false), !there.contains(&true));
        match kind {
            requests::PLUG if none => {
                let wanted = self.plugged_bytes() + blocks.len() as u64 * BLOCK;
                if wanted > self.state.requested {
                    return (answers::NACK, 0);
                }
                self.set(work, blocks, true);
            }
            requests::UNPLUG if all => self.set(work, blocks, false),
            requests::STATE if all => return (answers::ACK, states::PLUGGED),
            requests::STATE if none => return (answers::ACK, states::UNPLUGGED),
            requests::STATE => return (answers::ACK, states::MIXED),
            _ => return ERROR,
        }
        self.tell(work);
        (answers::ACK, 0)
    }

    fn tell(&mut self, work: &mut Work<'_, '_>) {
        let bytes = self.plugged_bytes();
        if self.state.telling.is_due(work.context, TELL, bytes) {
            work.context.output(Output::ExtraMemory { bytes });
        }
    }
}

impl DeviceType for ExtraMemory {
    fn device(&self) -> DeviceId {
        DeviceId::EXTRA_MEMORY
    }

    fn id(&self) -> u16 {
        ID
    }

    fn class(&self) -> u32 {
        CLASS
    }

    fn features(&self) -> u64 {
        features::UNPLUGGED_INACCESSIBLE
    }

    fn queue_sizes(&self) -> Vec<u16> {
        vec![SIZE]
    }

    /// `struct virtio_mem_config` (5.15.4): `block_size`, `node_id`, `addr`, `region_size`, `usable_region_size`, `plugged_size`
    /// and `requested_size`.
    fn config(&self) -> Vec<u8> {
        let (region, plugged) = (self.model.region, self.plugged_bytes());
        let fields = [BLOCK, 0, self.start, region, region, plugged, self.state.requested];
        fields.map(u64::to_le_bytes).as_flattened().to_vec()
    }

    fn notify(&mut self, work: &mut Work<'_, '_>, _queue: u16) {
        let size = work.queues[usize::from(REQUESTS)].size();
        // A driver cannot have more than that in it: without an end what is written there could feed it.
        for _ in 0..size {
            let queue = &mut work.queues[usize::from(REQUESTS)];
            let Some(Chain { head, mut readable, writable }) = queue.pop(work.context.memory)
            else {
                return;
            };
            let mut request = [0; requests::LEN];
            let is_whole = take_front(work.context.memory, &mut readable, &mut request);
            let (kind, state) =
                if is_whole { self.answer(work, request) } else { (answers::ERROR, 0) };
            let mut answer = [0; answers::LEN];
            answer[..2].copy_from_slice(&kind.to_le_bytes());
            answer[8..].copy_from_slice(&state.to_le_bytes());
            let written = scatter(work.context.memory, &writable, &answer);
            work.queues[usize::from(REQUESTS)].push(work.context.memory, head, written);
        }
    }

    fn input(&mut self, work: &mut Work<'_, '_>, input: DeviceInput) {
        let DeviceInput::ExtraMemory { bytes } = input else { return };
        if self.model.may_be(bytes) {
            work.config_changed = self.state.requested != bytes;
            self.state.requested = bytes;
        }
    }

    fn timer(&mut self, work: &mut Work<'_, '_>, _tag: Tag) {
        self.tell(work);
    }

    /// Memory stays: another driver may take it over (5.15.5).
    fn reset(&mut self, _work: &mut Work<'_, '_>) {}

    /// A system that starts finds none, since nobody has told it of any.
    fn power_on(&mut self, work: &mut Work<'_, '_>) {
        self.unplug_all(work);
    }

    fn extra_memory(&self) -> Option<ExtraMemoryStatus> {
        Some(ExtraMemoryStatus {
            region: self.model.region,
            start: self.start,
            requested: self.state.requested,
            plugged: self.plugged_bytes(),
        })
    }

    fn save(&self) -> SavedState {
        SavedState::new(DeviceId::EXTRA_MEMORY.name(), VERSION, &self.state)
    }

    /// The map of memory, which says the same, is restored with memory.
    fn restore(&mut self, saved: &SavedState) -> Result<(), RestoreError> {
        let state: State = saved.load(DeviceId::EXTRA_MEMORY.name(), VERSION)?;
        if state.plugged.len() != self.model.blocks() || !self.model.may_be(state.requested) {
            return Err(saved.damaged("its region is of another size"));
        }
        self.state = state;
        Ok(())
    }
}

#[cfg(test)]
mod tests;
