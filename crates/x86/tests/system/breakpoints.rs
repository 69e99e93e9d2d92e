//! Debug registers and RF (SDM vol. 3, chapter 19).

use iced_x86::Register::{DR0, DR4, DR7};
use iced_x86::{Code, Instruction, MemoryOperand};
use ring3_x86::cpu::{Cr4, reg};
use ring3_x86::engine::Exit;
use ring3_x86::exception::vector;
use ring3_x86::flags::Eflags;

use crate::common::assembler::*;
use crate::machine::*;

// Fields of DR7 for breakpoint 0.
const LOCAL: u32 = 1;
const GLOBAL: u32 = 2;
const EXECUTE: u32 = 0;
const WRITE: u32 = 1 << 16;
const PORT: u32 = 2 << 16;
const READ_OR_WRITE: u32 = 3 << 16;
const WORD: u32 = 1 << 18;
const DWORD: u32 = 3 << 18;
const GENERAL_DETECT: u32 = 1 << 13;

fn to_debug(to: iced_x86::Register, from: iced_x86::Register) -> Instruction {
    Instruction::with2(Code::Mov_dr_r32, to, from).unwrap()
}

fn from_debug(to: iced_x86::Register, from: iced_x86::Register) -> Instruction {
    Instruction::with2(Code::Mov_r32_dr, to, from).unwrap()
}

/// Sets DR0 to an address and DR7 to `control`, and executes `code` and then HLT. Returns, for each #DB, the
/// index in `code` of the next instruction and DR6's low half.
fn trapped(
    code: &[Instruction],
    address: impl Fn(&[u32]) -> u32,
    control: u32,
) -> (Machine, Vec<(usize, u16)>) {
    let mut machine = Machine::new();
    machine.cpu.set_cr4(Cr4::DE);
    let begin = [to_debug(DR0, ECX), to_debug(DR7, EBX)];
    let end = [hlt()];
    let addresses = machine.code(CODE, &[&begin, code, &end].concat());
    let pushed_eip = MemoryOperand::with_base_displ(ESP, 8);
    let handler_code = [
        push(EAX),
        push(EBX),
        Instruction::with2(Code::Mov_r32_rm32, EAX, pushed_eip).unwrap(),
        from_debug(EBX, DR6),
        Instruction::with2(Code::Mov_rm32_r32, MemoryOperand::with_base(ESI), EAX).unwrap(),
        Instruction::with2(Code::Mov_rm32_r32, MemoryOperand::with_base_displ(ESI, 4), EBX)
            .unwrap(),
        Instruction::with2(Code::Add_rm32_imm8, ESI, 8).unwrap(),
        mov(EBX, 0),
        to_debug(DR6, EBX),
        pop(EBX),
        pop(EAX),
        plain(Code::Iretd),
    ];
    machine.code(LOG_HANDLER, &handler_code);
    let gate = IDT + 8 * u32::from(vector::DB);
    machine.put_dword(gate, u32::from(KERNEL_CODE) << 16 | LOG_HANDLER & 0xffff);
    machine.put_dword(gate + 4, LOG_HANDLER & 0xffff_0000 | u32::from(INTERRUPT_GATE) << 8);
    machine.cpu.set_gpr(reg::CX, address(&addresses[2..]).into());
    machine.cpu.set_gpr(reg::BX, control.into());
    machine.cpu.set_gpr(reg::SI, LOG.into());
    machine.run_to_halt();
    let count = (machine.get(reg::SI) - LOG) / 8;
    let log = (0..count).map(|index| {
        let (eip, dr6) = (machine.dword(LOG + 8 * index), machine.dword(LOG + 8 * index + 4));
        (addresses[2..].iter().position(|at| *at == eip).unwrap(), dr6 as u16)
    });
    let log = log.collect();
    (machine, log)
}

/// The address of the handler, and that of the log that it writes.
const LOG_HANDLER: u32 = 0x1_2000;
const LOG: u32 = 0x2_4000;

/// DR6 with B0, and without any condition.
const B0: u16 = 0x0ff1;

#[test]
fn an_instruction_breakpoint_is_a_fault_before_it() {
    // The handler's IRET returns to the instruction itself, which would trigger the breakpoint again without
    // RF.
    let mut machine = Machine::with_code(&[nop(), inc(EDI), hlt()]);
    machine.cpu.set_gpr(reg::CX, u64::from(CODE) + 0x107);
    machine.cpu.set_gpr(reg::BX, GLOBAL.into());
    machine.code(CODE + 0x100, &[to_debug(DR0, ECX), to_debug(DR7, EBX), nop(), inc(EDI)]);
    machine.cpu.ip = u64::from(CODE) + 0x100;
    let exception = machine.run_to_exception();
    assert_eq!((exception.vector, exception.eip), (vector::DB, CODE + 0x107));
    assert!(!exception.eflags.contains(Eflags::RF));
    assert_eq!(machine.get(reg::DI), 0);
}

#[test]
fn rf_suppresses_it_for_one_instruction() {
    let frame = |flags, to| [push_value(flags), push_value(KERNEL_CODE.into()), push_value(to)];
    // IRETD with RF to the instruction at the breakpoint, which is executed twice.
    let target = CODE + 6 + 16;
    let mut code = frame(Eflags::RF.bits(), target).to_vec();
    code.push(plain(Code::Iretd));
    code.extend([inc(EDI), plain(Code::Ud2)]);
    let mut machine = Machine::new();
    machine.cpu.set_gpr(reg::CX, target.into());
    machine.cpu.set_gpr(reg::BX, LOCAL.into());
    let addresses =
        machine.code(CODE, &[&[to_debug(DR0, ECX), to_debug(DR7, EBX)], &code[..]].concat());
    assert_eq!(addresses[6], target);
    let exception = machine.run_to_exception();
    assert_eq!((exception.vector, machine.get(reg::DI)), (vector::UD, 1));
    assert!(exception.eflags.contains(Eflags::RF), "pushed by faults");
    assert!(!machine.cpu.eflags().contains(Eflags::RF), "cleared in the handler");
}

#[test]
fn data_breakpoints_trap_after_the_access() {
    let code = [store_byte(DATA + 3, 1), load(EAX, DATA), store(DATA + 4, EAX), nop()];
    let at = |_: &[u32]| DATA;
    assert_eq!(trapped(&code, at, LOCAL | WRITE | DWORD).1, [(1, B0)]);
    assert_eq!(trapped(&code, at, LOCAL | READ_OR_WRITE | DWORD).1, [(1, B0), (2, B0)]);
    assert_eq!(trapped(&code, at, LOCAL | READ_OR_WRITE | WORD).1, [(2, B0)]);
    assert_eq!(trapped(&code, at, READ_OR_WRITE | DWORD).1, [], "not enabled");
    assert_eq!(trapped(&code, at, LOCAL | EXECUTE).1, [], "not executed");
}

#[test]
fn an_access_across_pages_is_watched() {
    let code = [store(DATA + 0xffd, EAX), nop()];
    assert_eq!(trapped(&code, |_| DATA + 0x1000, LOCAL | WRITE).1, [(1, B0)]);
    assert_eq!(trapped(&code, |_| DATA + 0x1001, LOCAL | WRITE).1, []);
}

#[test]
fn a_repeated_instruction_traps_after_the_iteration() {
    let code = [mov(EDI, DATA), mov(ECX, 6), rep_stosb(), nop()];
    let (machine, log) = trapped(&code, |_| DATA + 2, LOCAL | WRITE | WORD);
    assert_eq!(log, [(2, B0), (2, B0)]);
    assert_eq!(machine.get(reg::DI), DATA + 6);
}

#[test]
fn ports_are_watched_with_cr4_de() {
    let code = [out_al(0x80), in_al(0x81), in_al(0x82), nop()];
    assert_eq!(trapped(&code, |_| 0x80, LOCAL | PORT | WORD).1, [(1, B0), (2, B0)]);
}

/// SDM vol. 3, 7.8.3: there is no debug exception between an instruction that loads SS and the next one.
#[test]
fn loading_ss_holds_breakpoints_back() {
    let source = MemoryOperand::with_displ(DATA.into(), 4);
    let load_ss = Instruction::with2(Code::Mov_Sreg_r32m16, SS, source).unwrap();
    let code = [mov(EAX, KERNEL_DATA.into()), store(DATA, EAX), load_ss, nop(), nop()];
    let (_, log) = trapped(&code, |_| DATA, LOCAL | READ_OR_WRITE | DWORD);
    assert_eq!(log, [(2, B0), (4, B0)]);
    // An instruction breakpoint after it has no effect at all.
    assert_eq!(trapped(&code, |at| at[3], LOCAL | EXECUTE).1, []);
}

#[test]
fn general_detect_guards_the_debug_registers() {
    let code = [mov(EBX, GENERAL_DETECT), to_debug(DR7, EBX), from_debug(EAX, DR0), hlt()];
    let mut machine = Machine::with_code(&code);
    machine.code(handler(vector::DB), &[from_debug(EAX, DR6), from_debug(EBX, DR7), hlt()]);
    assert_eq!(machine.run(), Exit::Halt);
    assert_eq!(machine.get(reg::AX), 0xffff_2ff0, "BD");
    assert_eq!(machine.get(reg::BX), 0x400, "GD is clear in the handler");
    assert_eq!(machine.dword(STACK - 12), CODE + 8, "a fault");
}

#[test]
fn dr4_is_dr6_without_de() {
    let mut machine = Machine::with_code(&[from_debug(EAX, DR4), hlt()]);
    machine.run_to_halt();
    assert_eq!(machine.get(reg::AX), 0xffff_0ff0);
    let mut machine = Machine::with_code(&[from_debug(EAX, DR4), hlt()]);
    machine.cpu.set_cr4(Cr4::DE);
    assert_eq!(machine.run_to_exception().vector, vector::UD);
}

#[test]
fn nmi_is_not_masked_but_blocks_itself_until_iret() {
    let mut machine = Machine::with_code(&[nop(), nop(), hlt()]);
    machine.code(handler(vector::NMI), &[inc(EDI), inc(EDI), plain(Code::Iretd)]);
    machine.cpu.raise_nmi();
    machine.run_for(1);
    assert_eq!(machine.get(reg::DI), 1);
    machine.cpu.raise_nmi();
    machine.cpu.raise_nmi();
    machine.run_for(2);
    assert_eq!(machine.get(reg::DI), 2, "blocked until IRET");
    assert_eq!(machine.cpu.ip, handler(vector::NMI).into());
    assert_eq!(machine.dword(STACK - 12), CODE);
    machine.run_to_halt();
    assert_eq!(machine.get(reg::DI), 4, "one is remembered");
    machine.cpu.raise_nmi();
    machine.run();
    assert_eq!(machine.get(reg::DI), 6, "it ends HLT");
}
