//! A serial card on PCI: QEMU's `pci-serial`, a [16550A](crate::uart16550) behind base address register 0.
//!
//! From QEMU's `docs/specs/pci-serial.rst`: the IDs, eight ports, and INTA#. Systems find it by its class, too: a serial port
//! with the interface of a 16550 (PCI Local Bus Specification 2.1, appendix D).

use ring3_core::clock::Tag;
use ring3_core::device::{Context, Device, DeviceId, Width};
use ring3_core::input::DeviceInput;
use ring3_core::state::{RestoreError, SavedState};
use serde::{Deserialize, Serialize};

use crate::pci::{Function, Identity, command};
use crate::uart16550::{PORTS, Speed, Uart16550};

/// Base address register 0 has its ports.
const PORTS_REGION: u8 = 0;

const VERSION: u32 = 1;

#[derive(Serialize, Deserialize)]
struct State {
    #[serde(with = "serde_bytes")]
    config: Vec<u8>,
    uart: SavedState,
}

/// A card, one of [`DeviceId::PCI_SERIAL`].
#[derive(Debug)]
pub struct PciSerial {
    function: Function,
    uart: Uart16550,
}

impl PciSerial {
    /// The card `id`, which is PCI device number `slot`; `index` is the number of its port in
    /// [`Output::Serial`](ring3_core::device::Output::Serial).
    pub fn new(id: DeviceId, index: u8, slot: u8, speed: Speed) -> PciSerial {
        PciSerial { function: function(), uart: Uart16550::on_card(id, index, slot, speed) }
    }

    fn offset(&self, port: u16) -> u16 {
        self.function.port_offset(PORTS_REGION, port)
    }
}

/// The PCI function.
fn function() -> Function {
    // A 16550.
    let identity = Identity { vendor: 0x1b36, device: 0x0002, revision: 1, class: 0x07_0002 };
    Function::new(identity)
        .command(command::IO | command::MEMORY)
        .ports(PORTS_REGION, PORTS)
        .subsystem(0x1af4, 0x1100)
        .interrupt()
}

impl Device for PciSerial {
    fn id(&self) -> DeviceId {
        self.uart.id()
    }

    fn reset(&mut self, context: &mut Context<'_>) {
        self.function.reset();
        self.function.claim(context);
        self.uart.reset(context);
    }

    fn read_port(&mut self, context: &mut Context<'_>, port: u16, width: Width) -> u32 {
        self.uart.read_port(context, self.offset(port), width)
    }

    fn write_port(&mut self, context: &mut Context<'_>, port: u16, width: Width, value: u32) {
        self.uart.write_port(context, self.offset(port), width, value);
    }

    fn peek_port(&self, port: u16) -> Option<u8> {
        self.uart.peek_port(self.offset(port))
    }

    fn read_config(
        &mut self,
        _context: &mut Context<'_>,
        _function: u8,
        offset: u8,
        width: Width,
    ) -> u32 {
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
    }

    fn timer(&mut self, context: &mut Context<'_>, tag: Tag) {
        self.uart.timer(context, tag);
    }

    fn input(&mut self, context: &mut Context<'_>, input: DeviceInput) {
        self.uart.input(context, input);
    }

    fn takes_input(&self) -> bool {
        self.uart.takes_input()
    }

    fn save(&self) -> SavedState {
        let state = State { config: self.function.save(), uart: self.uart.save() };
        SavedState::new(self.name(), VERSION, &state)
    }

    fn restore(&mut self, saved: &SavedState) -> Result<(), RestoreError> {
        let state: State = saved.load(self.name(), VERSION)?;
        let function = self.function.restored(saved, &state.config)?;
        self.uart.restore(&state.uart)?;
        self.function = function;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use ring3_core::device::{Output, TestBench};

    use super::*;
    use crate::hammer::{blows, hammer};
    use crate::pci::registers;

    const BASE: u16 = 0xc040;
    const SLOT: u8 = 30;

    fn card() -> PciSerial {
        PciSerial::new(DeviceId::PCI_SERIAL[0], 4, SLOT, Speed::Unlimited)
    }

    /// A card whose ports have an address.
    fn placed() -> (TestBench, PciSerial) {
        let (mut bench, mut card) = (TestBench::default(), card());
        card.reset(&mut bench.context());
        for (offset, value) in [(registers::BASE_ADDRESS, u32::from(BASE)), (registers::COMMAND, 1)]
        {
            card.write_config(&mut bench.context(), 0, offset, Width::Dword, value);
        }
        (bench, card)
    }

    #[test]
    fn systems_find_a_16550() {
        let (mut bench, mut card) = placed();
        let mut read = |offset| card.read_config(&mut bench.context(), 0, offset, Width::Dword);
        assert_eq!(read(0), 0x0002_1b36);
        assert_eq!(read(8), 0x0700_0201);
        assert_eq!(read(registers::BASE_ADDRESS), u32::from(BASE) | 1);
        assert_eq!(read(0x3c) >> 8, 1, "INTA#");
    }

    #[test]
    fn bytes_go_both_ways_and_raise_inta() {
        let (mut bench, mut card) = placed();
        bench.write(&mut card, BASE, b'!');
        assert_eq!(bench.outputs, [Output::Serial { port: 4, byte: b'!' }]);
        // INTA# of slot n is input n - 1 of the router.
        bench.irq.route((SLOT - 1) % 4, Some(11));
        let is_high = |bench: &TestBench| bench.irq.is_high(11);
        bench.write(&mut card, BASE + 1, 1);
        assert!(!is_high(&bench));
        card.input(&mut bench.context(), DeviceInput::Serial(b"x".to_vec()));
        assert!(is_high(&bench));
        assert_eq!(bench.read(&mut card, BASE), b'x');
        assert!(!is_high(&bench));
    }

    #[test]
    fn a_saved_card_continues() {
        let (mut bench, mut saved) = placed();
        bench.write(&mut saved, BASE + 7, 0xa5);
        let mut restored = card();
        restored.restore(&saved.save()).unwrap();
        assert_eq!(bench.read(&mut restored, BASE + 7), 0xa5);
        assert_eq!(restored.save(), saved.save());
        let other = PciSerial::new(DeviceId::PCI_SERIAL[1], 5, SLOT, Speed::Unlimited).save();
        assert!(restored.restore(&other).is_err());
    }

    proptest! {
        #[test]
        fn any_accesses_are_handled_without_a_panic(blows in blows(&[BASE, BASE + 1, BASE + 3, BASE + 7])) {
            hammer(&mut placed().1, &mut card(), blows);
        }
    }
}
