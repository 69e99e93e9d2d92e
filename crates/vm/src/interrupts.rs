//! The interrupt controllers, wired to each other and to the processor.
//!
//! ```text
//! IRQ 0-15 ─┬─────────► two 8259A ──INTR──┬─► LINT0 ┐
//!           │                             │         ├─ local APIC ──► processor
//!           └─► I/O APIC ◄── input 0 ─────┘   LINT1 ┘
//!                  └────────── messages ──────────►
//! ```
//!
//! IRQ 0 is at input 2 of the I/O APIC, since input 0 belongs to the 8259A (MP specification 1.4, 3.6.2).
//! While it is switched on, the local APIC decides which interrupts reach the processor; otherwise the
//! processor gets only those of the 8259A.

use ring3_core::bus::PortRange;
use ring3_core::device::{Context, Device, DeviceId, Width};
use ring3_core::lines::{self, IrqLines};
use ring3_core::state::{RestoreError, SavedState};
use ring3_devices::io_apic::{self, INPUT_INTR, INPUT_IRQ0, IoApic};
use ring3_devices::local_apic::{self, Delivery, LINT_INTR, LINT_NMI, LocalApic, Message};
use ring3_devices::pic::PicPair;
use serde::{Deserialize, Serialize};

const STATE_NAME: &str = "interrupts";
const STATE_VERSION: u32 = 1;

/// All interrupt controllers of a machine. They are not on the bus, since the board talks to their pins.
#[derive(Debug, Default)]
pub struct Interrupts {
    pic: PicPair,
    /// The APICs; machines before the Pentium have none.
    apics: Option<Apics>,
    /// Whether one of them may have something for the others.
    is_unsettled: bool,
    /// Whether a pulse has come at the processor's NMI pin, without a local APIC in between.
    nmi: bool,
    /// The level of the 8259A's INTR output that the others have seen, if it is known.
    intr: Option<bool>,
    /// Whether there is an interrupt for the processor; None if an APIC has been called, or INTR has changed,
    /// since that was looked at. The machine asks after each access to any device, and mostly none was called.
    request: Option<bool>,
    /// Whether the 8259A have been called since INTR was looked at. Ends of interrupts mostly leave it as it
    /// is.
    has_called_pic: bool,
}

#[derive(Debug, Default)]
struct Apics {
    local: LocalApic,
    io: IoApic,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct State {
    pic: SavedState,
    apics: Option<(SavedState, SavedState)>,
    #[serde(default)]
    nmi: bool,
}

impl Apics {
    /// Passes messages to the local APIC, and ends of interrupts to the I/O APIC, until there are none. This
    /// ends, since each interrupt whose end is passed on was in service.
    fn settle(&mut self) {
        let Apics { local, io } = self;
        while let Some(vector) = local.take_end_of_interrupt() {
            io.end_of_interrupt(vector, &mut |message| local.accept(message));
        }
        io.look_at_levels(&mut |message| local.accept(message));
    }

    fn set_input(&mut self, input: u8, asserted: bool) {
        let Apics { local, io } = self;
        io.set_input(input, asserted, &mut |message| local.accept(message));
    }
}

impl Interrupts {
    /// Returns the controllers of a machine with local and I/O APIC, or with the two 8259A alone.
    pub fn new(has_apics: bool) -> Interrupts {
        let apics = has_apics.then(Apics::default);
        let pic = PicPair::default();
        Interrupts {
            pic,
            apics,
            is_unsettled: true,
            nmi: false,
            intr: None,
            request: None,
            has_called_pic: false,
        }
    }

    /// Brings the local APIC into virtual wire mode as firmware does: then the 8259A interrupts the processor
    /// through it (MP specification 1.4, 3.6.2.2).
    pub fn enter_virtual_wire_mode(&mut self, context: &mut Context<'_>) {
        const ENABLED_AND_SPURIOUS_FFH: u32 = 0x1ff;
        const EXTINT: u32 = 0x700;
        const NMI: u32 = 0x400;
        self.note_call();
        let Some(Apics { local, .. }) = &mut self.apics else { return };
        for (register, value) in [(0xf0, ENABLED_AND_SPURIOUS_FFH), (0x350, EXTINT), (0x360, NMI)] {
            local.write_memory(context, 0, register, Width::Dword, value);
        }
    }

    /// Executes INIT of the processor, which resets its local APIC. An APIC in virtual wire mode stays in it,
    /// although a real one masks LINT0: 80286 software returns to real mode by INIT, with a note for firmware
    /// in CMOS memory, and SeaBIOS then continues without looking at the APIC.
    pub fn init(&mut self, context: &mut Context<'_>) {
        let Some(Apics { local, .. }) = &mut self.apics else { return };
        let was_virtual_wire = local.is_virtual_wire();
        local.init(context);
        self.note_call();
        if was_virtual_wire {
            self.enter_virtual_wire_mode(context);
        }
        self.settle();
    }

    /// Returns the ids of all controllers.
    pub fn ids(&self) -> &'static [DeviceId] {
        if self.apics.is_some() {
            &[DeviceId::PIC, DeviceId::LOCAL_APIC, DeviceId::IO_APIC]
        } else {
            &[DeviceId::PIC]
        }
    }

    /// Returns the controller with this id, if it is one of them.
    pub fn device(&mut self, id: DeviceId) -> Option<&mut dyn Device> {
        let device: &mut dyn Device = match (id, &mut self.apics) {
            // Apart from INTR it has nothing for the others.
            (DeviceId::PIC, _) => {
                self.has_called_pic = true;
                return Some(&mut self.pic);
            }
            (DeviceId::LOCAL_APIC, Some(apics)) => &mut apics.local,
            (DeviceId::IO_APIC, Some(apics)) => &mut apics.io,
            _ => return None,
        };
        self.is_unsettled = true;
        self.request = None;
        Some(device)
    }

    /// Returns the ports of the two 8259A.
    pub fn ports(&self) -> [PortRange; 3] {
        self.pic.ports()
    }

    /// Returns the controller that answers at guest-physical address `address`, and the offset in its
    /// registers. The local APIC, which is in the processor, comes before all others.
    pub fn at_address(&self, address: u64) -> Option<(DeviceId, u64)> {
        let apics = self.apics.as_ref()?;
        let within = |start, size| {
            let offset = address.wrapping_sub(start);
            (offset < size).then_some(offset)
        };
        let local = apics.local.address().and_then(|start| within(start, local_apic::SIZE));
        let io =
            || within(io_apic::ADDRESS, io_apic::SIZE).map(|offset| (DeviceId::IO_APIC, offset));
        local.map(|offset| (DeviceId::LOCAL_APIC, offset)).or_else(io)
    }

    /// Returns the register at guest-physical address `address`, if reading it has no effect and it does not
    /// change with time.
    pub fn peek(&self, address: u64) -> Option<u32> {
        let apics = self.apics.as_ref()?;
        match self.at_address(address)? {
            (DeviceId::LOCAL_APIC, offset) => apics.local.peek(offset),
            (_, offset) => apics.io.peek(offset),
        }
    }

    /// Returns the byte at a port of the 8259A, under the same conditions.
    pub fn peek_port(&self, port: u16) -> Option<u8> {
        self.pic.peek_port(port)
    }

    /// Reads, for the guest, a memory-mapped register of the controller `id`. This has no effect on the
    /// others.
    pub fn read_memory(
        &mut self,
        context: &mut Context<'_>,
        id: DeviceId,
        offset: u64,
        width: Width,
    ) -> u32 {
        match (id, &mut self.apics) {
            (DeviceId::LOCAL_APIC, Some(apics)) => {
                apics.local.read_memory(context, 0, offset, width)
            }
            (_, Some(apics)) => apics.io.read_memory(context, 0, offset, width),
            (_, None) => width.mask(),
        }
    }

    /// Writes, for the guest, a memory-mapped register of the controller `id`. This has no effect on the
    /// 8259A.
    pub fn write_memory(
        &mut self,
        context: &mut Context<'_>,
        id: DeviceId,
        offset: u64,
        width: Width,
        value: u32,
    ) {
        self.request = None;
        let Some(apics) = &mut self.apics else { return };
        if id == DeviceId::LOCAL_APIC {
            apics.local.write_memory(context, 0, offset, width, value);
        } else {
            apics.io.write_memory(context, 0, offset, width, value);
        }
        apics.settle();
    }

    /// Notes that the processor has IA32_APIC_BASE set to `value`.
    pub fn set_apic_base(&mut self, context: &mut Context<'_>, value: u64) {
        self.note_call();
        if let Some(apics) = &mut self.apics {
            apics.local.set_base(context, value);
        }
    }

    /// Sets the level of IRQ line `line`. Lines from 16 on belong to the I/O APIC alone.
    pub fn set_line(&mut self, line: u8, high: bool) {
        /// The cascade of the 8259A: no device has this line.
        const CASCADE: u8 = 2;
        self.note_call();
        if line >= IrqLines::COUNT {
            if let Some(apics) = &mut self.apics {
                apics.set_input(line, high);
            }
            return;
        }
        self.pic.set_line(line, high);
        self.drive_intr();
        if line != CASCADE
            && let Some(apics) = &mut self.apics
        {
            apics.set_input(if line == 0 { INPUT_IRQ0 } else { line }, high);
        }
    }

    /// Delivers an interrupt that a device has sent as a message. A message to an address that is not one of
    /// local APICs goes nowhere (SDM vol. 3, 12.11).
    pub fn message(&mut self, sent: lines::Message) {
        const ADDRESS_BITS: u64 = !0xf_ffff;
        const LOCAL_APICS: u64 = 0xfee0_0000;
        /// Bit of the address: the destination is logical.
        const LOGICAL: u64 = 1 << 2;
        /// Bit of the data: the trigger is a level.
        const LEVEL: u32 = 1 << 15;
        let lines::Message { address, data } = sent;
        let (Some(Apics { local, .. }), Some(delivery)) =
            (&mut self.apics, Delivery::from_register(data))
        else {
            return;
        };
        if address & ADDRESS_BITS == LOCAL_APICS {
            self.is_unsettled = true;
            self.request = None;
            local.accept(Message {
                destination: (address >> 12) as u8,
                logical: address & LOGICAL != 0,
                delivery,
                vector: data as u8,
                level: data & LEVEL != 0,
            });
        }
    }

    /// Passes changes of one controller on to the others. Must be called after each call of one.
    #[inline]
    pub fn settle(&mut self) {
        let is_new_intr = self.has_called_pic && self.intr != Some(self.pic.interrupt_requested());
        self.has_called_pic = false;
        if self.request.is_some() && !is_new_intr {
            return;
        }
        if self.is_unsettled || is_new_intr {
            self.is_unsettled = false;
            self.drive_intr();
            if let Some(apics) = &mut self.apics {
                apics.settle();
            }
        }
        self.request = Some(self.look_for_request());
    }

    /// Notes that a controller is called, which may have something for the others and for the processor.
    fn note_call(&mut self) {
        self.is_unsettled = true;
        self.request = None;
    }

    /// Passes on the 8259A's INTR output.
    fn drive_intr(&mut self) {
        let requested = self.pic.interrupt_requested();
        self.intr = Some(requested);
        if let Some(apics) = &mut self.apics {
            apics.local.set_lint(LINT_INTR, requested);
            apics.set_input(INPUT_INTR, requested);
        }
    }

    /// Returns whether there is an interrupt for the processor.
    #[inline]
    pub fn requested(&self) -> bool {
        match self.request {
            Some(request) if !self.has_called_pic => request,
            _ => self.look_for_request(),
        }
    }

    /// Looks whether there is an interrupt for the processor.
    fn look_for_request(&self) -> bool {
        match self.switched_on() {
            Some(local) => local.external_requested() || local.interrupt_requested(),
            None => self.pic.interrupt_requested(),
        }
    }

    /// Acknowledges the interrupt for the processor, and returns its vector.
    pub fn acknowledge(&mut self) -> u8 {
        self.note_call();
        match &mut self.apics {
            Some(Apics { local, io }) if local.is_enabled() => {
                if !local.external_requested() {
                    return local.acknowledge();
                }
                local.external_acknowledged();
                // INTR falls at each acknowledge, so the next request is an edge.
                local.set_lint(LINT_INTR, false);
                io.set_input(INPUT_INTR, false, &mut |message| local.accept(message));
            }
            _ => {}
        }
        let vector = self.pic.acknowledge();
        self.settle();
        vector
    }

    /// Sends a pulse on the board's NMI line. The line leads to the pin LINT1. A local APIC that is switched
    /// on handles it as its local vector table says; otherwise the pin is the processor's NMI pin (SDM vol.
    /// 3, 11.4.3 and 11.5.1).
    pub fn pulse_nmi(&mut self) {
        self.request = None;
        match &mut self.apics {
            Some(Apics { local, .. }) if local.is_enabled() => {
                local.set_lint(LINT_NMI, true);
                local.set_lint(LINT_NMI, false);
            }
            _ => self.nmi = true,
        }
    }

    /// Returns whether a non-maskable interrupt waits for [`Interrupts::take_nmi`].
    pub fn has_nmi(&self) -> bool {
        self.nmi || self.apics.as_ref().is_some_and(|apics| apics.local.has_nmi())
    }

    /// Returns true once for each non-maskable interrupt.
    pub fn take_nmi(&mut self) -> bool {
        let at_pin = std::mem::take(&mut self.nmi);
        at_pin | self.apics.as_mut().is_some_and(|apics| apics.local.take_nmi())
    }

    /// Returns the local APIC, while it is switched on.
    fn switched_on(&self) -> Option<&LocalApic> {
        self.apics.as_ref().map(|apics| &apics.local).filter(|local| local.is_enabled())
    }

    /// Returns the state of all controllers.
    pub fn save(&self) -> SavedState {
        let apics = self.apics.as_ref().map(|apics| (apics.local.save(), apics.io.save()));
        SavedState::new(
            STATE_NAME,
            STATE_VERSION,
            &State { pic: self.pic.save(), apics, nmi: self.nmi },
        )
    }

    /// Restores a saved state. On an error nothing is changed.
    pub fn restore(&mut self, saved: &SavedState) -> Result<(), RestoreError> {
        let state: State = saved.load(STATE_NAME, STATE_VERSION)?;
        if state.apics.is_some() != self.apics.is_some() {
            return Err(saved.damaged("it is of a machine with other interrupt controllers"));
        }
        let mut new = Interrupts::new(self.apics.is_some());
        new.pic.restore(&state.pic)?;
        if let (Some(apics), Some((local, io))) = (&mut new.apics, state.apics) {
            apics.local.restore(&local)?;
            apics.io.restore(&io)?;
        }
        new.nmi = state.nmi;
        *self = new;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use ring3_core::device::TestBench;

    use super::*;

    const APIC_OFF: u64 = 0xfee0_0100;
    const EOI: u64 = 0xb0;

    /// Controllers as the BIOS programs them, but with IRQ 0 at vector 8, all inputs open and automatic ends
    /// of interrupts.
    fn machine(has_apics: bool) -> (Interrupts, TestBench) {
        let (mut all, mut bench) = (Interrupts::new(has_apics), TestBench::default());
        for (port, value) in [
            (0x20, 0x11),
            (0x21, 0x08),
            (0x21, 0x04),
            (0x21, 0x03),
            (0x21, 0),
            (0xa0, 0x11),
            (0xa1, 0x70),
            (0xa1, 0x02),
            (0xa1, 0x03),
            (0xa1, 0),
        ] {
            assert!(all.ports().iter().any(|range| range.contains(port)));
            bench.write(all.device(DeviceId::PIC).unwrap(), port, value);
            all.settle();
        }
        (all, bench)
    }

    fn write(all: &mut Interrupts, bench: &mut TestBench, address: u64, value: u32) {
        let (id, offset) = all.at_address(address).unwrap();
        let device = all.device(id).unwrap();
        device.write_memory(&mut bench.context(), 0, offset, Width::Dword, value);
        all.settle();
    }

    fn end_of_interrupt(all: &mut Interrupts, bench: &mut TestBench) {
        write(all, bench, local_apic::DEFAULT_ADDRESS + EOI, 0);
    }

    /// Programs the entry of the I/O APIC's input `input`, for APIC 0.
    fn redirect(all: &mut Interrupts, bench: &mut TestBench, input: u8, entry: u32) {
        write(all, bench, io_apic::ADDRESS, 0x10 + 2 * u32::from(input));
        write(all, bench, io_apic::ADDRESS + 0x10, entry);
    }

    fn pulse(all: &mut Interrupts, line: u8) -> Option<u8> {
        all.set_line(line, true);
        all.set_line(line, false);
        all.requested().then(|| all.acknowledge())
    }

    #[test]
    fn without_a_local_apic_the_8259a_interrupts_the_processor() {
        let (mut all, _) = machine(false);
        assert_eq!(all.at_address(local_apic::DEFAULT_ADDRESS), None);
        all.set_line(9, true);
        assert!(all.requested());
        assert_eq!(all.acknowledge(), 0x71);
        assert!(!all.requested());
    }

    #[test]
    fn messages_of_devices_reach_the_local_apic() {
        let (mut all, mut bench) = machine(true);
        write(&mut all, &mut bench, local_apic::DEFAULT_ADDRESS + 0xf0, 0x1ff);
        let to = |address, data| lines::Message { address, data };
        // Messages to another APIC, to memory, of a reserved kind, and to an address above 4 GiB.
        for lost in [
            to(0xfee0_1000, 0x41),
            to(0xfed0_0000, 0x41),
            to(0xfee0_0000, 0x341),
            to(0x1_fee0_0000, 0x41),
        ] {
            all.message(lost);
            assert!(!all.requested(), "{lost:x?}");
        }
        all.message(to(0xfee0_0000, 0x4041));
        assert!(all.requested());
        assert_eq!(all.acknowledge(), 0x41);
        let (mut all, _) = machine(false);
        all.message(to(0xfee0_0000, 0x4041));
        assert!(!all.requested());
    }

    #[test]
    fn a_disabled_local_apic_behaves_like_none() {
        let (mut all, mut bench) = machine(true);
        all.set_line(1, true);
        assert!(!all.requested(), "nothing passes before it is programmed");
        all.set_apic_base(&mut bench.context(), APIC_OFF);
        assert_eq!(all.at_address(local_apic::DEFAULT_ADDRESS), None);
        assert!(all.requested());
        assert_eq!(all.acknowledge(), 0x09);
    }

    #[test]
    fn virtual_wire_mode() {
        let (mut all, mut bench) = machine(true);
        all.enter_virtual_wire_mode(&mut bench.context());
        all.set_line(0, true);
        all.set_line(9, true);
        assert!(all.requested());
        assert_eq!(all.acknowledge(), 0x08);
        assert!(all.requested());
        assert_eq!(all.acknowledge(), 0x71);
        assert!(!all.requested());
    }

    #[test]
    fn init_resets_the_local_apic_and_leaves_the_8259a_its_way() {
        let (mut all, mut bench) = machine(true);
        all.enter_virtual_wire_mode(&mut bench.context());
        redirect(&mut all, &mut bench, 4, 0x0054);
        all.set_line(4, true);
        assert!(all.apics.as_ref().is_some_and(|apics| apics.local.interrupt_requested()));
        all.init(&mut bench.context());
        assert!(!all.apics.as_ref().is_some_and(|apics| apics.local.interrupt_requested()));
        assert!(all.requested());
        assert_eq!(all.acknowledge(), 0x0c, "IRQ 4 by the 8259A");

        write(&mut all, &mut bench, local_apic::DEFAULT_ADDRESS + 0x350, 1 << 16);
        all.init(&mut bench.context());
        all.set_line(1, true);
        assert!(!all.requested(), "nothing passes before it is programmed");
    }

    /// Virtual wire mode by the I/O APIC (MP specification 1.4, figure 3-4).
    #[test]
    fn intr_through_the_io_apic() {
        let (mut all, mut bench) = machine(true);
        redirect(&mut all, &mut bench, 0, 0x700);
        all.set_line(0, true);
        all.set_line(1, true);
        for vector in [0x08, 0x09] {
            assert!(all.requested());
            assert_eq!(all.acknowledge(), vector);
        }
        assert!(!all.requested());
    }

    #[test]
    fn symmetric_mode() {
        let (mut all, mut bench) = machine(true);
        write(&mut all, &mut bench, local_apic::DEFAULT_ADDRESS + 0xf0, 0x1ff);
        for input in 0..io_apic::INPUTS {
            redirect(&mut all, &mut bench, input, 0x40 + 0x10 * (u32::from(input) % 8));
        }
        redirect(&mut all, &mut bench, 0, 1 << 16);
        for (line, vector) in [(0, 0x60), (1, 0x50), (15, 0xb0)] {
            assert_eq!(pulse(&mut all, line), Some(vector), "line {line}");
            assert_eq!(pulse(&mut all, line), None, "in service");
            end_of_interrupt(&mut all, &mut bench);
            assert!(all.requested(), "held until then");
            all.acknowledge();
            end_of_interrupt(&mut all, &mut bench);
        }
        assert_eq!(pulse(&mut all, 2), None, "the cascade is no line");
    }

    #[test]
    fn a_level_comes_again_until_it_is_low() {
        let (mut all, mut bench) = machine(true);
        write(&mut all, &mut bench, local_apic::DEFAULT_ADDRESS + 0xf0, 0x1ff);
        redirect(&mut all, &mut bench, 9, 0x8059);
        all.set_line(9, true);
        for _ in 0..2 {
            assert_eq!(all.acknowledge(), 0x59);
            assert!(!all.requested());
            end_of_interrupt(&mut all, &mut bench);
            assert!(all.requested());
        }
        assert_eq!(all.acknowledge(), 0x59);
        all.set_line(9, false);
        end_of_interrupt(&mut all, &mut bench);
        assert!(!all.requested());
    }

    /// An interrupt that comes while the local APIC accepts none waits if it is a level, and is lost if it is
    /// an edge.
    #[test]
    fn a_level_waits_for_the_local_apic() {
        let (mut all, mut bench) = machine(true);
        redirect(&mut all, &mut bench, 9, 0x8059);
        redirect(&mut all, &mut bench, 4, 0x0054);
        all.set_line(9, true);
        all.set_line(4, true);
        assert!(!all.requested());
        write(&mut all, &mut bench, local_apic::DEFAULT_ADDRESS + 0xf0, 0x1ff);
        assert_eq!(all.acknowledge(), 0x59);
        end_of_interrupt(&mut all, &mut bench);
        assert_eq!(all.acknowledge(), 0x59);
    }

    /// Whatever is done to the controllers, with a look at the request after it or without, they know the same
    /// of the request as others in the same state that have yet to look.
    #[test]
    fn the_request_is_always_known() {
        let (mut all, mut bench) = machine(true);
        write(&mut all, &mut bench, local_apic::DEFAULT_ADDRESS + 0xf0, 0x1ff);
        let (mut number, mut requests) = (1_u32, 0);
        for step in 0..20_000 {
            // A generator of random numbers (Numerical Recipes, 7.1).
            number = number.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let (action, value) = (number >> 28, number >> 8 & 0xffff);
            let line = (value % 16) as u8;
            let is_on = all.at_address(local_apic::DEFAULT_ADDRESS).is_some();
            match action {
                0..=3 => all.set_line(line, action < 2),
                4 | 5 if all.requested() => {
                    all.acknowledge();
                }
                6 if is_on => end_of_interrupt(&mut all, &mut bench),
                7 => {
                    let id = DeviceId::PIC;
                    let end = value % 2 == 0;
                    let (port, value) = if end { (0x20, 0x20) } else { (0x21, (value >> 8) as u8) };
                    bench.write(all.device(id).unwrap(), port, value);
                }
                8 => redirect(
                    &mut all,
                    &mut bench,
                    line,
                    0x40 + (value & 0x8080) + 0x10 * (value & 7),
                ),
                9 => {
                    all.message(lines::Message {
                        address: 0xfee0_0000,
                        data: 0x4040 | value & 0xf,
                    });
                }
                10 => all.pulse_nmi(),
                11 => {
                    // LINT0 and LINT1: an external interrupt, a fixed one, or an NMI; masked or not.
                    let entry = [0x700, 0x45, 0x400, 0x1_0000][(value & 3) as usize];
                    let register = 0x350 + u64::from(value >> 2 & 1) * 0x10;
                    let mut context = bench.context();
                    let id = DeviceId::LOCAL_APIC;
                    all.write_memory(&mut context, id, register, Width::Dword, entry);
                }
                12 if is_on => {
                    write(&mut all, &mut bench, local_apic::DEFAULT_ADDRESS + 0x80, value & 0x70);
                }
                13 if value % 16 == 0 => all.init(&mut bench.context()),
                13 if value % 16 == 1 => all.enter_virtual_wire_mode(&mut bench.context()),
                13 if value % 16 < 4 => {
                    let base = [APIC_OFF, 0xfee0_0900][(value % 2) as usize];
                    all.set_apic_base(&mut bench.context(), base);
                }
                _ => all.settle(),
            }
            let mut others = Interrupts::new(true);
            others.restore(&all.save()).unwrap();
            assert_eq!(all.requested(), others.requested(), "step {step}, action {action}");
            requests += u32::from(all.requested());
        }
        assert!((1000..19_000).contains(&requests), "{requests}");
    }

    #[test]
    fn nmi_by_the_io_apic() {
        let (mut all, mut bench) = machine(true);
        redirect(&mut all, &mut bench, 4, 0x400);
        assert_eq!(pulse(&mut all, 4), None);
        assert!(all.take_nmi());
        assert!(!all.take_nmi());
    }

    /// The line leads to LINT1, which the local vector table masks after a reset, or directly to the
    /// processor if there is no local APIC.
    #[test]
    fn nmi_by_its_line() {
        let (mut all, mut bench) = machine(true);
        write(&mut all, &mut bench, local_apic::DEFAULT_ADDRESS + 0x360, 0x1_0400);
        all.pulse_nmi();
        assert!(!all.has_nmi());
        all.enter_virtual_wire_mode(&mut bench.context());
        all.pulse_nmi();
        assert!(all.take_nmi() && !all.has_nmi());
        let (mut without, _) = machine(false);
        without.pulse_nmi();
        let mut restored = Interrupts::new(false);
        restored.restore(&without.save()).unwrap();
        assert!(restored.take_nmi() && !restored.has_nmi());
    }

    #[test]
    fn states_are_those_of_machines_of_the_same_kind() {
        let (mut all, mut bench) = machine(true);
        redirect(&mut all, &mut bench, 9, 0x8059);
        all.set_line(9, true);
        let mut other = Interrupts::new(true);
        other.restore(&all.save()).unwrap();
        assert_eq!(other.save(), all.save());
        write(&mut other, &mut bench, local_apic::DEFAULT_ADDRESS + 0xf0, 0x1ff);
        assert_eq!(other.acknowledge(), 0x59);
        assert!(Interrupts::new(false).restore(&all.save()).is_err());
        assert!(all.restore(&Interrupts::new(false).save()).is_err());
    }
}
