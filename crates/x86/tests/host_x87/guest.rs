//! The machine that stands opposite to [`ring3_hostcpu::Runner`]: our processor, with the same
//! memory at the same linear addresses, at privilege 3.

use ring3_core::memory::Memory;
use ring3_hostcpu::{CODE_SELECTOR, DATA_SELECTOR, FILLER, Layout, PAGE_SIZE, State, Stop};
use ring3_x86::cpu::{Cpu, Cr0, reg};
use ring3_x86::engine::{Engine, Exit};
use ring3_x86::flags::Eflags;
use ring3_x86::interpreter::Interpreter;
use ring3_x86::segment::{Attributes, Segment, TableRegister, sreg};
use ring3_x86::softfloat::F80;

const LAYOUT: Layout = Layout::FIXED;

// Guest-physical addresses; the first megabyte is mapped to itself.
const PAGE_DIRECTORY: u32 = 0x1000;
const LOW_TABLE: u32 = 0x2000;
const ARENA_TABLE: u32 = 0x3000;
const GDT: u32 = 0x4000;
const IDT: u32 = 0x5000;
/// A handler for each vector, [`HANDLER_SIZE`] apart: an endless loop.
const HANDLERS: u32 = 0x6000;
const HANDLER_SIZE: u32 = 16;
const HANDLER: [u8; 2] = [0xeb, 0xfe];
/// The handlers' stack grows down from here.
const STACK_END: u32 = 0x9000;
/// The pages of the arena, holes included.
const ARENA: u32 = 0x2_0000;

/// Page-table entry bits: present, writable, user.
const MAPPED: u32 = 7;
const READ_ONLY: u32 = 5;

/// Processor and memory.
pub(crate) struct Guest {
    cpu: Cpu,
    memory: Memory,
    engine: Interpreter,
}

impl Guest {
    pub(crate) fn new() -> Guest {
        let mut memory = Memory::new(1 << 20).unwrap();
        let mut put = |address: u32, value: u32| {
            memory.write(address.into(), &value.to_le_bytes());
        };
        put(PAGE_DIRECTORY, LOW_TABLE | MAPPED);
        put(PAGE_DIRECTORY + 4 * (LAYOUT.arena.start >> 22), ARENA_TABLE | MAPPED);
        for page in 0..256 {
            put(LOW_TABLE + 4 * page, (page * PAGE_SIZE) | MAPPED);
        }
        for (region, rights) in
            [(LAYOUT.code, READ_ONLY), (LAYOUT.data, MAPPED), (LAYOUT.read_only, READ_ONLY)]
        {
            for linear in (region.start..region.end()).step_by(PAGE_SIZE as usize) {
                put(ARENA_TABLE + 4 * (linear >> 12 & 0x3ff), physical(linear) | rights);
            }
        }
        put(GDT + u32::from(CODE_SELECTOR & !7), 0x0000_ffff);
        put(GDT + u32::from(CODE_SELECTOR & !7) + 4, 0x00cf_fb00);
        for vector in 0..32 {
            let handler = HANDLERS + vector * HANDLER_SIZE;
            put(handler, u16::from_le_bytes(HANDLER).into());
            put(IDT + 8 * vector, u32::from(CODE_SELECTOR) << 16 | handler);
            put(IDT + 8 * vector + 4, 0x8e00);
        }
        memory.write(physical(LAYOUT.code.start).into(), &vec![FILLER; LAYOUT.code.len as usize]);

        let mut cpu = Cpu::new();
        cpu.gdtr = TableRegister { base: GDT.into(), limit: 0xff };
        cpu.idtr = TableRegister { base: IDT.into(), limit: 0xff };
        cpu.set_cr3(PAGE_DIRECTORY.into());
        cpu.set_cr0(Cr0::PE | Cr0::PG | Cr0::WP | Cr0::NE);
        let data = Segment::new(DATA_SELECTOR, 0, u32::MAX, Attributes(0xc0f3));
        for register in [sreg::DS, sreg::ES, sreg::SS] {
            cpu.set_segment(register, data);
        }
        Guest { cpu, memory, engine: Interpreter::new() }
    }

    /// The contents of the data region.
    pub(crate) fn data(&self) -> &[u8] {
        let start = physical(LAYOUT.data.start) as usize;
        &self.memory.contents()[start..start + LAYOUT.data.len as usize]
    }

    /// Sets them.
    pub(crate) fn set_data(&mut self, bytes: &[u8]) {
        self.memory.write(physical(LAYOUT.data.start).into(), bytes);
    }

    /// As [`ring3_hostcpu::Runner::run`]; but ESP is ours, as no x87 instruction here uses it.
    pub(crate) fn run(&mut self, start: &State, code: &[u8]) -> (State, Stop) {
        self.memory.write(physical(start.eip).into(), code);
        let cpu = &mut self.cpu;
        cpu.set_segment(sreg::CS, Segment::new(CODE_SELECTOR, 0, u32::MAX, Attributes(0xc0fb)));
        for (number, value) in (0..).zip(start.gpr) {
            cpu.set_gpr(number, value.into());
        }
        cpu.set_gpr(reg::SP, STACK_END.into());
        cpu.ip = start.eip.into();
        cpu.set_eflags(Eflags::from_bits_truncate(start.eflags));
        put_fpu(cpu, start);
        cpu.cr2 = 0;

        let exit = self.engine.run(cpu, &mut self.memory, 1);
        assert_eq!(exit, Exit::Deadline, "{}", cpu.report(&self.memory));

        self.memory.write(physical(start.eip).into(), &vec![FILLER; code.len()]);
        let mut end = start.clone();
        let ip = self.cpu.ip as u32;
        let vector = ip.wrapping_sub(HANDLERS) / HANDLER_SIZE;
        let stop = if vector < 32 { self.exception(vector as u8, &mut end) } else { Stop::Reached };
        if stop == Stop::Reached {
            end.eip = ip;
            end.eflags = self.cpu.eflags().bits() | 2;
        }
        for (number, register) in (0..).zip(&mut end.gpr) {
            if number != reg::SP {
                *register = self.cpu.get(number);
            }
        }
        take_fpu(&self.cpu, &mut end);
        (end, stop)
    }

    /// Reads what the delivery of an exception pushed.
    fn exception(&mut self, vector: u8, end: &mut State) -> Stop {
        let mut frame = self.cpu.gpr(reg::SP);
        let mut pop = || {
            let mut bytes = [0; 4];
            self.memory.read(frame, &mut bytes);
            frame += 4;
            u32::from_le_bytes(bytes)
        };
        let has_code = matches!(vector, 8 | 10..=14 | 17);
        let error_code = if has_code { pop() } else { 0 };
        end.eip = pop();
        pop();
        end.eflags = pop() & !Eflags::RF.bits();
        Stop::Exception { vector, error_code, cr2: self.cpu.cr2 as u32 }
    }
}

/// Where a linear address of the arena is in guest-physical memory.
fn physical(linear: u32) -> u32 {
    linear - LAYOUT.arena.start + ARENA
}

/// Loads the x87 state.
fn put_fpu(cpu: &mut Cpu, state: &State) {
    let fx = &state.fx;
    cpu.fpu.set_control(fx.fcw());
    cpu.fpu.set_status(fx.fsw());
    let mut tags = 0;
    for i in 0..8 {
        cpu.fpu.set_st(i, F80::from_bytes(fx.st(i.into())));
        if fx.ftw() >> i & 1 == 0 {
            tags |= 3 << (2 * i);
        }
    }
    cpu.fpu.set_tag_word(tags);
}

/// Reads it.
fn take_fpu(cpu: &Cpu, state: &mut State) {
    let fx = &mut state.fx;
    fx.set_fcw(cpu.fpu.control());
    fx.set_fsw(cpu.fpu.status());
    let tags = cpu.fpu.tag_word();
    fx.set_ftw((0..8).fold(0, |used, i| used | u8::from(tags >> (2 * i) & 3 != 3) << i));
    for i in 0..8 {
        fx.set_st(i.into(), cpu.fpu.content(i).to_bytes());
    }
}
