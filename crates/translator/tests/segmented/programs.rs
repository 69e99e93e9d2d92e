//! Random programs of the instructions that compilers for 16-bit code, and people, write most. The programs
//! branch to any of their instructions.

use ring3_core::memory::Memory;
use ring3_x86::cpu::{Cpu, reg};
use ring3_x86::segment::sreg;

use super::common::random::Random;
use super::state::MEMORY;

/// Instructions in a program.
const LENGTH: usize = 40;

/// Returns a program for the operand and address size of its segment; some of its instructions change the
/// size by a prefix.
pub(crate) fn program(random: &mut Random, is_32_bit: bool) -> Vec<u8> {
    let mut code = Vec::new();
    let mut starts = Vec::new();
    let mut jumps = Vec::new();
    while starts.len() < LENGTH {
        starts.push(code.len());
        let mut has_32_bit_operand = is_32_bit;
        let mut has_32_bit_address = is_32_bit;
        if random.percent(12) {
            code.push(0x66);
            has_32_bit_operand = !is_32_bit;
        }
        if random.percent(12) {
            code.push(0x67);
            has_32_bit_address = !is_32_bit;
        }
        if random.percent(8) {
            code.push(random.pick(&[0x26, 0x2e, 0x36, 0x3e, 0x64, 0x65]));
        }
        let (a, b) = (random.below(8) as u8, random.below(8) as u8);
        let registers = 0xc0 | a << 3 | b;
        let number = random.below(256) as u8;
        let operand = |reg: u8| memory_operand(reg, b, number, has_32_bit_address);
        let word = if has_32_bit_operand { 4 } else { 2 };
        match random.below(38) {
            // MOV from and to memory, bytes and words.
            0..=3 => {
                code.push(0x88 | random.below(4) as u8);
                code.extend(operand(a));
            }
            4 => code.extend([0x89, registers]),
            5 | 6 => code.push(0x50 | a), // push
            7 => code.push(0x58 | if a == reg::SP { b & 3 } else { a }), // pop
            8 => {
                code.push(0x8d); // lea
                code.extend(operand(a));
            }
            9 | 10 => {
                // ADD, OR, ADC, SBB, AND, SUB, XOR, CMP, with memory.
                code.push(random.below(8) as u8 * 8 + random.below(4) as u8);
                code.extend(operand(a));
            }
            11 => code.extend([0x83, registers, number]),
            12 => {
                code.push(0x80);
                code.extend(operand(a));
                code.push(number);
            }
            13 => code.push(0x40 | (a & 1) << 3 | b & 3), // inc, dec
            14 => {
                code.push(0xff); // inc, dec, push
                code.extend(operand([0, 1, 6][a as usize % 3]));
            }
            15 => code.push(0xc3), // ret
            16 | 17 => {
                code.push(0xe8); // call
                code.extend(vec![0; word]);
                jumps.push((code.len(), word));
            }
            18 => code.extend([0x8e, 0xc0 | [0, 3, 4, 5][a as usize % 4] << 3 | b]), // mov sreg, r
            19 => code.extend([0x8c, 0xc0 | (a % 6) << 3 | b]),                      // mov r, sreg
            20 => code.push([0x06, 0x0e, 0x16, 0x1e][a as usize % 4]),               // push sreg
            21 => code.push([0x07, 0x1f][a as usize % 2]),                           // pop sreg
            22 => {
                code.push(0xc4 | a & 1); // les, lds
                code.extend(operand(b & 3));
            }
            23 => code.push([0x9c, 0xfa, 0xfb, 0x9d][a as usize % 4]), // pushf, cli, sti, popf
            24 | 25 => {
                // MOVS, CMPS, STOS, LODS, SCAS.
                if random.percent(50) {
                    code.extend([0xf2 | a & 1]);
                }
                let strings = [0xa4, 0xa5, 0xa6, 0xa7, 0xaa, 0xab, 0xac, 0xad, 0xae, 0xaf];
                code.push(random.pick(&strings));
            }
            26 => code.push(0xc9), // leave
            27 => {
                code.push(0x8f); // pop m
                code.extend(operand(0));
            }
            28 => code.extend([0xb0 | a, number]),
            29 => {
                code.extend([0xe0 | a & 3, 0]); // loopne, loope, loop, jcxz
                jumps.push((code.len(), 1));
            }
            30 => {
                code.push(0xff); // call, jmp
                code.extend(if a & 1 == 0 {
                    operand(2 | a & 4)
                } else {
                    vec![0xd0 | (a & 4) << 3 | b]
                });
            }
            31 => {
                // x87 instructions with memory, except those that load or store a state.
                code.push(0xd8 | b);
                let is_state = b == 1 && [4, 6].contains(&a) || b == 5 && [4, 6].contains(&a);
                let rm = random.below(8) as u8;
                let reg = if is_state { 0 } else { a };
                code.extend(memory_operand(reg, rm, number, has_32_bit_address));
            }
            32 => {
                // FADD, FMUL, ... of registers, FXCH, FLD1, FLDZ, FWAIT.
                let others = [[0xd9, 0xc8 | b], [0xd9, 0xe8], [0xd9, 0xee], [0x90, 0x9b]];
                code.extend(others.get(a as usize).copied().unwrap_or([0xd8, registers]));
            }
            33 => {
                // MOVUPS, MOVAPS, MOVQ, MOVD, PADDD, ADDPS, from memory; EMMS, MFENCE.
                let opcodes = [0x10, 0x11, 0x28, 0x6f, 0x7f, 0x6e, 0xfe, 0x58];
                match number >> 5 {
                    0 => code.extend([0x0f, 0x77]),
                    1 => code.extend([0x0f, 0xae, 0xf0]),
                    _ => {
                        code.extend([0x0f, random.pick(&opcodes)]);
                        code.extend(operand(a));
                    }
                }
            }
            34 => match a {
                0..3 => code.push(0x60),                                   // pusha
                3..6 => code.push(0x61),                                   // popa
                _ => code.extend([0xc8, number, 0, u8::from(a == 7) * b]), // enter
            },
            _ => {
                code.extend([0x70 | number & 15, 0]); // jcc
                jumps.push((code.len(), 1));
            }
        }
    }
    for (end, bytes) in jumps {
        let to = starts[random.below(LENGTH as u32) as usize];
        let distance = to as i32 - end as i32;
        if bytes > 1 || (-128..128).contains(&distance) {
            code[end - bytes..end].copy_from_slice(&distance.to_le_bytes()[..bytes]);
        }
    }
    code
}

/// Returns ModRM, SIB and displacement of a memory operand.
fn memory_operand(reg: u8, rm: u8, number: u8, is_32_bit: bool) -> Vec<u8> {
    match (is_32_bit, rm) {
        (true, reg::SP) => vec![0x44 | reg << 3, number, number],
        (false, 6) => vec![reg << 3 | 6, number, number],
        _ => vec![0x40 | reg << 3 | rm, number],
    }
}

/// Returns memory with numbers that are mostly offsets in segments, and with addresses of code on the stack.
pub(crate) fn filled(random: &mut Random, mut memory: Memory, cpu: &Cpu) -> Memory {
    let mut bytes = Vec::with_capacity(MEMORY as usize);
    while bytes.len() < MEMORY as usize {
        bytes.extend((random.below(0x1_0000) as u16).to_le_bytes());
    }
    memory.load_image(0, &bytes).unwrap();
    let stack = cpu.segment(sreg::SS).base as u32;
    let top = cpu.gpr(reg::SP) as u32 & 0xffff;
    for word in 0..16 {
        let place = stack + (top & !1) + word * 2;
        let address = (cpu.ip as u32).wrapping_add(random.below(80)) as u16;
        memory.write(place.into(), &address.to_le_bytes());
    }
    memory
}
