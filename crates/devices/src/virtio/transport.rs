//! What every virtio device has, however the driver reaches it: features, status, the queues' registers, and what an interrupt
//! is for (virtio 1.2, 2.1, 2.2 and 4.1.4.3).

use ring3_core::device::Width;
use ring3_core::memory::Memory;
use serde::{Deserialize, Serialize};

use super::features::{EVENT_IDX, INDIRECT_DESC, VERSION_1};
use super::queue::{Areas, Queue};

// Device status (2.1).
const STATUS_DRIVER_OK: u8 = 1 << 2;
const STATUS_FEATURES_OK: u8 = 1 << 3;
const STATUS_NEEDS_RESET: u8 = 1 << 6;

// Interrupt status (4.1.4.5).
const INTERRUPT_QUEUE: u8 = 1 << 0;
const INTERRUPT_CONFIG: u8 = 1 << 1;

/// No MSI-X vector (4.1.4.3).
pub(super) const NO_VECTOR: u16 = 0xffff;

/// Offsets of the common configuration (4.1.4.3). Addresses have eight bytes, in two halves.
mod common {
    pub(super) const DEVICE_FEATURE_SELECT: u64 = 0;
    pub(super) const DRIVER_FEATURE_SELECT: u64 = 8;
    pub(super) const DRIVER_FEATURE: u64 = 12;
    pub(super) const CONFIG_VECTOR: u64 = 16;
    pub(super) const DEVICE_STATUS: u64 = 20;
    pub(super) const QUEUE_SELECT: u64 = 22;
    pub(super) const QUEUE_SIZE: u64 = 24;
    pub(super) const QUEUE_VECTOR: u64 = 26;
    pub(super) const QUEUE_ENABLE: u64 = 28;
    pub(super) const QUEUE_DESCRIPTORS: u64 = 32;
    pub(super) const QUEUE_DRIVER: u64 = 40;
    pub(super) const QUEUE_DEVICE: u64 = 48;
    pub(super) const END: usize = 56;
}

/// Ports of a legacy device, from its first one on (0.9.5, 2.2.2).
mod legacy {
    pub(super) const DRIVER_FEATURES: u16 = 4;
    pub(super) const QUEUE_ADDRESS: u16 = 8;
    pub(super) const QUEUE_SELECT: u16 = 14;
    pub(super) const QUEUE_NOTIFY: u16 = 16;
    pub(super) const DEVICE_STATUS: u16 = 18;
    pub(super) const CONFIG_VECTOR: u16 = 20;
    pub(super) const QUEUE_VECTOR: u16 = 22;
    pub(super) const END: usize = 24;
}
/// Where interrupt status is among them, which reading clears.
pub(super) const LEGACY_INTERRUPT_STATUS: u16 = 19;
/// Where the device configuration begins, with and without MSI-X.
pub(super) const LEGACY_CONFIG: [u16; 2] = [20, 24];

/// What a write to a register leads to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Effect {
    /// Nothing more.
    Nothing,
    /// The driver resets the device.
    Reset,
    /// The driver is there.
    Start,
    /// It notifies of something in that queue.
    Notify(u16),
}

/// The registers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Transport {
    /// Which half of the features the driver reads, and which it writes.
    device_feature_select: u32,
    driver_feature_select: u32,
    driver_features: u64,
    status: u8,
    queue_select: u16,
    config_generation: u8,
    interrupt_status: u8,
    config_vector: u16,
    /// The queues, and the vector of each.
    queues: Vec<Queue>,
    vectors: Vec<u16>,
}

/// What the device is, which registers do not change.
#[derive(Debug, Clone)]
pub(super) struct Fixed {
    /// The features that are offered.
    pub(super) features: u64,
    /// See [`super::DeviceType::queue_sizes`].
    pub(super) queue_sizes: Vec<u16>,
    /// How many MSI-X vectors there are.
    pub(super) vectors: u16,
}

impl Transport {
    /// As after power-on.
    pub(super) fn new(fixed: &Fixed) -> Transport {
        Transport {
            device_feature_select: 0,
            driver_feature_select: 0,
            driver_features: 0,
            status: 0,
            queue_select: 0,
            config_generation: 0,
            interrupt_status: 0,
            config_vector: NO_VECTOR,
            queues: fixed.queue_sizes.iter().map(|size| Queue::new(*size)).collect(),
            vectors: vec![NO_VECTOR; fixed.queue_sizes.len()],
        }
    }

    pub(super) fn queues(&mut self) -> &mut [Queue] {
        &mut self.queues
    }

    pub(super) fn driver_features(&self) -> u64 {
        self.driver_features
    }

    /// The driver uses queue `index`, and the device may work on it.
    pub(super) fn runs(&self, index: u16) -> bool {
        let queue = self.queues.get(usize::from(index));
        queue.is_some_and(|queue| queue.is_running() && !queue.is_broken())
    }

    fn queue(&self) -> Option<&Queue> {
        self.queues.get(usize::from(self.queue_select))
    }

    fn queue_mut(&mut self) -> Option<&mut Queue> {
        self.queues.get_mut(usize::from(self.queue_select))
    }

    fn vector(&self) -> u16 {
        self.vectors.get(usize::from(self.queue_select)).copied().unwrap_or(NO_VECTOR)
    }

    /// The common configuration from `offset` on.
    pub(super) fn read_common(&self, fixed: &Fixed, offset: u64, width: Width) -> u32 {
        let half = |features: u64, select: u32| match select {
            0 => features as u32,
            1 => (features >> 32) as u32,
            _ => 0,
        };
        let queue = self.queue();
        let areas = queue.map(Queue::areas).unwrap_or_default();
        let mut bytes = [0; common::END];
        let mut place = 0;
        let mut put = |field: &[u8]| {
            bytes[place..place + field.len()].copy_from_slice(field);
            place += field.len();
        };
        put(&self.device_feature_select.to_le_bytes());
        put(&half(fixed.features, self.device_feature_select).to_le_bytes());
        put(&self.driver_feature_select.to_le_bytes());
        put(&half(self.driver_features, self.driver_feature_select).to_le_bytes());
        put(&self.config_vector.to_le_bytes());
        put(&(self.queues.len() as u16).to_le_bytes());
        put(&[self.status, self.config_generation]);
        put(&self.queue_select.to_le_bytes());
        put(&queue.map_or(0, Queue::size).to_le_bytes());
        put(&self.vector().to_le_bytes());
        put(&u16::from(queue.is_some_and(Queue::is_enabled)).to_le_bytes());
        // Where to notify, which is another place for each queue.
        put(&self.queue_select.to_le_bytes());
        put(&areas.descriptors.to_le_bytes());
        put(&areas.available.to_le_bytes());
        put(&areas.used.to_le_bytes());
        bytes_at(&bytes, offset, width)
    }

    /// The driver writes a field of the common configuration, or one half of an address; accesses of other widths do nothing (4.1.3.1).
    pub(super) fn write_common(
        &mut self,
        fixed: &Fixed,
        memory: &Memory,
        offset: u64,
        width: Width,
        value: u32,
    ) -> Effect {
        match (offset, width) {
            (common::DEVICE_FEATURE_SELECT, Width::Dword) => self.device_feature_select = value,
            (common::DRIVER_FEATURE_SELECT, Width::Dword) => self.driver_feature_select = value,
            (common::DRIVER_FEATURE, Width::Dword) => self.accept_features(value),
            (common::CONFIG_VECTOR, Width::Word) => {
                self.config_vector = known_vector(fixed, value);
            }
            (common::DEVICE_STATUS, Width::Byte) => {
                return self.write_status(fixed, memory, value as u8);
            }
            (common::QUEUE_SELECT, Width::Word) => self.queue_select = value as u16,
            (common::QUEUE_SIZE, Width::Word) => {
                if let Some(queue) = self.queue_mut() {
                    queue.set_size(value as u16);
                }
            }
            (common::QUEUE_VECTOR, Width::Word) => self.write_queue_vector(fixed, value),
            (common::QUEUE_ENABLE, Width::Word) if value == 1 => self.enable_queue(memory, false),
            (common::QUEUE_DESCRIPTORS..0x38, Width::Dword) if offset.is_multiple_of(4) => {
                self.write_queue_address(offset, value);
            }
            _ => {}
        }
        Effect::Nothing
    }

    fn write_queue_address(&mut self, offset: u64, value: u32) {
        let Some(queue) = self.queue_mut() else { return };
        let mut areas = queue.areas();
        let area = match offset & !7 {
            common::QUEUE_DESCRIPTORS => &mut areas.descriptors,
            common::QUEUE_DRIVER => &mut areas.available,
            common::QUEUE_DEVICE => &mut areas.used,
            _ => return,
        };
        *area = match offset & 4 {
            0 => *area & !0xffff_ffff | u64::from(value),
            _ => *area & 0xffff_ffff | u64::from(value) << 32,
        };
        queue.set_areas(areas);
    }

    /// The ports of a legacy device before its device configuration.
    pub(super) fn read_legacy(&self, fixed: &Fixed, offset: u16, width: Width) -> u32 {
        let queue = self.queue();
        let page = queue.map_or(0, |queue| queue.areas().descriptors >> 12) as u32;
        let mut bytes = [0; legacy::END];
        let mut place = 0;
        let mut put = |field: &[u8]| {
            bytes[place..place + field.len()].copy_from_slice(field);
            place += field.len();
        };
        put(&(fixed.features as u32).to_le_bytes());
        put(&(self.driver_features as u32).to_le_bytes());
        put(&page.to_le_bytes());
        put(&queue.map_or(0, Queue::size).to_le_bytes());
        put(&self.queue_select.to_le_bytes());
        put(&[0, 0, self.status, self.interrupt_status]);
        put(&self.config_vector.to_le_bytes());
        put(&self.vector().to_le_bytes());
        bytes_at(&bytes, offset.into(), width)
    }

    /// The driver writes one of them.
    pub(super) fn write_legacy(
        &mut self,
        fixed: &Fixed,
        memory: &Memory,
        offset: u16,
        width: Width,
        value: u32,
    ) -> Effect {
        match (offset, width) {
            (legacy::DRIVER_FEATURES, Width::Dword) => {
                self.driver_features = fixed.features & u64::from(value);
            }
            (legacy::QUEUE_ADDRESS, Width::Dword) => self.write_page(fixed, memory, value),
            (legacy::QUEUE_SELECT, Width::Word) => self.queue_select = value as u16,
            (legacy::QUEUE_NOTIFY, Width::Word) => return Effect::Notify(value as u16),
            (legacy::DEVICE_STATUS, Width::Byte) => {
                return self.write_status(fixed, memory, value as u8);
            }
            (legacy::CONFIG_VECTOR, Width::Word) => {
                self.config_vector = known_vector(fixed, value);
            }
            (legacy::QUEUE_VECTOR, Width::Word) => self.write_queue_vector(fixed, value),
            _ => {}
        }
        Effect::Nothing
    }

    /// A legacy driver says where a queue is, or that it uses it no more.
    fn write_page(&mut self, fixed: &Fixed, memory: &Memory, page: u32) {
        let index = usize::from(self.queue_select);
        let (Some(queue), Some(size)) = (self.queues.get_mut(index), fixed.queue_sizes.get(index))
        else {
            return;
        };
        *queue = Queue::new(*size);
        if page != 0 {
            queue.set_areas(Areas::legacy(page, *size));
            self.enable_queue(memory, true);
        }
    }

    fn write_queue_vector(&mut self, fixed: &Fixed, value: u32) {
        if let Some(vector) = self.vectors.get_mut(usize::from(self.queue_select)) {
            *vector = known_vector(fixed, value);
        }
    }

    fn accept_features(&mut self, value: u32) {
        if self.status & STATUS_FEATURES_OK != 0 {
            return;
        }
        let shift = match self.driver_feature_select {
            0 => 0,
            1 => 32,
            _ => return,
        };
        let others = self.driver_features & !(0xffff_ffff << shift);
        self.driver_features = others | u64::from(value) << shift;
    }

    /// Enables the queue that is selected. That of a legacy driver is used from then on: some notify before DRIVER_OK.
    fn enable_queue(&mut self, memory: &Memory, is_legacy: bool) {
        let is_ready = is_legacy || self.status & STATUS_DRIVER_OK != 0;
        let features = self.driver_features;
        if let Some(queue) = self.queue_mut() {
            queue.enable();
            if is_ready {
                start(queue, memory, features);
            }
        }
    }

    fn write_status(&mut self, fixed: &Fixed, memory: &Memory, value: u8) -> Effect {
        if value == 0 {
            return Effect::Reset;
        }
        let was_there = self.status & STATUS_DRIVER_OK != 0;
        let mut added = value & !STATUS_NEEDS_RESET;
        // A driver that knows FEATURES_OK knows version 1, and no other features than those offered can be accepted (2.2.2).
        let is_acceptable =
            self.driver_features & !fixed.features == 0 && self.driver_features & VERSION_1 != 0;
        if !is_acceptable {
            added &= !STATUS_FEATURES_OK;
        }
        self.status |= added;
        if was_there || self.status & STATUS_DRIVER_OK == 0 {
            return Effect::Nothing;
        }
        let features = self.driver_features;
        for queue in self.queues.iter_mut().filter(|queue| queue.is_enabled()) {
            start(queue, memory, features);
        }
        Effect::Start
    }

    /// Whom the queues and `config_changed` want to be interrupted for: the vectors of the MSI-X messages to be sent. Interrupt status says it, too.
    pub(super) fn take_interrupts(&mut self, memory: &Memory, config_changed: bool) -> Vec<u16> {
        let mut vectors = Vec::new();
        for (queue, vector) in self.queues.iter_mut().zip(&self.vectors) {
            if queue.take_interrupt(memory) {
                self.interrupt_status |= INTERRUPT_QUEUE;
                vectors.push(*vector);
            }
        }
        let is_broken = self.queues.iter().any(Queue::is_broken);
        let fails_now = is_broken && self.status & STATUS_NEEDS_RESET == 0;
        if fails_now {
            self.status |= STATUS_NEEDS_RESET;
        }
        if config_changed {
            self.config_generation = self.config_generation.wrapping_add(1);
        }
        // The driver hears of what it has broken after DRIVER_OK (2.1.2).
        if config_changed || fails_now && self.status & STATUS_DRIVER_OK != 0 {
            self.interrupt_status |= INTERRUPT_CONFIG;
            vectors.push(self.config_vector);
        }
        vectors.retain(|vector| *vector != NO_VECTOR);
        vectors
    }

    /// There is something that a line is high for.
    pub(super) fn is_interrupting(&self) -> bool {
        self.interrupt_status != 0
    }

    /// Interrupt status, which is read and cleared.
    pub(super) fn take_interrupt_status(&mut self) -> u8 {
        std::mem::take(&mut self.interrupt_status)
    }

    /// False for what no treatment can lead to.
    pub(super) fn is_possible(&self, fixed: &Fixed) -> bool {
        let known = |vector: &u16| *vector == NO_VECTOR || *vector < fixed.vectors;
        let sizes = &fixed.queue_sizes;
        self.queues.len() == sizes.len()
            && self.vectors.len() == sizes.len()
            && self.queues.iter().zip(sizes).all(|(queue, size)| queue.is_possible(*size))
            && self.vectors.iter().chain([&self.config_vector]).all(known)
    }
}

fn start(queue: &mut Queue, memory: &Memory, features: u64) {
    queue.start(memory, features & INDIRECT_DESC != 0, features & EVENT_IDX != 0);
}

/// The vector that the driver wants, or none where there is none of that number (4.1.5.1.2.1).
fn known_vector(fixed: &Fixed, value: u32) -> u16 {
    let vector = value as u16;
    if vector < fixed.vectors { vector } else { NO_VECTOR }
}

/// The `width` at `offset` of `bytes`; what is past their end reads as 0.
pub(super) fn bytes_at(bytes: &[u8], offset: u64, width: Width) -> u32 {
    (0..u64::from(width.bytes())).fold(0, |value, place| {
        let index = usize::try_from(offset.saturating_add(place)).unwrap_or(usize::MAX);
        value | u32::from(bytes.get(index).copied().unwrap_or(0)) << (8 * place)
    })
}
