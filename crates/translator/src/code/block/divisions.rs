//! Divisions by zero. Mostly the host executes DIV and IDIV, and raises a signal where the guest's processor
//! raises #DE. A division that has done so again and again is barred. Then translated code looks for a divisor
//! of zero, for which it delivers #DE without a signal and without the interpreter; the interpreter executes
//! the division by any other divisor, which may raise #DE, too.

use iced_x86::{Code, Instruction, Mnemonic, OpKind, Register};
use ring3_x86::exception::vector;

use super::exceptions::{ErrorCode, Raised};
use super::numeric_errors::JRCXZ;
use super::transfers;
use crate::code::copy::rename;
use crate::code::emitter::Emitter;
use crate::context::{at, info};

/// Returns whether this file translates `instruction` once it is barred: a division by a register. A divisor
/// in memory may belong to a device, which only the interpreter can read.
pub(super) fn is_translated(instruction: &Instruction) -> bool {
    matches!(instruction.mnemonic(), Mnemonic::Div | Mnemonic::Idiv)
        && instruction.op0_kind() == OpKind::Register
}

/// Translates `instruction`, in flat code of users or of the supervisor. `info` describes it for the
/// interpreter.
pub(super) fn translate(
    emitter: &mut Emitter,
    instruction: &Instruction,
    is_user: bool,
    info: u32,
) {
    let eip = instruction.ip32();
    let divisor = rename(instruction.op0_register());
    let load = match divisor.size() {
        1 => Code::Movzx_r32_rm8,
        2 => Code::Movzx_r32_rm16,
        _ => Code::Mov_r32_rm32,
    };
    // The flags must stay as they are: #DE pushes them.
    emitter.save_rcx();
    emitter.instruction(Instruction::with2(load, Register::ECX, divisor));
    let is_zero = emitter.loop_if(JRCXZ);
    emitter.restore_rcx();
    emitter.leave(at::LEAVE_TO_CALL, eip, info);
    emitter.land(is_zero);
    emitter.restore_rcx();
    let error = Raised::new(vector::DE, ErrorCode::Absent, is_user);
    transfers::raise(emitter, eip, is_user, &error, info | info::TRANSFERS);
}
