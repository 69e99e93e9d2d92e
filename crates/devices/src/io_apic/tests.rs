use proptest::prelude::*;
use ring3_core::device::{DeviceId, TestBench};

use super::*;
use crate::hammer::{hammer, memory_blows};

const MASK: u32 = 1 << 16;
const LEVEL_BIT: u32 = 1 << 15;

#[derive(Default)]
struct Machine {
    apic: IoApic,
    bench: TestBench,
    sent: Vec<Message>,
    /// No local APIC accepts messages.
    deaf: bool,
}

impl Machine {
    fn read(&mut self, register: u8) -> u32 {
        self.select(register);
        self.apic.read_memory(&mut self.bench.context(), 0, WINDOW, Width::Dword)
    }

    fn write(&mut self, register: u8, value: u32) {
        self.select(register);
        self.apic.write_memory(&mut self.bench.context(), 0, WINDOW, Width::Dword, value);
        self.call(|apic, send| apic.look_at_levels(send));
    }

    fn select(&mut self, register: u8) {
        self.apic.write_memory(&mut self.bench.context(), 0, SELECT, Width::Byte, register.into());
    }

    /// Sets the lower half of the entry of `input`.
    fn entry(&mut self, input: u8, value: u32) {
        self.write(IOREDTBL + 2 * input, value);
    }

    fn input(&mut self, input: u8, asserted: bool) {
        self.call(|apic, send| apic.set_input(input, asserted, send));
    }

    fn end(&mut self, vector: u8) {
        self.call(|apic, send| apic.end_of_interrupt(vector, send));
    }

    fn call(&mut self, call: impl FnOnce(&mut IoApic, Send<'_>)) {
        let (sent, deaf) = (&mut self.sent, self.deaf);
        call(&mut self.apic, &mut |message| {
            if !deaf {
                sent.push(message);
            }
            !deaf
        });
    }

    fn sent(&mut self) -> Vec<u8> {
        self.sent.drain(..).map(|message| message.vector).collect()
    }
}

#[test]
fn registers() {
    let mut machine = Machine::default();
    assert_eq!(machine.read(IOAPICVER), 0x0017_0011);
    machine.write(IOAPICID, 0xffff_ffff);
    assert_eq!(machine.read(IOAPICID), 0x0f00_0000);
    assert_eq!(machine.read(IOAPICARB), 0x0f00_0000);
    machine.write(IOAPICARB, 0);
    machine.write(IOAPICVER, 0);
    assert_eq!(machine.read(IOAPICARB), 0x0f00_0000);
    for input in 0..INPUTS {
        assert_eq!(machine.read(IOREDTBL + 2 * input), MASK);
        assert_eq!(machine.read(IOREDTBL + 2 * input + 1), 0);
    }
    machine.entry(23, 0xffff_ffff);
    machine.write(IOREDTBL + 47, 0xffff_ffff);
    assert_eq!(machine.read(IOREDTBL + 46), 0x0001_afff);
    assert_eq!(machine.read(IOREDTBL + 47), 0xff00_0000);
    machine.write(IOREDTBL + 48, 0xffff_ffff);
    assert_eq!(machine.read(IOREDTBL + 48), 0);
    assert_eq!(machine.apic.read_memory(&mut machine.bench.context(), 0, 0, Width::Dword), 0x40);
}

#[test]
fn edges() {
    let mut machine = Machine::default();
    machine.entry(4, MASK | 0x34);
    machine.input(4, true);
    machine.entry(4, 0x34);
    assert_eq!(machine.sent(), [], "an edge at a masked input is lost");
    machine.input(4, true);
    assert_eq!(machine.sent(), [], "no edge");
    for _ in 0..2 {
        machine.input(4, false);
        machine.input(4, true);
        assert_eq!(machine.sent(), [0x34]);
    }
    machine.input(24, true);
    machine.input(255, true);
    assert_eq!(machine.sent(), []);
}

#[test]
fn levels_wait_for_the_end() {
    let mut machine = Machine::default();
    machine.entry(9, MASK | LEVEL_BIT | 0x49);
    machine.input(9, true);
    assert_eq!(machine.sent(), []);
    machine.entry(9, LEVEL_BIT | 0x49);
    assert_eq!(machine.sent(), [0x49], "the level is still there");
    assert_eq!(machine.read(IOREDTBL + 18), 0xc049, "remote IRR");
    machine.input(9, false);
    machine.input(9, true);
    machine.end(0x48);
    assert_eq!(machine.sent(), []);
    machine.end(0x49);
    assert_eq!(machine.sent(), [0x49]);
    machine.input(9, false);
    machine.end(0x49);
    assert_eq!(machine.sent(), []);
    assert_eq!(machine.read(IOREDTBL + 18), 0x8049);
}

#[test]
fn a_level_that_no_local_apic_accepts_is_sent_again() {
    let mut machine = Machine { deaf: true, ..Machine::default() };
    machine.entry(10, LEVEL_BIT | 0x4a);
    machine.input(10, true);
    assert_eq!(machine.read(IOREDTBL + 20), 0x804a);
    machine.deaf = false;
    machine.call(|apic, send| apic.look_at_levels(send));
    assert_eq!(machine.sent(), [0x4a]);
}

/// What systems do that have no EOI register to end an interrupt with.
#[test]
fn to_make_an_edge_of_a_level_forgets_it() {
    let mut machine = Machine::default();
    machine.entry(10, LEVEL_BIT | 0x4a);
    machine.input(10, true);
    machine.entry(10, MASK | 0x4a);
    machine.entry(10, LEVEL_BIT | 0x4a);
    assert_eq!(machine.sent(), [0x4a, 0x4a]);
}

#[test]
fn messages_have_the_fields_of_the_entry() {
    let mut machine = Machine::default();
    machine.write(IOREDTBL + 1, 0x0300_0000);
    let mut message = |entry| {
        machine.entry(0, entry);
        machine.input(0, true);
        machine.input(0, false);
        machine.end(entry as u8);
        machine.sent.pop()
    };
    let fixed = Message::fixed(0x31, 3);
    assert_eq!(message(0x31), Some(fixed));
    assert_eq!(message(0x2031), Some(fixed), "the polarity does not count");
    assert_eq!(
        message(0x931),
        Some(Message { logical: true, delivery: Delivery::LowestPriority, ..fixed })
    );
    assert_eq!(message(0x8031), Some(Message { level: true, ..fixed }));
    // By edges, whatever the trigger mode says.
    assert_eq!(message(0x8431), Some(Message { delivery: Delivery::Nmi, ..fixed }));
    assert_eq!(message(0x731), Some(Message { delivery: Delivery::ExtInt, ..fixed }));
    for reserved in [0x331, 0x631] {
        assert_eq!(message(reserved), None);
    }
}

#[test]
fn impossible_states_are_refused() {
    let mut apic = IoApic::default();
    for state in [
        IoApic { id: 16, ..IoApic::default() },
        IoApic { asserted: 1 << 24, ..IoApic::default() },
        IoApic { entries: [REMOTE_IRR; 24], ..IoApic::default() },
        IoApic { entries: [1 << 40; 24], ..IoApic::default() },
    ] {
        let saved = SavedState::new(DeviceId::IO_APIC.name(), VERSION, &state);
        assert!(matches!(apic.restore(&saved), Err(RestoreError::Damaged { .. })));
    }
    assert_eq!(apic, IoApic::default());
}

proptest! {
    #[test]
    fn survives_everything(blows in memory_blows(&[SELECT, WINDOW])) {
        hammer(&mut IoApic::default(), &mut IoApic::default(), blows);
    }

    /// A level-triggered interrupt is sent once, as soon as its input is asserted, and not again before its
    /// end.
    #[test]
    fn levels_never_pile_up(steps in prop::collection::vec((0u8..4, 0..INPUTS), 1..200)) {
        let mut machine = Machine::default();
        for input in 0..INPUTS {
            machine.entry(input, LEVEL_BIT | u32::from(0x40 + input));
        }
        let (mut asserted, mut in_flight) = ([false; INPUTS as usize], [false; INPUTS as usize]);
        for (kind, input) in steps {
            let index = usize::from(input);
            match kind {
                0 | 1 => {
                    machine.input(input, kind == 0);
                    asserted[index] = kind == 0;
                }
                _ => {
                    machine.end(0x40 + input);
                    in_flight[index] = false;
                }
            }
            for vector in machine.sent() {
                let sent = &mut in_flight[usize::from(vector - 0x40)];
                prop_assert!(!*sent);
                *sent = true;
            }
            for (asserted, in_flight) in asserted.iter().zip(&in_flight) {
                prop_assert!(!*asserted || *in_flight);
            }
        }
    }
}
