//! The PCI function of a virtio device (virtio 1.2, 4.1; 0.9.5, 2.2).
//!
//! Base address register 0 has the ports of a legacy device, 1 the table of MSI-X, and 4 the memory with what drivers of version 1 use, which
//! vendor-specific capabilities describe. There may be an expansion ROM. A *transitional* device, which is the usual one, has all of that.

use ring3_core::balloon::BalloonStatus;
use ring3_core::channel::ChannelStatus;
use ring3_core::clock::Tag;
use ring3_core::device::{Context, Device, DeviceId, Width};
use ring3_core::extra_memory::ExtraMemoryStatus;
use ring3_core::input::DeviceInput;
use ring3_core::state::{RestoreError, SavedState};
use serde::{Deserialize, Serialize};

use super::features::{ANY_LAYOUT, EVENT_IDX, INDIRECT_DESC, VERSION_1};
use super::msix::{self, MsiX};
use super::transport::{
    Effect, Fixed, LEGACY_CONFIG, LEGACY_INTERRUPT_STATUS, Transport, bytes_at,
};
use super::{DeviceType, Work};
use crate::bytewise;
use crate::pci::rom::RomImage;
use crate::pci::{Function, command, registers};

mod space;

use space::{
    COMMON, DEVICE, INTERRUPT_STATUS, LEGACY_PORTS, MEMORY, MEMORY_LEN, MSIX, MSIX_CONTROL, NOTIFY,
    NOTIFY_STRIDE, REGION_LEN, WINDOW_BAR, WINDOW_DATA, WINDOW_LENGTH, WINDOW_OFFSET, function,
};

/// In the status register: the function has an interrupt to tell of (6.2.3).
const STATUS_INTERRUPT: u32 = 1 << 3;

/// INTA#.
const PIN: u8 = 0;

const VERSION: u32 = 1;

/// Which drivers a device is for (virtio 1.2, 1.3.1). One for none does not exist: it counts as one for all.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Interfaces {
    /// Those of version 0.9.5.
    pub legacy: bool,
    /// Those of version 1.
    pub modern: bool,
}

impl Default for Interfaces {
    /// A transitional device.
    fn default() -> Interfaces {
        Interfaces { legacy: true, modern: true }
    }
}

#[derive(Serialize, Deserialize)]
struct State {
    #[serde(with = "serde_bytes")]
    config: Vec<u8>,
    transport: Transport,
    msix: MsiX,
    device_type: SavedState,
}

/// A virtio device of type `T`.
#[derive(Debug)]
pub struct VirtioPci<T> {
    slot: u8,
    interfaces: Interfaces,
    fixed: Fixed,
    function: Function,
    transport: Transport,
    msix: MsiX,
    device_type: T,
}

impl<T: DeviceType> VirtioPci<T> {
    /// The function of PCI device number `slot` around `device_type`.
    pub fn new(slot: u8, interfaces: Interfaces, device_type: T) -> VirtioPci<T> {
        let interfaces =
            if interfaces.legacy || interfaces.modern { interfaces } else { Interfaces::default() };
        let mut features = device_type.features() | INDIRECT_DESC | EVENT_IDX;
        if interfaces.modern {
            features |= VERSION_1;
        }
        if interfaces.legacy {
            features |= ANY_LAYOUT;
        }
        let queue_sizes = device_type.queue_sizes();
        // One for each queue, and one for changes of the configuration.
        let vectors = (queue_sizes.len() as u16 + 1).min(msix::VECTORS_MAX);
        let fixed = Fixed { features, queue_sizes, vectors };
        VirtioPci {
            slot,
            interfaces,
            function: function(interfaces, &device_type, vectors),
            transport: Transport::new(&fixed),
            msix: MsiX::new(vectors),
            fixed,
            device_type,
        }
    }

    /// The same with a ROM, whichever function that was made for.
    #[must_use]
    pub fn with_rom(self, rom: Option<RomImage>) -> VirtioPci<T> {
        VirtioPci { function: self.function.with_rom(rom), ..self }
    }

    /// What it is around.
    pub fn device_type(&self) -> &T {
        &self.device_type
    }

    /// Message control, where MSI-X is in use.
    fn messages(&self) -> Option<u32> {
        let control = self.function.read(MSIX_CONTROL, Width::Word);
        (control & msix::ENABLE != 0).then_some(control)
    }

    /// Where the device configuration begins at the legacy ports.
    fn legacy_config(&self) -> u16 {
        LEGACY_CONFIG[usize::from(self.messages().is_some())]
    }

    /// Lets the device type work, and tells the driver what came of it.
    fn work(&mut self, context: &mut Context<'_>, work: impl FnOnce(&mut T, &mut Work<'_, '_>)) {
        let features = self.transport.driver_features();
        let queues = self.transport.queues();
        let mut all = Work { context, queues, features, config_changed: false };
        work(&mut self.device_type, &mut all);
        let config_changed = all.config_changed;
        self.settle(context, config_changed);
    }

    /// Interrupts the driver, if there is something to tell.
    fn settle(&mut self, context: &mut Context<'_>, config_changed: bool) {
        let vectors = self.transport.take_interrupts(context.memory, config_changed);
        if let Some(control) = self.messages() {
            for vector in vectors {
                self.msix.send(context.irq, control, vector);
            }
            self.msix.send_pending(context.irq, control);
        }
        let is_pin = self.messages().is_none() && !self.function.may(command::INTERRUPT_DISABLE);
        context.irq.set_pci(self.slot, PIN, is_pin && self.transport.is_interrupting());
    }

    fn apply(&mut self, context: &mut Context<'_>, effect: Effect) {
        match effect {
            Effect::Nothing => self.settle(context, false),
            Effect::Reset => {
                self.transport = Transport::new(&self.fixed);
                self.work(context, T::reset);
            }
            Effect::Start => self.work(context, |device_type, work| {
                device_type.start(work);
                // What is there already.
                for queue in 0..work.queues.len() as u16 {
                    if work.queues[usize::from(queue)].is_running() {
                        device_type.notify(work, queue);
                    }
                }
            }),
            Effect::Notify(queue) if self.transport.runs(queue) => {
                self.work(context, |device_type, work| device_type.notify(work, queue));
            }
            Effect::Notify(_) => {}
        }
    }

    fn read_device_config(&self, offset: u64, width: Width) -> u32 {
        bytes_at(&self.device_type.config(), offset, width)
    }

    fn write_device_config(
        &mut self,
        context: &mut Context<'_>,
        offset: u64,
        width: Width,
        value: u32,
    ) {
        let bytes = value.to_le_bytes();
        self.work(context, |device_type, work| {
            for (place, byte) in bytes[..usize::from(width.bytes())].iter().enumerate() {
                let offset = usize::try_from(offset).unwrap_or(usize::MAX);
                device_type.write_config(work, offset.saturating_add(place), *byte);
            }
        });
    }

    /// The driver reads at `offset` of the memory for version 1.
    fn read_modern(&mut self, context: &mut Context<'_>, offset: u64, width: Width) -> u32 {
        let inside = offset % REGION_LEN;
        match offset - inside {
            COMMON => self.transport.read_common(&self.fixed, inside, width),
            INTERRUPT_STATUS if inside == 0 => {
                let status = self.transport.take_interrupt_status();
                self.settle(context, false);
                status.into()
            }
            DEVICE => self.read_device_config(inside, width),
            _ => 0,
        }
    }

    fn write_modern(&mut self, context: &mut Context<'_>, offset: u64, width: Width, value: u32) {
        let inside = offset % REGION_LEN;
        match offset - inside {
            COMMON => {
                let Self { transport, fixed, .. } = self;
                let effect = transport.write_common(fixed, context.memory, inside, width, value);
                self.apply(context, effect);
            }
            DEVICE => self.write_device_config(context, inside, width, value),
            NOTIFY => self.apply(context, Effect::Notify((inside / NOTIFY_STRIDE) as u16)),
            _ => {}
        }
    }

    /// What the capability for access by the configuration space alone selects (4.1.4.9): an offset in memory, and a width.
    fn window(&self) -> Option<(u64, Width)> {
        let register = |offset| self.function.read(offset, Width::Dword);
        let width = match register(WINDOW_LENGTH) {
            1 => Width::Byte,
            2 => Width::Word,
            4 => Width::Dword,
            _ => return None,
        };
        let offset = u64::from(register(WINDOW_OFFSET));
        let is_memory = self.function.read(WINDOW_BAR, Width::Byte) == u32::from(MEMORY);
        let is_ours = self.interfaces.modern && is_memory && offset < MEMORY_LEN;
        (is_ours && offset.is_multiple_of(width.bytes().into())).then_some((offset, width))
    }
}

impl<T: DeviceType> Device for VirtioPci<T> {
    fn id(&self) -> DeviceId {
        self.device_type.device()
    }

    fn reset(&mut self, context: &mut Context<'_>) {
        self.function.reset();
        self.msix = MsiX::new(self.fixed.vectors);
        self.function.claim(context);
        self.apply(context, Effect::Reset);
        self.work(context, T::power_on);
    }

    fn read_port(&mut self, context: &mut Context<'_>, port: u16, width: Width) -> u32 {
        let offset = self.function.port_offset(LEGACY_PORTS, port);
        let config = self.legacy_config();
        if offset >= config {
            return self.read_device_config((offset - config).into(), width);
        }
        let value = self.transport.read_legacy(&self.fixed, offset, width);
        if (offset..offset + width.bytes()).contains(&LEGACY_INTERRUPT_STATUS) {
            self.transport.take_interrupt_status();
            self.settle(context, false);
        }
        value
    }

    fn write_port(&mut self, context: &mut Context<'_>, port: u16, width: Width, value: u32) {
        let offset = self.function.port_offset(LEGACY_PORTS, port);
        let config = self.legacy_config();
        if offset >= config {
            return self.write_device_config(context, (offset - config).into(), width, value);
        }
        let Self { transport, fixed, .. } = self;
        let effect = transport.write_legacy(fixed, context.memory, offset, width, value);
        self.apply(context, effect);
    }

    fn read_memory(
        &mut self,
        context: &mut Context<'_>,
        region: u8,
        offset: u64,
        width: Width,
    ) -> u32 {
        match region {
            MEMORY => self.read_modern(context, offset, width),
            MSIX => self.msix.read(offset, width),
            _ => self.function.read_rom(offset, width),
        }
    }

    fn write_memory(
        &mut self,
        context: &mut Context<'_>,
        region: u8,
        offset: u64,
        width: Width,
        value: u32,
    ) {
        match region {
            MEMORY => self.write_modern(context, offset, width, value),
            MSIX => {
                self.msix.write(offset, width, value);
                self.settle(context, false);
            }
            _ => {}
        }
    }

    fn read_config(
        &mut self,
        context: &mut Context<'_>,
        _function: u8,
        offset: u8,
        width: Width,
    ) -> u32 {
        if offset & !3 == WINDOW_DATA
            && let Some((place, len)) = self.window()
        {
            let value = self.read_modern(context, place, len);
            return value.checked_shr(8 * u32::from(offset & 3)).unwrap_or(0);
        }
        let is_interrupting = self.transport.is_interrupting();
        bytewise::read(offset.into(), width, |offset| {
            let byte = self.function.read(offset as u8, Width::Byte);
            let is_status = offset == u16::from(registers::STATUS) && is_interrupting;
            (byte | if is_status { STATUS_INTERRUPT } else { 0 }) as u8
        })
    }

    fn write_config(
        &mut self,
        context: &mut Context<'_>,
        _function: u8,
        offset: u8,
        width: Width,
        value: u32,
    ) {
        if offset == WINDOW_DATA
            && let Some((place, len)) = self.window()
        {
            return self.write_modern(context, place, len, value & len.mask());
        }
        self.function.write(context, offset, width, value);
        self.settle(context, false);
    }

    fn input(&mut self, context: &mut Context<'_>, input: DeviceInput) {
        self.work(context, |device_type, work| device_type.input(work, input));
    }

    fn timer(&mut self, context: &mut Context<'_>, tag: Tag) {
        self.work(context, |device_type, work| device_type.timer(work, tag));
    }

    fn takes_input(&self) -> bool {
        self.device_type.takes_input()
    }

    fn channels(&self) -> Vec<ChannelStatus> {
        self.device_type.channels()
    }

    fn balloon(&self) -> Option<BalloonStatus> {
        self.device_type.balloon()
    }

    fn extra_memory(&self) -> Option<ExtraMemoryStatus> {
        self.device_type.extra_memory()
    }

    fn save(&self) -> SavedState {
        let state = State {
            config: self.function.save(),
            transport: self.transport.clone(),
            msix: self.msix.clone(),
            device_type: self.device_type.save(),
        };
        SavedState::new(self.name(), VERSION, &state)
    }

    fn restore(&mut self, saved: &SavedState) -> Result<(), RestoreError> {
        let state: State = saved.load(self.name(), VERSION)?;
        let vectors = self.fixed.vectors;
        if !state.transport.is_possible(&self.fixed) || !state.msix.is_possible(vectors) {
            return Err(saved.damaged("its registers or queues cannot be those of this device"));
        }
        let function = self.function.restored(saved, &state.config)?;
        self.device_type.restore(&state.device_type)?;
        (self.function, self.transport, self.msix) = (function, state.transport, state.msix);
        Ok(())
    }
}

#[cfg(test)]
mod tests;
