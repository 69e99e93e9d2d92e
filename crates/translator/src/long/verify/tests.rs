//! The checker is convinced of what is translated, and of nothing from which a check is missing.

use iced_x86::{Decoder, DecoderOptions};
use ring3_x86::cpuid::Model;

use super::*;
use crate::code::block::ChangingSource;
use crate::long::block::{Block, Source, translate};
use crate::long::block_store::Slots;
use crate::long::far_sites::{FarSites, Reach};
use crate::map::Set;

const HOST: u32 = 0x2800_0000;
const ADDRESSES: Addresses = Addresses {
    context: 0x2000_0000,
    tables: [0x2100_0000, 0x2300_0000, 0x2500_0000],
    far_tables: [0x2700_0000, 0x2a00_0000],
};
/// Where guest code is.
const LINEAR: u64 = 0x1000;
/// An instruction that the interpreter executes. It ends blocks that are no loops.
const HLT: u8 = 0xf4;

// Guest code.
const LOAD: [u8; 3] = [0x48, 0x8b, 0x07]; // MOV RAX, [RDI]
const LOAD_BEHIND: [u8; 4] = [0x48, 0x8b, 0x5f, 0x08]; // MOV RBX, [RDI + 8]
const FAR_STEP: [u8; 7] = [0x48, 0x8d, 0xbf, 0xff, 0xff, 0xff, 0x7f]; // LEA RDI, [RDI + 2^31 - 1]
const STEP: [u8; 4] = [0x48, 0x83, 0xc7, 0x04]; // ADD RDI, 4
const INDEXED: [u8; 4] = [0x48, 0x8b, 0x14, 0xcf]; // MOV RDX, [RDI + RCX * 8]
const SHORT_INDEX: [u8; 2] = [0x89, 0xf1]; // MOV ECX, ESI
const NOP: u8 = 0x90;

fn translated(code: &[u8]) -> (Block, Vec<u8>) {
    translated_with(code, &FarSites::default())
}

fn translated_with(code: &[u8], far: &FarSites) -> (Block, Vec<u8>) {
    made(code, far, false, None)
}

fn made(
    code: &[u8],
    far: &FarSites,
    is_user: bool,
    changing: Option<ChangingSource>,
) -> (Block, Vec<u8>) {
    let source = Source {
        bytes: code,
        linear: LINEAR,
        place: LINEAR as usize,
        crosses_to: None,
        is_user,
        model: Model::Qemu64,
        barred: &Set::default(),
        breakpoints: &[],
        far,
        checks_before_loop: true,
        first_exit: 0,
        changing,
    };
    let (block, code, _) = translate(&source, HOST, ADDRESSES, &mut Slots::default(), |_| None)
        .expect("it crosses no page");
    (block, code)
}

fn is_proven(code: &[u8]) -> bool {
    Checker::new(ADDRESSES, false).proves(code, HOST, &[HOST])
}

/// Returns the places of checks in `code`, with their ends.
fn checks(code: &[u8]) -> Vec<(usize, usize)> {
    let all: Vec<_> = Decoder::with_ip(64, code, 0, DecoderOptions::NONE).iter().collect();
    let is_check = |pair: &&[Instruction]| {
        pair[0].mnemonic() == Mnemonic::Rorx
            && pair[1].memory_displacement64() == u64::from(ADDRESSES.tables[0])
    };
    let places = all.windows(2).filter(is_check);
    places.map(|pair| (pair[0].ip() as usize, pair[1].next_ip() as usize)).collect()
}

/// Returns `code` with `new` in the place of the only `old`.
fn replaced(code: &[u8], old: &[u8], new: &[u8]) -> Vec<u8> {
    let places: Vec<_> = (0..code.len()).filter(|place| code[*place..].starts_with(old)).collect();
    assert_eq!((places.len(), old.len()), (1, new.len()), "{code:02x?}");
    let mut code = code.to_vec();
    code[places[0]..][..new.len()].copy_from_slice(new);
    code
}

/// A loop over words in memory: L: MOV RAX, [RDI]; ADD RDI, 4; DEC ECX; JNE L.
fn words() -> Vec<u8> {
    [&LOAD[..], &STEP, &[0xff, 0xc9, 0x75, 0xf5]].concat()
}

/// Blocks, with the number of checks in each.
fn blocks() -> Vec<(Vec<u8>, usize)> {
    let of = |parts: &[&[u8]]| [&parts.concat()[..], &[HLT]].concat();
    vec![
        (of(&[&LOAD, &LOAD_BEHIND, &STEP, &LOAD_BEHIND]), 1),
        (of(&[&LOAD_BEHIND, &FAR_STEP, &LOAD_BEHIND]), 1),
        (of(&[&LOAD_BEHIND, &FAR_STEP.repeat(6), &LOAD_BEHIND]), 2),
        (of(&[&INDEXED, &INDEXED]), 1),
        (of(&[&LOAD_BEHIND, &SHORT_INDEX, &INDEXED]), 1),
        // PUSH RBX; PUSH R9; POP RCX; MOV RAX, [RSP + 8]; SUB RSP, 40; MOV RBP, RSP; MOV [RBP + 8], RAX
        (
            of(&[
                &[0x53, 0x41, 0x51, 0x59],
                &[0x48, 0x8b, 0x44, 0x24, 0x08],
                &[0x48, 0x83, 0xec, 0x28],
                &[0x48, 0x89, 0xe5],
                &[0x48, 0x89, 0x45, 0x08],
            ]),
            1,
        ),
        // MOV RAX, [R9]; ADD R9, 8; MOV RBX, [R9 + R10 * 8]; MOV RCX, [R9 + R10 * 8]
        (
            of(&[
                &[0x49, 0x8b, 0x01],
                &[0x49, 0x83, 0xc1, 0x08],
                &[0x4b, 0x8b, 0x1c, 0xd1],
                &[0x4b, 0x8b, 0x0c, 0xd1],
            ]),
            2,
        ),
        // MOV RAX, GS:[256]; MOV RBX, GS:[264]
        (
            of(&[
                &[0x65, 0x48, 0x8b, 0x04, 0x25, 0, 1, 0, 0],
                &[0x65, 0x48, 0x8b, 0x1c, 0x25, 8, 1, 0, 0],
            ]),
            1,
        ),
        // MOVAPS XMM0, [RDI]; BTS [RDI], EAX; MOV RAX, [RDI + 8]
        (of(&[&[0x0f, 0x28, 0x07], &[0x0f, 0xab, 0x07], &LOAD_BEHIND]), 1),
        (words(), 1),
        // JE over the load; the load; MOV RBX, [RDI + 8]
        (of(&[&[0x74, 0x03], &LOAD, &LOAD_BEHIND]), 2),
        // The load; JE over the step; the step; MOV RBX, [RDI + 8]
        (of(&[&LOAD, &[0x74, 0x04], &STEP, &LOAD_BEHIND]), 1),
        // The load; JE to the NOP; the step; JMP to the load behind it; NOP; MOV RBX, [RDI + 8]
        (of(&[&LOAD, &[0x74, 0x06], &STEP, &[0xeb, 0x01, NOP], &LOAD_BEHIND]), 1),
        // The load; CALL 16 bytes on; MOV RBX, [RDI + 8]
        (of(&[&LOAD, &[0xe8, 0x10, 0, 0, 0], &LOAD_BEHIND]), 3),
        // L: the load; JE over the step; the step; JNE L; MOV RBX, [RDI + 8]
        (of(&[&LOAD, &[0x74, 0x04], &STEP, &[0x75, 0xf5], &LOAD_BEHIND]), 1),
    ]
}

#[test]
fn what_is_translated_is_proven_and_no_check_can_be_left_out() {
    for (guest, count) in blocks() {
        let (_, code) = translated(&guest);
        assert!(is_proven(&code), "{guest:02x?}");
        let checks = checks(&code);
        assert_eq!(checks.len(), count, "{guest:02x?}");
        for (start, end) in checks {
            let mut without = code.clone();
            without[start..end].fill(NOP);
            assert!(!is_proven(&without), "{guest:02x?} without the check at {start}");
            // That of another table is none.
            let mut other = code.clone();
            other[end - 1] ^= 1;
            assert!(!is_proven(&other), "{guest:02x?} with another check at {start}");
        }
    }
}

#[test]
fn constants_are_checked_by_unit() {
    // MOV EAX, [RIP + 256]; MOV EBX, [RIP + 256]
    let (_, code) = translated(&[0x8b, 0x05, 0, 1, 0, 0, 0x8b, 0x1d, 0, 1, 0, 0, HLT]);
    assert!(is_proven(&code));
    let check = [&[0x44, 0x0f, 0xb6, 0x14, 0x25][..], &ADDRESSES.tables[0].to_le_bytes()].concat();
    assert!(!is_proven(&replaced(&code, &check, &[NOP; 9])));
}

#[test]
fn a_far_site_may_access_what_was_loaded_from_a_scratch_register() {
    // LEAVE, which loads RBP from R10; CMPXCHG [RBP + 16], R9, which loads R10 after the distance.
    let guest = [0xc9, 0x4c, 0x0f, 0xb1, 0x4d, 0x10, HLT];
    let mut far = FarSites::default();
    let access = Decoder::with_ip(64, &guest[1..], LINEAR + 1, DecoderOptions::NONE).decode();
    assert!(far.add(&access, false, Reach::All));
    let (_, code) = translated_with(&guest, &far);
    assert!(is_proven(&code));
    // LOCK CMPXCHG [RBP + R11 + 16], R10 becomes one of [RBX + R11 + 16].
    let [right, wrong] = [[0xb1, 0x54, 0x1d, 0x10], [0xb1, 0x54, 0x1b, 0x10]];
    assert!(!is_proven(&replaced(&code, &right, &wrong)));
}

/// Returns the host code of `guest`, code of users all of whose accesses but those to the stack go to the second group.
fn translated_in_second_group(guest: &[u8]) -> Vec<u8> {
    let mut far = FarSites::default();
    for instruction in Decoder::with_ip(64, guest, LINEAR, DecoderOptions::NONE) {
        let has_operand = instruction.op_kinds().any(|kind| kind == OpKind::Memory);
        if has_operand && far.reach(&instruction, true) != Reach::Second {
            assert!(far.add(&instruction, true, Reach::Second));
        }
    }
    made(guest, &far, true, None).1
}

#[test]
fn accesses_to_the_second_group_need_checks_in_its_table() {
    let of = |parts: &[&[u8]]| [&parts.concat()[..], &[HLT]].concat();
    let mut proven = 0;
    for guest in [
        of(&[&LOAD, &LOAD_BEHIND, &STEP, &LOAD_BEHIND]),
        of(&[&INDEXED, &INDEXED]),
        of(&[&LOAD_BEHIND, &SHORT_INDEX, &INDEXED]),
        // MOV EAX, [RIP + 256]; MOV RCX, [ECX * 8 + 6000h], with ECX of 32 bits
        of(&[&[0x8b, 0x05, 0, 1, 0, 0], &SHORT_INDEX, &[0x48, 0x8b, 0x0c, 0xcd, 0, 0x60, 0, 0]]),
        // PUSH RAX; MOV RAX, [R9]; ADD [R9], R10; POP RAX
        of(&[&[0x50, 0x49, 0x8b, 0x01], &[0x4d, 0x01, 0x11], &[0x58]]),
        // MOV RAX, [2AAAAAAAB000h]
        of(&[&[0x48, 0xa1, 0, 0xb0, 0xaa, 0xaa, 0xaa, 0x2a, 0, 0]]),
        words(),
    ] {
        let code = translated_in_second_group(&guest);
        let is_proven = |code: &[u8]| Checker::new(ADDRESSES, true).proves(code, HOST, &[HOST]);
        assert!(is_proven(&code), "{guest:02x?}");
        let all: Vec<_> = Decoder::with_ip(64, &code, 0, DecoderOptions::NONE).iter().collect();
        for check in all {
            let table = check.memory_displacement64();
            if check.mnemonic() == Mnemonic::Movzx
                && table.abs_diff(ADDRESSES.tables[2].into()) < 1 << CHECK_SHIFT
            {
                proven += 1;
                let (start, end) = (check.ip() as usize, check.next_ip() as usize);
                let mut without = code.clone();
                without[start..end].fill(NOP);
                assert!(!is_proven(&without), "{guest:02x?} without the check at {start}");
                // That of the near units is none.
                let near = (table as u32).wrapping_sub(ADDRESSES.tables[2] - ADDRESSES.tables[1]);
                let mut other = code.clone();
                other[end - 4..end].copy_from_slice(&near.to_le_bytes());
                assert!(!is_proven(&other), "{guest:02x?} with another check at {start}");
            }
        }
        // No code of the supervisor accesses them so.
        assert!(!Checker::new(ADDRESSES, false).proves(&code, HOST, &[HOST]));
    }
    assert_eq!(proven, 7);
}

#[test]
fn the_distance_of_the_second_group_is_loaded_once() {
    let distance = u64::from(ADDRESSES.context + at::SECOND_DISTANCE);
    let is_load = |instruction: &Instruction| instruction.memory_displacement64() == distance;
    for (parts, loads) in [
        (&[&LOAD[..], &LOAD_BEHIND, &STEP, &LOAD_BEHIND][..], 1),
        // JE, after which two ways join: over an access, and over one that has used R11
        (&[&LOAD, &[0x74, 4], &LOAD_BEHIND, &LOAD_BEHIND], 1),
        (&[&LOAD, &[0x74, 3], &[0x49, 0x8b, 0x01], &LOAD_BEHIND], 3),
        // MOV RAX, [R9], whose address is in R11
        (&[&LOAD, &[0x49, 0x8b, 0x01], &LOAD_BEHIND], 3),
        // CALL, after which other code has used R11
        (&[&LOAD, &[0xe8, 0, 0x10, 0, 0], &LOAD_BEHIND], 2),
    ] {
        let guest = [&parts.concat()[..], &[HLT]].concat();
        let code = translated_in_second_group(&guest);
        let is_proven = |code: &[u8]| Checker::new(ADDRESSES, true).proves(code, HOST, &[HOST]);
        let all = Decoder::with_ip(64, &code, HOST.into(), DecoderOptions::NONE);
        let found: Vec<_> = all.into_iter().filter(is_load).collect();
        assert_eq!(found.len(), loads, "{guest:02x?}");
        for load in found {
            let start = (load.ip() - u64::from(HOST)) as usize;
            let mut without = code.clone();
            without[start..start + load.len()].fill(NOP);
            assert!(!is_proven(&without), "{guest:02x?} without the load at {start}");
        }
    }
}

#[test]
fn steps_are_bounded() {
    let steps = |count: usize| [&LOAD[..], &FAR_STEP.repeat(count), &LOAD_BEHIND, &[HLT]].concat();
    let (_, code) = translated(&steps(1));
    assert_eq!((checks(&code).len(), is_proven(&code)), (1, true), "2 GiB away");
    let (_, mut code) = translated(&steps(6));
    let (start, end) = checks(&code)[1];
    code[start..end].fill(NOP);
    assert!(!is_proven(&code), "12 GiB away");
}

#[test]
fn a_changed_register_ends_what_is_known() {
    let guest = [&LOAD[..], &[NOP; 3], &LOAD_BEHIND, &[HLT]].concat();
    let (_, code) = translated(&guest);
    for change in [
        [0x48, 0x89, 0xc7], // MOV RDI, RAX
        [0x48, 0x01, 0xc7], // ADD RDI, RAX
        [0x89, 0xff, NOP],  // MOV EDI, EDI
        [0x87, 0xc7, NOP],  // XCHG EDI, EAX
        [0x40, 0xb7, 0x01], // MOV DIL, 1
        [0x48, 0xf7, 0xdf], // NEG RDI
    ] {
        assert!(!is_proven(&replaced(&code, &[NOP; 3], &change)), "{change:02x?}");
    }
    assert!(is_proven(&replaced(&code, &[NOP; 3], &[0x48, 0x89, 0xc1])), "another register");
    let short = [&LOAD_BEHIND[..], &SHORT_INDEX, &INDEXED, &[HLT]].concat();
    let (_, code) = translated(&short);
    assert!(!is_proven(&replaced(&code, &SHORT_INDEX, &[NOP; 2])), "an index of 64 bits");
}

#[test]
fn a_loop_knows_only_what_each_round_knows() {
    let (block, code) = translated(&words());
    assert!(block.begin > block.entry, "the check is before the loop");
    assert!(is_proven(&code));
    // ADD RDI, RAX; and a step without an access.
    assert!(!is_proven(&replaced(&code, &STEP, &[0x48, 0x01, 0xc7, NOP])));
    let load = [0x65, 0x48, 0x8b, 0x07];
    let late = replaced(&replaced(&code, &load, &STEP), &[0xff, 0xc9], &[NOP; 2]);
    assert!(is_proven(&late), "nothing is accessed");
    // MOV RAX, [RCX], of which nothing is known.
    assert!(!is_proven(&replaced(&code, &load, &[0x65, 0x48, 0x8b, 0x01])));
}

/// Ways that meet in a loop bring the distances of its first round, and those that are assumed afterwards.
#[test]
fn ways_that_meet_in_a_loop_may_bring_longer_distances() {
    /// The access of the loop, on R8 in R11.
    const ACCESS: [u8; 6] = [0x65, 0x66, 0x41, 0x89, 0x5b, 0xa8];
    // L: ADD R8, 96; REP STOSQ, which is skipped if RCX is 0; MOV [R8 - 88], BX; JNE L
    let guest = [
        &[0x49, 0x83, 0xc0, 0x60][..],
        &[0xf3, 0x48, 0xab],
        &[0x66, 0x41, 0x89, 0x58, 0xa8],
        &[0x75, 0xf2],
    ];
    let (block, code) = translated(&guest.concat());
    assert!(block.begin > block.entry, "the check is before the loop");
    assert!(is_proven(&code));
    // A way around the access has rounds after which R8 may be anywhere.
    let access = (0..code.len()).find(|place| code[*place..].starts_with(&ACCESS)).unwrap();
    let all: Vec<_> = Decoder::with_ip(64, &code, 0, DecoderOptions::NONE).iter().collect();
    // Before it, R8 is loaded, where the ways meet.
    let met = all.iter().find(|load| load.next_ip() == access as u64).unwrap().ip();
    let skip = all.iter().find(|jump| jump.near_branch_target() == met).unwrap();
    let mut around = code.clone();
    let distance = (access + ACCESS.len()) as u64 - skip.next_ip();
    around[skip.next_ip() as usize - 4..][..4].copy_from_slice(&(distance as u32).to_le_bytes());
    assert!(!is_proven(&around));
}

#[test]
fn no_block_is_entered_behind_its_checks() {
    let guest = [&LOAD[..], &LOAD_BEHIND, &[HLT]].concat();
    let (block, code) = translated(&guest);
    let behind = block.sites[1].host;
    assert!(!Checker::new(ADDRESSES, false).proves(&code, HOST, &[HOST, behind]));
    let (block, code) = translated(&words());
    assert!(!Checker::new(ADDRESSES, false).proves(&code, HOST, &[HOST, block.begin]));
}

/// A block of a page that keeps changing reads the bytes that it was made from, and nothing beside them.
#[test]
fn changing_code_reads_only_what_it_was_made_from() {
    const BYTES: u64 = 0x7f12_3456_7000;
    // MOV EAX, a number that is read from memory; MOV RBX, a number of 64 bits; RET
    let guest = [0xb8, 1, 2, 3, 4, 0x48, 0xbb, 1, 2, 3, 4, 5, 6, 7, 8, 0xc3];
    let immediates = Set::from_iter([LINEAR as usize]);
    let changing = ChangingSource { host: BYTES, immediates: &immediates };
    let (block, code) = made(&guest, &FarSites::default(), false, Some(changing));
    let is_proven = |range: Range<u64>| {
        Checker::new(ADDRESSES, false).reading(range).proves(&code, HOST, &[HOST, block.link])
    };
    let all = BYTES..BYTES + guest.len() as u64;
    assert!(is_proven(all.clone()));
    assert!(!is_proven(0..0));
    assert!(!is_proven(all.start + 1..all.end));
    assert!(!is_proven(all.start..all.end - 1));
    // MOV EAX, [R11], which reads the number, becomes MOV [R11], EAX.
    let writing = replaced(&code, &[0x41, 0x8b, 0x03], &[0x41, 0x89, 0x03]);
    let mut checker = Checker::new(ADDRESSES, false);
    assert!(!checker.reading(all).proves(&writing, HOST, &[HOST, block.link]));
}

#[test]
fn no_memory_but_the_guests_is_accessed() {
    let (_, code) = translated(&[&LOAD[..], &[HLT]].concat());
    assert!(is_proven(&code));
    // Another segment, and other ways to memory.
    for other in [[0x3e, 0x48, 0x8b, 0x07], [0x64, 0x48, 0x8b, 0x07], [0x48, 0xa5, NOP, NOP]] {
        assert!(!is_proven(&replaced(&code, &[0x65, 0x48, 0x8b, 0x07], &other)), "{other:02x?}");
    }
}

#[test]
fn string_instructions_walk_from_host_addresses() {
    // REP MOVSQ; MOVSB
    for (guest, string) in
        [(&[0xf3, 0x48, 0xa5, HLT][..], &[0xf3, 0x48, 0xa5][..]), (&[0xa4, HLT], &[0xa4])]
    {
        let (block, code) = translated(guest);
        assert_eq!(block.walks.len(), 1);
        assert!(is_proven(&code), "{guest:02x?}");
        // LEA RSI, [RSI + R10], and LEA RDI, [RDI + R11].
        for (place, others) in [
            // The distance of the other address, or none, or one that another address has.
            (
                [0x4a, 0x8d, 0x34, 0x16],
                [[0x4a, 0x8d, 0x34, 0x1e], [NOP; 4], [0x4a, 0x8d, 0x34, 0x17]],
            ),
            (
                [0x4a, 0x8d, 0x3c, 0x1f],
                [[0x4a, 0x8d, 0x3c, 0x17], [NOP; 4], [0x4a, 0x8d, 0x3c, 0x1e]],
            ),
        ] {
            for other in others {
                assert!(!is_proven(&replaced(&code, &place, &other)), "{guest:02x?}: {other:02x?}");
            }
        }
        // Twice the distance.
        let twice = [0x4a, 0x8d, 0x34, 0x16, 0x4a, 0x8d, 0x34, 0x16];
        let both = [0x4a, 0x8d, 0x34, 0x16, 0x4a, 0x8d, 0x3c, 0x1f];
        assert!(!is_proven(&replaced(&code, &both, &twice)));
        // The registers of the check of RDI, and that of another table.
        let check = [0xc4, 0x63, 0xfb, 0xf0, 0xdf, 0x18];
        assert!(!is_proven(&replaced(&code, &check, &[0xc4, 0x63, 0xfb, 0xf0, 0xde, 0x18])));
        // With the prefix of another segment, of 32-bit addresses, or as another instruction.
        let before = [0x4a, 0x8d, 0x3c, 0x1f];
        let there = [&before, string].concat();
        assert!(is_proven(&replaced(&code, &there, &there)));
        let last = string.len() - 1;
        for opcode in [0x6c, 0x6e] {
            let other = [&before, &string[..last], &[opcode]].concat();
            assert!(!is_proven(&replaced(&code, &there, &other)), "INS and OUTS");
        }
        if string.len() > 1 {
            for prefix in [0x64, 0x65, 0x67, 0x26] {
                let other = [&before, &[prefix][..], &string[1..]].concat();
                assert!(!is_proven(&replaced(&code, &there, &other)), "prefix {prefix:x}");
            }
        }
        // A second one, whose registers are no longer checked.
        let end = [&[0x49, 0xf7, 0xd2][..], &[0x4a, 0x8d, 0x74, 0x16, 0x01]].concat();
        let again = [&[0xf3, 0x48, 0xa5][..], &[NOP; 5]].concat();
        assert!(!is_proven(&replaced(&code, &end, &again)), "a second one");
    }
}
