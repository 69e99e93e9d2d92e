//! Random programs of far transfers and loads of segment registers, and of instructions that show where these
//! have led.

use ring3_x86::cpu::reg;
use ring3_x86::segment::sreg;

use super::common::random::Random;
use super::tables::{
    BASE, CODE, CODE_SEGMENTS, CodeSegment, GATES, OTHER_CODE, OTHER_DATA, POINTERS, STACKS,
    VECTORS,
};

/// Parts of a program: single instructions, or several that belong together.
const LENGTH: usize = 24;
/// Number of far pointers in memory.
pub(crate) const POINTER_COUNT: u32 = 16;

/// A program for code of one size: its bytes, the offsets where its parts begin, and the offsets in it that
/// must receive the offset of a part, with its segment and size in bytes.
pub(crate) struct Program {
    pub(crate) code: Vec<u8>,
    pub(crate) starts: Vec<usize>,
    pub(crate) targets: Vec<(usize, CodeSegment, usize)>,
}

/// Returns a selector for data, mostly one that can be loaded at the privilege of `is_user`.
pub(crate) fn data(random: &mut Random, is_user: bool) -> u16 {
    match random.below(12) {
        0 => random.pick(&OTHER_DATA),
        1 => random.pick(&STACKS[usize::from(!is_user)]),
        _ => random.pick(&STACKS[usize::from(is_user)]),
    }
}

/// Returns a code segment, mostly one to which code of the privilege of `is_user` can go.
pub(crate) fn code(random: &mut Random, is_user: bool) -> CodeSegment {
    match random.below(14) {
        0 => random.pick(&OTHER_CODE),
        1 => random.pick(&CODE_SEGMENTS[usize::from(!is_user)]),
        _ => random.pick(&CODE_SEGMENTS[usize::from(is_user)]),
    }
}

/// Returns a program, mostly for code of users or of the supervisor, or, with `real`, for the segments of
/// real mode.
pub(crate) fn program(random: &mut Random, is_32_bit: bool, is_user: bool, real: bool) -> Program {
    let mut made = Program { code: Vec::new(), starts: Vec::new(), targets: Vec::new() };
    while made.starts.len() < LENGTH {
        made.starts.push(made.code.len());
        let is_wide = is_32_bit != random.percent(10);
        let prefix: &[u8] = if is_wide == is_32_bit { &[] } else { &[0x66] };
        let word = if is_wide { 4 } else { 2 };
        let segment = if real {
            CodeSegment { selector: (BASE >> 4) as u16, base: BASE, is_32_bit: false }
        } else {
            code(random, is_user)
        };
        let selector =
            if real { (BASE >> 4) as u16 + random.below(2) as u16 } else { data(random, is_user) };
        let register = random.pick(&[sreg::ES, sreg::DS, sreg::SS, sreg::FS, sreg::GS]);
        let code = &mut made.code;
        let push = |code: &mut Vec<u8>, number: u32| {
            code.extend(prefix);
            code.push(0x68);
            code.extend(&number.to_le_bytes()[..word]);
        };
        match random.below(21) {
            // MOV AX, selector; MOV Sreg, AX, and looks at the segment. The next instructions are in the same
            // block.
            0..=3 => {
                code.extend_from_slice(if is_32_bit { &[0x66, 0xb8] } else { &[0xb8] });
                code.extend(selector.to_le_bytes());
                code.extend([0x8e, 0xc0 | register << 3]);
                if random.percent(30) {
                    // LAR or LSL ECX, EAX; VERR or VERW AX
                    code.extend([0x0f, random.pick(&[2, 3]), 0xc8]);
                    code.extend([0x0f, 0x00, random.pick(&[0xe0, 0xe8])]);
                }
                code.push(0x40);
            }
            4 => {
                push(code, selector.into());
                code.extend(prefix);
                code.extend_from_slice(match register {
                    sreg::ES => &[0x07],
                    sreg::SS => &[0x17],
                    sreg::DS => &[0x1f],
                    sreg::FS => &[0x0f, 0xa1],
                    _ => &[0x0f, 0xa9],
                });
                code.push(0x40);
            }
            // LES, LDS, LSS, LFS and LGS, JMP and CALL by far pointers.
            5..=7 => {
                let prefixes = [0x2e, 0x36, 0x3e, 0x26, 0x64];
                if random.percent(40) {
                    code.push(random.pick(&prefixes));
                }
                code.extend(prefix);
                let r = random.pick(&[reg::AX, reg::BX, reg::SI, reg::SP]);
                let reg = match random.below(8) {
                    0 => {
                        code.push(0xc4);
                        r
                    }
                    1 => {
                        code.push(0xc5);
                        r
                    }
                    2 => {
                        code.extend([0x0f, 0xb2]);
                        r
                    }
                    3 => {
                        code.extend([0x0f, 0xb4]);
                        r
                    }
                    4 => {
                        code.extend([0x0f, 0xb5]);
                        r
                    }
                    kind => {
                        code.push(0xff);
                        if kind < 7 { 3 } else { 5 }
                    }
                };
                let address = POINTERS + random.below(POINTER_COUNT) * 8;
                let address = if random.percent(60) { address } else { address - BASE };
                if is_32_bit {
                    code.extend([reg << 3 | 5]);
                    code.extend(address.to_le_bytes());
                } else {
                    code.extend([reg << 3 | 6]);
                    code.extend(((address & 0xffff) as u16).to_le_bytes());
                }
            }
            // JMP and CALL with far pointers.
            8..=10 => {
                code.extend(prefix);
                code.push(random.pick(&[0x9a, 0xea]));
                made.targets.push((code.len(), segment, word));
                code.extend(vec![0; word]);
                let gate = if random.percent(25) && !real {
                    random.pick(&GATES)
                } else {
                    segment.selector
                };
                code.extend(gate.to_le_bytes());
            }
            // RETF to pushed values, or to the values on the stack; IRET too.
            11 | 12 => {
                let is_interrupt = random.percent(50);
                let is_outward = !is_user && random.percent(20) && !real;
                if is_outward {
                    push(code, STACKS[1][random.below(5) as usize].into());
                    push(code, 0xb000);
                }
                if is_interrupt {
                    code.extend(prefix);
                    code.push(0x9c); // pushf
                    if random.percent(20) {
                        code.extend(prefix);
                        // XOR [SP or ESP], flags: by an address of either size.
                        if !is_32_bit {
                            code.push(0x67);
                        }
                        code.extend([0x81, 0x34, 0x24]);
                        let flags = random.pick(&[0x200u32, 1, 0x400, 0x4000, 0x3000]);
                        code.extend(&flags.to_le_bytes()[..word]);
                    }
                }
                let segment =
                    if is_outward { CODE_SEGMENTS[1][random.below(4) as usize] } else { segment };
                push(code, segment.selector.into());
                code.extend(prefix);
                code.push(0x68);
                made.targets.push((code.len(), segment, word));
                code.extend(vec![0; word]);
                code.extend(prefix);
                match (is_interrupt, random.percent(30)) {
                    (true, _) => code.push(0xcf),
                    (false, true) => code.extend([0xca, random.below(3) as u8 * 4, 0]),
                    (false, false) => code.push(0xcb),
                }
            }
            13 => {
                code.extend(prefix);
                code.push(random.pick(&[0xcb, 0xcf]));
            }
            14 | 15 => code.extend([0xcd, random.pick(&VECTORS)]),
            16 => {
                code.extend(prefix);
                code.push(random.pick(&[0x9c, 0x9d, 0xfa, 0xfb]));
                code.push(0x40);
            }
            // PUSH and POP of any register, and memory by any segment.
            17 => code.extend([0x50 | random.below(8) as u8, 0x58 | random.below(4) as u8]),
            18 => code.push(random.pick(&[0x06, 0x0e, 0x16, 0x1e])),
            // IRETD to virtual-8086 mode.
            19 if is_32_bit && !is_user => {
                let selector = (BASE >> 4) as u16;
                let mut push = |number: u32| {
                    code.push(0x68);
                    code.extend(number.to_le_bytes());
                };
                for _ in [sreg::GS, sreg::FS, sreg::DS, sreg::ES] {
                    push(random.pick(&[selector.into(), u32::from(selector) + 1, 0x5_1000]));
                }
                push(selector.into());
                push(random.pick(&[0xe000, 0xe001, 0xe100, 0x1_e000, 2, 0xffff]));
                let iopl = random.pick(&[0, 0x1000, 0x3000, 0x3000]);
                let others =
                    random.pick(&[1, 0x400, 0x4000, 0x1_0000, 0x4_0000, 0x8_0000, 0x20_0000]);
                let others =
                    if random.percent(15) { others } else { random.pick(&[0, 0x200, 0x8d5]) };
                push(0x2_0002 | iopl | others);
                push(selector.into());
                code.push(0x68);
                let segment = CodeSegment { selector, base: BASE, is_32_bit: false };
                made.targets.push((code.len(), segment, 4));
                code.extend([0; 4]);
                code.push(0xcf);
            }
            _ => {
                code.push(random.pick(&[0x26, 0x36, 0x3e, 0x64, 0x65]));
                code.extend([random.pick(&[0x01, 0x03]), if is_32_bit { 0x03 } else { 0x07 }]); // add [bx], ax
            }
        }
    }
    // Back to the first instruction.
    made.code.extend([0xeb, 0]);
    let end = made.code.len();
    let back = made.starts.iter().find(|start| end - **start < 120).copied().unwrap_or(end);
    made.code[end - 1] = back.wrapping_sub(end) as u8;
    made
}

/// Returns the linear address of a random part of the programs for code of that size.
pub(crate) fn part(random: &mut Random, programs: &[Program; 2], is_32_bit: bool) -> u32 {
    let which = usize::from(!is_32_bit);
    CODE[which] + 0x10 + random.pick(&programs[which].starts) as u32
}
