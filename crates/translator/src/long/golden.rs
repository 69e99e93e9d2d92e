//! The host code of each kind of 64-bit code, as text with its number of instructions, in `golden.txt`. See
//! [`crate::code::block::golden`].

use std::fmt::Write;

use iced_x86::{Decoder, DecoderOptions, Formatter, NasmFormatter};
use ring3_x86::cpuid::Model;

use super::block::{Source, translate};
use super::block_store::Slots;
use super::far_sites::FarSites;
use super::low::Addresses;
use crate::code::block::golden::assert_unchanged;
use crate::map::Set;

/// Addresses of the guest code and of its host code.
const RIP: u64 = 0xffff_ffff_8100_1000;
const HOST: u32 = 0x2800_0000;
const ADDRESSES: Addresses = Addresses {
    context: 0x2000_0000,
    tables: [0x2100_0000, 0x2300_0000, 0x2500_0000],
    far_tables: [0x2700_0000, 0x2a00_0000],
};

/// Blocks, whose host code is the same on all hosts. Behind each is JMP to itself.
#[rustfmt::skip]
const BLOCKS: &[(&str, &[u8])] = &[
    ("registers alone", &[0x48, 0x01, 0xd8]),                          // ADD RAX, RBX
    ("a register of the context", &[0x49, 0x01, 0xc1]),                // ADD R9, RAX
    ("RSP", &[0x48, 0x83, 0xec, 0x28]),                                // SUB RSP, 40
    ("an operand in memory", &[0x48, 0x8b, 0x43, 0x10]),               // MOV RAX, [RBX + 16]
    ("one with an index", &[0x48, 0x8b, 0x44, 0xcb, 0x10]),            // MOV RAX, [RBX + RCX * 8 + 16]
    ("one by registers of the context", &[0x4b, 0x8b, 0x04, 0xd1]),    // MOV RAX, [R9 + R10 * 8]
    ("one in the stack", &[0x48, 0x8b, 0x44, 0x24, 0x08]),             // MOV RAX, [RSP + 8]
    ("a relative one", &[0x8b, 0x05, 0, 1, 0, 0]),                     // MOV EAX, [RIP + 256]
    ("one in GS", &[0x65, 0x48, 0x8b, 0x04, 0x25, 0, 1, 0, 0]),        // MOV RAX, [GS:256]
    ("a relative address", &[0x48, 0x8d, 0x05, 0, 1, 0, 0]),           // LEA RAX, [RIP + 256]
    ("pushes and pops", &[0x50, 0x41, 0x51, 0x5b, 0xc9]),              // PUSH RAX, PUSH R9, POP RBX, LEAVE
    ("a far bit", &[0x48, 0x0f, 0xab, 0x03]),                          // BTS [RBX], RAX
    ("a string instruction", &[0x48, 0xa5]),                           // MOVSQ
    ("a repeated one", &[0xf3, 0xaa]),                                 // REP STOSB
    ("one that compares", &[0xf2, 0x66, 0xa7]),                        // REPNE CMPSW
    ("vectors", &[0x66, 0x0f, 0xfe, 0xc1, 0x66, 0x0f, 0xfe, 0xd1]),    // PADDD XMM0, XMM1; PADDD XMM2, XMM1
    ("the x87", &[0xdd, 0x03, 0xdc, 0x43, 0x08, 0xdd, 0x1b]),           // FLD [RBX]; FADD [RBX + 8]; FSTP [RBX]
    ("its control word", &[0xd9, 0x2b]),                               // FLDCW [RBX]
    ("an operand of the x87 in GS", &[0x65, 0xdd, 0x03]),              // FLD [GS:RBX]
    ("MMX", &[0x41, 0x0f, 0x6e, 0xc1, 0x0f, 0xfe, 0x03, 0x0f, 0x77]),  // MOVD MM0, R9D; PADDD MM0, [RBX]; EMMS
    ("a conditional branch", &[0x74, 0x10]),                           // JE 16 bytes on
    ("a call of another page", &[0xe8, 0, 0x10, 0, 0]),                // CALL a page on
    ("an indirect call", &[0xff, 0xd0]),                               // CALL RAX
    ("a return", &[0xc3]),                                             // RET
    ("CLI and STI", &[0xfa, 0xfb]),
    ("PUSHF and POPF", &[0x9c, 0x9d]),
    ("SWAPGS", &[0x0f, 0x01, 0xf8]),
    ("a control register", &[0x0f, 0x20, 0xd0]),                       // MOV RAX, CR2
    ("SYSRET", &[0x48, 0x0f, 0x07]),
    ("an instruction that the interpreter executes", &[0xf4]),         // HLT
];

#[test]
fn host_code_is_unchanged() {
    let mut text = String::new();
    let mut formatter = NasmFormatter::new();
    for (title, guest) in BLOCKS {
        writeln!(text, "# {title}\n").unwrap();
        let bytes = [guest, &[0xeb, 0xfe][..]].concat();
        let source = Source {
            bytes: &bytes,
            linear: RIP,
            place: RIP as usize & 0xf_ffff,
            crosses_to: None,
            is_user: false,
            model: Model::Qemu64,
            barred: &Set::default(),
            breakpoints: &[],
            far: &FarSites::default(),
            checks_before_loop: true,
            first_exit: 0,
            changing: None,
        };
        let slots = &mut Slots::default();
        let made = translate(&source, HOST, ADDRESSES, slots, |_| None);
        let (_, code, _) = made.expect("it crosses no page");
        let mut count = 0;
        let mut lines = String::new();
        for (bytes, rip, lines) in [(&bytes, RIP, &mut text), (&code, HOST.into(), &mut lines)] {
            count = 0;
            for instruction in Decoder::with_ip(64, bytes, rip, DecoderOptions::NONE) {
                let mut line = String::new();
                formatter.format(&instruction, &mut line);
                writeln!(lines, "    {line}").unwrap();
                count += 1;
            }
        }
        writeln!(text, "  {count} instructions, {} bytes\n{lines}", code.len()).unwrap();
    }
    text.truncate(text.trim_end().len() + 1);
    assert_unchanged(&text, "src/long/golden.txt");
}
