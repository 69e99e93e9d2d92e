//! Results that the manual leaves undefined are visible all the same, and both engines must leave the same
//! there. The tests execute each form of instruction that works on general registers and flags, with all
//! counts and on operands at the edges.
//!
//! The translator leaves what the host's processor does, and the interpreter what processors of that vendor
//! do.

#[path = "../../../x86/tests/common/mod.rs"]
mod common;
#[path = "../system/engine.rs"]
#[allow(dead_code, reason = "it is not all needed here")]
mod engine;
#[path = "../../../x86/tests/system/machine.rs"]
#[allow(dead_code, reason = "it is not all needed here")]
mod machine;
#[path = "../support/mod.rs"]
mod support;

use std::collections::BTreeMap;
use std::fmt::Write;

use iced_x86::{
    Code, Encoder, EncodingKind, FlowControl, Instruction, MemoryOperand, Mnemonic,
    OpCodeOperandKind, Register,
};
use ring3_core::memory::Memory;
use ring3_x86::cpu::{Cr4, reg};
use ring3_x86::cpuid::Model;
use ring3_x86::engine::Exit;
use ring3_x86::flags::Eflags;
use ring3_x86::interpreter::Interpreter;
use ring3_x86::sse::{MXCSR_INIT, MXCSR_MASK};
use ring3_x86::table;
use ring3_x86::undefined::{Vendor, undefined};

use machine::{CODE, DATA, MEMORY, Machine, handler};

/// Operands at the edges.
const EDGES: [u32; 18] = [
    0,
    1,
    2,
    9,
    0x0f,
    0x10,
    0x7f,
    0x80,
    0x99,
    0xff,
    0x7fff,
    0x8000,
    0xffff,
    0x1234_5678,
    0x7fff_ffff,
    0x8000_0000,
    0xdead_beef,
    u32::MAX,
];
/// Immediate operands, in addition to all counts.
const NUMBERS: [u8; 4] = [40, 0x7f, 0x80, 0xff];
/// Flags before an instruction.
const FLAGS: [Eflags; 2] = [Eflags::empty(), Eflags::STATUS];

/// The addresses of rows of operands, 16 bytes each, and of rows of results: EAX, ECX, EDX and EFLAGS.
const ROWS: u32 = 0x40_0000;
const RESULTS: u32 = 0x80_0000;
/// Bytes of a row of results, including the operand in memory.
const RESULT: usize = 20;
/// The address of operands in memory.
const CELL: u32 = DATA;

/// Returns the instruction of this form with EAX, EDX and, for a third operand, ECX, or with ECX if it has one operand, or with one of
/// them in memory.
fn instruction(code: Code, in_memory: bool, number: u8) -> Option<(Instruction, Option<u32>)> {
    use OpCodeOperandKind as K;
    let info = code.op_code();
    let mut instruction = Instruction::new();
    instruction.set_code(code);
    let mut cell = None;
    let registers = |size: u32, operand: u32| {
        let first = if info.op_count() == 1 { 1 } else { [0, 2, 1][operand as usize] };
        match size {
            1 => Register::AL + first,
            2 => Register::AX + first,
            _ => Register::EAX + first,
        }
    };
    for operand in 0..info.op_count() {
        let kind = info.op_kind(operand);
        let size = match kind {
            K::r8_reg | K::r8_or_mem => 1,
            K::r16_reg | K::r16_opcode | K::r16_or_mem => 2,
            _ => 4,
        };
        match kind {
            K::r8_reg | K::r16_reg | K::r32_reg | K::r32_vvvv | K::r16_opcode | K::r32_opcode => {
                let register = registers(size, operand);
                set_register(&mut instruction, operand, register);
            }
            K::r8_or_mem | K::r16_or_mem | K::r32_or_mem => {
                let register = registers(size, operand);
                if in_memory {
                    cell = Some(register.full_register32() as u32 - Register::EAX as u32);
                    let memory = MemoryOperand::with_base(Register::EBX);
                    instruction.set_op_kind(operand, iced_x86::OpKind::Memory);
                    instruction.set_memory_base(memory.base);
                } else {
                    set_register(&mut instruction, operand, register);
                }
            }
            K::imm8 | K::imm8sex16 | K::imm8sex32 | K::imm16 | K::imm32 => {
                instruction.set_op_kind(operand, immediate_kind(kind));
                let value = i32::from(number as i8);
                instruction.set_immediate_i32(
                    operand,
                    if kind == K::imm8 { number.into() } else { value },
                );
            }
            K::imm8_const_1 => {
                instruction.set_op_kind(operand, iced_x86::OpKind::Immediate8);
                instruction.set_immediate8(1);
            }
            K::al => set_register(&mut instruction, operand, Register::AL),
            K::cl => set_register(&mut instruction, operand, Register::CL),
            K::ax => set_register(&mut instruction, operand, Register::AX),
            K::eax => set_register(&mut instruction, operand, Register::EAX),
            _ => return None,
        }
    }
    (cell.is_some() == in_memory).then_some((instruction, cell))
}

/// What is tried as the immediate operand of an instruction.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Numbers {
    /// It has none.
    None,
    /// A positive and a negative number.
    Signs,
    /// All counts of shifts.
    Counts,
}

/// Returns what is tried for an operand of this kind.
fn numbers_of(kind: OpCodeOperandKind) -> Numbers {
    use OpCodeOperandKind as K;
    match kind {
        K::imm8 => Numbers::Counts,
        K::imm8sex16 | K::imm8sex32 | K::imm16 | K::imm32 => Numbers::Signs,
        _ => Numbers::None,
    }
}

fn set_register(instruction: &mut Instruction, operand: u32, register: Register) {
    instruction.set_op_kind(operand, iced_x86::OpKind::Register);
    instruction.set_op_register(operand, register);
}

fn immediate_kind(kind: OpCodeOperandKind) -> iced_x86::OpKind {
    use OpCodeOperandKind as K;
    match kind {
        K::imm8sex16 => iced_x86::OpKind::Immediate8to16,
        K::imm8sex32 => iced_x86::OpKind::Immediate8to32,
        K::imm16 => iced_x86::OpKind::Immediate16,
        K::imm32 => iced_x86::OpKind::Immediate32,
        _ => iced_x86::OpKind::Immediate8,
    }
}

/// Returns whether instructions with this code continue with the next one, and change only EAX, ECX, EDX,
/// flags and their operand.
fn is_plain(code: Code) -> bool {
    let mut instruction = Instruction::new();
    instruction.set_code(code);
    let is_other = matches!(
        instruction.mnemonic(),
        Mnemonic::Rdtsc
            | Mnemonic::Rdtscp
            | Mnemonic::Rdpmc
            | Mnemonic::Cpuid
            | Mnemonic::Xgetbv
            | Mnemonic::Vzeroupper
            | Mnemonic::Vzeroall
            | Mnemonic::Cli
            | Mnemonic::Sti
            | Mnemonic::Std
            | Mnemonic::Wait
    );
    !is_other
        && instruction.flow_control() == FlowControl::Next
        && !code.is_jcx_short()
        && !instruction.is_privileged()
        && !instruction.is_stack_instruction()
        && !instruction.is_string_instruction()
}

/// Returns a guest that executes an instruction for each row.
fn program(bytes: &[u8], cell: Option<u32>) -> Vec<u8> {
    // MOV [EBX], register
    let store = cell.map_or(Vec::new(), |register| vec![0x89, (register as u8) << 3 | 3]);
    let body = [
        &[0x8b, 0x06, 0x8b, 0x4e, 4, 0x8b, 0x56, 8][..], // MOV EAX, [ESI]; MOV ECX, [ESI+4]; MOV EDX, [ESI+8]
        &store,
        &[0xff, 0x76, 12, 0x9d], // PUSH DWORD [ESI+12]; POPFD
        bytes,
        &[0x9c, 0x8f, 0x47, 12], // PUSHFD; POP DWORD [EDI+12]
        &[0x89, 0x07, 0x89, 0x4f, 4, 0x89, 0x57, 8], // MOV [EDI], EAX; MOV [EDI+4], ECX; MOV [EDI+8], EDX
        &[0xff, 0x33, 0x8f, 0x47, 16],               // PUSH DWORD [EBX]; POP DWORD [EDI+16]
        &[0x83, 0xc6, 16, 0x83, 0xc7, RESULT as u8, 0x4d], // ADD ESI, 16; ADD EDI, 20; DEC EBP
    ]
    .concat();
    let distance = -(body.len() as i32 + 2);
    [&body[..], &[0x75, distance as i8 as u8, 0xf4]].concat()
}

/// The handler of division errors: ADD DWORD [ESP], length; IRETD.
fn division_handler(length: usize) -> Vec<u8> {
    vec![0x83, 0x04, 0x24, length as u8, 0xcf]
}

/// Returns the operands of all rows.
fn rows(code: Code) -> Vec<[u32; 4]> {
    let info = code.op_code();
    let by_count =
        (0..info.op_count()).any(|operand| info.op_kind(operand) == OpCodeOperandKind::cl);
    let counts: Vec<u32> = if by_count {
        (0..=63).chain([0xff, 0x1_0001]).collect()
    } else if info.op_count() < 2 || info.encoding() == EncodingKind::VEX {
        EDGES.to_vec()
    } else {
        vec![0x55]
    };
    let mut rows = Vec::new();
    for eax in EDGES {
        for edx in EDGES {
            for ecx in &counts {
                rows.extend(FLAGS.map(|flags| [eax, *ecx, edx, flags.bits() | 2]));
            }
        }
    }
    rows
}

/// Both machines.
struct Pair {
    right: Machine,
    tested: Machine,
    /// Undefined flags that differed, and how often.
    flags: BTreeMap<Mnemonic, (Eflags, u64)>,
}

impl Pair {
    /// Returns the differences after all rows, if there are any.
    fn difference(&mut self, code: Code, in_memory: bool, number: u8) -> Option<String> {
        let (instruction, cell) = instruction(code, in_memory, number)?;
        let mut encoder = Encoder::new(32);
        encoder.encode(&instruction, 0).ok()?;
        let bytes = encoder.take_buffer();
        let rows = rows(code);
        let table: Vec<u8> =
            rows.iter().flatten().flat_map(|number| number.to_le_bytes()).collect();
        let program = program(&bytes, cell);
        let results = [&mut self.right, &mut self.tested].map(|machine| {
            machine.reset_processor();
            machine.cpu.model = Model::X86_64_V3;
            machine.put(CODE, &program);
            machine.put(ROWS, &table);
            machine.put(handler(0), &division_handler(bytes.len()));
            for (register, value) in
                [(reg::BX, CELL), (reg::SI, ROWS), (reg::DI, RESULTS), (reg::BP, rows.len() as u32)]
            {
                machine.cpu.set_gpr(register, value.into());
            }
            assert_eq!(machine.run_for(100_000_000), Exit::Halt);
            assert_eq!(machine.get(reg::BP), 0, "{instruction}");
            let mut results = vec![0; rows.len() * RESULT];
            machine.memory.read(RESULTS.into(), &mut results);
            results
        });
        let [right, tested] = results.each_ref().map(|bytes| bytes.chunks(RESULT));
        let (mut differing, mut text) = (0, String::new());
        for (row, (right, tested)) in rows.iter().zip(right.zip(tested)) {
            if right == tested {
                continue;
            }
            let [right, tested] = [right, tested].map(Left::of);
            let flags = right.flags ^ tested.flags;
            let undefined = undefined(&instruction, row[1] as u8).flags;
            if flags.is_empty() || !undefined.contains(flags) || right.numbers != tested.numbers {
                differing += 1;
                if differing <= 3 {
                    let _ = writeln!(text, "  of {row:x?}: {right:x?}, ours {tested:x?}");
                }
            } else {
                let counts =
                    self.flags.entry(instruction.mnemonic()).or_insert((Eflags::empty(), 0));
                counts.0 |= flags;
                counts.1 += 1;
            }
        }
        let count = rows.len();
        (differing > 0).then(|| format!("{instruction}: {differing} of {count} differ\n{text}"))
    }
}

/// The results of an instruction.
#[derive(Debug)]
struct Left {
    /// EAX, ECX, EDX and the operand in memory.
    numbers: [u32; 4],
    flags: Eflags,
}

impl Left {
    /// Returns the results in a row.
    fn of(row: &[u8]) -> Left {
        let number = |index: usize| {
            let bytes = &row[4 * index..4 * index + 4];
            u32::from_le_bytes(bytes.try_into().expect("four bytes"))
        };
        Left { numbers: [0, 1, 2, 4].map(number), flags: Eflags::from_bits_truncate(number(3)) }
    }
}

#[test]
fn undefined_results_are_equal_on_both_engines() {
    let Some((translator, memory)) = support::translator(MEMORY) else { return };
    let interpreter = Box::new(Interpreter::new());
    let mut pair = Pair {
        right: Machine::on((interpreter, Memory::new(MEMORY).unwrap())),
        tested: Machine::on((Box::new(translator), memory)),
        flags: BTreeMap::new(),
    };
    let (mut text, mut tried) = (String::new(), 0);
    for code in table::forms().iter().map(|form| form.code).filter(|code| is_plain(*code)) {
        let info = code.op_code();
        let kinds = (0..info.op_count()).map(|operand| info.op_kind(operand));
        let numbers: Vec<u8> = match kinds.map(numbers_of).max() {
            Some(Numbers::Counts) => (0..=33).chain(NUMBERS).collect(),
            Some(Numbers::Signs) => vec![0x5a, 0x81],
            _ => vec![0],
        };
        for number in numbers {
            for in_memory in [false, true] {
                tried += 1;
                text.extend(pair.difference(code, in_memory, number));
            }
        }
    }
    println!("{tried} instructions; undefined flags that differ: {:?}", pair.flags);
    assert!(text.is_empty(), "{:?}\n{text}", Vendor::of_host());
    // Intel's processors of all generations have not been examined.
    assert!(!Vendor::of_host().is_amd() || pair.flags.is_empty(), "{:?}", pair.flags);
}

/// Bits that the host's MXCSR has and the guest's does not, such as AMD's bit 17, must not get into the
/// guest's.
#[test]
fn mxcsr_has_the_bits_of_the_model() {
    for bit in 0..u32::BITS {
        let Some((translator, memory)) = support::translator(MEMORY) else { return };
        let interpreter = (Box::new(Interpreter::new()) as Box<_>, Memory::new(MEMORY).unwrap());
        let value = MXCSR_INIT ^ 1 << bit;
        let machines = [interpreter, (Box::new(translator) as Box<_>, memory)].map(|engine| {
            let mut machine = Machine::on(engine);
            machine.cpu.set_cr4(Cr4::OSFXSR);
            machine.cpu.set_gpr(reg::BX, CELL.into());
            machine.put_dword(CELL, value);
            // LDMXCSR [EBX]; STMXCSR [EBX+4]; HLT
            machine.put(CODE, &[0x0f, 0xae, 0x13, 0x0f, 0xae, 0x5b, 4, 0xf4]);
            assert_eq!(machine.run(), Exit::Halt);
            machine
        });
        let [right, tested] = &machines;
        assert_eq!(right.cpu.save(), tested.cpu.save(), "bit {bit}");
        let is_there = value & !MXCSR_MASK == 0;
        for machine in &machines {
            assert_eq!(
                machine.exception().map(|exception| exception.vector),
                (!is_there).then_some(13)
            );
            assert_eq!(machine.dword(CELL + 4), if is_there { value } else { 0 });
        }
    }
}
