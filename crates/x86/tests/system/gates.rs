//! Interrupt and trap gates, stacks of inner privilege, IRET, double and triple faults
//! (SDM vol. 3, chapter 7).

use iced_x86::Code;
use ring3_x86::cpu::reg;
use ring3_x86::engine::Exit;
use ring3_x86::exception::vector;
use ring3_x86::flags::Eflags;
use ring3_x86::segment::{Attributes, Segment, sreg};

use crate::common::assembler::*;
use crate::machine::*;

/// The vector of the tests' own gates.
const VECTOR: u8 = 0x30;
/// The error code of faults about its gate: the index and the IDT bit.
const GATE_CODE: u32 = VECTOR as u32 * 8 + 2;
/// The EXT bit: the event that was being delivered did not come from INT n.
const EXT: u32 = 1;
/// The vector of UD2, which pushes no error code and makes no double fault with anything.
const UD: u8 = vector::UD;
const UD_GATE_CODE: u32 = UD as u32 * 8 + 2 + EXT;

/// Privilege 1, in selectors and shifted for access bytes.
const RPL1: u16 = 1;
const DPL1: u8 = 0x20;

fn iretd() -> iced_x86::Instruction {
    plain(Code::Iretd)
}

#[test]
fn an_interrupt_gate_disables_interrupts_and_a_trap_gate_does_not() {
    for (access, enabled) in [(INTERRUPT_GATE, false), (TRAP_GATE, true)] {
        let mut machine = Machine::with_code(&[int(VECTOR)]);
        machine.set_gate(VECTOR, KERNEL_CODE, access);
        let before = Eflags::IF | Eflags::NT | Eflags::CF | Eflags::IOPL;
        machine.cpu.set_eflags(before);
        let exception = machine.run_to_exception();
        let expected = Exception {
            vector: VECTOR,
            error_code: None,
            eip: CODE + 2,
            cs: KERNEL_CODE,
            eflags: before,
            outer: None,
        };
        assert_eq!(exception, expected);
        assert_eq!(machine.get(reg::SP), STACK - 12, "the same stack");
        let after = machine.cpu.eflags();
        assert_eq!(after.contains(Eflags::IF), enabled);
        assert_eq!(after - Eflags::IF, Eflags::CF | Eflags::IOPL, "NT is cleared");
    }
}

#[test]
fn a_16_bit_gate_pushes_words() {
    let mut machine = Machine::with_code(&[int(VECTOR)]);
    machine.set_gate(VECTOR, KERNEL_CODE, 0x86);
    assert_eq!(machine.run(), Exit::Halt);
    assert_eq!(machine.get(reg::SP), STACK - 6);
    assert_eq!(machine.dword(STACK - 6), u32::from(KERNEL_CODE) << 16 | (CODE + 2) & 0xffff);
}

#[test]
fn the_user_gets_to_the_stack_of_the_tss() {
    let mut machine = Machine::with_user_code(&[int(VECTOR)]);
    machine.set_gate(VECTOR, KERNEL_CODE, INTERRUPT_GATE | DPL3);
    let exception = machine.run_to_exception();
    assert_eq!(exception.outer, Some((USER_STACK, USER_DS)));
    assert_eq!((exception.cs, exception.eip), (USER_CS, USER_CODE + 2));
    assert_eq!(machine.cpu.cpl(), 0);
    assert_eq!(machine.get(reg::SP), INNER_STACK - 20);
    assert_eq!(machine.cpu.segment(sreg::SS).selector, KERNEL_DATA);
    assert_eq!(machine.cpu.segment(sreg::DS).selector, USER_DS, "data segments stay");
}

#[test]
fn iretd_to_the_user_takes_the_kernels_segments_away() {
    let mut machine = Machine::with_user_code(&[int(VECTOR), nop(), int(VECTOR + 1)]);
    machine.set_gate(VECTOR, KERNEL_CODE, INTERRUPT_GATE | DPL3);
    machine.set_gate(VECTOR + 1, KERNEL_CODE, INTERRUPT_GATE | DPL3);
    machine.cpu.set_eflags(Eflags::IF | Eflags::DF);
    let leave = [mov(EAX, KERNEL_DATA.into()), to_segment(ES, EAX), iretd()];
    machine.code(handler(VECTOR), &leave);
    let exception = machine.run_to_exception();
    assert_eq!(exception.vector, VECTOR + 1);
    assert_eq!((exception.cs, exception.eip), (USER_CS, USER_CODE + 5));
    assert_eq!(exception.outer, Some((USER_STACK, USER_DS)));
    assert_eq!(exception.eflags, Eflags::IF | Eflags::DF);
    assert_eq!(machine.cpu.segment(sreg::ES).selector, 0, "ES is null");
    assert_eq!(machine.cpu.segment(sreg::DS).selector, USER_DS);
}

#[test]
fn iretd_to_the_same_privilege_pops_three_doublewords() {
    let target = 0x1_2000;
    let slots = [0x0ed7, KERNEL_CODE.into(), target].map(push_value);
    let code: Vec<_> = slots.into_iter().chain([iretd()]).collect();
    let mut machine = Machine::with_code(&code);
    machine.code(target, &[hlt()]);
    machine.run_to_halt();
    assert_eq!(machine.get(reg::SP), STACK);
    assert_eq!(machine.cpu.eflags().bits(), 0x0ed5);
}

/// At privilege 3, IRETD and POPFD do not change IOPL and, without I/O privilege, IF (SDM vol. 2, POPF, table
/// 4-16).
#[test]
fn the_user_cannot_change_iopl_and_if() {
    let all = Eflags::IOPL | Eflags::IF | Eflags::CF;
    let popfd = [push_value(all.bits()), plain(Code::Popfd), int(VECTOR)];
    let frame = [
        push_value(all.bits()),
        push_value(USER_CS.into()),
        push_value(USER_CODE + 0x100),
        iretd(),
    ];
    for code in [&popfd[..], &frame[..]] {
        let mut machine = Machine::with_user_code(code);
        machine.code(USER_CODE + 0x100, &[int(VECTOR)]);
        machine.set_gate(VECTOR, KERNEL_CODE, INTERRUPT_GATE | DPL3);
        assert_eq!(machine.run_to_exception().eflags, Eflags::CF);
    }
}

/// Returns the exceptions that INT n and UD2 raise at privilege `user` with the gate that `prepare` makes.
fn raised(user: bool, prepare: impl Fn(&mut Machine)) -> [(u8, Option<u32>); 2] {
    [int(VECTOR), plain(Code::Ud2)].map(|instruction| {
        let (mut machine, at) = if user {
            (Machine::with_user_code(&[instruction]), USER_CODE)
        } else {
            (Machine::with_code(&[instruction]), CODE)
        };
        prepare(&mut machine);
        let exception = machine.run_to_exception();
        assert_eq!(exception.eip, at, "the instruction did not complete");
        (exception.vector, exception.error_code)
    })
}

/// Makes the gates of both vectors lead to `selector`.
fn set_gates(machine: &mut Machine, selector: u16, access: u8) {
    machine.set_gate(VECTOR, selector, access);
    machine.set_gate(UD, selector, access);
}

#[test]
fn faults_about_the_gate_have_its_index() {
    let np = raised(false, |m| set_gates(m, KERNEL_CODE, INTERRUPT_GATE & !PRESENT));
    assert_eq!(np, [(vector::NP, Some(GATE_CODE)), (vector::NP, Some(UD_GATE_CODE))]);
    // A call gate, a data segment.
    for access in [0x8c, 0x93] {
        let wrong = raised(false, |m| set_gates(m, KERNEL_CODE, access));
        assert_eq!(wrong, [(vector::GP, Some(GATE_CODE)), (vector::GP, Some(UD_GATE_CODE))]);
    }
}

#[test]
fn a_vector_beyond_the_idt_is_gp() {
    let mut machine = Machine::with_code(&[int(VECTOR)]);
    machine.cpu.idtr.limit = u16::from(VECTOR) * 8 + 6;
    let exception = machine.run_to_exception();
    assert_eq!((exception.vector, exception.error_code), (vector::GP, Some(GATE_CODE)));
}

/// INT n needs the gate's DPL; exceptions do not.
#[test]
fn the_user_cannot_call_the_kernels_gates() {
    let [int, ud] = raised(true, |m| set_gates(m, KERNEL_CODE, INTERRUPT_GATE));
    assert_eq!(int, (vector::GP, Some(GATE_CODE)));
    assert_eq!(ud, (UD, None));
}

#[test]
fn faults_about_the_gates_code_segment_have_its_selector() {
    let code = u32::from(FREE);
    let with = |user, descriptor| {
        raised(user, move |m| {
            m.set_descriptor(FREE, descriptor);
            set_gates(m, FREE | 3, INTERRUPT_GATE | DPL3);
        })
    };
    let both = |vector, code| [(vector, Some(code)), (vector, Some(code | EXT))];
    assert_eq!(with(false, flat(CODE_SEGMENT & !PRESENT)), both(vector::NP, code));
    assert_eq!(with(false, flat(DATA_SEGMENT)), both(vector::GP, code));
    assert_eq!(with(false, flat(CODE_SEGMENT | DPL3)), both(vector::GP, code), "outer privilege");
    let null = raised(true, |m| set_gates(m, 3, INTERRUPT_GATE | DPL3));
    assert_eq!(null, both(vector::GP, 0));
    let outside = raised(true, |m| set_gates(m, 0x100, INTERRUPT_GATE | DPL3));
    assert_eq!(outside, both(vector::GP, 0x100));
    // The handler is beyond the limit.
    assert_eq!(with(false, limited(CODE_SEGMENT, 0xfff)), both(vector::GP, 0));
}

/// Returns the exceptions of a switch from privilege 3 to 1, where the fault's handler at privilege 0 has a
/// good stack.
fn to_privilege_1(stack: u64, pointer: u32, selector: u16) -> [(u8, Option<u32>); 2] {
    raised(true, |m| {
        m.set_descriptor(FREE, flat(CODE_SEGMENT | DPL1));
        m.set_descriptor(FREE + 8, stack);
        m.set_inner_stack(1, pointer, selector);
        set_gates(m, FREE, INTERRUPT_GATE | DPL3);
    })
}

#[test]
fn faults_about_the_inner_stack_have_its_selector() {
    const SS: u16 = FREE + 8;
    let good = flat(DATA_SEGMENT | DPL1);
    let code = u32::from(SS);
    let both = |vector, code| [(vector, Some(code)), (vector, Some(code | EXT))];
    assert_eq!(to_privilege_1(good, DATA, RPL1), both(vector::TS, 0), "null");
    assert_eq!(to_privilege_1(good, DATA, SS), both(vector::TS, code), "RPL 0");
    assert_eq!(
        to_privilege_1(flat(DATA_SEGMENT), DATA, SS | RPL1),
        both(vector::TS, code),
        "DPL 0"
    );
    assert_eq!(
        to_privilege_1(flat(CODE_SEGMENT | DPL1), DATA, SS | RPL1),
        both(vector::TS, code),
        "not to be written"
    );
    assert_eq!(to_privilege_1(good, DATA, 0x100 | RPL1), both(vector::TS, 0x100), "beyond the GDT");
    assert_eq!(
        to_privilege_1(good & !(u64::from(PRESENT) << 40), DATA, SS | RPL1),
        both(vector::SS, code),
        "not present"
    );
    assert_eq!(
        to_privilege_1(limited(DATA_SEGMENT | DPL1, 0xfff), 0x1001, SS | RPL1),
        both(vector::SS, code),
        "beyond the limit"
    );
}

#[test]
fn a_tss_that_is_too_short_is_ts() {
    let both = raised(true, |m| {
        m.set_descriptor(FREE, flat(CODE_SEGMENT | DPL1));
        set_gates(m, FREE, INTERRUPT_GATE | DPL3);
        // ESP0 and SS0 are inside the limit, and so are ESP1 and the first bytes of SS1.
        m.cpu.tr.limit = 18;
    });
    let task = u32::from(TASK);
    assert_eq!(both, [(vector::TS, Some(task)), (vector::TS, Some(task | EXT))]);
}

/// The code of a conforming segment runs with the privilege of its caller, on its stack.
#[test]
fn the_running_stack_may_be_too_small_for_a_handler() {
    let both = raised(true, |m| {
        m.set_descriptor(FREE, flat(0x9f));
        set_gates(m, FREE, INTERRUPT_GATE | DPL3);
        let small = Segment::new(USER_DS, 0, 0xfff, Attributes(0x40f3));
        m.cpu.set_segment(sreg::SS, small);
        m.cpu.set_gpr(reg::SP, 0x1001);
    });
    assert_eq!(both, [(vector::SS, Some(0)), (vector::SS, Some(EXT))]);
}

#[test]
fn a_contributory_exception_twice_is_a_double_fault() {
    // #NP for the gate of UD2, and #NP for the gate of #NP.
    let mut machine = Machine::with_code(&[plain(Code::Ud2)]);
    machine.set_gate(UD, KERNEL_CODE, INTERRUPT_GATE & !PRESENT);
    machine.set_gate(vector::NP, KERNEL_CODE, INTERRUPT_GATE & !PRESENT);
    let exception = machine.run_to_exception();
    assert_eq!((exception.vector, exception.error_code), (vector::DF, Some(0)));
    assert_eq!(exception.eip, CODE);
}

/// SDM vol. 3, table 7-5: a page fault during the delivery of #GP is handled; a #GP during the delivery of a
/// page fault makes a double fault.
#[test]
fn page_faults_double_with_more() {
    let far = 0x40_0000;
    let mut machine = Machine::with_code(&[load(EAX, far)]);
    machine.enable_paging();
    machine.set_gate(vector::PF, FREE, INTERRUPT_GATE);
    let exception = machine.run_to_exception();
    assert_eq!(exception.vector, vector::DF);
    assert_eq!(machine.cpu.cr2, u64::from(far));

    let mut machine = Machine::with_code(&[int(VECTOR)]);
    machine.enable_paging();
    // The gate for #GP is in the part of the IDT that is not present.
    machine.cpu.idtr.base = u64::from(far) - u64::from(vector::GP) * 8;
    machine.cpu.idtr.limit = u16::from(VECTOR) * 8;
    let gate = machine.cpu.idtr.base as u32 + u32::from(vector::DF) * 8;
    machine.put_dword(gate, u32::from(KERNEL_CODE) << 16 | handler(vector::DF));
    machine.put_dword(gate + 4, u32::from(INTERRUPT_GATE) << 8);
    // #GP, then #PF (its gate is beyond, too), then again #PF: a double fault.
    let exception = machine.run_to_exception();
    assert_eq!(exception.vector, vector::DF);
    assert_eq!(machine.cpu.cr2, u64::from(far) + 8);
}

#[test]
fn an_exception_in_the_double_fault_shuts_down() {
    let mut machine = Machine::with_code(&[nop(), plain(Code::Ud2)]);
    machine.cpu.idtr.limit = 0;
    assert_eq!(machine.run(), Exit::Shutdown);

    let mut machine = Machine::with_code(&[plain(Code::Ud2)]);
    machine.cpu.set_gpr(reg::SP, 0);
    let small = Segment::new(KERNEL_DATA, 0, 0xfff, Attributes(0x4093));
    machine.cpu.set_segment(sreg::SS, small);
    assert_eq!(machine.run(), Exit::Shutdown);
}

#[test]
fn real_mode_shuts_down_without_a_vector_table() {
    let mut machine = Machine::new();
    machine.cpu.set_cr0(ring3_x86::cpu::Cr0::empty());
    machine.cpu.set_real_mode_entry(0, 0x7c00);
    machine.cpu.idtr.limit = 0;
    machine.code_of(16, 0x7c00, &[plain(Code::Int3)]);
    assert_eq!(machine.run(), Exit::Shutdown);
}

/// Interrupts are benign: a fault in their delivery is delivered instead.
#[test]
fn an_interrupt_into_a_missing_gate_is_np() {
    let mut machine = Machine::with_code(&[plain(Code::Sti), nop(), nop(), hlt()]);
    machine.set_gate(VECTOR, KERNEL_CODE, INTERRUPT_GATE & !PRESENT);
    machine.interrupt = Some(VECTOR);
    let exception = machine.run_to_exception();
    assert_eq!((exception.vector, exception.error_code), (vector::NP, Some(GATE_CODE | EXT)));
    assert_eq!(exception.eip, CODE + 2);
}

#[test]
fn int3_and_into_are_traps_of_software() {
    let into = [mov(EAX, 0x7fff_ffff), inc(EAX), plain(Code::Into)];
    let cases =
        [(&into[..], vector::OF, USER_CODE + 7), (&[plain(Code::Int3)], vector::BP, USER_CODE + 1)];
    for (code, vector, after) in cases {
        let run = |access| {
            let mut machine = Machine::with_user_code(code);
            machine.set_gate(vector, KERNEL_CODE, access);
            machine.run_to_exception()
        };
        let allowed = run(INTERRUPT_GATE | DPL3);
        assert_eq!((allowed.vector, allowed.eip), (vector, after));
        let forbidden = run(INTERRUPT_GATE);
        assert_eq!(forbidden.vector, vector::GP);
        assert_eq!(forbidden.error_code, Some(u32::from(vector) * 8 + 2));
        assert_eq!(forbidden.eip, after - 1);
    }
}
