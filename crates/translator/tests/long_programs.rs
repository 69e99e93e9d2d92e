//! Random programs of 64-bit code, of a kernel and of users, with exceptions, system instructions and code
//! that changes: they must have the same results on the translator as on the interpreter, with deadlines
//! anywhere.

#[path = "support/agreement.rs"]
mod agreement;
#[path = "../../x86/tests/common/random.rs"]
#[allow(dead_code, reason = "it is not all needed here")]
mod random;
#[path = "../../x86/tests/common/series.rs"]
mod series;
mod support;

use agreement::{Outcome, assert_agrees};
use iced_x86::{Code, Encoder, Instruction, MemoryOperand, Register};
use random::Random;
use ring3_core::memory::Memory;
use ring3_x86::cpu::{Cpu, Cr0, Cr4, reg};
use ring3_x86::cpuid::Model;
use ring3_x86::engine::{Engine, Exit};
use ring3_x86::flags::{ALWAYS_ONE, Eflags};
use ring3_x86::interpreter::Interpreter;
use ring3_x86::segment::{Attributes, Segment, TableRegister, sreg};
use ring3_x86::undefined::Vendor;
use series::Series;
use support::translator;

const CASES: u64 = if cfg!(debug_assertions) { 30 } else { 120 };
/// Instructions of each program.
const EXECUTED: u64 = 4000;
const MEMORY: u64 = 2 << 20;
const PAGE: u64 = 0x1000;

// Guest-physical memory: page tables from the first address on, and what is mapped.
const PML4: u64 = 0x1000;
const TABLES: u64 = 0x8_0000;
const CODE: u64 = 0x10_0000;
const CODE_PAGES: u64 = 2;
const DATA: u64 = 0x11_0000;
const DATA_PAGES: u64 = 4;
const STACK: u64 = 0x12_0000;
const SYSTEM: u64 = 0x13_0000;

/// The linear addresses of the system's pages: tables, handlers, and a stack.
const SYSTEM_LINEAR: u64 = 0xffff_ffff_8200_0000;
const HANDLERS: u64 = SYSTEM_LINEAR + PAGE;
const INNER_STACK: u64 = SYSTEM_LINEAR + 3 * PAGE;
const IDT: u64 = SYSTEM_LINEAR + 0x400;
const TSS: u64 = SYSTEM_LINEAR + 0x200;
/// Where SYSCALL leads.
const SYSTEM_ENTRY: u64 = HANDLERS + 0xc00;
/// The vector of interrupts.
const INTERRUPT: u8 = 20;
const KERNEL_CODE: u16 = 0x10;
const KERNEL_DATA: u16 = 0x18;
const USER_DATA: u16 = 0x2b;
const USER_CODE: u16 = 0x33;

/// Where a program is: the linear addresses of its code, data and stack.
struct Layout {
    code: u64,
    data: u64,
    stack: u64,
    is_user: bool,
    /// Whether its data is memory of users.
    has_data_of_users: bool,
}

const LAYOUTS: [Layout; 5] = [
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

/// Each instruction has as many bytes, with NOPs behind it, so that there is something at each branch's
/// target.
const SLOT: u64 = 16;
const SLOTS: u64 = CODE_PAGES * PAGE / SLOT;

/// Registers that mostly have addresses of data.
const POINTERS: [Register; 3] = [Register::RBX, Register::R9, Register::R13];
/// Registers that mostly have small numbers.
const INDICES: [Register; 2] = [Register::RCX, Register::R10];
const OTHERS: [Register; 8] = [
    Register::RAX,
    Register::RDX,
    Register::RSI,
    Register::RDI,
    Register::R8,
    Register::R11,
    Register::R14,
    Register::R15,
];

/// Maps the page at `linear` to `physical`.
fn map(memory: &mut Memory, tables: &mut u64, linear: u64, physical: u64, rights: u64) {
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
fn machine(memory: &mut Memory, layout: &Layout, code: &[u8], mut random: Random) -> Cpu {
    const USER: u64 = 4;
    const WRITABLE: u64 = 3;
    let mut tables = TABLES;
    for (linear, physical, pages, of_users) in [
        (layout.code, CODE, CODE_PAGES, layout.is_user),
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

    let mut cpu = Cpu::of_model(Model::Qemu64);
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
    cpu.set_cr4(Cr4::PAE | Cr4::OSFXSR | Cr4::OSXMMEXCPT | Cr4::PGE | keeps_from_users);
    cpu.set_cr3(PML4);
    cpu.set_cr0(Cr0::PE | Cr0::PG | Cr0::WP | Cr0::NE | Cr0::MP);
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
        cpu.sse.set_xmm(number, u128::from(random.next()) << 64 | u128::from(random.next()));
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

/// Makes the instructions of a program.
struct Maker<'a> {
    random: &'a mut Random,
    code: u64,
}

impl Maker<'_> {
    /// Returns a register that may be written to, with so many bytes.
    fn register(&mut self, bytes: usize) -> Register {
        let all = if self.random.percent(3) { &POINTERS[..] } else { &OTHERS[..] };
        self.sized(all, bytes)
    }

    /// Returns any register.
    fn source(&mut self, bytes: usize) -> Register {
        let all = match self.random.below(8) {
            0 => &POINTERS[..],
            1 => &INDICES[..],
            2 => &[Register::RSP, Register::RBP][..],
            _ => &OTHERS[..],
        };
        self.sized(all, bytes)
    }

    fn sized(&mut self, all: &[Register], bytes: usize) -> Register {
        let number = self.random.pick(all).number() as u32;
        match bytes {
            1 if number >= 4 => Register::SPL + (number - 4),
            1 if self.random.percent(10) => Register::AH + number,
            1 => Register::AL + number,
            2 => Register::AX + number,
            4 => Register::EAX + number,
            _ => Register::RAX + number,
        }
    }

    /// Returns an operand in memory.
    fn memory(&mut self) -> MemoryOperand {
        let mut base = self.random.pick(&POINTERS);
        let mut index = Register::None;
        let mut segment = Register::None;
        let mut displacement = i64::from(self.random.below(0x400)) - 0x100;
        match self.random.below(20) {
            0..=5 => index = self.random.pick(&INDICES),
            6 | 7 => base = self.random.pick(&[Register::RSP, Register::RBP]),
            8 => base = self.random.pick(&OTHERS),
            9 => (segment, base) = (Register::GS, Register::None),
            10 => (segment, base) = (Register::GS, self.random.pick(&INDICES)),
            11 => {
                base = Register::RIP;
                let offset = self.random.below((CODE_PAGES * PAGE - 16) as u32);
                displacement = (self.code + u64::from(offset)) as i64;
            }
            12 => displacement = i64::from(self.random.bits() as i32),
            _ => {}
        }
        let scale = self.random.pick(&[1, 2, 4, 8]);
        let scale = if index == Register::None { 1 } else { scale };
        let size = if base == Register::None || base == Register::RIP { 8 } else { 1 };
        MemoryOperand::new(base, index, scale, displacement, size, false, segment)
    }

    fn target(&mut self) -> u64 {
        self.code + u64::from(self.random.below(SLOTS as u32)) * SLOT
    }

    /// Returns an instruction that 64-bit code may have.
    fn instruction(&mut self) -> Result<Instruction, iced_x86::IcedError> {
        use Code as C;
        const TO_MEMORY: [(C, usize); 16] = [
            (C::Add_rm8_r8, 1),
            (C::Add_rm64_r64, 8),
            (C::Or_rm16_r16, 2),
            (C::Adc_rm32_r32, 4),
            (C::Sbb_rm64_r64, 8),
            (C::Xor_rm32_r32, 4),
            (C::Cmp_rm64_r64, 8),
            (C::Test_rm8_r8, 1),
            (C::Mov_rm8_r8, 1),
            (C::Mov_rm32_r32, 4),
            (C::Mov_rm64_r64, 8),
            (C::Xchg_rm64_r64, 8),
            (C::Xadd_rm32_r32, 4),
            (C::Cmpxchg_rm64_r64, 8),
            (C::Cmpxchg_rm8_r8, 1),
            (C::Movnti_m64_r64, 8),
        ];
        const FROM_MEMORY: [(C, usize); 14] = [
            (C::Add_r64_rm64, 8),
            (C::Sub_r32_rm32, 4),
            (C::And_r64_rm64, 8),
            (C::Mov_r8_rm8, 1),
            (C::Mov_r16_rm16, 2),
            (C::Mov_r32_rm32, 4),
            (C::Mov_r64_rm64, 8),
            (C::Movzx_r32_rm8, 4),
            (C::Movsx_r64_rm16, 8),
            (C::Movsxd_r64_rm32, 8),
            (C::Cmovb_r64_rm64, 8),
            (C::Cmovne_r32_rm32, 4),
            (C::Lea_r64_m, 8),
            (C::Lea_r32_m, 4),
        ];
        const ALONE: [C; 12] = [
            C::Not_rm64,
            C::Neg_rm32,
            C::Inc_rm64,
            C::Dec_rm8,
            C::Shl_rm64_1,
            C::Sar_rm32_1,
            C::Ror_rm64_1,
            C::Rcl_rm64_1,
            C::Setl_rm8,
            C::Setb_rm8,
            C::Push_rm64,
            C::Pop_rm64,
        ];
        const VECTORS: [C; 6] = [
            C::Movdqu_xmm_xmmm128,
            C::Paddd_xmm_xmmm128,
            C::Pxor_xmm_xmmm128,
            C::Addpd_xmm_xmmm128,
            C::Pshufb_xmm_xmmm128,
            C::Movaps_xmm_xmmm128,
        ];
        let vector = |random: &mut Random| Register::XMM0 + random.below(16);
        match self.random.below(108) {
            100..108 => self.system_instruction(),
            0..22 => {
                let (code, bytes) = self.random.pick(&TO_MEMORY);
                let register = if matches!(code, C::Xchg_rm64_r64 | C::Xadd_rm32_r32) {
                    self.register(bytes)
                } else {
                    self.source(bytes)
                };
                Instruction::with2(code, self.memory(), register)
            }
            22..44 => {
                let (code, bytes) = self.random.pick(&FROM_MEMORY);
                let register = self.register(bytes);
                Instruction::with2(code, register, self.memory())
            }
            44..52 => {
                let (code, bytes) = self.random.pick(&FROM_MEMORY[..7]);
                Instruction::with2(code, self.register(bytes), self.source(bytes))
            }
            52..56 => {
                let code = self.random.pick(&ALONE);
                Instruction::with1(code, self.memory())
            }
            56..62 => {
                let code = self.random.pick(&ALONE);
                let bytes = if matches!(code, C::Dec_rm8 | C::Setl_rm8 | C::Setb_rm8) {
                    1
                } else if matches!(code, C::Neg_rm32 | C::Sar_rm32_1) {
                    4
                } else {
                    8
                };
                Instruction::with1(code, self.register(bytes))
            }
            62..66 => {
                let (code, register) = (self.random.pick(&VECTORS), vector(self.random));
                Instruction::with2(code, register, self.memory())
            }
            66 | 67 => {
                let register = vector(self.random);
                Instruction::with2(C::Movdqu_xmmm128_xmm, self.memory(), register)
            }
            68 => Instruction::with2(C::Cvtsi2sd_xmm_rm64, vector(self.random), self.source(8)),
            69 => Instruction::with2(C::Movq_rm64_xmm, self.register(8), vector(self.random)),
            70..77 => {
                const BRANCHES: [C; 5] = [
                    C::Jne_rel32_64,
                    C::Jb_rel32_64,
                    C::Jle_rel32_64,
                    C::Js_rel32_64,
                    C::Jo_rel32_64,
                ];
                Instruction::with_branch(self.random.pick(&BRANCHES), self.target())
            }
            77 | 78 => Instruction::with_branch(C::Jmp_rel32_64, self.target()),
            79..82 => Instruction::with_branch(C::Call_rel32_64, self.target()),
            82..85 => Ok(Instruction::with(C::Retnq)),
            85 => Instruction::with1(C::Jmp_rm64, self.memory()),
            86 => Instruction::with1(C::Call_rm64, self.memory()),
            87 => Instruction::with2(C::Mov_r64_imm64, self.register(8), self.random.next()),
            88 | 89 => {
                let register = self.register(8);
                Instruction::with2(C::Mov_rm64_imm32, register, self.random.bits() as i32)
            }
            90 => Ok(Instruction::with(self.random.pick(&[C::Cdqe, C::Cqo, C::Cmc, C::Leaveq]))),
            91 => Ok(Instruction::with(self.random.pick(&[C::Stosq_m64_RAX, C::Lodsb_AL_m8]))),
            92 => Ok(Instruction::with(C::Pushfq)),
            93 => Instruction::with1(C::Int_imm8, 3),
            94 => Ok(Instruction::with(self.random.pick(&[C::Ud2, C::Cpuid, C::Xgetbv]))),
            95 => {
                let code = self.random.pick(&[C::Bt_rm64_r64, C::Bts_rm64_r64, C::Btr_rm64_r64]);
                let bit = self.sized(&INDICES, 8);
                Instruction::with2(code, self.memory(), bit)
            }
            96 => Instruction::with1(C::Cmpxchg16b_m128, self.memory()),
            97 => {
                // It often changes code.
                let offset = self.random.below((CODE_PAGES * PAGE) as u32) & !15;
                let there = (self.code + u64::from(offset)) as i64;
                let there = MemoryOperand::with_base_displ_size(Register::RIP, there, 8);
                Instruction::with2(C::Mov_rm8_r8, there, Register::AL)
            }
            98 => Instruction::with_branch(C::Loop_rel8_64_RCX, 0),
            _ => Ok(Instruction::with(C::Nopd)),
        }
    }

    /// Returns a system instruction. In code of users most of them raise an exception.
    fn system_instruction(&mut self) -> Result<Instruction, iced_x86::IcedError> {
        use Code as C;
        const ALONE: [C; 13] = [
            C::Stac,
            C::Stac,
            C::Clac,
            C::Cli,
            C::Sti,
            C::Sti,
            C::Swapgs,
            C::Pushfq,
            C::Popfq,
            C::Popfq,
            C::Syscall,
            C::Syscall,
            C::Sysretq,
        ];
        match self.random.below(6) {
            2 => {
                let register = Register::ES + self.random.below(6);
                Instruction::with2(C::Mov_r32m16_Sreg, self.register(4), register)
            }
            0 => {
                let register = self.random.pick(&[
                    Register::CR0,
                    Register::CR2,
                    Register::CR3,
                    Register::CR4,
                    Register::CR8,
                ]);
                Instruction::with2(C::Mov_r64_cr, self.register(8), register)
            }
            // Flags for a POPF, mostly those that it changes often.
            1 => {
                let flags = self.random.bits() as i32 & 0x0ed5;
                let rare = if self.random.percent(20) { 1 << self.random.below(22) } else { 0 };
                Instruction::with1(C::Pushq_imm32, flags | rare & !(Eflags::TF.bits() as i32))
            }
            _ => Ok(Instruction::with(self.random.pick(&ALONE))),
        }
    }

    /// Returns the code of the program.
    fn program(&mut self) -> Vec<u8> {
        let mut code = Vec::new();
        for slot in 0..SLOTS {
            let at = self.code + slot * SLOT;
            let bytes = loop {
                let Ok(mut instruction) = self.instruction() else { continue };
                if instruction.code() == Code::Loop_rel8_64_RCX {
                    instruction.set_near_branch64(at.wrapping_sub(3 * SLOT));
                }
                let mut encoder = Encoder::new(64);
                if encoder.encode(&instruction, at).is_ok() {
                    break encoder.take_buffer();
                }
            };
            code.extend(&bytes);
            code.resize(((slot + 1) * SLOT) as usize, 0x90);
        }
        // One instruction crosses into the other page.
        let before = u64::from(1 + self.random.below(8));
        let crossing = loop {
            let Ok(instruction) = self.instruction() else { continue };
            let mut encoder = Encoder::new(64);
            let at = self.code + PAGE - before;
            if encoder.encode(&instruction, at).is_ok_and(|len| len as u64 > before) {
                break encoder.take_buffer();
            }
        };
        let at = (PAGE - before) as usize;
        code[at..at + crossing.len()].copy_from_slice(&crossing);
        code
    }
}

/// Runs a program, some instructions at a time, and returns the states at the deadlines.
fn run(
    engine: &mut dyn Engine,
    cpu: &mut Cpu,
    memory: &mut Memory,
    random: &mut Random,
) -> Vec<(Exit, Cpu)> {
    let mut states = Vec::new();
    while cpu.instructions < EXECUTED {
        let asked = u64::from(1 + random.below(300));
        cpu.interrupt_pin |= random.percent(30);
        let exit = engine.run(cpu, memory, asked);
        states.push((exit.clone(), cpu.clone()));
        match exit {
            Exit::Deadline => {}
            Exit::InterruptWindow => {
                cpu.interrupt_pin = false;
                cpu.inject(INTERRUPT);
            }
            _ => break,
        }
    }
    states
}

/// Compares random programs that `make` makes for a layout.
fn compare(make: impl Fn(&mut Random, &Layout) -> Vec<u8>) {
    let series = Series::from_environment(CASES);
    for case in series.cases.clone() {
        let mut random = series.random(case);
        let layout = &LAYOUTS[(case % LAYOUTS.len() as u64) as usize];
        let code = make(&mut random, layout);
        let mut interpreted = Memory::new(MEMORY).unwrap();
        let mut cpu = machine(&mut interpreted, layout, &code, random.clone());
        let expected =
            run(&mut Interpreter::new(), &mut cpu, &mut interpreted, &mut random.clone());
        let Some((mut translator, mut memory)) = translator(MEMORY) else { return };
        let mut cpu = machine(&mut memory, layout, &code, random.clone());
        let states = run(&mut translator, &mut cpu, &mut memory, &mut random);
        let what = format!("RING3_FUZZ_SEED={} RING3_FUZZ_CASE={case}", series.seed);
        let ours = Outcome { states: &states, memory: &memory };
        assert_agrees(&what, &ours, &Outcome { states: &expected, memory: &interpreted });
        assert_eq!(counter(&translator, "translations without proof"), 0, "{what}");
    }
}

#[test]
fn the_translator_agrees_with_the_interpreter_in_64_bit_code() {
    compare(|random, layout| Maker { random, code: layout.code }.program());
}

/// Returns a loop over accesses by RBX, R9, RCX and R10, and steps between them, which reach beyond the pages of data.
fn random_loop(random: &mut Random) -> Vec<u8> {
    let mut body = Vec::new();
    for _ in 0..=random.below(6) {
        let small = random.below(0x80) as u8;
        let next: &[u8] = match random.below(16) {
            0 | 1 => &[0x48, 0x8b, 0x43, small],   // MOV RAX, [RBX + small]
            2 => &[0x48, 0x89, 0x43, small],       // MOV [RBX + small], RAX
            3 => &[0x48, 0x8b, 0x14, 0xcb],        // MOV RDX, [RBX + RCX * 8]
            4 => &[0x48, 0x89, 0x54, 0xcb, small], // MOV [RBX + RCX * 8 + small], RDX
            5 => &[0x49, 0x8b, 0x01],              // MOV RAX, [R9]
            6 => &[0x4b, 0x03, 0x04, 0xd1],        // ADD RAX, [R9 + R10 * 8]
            7 => &[0x89, 0xc9],                    // MOV ECX, ECX
            8 => &[0x48, 0x83, 0xc3, small],       // ADD RBX, small
            9 => &[0x48, 0x83, 0xc1, 0x01],        // ADD RCX, 1
            10 => &[0x49, 0x83, 0xc1, 0x08],       // ADD R9, 8
            11 => &[0x49, 0xff, 0xc2],             // INC R10
            12 => &[0x48, 0x83, 0xe3, 0xf8],       // AND RBX, -8
            13 => &[0x50, 0x5a],                   // PUSH RAX; POP RDX
            14 => &[0x48, 0x8d, 0x5b, small],      // LEA RBX, [RBX + small]
            _ => &[0x01, 0xc8],                    // ADD EAX, ECX
        };
        body.extend(next);
    }
    // MOV R15D, times; the body; DEC R15D; JNZ to the body; JMP to itself
    let mut code = vec![0x41, 0xbf];
    code.extend((1 + random.below(400)).to_le_bytes());
    code.extend(&body);
    code.extend([0x41, 0xff, 0xcf, 0x75, (-5 - body.len() as i8) as u8, 0xeb, 0xfe]);
    code
}

#[test]
fn loops_that_check_once_agree_with_the_interpreter() {
    compare(|random, _| random_loop(random));
}

/// What a loop checks before its head may fail when no instruction is allowed any more.
#[test]
fn no_instruction_is_executed_after_the_deadline() {
    // MOV R15D, 2; JMP to L; L: MOV RAX, [RBX]; DEC R15D; JNZ to L; XCHG RBX, RBP; JMP to the beginning
    let code = [
        0x41, 0xbf, 2, 0, 0, 0, 0xeb, 0, 0x48, 0x8b, 0x03, 0x41, 0xff, 0xcf, 0x75, 0xf8, 0x48,
        0x87, 0xeb, 0xeb, 0xeb,
    ];
    for layout in &LAYOUTS {
        for deadline in 1..40 {
            let Some((mut translator, mut memory)) = translator(MEMORY) else { return };
            let mut cpu = machine(&mut memory, layout, &code, Random::new(series::SEED, 0));
            cpu.set_gpr(reg::BX, layout.data);
            cpu.set_gpr(reg::BP, layout.stack - 0x100);
            assert_eq!(translator.run(&mut cpu, &mut memory, deadline), Exit::Deadline);
            assert_eq!(cpu.instructions, deadline);
        }
    }
}

/// Returns the value of the counter `name` of `engine`.
fn counter(engine: &dyn Engine, name: &str) -> u64 {
    let counters = engine.counters();
    counters.iter().find(|(other, _)| *other == name).expect("there is such a counter").1
}

#[test]
fn system_calls_stay_in_translated_code() {
    const CALLS: u32 = 5000;
    // MOV EBX, CALLS; SYSCALL; PUSHFQ; POP RAX; DEC EBX; JNZ to SYSCALL; JMP to itself
    let mut code = vec![0xbb];
    code.extend(CALLS.to_le_bytes());
    code.extend([0x0f, 0x05, 0x9c, 0x58, 0xff, 0xcb, 0x75, 0xf8, 0xeb, 0xfe]);
    let Some((mut translator, mut memory)) = translator(MEMORY) else { return };
    let random = Random::new(series::SEED, 0);
    let mut cpu = machine(&mut memory, &LAYOUTS[1], &code, random);
    let instructions = 12 * u64::from(CALLS) + 100;
    assert_eq!(translator.run(&mut cpu, &mut memory, instructions), Exit::Deadline);
    assert_eq!((cpu.gpr(reg::BX), cpu.cpl()), (0, 3));
    for (name, most) in [
        ("entries to translated code", 100),
        ("instructions left to the interpreter", 30),
        ("signals", 30),
    ] {
        let count = counter(&translator, name);
        assert!(count <= most, "{name}: {count}");
    }
}

/// Executes `body` so many times in the code at `layout`, and returns the engine.
fn repeat(layout: &Layout, body: &[u8], times: u32) -> Option<(impl Engine, Cpu)> {
    // MOV R15D, times; the body; DEC R15D; JNZ to the body; JMP to itself
    let mut code = vec![0x41, 0xbf];
    code.extend(times.to_le_bytes());
    code.extend(body);
    code.extend([0x41, 0xff, 0xcf, 0x75, (-5 - body.len() as i8) as u8, 0xeb, 0xfe]);
    let (mut translator, mut memory) = translator(MEMORY)?;
    let mut cpu = machine(&mut memory, layout, &code, Random::new(series::SEED, 0));
    cpu.set_cr4(cpu.cr4() | Cr4::SMAP);
    cpu.set_gpr(reg::BX, layout.data);
    cpu.set_gpr(reg::BP, layout.stack - 0x100);
    let executed = 200 * u64::from(times);
    assert_eq!(translator.run(&mut cpu, &mut memory, executed), Exit::Deadline);
    assert_eq!(cpu.gpr(15), 0, "it has ended");
    Some((translator, cpu))
}

#[test]
fn memory_at_several_distances_stays_in_translated_code() {
    const TIMES: u32 = 5000;
    // STAC; MOV RAX, [RBX]; INC RAX; MOV [RBX + 8], RAX; CLAC; PUSH RAX; POP [RBP]'s register RDX; MOV [RBP],
    // RDX
    let copy = [
        0x48, 0x8b, 0x03, 0x48, 0xff, 0xc0, 0x48, 0x89, 0x43, 0x08, 0x50, 0x5a, 0x48, 0x89, 0x55, 0,
    ];
    let kernel_copy = [&[0x0f, 0x01, 0xcb][..], &copy, &[0x0f, 0x01, 0xca]].concat();
    for layout in &LAYOUTS {
        let body = if layout.is_user { &copy[..] } else { &kernel_copy };
        let Some((engine, cpu)) = repeat(layout, body, TIMES) else { return };
        assert!(!cpu.has_alignment_flag());
        for name in ["instructions left to the interpreter", "signals"] {
            let count = counter(&engine, name);
            assert!(count <= 60, "{name}: {count} at {:#x} and {:#x}", layout.code, layout.data);
        }
    }
}

#[test]
fn tables_at_the_top_of_the_upper_half_stay_in_translated_code() {
    // MOV ECX, 8; MOV EAX, [RCX + the address of the code]
    let body = [0xb9, 8, 0, 0, 0, 0x8b, 0x81, 0, 0, 0, 0x81];
    let Some((engine, _)) = repeat(&LAYOUTS[0], &body, 5000) else { return };
    for name in ["instructions left to the interpreter", "signals"] {
        let count = counter(&engine, name);
        assert!(count <= 30, "{name}: {count}");
    }
}

#[test]
fn calls_and_returns_that_do_not_match_raise_few_signals() {
    const TIMES: u32 = 10_000;
    // JMP over f; f: DEC ECX; JZ to RET; CALL f; RET; MOV ECX, 20; CALL f
    let nested = [
        0xeb, 0x0a, 0xff, 0xc9, 0x74, 0x05, 0xe8, 0xf7, 0xff, 0xff, 0xff, 0xc3, 0xb9, 20, 0, 0, 0,
        0xe8, 0xec, 0xff, 0xff, 0xff,
    ];
    // CALL over a NOP; ADD RSP, 8
    let calls = [0xe8, 1, 0, 0, 0, 0x90, 0x48, 0x83, 0xc4, 8];
    // LEA RAX, the address behind RET; PUSH RAX; RET
    let returns = [0x48, 0x8d, 0x05, 2, 0, 0, 0, 0x50, 0xc3];
    for body in [&nested[..], &calls, &returns] {
        for layout in &LAYOUTS[..3] {
            let Some((engine, cpu)) = repeat(layout, body, TIMES) else { return };
            assert_eq!(cpu.gpr(reg::SP), layout.stack - 0x800);
            for (name, most) in [
                ("signals", 60),
                ("instructions left to the interpreter", 60),
                ("branches looked up", 60),
            ] {
                let count = counter(&engine, name);
                assert!(count <= most, "{name}: {count} in {body:x?}");
            }
        }
    }
}

#[test]
fn a_return_leads_to_no_code_of_the_other_privilege() {
    const ROUNDS: u64 = 40;
    // The instructions of each round, and of the last one.
    const EXECUTED: u64 = 11 * (ROUNDS - 1) + 8;
    // CALL f; MOV EAX, CS; MOV [RBX], EAX; JMP to the CALL; f: SYSCALL; RET
    let code = [0xe8, 6, 0, 0, 0, 0x8c, 0xc8, 0x89, 0x03, 0xeb, 0xf5, 0x0f, 0x05, 0xc3];
    // The system's code: DEC EDX; JZ to the RET; CALL the RET; SYSRET; RET
    let entered = [0xff, 0xca, 0x74, 8, 0xe8, 3, 0, 0, 0, 0x48, 0x0f, 0x07, 0xc3];
    let layout = &LAYOUTS[1];
    let random = Random::new(series::SEED, 0);
    let Some((mut translator, mut memory)) = translator(MEMORY) else { return };
    let mut others = Memory::new(MEMORY).unwrap();
    let finish = |engine: &mut dyn Engine, memory: &mut Memory| {
        let mut cpu = machine(memory, layout, &code, random.clone());
        cpu.set_cr4(cpu.cr4() - Cr4::SMAP);
        cpu.set_gpr(reg::BX, layout.data);
        memory.write(SYSTEM_ENTRY - SYSTEM_LINEAR + SYSTEM, &entered);
        // At first it returns to code of users by SYSRET, and then by RET, with the supervisor's privilege.
        cpu.set_gpr(reg::DX, ROUNDS);
        assert_eq!(engine.run(&mut cpu, memory, EXECUTED), Exit::Deadline);
        cpu
    };
    let cpu = finish(&mut translator, &mut memory);
    let right = finish(&mut Interpreter::new(), &mut others);
    assert!(cpu.has_state_of(&right), "{}\n{}", right.report(&others), cpu.report(&memory));
    assert_eq!((cpu.cpl(), cpu.gpr(reg::AX)), (0, KERNEL_CODE.into()));
}

/// Returns code that writes twice to each of so many pages from RBX on, with other instructions between.
fn touching(pages: u32) -> Vec<u8> {
    // MOV ECX, pages; MOV [RBX], AL; MOV [RBX + 8], AL; MOV EDX, 600; DEC EDX; JNZ to the DEC; ADD RBX, 4096;
    // DEC ECX; JNZ to the first MOV [RBX]; JMP to itself
    let mut code = vec![0xb9];
    code.extend(pages.to_le_bytes());
    code.extend([0x88, 0x03, 0x88, 0x43, 0x08, 0xba, 0x58, 0x02, 0, 0, 0xff, 0xca, 0x75, 0xfc]);
    code.extend([0x48, 0x81, 0xc3, 0, 0x10, 0, 0, 0xff, 0xc9, 0x75, 0xe7, 0xeb, 0xfe]);
    code
}

#[test]
fn a_large_page_is_mapped_at_once() {
    const PAGES: u32 = 512;
    const LARGE: u64 = 2 << 20;
    /// P, R/W, A, D and PS.
    const LARGE_ENTRY: u64 = 0xe3;
    let linear = 0xffff_9000_0000_0000_u64;
    let layout = &LAYOUTS[0];
    let Some((mut translator, mut memory)) = translator(2 * LARGE) else { return };
    let code = touching(PAGES);
    let mut cpu = machine(&mut memory, layout, &code, Random::new(series::SEED, 0));
    let mut tables = TABLES + 0x4_0000;
    map(&mut memory, &mut tables, linear, 0, 0);
    // The last table but one has the entry for the last one, in whose place it maps a page.
    memory.write(tables - 2 * PAGE, &(LARGE | LARGE_ENTRY).to_le_bytes());
    cpu.set_gpr(reg::BX, linear);
    assert_eq!(translator.run(&mut cpu, &mut memory, 1300 * u64::from(PAGES)), Exit::Deadline);
    assert_eq!((cpu.gpr(reg::BX), cpu.gpr(reg::CX)), (linear + LARGE, 0));
    let signals = counter(&translator, "signals");
    assert!(signals <= 20, "{signals}");
}

#[test]
fn a_page_fault_that_the_guest_handles_raises_one_signal() {
    const PAGES: u64 = 64;
    const FIRST_PLACE: u64 = 0x18_0000;
    let layout = &LAYOUTS[1];
    let first = layout.data + 0x20_0000;
    let table = SYSTEM_LINEAR + 8 * PAGE;
    let code = touching(PAGES as u32);
    let Some((mut translator, mut memory)) = translator(MEMORY) else { return };
    let mut cpu = machine(&mut memory, layout, &code, Random::new(series::SEED, 0));
    let mut tables = TABLES + 0x4_0000;
    for page in 0..PAGES {
        // Users may write there, once it is present.
        map(&mut memory, &mut tables, first + page * PAGE, FIRST_PLACE + page * PAGE, 6);
    }
    // The last table that was made is that of these pages.
    let table_place = tables - PAGE;
    map(&mut memory, &mut tables, table, table_place, 3);
    // The handler sets the bit P in the entry for CR2.
    let mut handler = vec![
        0x50, 0x51, // PUSH RAX; PUSH RCX
        0x0f, 0x20, 0xd0, // MOV RAX, CR2
        0x48, 0xc1, 0xe8, 0x0c, // SHR RAX, 12
        0x25, 0xff, 0x01, 0, 0, // AND EAX, 511
        0x48, 0xb9, // MOV RCX, the table
    ];
    handler.extend(table.to_le_bytes());
    // OR QWORD [RCX + RAX * 8], 1; POP RCX; POP RAX; ADD RSP, 8; IRETQ
    handler.extend([0x48, 0x83, 0x0c, 0xc1, 0x01, 0x59, 0x58, 0x48, 0x83, 0xc4, 0x08, 0x48, 0xcf]);
    let place = |linear: u64| linear - SYSTEM_LINEAR + SYSTEM;
    let at = HANDLERS + 0xd00;
    memory.write(place(at), &handler);
    memory.write(place(IDT + 14 * 16), &(at as u16).to_le_bytes());
    cpu.set_gpr(reg::BX, first);
    assert_eq!(translator.run(&mut cpu, &mut memory, 1300 * PAGES), Exit::Deadline);
    assert_eq!((cpu.gpr(reg::BX), cpu.gpr(reg::CX)), (first + PAGES * PAGE, 0));
    let signals = counter(&translator, "signals");
    assert!((PAGES..PAGES + 30).contains(&signals), "{signals}");
}

#[test]
fn repeated_instructions_go_on_after_a_deadline() {
    const SLICES: u64 = 100;
    let layout = &LAYOUTS[0];
    // MOV RDI, data; MOV ECX, 16000; REP STOSB; JMP to the first one
    let mut code = vec![0x48, 0xbf];
    code.extend(layout.data.to_le_bytes());
    code.extend([0xb9, 0x80, 0x3e, 0, 0, 0xf3, 0xaa, 0xeb, 0xed]);
    let Some((mut translator, mut memory)) = translator(MEMORY) else { return };
    let random = Random::new(series::SEED, 0);
    let mut cpu = machine(&mut memory, layout, &code, random);
    for _ in 0..SLICES {
        assert_eq!(translator.run(&mut cpu, &mut memory, 5000), Exit::Deadline);
    }
    assert_eq!(cpu.instructions, SLICES * 5000);
    let steps = counter(&translator, "instructions left to the interpreter");
    assert!(steps <= 4 * SLICES, "{steps}");
}
