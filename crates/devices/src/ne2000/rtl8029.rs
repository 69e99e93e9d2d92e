//! Realtek's RTL8029AS: an NE2000 as one chip on PCI.
//!
//! By its data sheet "RTL8029AS" (1997-01-16). Beside the registers of the DP8390 it has some to recognize it by, and page 3 with its
//! configuration. There is no access to the 9346 from which it loads that.

use ring3_core::device::{Context, Device, DeviceId, Width};
use ring3_core::input::DeviceInput;
use ring3_core::net::MacAddress;
use ring3_core::state::{RestoreError, SavedState};
use serde::{Deserialize, Serialize};

use super::{Card, MoreRegisters, PORTS};
use crate::pci::rom::{self, RomImage};
use crate::pci::{Function, Identity, command};

/// Bytes of its memory.
const MEMORY: usize = 32 << 10;

/// INTA#.
const PIN: u8 = 0;
/// Base address register 0 has its ports.
const PORTS_REGION: u8 = 0;

// What it is recognized by in page 0.
const ID: [(u16, u8); 2] = [(0xa, 0x50), (0xb, 0x43)];

// Registers of page 3.
const EEPROM_COMMAND: u16 = 0x1;
const CONFIG0: u16 = 0x3;
const CONFIG2: u16 = 0x5;
const CONFIG3: u16 = 0x6;
const ASIC_ID: [(u16, u8); 2] = [(0xe, 0x29), (0xf, 0x80)];
/// In the EEPROM command register: what it is at. All ones let software write the configuration.
const EEPROM_MODE: u8 = 0xc0;
/// What else there is in it to be written: chip select, clock and data of the EEPROM.
const EEPROM_PINS: u8 = 0x0e;
/// CONFIG2: the cable is twisted-pair.
const TWISTED_PAIR: u8 = 0x40;
const CONFIG2_WRITABLE: u8 = 0xe0;
/// CONFIG3: both directions at once.
const FULL_DUPLEX: u8 = 0x40;
const CONFIG3_WRITABLE: u8 = 0x46;

const VERSION: u32 = 1;

/// Page 3.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Page3 {
    eeprom_command: u8,
    config2: u8,
    config3: u8,
}

impl Default for Page3 {
    fn default() -> Page3 {
        Page3 { eeprom_command: 0, config2: TWISTED_PAIR, config3: FULL_DUPLEX }
    }
}

impl MoreRegisters for Page3 {
    fn read(&self, page: u8, register: u16) -> Option<u8> {
        let of = |values: [(u16, u8); 2]| {
            values.into_iter().find_map(|(at, value)| (at == register).then_some(value))
        };
        match (page, register) {
            (0, _) => of(ID),
            (3, EEPROM_COMMAND) => Some(self.eeprom_command),
            (3, CONFIG0) => Some(0),
            (3, CONFIG2) => Some(self.config2),
            (3, CONFIG3) => Some(self.config3),
            (3, _) => of(ASIC_ID),
            _ => None,
        }
    }

    fn write(&mut self, page: u8, register: u16, value: u8) {
        let may_configure = self.eeprom_command & EEPROM_MODE == EEPROM_MODE;
        match (page, register) {
            (3, EEPROM_COMMAND) => self.eeprom_command = value & (EEPROM_MODE | EEPROM_PINS),
            (3, CONFIG2) if may_configure => self.config2 = value & CONFIG2_WRITABLE,
            (3, CONFIG3) if may_configure => self.config3 = value & CONFIG3_WRITABLE,
            _ => {}
        }
    }
}

#[derive(Serialize, Deserialize)]
struct State {
    #[serde(with = "serde_bytes")]
    config: Vec<u8>,
    card: Card<Page3>,
}

/// A card on PCI.
#[derive(Debug)]
pub struct Rtl8029 {
    id: DeviceId,
    slot: u8,
    function: Function,
    card: Card<Page3>,
}

impl Rtl8029 {
    /// The card `id` with that address, which is PCI device number `slot`.
    pub fn new(id: DeviceId, address: MacAddress, slot: u8) -> Rtl8029 {
        Rtl8029 { id, slot, function: function(), card: Card::new(address, MEMORY) }
    }

    /// The same with a ROM, whichever function that was made for.
    #[must_use]
    pub fn with_rom(self, rom: Option<RomImage>) -> Rtl8029 {
        Rtl8029 { function: self.function.with_rom(rom), ..self }
    }

    fn offset(&self, port: u16) -> u16 {
        self.function.port_offset(PORTS_REGION, port)
    }

    fn settle(&self, context: &mut Context<'_>) {
        context.irq.set_pci(self.slot, PIN, self.card.chip.interrupts());
    }
}

/// The PCI function.
fn function() -> Function {
    // An Ethernet controller.
    let identity = Identity { vendor: 0x10ec, device: 0x8029, revision: 0, class: 0x020000 };
    Function::new(identity)
        .command(command::IO | command::MEMORY)
        // Medium DEVSEL# timing.
        .status(0x0200)
        .ports(PORTS_REGION, PORTS)
        .subsystem(0x10ec, 0x8029)
        .interrupt()
}

impl Device for Rtl8029 {
    fn id(&self) -> DeviceId {
        self.id
    }

    fn reset(&mut self, context: &mut Context<'_>) {
        self.function.reset();
        self.card.power_on();
        self.function.claim(context);
        self.settle(context);
    }

    fn read_port(&mut self, context: &mut Context<'_>, port: u16, width: Width) -> u32 {
        let value = self.card.read(self.offset(port), width);
        self.settle(context);
        value
    }

    fn write_port(&mut self, context: &mut Context<'_>, port: u16, width: Width, value: u32) {
        self.card.write(context, self.offset(port), width, value);
        self.settle(context);
    }

    fn read_port_string(&mut self, port: u16, width: Width, bytes: &mut [u8]) -> usize {
        self.card.read_string(self.offset(port), width, bytes)
    }

    fn write_port_string(&mut self, port: u16, width: Width, bytes: &[u8]) -> usize {
        self.card.write_string(self.offset(port), width, bytes)
    }

    fn read_memory(
        &mut self,
        _context: &mut Context<'_>,
        region: u8,
        offset: u64,
        width: Width,
    ) -> u32 {
        if region == rom::REGION { self.function.read_rom(offset, width) } else { width.mask() }
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

    fn input(&mut self, context: &mut Context<'_>, input: DeviceInput) {
        self.card.input(context, input);
        self.settle(context);
    }

    fn takes_input(&self) -> bool {
        self.card.chip.takes_packets()
    }

    fn save(&self) -> SavedState {
        let state = State { config: self.function.save(), card: self.card.clone() };
        SavedState::new(self.name(), VERSION, &state)
    }

    fn restore(&mut self, saved: &SavedState) -> Result<(), RestoreError> {
        let mut state: State = saved.load(self.name(), VERSION)?;
        if !state.card.is_possible_for(&self.card) {
            return Err(saved.damaged("it is of another card, or its registers cannot be"));
        }
        self.function = self.function.restored(saved, &state.config)?;
        // The card may have got another address.
        state.card.buffer.set_prom_of(&self.card.buffer);
        self.card = state.card;
        Ok(())
    }
}
