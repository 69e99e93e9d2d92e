//! Blocks that continue after calls. The code after a call is entered anew each time that a function returns:
//! after any number of instructions, with numeric registers that were saved meanwhile, after that code was
//! changed, or not at all.

use ring3_x86::cpu::{Cr0, reg};
use ring3_x86::engine::Exit;

use crate::machine::*;
use crate::pair::Pair;

/// The address of the function that calls itself.
const FUNCTION: u32 = CODE + 0x40;
/// The argument of its first call, with which it is called 109 times in all.
const ARGUMENT: u32 = 9;
/// The Fibonacci number for this argument.
const RESULT: u64 = 34;
/// Address at which the product is stored.
const PRODUCT: u32 = 0x6_0000;

/// FLD1; CALL the function; FSTP QWORD [EDI]; HLT
fn program() -> Vec<u8> {
    let distance = (FUNCTION - (CODE + 7)).to_le_bytes();
    [&[0xd9, 0xe8, 0xe8][..], &distance, &[0xdd, 0x1f, 0xf4]].concat()
}

/// Computes Fibonacci numbers by their definition. Each call doubles ST(0). A call that calls nothing
/// accesses a port, for which translated code may be left.
#[rustfmt::skip]
const FIBONACCI: [u8; 43] = [
    0x56, 0x53, //                      PUSH ESI; PUSH EBX
    0x89, 0xc3, //                      MOV EBX, EAX
    0x83, 0xf8, 1, 0x76, 30, //         CMP EAX, 1; JBE to the OUT
    0x8d, 0x40, 0xff, //                LEA EAX, [EAX-1]
    0xe8, 0xef, 0xff, 0xff, 0xff, //    CALL itself
    0xd8, 0xc0, //                      FADD ST, ST
    0x89, 0xc6, //                      MOV ESI, EAX
    0x8d, 0x43, 0xfe, //                LEA EAX, [EBX-2]
    0xe8, 0xe3, 0xff, 0xff, 0xff, //    CALL itself
    0xd8, 0xc0, //                      FADD ST, ST
    0x8d, 0x1c, 0x06, //                LEA EBX, [ESI+EAX]
    0x90, 0x90, 0x90, //                NOP, three times
    0xeb, 2, //                         JMP over the next one
    0xe6, 0x80, //                      OUT 80h, AL
    0x89, 0xd8, //                      MOV EAX, EBX
];

fn begin(machine: &mut Machine) {
    machine.reset_processor();
    machine.put(CODE, &program());
    // POP EBX; POP ESI; RET
    machine.put(FUNCTION, &[&FIBONACCI[..], &[0x5b, 0x5e, 0xc3]].concat());
    machine.cpu.set_cr0(Cr0::PE | Cr0::NE | Cr0::MP);
    machine.cpu.set_gpr(reg::AX, ARGUMENT.into());
    machine.cpu.set_gpr(reg::DI, PRODUCT.into());
}

#[test]
fn recursive_calls_in_slices_of_any_size() {
    let Some(mut pair) = Pair::new() else { return };
    for slice in [1, 2, 3, 5, 7, 11, 50, 333, 10_000] {
        pair.each(begin);
        pair.enter(CODE, false, &[]);
        while pair.each(|machine| machine.run_for(slice)) != Exit::Halt {
            pair.compare_processors();
        }
        pair.compare();
        assert_eq!(pair.tested.get(reg::AX) as u64, RESULT);
        // 2 to the power of 108.
        assert_eq!(pair.tested.dword(PRODUCT + 4), (1023 + 108) << 20);
    }
}

/// Runs a loop of 6 calls of `function`, which is at `address`. INC EBX follows the call, and EDI holds the
/// address of this INC.
#[track_caller]
fn run_loop(function: &[u8], address: u32) -> Option<Pair> {
    #[rustfmt::skip]
    let code = [
        0xb9, 6, 0, 0, 0, //    MOV ECX, 6
        0x43, //                INC EBX
        0xff, 0xd2, //          CALL EDX
        0x43, //                INC EBX
        0x6b, 0xdb, 3, //       IMUL EBX, EBX, 3
        0x49, 0x75, 0xf6, //    DEC ECX; JNZ to the first INC
        0xf4, //                HLT
    ];
    let mut pair = Pair::new()?;
    pair.each(|machine| {
        machine.put(CODE, &code);
        machine.put(address, function);
    });
    let registers = [(reg::BX, 0), (reg::DX, address), (reg::DI, CODE + 8), (reg::BP, 0)];
    pair.enter(CODE, false, &registers);
    pair.run_to_halt();
    Some(pair)
}

/// Returns the value of EBX after calls that changed it, by turns, by the first and the second number.
fn expected(turns: [i32; 2]) -> u32 {
    (0..6).fold(0, |ebx: i32, round| (ebx + 1 + turns[round % 2]) * 3) as u32
}

#[test]
fn a_function_rewrites_the_code_after_its_call() {
    // XOR BYTE [EDI], 8; RET: changes INC to DEC, and back.
    let function = [0x80, 0x37, 8, 0xc3];
    // The function is in the same page, or in another one.
    for address in [FUNCTION, USER_CODE] {
        let Some(pair) = run_loop(&function, address) else { return };
        assert_eq!(pair.tested.get(reg::BX), expected([-1, 1]));
    }
}

#[test]
fn a_function_returns_elsewhere() {
    // XOR EBP, 1; ADD [ESP], EBP; RET: every second return is to the instruction after the INC.
    let function = [0x83, 0xf5, 1, 0x01, 0x2c, 0x24, 0xc3];
    for address in [FUNCTION, USER_CODE] {
        let Some(pair) = run_loop(&function, address) else { return };
        assert_eq!(pair.tested.get(reg::BX), expected([0, 1]));
    }
}
