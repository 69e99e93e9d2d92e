//! Machines in each mode, with memory laid out in each way.

use ring3_core::memory::{Backing, Memory};
use ring3_x86::cpu::{Cr0, Cr4, reg};
use ring3_x86::engine::{Engine, Exit};
use ring3_x86::flags::Eflags;
use ring3_x86::segment::{Attributes, Segment, TableRegister, sreg};

use crate::common::random::Random;
use crate::instructions::{Code, END, Kind, Needs, RESUME, RETURNS};
use crate::machine::*;

/// Bytes of memory.
pub(crate) const RAM: u64 = 4 << 20;
/// Rounds of a loop.
pub(crate) const ROUNDS: u16 = 300;
/// More instructions than the rounds execute.
const LIMIT: u64 = 1_000_000;

/// Number of pages of data. Of instructions with two operands, one is in the first page and one in the last.
pub(crate) const DATA_PAGES: u32 = 3;
/// Physical address beyond the end of memory.
const ABOVE_RAM: u32 = 0x80_0000;
/// The tables of PAE paging: pointers, a directory and two page tables.
const POINTERS: u32 = 0xa000;
/// The page directory and the page table of another address space, and the distance of its data from that of
/// the first one.
const OTHER_DIRECTORY: u32 = 0xe000;
const OTHER_TABLE: u32 = 0xf000;
const OTHER_DATA: u32 = 0x8000;
/// Code that enables paging, and code that resumes a loop after an exception, with an error code and without.
const ENABLE: u32 = 0x6800;
const RESUME_WITH_CODE: u32 = 0x6900;
const RESUME_WITHOUT_CODE: u32 = 0x6940;
/// The interrupt vectors of real mode, and the code to which they lead.
const REAL_VECTORS: u32 = 0x4000;
const REAL_RETURN: u16 = 0x4800;
const REAL_END: u16 = 0x4810;
const REAL_RESUME: u16 = 0x4820;
/// The page of the first loop. The pages of the other loops follow it.
const LOOPS: u32 = 0x5_0000;
const LOOPS_END: u32 = 0xc_0000;
/// Address of data: its offset in the page of a loop, and its address in the page of page tables, where it is
/// no entry in use.
const IN_CODE: u32 = 0x800;
const IN_TABLES: u32 = PAGE_TABLE + 0xc00;
/// Offset in its page of the top of the stack.
const TOP: u32 = 0x800;

/// The mode of the code.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mode {
    /// 32-bit code in flat segments, at this privilege.
    Flat(u16),
    /// 32-bit code in segments with a base and a limit, at privilege 0.
    Segmented,
    /// 16-bit code of protected mode, at privilege 0.
    Protected16,
    Real,
    Virtual8086,
}

impl Mode {
    pub(crate) fn is_32_bit(self) -> bool {
        matches!(self, Mode::Flat(_) | Mode::Segmented)
    }

    pub(crate) fn is_user(self) -> bool {
        matches!(self, Mode::Flat(3) | Mode::Virtual8086)
    }

    fn is_flat(self) -> bool {
        matches!(self, Mode::Flat(_))
    }

    fn has_descriptors(self) -> bool {
        !matches!(self, Mode::Real | Mode::Virtual8086)
    }

    fn has_privilege(self) -> bool {
        !self.is_user() && self != Mode::Flat(1)
    }
}

/// The contents of the pages of data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Behind {
    Ram,
    Device,
    Rom,
    /// Neither memory nor a device.
    Nothing,
    /// The page that the loop is in.
    Code,
    /// The page of the page tables.
    Tables,
}

/// How linear addresses are mapped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Paging {
    Small,
    /// Pages of 4 MiB.
    Large,
    Extended,
    /// PAE paging with pages of 2 MiB.
    ExtendedLarge,
}

/// What a loop does at the end of each round.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Change {
    Nothing,
    /// It gives the first page of data to users, or to the supervisor alone.
    Owner,
    /// It clears the accessed and dirty bits of that page.
    Accessed,
    /// It sets or clears CR0.WP.
    WriteProtection,
    /// It switches to another address space, whose data is elsewhere.
    Space,
}

/// How memory is laid out.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Layout {
    pub(crate) name: &'static str,
    /// Bits of the page-table entries of tables and handlers, of the loop, of its stack, and of data.
    pub(crate) system: u32,
    pub(crate) text: u32,
    pub(crate) stack: u32,
    pub(crate) data: [u32; DATA_PAGES as usize],
    pub(crate) behind: Behind,
    pub(crate) paging: Paging,
    /// Whether the operand continues in the next page.
    pub(crate) crosses: bool,
    pub(crate) change: Change,
}

/// Bit of a page-directory entry that maps a large page.
const LARGE: u32 = 0x80;
const USER: u32 = P | RW | US;
const SUPERVISOR: u32 = P | RW;

const ALL_USER: Layout = Layout {
    name: "all of the user",
    system: USER,
    text: USER,
    stack: USER,
    data: [USER; 3],
    behind: Behind::Ram,
    paging: Paging::Small,
    crosses: false,
    change: Change::Nothing,
};

const ALL_SUPERVISOR: Layout = Layout {
    name: "all of the supervisor",
    system: SUPERVISOR,
    text: SUPERVISOR,
    stack: SUPERVISOR,
    data: [SUPERVISOR; 3],
    ..ALL_USER
};

pub(crate) static LAYOUTS: &[Layout] = &[
    ALL_USER,
    ALL_SUPERVISOR,
    Layout { name: "text of the user", text: USER, ..ALL_SUPERVISOR },
    Layout { name: "stack of the user", stack: USER, ..ALL_SUPERVISOR },
    Layout { name: "data of the user", data: [USER; 3], ..ALL_SUPERVISOR },
    Layout { name: "data of the supervisor", data: [SUPERVISOR; 3], ..ALL_USER },
    Layout { name: "alternating pages", data: [USER, SUPERVISOR, SUPERVISOR], ..ALL_SUPERVISOR },
    Layout {
        name: "alternating pages, text and stack of the user",
        data: [SUPERVISOR, USER, USER],
        ..ALL_USER
    },
    Layout { name: "data to be read", data: [P | US; 3], ..ALL_USER },
    Layout { name: "data of the supervisor to be read", data: [P; 3], ..ALL_SUPERVISOR },
    Layout { name: "data of the user to be read", data: [P | US; 3], ..ALL_SUPERVISOR },
    Layout { name: "no data", data: [0; 3], ..ALL_USER },
    Layout { name: "no data for the supervisor", data: [0; 3], ..ALL_SUPERVISOR },
    Layout { name: "crossing pages", crosses: true, ..ALL_USER },
    Layout { name: "crossing pages of the supervisor", crosses: true, ..ALL_SUPERVISOR },
    Layout {
        name: "crossing alternating pages",
        crosses: true,
        data: [SUPERVISOR, USER, SUPERVISOR],
        ..ALL_SUPERVISOR
    },
    Layout {
        name: "crossing to what is not there",
        crosses: true,
        data: [USER, 0, USER],
        ..ALL_USER
    },
    Layout { name: "a device", behind: Behind::Device, ..ALL_USER },
    Layout { name: "a device of the supervisor", behind: Behind::Device, ..ALL_SUPERVISOR },
    Layout { name: "crossing to a device", behind: Behind::Device, crosses: true, ..ALL_USER },
    Layout { name: "ROM", behind: Behind::Rom, ..ALL_USER },
    Layout { name: "ROM of the supervisor", behind: Behind::Rom, ..ALL_SUPERVISOR },
    Layout { name: "above RAM", behind: Behind::Nothing, ..ALL_USER },
    Layout { name: "code", behind: Behind::Code, ..ALL_USER },
    Layout { name: "code of the supervisor", behind: Behind::Code, ..ALL_SUPERVISOR },
    Layout { name: "page tables", behind: Behind::Tables, ..ALL_USER },
    Layout { name: "page tables of the supervisor", behind: Behind::Tables, ..ALL_SUPERVISOR },
    Layout { name: "large pages of the user", paging: Paging::Large, ..ALL_USER },
    Layout { name: "large pages", paging: Paging::Large, ..ALL_SUPERVISOR },
    Layout {
        name: "large pages with code",
        paging: Paging::Large,
        behind: Behind::Code,
        ..ALL_USER
    },
    Layout { name: "PAE", paging: Paging::Extended, ..ALL_USER },
    Layout { name: "PAE with large pages", paging: Paging::ExtendedLarge, ..ALL_USER },
    Layout { name: "owners that change", change: Change::Owner, ..ALL_USER },
    Layout {
        name: "owners that change for the supervisor",
        change: Change::Owner,
        ..ALL_SUPERVISOR
    },
    Layout { name: "accessed bits that are cleared", change: Change::Accessed, ..ALL_USER },
    Layout { name: "address spaces", change: Change::Space, ..ALL_USER },
    Layout { name: "address spaces of the supervisor", change: Change::Space, ..ALL_SUPERVISOR },
    Layout {
        name: "address spaces with data of the user",
        change: Change::Space,
        data: [USER; 3],
        ..ALL_SUPERVISOR
    },
    Layout { name: "WP that changes", change: Change::WriteProtection, ..ALL_USER },
    Layout {
        name: "WP that changes over data to be read",
        change: Change::WriteProtection,
        data: [P | US; 3],
        ..ALL_USER
    },
];

impl Layout {
    /// Returns a random layout with which code of `mode` can run.
    pub(crate) fn random(random: &mut Random, mode: Mode) -> Layout {
        const OWNERS: [u32; 2] = [USER, SUPERVISOR];
        const RIGHTS: [u32; 6] = [USER, USER, SUPERVISOR, P | US, P, 0];
        use {Behind as B, Change as C, Paging as G};
        loop {
            let layout = Layout {
                name: "random",
                system: random.pick(&OWNERS),
                text: random.pick(&[USER, SUPERVISOR, P | US, P]),
                stack: random.pick(&OWNERS),
                data: [(); DATA_PAGES as usize].map(|()| random.pick(&RIGHTS)),
                behind: random.pick(&[
                    B::Ram,
                    B::Ram,
                    B::Device,
                    B::Rom,
                    B::Nothing,
                    B::Code,
                    B::Tables,
                ]),
                paging: random.pick(&[G::Small, G::Small, G::Large, G::Extended, G::ExtendedLarge]),
                crosses: random.percent(30),
                change: random.pick(&[
                    C::Nothing,
                    C::Nothing,
                    C::Owner,
                    C::Accessed,
                    C::WriteProtection,
                    C::Space,
                ]),
            };
            // A large page contains everything, and only small pages allow for another space.
            let is_large = matches!(layout.paging, G::Large | G::ExtendedLarge);
            let fits = (!is_large || layout.text & RW != 0)
                && (layout.paging == G::Small || layout.change != C::Space);
            if fits && layout.is_possible(mode) {
                return layout;
            }
        }
    }

    /// Returns whether pages of data can be read and not written, or CR0.WP changes.
    pub(crate) fn has_pages_to_be_read(&self) -> bool {
        self.data.iter().any(|bits| bits & (P | RW) == P) || self.change == Change::WriteProtection
    }

    /// Returns whether code of `mode` can run with this layout.
    pub(crate) fn is_possible(&self, mode: Mode) -> bool {
        let has_paging = mode != Mode::Real;
        let needs_paging = self.system & self.text & self.stack & US == 0
            || self.data != [USER; 3]
            || self.paging != Paging::Small
            || matches!(self.behind, Behind::Nothing | Behind::Tables);
        (has_paging || !needs_paging)
            && (!mode.is_user() || self.text & US != 0)
            && (self.change == Change::Nothing || mode == Mode::Flat(0))
    }

    /// Returns whether loops around `kind` end with this layout, and do what they should.
    pub(crate) fn is_of_use(&self, kind: &Kind, mode: Mode) -> bool {
        let is_memory = matches!(self.behind, Behind::Ram | Behind::Code | Behind::Tables);
        // A branch through memory that cannot be written faults, and the loop goes on. If the write has no
        // effect it leads anywhere.
        let is_written = is_memory && !self.crosses;
        match kind.needs {
            Needs::Nothing => true,
            Needs::Memory => is_written,
            Needs::Alignment => !self.crosses,
            Needs::Privilege => mode.has_privilege(),
            Needs::Descriptors => mode.has_descriptors(),
        }
    }

    /// Returns the linear address of the operand of the loop in the page at `code`.
    fn data(&self, code: u32) -> u32 {
        match self.behind {
            Behind::Code => code + IN_CODE,
            Behind::Tables => IN_TABLES,
            _ if self.crosses => DATA + 0xfff,
            _ => DATA + 0x100,
        }
    }

    /// Returns the code of [`Layout::change`].
    fn end_of_round(&self) -> Vec<u8> {
        let entry = Machine::pte(DATA).to_le_bytes();
        let invalidate = [0x0f, 0x01, 0x3b]; // INVLPG [EBX]
        match self.change {
            Change::Nothing => Vec::new(),
            Change::Owner => [&[0x83, 0x35][..], &entry, &[US as u8], &invalidate].concat(), // XOR DWORD [entry], US
            Change::Accessed => [&[0x83, 0x25][..], &entry, &[0x9f], &invalidate].concat(), // AND DWORD [entry], ~60h
            // MOV EAX, CR0; BTC EAX, 16; MOV CR0, EAX
            // MOV EAX, CR3; XOR EAX, from one directory to the other; MOV CR3, EAX
            Change::Space => {
                let difference = (PAGE_DIRECTORY ^ OTHER_DIRECTORY).to_le_bytes();
                [&[0x0f, 0x20, 0xd8, 0x35][..], &difference, &[0x0f, 0x22, 0xd8]].concat()
            }
            Change::WriteProtection => {
                vec![0x0f, 0x20, 0xc0, 0x0f, 0xba, 0xf8, 16, 0x0f, 0x22, 0xc0]
            }
        }
    }
}

/// A machine of one mode and layout, with a loop for each kind of instruction.
pub(crate) struct Scene {
    pub(crate) machine: Machine,
    mode: Mode,
    layout: Layout,
}

impl Scene {
    /// Makes a scene on `engine`.
    pub(crate) fn new(
        engine: (Box<dyn Engine>, Memory),
        mode: Mode,
        layout: &Layout,
        write_protection: bool,
    ) -> Scene {
        let (engine, mut memory) = engine;
        put_data(&mut memory, layout.behind);
        let mut machine = Machine::on((engine, memory));
        for number in 0..DATA_PAGES * 0x400 {
            machine.put_dword(DATA + 4 * number, number.wrapping_mul(0x0101_3701) | 1);
        }
        put_tables(&mut machine, layout);
        // MOV CR4, EDX; MOV CR3, EAX; MOV CR0, ECX
        machine.put(ENABLE, &[0x0f, 0x22, 0xe2, 0x0f, 0x22, 0xd8, 0x0f, 0x22, 0xc1]);
        if mode != Mode::Real {
            enable_paging(&mut machine, layout.paging, write_protection);
        }
        Scene { machine, mode, layout: *layout }
    }

    /// Puts the loop around an instruction of this kind into memory, and the processor at its beginning.
    pub(crate) fn begin(&mut self, number: usize, kind: &Kind) {
        let Scene { machine, mode, layout } = self;
        let code = LOOPS + number as u32 * 0x1000;
        let data = layout.data(code);
        // Segments begin 64 KiB apart.
        let base = |linear: u32| if mode.is_flat() { 0 } else { linear & !0xffff };
        let offset = |linear: u32| linear - base(linear);
        let bases = [code, data, STACK].map(base);
        let selector = set_segments(machine, *mode, bases);
        let stack = offset(STACK + TOP);
        let end = layout.end_of_round();
        let bytes = Code::of(kind, *mode, (selector, offset(code)), offset(data), stack, &end);
        machine.put(code, &bytes);
        put_handlers(machine, selector, offset(code) + RESUME);
        enter(machine, *mode, bases);
        let registers = [
            (reg::AX, 1),
            (reg::CX, 2),
            (reg::DX, 0),
            (reg::BX, offset(data)),
            (reg::SP, stack),
            (reg::BP, ROUNDS.into()),
            (reg::SI, offset(data)),
            (reg::DI, offset(data)),
        ];
        for (register, value) in registers {
            machine.cpu.set_gpr(register, value.into());
        }
        machine.cpu.ip = offset(code).into();
    }

    /// Runs the loop to its end. Returns false if it does not end.
    pub(crate) fn run(&mut self) -> bool {
        let Machine { cpu, memory, engine, accesses, .. } = &mut self.machine;
        let deadline = cpu.instructions + LIMIT;
        while cpu.instructions < deadline {
            match engine.run(cpu, memory, deadline - cpu.instructions) {
                Exit::PortRead { .. } => return cpu.get::<u16>(reg::BP) == 0,
                exit @ (Exit::MmioRead { .. } | Exit::MmioWrite { .. }) => {
                    accesses.push(exit);
                    cpu.answer(0);
                }
                _ => return false,
            }
        }
        false
    }
}

// The parts of a scene ---------------------------------------------------

/// The selectors of CS, SS, data and FS with these descriptors.
const FREE_CODE: u16 = FREE;
const FREE_STACK: u16 = FREE + 8;
const FREE_DATA: u16 = FREE + 16;
const FREE_FS: u16 = FREE + 24;

/// Returns code, stack, data and FS of a mode with descriptors. The bases of code, data and stack are given.
fn segments(mode: Mode, [code, data, stack]: [u32; 3]) -> [(u8, Segment); 6] {
    let (privilege, size, limit) = match mode {
        Mode::Flat(privilege) => (privilege, 0xc000, u32::MAX),
        Mode::Segmented => (0, 0x4000, 0xffff),
        _ => (0, 0, 0xffff),
    };
    let segment = |selector: u16, base: u32, limit, access: u16, size: u16| {
        let attributes = Attributes(size | access | privilege << 5);
        Segment::new(selector | privilege, base.into(), limit, attributes)
    };
    let data_segment = segment(FREE_DATA, data, limit, 0x93, size);
    [
        (sreg::CS, segment(FREE_CODE, code, limit, 0x9b, size)),
        (sreg::SS, segment(FREE_STACK, stack, limit, 0x93, size)),
        (sreg::DS, data_segment),
        (sreg::ES, data_segment),
        // FS has a limit in flat code too, as the segments of threads have.
        (sreg::FS, segment(FREE_FS, data, 0xf_ffff, 0x93, size & 0x4000)),
        (sreg::GS, data_segment),
    ]
}

/// Gives the segments descriptors, and returns the selector of CS.
fn set_segments(machine: &mut Machine, mode: Mode, bases: [u32; 3]) -> u16 {
    if !mode.has_descriptors() {
        return (bases[0] >> 4) as u16;
    }
    let segments = segments(mode, bases);
    for (_, segment) in segments {
        let (base, attributes) = (segment.base, u64::from(segment.attributes.0));
        let is_in_pages = attributes & 0x8000 != 0;
        let limit = u64::from(if is_in_pages { segment.limit >> 12 } else { segment.limit });
        let descriptor = limit & 0xffff
            | (base & 0xff_ffff) << 16
            | (attributes & 0xf0ff) << 40
            | (limit >> 16) << 48
            | (base >> 24) << 56;
        machine.set_descriptor(segment.selector, descriptor);
    }
    segments[0].1.selector
}

/// Enters the mode.
fn enter(machine: &mut Machine, mode: Mode, bases: [u32; 3]) {
    let cpu = &mut machine.cpu;
    let selector = |base: u32| (base >> 4) as u16;
    let [code, data, stack] = bases.map(selector);
    let all = [
        (sreg::CS, code),
        (sreg::SS, stack),
        (sreg::DS, data),
        (sreg::ES, data),
        (sreg::FS, data),
        (sreg::GS, data),
    ];
    let io = Eflags::from_bits_truncate(3 << 12);
    match mode {
        Mode::Real => {
            cpu.set_cr0(Cr0::NE | Cr0::MP);
            cpu.idtr = TableRegister { base: REAL_VECTORS.into(), limit: 0x3ff };
            for (register, selector) in all {
                cpu.set_segment(register, Segment::real(selector, 0));
            }
        }
        Mode::Virtual8086 => {
            cpu.set_eflags(Eflags::VM | io);
            for (register, selector) in all {
                cpu.set_segment(register, Segment::real(selector, 3));
            }
        }
        _ => {
            cpu.set_eflags(io);
            for (register, segment) in segments(mode, bases) {
                cpu.set_segment(register, segment);
            }
        }
    }
    cpu.set_cr4(cpu.cr4() | Cr4::OSFXSR | Cr4::OSXMMEXCPT);
}

/// Puts handlers into memory: one that returns, one that ends a loop, and one that continues at `resume`
/// after any exception.
fn put_handlers(machine: &mut Machine, code: u16, resume: u32) {
    let resume = resume.to_le_bytes();
    // MOV DWORD [ESP], resume; IRETD
    let without_code = [&[0xc7, 0x04, 0x24][..], &resume, &[0xcf]].concat();
    machine.put(RESUME_WITHOUT_CODE, &without_code);
    // ADD ESP, 4
    machine.put(RESUME_WITH_CODE, &[&[0x83, 0xc4, 4][..], &without_code].concat());
    for vector in 0..32 {
        let has_code = matches!(vector, 10..=14 | 17);
        let code = if has_code { RESUME_WITH_CODE } else { RESUME_WITHOUT_CODE };
        if vector != 8 {
            machine.code(handler(vector), &[crate::common::assembler::jmp(code)]);
        }
    }
    machine.put(handler(RETURNS), &[0xcf]);
    for vector in [RETURNS, END] {
        machine.set_gate(vector, KERNEL_CODE, INTERRUPT_GATE | DPL3);
    }
    machine.put(handler(END), &[0xec]); // IN AL, DX
    for vector in 0..=255 {
        let offset = match vector {
            RETURNS => REAL_RETURN,
            END => REAL_END,
            _ => REAL_RESUME,
        };
        machine.put_dword(REAL_VECTORS + 4 * u32::from(vector), offset.into());
    }
    machine.put(REAL_RETURN.into(), &[0xcf]);
    machine.put(REAL_END.into(), &[0xec]);
    // ADD SP, 6; JMP code:resume
    let [low, high] = code.to_le_bytes();
    let far_jump = [0x83, 0xc4, 6, 0xea, resume[0], resume[1], low, high];
    machine.put(REAL_RESUME.into(), &far_jump);
}

/// Prepares the pages of data, before anything is in memory.
fn put_data(memory: &mut Memory, behind: Behind) {
    let (start, len) = (u64::from(DATA), u64::from(DATA_PAGES) * 0x1000);
    match behind {
        Behind::Device => memory.map(start, len, Backing::Device, Backing::Device).unwrap(),
        Behind::Rom => {
            let area = memory.add_area(len).unwrap();
            memory.write_area(area, 0, &[0x55; 0x1000]);
            memory.map(start, len, Backing::Area(area, 0), Backing::Nothing).unwrap();
        }
        _ => {}
    }
}

/// Returns whether `linear` is in a page of data.
fn is_data(linear: u32) -> bool {
    (DATA..DATA + DATA_PAGES * 0x1000).contains(&linear)
}

/// Puts page tables of each kind into memory.
fn put_tables(machine: &mut Machine, layout: &Layout) {
    let bits = |linear: u32| {
        let page = linear & !0xfff;
        match page {
            _ if (LOOPS..LOOPS_END).contains(&page) => layout.text,
            _ if page == STACK || page == STACK - 0x1000 => layout.stack,
            _ if is_data(page) => layout.data[((page - DATA) >> 12) as usize],
            _ => layout.system,
        }
    };
    let frame = |linear: u32| {
        let is_above = is_data(linear) && layout.behind == Behind::Nothing;
        let above = if is_above { ABOVE_RAM } else { 0 };
        linear + above
    };
    let linears = || (0..0x40_0000).step_by(0x1000);
    match layout.paging {
        Paging::Small => {
            machine.put_dword(PAGE_DIRECTORY, PAGE_TABLE | USER);
            machine.put_dword(OTHER_DIRECTORY, OTHER_TABLE | USER);
            for linear in linears() {
                machine.map(linear, frame(linear), bits(linear));
                let elsewhere = if is_data(linear) { OTHER_DATA } else { 0 };
                let entry = (frame(linear) + elsewhere) | bits(linear);
                machine.put_dword(OTHER_TABLE + (linear >> 12) * 4, entry);
            }
        }
        Paging::Large => machine.put_dword(PAGE_DIRECTORY, LARGE | layout.text),
        Paging::Extended | Paging::ExtendedLarge => {
            let [directory, table] = [POINTERS + 0x1000, POINTERS + 0x2000];
            machine.put_dword(POINTERS, directory | P);
            for part in 0..2 {
                let entry = match layout.paging {
                    Paging::Extended => (table + part * 0x1000) | USER,
                    _ => (part << 21) | LARGE | layout.text,
                };
                machine.put_dword(directory + 8 * part, entry);
            }
            for linear in linears() {
                machine.put_dword(table + (linear >> 12) * 8, frame(linear) | bits(linear));
            }
        }
    }
}

/// Makes the processor enable paging, in the way of a system.
fn enable_paging(machine: &mut Machine, paging: Paging, write_protection: bool) {
    let is_extended = matches!(paging, Paging::Extended | Paging::ExtendedLarge);
    let table = if is_extended { POINTERS } else { PAGE_DIRECTORY };
    let extensions = if is_extended { Cr4::PAE } else { Cr4::PSE };
    let mut control = Cr0::PE | Cr0::PG | Cr0::NE | Cr0::MP;
    control.set(Cr0::WP, write_protection);
    let cpu = &mut machine.cpu;
    cpu.set_gpr(reg::AX, table.into());
    cpu.set_gpr(reg::CX, control.bits().into());
    cpu.set_gpr(reg::DX, extensions.bits().into());
    cpu.ip = ENABLE.into();
    assert_eq!(machine.run_for(3), Exit::Deadline);
}
