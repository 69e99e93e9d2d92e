//! The supervisor's memory in which our processor meets exceptions: page tables, GDT, IDT and TSS, handlers, and a
//! stack.

use ring3_core::memory::Memory;
use ring3_hostcpu::{CODE_SELECTOR, DATA_SELECTOR, LONG_CODE_SELECTOR, Layout, PAGE_SIZE};
use ring3_x86::cpu::{Cpu, Cr0, Cr4, reg};
use ring3_x86::cpuid::Model;
use ring3_x86::segment::{Attributes, Segment, TableRegister};

const LAYOUT: Layout = Layout::FIXED;

// Guest-physical memory: the tables of the highest level, those for the arena and those for the supervisor, its
// pages, and the arena.
const TOP: u64 = 0x1000;
const ARENA_TABLES: [u64; 3] = [0x2000, 0x3000, 0x4000];
const SUPERVISOR_TABLES: [u64; 3] = [0x5000, 0x6000, 0x7000];
const SUPERVISOR: u64 = 0x8000;
const SUPERVISOR_PAGES: u64 = 3;
const ARENA: u64 = 0x1_0000;

// Offsets in the supervisor's pages.
const IDT: u64 = 0x400;
const TSS: u64 = 0x800;
const HANDLERS: u64 = 0x1000;
const STACK_END: u64 = SUPERVISOR_PAGES * 0x1000;

const SUPERVISOR_CODE: u16 = 0x08;
const SUPERVISOR_DATA: u16 = 0x10;
const TASK: u16 = 0x18;
/// Vectors that have a gate.
const VECTORS: u64 = 32;
/// Bytes from one handler to the next.
const HANDLER_SIZE: u64 = 16;
/// A handler is one IN AL, DX, at which the engine returns.
const HANDLER: u8 = 0xec;

/// The components that XSAVE and XRSTOR know here; the host's know more.
const XCR0: u64 = 7;

/// Rights in page-table entries.
const SUPERVISOR_ONLY: u64 = 3;
const READ_ONLY: u64 = 5;
const WRITABLE: u64 = 7;
const NO_EXECUTE: u64 = 1 << 63;

/// See the module.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Kernel {
    is_long: bool,
}

impl Kernel {
    /// The kernel for code of `bits` bits, 32 or 64.
    pub(crate) fn for_code_of(bits: u32) -> Kernel {
        Kernel { is_long: bits == 64 }
    }

    /// Returns the linear address of its pages: where the host has nothing, or its kernel.
    pub(crate) fn start(self) -> u64 {
        if self.is_long { 0xffff_c37a_1234_5000 } else { 0xf37a_0000 }
    }

    /// Bytes of a word on its stack.
    fn word(self) -> u64 {
        if self.is_long { 8 } else { 4 }
    }

    /// Returns a processor that has it, with the page tables and everything else in `memory`.
    pub(super) fn processor(self, memory: &mut Memory) -> Cpu {
        self.map_all(memory);
        self.fill_tables(memory);
        let mut cpu = Cpu::of_model(Model::X86_64_V3);
        cpu.msrs.xcr0 = XCR0;
        cpu.ldtr = Segment::null(0);
        cpu.gdtr = TableRegister { base: self.start(), limit: IDT as u16 - 1 };
        let limit = (VECTORS * 2 * self.word() - 1) as u16;
        cpu.idtr = TableRegister { base: self.start() + IDT, limit };
        cpu.tr = Segment::new(TASK, self.start() + TSS, 0x67, Attributes(0x008b));
        (cpu.msrs.long.enabled, cpu.msrs.no_execute) = (self.is_long, self.is_long);
        let extensions = if self.is_long { Cr4::PAE } else { Cr4::empty() };
        cpu.set_cr4(extensions | Cr4::OSFXSR | Cr4::OSXMMEXCPT | Cr4::OSXSAVE);
        cpu.set_cr3(TOP);
        cpu.set_cr0(Cr0::PE | Cr0::PG | Cr0::WP | Cr0::NE | Cr0::MP);
        cpu
    }

    /// Maps the page at `linear` by `entry`, through `tables`.
    fn map(self, memory: &mut Memory, tables: [u64; 3], linear: u64, entry: u64) {
        if !self.is_long {
            let directory_entry = TOP + (linear >> 22) * 4;
            memory.write(directory_entry, &((tables[0] | WRITABLE) as u32).to_le_bytes());
            let address = tables[0] + (linear >> 12 & 0x3ff) * 4;
            return memory.write(address, &(entry as u32).to_le_bytes());
        }
        let tables = [TOP, tables[0], tables[1], tables[2]];
        for (level, table) in tables.into_iter().enumerate() {
            let index = linear >> (39 - 9 * level) & 0x1ff;
            let content = tables.get(level + 1).map_or(entry, |next| next | WRITABLE);
            memory.write(table + index * 8, &content.to_le_bytes());
        }
    }

    fn map_all(self, memory: &mut Memory) {
        for (region, rights) in [
            (LAYOUT.code, READ_ONLY),
            (LAYOUT.data, WRITABLE | NO_EXECUTE),
            (LAYOUT.read_only, READ_ONLY | NO_EXECUTE),
        ] {
            for page in (region.start..region.end()).step_by(PAGE_SIZE as usize) {
                self.map(memory, ARENA_TABLES, page.into(), physical(page) | rights);
            }
        }
        for page in 0..SUPERVISOR_PAGES {
            let offset = page * 0x1000;
            let entry = (SUPERVISOR + offset) | SUPERVISOR_ONLY;
            self.map(memory, SUPERVISOR_TABLES, self.start() + offset, entry);
        }
    }

    fn fill_tables(self, memory: &mut Memory) {
        let mut put = |offset: u64, bytes: &[u8]| memory.write(SUPERVISOR + offset, bytes);
        let (code, long_user_code) = if self.is_long {
            (0x00af_9b00_0000_ffff_u64, 0x00af_fb00_0000_ffff)
        } else {
            (0x00cf_9b00_0000_ffff, 0)
        };
        for (selector, descriptor) in [
            (SUPERVISOR_CODE, code),
            (SUPERVISOR_DATA, 0x00cf_9300_0000_ffff),
            (CODE_SELECTOR, 0x00cf_fb00_0000_ffff),
            (DATA_SELECTOR, 0x00cf_f300_0000_ffff),
            (LONG_CODE_SELECTOR, long_user_code),
        ] {
            put(u64::from(selector & !7), &descriptor.to_le_bytes());
        }
        for vector in 0..VECTORS {
            let offset = HANDLERS + vector * HANDLER_SIZE;
            put(offset, &[HANDLER]);
            let handler = self.start() + offset;
            // As on Linux, INT3 and INTO may be used at privilege 3.
            let access: u64 = if matches!(vector, 3 | 4) { 0xee00 } else { 0x8e00 };
            let low = handler & 0xffff
                | u64::from(SUPERVISOR_CODE) << 16
                | access << 32
                | (handler >> 16 & 0xffff) << 48;
            put(IDT + vector * 2 * self.word(), &low.to_le_bytes());
            if self.is_long {
                put(IDT + vector * 16 + 8, &(handler >> 32).to_le_bytes());
            }
        }
        let stack = self.start() + STACK_END;
        put(TSS + 4, &stack.to_le_bytes()[..self.word() as usize]);
        if !self.is_long {
            put(TSS + 8, &u32::from(SUPERVISOR_DATA).to_le_bytes());
        }
        // The I/O permission bit map begins beyond the limit, so there is none.
        put(TSS + 0x66, &0x68_u16.to_le_bytes());
    }

    /// Returns the vector of the exception whose handler `cpu` has reached.
    pub(super) fn vector(self, cpu: &Cpu) -> u8 {
        ((cpu.ip - self.start() - HANDLERS) / HANDLER_SIZE) as u8
    }

    /// Returns the words that an exception from privilege 3 has pushed: the error code if there is one, and the
    /// address, the code segment, the flags, and the stack of the program.
    pub(super) fn frame(self, cpu: &Cpu, memory: &Memory) -> (Option<u64>, [u64; 5]) {
        let (start, word) = (self.start() + STACK_END, self.word());
        let at = |index: u64| {
            let address = (SUPERVISOR + STACK_END - index * word) as usize;
            if self.is_long {
                u64::from_le_bytes(memory.load(address))
            } else {
                u32::from_le_bytes(memory.load(address)).into()
            }
        };
        let has_error_code = start - cpu.gpr(reg::SP) == 6 * word;
        (has_error_code.then(|| at(6)), [5, 4, 3, 2, 1].map(at))
    }
}

/// The guest-physical address of a linear address in the arena.
pub(super) fn physical(linear: u32) -> u64 {
    u64::from(linear - LAYOUT.arena.start) + ARENA
}
