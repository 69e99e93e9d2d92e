//! The machine that random programs run on, and the layouts of its memory.

use ring3_core::memory::Memory;
use ring3_x86::cpu::{Cpu, Cr0, Cr4, reg};
use ring3_x86::cpuid::Model;
use ring3_x86::flags::{ALWAYS_ONE, Eflags};
use ring3_x86::segment::{Attributes, Segment, TableRegister, sreg};
use ring3_x86::undefined::Vendor;

use crate::maker::{INDICES, POINTERS, SLOT, SLOTS};
use crate::random::Random;

pub(crate) const MEMORY: u64 = 2 << 20;
pub(crate) const PAGE: u64 = 0x1000;

// Guest-physical memory: page tables from the first address on, and what is mapped.
const PML4: u64 = 0x1000;
pub(crate) const TABLES: u64 = 0x8_0000;
pub(crate) const CODE: u64 = 0x10_0000;
pub(crate) const CODE_PAGES: u64 = 2;
/// Where the pages of code are mapped a second time, from the first address on.
pub(crate) const ALIAS: u64 = 0x10_0000;
const DATA: u64 = 0x11_0000;
const DATA_PAGES: u64 = 4;
const STACK: u64 = 0x12_0000;
pub(crate) const SYSTEM: u64 = 0x13_0000;

/// The linear addresses of the system's pages: tables, handlers, and a stack.
pub(crate) const SYSTEM_LINEAR: u64 = 0xffff_ffff_8200_0000;
pub(crate) const HANDLERS: u64 = SYSTEM_LINEAR + PAGE;
const INNER_STACK: u64 = SYSTEM_LINEAR + 3 * PAGE;
pub(crate) const IDT: u64 = SYSTEM_LINEAR + 0x400;
const TSS: u64 = SYSTEM_LINEAR + 0x200;
/// Where SYSCALL leads.
pub(crate) const SYSTEM_ENTRY: u64 = HANDLERS + 0xc00;
/// The vector of interrupts.
pub(crate) const INTERRUPT: u8 = 20;
pub(crate) const KERNEL_CODE: u16 = 0x10;
const KERNEL_DATA: u16 = 0x18;
const USER_DATA: u16 = 0x2b;
const USER_CODE: u16 = 0x33;

/// Where a program is: the linear addresses of its code, data and stack.
#[derive(Debug)]
pub(crate) struct Layout {
    pub(crate) code: u64,
    pub(crate) data: u64,
    pub(crate) stack: u64,
    pub(crate) is_user: bool,
    /// Whether its data is memory of users.
    pub(crate) has_data_of_users: bool,
}

pub(crate) const LAYOUTS: [Layout; 5] = [
    Layout {
        code: 0xffff_ffff_8100_0000,
        data: 0xffff_8881_0000_0000,
        stack: 0xffff_c900_0000_4000,
        is_user: false,
        has_data_of_users: false,
    },
    Layout {
        code: 0x5555_5555_4000,
        data: 0x7f1a_f7c0_0000,
        stack: 0x7ffe_1234_5000,
        is_user: true,
        has_data_of_users: true,
    },
    // As a program that is not position-independent, whose units do not fit together.
    Layout {
        code: 0x40_0000,
        data: 0x60_0000,
        stack: 0x7ffe_1234_5000,
        is_user: true,
        has_data_of_users: true,
    },
    // As a kernel that copies from and to programs of both kinds.
    Layout {
        code: 0xffff_ffff_8100_0000,
        data: 0x7f1a_f7c0_0000,
        stack: 0xffff_c900_0000_4000,
        is_user: false,
        has_data_of_users: true,
    },
    Layout {
        code: 0xffff_ffff_8100_0000,
        data: 0x60_0000,
        stack: 0xffff_c900_0000_4000,
        is_user: false,
        has_data_of_users: true,
    },
];

/// Maps the page at `linear` to `physical`.
pub(crate) fn map(memory: &mut Memory, tables: &mut u64, linear: u64, physical: u64, rights: u64) {
    let mut table = PML4;
    for shift in [39, 30, 21] {
        let address = table + (linear >> shift & 0x1ff) * 8;
        let mut entry = u64::from_le_bytes(memory.read_aligned(address));
        if entry == 0 {
            entry = *tables | 7;
            *tables += PAGE;
            memory.write(address, &entry.to_le_bytes());
        }
        table = entry & !0xfff;
    }
    let entry = physical | rights;
    memory.write(table + (linear >> 12 & 0x1ff) * 8, &entry.to_le_bytes());
}

/// Fills the memory of a machine with `code`, and returns its processor.
pub(crate) fn machine(
    memory: &mut Memory,
    layout: &Layout,
    code: &[u8],
    mut random: Random,
) -> Cpu {
    const USER: u64 = 4;
    const WRITABLE: u64 = 3;
    let mut tables = TABLES;
    for (linear, physical, pages, of_users) in [
        (layout.code, CODE, CODE_PAGES, layout.is_user),
        (layout.code + ALIAS, CODE, CODE_PAGES, layout.is_user),
        (layout.data, DATA, DATA_PAGES, layout.has_data_of_users),
        (layout.stack - 2 * PAGE, STACK, 2, layout.is_user),
    ] {
        let rights = WRITABLE | if of_users { USER } else { 0 };
        for page in 0..pages {
            map(memory, &mut tables, linear + page * PAGE, physical + page * PAGE, rights);
        }
    }
    for page in 0..3 {
        map(memory, &mut tables, SYSTEM_LINEAR + page * PAGE, SYSTEM + page * PAGE, WRITABLE);
    }
    memory.write(CODE, code);
    for at in (0..DATA_PAGES * PAGE).step_by(8) {
        // Some words are addresses of code.
        let target = layout.code + u64::from(random.below(SLOTS as u32)) * SLOT;
        let word = if random.percent(20) { target } else { random.next() };
        memory.write(DATA + at, &word.to_le_bytes());
    }
    let mut put = |linear: u64, bytes: &[u8]| memory.write(linear - SYSTEM_LINEAR + SYSTEM, bytes);
    for (selector, descriptor) in [
        (KERNEL_CODE, 0x00af_9b00_0000_ffff_u64),
        (KERNEL_DATA, 0x00cf_9300_0000_ffff),
        (USER_CODE, 0x00af_fb00_0000_ffff),
        (USER_DATA, 0x00cf_f300_0000_ffff),
    ] {
        put(SYSTEM_LINEAR + u64::from(selector & !7), &descriptor.to_le_bytes());
    }
    for vector in 0..32 {
        let handler = HANDLERS + vector * 32;
        let has_code = matches!(vector, 8 | 10..=14 | 17);
        let mut bytes: Vec<u8> = Vec::new();
        if has_code {
            bytes.extend([0x48, 0x83, 0xc4, 0x08]); // ADD RSP, 8
        }
        if vector != u64::from(INTERRUPT) {
            bytes.extend([0x48, 0x83, 0x04, 0x24, 0x10]); // ADD QWORD [RSP], 16
            bytes.extend([0x48, 0x83, 0x24, 0x24, 0xf0]); // AND QWORD [RSP], -16
        }
        bytes.extend([0x48, 0xcf]); // IRETQ
        put(handler, &bytes);
        let low = handler & 0xffff
            | u64::from(KERNEL_CODE) << 16
            | 0xee00 << 32
            | (handler >> 16 & 0xffff) << 48;
        put(IDT + vector * 16, &low.to_le_bytes());
        put(IDT + vector * 16 + 8, &(handler >> 32).to_le_bytes());
    }
    // SWAPGS; ADD [GS:0], RCX; STI; NOP; CLI; SWAPGS; SYSRETQ
    let entered: [u8; 22] = [
        0x0f, 0x01, 0xf8, 0x65, 0x48, 0x01, 0x0c, 0x25, 0, 0, 0, 0, 0xfb, 0x90, 0xfa, 0x0f, 0x01,
        0xf8, 0x48, 0x0f, 0x07, 0xcc,
    ];
    put(SYSTEM_ENTRY, &entered);
    put(TSS + 4, &INNER_STACK.to_le_bytes());

    let mut cpu = Cpu::of_model(Model::X86_64_V3);
    cpu.vendor = Vendor::of_host();
    cpu.gdtr = TableRegister { base: SYSTEM_LINEAR, limit: 0xff };
    cpu.idtr = TableRegister { base: IDT, limit: 32 * 16 - 1 };
    cpu.tr = Segment::new(0x38, TSS, 0x67, Attributes(0x8b));
    (cpu.msrs.long.enabled, cpu.msrs.no_execute) = (true, true);
    cpu.msrs.long.system_calls = true;
    cpu.msrs.long.star = u64::from(KERNEL_CODE) << 32 | u64::from(USER_CODE - 16) << 48;
    cpu.msrs.long.lstar = SYSTEM_ENTRY;
    cpu.msrs.long.flag_mask = 0x0025_7fd5;
    cpu.msrs.long.kernel_gs_base = SYSTEM_LINEAR + 2 * PAGE;
    let keeps_from_users = if random.percent(50) { Cr4::SMAP } else { Cr4::empty() };
    let has_avx = if random.percent(90) { Cr4::OSXSAVE } else { Cr4::empty() };
    let other = Cr4::OSXMMEXCPT | Cr4::PGE | keeps_from_users | has_avx;
    cpu.set_cr4(Cr4::PAE | Cr4::OSFXSR | other);
    cpu.msrs.xcr0 = random.pick(&[7, 7, 7, 7, 7, 7, 7, 3]);
    cpu.set_cr3(PML4);
    let task_switched = if random.percent(20) { Cr0::TS } else { Cr0::empty() };
    cpu.set_cr0(Cr0::PE | Cr0::PG | Cr0::WP | Cr0::NE | Cr0::MP | task_switched);
    let (code, data, dpl) = if layout.is_user {
        (USER_CODE, USER_DATA, 0x60_u16)
    } else {
        (KERNEL_CODE, KERNEL_DATA, 0)
    };
    let segment = |selector, access| Segment::new(selector, 0, u32::MAX, Attributes(access | dpl));
    cpu.set_segment(sreg::CS, segment(code, 0xa09b));
    for register in [sreg::SS, sreg::DS, sreg::ES] {
        cpu.set_segment(register, segment(data, 0xc093));
    }
    let gs = Segment::new(0, layout.data + PAGE, 0, Attributes(0));
    cpu.set_segment(sreg::GS, gs);
    for number in 0..16 {
        cpu.set_gpr(number, random.next() >> random.below(64));
        let mut half = || u128::from(random.next()) << 64 | u128::from(random.next());
        cpu.sse.set_ymm(number, [half(), half()]);
    }
    for register in POINTERS {
        cpu.set_gpr(register.number() as u8, layout.data + u64::from(random.below(0x3000)));
    }
    for register in INDICES {
        cpu.set_gpr(register.number() as u8, random.below(40).into());
    }
    cpu.set_gpr(reg::SP, layout.stack - 0x800);
    cpu.set_gpr(reg::BP, layout.stack - 0x400);
    cpu.set_eflags(Eflags::from_bits_truncate(ALWAYS_ONE | Eflags::IF.bits()));
    cpu.ip = layout.code;
    cpu
}
