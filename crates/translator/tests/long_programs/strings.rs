//! String instructions: all forms, alone and repeated, in both directions, at borders of pages, units and halves, with
//! exceptions in the middle, and over code.

use iced_x86::{Code, Encoder, Instruction, Register};

use ring3_x86::engine::{Engine, Exit};

use crate::counts::{counter, repeat};
use crate::machine::{LAYOUTS, Layout, PAGE, TABLES, machine, map};
use crate::maker::SLOT;
use crate::random::Random;
use crate::support::translator;
use crate::{compare, series};

/// String instructions in a program. The instructions before each set its registers.
const STRINGS: u64 = 60;

const FORMS: [Code; 20] = [
    Code::Movsb_m8_m8,
    Code::Movsw_m16_m16,
    Code::Movsd_m32_m32,
    Code::Movsq_m64_m64,
    Code::Cmpsb_m8_m8,
    Code::Cmpsw_m16_m16,
    Code::Cmpsd_m32_m32,
    Code::Cmpsq_m64_m64,
    Code::Stosb_m8_AL,
    Code::Stosw_m16_AX,
    Code::Stosd_m32_EAX,
    Code::Stosq_m64_RAX,
    Code::Lodsb_AL_m8,
    Code::Lodsw_AX_m16,
    Code::Lodsd_EAX_m32,
    Code::Lodsq_RAX_m64,
    Code::Scasb_AL_m8,
    Code::Scasw_AX_m16,
    Code::Scasd_EAX_m32,
    Code::Scasq_RAX_m64,
];

/// Returns an address of data, or rarely another one.
fn address(random: &mut Random, layout: &Layout) -> u64 {
    let near = u64::from(random.below(0x40)).wrapping_sub(0x20);
    match random.below(40) {
        0 => random.next(),
        1 => 0x7fff_ffff_ffff_u64.wrapping_add(near),
        2 => near,
        3 => layout.code + u64::from(random.below(2 * PAGE as u32)),
        4 => layout.stack.wrapping_add(near),
        5..14 => (layout.data + u64::from(random.below(5)) * PAGE).wrapping_add(near),
        14..17 => layout.stack - u64::from(random.below(2 * PAGE as u32)),
        _ => layout.data + u64::from(random.below(4 * PAGE as u32)),
    }
}

/// Returns a number of iterations.
fn count(random: &mut Random) -> u64 {
    match random.below(20) {
        0 | 1 => 0,
        2 => 1,
        3 => random.next(),
        4 => u64::MAX,
        5..9 => random.below(3000).into(),
        _ => random.below(40).into(),
    }
}

/// Returns the string instruction `code` with random prefixes.
fn string_instruction(random: &mut Random, code: Code) -> Instruction {
    let segment = match random.below(30) {
        0 => Register::GS,
        1 => Register::FS,
        2 => Register::SS,
        _ => Register::None,
    };
    let bits = if random.percent(3) { 32 } else { 64 };
    let none = iced_x86::RepPrefixKind::None;
    let made = match FORMS.iter().position(|form| *form == code).unwrap_or(0) {
        0 => Instruction::with_movsb(bits, segment, none),
        1 => Instruction::with_movsw(bits, segment, none),
        2 => Instruction::with_movsd(bits, segment, none),
        3 => Instruction::with_movsq(bits, segment, none),
        4 => Instruction::with_cmpsb(bits, segment, none),
        5 => Instruction::with_cmpsw(bits, segment, none),
        6 => Instruction::with_cmpsd(bits, segment, none),
        7 => Instruction::with_cmpsq(bits, segment, none),
        8 => Instruction::with_stosb(bits, none),
        9 => Instruction::with_stosw(bits, none),
        10 => Instruction::with_stosd(bits, none),
        11 => Instruction::with_stosq(bits, none),
        12 => Instruction::with_lodsb(bits, segment, none),
        13 => Instruction::with_lodsw(bits, segment, none),
        14 => Instruction::with_lodsd(bits, segment, none),
        15 => Instruction::with_lodsq(bits, segment, none),
        16 => Instruction::with_scasb(bits, none),
        17 => Instruction::with_scasw(bits, none),
        18 => Instruction::with_scasd(bits, none),
        _ => Instruction::with_scasq(bits, none),
    };
    let mut instruction = made.expect("the form has these operands");
    match random.below(4) {
        0 => {}
        1 => instruction.set_has_repne_prefix(true),
        _ => instruction.set_has_rep_prefix(true),
    }
    instruction
}

/// Returns a program of string instructions, which begins anew at its end.
fn program(random: &mut Random, layout: &Layout) -> Vec<u8> {
    let mut code = Vec::new();
    let mut put = |instruction: &Instruction| {
        let mut encoder = Encoder::new(64);
        encoder.encode(instruction, layout.code + code.len() as u64).expect("it exists");
        code.extend(encoder.take_buffer());
        // Exceptions go on at the next multiple.
        code.resize(code.len().next_multiple_of(SLOT as usize), 0x90);
    };
    let number = |register, number| {
        Instruction::with2(Code::Mov_r64_imm64, register, number).expect("it is one of 64 bits")
    };
    for _ in 0..STRINGS {
        let direction = if random.percent(30) { Code::Std } else { Code::Cld };
        put(&Instruction::with(direction));
        put(&number(Register::RSI, address(random, layout)));
        put(&number(Register::RDI, address(random, layout)));
        put(&number(Register::RCX, count(random)));
        if layout.has_data_of_users && !layout.is_user && random.percent(50) {
            put(&Instruction::with(random.pick(&[Code::Stac, Code::Clac])));
        }
        let form = random.pick(&FORMS);
        put(&string_instruction(random, form));
    }
    let again = Instruction::with_branch(Code::Jmp_rel32_64, layout.code);
    put(&again.expect("it is in the same page"));
    code
}

#[test]
fn string_instructions_agree_with_the_interpreter() {
    compare(program);
}

/// Returns `PUSH RSI; PUSH RDI; PUSH RCX; MOV RDI, RBX; MOV RSI, RBP; MOV ECX, count; body; POP RCX; POP RDI; POP RSI`.
fn with_count(count: u32, body: &[u8]) -> Vec<u8> {
    let mut code = vec![0x56, 0x57, 0x51, 0x48, 0x89, 0xdf, 0x48, 0x89, 0xee, 0xb9];
    code.extend(count.to_le_bytes());
    code.extend(body);
    code.extend([0x59, 0x5f, 0x5e]);
    code
}

#[test]
fn string_instructions_stay_in_translated_code() {
    // REP MOVSB, REP STOSQ, LODSD, REPE CMPSB, REPNE SCASW, MOVSQ.
    for body in [
        &[0xf3, 0xa4][..],
        &[0xf3, 0x48, 0xab],
        &[0xad],
        &[0xf3, 0xa6],
        &[0x66, 0xf2, 0xaf],
        &[0x48, 0xa5],
    ] {
        for layout in &LAYOUTS {
            let mut body = with_count(20, body);
            if layout.has_data_of_users && !layout.is_user {
                // STAC and CLAC around it.
                body = [&[0x0f, 0x01, 0xcb][..], &body, &[0x0f, 0x01, 0xca]].concat();
            }
            let Some((engine, _)) = repeat(layout, &body, 5000) else { return };
            for name in ["instructions left to the interpreter", "signals"] {
                let count = counter(&engine, name);
                assert!(count <= 40, "{name}: {count} in {body:x?} at {:#x}", layout.data);
            }
        }
    }
}

/// A copy of 1 MiB between pages of 4 KiB, in the memory of the supervisor, of users, and from the one to the other.
#[test]
fn large_copies_raise_few_signals() {
    const BYTES: u64 = 1 << 20;
    const TIMES: u64 = 20;
    const SLICE: u64 = 300_001;
    const PLACES: [u64; 2] = [2 << 20, 3 << 20];
    let [kernel, user] = [0xffff_8881_4000_0000_u64, 0x7f1a_8000_0000];
    // STAC; MOV RSI, from; MOV RDI, to; MOV ECX, BYTES; REP MOVSB; JMP to the beginning
    let code = |from: u64, to: u64| {
        let mut code = vec![0x0f, 0x01, 0xcb, 0x48, 0xbe];
        code.extend(from.to_le_bytes());
        code.extend([0x48, 0xbf]);
        code.extend(to.to_le_bytes());
        code.push(0xb9);
        code.extend((BYTES as u32).to_le_bytes());
        code.extend([0xf3, 0xa4, 0xeb, 0xe0]);
        code
    };
    for (from, to) in [(kernel, kernel + BYTES), (user, kernel), (kernel, user)] {
        let Some((mut translator, mut memory)) = translator(4 << 20) else { return };
        let code = code(from, to);
        let mut cpu = machine(&mut memory, &LAYOUTS[0], &code, Random::new(series::SEED, 0));
        let mut tables = TABLES + 0x4_0000;
        for (linear, place) in [(from, PLACES[0]), (to, PLACES[1])] {
            // P, R/W, A and D, and U/S.
            let rights = if linear >> 63 == 0 { 0x67 } else { 0x63 };
            for page in (0..BYTES).step_by(PAGE as usize) {
                map(&mut memory, &mut tables, linear + page, place + page, rights);
            }
        }
        memory.write(PLACES[0] + BYTES - 8, &[7; 8]);
        let mut slices = 0;
        while cpu.instructions < TIMES * BYTES {
            assert_eq!(translator.run(&mut cpu, &mut memory, SLICE), Exit::Deadline);
            slices += 1;
        }
        assert_eq!(memory.read_aligned::<8>(PLACES[1] + BYTES - 8), [7; 8]);
        // Each part costs a signal before and one behind it, and the rest before the deadline a step.
        let signals = counter(&translator, "signals");
        assert!(signals <= 100 + 3 * slices, "{signals} signals, {slices} slices");
        let steps = counter(&translator, "instructions left to the interpreter");
        assert!(steps <= 20 + slices, "{steps} steps, {slices} slices");
        // The first accesses to a unit are the interpreter's, with what follows up to the deadline.
        let interpreted = counter(&translator, "instructions interpreted");
        assert!(interpreted <= 2 * SLICE + 100 * slices, "{interpreted} iterations");
    }
}
