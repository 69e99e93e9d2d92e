//! Long mode: what host tests of 64-bit code at privilege 3 cannot show.

mod calls;
mod descriptors;
mod events;
mod modes;
mod paging;

use std::ops::{Deref, DerefMut};

use iced_x86::{Code, Instruction, MemoryOperand, Register};
use ring3_x86::cpu::{Cpu, Cr0, Cr4, reg};
use ring3_x86::cpuid::Model;
use ring3_x86::flags::Eflags;
use ring3_x86::segment::{Attributes, Segment, TableRegister, sreg};

use crate::machine::*;

/// The tables that map the first 2 MiB to themselves.
const PML4: u32 = 0xa000;
const POINTERS: u32 = 0xb000;
const DIRECTORY: u32 = 0xc000;
const TABLE: u32 = 0xd000;

/// Bits of entries, besides those of [`crate::machine`].
const ALL: u64 = 7;
const ACCESSED: u64 = 0x20;
const DIRTY: u64 = 0x40;
const LARGE: u64 = 0x80;
const NO_EXECUTE: u64 = 1 << 63;

/// The selector of 64-bit code at privilege 3.
const LONG_USER_CS: u16 = 0x3b;
/// Access bytes and size of descriptors of 64-bit code.
const LONG_CODE: u64 = 0x00af_9b00_0000_ffff;
const LONG_USER_CODE: u64 = 0x00af_fb00_0000_ffff;

/// A processor in 64-bit mode at privilege 0 and [`CODE`], with the first 2 MiB mapped, and a 64-bit handler for
/// each vector.
struct LongMachine(Machine);

impl Deref for LongMachine {
    type Target = Machine;

    fn deref(&self) -> &Machine {
        &self.0
    }
}

impl DerefMut for LongMachine {
    fn deref_mut(&mut self) -> &mut Machine {
        &mut self.0
    }
}

/// An exception or interrupt whose 64-bit handler was reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct LongException {
    vector: u8,
    error_code: Option<u64>,
    rip: u64,
    cs: u64,
    rflags: Eflags,
    rsp: u64,
    ss: u64,
}

impl LongMachine {
    fn new(code: &[Instruction]) -> LongMachine {
        let mut machine = LongMachine(Machine::new());
        machine.cpu = Cpu::of_model(Model::Qemu64);
        machine.set_descriptor(KERNEL_CODE, LONG_CODE);
        machine.set_descriptor(LONG_USER_CS, LONG_USER_CODE);
        for vector in 0..=255 {
            machine.set_long_gate(vector, INTERRUPT_GATE, 0, handler(vector).into());
        }
        machine.put_quadword(TSS + 4, INNER_STACK.into());
        machine.put_quadword(PML4, u64::from(POINTERS) | ALL);
        machine.put_quadword(POINTERS, u64::from(DIRECTORY) | ALL);
        machine.put_quadword(DIRECTORY, u64::from(TABLE) | ALL);
        for page in 0..512 {
            machine.put_quadword(TABLE + 8 * page, u64::from(page) << 12 | ALL);
        }
        machine.code_of(64, CODE, code);
        let cpu = &mut machine.cpu;
        cpu.set_flat_entry(KERNEL_CODE, KERNEL_DATA, CODE);
        cpu.gdtr = TableRegister { base: GDT.into(), limit: 0xff };
        cpu.idtr = TableRegister { base: IDT.into(), limit: 0xfff };
        cpu.ldtr = Segment::null(0);
        cpu.tr = Segment::new(TASK, TSS.into(), 0x67, Attributes(0x8b));
        (cpu.msrs.long.enabled, cpu.msrs.no_execute) = (true, true);
        cpu.set_cr4(Cr4::PAE);
        cpu.set_cr3(PML4.into());
        cpu.set_cr0(Cr0::PE | Cr0::PG | Cr0::WP);
        cpu.set_segment(sreg::CS, Segment::new(KERNEL_CODE, 0, u32::MAX, Attributes(0xa09b)));
        cpu.set_gpr(reg::SP, STACK.into());
        assert!(cpu.is_in_64_bit_mode());
        machine
    }

    /// Goes to [`USER_CODE`] at privilege 3, with 64-bit code there.
    fn enter_long_user(&mut self, code: &[Instruction]) {
        self.code_of(64, USER_CODE, code);
        self.enter_user();
        let segment = Segment::new(LONG_USER_CS, 0, u32::MAX, Attributes(0xa0fb));
        self.cpu.set_segment(sreg::CS, segment);
    }

    /// Puts a gate into the IDT that leads to `offset` of the code segment [`KERNEL_CODE`].
    fn set_long_gate(&mut self, vector: u8, access: u8, stack: u8, offset: u64) {
        let at = IDT + u32::from(vector) * 16;
        let (low, high) = long_gate(KERNEL_CODE, access, stack, offset);
        self.put_quadword(at, low);
        self.put_quadword(at + 8, high);
    }

    fn put_quadword(&mut self, address: u32, value: u64) {
        self.put(address, &value.to_le_bytes());
    }

    fn quadword(&self, address: u32) -> u64 {
        u64::from(self.dword(address)) | u64::from(self.dword(address + 4)) << 32
    }

    /// Runs until a handler halts.
    fn run_to_long_exception(&mut self) -> LongException {
        let exit = self.run();
        assert_eq!(exit, ring3_x86::engine::Exit::Halt, "{}", self.cpu.report(&self.memory));
        let offset = (self.cpu.ip as u32).wrapping_sub(handler(0) + 1);
        let vector = u8::try_from(offset / 16).expect("the HLT is a handler's");
        let mut at = self.cpu.gpr(reg::SP) as u32;
        let mut pop = || {
            at += 8;
            self.quadword(at - 8)
        };
        let error_code = matches!(vector, 8 | 10..=14 | 17).then(&mut pop);
        let (rip, cs) = (pop(), pop());
        let rflags = Eflags::from_bits_truncate(pop() as u32);
        LongException { vector, error_code, rip, cs, rflags, rsp: pop(), ss: pop() }
    }

    /// Runs to an exception, and returns its vector and error code.
    fn raised(&mut self) -> (u8, Option<u64>) {
        let exception = self.run_to_long_exception();
        (exception.vector, exception.error_code)
    }
}

/// Returns the two quadwords of a gate (SDM vol. 3, figures 6-9 and 7-8).
fn long_gate(selector: u16, access: u8, stack: u8, offset: u64) -> (u64, u64) {
    let low = offset & 0xffff
        | u64::from(selector) << 16
        | u64::from(stack) << 32
        | u64::from(access) << 40
        | (offset >> 16 & 0xffff) << 48;
    (low, offset >> 32)
}

/// MOV r64, imm64.
fn mov64(to: Register, value: u64) -> Instruction {
    Instruction::with2(Code::Mov_r64_imm64, to, value).unwrap()
}

/// An instruction with an operand in memory at the address in `base`.
fn at(code: Code, base: Register) -> Instruction {
    Instruction::with1(code, MemoryOperand::with_base(base)).unwrap()
}

/// MOV r64, [base].
fn load64(to: Register, base: Register) -> Instruction {
    Instruction::with2(Code::Mov_r64_rm64, to, MemoryOperand::with_base(base)).unwrap()
}

/// MOV [base], r64.
fn store64(base: Register, from: Register) -> Instruction {
    Instruction::with2(Code::Mov_rm64_r64, MemoryOperand::with_base(base), from).unwrap()
}
