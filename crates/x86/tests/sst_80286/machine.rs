//! Our processor in the environment in which the tests were made: real mode, memory that is zero except where
//! a test says otherwise, and ports without devices.

use std::sync::{Arc, Mutex};

use ring3_core::memory::Memory;
use ring3_x86::cpu::{Cpu, reg};
use ring3_x86::engine::{Engine, Exit};
use ring3_x86::flags::{ALWAYS_ONE, Eflags};
use ring3_x86::interpreter::Interpreter;
use ring3_x86::interrupt::{Event, Source};
use ring3_x86::observer::Observer;
use ring3_x86::segment::{Segment, sreg};

use super::common::coverage::interpreter;
use super::vectors::{FLAGS, IP, REGISTERS, State, Test};

/// IOPL, NT and bit 15 cannot be set in the real mode of an 80286.
const REAL_MODE_FLAGS: u16 = 0x0fff;
/// More instructions and iterations than any test needs.
const DEADLINE: u64 = 1000;

/// The positions of the general registers in [`REGISTERS`].
const GENERAL: [(usize, u8); 8] = [
    (0, reg::AX),
    (1, reg::BX),
    (2, reg::CX),
    (3, reg::DX),
    (8, reg::SP),
    (9, reg::BP),
    (10, reg::SI),
    (11, reg::DI),
];
/// The positions of the segment registers.
const SEGMENTS: [(usize, u8); 4] = [(4, sreg::CS), (5, sreg::SS), (6, sreg::DS), (7, sreg::ES)];

/// The state after a test.
pub(crate) struct Outcome {
    pub(crate) registers: [u16; REGISTERS.len()],
    /// The exit that ended the run, unless it was HLT.
    pub(crate) exit: Option<Exit>,
    /// The vector of the first exception, if the machine is observed.
    pub(crate) raised: Option<u8>,
}

/// An observer that keeps the first exception.
#[derive(Debug, Default)]
struct FirstException(Arc<Mutex<Option<u8>>>);

impl Observer for FirstException {
    fn wants_accesses(&self) -> bool {
        true
    }

    fn event(&mut self, _: &Cpu, event: &Event) {
        if event.source == Source::Exception {
            self.0.lock().unwrap().get_or_insert(event.vector);
        }
    }
}

/// Memory and engine; each test gets a processor of its own.
pub(crate) struct Machine {
    memory: Memory,
    engine: Interpreter,
    /// The vector of the first exception, which the observer stores.
    raised: Arc<Mutex<Option<u8>>>,
}

impl Machine {
    /// A machine that runs at full speed.
    pub(crate) fn new() -> Machine {
        // Real mode reaches 64 KiB minus 16 bytes beyond the first MiB.
        Machine {
            memory: Memory::new(2 << 20).unwrap(),
            engine: interpreter(),
            raised: Arc::default(),
        }
    }

    /// A machine whose engine is observed.
    pub(crate) fn observed() -> Machine {
        let observer = FirstException::default();
        let raised = observer.0.clone();
        let mut engine = Interpreter::new();
        engine.set_observer(Some(Box::new(observer)));
        Machine { engine, raised, ..Machine::new() }
    }

    /// Runs `test`. Memory stays as the test leaves it until [`Machine::erase`].
    pub(crate) fn run(&mut self, test: &Test) -> Outcome {
        for (address, byte) in &test.initial.memory {
            self.memory.write((*address).into(), &[*byte]);
        }
        let mut cpu = start(&test.initial);
        let end = cpu.instructions + DEADLINE;
        let exit = loop {
            let budget = end.saturating_sub(cpu.instructions);
            match self.engine.run(&mut cpu, &mut self.memory, budget) {
                Exit::Halt => break None,
                Exit::PortRead { .. } => cpu.answer(u64::MAX),
                Exit::PortWrite { .. } => cpu.answer(0),
                other => break Some(other),
            }
        };
        let raised = self.raised.lock().unwrap().take();
        Outcome { registers: registers(&cpu), exit, raised }
    }

    /// Returns the byte at `address`.
    pub(crate) fn byte(&self, address: u32) -> u8 {
        self.memory.contents()[address as usize]
    }

    /// Clears all memory that `test` mentions.
    pub(crate) fn erase(&mut self, test: &Test) {
        for address in test.initial.memory.keys().chain(test.last.memory.keys()) {
            self.memory.write((*address).into(), &[0]);
        }
    }

    /// Returns where memory is not zero after [`Machine::erase`], because of a write to a wrong address.
    pub(crate) fn stray_write(&self) -> Option<usize> {
        self.memory.contents().iter().position(|byte| *byte != 0)
    }

    /// Clears all memory.
    pub(crate) fn clear(&mut self) {
        self.memory.clear();
    }
}

/// Makes a processor in the state `initial`.
fn start(initial: &State) -> Cpu {
    let value = |number: usize| initial.registers[number].expect("a complete state");
    let mut cpu = Cpu::new();
    cpu.set_real_mode_entry(0, value(IP));
    for (number, register) in GENERAL {
        cpu.set_gpr(register, value(number).into());
    }
    for (number, register) in SEGMENTS {
        cpu.set_segment(register, Segment::real(value(number), 0));
    }
    let flags = value(FLAGS) & REAL_MODE_FLAGS;
    cpu.set_eflags(Eflags::from_bits_truncate(flags.into()));
    cpu
}

/// Returns the registers of `cpu`, in the order of [`REGISTERS`].
fn registers(cpu: &Cpu) -> [u16; REGISTERS.len()] {
    let mut registers = [0; REGISTERS.len()];
    for (number, register) in GENERAL {
        registers[number] = cpu.get(register);
    }
    for (number, register) in SEGMENTS {
        registers[number] = cpu.segment(register).selector;
    }
    registers[IP] = cpu.ip as u16;
    registers[FLAGS] = (cpu.eflags().bits() | ALWAYS_ONE) as u16;
    registers
}

/// Returns a word of flags without the bits that are always the same in real mode.
pub(crate) fn comparable_flags(flags: u16) -> u16 {
    flags & REAL_MODE_FLAGS
}
