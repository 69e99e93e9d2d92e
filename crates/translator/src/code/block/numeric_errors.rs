//! Pending x87 exceptions. Most x87 and MMX instructions raise #MF if an exception of an earlier instruction
//! is pending (SDM vol. 1, 8.7). Mostly there is none, and the host raises a signal where there is one. An
//! instruction that has met such exceptions several times looks for them before it executes, which needs no
//! signal.

use iced_x86::{Code, Instruction, MemoryOperand, Register};

use super::{BlockBuilder, Source, exceptions, transfers};
use crate::code::emitter::Emitter;
use crate::context::{at, info};
use crate::numeric::{self, Checked};

/// Number of the bit of the status word that says that an unmasked exception is pending (SDM vol. 1, 8.1.3).
const SUMMARY: u32 = 7;
/// The opcode of JRCXZ.
pub(super) const JRCXZ: u8 = 0xe3;

impl BlockBuilder<'_> {
    /// Translates an instruction that looks for pending exceptions. Returns false for all other instructions;
    /// the caller then throws away what was written.
    pub(super) fn looks_for_errors(&mut self, instruction: &Instruction, source: &Source) -> bool {
        let linear = self.mode.linear(instruction.ip32());
        let looks = self.mode.segmented.is_none()
            && source.numeric_errors.contains(&linear)
            && !source.for_user.contains(&linear)
            && numeric::is_numeric(instruction)
            && numeric::waits(instruction);
        if !looks {
            return false;
        }
        self.emitter.settle_stack();
        self.begin_site(instruction);
        // The handler's instructions come instead of those that follow.
        self.end_count();
        if self.checked < Checked::X87 {
            self.checked = Checked::X87;
            self.emitter.call(at::NUMERIC_CHECK);
        }
        load_summary(&mut self.emitter);
        let none = self.emitter.loop_if(JRCXZ);
        self.emitter.restore_rcx();
        let number = self.defer(instruction, source);
        let info = info::NUMERIC | info::TRANSFERS | number << info::OP_SHIFT;
        let is_user = self.mode.is_user;
        let error = exceptions::numeric_error(is_user);
        transfers::raise(&mut self.emitter, instruction.ip32(), is_user, &error, info);
        self.emitter.land(none);
        self.emitter.restore_rcx();
        let is_translated = self.body(instruction, false);
        self.begin_count();
        is_translated
    }
}

/// Saves RCX in R10, and loads ECX with 1 if an exception is pending, or else with 0. Changes no flags.
fn load_summary(emitter: &mut Emitter) {
    let status = MemoryOperand::with_base_displ(Register::R14, at::BRANCH_TARGET.into());
    emitter.instruction(Instruction::with1(Code::Fnstsw_m2byte, status));
    emitter.instruction(Instruction::with2(Code::Movzx_r32_rm8, Register::R8D, status));
    emitter.save_rcx();
    emitter.load_number(Register::ECX, SUMMARY);
    let shift = Instruction::with3(
        Code::VEX_Shrx_r32_rm32_r32,
        Register::ECX,
        Register::R8D,
        Register::ECX,
    );
    emitter.instruction(shift);
}
