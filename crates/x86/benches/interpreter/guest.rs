//! The processor that runs the programs, and its supervisor.

use std::time::{Duration, Instant};

use ring3_core::memory::Memory;
use ring3_hostcpu::{CODE_SELECTOR, DATA_SELECTOR, FILLER, Layout, State, gpr};
use ring3_x86::cpu::{Cpu, Cr0, Cr4};
use ring3_x86::engine::{Engine, Exit};
use ring3_x86::exception::vector;
use ring3_x86::flags::Eflags;
use ring3_x86::interpreter::Interpreter;
use ring3_x86::segment::{Attributes, Segment, TableRegister, sreg};

use crate::programs::{self, Program};

const LAYOUT: Layout = Layout::FIXED;

// The supervisor's memory: 4 MiB from 0 on, at the same linear and guest-physical addresses.
const PAGE_DIRECTORY: u32 = 0x1000;
const GDT: u32 = 0x2000;
const IDT: u32 = 0x3000;
const TSS: u32 = 0x4000;
const HANDLERS: u32 = 0x5000;
const STACK_END: u32 = 0x8000;
/// The guest-physical address of the 4 MiB that contain the arena.
const USER: u32 = 0x40_0000;
const MEMORY_SIZE: u64 = 0x80_0000;

/// Page-directory entries of present and writable 4 MiB pages (SDM vol. 3, 5.3).
const SUPERVISORS_PAGE: u32 = 0x83;
const USERS_PAGE: u32 = 0x87;

const SUPERVISOR_CODE: u16 = 0x08;
const SUPERVISOR_DATA: u16 = 0x10;
const TASK: u16 = 0x18;
/// The vector of system calls.
const SYSTEM_CALL: u8 = 0x80;
/// Bytes from one handler to the next.
const HANDLER_SIZE: u32 = 16;
/// IN AL, DX, at which the engine returns after HLT has ended the program with #GP.
const END: &[&[u8]] = &[&[0xec]];

/// The processor, its memory and the engine, with one program.
pub(crate) struct Guest {
    cpu: Cpu,
    memory: Memory,
    engine: Interpreter,
    start: State,
    data: Vec<u8>,
}

impl Guest {
    /// Makes a machine in 32-bit protected mode at privilege 3, with flat segments, paging, and handlers for
    /// the exceptions of the programs.
    pub(crate) fn new(program: &Program) -> Guest {
        let mut guest = Guest {
            cpu: Cpu::new(),
            memory: Memory::new(MEMORY_SIZE).expect("the size is a multiple of a page"),
            engine: Interpreter::new(),
            start: program.start.clone(),
            data: Program::data(),
        };
        guest.fill_tables();
        let code = u64::from(physical(LAYOUT.code.start));
        guest.memory.write(code, &vec![FILLER; LAYOUT.code.len as usize]);
        guest.memory.write(physical(program.start.eip).into(), &program.bytes());
        let cpu = &mut guest.cpu;
        cpu.ldtr = Segment::null(0);
        cpu.gdtr = TableRegister { base: GDT.into(), limit: 0xff };
        cpu.idtr = TableRegister { base: IDT.into(), limit: 0x7ff };
        cpu.tr = Segment::new(TASK, TSS.into(), 0x67, Attributes(0x008b));
        cpu.set_cr3(PAGE_DIRECTORY.into());
        cpu.set_cr4(Cr4::PSE);
        cpu.set_cr0(Cr0::PE | Cr0::PG | Cr0::WP | Cr0::NE | Cr0::MP);
        guest
    }

    fn fill_tables(&mut self) {
        let mut put = |address: u32, bytes: &[u8]| self.memory.write(address.into(), bytes);
        put(PAGE_DIRECTORY, &SUPERVISORS_PAGE.to_le_bytes());
        let index = LAYOUT.arena.start >> 22;
        put(PAGE_DIRECTORY + index * 4, &(USER | USERS_PAGE).to_le_bytes());

        let descriptor = |access: u64| (0x00cf_0000_0000_ffff_u64 | access << 40).to_le_bytes();
        for (selector, access) in [
            (SUPERVISOR_CODE, 0x9b),
            (SUPERVISOR_DATA, 0x93),
            (CODE_SELECTOR, 0xfb),
            (DATA_SELECTOR, 0xf3),
        ] {
            put(GDT + u32::from(selector & !7), &descriptor(access));
        }

        // Interrupt gates. The user may call only the one of system calls.
        for (number, (vector, access, handler)) in (0..).zip([
            (vector::GP, 0x8e00, END),
            (vector::PF, 0x8e00, programs::SKIP),
            (SYSTEM_CALL, 0xee00, programs::RETURN),
        ]) {
            let address: u32 = HANDLERS + number * HANDLER_SIZE;
            put(address, &handler.concat());
            let gate = IDT + u32::from(vector) * 8;
            let low = u32::from(SUPERVISOR_CODE) << 16 | address & 0xffff;
            put(gate, &low.to_le_bytes());
            put(gate + 4, &(address & 0xffff_0000 | access).to_le_bytes());
        }

        put(TSS + 4, &STACK_END.to_le_bytes());
        put(TSS + 8, &u32::from(SUPERVISOR_DATA).to_le_bytes());
    }

    /// Runs the program once, and returns how long it took.
    pub(crate) fn run(&mut self) -> Duration {
        self.rewind();
        let begin = Instant::now();
        let exit = self.engine.run(&mut self.cpu, &mut self.memory, u64::MAX);
        let time = begin.elapsed();
        assert!(matches!(exit, Exit::PortRead { .. }), "the program ended with {exit:?}");
        time
    }

    /// Returns the number of instructions of the program.
    pub(crate) fn instructions(&mut self) -> u32 {
        let begin = self.cpu.instructions;
        self.run();
        // HLT is counted, but does not belong to the program.
        (self.cpu.instructions - begin - 1) as u32
    }

    /// Restores the registers and data of the start.
    fn rewind(&mut self) {
        self.memory.write(physical(LAYOUT.data.start).into(), &self.data);
        let cpu = &mut self.cpu;
        for (number, value) in (0..).zip(self.start.gpr) {
            cpu.set_gpr(number, value.into());
        }
        cpu.ip = self.start.eip.into();
        cpu.set_eflags(Eflags::IF);
        let flat = |selector, access| Segment::new(selector, 0, u32::MAX, Attributes(access));
        cpu.set_segment(sreg::CS, flat(CODE_SELECTOR, 0xc0fb));
        for register in [sreg::SS, sreg::DS, sreg::ES] {
            cpu.set_segment(register, flat(DATA_SELECTOR, 0xc0f3));
        }
    }

    /// Returns whether the last run has left the registers and the data as `state` and `data`.
    pub(crate) fn ended_like(&self, state: &State, data: &[u8]) -> bool {
        // ESP belongs to the supervisor now.
        let registers = (0..8)
            .filter(|&number| number != gpr::ESP)
            .all(|number| self.cpu.get::<u32>(number as u8) == state.gpr[number]);
        let start = physical(LAYOUT.data.start) as usize;
        registers && self.memory.contents()[start..][..data.len()] == *data
    }
}

/// The guest-physical address of a linear address in the arena.
fn physical(linear: u32) -> u32 {
    USER + (linear & 0x3f_ffff)
}
