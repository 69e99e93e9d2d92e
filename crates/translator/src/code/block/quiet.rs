//! Instructions after which translated code can continue at once when the interpreter has executed them.

use iced_x86::{FlowControl, Instruction, Mnemonic, OpKind, Register};

use super::repeats;
use crate::numeric;

/// Returns whether `instruction` changes only general registers, status flags, CR2, memory and ports of
/// devices, unless it raises an exception.
pub(super) fn is_quiet(instruction: &Instruction) -> bool {
    use Mnemonic as M;
    // Instructions that change DF count as quiet too, although DF is not a status flag: the engine takes it
    // over with the status flags.
    if instruction.flow_control() != FlowControl::Next
        || repeats(instruction)
        || numeric::is_numeric(instruction)
    {
        // Their flow control is not `Next`, since the decoder counts them as instructions that may leave a
        // virtual machine.
        return matches!(instruction.mnemonic(), M::Cpuid | M::Rdtsc);
    }
    if loads_other_register(instruction) {
        return false;
    }
    if instruction.is_privileged() {
        return matches!(
            instruction.mnemonic(),
            M::In
                | M::Out
                | M::Insb
                | M::Insw
                | M::Insd
                | M::Outsb
                | M::Outsw
                | M::Outsd
                | M::Rdmsr
                | M::Rdpmc
                | M::Mov
                | M::Wbinvd
                | M::Invd
        );
    }
    !matches!(
        instruction.mnemonic(),
        M::Popf
            | M::Popfd
            | M::Cli
            | M::Sti
            | M::Lds
            | M::Les
            | M::Lfs
            | M::Lgs
            | M::Lss
            | M::Sysenter
            | M::Sysexit
            | M::Hlt
    )
}

/// Returns whether `instruction` loads a segment register, a control register other than CR2, or a debug
/// register.
fn loads_other_register(instruction: &Instruction) -> bool {
    let loaded = instruction.op0_register();
    instruction.op0_kind() == OpKind::Register
        && match instruction.mnemonic() {
            Mnemonic::Mov => {
                loaded.is_segment_register()
                    || loaded.is_dr()
                    || loaded.is_cr() && loaded != Register::CR2
            }
            Mnemonic::Pop => loaded.is_segment_register(),
            _ => false,
        }
}
