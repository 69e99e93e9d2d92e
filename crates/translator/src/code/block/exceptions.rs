//! Exceptions for which translated code enters the handler as INT n does: those that an instruction of flat code
//! raises whenever it is executed, #MF ([`numeric_errors`](super::numeric_errors)), #GP of accesses to ports,
//! and #PF, or #GP of loads of segment registers, of instructions that raise it again and again.

use iced_x86::{Instruction, Mnemonic, Register};
use ring3_x86::exception::vector;

use crate::context::at;

/// An exception, and the field of the context with the routine that begins to deliver it.
pub(super) struct Raised {
    pub(super) vector: u8,
    pub(super) error_code: ErrorCode,
    pub(super) routine: u32,
}

/// What is pushed as the error code.
#[derive(Debug, Clone, Copy)]
pub(super) enum ErrorCode {
    /// The exception has none.
    Absent,
    /// The number 0.
    Zero,
    /// The number that the engine has left in the context.
    Found,
}

impl Raised {
    /// An exception for which the routine need not check anything of its own, in code of users or of the
    /// supervisor.
    pub(super) fn new(vector: u8, error_code: ErrorCode, is_user: bool) -> Raised {
        Raised { vector, error_code, routine: at::EXCEPTION[usize::from(is_user)] }
    }
}

/// Returns #MF in code of users or of the supervisor.
pub(super) fn numeric_error(is_user: bool) -> Raised {
    let routine = at::NUMERIC_ERROR[usize::from(is_user)];
    Raised { routine, ..Raised::new(vector::MF, ErrorCode::Absent, is_user) }
}

/// Returns the exception of user code that accesses a port which it may not use.
pub(super) fn refused_port() -> Raised {
    Raised::new(vector::GP, ErrorCode::Zero, true)
}

/// Returns #GP in code of users or of the supervisor that loads a segment register.
pub(super) fn refused_load(is_user: bool) -> Raised {
    Raised::new(vector::GP, ErrorCode::Found, is_user)
}

/// Returns #PF in code of users or of the supervisor.
pub(super) fn page_fault(is_user: bool) -> Raised {
    Raised::new(vector::PF, ErrorCode::Found, is_user)
}

/// Returns the exception that `instruction`, which exists, raises whenever code of users or of the supervisor
/// executes it. For CLI and STI the routine finds out whether they raise it.
pub(super) fn raised(instruction: &Instruction, is_user: bool) -> Option<Raised> {
    use Mnemonic as M;
    let forbidden = || Raised::new(vector::GP, ErrorCode::Zero, is_user);
    match instruction.mnemonic() {
        M::Ud2 => Some(Raised::new(vector::UD, ErrorCode::Absent, is_user)),
        _ if !is_user => None,
        M::Cli | M::Sti => Some(Raised { routine: at::INTERRUPT_FLAG_ERROR, ..forbidden() }),
        M::Hlt
        | M::Clts
        | M::Lmsw
        | M::Invlpg
        | M::Invd
        | M::Wbinvd
        | M::Rdmsr
        | M::Wrmsr
        | M::Lgdt
        | M::Lidt
        | M::Lldt
        | M::Ltr
        | M::Sysexit => Some(forbidden()),
        M::Mov if moves_system_register(instruction) => Some(forbidden()),
        _ => None,
    }
}

/// Returns whether `instruction`, a MOV, reads or loads a control register or a debug register.
fn moves_system_register(instruction: &Instruction) -> bool {
    let is_one = |register: Register| register.is_cr() || register.is_dr();
    is_one(instruction.op0_register()) || is_one(instruction.op1_register())
}
