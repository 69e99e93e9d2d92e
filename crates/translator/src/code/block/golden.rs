//! The host code of each kind of guest code, as text with its number of instructions, in `golden.txt`.
//! Whoever changes what is emitted sees the effect there, and commits the changed text. With
//! `RING3_GOLDEN=write` the test writes the text anew.

use std::fmt::Write;
use std::path::PathBuf;

use iced_x86::{
    Decoder, DecoderOptions, Formatter, Instruction, NasmFormatter, Register, SymbolResolver,
    SymbolResult,
};
use ring3_x86::cpuid::Model;

use super::{Source, translate};
use crate::code::branch_slots::BranchSlots;
use crate::context::at;
use crate::map::Set;
use crate::mode::{Loading, Mode, Segmented};

/// Addresses of the guest code and of its host code.
const EIP: u32 = 0x1000;
const HOST: u32 = 0x4000_0000;
/// JMP to itself: it ends a block that shows one instruction.
const END: &[u8] = &[0xeb, 0xfe];

const SUPERVISOR: Mode = Mode::flat(false);
const USER: Mode = Mode::flat(true);
const REAL: Mode = segmented(Loading::Real, false);
const PROTECTED_16: Mode = segmented(Loading::Protected, false);
const SEGMENTED_32: Mode = segmented(Loading::Protected, true);

const fn segmented(loading: Loading, is_32_bit: bool) -> Mode {
    let limit = if is_32_bit { u32::MAX } else { 0xffff };
    let (base, has_32_bit_stack) = (0x1_0000, is_32_bit);
    let segmented = Segmented { is_32_bit, has_32_bit_stack, loading, base, limit };
    Mode { is_user: false, segmented: Some(segmented) }
}

/// Instructions of which the text shows the code of the site alone.
#[rustfmt::skip]
const INSTRUCTIONS: &[(&str, Mode, &[&[u8]])] = &[
    ("flat code of users", USER, &[
        &[0x01, 0xd8],                   // ADD EAX, EBX
        &[0x01, 0x03],                   // ADD [EBX], EAX
        &[0x8b, 0x44, 0x24, 0x08],       // MOV EAX, [ESP + 8]
        &[0x8b, 0x84, 0x8b, 0, 0, 0, 8], // MOV EAX, [EBX + ECX * 4 + 0x8000000]
        &[0x8a, 0x25, 0, 0x20, 0, 0],    // MOV AH, [0x2000]
        &[0x65, 0xa1, 0x14, 0, 0, 0],    // MOV EAX, [GS:0x14]
        &[0x50],                         // PUSH EAX
        &[0xff, 0x33],                   // PUSH dword [EBX]
        &[0x58],                         // POP EAX
        &[0xc9],                         // LEAVE
        &[0x60],                         // PUSHA
        &[0x9c],                         // PUSHF
        &[0x9d],                         // POPF
        &[0x0f, 0xb1, 0x0b],             // CMPXCHG [EBX], ECX
        &[0xf0, 0xff, 0x03],             // LOCK INC dword [EBX]
        &[0xa5],                         // MOVSD
        &[0xf3, 0xab],                   // REP STOSD
        &[0xf2, 0xae],                   // REPNE SCASB
        &[0xd8, 0x03],                   // FADD dword [EBX]
        &[0x0f, 0x58, 0x03],             // ADDPS XMM0, [EBX]
        &[0x0f, 0x31],                   // RDTSC
    ]),
    ("flat code of supervisors", SUPERVISOR, &[
        &[0x01, 0x03],                   // ADD [EBX], EAX
        &[0xfa],                         // CLI
        &[0x9d],                         // POPF
        &[0x0f, 0x20, 0xd0],             // MOV EAX, CR2
        &[0x0f, 0x22, 0xc0],             // MOV CR0, EAX
        &[0x0f, 0x06],                   // CLTS
        &[0x0f, 0xa2],                   // CPUID
        &[0x8e, 0xd8],                   // MOV DS, AX
        &[0x8c, 0xd8],                   // MOV EAX, DS
    ]),
    ("16-bit code of real mode", REAL, &[
        &[0x01, 0x07],                   // ADD [BX], AX
        &[0x26, 0x8b, 0x07],             // MOV AX, [ES:BX]
        &[0x50],                         // PUSH AX
        &[0x58],                         // POP AX
        &[0x8e, 0xd8],                   // MOV DS, AX
        &[0xa4],                         // MOVSB
        &[0xf3, 0xa5],                   // REP MOVSW
    ]),
    ("16-bit code of protected mode", PROTECTED_16, &[
        &[0x01, 0x07],                   // ADD [BX], AX
        &[0x8e, 0xd8],                   // MOV DS, AX
    ]),
    ("32-bit code in segments", SEGMENTED_32, &[
        &[0x01, 0x03],                   // ADD [EBX], EAX
        &[0x50],                         // PUSH EAX
    ]),
];

/// Whole blocks.
#[rustfmt::skip]
const BLOCKS: &[(&str, Mode, &[u8])] = &[
    ("a loop that comes several times", USER, &[
        0x03, 0x03,       // ADD EAX, [EBX]
        0x83, 0xc3, 0x04, // ADD EBX, 4
        0x49,             // DEC ECX
        0x75, 0xf8,       // JNE to the beginning
    ]),
    ("a conditional branch forward, and a return", USER, &[
        0x85, 0xc0, // TEST EAX, EAX
        0x74, 0x01, // JE to RET
        0x40,       // INC EAX
        0xc3,       // RET
    ]),
    ("two ways that join, and a branch over a call", USER, &[
        0x85, 0xc0,                   // TEST EAX, EAX
        0x74, 0x04,                   // JE to NEG
        0x40,                         // INC EAX
        0x43,                         // INC EBX
        0xeb, 0x02,                   // JMP to TEST
        0xf7, 0xd8,                   // NEG EAX
        0x85, 0xdb,                   // TEST EBX, EBX
        0x74, 0x05,                   // JE to DEC
        0xe8, 0xed, 0x00, 0x00, 0x00, // CALL 0x1100
        0x4b,                         // DEC EBX
        0xc3,                         // RET
    ]),
    ("a call within the page, and what comes after it", USER, &[
        0xe8, 0xfb, 0x00, 0x00, 0x00, // CALL 0x1100
        0x40,                         // INC EAX
        0xeb, 0xfe,                   // JMP to itself
    ]),
    ("a call of another page", USER, &[0xe8, 0xfb, 0x0f, 0x00, 0x00, 0xeb, 0xfe]),
    ("an indirect call", USER, &[0xff, 0x13, 0xeb, 0xfe]),
    ("an indirect jump", USER, &[0xff, 0xe0]),
    ("a system call by INT n", USER, &[0xcd, 0x80]),
    ("a system call by SYSENTER", USER, &[0x0f, 0x34]),
    ("IRET of flat code", SUPERVISOR, &[0xcf]),
    ("an instruction that is left to the interpreter", USER, &[0x40, 0x6c]), // INSB
    ("an access to a port, which may be refused", USER, &[0x40, 0xe4, 0x60]),
    ("LOCK XADD and XCHG with memory", USER, &[
        0xf0, 0x0f, 0xc1, 0x03, // LOCK XADD [EBX], EAX
        0x87, 0x1c, 0x24,       // XCHG [ESP], EBX
        0xeb, 0xfe,             // JMP to itself
    ]),
    ("LOCK CMPXCHG with memory", USER, &[
        0xf0, 0x0f, 0xb1, 0x0b, // LOCK CMPXCHG [EBX], ECX
        0xeb, 0xfe,             // JMP to itself
    ]),
    ("a near return of real mode", REAL, &[0xc3]),
    ("a far call of real mode", REAL, &[0x9a, 0x00, 0x01, 0x00, 0x20]),
    ("a far jump of flat code", SUPERVISOR, &[0xea, 0x00, 0x11, 0x00, 0x00, 0x10, 0x00]),
];

/// Names fields of the context.
struct Fields(Vec<(u32, String)>);

impl SymbolResolver for Fields {
    fn symbol(
        &mut self,
        instruction: &Instruction,
        _: u32,
        _: Option<u32>,
        address: u64,
        _: u32,
    ) -> Option<SymbolResult<'_>> {
        if instruction.memory_base() != Register::R14 {
            return None;
        }
        // The field at this address, or the array that contains it.
        let before = self.0.iter().filter(|(offset, _)| u64::from(*offset) <= address);
        let (offset, name) = before.max_by_key(|(offset, _)| *offset)?;
        Some(SymbolResult::with_str((*offset).into(), name))
    }
}

/// Writes the instructions of `code`, which is at `address`, and returns their number.
fn disassemble(code: &[u8], address: u32, bits: u32, text: &mut String) -> usize {
    let mut formatter = NasmFormatter::with_options(Some(Box::new(Fields(at::names()))), None);
    formatter.options_mut().set_hex_prefix("0x");
    formatter.options_mut().set_hex_suffix("");
    let mut decoder = Decoder::with_ip(bits, code, address.into(), DecoderOptions::NONE);
    let mut count = 0;
    let mut leaves = false;
    while decoder.can_decode() {
        let instruction = decoder.decode();
        let mut line = String::new();
        formatter.format(&instruction, &mut line);
        writeln!(text, "    {line}").unwrap();
        count += 1;
        let jumps =
            instruction.is_jmp_near_indirect() && instruction.memory_base() == Register::R14;
        if leaves && jumps {
            // The routine reads the numbers that follow the jump.
            let data = decoder.position();
            for number in code[data..data + 8].chunks(4) {
                let number = u32::from_le_bytes(number.try_into().unwrap());
                writeln!(text, "    dd {number:#x}").unwrap();
            }
            decoder.set_position(data + 8).unwrap();
            decoder.set_ip((address as usize + data + 8) as u64);
        }
        leaves =
            instruction.is_ip_rel_memory_operand() && instruction.op0_register() == Register::R8;
    }
    count
}

/// Translates `guest`. Returns the host code, and the offsets of its sites.
fn translated(guest: &[u8], mode: Mode) -> (Vec<u8>, Vec<usize>) {
    let none = Set::default();
    let source = Source {
        bytes: guest,
        crossing: None,
        eip: EIP,
        place: EIP as usize,
        model: Model::Pentium3,
        mode: (0, mode),
        barred: &none,
        breakpoints: &[],
        for_user: &none,
        device_reads: &none,
        numeric_errors: &none,
        refused_loads: &none,
        next_op: 0,
        known_code: &|_| None,
        changing: None,
        counters: None,
    };
    let (block, code, _) = translate(&source, HOST, &mut BranchSlots::default(), |_| None);
    let sites = block.sites.iter().map(|site| (site.host - HOST) as usize).collect();
    (code, sites)
}

/// Returns one part of the text.
fn part(guest: &[u8], code: &[u8], address: u32, mode: Mode) -> String {
    let mut text = String::new();
    let bits = if mode.is_32_bit() { 32 } else { 16 };
    disassemble(guest, EIP, bits, &mut text);
    let mut host = String::new();
    let count = disassemble(code, address, 64, &mut host);
    write!(text, "  {count} instructions, {} bytes\n{host}\n", code.len()).unwrap();
    text
}

#[test]
fn host_code_is_unchanged() {
    let mut text = String::new();
    for (title, mode, instructions) in INSTRUCTIONS {
        writeln!(text, "# Instructions of {title}\n").unwrap();
        for instruction in *instructions {
            let (code, sites) = translated(&[instruction, END].concat(), *mode);
            let [first, second, ..] = sites[..] else {
                panic!("{instruction:x?} is left to the interpreter")
            };
            text += &part(instruction, &code[first..second], HOST + first as u32, *mode);
        }
    }
    for (title, mode, guest) in BLOCKS {
        writeln!(text, "# Block: {title}\n").unwrap();
        let (code, _) = translated(guest, *mode);
        text += &part(guest, &code, HOST, *mode);
    }
    assert_unchanged(&text, "src/code/block/golden.txt");
}

/// Compares `text` with the file `name` of this crate, or writes it there.
pub(crate) fn assert_unchanged(text: &str, name: &str) {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(name);
    if std::env::var_os("RING3_GOLDEN").is_some_and(|what| what == "write") {
        std::fs::write(&path, text).unwrap();
    }
    let before = std::fs::read_to_string(&path).unwrap_or_default();
    for (number, (line, before)) in text.lines().zip(before.lines()).enumerate() {
        let number = number + 1;
        assert_eq!(line, before, "line {number} of {name}; RING3_GOLDEN=write writes it anew");
    }
    assert_eq!(
        text.len(),
        before.len(),
        "{name} ends elsewhere; RING3_GOLDEN=write writes it anew"
    );
}
