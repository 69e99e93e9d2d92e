//! The memory balloon of a machine, as those outside see it ([`ring3_devices::virtio::balloon`]).

use ring3_core::balloon::{BalloonRequest, BalloonStatus};
use ring3_core::device::DeviceId;
use ring3_core::input::{DeviceInput, Input};
use ring3_core::memory::PAGE_SIZE;
use thiserror::Error;

use crate::control::{Control, Ended, Event, Request};
use crate::door::Door;
use crate::machine::Vm;

/// The reasons why a balloon does nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum BalloonError {
    /// The machine has ended.
    #[error(transparent)]
    Ended(#[from] Ended),
    /// The machine has no balloon.
    #[error("the machine has no memory balloon")]
    NoBalloon,
}

/// The balloon of a machine.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct BalloonInfo {
    /// The id by which people know it.
    pub id: Option<String>,
    /// What is known of it.
    pub status: BalloonStatus,
    /// Bytes of the machine's memory, with what has come of it.
    pub memory_bytes: u64,
    /// The time of the machine's clock at power-on, in seconds since 1970.
    pub rtc_base: u64,
}

impl BalloonInfo {
    /// Returns how many bytes the guest has for itself.
    pub fn guest_bytes(&self) -> u64 {
        self.status.left_of(self.memory_bytes)
    }

    /// Returns when the statistics came, in seconds since 1970 by the machine's clock.
    pub fn updated(&self) -> Option<u64> {
        let updated = self.status.updated?;
        Some(self.rtc_base.saturating_add(updated.as_nanos() / 1_000_000_000))
    }
}

impl Control {
    /// Returns the balloon, if there is one.
    pub fn balloon(&self) -> Result<Option<BalloonInfo>, Ended> {
        Ok(self.describe()?.balloon)
    }

    /// Asks the guest to do with `bytes` of memory, or with all that there is. It is up to its driver, and
    /// [`Event::Balloon`] says what has come of it.
    pub fn set_guest_bytes(&self, bytes: u64) -> Result<(), BalloonError> {
        let info = self.balloon()?.ok_or(BalloonError::NoBalloon)?;
        let pages = info.memory_bytes.saturating_sub(bytes) / PAGE_SIZE;
        self.ask_balloon(BalloonRequest::Target { pages: u32::try_from(pages).unwrap_or(u32::MAX) })
    }

    /// Lets the guest give statistics every so many seconds from now on, or no more if that is 0.
    pub fn poll_balloon(&self, seconds: u32) -> Result<(), BalloonError> {
        self.ask_balloon(BalloonRequest::Poll { seconds })
    }

    fn ask_balloon(&self, request: BalloonRequest) -> Result<(), BalloonError> {
        self.ask(|reply| Request::Balloon(request, reply))?
    }
}

impl Vm {
    /// Returns the balloon, if there is one.
    pub(crate) fn balloon(&self) -> Option<BalloonInfo> {
        Some(BalloonInfo {
            id: self.ids.get(&DeviceId::BALLOON).cloned(),
            status: self.board.balloon()?,
            memory_bytes: self.memory_now(),
            rtc_base: self.config.rtc_base,
        })
    }

    /// Passes a request from outside to the balloon.
    pub(crate) fn ask_balloon(&mut self, request: BalloonRequest) -> Result<(), BalloonError> {
        let device = DeviceId::BALLOON;
        if !self.board.has(device) {
            return Err(BalloonError::NoBalloon);
        }
        // An input of a device never ends the run.
        self.take_input(Input::Device { device, input: DeviceInput::Balloon(request) });
        Ok(())
    }

    /// Tells the subscribers of the balloon, if it has another size.
    pub(crate) fn tell_of_balloon(&mut self, door: &mut Door) {
        if let Some(pages) = self.told_balloon.take() {
            let bytes = self.memory_now().saturating_sub(u64::from(pages) * PAGE_SIZE);
            door.tell(&Event::Balloon { guest_bytes: bytes });
        }
    }
}
