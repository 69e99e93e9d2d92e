//! The state of the processor before and after an instruction.

use crate::FxImage;

/// Indices into [`State::gpr`]: the register numbers of the encoding (SDM vol. 2A, table 2-2).
pub mod gpr {
    /// EAX.
    pub const EAX: usize = 0;
    /// ECX.
    pub const ECX: usize = 1;
    /// EDX.
    pub const EDX: usize = 2;
    /// EBX.
    pub const EBX: usize = 3;
    /// ESP.
    pub const ESP: usize = 4;
    /// EBP.
    pub const EBP: usize = 5;
    /// ESI.
    pub const ESI: usize = 6;
    /// EDI.
    pub const EDI: usize = 7;
}

/// The bits of EFLAGS (SDM vol. 1, 3.4.3).
pub mod eflags {
    /// Carry.
    pub const CF: u32 = 1 << 0;
    /// Always one.
    pub const RESERVED_ONE: u32 = 1 << 1;
    /// Parity.
    pub const PF: u32 = 1 << 2;
    /// Auxiliary carry.
    pub const AF: u32 = 1 << 4;
    /// Zero.
    pub const ZF: u32 = 1 << 6;
    /// Sign.
    pub const SF: u32 = 1 << 7;
    /// Trap.
    pub const TF: u32 = 1 << 8;
    /// Interrupt enable.
    pub const IF: u32 = 1 << 9;
    /// Direction.
    pub const DF: u32 = 1 << 10;
    /// Overflow.
    pub const OF: u32 = 1 << 11;
    /// Nested task.
    pub const NT: u32 = 1 << 14;
    /// Resume.
    pub const RF: u32 = 1 << 16;
    /// Alignment check.
    pub const AC: u32 = 1 << 18;
    /// CPUID available.
    pub const ID: u32 = 1 << 21;

    /// CF, PF, AF, ZF, SF and OF.
    pub const STATUS: u32 = CF | PF | AF | ZF | SF | OF;

    /// The flags that a start state can set; its other bits are ignored. TF would stop every run with #DB,
    /// and the rest cannot be changed at CPL 3.
    pub const SETTABLE: u32 = STATUS | DF | NT | AC | ID;

    /// The flags that are set in every state. At CPL 3 the host runs with interrupts on.
    pub const ALWAYS: u32 = RESERVED_ONE | IF;
}

/// The registers that an instruction can see and change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct State {
    /// The general-purpose registers; the indices are in [`gpr`].
    pub gpr: [u32; 8],
    /// The linear address of the instruction (CS has base 0).
    pub eip: u32,
    /// EFLAGS. In a start state only [`eflags::SETTABLE`] counts; in an end state RF is
    /// cleared, as faults set it in the image the processor saves (SDM vol. 3B, 19.3.1.1).
    pub eflags: u32,
    /// x87, MMX and SSE state.
    pub fx: FxImage,
    /// The upper halves of the YMM registers. They are 0 on a processor without AVX.
    pub upper: [u128; 16],
}

impl State {
    /// Makes a state at address `eip` with all registers zero, all flags clear, and floating point as after
    /// FNINIT.
    pub fn at(eip: u32) -> Self {
        Self { gpr: [0; 8], eip, eflags: eflags::ALWAYS, fx: FxImage::INIT, upper: [0; 16] }
    }
}

/// How a run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// The instruction is complete. The state is the one between it and the next instruction, which would
    /// have been fetched from `state.eip`.
    ///
    /// At that address is HLT, or code that cannot be executed, since a branch may lead out of the code
    /// region.
    Reached,
    /// The instruction raised an exception; `state.eip` is the address the processor saved:
    /// that of the instruction for a fault, that of the next one for a trap (#BP, #OF).
    Exception {
        /// The vector (SDM vol. 3A, table 7-1).
        vector: u8,
        /// The error code; 0 for vectors without one.
        error_code: u32,
        /// CR2: the faulting linear address if the vector is 14 (#PF), else 0.
        cr2: u32,
    },
    /// The instruction took too long: a branch to itself, or a very long LOOP or REP. The state is that of
    /// some moment on the way.
    Timeout,
}

/// The registers that an instruction of 64-bit code can see and change, except the bases of FS and GS.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LongState {
    /// The general-purpose registers by their number.
    pub gpr: [u64; 16],
    /// The linear address of the instruction.
    pub rip: u64,
    /// The lower half of RFLAGS, as in [`State`].
    pub rflags: u32,
    /// x87, MMX and SSE state.
    pub fx: FxImage,
    /// The upper halves of the YMM registers, as in [`State`].
    pub upper: [u128; 16],
}

impl LongState {
    /// Makes a state at address `rip`, like [`State::at`].
    pub fn at(rip: u64) -> Self {
        Self { gpr: [0; 16], rip, rflags: eflags::ALWAYS, fx: FxImage::INIT, upper: [0; 16] }
    }
}

impl From<&State> for LongState {
    fn from(state: &State) -> Self {
        let mut gpr = [0; 16];
        for (long, register) in gpr.iter_mut().zip(state.gpr) {
            *long = register.into();
        }
        Self {
            gpr,
            rip: state.eip.into(),
            rflags: state.eflags,
            fx: state.fx.clone(),
            upper: state.upper,
        }
    }
}

impl From<LongState> for State {
    /// Takes what 32-bit code can see.
    fn from(state: LongState) -> Self {
        let gpr = std::array::from_fn(|number| state.gpr[number] as u32);
        Self { gpr, eip: state.rip as u32, eflags: state.rflags, fx: state.fx, upper: state.upper }
    }
}

/// How a run of 64-bit code ended, like [`Stop`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LongStop {
    /// The instruction is complete.
    Reached,
    /// The instruction raised an exception.
    Exception {
        /// The vector (SDM vol. 3A, table 7-1).
        vector: u8,
        /// The error code; 0 for vectors without one.
        error_code: u32,
        /// CR2: the faulting linear address if the vector is 14 (#PF), else 0.
        cr2: u64,
    },
    /// The instruction took too long.
    Timeout,
}

impl From<LongStop> for Stop {
    fn from(stop: LongStop) -> Self {
        match stop {
            LongStop::Reached => Stop::Reached,
            LongStop::Exception { vector, error_code, cr2 } => {
                Stop::Exception { vector, error_code, cr2: cr2 as u32 }
            }
            LongStop::Timeout => Stop::Timeout,
        }
    }
}

impl From<Stop> for LongStop {
    fn from(stop: Stop) -> Self {
        match stop {
            Stop::Reached => LongStop::Reached,
            Stop::Exception { vector, error_code, cr2 } => {
                LongStop::Exception { vector, error_code, cr2: cr2.into() }
            }
            Stop::Timeout => LongStop::Timeout,
        }
    }
}

/// Why instructions cannot be run here. Tests then skip themselves.
#[derive(Debug, thiserror::Error)]
pub enum Unavailable {
    /// The host is not x86-64 Linux.
    #[error("needs Linux on x86-64")]
    NotX86Linux,
    /// The kernel was built or started without support for 32-bit programs.
    #[error("the kernel has no 32-bit code segment (selector 0x23)")]
    NoCodeSegment,
    /// A system call failed.
    #[error("cannot {what}: {error}")]
    System {
        /// The action that failed.
        what: &'static str,
        /// The kernel's error.
        error: std::io::Error,
    },
    /// A trial run of a NOP did not end as a NOP should: the kernel's signal frames are not those of Linux.
    #[error("a NOP on trial ended in {stop:?} at {eip:#x}")]
    Trial {
        /// How the trial ended.
        stop: Stop,
        /// Where the trial ended.
        eip: u32,
    },
}
