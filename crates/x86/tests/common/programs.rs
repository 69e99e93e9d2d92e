//! Random programs of the instructions that compilers use most, with branches to any of these.

use ring3_core::memory::Memory;
use ring3_x86::cpu::{Cpu, reg};
use ring3_x86::engine::Exit;
use ring3_x86::flags::Eflags;
use ring3_x86::undefined::Vendor;

use super::random::Random;

/// The address of the code, at the end of a page so that some of it is in the next page.
const CODE: u32 = 0x2_0f80;
/// The address to which the registers point.
const DATA: u32 = 0x4_0000;
/// The number of instructions in a program, and the number that are executed.
const LENGTH: usize = 40;
pub(crate) const EXECUTED: u64 = 400;

/// Makes a program of the instructions that compilers use most. Branches go to any of them.
pub(crate) fn program(random: &mut Random) -> Vec<u8> {
    let mut code = Vec::new();
    let mut starts = Vec::new();
    let mut jumps = Vec::new();
    while starts.len() < LENGTH {
        starts.push(code.len());
        let (a, b) = (random.below(8) as u8, random.below(8) as u8);
        let registers = 0xc0 | a << 3 | b;
        // A base register other than ESP, which has another encoding, and a displacement.
        let base = [0, 1, 2, 3, 5, 6, 7][random.below(7) as usize];
        let operand = [0x40 | a << 3 | base, random.below(256) as u8];
        let number = random.below(256) as u8;
        match random.below(21) {
            0 | 1 => code.extend([0x8b, operand[0], operand[1]]), // mov r, [m]
            2 | 3 => code.extend([0x89, operand[0], operand[1]]), // mov [m], r
            4 => code.extend([0x89, registers]),                  // mov r, r
            5 => code.push(0x50 | a),                             // push
            6 => code.push(0x58 | if a == reg::SP { b & 3 } else { a }), // pop
            7 => code.extend([0x8d, operand[0], operand[1]]),     // lea
            8 => code.extend([0x85, registers]),                  // test r, r
            9 => code.extend([[0x39, 0x3b, 0x38, 0x3a, 0x85][a as usize % 5], registers]), // cmp, test
            10 => code.extend([[0x39, 0x3b, 0x3a][b as usize % 3], operand[0], operand[1]]),
            11 => code.extend([0x83, registers, number]), // add, or, adc, sbb, and, sub, xor, cmp
            12 => code.extend([0x83, operand[0], operand[1], number]),
            13 => code.push(0x40 | (a & 1) << 3 | b & 3), // inc, dec
            14 => code.extend([0xff, 0x40 | (a & 1) << 3 | base, operand[1]]),
            15 => code.push(0xc3), // ret
            16 => {
                code.extend([0xe8, 0, 0, 0, 0]); // call
                jumps.push((code.len(), 4));
            }
            17 => {
                code.extend([0xb9, number & 31, 0, 0, 0]); // mov ecx, ...
                code.push(0xbf); // mov edi, ...
                code.extend((DATA + u32::from(number) * 16).to_le_bytes());
                // REP or REPNE with MOVSB, MOVSD, CMPSB, STOSB, STOSD or SCASB.
                let string = [0xa4, 0xa5, 0xa6, 0xaa, 0xab, 0xae][b as usize % 6];
                code.extend([0xf2 | a & 1, string]);
            }
            _ => {
                code.extend([0x70 | number & 15, 0]); // jcc
                jumps.push((code.len(), 1));
            }
        }
    }
    for (end, bytes) in jumps {
        let to = starts[random.below(LENGTH as u32) as usize];
        let distance = (to as i32 - end as i32).to_le_bytes();
        let is_near = (-128..128).contains(&(to as i32 - end as i32));
        if bytes == 4 || is_near {
            code[end - bytes..end].copy_from_slice(&distance[..bytes]);
        }
    }
    code
}

/// Makes a machine with `memory`, all zero and at least 1 MiB, in which the program is about to run.
pub(crate) fn machine(random: &mut Random, code: &[u8], mut memory: Memory) -> (Cpu, Memory) {
    memory.load_image(CODE.into(), code).unwrap();
    // The data are addresses of data, and on the stack some addresses of code.
    for offset in (0..0x4000).step_by(4) {
        let value = if offset % 16 == 0 {
            CODE + random.below(code.len() as u32)
        } else {
            DATA + random.below(0x4000)
        };
        memory.load_image((DATA + offset).into(), &value.to_le_bytes()).unwrap();
    }
    let mut cpu = Cpu::new();
    cpu.vendor = Vendor::of_host();
    cpu.set_flat_entry(0x08, 0x10, CODE);
    for register in reg::AX..=reg::DI {
        cpu.set_gpr(register, ((DATA + 0x1000 + random.below(0x2000)) & !3).into());
    }
    cpu.set_eflags(Eflags::from_bits_truncate(random.below(0x1000)) & Eflags::STATUS);
    (cpu, memory)
}

/// Describes how a run ended, and the state of the processor.
pub(crate) fn seen(exit: &Exit, cpu: &Cpu) -> String {
    let registers: Vec<_> = (reg::AX..=reg::DI).map(|number| cpu.gpr(number)).collect();
    format!("{exit:?} {registers:x?} {:x} {:?} {}", cpu.ip, cpu.eflags(), cpu.instructions)
}
