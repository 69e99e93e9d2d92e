//! A 64-bit kernel: the page tables, segments and handlers under which the programs run.

use ring3_core::memory::Memory;
use ring3_x86::cpu::{Cpu, Cr0, Cr4, reg};
use ring3_x86::cpuid::Model;
use ring3_x86::flags::{ALWAYS_ONE, Eflags};
use ring3_x86::segment::{Attributes, Segment, TableRegister, sreg};
use ring3_x86::undefined::Vendor;

use crate::random::Random;

pub(crate) const MEMORY: u64 = 8 << 20;
pub(crate) const PAGE: u64 = 0x1000;

// Guest-physical memory: page tables from the second address on, and what is mapped.
const PML4: u64 = 0x1000;
const TABLES: u64 = 0x8_0000;
const CODE_FRAMES: u64 = 0x10_0000;
const DATA_FRAMES: u64 = 0x11_0000;
const STACK_FRAMES: u64 = 0x12_0000;
const SYSTEM_FRAMES: u64 = 0x13_0000;
const LONG_FRAME: u64 = 0x14_0000;
const LARGE_FRAME: u64 = 0x40_0000;

// Linear addresses of the program.
pub(crate) const CODE: u64 = 0x0804_8000;
pub(crate) const CODE_PAGES: u64 = 2;
pub(crate) const DATA: u64 = 0x5555_5000;
pub(crate) const DATA_PAGES: u64 = 4;
/// A region that is a large page, or small ones, or nothing.
pub(crate) const LARGE: u64 = 0xc000_0000;
const STACK: u64 = 0xffff_d000;
/// 64-bit code of the program.
pub(crate) const LONG_CODE: u64 = 0x40_0000;

/// Linear addresses of the kernel: tables, handlers, numbers that it needs, a stack, and the page tables.
const SYSTEM: u64 = 0xffff_ffff_8200_0000;
const IDT: u64 = SYSTEM + PAGE;
const TSS: u64 = SYSTEM + 0x200;
const HANDLERS: u64 = SYSTEM + 3 * PAGE;
const NUMBERS: u64 = SYSTEM + 5 * PAGE;
const INNER_STACK: u64 = SYSTEM + 8 * PAGE;
const SYSTEM_PAGES: u64 = 8;
const TABLES_LINEAR: u64 = SYSTEM + 0x10 * PAGE;
const TABLES_PAGES: u64 = 0x10;

const KERNEL_CODE: u16 = 0x08;
pub(crate) const USER_CODE: u16 = 0x1b;
pub(crate) const USER_DATA: u16 = 0x23;
pub(crate) const LONG_USER_CODE: u16 = 0x2b;
/// Data with a base and a limit, and 16-bit code at [`CODE`].
pub(crate) const BASED_DATA: u16 = 0x43;
pub(crate) const SHORT_CODE: u16 = 0x4b;

/// Vectors of the kernel's services. Each sets the upper half of a register, and counts in R8.
pub(crate) const SERVICES: [u8; 4] = [0x80, 0x81, 0x82, 0x83];

// Bits of page-table entries.
const PRESENT: u64 = 1;
const WRITABLE: u64 = 2;
const USER: u64 = 4;
const ALL: u64 = PRESENT | WRITABLE | USER;
const ACCESSED: u64 = 0x20;
const DIRTY: u64 = 0x40;
const IS_LARGE: u64 = 0x80;
const GLOBAL: u64 = 0x100;
const NO_EXECUTE: u64 = 1 << 63;

/// Page tables that are being made.
struct Tables<'a> {
    memory: &'a mut Memory,
    /// Where the next table comes.
    next: u64,
}

impl Tables<'_> {
    /// Returns the guest-physical address of the entry for `linear` at the level of `shift`.
    fn entry(&mut self, linear: u64, shift: u32) -> u64 {
        let mut table = PML4;
        for level in [39, 30, 21, 12] {
            let address = table + (linear >> level & 0x1ff) * 8;
            if level == shift {
                return address;
            }
            let mut entry = u64::from_le_bytes(self.memory.read_aligned(address));
            if entry == 0 {
                entry = self.next | ALL;
                self.next += PAGE;
                self.put(address, entry);
            }
            table = entry & !0xfff;
        }
        unreachable!("there is no other level")
    }

    fn put(&mut self, address: u64, entry: u64) {
        self.memory.write(address, &entry.to_le_bytes());
    }

    fn map(&mut self, linear: u64, frames: u64, pages: u64, rights: u64) {
        for offset in (0..pages * PAGE).step_by(PAGE as usize) {
            let address = self.entry(linear + offset, 12);
            self.put(address, (frames + offset) | rights);
        }
    }
}

/// Returns the kernel's address of the page-table entry at `physical`.
fn of_table(physical: u64) -> u64 {
    TABLES_LINEAR + physical - TABLES
}

/// Code that loads a register of 64 bits, given by its number, with `value`.
fn load(register: u8, value: u64) -> Vec<u8> {
    [&[0x48 | register >> 3, 0xb8 | register & 7][..], &value.to_le_bytes()].concat()
}

/// The service that stores one of the numbers at `numbers`, chosen by EDX, to one of the entries from `entry`
/// on, chosen by ECX if there are several, or exchanges its bits if `toggles`. Then it invalidates the page at
/// `page`, or loads CR3.
fn service(numbers: u64, entry: u64, entries: u8, toggles: bool, page: Option<u64>) -> Vec<u8> {
    let mut code = vec![0x50, 0x51, 0x52]; // PUSH RAX, RCX, RDX
    code.extend([0x83, 0xe1, entries - 1]); // AND ECX, entries - 1
    code.extend([0x83, 0xe2, 0x0f]); // AND EDX, 15
    code.extend(load(0, numbers));
    code.extend([0x48, 0x8b, 0x14, 0xd0]); // MOV RDX, [RAX+RDX*8]
    code.extend(load(0, entry));
    code.extend([0x48, if toggles { 0x31 } else { 0x89 }, 0x14, 0xc8]); // MOV or XOR [RAX+RCX*8], RDX
    match page {
        Some(page) => {
            code.extend([0xc1, 0xe1, 12]); // SHL ECX, 12
            code.extend([0x81, 0xc1]); // ADD ECX, page
            code.extend((page as u32).to_le_bytes());
            code.extend([0x0f, 0x01, 0x39]); // INVLPG [RCX]
        }
        None => code.extend([0x0f, 0x20, 0xd8, 0x0f, 0x22, 0xd8]), // MOV RAX, CR3; MOV CR3, RAX
    }
    code.extend([0x5a, 0x59, 0x58]); // POP RDX, RCX, RAX
    code.extend([0x49, 0xff, 0xc0]); // INC R8
    code.extend(load(10, 0xabcd_ef01 << 32));
    code.extend([0x4c, 0x09, 0xd0 | reg::SI]); // OR RSI, R10
    code.extend([0x48, 0xcf]); // IRETQ
    code
}

/// The handler of an exception: it continues at another instruction of the program, in flat segments.
fn exception(has_code: bool) -> Vec<u8> {
    let mut code = Vec::new();
    if has_code {
        code.extend([0x48, 0x83, 0xc4, 0x08]); // ADD RSP, 8
    }
    code.extend([0x83, 0x04, 0x24, 0x10]); // ADD DWORD [RSP], 16
    code.extend([0x81, 0x24, 0x24]); // AND DWORD [RSP], the offset of a slot
    code.extend(((CODE_PAGES * PAGE - 16) as u32).to_le_bytes());
    code.extend([0x81, 0x0c, 0x24]); // OR DWORD [RSP], CODE
    code.extend((CODE as u32).to_le_bytes());
    code.extend([0xc7, 0x44, 0x24, 0x08]); // MOV DWORD [RSP+8], USER_CODE
    code.extend(u32::from(USER_CODE).to_le_bytes());
    code.extend([0x50, 0xb8]); // PUSH RAX; MOV EAX, USER_DATA
    code.extend(u32::from(USER_DATA).to_le_bytes());
    code.extend([0x8e, 0xd8, 0x8e, 0xc0, 0x58]); // MOV DS, EAX; MOV ES, EAX; POP RAX
    code.extend([0x48, 0xcf]); // IRETQ
    code
}

/// The 64-bit code of the program: it sets upper halves of registers, and returns by RETF, or by a system call
/// and SYSRET if the lowest bit of EAX is set.
fn long_code() -> Vec<u8> {
    let mut code = vec![0x49, 0xff, 0xc1]; // INC R9
    code.extend(load(10, 0x1234_5678 << 32));
    code.extend([0x4c, 0x09, 0xd7]); // OR RDI, R10
    code.extend([0xa8, 0x01, 0x74, 0x02]); // TEST AL, 1; JZ past the next
    code.extend([0x0f, 0x05]); // SYSCALL
    code.push(0xcb); // RETF
    code
}

/// Fills the memory of a machine, whose program is `code`, and returns its processor.
pub(crate) fn machine(memory: &mut Memory, code: &[u8], mut random: Random) -> Cpu {
    let mut tables = Tables { memory, next: TABLES };
    tables.map(CODE, CODE_FRAMES, CODE_PAGES, ALL);
    tables.map(DATA, DATA_FRAMES, DATA_PAGES, ALL);
    tables.map(STACK - 2 * PAGE, STACK_FRAMES, 2, ALL);
    tables.map(LONG_CODE, LONG_FRAME, 1, ALL);
    tables.map(LARGE, DATA_FRAMES, 4, ALL);
    tables.map(SYSTEM, SYSTEM_FRAMES, SYSTEM_PAGES, PRESENT | WRITABLE | GLOBAL);
    tables.map(TABLES_LINEAR, TABLES, TABLES_PAGES, PRESENT | WRITABLE | GLOBAL);
    let page_entries = of_table(tables.entry(DATA, 12));
    let [pointer, directory] = [30, 21].map(|shift| of_table(tables.entry(DATA, shift)));
    let large = tables.entry(LARGE, 21);
    let large_table = u64::from_le_bytes(tables.memory.read_aligned(large));

    memory.write(CODE_FRAMES, code);
    memory.write(LONG_FRAME, &long_code());
    for at in (0..DATA_PAGES * PAGE).step_by(4) {
        // Some words are addresses of code or of data.
        let word = match random.below(5) {
            0 => (CODE as u32 + random.below((CODE_PAGES * PAGE) as u32)) & !15,
            1 => DATA as u32 + random.below((DATA_PAGES * PAGE) as u32),
            _ => random.bits(),
        };
        memory.write(DATA_FRAMES + at, &word.to_le_bytes());
    }
    let mut put = |linear: u64, bytes: &[u8]| memory.write(linear - SYSTEM + SYSTEM_FRAMES, bytes);
    let based = (DATA + PAGE) << 16 & 0xff_ffff_0000 | (DATA + PAGE) >> 24 << 56;
    let short = CODE << 16 & 0xff_ffff_0000 | CODE >> 24 << 56;
    for (selector, descriptor) in [
        (KERNEL_CODE, 0x00af_9b00_0000_ffff_u64),
        (0x10, 0x00cf_9300_0000_ffff),
        (USER_CODE, 0x00cf_fb00_0000_ffff),
        (USER_DATA, 0x00cf_f300_0000_ffff),
        (LONG_USER_CODE, 0x00af_fb00_0000_ffff),
        (BASED_DATA, 0x0040_f300_0000_17ff | based),
        (SHORT_CODE, 0x0000_fb00_0000_1fff | short),
    ] {
        put(SYSTEM + u64::from(selector & !7), &descriptor.to_le_bytes());
    }
    // Rights and frames of pages of data; rights of entries above; and what the large region may be.
    let kinds = [page_numbers(&mut random), upper_numbers(&mut random), {
        let [huge, small] = [LARGE_FRAME | ALL | IS_LARGE, large_table];
        std::array::from_fn(|_| random.pick(&[huge, small, small & !USER, huge & !WRITABLE, 0]))
    }];
    for (kind, numbers) in (0..).zip(&kinds) {
        put(NUMBERS + kind * 0x80, numbers.map(u64::to_le_bytes).as_flattened());
    }
    let services = [
        service(NUMBERS, page_entries, 4, false, Some(DATA)),
        service(NUMBERS + 0x80, pointer, 1, true, None),
        service(NUMBERS + 0x80, directory, 1, true, None),
        service(NUMBERS + 0x100, of_table(large), 1, false, None),
    ];
    let mut handlers = Vec::new();
    for vector in 0..32 {
        handlers.push((vector, exception(matches!(vector, 8 | 10..=14 | 17))));
    }
    handlers.extend(SERVICES.map(u64::from).into_iter().zip(services));
    let mut place = HANDLERS;
    for (vector, code) in handlers {
        let low = place & 0xffff
            | u64::from(KERNEL_CODE) << 16
            | 0xee00 << 32
            | (place >> 16 & 0xffff) << 48;
        put(IDT + vector * 16, &low.to_le_bytes());
        put(IDT + vector * 16 + 8, &(place >> 32).to_le_bytes());
        put(place, &code);
        place += code.len() as u64;
    }
    let [fast_call, long_call] = [place, place + 0x40];
    put(fast_call, &[0x49, 0xff, 0xc3, 0x0f, 0x35]); // INC R11; SYSEXIT
    let mut code = vec![0xb9]; // MOV ECX, an instruction of the program
    code.extend((CODE as u32 + 0x400).to_le_bytes());
    code.extend([0x0f, 0x07]); // SYSRET to 32-bit code
    put(long_call, &code);
    put(TSS + 4, &INNER_STACK.to_le_bytes());
    processor(fast_call, long_call, &mut random)
}

/// Returns entries for pages of data.
fn page_numbers(random: &mut Random) -> [u64; 16] {
    std::array::from_fn(|_| {
        let frame = DATA_FRAMES + u64::from(random.below(DATA_PAGES as u32 + 2)) * PAGE;
        let mut rights = ALL;
        for right in [PRESENT, WRITABLE, USER] {
            if random.percent(10) {
                rights &= !right;
            }
        }
        for right in [ACCESSED, DIRTY, NO_EXECUTE] {
            if random.percent(40) {
                rights |= right;
            }
        }
        frame | rights
    })
}

/// Returns bits of entries of higher levels that change.
fn upper_numbers(random: &mut Random) -> [u64; 16] {
    std::array::from_fn(|_| random.pick(&[WRITABLE, USER, ACCESSED, NO_EXECUTE, PRESENT, 0]))
}

/// Returns a processor that is about to execute the program.
fn processor(fast_call: u64, long_call: u64, random: &mut Random) -> Cpu {
    let mut cpu = Cpu::of_model(Model::X86_64_V3);
    cpu.vendor = Vendor::of_host();
    cpu.gdtr = TableRegister { base: SYSTEM, limit: 0x7f };
    cpu.idtr = TableRegister { base: IDT, limit: 0x84 * 16 - 1 };
    cpu.tr = Segment::new(0x30, TSS, 0x67, Attributes(0x8b));
    (cpu.msrs.long.enabled, cpu.msrs.no_execute) = (true, true);
    cpu.msrs.long.system_calls = true;
    cpu.msrs.long.star = u64::from(USER_CODE) << 48 | u64::from(KERNEL_CODE) << 32;
    cpu.msrs.long.lstar = long_call;
    cpu.msrs.sysenter_cs = KERNEL_CODE.into();
    (cpu.msrs.sysenter_eip, cpu.msrs.sysenter_esp) = (fast_call, INNER_STACK);
    cpu.set_cr4(Cr4::PAE | Cr4::OSFXSR | Cr4::OSXMMEXCPT | Cr4::PGE);
    cpu.set_cr3(PML4);
    cpu.set_cr0(Cr0::PE | Cr0::PG | Cr0::WP | Cr0::NE | Cr0::MP);
    let segment = |selector, access| Segment::new(selector, 0, u32::MAX, Attributes(access));
    cpu.set_segment(sreg::CS, segment(USER_CODE, 0xc0fb));
    for register in [sreg::SS, sreg::DS, sreg::ES] {
        cpu.set_segment(register, segment(USER_DATA, 0xc0f3));
    }
    // 64-bit code may have set the upper half of the base, which does not count.
    let base = 0x1234_5678 << 32 | (DATA + PAGE);
    let gs = Segment::new(0x63, base, u32::MAX, Attributes(0xc0f3));
    cpu.set_segment(sreg::GS, gs);
    for number in 0..16 {
        let upper = if number < 8 { 0 } else { random.bits() };
        cpu.set_gpr(number, u64::from(upper) << 32 | u64::from(random.number()));
        cpu.sse.set_xmm(number, u128::from(random.next()) << 64 | u128::from(random.next()));
    }
    for register in [reg::BX, reg::SI, reg::DI] {
        cpu.set_gpr(register, DATA + u64::from(random.below(0x3000)));
    }
    cpu.set_gpr(reg::CX, random.below(40).into());
    cpu.fpu.set_control(0x37f);
    cpu.set_gpr(reg::SP, STACK - 0x800);
    cpu.set_gpr(reg::BP, STACK - 0x400);
    cpu.set_eflags(Eflags::from_bits_truncate(ALWAYS_ONE));
    cpu.ip = CODE;
    cpu
}
