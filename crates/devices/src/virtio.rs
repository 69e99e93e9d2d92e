//! Virtio devices on PCI.
//!
//! From "Virtual I/O Device (VIRTIO) Version 1.2" (OASIS), whose sections are named here, and for drivers that know no more than
//! it from the "Virtio PCI Card Specification 0.9.5" (Russell).
//!
//! * [`queue`]: a virtqueue in guest memory;
//! * `transport`: negotiation of features, device status and the queues' registers;
//! * [`pci`]: the PCI function by which a driver reaches them, of version 1 and of 0.9.5;
//! * `msix`: its interrupts as messages;
//! * [`block`]: a disk;
//! * [`net`]: a network card;
//! * [`balloon`]: a memory balloon;
//! * [`memory`]: memory that comes and goes;
//! * [`channels`]: streams of bytes between programs in the guest and outside.
//!
//! # How a device type attaches
//!
//! What is the same for all devices is in [`pci::VirtioPci`], which is a [`Device`](ring3_core::device::Device) around a [`DeviceType`]: a disk, a network
//! card, or one whose work is done by another process. It calls the type with a [`Work`], by which the type reaches its queues and the machine:
//!
//! 1. The driver accepts features ([`DeviceType::features`]), sets its queues up and says DRIVER_OK: [`DeviceType::start`].
//! 2. The driver makes chains available in a queue and notifies: [`DeviceType::notify`]. The type takes them by [`Queue::pop`] until there
//!    is none, or until it has enough to do; then it says so by [`Queue::hold_notifications`].
//! 3. It does what they ask, at once or later, when an answer comes by the input door ([`DeviceType::input`]), and gives them
//!    back by [`Queue::push`], in any order.
//! 4. After each call the function looks at the queues, and interrupts the driver if it is to be. A driver that did what it must not
//!    do has [broken](Queue::fail) a queue: the device then needs a reset, and says so.
//! 5. A reset ([`DeviceType::reset`]) makes the queues new. What comes for older requests afterwards is to be dropped by the type.
//!
//! A type whose rings are worked on elsewhere (vhost-user) takes no chains. Where the rings are it finds by [`Queue::areas`], [`Queue::size`] and
//! [`Queue::next_available`]; where it hears that chains were given back, it says [`Queue::call`].
//!
//! ```
//! use ring3_core::device::{Device, DeviceId, TestBench, Width};
//! use ring3_core::disk::Medium;
//! use ring3_devices::virtio::block::{Block, DiskModel};
//! use ring3_devices::virtio::pci::{Interfaces, VirtioPci};
//!
//! let medium = Medium { sectors: 20480, read_only: false };
//! let disk = DiskModel { medium, serial: "1".to_owned(), queues: 1 };
//! let mut function = VirtioPci::new(4, Interfaces::default(), Block::new(DeviceId::VIRTIO_BLK[0], disk));
//! let mut bench = TestBench::default();
//! let identity = function.read_config(&mut bench.context(), 0, 0, Width::Dword);
//! assert_eq!(identity, 0x1001_1af4);
//! ```

use std::fmt::Debug;

use ring3_core::balloon::BalloonStatus;
use ring3_core::channel::ChannelStatus;
use ring3_core::clock::Tag;
use ring3_core::device::{Context, DeviceId};
use ring3_core::extra_memory::ExtraMemoryStatus;
use ring3_core::input::DeviceInput;
use ring3_core::state::{RestoreError, SavedState};

use self::queue::Queue;

pub mod balloon;
pub mod block;
pub mod channels;
#[cfg(test)]
mod driver;
pub mod memory;
mod msix;
pub mod net;
pub mod pci;
pub mod queue;
mod segments;
mod telling;
mod transport;

/// Feature bits of all device types (6), and of legacy devices.
pub mod features {
    /// `VIRTIO_F_ANY_LAYOUT`: a legacy driver may cut what it sends as it likes.
    pub const ANY_LAYOUT: u64 = 1 << 27;
    /// `VIRTIO_F_INDIRECT_DESC`: tables of descriptors outside of the queue's own.
    pub const INDIRECT_DESC: u64 = 1 << 28;
    /// `VIRTIO_F_EVENT_IDX`: notifications and interrupts at places in the rings.
    pub const EVENT_IDX: u64 = 1 << 29;
    /// `VIRTIO_F_VERSION_1`: the driver is none of version 0.9.5.
    pub const VERSION_1: u64 = 1 << 32;
}

/// What a device does of its type (5). See the module's "How a device type attaches".
pub trait DeviceType: Debug {
    /// The device of the machine.
    fn device(&self) -> DeviceId;

    /// The number of its type (5): 2 for a block device.
    fn id(&self) -> u16;

    /// The PCI class code: see [`Identity::class`](crate::pci::Identity::class).
    fn class(&self) -> u32;

    /// The features of its type that it offers; those of [`features`] are not its business.
    fn features(&self) -> u64;

    /// How many descriptors each of its queues has at most, powers of two up to 1024.
    fn queue_sizes(&self) -> Vec<u16>;

    /// The device configuration (2.5), always of the same length, up to 1024 bytes.
    fn config(&self) -> Vec<u8>;

    /// The driver writes a byte of it.
    fn write_config(&mut self, _work: &mut Work<'_, '_>, _offset: usize, _value: u8) {}

    /// The driver is there: features and queues are as they will be. A legacy driver may come without that.
    fn start(&mut self, _work: &mut Work<'_, '_>) {}

    /// The driver says that there is something in queue `queue`, which it uses.
    fn notify(&mut self, work: &mut Work<'_, '_>, queue: u16);

    /// Something from outside has come, perhaps for what was asked before a reset.
    fn input(&mut self, _work: &mut Work<'_, '_>, _input: DeviceInput) {}

    /// A timer is due that it has set.
    fn timer(&mut self, _work: &mut Work<'_, '_>, _tag: Tag) {}

    /// False while there is no room for more input.
    fn takes_input(&self) -> bool {
        true
    }

    /// Everything is as after power-on, but for what others still do for it. The queues of `work` are new already.
    fn reset(&mut self, work: &mut Work<'_, '_>);

    /// The machine is switched on, or reset. A reset of the driver's has come before.
    fn power_on(&mut self, _work: &mut Work<'_, '_>) {}

    /// What is known of the channels that lead through it, by their numbers.
    fn channels(&self) -> Vec<ChannelStatus> {
        Vec::new()
    }

    /// What is known of memory that comes and goes.
    fn extra_memory(&self) -> Option<ExtraMemoryStatus> {
        None
    }

    /// What is known of a memory balloon.
    fn balloon(&self) -> Option<BalloonStatus> {
        None
    }

    /// Its state, without those of queues and registers.
    fn save(&self) -> SavedState;

    /// Takes over a state that [`DeviceType::save`] made. On an error nothing has changed.
    fn restore(&mut self, saved: &SavedState) -> Result<(), RestoreError>;
}

/// What a device type may do during one call.
pub struct Work<'a, 'b> {
    /// The machine.
    pub context: &'a mut Context<'b>,
    /// The queues. Those that the driver does not use have nothing in them, and what is given back there is lost.
    pub queues: &'a mut [Queue],
    /// What the driver has accepted of the features.
    pub features: u64,
    /// To be set where the type itself has changed the device configuration: the driver hears of it.
    pub config_changed: bool,
}
