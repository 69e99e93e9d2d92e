//! Our processor in the same environment that an instruction has in [`ring3_hostcpu::Runner`]: the same
//! memory at the same linear addresses, at privilege 3.

use ring3_core::memory::Memory;
use ring3_hostcpu::{
    CODE_SELECTOR, DATA_SELECTOR, FILLER, FxImage, Layout, PAGE_SIZE, Region, State, Stop, gpr,
};
use ring3_x86::cpu::{Cpu, Cr0, Cr4, reg};
use ring3_x86::cpuid::Model;
use ring3_x86::engine::{Engine, Exit};
use ring3_x86::flags::{ALWAYS_ONE, Eflags};
use ring3_x86::fpu::Fpu;
use ring3_x86::segment::{Attributes, Segment, TableRegister, sreg};
use ring3_x86::softfloat::F80;
use ring3_x86::undefined::Vendor;

use super::coverage::interpreter;
use super::host_fpu;

const LAYOUT: Layout = Layout::FIXED;

/// Bytes of memory.
pub(crate) const MEMORY: u64 = 1 << 20;
// Guest-physical memory: page tables, a few supervisor pages, and the arena.
const PAGE_DIRECTORY: u32 = 0x1000;
const ARENA_TABLE: u32 = 0x2000;
const SUPERVISOR_TABLE: u32 = 0x3000;
/// GDT, IDT and TSS; handlers; stack.
const SUPERVISOR: u32 = 0x4000;
const SUPERVISOR_PAGES: u32 = 3;
const ARENA: u32 = 0x1_0000;

/// The linear address of the supervisor's pages, where the host has nothing.
pub(crate) const SUPERVISOR_START: u32 = 0xf37a_0000;
const GDT: u32 = SUPERVISOR_START;
const IDT: u32 = SUPERVISOR_START + 0x400;
const TSS: u32 = SUPERVISOR_START + 0x800;
const HANDLERS: u32 = SUPERVISOR_START + PAGE_SIZE;
const STACK_END: u32 = SUPERVISOR_START + SUPERVISOR_PAGES * PAGE_SIZE;

const SUPERVISOR_CODE: u16 = 0x08;
const SUPERVISOR_DATA: u16 = 0x10;
const TASK: u16 = 0x18;
/// Vectors that have a gate.
const VECTORS: u32 = 32;
/// Bytes from one handler to the next.
const HANDLER_SIZE: u32 = 16;
/// A handler is one IN AL, DX, at which the engine returns.
const HANDLER: u8 = 0xec;

/// Rights in page-table entries: for the supervisor only, readable for the user, and writable for the user.
const SUPERVISOR_ONLY: u32 = 3;
const READ_ONLY: u32 = 5;
const WRITABLE: u32 = 7;

/// The way in which a repeated string instruction is run.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Pace {
    /// The most iterations; 1 for all other instructions.
    pub(crate) iterations: u64,
    /// The number of iterations for which the engine runs at a time.
    pub(crate) stride: u64,
}

impl Pace {
    /// The pace of an instruction that is not repeated.
    pub(crate) const ONCE: Pace = Pace { iterations: 1, stride: 1 };
}

/// The processor, its memory and the engine.
pub(crate) struct Guest {
    cpu: Cpu,
    memory: Memory,
    engine: Box<dyn Engine>,
}

impl Guest {
    /// A machine whose engine is the interpreter.
    pub(crate) fn interpreted() -> Guest {
        Guest::new(Box::new(interpreter()), Memory::new(MEMORY).unwrap())
    }

    /// Makes a machine in 32-bit protected mode at privilege 3, with flat segments, paging, handlers for all
    /// exceptions, and [`MEMORY`] bytes of memory.
    pub(crate) fn new(engine: Box<dyn Engine>, memory: Memory) -> Guest {
        let mut guest = Guest { cpu: Cpu::new(), memory, engine };
        guest.map();
        guest.fill_tables();
        let filler = vec![FILLER; LAYOUT.code.len as usize];
        guest.memory.write(physical(LAYOUT.code.start).into(), &filler);
        let cpu = &mut guest.cpu;
        cpu.transcendental = host_fpu::execute;
        cpu.vendor = Vendor::of_host();
        cpu.ldtr = Segment::null(0);
        cpu.gdtr = TableRegister { base: GDT.into(), limit: 0x3ff };
        cpu.idtr = TableRegister { base: IDT.into(), limit: (VECTORS * 8 - 1) as u16 };
        cpu.tr = Segment::new(TASK, TSS.into(), 0x67, Attributes(0x008b));
        cpu.model = Model::Max;
        cpu.set_cr4(Cr4::OSFXSR | Cr4::OSXMMEXCPT);
        cpu.set_cr3(PAGE_DIRECTORY.into());
        cpu.set_cr0(Cr0::PE | Cr0::PG | Cr0::WP | Cr0::NE | Cr0::MP);
        guest
    }

    fn map(&mut self) {
        let mut entry = |table: u32, linear_index: u32, value: u32| {
            self.memory.write((table + linear_index * 4).into(), &value.to_le_bytes());
        };
        entry(PAGE_DIRECTORY, LAYOUT.arena.start >> 22, ARENA_TABLE | WRITABLE);
        entry(PAGE_DIRECTORY, SUPERVISOR_START >> 22, SUPERVISOR_TABLE | WRITABLE);
        for (region, rights) in
            [(LAYOUT.code, READ_ONLY), (LAYOUT.data, WRITABLE), (LAYOUT.read_only, READ_ONLY)]
        {
            for page in (region.start..region.end()).step_by(PAGE_SIZE as usize) {
                entry(ARENA_TABLE, page >> 12 & 0x3ff, physical(page) | rights);
            }
        }
        for page in 0..SUPERVISOR_PAGES {
            let index = (SUPERVISOR_START >> 12 & 0x3ff) + page;
            entry(SUPERVISOR_TABLE, index, (SUPERVISOR + page * PAGE_SIZE) | SUPERVISOR_ONLY);
        }
    }

    fn fill_tables(&mut self) {
        let memory = &mut self.memory;
        let mut put = |linear: u32, bytes: &[u8]| {
            memory.write((linear - SUPERVISOR_START + SUPERVISOR).into(), bytes);
        };
        let descriptor = |access: u64| (0x00cf_0000_0000_ffff_u64 | access << 40).to_le_bytes();
        for (selector, access) in [
            (SUPERVISOR_CODE, 0x9b),
            (SUPERVISOR_DATA, 0x93),
            (CODE_SELECTOR, 0xfb),
            (DATA_SELECTOR, 0xf3),
        ] {
            put(GDT + u32::from(selector & !7), &descriptor(access));
        }
        for vector in 0..VECTORS {
            let handler = HANDLERS + vector * HANDLER_SIZE;
            put(handler, &[HANDLER]);
            // As on Linux, INT3 and INTO may be used at privilege 3.
            let access: u32 = if matches!(vector, 3 | 4) { 0xee00 } else { 0x8e00 };
            let low = u32::from(SUPERVISOR_CODE) << 16 | handler & 0xffff;
            put(IDT + vector * 8, &low.to_le_bytes());
            put(IDT + vector * 8 + 4, &(handler & 0xffff_0000 | access).to_le_bytes());
        }
        put(TSS + 4, &STACK_END.to_le_bytes());
        put(TSS + 8, &u32::from(SUPERVISOR_DATA).to_le_bytes());
        // The I/O permission bit map begins beyond the limit, so there is none.
        put(TSS + 0x66, &0x68_u16.to_le_bytes());
    }

    /// The contents of `region`, which is mapped.
    pub(crate) fn bytes(&self, region: Region) -> &[u8] {
        &self.memory.contents()[physical(region.start) as usize..][..region.len as usize]
    }

    /// Fills `region`.
    pub(crate) fn set_bytes(&mut self, region: Region, bytes: &[u8]) {
        self.memory.write(physical(region.start).into(), &bytes[..region.len as usize]);
    }

    /// Runs the instruction `code` as [`ring3_hostcpu::Runner::run`] does. The error is another exit that has
    /// ended it.
    pub(crate) fn run(
        &mut self,
        start: &State,
        code: &[u8],
        pace: Pace,
    ) -> Result<(State, Stop), Exit> {
        self.set_state(start);
        let present = code.len().min((LAYOUT.code.end() - start.eip) as usize);
        let address = u64::from(physical(start.eip));
        self.memory.write(address, &code[..present]);
        let stop = self.go(start, pace);
        self.memory.write(address, &[FILLER; 15][..present]);
        Ok((self.state(), stop?))
    }

    fn set_state(&mut self, start: &State) {
        let cpu = &mut self.cpu;
        for (number, value) in (0..).zip(start.gpr) {
            cpu.set_gpr(number, value.into());
        }
        cpu.ip = start.eip.into();
        cpu.set_eflags(Eflags::from_bits_truncate(start.eflags) | Eflags::IF);
        let flat = |selector, access| Segment::new(selector, 0, u32::MAX, Attributes(access));
        cpu.set_segment(sreg::CS, flat(CODE_SELECTOR, 0xc0fb));
        for register in [sreg::SS, sreg::DS, sreg::ES] {
            cpu.set_segment(register, flat(DATA_SELECTOR, 0xc0f3));
        }
        for register in [sreg::FS, sreg::GS] {
            cpu.set_segment(register, Segment::null(0));
        }
        set_x87(&mut cpu.fpu, &start.fx);
        cpu.sse.set_mxcsr(start.fx.mxcsr());
        for number in 0..8 {
            cpu.sse.set_xmm(number, start.fx.xmm(number.into()));
        }
    }

    /// Lets the engine run until the instruction is complete or an exception has been delivered.
    fn go(&mut self, start: &State, pace: Pace) -> Result<Stop, Exit> {
        let begin = self.cpu.instructions;
        loop {
            let done = self.cpu.instructions - begin;
            if done > 0 && done >= pace.iterations {
                return Ok(Stop::Timeout);
            }
            let budget = pace.stride.min(pace.iterations - done).max(1);
            match self.engine.run(&mut self.cpu, &mut self.memory, budget) {
                Exit::Deadline | Exit::PortRead { .. } if self.cpu.cpl() == 0 => {
                    return Ok(self.exception());
                }
                Exit::Deadline if self.cpu.ip != u64::from(start.eip) => return Ok(Stop::Reached),
                Exit::Deadline => {}
                other => return Err(other),
            }
        }
    }

    /// Returns the exception whose handler has been reached.
    fn exception(&self) -> Stop {
        let vector = ((self.cpu.ip as u32 - HANDLERS) / HANDLER_SIZE) as u8;
        let error_code = if self.frame_has_error_code() { self.frame(0) } else { 0 };
        let cr2 = if vector == 14 { self.cpu.cr2 as u32 } else { 0 };
        Stop::Exception { vector, error_code, cr2 }
    }

    /// Returns whether the frame has an error code. An exception from privilege 3 pushes five doublewords,
    /// and then perhaps an error code.
    fn frame_has_error_code(&self) -> bool {
        STACK_END - self.cpu.get::<u32>(reg::SP) == 6 * 4
    }

    /// Doubleword `index` on the supervisor's stack.
    fn frame(&self, index: u32) -> u32 {
        let linear = self.cpu.get::<u32>(reg::SP) + index * 4;
        let address = linear - SUPERVISOR_START + SUPERVISOR;
        u32::from_le_bytes(self.memory.load(address as usize))
    }

    /// Returns the state of the user: the present one, or that at the exception.
    fn state(&self) -> State {
        let mut state = State {
            gpr: std::array::from_fn(|number| self.cpu.get(number as u8)),
            eip: self.cpu.ip as u32,
            eflags: self.cpu.eflags().bits() | ALWAYS_ONE,
            fx: registers(&self.cpu),
        };
        if self.cpu.cpl() == 0 {
            let skip = u32::from(self.frame_has_error_code());
            state.eip = self.frame(skip);
            state.eflags = self.frame(skip + 2);
            state.gpr[gpr::ESP] = self.frame(skip + 3);
        }
        state.eflags &= !Eflags::RF.bits();
        state
    }
}

/// The guest-physical address of a linear address in the arena.
fn physical(linear: u32) -> u32 {
    linear - LAYOUT.arena.start + ARENA
}

/// Loads the x87 registers of `fx`.
pub(crate) fn set_x87(fpu: &mut Fpu, fx: &FxImage) {
    fpu.set_control(fx.fcw());
    fpu.set_status(fx.fsw());
    let mut tags = 0;
    for i in 0..8 {
        fpu.set_st(i, F80::from_bytes(fx.st(i.into())));
        if fx.ftw() >> i & 1 == 0 {
            tags |= 3 << (2 * i);
        }
    }
    fpu.set_tag_word(tags);
}

/// Returns the registers of x87 and SSE; the rest of the image is as after reset.
pub(crate) fn registers(cpu: &Cpu) -> FxImage {
    let Cpu { fpu, sse, .. } = cpu;
    let mut fx = FxImage::INIT;
    fx.set_fcw(fpu.control());
    fx.set_fsw(fpu.status());
    let tags = fpu.tag_word();
    fx.set_ftw((0..8).fold(0, |used, i| used | u8::from(tags >> (2 * i) & 3 != 3) << i));
    for i in 0..8 {
        fx.set_st(i.into(), fpu.content(i).to_bytes());
        fx.set_xmm(i.into(), sse.xmm(i));
    }
    fx.set_mxcsr(sse.mxcsr());
    fx
}

/// Returns the registers of x87 and SSE in `fx`; the rest of the image is as after reset.
pub(crate) fn only_registers(fx: &FxImage) -> FxImage {
    let mut only = FxImage::INIT;
    only.set_fcw(fx.fcw());
    only.set_fsw(fx.fsw());
    only.set_ftw(fx.ftw());
    for i in 0..8 {
        only.set_st(i, fx.st(i));
        only.set_xmm(i, fx.xmm(i));
    }
    only.set_mxcsr(fx.mxcsr());
    only
}
