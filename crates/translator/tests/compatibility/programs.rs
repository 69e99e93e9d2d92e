//! The programs.

use iced_x86::{Code, Encoder, IcedError, Instruction, MemoryOperand, Register};

use crate::kernel::{
    BASED_DATA, CODE, CODE_PAGES, DATA, LARGE, LONG_CODE, LONG_USER_CODE, PAGE, SERVICES,
    SHORT_CODE, USER_DATA,
};
use crate::random::Random;

/// Each instruction has as many bytes, with NOPs behind it, so that there is something at each branch's target.
const SLOT: u64 = 16;
const SLOTS: u64 = CODE_PAGES * PAGE / SLOT;

/// Registers that mostly have addresses of data.
const POINTERS: [Register; 3] = [Register::EBX, Register::ESI, Register::EDI];
const OTHERS: [Register; 3] = [Register::EAX, Register::EDX, Register::ECX];

/// Returns the code of a program.
pub(crate) fn program(random: &mut Random) -> Vec<u8> {
    let mut code = Vec::new();
    for slot in 0..SLOTS {
        let at = CODE + slot * SLOT;
        let bytes = match system_call(random, at) {
            Some(bytes) => bytes,
            None => loop {
                let Ok(mut instruction) = instruction(random) else { continue };
                if instruction.code() == Code::Loop_rel8_32_ECX {
                    instruction.set_near_branch32((at - 3 * SLOT.min(slot)) as u32);
                }
                let mut encoder = Encoder::new(32);
                if encoder.encode(&instruction, at).is_ok() {
                    break encoder.take_buffer();
                }
            },
        };
        code.extend(&bytes);
        code.resize(((slot + 1) * SLOT) as usize, 0x90);
    }
    code
}

/// Returns the code at `at` if it leaves the segment of code.
fn system_call(random: &mut Random, at: u64) -> Option<Vec<u8>> {
    let far = |opcode: u8, selector: u16, offset: u32| {
        [&[opcode][..], &offset.to_le_bytes(), &selector.to_le_bytes()].concat()
    };
    Some(match random.below(40) {
        0 | 1 => vec![0xcd, random.pick(&SERVICES)], // INT
        2 => {
            // MOV ECX, ESP; MOV EDX, the next instruction; SYSENTER
            let next = (at + SLOT) as u32;
            [&[0x89, 0xe1, 0xba][..], &next.to_le_bytes(), &[0x0f, 0x34]].concat()
        }
        3 => far(0x9a, LONG_USER_CODE, LONG_CODE as u32), // CALL
        4 if random.percent(30) => far(0xea, SHORT_CODE, slot(random) as u32), // JMP
        5 if random.percent(50) => {
            // MOV EAX, a selector; MOV a segment register, EAX
            let selector = random.pick(&[USER_DATA, USER_DATA, BASED_DATA, 0, 1]);
            let register = random.pick(&[0, 3, 4, 5]);
            [&[0xb8][..], &u32::from(selector).to_le_bytes(), &[0x8e, 0xc0 | register << 3]]
                .concat()
        }
        6 if random.percent(30) => vec![0x0f, 0x05], // SYSCALL
        _ => return None,
    })
}

/// Returns the offset of an instruction.
fn slot(random: &mut Random) -> u64 {
    u64::from(random.below(SLOTS as u32)) * SLOT
}

/// Returns a register of so many bytes that may be written to.
fn register(random: &mut Random, bytes: usize) -> Register {
    let all = if random.percent(3) { &POINTERS } else { &OTHERS };
    sized(random, all, bytes)
}

/// Returns any register of so many bytes.
fn source(random: &mut Random, bytes: usize) -> Register {
    let all = match random.below(8) {
        0 => &POINTERS[..],
        1 => &[Register::ESP, Register::EBP],
        _ => &OTHERS[..],
    };
    sized(random, all, bytes)
}

fn sized(random: &mut Random, all: &[Register], bytes: usize) -> Register {
    let number = random.pick(all).number() as u32;
    match bytes {
        1 => Register::AL + (number & 3) + if random.percent(20) { 4 } else { 0 },
        2 => Register::AX + number,
        _ => Register::EAX + number,
    }
}

/// Returns an operand in memory.
fn memory(random: &mut Random) -> MemoryOperand {
    let mut base = random.pick(&POINTERS);
    let mut index = Register::None;
    let mut segment = Register::None;
    let mut displacement = i64::from(random.below(0x400)) - 0x100;
    match random.below(20) {
        0..=3 => index = Register::ECX,
        4..=6 => base = random.pick(&[Register::ESP, Register::EBP]),
        7 => base = random.pick(&OTHERS),
        8 => (segment, base) = (Register::GS, Register::None),
        9 => (segment, base) = (Register::GS, Register::ECX),
        10 => segment = Register::ES,
        11 | 12 => {
            let at = random.pick(&[DATA, LARGE, LARGE + PAGE, CODE]) as u32;
            (base, displacement) = (Register::None, i64::from(at + random.below(0x1000)));
        }
        13 if random.percent(20) => displacement = i64::from(random.bits() as i32),
        _ => {}
    }
    let scale = if index == Register::None { 1 } else { random.pick(&[1, 2, 4, 8]) };
    let size = if base == Register::None { 4 } else { 1 };
    MemoryOperand::new(base, index, scale, displacement, size, false, segment)
}

/// Returns an instruction that stays in its segment.
fn instruction(random: &mut Random) -> Result<Instruction, IcedError> {
    use Code as C;
    const TO_MEMORY: [(C, usize); 13] = [
        (C::Add_rm8_r8, 1),
        (C::Add_rm32_r32, 4),
        (C::Or_rm16_r16, 2),
        (C::Adc_rm32_r32, 4),
        (C::Sbb_rm32_r32, 4),
        (C::Xor_rm32_r32, 4),
        (C::Cmp_rm32_r32, 4),
        (C::Test_rm8_r8, 1),
        (C::Mov_rm8_r8, 1),
        (C::Mov_rm32_r32, 4),
        (C::Xchg_rm32_r32, 4),
        (C::Xadd_rm32_r32, 4),
        (C::Cmpxchg_rm32_r32, 4),
    ];
    const FROM_MEMORY: [(C, usize); 10] = [
        (C::Add_r32_rm32, 4),
        (C::Sub_r32_rm32, 4),
        (C::And_r32_rm32, 4),
        (C::Mov_r8_rm8, 1),
        (C::Mov_r16_rm16, 2),
        (C::Mov_r32_rm32, 4),
        (C::Movzx_r32_rm8, 4),
        (C::Movsx_r32_rm16, 4),
        (C::Cmovb_r32_rm32, 4),
        (C::Lea_r32_m, 4),
    ];
    const ALONE: [C; 7] = [
        C::Not_rm32,
        C::Neg_rm32,
        C::Inc_rm32,
        C::Shl_rm32_1,
        C::Ror_rm32_1,
        C::Push_rm32,
        C::Pop_rm32,
    ];
    const VECTORS: [C; 4] =
        [C::Movdqu_xmm_xmmm128, C::Paddd_xmm_xmmm128, C::Pxor_xmm_xmmm128, C::Movups_xmm_xmmm128];
    const BRANCHES: [C; 5] =
        [C::Jne_rel32_32, C::Jb_rel32_32, C::Jle_rel32_32, C::Js_rel32_32, C::Jo_rel32_32];
    let target = CODE + slot(random);
    match random.below(100) {
        0..24 => {
            let (code, bytes) = random.pick(&TO_MEMORY);
            let changes = matches!(code, C::Xchg_rm32_r32 | C::Xadd_rm32_r32);
            let register = if changes { register(random, bytes) } else { source(random, bytes) };
            Instruction::with2(code, memory(random), register)
        }
        24..46 => {
            let (code, bytes) = random.pick(&FROM_MEMORY);
            let register = register(random, bytes);
            Instruction::with2(code, register, memory(random))
        }
        46..54 => {
            let (code, bytes) = random.pick(&FROM_MEMORY[..6]);
            Instruction::with2(code, register(random, bytes), source(random, bytes))
        }
        54..58 => {
            let code = random.pick(&ALONE);
            Instruction::with1(code, memory(random))
        }
        58..64 => {
            let code = random.pick(&ALONE);
            Instruction::with1(code, register(random, 4))
        }
        64..67 => {
            let (code, vector) = (random.pick(&VECTORS), Register::XMM0 + random.below(8));
            Instruction::with2(code, vector, memory(random))
        }
        67 => {
            let vector = Register::XMM0 + random.below(8);
            Instruction::with2(C::Movdqu_xmmm128_xmm, memory(random), vector)
        }
        68 => Instruction::with1(C::Fild_m32int, memory(random)),
        69 => Instruction::with1(C::Fistp_m32int, memory(random)),
        70..77 => Instruction::with_branch(random.pick(&BRANCHES), target),
        77 | 78 => Instruction::with_branch(C::Jmp_rel32_32, target),
        79..82 => Instruction::with_branch(C::Call_rel32_32, target),
        82..85 => Ok(Instruction::with(C::Retnd)),
        85 => Instruction::with1(C::Jmp_rm32, memory(random)),
        86 => Instruction::with1(C::Call_rm32, memory(random)),
        87 => Instruction::with2(C::Mov_r32_imm32, register(random, 4), random.bits()),
        88 | 89 => Instruction::with2(C::Mov_r32_imm32, Register::ECX, random.below(40)),
        90 => {
            let (pointer, at) = (random.pick(&POINTERS), random.pick(&[DATA, DATA, LARGE]));
            Instruction::with2(C::Mov_r32_imm32, pointer, at as u32 + random.below(0x3000))
        }
        91 => Ok(Instruction::with(random.pick(&[C::Cwde, C::Cdq, C::Cmc, C::Pushad, C::Salc]))),
        92 => Ok(Instruction::with(random.pick(&[C::Stosd_m32_EAX, C::Lodsb_AL_m8]))),
        93 => Ok(Instruction::with(C::Pushfd)),
        94 => Ok(Instruction::with(random.pick(&[C::Ud2, C::Cpuid, C::Int3]))),
        95 => {
            let code = random.pick(&[C::Bt_rm32_r32, C::Bts_rm32_r32]);
            Instruction::with2(code, memory(random), Register::ECX)
        }
        96 => {
            // It often changes code.
            let there = (CODE + slot(random)) as i64;
            let there = MemoryOperand::with_displ(there as u64, 4);
            Instruction::with2(C::Mov_rm8_r8, there, Register::AL)
        }
        97 => Ok(Instruction::with(random.pick(&[C::Pushw_ES, C::Pushd_GS, C::Popd_ES]))),
        98 => Instruction::with_branch(C::Loop_rel8_32_ECX, 0),
        _ => Ok(Instruction::with(C::Nopd)),
    }
}
