//! The ISA bridge of the 82371SB (PIIX3), PCI function 00:01.0: the router of PCI interrupts, reset, and the
//! ports by which firmware and system management talk to each other.
//!
//! From Intel's data sheet "82371FB (PIIX) and 82371SB (PIIX3) PCI ISA IDE Xcelerator" (290550), whose names
//! are used here. The PIIX3's edge/level control registers are with the 8259A in [`crate::pic`], its DMA
//! controllers and timers are devices of their own. Of the configuration registers there are those that something
//! behind them answers for; XBCS holds what is written, as the firmware's ROM is never switched off; the others
//! read 0. APMC and APMS are plain memory, for there is no system management mode.

use ring3_core::bus::PortRange;
use ring3_core::device::{Context, Device, DeviceId, Output, Width};
use ring3_core::state::{RestoreError, SavedState};
use serde::{Deserialize, Serialize};

use crate::bytewise;
use crate::pci::{Function, Identity, MULTI_FUNCTION, registers};

const VERSION: u32 = 1;

/// XBCS, X-bus chip select, two bytes.
const XBCS: u8 = 0x4e;
/// PIRQRCA to PIRQRCD: the line that each router input goes to, bit 7 for none.
const PIRQ_ROUTE_CONTROL: u8 = 0x60;
const NOT_ROUTED: u8 = 1 << 7;
const ROUTE_BITS: u8 = 0x8f;
const ROUTES: usize = 4;

/// The lines that a board without firmware has PIRQA to PIRQD on.
const DEFAULT_ROUTES: [u8; ROUTES] = [10, 10, 11, 11];

/// APMC, advanced power management control.
const APM_CONTROL_PORT: u16 = 0xb2;
/// APMS, advanced power management status.
const APM_STATUS_PORT: u16 = 0xb3;
/// RC, reset control: a byte between those of PCI's CONFIG_ADDRESS, which only answers dwords.
const RESET_CONTROL_PORT: u16 = 0xcf9;

/// RCPU: a change to 1 resets, in the way that SRST says.
const RESET_CPU: u8 = 1 << 2;
/// SRST: hard reset, of the whole machine, and not of the processor alone.
const HARD_RESET: u8 = 1 << 1;
/// The bits that software may write, with the full power cycle of later chips.
const RESET_CONTROL_BITS: u8 = 0x0e;

/// The ISA bridge, device `piix3`.
#[derive(Debug, Clone)]
pub struct Piix3 {
    is_set_up: bool,
    function: Function,
    apm_control: u8,
    apm_status: u8,
    reset_control: u8,
}

#[derive(Serialize, Deserialize)]
struct State {
    config: Vec<u8>,
    apm_control: u8,
    apm_status: u8,
    reset_control: u8,
}

impl Piix3 {
    /// The bridge as after power-on, or, when `is_set_up`, as firmware leaves it.
    pub fn new(is_set_up: bool) -> Piix3 {
        let identity = Identity { vendor: 0x8086, device: 0x7000, revision: 0, class: 0x060100 };
        let routes = if is_set_up { DEFAULT_ROUTES } else { [NOT_ROUTED; ROUTES] };
        let function = Function::new(identity)
            // I/O, memory and bus mastering are wired on; special cycles are free.
            .fixed(registers::COMMAND, &[0x07, 0x00])
            .writable(registers::COMMAND, &[0x08, 0x00])
            .status(0x0200)
            .fixed(registers::HEADER_TYPE, &[MULTI_FUNCTION])
            .fixed(XBCS, &[0x03, 0x00])
            .writable(XBCS, &[0xff, 0x01])
            .fixed(PIRQ_ROUTE_CONTROL, &routes)
            .writable(PIRQ_ROUTE_CONTROL, &[ROUTE_BITS; ROUTES]);
        Piix3 { is_set_up, function, apm_control: 0, apm_status: 0, reset_control: 0 }
    }

    /// The ports at which the board attaches the device.
    pub fn ports(&self) -> [PortRange; 2] {
        [PortRange::new(APM_CONTROL_PORT, 2), PortRange::new(RESET_CONTROL_PORT, 1)]
    }

    fn route(&self, context: &mut Context<'_>) {
        for input in 0..ROUTES as u8 {
            let route = self.function.read(PIRQ_ROUTE_CONTROL + input, Width::Byte) as u8;
            let line = (route & NOT_ROUTED == 0).then_some(route & 0xf);
            context.irq.route(input, line.filter(|line| is_routable(*line)));
        }
    }

    fn write_reset_control(&mut self, context: &mut Context<'_>, value: u8) {
        let before = std::mem::replace(&mut self.reset_control, value & RESET_CONTROL_BITS);
        if value & !before & RESET_CPU != 0 {
            let hard = value & HARD_RESET != 0;
            context.output(if hard { Output::Reset } else { Output::ProcessorReset });
        }
    }
}

/// False for the lines that PIRQRC lists as reserved: those of the timer, the keyboard, the cascade, the clock
/// and the coprocessor.
fn is_routable(line: u8) -> bool {
    !matches!(line, 0..=2 | 8 | 13)
}

impl Device for Piix3 {
    fn id(&self) -> DeviceId {
        DeviceId::PIIX3
    }

    fn reset(&mut self, context: &mut Context<'_>) {
        *self = Piix3::new(self.is_set_up);
        self.route(context);
    }

    fn read_port(&mut self, _: &mut Context<'_>, port: u16, width: Width) -> u32 {
        bytewise::read(port, width, |port| match port {
            APM_CONTROL_PORT => self.apm_control,
            APM_STATUS_PORT => self.apm_status,
            RESET_CONTROL_PORT => self.reset_control,
            _ => 0xff,
        })
    }

    fn write_port(&mut self, context: &mut Context<'_>, port: u16, width: Width, value: u32) {
        bytewise::write(port, width, value, |port, byte| match port {
            APM_CONTROL_PORT => self.apm_control = byte,
            APM_STATUS_PORT => self.apm_status = byte,
            RESET_CONTROL_PORT => self.write_reset_control(context, byte),
            _ => {}
        });
    }

    fn read_config(&mut self, _: &mut Context<'_>, _function: u8, offset: u8, width: Width) -> u32 {
        self.function.read(offset, width)
    }

    fn write_config(
        &mut self,
        context: &mut Context<'_>,
        _function: u8,
        offset: u8,
        width: Width,
        value: u32,
    ) {
        self.function.write(context, offset, width, value);
        self.route(context);
    }

    fn save(&self) -> SavedState {
        let state = State {
            config: self.function.save(),
            apm_control: self.apm_control,
            apm_status: self.apm_status,
            reset_control: self.reset_control,
        };
        SavedState::new(self.name(), VERSION, &state)
    }

    fn restore(&mut self, saved: &SavedState) -> Result<(), RestoreError> {
        let state: State = saved.load(self.name(), VERSION)?;
        if state.reset_control & !RESET_CONTROL_BITS != 0 {
            return Err(saved.damaged("no PIIX3 can be in this state"));
        }
        self.function = self.function.restored(saved, &state.config)?;
        self.apm_control = state.apm_control;
        self.apm_status = state.apm_status;
        self.reset_control = state.reset_control;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::hammer::{blows, config_blows, hammer, hammer_config};
    use ring3_core::device::TestBench;

    fn machine() -> (TestBench, Piix3) {
        let (mut bench, mut bridge) = (TestBench::default(), Piix3::new(false));
        bridge.reset(&mut bench.context());
        (bench, bridge)
    }

    fn read_config(bench: &mut TestBench, bridge: &mut Piix3, offset: u8) -> u32 {
        bridge.read_config(&mut bench.context(), 0, offset, Width::Dword)
    }

    #[test]
    fn a_rising_reset_bit_resets_once() {
        let (mut bench, mut bridge) = machine();
        bench.write(&mut bridge, RESET_CONTROL_PORT, 0x02);
        assert_eq!(bench.outputs, []);
        bench.write(&mut bridge, RESET_CONTROL_PORT, 0x06);
        assert_eq!(bench.outputs, [Output::Reset]);
        bench.write(&mut bridge, RESET_CONTROL_PORT, 0x0e);
        assert_eq!(bench.outputs.len(), 1);
        assert_eq!(bench.read(&mut bridge, RESET_CONTROL_PORT), 0x0e);
        bench.write(&mut bridge, RESET_CONTROL_PORT, 0x00);
        bench.write(&mut bridge, RESET_CONTROL_PORT, 0x04);
        assert_eq!(bench.outputs, [Output::Reset, Output::ProcessorReset]);
    }

    #[test]
    fn pci_interrupts_go_where_they_are_routed() {
        let (mut bench, mut bridge) = machine();
        bench.irq.set_pci(2, 0, true);
        assert!((0..16).all(|line| !bench.irq.is_high(line)), "nothing is routed after power-on");
        let route = |bench: &mut TestBench, bridge: &mut Piix3, value| {
            bridge.write_config(&mut bench.context(), 0, 0x61, Width::Byte, value);
        };
        route(&mut bench, &mut bridge, 11);
        assert!(bench.irq.is_high(11));
        route(&mut bench, &mut bridge, 5);
        assert!(bench.irq.is_high(5) && !bench.irq.is_high(11));
        route(&mut bench, &mut bridge, 0x85);
        assert!(!bench.irq.is_high(5));
        route(&mut bench, &mut bridge, 8);
        assert!(!bench.irq.is_high(8), "reserved");
        assert_eq!(read_config(&mut bench, &mut bridge, 0x60), 0x8080_0880);
    }

    #[test]
    fn a_bridge_that_is_set_up_has_routes() {
        let (mut bench, mut bridge) = (TestBench::default(), Piix3::new(true));
        bridge.reset(&mut bench.context());
        bench.irq.set_pci(1, 0, true);
        assert!(bench.irq.is_high(10));
        assert_eq!(read_config(&mut bench, &mut bridge, 0x60), 0x0b0b_0a0a);
    }

    #[test]
    fn firmware_finds_the_bridge_and_its_latches() {
        let (mut bench, mut bridge) = machine();
        assert_eq!(read_config(&mut bench, &mut bridge, 0), 0x7000_8086);
        assert_eq!(read_config(&mut bench, &mut bridge, 8) >> 8, 0x060100);
        assert_eq!(read_config(&mut bench, &mut bridge, 0x0c) >> 16 & 0xff, 0x80);
        bridge.write_port(&mut bench.context(), APM_CONTROL_PORT, Width::Word, 0x1234);
        assert_eq!(bench.read(&mut bridge, APM_CONTROL_PORT), 0x34);
        assert_eq!(bench.read(&mut bridge, APM_STATUS_PORT), 0x12);
    }

    #[test]
    fn states_that_cannot_be_are_refused() {
        let (_, mut bridge) = machine();
        let before = bridge.save();
        let (apm_control, apm_status) = (0, 0);
        for (config, reset_control) in
            [(vec![0; 256], 0), (vec![0; 7], 0), (bridge.function.save(), 1)]
        {
            let state = State { config, apm_control, apm_status, reset_control };
            let saved = SavedState::new(DeviceId::PIIX3.name(), VERSION, &state);
            assert!(matches!(bridge.restore(&saved), Err(RestoreError::Damaged { .. })));
            assert_eq!(bridge.save(), before);
        }
    }

    proptest! {
        #[test]
        fn any_accesses_leave_a_state_that_can_be_saved(
            config in config_blows(),
            ports in blows(&[0xb2, 0xb3, 0xcf9]),
        ) {
            let (mut bench, mut bridge) = machine();
            hammer_config(&mut bridge, &mut bench, 0, config);
            hammer(&mut bridge, &mut Piix3::new(false), ports);
        }
    }
}
