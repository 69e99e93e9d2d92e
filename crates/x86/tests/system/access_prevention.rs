//! SMEP, SMAP and UMIP, which keep supervisor code out of user pages, and users from reading system registers
//! (SDM vol. 3, 5.6.1 and 2.5).

use iced_x86::{Code, Instruction, MemoryOperand, Register};
use ring3_x86::cpu::{Cr0, Cr4, reg};
use ring3_x86::cpuid::Model;
use ring3_x86::engine::Exit;
use ring3_x86::exception::vector;
use ring3_x86::flags::Eflags;
use ring3_x86::segment::{Segment, sreg};

use crate::common::assembler::*;
use crate::machine::*;

// Bits of error codes (SDM vol. 3, figure 5-12).
const PROTECTION: u32 = 1;
const WRITE: u32 = 2;
const FETCH: u32 = 16;

/// A user page, and a supervisor page beside it.
const PAGE: u32 = DATA;
const BESIDE: u32 = DATA + 0x1000;

/// Makes a machine with `code` and then UD2 at privilege 0, with paging. All pages belong to the supervisor,
/// except for [`PAGE`] and the user's code and stack.
fn separated(code: &[Instruction], cr4: Cr4) -> Machine {
    let mut machine = Machine::with_code(&[code, &[plain(Code::Ud2)]].concat());
    separate(&mut machine, cr4);
    machine
}

fn separate(machine: &mut Machine, cr4: Cr4) {
    machine.enable_paging();
    for page in 0..1024 {
        machine.map(page << 12, page << 12, P | RW);
    }
    for page in [PAGE, USER_CODE, USER_STACK - 0x1000] {
        machine.map(page, page, P | RW | US);
    }
    machine.cpu.set_cr4(cr4);
}

/// Returns the error code of a page fault at `linear` that `machine` raises, or None if it reaches UD2.
fn fault(machine: &mut Machine, linear: u32) -> Option<u32> {
    let exception = machine.run_to_exception();
    if exception.vector == vector::UD {
        return None;
    }
    assert_eq!(exception.vector, vector::PF);
    assert_eq!(machine.cpu.cr2, u64::from(linear));
    exception.error_code
}

fn with_memory(code: Code, register: Register) -> Instruction {
    let operand = MemoryOperand::with_displ(u64::from(PAGE) + 16, 4);
    Instruction::with2(code, register, operand).unwrap()
}

fn stac() -> Instruction {
    plain(Code::Stac)
}

fn clac() -> Instruction {
    plain(Code::Clac)
}

/// Returns instructions of each kind that access [`PAGE`], with the instructions that prepare them, the
/// address and whether they write.
fn accesses() -> Vec<(Vec<Instruction>, u32, bool)> {
    let at = PAGE + 16;
    let to_stack = |instruction: Instruction| vec![mov(ESP, at + 4), instruction];
    vec![
        (vec![load(EAX, at)], at, false),
        (vec![store(at, EAX)], at, true),
        (vec![add_to_memory(at, EAX)], at, true),
        (vec![memory(Code::Fld_m64fp, at)], at, false),
        (vec![memory(Code::Fnstenv_m28byte, at)], at, true),
        (vec![memory(Code::Fxsave_m512byte, at)], at, true),
        (vec![memory(Code::Fxrstor_m512byte, at)], at, false),
        (vec![with_memory(Code::Movups_xmm_xmmm128, Register::XMM0)], at, false),
        (vec![memory(Code::Cmpxchg8b_m64, at)], at, true),
        (vec![memory(Code::Sidt_m1632, at)], at, true),
        (vec![mov(ESI, at), mov(EDI, BESIDE), mov(ECX, 9), rep_movsb()], at, false),
        (vec![mov(EDI, at), mov(ESI, BESIDE), mov(ECX, 9), rep_movsb()], at, true),
        (vec![mov(EDI, at), mov(ECX, 9), rep_stosb()], at, true),
        (to_stack(push(EAX)), at, true),
        (vec![mov(ESP, at), pop(EAX)], at, false),
        (vec![mov(ESP, at), plain(Code::Popfd)], at, false),
        (vec![mov(ESP, at), plain(Code::Popad)], at, false),
        (vec![mov(Register::EBP, at), plain(Code::Leaved)], at, false),
        // The part of the access in the other page is allowed.
        (vec![load(EAX, PAGE + 0xffe)], PAGE + 0xffe, false),
        (vec![store(BESIDE - 2, EAX)], BESIDE - 2, true),
        (vec![load(EAX, PAGE - 2)], PAGE, false),
        (vec![store(PAGE - 2, EAX)], PAGE, true),
    ]
}

/// Supervisor code makes every kind of access, with AC set and clear, WP on and off, before the TLB has the
/// page and after.
#[test]
fn supervisor_code_accesses_pages_of_the_user_with_ac_alone() {
    for (code, linear, writes) in accesses() {
        for wp in [Cr0::WP, Cr0::empty()] {
            for cr4 in [Cr4::empty(), Cr4::SMAP] {
                for first in [clac(), stac()] {
                    let all = [&[first][..], &code].concat();
                    let mut machine = separated(&all, cr4 | Cr4::OSFXSR);
                    machine.cpu.set_cr0(Cr0::PE | Cr0::PG | wp);
                    // The value that POPF pops leaves AC set.
                    machine.put_dword(PAGE + 16, Eflags::AC.bits() | 2);
                    let is_refused = cr4.contains(Cr4::SMAP) && first.code() == Code::Clac;
                    let expected = PROTECTION | if writes { WRITE } else { 0 };
                    let expected = is_refused.then_some(expected);
                    // A fault may leave the stack where the handler cannot push.
                    if is_refused && uses_stack(&code) {
                        assert_eq!(machine.run(), Exit::Shutdown, "{code:?}");
                        assert_eq!(machine.cpu.cr2 & !0xfff, u64::from(PAGE));
                        continue;
                    }
                    if !is_refused && uses_stack(&code) {
                        // The handler of UD2 uses the stack, too.
                        assert_eq!(machine.run(), Exit::Halt, "{code:?}");
                        continue;
                    }
                    assert_eq!(fault(&mut machine, linear), expected, "{code:?} {wp:?} {cr4:?}");
                }
            }
        }
    }
}

fn uses_stack(code: &[Instruction]) -> bool {
    code[0].op0_register() == ESP
}

/// The same instructions run again and again with AC set, and then once with AC clear. The engine's caches do
/// not let them through.
#[test]
fn clac_forbids_accesses_again() {
    let code = [
        mov(ECX, 2000),
        mov(EDX, 0),
        // The loop.
        stac(),
        load(EAX, PAGE + 8),
        inc(EAX),
        store(PAGE + 8, EAX),
        clac(),
        binary(Code::Add_rm32_r32, EDX, EAX),
        unary(Code::Dec_r32, ECX),
    ];
    let mut machine = separated(&code, Cr4::SMAP);
    let addresses = machine.code(CODE, &code);
    let back = Instruction::with_branch(Code::Jne_rel32_32, addresses[2].into()).unwrap();
    let end = machine.code(*addresses.last().unwrap(), &[back, load(EBX, PAGE + 8)]);
    assert_eq!(fault(&mut machine, PAGE + 8), Some(PROTECTION));
    assert_eq!(machine.get(reg::AX), 2000);
    assert_eq!(machine.get(reg::DX), 2000 * 2001 / 2);
    assert_eq!(machine.exception().unwrap().eip, end[1]);
    // SMAP does not affect the supervisor's own pages.
    let mut machine = separated(&[load(EAX, BESIDE), store(BESIDE, EAX)], Cr4::SMAP);
    assert_eq!(fault(&mut machine, 0), None);
}

/// POPF and IRET set AC too, and an interrupt does not change it.
#[test]
fn ac_comes_by_other_ways() {
    let ac = Eflags::AC.bits() | 2;
    let popf = [push_value(ac), plain(Code::Popfd), load(EAX, PAGE)];
    assert_eq!(fault(&mut separated(&popf, Cr4::SMAP), PAGE), None);
    let back = [stac(), push_value(2), plain(Code::Popfd), load(EAX, PAGE)];
    assert_eq!(fault(&mut separated(&back, Cr4::SMAP), PAGE), Some(PROTECTION));
    for (flags, expected) in [(ac, None), (2, Some(PROTECTION))] {
        let target = CODE + 0x200;
        let frame = [flags, KERNEL_CODE.into(), target].map(push_value);
        let mut machine = separated(&[&frame[..], &[plain(Code::Iretd)]].concat(), Cr4::SMAP);
        machine.code(target, &[load(EAX, PAGE), plain(Code::Ud2)]);
        assert_eq!(fault(&mut machine, PAGE), expected);
    }
    for (first, expected) in [(stac(), None), (clac(), Some(PROTECTION))] {
        let mut machine = separated(&[first, int(0x30)], Cr4::SMAP);
        machine.code(handler(0x30), &[load(EAX, PAGE), plain(Code::Ud2)]);
        assert_eq!(fault(&mut machine, PAGE), expected);
    }
}

/// The user sets AC; then supervisor code is entered with it.
#[test]
fn supervisor_code_begins_with_the_users_ac() {
    for (flags, expected) in [(Eflags::AC.bits() | 2, None), (2, Some(PROTECTION))] {
        for am in [Cr0::empty(), Cr0::AM] {
            let code = [push_value(flags), plain(Code::Popfd), load(EBX, PAGE), int(0x30)];
            let mut machine = Machine::with_user_code(&code);
            separate(&mut machine, Cr4::SMAP);
            machine.cpu.set_cr0(Cr0::PE | Cr0::PG | Cr0::WP | am);
            machine.set_gate(0x30, KERNEL_CODE, INTERRUPT_GATE | DPL3);
            machine.code(handler(0x30), &[load(EAX, PAGE), plain(Code::Ud2)]);
            assert_eq!(fault(&mut machine, PAGE), expected);
        }
    }
}

/// If supervisor code returns to the user with AC set, alignment is checked there.
#[test]
fn alignment_is_checked_after_a_return_with_ac() {
    for first in [stac(), clac()] {
        let code = [
            first,
            push_value(USER_DS.into()),
            push_value(USER_STACK),
            plain(Code::Pushfd),
            push_value(USER_CS.into()),
            push_value(USER_CODE),
            plain(Code::Iretd),
        ];
        let mut machine = separated(&code, Cr4::SMAP);
        machine.cpu.set_cr0(Cr0::PE | Cr0::PG | Cr0::WP | Cr0::AM);
        let user = [mov(EAX, USER_DS.into()), to_segment(Register::DS, EAX)];
        machine.code(USER_CODE, &[&user[..], &[load(EAX, PAGE + 1), plain(Code::Ud2)]].concat());
        let expected = if first.code() == Code::Stac { vector::AC } else { vector::UD };
        assert_eq!(machine.run_to_exception().vector, expected);
    }
}

/// The processor's own accesses to tables are refused whatever AC is (SDM vol. 3, 5.6.1), even if the TLB
/// contains the page because of other accesses.
#[test]
fn tables_in_pages_of_the_user_are_refused() {
    // The local descriptor table is in the page.
    let selector = 4 | 3;
    let look = [load(EBX, PAGE), mov(EAX, selector), to_segment(Register::ES, EAX)];
    for (cr4, ac, expected) in [(Cr4::empty(), false, None), (Cr4::SMAP, true, Some(PROTECTION))] {
        for is_warm in [false, true] {
            let code = if is_warm { &look[..] } else { &look[1..] };
            let mut machine = separated(code, cr4);
            machine.put(PAGE, &flat(DATA_SEGMENT | DPL3).to_le_bytes());
            machine.cpu.ldtr =
                Segment::new(0x48, PAGE.into(), 0xff, ring3_x86::segment::Attributes(0x82));
            machine.cpu.set_eflags(if ac { Eflags::AC } else { Eflags::empty() });
            assert_eq!(fault(&mut machine, PAGE), expected, "{cr4:?} {is_warm}");
        }
    }
    // The TSS, in which the user's interrupt finds its stack, and the IDT: the exceptions that follow find no
    // handler either.
    for (table, privilege) in [(TSS, 3), (IDT, 0), (IDT, 3)] {
        for (cr4, expected) in [(Cr4::empty(), Exit::Halt), (Cr4::SMAP, Exit::Shutdown)] {
            let code = [plain(Code::Ud2)];
            let mut machine = if privilege == 3 {
                Machine::with_user_code(&code)
            } else {
                Machine::with_code(&code)
            };
            separate(&mut machine, cr4);
            machine.map(table, table, P | RW | US);
            machine.cpu.set_eflags(Eflags::AC);
            assert_eq!(machine.run(), expected, "{table:#x} {privilege} {cr4:?}");
        }
    }
    // The global table is used again and again, since engines cache descriptors; then it is in a user page.
    let mut machine = separated(&[mov(EAX, KERNEL_DATA.into()), mov(ECX, 1000)], Cr4::SMAP);
    let start = machine.code(CODE, &[mov(EAX, KERNEL_DATA.into()), mov(ECX, 1000)])[2];
    let body = [to_segment(Register::ES, EAX), unary(Code::Dec_r32, ECX)];
    let end = machine.code(start, &body)[2];
    let back = Instruction::with_branch(Code::Jne_rel32_32, start.into()).unwrap();
    let change = [
        back,
        stac(),
        mov(EDX, GDT | P | RW | US),
        store(Machine::pte(GDT), EDX),
        invlpg(GDT),
        to_segment(Register::ES, EAX),
        plain(Code::Ud2),
    ];
    machine.code(end, &change);
    // Then the handler's own code segment is unreachable as well.
    assert_eq!(machine.run(), Exit::Shutdown);
    assert_eq!(machine.get(reg::CX), 0);
}

/// CLAC and STAC exist at privilege 0 only, in all of its modes, and on models with SMAP; CR4.SMAP need not
/// be set.
#[test]
fn clac_and_stac_exist_at_privilege_0() {
    for instruction in [clac(), stac()] {
        let is_set = instruction.code() == Code::Stac;
        let mut machine = Machine::with_code(&[instruction, hlt()]);
        machine.cpu.set_eflags(if is_set { Eflags::empty() } else { Eflags::AC });
        machine.run_to_halt();
        assert_eq!(machine.cpu.eflags().contains(Eflags::AC), is_set);
        // Real mode.
        let mut machine = Machine::new();
        machine.code_of(16, CODE, &[instruction, hlt()]);
        machine.cpu.set_cr0(Cr0::empty());
        machine.cpu.set_real_mode_entry((CODE >> 4) as u16, 0);
        machine.cpu.set_eflags(if is_set { Eflags::empty() } else { Eflags::AC });
        machine.run_to_halt();
        assert_eq!(machine.cpu.eflags().contains(Eflags::AC), is_set);
        // Privilege 3, virtual-8086 mode, and a model without SMAP.
        let mut machine = Machine::with_user_code(&[instruction]);
        assert_eq!(machine.run_to_exception().vector, vector::UD);
        assert_eq!(virtual_8086(instruction, Cr4::empty()), vector::UD);
        let mut machine = Machine::with_code(&[instruction]);
        machine.cpu.model = Model::Pentium4;
        assert_eq!(machine.run_to_exception().vector, vector::UD);
        // A LOCK prefix.
        let mut machine = Machine::new();
        machine.put(CODE, &[0xf0, 0x0f, 0x01, if is_set { 0xcb } else { 0xca }]);
        assert_eq!(machine.run_to_exception().vector, vector::UD);
    }
}

/// Returns the exception that a 16-bit instruction raises in virtual-8086 mode; INT 3 follows it.
fn virtual_8086(instruction: Instruction, cr4: Cr4) -> u8 {
    let mut machine = Machine::new();
    machine.code_of(16, CODE, &[instruction, int(3)]);
    machine.set_gate(vector::BP, KERNEL_CODE, INTERRUPT_GATE | DPL3);
    machine.cpu.set_cr4(cr4);
    machine.cpu.set_eflags(Eflags::VM | Eflags::IOPL);
    for register in 0..6 {
        machine.cpu.set_segment(register, Segment::real((CODE >> 4) as u16, 3));
    }
    machine.cpu.set_segment(sreg::SS, Segment::real((STACK >> 4) as u16, 3));
    machine.cpu.set_gpr(reg::SP, 0x1000);
    machine.cpu.ip = 0;
    machine.run_to_exception().vector
}

// SMEP ----------------------------------------------------------------------

/// Supervisor code is not fetched from user pages, although their data can be read. The user's own code
/// continues. The error code says that the access was a fetch (SDM vol. 3, 5.7).
#[test]
fn supervisor_code_is_not_fetched_from_pages_of_the_user() {
    for cr4 in [Cr4::empty(), Cr4::SMEP, Cr4::SMEP | Cr4::SMAP] {
        for first in [nop(), stac()] {
            let mut machine = separated(&[first, jmp(PAGE)], cr4);
            machine.code(PAGE, &[plain(Code::Ud2)]);
            let expected = cr4.contains(Cr4::SMEP).then_some(PROTECTION | FETCH);
            assert_eq!(fault(&mut machine, PAGE), expected);
        }
    }
    let mut machine = separated(&[load(EAX, PAGE)], Cr4::SMEP);
    assert_eq!(fault(&mut machine, PAGE), None);
    let mut machine = Machine::with_user_code(&[load(EAX, PAGE), plain(Code::Ud2)]);
    separate(&mut machine, Cr4::SMEP | Cr4::SMAP);
    assert_eq!(fault(&mut machine, PAGE), None);
    // A page that is not present.
    for (cr4, expected) in [(Cr4::SMEP, FETCH), (Cr4::empty(), 0)] {
        let mut machine = separated(&[jmp(PAGE)], cr4);
        machine.map(PAGE, PAGE, 0);
        assert_eq!(fault(&mut machine, PAGE), Some(expected));
    }
    // An instruction whose second half is in a user page.
    let mut machine = separated(&[jmp(PAGE - 2)], Cr4::SMEP);
    machine.code(PAGE - 2, &[mov(EAX, 0)]);
    assert_eq!(fault(&mut machine, PAGE), Some(PROTECTION | FETCH));
}

/// Code that was executed, and so is decoded or translated, is refused when SMEP is turned on, and executed
/// when it is turned off.
#[test]
fn smep_comes_and_goes() {
    let ret = plain(Code::Retnd);
    let smep = Cr4::SMEP.bits();
    let code = [
        mov(EDX, 0),
        call(PAGE),
        mov(EAX, smep),
        to_control(CR4, EAX),
        mov(EAX, 0),
        to_control(CR4, EAX),
        call(PAGE),
        mov(EAX, smep),
        to_control(CR4, EAX),
        call(PAGE),
    ];
    let mut machine = separated(&code, Cr4::empty());
    machine.code(PAGE, &[inc(EDX), ret]);
    assert_eq!(fault(&mut machine, PAGE), Some(PROTECTION | FETCH));
    assert_eq!(machine.get(reg::DX), 2);
}

// CR4 -----------------------------------------------------------------------

/// Bits of CR4 that no model has raise #GP, and the other bits exist on the models that have them (SDM vol.
/// 3, 2.5).
#[test]
fn bits_of_cr4_that_do_not_exist_are_refused() {
    for model in Model::ALL.into_iter().skip(1) {
        for bit in 0..32 {
            let mut machine =
                Machine::with_code(&[mov(EAX, 1 << bit), to_control(CR4, EAX), hlt()]);
            machine.cpu.model = model;
            assert_eq!(machine.run(), Exit::Halt);
            let exists = match bit {
                11 | 20 | 21 => model >= Model::Max,
                16 => model.has_long_mode(),
                18 => model >= Model::X86_64_V2,
                // These bits came with the Pentium.
                0..=4 | 6 | 8 => true,
                5 | 7 | 9 | 10 => model >= Model::Pentium3,
                _ => false,
            };
            let expected = (!exists).then_some(vector::GP);
            assert_eq!(machine.exception().map(|e| e.vector), expected, "{model}: bit {bit}");
        }
    }
}

// UMIP ----------------------------------------------------------------------

/// Returns SGDT, SIDT, SLDT, SMSW and STR, to memory and to registers.
fn telling() -> Vec<Instruction> {
    vec![
        memory(Code::Sgdt_m1632, PAGE),
        memory(Code::Sidt_m1632, PAGE),
        memory(Code::Sldt_r32m16, PAGE),
        memory(Code::Smsw_r32m16, PAGE),
        memory(Code::Str_r32m16, PAGE),
        unary(Code::Sldt_r32m16, EAX),
        unary(Code::Smsw_r32m16, EAX),
        unary(Code::Str_r32m16, EAX),
        unary(Code::Sldt_rm16, AX),
        unary(Code::Smsw_rm16, AX),
        unary(Code::Str_rm16, AX),
    ]
}

#[test]
fn the_user_is_not_told_of_system_registers() {
    for instruction in telling() {
        let code = [instruction, plain(Code::Ud2)];
        for (cr4, expected) in [(Cr4::empty(), vector::UD), (Cr4::UMIP, vector::GP)] {
            let mut machine = Machine::with_user_code(&code);
            machine.cpu.set_cr4(cr4);
            let exception = machine.run_to_exception();
            assert_eq!(exception.vector, expected, "{instruction}");
            if expected == vector::GP {
                assert_eq!((exception.error_code, exception.eip), (Some(0), USER_CODE));
            }
            // The supervisor may execute it.
            let mut machine = Machine::with_code(&[instruction, hlt()]);
            machine.cpu.set_cr4(cr4);
            machine.run_to_halt();
        }
    }
    // #GP comes before the faults of the operand.
    let mut machine = Machine::with_user_code(&[memory(Code::Sgdt_m1632, BESIDE)]);
    separate(&mut machine, Cr4::UMIP);
    assert_eq!(machine.run_to_exception().vector, vector::GP);
}

/// In virtual-8086 mode the instructions on selectors are undefined, as always; in real mode the others work.
#[test]
fn umip_in_other_modes() {
    let sgdt = Instruction::with1(Code::Sgdt_m1632_16, MemoryOperand::with_displ(0x80, 2)).unwrap();
    let smsw = unary(Code::Smsw_rm16, AX);
    for (instruction, without, with) in [
        (sgdt, vector::BP, vector::GP),
        (smsw, vector::BP, vector::GP),
        (unary(Code::Sldt_rm16, AX), vector::UD, vector::UD),
        (unary(Code::Str_rm16, AX), vector::UD, vector::UD),
    ] {
        assert_eq!(virtual_8086(instruction, Cr4::empty()), without, "{instruction}");
        assert_eq!(virtual_8086(instruction, Cr4::UMIP), with, "{instruction}");
    }
    for instruction in [sgdt, smsw] {
        let mut machine = Machine::new();
        machine.code_of(16, CODE, &[instruction, hlt()]);
        machine.cpu.set_cr0(Cr0::empty());
        machine.cpu.set_real_mode_entry((CODE >> 4) as u16, 0);
        machine.cpu.set_cr4(Cr4::UMIP);
        machine.run_to_halt();
    }
}
