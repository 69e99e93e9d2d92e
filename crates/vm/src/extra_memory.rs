//! Memory that comes and goes while the machine runs, as those outside see it ([`ring3_devices::virtio::memory`]).
//!
//! There is room for it behind RAM, from a multiple of 1 GiB on.

use ring3_core::device::DeviceId;
use ring3_core::extra_memory::ExtraMemoryStatus;
use ring3_core::input::{DeviceInput, Input};
use ring3_core::memory::RamLayout;
use ring3_devices::virtio::memory::{BLOCK, ExtraMemoryModel};
use thiserror::Error;

use crate::config::Config;
use crate::control::{Control, Ended, Event, Request};
use crate::door::Door;
use crate::machine::Vm;

/// What the beginning of the region is a multiple of: systems add memory in aligned pieces.
const ALIGNMENT: u64 = 1 << 30;

/// The reasons why another size of this memory cannot be asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum ExtraMemoryError {
    /// The machine has ended.
    #[error(transparent)]
    Ended(#[from] Ended),
    /// The machine has no such memory.
    #[error("the machine has no memory that comes and goes: start it with --max-memory")]
    NoDevice,
    /// There is not so much room.
    #[error("{bytes} bytes are more than the {region} bytes that there is room for")]
    TooMuch {
        /// What was asked for.
        bytes: u64,
        /// The room.
        region: u64,
    },
    /// It is no number of whole blocks.
    #[error("{0} bytes are not a multiple of {BLOCK}")]
    Unaligned(u64),
}

/// The memory of a machine that comes and goes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ExtraMemoryInfo {
    /// The id by which people know the device.
    pub id: Option<String>,
    /// What is known of it.
    pub status: ExtraMemoryStatus,
}

/// Returns the guest-physical addresses that there is room at, if there is any.
pub(crate) fn region(config: &Config) -> Option<std::ops::Range<u64>> {
    let ExtraMemoryModel { region, .. } = config.extra_memory?;
    let start = RamLayout::of(config.memory_bytes).end().next_multiple_of(ALIGNMENT);
    Some(start..start.saturating_add(region))
}

impl Control {
    /// Returns the memory that comes and goes, if there is such.
    pub fn extra_memory(&self) -> Result<Option<ExtraMemoryInfo>, Ended> {
        Ok(self.describe()?.extra_memory)
    }

    /// Asks the guest to use `bytes` of it, a multiple of [`BLOCK`]. It is up to its driver, and [`Event::ExtraMemory`] says
    /// what has come of it.
    pub fn request_memory(&self, bytes: u64) -> Result<(), ExtraMemoryError> {
        self.ask(|reply| Request::ExtraMemory(bytes, reply))?
    }
}

impl Vm {
    /// Returns the memory that comes and goes, if there is such.
    pub(crate) fn extra_memory(&self) -> Option<ExtraMemoryInfo> {
        Some(ExtraMemoryInfo {
            id: self.ids.get(&DeviceId::EXTRA_MEMORY).cloned(),
            status: self.board.extra_memory()?,
        })
    }

    /// Returns the bytes of RAM and of the memory that has come.
    pub(crate) fn memory_now(&self) -> u64 {
        let extra = self.board.extra_memory().map_or(0, |status| status.plugged);
        self.config.memory_bytes + extra
    }

    /// Passes a request from outside to the device.
    pub(crate) fn request_memory(&mut self, bytes: u64) -> Result<(), ExtraMemoryError> {
        let status = self.board.extra_memory().ok_or(ExtraMemoryError::NoDevice)?;
        if bytes > status.region {
            return Err(ExtraMemoryError::TooMuch { bytes, region: status.region });
        }
        if !bytes.is_multiple_of(BLOCK) {
            return Err(ExtraMemoryError::Unaligned(bytes));
        }
        let (device, input) = (DeviceId::EXTRA_MEMORY, DeviceInput::ExtraMemory { bytes });
        // An input of a device never ends the run.
        self.take_input(Input::Device { device, input });
        Ok(())
    }

    /// Tells the subscribers how much there is, if that has changed.
    pub(crate) fn tell_of_extra_memory(&mut self, door: &mut Door) {
        if let Some(bytes) = self.told_extra_memory.take() {
            let id = self.ids.get(&DeviceId::EXTRA_MEMORY).cloned();
            door.tell(&Event::ExtraMemory { id, bytes });
        }
    }
}
