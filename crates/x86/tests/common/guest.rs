//! Our processor in the same environment that an instruction has in [`ring3_hostcpu::Runner`]: the same
//! memory at the same linear addresses, at privilege 3, in 32-bit code or in 64-bit code.

use std::ops::Range;

use ring3_core::memory::Memory;
use ring3_hostcpu::{
    CODE_SELECTOR, DATA_SELECTOR, FILLER, FxImage, LONG_CODE_SELECTOR, Layout, LongState, LongStop,
    Region, gpr,
};
use ring3_x86::cpu::Cpu;
use ring3_x86::engine::{Engine, Exit};
use ring3_x86::flags::{ALWAYS_ONE, Eflags};
use ring3_x86::fpu::Fpu;
use ring3_x86::segment::{Attributes, Segment, sreg};
use ring3_x86::softfloat::F80;
use ring3_x86::undefined::Vendor;

use super::coverage::interpreter;
use super::host_fpu;
use super::kernel::{Kernel, physical};

const LAYOUT: Layout = Layout::FIXED;

/// Bytes of memory.
pub(crate) const MEMORY: u64 = 1 << 20;

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
    /// The bits of the code that it executes: 32 or 64.
    pub(crate) bits: u32,
    pub(crate) kernel: Kernel,
    cpu: Cpu,
    memory: Memory,
    engine: Box<dyn Engine>,
    /// Addresses where the host's process has something of its own, so that cases that reach them are not
    /// compared.
    pub(crate) beside: Vec<Range<u64>>,
}

impl Guest {
    /// A machine whose engine is the interpreter, for code of `bits` bits.
    pub(crate) fn interpreted(bits: u32) -> Guest {
        Guest::new(bits, Box::new(interpreter()), Memory::new(MEMORY).unwrap())
    }

    /// Makes a machine for code of `bits` bits at privilege 3, with flat segments, paging, handlers for all
    /// exceptions, and [`MEMORY`] bytes of memory.
    pub(crate) fn new(bits: u32, engine: Box<dyn Engine>, mut memory: Memory) -> Guest {
        let kernel = Kernel::for_code_of(bits);
        let mut cpu = kernel.processor(&mut memory);
        cpu.transcendental = host_fpu::execute;
        cpu.vendor = Vendor::of_host();
        let filler = vec![FILLER; LAYOUT.code.len as usize];
        memory.write(physical(LAYOUT.code.start), &filler);
        Guest { bits, kernel, cpu, memory, engine, beside: Vec::new() }
    }

    /// The contents of `region`, which is mapped.
    pub(crate) fn bytes(&self, region: Region) -> &[u8] {
        &self.memory.contents()[physical(region.start) as usize..][..region.len as usize]
    }

    /// Fills `region`.
    pub(crate) fn set_bytes(&mut self, region: Region, bytes: &[u8]) {
        self.memory.write(physical(region.start), &bytes[..region.len as usize]);
    }

    /// Runs the instruction `code` as [`ring3_hostcpu::Runner`] does. The error is another exit that has ended
    /// it.
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
        let code = if self.bits == 64 {
            segment(LONG_CODE_SELECTOR, 0xa0fb)
        } else {
            segment(CODE_SELECTOR, 0xc0fb)
        };
        cpu.set_segment(sreg::CS, code);
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
            cpu.sse.set_upper(number, start.upper[usize::from(number)]);
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
        let vector = self.kernel.vector(&self.cpu);
        let (error_code, _) = self.kernel.frame(&self.cpu, &self.memory);
        let cr2 = if vector == 14 { self.cpu.cr2 } else { 0 };
        LongStop::Exception { vector, error_code: error_code.unwrap_or(0) as u32, cr2 }
    }

    /// Returns the state of the user: the present one, or that at the exception.
    fn state(&self) -> LongState {
        let mut state = LongState {
            gpr: std::array::from_fn(|number| self.cpu.gpr(number as u8)),
            rip: self.cpu.ip,
            rflags: self.cpu.eflags().bits() | ALWAYS_ONE,
            fx: all_registers(&self.cpu),
            upper: std::array::from_fn(|number| self.cpu.sse.upper(number as u8)),
        };
        if self.cpu.cpl() == 0 {
            let (_, frame) = self.kernel.frame(&self.cpu, &self.memory);
            [state.rip, _, _, state.gpr[gpr::ESP], _] = frame;
            state.rflags = frame[2] as u32;
        }
        state.rflags &= !Eflags::RF.bits();
        state
    }
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

/// Does the same with XMM8 to XMM15.
fn all_registers(cpu: &Cpu) -> FxImage {
    let mut fx = registers(cpu);
    for number in 8..16 {
        fx.set_xmm(number.into(), cpu.sse.xmm(number));
    }
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
    }
    for i in 0..16 {
        only.set_xmm(i, fx.xmm(i));
    }
    only.set_mxcsr(fx.mxcsr());
    only
}
