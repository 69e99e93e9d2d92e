//! A processor in 32-bit protected mode, with tables that tests can change and handlers that halt.

use std::collections::VecDeque;

use iced_x86::Instruction;
use ring3_core::memory::Memory;
use ring3_x86::cpu::{Cpu, Cr0, reg};
use ring3_x86::engine::{Engine, Exit};
use ring3_x86::flags::Eflags;
use ring3_x86::segment::{Attributes, Segment, TableRegister, sreg};
use ring3_x86::undefined::Vendor;

use crate::common::assembler::assemble;
use crate::engine::engine;

/// Bytes of memory.
pub(crate) const MEMORY: u64 = 16 << 20;

// Addresses, in physical memory and, as far as paging maps it, in linear memory too.
/// Global descriptor table: 256 bytes.
pub(crate) const GDT: u32 = 0x1000;
const GDT_LIMIT: u16 = 0xff;
/// Interrupt descriptor table: 256 gates.
pub(crate) const IDT: u32 = 0x2000;
/// 32-bit TSS.
pub(crate) const TSS: u32 = 0x3000;
/// The handlers: a HLT for each vector.
pub(crate) const HANDLERS: u32 = 0x5000;
const HANDLER_SIZE: u32 = 16;
/// Page directory.
pub(crate) const PAGE_DIRECTORY: u32 = 0x8000;
/// The page table of the lowest 4 MiB, which are mapped to themselves.
pub(crate) const PAGE_TABLE: u32 = 0x9000;
/// Code at privilege 0.
pub(crate) const CODE: u32 = 0x1_0000;
/// Code at privilege 3.
pub(crate) const USER_CODE: u32 = 0x1_8000;
/// Free for data.
pub(crate) const DATA: u32 = 0x2_0000;
/// ESP at privilege 0.
pub(crate) const STACK: u32 = 0x3_0000;
/// ESP0 in the TSS.
pub(crate) const INNER_STACK: u32 = 0x3_8000;
/// ESP at privilege 3.
pub(crate) const USER_STACK: u32 = 0x4_0000;

// Selectors.
/// Flat code at privilege 0.
pub(crate) const KERNEL_CODE: u16 = 0x08;
/// Flat data at privilege 0.
pub(crate) const KERNEL_DATA: u16 = 0x10;
/// Flat code at privilege 3.
pub(crate) const USER_CS: u16 = 0x1b;
/// Flat data at privilege 3.
pub(crate) const USER_DS: u16 = 0x23;
/// The TSS.
pub(crate) const TASK: u16 = 0x28;
/// The first of the descriptors that are free for tests.
pub(crate) const FREE: u16 = 0x40;

// Access bytes of descriptors and gates; DPL is bits 6 and 5.
/// Present.
pub(crate) const PRESENT: u8 = 0x80;
/// Code to execute and read, accessed.
pub(crate) const CODE_SEGMENT: u8 = 0x9b;
/// Data to read and write, accessed.
pub(crate) const DATA_SEGMENT: u8 = 0x93;
/// 32-bit interrupt gate.
pub(crate) const INTERRUPT_GATE: u8 = 0x8e;
/// 32-bit trap gate.
pub(crate) const TRAP_GATE: u8 = 0x8f;
/// DPL 3, to be added.
pub(crate) const DPL3: u8 = 0x60;

/// Bits of page-table entries: present and writable, to be used by the user.
pub(crate) const P: u32 = 1;
pub(crate) const RW: u32 = 2;
pub(crate) const US: u32 = 4;

/// More instructions than any test executes.
const LIMIT: u64 = 100_000;

/// The processor and its environment.
pub(crate) struct Machine {
    pub(crate) cpu: Cpu,
    pub(crate) memory: Memory,
    pub(crate) engine: Box<dyn Engine>,
    /// The accesses to devices so far.
    pub(crate) accesses: Vec<Exit>,
    /// The answers to the next accesses; 0 if there are none left.
    pub(crate) answers: VecDeque<u64>,
    /// The interrupt that is pending in the controller.
    pub(crate) interrupt: Option<u8>,
}

/// An exception or interrupt whose handler was reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Exception {
    pub(crate) vector: u8,
    pub(crate) error_code: Option<u32>,
    pub(crate) eip: u32,
    pub(crate) cs: u16,
    pub(crate) eflags: Eflags,
    /// ESP and SS, if the privilege has changed.
    pub(crate) outer: Option<(u32, u16)>,
}

impl Machine {
    /// Makes a machine at privilege 0 and [`CODE`], with interrupts disabled and paging off.
    pub(crate) fn new() -> Machine {
        Machine::on(engine(MEMORY))
    }

    /// Makes such a machine with this engine and its memory of [`MEMORY`] bytes.
    pub(crate) fn on((engine, memory): (Box<dyn Engine>, Memory)) -> Machine {
        let mut machine = Machine {
            cpu: Cpu::new(),
            memory,
            engine,
            accesses: Vec::new(),
            answers: VecDeque::new(),
            interrupt: None,
        };
        machine.cpu.vendor = Vendor::of_host();
        machine.set_descriptor(KERNEL_CODE, flat(CODE_SEGMENT));
        machine.set_descriptor(KERNEL_DATA, flat(DATA_SEGMENT));
        machine.set_descriptor(USER_CS, flat(CODE_SEGMENT | DPL3));
        machine.set_descriptor(USER_DS, flat(DATA_SEGMENT | DPL3));
        for vector in 0..=255 {
            machine.set_gate(vector, KERNEL_CODE, INTERRUPT_GATE);
            machine.put(handler(vector), &[0xf4]); // HLT
        }
        machine.set_inner_stack(0, INNER_STACK, KERNEL_DATA);
        machine.reset_processor();
        machine
    }

    /// Restores the initial state of the processor, which continues to count instructions.
    pub(crate) fn reset_processor(&mut self) {
        self.cpu.reset();
        let cpu = &mut self.cpu;
        cpu.set_flat_entry(KERNEL_CODE, KERNEL_DATA, CODE);
        cpu.set_gpr(reg::SP, STACK.into());
        cpu.gdtr = TableRegister { base: GDT.into(), limit: GDT_LIMIT };
        cpu.idtr = TableRegister { base: IDT.into(), limit: 0x7ff };
        cpu.ldtr = Segment::null(0);
        cpu.tr = Segment::new(TASK, TSS.into(), 0x67, Attributes(0x8b));
    }

    /// Makes a machine with `instructions` at [`CODE`].
    pub(crate) fn with_code(instructions: &[Instruction]) -> Machine {
        let mut machine = Machine::new();
        machine.code(CODE, instructions);
        machine
    }

    /// Makes a machine at privilege 3 with `instructions` at [`USER_CODE`].
    pub(crate) fn with_user_code(instructions: &[Instruction]) -> Machine {
        let mut machine = Machine::new();
        machine.code(USER_CODE, instructions);
        machine.enter_user();
        machine
    }

    /// Goes to [`USER_CODE`] at privilege 3.
    pub(crate) fn enter_user(&mut self) {
        let data = Segment::new(USER_DS, 0, u32::MAX, Attributes(0xc0f3));
        self.cpu.set_segment(sreg::CS, Segment::new(USER_CS, 0, u32::MAX, Attributes(0xc0fb)));
        for register in [sreg::SS, sreg::DS, sreg::ES] {
            self.cpu.set_segment(register, data);
        }
        self.cpu.set_gpr(reg::SP, USER_STACK.into());
        self.cpu.ip = USER_CODE.into();
    }

    // Tables --------------------------------------------------------------

    /// Puts a descriptor into the GDT.
    pub(crate) fn set_descriptor(&mut self, selector: u16, descriptor: u64) {
        self.put(GDT + u32::from(selector & !7), &descriptor.to_le_bytes());
    }

    /// Returns the descriptor that is in the GDT.
    pub(crate) fn descriptor(&self, selector: u16) -> u64 {
        let low = u64::from(self.dword(GDT + u32::from(selector & !7)));
        low | u64::from(self.dword(GDT + u32::from(selector & !7) + 4)) << 32
    }

    /// Makes the gate of `vector` lead to its handler in the code segment `selector`.
    pub(crate) fn set_gate(&mut self, vector: u8, selector: u16, access: u8) {
        let (low, high) = (handler(vector) & 0xffff, handler(vector) & 0xffff_0000);
        let at = IDT + u32::from(vector) * 8;
        self.put_dword(at, u32::from(selector) << 16 | low);
        self.put_dword(at + 4, high | u32::from(access) << 8);
    }

    /// Sets the stack for privilege level `level` in the TSS.
    pub(crate) fn set_inner_stack(&mut self, level: u32, pointer: u32, selector: u16) {
        self.put_dword(TSS + 4 + 8 * level, pointer);
        self.put_dword(TSS + 8 + 8 * level, selector.into());
    }

    /// Turns paging on (with WP). The first 4 MiB are mapped to themselves for user and supervisor.
    pub(crate) fn enable_paging(&mut self) {
        self.put_dword(PAGE_DIRECTORY, PAGE_TABLE | P | RW | US);
        for page in 0..1024 {
            self.put_dword(PAGE_TABLE + 4 * page, page << 12 | P | RW | US);
        }
        self.cpu.set_cr3(PAGE_DIRECTORY.into());
        self.cpu.set_cr0(Cr0::PE | Cr0::PG | Cr0::WP);
    }

    /// Returns the address of the page-table entry of `linear`, below 4 MiB.
    pub(crate) fn pte(linear: u32) -> u32 {
        PAGE_TABLE + 4 * (linear >> 12)
    }

    /// Maps the page at `linear`, below 4 MiB, to `physical` with the bits `bits`.
    pub(crate) fn map(&mut self, linear: u32, physical: u32, bits: u32) {
        self.put_dword(Self::pte(linear), physical & !0xfff | bits);
    }

    // Memory --------------------------------------------------------------

    /// Writes as a device does.
    pub(crate) fn put(&mut self, address: u32, bytes: &[u8]) {
        self.memory.write(address.into(), bytes);
    }

    /// Writes a doubleword.
    pub(crate) fn put_dword(&mut self, address: u32, value: u32) {
        self.put(address, &value.to_le_bytes());
    }

    /// Reads a doubleword.
    pub(crate) fn dword(&self, address: u32) -> u32 {
        let mut bytes = [0; 4];
        self.memory.read(address.into(), &mut bytes);
        u32::from_le_bytes(bytes)
    }

    /// Puts 32-bit code at `address`. Returns the addresses of all instructions and of the byte after them.
    pub(crate) fn code(&mut self, address: u32, instructions: &[Instruction]) -> Vec<u32> {
        self.code_of(32, address, instructions)
    }

    /// Puts 16- or 32-bit code at `address`.
    pub(crate) fn code_of(
        &mut self,
        bitness: u32,
        address: u32,
        instructions: &[Instruction],
    ) -> Vec<u32> {
        let mut addresses = vec![address];
        let mut at = address;
        for bytes in assemble(bitness, address, instructions) {
            self.put(at, &bytes);
            at += bytes.len() as u32;
            addresses.push(at);
        }
        addresses
    }

    // Running -------------------------------------------------------------

    /// Returns a general register.
    pub(crate) fn get(&self, register: u8) -> u32 {
        self.cpu.get(register)
    }

    /// Runs until the processor halts or stops, and answers its exits.
    pub(crate) fn run(&mut self) -> Exit {
        self.run_for(LIMIT)
    }

    /// Runs like [`Machine::run`], but for at most `instructions` instructions.
    pub(crate) fn run_for(&mut self, instructions: u64) -> Exit {
        let end = self.cpu.instructions + instructions;
        loop {
            self.cpu.interrupt_pin = self.interrupt.is_some();
            let left = end - self.cpu.instructions;
            match self.engine.run(&mut self.cpu, &mut self.memory, left) {
                Exit::InterruptWindow => {
                    let vector = self.interrupt.take().unwrap();
                    self.cpu.inject(vector);
                }
                exit @ (Exit::PortRead { .. }
                | Exit::PortWrite { .. }
                | Exit::MmioRead { .. }
                | Exit::MmioWrite { .. }
                | Exit::ApicBase { .. }) => {
                    self.accesses.push(exit);
                    self.cpu.answer(self.answers.pop_front().unwrap_or(0));
                }
                exit => return exit,
            }
        }
    }

    /// Runs until a handler halts.
    pub(crate) fn run_to_exception(&mut self) -> Exception {
        assert_eq!(self.run(), Exit::Halt, "{}", self.cpu.report(&self.memory));
        self.exception().expect("the HLT is a handler's")
    }

    /// Runs until the code halts without an exception.
    pub(crate) fn run_to_halt(&mut self) {
        assert_eq!(self.run(), Exit::Halt, "{}", self.cpu.report(&self.memory));
        assert_eq!(self.exception(), None);
    }

    /// Returns the exception or interrupt whose handler has just halted.
    pub(crate) fn exception(&self) -> Option<Exception> {
        let offset = (self.cpu.ip as u32).wrapping_sub(HANDLERS + 1);
        let vector = u8::try_from(offset / HANDLER_SIZE).ok()?;
        let mut stack = self.get(reg::SP);
        let mut pop = || {
            stack += 4;
            self.dword(stack - 4)
        };
        let has_code = matches!(vector, 8 | 10..=14 | 17);
        let error_code = has_code.then(&mut pop);
        let (eip, cs, eflags) = (pop(), pop() as u16, Eflags::from_bits_truncate(pop()));
        let outer = (cs & 3 > u16::from(self.cpu.cpl())).then(|| (pop(), pop() as u16));
        Some(Exception { vector, error_code, eip, cs, eflags, outer })
    }
}

/// Returns the address of the handler of `vector`.
pub(crate) fn handler(vector: u8) -> u32 {
    HANDLERS + u32::from(vector) * HANDLER_SIZE
}

/// Returns the descriptor of a 32-bit segment with base 0 and no limit.
pub(crate) fn flat(access: u8) -> u64 {
    0x00cf_0000_0000_ffff | u64::from(access) << 40
}

/// Returns the descriptor of a 32-bit segment with base 0 and a limit in bytes, below 64 KiB.
pub(crate) fn limited(access: u8, limit: u16) -> u64 {
    0x0040_0000_0000_0000 | u64::from(access) << 40 | u64::from(limit)
}
