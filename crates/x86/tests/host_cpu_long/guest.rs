//! Our processor in the environment that an instruction of 64-bit code has in [`ring3_hostcpu::Runner`]: the
//! same memory at the same linear addresses, at privilege 3.

use std::ops::Range;

use ring3_core::memory::Memory;
use ring3_hostcpu::{
    CODE_SELECTOR, DATA_SELECTOR, FILLER, FxImage, LONG_CODE_SELECTOR, Layout, LongState, LongStop,
    PAGE_SIZE, Region,
};
use ring3_x86::cpu::{Cpu, Cr0, Cr4, reg};
use ring3_x86::cpuid::Model;
use ring3_x86::engine::{Engine, Exit};
use ring3_x86::flags::{ALWAYS_ONE, Eflags};
use ring3_x86::segment::{Attributes, Segment, TableRegister, sreg};
use ring3_x86::undefined::Vendor;

use crate::common::coverage::interpreter;
use crate::common::guest::{Pace, registers, set_x87};

const LAYOUT: Layout = Layout::FIXED;
pub(crate) const MEMORY: u64 = 1 << 20;

// Guest-physical memory: the tables for the arena, those for the supervisor, its pages, and the arena.
const PML4: u64 = 0x1000;
const ARENA_TABLES: [u64; 3] = [0x2000, 0x3000, 0x4000];
const SUPERVISOR_TABLES: [u64; 3] = [0x5000, 0x6000, 0x7000];
/// GDT, IDT and TSS; handlers; stack.
const SUPERVISOR: u64 = 0x8000;
const SUPERVISOR_PAGES: u64 = 3;
const ARENA: u64 = 0x1_0000;

/// The linear address of the supervisor's pages, where the host has its kernel.
pub(crate) const SUPERVISOR_START: u64 = 0xffff_c37a_1234_5000;
const GDT: u64 = SUPERVISOR_START;
const TSS: u64 = SUPERVISOR_START + 0x100;
const IDT: u64 = SUPERVISOR_START + 0x400;
const HANDLERS: u64 = SUPERVISOR_START + 0x1000;
const STACK_END: u64 = SUPERVISOR_START + SUPERVISOR_PAGES * 0x1000;

const SUPERVISOR_CODE: u16 = 0x08;
const TASK: u16 = 0x18;
/// Vectors that have a gate.
const VECTORS: u64 = 32;
/// Bytes from one handler to the next.
const HANDLER_SIZE: u64 = 16;
/// A handler is one IN AL, DX, at which the engine returns.
const HANDLER: u8 = 0xec;

/// Rights in page-table entries.
const SUPERVISOR_ONLY: u64 = 3;
const READ_ONLY: u64 = 5;
const WRITABLE: u64 = 7;
const NO_EXECUTE: u64 = 1 << 63;

/// The processor, its memory and the engine.
pub(crate) struct LongGuest {
    cpu: Cpu,
    memory: Memory,
    engine: Box<dyn Engine>,
    /// Addresses where the host's process has something of its own, so that cases that reach them are not compared.
    pub(crate) beside: Vec<Range<u64>>,
}

impl LongGuest {
    /// A machine whose engine is the interpreter.
    pub(crate) fn interpreted() -> LongGuest {
        LongGuest::new(Box::new(interpreter()), Memory::new(MEMORY).unwrap())
    }

    /// Makes a machine in 64-bit mode at privilege 3, with handlers for all exceptions and [`MEMORY`] bytes of
    /// memory.
    pub(crate) fn new(engine: Box<dyn Engine>, memory: Memory) -> LongGuest {
        let mut guest =
            LongGuest { cpu: Cpu::of_model(Model::Qemu64), memory, engine, beside: Vec::new() };
        guest.map();
        guest.fill_tables();
        let filler = vec![FILLER; LAYOUT.code.len as usize];
        guest.memory.write(physical(LAYOUT.code.start), &filler);
        let cpu = &mut guest.cpu;
        cpu.transcendental = crate::common::host_fpu::execute;
        cpu.vendor = Vendor::of_host();
        cpu.ldtr = Segment::null(0);
        cpu.gdtr = TableRegister { base: GDT, limit: 0x7f };
        cpu.idtr = TableRegister { base: IDT, limit: (VECTORS * 16 - 1) as u16 };
        cpu.tr = Segment::new(TASK, TSS, 0x67, Attributes(0x008b));
        (cpu.msrs.long.enabled, cpu.msrs.no_execute) = (true, true);
        cpu.set_cr4(Cr4::PAE | Cr4::OSFXSR | Cr4::OSXMMEXCPT);
        cpu.set_cr3(PML4);
        cpu.set_cr0(Cr0::PE | Cr0::PG | Cr0::WP | Cr0::NE | Cr0::MP);
        guest
    }

    /// Maps the page at `linear` through `tables`.
    fn map_page(&mut self, tables: [u64; 3], linear: u64, entry: u64) {
        let tables = [PML4, tables[0], tables[1], tables[2]];
        for (level, table) in tables.into_iter().enumerate() {
            let index = linear >> (39 - 9 * level) & 0x1ff;
            let content = tables.get(level + 1).map_or(entry, |next| next | WRITABLE);
            self.memory.write(table + index * 8, &content.to_le_bytes());
        }
    }

    fn map(&mut self) {
        for (region, rights) in [
            (LAYOUT.code, READ_ONLY),
            (LAYOUT.data, WRITABLE | NO_EXECUTE),
            (LAYOUT.read_only, READ_ONLY | NO_EXECUTE),
        ] {
            for page in (region.start..region.end()).step_by(PAGE_SIZE as usize) {
                self.map_page(ARENA_TABLES, page.into(), physical(page) | rights);
            }
        }
        for page in 0..SUPERVISOR_PAGES {
            let offset = page * 0x1000;
            let entry = (SUPERVISOR + offset) | SUPERVISOR_ONLY;
            self.map_page(SUPERVISOR_TABLES, SUPERVISOR_START + offset, entry);
        }
    }

    fn fill_tables(&mut self) {
        let memory = &mut self.memory;
        let mut put = |linear: u64, bytes: &[u8]| {
            memory.write(linear - SUPERVISOR_START + SUPERVISOR, bytes);
        };
        let mut descriptor = |selector: u16, value: u64| {
            put(GDT + u64::from(selector & !7), &value.to_le_bytes());
        };
        descriptor(SUPERVISOR_CODE, 0x00af_9b00_0000_ffff);
        descriptor(CODE_SELECTOR, 0x00cf_fb00_0000_ffff);
        descriptor(DATA_SELECTOR, 0x00cf_f300_0000_ffff);
        descriptor(LONG_CODE_SELECTOR, 0x00af_fb00_0000_ffff);
        for vector in 0..VECTORS {
            let handler = HANDLERS + vector * HANDLER_SIZE;
            put(handler, &[HANDLER]);
            // As on Linux, INT3 may be used at privilege 3.
            let access: u64 = if vector == 3 { 0xee00 } else { 0x8e00 };
            let low = handler & 0xffff
                | u64::from(SUPERVISOR_CODE) << 16
                | access << 32
                | (handler >> 16 & 0xffff) << 48;
            put(IDT + vector * 16, &low.to_le_bytes());
            put(IDT + vector * 16 + 8, &(handler >> 32).to_le_bytes());
        }
        put(TSS + 4, &STACK_END.to_le_bytes());
        // The I/O permission bit map begins beyond the limit, so there is none.
        put(TSS + 0x66, &0x68_u16.to_le_bytes());
    }

    /// The contents of `region`, which is mapped.
    pub(crate) fn bytes(&self, region: Region) -> &[u8] {
        &self.memory.contents()[physical(region.start) as usize..][..region.len as usize]
    }

    /// Fills `region`.
    pub(crate) fn set_bytes(&mut self, region: Region, bytes: &[u8]) {
        self.memory.write(physical(region.start), &bytes[..region.len as usize]);
    }

    /// Runs the instruction `code` as [`ring3_hostcpu::Runner::run_long`] does. The error is another exit that
    /// has ended it.
    pub(crate) fn run(
        &mut self,
        start: &LongState,
        code: &[u8],
        pace: Pace,
    ) -> Result<(LongState, LongStop), Exit> {
        self.set_state(start);
        let present = code.len().min((u64::from(LAYOUT.code.end()) - start.rip) as usize);
        let address = physical(start.rip as u32);
        self.memory.write(address, &code[..present]);
        let stop = self.go(start, pace);
        self.memory.write(address, &[FILLER; 15][..present]);
        Ok((self.state(), stop?))
    }

    fn set_state(&mut self, start: &LongState) {
        let cpu = &mut self.cpu;
        for (number, value) in (0..).zip(start.gpr) {
            cpu.set_gpr(number, value);
        }
        cpu.ip = start.rip;
        cpu.set_eflags(Eflags::from_bits_truncate(start.rflags) | Eflags::IF);
        let segment = |selector, access| Segment::new(selector, 0, u32::MAX, Attributes(access));
        cpu.set_segment(sreg::CS, segment(LONG_CODE_SELECTOR, 0xa0fb));
        for register in [sreg::SS, sreg::DS, sreg::ES] {
            cpu.set_segment(register, segment(DATA_SELECTOR, 0xc0f3));
        }
        for register in [sreg::FS, sreg::GS] {
            cpu.set_segment(register, Segment::null(0));
        }
        set_x87(&mut cpu.fpu, &start.fx);
        cpu.sse.set_mxcsr(start.fx.mxcsr());
        for number in 0..16 {
            cpu.sse.set_xmm(number, start.fx.xmm(number.into()));
        }
    }

    /// Lets the engine run until the instruction is complete or an exception has been delivered.
    fn go(&mut self, start: &LongState, pace: Pace) -> Result<LongStop, Exit> {
        let begin = self.cpu.instructions;
        loop {
            let done = self.cpu.instructions - begin;
            if done > 0 && done >= pace.iterations {
                return Ok(LongStop::Timeout);
            }
            let budget = pace.stride.min(pace.iterations - done).max(1);
            match self.engine.run(&mut self.cpu, &mut self.memory, budget) {
                Exit::Deadline | Exit::PortRead { .. } if self.cpu.cpl() == 0 => {
                    return Ok(self.exception());
                }
                Exit::Deadline if self.cpu.ip != start.rip => return Ok(LongStop::Reached),
                Exit::Deadline => {}
                other => return Err(other),
            }
        }
    }

    /// Returns the exception whose handler has been reached.
    fn exception(&self) -> LongStop {
        let vector = ((self.cpu.ip - HANDLERS) / HANDLER_SIZE) as u8;
        let error_code = if self.frame_has_error_code() { self.frame(0) as u32 } else { 0 };
        let cr2 = if vector == 14 { self.cpu.cr2 } else { 0 };
        LongStop::Exception { vector, error_code, cr2 }
    }

    /// Returns whether the frame has an error code besides its five quadwords.
    fn frame_has_error_code(&self) -> bool {
        STACK_END - self.cpu.gpr(reg::SP) == 6 * 8
    }

    /// Quadword `index` on the supervisor's stack.
    fn frame(&self, index: u64) -> u64 {
        let linear = self.cpu.gpr(reg::SP) + index * 8;
        let address = linear - SUPERVISOR_START + SUPERVISOR;
        u64::from_le_bytes(self.memory.load(address as usize))
    }

    /// Returns the state of the user: the present one, or that at the exception.
    fn state(&self) -> LongState {
        let mut fx = registers(&self.cpu);
        copy_high_vectors(&mut fx, |number| self.cpu.sse.xmm(number as u8));
        let mut state = LongState {
            gpr: std::array::from_fn(|number| self.cpu.gpr(number as u8)),
            rip: self.cpu.ip,
            rflags: self.cpu.eflags().bits() | ALWAYS_ONE,
            fx,
        };
        if self.cpu.cpl() == 0 {
            let skip = u64::from(self.frame_has_error_code());
            state.rip = self.frame(skip);
            state.rflags = self.frame(skip + 2) as u32;
            state.gpr[usize::from(reg::SP)] = self.frame(skip + 3);
        }
        state.rflags &= !Eflags::RF.bits();
        state
    }
}

/// Sets XMM8 to XMM15.
pub(crate) fn copy_high_vectors(fx: &mut FxImage, value: impl Fn(usize) -> u128) {
    for number in 8..16 {
        fx.set_xmm(number, value(number));
    }
}

/// The guest-physical address of a linear address in the arena.
fn physical(linear: u32) -> u64 {
    u64::from(linear - LAYOUT.arena.start) + ARENA
}
