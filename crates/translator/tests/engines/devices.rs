//! Devices that act on the machine in the middle of translated code: they arm timers, move the clock, raise
//! and lower the interrupt line, and make the machine look around. Random programs access them between calls,
//! returns, changes of IF and other instructions for which translated code is left. Each access must come at
//! the same instruction with the same value on both engines.

use std::cell::Cell;

use ring3_core::clock::{Clock, Time};
use ring3_core::device::Width;
use ring3_core::memory::Memory;
use ring3_x86::cpu::{Cpu, Cr0, reg};
use ring3_x86::engine::{Devices, Exit};

use crate::common::random::Random;
use crate::common::series::Series;
use crate::machine::*;
use crate::pair::Pair;

/// Number of programs.
const CASES: u64 = 100;
/// Calls of the first function of a program: enough for the translator to learn which instructions access
/// devices.
const ROUNDS: u32 = 40;
/// Number of functions in a program. Each calls later ones only.
const FUNCTIONS: u32 = 5;
/// The addresses of the programs, each in pages of its own.
const PROGRAMS: u32 = 0x10_0000;
const PROGRAM_SIZE: u32 = 0x2000;
const FUNCTION_SIZE: u32 = 0x200;
/// The programs' handler of interrupts.
const HANDLER: u32 = 0x6800;
const EXTERNAL: u8 = 0x40;
/// Guest-physical and linear address of the device in memory.
const DEVICE: u32 = 0x200_0000;
const DEVICE_LINEAR: u32 = 0x3f_f000;
/// The device's register that may be read without an access.
const QUIET_REGISTER: u32 = 0x100;
/// The first of the device's ports.
const PORT: u8 = 0x10;
/// The device's port that may be read without an access.
pub(crate) const KNOWN_PORT: u8 = 0x20;

/// The effect of an access, by the lowest digit of the port or the number of the doubleword in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Action {
    Nothing,
    RaiseLine,
    LowerLine,
    ArmTimer,
    CancelTimer,
    MoveClock,
    ChangeRate,
    LookAround,
}

impl Action {
    const ALL: [Action; 8] = [
        Action::Nothing,
        Action::RaiseLine,
        Action::LowerLine,
        Action::ArmTimer,
        Action::CancelTimer,
        Action::MoveClock,
        Action::ChangeRate,
        Action::LookAround,
    ];
}

/// The machine's side of a run.
#[derive(Debug, Default)]
pub(crate) struct Board {
    /// The number of instructions at which the timer raises the line.
    timer: Option<u64>,
    line: bool,
    looks_around: bool,
    /// Whether the engine must return because of an access that is complete.
    ends_run: bool,
    /// How many interrupts the engine has asked for while it ran.
    acknowledged: u32,
    /// How often a byte at a port was asked for without an access.
    pub(crate) peeked: Cell<u32>,
    /// The number of instructions at which the run ends.
    pub(crate) end: u64,
    /// Each access: the number of instructions before it, and the value that was read.
    pub(crate) log: Vec<(u64, Exit, u32)>,
}

impl Board {
    fn perform(&mut self, cpu: &mut Cpu, exit: &Exit) -> u32 {
        let number = match *exit {
            Exit::PortRead { port, width: Width::Byte } if port == KNOWN_PORT.into() => {
                return self.known().into();
            }
            Exit::PortRead { port, .. } | Exit::PortWrite { port, .. } => u32::from(port) & 0xf,
            Exit::MmioRead { address, .. } | Exit::MmioWrite { address, .. } => {
                if let Some(value) = self.peek(address) {
                    return value;
                }
                (address as u32 & 0x3f) / 4
            }
            _ => unreachable!("{exit:?} is no access"),
        };
        let executed = cpu.instructions;
        let count = self.log.len() as u32;
        let value = count.wrapping_mul(0x9e37_79b1) ^ executed as u32;
        self.log.push((executed, exit.clone(), value));
        let clock = cpu.clock.as_mut().expect("the guest has one");
        match Action::ALL[number as usize % Action::ALL.len()] {
            Action::Nothing => {}
            Action::RaiseLine => self.line = true,
            Action::LowerLine => self.line = false,
            Action::ArmTimer => self.timer = Some(executed + u64::from(value >> 8) % 40),
            Action::CancelTimer => self.timer = None,
            Action::MoveClock => clock.skip_to(executed, clock.now(executed).plus_nanos(1000)),
            Action::ChangeRate => {
                let rate = 1000 + u64::from(count % 7) * 300;
                clock.set(executed, clock.now(executed), rate);
            }
            Action::LookAround => self.looks_around = true,
        }
        value
    }

    /// Returns the byte at [`KNOWN_PORT`].
    fn known(&self) -> u8 {
        self.log.len() as u8 ^ 0x5a
    }

    fn finish(&mut self, cpu: &mut Cpu, memory: &mut Memory, exit: &Exit) {
        let value = self.perform(cpu, exit);
        if !cpu.finish_access(memory, value, false) {
            cpu.answer(value.into());
        }
    }

    fn room(&mut self, cpu: &mut Cpu) -> Option<u64> {
        let end = self.end.min(self.timer.unwrap_or(u64::MAX));
        let room = end.saturating_sub(cpu.instructions);
        if std::mem::take(&mut self.looks_around) || room == 0 {
            self.ends_run = true;
            return None;
        }
        cpu.interrupt_pin = self.line;
        Some(room)
    }

    /// Raises the line if the timer is due after so many `instructions`.
    fn expire(&mut self, instructions: u64) {
        if self.timer.take_if(|at| *at <= instructions).is_some() {
            self.line = true;
        }
    }

    /// Gives the processor the interrupt of the line.
    fn take_interrupt(&mut self, cpu: &mut Cpu) {
        self.line = false;
        cpu.inject(EXTERNAL);
    }

    /// Runs `machine` to [`Board::end`], or until it halts.
    pub(crate) fn run(&mut self, machine: &mut Machine) -> Exit {
        let Machine { cpu, memory, engine, .. } = machine;
        loop {
            self.expire(cpu.instructions);
            cpu.interrupt_pin = self.line;
            if cpu.instructions >= self.end && !cpu.has_answers() {
                return Exit::Deadline;
            }
            let rest = u64::from(cpu.has_answers());
            let end = self.end.min(self.timer.unwrap_or(u64::MAX)).max(cpu.instructions + rest);
            let executed = cpu.instructions;
            let exit = engine.run_with(cpu, memory, end - executed, self);
            let is_access = exit.is_access();
            match exit {
                Exit::Deadline => {}
                Exit::InterruptWindow => self.take_interrupt(cpu),
                _ if is_access => self.finish(cpu, memory, &exit),
                _ => return exit,
            }
            // The engine has looked for an interrupt after the last instruction, but not if that was an access
            // which the board has finished.
            let is_finished = std::mem::take(&mut self.ends_run) || is_access;
            if is_finished && !cpu.has_answers() {
                self.expire(cpu.instructions - 1);
                if self.line && cpu.is_interruptible() {
                    self.take_interrupt(cpu);
                }
            }
            self.looks_around = false;
        }
    }
}

impl Devices for Board {
    fn access(&mut self, cpu: &mut Cpu, memory: &mut Memory, exit: &Exit) -> Option<u64> {
        self.finish(cpu, memory, exit);
        let room = self.room(cpu);
        if cpu.has_answers() || cpu.is_repeating_access() { None } else { room }
    }

    fn transfer(&mut self, cpu: &mut Cpu, _: &mut Memory, exit: &Exit) -> (u32, Option<u64>) {
        let value = self.perform(cpu, exit);
        cpu.instructions += 1;
        (value, self.room(cpu))
    }

    fn acknowledge_interrupt(&mut self, cpu: &mut Cpu) -> Option<u64> {
        self.acknowledged += 1;
        self.take_interrupt(cpu);
        self.room(cpu)
    }

    fn peek(&self, address: u64) -> Option<u32> {
        (address == u64::from(DEVICE + QUIET_REGISTER)).then_some(self.log.len() as u32)
    }

    fn peek_port(&self, port: u16) -> Option<u8> {
        self.peeked.set(self.peeked.get() + 1);
        (port == KNOWN_PORT.into()).then(|| self.known())
    }
}

/// Returns an access to a device by an instruction of any kind. `action` is the number of its [`Action`].
fn access(random: &mut Random, action: u8) -> Vec<u8> {
    let in_memory = (DEVICE_LINEAR + 4 * u32::from(action)).to_le_bytes();
    match random.below(8) {
        0 => vec![0xe4, PORT + action],                      // IN AL, imm8
        1 => vec![0xe5, PORT + action],                      // IN EAX, imm8
        2 => vec![0xe6, PORT + action],                      // OUT imm8, AL
        3 => vec![0xba, PORT + action, 0, 0, 0, 0x66, 0xef], // MOV EDX, imm32; OUT DX, AX
        4 => [&[0x8b, 0x0d][..], &in_memory].concat(),       // MOV ECX, [moffs]
        5 => [&[0x0f, 0xb6, 0x35][..], &in_memory].concat(), // MOVZX ESI, BYTE [moffs]
        6 => [&[0x89, 0x1d][..], &in_memory].concat(),       // MOV [moffs], EBX
        _ => [&[0xc6, 0x05][..], &in_memory, &[random.bits() as u8]].concat(), // MOV BYTE [moffs], imm8
    }
}

/// Returns instructions that access no device.
fn other(random: &mut Random) -> Vec<u8> {
    let quiet = (DEVICE_LINEAR + QUIET_REGISTER).to_le_bytes();
    match random.below(17) {
        0 => vec![0x0f, 0xa2],                          // CPUID
        1 => vec![0xb9, 0x74, 1, 0, 0, 0x0f, 0x32],     // MOV ECX, IA32_SYSENTER_CS; RDMSR
        2 => vec![0x0f, 0x31],                          // RDTSC
        3 => vec![0xfb],                                // STI
        4 => vec![0xfa],                                // CLI
        5 => vec![0x9c, 0x9d],                          // PUSHFD; POPFD
        6 => vec![0x0f, 0x09],                          // WBINVD
        7 => vec![0xba, PORT, 0, 0, 0, 0x6c, 0x4f],     // MOV EDX, imm32; INSB; DEC EDI
        8 => vec![0xd9, 0xe8, 0xdd, 0xd8],              // FLD1; FSTP ST(0)
        9 => vec![0x03, 0xd8, 0xc1, 0xc3, 5],           // ADD EBX, EAX; ROL EBX, 5
        10 => vec![0x13, 0xc1, 0x01, 0x07],             // ADC EAX, ECX; ADD [EDI], EAX
        11 => [&[0x8b, 0x05][..], &quiet].concat(),     // MOV EAX, [the quiet register]
        12 => vec![0x53, 0x0f, 0x01, 0x0f, 0x5b],       // PUSH EBX; SIDT [EDI]; POP EBX
        13 => vec![0x0f, 0x22, 0xd0, 0x0f, 0x20, 0xd2], // MOV CR2, EAX; MOV EDX, CR2
        14 => vec![0xe4, KNOWN_PORT],                   // IN AL, imm8
        15 => vec![0xba, KNOWN_PORT, 0, 0, 0, 0xec],    // MOV EDX, imm32; IN AL, DX
        _ => vec![0x1e, 0x1f],                          // PUSH DS; POP DS
    }
}

/// Returns the function of this number of the program at `base`.
fn function(random: &mut Random, base: u32, number: u32) -> Vec<u8> {
    let start = base + FUNCTION_SIZE * (number + 1);
    let mut code = Vec::new();
    let mut calls = 0;
    for _ in 0..2 + random.below(6) {
        let chance = random.below(100);
        if chance < 45 {
            let action = random.below(Action::ALL.len() as u32) as u8;
            code.extend(access(random, action));
        } else if chance < 75 || number + 1 == FUNCTIONS || calls == 2 {
            code.extend(other(random));
        } else {
            calls += 1;
            let called = number + 1 + random.below(FUNCTIONS - number - 1);
            let target = base + FUNCTION_SIZE * (called + 1);
            let next = start + code.len() as u32 + 5;
            code.push(0xe8); // CALL rel32
            code.extend(target.wrapping_sub(next).to_le_bytes());
        }
    }
    code.push(0xc3); // RET
    code
}

/// Puts a random program at `base`.
fn put_program(machine: &mut Machine, random: &mut Random, base: u32) {
    for number in 0..FUNCTIONS {
        let code = function(random, base, number);
        machine.put(base + FUNCTION_SIZE * (number + 1), &code);
    }
    let to_first = FUNCTION_SIZE - 5;
    let main = [
        &[0xe8][..],               // CALL the first function
        &to_first.to_le_bytes(),   //
        &[0x4d, 0x75, 0xf8, 0xf4], // DEC EBP; JNZ to the CALL; HLT
    ];
    machine.put(base, &main.concat());
}

fn begin(machine: &mut Machine, base: u32) {
    machine.reset_processor();
    machine.enable_paging();
    machine.map(DEVICE_LINEAR, DEVICE, P | RW);
    machine.put_dword(IDT + u32::from(EXTERNAL) * 8, u32::from(KERNEL_CODE) << 16 | HANDLER);
    // PUSH EAX; IN AL, the port that does nothing; POP EAX; IRETD
    machine.put(HANDLER, &[0x50, 0xe4, PORT, 0x58, 0xcf]);
    let cpu = &mut machine.cpu;
    cpu.set_cr0(Cr0::PE | Cr0::PG | Cr0::WP | Cr0::NE | Cr0::MP);
    let mut clock = Clock::new(1000);
    clock.set(cpu.instructions, Time::ZERO, 1000);
    cpu.clock = Some(clock);
    cpu.set_gpr(reg::DI, DATA.into());
    cpu.set_gpr(reg::BP, ROUNDS.into());
    cpu.ip = base.into();
}

/// Runs both machines, each with its board, for at most `longest` instructions, and compares all that they do,
/// apart from memory.
pub(crate) fn run_piece(
    pair: &mut Pair,
    boards: &mut [Board; 2],
    random: &mut Random,
    longest: u32,
) -> Exit {
    let end = pair.right.cpu.instructions + 1 + u64::from(random.below(longest));
    let [ours, theirs] = boards;
    (ours.end, theirs.end) = (end, end);
    let exit = ours.run(&mut pair.right);
    let tested = theirs.run(&mut pair.tested);
    let differs = |(ours, theirs)| ours != theirs;
    if let Some(at) = ours.log.iter().zip(&theirs.log).position(differs) {
        panic!("access {at}: {:?}, ours {:?}", ours.log[at], theirs.log[at]);
    }
    assert_eq!(theirs.log.len(), ours.log.len(), "{}", pair.reports());
    assert_eq!(tested, exit, "{}", pair.reports());
    assert_eq!((theirs.line, theirs.timer), (ours.line, ours.timer));
    pair.compare_processors();
    exit
}

/// Runs both machines for `instructions` instructions, in pieces of at most `longest`, and compares all that they
/// do. Returns the accesses to devices.
pub(crate) fn run_in_pieces(
    pair: &mut Pair,
    random: &mut Random,
    instructions: u64,
    longest: u32,
) -> Vec<(u64, Exit, u32)> {
    let mut boards = [Board::default(), Board::default()];
    let last = pair.right.cpu.instructions + instructions;
    while pair.right.cpu.instructions < last {
        let exit = run_piece(pair, &mut boards, random, longest);
        assert_eq!(exit, Exit::Deadline, "{}", pair.reports());
    }
    pair.compare();
    let [Board { log, .. }, _] = boards;
    log
}

/// Runs the program at `base` to its end on both engines, in pieces.
fn compare(pair: &mut Pair, random: &mut Random, base: u32, longest: u32) {
    pair.each(|machine| begin(machine, base));
    let mut boards = [Board::default(), Board::default()];
    let mut exit = Exit::Deadline;
    while exit == Exit::Deadline {
        exit = run_piece(pair, &mut boards, random, longest);
    }
    assert_eq!(exit, Exit::Halt, "{}", pair.reports());
    assert_eq!(pair.right.get(reg::BP), 0, "{}", pair.reports());
    pair.compare();
}

#[test]
fn devices_act_between_any_two_instructions() {
    let Some(mut pair) = Pair::new() else { return };
    let series = Series::from_environment(CASES);
    for case in series.cases.clone() {
        let mut random = series.random(case);
        let base = PROGRAMS + PROGRAM_SIZE * (case % CASES) as u32;
        let programs = random.clone();
        pair.each(|machine| put_program(machine, &mut programs.clone(), base));
        for longest in [5, 60, 100_000] {
            compare(&mut pair, &mut random, base, longest);
        }
    }
}
