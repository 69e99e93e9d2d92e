//! Instructions whose results the manual gives, run on the host's processor.
//!
//! On a host where instructions cannot be run the tests pass without doing anything.

use ring3_hostcpu::gpr::*;
use ring3_hostcpu::{
    CODE_SELECTOR, DATA_SELECTOR, FILLER, Layout, PAGE_SIZE, Refused, Runner, State, Stop, eflags,
};

const L: &Layout = &Layout::FIXED;

// Vectors (SDM vol. 3A, table 7-1).
const DE: u8 = 0;
const BP: u8 = 3;
const OF: u8 = 4;
const BR: u8 = 5;
const UD: u8 = 6;
const GP: u8 = 13;
const PF: u8 = 14;
const MF: u8 = 16;
const AC: u8 = 17;
const XM: u8 = 19;

/// Returns a runner, if this host can have one.
fn runner() -> Option<Runner> {
    match Runner::new() {
        Ok(runner) => Some(runner),
        Err(reason) => {
            ring3_skipped::host(reason);
            None
        }
    }
}

/// Returns a state in the middle of the first code page, so that short branches stay within the page.
fn start() -> State {
    State::at(L.code.start + PAGE_SIZE / 2)
}

fn exception(vector: u8) -> Stop {
    Stop::Exception { vector, error_code: 0, cr2: 0 }
}

/// Returns #PF with the error code's bits P = 1, W/R = 2, U/S = 4, I/D = 16 (SDM vol. 3A, 5.7).
fn page_fault(error_code: u32, cr2: u32) -> Stop {
    Stop::Exception { vector: PF, error_code, cr2 }
}

/// Runs `code` to its end.
#[track_caller]
fn complete(cpu: &mut Runner, start: &State, code: &[u8]) -> State {
    let (end, stop) = cpu.run(start, code).unwrap();
    assert_eq!(stop, Stop::Reached, "{code:02x?}");
    end
}

/// Makes a number in the 80-bit format: 1.0 is 3fff:8000000000000000.
fn extended(sign_exponent: u16, significand: u64) -> [u8; 10] {
    let mut bytes = [0; 10];
    bytes[..8].copy_from_slice(&significand.to_le_bytes());
    bytes[8..].copy_from_slice(&sign_exponent.to_le_bytes());
    bytes
}

fn singles(values: [f32; 4]) -> u128 {
    values.iter().rev().fold(0, |all, value| all << 32 | u128::from(value.to_bits()))
}

#[test]
fn nop_changes_only_eip() {
    let Some(mut cpu) = runner() else { return };
    let mut start = start();
    for (i, register) in start.gpr.iter_mut().enumerate() {
        *register = 0x9abcdef0_u32.wrapping_mul(i as u32 + 3);
    }
    start.eflags = eflags::SETTABLE | eflags::ALWAYS;
    start.fx.set_fcw(0x0f7f);
    start.fx.set_fsw(0x4500 | 5 << 11);
    start.fx.set_ftw(0xa5);
    start.fx.set_mxcsr(0xffbf);
    for i in 0..8 {
        start.fx.set_st(i, extended(0x4000 + i as u16, 0x8000_0000_0000_0001 << i | 1 << 63));
        start.fx.set_xmm(i, 0x0102030405060708090a0b0c0d0e0f10 << i);
    }
    let mut end = complete(&mut cpu, &start, &[0x90]);
    assert_eq!(end.eip, start.eip + 1);
    end.eip = start.eip;
    assert_eq!(end, start);
}

#[test]
fn add_sets_the_status_flags() {
    let Some(mut cpu) = runner() else { return };
    let mut start = start();
    start.gpr[EAX] = 0x7fff_ffff;
    start.gpr[EBX] = 1;
    start.eflags = eflags::CF | eflags::ZF;
    let end = complete(&mut cpu, &start, &[0x01, 0xd8]); // ADD EAX, EBX
    assert_eq!(end.gpr[EAX], 0x8000_0000);
    let expected = eflags::OF | eflags::SF | eflags::AF | eflags::PF;
    assert_eq!(end.eflags, expected | eflags::ALWAYS);
}

#[test]
fn push_and_pop_use_esp() {
    let Some(mut cpu) = runner() else { return };
    let mut start = start();
    start.gpr[ESP] = L.data.start + 16;
    start.gpr[EAX] = 0x12345678;
    let end = complete(&mut cpu, &start, &[0x50]); // PUSH EAX
    assert_eq!(end.gpr[ESP], L.data.start + 12);
    assert_eq!(cpu.data()[12..16], 0x12345678_u32.to_le_bytes());

    cpu.data_mut()[16..20].copy_from_slice(&0xcafe_f00d_u32.to_le_bytes());
    let end = complete(&mut cpu, &start, &[0x5c]); // POP ESP
    assert_eq!(end.gpr[ESP], 0xcafe_f00d);

    start.gpr[ESP] = 0;
    let (end, stop) = cpu.run(&start, &[0x50]).unwrap();
    assert_eq!(stop, page_fault(6, 0xffff_fffc));
    assert_eq!(end.gpr[ESP], 0);
}

#[test]
fn page_faults_have_error_code_and_address() {
    let Some(mut cpu) = runner() else { return };
    let mut start = start();
    for (address, load, store) in [
        (L.hole_after.start + 8, Some(4), Some(6)),
        (L.hole_before_data.end() - 4, Some(4), Some(6)),
        (L.read_only.start + 4, None, Some(7)),
        (L.code.start, None, Some(7)),
        (L.data.start, None, None),
    ] {
        start.gpr[EBX] = address;
        let stop = |error: Option<u32>| error.map_or(Stop::Reached, |e| page_fault(e, address));
        let (end, got) = cpu.run(&start, &[0x8b, 0x03]).unwrap(); // MOV EAX, [EBX]
        assert_eq!(got, stop(load), "load {address:x}");
        if load.is_some() {
            assert_eq!(end.eip, start.eip);
        }
        let (_, got) = cpu.run(&start, &[0x89, 0x03]).unwrap(); // MOV [EBX], EAX
        assert_eq!(got, stop(store), "store {address:x}");
    }
    // Across the boundary from writable to read-only, the address is that of the second page.
    start.gpr[EBX] = L.data.end() - 2;
    let (_, stop) = cpu.run(&start, &[0x89, 0x03]).unwrap();
    assert_eq!(stop, page_fault(7, L.read_only.start));
    assert_eq!(cpu.data()[L.data.len as usize - 2..], [0, 0]);
}

#[test]
fn the_host_can_write_memory_that_the_guest_can_only_read() {
    let Some(mut cpu) = runner() else { return };
    cpu.read_only_mut()[..4].copy_from_slice(&0x600d_cafe_u32.to_le_bytes());
    let mut start = start();
    start.gpr[ESI] = L.read_only.start;
    let end = complete(&mut cpu, &start, &[0xad]); // LODSD
    assert_eq!(end.gpr[EAX], 0x600d_cafe);
    assert_eq!(cpu.read_only()[..4], 0x600d_cafe_u32.to_le_bytes());
}

#[test]
fn faults_leave_eip_and_traps_move_it() {
    let Some(mut cpu) = runner() else { return };
    let mut start = start();
    start.gpr[EBX] = L.data.start;
    start.gpr[EAX] = 1;
    start.eflags = eflags::OF;
    let cases: [(&[u8], u8, u32); 8] = [
        (&[0xf7, 0xf1], DE, 0), // DIV ECX, which is 0
        (&[0xd4, 0x00], DE, 0), // AAM 0
        (&[0xcc], BP, 1),       // INT3
        (&[0xce], OF, 1),       // INTO
        (&[0x62, 0x03], BR, 0), // BOUND EAX, [EBX], where both bounds are 0
        (&[0x0f, 0x0b], UD, 0), // UD2
        (&[0xfa], GP, 0),       // CLI
        (&[FILLER], GP, 0),     // HLT
    ];
    for (code, vector, length) in cases {
        let (end, stop) = cpu.run(&start, code).unwrap();
        assert_eq!(stop, exception(vector), "{code:02x?}");
        assert_eq!(end.eip, start.eip + length, "{code:02x?}");
        assert_eq!(end.gpr, start.gpr);
    }
}

#[test]
fn branches_are_followed() {
    let Some(mut cpu) = runner() else { return };
    let mut start = start();
    let next = start.eip + 2;
    let jz_forward = [0x74, 0x10];
    assert_eq!(complete(&mut cpu, &start, &jz_forward).eip, next);
    start.eflags = eflags::ZF;
    assert_eq!(complete(&mut cpu, &start, &jz_forward).eip, next + 0x10);
    assert_eq!(complete(&mut cpu, &start, &[0x74, 0x80]).eip, next - 0x80);
    // To a hole, to the data region, and to the first 64 KiB by 16-bit operand size.
    for target in [L.hole_before_code.start + 5, L.data.start + 5, 0] {
        start.gpr[EAX] = target;
        assert_eq!(complete(&mut cpu, &start, &[0xff, 0xe0]).eip, target); // JMP EAX
    }
    let end = complete(&mut cpu, &start, &[0x66, 0xe9, 0, 0]); // JMP rel16
    assert_eq!(end.eip, (start.eip + 4) & 0xffff);
    start.gpr[ESP] = L.data.start + 8;
    let end = complete(&mut cpu, &start, &[0xe8, 0x20, 0, 0, 0]); // CALL
    assert_eq!((end.eip, end.gpr[ESP]), (start.eip + 0x25, L.data.start + 4));
    assert_eq!(cpu.data()[4..8], (start.eip + 5).to_le_bytes());
}

#[test]
fn an_endless_loop_times_out() {
    let Some(mut cpu) = runner() else { return };
    let start = start();
    let (end, stop) = cpu.run(&start, &[0xeb, 0xfe]).unwrap(); // JMP to itself
    assert_eq!((stop, end.eip), (Stop::Timeout, start.eip));
    complete(&mut cpu, &start, &[0x90]);
}

#[test]
fn string_instructions_go_both_ways() {
    let Some(mut cpu) = runner() else { return };
    let mut start = start();
    cpu.data_mut()[..8].copy_from_slice(b"ABCDEFGH");
    start.gpr[ESI] = L.data.start;
    start.gpr[EDI] = L.data.start + 0x100;
    start.gpr[ECX] = 8;
    let end = complete(&mut cpu, &start, &[0xf3, 0xa4]); // REP MOVSB
    assert_eq!(&cpu.data()[0x100..0x108], b"ABCDEFGH");
    assert_eq!((end.gpr[ECX], end.gpr[ESI]), (0, L.data.start + 8));

    start.eflags = eflags::DF;
    start.gpr[ESI] = L.data.start + 7;
    start.gpr[EDI] = L.data.start + 0x207;
    let end = complete(&mut cpu, &start, &[0xf3, 0xa4]);
    assert_eq!(&cpu.data()[0x200..0x208], b"ABCDEFGH");
    assert_eq!(end.gpr[EDI], L.data.start + 0x1ff);
    assert_eq!(end.eflags, eflags::DF | eflags::ALWAYS);

    // REP STOSB into the hole stops there, and the registers show how far it came.
    start.eflags = 0;
    start.gpr[EDI] = L.data.end() - 3;
    cpu.read_only_mut().fill(0);
    let (end, stop) = cpu.run(&start, &[0xf3, 0xaa]).unwrap();
    assert_eq!(stop, page_fault(7, L.read_only.start));
    assert_eq!((end.gpr[ECX], end.gpr[EDI], end.eip), (5, L.read_only.start, start.eip));
}

#[test]
fn x87_adds() {
    let Some(mut cpu) = runner() else { return };
    let mut start = start();
    start.fx.set_fsw(6 << 11); // TOP = 6: physical registers 6 and 7 are ST(0) and ST(1)
    start.fx.set_ftw(0xc0);
    start.fx.set_st(0, extended(0x3fff, 1 << 63)); // 1.0
    start.fx.set_st(1, extended(0x4000, 1 << 63)); // 2.0
    let end = complete(&mut cpu, &start, &[0xde, 0xc1]); // FADDP ST(1), ST(0)
    assert_eq!(end.fx.st(0), extended(0x4000, 3 << 62)); // 3.0
    assert_eq!((end.fx.top(), end.fx.ftw()), (7, 0x80));
}

#[test]
fn an_unmasked_x87_exception_waits_for_the_next_instruction() {
    let Some(mut cpu) = runner() else { return };
    let mut start = start();
    start.fx.set_fcw(0x037b); // ZM clear: divide by zero unmasked
    start.fx.set_fsw(6 << 11);
    start.fx.set_ftw(0xc0);
    start.fx.set_st(0, extended(0x3fff, 1 << 63));
    let divided = complete(&mut cpu, &start, &[0xd8, 0xf1]); // FDIV ST(0), ST(1), which is 0
    assert_eq!(divided.fx.fsw() & 0x8084, 0x8084); // B, ES and ZE
    assert_eq!(divided.fx.st(0), start.fx.st(0));

    let mut pending = start.clone();
    pending.fx = divided.fx;
    let (end, stop) = cpu.run(&pending, &[0xd9, 0xe0]).unwrap(); // FCHS
    assert_eq!((stop, end.eip), (exception(MF), start.eip));
    // FNSTSW does not wait.
    let end = complete(&mut cpu, &pending, &[0xdf, 0xe0]);
    assert_eq!(end.gpr[EAX], pending.fx.fsw().into());
}

#[test]
fn sse_multiplies() {
    let Some(mut cpu) = runner() else { return };
    let mut start = start();
    start.fx.set_xmm(0, singles([1.5, -2.0, 0.0, 1e30]));
    start.fx.set_xmm(1, singles([2.0, 3.0, 7.0, 1e30]));
    let mulps = [0x0f, 0x59, 0xc1]; // MULPS XMM0, XMM1
    let end = complete(&mut cpu, &start, &mulps);
    assert_eq!(end.fx.xmm(0), singles([3.0, -6.0, 0.0, f32::INFINITY]));
    assert_eq!(end.fx.mxcsr(), 0x1f80 | 0x28); // OE and PE

    start.fx.set_mxcsr(0x1f80 & !0x400); // overflow unmasked
    let (end, stop) = cpu.run(&start, &mulps).unwrap();
    assert_eq!((stop, end.eip), (exception(XM), start.eip));
    assert_eq!(end.fx.xmm(0), start.fx.xmm(0));
    assert_eq!(end.fx.mxcsr() & 8, 8);
}

#[test]
fn mmx_sets_the_tags() {
    let Some(mut cpu) = runner() else { return };
    let mut start = start();
    start.fx.set_fsw(5 << 11);
    start.fx.set_mm(2, 0x0102_0304_0506_0708);
    let end = complete(&mut cpu, &start, &[0x0f, 0xfc, 0xd2]); // PADDB MM2, MM2
    assert_eq!(end.fx.mm(2), 0x0204_0608_0a0c_0e10);
    assert_eq!((end.fx.top(), end.fx.ftw()), (0, 0xff));
}

#[test]
fn code_may_cross_pages_and_the_end() {
    let Some(mut cpu) = runner() else { return };
    let code = [0xb8, 0x78, 0x56, 0x34, 0x12]; // MOV EAX, 12345678
    for before in 1..5 {
        let start = State::at(L.code.start + PAGE_SIZE - before);
        let end = complete(&mut cpu, &start, &code);
        assert_eq!((end.gpr[EAX], end.eip), (0x12345678, start.eip + 5));

        let start = State::at(L.code.end() - before);
        let (end, stop) = cpu.run(&start, &code).unwrap();
        assert_eq!((stop, end.eip), (page_fault(0x14, L.code.end()), start.eip));
    }
    // The end of an instruction can be the end of the region.
    let start = State::at(L.code.end() - 5);
    assert_eq!(complete(&mut cpu, &start, &code).eip, L.code.end());
}

#[test]
fn code_region_is_filled_again() {
    let Some(mut cpu) = runner() else { return };
    let mut start = start();
    complete(&mut cpu, &start, &[0x0f, 0x1f, 0x84, 0, 0, 0, 0, 0]); // an NOP of 8 bytes
    start.gpr[ESI] = start.eip;
    let end = complete(&mut cpu, &start, &[0x8b, 0x46, 0x03]); // MOV EAX, [ESI + 3]
    assert_eq!(end.gpr[EAX], 0xf4f4_f4f4);
}

#[test]
fn alignment_check_can_be_on() {
    let Some(mut cpu) = runner() else { return };
    let mut start = start();
    start.gpr[EBX] = L.data.start + 1;
    let load = [0x8b, 0x03]; // MOV EAX, [EBX]
    complete(&mut cpu, &start, &load);
    start.eflags = eflags::AC;
    let (end, stop) = cpu.run(&start, &load).unwrap();
    assert_eq!((stop, end.eip), (exception(AC), start.eip));
    assert_eq!(end.eflags, eflags::AC | eflags::ALWAYS);
}

#[test]
fn flags_popped_do_not_reach_the_host() {
    let Some(mut cpu) = runner() else { return };
    let mut start = start();
    start.gpr[ESP] = L.data.start;
    cpu.data_mut()[..4].fill(0xff);
    let end = complete(&mut cpu, &start, &[0x9d]); // POPFD
    let tf = eflags::TF;
    assert_eq!(end.eflags | tf, eflags::SETTABLE | tf | eflags::ALWAYS);
    start.eflags = u32::MAX;
    let end = complete(&mut cpu, &start, &[0x90]);
    assert_eq!(end.eflags, eflags::SETTABLE | eflags::ALWAYS);
}

#[test]
fn segment_registers_are_the_hosts_again() {
    let Some(mut cpu) = runner() else { return };
    let mut start = start();
    for (reg, name) in [(0, "ES"), (2, "SS"), (3, "DS")] {
        let (store, load) = ([0x8c, 0xc0 | reg << 3], [0x8e, 0xc0 | reg << 3]);
        let end = complete(&mut cpu, &start, &store); // MOV EAX, Sreg
        assert_eq!(end.gpr[EAX], DATA_SELECTOR.into(), "{name}");
        start.gpr[EAX] = DATA_SELECTOR.into();
        complete(&mut cpu, &start, &load); // MOV Sreg, EAX
        start.gpr[EAX] = 0;
        let (_, stop) = cpu.run(&start, &load).unwrap();
        // A null selector is an error for SS only.
        assert_eq!(stop, if name == "SS" { exception(GP) } else { Stop::Reached }, "{name}");
    }
    let end = complete(&mut cpu, &start, &[0x8c, 0xc8]); // MOV EAX, CS
    assert_eq!(end.gpr[EAX], CODE_SELECTOR.into());
    for prefix in [0x64, 0x65] {
        let (_, stop) = cpu.run(&start, &[prefix, 0xa0, 0, 0, 0, 0x10]).unwrap(); // MOV AL, FS:[..]
        assert_eq!(stop, exception(GP));
    }
}

#[test]
fn refused_is_an_error_and_not_run() {
    let Some(mut cpu) = runner() else { return };
    assert_eq!(cpu.run(&start(), &[0xcd, 0x80]), Err(Refused::SystemCall));
    assert_eq!(cpu.run(&State::at(0), &[0x90]), Err(Refused::Place(0)));
}

#[test]
fn a_hundred_thousand_runs() {
    let Some(mut cpu) = runner() else { return };
    let mut state = start();
    for n in 0..100_000_u32 {
        let mut end = complete(&mut cpu, &state, &[0x40]); // INC EAX
        assert_eq!(end.gpr[EAX], n + 1);
        end.eip = state.eip;
        state = end;
    }
}

#[test]
fn runners_start_and_end_on_many_threads() {
    std::thread::scope(|scope| {
        for thread in 0..4 {
            scope.spawn(move || {
                for round in 0..50 {
                    let Some(mut cpu) = runner() else { return };
                    assert!(cpu.data().iter().all(|&byte| byte == 0));
                    let mut start = start();
                    start.gpr[ESP] = L.data.end();
                    start.gpr[EAX] = thread << 16 | round;
                    complete(&mut cpu, &start, &[0x50]); // PUSH EAX
                    assert_eq!(*cpu.data().last_chunk().unwrap(), start.gpr[EAX].to_le_bytes());
                }
            });
        }
    });
}

#[test]
fn runs_a_program_until_hlt() {
    let Some(mut cpu) = runner() else { return };
    let mut start = start();
    start.gpr[ECX] = 1000;
    #[rustfmt::skip]
    let sum = [
        0x01, 0xc8,                         // again: ADD EAX, ECX
        0x81, 0xc2, 0x03, 0x00, 0x00, 0x00, // ADD EDX, 3
        0x81, 0xc3, 0x05, 0x00, 0x00, 0x00, // ADD EBX, 5
        0x49,                               // DEC ECX
        0x75, 0xef,                         // JNZ again
    ];
    // SAFETY: the program only adds and jumps to its own start.
    let (end, stop) = unsafe { cpu.run_program(&start, &sum) }.unwrap();
    assert_eq!(stop, Stop::Reached);
    assert_eq!(end.eip, start.eip + sum.len() as u32);
    assert_eq!((end.gpr[EAX], end.gpr[EDX], end.gpr[EBX]), (500_500, 3000, 5000));
    let (_, stop) = cpu.run(&start, &[0x90]).unwrap();
    assert_eq!(stop, Stop::Reached, "the code region is full of HLT again");
}
