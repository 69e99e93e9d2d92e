//! The board: the devices of the PC, their bus, their lines and their timers.
//!
//! The chipset is the 440FX with the PIIX3 and the power management of the PIIX4, as in QEMU's `pc`, so SeaBIOS
//! runs unmodified. There is no system management mode, and the chipset reports its set-up as done.
//!
//! After each call of a device the board serves the DMA requests that are ready (`Device::dma`), then passes
//! changes of IRQ lines to the interrupt controllers in their order, and claims of ports and addresses to the
//! bus. It turns the accesses at CF8h to CFFh into PCI configuration cycles.
//!
//! Three resets exist: of the machine (port CF9h), and of the processor alone (keyboard controller, port
//! 92h, triple fault: the manual's INIT). All keep RAM; a kernel that was started without firmware is loaded
//! anew by each.
//!
//! The HPET can take the lines of the 8254 and the MC146818 (legacy replacement). The 8254 then wakes an idle machine only
//! once a second, to see whether it has its line back.

mod devices;
#[cfg(test)]
mod tests;

use ring3_core::a20::A20Line;
use ring3_core::balloon::BalloonStatus;
use ring3_core::bus::{Bus, Claim};
use ring3_core::channel::ChannelStatus;
use ring3_core::clock::{Time, Timers};
use ring3_core::device::{Context, Device, DeviceId, Output, Width};
use ring3_core::disk::DriveId;
use ring3_core::display::Picture;
use ring3_core::dma::DmaRequests;
use ring3_core::extra_memory::ExtraMemoryStatus;
use ring3_core::input::DeviceInput;
use ring3_core::lines::{IrqLines, LineLevels};
use ring3_core::memory::Memory;
use ring3_core::state::{RestoreError, SavedState};
use ring3_devices::dma8237::Dma8237;
use ring3_devices::fpu_error::FpuError;
use ring3_devices::pci::{ConfigAddress, ConfigCycle};
use ring3_x86::device_access::PortString;
use ring3_x86::engine::Exit;
use serde::{Deserialize, Serialize};
use tracing::trace;

use crate::interrupts::Interrupts;
use crate::set_up::set_up;
use devices::POWER_MANAGEMENT;
pub use devices::VideoParts;

/// The devices of a machine. Some are not on the bus, since the board talks to their pins: the interrupt
/// controllers, the DMA controllers and the circuit for FERR# and IGNNE#.
#[derive(Debug)]
pub struct Board {
    interrupts: Interrupts,
    /// Whether there is no firmware, so that the board must be as firmware leaves it.
    is_set_up: bool,
    fpu_error: FpuError,
    dma: Dma8237,
    bus: Bus,
    wires: Wires,
    config_address: ConfigAddress,
    /// By port, up to the last one of theirs: which of the devices that are not on the bus answers there.
    off_the_bus: Vec<Option<DeviceId>>,
}

/// The wires and queues by which devices act on each other and on the world outside.
#[derive(Debug, Default)]
struct Wires {
    irq: IrqLines,
    timers: Timers,
    /// What the machine has not yet [taken](Board::take_outputs).
    outputs: Vec<Output>,
    /// What the bus has not yet been told.
    claims: Vec<Claim>,
    /// The DMA request lines.
    dma: DmaRequests,
    a20: A20Line,
}

impl Wires {
    /// Makes the context for a call of `device` at `now`.
    fn context<'a>(
        &'a mut self,
        memory: &'a mut Memory,
        now: Time,
        device: DeviceId,
    ) -> Context<'a> {
        Context {
            now,
            irq: &mut self.irq,
            memory,
            outputs: &mut self.outputs,
            timers: &mut self.timers,
            claims: &mut self.claims,
            dma: &mut self.dma,
            a20: &mut self.a20,
            device,
        }
    }

    /// Makes the context for an access by the bus, which then enters the device that answers.
    fn bus_context<'a>(&'a mut self, memory: &'a mut Memory, now: Time) -> Context<'a> {
        self.context(memory, now, DeviceId::I440FX)
    }
}

/// The state of a board: lines, timers and every device.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct State {
    levels: LineLevels,
    claims: Vec<Claim>,
    timers: SavedState,
    interrupts: SavedState,
    fpu_error: SavedState,
    dma: SavedState,
    dma_requests: DmaRequests,
    devices: Vec<SavedState>,
    #[serde(default)]
    config_address: u32,
    #[serde(default)]
    a20: A20Line,
}

const STATE_NAME: &str = "board";
const STATE_VERSION: u32 = 11;

impl Board {
    /// Resets every device.
    pub fn reset(&mut self, memory: &mut Memory, now: Time) {
        self.wires.irq.restore(LineLevels::default());
        self.bus.forget_claims();
        self.wires.timers = Timers::default();
        self.wires.dma = DmaRequests::default();
        self.wires.a20 = A20Line::default();
        self.config_address = ConfigAddress::default();
        let ids: Vec<_> = self.bus.devices().map(|(id, _)| id).collect();
        let off_the_bus =
            [DeviceId::DMA, DeviceId::FPU_ERROR].iter().chain(self.interrupts.ids()).copied();
        for id in off_the_bus.chain(ids) {
            self.call(memory, now, id, |device, context| device.reset(context));
        }
        self.tell_of_power_management(memory, now);
        if self.is_set_up {
            let mut context = self.wires.context(memory, now, DeviceId::LOCAL_APIC);
            self.interrupts.enter_virtual_wire_mode(&mut context);
            set_up(self, memory, now);
        }
    }

    /// INIT of the processor.
    pub fn init_processor(&mut self, memory: &mut Memory, now: Time) {
        let mut context = self.wires.context(memory, now, DeviceId::LOCAL_APIC);
        self.interrupts.init(&mut context);
        self.settle(memory, now);
    }

    /// Notes that the processor has IA32_APIC_BASE set to `value`.
    pub fn set_apic_base(&mut self, memory: &mut Memory, now: Time, value: u64) {
        let mut context = self.wires.context(memory, now, DeviceId::LOCAL_APIC);
        self.interrupts.set_apic_base(&mut context, value);
        self.settle(memory, now);
    }

    /// Reads a port for the guest.
    pub fn read_port(&mut self, memory: &mut Memory, now: Time, port: u16, width: Width) -> u32 {
        let value = if let Some(id) = self.owner_off_the_bus(port) {
            self.call(memory, now, id, |device, context| device.read_port(context, port, width))
        } else if let Some(address) = self.config_address.read(port, width) {
            address
        } else {
            let value = if ConfigAddress::is_data(port, width) {
                self.read_config(memory, now, port, width)
            } else {
                let mut context = self.wires.bus_context(memory, now);
                self.bus.read_port(&mut context, port, width)
            };
            self.settle(memory, now);
            value
        };
        trace!(port = format_args!("{port:#x}"), ?width, value = format_args!("{value:#x}"), "in");
        value
    }

    /// Writes a port for the guest.
    pub fn write_port(
        &mut self,
        memory: &mut Memory,
        now: Time,
        port: u16,
        width: Width,
        value: u32,
    ) {
        trace!(port = format_args!("{port:#x}"), ?width, value = format_args!("{value:#x}"), "out");
        if let Some(id) = self.owner_off_the_bus(port) {
            self.call(memory, now, id, |device, context| {
                device.write_port(context, port, width, value);
            });
        } else if ConfigAddress::is_data(port, width) {
            self.write_config(memory, now, port, width, value);
            self.settle(memory, now);
        } else if !self.config_address.write(port, width, value) {
            let mut context = self.wires.bus_context(memory, now);
            self.bus.write_port(&mut context, port, width, value);
            self.settle(memory, now);
        }
    }

    /// Accesses a port repeatedly for the guest, `width` at a time. Returns how many accesses the device, or
    /// the bus where there is none, has executed at once, from the first one on.
    pub fn move_port_string(&mut self, port: u16, width: Width, string: PortString<'_>) -> usize {
        // After each access the DMA controllers continue with the requests that are ready.
        let has_dma = self.dma.ready(&self.wires.dma).next().is_some();
        let is_special =
            self.owner_off_the_bus(port).is_some() || ConfigAddress::is_touched(port, width);
        if has_dma || is_special {
            return 0;
        }
        match string {
            PortString::Read(bytes) => self.bus.read_port_string(port, width, bytes),
            PortString::Write(bytes) => self.bus.write_port_string(port, width, bytes),
        }
    }

    /// Reads CONFIG_DATA for the guest: all ones where there is no PCI function.
    fn read_config(&mut self, memory: &mut Memory, now: Time, port: u16, width: Width) -> u32 {
        let Some(cycle) = self.config_address.cycle(port, width) else { return width.mask() };
        let ConfigCycle { slot, function, offset } = cycle;
        let mut context = self.wires.bus_context(memory, now);
        self.bus.read_config(&mut context, slot, function, offset, width)
    }

    /// Writes CONFIG_DATA for the guest.
    fn write_config(
        &mut self,
        memory: &mut Memory,
        now: Time,
        port: u16,
        width: Width,
        value: u32,
    ) {
        if let Some(cycle) = self.config_address.cycle(port, width) {
            let ConfigCycle { slot, function, offset } = cycle;
            let mut context = self.wires.bus_context(memory, now);
            self.bus.write_config(&mut context, slot, function, offset, width, value);
            if (slot, function) == POWER_MANAGEMENT {
                self.tell_of_power_management(memory, now);
            }
        }
    }

    /// Reads, for the guest, an address without memory.
    pub fn read_memory(
        &mut self,
        memory: &mut Memory,
        now: Time,
        address: u64,
        width: Width,
    ) -> u32 {
        let value = if let Some((id, offset)) = self.interrupts.at_address(address) {
            let mut context = self.wires.context(memory, now, id);
            self.interrupts.read_memory(&mut context, id, offset, width)
        } else {
            let mut context = self.wires.bus_context(memory, now);
            let value = self.bus.read_memory(&mut context, address, width);
            self.settle(memory, now);
            value
        };
        trace!(
            address = format_args!("{address:#x}"),
            ?width,
            value = format_args!("{value:#x}"),
            "read"
        );
        value
    }

    /// Returns the 32 bits of a register at guest-physical address `address`, if reading it has no effect,
    /// and it only changes when a device is accessed, when a timer is due or when an input comes. Returns
    /// None for all other registers.
    pub fn peek(&self, address: u64) -> Option<u32> {
        self.interrupts.peek(address)
    }

    /// Returns the byte at `port`, if reading it has no effect, and it only changes as the registers of
    /// [`Board::peek`] do. Returns None for all other ports.
    pub fn peek_port(&self, port: u16) -> Option<u8> {
        // After each access the DMA controllers continue with the requests that are ready.
        if !self.dma.are_idle(&self.wires.dma) || ConfigAddress::is_data(port, Width::Byte) {
            return None;
        }
        match self.owner_off_the_bus(port) {
            Some(DeviceId::PIC) => self.interrupts.peek_port(port),
            Some(_) => None,
            None => self.bus.peek_port(port),
        }
    }

    /// Writes, for the guest, to an address without memory.
    pub fn write_memory(
        &mut self,
        memory: &mut Memory,
        now: Time,
        address: u64,
        width: Width,
        value: u32,
    ) {
        trace!(
            address = format_args!("{address:#x}"),
            ?width,
            value = format_args!("{value:#x}"),
            "write"
        );
        if let Some((id, offset)) = self.interrupts.at_address(address) {
            let mut context = self.wires.context(memory, now, id);
            self.interrupts.write_memory(&mut context, id, offset, width, value);
        } else {
            let mut context = self.wires.bus_context(memory, now);
            self.bus.write_memory(&mut context, address, width, value);
            self.settle(memory, now);
        }
    }

    /// Returns the device that answers at `port`. Those behind CONFIG_DATA do not count.
    pub fn port_owner(&self, port: u16) -> Option<DeviceId> {
        self.owner_off_the_bus(port).or_else(|| self.bus.owner(port))
    }

    /// Returns the device to which the access that `exit` asks for goes.
    pub fn accessed(&self, exit: &Exit) -> Option<DeviceId> {
        match *exit {
            Exit::PortRead { port, .. } | Exit::PortWrite { port, .. } => self.port_owner(port),
            Exit::MmioRead { address, .. } | Exit::MmioWrite { address, .. } => {
                let interrupts = self.interrupts.at_address(address).map(|(id, _)| id);
                interrupts.or_else(|| self.bus.memory_owner(address).map(|(id, ..)| id))
            }
            _ => None,
        }
    }

    /// Presses the reset button: an output of the board, like a reset by the guest.
    pub fn press_reset(&mut self) {
        self.wires.outputs.push(Output::Reset);
    }

    /// Lets the chipset reset the processor: an output of the board.
    pub fn reset_processor(&mut self) {
        self.wires.outputs.push(Output::ProcessorReset);
    }

    /// Returns the guest-physical address and the size of the guest's note for debuggers, as far as the guest says.
    pub fn note(&self) -> Option<(u64, u32)> {
        self.bus.devices().find_map(|(_, device)| device.note())
    }

    /// Returns what is known of the channels, by their numbers.
    pub fn channels(&self) -> Vec<ChannelStatus> {
        self.bus.devices().flat_map(|(_, device)| device.channels()).collect()
    }

    /// Returns what is known of the memory balloon, if there is one.
    pub fn balloon(&self) -> Option<BalloonStatus> {
        self.bus.devices().find_map(|(_, device)| device.balloon())
    }

    /// Returns what is known of the memory that comes and goes, if there is such.
    pub fn extra_memory(&self) -> Option<ExtraMemoryStatus> {
        let device = DeviceId::EXTRA_MEMORY;
        self.bus.has(device).then(|| self.bus.get(device).extra_memory()).flatten()
    }

    /// Returns the picture that the display adapter shows.
    pub fn picture(&self, memory: &Memory) -> Option<Picture> {
        self.bus.devices().find_map(|(_, device)| device.picture(memory))
    }

    /// Returns whether a device is there; one that was taken out is not.
    pub fn has(&self, device: DeviceId) -> bool {
        self.bus.has(device)
    }

    /// Returns whether a device can take input now. One that is not there always can.
    pub fn takes_input(&self, device: DeviceId) -> bool {
        !self.bus.has(device) || self.bus.get(device).takes_input()
    }

    /// Returns whether the guest forbids taking out the medium of a drive.
    pub fn holds_medium(&self, DriveId { device, unit }: DriveId) -> bool {
        self.bus.has(device) && self.bus.get(device).holds_medium(unit)
    }

    /// Gives `input` to a device. If it is not there, the input is lost.
    pub fn input(&mut self, memory: &mut Memory, now: Time, id: DeviceId, input: DeviceInput) {
        if self.bus.has(id) {
            self.call(memory, now, id, |device, context| device.input(context, input));
        }
    }

    /// Returns when the next timer is due.
    #[inline]
    pub fn next_timer(&self) -> Option<Time> {
        self.wires.timers.next()
    }

    /// Returns when the next timer is due over which virtual time must not be set forward.
    pub fn next_tick(&self) -> Option<Time> {
        self.wires.timers.next_tick()
    }

    /// Fires all timers that are due at `now`. Returns the device of the last one.
    ///
    /// A timer that sets itself again for a time in the past fires in the next call, so that this call ends.
    pub fn fire_timers(&mut self, memory: &mut Memory, now: Time) -> Option<DeviceId> {
        let mut last = None;
        for _ in 0..self.wires.timers.len() {
            let Some((id, tag)) = self.wires.timers.take_due(now) else {
                break;
            };
            self.call(memory, now, id, |device, context| device.timer(context, tag));
            last = Some(id);
        }
        last
    }

    /// Returns the dword at `offset` of the configuration space of a PCI function, for inspection from
    /// outside.
    pub(crate) fn peek_config(
        &mut self,
        memory: &mut Memory,
        now: Time,
        (slot, function): (u8, u8),
        offset: u8,
    ) -> u32 {
        let mut context = self.wires.bus_context(memory, now);
        self.bus.read_config(&mut context, slot, function, offset, Width::Dword)
    }

    /// Returns the level of address line 20: the A20M# pin.
    pub fn a20(&self) -> bool {
        self.wires.a20.is_high()
    }

    /// Returns the level of the INTR pin.
    pub fn interrupt_requested(&self) -> bool {
        self.interrupts.requested()
    }

    /// Acknowledges the interrupt for the processor, and returns its vector.
    pub fn acknowledge_interrupt(&mut self) -> u8 {
        self.interrupts.acknowledge()
    }

    /// Presses the button of the non-maskable interrupt.
    pub fn press_nmi(&mut self) {
        self.interrupts.pulse_nmi();
    }

    /// Returns whether a pulse on the processor's NMI pin waits for [`Board::take_nmi`].
    pub fn has_nmi(&self) -> bool {
        self.interrupts.has_nmi()
    }

    /// Returns true once for each pulse on the processor's NMI pin.
    pub fn take_nmi(&mut self) -> bool {
        self.interrupts.take_nmi()
    }

    /// Makes FERR# active: the processor has an x87 error to report.
    pub fn assert_ferr(&mut self, memory: &mut Memory, now: Time) {
        let mut context = self.wires.context(memory, now, DeviceId::FPU_ERROR);
        FpuError::assert_ferr(&mut context);
        self.settle(memory, now);
    }

    /// Returns whether IGNNE# has become active since the last call.
    pub fn take_ignne(&mut self) -> bool {
        self.fpu_error.take_ignne()
    }

    /// Adds an output that is no device's own.
    pub fn put_out(&mut self, output: Output) {
        self.wires.outputs.push(output);
    }

    /// Returns the outputs of the devices since the last call.
    pub fn take_outputs(&mut self) -> Vec<Output> {
        std::mem::take(&mut self.wires.outputs)
    }

    /// Returns whether there are outputs after which the guest must not run on, or so many that they must be
    /// handed on.
    pub fn has_urgent_outputs(&self) -> bool {
        const MANY: usize = 4096;
        self.wires.outputs.len() >= MANY
            || matches!(
                self.wires.outputs.last(),
                Some(
                    Output::PowerOff
                        | Output::Reset
                        | Output::ProcessorReset
                        | Output::Exit(_)
                        | Output::Failed(_)
                        | Output::Eject { .. }
                        | Output::Disk { .. }
                        | Output::Packet { .. }
                        | Output::Channel { .. }
                )
            )
    }

    /// Returns the state of the whole board.
    pub fn save(&mut self) -> SavedState {
        let state = State {
            levels: self.wires.irq.levels(),
            claims: self.bus.claims().to_vec(),
            timers: SavedState::new("timers", 1, &self.wires.timers),
            interrupts: self.interrupts.save(),
            fpu_error: self.fpu_error.save(),
            dma: self.dma.save(),
            dma_requests: self.wires.dma.clone(),
            devices: self.bus.devices().map(|(_, device)| device.save()).collect(),
            config_address: self.config_address.value(),
            a20: self.wires.a20.clone(),
        };
        SavedState::new(STATE_NAME, STATE_VERSION, &state)
    }

    /// Restores a saved state. After an error some devices may already have theirs.
    pub fn restore(&mut self, saved: &SavedState) -> Result<(), RestoreError> {
        let state: State = saved.load(STATE_NAME, STATE_VERSION)?;
        let timers: Timers = state.timers.load("timers", 1)?;
        let is_on_bus = |id: DeviceId| self.bus.has(id);
        let is_ours = |id: DeviceId| is_on_bus(id) || self.interrupts.ids().contains(&id);
        if !timers.devices().all(is_ours) {
            return Err(saved.damaged("a timer belongs to no device"));
        }
        if !state.claims.iter().all(|claim| is_on_bus(claim.device)) {
            return Err(saved.damaged("a claim belongs to no device"));
        }
        let config_address = ConfigAddress::from_saved(state.config_address)
            .ok_or_else(|| saved.damaged("CONFIG_ADDRESS has reserved bits"))?;
        if !state.dma_requests.drivers().all(is_on_bus) {
            return Err(saved.damaged("a DMA request belongs to no device"));
        }
        if !state.a20.drivers().all(is_on_bus) {
            return Err(saved.damaged("address line 20 is driven by no device"));
        }
        self.interrupts.restore(&state.interrupts)?;
        self.fpu_error.restore(&state.fpu_error)?;
        self.dma.restore(&state.dma)?;
        for device in &state.devices {
            let known = DeviceId::named(device.name()).filter(|id| self.bus.has(*id));
            let id = known.ok_or_else(|| {
                saved.damaged(&format!("this machine has no device {}", device.name()))
            })?;
            self.bus.device(id).restore(device)?;
        }
        self.wires.irq.restore(state.levels);
        self.bus.forget_claims();
        for claim in state.claims {
            self.bus.claim(claim);
        }
        self.wires.timers = timers;
        self.config_address = config_address;
        self.wires.dma = state.dma_requests;
        self.wires.a20 = state.a20;
        Ok(())
    }

    /// Returns the device that answers at `port`, if it is not on the bus.
    fn owner_off_the_bus(&self, port: u16) -> Option<DeviceId> {
        self.off_the_bus.get(usize::from(port)).copied().flatten()
    }

    /// Fills the table of the ports at which these devices answer.
    fn index_off_the_bus(&mut self) {
        let ranges = [
            (DeviceId::PIC, &self.interrupts.ports()[..]),
            (DeviceId::DMA, &self.dma.ports()),
            (DeviceId::FPU_ERROR, &[self.fpu_error.ports()]),
        ];
        for (id, range) in
            ranges.iter().flat_map(|(id, all)| all.iter().map(move |range| (*id, range)))
        {
            let (first, count) = (usize::from(range.first), usize::from(range.count));
            let len = self.off_the_bus.len().max(first + count);
            self.off_the_bus.resize(len, None);
            self.off_the_bus[first..first + count].fill(Some(id));
        }
    }

    /// Calls one device, and passes its lines on to the interrupt controllers.
    fn call<R>(
        &mut self,
        memory: &mut Memory,
        now: Time,
        id: DeviceId,
        call: impl FnOnce(&mut dyn Device, &mut Context<'_>) -> R,
    ) -> R {
        let mut context = self.wires.context(memory, now, id);
        let result = match id {
            DeviceId::FPU_ERROR => call(&mut self.fpu_error, &mut context),
            DeviceId::DMA => call(&mut self.dma, &mut context),
            _ => match self.interrupts.device(id) {
                Some(device) => call(device, &mut context),
                None => call(self.bus.device(id), &mut context),
            },
        };
        self.settle(memory, now);
        result
    }

    /// Passes on the changes of a call: DMA requests to their controllers, claims to the bus, lines to the
    /// interrupt controllers.
    #[inline]
    fn settle(&mut self, memory: &mut Memory, now: Time) {
        let is_settled = self.wires.claims.is_empty()
            && !self.wires.irq.has_changes()
            && !self.wires.irq.has_messages()
            && self.dma.are_idle(&self.wires.dma);
        if is_settled {
            // Nearly always nothing has changed.
            self.interrupts.settle();
        } else {
            self.pass_on(memory, now);
        }
    }

    /// Passes on the changes of a call, if there are any.
    fn pass_on(&mut self, memory: &mut Memory, now: Time) {
        for channel in self.dma.ready(&self.wires.dma) {
            let driver = self.wires.dma.driver(channel);
            let mut context = self.wires.context(memory, now, driver.unwrap_or(DeviceId::DMA));
            let device = driver.map(|id| self.bus.device(id));
            self.dma.serve(&mut context, channel, device);
        }
        for claim in self.wires.claims.drain(..) {
            self.bus.claim(claim);
        }
        if self.wires.irq.has_changes() {
            for (line, high) in self.wires.irq.drain_changes() {
                self.interrupts.set_line(line, high);
            }
        }
        for message in self.wires.irq.drain_messages() {
            self.interrupts.message(message);
        }
        self.interrupts.settle();
    }
}
