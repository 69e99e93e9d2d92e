//! Exceptions for which translated code enters the handler as INT n does: those that an instruction of flat code
//! raises whenever it is executed, #MF ([`numeric_errors`](super::numeric_errors)), and #GP of accesses to
//! ports.

use iced_x86::{Instruction, Mnemonic, Register};
use ring3_x86::exception::{Fault, vector};

use crate::context::at;

/// An exception, and the field of the context with the routine that begins to deliver it.
pub(super) struct Raised {
    pub(super) fault: Fault,
    pub(super) routine: u32,
}

/// Returns #MF in code of users or of the supervisor.
pub(super) fn numeric_error(is_user: bool) -> Raised {
    Raised { fault: Fault::new(vector::MF), routine: at::NUMERIC_ERROR[usize::from(is_user)] }
}

/// Returns the exception of user code that accesses a port which it may not use.
pub(super) fn refused_port() -> Raised {
    Raised { fault: Fault::with_code(vector::GP, 0), routine: at::EXCEPTION[1] }
}

/// Returns the exception that `instruction`, which exists, raises whenever code of users or of the supervisor
/// executes it. For CLI and STI the routine finds out whether they raise it.
pub(super) fn raised(instruction: &Instruction, is_user: bool) -> Option<Raised> {
    use Mnemonic as M;
    let always = |fault| Some(Raised { fault, routine: at::EXCEPTION[usize::from(is_user)] });
    let forbidden = Fault::with_code(vector::GP, 0);
    match instruction.mnemonic() {
        M::Ud2 => always(Fault::new(vector::UD)),
        _ if !is_user => None,
        M::Cli | M::Sti => Some(Raised { fault: forbidden, routine: at::INTERRUPT_FLAG_ERROR }),
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
        | M::Sysexit => always(forbidden),
        M::Mov if moves_system_register(instruction) => always(forbidden),
        _ => None,
    }
}

/// Returns whether `instruction`, a MOV, reads or loads a control register or a debug register.
fn moves_system_register(instruction: &Instruction) -> bool {
    let is_one = |register: Register| register.is_cr() || register.is_dr();
    is_one(instruction.op0_register()) || is_one(instruction.op1_register())
}
