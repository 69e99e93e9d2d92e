//! The power management function of the 82371AB (PIIX4), PCI function 00:01.3: the ACPI fixed hardware, which is
//! events, sleep control and the power management timer.
//!
//! Registers as in the ACPI specification, 4.8.3 (numbered as in its version 6.3), laid out behind the base port
//! as in Intel's data sheet "82371AB PCI-TO-ISA / IDE Xcelerator (PIIX4)" (290562): [`EVENT_BLOCK`],
//! [`CONTROL_BLOCK`] and [`TIMER_BLOCK`] are what the FADT tells the guest. The base port is in the
//! function's configuration space (PMBASE), where firmware sets it. There is no system management mode:
//! the machine is in ACPI mode from the start and SCI_EN is always 1, and DEVACTB says from
//! the start that an SMI handler has enabled the APMC port, so that firmware does not install one. The SMBus
//! host is not there; its configuration registers hold what is written.
//!
//! ```
//! use ring3_core::device::{Device, Output, TestBench, Width};
//! use ring3_devices::acpi_pm::{AcpiPm, CONTROL_BLOCK, DEFAULT_BASE, SLEEP_ENABLE, SLP_TYP_S5};
//!
//! let mut bench = TestBench::default();
//! let mut acpi = AcpiPm::new(true);
//! let off = SLEEP_ENABLE | u16::from(SLP_TYP_S5) << 10;
//! acpi.write_port(&mut bench.context(), DEFAULT_BASE + CONTROL_BLOCK, Width::Word, off.into());
//! assert_eq!(bench.outputs, [Output::PowerOff]);
//! ```

use ring3_core::bus::PortRange;
use ring3_core::clock::{Tag, Time};
use ring3_core::device::{Context, Device, DeviceId, Output, Width};
use ring3_core::input::DeviceInput;
use ring3_core::state::{RestoreError, SavedState};
use serde::{Deserialize, Serialize};

use crate::pci::{Function, Identity, command, registers};

/// Where the registers are in a machine that boots without firmware; SeaBIOS puts them there, too. OVMF puts them
/// at B000h.
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

/// How many of the ports behind the base have a register.
const BLOCK_LEN: u16 = 12;
/// How many ports the function decodes; those without a register read 0.
const PORT_COUNT: u16 = 64;
/// The region of the claim of ports.
const REGION: u8 = 0;
const OVERFLOW: Tag = 0;
const VERSION: u32 = 2;

/// PMBASE, four bytes: the base port in bits 15:6, and bit 0 always 1.
pub const PM_BASE: u8 = 0x40;
/// The base port's bits in [`PM_BASE`].
pub const PM_BASE_BITS: u16 = 0xffc0;
const PM_BASE_IO: u8 = 1;
/// DEVACTB, device activity B, four bytes. The third one holds APMC_EN.
const DEVICE_ACTIVITY_B: u8 = 0x58;
/// APMC_EN, bit 25: a write to the APMC port is an SMI.
const APMC_ENABLE: u8 = 1 << 1;
/// PMREGMISC.
const PM_MISCELLANEOUS: u8 = 0x80;
/// PMIOSE: the ports are decoded.
const PM_IO_ENABLE: u8 = 1;
/// SMBBA, four bytes: the SMBus host's base port.
const SMBUS_BASE: u8 = 0x90;
/// SMBHSTCFG.
const SMBUS_CONFIGURATION: u8 = 0xd2;

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
struct State {
    status: u16,
    enable: u16,
    control: u16,
    /// How often the timer's highest bit had changed when that last was noticed.
    overflows: u64,
}

/// The saved state.
#[derive(Debug, Serialize, Deserialize)]
struct Saved {
    config: Vec<u8>,
    registers: State,
}

/// The power management function, device `acpi_pm`.
#[derive(Debug, Clone)]
pub struct AcpiPm {
    is_set_up: bool,
    function: Function,
    state: State,
}

impl AcpiPm {
    /// The function as after power-on, or, when `is_set_up`, as firmware leaves it, with the registers at
    /// [`DEFAULT_BASE`].
    pub fn new(is_set_up: bool) -> AcpiPm {
        let identity = Identity { vendor: 0x8086, device: 0x7113, revision: 3, class: 0x068000 };
        let (base, enable) = if is_set_up { (DEFAULT_BASE, PM_IO_ENABLE) } else { (0, 0) };
        let base = base | u16::from(PM_BASE_IO);
        let function = Function::new(identity)
            // This concerns the SMBus only.
            .command(command::IO)
            .status(0x0280)
            .interrupt()
            .fixed(registers::INTERRUPT_LINE, &[SCI_IRQ])
            .fixed(PM_BASE, &base.to_le_bytes())
            .writable(PM_BASE, &PM_BASE_BITS.to_le_bytes())
            .fixed(DEVICE_ACTIVITY_B + 3, &[APMC_ENABLE])
            .fixed(PM_MISCELLANEOUS, &[enable])
            .writable(PM_MISCELLANEOUS, &[PM_IO_ENABLE])
            .fixed(SMBUS_BASE, &[PM_BASE_IO])
            .writable(SMBUS_BASE, &[0xf0, 0xff])
            .writable(SMBUS_CONFIGURATION, &[0x0f]);
        AcpiPm { is_set_up, function, state: State::default() }
    }

    fn base(&self) -> u16 {
        self.function.read(PM_BASE, Width::Word) as u16 & PM_BASE_BITS
    }

    /// Claims the ports where the configuration registers have them.
    fn claim(&self, context: &mut Context<'_>) {
        if self.function.read(PM_MISCELLANEOUS, Width::Byte) as u8 & PM_IO_ENABLE != 0 {
            context.claim_ports(REGION, PortRange::new(self.base(), PORT_COUNT));
        } else {
            context.release(REGION);
        }
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
    fn id(&self) -> DeviceId {
        DeviceId::ACPI_PM
    }

    fn reset(&mut self, context: &mut Context<'_>) {
        *self = AcpiPm::new(self.is_set_up);
        self.state.overflows = overflows(context.now);
        self.claim(context);
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
        self.claim(context);
    }

    fn read_port(&mut self, context: &mut Context<'_>, port: u16, width: Width) -> u32 {
        self.update(context);
        let registers = self.registers(context.now);
        (0..width.bytes()).fold(0, |value, index| {
            let offset = port.wrapping_sub(self.base()).wrapping_add(index);
            let byte = registers.get(usize::from(offset)).copied().unwrap_or(0);
            value | u32::from(byte) << (8 * index)
        })
    }

    fn write_port(&mut self, context: &mut Context<'_>, port: u16, width: Width, value: u32) {
        self.update(context);
        for index in 0..width.bytes() {
            let offset = port.wrapping_sub(self.base()).wrapping_add(index);
            self.write_byte(context, offset, (value >> (8 * index)) as u8);
        }
        self.update(context);
    }

    fn timer(&mut self, context: &mut Context<'_>, _tag: Tag) {
        self.update(context);
    }

    /// Takes [`DeviceInput::PowerButton`] (ACPI 4.8.2.2.1): most guests shut down then.
    fn input(&mut self, context: &mut Context<'_>, input: DeviceInput) {
        if input == DeviceInput::PowerButton {
            self.state.status |= POWER_BUTTON;
            self.update(context);
        }
    }

    fn save(&self) -> SavedState {
        let saved = Saved { config: self.function.save(), registers: self.state.clone() };
        SavedState::new(self.name(), VERSION, &saved)
    }

    fn restore(&mut self, saved: &SavedState) -> Result<(), RestoreError> {
        let Saved { config, registers: state } = saved.load(self.name(), VERSION)?;
        if state.status & !STATUS_BITS != 0
            || state.enable & !ENABLE_BITS != 0
            || state.control & !CONTROL_BITS != 0
        {
            return Err(saved.damaged("reserved register bits are set"));
        }
        self.function = self.function.restored(saved, &config)?;
        self.state = state;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::hammer::{config_blows, hammer_config};
    use ring3_core::bus::Decoded;
    use ring3_core::device::TestBench;

    const STATUS: u16 = DEFAULT_BASE;
    const ENABLE: u16 = DEFAULT_BASE + 2;
    const CONTROL: u16 = DEFAULT_BASE + CONTROL_BLOCK;
    const COUNTER: u16 = DEFAULT_BASE + TIMER_BLOCK;
    /// Between two changes of the timer's highest bit.
    const HALF_TURN_NANOS: u64 = Time::of_tick(1 << 31, TIMER_HERTZ).as_nanos();

    fn machine() -> (TestBench, AcpiPm) {
        (TestBench::default(), AcpiPm::new(true))
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
    fn an_unread_overflow_interrupts_when_enabled() {
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
        acpi.input(&mut bench.context(), DeviceInput::PowerButton);
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
        let mut acpi = AcpiPm::new(true);
        for state in [
            State { status: 2, ..State::default() },
            State { enable: 2, ..State::default() },
            State { control: SLEEP_ENABLE, ..State::default() },
        ] {
            let state = Saved { config: acpi.function.save(), registers: state };
            let saved = SavedState::new(DeviceId::ACPI_PM.name(), VERSION, &state);
            assert!(matches!(acpi.restore(&saved), Err(RestoreError::Damaged { .. })));
        }
        assert_eq!(acpi.state, State::default());
    }

    #[test]
    fn firmware_chooses_the_addresses_of_the_ports() {
        let (mut bench, mut acpi) = machine();
        acpi.reset(&mut bench.context());
        let claimed = |bench: &mut TestBench| bench.claims.drain(..).next_back().unwrap().decoded;
        assert_eq!(claimed(&mut bench), Decoded::Ports(PortRange::new(DEFAULT_BASE, 64)));
        acpi = AcpiPm::new(false);
        acpi.reset(&mut bench.context());
        assert_eq!(claimed(&mut bench), Decoded::Nothing);
        acpi.write_config(&mut bench.context(), 3, PM_BASE, Width::Dword, 0xb001);
        assert_eq!(claimed(&mut bench), Decoded::Nothing);
        acpi.write_config(&mut bench.context(), 3, PM_MISCELLANEOUS, Width::Byte, 1);
        assert_eq!(claimed(&mut bench), Decoded::Ports(PortRange::new(0xb000, 64)));
        bench.now = Time::from_nanos(1_000_000_000);
        let count = acpi.read_port(&mut bench.context(), 0xb008, Width::Dword);
        assert_eq!(u64::from(count), TIMER_HERTZ);
        assert_eq!(acpi.read_port(&mut bench.context(), 0xb03c, Width::Dword), 0);
        let config = |offset| acpi.function.read(offset, Width::Dword);
        assert_eq!([config(0), config(8) >> 8, config(PM_BASE)], [0x7113_8086, 0x068000, 0xb001]);
        assert_eq!(config(DEVICE_ACTIVITY_B) >> 25 & 1, 1, "there is no SMI to set up");
    }

    proptest! {
        #[test]
        fn any_configuration_leaves_a_state_that_can_be_saved(blows in config_blows()) {
            let (mut bench, mut acpi) = machine();
            hammer_config(&mut acpi, &mut bench, 3, blows);
            let saved = acpi.save();
            let mut copy = AcpiPm::new(true);
            copy.restore(&saved).unwrap();
            prop_assert_eq!(copy.save(), saved);
        }

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
                    _ => acpi.input(&mut bench.context(), DeviceInput::PowerButton),
                }
                bench.advance(&mut acpi, nanos);
                let saved = acpi.save();
                let mut copy = AcpiPm::new(true);
                copy.restore(&saved).unwrap();
                prop_assert_eq!(copy.save(), saved);
            }
        }
    }
}
