//! Loads of segment registers, and the effects of their limits (SDM vol. 3, chapters 3 and 6).

use iced_x86::{Code, Instruction, MemoryOperand, Register};
use ring3_x86::cpu::reg;
use ring3_x86::engine::Exit;
use ring3_x86::exception::vector;
use ring3_x86::segment::sreg;

use crate::common::assembler::*;
use crate::machine::*;

// The descriptors that are loaded.
const NOT_PRESENT: u16 = FREE;
const READ_ONLY: u16 = FREE + 0x08;
const EXECUTE_ONLY: u16 = FREE + 0x10;
const CONFORMING: u16 = FREE + 0x18;
const SMALL: u16 = FREE + 0x20;
const DOWN: u16 = FREE + 0x28;
const CODE_NOT_PRESENT: u16 = FREE + 0x30;
const FRESH: u16 = FREE + 0x38;
const LOCAL_TABLE: u16 = FREE + 0x40;
const BEYOND: u16 = 0x100;

/// Makes a machine with `instructions` at privilege 0 or 3, and with all of these descriptors.
fn machine(user: bool, instructions: &[Instruction]) -> Machine {
    let mut machine =
        if user { Machine::with_user_code(instructions) } else { Machine::with_code(instructions) };
    machine.set_descriptor(NOT_PRESENT, flat(DATA_SEGMENT & !PRESENT));
    machine.set_descriptor(READ_ONLY, flat(0x91));
    machine.set_descriptor(EXECUTE_ONLY, flat(0x99));
    machine.set_descriptor(CONFORMING, flat(0x9f));
    machine.set_descriptor(SMALL, limited(DATA_SEGMENT, 0xfff));
    // This segment expands down from 4 GiB to 1000h.
    machine.set_descriptor(DOWN, limited(0x97, 0xfff));
    machine.set_descriptor(CODE_NOT_PRESENT, flat(CODE_SEGMENT & !PRESENT));
    machine.set_descriptor(FRESH, flat(DATA_SEGMENT & !1));
    machine.set_descriptor(LOCAL_TABLE, u64::from(DATA) << 16 | 0x0000_8200_0000_000f);
    machine.set_descriptor(TASK, u64::from(TSS) << 16 | 0x0000_8900_0000_0067);
    machine
}

/// Returns the exception that the last of `instructions` raises.
fn fault(user: bool, instructions: &[Instruction]) -> (u8, u32) {
    let mut machine = machine(user, instructions);
    let exception = machine.run_to_exception();
    (exception.vector, exception.error_code.unwrap())
}

/// Returns the exception that loading `register` raises.
fn load_fault(user: bool, register: Register, selector: u16) -> (u8, u32) {
    fault(user, &[mov(EAX, selector.into()), to_segment(register, EAX)])
}

#[test]
fn data_segments() {
    let at = |vector, selector: u16| (vector, u32::from(selector));
    for register in [DS, ES, FS, GS] {
        let load = |selector| load_fault(false, register, selector);
        assert_eq!(load(NOT_PRESENT), at(vector::NP, NOT_PRESENT));
        assert_eq!(load(EXECUTE_ONLY), at(vector::GP, EXECUTE_ONLY));
        assert_eq!(load(TASK), at(vector::GP, TASK));
        assert_eq!(load(BEYOND), at(vector::GP, BEYOND));
        assert_eq!(load(KERNEL_DATA | 3), at(vector::GP, KERNEL_DATA), "RPL above DPL");
        assert_eq!(load(KERNEL_DATA | 4), at(vector::GP, KERNEL_DATA | 4), "there is no LDT");
        assert_eq!(load_fault(true, register, KERNEL_DATA), at(vector::GP, KERNEL_DATA));
    }
}

#[test]
fn data_segments_that_can_be_loaded() {
    for (user, selector) in [
        (false, 0),
        (false, 3),
        (false, READ_ONLY),
        (false, KERNEL_CODE),
        (false, USER_DS),
        (false, CONFORMING | 3),
        (true, CONFORMING | 3),
        (true, USER_DS & !3),
    ] {
        let mut machine =
            machine(user, &[mov(EAX, selector.into()), to_segment(ES, EAX), plain(Code::Ud2)]);
        assert_eq!(machine.run_to_exception().vector, vector::UD);
        assert_eq!(machine.cpu.segment(sreg::ES).selector, selector);
    }
}

#[test]
fn stack_segments() {
    let at = |vector, selector: u16| (vector, u32::from(selector));
    let load = |selector| load_fault(false, SS, selector);
    assert_eq!(load(0), (vector::GP, 0));
    assert_eq!(load(NOT_PRESENT), at(vector::SS, NOT_PRESENT));
    assert_eq!(load(READ_ONLY), at(vector::GP, READ_ONLY));
    assert_eq!(load(KERNEL_CODE), at(vector::GP, KERNEL_CODE));
    assert_eq!(load(USER_DS), at(vector::GP, USER_DS & !3));
    assert_eq!(load(KERNEL_DATA | 3), at(vector::GP, KERNEL_DATA));
    assert_eq!(load(BEYOND), at(vector::GP, BEYOND));
    assert_eq!(load_fault(true, SS, KERNEL_DATA | 3), at(vector::GP, KERNEL_DATA));
}

/// A selector and an offset are loaded together; if the selector cannot be loaded, neither is.
#[test]
fn far_pointers() {
    for (code, to, register, offset) in [
        (Code::Lfs_r16_m1616, AX, sreg::FS, 0xcccc_5678),
        (Code::Lfs_r32_m1632, EAX, sreg::FS, 0x1234_5678),
        (Code::Lgs_r16_m1616, AX, sreg::GS, 0xcccc_5678),
        (Code::Lgs_r32_m1632, EAX, sreg::GS, 0x1234_5678),
    ] {
        let pointer = MemoryOperand::with_displ(DATA.into(), 4);
        let load = Instruction::with2(code, to, pointer).unwrap();
        for (selector, loads) in [(READ_ONLY, true), (NOT_PRESENT, false)] {
            let mut machine = machine(false, &[load, plain(Code::Ud2)]);
            machine.put_dword(DATA, 0x1234_5678);
            machine.put(DATA + to.size() as u32, &selector.to_le_bytes());
            machine.cpu.set_gpr(reg::AX, 0xcccc_cccc);
            let exception = machine.run_to_exception();
            let (vector, eax) =
                if loads { (vector::UD, offset) } else { (vector::NP, 0xcccc_cccc) };
            assert_eq!((exception.vector, machine.get(reg::AX)), (vector, eax), "{code:?}");
            let expected = if loads { selector } else { KERNEL_DATA };
            assert_eq!(machine.cpu.segment(register).selector, expected, "{code:?}");
        }
    }
}

/// The stack's slot has the operand size.
#[test]
fn fs_and_gs_are_popped() {
    for (code, name, register, size) in [
        (Code::Popw_FS, FS, sreg::FS, 2),
        (Code::Popd_FS, FS, sreg::FS, 4),
        (Code::Popw_GS, GS, sreg::GS, 2),
        (Code::Popd_GS, GS, sreg::GS, 4),
    ] {
        let value = 0xabcd_0000;
        let code_of = |selector: u16| [push_value(value | u32::from(selector)), unary(code, name)];
        let mut good = machine(false, &[&code_of(READ_ONLY)[..], &[hlt()]].concat());
        good.run_to_halt();
        assert_eq!(good.cpu.segment(register).selector, READ_ONLY, "{code:?}");
        assert_eq!(good.get(reg::SP), STACK - 4 + size, "{code:?}");

        let mut bad = machine(false, &code_of(NOT_PRESENT));
        let exception = bad.run_to_exception();
        let found = (exception.vector, exception.error_code);
        assert_eq!(found, (vector::NP, Some(NOT_PRESENT.into())), "{code:?}");
        // Nothing is popped: the selector is above the handler's frame of four doublewords.
        assert_eq!(bad.get(reg::SP), STACK - 4 - 16, "{code:?}");
    }
}

#[test]
fn cs_cannot_be_loaded_by_mov() {
    let mut machine = machine(false, &[]);
    machine.put(CODE, &[0x8e, 0xc8]); // MOV CS, AX
    assert_eq!(machine.run_to_exception().vector, vector::UD);
}

#[test]
fn far_jumps() {
    let at = |vector, selector: u16| (vector, u32::from(selector));
    let jump = |selector, offset| fault(false, &[far_jmp(selector, offset)]);
    assert_eq!(jump(0, 0), (vector::GP, 0));
    assert_eq!(jump(KERNEL_DATA, 0), at(vector::GP, KERNEL_DATA));
    assert_eq!(jump(CODE_NOT_PRESENT, 0), at(vector::NP, CODE_NOT_PRESENT));
    assert_eq!(jump(BEYOND, 0), at(vector::GP, BEYOND));
    assert_eq!(jump(USER_CS, 0), at(vector::GP, USER_CS & !3));
    assert_eq!(jump(LOCAL_TABLE, 0), at(vector::GP, LOCAL_TABLE));
    assert_eq!(fault(true, &[far_jmp(KERNEL_CODE, 0)]), at(vector::GP, KERNEL_CODE));
    // A conforming segment can be entered from any privilege, which does not change.
    let mut machine = machine(true, &[far_jmp(CONFORMING, USER_CODE + 0x100)]);
    machine.code(USER_CODE + 0x100, &[plain(Code::Ud2)]);
    let exception = machine.run_to_exception();
    assert_eq!((exception.vector, exception.cs), (vector::UD, CONFORMING | 3));
}

#[test]
fn iretd_to_absent_segments() {
    let frame = |cs: u16, ss: u16| {
        let slots = [u32::from(ss), USER_STACK, 2, u32::from(cs), USER_CODE];
        let code: Vec<_> = slots.map(push_value).into_iter().chain([plain(Code::Iretd)]).collect();
        fault(false, &code)
    };
    let at = |vector, selector: u16| (vector, u32::from(selector));
    assert_eq!(frame(0, USER_DS), (vector::GP, 0));
    assert_eq!(frame(KERNEL_CODE | 3, USER_DS), at(vector::GP, KERNEL_CODE), "DPL is not RPL");
    assert_eq!(frame(CODE_NOT_PRESENT, USER_DS), at(vector::NP, CODE_NOT_PRESENT));
    assert_eq!(frame(USER_CS, 0), (vector::GP, 0));
    assert_eq!(frame(USER_CS, KERNEL_DATA), at(vector::GP, KERNEL_DATA));
    assert_eq!(frame(USER_CS, KERNEL_DATA | 3), at(vector::GP, KERNEL_DATA));

    let mut code: Vec<_> =
        [u32::from(NOT_PRESENT | 3), 0, 2, u32::from(USER_CS), 0].map(push_value).to_vec();
    code.push(plain(Code::Iretd));
    let mut machine = machine(false, &code);
    machine.set_descriptor(NOT_PRESENT, flat((DATA_SEGMENT | DPL3) & !PRESENT));
    let exception = machine.run_to_exception();
    let found = (exception.vector, exception.error_code);
    assert_eq!(found, (vector::SS, Some(NOT_PRESENT.into())));
    assert_eq!(exception.cs, KERNEL_CODE, "nothing has changed");
}

#[test]
fn loading_sets_the_accessed_bit() {
    let mut machine = machine(false, &[mov(EAX, FRESH.into()), to_segment(ES, EAX), hlt()]);
    assert_eq!(machine.descriptor(FRESH), flat(DATA_SEGMENT & !1));
    machine.run_to_halt();
    assert_eq!(machine.descriptor(FRESH), flat(DATA_SEGMENT));
}

#[test]
fn limits() {
    let loaded = |register, address| {
        fault(false, &[mov(EAX, SMALL.into()), to_segment(register, EAX), load(EBX, address)])
    };
    assert_eq!(loaded(DS, 0xffd), (vector::GP, 0));
    assert_eq!(loaded(DS, 0xffff_ffff), (vector::GP, 0));
    // The stack's exception is #SS, which cannot be delivered on that stack either.
    let on_stack = [mov(EAX, SMALL.into()), to_segment(SS, EAX), mov(ESP, 0x1001), push(EAX)];
    let mut small = machine(false, &on_stack);
    assert_eq!(small.run(), Exit::Shutdown);
    // Accesses down to the limit succeed, but not below it.
    let down = |address| {
        let code =
            [mov(EAX, DOWN.into()), to_segment(DS, EAX), load(EBX, address), plain(Code::Ud2)];
        machine(false, &code).run_to_exception().vector
    };
    assert_eq!(down(0x1000), vector::UD);
    assert_eq!(down(0xfff), vector::GP);
    assert_eq!(down(0xffc), vector::GP);
}

#[test]
fn a_null_segment_cannot_be_used() {
    let null = [mov(EAX, 0), to_segment(DS, EAX), load(EBX, DATA)];
    assert_eq!(fault(false, &null), (vector::GP, 0));
}

#[test]
fn read_only_and_execute_only() {
    let write = [mov(EAX, READ_ONLY.into()), to_segment(DS, EAX), store(DATA, EAX)];
    assert_eq!(fault(false, &write), (vector::GP, 0));
    let through_code = [mov(EAX, KERNEL_CODE.into()), to_segment(DS, EAX), store(DATA, EAX)];
    assert_eq!(fault(false, &through_code), (vector::GP, 0));
}

#[test]
fn the_task_register_and_the_ldt() {
    let ltr = |selector: u16| [mov(EAX, selector.into()), unary(Code::Ltr_r32m16, EAX)];
    let lldt = |selector: u16| [mov(EAX, selector.into()), unary(Code::Lldt_r32m16, EAX)];
    let at = |vector, selector: u16| (vector, u32::from(selector));
    assert_eq!(fault(false, &ltr(0)), (vector::GP, 0));
    assert_eq!(fault(false, &ltr(LOCAL_TABLE)), at(vector::GP, LOCAL_TABLE));
    assert_eq!(fault(false, &ltr(TASK | 4)), at(vector::GP, TASK | 4), "not from the LDT");
    assert_eq!(fault(false, &lldt(TASK)), at(vector::GP, TASK));
    assert_eq!(fault(true, &ltr(TASK)), (vector::GP, 0), "privileged");
    // LTR makes the TSS busy, and a busy one cannot be loaded.
    let twice: Vec<_> = ltr(TASK).into_iter().chain(ltr(TASK)).collect();
    let mut busy = machine(false, &twice);
    let exception = busy.run_to_exception();
    assert_eq!((exception.vector, exception.error_code), (vector::GP, Some(TASK.into())));
    assert_eq!(busy.descriptor(TASK) >> 40 & 0xff, 0x8b);

    // The second entry of the LDT; there is no third.
    let code: Vec<_> = lldt(LOCAL_TABLE)
        .into_iter()
        .chain([mov(EAX, 0xc), to_segment(ES, EAX), mov(EAX, 0x14), to_segment(FS, EAX)])
        .collect();
    let mut local = machine(false, &code);
    local.put(DATA + 8, &flat(DATA_SEGMENT).to_le_bytes());
    let exception = local.run_to_exception();
    assert_eq!((exception.vector, exception.error_code), (vector::GP, Some(0x14)));
    assert_eq!(local.cpu.segment(sreg::ES).selector, 0xc);
}
