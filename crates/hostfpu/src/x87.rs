//! The implementation for hosts with an x87.

use std::arch::asm;

use crate::{Number, Outcome, Stack};

/// The input and output of the assembly code.
#[repr(C)]
struct Frame {
    /// The image that FNSAVE stores in 32-bit format (SDM vol. 1, figures 8-9 and 8-10): control, status and
    /// tag word, pointers, then the registers from ST(0) on.
    image: [u8; IMAGE_SIZE],
    control: u16,
    host_control: u16,
    operands: [Number; 2],
}

const IMAGE_SIZE: usize = 108;
/// Offset of the status word in the image.
const STATUS: usize = 4;
/// Offset of ST(0) in the image.
const ST: usize = 28;

/// TOP after FNINIT and two pushes.
const TOP_BEFORE: u16 = 6;

impl Frame {
    fn status(&self) -> u16 {
        u16::from_le_bytes([self.image[STATUS], self.image[STATUS + 1]])
    }

    fn st(&self, number: usize) -> Number {
        std::array::from_fn(|byte| self.image[ST + 10 * number + byte])
    }
}

/// Executes one instruction on a [`Frame`].
macro_rules! run {
    ($instruction:literal, $frame:ident) => {
        // SAFETY: all x87 registers are declared as overwritten, so the compiler keeps nothing in them. The
        // control word is restored, and FNINIT leaves the other registers as the ABI requires (x87 mode,
        // empty stack, no pending exception). Between FNINIT and FNSAVE only one instruction can leave an
        // unmasked exception, and FNSAVE does not wait for it. The memory accessed is that of the frame,
        // which has room for the 108 bytes of FNSAVE.
        unsafe {
            asm!(
                "fnstcw word ptr [{frame} + {host_control}]",
                "fninit",
                "fld tbyte ptr [{frame} + {operands} + 10]",
                "fld tbyte ptr [{frame} + {operands}]",
                "fldcw word ptr [{frame} + {control}]",
                $instruction,
                "fnsave [{frame} + {image}]",
                "fldcw word ptr [{frame} + {host_control}]",
                frame = in(reg) &raw mut $frame,
                host_control = const std::mem::offset_of!(Frame, host_control),
                operands = const std::mem::offset_of!(Frame, operands),
                control = const std::mem::offset_of!(Frame, control),
                image = const std::mem::offset_of!(Frame, image),
                out("st(0)") _, out("st(1)") _, out("st(2)") _, out("st(3)") _,
                out("st(4)") _, out("st(5)") _, out("st(6)") _, out("st(7)") _,
                options(nostack),
            );
        }
    };
}

pub(crate) fn execute(opcode: u8, control: u16, operands: [Number; 2]) -> Option<Outcome> {
    let mut frame = Frame { image: [0; IMAGE_SIZE], control, host_control: 0, operands };
    match opcode {
        0xf0 => run!("f2xm1", frame),
        0xf1 => run!("fyl2x", frame),
        0xf2 => run!("fptan", frame),
        0xf3 => run!("fpatan", frame),
        0xf9 => run!("fyl2xp1", frame),
        0xfb => run!("fsincos", frame),
        0xfe => run!("fsin", frame),
        0xff => run!("fcos", frame),
        _ => return None,
    }
    let status = frame.status();
    let stack = match status >> 11 & 7 {
        TOP_BEFORE => Stack::Same(frame.st(0)),
        top if top > TOP_BEFORE => Stack::Popped(frame.st(0)),
        _ => Stack::Pushed([frame.st(0), frame.st(1)]),
    };
    Some(Outcome { status, stack })
}
