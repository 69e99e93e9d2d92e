//! Random programs.

use iced_x86::{Code, Encoder, Instruction, MemoryOperand, OpCodeOperandKind, OpKind, Register};
use ring3_x86::flags::Eflags;

use crate::machine::{CODE_PAGES, PAGE};
use crate::random::Random;

/// Each instruction has as many bytes, with NOPs behind it, so that there is something at each branch's
/// target.
pub(crate) const SLOT: u64 = 16;
pub(crate) const SLOTS: u64 = CODE_PAGES * PAGE / SLOT;

/// Registers that mostly have addresses of data.
pub(crate) const POINTERS: [Register; 3] = [Register::RBX, Register::R9, Register::R13];
/// Registers that mostly have small numbers.
pub(crate) const INDICES: [Register; 2] = [Register::RCX, Register::R10];
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

/// Makes the instructions of a program.
pub(crate) struct Maker<'a> {
    pub(crate) random: &'a mut Random,
    pub(crate) code: u64,
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
        match self.random.below(120) {
            100..108 => self.system_instruction(),
            108..120 => self.x87_instruction(),
            0 | 1 => self.bit_instruction(),
            2..22 => {
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
            62 | 63 => Ok(self.avx_instruction()),
            64 | 65 => {
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

    /// Returns an instruction of BMI1 or BMI2, or a similar one.
    fn bit_instruction(&mut self) -> Result<Instruction, iced_x86::IcedError> {
        use Code as C;
        const TWO: [(C, usize); 6] = [
            (C::Tzcnt_r64_rm64, 8),
            (C::Lzcnt_r32_rm32, 4),
            (C::Movbe_r64_m64, 8),
            (C::VEX_Blsr_r64_rm64, 8),
            (C::VEX_Blsi_r32_rm32, 4),
            (C::VEX_Blsmsk_r64_rm64, 8),
        ];
        const THREE: [(C, usize); 5] = [
            (C::VEX_Andn_r64_r64_rm64, 8),
            (C::VEX_Andn_r32_r32_rm32, 4),
            (C::VEX_Pdep_r64_r64_rm64, 8),
            (C::VEX_Pext_r32_r32_rm32, 4),
            (C::VEX_Mulx_r64_r64_rm64, 8),
        ];
        const BY_LAST: [(C, usize); 5] = [
            (C::VEX_Shlx_r64_rm64_r64, 8),
            (C::VEX_Sarx_r32_rm32_r32, 4),
            (C::VEX_Shrx_r64_rm64_r64, 8),
            (C::VEX_Bzhi_r64_rm64_r64, 8),
            (C::VEX_Bextr_r32_rm32_r32, 4),
        ];
        match self.random.below(8) {
            0 => Instruction::with2(C::Movbe_m64_r64, self.memory(), self.source(8)),
            1 => Instruction::with3(C::VEX_Rorx_r64_rm64_imm8, self.register(8), self.memory(), 13),
            2 | 3 => {
                let (code, bytes) = self.random.pick(&TWO);
                Instruction::with2(code, self.register(bytes), self.memory())
            }
            4 => {
                let (code, bytes) = self.random.pick(&THREE);
                let (to, second) = (self.register(bytes), self.register(bytes));
                Instruction::with3(code, to, second, self.memory())
            }
            5 => {
                let (code, bytes) = self.random.pick(&THREE);
                let (to, second) = (self.register(bytes), self.register(bytes));
                Instruction::with3(code, to, second, self.source(bytes))
            }
            6 => {
                let (code, bytes) = self.random.pick(&BY_LAST);
                let last = self.sized(&INDICES, bytes);
                Instruction::with3(code, self.register(bytes), self.memory(), last)
            }
            _ => {
                let (code, bytes) = self.random.pick(&BY_LAST);
                let last = self.source(bytes);
                Instruction::with3(code, self.register(bytes), self.source(bytes), last)
            }
        }
    }

    /// Returns an instruction of AVX or one that came with AVX2.
    fn avx_instruction(&mut self) -> Instruction {
        use Code as C;
        const CODES: [C; 25] = [
            C::VEX_Vmovdqu_ymm_ymmm256,
            C::VEX_Vmovdqu_ymmm256_ymm,
            C::VEX_Vmovups_xmm_xmmm128,
            C::VEX_Vmovaps_ymmm256_ymm,
            C::VEX_Vpaddd_ymm_ymm_ymmm256,
            C::VEX_Vaddpd_ymm_ymm_ymmm256,
            C::VEX_Vmulss_xmm_xmm_xmmm32,
            C::VEX_Vpxor_xmm_xmm_xmmm128,
            C::VEX_Vpermd_ymm_ymm_ymmm256,
            C::VEX_Vpsllw_ymm_ymm_xmmm128,
            C::VEX_Vfmadd231pd_ymm_ymm_ymmm256,
            C::VEX_Vpmovzxbw_ymm_xmmm128,
            C::VEX_Vcvtph2ps_ymm_xmmm128,
            C::VEX_Vcvtps2ph_xmmm128_ymm_imm8,
            C::VEX_Vpbroadcastb_ymm_xmmm8,
            C::VEX_Vptest_ymm_ymmm256,
            C::VEX_Vpmovmskb_r32_ymm,
            C::VEX_Vmovq_rm64_xmm,
            C::VEX_Vmovd_xmm_rm32,
            C::VEX_Vcvtsi2sd_xmm_xmm_rm64,
            C::VEX_Vpmaskmovd_ymm_ymm_m256,
            C::VEX_Vpmaskmovq_m256_ymm_ymm,
            C::VEX_Vpblendvb_ymm_ymm_ymmm256_ymm,
            C::VEX_Vzeroupper,
            C::VEX_Vzeroall,
        ];
        let code = self.random.pick(&CODES);
        let in_memory = self.random.percent(60);
        let mut instruction = Instruction::new();
        instruction.set_code(code);
        for operand in 0..code.op_code().op_count() {
            use OpCodeOperandKind as K;
            let kind = code.op_code().op_kind(operand);
            let may_be_in_memory = matches!(
                kind,
                K::xmm_or_mem | K::ymm_or_mem | K::r32_or_mem | K::r64_or_mem | K::mem
            );
            if kind == K::mem || may_be_in_memory && in_memory {
                let memory = self.memory();
                instruction.set_op_kind(operand, OpKind::Memory);
                instruction.set_memory_base(memory.base);
                instruction.set_memory_index(memory.index);
                instruction.set_memory_index_scale(memory.scale);
                instruction.set_memory_displacement64(memory.displacement as u64);
                instruction.set_memory_displ_size(memory.displ_size);
                instruction.set_segment_prefix(memory.segment_prefix);
                continue;
            }
            if kind == K::imm8 {
                instruction.set_op_kind(operand, OpKind::Immediate8);
                instruction.set_immediate8(self.random.bits() as u8);
                continue;
            }
            let number = self.random.below(16);
            let register = match kind {
                K::xmm_reg | K::xmm_or_mem | K::xmm_vvvv => Register::XMM0 + number,
                K::r32_reg | K::r32_or_mem => self.register(4),
                K::r64_or_mem => self.register(8),
                _ => Register::YMM0 + number,
            };
            instruction.set_op_kind(operand, OpKind::Register);
            instruction.set_op_register(operand, register);
        }
        instruction
    }

    /// Returns several PUSH and POP of registers in a row.
    fn pushes_and_pops(&mut self) -> Vec<u8> {
        let mut code = Vec::new();
        for _ in 0..2 + self.random.below(6) {
            let register = self.random.pick(&OTHERS).number() as u8;
            let opcode = if self.random.percent(60) { 0x50 } else { 0x58 };
            // REX.B is for R8 to R15.
            code.extend((register >= 8).then_some(0x41));
            code.push(opcode | register & 7);
        }
        code
    }

    /// Returns an x87 or MMX instruction.
    fn x87_instruction(&mut self) -> Result<Instruction, iced_x86::IcedError> {
        use Code as C;
        const MEMORY: [C; 28] = [
            C::Fld_m32fp,
            C::Fld_m64fp,
            C::Fld_m80fp,
            C::Fild_m16int,
            C::Fild_m64int,
            C::Fst_m32fp,
            C::Fstp_m64fp,
            C::Fstp_m80fp,
            C::Fistp_m32int,
            C::Fisttp_m64int,
            C::Fbld_m80bcd,
            C::Fbstp_m80bcd,
            C::Fadd_m32fp,
            C::Fmul_m64fp,
            C::Fdiv_m64fp,
            C::Fidivr_m16int,
            C::Fcomp_m64fp,
            C::Fldcw_m2byte,
            C::Fldcw_m2byte,
            C::Fnstcw_m2byte,
            C::Fnstsw_m2byte,
            C::Fnstenv_m28byte,
            C::Fldenv_m28byte,
            C::Fnsave_m108byte,
            C::Frstor_m108byte,
            C::Fxsave_m512byte,
            C::Fxsave64_m512byte,
            C::Fxrstor64_m512byte,
        ];
        const ALONE: [C; 16] = [
            C::Fld1,
            C::Fldz,
            C::Fldpi,
            C::Fchs,
            C::Fsqrt,
            C::Frndint,
            C::Fxam,
            C::Fincstp,
            C::Fprem,
            C::Wait,
            C::Fnclex,
            C::Fnclex,
            C::Fninit,
            C::Fnstsw_AX,
            C::Emms,
            C::Fnop,
        ];
        const STACK: [C; 8] = [
            C::Fadd_st0_sti,
            C::Fmulp_sti_st0,
            C::Fdivr_sti_st0,
            C::Fsubp_sti_st0,
            C::Fxch_st0_sti,
            C::Fcomi_st0_sti,
            C::Fcmovbe_st0_sti,
            C::Fucompp,
        ];
        const MMX: [C; 6] = [
            C::Movq_mm_mmm64,
            C::Paddd_mm_mmm64,
            C::Pmulhw_mm_mmm64,
            C::Pshufb_mm_mmm64,
            C::Pavgb_mm_mmm64,
            C::Psubq_mm_mmm64,
        ];
        let mm = |random: &mut Random| Register::MM0 + random.below(8);
        match self.random.below(12) {
            0..5 => {
                let code = self.random.pick(&MEMORY);
                Instruction::with1(code, self.memory())
            }
            5 | 6 => match self.random.pick(&ALONE) {
                C::Fnstsw_AX => Instruction::with1(C::Fnstsw_AX, Register::AX),
                code => Ok(Instruction::with(code)),
            },
            7 | 8 => {
                let other = Register::ST0 + self.random.below(8);
                match self.random.pick(&STACK) {
                    C::Fucompp => Instruction::with2(C::Fucompp, Register::ST0, Register::ST1),
                    code if code.op_code().op0_kind() == OpCodeOperandKind::st0 => {
                        Instruction::with2(code, Register::ST0, other)
                    }
                    code => Instruction::with2(code, other, Register::ST0),
                }
            }
            9 => Instruction::with2(self.random.pick(&MMX), mm(self.random), self.memory()),
            10 => match self.random.below(3) {
                0 => Instruction::with2(C::Movq_mmm64_mm, self.memory(), mm(self.random)),
                1 => Instruction::with2(C::Movd_mm_rm32, mm(self.random), self.source(4)),
                _ => Instruction::with2(C::Pmovmskb_r32_mm, self.register(4), mm(self.random)),
            },
            _ => match self.random.below(3) {
                0 => Instruction::with2(C::Movq2dq_xmm_mm, Register::XMM3, mm(self.random)),
                1 => Instruction::with2(C::Cvtpi2ps_xmm_mmm64, Register::XMM5, self.memory()),
                _ => Instruction::with2(self.random.pick(&MMX), mm(self.random), mm(self.random)),
            },
        }
    }

    /// Returns a system instruction. In code of users most of them raise an exception.
    fn system_instruction(&mut self) -> Result<Instruction, iced_x86::IcedError> {
        use Code as C;
        const ALONE: [C; 14] = [
            C::Clts,
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
    pub(crate) fn program(&mut self) -> Vec<u8> {
        let mut code = Vec::new();
        for slot in 0..SLOTS {
            let at = self.code + slot * SLOT;
            let bytes = loop {
                let Ok(mut instruction) = self.instruction() else { continue };
                if instruction.code() == Code::Loop_rel8_64_RCX {
                    instruction.set_near_branch64(at.wrapping_sub(3 * SLOT));
                } else if instruction.op0_kind() == OpKind::NearBranch64 && self.random.percent(40)
                {
                    // To where a block goes on.
                    let slots = u64::from(1 + self.random.below(8));
                    instruction.set_near_branch64(at + slots * SLOT);
                }
                let mut encoder = Encoder::new(64);
                if encoder.encode(&instruction, at).is_ok() {
                    break encoder.take_buffer();
                }
            };
            code.extend(if self.random.percent(8) { self.pushes_and_pops() } else { bytes });
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
