//! The local APIC: the processor's own interrupt controller, and its timer.
//!
//! From the Intel SDM, volume 3, chapter 12 ("Advanced Programmable Interrupt Controller");
//! section, figure and table numbers in this file are its own. It is the xAPIC of the Pentium 4, of which the older
//! ones are subsets but for the width of an APIC ID. There is one processor:
//! messages to others get lost, arbitration has one winner, and INIT, SIPI and SMI, which start or
//! stop processors or enter a mode that does not exist here, have no effect.
//!
//! Where the base address is moved over memory, memory is what answers there.
//!
//! The timer counts nanoseconds of virtual time ([`TIMER_HERTZ`]) before its divider; software
//! measures that, as it must on processors of that time.
//!
//! ```
//! use ring3_core::device::{Device, TestBench, Width};
//! use ring3_devices::local_apic::{LocalApic, Message};
//!
//! let (mut apic, mut bench) = (LocalApic::default(), TestBench::default());
//! apic.write_memory(&mut bench.context(), 0, 0xf0, Width::Dword, 0x1ff); // enabled by software
//! assert!(apic.accept(Message::fixed(0x31, 0)));
//! assert!(apic.interrupt_requested());
//! assert_eq!(apic.acknowledge(), 0x31);
//! ```

use ring3_core::clock::{Tag, Time};
use ring3_core::device::{Context, Device, DeviceId, Width};
use ring3_core::state::{RestoreError, SavedState};
use serde::{Deserialize, Serialize};

pub use message::{Delivery, Message};
use timer::Counter;
use vectors::VectorSet;

mod message;
mod timer;
mod vectors;

/// The clock of the timer before its divider, in counts a second of virtual time.
pub const TIMER_HERTZ: u64 = 1_000_000_000;
/// Where the registers are after power-on.
pub const DEFAULT_ADDRESS: u64 = 0xfee0_0000;
/// How many guest-physical addresses they take.
pub const SIZE: u64 = 0x1000;
/// The LINT pin at which boards have the INTR output of the 8259A (12.5.1).
pub const LINT_INTR: usize = 0;
/// The LINT pin at which boards have NMI.
pub const LINT_NMI: usize = 1;

const VERSION: u32 = 1;
/// The timer's count is 0.
const EXPIRED: Tag = 0;

/// IA32_APIC_BASE (12.4.4): this is the processor that starts first.
const BASE_BSP: u64 = 1 << 8;
/// IA32_APIC_BASE: the global enable bit.
const BASE_ENABLE: u64 = 1 << 11;
/// IA32_APIC_BASE: where the registers are.
const BASE_ADDRESS: u64 = 0xf_ffff_f000;

/// Version 14h, that of the Pentium 4, with entries up to number 5 in the local vector table (12.4.8).
const APIC_VERSION: u32 = 0x0005_0014;

// Spurious-interrupt vector register (12.9).
const SVR_ENABLE: u32 = 1 << 8;
const SVR_BITS: u32 = 0x3ff;
const SVR_AT_RESET: u32 = 0xff;

/// Destination format register, bits 31 to 28: the flat model (12.6.2.2).
const FLAT: u8 = 0xf;
/// The destination that is everybody.
const BROADCAST: u8 = 0xff;

// Error status register (12.5.3).
const ERROR_SEND_ILLEGAL_VECTOR: u8 = 1 << 5;
const ERROR_RECEIVED_ILLEGAL_VECTOR: u8 = 1 << 6;
const ERROR_ILLEGAL_REGISTER: u8 = 1 << 7;

/// Vectors below are no interrupts (12.5.2).
const FIRST_VECTOR: u8 = 16;

/// Bits of the interrupt command register's lower half that can be written (figure 12-12).
const ICR_BITS: u32 = 0x000c_cfff;
const ICR_LOGICAL: u32 = 1 << 11;

// Entries of the local vector table (figure 12-8), in the order of their registers.
const LVT_TIMER: usize = 0;
const LVT_LINT0: usize = 3;
const LVT_ERROR: usize = 5;
const LVT_ENTRIES: usize = 6;
const LVT_MASKED: u32 = 1 << 16;
const LVT_PERIODIC: u32 = 1 << 17;
const LVT_LEVEL: u32 = 1 << 15;
const LVT_REMOTE_IRR: u32 = 1 << 14;
/// The bits of each that can be written. Bit 13, the polarity of a pin, is kept and has no
/// effect: the board passes on whether a pin is asserted, not its voltage.
const LVT_BITS: [u32; LVT_ENTRIES] =
    [0x0003_00ff, 0x0001_07ff, 0x0001_07ff, 0x0001_a7ff, 0x0001_a7ff, 0x0001_00ff];

/// The local APIC, device `local_apic`; its one memory region are its registers.
///
/// It is no device of a bus: the board finds it at [`LocalApic::address`], before all others. The board
/// gives it the messages of the I/O APIC by [`LocalApic::accept`], drives its pins by
/// [`LocalApic::set_lint`], and after each of those and each access takes what is for others by
/// [`LocalApic::take_end_of_interrupt`] and [`LocalApic::take_nmi`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LocalApic {
    /// IA32_APIC_BASE.
    base: u64,
    id: u8,
    /// TPR.
    task_priority: u8,
    /// Bits 31 to 24 of LDR.
    logical_id: u8,
    /// Bits 31 to 28 of DFR.
    destination_format: u8,
    /// SVR.
    spurious: u32,
    requests: VectorSet,
    in_service: VectorSet,
    /// TMR: those of the requests and interrupts in service that are levels.
    levels: VectorSet,
    /// The errors since software last wrote to ESR.
    errors: u8,
    /// ESR.
    error_status: u8,
    /// ICR, the lower half first.
    command: [u32; 2],
    lvt: [u32; LVT_ENTRIES],
    counter: Counter,
    /// The pins LINT0 and LINT1 are asserted.
    lint: [bool; 2],
    /// An ExtINT message was accepted and the processor has not acknowledged it.
    external: bool,
    /// An NMI is to go to the processor.
    nmi: bool,
    /// A level-triggered interrupt has ended, of which the I/O APIC is to be told.
    ended: Option<u8>,
}

impl Default for LocalApic {
    /// The state after power-on (12.4.7.1).
    fn default() -> LocalApic {
        LocalApic {
            base: DEFAULT_ADDRESS | BASE_ENABLE | BASE_BSP,
            id: 0,
            task_priority: 0,
            logical_id: 0,
            destination_format: FLAT,
            spurious: SVR_AT_RESET,
            requests: VectorSet::default(),
            in_service: VectorSet::default(),
            levels: VectorSet::default(),
            errors: 0,
            error_status: 0,
            command: [0; 2],
            lvt: [LVT_MASKED; LVT_ENTRIES],
            counter: Counter::default(),
            lint: [false; 2],
            external: false,
            nmi: false,
            ended: None,
        }
    }
}

impl LocalApic {
    /// The processor has IA32_APIC_BASE set to `value`. To switch the APIC off and on again resets it (12.4.3).
    pub fn set_base(&mut self, context: &mut Context<'_>, value: u64) {
        if (self.base ^ value) & BASE_ENABLE != 0 {
            *self = LocalApic { lint: self.lint, ..LocalApic::default() };
        }
        self.base = value;
        self.arm_timer(context);
    }

    /// INIT of the processor: the state after power-on, but for the ID (12.4.7.3). IA32_APIC_BASE is an MSR, and INIT
    /// leaves those as they are.
    pub fn init(&mut self, context: &mut Context<'_>) {
        let LocalApic { base, id, lint, .. } = *self;
        *self = LocalApic { base, id, lint, ..LocalApic::default() };
        self.arm_timer(context);
    }

    /// True when LINT0 passes the 8259A's interrupts on to the processor: virtual wire mode (MP specification 1.4,
    /// 3.6.2.2).
    pub fn is_virtual_wire(&self) -> bool {
        let entry = self.lvt[LVT_LINT0 + LINT_INTR];
        Delivery::from_register(entry) == Some(Delivery::ExtInt) && entry & LVT_MASKED == 0
    }

    /// The global enable bit: without it the APIC is as if it were not there, and LINT0 and LINT1
    /// are the INTR and NMI pins of the processor.
    pub fn is_enabled(&self) -> bool {
        self.base & BASE_ENABLE != 0
    }

    /// The guest-physical address of the [`SIZE`] bytes of registers; none while it is switched off.
    pub fn address(&self) -> Option<u64> {
        self.is_enabled().then_some(self.base & BASE_ADDRESS)
    }

    // What comes ---------------------------------------------------------

    /// Takes `message`, if it is for this APIC and can be taken now (12.8.1).
    pub fn accept(&mut self, message: Message) -> bool {
        if !self.is_enabled() || !self.is_addressed(message) {
            return false;
        }
        match message.delivery {
            Delivery::Fixed | Delivery::LowestPriority => {
                if !self.is_enabled_by_software() {
                    return false;
                }
                self.request(message.vector, message.level);
            }
            Delivery::Nmi => self.nmi = true,
            Delivery::ExtInt => self.external = true,
            Delivery::Smi | Delivery::Init | Delivery::StartUp => {}
        }
        true
    }

    /// The pin `pin` ([`LINT_INTR`] or [`LINT_NMI`]; others are ignored) is asserted, or not any more.
    pub fn set_lint(&mut self, pin: usize, asserted: bool) {
        let Some(level) = self.lint.get_mut(pin) else { return };
        let edge = asserted && !*level;
        *level = asserted;
        let entry = self.lvt[LVT_LINT0 + pin];
        if edge && entry & LVT_MASKED == 0 {
            match Delivery::from_register(entry) {
                Some(Delivery::Nmi) => self.nmi = true,
                Some(Delivery::Fixed) if entry & LVT_LEVEL == 0 => {
                    self.request(entry as u8, false);
                }
                _ => {}
            }
        }
        self.look_at_levels();
    }

    /// LINT pins that request a level-triggered interrupt of their own, each once until its end.
    fn look_at_levels(&mut self) {
        const STATE: u32 = LVT_MASKED | LVT_LEVEL | LVT_REMOTE_IRR;
        for pin in 0..self.lint.len() {
            let entry = self.lvt[LVT_LINT0 + pin];
            let is_fixed = Delivery::from_register(entry) == Some(Delivery::Fixed);
            if self.lint[pin] && is_fixed && entry & STATE == LVT_LEVEL {
                self.lvt[LVT_LINT0 + pin] |= LVT_REMOTE_IRR;
                self.request(entry as u8, true);
            }
        }
    }

    /// Puts `vector` into IRR.
    fn request(&mut self, vector: u8, level: bool) {
        if vector < FIRST_VECTOR {
            self.report(ERROR_RECEIVED_ILLEGAL_VECTOR);
        } else {
            self.requests.set(vector, true);
            self.levels.set(vector, level);
        }
    }

    /// Notes an error and raises the error interrupt (12.5.3).
    fn report(&mut self, error: u8) {
        self.errors |= error;
        let entry = self.lvt[LVT_ERROR];
        if entry & LVT_MASKED == 0 {
            if (entry as u8) < FIRST_VECTOR {
                self.errors |= ERROR_RECEIVED_ILLEGAL_VECTOR;
            } else {
                self.request(entry as u8, false);
            }
        }
    }

    fn is_enabled_by_software(&self) -> bool {
        self.spurious & SVR_ENABLE != 0
    }

    /// 12.6.2: the destination is this APIC, or it is among the destinations.
    fn is_addressed(&self, message: Message) -> bool {
        let Message { destination, logical, .. } = message;
        if destination == BROADCAST {
            return true;
        }
        if !logical {
            return destination == self.id;
        }
        let common = destination & self.logical_id;
        if self.destination_format == FLAT {
            common != 0
        } else {
            // The cluster model: bits 7 to 4 are the cluster, FH all of them.
            let cluster = destination >> 4;
            (cluster == 0xf || cluster == self.logical_id >> 4) && common & 0xf != 0
        }
    }

    // What goes to the processor ------------------------------------------

    /// The processor's INTR pin, as far as this APIC's own interrupts drive it.
    #[inline]
    pub fn interrupt_requested(&self) -> bool {
        self.pending().is_some()
    }

    /// The processor acknowledges an interrupt of this APIC: its vector. When there is none any
    /// more, that is the spurious one (12.9).
    pub fn acknowledge(&mut self) -> u8 {
        let Some(vector) = self.pending() else { return self.spurious as u8 };
        self.requests.set(vector, false);
        self.in_service.set(vector, true);
        vector
    }

    /// An interrupt whose vector the 8259A names goes past all priorities to the processor (12.8.1).
    #[inline]
    pub fn external_requested(&self) -> bool {
        let asks = |(level, entry): (&bool, &u32)| {
            let is_external = Delivery::from_register(*entry) == Some(Delivery::ExtInt);
            *level && is_external && entry & LVT_MASKED == 0
        };
        self.external || self.lint.iter().zip(&self.lvt[LVT_LINT0..]).any(asks)
    }

    /// The processor has acknowledged the 8259A.
    pub fn external_acknowledged(&mut self) {
        self.external = false;
    }

    /// An NMI waits for [`LocalApic::take_nmi`].
    pub fn has_nmi(&self) -> bool {
        self.nmi
    }

    /// True once for each NMI.
    pub fn take_nmi(&mut self) -> bool {
        std::mem::take(&mut self.nmi)
    }

    /// The vector of a level-triggered interrupt that has ended, once: for the I/O APIC.
    pub fn take_end_of_interrupt(&mut self) -> Option<u8> {
        self.ended.take()
    }

    /// The request with the highest priority, if that is above the processor's (12.8.3).
    #[inline]
    fn pending(&self) -> Option<u8> {
        self.requests.highest().filter(|vector| class(*vector) > class(self.processor_priority()))
    }

    /// PPR (12.8.3.1).
    fn processor_priority(&self) -> u8 {
        let service = class(self.in_service.highest().unwrap_or_default());
        if class(self.task_priority) >= service { self.task_priority } else { service }
    }

    /// APR (12.6.2.4).
    fn arbitration_priority(&self) -> u8 {
        let request = class(self.requests.highest().unwrap_or_default());
        let service = class(self.in_service.highest().unwrap_or_default());
        let task = class(self.task_priority);
        if task >= request && task > service {
            self.task_priority
        } else {
            (task & service).max(request)
        }
    }

    /// A write to EOI (12.8.5): the interrupt of the highest priority in service has ended.
    fn end_interrupt(&mut self) {
        let Some(vector) = self.in_service.highest() else { return };
        self.in_service.set(vector, false);
        if !self.levels.contains(vector) {
            return;
        }
        self.ended = Some(vector);
        for entry in &mut self.lvt[LVT_LINT0..LVT_LINT0 + self.lint.len()] {
            if *entry as u8 == vector {
                *entry &= !LVT_REMOTE_IRR;
            }
        }
        self.look_at_levels();
    }

    /// A write to the lower half of ICR sends a message (12.6.1).
    fn send(&mut self) {
        let [low, high] = self.command;
        let Some(delivery) = Delivery::from_register(low) else { return };
        let vector = low as u8;
        let has_vector = matches!(delivery, Delivery::Fixed | Delivery::LowestPriority);
        if has_vector && vector < FIRST_VECTOR {
            self.report(ERROR_SEND_ILLEGAL_VECTOR);
            return;
        }
        // The destination shorthand: the destination field, this processor, all, all others.
        let (destination, logical) = match low >> 18 & 3 {
            0 => ((high >> 24) as u8, low & ICR_LOGICAL != 0),
            1 | 2 => (BROADCAST, false),
            _ => return,
        };
        // Whatever the trigger mode says, such an interrupt is an edge (12.6.1, bit 15).
        self.accept(Message { destination, logical, delivery, vector, level: false });
    }

    // The timer ------------------------------------------------------------

    /// Lets the counter count until now, and raises the timer's interrupt if it is due. True when the count has been 0.
    fn run_timer(&mut self, context: &Context<'_>) -> bool {
        let entry = self.lvt[LVT_TIMER];
        let expired = self.counter.catch_up(context.now, entry & LVT_PERIODIC != 0);
        if expired && entry & LVT_MASKED == 0 {
            self.request(entry as u8, false);
        }
        expired
    }

    /// When the timer's interrupt is due next, and whether it is one of many; never while nothing comes of it.
    fn next_interrupt(&self) -> Option<(Time, bool)> {
        let entry = self.lvt[LVT_TIMER];
        let is_due = entry & LVT_MASKED == 0 && self.is_enabled();
        Some((self.counter.expiry().filter(|_| is_due)?, entry & LVT_PERIODIC != 0))
    }

    /// Asks to be called when the timer's interrupt is due next.
    fn arm_timer(&mut self, context: &mut Context<'_>) {
        match self.next_interrupt() {
            Some((at, true)) => context.set_tick(EXPIRED, at),
            Some((at, false)) => context.set_timer(EXPIRED, at),
            None => context.cancel_timer(EXPIRED),
        }
    }

    // Registers (table 12-1) -----------------------------------------------

    /// The register at `offset`, if there is one which to read does nothing and which does not change with time, as the current count of the timer does.
    pub fn peek(&self, offset: u64) -> Option<u32> {
        let index = (offset >> 4) as usize;
        Some(match offset {
            0x020 => u32::from(self.id) << 24,
            0x030 => APIC_VERSION,
            0x080 => self.task_priority.into(),
            0x090 => self.arbitration_priority().into(),
            0x0a0 => self.processor_priority().into(),
            // EOI can only be written, and there is nobody to read from remotely.
            0x0b0 | 0x0c0 => 0,
            0x0d0 => u32::from(self.logical_id) << 24,
            0x0e0 => u32::from(self.destination_format) << 28 | 0x0fff_ffff,
            0x0f0 => self.spurious,
            0x280 => self.error_status.into(),
            0x300 | 0x310 => self.command[index - 0x30],
            0x380 => self.counter.initial(),
            0x3e0 => self.counter.divide(),
            _ if offset & 0xf != 0 => return None,
            0x320..=0x370 => self.lvt[index - 0x32],
            0x100..=0x170 => self.in_service.word(index - 0x10),
            0x180..=0x1f0 => self.levels.word(index - 0x18),
            0x200..=0x270 => self.requests.word(index - 0x20),
            _ => return None,
        })
    }

    fn read_register(&mut self, context: &Context<'_>, offset: u64) -> u32 {
        match offset {
            0x390 => self.counter.current(context.now),
            _ => self.peek(offset).unwrap_or_else(|| {
                self.report(ERROR_ILLEGAL_REGISTER);
                0
            }),
        }
    }

    fn write_register(&mut self, context: &Context<'_>, offset: u64, value: u32) {
        let high_byte = (value >> 24) as u8;
        match offset {
            0x020 => self.id = high_byte,
            0x080 => self.task_priority = value as u8,
            0x0b0 => self.end_interrupt(),
            0x0d0 => self.logical_id = high_byte,
            0x0e0 => self.destination_format = high_byte >> 4,
            0x0f0 => {
                self.spurious = value & SVR_BITS;
                if !self.is_enabled_by_software() {
                    // 12.4.7.2: all entries are masked and stay so.
                    self.lvt.iter_mut().for_each(|entry| *entry |= LVT_MASKED);
                }
            }
            0x280 => self.error_status = std::mem::take(&mut self.errors),
            0x300 => {
                self.command[0] = value & ICR_BITS;
                self.send();
            }
            0x310 => self.command[1] = value & 0xff00_0000,
            0x320..=0x370 => self.write_lvt((offset >> 4) as usize - 0x32, value),
            0x380 => self.counter.start(context.now, value),
            0x3e0 => self.counter.set_divide(context.now, value),
            // Those that can only be read.
            0x030 | 0x090..=0x0a0 | 0x0c0 | 0x100..=0x270 | 0x390 => {}
            _ => self.report(ERROR_ILLEGAL_REGISTER),
        }
    }

    fn write_lvt(&mut self, index: usize, value: u32) {
        let entry = &mut self.lvt[index];
        let mut new = value & LVT_BITS[index] | *entry & LVT_REMOTE_IRR;
        if new & LVT_LEVEL == 0 {
            new &= !LVT_REMOTE_IRR;
        }
        *entry = new;
        if !self.is_enabled_by_software() {
            self.lvt[index] |= LVT_MASKED;
        }
        self.look_at_levels();
    }

    fn is_valid(&self) -> bool {
        let entries = self.lvt.iter().zip(LVT_BITS).enumerate().all(|(index, (entry, bits))| {
            let is_pin = (LVT_LINT0..LVT_ERROR).contains(&index);
            let remote_irr = if is_pin { LVT_REMOTE_IRR } else { 0 };
            entry & !(bits | remote_irr) == 0
        });
        let sets = [&self.requests, &self.in_service, &self.levels];
        entries
            && sets.into_iter().all(|set| !set.has_illegal())
            && self.destination_format <= 0xf
            && self.spurious & !SVR_BITS == 0
            && self.counter.is_valid()
    }
}

/// The priority class of a vector or a priority, in place (12.8.3).
const fn class(priority: u8) -> u8 {
    priority & 0xf0
}

impl Device for LocalApic {
    fn id(&self) -> DeviceId {
        DeviceId::LOCAL_APIC
    }

    fn reset(&mut self, _: &mut Context<'_>) {
        *self = LocalApic::default();
    }

    /// Registers are the first four bytes of each sixteen; the others, which must not be touched (12.4.1), read 0.
    fn read_memory(
        &mut self,
        context: &mut Context<'_>,
        _region: u8,
        offset: u64,
        width: Width,
    ) -> u32 {
        if self.run_timer(context) {
            self.arm_timer(context);
        }
        let byte = offset & 0xf;
        let value =
            if byte < 4 { self.read_register(context, offset & !0xf) >> (8 * byte) } else { 0 };
        value & width.mask()
    }

    /// Only whole registers can be written (12.4.1).
    fn write_memory(
        &mut self,
        context: &mut Context<'_>,
        _region: u8,
        offset: u64,
        width: Width,
        value: u32,
    ) {
        if offset & 0xf != 0 || width != Width::Dword {
            return;
        }
        let before = self.next_interrupt();
        let has_expired = self.run_timer(context);
        self.write_register(context, offset, value);
        if has_expired || self.next_interrupt() != before {
            self.arm_timer(context);
        }
    }

    fn timer(&mut self, context: &mut Context<'_>, _tag: Tag) {
        self.run_timer(context);
        self.arm_timer(context);
    }

    fn save(&self) -> SavedState {
        SavedState::new(self.name(), VERSION, self)
    }

    fn restore(&mut self, state: &SavedState) -> Result<(), RestoreError> {
        let saved: LocalApic = state.load(self.name(), VERSION)?;
        if !saved.is_valid() {
            return Err(state.damaged("no local APIC can be in this state"));
        }
        *self = saved;
        Ok(())
    }
}

#[cfg(test)]
mod tests;
