//! The ACPI fixed hardware: events, sleep control and the power management timer.
//!
//! Registers as in the ACPI specification, 4.8.3 (numbered as in its version 6.3), laid out behind the base port
//! as in the PIIX4: [`EVENT_BLOCK`], [`CONTROL_BLOCK`] and [`TIMER_BLOCK`] are what the FADT
//! tells the guest. There is no system management mode and so no SMI command
//! port: the machine is in ACPI mode from the start and SCI_EN is always 1.
//!
//! ```
//! use ring3_core::device::{Device, Output, TestBench, Width};
//! use ring3_devices::acpi_pm::{AcpiPm, CONTROL_BLOCK, DEFAULT_BASE, SLEEP_ENABLE, SLP_TYP_S5};
//!
//! let mut bench = TestBench::default();
//! let mut acpi = AcpiPm::new(DEFAULT_BASE);
//! let off = SLEEP_ENABLE | u16::from(SLP_TYP_S5) << 10;
//! acpi.write_port(&mut bench.context(), DEFAULT_BASE + CONTROL_BLOCK, Width::Word, off.into());
//! assert_eq!(bench.outputs, [Output::PowerOff]);
//! ```

use ring3_core::bus::PortRange;
use ring3_core::clock::{Tag, Time};
use ring3_core::device::{Context, Device, Output, Width};
use ring3_core::state::{RestoreError, SavedState};
use serde::{Deserialize, Serialize};

/// Where the registers are unless the board chooses otherwise.
pub const DEFAULT_BASE: u16 = 0x600;
/// Offset of the PM1a event block: two bytes of status, two of enable (ACPI 4.8.3.1).
pub const EVENT_BLOCK: u16 = 0;
/// Offset of the PM1a control block of two bytes (ACPI 4.8.3.2).
pub const CONTROL_BLOCK: u16 = 4;
/// Offset of the power management timer of four bytes (ACPI 4.8.3.3).
pub const TIMER_BLOCK: u16 = 8;
/// The IRQ line of the system control interrupt, a level.
pub const SCI_IRQ: u8 = 9;
/// The value of SLP_TYP that means S5, soft off: the one of the PIIX4, so that
/// guests that know it without reading the DSDT find it. No other
/// state is offered; entering another does nothing.
pub const SLP_TYP_S5: u8 = 0;
/// Ticks of the power management timer in a second (ACPI 4.8.2.1).
pub const TIMER_HERTZ: u64 = 3_579_545;
/// Width of the power management timer in bits; the FADT must say so by TMR_VAL_EXT.
/// With 32 bits its overflow interrupt comes every ten minutes instead of
/// every 2.3 seconds.
pub const TIMER_BITS: u32 = 32;

/// SLP_EN in the control register: enter the sleeping state of SLP_TYP.
pub const SLEEP_ENABLE: u16 = 1 << 13;

/// TMR_STS and TMR_EN: the timer's highest bit has changed.
const TIMER: u16 = 1 << 0;
/// GBL_EN: firmware wants the global lock, which never happens here.
const GLOBAL_LOCK: u16 = 1 << 5;
/// PWRBTN_STS and PWRBTN_EN.
const POWER_BUTTON: u16 = 1 << 8;
/// RTC_EN: the alarm wakes the machine, which never sleeps.
const RTC_ALARM: u16 = 1 << 10;

/// The events that happen.
const STATUS_BITS: u16 = TIMER | POWER_BUTTON;
/// The enable bits that can be set; guests check that they stay.
const ENABLE_BITS: u16 = TIMER | GLOBAL_LOCK | POWER_BUTTON | RTC_ALARM;
const SCI_ENABLE: u16 = 1 << 0;
/// BM_RLD and SLP_TYP: what the control register keeps. GBL_RLS and SLP_EN read 0.
const CONTROL_BITS: u16 = 1 << 1 | 7 << 10;

const BLOCK_LEN: u16 = 12;
const OVERFLOW: Tag = 0;
const VERSION: u32 = 1;

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
struct State {
    status: u16,
    enable: u16,
    control: u16,
    /// How often the timer's highest bit had changed when that last was noticed.
    overflows: u64,
}

/// The ACPI fixed hardware, device `acpi_pm`.
#[derive(Debug)]
pub struct AcpiPm {
    base: u16,
    state: State,
}

impl AcpiPm {
    /// The registers at ports `base` to `base` + 11.
    pub fn new(base: u16) -> AcpiPm {
        AcpiPm { base, state: State::default() }
    }

    /// The ports at which the board attaches the device.
    pub fn ports(&self) -> [PortRange; 1] {
        [PortRange::new(self.base, BLOCK_LEN)]
    }

    /// Somebody presses the power button (ACPI 4.8.2.2.1): most guests shut down.
    pub fn press_power_button(&mut self, context: &mut Context<'_>) {
        self.state.status |= POWER_BUTTON;
        self.update(context);
    }

    /// Notices an overflow of the timer, sets the SCI line, and sets a timer for
    /// the next overflow if the guest is to be interrupted by it. While it is not,
    /// the next access notices early enough.
    fn update(&mut self, context: &mut Context<'_>) {
        let overflows = overflows(context.now);
        if overflows != self.state.overflows {
            self.state.overflows = overflows;
            self.state.status |= TIMER;
        }
        let pending = self.state.status & self.state.enable;
        context.irq.set(SCI_IRQ, pending != 0);
        if self.state.enable & TIMER != 0 && pending & TIMER == 0 {
            let tick = (overflows + 1) << (TIMER_BITS - 1);
            context.set_timer(OVERFLOW, Time::of_tick(tick, TIMER_HERTZ));
        } else {
            context.cancel_timer(OVERFLOW);
        }
    }

    /// All registers as the guest sees them. The two bytes between control and timer are
    /// reserved and read 0.
    fn registers(&self, now: Time) -> [u8; BLOCK_LEN as usize] {
        let words = [self.state.status, self.state.enable, self.state.control | SCI_ENABLE];
        let timer = now.ticks(TIMER_HERTZ) as u32;
        let mut bytes = [0; BLOCK_LEN as usize];
        for (index, word) in words.into_iter().enumerate() {
            bytes[2 * index..][..2].copy_from_slice(&word.to_le_bytes());
        }
        bytes[usize::from(TIMER_BLOCK)..].copy_from_slice(&timer.to_le_bytes());
        bytes
    }

    fn write_byte(&mut self, context: &mut Context<'_>, offset: u16, byte: u8) {
        let shift = 8 * (offset & 1);
        let value = u16::from(byte) << shift;
        let written = 0xff << shift;
        match offset {
            0 | 1 => self.state.status &= !value,
            2 | 3 => self.state.enable = self.state.enable & !written | value & ENABLE_BITS,
            4 | 5 => {
                self.state.control = self.state.control & !written | value & CONTROL_BITS;
                let sleep_type = self.state.control >> 10 & 7;
                if value & SLEEP_ENABLE != 0 && sleep_type == u16::from(SLP_TYP_S5) {
                    context.output(Output::PowerOff);
                }
            }
            _ => {}
        }
    }
}

/// How often the timer's highest bit has changed since switch-on.
fn overflows(now: Time) -> u64 {
    now.ticks(TIMER_HERTZ) >> (TIMER_BITS - 1)
}

impl Device for AcpiPm {
    fn name(&self) -> &'static str {
        "acpi_pm"
    }

    fn reset(&mut self, context: &mut Context<'_>) {
        self.state = State { overflows: overflows(context.now), ..State::default() };
    }

    fn read_port(&mut self, context: &mut Context<'_>, port: u16, width: Width) -> u32 {
        self.update(context);
        let registers = self.registers(context.now);
        (0..width.bytes()).fold(0, |value, index| {
            let offset = port.wrapping_sub(self.base).wrapping_add(index);
            let byte = registers.get(usize::from(offset)).copied().unwrap_or(0xff);
            value | u32::from(byte) << (8 * index)
        })
    }

    fn write_port(&mut self, context: &mut Context<'_>, port: u16, width: Width, value: u32) {
        self.update(context);
        for index in 0..width.bytes() {
            let offset = port.wrapping_sub(self.base).wrapping_add(index);
            self.write_byte(context, offset, (value >> (8 * index)) as u8);
        }
        self.update(context);
    }

    fn timer(&mut self, context: &mut Context<'_>, _tag: Tag) {
        self.update(context);
    }

    fn save(&self) -> SavedState {
        SavedState::new(self.name(), VERSION, &self.state)
    }

    fn restore(&mut self, saved: &SavedState) -> Result<(), RestoreError> {
        let state: State = saved.load(self.name(), VERSION)?;
        if state.status & !STATUS_BITS != 0
            || state.enable & !ENABLE_BITS != 0
            || state.control & !CONTROL_BITS != 0
        {
            return Err(saved.damaged("reserved register bits are set"));
        }
        self.state = state;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use ring3_core::device::TestBench;

    const STATUS: u16 = DEFAULT_BASE;
    const ENABLE: u16 = DEFAULT_BASE + 2;
    const CONTROL: u16 = DEFAULT_BASE + CONTROL_BLOCK;
    const COUNTER: u16 = DEFAULT_BASE + TIMER_BLOCK;
    /// Between two changes of the timer's highest bit.
    const HALF_TURN_NANOS: u64 = Time::of_tick(1 << 31, TIMER_HERTZ).as_nanos();

    fn machine() -> (TestBench, AcpiPm) {
        (TestBench::default(), AcpiPm::new(DEFAULT_BASE))
    }

    fn read(bench: &mut TestBench, acpi: &mut AcpiPm, port: u16) -> u32 {
        acpi.read_port(&mut bench.context(), port, Width::Word)
    }

    fn write(bench: &mut TestBench, acpi: &mut AcpiPm, port: u16, value: u16) {
        acpi.write_port(&mut bench.context(), port, Width::Word, value.into());
    }

    #[test]
    fn the_timer_counts_virtual_time_at_its_rate() {
        let (mut bench, mut acpi) = machine();
        bench.now = Time::from_nanos(1_000_000_000);
        let count = acpi.read_port(&mut bench.context(), COUNTER, Width::Dword);
        assert_eq!(u64::from(count), TIMER_HERTZ);
        assert_eq!(read(&mut bench, &mut acpi, COUNTER + 1), (count >> 8) & 0xffff);
    }

    #[test]
    fn an_overflow_interrupts_only_when_enabled() {
        let (mut bench, mut acpi) = machine();
        bench.advance(&mut acpi, HALF_TURN_NANOS);
        assert_eq!(read(&mut bench, &mut acpi, STATUS), TIMER.into());
        assert!(!bench.irq.is_high(SCI_IRQ));
        assert_eq!(bench.timers.next(), None);

        write(&mut bench, &mut acpi, STATUS, TIMER);
        write(&mut bench, &mut acpi, ENABLE, TIMER);
        assert!(!bench.irq.is_high(SCI_IRQ));
        bench.advance(&mut acpi, HALF_TURN_NANOS - 1000);
        assert!(!bench.irq.is_high(SCI_IRQ));
        bench.advance(&mut acpi, 1000);
        assert!(bench.irq.is_high(SCI_IRQ));
        write(&mut bench, &mut acpi, STATUS, TIMER);
        assert!(!bench.irq.is_high(SCI_IRQ));
        assert_eq!(read(&mut bench, &mut acpi, STATUS), 0);
    }

    #[test]
    fn an_overflow_that_nobody_read_interrupts_when_enabled() {
        let (mut bench, mut acpi) = machine();
        bench.advance(&mut acpi, HALF_TURN_NANOS);
        write(&mut bench, &mut acpi, ENABLE, TIMER);
        assert!(bench.irq.is_high(SCI_IRQ));
    }

    #[test]
    fn the_power_button_is_a_level_until_its_status_is_cleared() {
        let (mut bench, mut acpi) = machine();
        write(&mut bench, &mut acpi, ENABLE, POWER_BUTTON | GLOBAL_LOCK);
        assert_eq!(read(&mut bench, &mut acpi, ENABLE), (POWER_BUTTON | GLOBAL_LOCK).into());
        acpi.press_power_button(&mut bench.context());
        assert!(bench.irq.is_high(SCI_IRQ));
        write(&mut bench, &mut acpi, STATUS, !POWER_BUTTON);
        assert!(bench.irq.is_high(SCI_IRQ));
        bench.write(&mut acpi, STATUS + 1, (POWER_BUTTON >> 8) as u8);
        assert!(!bench.irq.is_high(SCI_IRQ));
    }

    #[test]
    fn the_machine_is_always_in_acpi_mode() {
        let (mut bench, mut acpi) = machine();
        write(&mut bench, &mut acpi, CONTROL, 0);
        assert_eq!(read(&mut bench, &mut acpi, CONTROL), 1);
        assert_eq!(read(&mut bench, &mut acpi, CONTROL + 2), 0);
    }

    #[test]
    fn only_s5_switches_off_and_sleep_enable_reads_zero() {
        let (mut bench, mut acpi) = machine();
        write(&mut bench, &mut acpi, CONTROL, SLEEP_ENABLE | 5 << 10);
        assert_eq!(bench.outputs, []);
        assert_eq!(read(&mut bench, &mut acpi, CONTROL), 5 << 10 | 1);
        write(&mut bench, &mut acpi, CONTROL, u16::from(SLP_TYP_S5) << 10);
        assert_eq!(bench.outputs, []);
        bench.write(&mut acpi, CONTROL + 1, (SLEEP_ENABLE >> 8) as u8 | SLP_TYP_S5 << 2);
        assert_eq!(bench.outputs, [Output::PowerOff]);
    }

    #[test]
    fn impossible_states_are_refused() {
        let mut acpi = AcpiPm::new(DEFAULT_BASE);
        for state in [
            State { status: 2, ..State::default() },
            State { enable: 2, ..State::default() },
            State { control: SLEEP_ENABLE, ..State::default() },
        ] {
            let saved = SavedState::new("acpi_pm", VERSION, &state);
            assert!(matches!(acpi.restore(&saved), Err(RestoreError::Damaged { .. })));
        }
        assert_eq!(acpi.state, State::default());
    }

    proptest! {
        #[test]
        fn any_accesses_leave_a_state_that_can_be_saved(
            steps in prop::collection::vec((0u16..16, 0u8..7, any::<u32>(), 0u64..1 << 42), 1..60)
        ) {
            let (mut bench, mut acpi) = machine();
            for (offset, kind, value, nanos) in steps {
                let width = [Width::Byte, Width::Word, Width::Dword][usize::from(kind % 3)];
                let port = DEFAULT_BASE + offset;
                match kind {
                    0..3 => acpi.write_port(&mut bench.context(), port, width, value & width.mask()),
                    3..6 => { acpi.read_port(&mut bench.context(), port, width); }
                    _ => acpi.press_power_button(&mut bench.context()),
                }
                bench.advance(&mut acpi, nanos);
                let saved = acpi.save();
                let mut copy = AcpiPm::new(DEFAULT_BASE);
                copy.restore(&saved).unwrap();
                prop_assert_eq!(copy.save(), saved);
            }
        }
    }
}
