//! Exceptions (SDM vol. 3, chapter 7) and the other reasons why an instruction does not complete.

use serde::{Deserialize, Serialize};

use crate::engine::Exit;

/// Exception vectors (SDM vol. 3, table 7-1).
pub mod vector {
    /// Divide error.
    pub const DE: u8 = 0;
    /// Debug.
    pub const DB: u8 = 1;
    /// Nonmaskable interrupt.
    pub const NMI: u8 = 2;
    /// Breakpoint.
    pub const BP: u8 = 3;
    /// Overflow.
    pub const OF: u8 = 4;
    /// BOUND range exceeded.
    pub const BR: u8 = 5;
    /// Invalid opcode.
    pub const UD: u8 = 6;
    /// Device (x87 FPU) not available.
    pub const NM: u8 = 7;
    /// Double fault.
    pub const DF: u8 = 8;
    /// Invalid TSS.
    pub const TS: u8 = 10;
    /// Segment not present.
    pub const NP: u8 = 11;
    /// Stack-segment fault.
    pub const SS: u8 = 12;
    /// General protection.
    pub const GP: u8 = 13;
    /// Page fault.
    pub const PF: u8 = 14;
    /// x87 FPU floating-point error.
    pub const MF: u8 = 16;
    /// Alignment check.
    pub const AC: u8 = 17;
    /// SIMD floating-point exception.
    pub const XM: u8 = 19;
}

/// An exception that an instruction raises. It is a fault, so the saved instruction pointer is that of the
/// instruction itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fault {
    /// The vector, 0 to 31.
    pub vector: u8,
    /// The error code, for the vectors that have one.
    pub error_code: Option<u32>,
}

impl Fault {
    /// Makes an exception without an error code.
    pub const fn new(vector: u8) -> Fault {
        Fault { vector, error_code: None }
    }

    /// Makes an exception with an error code.
    pub const fn with_code(vector: u8, error_code: u32) -> Fault {
        Fault { vector, error_code: Some(error_code) }
    }

    /// Returns the class that decides whether exceptions combine into a double fault (SDM vol. 3, table 7-4).
    pub const fn class(self) -> FaultClass {
        match self.vector {
            vector::DE | vector::TS | vector::NP | vector::SS | vector::GP => {
                FaultClass::Contributory
            }
            vector::PF => FaultClass::PageFault,
            vector::DF => FaultClass::DoubleFault,
            _ => FaultClass::Benign,
        }
    }
}

/// Classes of exceptions (SDM vol. 3, table 7-4).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FaultClass {
    /// Benign exceptions are handled one after the other.
    Benign,
    /// A second contributory exception makes a double fault.
    Contributory,
    /// A page fault.
    PageFault,
    /// The double fault itself: any further exception causes a shutdown.
    DoubleFault,
}

impl FaultClass {
    /// Returns whether an exception of class `second`, raised while one of this class is delivered, makes a
    /// double fault (SDM vol. 3, table 7-5).
    pub const fn doubles_with(self, second: FaultClass) -> bool {
        match self {
            FaultClass::Benign | FaultClass::DoubleFault => false,
            FaultClass::Contributory => matches!(second, FaultClass::Contributory),
            FaultClass::PageFault => {
                matches!(second, FaultClass::Contributory | FaultClass::PageFault)
            }
        }
    }
}

/// The instruction did not complete; [`Cpu::stop`](crate::cpu::Cpu::stop) says why. This type is empty so
/// that results travel in registers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stopped;

/// Why an instruction stopped.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Stop {
    /// It raised an exception.
    Fault(Fault),
    /// A task switch has taken place, and the new task raises an exception at once: the switch is not undone,
    /// and EIP is the new task's.
    TaskFault(Fault),
    /// The machine must act first; the instruction then starts again.
    Restart(Exit),
    /// It has completed, and the engine must return.
    Completed(Exit),
    /// The engine must return, and an interrupt must come before the instruction starts again.
    Waits(Exit),
    /// It is about to write to memory that holds decoded code. The engine runs it again alone, so that
    /// nothing stale is executed after it.
    WritesCode,
    /// It has a breakpoint of the debugger, or had one when it was decoded, and has not begun.
    Breakpoint,
    /// It is a repeated string instruction that has done some iterations and will be continued, so that
    /// interrupts and deadlines are noticed in between.
    Unfinished,
}
