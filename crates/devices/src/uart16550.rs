//! The PC16550D universal asynchronous receiver/transmitter: a serial port.
//!
//! From National Semiconductor's data sheet of 1995; section numbers in this file are
//! its own. The other end of the line is a terminal that is always there (CTS, DSR and DCD
//! on), sends and receives whole bytes and knows neither parity errors nor breaks, so a
//! byte keeps its eight bits whatever the word length: that only counts for
//! the time which the byte spends on the line. One subtlety is left out: the transmitter's
//! interrupt comes as soon as the FIFO is empty, never a character time later (8.11).
//!
//! ```
//! use ring3_core::device::{Output, TestBench};
//! use ring3_devices::uart16550::{COM1, Speed, Uart16550};
//!
//! let (mut bench, mut uart) = (TestBench::default(), Uart16550::new(COM1, Speed::Unlimited));
//! bench.write(&mut uart, 0x3f8, b'!');
//! assert_eq!(bench.outputs, [Output::Serial { port: 0, byte: b'!' }]);
//! ```

use std::collections::VecDeque;

use ring3_core::bus::PortRange;
use ring3_core::clock::Tag;
use ring3_core::device::{Context, Device, DeviceId, Output, Width};
use ring3_core::input::DeviceInput;
use ring3_core::state::{RestoreError, SavedState};
use serde::{Deserialize, Serialize};

use crate::bytewise;

/// Where a serial port is in a PC.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ComPort {
    /// The device.
    pub id: DeviceId,
    /// Which port, from 0: the one of [`Output::Serial`].
    pub index: u8,
    /// First of its eight I/O ports.
    pub base: u16,
    /// Its IRQ line. COM1 and COM3 share one, and so do COM2 and COM4: it is high while either drives it.
    pub irq: u8,
}

/// The first serial port of a PC.
pub const COM1: ComPort = ComPort { id: DeviceId::COM[0], index: 0, base: 0x3f8, irq: 4 };
/// The second serial port of a PC.
pub const COM2: ComPort = ComPort { id: DeviceId::COM[1], index: 1, base: 0x2f8, irq: 3 };
/// The third serial port of a PC.
pub const COM3: ComPort = ComPort { id: DeviceId::COM[2], index: 2, base: 0x3e8, irq: 4 };
/// The fourth serial port of a PC.
pub const COM4: ComPort = ComPort { id: DeviceId::COM[3], index: 3, base: 0x2e8, irq: 3 };
/// The serial ports of a PC.
pub const COM_PORTS: [ComPort; 4] = [COM1, COM2, COM3, COM4];

/// What a serial port is wired to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Wiring {
    id: DeviceId,
    /// The one of [`Output::Serial`].
    index: u8,
    /// First of its eight I/O ports.
    base: u16,
    interrupt: Interrupt,
}

/// Where its interrupt goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Interrupt {
    /// To this IRQ line, which it shares.
    Irq(u8),
    /// To INTA# of this PCI slot.
    Pci(u8),
}

/// INTA#.
const PIN: u8 = 0;

/// How long bytes take on the line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Speed {
    /// As long as the divisor and the line control register say. Received bytes are lost
    /// when the guest reads too slowly.
    Line,
    /// No time at all: what is written is sent at once, and what is received waits
    /// until the guest has room for it. What the guest throws away unread, as drivers do when
    /// they start, comes once more after a pause, so that typing ahead is not lost.
    Unlimited,
}

/// Bytes from outside that wait for their turn on the line; more are dropped.
pub const INBOX_CAPACITY: usize = 64 << 10;

/// I/O ports of a serial port.
pub(crate) const PORTS: u16 = 8;

/// How long nothing is received after the guest has cleared the receiver, with [`Speed::Unlimited`]: longer than a
/// driver takes to start, even if the host lets it stand still meanwhile, in nanoseconds. A driver that enables the
/// interrupt of the receiver has started.
const PAUSE_NANOS: u64 = 250_000_000;

/// Bits in a second with divisor 1: the crystal of 1.8432 MHz by 16 (8.3).
const BAUD_BASE: u64 = 115_200;
const FIFO_CAPACITY: usize = 16;
/// The data sheet leaves the divisor undefined after power-on; this is 9600 baud.
const POWER_ON_DIVISOR: u16 = 12;

// Interrupt enable register (8.7).
const IER_RECEIVED: u8 = 1 << 0;
const IER_TRANSMITTER_EMPTY: u8 = 1 << 1;
const IER_LINE_STATUS: u8 = 1 << 2;
const IER_MODEM_STATUS: u8 = 1 << 3;
const IER_BITS: u8 = 0x0f;

// Interrupt identification register (8.6), by falling priority.
const IIR_LINE_STATUS: u8 = 0x06;
const IIR_RECEIVED: u8 = 0x04;
const IIR_TIMEOUT: u8 = 0x0c;
const IIR_TRANSMITTER_EMPTY: u8 = 0x02;
const IIR_MODEM_STATUS: u8 = 0x00;
const IIR_NONE: u8 = 0x01;
const IIR_FIFOS_ENABLED: u8 = 0xc0;

// FIFO control register (8.5).
const FCR_ENABLE: u8 = 1 << 0;
const FCR_CLEAR_RECEIVER: u8 = 1 << 1;
const FCR_CLEAR_TRANSMITTER: u8 = 1 << 2;
/// The receiver's trigger levels by FCR bits 7:6.
const TRIGGER_LEVELS: [usize; 4] = [1, 4, 8, 14];

// Line control register (8.1).
const LCR_WORD_LENGTH: u8 = 0b11;
const LCR_TWO_STOP_BITS: u8 = 1 << 2;
const LCR_PARITY: u8 = 1 << 3;
const LCR_DIVISOR_LATCH: u8 = 1 << 7;

// Modem control register (8.8).
const MCR_DTR: u8 = 1 << 0;
const MCR_RTS: u8 = 1 << 1;
const MCR_OUT1: u8 = 1 << 2;
const MCR_OUT2: u8 = 1 << 3;
const MCR_LOOPBACK: u8 = 1 << 4;
const MCR_BITS: u8 = 0x1f;

// Line status register (8.4).
const LSR_DATA_READY: u8 = 1 << 0;
const LSR_OVERRUN: u8 = 1 << 1;
const LSR_HOLDING_EMPTY: u8 = 1 << 5;
const LSR_TRANSMITTER_EMPTY: u8 = 1 << 6;

// Modem status register (8.9): the lines; each has its delta bit four bits lower.
const MSR_CTS: u8 = 1 << 4;
const MSR_DSR: u8 = 1 << 5;
const MSR_RI: u8 = 1 << 6;
const MSR_DCD: u8 = 1 << 7;
const MSR_DELTAS: u8 = 0x0f;

/// The shift register has sent its character.
const TRANSMITTED: Tag = 0;
/// A character has come in from the line.
const RECEIVED: Tag = 1;
/// Nobody has touched the receiver FIFO for four character times.
const TIMEOUT: Tag = 2;

const VERSION: u32 = 1;

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct State {
    divisor: u16,
    interrupt_enable: u8,
    fifos_enabled: bool,
    /// FCR bits 7:6.
    trigger: u8,
    line_control: u8,
    modem_control: u8,
    /// MSR bits 3:0.
    modem_deltas: u8,
    scratch: u8,
    /// The receiver FIFO, or the receiver buffer register: then at most one byte.
    received: VecDeque<u8>,
    overrun: bool,
    /// The character time-out interrupt is pending.
    timed_out: bool,
    /// The transmitter FIFO, or the transmitter holding register: then at most one byte.
    holding: VecDeque<u8>,
    /// The transmitter shift register.
    shifting: Option<u8>,
    /// The transmitter holding register empty interrupt is pending.
    holding_emptied: bool,
    inbox: VecDeque<u8>,
    /// A character is on the line towards the receiver; with [`Speed::Unlimited`], the
    /// sender pauses.
    receiving: bool,
    /// Bytes from outside that found the inbox full.
    dropped: u64,
}

impl State {
    /// The state after a master reset (table I).
    fn power_on() -> State {
        State {
            divisor: POWER_ON_DIVISOR,
            interrupt_enable: 0,
            fifos_enabled: false,
            trigger: 0,
            line_control: 0,
            modem_control: 0,
            modem_deltas: 0,
            scratch: 0,
            received: VecDeque::new(),
            overrun: false,
            timed_out: false,
            holding: VecDeque::new(),
            shifting: None,
            holding_emptied: false,
            inbox: VecDeque::new(),
            receiving: false,
            dropped: 0,
        }
    }

    /// Bytes that each of holding and receiver register can have.
    fn capacity(&self) -> usize {
        if self.fifos_enabled { FIFO_CAPACITY } else { 1 }
    }

    fn is_possible(&self) -> bool {
        self.received.len() <= self.capacity()
            && self.holding.len() <= self.capacity()
            && self.inbox.len() <= INBOX_CAPACITY
            && usize::from(self.trigger) < TRIGGER_LEVELS.len()
            && self.interrupt_enable & !IER_BITS == 0
            && self.modem_control & !MCR_BITS == 0
            && self.modem_deltas & !MSR_DELTAS == 0
    }

    fn is_loopback(&self) -> bool {
        self.modem_control & MCR_LOOPBACK != 0
    }

    /// MSR bits 7:4. In loopback the modem control outputs come in instead of
    /// the lines (8.8, bit 4).
    fn modem_lines(&self) -> u8 {
        if !self.is_loopback() {
            return MSR_CTS | MSR_DSR | MSR_DCD;
        }
        [(MCR_RTS, MSR_CTS), (MCR_DTR, MSR_DSR), (MCR_OUT1, MSR_RI), (MCR_OUT2, MSR_DCD)]
            .into_iter()
            .filter(|(output, _)| self.modem_control & output != 0)
            .fold(0, |lines, (_, line)| lines | line)
    }

    /// LSR as it stands. Bit 7 and bits 4:2 tell of errors that the line does not make.
    fn line_status(&self) -> u8 {
        let bit = |set: bool, mask: u8| if set { mask } else { 0 };
        let holding_empty = self.holding.is_empty();
        bit(!self.received.is_empty(), LSR_DATA_READY)
            | bit(self.overrun, LSR_OVERRUN)
            | bit(holding_empty, LSR_HOLDING_EMPTY)
            | bit(holding_empty && self.shifting.is_none(), LSR_TRANSMITTER_EMPTY)
    }

    /// IIR bits 3:0: the pending interrupt of the highest priority (table IV).
    fn interrupt(&self) -> u8 {
        let enabled = |mask: u8| self.interrupt_enable & mask != 0;
        let trigger_level =
            if self.fifos_enabled { TRIGGER_LEVELS[usize::from(self.trigger)] } else { 1 };
        if enabled(IER_LINE_STATUS) && self.overrun {
            IIR_LINE_STATUS
        } else if enabled(IER_RECEIVED) && self.received.len() >= trigger_level {
            IIR_RECEIVED
        } else if enabled(IER_RECEIVED) && self.timed_out {
            IIR_TIMEOUT
        } else if enabled(IER_TRANSMITTER_EMPTY) && self.holding_emptied {
            IIR_TRANSMITTER_EMPTY
        } else if enabled(IER_MODEM_STATUS) && self.modem_deltas != 0 {
            IIR_MODEM_STATUS
        } else {
            IIR_NONE
        }
    }

    /// Nanoseconds that one character takes: start bit, 5 to 8 data bits, parity and
    /// 1, 1.5 or 2 stop bits (8.1). A divisor of 0, which is not allowed, counts as 1.
    fn character_nanos(&self) -> u64 {
        let word_length = u64::from(self.line_control & LCR_WORD_LENGTH) + 5;
        let parity = u64::from(self.line_control & LCR_PARITY != 0);
        let stop_half_bits = match self.line_control & LCR_TWO_STOP_BITS {
            0 => 2,
            _ if word_length == 5 => 3,
            _ => 4,
        };
        let half_bits = 2 * (1 + word_length + parity) + stop_half_bits;
        half_bits * u64::from(self.divisor.max(1)) * 1_000_000_000 / (2 * BAUD_BASE)
    }
}

/// A serial port: device `com1` to `com4`, or the chip of a [card](crate::pci_serial).
#[derive(Debug)]
pub struct Uart16550 {
    wiring: Wiring,
    speed: Speed,
    state: State,
}

impl Uart16550 {
    /// The serial port `port`.
    pub fn new(port: ComPort, speed: Speed) -> Uart16550 {
        let ComPort { id, index, base, irq } = port;
        Uart16550::wired(Wiring { id, index, base, interrupt: Interrupt::Irq(irq) }, speed)
    }

    /// The chip of the card `id` in PCI slot `slot`, whose bytes are those of port `index`. Its ports begin with 0.
    pub(crate) fn on_card(id: DeviceId, index: u8, slot: u8, speed: Speed) -> Uart16550 {
        Uart16550::wired(Wiring { id, index, base: 0, interrupt: Interrupt::Pci(slot) }, speed)
    }

    fn wired(wiring: Wiring, speed: Speed) -> Uart16550 {
        Uart16550 { wiring, speed, state: State::power_on() }
    }

    /// The ports at which the board attaches the device.
    pub fn ports(&self) -> [PortRange; 1] {
        [PortRange::new(self.wiring.base, PORTS)]
    }

    /// Bytes from outside that were dropped because [`INBOX_CAPACITY`] others waited.
    pub fn dropped(&self) -> u64 {
        self.state.dropped
    }

    /// Sets the IRQ line. IBM's cards gate it by OUT2, which is off in loopback like all modem control outputs (8.8, bit 4).
    /// Emulators do not, and there are systems that were only ever run on them and leave OUT2 off, such as xv6.
    fn update_irq(&self, context: &mut Context<'_>) {
        let requests = self.state.interrupt() != IIR_NONE;
        match self.wiring.interrupt {
            Interrupt::Irq(irq) => context.irq.set_shared(irq, self.wiring.index, requests),
            Interrupt::Pci(slot) => context.irq.set_pci(slot, PIN, requests),
        }
    }

    fn read(&mut self, context: &mut Context<'_>, register: u16) -> u8 {
        let divisor_latch = self.state.line_control & LCR_DIVISOR_LATCH != 0;
        let value = match register {
            0 if divisor_latch => self.state.divisor as u8,
            0 => self.read_received(context),
            1 if divisor_latch => (self.state.divisor >> 8) as u8,
            1 => self.state.interrupt_enable,
            2 => self.read_interrupt_identification(),
            3 => self.state.line_control,
            4 => self.state.modem_control,
            5 => {
                let status = self.state.line_status();
                self.state.overrun = false;
                status
            }
            6 => self.state.modem_lines() | std::mem::take(&mut self.state.modem_deltas),
            _ => self.state.scratch,
        };
        self.update_irq(context);
        value
    }

    fn write(&mut self, context: &mut Context<'_>, register: u16, value: u8) {
        let divisor_latch = self.state.line_control & LCR_DIVISOR_LATCH != 0;
        match register {
            0 if divisor_latch => {
                self.state.divisor = self.state.divisor & 0xff00 | u16::from(value);
            }
            0 => self.write_holding(context, value),
            1 if divisor_latch => {
                self.state.divisor = self.state.divisor & 0x00ff | u16::from(value) << 8;
            }
            1 => self.write_interrupt_enable(context, value),
            2 => self.write_fifo_control(context, value),
            3 => self.state.line_control = value,
            4 => self.write_modem_control(context, value),
            // LSR and MSR are not for writing (8.4, 8.9).
            5 | 6 => {}
            _ => self.state.scratch = value,
        }
        self.update_irq(context);
    }

    fn read_received(&mut self, context: &mut Context<'_>) -> u8 {
        let byte = self.state.received.pop_front().unwrap_or(0);
        self.state.timed_out = false;
        self.restart_timeout(context);
        self.feed(context);
        byte
    }

    /// Reading it takes the transmitter's interrupt back, if it is the one reported (table IV).
    fn read_interrupt_identification(&mut self) -> u8 {
        let interrupt = self.state.interrupt();
        if interrupt == IIR_TRANSMITTER_EMPTY {
            self.state.holding_emptied = false;
        }
        if self.state.fifos_enabled { interrupt | IIR_FIFOS_ENABLED } else { interrupt }
    }

    /// Enabling the transmitter's interrupt while there is nothing to send raises it.
    fn write_interrupt_enable(&mut self, context: &mut Context<'_>, value: u8) {
        let newly_enabled = value & !self.state.interrupt_enable;
        self.state.interrupt_enable = value & IER_BITS;
        if newly_enabled & IER_RECEIVED != 0 && self.speed == Speed::Unlimited {
            context.cancel_timer(RECEIVED);
            self.state.receiving = false;
            self.feed(context);
        }
        if newly_enabled & IER_TRANSMITTER_EMPTY != 0 && self.state.holding.is_empty() {
            self.state.holding_emptied = true;
        }
    }

    /// FIFO control (8.5). Bit 3 only concerns pins for DMA that a PC does not connect.
    fn write_fifo_control(&mut self, context: &mut Context<'_>, value: u8) {
        let enable = value & FCR_ENABLE != 0;
        if enable != self.state.fifos_enabled {
            self.clear_receiver(context);
            self.clear_transmitter();
            self.state.fifos_enabled = enable;
        }
        if enable {
            if value & FCR_CLEAR_RECEIVER != 0 {
                self.clear_receiver(context);
            }
            if value & FCR_CLEAR_TRANSMITTER != 0 {
                self.clear_transmitter();
            }
            self.state.trigger = value >> 6;
        }
        self.feed(context);
    }

    fn clear_receiver(&mut self, context: &mut Context<'_>) {
        if self.speed == Speed::Unlimited && !self.state.is_loopback() {
            for byte in self.state.received.drain(..).rev() {
                self.state.inbox.push_front(byte);
            }
            self.state.inbox.truncate(INBOX_CAPACITY);
            self.state.receiving = true;
            context.set_timer(RECEIVED, context.now.plus_nanos(PAUSE_NANOS));
        }
        self.state.received.clear();
        self.state.timed_out = false;
        context.cancel_timer(TIMEOUT);
    }

    /// Empties the FIFO; the character in the shift register is still sent (8.5, bit 2).
    fn clear_transmitter(&mut self) {
        if !self.state.holding.is_empty() {
            self.state.holding.clear();
            self.state.holding_emptied = true;
        }
    }

    fn write_modem_control(&mut self, context: &mut Context<'_>, value: u8) {
        let before = self.state.modem_lines();
        self.state.modem_control = value & MCR_BITS;
        let after = self.state.modem_lines();
        // The delta of RI only tells of its trailing edge (8.9, bit 2).
        let changed = (before ^ after) & !(after & MSR_RI);
        self.state.modem_deltas |= changed >> 4;
        self.feed(context);
    }

    fn write_holding(&mut self, context: &mut Context<'_>, byte: u8) {
        // The line goes low even if the holding register is empty again at once: the
        // interrupt controller must see the edge.
        self.state.holding_emptied = false;
        self.update_irq(context);
        match self.speed {
            Speed::Unlimited => {
                self.deliver(context, byte);
                self.state.holding_emptied = true;
            }
            Speed::Line => {
                if self.state.holding.len() < self.state.capacity() {
                    self.state.holding.push_back(byte);
                } else if !self.state.fifos_enabled {
                    self.state.holding[0] = byte;
                }
                self.start_character(context);
            }
        }
    }

    /// Moves the next character into the shift register if that is free.
    fn start_character(&mut self, context: &mut Context<'_>) {
        if self.state.shifting.is_some() {
            return;
        }
        self.state.shifting = self.state.holding.pop_front();
        if self.state.shifting.is_some() {
            self.state.holding_emptied |= self.state.holding.is_empty();
            let sent = context.now.plus_nanos(self.state.character_nanos());
            context.set_timer(TRANSMITTED, sent);
        }
    }

    /// A character has left the transmitter.
    fn deliver(&mut self, context: &mut Context<'_>, byte: u8) {
        if self.state.is_loopback() {
            self.receive(context, byte);
        } else {
            context.output(Output::Serial { port: self.wiring.index, byte });
        }
    }

    /// A character has reached the receiver. Without room for it, the FIFO loses
    /// the new character, the single register the old one (8.4, bit 1).
    fn receive(&mut self, context: &mut Context<'_>, byte: u8) {
        if self.state.received.len() < self.state.capacity() {
            self.state.received.push_back(byte);
        } else {
            self.state.overrun = true;
            if !self.state.fifos_enabled {
                self.state.received[0] = byte;
            }
        }
        self.restart_timeout(context);
    }

    /// The receiver FIFO was touched: its time-out interrupt comes four character times
    /// later if it then has something (8.11).
    fn restart_timeout(&mut self, context: &mut Context<'_>) {
        if self.state.fifos_enabled && !self.state.received.is_empty() {
            let at = context.now.plus_nanos(4 * self.state.character_nanos());
            context.set_timer(TIMEOUT, at);
        } else {
            context.cancel_timer(TIMEOUT);
        }
    }

    /// Lets bytes from outside come in, as the speed allows. In loopback the receiver
    /// is cut off from the line; they wait.
    fn feed(&mut self, context: &mut Context<'_>) {
        if self.state.is_loopback() {
            return;
        }
        match self.speed {
            Speed::Unlimited => {
                while !self.state.receiving
                    && self.state.received.len() < self.state.capacity()
                    && let Some(byte) = self.state.inbox.pop_front()
                {
                    self.receive(context, byte);
                }
            }
            Speed::Line => {
                if !self.state.receiving && !self.state.inbox.is_empty() {
                    self.state.receiving = true;
                    let arrival = context.now.plus_nanos(self.state.character_nanos());
                    context.set_timer(RECEIVED, arrival);
                }
            }
        }
    }
}

impl Device for Uart16550 {
    fn id(&self) -> DeviceId {
        self.wiring.id
    }

    fn reset(&mut self, _context: &mut Context<'_>) {
        self.state = State::power_on();
    }

    fn peek_port(&self, port: u16) -> Option<u8> {
        // A read of the line status forgets an overrun.
        let is_line_status = port.wrapping_sub(self.wiring.base) == 5;
        (is_line_status && !self.state.overrun).then(|| self.state.line_status())
    }

    fn read_port(&mut self, context: &mut Context<'_>, port: u16, width: Width) -> u32 {
        let base = self.wiring.base;
        bytewise::read(port, width, |port| self.read(context, port.wrapping_sub(base) & 7))
    }

    fn write_port(&mut self, context: &mut Context<'_>, port: u16, width: Width, value: u32) {
        let base = self.wiring.base;
        bytewise::write(port, width, value, |port, byte| {
            self.write(context, port.wrapping_sub(base) & 7, byte);
        });
    }

    fn timer(&mut self, context: &mut Context<'_>, tag: Tag) {
        match tag {
            TRANSMITTED => {
                if let Some(byte) = self.state.shifting.take() {
                    self.deliver(context, byte);
                }
                self.start_character(context);
            }
            RECEIVED => {
                self.state.receiving = false;
                if self.speed == Speed::Line
                    && !self.state.is_loopback()
                    && let Some(byte) = self.state.inbox.pop_front()
                {
                    self.receive(context, byte);
                }
                self.feed(context);
            }
            _ => self.state.timed_out = !self.state.received.is_empty(),
        }
        self.update_irq(context);
    }

    fn input(&mut self, context: &mut Context<'_>, input: DeviceInput) {
        let DeviceInput::Serial(bytes) = input else { return };
        let taken = bytes.len().min(INBOX_CAPACITY.saturating_sub(self.state.inbox.len()));
        self.state.inbox.extend(&bytes[..taken]);
        self.state.dropped = self.state.dropped.saturating_add((bytes.len() - taken) as u64);
        self.feed(context);
        self.update_irq(context);
    }

    /// Chunks of input are far smaller than what the inbox still has room for then.
    fn takes_input(&self) -> bool {
        self.state.inbox.len() < INBOX_CAPACITY / 16
    }

    fn save(&self) -> SavedState {
        SavedState::new(self.name(), VERSION, &self.state)
    }

    fn restore(&mut self, saved: &SavedState) -> Result<(), RestoreError> {
        let state: State = saved.load(self.name(), VERSION)?;
        if !state.is_possible() {
            return Err(saved.damaged("a register or a FIFO holds what it cannot hold"));
        }
        self.state = state;
        Ok(())
    }
}

#[cfg(test)]
mod tests;
