//! The board: the devices of the PC, their bus, their lines and their timers.

use ring3_core::bus::{Bus, Claim, PortConflict};
use ring3_core::clock::{Time, Timers};
use ring3_core::device::{Context, Device, DeviceId, Output, Width};
use ring3_core::input::DeviceInput;
use ring3_core::lines::{IrqLines, LineLevels};
use ring3_core::memory::Memory;
use ring3_core::state::{RestoreError, SavedState};
use ring3_devices::acpi_pm::{self, AcpiPm};
use ring3_devices::fpu_error::FpuError;
use ring3_devices::i8042::I8042;
use ring3_devices::pci::Pci;
use ring3_devices::pic::PicPair;
use ring3_devices::pit::Pit;
use ring3_devices::rtc::Rtc;
use ring3_devices::uart16550::{COM1, Speed, Uart16550};
use serde::{Deserialize, Serialize};
use tracing::trace;

/// Some are no devices of the bus's list, since the board talks to their pins; these are
/// their numbers among the devices. The interrupt controllers:
const PIC: DeviceId = DeviceId(u16::MAX);
/// The circuit for FERR# and IGNNE#.
const FPU_ERROR: DeviceId = DeviceId(u16::MAX - 1);

/// The devices of a machine.
#[derive(Debug)]
pub struct Board {
    pic: PicPair,
    fpu_error: FpuError,
    bus: Bus,
    irq: IrqLines,
    timers: Timers,
    outputs: Vec<Output>,
    claims: Vec<Claim>,
}

/// The state of a board: lines, timers and every device.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct State {
    levels: LineLevels,
    claims: Vec<Claim>,
    timers: SavedState,
    pic: SavedState,
    fpu_error: SavedState,
    devices: Vec<SavedState>,
}

const STATE_NAME: &str = "board";
const STATE_VERSION: u32 = 3;

impl Board {
    /// The board of a machine with `memory_bytes` of RAM whose clock says
    /// `rtc_base` (seconds since 1970) at power-on.
    pub fn new(memory_bytes: u64, rtc_base: u64) -> Result<Board, PortConflict> {
        let mut rtc = Rtc::new(rtc_base);
        rtc.set_memory_size(memory_bytes);
        let mut bus = Bus::default();
        let pit = Pit::default();
        let ports = pit.ports();
        bus.attach(Box::new(pit), &ports)?;
        let ports = rtc.ports();
        bus.attach(Box::new(rtc), &ports)?;
        let keyboard = I8042::default();
        let ports = keyboard.ports();
        bus.attach(Box::new(keyboard), &ports)?;
        let serial = Uart16550::new(COM1, Speed::Unlimited);
        let ports = serial.ports();
        bus.attach(Box::new(serial), &ports)?;
        let pci = Pci::new(acpi_pm::DEFAULT_BASE);
        let ports = pci.ports();
        bus.attach(Box::new(pci), &ports)?;
        let power = AcpiPm::new(acpi_pm::DEFAULT_BASE);
        let ports = power.ports();
        bus.attach(Box::new(power), &ports)?;
        Ok(Board {
            pic: PicPair::default(),
            fpu_error: FpuError::default(),
            bus,
            irq: IrqLines::default(),
            timers: Timers::default(),
            outputs: Vec::new(),
            claims: Vec::new(),
        })
    }

    /// Resets every device.
    pub fn reset(&mut self, memory: &mut Memory, now: Time) {
        self.irq.restore(LineLevels::default());
        self.bus.forget_claims();
        self.timers = Timers::default();
        let ids: Vec<_> = self.bus.devices().map(|(id, _)| id).collect();
        for id in [PIC, FPU_ERROR].into_iter().chain(ids) {
            self.call(memory, now, id, |device, context| device.reset(context));
        }
    }

    /// The guest reads a port.
    pub fn read_port(&mut self, memory: &mut Memory, now: Time, port: u16, width: Width) -> u32 {
        let value = if let Some(id) = self.owner_off_the_bus(port) {
            self.call(memory, now, id, |device, context| device.read_port(context, port, width))
        } else {
            let (bus, mut context) = self.split(memory, now, PIC);
            bus.read_port(&mut context, port, width)
        };
        trace!(port = format_args!("{port:#x}"), ?width, value = format_args!("{value:#x}"), "in");
        self.settle();
        value
    }

    /// The guest writes a port.
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
        } else {
            let (bus, mut context) = self.split(memory, now, PIC);
            bus.write_port(&mut context, port, width, value);
        }
        self.settle();
    }

    /// The guest reads where no memory is.
    pub fn read_memory(
        &mut self,
        memory: &mut Memory,
        now: Time,
        address: u64,
        width: Width,
    ) -> u32 {
        let (bus, mut context) = self.split(memory, now, PIC);
        let value = bus.read_memory(&mut context, address, width);
        trace!(
            address = format_args!("{address:#x}"),
            ?width,
            value = format_args!("{value:#x}"),
            "read"
        );
        self.settle();
        value
    }

    /// The guest writes where no memory is.
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
        let (bus, mut context) = self.split(memory, now, PIC);
        bus.write_memory(&mut context, address, width, value);
        self.settle();
    }

    /// The reset button: an output of the board like a reset by the guest.
    pub fn press_reset(&mut self) {
        self.outputs.push(Output::Reset);
    }

    /// The name of a device.
    pub fn name(&self, id: DeviceId) -> &'static str {
        self.bus.get(id).name()
    }

    /// True when the device `name` can take input now; input for a device that does not
    /// exist can always be taken.
    pub fn takes_input(&self, name: &str) -> bool {
        self.bus.find(name).is_none_or(|id| self.bus.get(id).takes_input())
    }

    /// Gives `input` to the device `name`; to one that does not exist it is lost.
    pub fn input(&mut self, memory: &mut Memory, now: Time, name: &str, input: &DeviceInput) {
        if let Some(id) = self.bus.find(name) {
            self.call(memory, now, id, |device, context| device.input(context, input));
        }
    }

    /// When the next timer is due.
    pub fn next_timer(&self) -> Option<Time> {
        self.timers.next()
    }

    /// When the next timer is due over which virtual time must not be set forward.
    pub fn next_tick(&self) -> Option<Time> {
        self.timers.next_tick()
    }

    /// Fires all timers that are due at `now`.
    ///
    /// A timer that sets itself again for a time that has passed fires in the
    /// next call, so that there is an end.
    pub fn fire_timers(&mut self, memory: &mut Memory, now: Time) {
        for _ in 0..self.timers.len() {
            let Some((id, tag)) = self.timers.take_due(now) else {
                return;
            };
            self.call(memory, now, id, |device, context| device.timer(context, tag));
        }
    }

    /// The INTR pin.
    pub fn interrupt_requested(&self) -> bool {
        self.pic.interrupt_requested()
    }

    /// The processor acknowledges the interrupt: its vector.
    pub fn acknowledge_interrupt(&mut self) -> u8 {
        self.pic.acknowledge()
    }

    /// FERR# goes active: the processor has an x87 error to report.
    pub fn assert_ferr(&mut self, memory: &mut Memory, now: Time) {
        let (_, mut context) = self.split(memory, now, FPU_ERROR);
        FpuError::assert_ferr(&mut context);
        self.settle();
    }

    /// True if IGNNE# has gone active since the last call.
    pub fn take_ignne(&mut self) -> bool {
        self.fpu_error.take_ignne()
    }

    /// What the devices have told the world since the last call.
    pub fn take_outputs(&mut self) -> Vec<Output> {
        std::mem::take(&mut self.outputs)
    }

    /// True when there are outputs after which the guest must not run on, or so
    /// many that they must be handed on.
    pub fn has_urgent_outputs(&self) -> bool {
        const MANY: usize = 4096;
        self.outputs.len() >= MANY
            || matches!(
                self.outputs.last(),
                Some(Output::PowerOff | Output::Reset | Output::Exit(_) | Output::Disk { .. })
            )
    }

    /// The state of the whole board.
    pub fn save(&mut self) -> SavedState {
        let state = State {
            levels: self.irq.levels(),
            claims: self.bus.claims().to_vec(),
            timers: SavedState::new("timers", 1, &self.timers),
            pic: self.pic.save(),
            fpu_error: self.fpu_error.save(),
            devices: self.bus.devices().map(|(_, device)| device.save()).collect(),
        };
        SavedState::new(STATE_NAME, STATE_VERSION, &state)
    }

    /// Takes a saved state over. On an error some devices may have theirs already.
    pub fn restore(&mut self, saved: &SavedState) -> Result<(), RestoreError> {
        let state: State = saved.load(STATE_NAME, STATE_VERSION)?;
        let timers: Timers = state.timers.load("timers", 1)?;
        if timers.devices().any(|id| usize::from(id.0) >= self.bus.len()) {
            return Err(saved.damaged("a timer belongs to no device"));
        }
        if state.claims.iter().any(|claim| usize::from(claim.device.0) >= self.bus.len()) {
            return Err(saved.damaged("a claim belongs to no device"));
        }
        self.pic.restore(&state.pic)?;
        self.fpu_error.restore(&state.fpu_error)?;
        for device in &state.devices {
            let id = self.bus.find(device.name()).ok_or_else(|| {
                saved.damaged(&format!("this machine has no device {}", device.name()))
            })?;
            self.bus.device(id).restore(device)?;
        }
        self.irq.restore(state.levels);
        self.bus.forget_claims();
        for claim in state.claims {
            self.bus.claim(claim);
        }
        self.timers = timers;
        Ok(())
    }

    /// Which of the devices that are not on the bus answers at `port`.
    fn owner_off_the_bus(&self, port: u16) -> Option<DeviceId> {
        if self.pic.ports().iter().any(|range| range.contains(port)) {
            return Some(PIC);
        }
        self.fpu_error.ports().contains(port).then_some(FPU_ERROR)
    }

    /// The bus, and a context for a call of device `device`.
    fn split<'a>(
        &'a mut self,
        memory: &'a mut Memory,
        now: Time,
        device: DeviceId,
    ) -> (&'a mut Bus, Context<'a>) {
        let context = Context {
            now,
            irq: &mut self.irq,
            memory,
            outputs: &mut self.outputs,
            timers: &mut self.timers,
            claims: &mut self.claims,
            device,
        };
        (&mut self.bus, context)
    }

    /// Calls one device, and lets its lines reach the interrupt controllers.
    fn call<R>(
        &mut self,
        memory: &mut Memory,
        now: Time,
        id: DeviceId,
        call: impl FnOnce(&mut dyn Device, &mut Context<'_>) -> R,
    ) -> R {
        let mut context = Context {
            now,
            irq: &mut self.irq,
            memory,
            outputs: &mut self.outputs,
            timers: &mut self.timers,
            claims: &mut self.claims,
            device: id,
        };
        let result = match id {
            PIC => call(&mut self.pic, &mut context),
            FPU_ERROR => call(&mut self.fpu_error, &mut context),
            _ => call(self.bus.device(id), &mut context),
        };
        self.settle();
        result
    }

    /// Passes on what a call has changed: claims to the bus, lines to the interrupt controllers.
    fn settle(&mut self) {
        for claim in self.claims.drain(..) {
            self.bus.claim(claim);
        }
        for (line, high) in self.irq.drain_changes() {
            self.pic.set_line(line, high);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_board_survives_saving() {
        let mut memory = Memory::new(1 << 20).unwrap();
        let mut board = Board::new(1 << 20, 1_000_000_000).unwrap();
        board.reset(&mut memory, Time::ZERO);
        // The timer ticks at 100 Hz, the first interrupt controller is programmed.
        for (port, value) in [(0x43, 0x34), (0x40, 0x9c), (0x40, 0x2e)] {
            board.write_port(&mut memory, Time::ZERO, port, Width::Byte, value);
        }
        for (port, value) in [(0x20, 0x11), (0x21, 0x30), (0x21, 4), (0x21, 1), (0x21, 0xfe)] {
            board.write_port(&mut memory, Time::ZERO, port, Width::Byte, value);
        }
        let saved = board.save();
        let mut other = Board::new(1 << 20, 0).unwrap();
        other.restore(&saved).unwrap();
        assert_eq!(other.save(), saved);
        let later = other.next_timer().unwrap();
        other.fire_timers(&mut memory, later);
        assert!(other.interrupt_requested());
        assert_eq!(other.acknowledge_interrupt(), 0x30);
    }

    #[test]
    fn an_x87_error_is_irq_13() {
        let (mut memory, now) = (Memory::new(1 << 20).unwrap(), Time::ZERO);
        let mut board = Board::new(1 << 20, 0).unwrap();
        board.reset(&mut memory, now);
        for (port, values) in [(0x20, [0x11, 0x20, 4, 1, 0]), (0xa0, [0x11, 0x28, 2, 1, 0])] {
            board.write_port(&mut memory, now, port, Width::Byte, values[0]);
            for value in &values[1..] {
                board.write_port(&mut memory, now, port + 1, Width::Byte, *value);
            }
        }
        board.assert_ferr(&mut memory, now);
        assert!(board.interrupt_requested());
        assert_eq!(board.acknowledge_interrupt(), 0x2d);
        assert!(!board.take_ignne());
        board.write_port(&mut memory, now, 0xf0, Width::Byte, 0);
        assert!(board.take_ignne());
    }

    #[test]
    fn a_state_of_another_machine_is_refused() {
        let mut board = Board::new(1 << 20, 0).unwrap();
        let saved = SavedState::new("cpu", 1, &0);
        assert!(board.restore(&saved).is_err());
    }
}
