//! Task switches (SDM vol. 3, chapter 9).

use iced_x86::{Code, Instruction};
use ring3_x86::cpu::{Cr0, reg};
use ring3_x86::engine::Exit;
use ring3_x86::exception::vector;
use ring3_x86::flags::Eflags;
use ring3_x86::segment::sreg;

use crate::common::assembler::*;
use crate::machine::*;

/// The other task: its TSS, code and stack.
const OTHER: u16 = FREE;
const OTHER_TSS: u32 = DATA;
const OTHER_CODE: u32 = 0x1_4000;
const OTHER_STACK: u32 = 0x2_8000;
/// A task gate in the GDT that leads to the other task.
const GATE: u16 = FREE + 8;
const LDT: u16 = FREE + 16;

const TSS32: u8 = 0x89;
const TSS16: u8 = 0x81;
const BUSY: u8 = 0x02;
const TASK_GATE: u8 = 0x85;

// Offsets in a 32-bit TSS.
const EIP: u32 = 0x20;
const EFLAGS: u32 = 0x24;
const GENERAL: u32 = 0x28;
const SEGMENTS: u32 = 0x48;
const LDT_SELECTOR: u32 = 0x60;
const TRAP: u32 = 0x64;

fn far_call(selector: u16) -> Instruction {
    Instruction::with_far_branch(Code::Call_ptr1632, selector, 0xdead_beef).unwrap()
}

fn tss(access: u8, base: u32, limit: u16) -> u64 {
    let base = u64::from(base);
    (base & 0xff_ffff) << 16 | (base >> 24) << 56 | u64::from(access) << 40 | u64::from(limit)
}

fn task_gate(access: u8, selector: u16) -> u64 {
    u64::from(access) << 40 | u64::from(selector) << 16
}

fn access_byte(machine: &Machine, selector: u16) -> u8 {
    (machine.descriptor(selector) >> 40) as u8
}

/// Fills the other task's 32-bit TSS; the task halts at once.
fn add_task(machine: &mut Machine) {
    machine.set_descriptor(TASK, tss(TSS32 | BUSY, TSS, 0x67));
    machine.set_descriptor(OTHER, tss(TSS32, OTHER_TSS, 0x67));
    machine.set_descriptor(GATE, task_gate(TASK_GATE | DPL3, OTHER));
    machine.put_dword(OTHER_TSS + EIP, OTHER_CODE);
    machine.put_dword(OTHER_TSS + EFLAGS, (Eflags::CF | Eflags::DF).bits());
    for register in 0..8 {
        machine.put_dword(OTHER_TSS + GENERAL + 4 * register, 0x1111_1111 * register);
    }
    machine.put_dword(OTHER_TSS + GENERAL + 4 * u32::from(reg::SP), OTHER_STACK);
    for register in 0..6 {
        let selector = if register == u32::from(sreg::CS) { KERNEL_CODE } else { KERNEL_DATA };
        machine.put_dword(OTHER_TSS + SEGMENTS + 4 * register, selector.into());
    }
    machine.code(OTHER_CODE, &[hlt()]);
}

/// Makes a machine whose task executes `instruction` and then halts.
fn switching(instruction: Instruction) -> Machine {
    let mut machine = Machine::with_code(&[mov(EBX, 0x5555_6666), instruction, inc(EAX), hlt()]);
    add_task(&mut machine);
    machine
}

/// The address of the switching instruction, and that of the next one.
const SWITCH: u32 = CODE + 5;
const AFTER: u32 = SWITCH + 7;

#[test]
fn jmp_saves_one_task_and_loads_the_other() {
    for selector in [OTHER, GATE] {
        let mut machine = switching(far_jmp(selector, 0));
        machine.cpu.set_eflags(Eflags::ZF);
        assert_eq!(machine.run(), Exit::Halt);
        assert_eq!(machine.cpu.ip, u64::from(OTHER_CODE + 1));
        assert_eq!(machine.cpu.eflags(), Eflags::CF | Eflags::DF);
        assert_eq!(machine.get(reg::DI), 0x7777_7777);
        assert_eq!(machine.get(reg::SP), OTHER_STACK);
        assert_eq!(machine.cpu.tr.selector, OTHER);
        assert!(machine.cpu.cr0().contains(Cr0::TS));
        assert_eq!(machine.dword(TSS + EIP), AFTER);
        assert_eq!(machine.dword(TSS + EFLAGS), 0x42);
        assert_eq!(machine.dword(TSS + GENERAL + 12), 0x5555_6666);
        assert_eq!(machine.dword(TSS + SEGMENTS + 4), u32::from(KERNEL_CODE));
        assert_eq!(access_byte(&machine, TASK), TSS32, "no longer busy");
        assert_eq!(access_byte(&machine, OTHER), TSS32 | BUSY);
        assert_eq!(machine.dword(OTHER_TSS) & 0xffff, 0, "no link");
    }
}

#[test]
fn call_nests_and_iret_returns() {
    let mut machine = switching(far_call(OTHER));
    machine.code(OTHER_CODE, &[plain(Code::Iretd), mov(ECX, 7), hlt()]);
    machine.run_to_halt();
    assert_eq!(machine.cpu.ip, u64::from(AFTER) + 2);
    assert_eq!(machine.get(reg::AX), 1);
    assert_eq!(machine.get(reg::BX), 0x5555_6666);
    assert_eq!(machine.cpu.tr.selector, TASK);
    assert_eq!(machine.dword(OTHER_TSS) & 0xffff, u32::from(TASK), "the link");
    assert_eq!(access_byte(&machine, TASK), TSS32 | BUSY);
    assert_eq!(access_byte(&machine, OTHER), TSS32);
    // The other task's IRET is complete; NT is not saved.
    assert_eq!(machine.dword(OTHER_TSS + EIP), OTHER_CODE + 1);
    assert_eq!(machine.dword(OTHER_TSS + EFLAGS), (Eflags::CF | Eflags::DF).bits() | 2);
    assert!(!machine.cpu.eflags().contains(Eflags::NT));
}

#[test]
fn a_call_sets_nt_in_the_new_task_and_leaves_the_old_one_busy() {
    let mut machine = switching(far_call(GATE));
    assert_eq!(machine.run(), Exit::Halt);
    assert_eq!(machine.cpu.eflags(), Eflags::CF | Eflags::DF | Eflags::NT);
    assert_eq!(access_byte(&machine, TASK), TSS32 | BUSY);
    assert_eq!(access_byte(&machine, OTHER), TSS32 | BUSY);
}

#[test]
fn a_16_bit_tss_holds_words() {
    let mut machine = switching(far_jmp(OTHER, 0));
    machine.set_descriptor(OTHER, tss(TSS16, OTHER_TSS, 0x2b));
    let mut words = [0u16; 0x16];
    words[7] = 0x7000; // IP
    words[8] = 0x4403; // FLAGS: NT, DF, CF
    words[9] = 0xaaaa; // AX
    words[13] = 0x8000; // SP
    words[17..21].copy_from_slice(&[KERNEL_DATA, KERNEL_CODE, KERNEL_DATA, KERNEL_DATA]);
    for (index, word) in (0..).zip(words) {
        machine.put(OTHER_TSS + 2 * index, &word.to_le_bytes());
    }
    machine.code(0x7000, &[inc(ECX), far_jmp(TASK, 0)]);
    machine.run_to_halt();
    assert_eq!(machine.cpu.ip, u64::from(AFTER) + 2);
    assert_eq!(machine.dword(OTHER_TSS + 0x0e), 0x4483 << 16 | 0x7008, "FLAGS (with SF) and IP");
    assert_eq!(machine.dword(OTHER_TSS + 0x12), 0x0001_aaaa, "CX and AX");
    assert_eq!(machine.dword(OTHER_TSS + 0x28) >> 16, 0, "the LDT is not saved");
}

#[test]
fn an_exception_through_a_task_gate_pushes_its_error_code_in_the_new_task() {
    let mut machine = switching(to_segment(ES, EBX));
    let at = IDT + u32::from(vector::GP) * 8;
    machine.put(at, &task_gate(TASK_GATE, OTHER).to_le_bytes());
    machine.code(OTHER_CODE, &[pop(ESI), plain(Code::Iretd)]);
    machine.code(SWITCH, &[to_segment(ES, EBX)]);
    machine.run_for(3);
    assert_eq!(machine.cpu.tr.selector, OTHER);
    assert_eq!(machine.get(reg::SI), 0x6664, "the selector");
    assert_eq!(machine.dword(TSS + EIP), SWITCH, "a fault");
    assert_eq!(machine.dword(TSS + EFLAGS), Eflags::RF.bits() | 2, "RF is set by faults");
    machine.run_for(1);
    assert_eq!((machine.cpu.tr.selector, machine.cpu.ip), (TASK, u64::from(SWITCH)));
    assert!(machine.cpu.eflags().contains(Eflags::RF));
}

#[test]
fn a_double_fault_may_have_a_task_of_its_own() {
    let mut machine = switching(plain(Code::Ud2));
    // The stack of the other task is good, and that of the running task is not.
    machine.put(IDT + u32::from(vector::DF) * 8, &task_gate(TASK_GATE, OTHER).to_le_bytes());
    machine.set_gate(vector::UD, KERNEL_CODE, INTERRUPT_GATE & !PRESENT);
    machine.set_gate(vector::NP, KERNEL_CODE, INTERRUPT_GATE & !PRESENT);
    assert_eq!(machine.run(), Exit::Halt);
    assert_eq!(machine.cpu.ip, u64::from(OTHER_CODE) + 1);
    assert_eq!(machine.dword(OTHER_STACK - 4), 0);
}

/// Returns the exception that the switch raises before anything is changed.
fn refused(instruction: Instruction, prepare: impl Fn(&mut Machine)) -> (u8, u32) {
    let mut machine = switching(instruction);
    prepare(&mut machine);
    let exception = machine.run_to_exception();
    assert_eq!(exception.eip, SWITCH, "the instruction did not complete");
    assert_eq!(machine.cpu.tr.selector, TASK);
    (exception.vector, exception.error_code.unwrap())
}

#[test]
fn the_tss_is_checked_before_the_switch() {
    let other = u32::from(OTHER);
    let with = |descriptor| {
        refused(far_jmp(GATE, 0), move |machine| machine.set_descriptor(OTHER, descriptor))
    };
    assert_eq!(with(tss(TSS32 | BUSY, OTHER_TSS, 0x67)), (vector::GP, other), "busy");
    assert_eq!(with(tss(0x82, OTHER_TSS, 0x67)), (vector::GP, other), "an LDT");
    assert_eq!(with(tss(TSS32 & !PRESENT, OTHER_TSS, 0x67)), (vector::NP, other));
    assert_eq!(with(tss(TSS32, OTHER_TSS, 0x66)), (vector::TS, other), "too short");
    let gate = refused(far_jmp(GATE, 0), |machine| {
        machine.set_descriptor(GATE, task_gate(TASK_GATE & !PRESENT, OTHER));
    });
    assert_eq!(gate, (vector::NP, GATE.into()));
    let local = refused(far_jmp(GATE, 0), |machine| {
        machine.set_descriptor(GATE, task_gate(TASK_GATE, OTHER | 4));
    });
    assert_eq!(local, (vector::GP, other | 4));
    let link = refused(plain(Code::Iretd), |machine| {
        machine.cpu.set_eflags(Eflags::NT);
        machine.put_dword(TSS, OTHER.into());
    });
    assert_eq!(link, (vector::TS, other), "IRET to a task that is not busy");
}

#[test]
fn a_task_that_is_not_mapped_is_not_half_switched_to() {
    let mut machine = switching(far_jmp(OTHER, 0));
    machine.enable_paging();
    machine.put_dword(OTHER_TSS + 0x1c, PAGE_DIRECTORY);
    machine.map(TSS, TSS, P);
    let exception = machine.run_to_exception();
    assert_eq!((exception.vector, exception.eip), (vector::PF, SWITCH));
    assert_eq!(machine.cpu.tr.selector, TASK);
    assert_eq!(access_byte(&machine, OTHER), TSS32);
}

/// Returns the exception that the new task raises before its first instruction.
fn raised_in_new_task(prepare: impl Fn(&mut Machine)) -> (u8, u32) {
    const VECTORS: [u8; 4] = [vector::TS, vector::NP, vector::SS, vector::GP];
    let mut machine = switching(far_jmp(OTHER, 0));
    // The handlers are tasks, since the new task's stack may be unusable.
    let handlers: Vec<u16> = (0..4).map(|index| FREE + 32 + 8 * index).collect();
    for (vector, selector) in VECTORS.into_iter().zip(&handlers) {
        let base = DATA + 0x100 * u32::from(*selector);
        machine.set_descriptor(*selector, tss(TSS32, base, 0x67));
        machine.put(IDT + u32::from(vector) * 8, &task_gate(TASK_GATE, *selector).to_le_bytes());
        for offset in (0..0x68).step_by(4) {
            let value = machine.dword(OTHER_TSS + offset);
            machine.put_dword(base + offset, value);
        }
    }
    prepare(&mut machine);
    assert_eq!(machine.run(), Exit::Halt, "{}", machine.cpu.report(&machine.memory));
    assert_eq!(machine.dword(OTHER_TSS + EIP), OTHER_CODE);
    let index = handlers.iter().position(|handler| *handler == machine.cpu.tr.selector).unwrap();
    let link = machine.dword(machine.cpu.tr.base as u32) & 0xffff;
    assert_eq!(link, u32::from(OTHER), "raised by the new task");
    (VECTORS[index], machine.dword(OTHER_STACK - 4))
}

#[test]
fn segments_are_checked_in_the_new_task() {
    const SEGMENT: u16 = FREE + 24;
    let code = u32::from(SEGMENT);
    let with = |register: u8, selector: u16, descriptor: u64| {
        raised_in_new_task(move |machine| {
            machine.set_descriptor(SEGMENT, descriptor);
            let at = OTHER_TSS + SEGMENTS + 4 * u32::from(register);
            machine.put_dword(at, selector.into());
        })
    };
    assert_eq!(with(sreg::CS, 0, 0), (vector::TS, 0), "null");
    assert_eq!(with(sreg::CS, SEGMENT, flat(DATA_SEGMENT)), (vector::TS, code));
    assert_eq!(with(sreg::CS, SEGMENT, flat(CODE_SEGMENT & !PRESENT)), (vector::NP, code));
    assert_eq!(with(sreg::CS, SEGMENT, limited(CODE_SEGMENT, 0xfff)), (vector::GP, 0), "EIP");
    assert_eq!(with(sreg::SS, 0, 0), (vector::TS, 0), "null");
    assert_eq!(with(sreg::SS, SEGMENT, flat(DATA_SEGMENT & !PRESENT)), (vector::SS, code));
    assert_eq!(with(sreg::SS, SEGMENT | 3, flat(DATA_SEGMENT | DPL3)), (vector::TS, code));
    assert_eq!(with(sreg::FS, SEGMENT, flat(DATA_SEGMENT & !PRESENT)), (vector::NP, code));
    assert_eq!(with(sreg::GS, SEGMENT | 3, flat(DATA_SEGMENT)), (vector::TS, code), "RPL");
    let ldt = raised_in_new_task(|machine| {
        machine.put_dword(OTHER_TSS + LDT_SELECTOR, LDT.into());
        machine.set_descriptor(LDT, tss(0x02, DATA, 0xff));
    });
    assert_eq!(ldt, (vector::TS, u32::from(LDT)), "an LDT that is not present");
}

#[test]
fn a_task_has_its_ldt_and_page_directory() {
    let mut machine = switching(far_jmp(OTHER, 0));
    machine.enable_paging();
    let directory = 0xa000;
    let entry = machine.dword(PAGE_DIRECTORY);
    machine.put_dword(directory, entry);
    machine.put_dword(OTHER_TSS + 0x1c, directory);
    machine.set_descriptor(LDT, tss(0x82, DATA + 0x800, 0xff));
    machine.put(DATA + 0x808, &flat(DATA_SEGMENT).to_le_bytes());
    machine.put_dword(OTHER_TSS + LDT_SELECTOR, LDT.into());
    machine.put_dword(OTHER_TSS + SEGMENTS + 16, 0x0c);
    assert_eq!(machine.run(), Exit::Halt);
    assert_eq!(machine.cpu.cr3(), u64::from(directory));
    assert_eq!(machine.cpu.ldtr.base, u64::from(DATA) + 0x800);
    assert_eq!(machine.cpu.segment(sreg::FS).selector, 0x0c);
}

#[test]
fn the_t_flag_traps_before_the_first_instruction() {
    let mut machine = switching(far_jmp(OTHER, 0));
    machine.put_dword(OTHER_TSS + TRAP, 1);
    let read_dr6 = Instruction::with2(Code::Mov_r32_dr, EBX, DR6).unwrap();
    machine.code(handler(vector::DB), &[read_dr6, hlt()]);
    assert_eq!(machine.run(), Exit::Halt);
    assert_eq!(machine.get(reg::BX), 0xffff_8ff0, "BT");
    assert_eq!(machine.dword(OTHER_STACK - 12), OTHER_CODE);
}

#[test]
fn a_task_may_be_in_virtual_8086_mode() {
    let mut machine = switching(far_jmp(OTHER, 0));
    machine.put_dword(OTHER_TSS + EFLAGS, (Eflags::VM | Eflags::IOPL).bits());
    machine.put_dword(OTHER_TSS + EIP, 0x10);
    machine.put_dword(OTHER_TSS + 4, INNER_STACK);
    machine.put_dword(OTHER_TSS + 8, KERNEL_DATA.into());
    machine.put_dword(OTHER_TSS + SEGMENTS + 4, 0x1400);
    machine.code_of(16, 0x1_4010, &[plain(Code::Ud2)]);
    assert_eq!(machine.run(), Exit::Halt);
    assert_eq!(machine.exception().unwrap().vector, vector::UD);
    assert_eq!(machine.dword(INNER_STACK - 36), 0x10, "EIP");
    assert_eq!(machine.dword(INNER_STACK - 32), 0x1400, "CS");
}
