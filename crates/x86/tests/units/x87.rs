//! Tests that the comparison with a real processor (`tests/host_x87`) cannot make: other modes, control bits
//! of the system, and the pointers.

use ring3_core::memory::Memory;

use ring3_x86::cpu::{Cpu, Cr0};
use ring3_x86::engine::{Engine, Exit};
use ring3_x86::fpu::status;
use ring3_x86::interpreter::Interpreter;
use ring3_x86::segment::{Segment, sreg};
use ring3_x86::softfloat::transcendental::{Outcome, Results};
use ring3_x86::softfloat::{F80, Flags};
use ring3_x86::undefined::Vendor;

/// The offset of the code.
const CODE: u16 = 0x7000;
/// JMP to itself.
const END: [u8; 2] = [0xeb, 0xfe];
/// The handler of an exception is at the sum of this offset and twice the vector.
const HANDLERS: u16 = 0x600;

struct Machine {
    cpu: Cpu,
    memory: Memory,
}

impl Machine {
    /// Makes a machine in real mode, in which every exception leads to a handler that does nothing more.
    fn new() -> Machine {
        let mut memory = Memory::new(1 << 20).unwrap();
        for vector in 0..32 {
            let handler = HANDLERS + 2 * vector;
            memory.write(4 * u64::from(vector), &u32::from(handler).to_le_bytes());
            memory.write(handler.into(), &END);
        }
        let mut cpu = Cpu::new();
        cpu.set_real_mode_entry(0, CODE);
        cpu.set_gpr(4, 0x6000);
        cpu.set_cr0(Cr0::NE);
        Machine { cpu, memory }
    }

    /// Runs `code`. Returns the vector if there was an exception.
    fn run(&mut self, code: &[u8]) -> Option<u16> {
        self.memory.write(CODE.into(), &[code, &END].concat());
        self.cpu.set_segment(sreg::CS, Segment::real(0, 0));
        self.cpu.ip = CODE.into();
        let exit = Interpreter::new().run(&mut self.cpu, &mut self.memory, 100);
        assert_eq!(exit, Exit::Deadline);
        let handler = (self.cpu.ip as u16).checked_sub(HANDLERS)? / 2;
        (handler < 32).then_some(handler)
    }

    fn word(&self, address: usize) -> u16 {
        u16::from_le_bytes(self.memory.load(address))
    }
}

const NM: Option<u16> = Some(7);
const MF: Option<u16> = Some(16);

const FLD1: [u8; 2] = [0xd9, 0xe8];
const FLDZ: [u8; 2] = [0xd9, 0xee];
const FNINIT: [u8; 2] = [0xdb, 0xe3];
const FNCLEX: [u8; 2] = [0xdb, 0xe2];
const FNSTSW_AX: [u8; 2] = [0xdf, 0xe0];
const FDIVP: [u8; 2] = [0xde, 0xf9];
const WAIT: [u8; 1] = [0x9b];
/// FLDCW [2000h].
const FLDCW: [u8; 4] = [0xd9, 0x2e, 0x00, 0x20];
/// FNSTENV [2000h].
const FNSTENV: [u8; 4] = [0xd9, 0x36, 0x00, 0x20];
/// FNSAVE [2000h].
const FNSAVE: [u8; 4] = [0xdd, 0x36, 0x00, 0x20];
/// FRSTOR [2000h].
const FRSTOR: [u8; 4] = [0xdd, 0x26, 0x00, 0x20];

#[test]
fn the_fpu_can_be_switched_off() {
    for (bits, with_fpu, with_wait) in [
        (Cr0::EM, NM, None),
        (Cr0::TS, NM, None),
        (Cr0::MP, None, None),
        (Cr0::TS | Cr0::MP, NM, NM),
    ] {
        let mut machine = Machine::new();
        machine.cpu.set_cr0(bits);
        assert_eq!(machine.run(&FLD1), with_fpu, "{bits:?}");
        assert_eq!(machine.run(&FNINIT), with_fpu, "{bits:?}");
        assert_eq!(machine.run(&WAIT), with_wait, "{bits:?}");
    }
}

#[test]
fn an_unmasked_exception_waits_for_the_next_waiting_instruction() {
    let mut machine = Machine::new();
    machine.memory.write(0x2000, &0x037b_u16.to_le_bytes());
    let divide = [&FLDCW[..], &FLD1, &FLDZ, &FDIVP].concat();
    assert_eq!(machine.run(&divide), None);
    assert!(machine.cpu.fpu.has_pending_exception());
    assert_eq!(machine.cpu.fpu.st(1), Some(F80::ONE));
    assert_eq!(machine.run(&FNSTSW_AX), None);
    assert_eq!(machine.cpu.get::<u16>(0), 0xb084);
    assert_eq!(machine.run(&WAIT), MF);
    assert_eq!(machine.run(&FLD1), MF);
    assert_eq!(machine.run(&FNCLEX), None);
    assert_eq!(machine.run(&FLD1), None);
}

#[test]
fn the_environment_tells_where_the_last_instruction_is() {
    let mut machine = Machine::new();
    // Two instructions in a block, the second with an operand at [3000h]; then the environment.
    let load = [0xdd, 0x06, 0x00, 0x30];
    assert_eq!(machine.run(&[&FLD1[..], &load, &FNSTENV].concat()), None);
    assert_eq!(machine.word(0x2006), CODE + 2);
    assert_eq!(machine.word(0x2002), 6 << 11);
    assert_eq!(machine.word(0x200a), 0, "only operands of unmasked exceptions are noted");
    machine.memory.write(0x2000, &0x037b_u16.to_le_bytes());
    let divide = [0xdc, 0x36, 0x00, 0x30];
    assert_eq!(machine.run(&[&FLDCW[..], &FLD1, &divide, &FNSTENV].concat()), None);
    assert_eq!(machine.word(0x200a), 0x3000);
}

#[test]
fn a_processor_of_amd_tells_it_of_unmasked_exceptions_alone() {
    let mut machine = Machine::new();
    machine.cpu.vendor = Vendor::Amd;
    assert_eq!(machine.run(&[&FLD1[..], &FNSTENV].concat()), None);
    assert_eq!((machine.word(0x2006), machine.word(0x2008)), (0, 0));
    machine.memory.write(0x2000, &0x037b_u16.to_le_bytes());
    let divide = [0xdc, 0x36, 0x00, 0x30];
    assert_eq!(machine.run(&[&FLDCW[..], &FLD1, &divide, &FNSTENV].concat()), None);
    assert_ne!(machine.word(0x2006), 0);
    assert_eq!(machine.word(0x200a), 0x3000);
}

#[test]
fn a_state_survives_saving() {
    let mut machine = Machine::new();
    assert_eq!(machine.run(&[FLD1, FLDZ].concat()), None);
    let before = machine.cpu.fpu.clone();
    assert_eq!(machine.run(&FNSAVE), None);
    assert_eq!(machine.cpu.fpu.tag_word(), 0xffff);
    assert_eq!(machine.cpu.fpu.status(), 0);
    assert_eq!(machine.run(&FRSTOR), None);
    assert_eq!(machine.cpu.fpu, before);
}

#[test]
fn an_operand_beyond_the_limit_changes_nothing() {
    let mut machine = Machine::new();
    assert_eq!(machine.run(&FLD1), None);
    let before = machine.cpu.fpu.clone();
    // FSTP m80 and FLD m80 at [FFF8h] of 64 KiB: #GP.
    for code in [[0xdb, 0x3e, 0xf8, 0xff], [0xdb, 0x2e, 0xf8, 0xff]] {
        assert_eq!(machine.run(&code), Some(13));
        assert_eq!(machine.cpu.fpu, before);
    }
    assert_eq!(machine.word(0xfff8), 0);
}

#[test]
fn the_arctangent_of_one() {
    let mut machine = Machine::new();
    let fpatan = [0xd9, 0xf3];
    assert_eq!(machine.run(&[FLD1, FLD1, fpatan].concat()), None);
    let Machine { cpu, .. } = &machine;
    assert_eq!(cpu.fpu.st(0), Some(F80::new(0x3ffe, 0xc90f_daa2_2168_c235)));
    assert_eq!(cpu.fpu.st(1), None);
    assert_eq!(cpu.fpu.status() & !status::TOP, Flags::PRECISION.bits() | status::C1);
}

#[test]
fn c2_says_whether_an_angle_is_too_large() {
    const FSIN: [u8; 2] = [0xd9, 0xfe];
    let mut machine = Machine::new();
    let limit = F80::new(0x403e, 1 << 63);
    machine.cpu.fpu.push(limit);
    assert_eq!(machine.run(&FSIN), None);
    assert_eq!(machine.cpu.fpu.status() & !status::TOP, status::C2);
    assert_eq!(machine.cpu.fpu.st(0), Some(limit));
    assert_eq!(machine.run(&[FLDZ, FSIN].concat()), None);
    assert_eq!(machine.cpu.fpu.status() & !status::TOP, 0);
}

#[test]
fn the_transcendental_functions_can_be_exchanged() {
    let mut machine = Machine::new();
    machine.cpu.transcendental = |_, _, [st0, _]| Outcome {
        raised: Flags::UNDERFLOW,
        rounded_up: false,
        incomplete: false,
        results: Results::Push { replacing: st0.negate(), pushed: F80::from(42) },
    };
    // The functions are part of the machine, so they persist when a state is loaded.
    let state = machine.cpu.save();
    machine.cpu.restore(&state).unwrap();
    let fptan = [0xd9, 0xf2];
    assert_eq!(machine.run(&[FLD1, fptan].concat()), None);
    let fpu = &machine.cpu.fpu;
    assert_eq!((fpu.st(0), fpu.st(1)), (Some(F80::from(42)), Some(F80::ONE.negate())));
    assert_eq!(fpu.status() & Flags::ALL.bits(), Flags::UNDERFLOW.bits());
}
