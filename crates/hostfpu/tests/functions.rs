//! Tests the results that every x87 must deliver, and that the host's own floating-point state stays
//! unchanged.

#![cfg(any(target_arch = "x86", target_arch = "x86_64"))]

use ring3_hostfpu::{Number, Stack, execute};

const ZERO: Number = [0; 10];
const ONE: Number = [0, 0, 0, 0, 0, 0, 0, 0x80, 0xff, 0x3f];
const SNAN: Number = [1, 0, 0, 0, 0, 0, 0, 0x80, 0xff, 0x7f];
const INDEFINITE: Number = [0, 0, 0, 0, 0, 0, 0, 0xc0, 0xff, 0xff];
/// Rounding to nearest, all 64 bits, all exceptions masked.
const CONTROL: u16 = 0x037f;
const IE: u16 = 1;
const ES: u16 = 0x80;

fn stack(opcode: u8, operands: [Number; 2]) -> Stack {
    execute(opcode, CONTROL, operands).unwrap().stack
}

#[test]
fn exact_results() {
    assert_eq!(stack(0xf0, [ONE, ZERO]), Stack::Same(ONE));
    assert_eq!(stack(0xf1, [ONE, ONE]), Stack::Popped(ZERO));
    assert_eq!(stack(0xf2, [ZERO, ONE]), Stack::Pushed([ONE, ZERO]));
    assert_eq!(stack(0xf3, [ONE, ZERO]), Stack::Popped(ZERO));
    assert_eq!(stack(0xf9, [ZERO, ONE]), Stack::Popped(ZERO));
    assert_eq!(stack(0xfb, [ZERO, ONE]), Stack::Pushed([ONE, ZERO]));
    assert_eq!(stack(0xfe, [ZERO, ONE]), Stack::Same(ZERO));
    assert_eq!(stack(0xff, [ZERO, ONE]), Stack::Same(ONE));
}

#[test]
fn unmasked_exceptions_are_only_reported() {
    // Logarithm of a signaling NaN with the exception masked, then unmasked.
    let masked = execute(0xf1, CONTROL, [SNAN, INDEFINITE]).unwrap();
    assert_eq!((masked.status & (IE | ES), masked.stack), (IE, Stack::Popped(INDEFINITE)));
    let unmasked = execute(0xf1, CONTROL & !IE, [SNAN, ONE]).unwrap();
    assert_eq!((unmasked.status & (IE | ES), unmasked.stack), (IE | ES, Stack::Same(SNAN)));
    // No exception stays pending on the host.
    assert_eq!(execute(0xfe, CONTROL, [ZERO, ONE]).unwrap().status & (IE | ES), 0);
}

#[test]
fn other_instructions_are_refused() {
    assert_eq!(execute(0xfa, CONTROL, [ONE, ONE]), None);
    assert_eq!(execute(0xe8, CONTROL, [ONE, ONE]), None);
}
