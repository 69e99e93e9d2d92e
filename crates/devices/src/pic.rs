//! The two 8259A programmable interrupt controllers of a PC, and the edge/level
//! control registers (ELCR) of the chipset that go with them.
//!
//! From Intel's data sheet "8259A Programmable Interrupt Controller" (231468),
//! whose names are used here, and for the ELCR from the PIIX3 data sheet (290550).
//! The master's IR2 is the slave's INT output. What a PC cannot show is not
//! modelled: the MCS-80/85 mode, in which the processor fetches a CALL instruction,
//! and the pins of the buffered mode.

use ring3_core::bus::PortRange;
use ring3_core::device::{Context, Device, DeviceId, Width};
use ring3_core::state::{RestoreError, SavedState};
use serde::{Deserialize, Serialize};

use crate::bytewise;

const VERSION: u32 = 1;

/// The master's input that the slave's INT output is wired to.
const CASCADE: u8 = 2;
/// Nobody drives the data bus.
const OPEN_BUS: u8 = 0xff;
/// The input that a chip answers with when the request has gone before it was acknowledged.
const SPURIOUS: u8 = 7;

/// The inputs that stay edge triggered whatever the ELCR is written to: the timer, the
/// keyboard and the cascade on the master, the clock and the coprocessor on the slave.
const ELCR_FIXED: [u8; 2] = [0x07, 0x21];

const ICW1_SELECT: u8 = 1 << 4;
const ICW1_IC4: u8 = 1 << 0;
const ICW1_SNGL: u8 = 1 << 1;
const ICW1_LTIM: u8 = 1 << 3;
const ICW4_AEOI: u8 = 1 << 1;
const ICW4_SFNM: u8 = 1 << 4;
const OCW3_SELECT: u8 = 1 << 3;
const OCW3_POLL: u8 = 1 << 2;

/// Which control word a write to the odd port is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
enum Expected {
    Icw2,
    Icw3,
    Icw4,
    /// OCW1: initialization is complete.
    Ocw1,
}

/// One 8259A.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Chip {
    /// The SP/EN pin: high on the master, low on the slave.
    is_master: bool,
    /// The levels at IR0 to IR7.
    lines: u8,
    /// The edge sense latches: inputs that have risen, are still high and were not acknowledged.
    edges: u8,
    /// The in-service register ISR.
    in_service: u8,
    /// The interrupt mask register IMR.
    mask: u8,
    /// Inputs that the chipset makes level triggered.
    elcr: u8,
    /// What the next write to the odd port is.
    expected: Expected,
    /// LTIM of ICW1: all inputs are level triggered.
    all_levels: bool,
    /// SNGL of ICW1: no cascade.
    single: bool,
    /// IC4 of ICW1: an ICW4 follows.
    icw4_follows: bool,
    /// T7-T3 of ICW2: the vector of IR0.
    vector_base: u8,
    /// ICW3: on the master the inputs with slaves, on the slave its own number.
    icw3: u8,
    /// AEOI of ICW4: no end of interrupt command is needed.
    auto_eoi: bool,
    /// SFNM of ICW4: requests of a slave that is in service pass.
    special_fully_nested: bool,
    /// SMM of OCW3: masked inputs in service do not hold up others.
    special_mask: bool,
    /// P of OCW3: the next read acknowledges.
    poll: bool,
    /// RIS of OCW3: the even port reads the ISR and not the IRR.
    read_in_service: bool,
    /// The input of lowest priority; the one after it has the highest.
    lowest: u8,
    /// Priorities rotate at each automatic end of interrupt.
    rotate_on_auto_eoi: bool,
}

impl Chip {
    /// The data sheet leaves the state after power-on open. All inputs are
    /// masked here, so that nothing comes before firmware has asked for it.
    fn new(is_master: bool) -> Chip {
        Chip {
            is_master,
            lines: 0,
            edges: 0,
            in_service: 0,
            mask: 0xff,
            elcr: 0,
            expected: Expected::Ocw1,
            all_levels: false,
            single: false,
            icw4_follows: false,
            vector_base: 0,
            icw3: 0,
            auto_eoi: false,
            special_fully_nested: false,
            special_mask: false,
            poll: false,
            read_in_service: false,
            lowest: 7,
            rotate_on_auto_eoi: false,
        }
    }

    fn set_line(&mut self, ir: u8, high: bool) {
        let bit = 1 << ir;
        if !high {
            // "The IR inputs must remain high until after the falling edge of
            // the first INTA": a request that goes away is forgotten.
            self.lines &= !bit;
            self.edges &= !bit;
        } else if self.lines & bit == 0 {
            self.lines |= bit;
            self.edges |= bit;
        }
    }

    /// The interrupt request register IRR.
    fn requests(&self) -> u8 {
        let level_triggered = if self.all_levels { 0xff } else { self.elcr };
        self.edges | self.lines & level_triggered
    }

    /// How many inputs have priority over the highest of `inputs`; 8 when there is none.
    fn rank(&self, inputs: u8) -> u32 {
        inputs.rotate_right(u32::from(self.lowest) + 1).trailing_zeros()
    }

    /// The input with `rank` inputs of priority over it.
    fn at_rank(&self, rank: u32) -> u8 {
        (self.lowest + 1 + rank as u8) & 7
    }

    fn has_slave(&self, ir: u8) -> bool {
        self.is_master && !self.single && self.icw3 >> ir & 1 != 0
    }

    /// The priority resolver: the input that the INT output is high for.
    #[inline]
    fn pending(&self) -> Option<u8> {
        if self.expected != Expected::Ocw1 {
            return None;
        }
        let rank = self.rank(self.requests() & !self.mask);
        if rank == 8 {
            return None;
        }
        let ir = self.at_rank(rank);
        let masked = if self.special_mask { self.mask } else { 0 };
        let served = self.rank(self.in_service & !masked);
        let nests = self.special_fully_nested && self.has_slave(ir);
        (rank < served || rank == served && nests).then_some(ir)
    }

    /// The first INTA pulse, or the read of a poll: the request goes into service.
    fn start_service(&mut self) -> Option<u8> {
        let ir = self.pending()?;
        self.in_service |= 1 << ir;
        self.edges &= !(1 << ir);
        Some(ir)
    }

    /// The end of the last INTA pulse.
    fn finish_acknowledge(&mut self, ir: u8) {
        if self.auto_eoi {
            self.in_service &= !(1 << ir);
            if self.rotate_on_auto_eoi {
                self.lowest = ir;
            }
        }
    }

    fn write_even(&mut self, value: u8) {
        if value & ICW1_SELECT != 0 {
            self.write_icw1(value);
        } else if value & OCW3_SELECT != 0 {
            self.write_ocw3(value);
        } else {
            self.write_ocw2(value);
        }
    }

    fn write_odd(&mut self, value: u8) {
        self.expected = match self.expected {
            Expected::Icw2 => {
                self.vector_base = value & 0xf8;
                if self.single { self.after_icw3() } else { Expected::Icw3 }
            }
            Expected::Icw3 => {
                self.icw3 = value;
                self.after_icw3()
            }
            Expected::Icw4 => {
                self.auto_eoi = value & ICW4_AEOI != 0;
                self.special_fully_nested = value & ICW4_SFNM != 0;
                Expected::Ocw1
            }
            Expected::Ocw1 => {
                self.mask = value;
                Expected::Ocw1
            }
        };
    }

    fn after_icw3(&self) -> Expected {
        if self.icw4_follows { Expected::Icw4 } else { Expected::Ocw1 }
    }

    /// "Initialization Command Words 1 and 2" lists what ICW1 clears; the ISR is not
    /// on the list but no software would survive if it stayed.
    fn write_icw1(&mut self, value: u8) {
        let (lines, elcr, vector_base, icw3) = (self.lines, self.elcr, self.vector_base, self.icw3);
        *self = Chip {
            lines,
            mask: 0,
            elcr,
            expected: Expected::Icw2,
            all_levels: value & ICW1_LTIM != 0,
            single: value & ICW1_SNGL != 0,
            icw4_follows: value & ICW1_IC4 != 0,
            vector_base,
            icw3,
            ..Chip::new(self.is_master)
        };
    }

    /// R, SL and EOI, and the input L2-L0 that the specific commands are for.
    fn write_ocw2(&mut self, value: u8) {
        let level = value & 7;
        match value >> 5 {
            0b000 => self.rotate_on_auto_eoi = false,
            0b001 => {
                self.end_of_interrupt();
            }
            0b011 => self.in_service &= !(1 << level),
            0b100 => self.rotate_on_auto_eoi = true,
            0b101 => {
                if let Some(ir) = self.end_of_interrupt() {
                    self.lowest = ir;
                }
            }
            0b110 => self.lowest = level,
            0b111 => {
                self.in_service &= !(1 << level);
                self.lowest = level;
            }
            _ => {}
        }
    }

    /// The non-specific end of interrupt: for the highest input in service. In special
    /// mask mode it does not see those that are masked.
    fn end_of_interrupt(&mut self) -> Option<u8> {
        let masked = if self.special_mask { self.mask } else { 0 };
        let rank = self.rank(self.in_service & !masked);
        if rank == 8 {
            return None;
        }
        let ir = self.at_rank(rank);
        self.in_service &= !(1 << ir);
        Some(ir)
    }

    fn write_ocw3(&mut self, value: u8) {
        match value >> 5 & 3 {
            0b10 => self.special_mask = false,
            0b11 => self.special_mask = true,
            _ => {}
        }
        match value & 3 {
            0b10 => self.read_in_service = false,
            0b11 => self.read_in_service = true,
            _ => {}
        }
        self.poll = value & OCW3_POLL != 0;
    }

    fn is_valid(&self) -> bool {
        self.lowest < 8 && self.edges & !self.lines == 0 && self.vector_base & 7 == 0
    }
}

/// The master and the slave, wired to each other.
///
/// Devices do not reach it by [`ring3_core::lines::IrqLines`] but through the board, which
/// passes each change of a line on by [`PicPair::set_line`], asks
/// [`PicPair::interrupt_requested`] before each instruction boundary at which the processor
/// would take an interrupt, and then fetches the vector by [`PicPair::acknowledge`].
///
/// ```
/// use ring3_core::device::TestBench;
/// use ring3_devices::pic::PicPair;
///
/// let (mut pic, mut bench) = (PicPair::default(), TestBench::default());
/// for (port, word) in [(0x20, 0x11), (0x21, 0x30), (0x21, 0x04), (0x21, 0x01)] {
///     bench.write(&mut pic, port, word); // ICW1 to ICW4: IR0 is vector 30h
/// }
/// pic.set_line(1, true);
/// assert!(pic.interrupt_requested());
/// assert_eq!(pic.acknowledge(), 0x31);
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PicPair {
    master: Chip,
    slave: Chip,
}

impl Default for PicPair {
    fn default() -> PicPair {
        PicPair { master: Chip::new(true), slave: Chip::new(false) }
    }
}

impl PicPair {
    /// The ports at which it answers.
    pub fn ports(&self) -> [PortRange; 3] {
        [PortRange::new(0x20, 2), PortRange::new(0xa0, 2), PortRange::new(0x4d0, 2)]
    }

    /// Drives IRQ line `irq`: 0 to 7 are the master's inputs, 8 to 15 the slave's. IRQ 2,
    /// which is the cascade and leads to no device, and numbers above 15 are ignored.
    pub fn set_line(&mut self, irq: u8, high: bool) {
        match irq {
            CASCADE => {}
            0..=7 => self.master.set_line(irq, high),
            8..=15 => {
                self.slave.set_line(irq - 8, high);
                self.drive_cascade();
            }
            _ => {}
        }
    }

    /// The level of the INTR pin of the processor.
    #[inline]
    pub fn interrupt_requested(&self) -> bool {
        self.master.pending().is_some()
    }

    /// The processor's two INTA cycles: the vector of the interrupt, which is in service
    /// from here on. With no request it is that of input 7, the spurious interrupt; FFh is
    /// read from the bus when the chips are programmed so that neither answers.
    pub fn acknowledge(&mut self) -> u8 {
        let request = self.master.start_service();
        let ir = request.unwrap_or(SPURIOUS);
        let vector = if !self.master.has_slave(ir) {
            self.master.vector_base | ir
        } else if ir == CASCADE && self.slave.icw3 & 7 == CASCADE {
            self.acknowledge_slave()
        } else {
            OPEN_BUS
        };
        if request.is_some() {
            self.master.finish_acknowledge(ir);
        }
        vector
    }

    fn acknowledge_slave(&mut self) -> u8 {
        let request = self.slave.start_service();
        // INT goes low in between, which makes the slave's next request an edge.
        self.drive_cascade();
        if let Some(ir) = request {
            self.slave.finish_acknowledge(ir);
            self.drive_cascade();
        }
        self.slave.vector_base | request.unwrap_or(SPURIOUS)
    }

    fn drive_cascade(&mut self) {
        self.master.set_line(CASCADE, self.slave.pending().is_some());
    }

    /// The poll command: the read is the acknowledge, and yields bit 7 and the input when
    /// there is a request.
    fn poll(chip: &mut Chip) -> u8 {
        chip.poll = false;
        chip.start_service().map_or(0, |ir| {
            chip.finish_acknowledge(ir);
            0x80 | ir
        })
    }

    /// The register at `port`. None if a read there is the acknowledge of a poll.
    fn register(&self, port: u16) -> Option<u8> {
        let chip = match port {
            0x20 | 0x21 => &self.master,
            0xa0 | 0xa1 => &self.slave,
            0x4d0 => return Some(self.master.elcr),
            0x4d1 => return Some(self.slave.elcr),
            _ => return Some(OPEN_BUS),
        };
        (!chip.poll).then(|| match (port & 1, chip.read_in_service) {
            (1, _) => chip.mask,
            (_, true) => chip.in_service,
            (_, false) => chip.requests(),
        })
    }

    fn read_byte(&mut self, port: u16) -> u8 {
        self.register(port).unwrap_or_else(|| {
            let is_of_master = port < 0xa0;
            let chip = if is_of_master { &mut self.master } else { &mut self.slave };
            let answer = PicPair::poll(chip);
            self.drive_cascade();
            answer
        })
    }

    fn write_byte(&mut self, port: u16, value: u8) {
        match port {
            0x20 => self.master.write_even(value),
            0x21 => self.master.write_odd(value),
            0xa0 => self.slave.write_even(value),
            0xa1 => self.slave.write_odd(value),
            0x4d0 => self.master.elcr = value & !ELCR_FIXED[0],
            0x4d1 => self.slave.elcr = value & !ELCR_FIXED[1],
            _ => {}
        }
        self.drive_cascade();
    }
}

impl Device for PicPair {
    fn id(&self) -> DeviceId {
        DeviceId::PIC
    }

    fn reset(&mut self, _: &mut Context<'_>) {
        *self = PicPair::default();
    }

    fn peek_port(&self, port: u16) -> Option<u8> {
        self.register(port)
    }

    fn read_port(&mut self, _: &mut Context<'_>, port: u16, width: Width) -> u32 {
        bytewise::read(port, width, |port| self.read_byte(port))
    }

    fn write_port(&mut self, _: &mut Context<'_>, port: u16, width: Width, value: u32) {
        bytewise::write(port, width, value, |port, byte| self.write_byte(port, byte));
    }

    fn save(&self) -> SavedState {
        SavedState::new(self.name(), VERSION, self)
    }

    fn restore(&mut self, state: &SavedState) -> Result<(), RestoreError> {
        let saved: PicPair = state.load(self.name(), VERSION)?;
        let wired = saved.master.is_master && !saved.slave.is_master;
        if !wired || !saved.master.is_valid() || !saved.slave.is_valid() {
            return Err(state.damaged("no 8259A can be in this state"));
        }
        *self = saved;
        Ok(())
    }
}

#[cfg(test)]
mod tests;
