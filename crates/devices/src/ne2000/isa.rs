//! Novell's NE2000 itself, on the ISA bus.

use ring3_core::bus::PortRange;
use ring3_core::device::{Context, Device, DeviceId, Width};
use ring3_core::input::DeviceInput;
use ring3_core::net::MacAddress;
use ring3_core::state::{RestoreError, SavedState};

use super::{Card, MoreRegisters, PORTS};

/// Bytes of its memory.
const MEMORY: usize = 16 << 10;

const VERSION: u32 = 1;

/// It has the registers of its chip and no others.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
struct NoMore;

impl MoreRegisters for NoMore {
    fn read(&self, _page: u8, _register: u16) -> Option<u8> {
        None
    }

    fn write(&mut self, _page: u8, _register: u16, _value: u8) {}
}

/// A card on the ISA bus.
#[derive(Debug)]
pub struct Isa {
    id: DeviceId,
    port: u16,
    irq: u8,
    card: Card<NoMore>,
}

impl Isa {
    /// The card `id` with that address, at the [`PORTS`] ports from `port` on, a multiple of as many, and IRQ line `irq`: as jumpers say.
    pub fn new(id: DeviceId, address: MacAddress, port: u16, irq: u8) -> Isa {
        Isa { id, port, irq, card: Card::new(address, MEMORY) }
    }

    /// Where it answers.
    pub fn ports(&self) -> [PortRange; 1] {
        [PortRange::new(self.port, PORTS)]
    }

    fn settle(&self, context: &mut Context<'_>) {
        context.irq.set(self.irq, self.card.chip.interrupts());
    }
}

impl Device for Isa {
    fn id(&self) -> DeviceId {
        self.id
    }

    fn reset(&mut self, context: &mut Context<'_>) {
        self.card.power_on();
        self.settle(context);
    }

    fn read_port(&mut self, context: &mut Context<'_>, port: u16, width: Width) -> u32 {
        let value = self.card.read(port.wrapping_sub(self.port), width);
        self.settle(context);
        value
    }

    fn write_port(&mut self, context: &mut Context<'_>, port: u16, width: Width, value: u32) {
        self.card.write(context, port.wrapping_sub(self.port), width, value);
        self.settle(context);
    }

    fn read_port_string(&mut self, port: u16, width: Width, bytes: &mut [u8]) -> usize {
        self.card.read_string(port.wrapping_sub(self.port), width, bytes)
    }

    fn write_port_string(&mut self, port: u16, width: Width, bytes: &[u8]) -> usize {
        self.card.write_string(port.wrapping_sub(self.port), width, bytes)
    }

    fn input(&mut self, context: &mut Context<'_>, input: DeviceInput) {
        self.card.input(context, input);
        self.settle(context);
    }

    fn takes_input(&self) -> bool {
        self.card.chip.takes_packets()
    }

    fn save(&self) -> SavedState {
        SavedState::new(self.name(), VERSION, &self.card)
    }

    fn restore(&mut self, saved: &SavedState) -> Result<(), RestoreError> {
        let mut card: Card<NoMore> = saved.load(self.name(), VERSION)?;
        if !card.is_possible_for(&self.card) {
            return Err(saved.damaged("it is of another card, or its registers cannot be"));
        }
        // The card may have got another address.
        card.buffer.set_prom_of(&self.card.buffer);
        self.card = card;
        Ok(())
    }
}
