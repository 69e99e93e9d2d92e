//! The fields of the context by which translated code goes from virtual-8086 mode to its monitor and back.

use super::{Context, PrivilegeState};
use crate::routines;

/// What is known of virtual-8086 mode, and what its transfers are about to load.
#[derive(Debug, Clone, Copy, Default)]
#[repr(C)]
pub(crate) struct Virtual {
    /// The state of the program's privilege. The jump table is that of its segment of code.
    pub(crate) program: PrivilegeState,
    /// The state of the monitor's privilege, in the mode in which its handlers begin
    /// ([`Mode::MONITOR`](crate::mode::Mode::MONITOR)).
    pub(crate) monitor: PrivilegeState,
    /// The flags that decide on IRET to the program, as they must be popped; 0 if the interpreter executes
    /// IRET.
    pub(crate) flags: u32,
    /// ESP, SS, ES, DS, FS and GS, as IRET has popped them.
    pub(crate) popped: [u32; 6],
    /// The address of the [`FarMode`](super::FarMode) to which IRET leads.
    pub(crate) far_mode: u64,
    /// The addresses of the [`KnownDescriptor`](crate::descriptors::KnownDescriptor)s of the monitor's code
    /// and stack.
    pub(crate) code: u64,
    pub(crate) stack: u64,
}

impl Context {
    /// Lets translated code enter and leave the program in virtual-8086 mode. IRET enters it if it pops
    /// `flags`. `has_interrupts` tells whether INT n, and exceptions of instructions that the program may not
    /// execute, lead to the monitor.
    pub(crate) fn allow_virtual_8086_mode(
        &mut self,
        [program, monitor]: [PrivilegeState; 2],
        flags: u32,
        has_interrupts: bool,
    ) {
        self.virtual_8086 = Virtual { program, monitor, flags, ..self.virtual_8086 };
        if has_interrupts {
            self.interrupt_program = [
                routines::virtual_8086::interrupt_program::<false> as *const () as u64,
                routines::virtual_8086::interrupt_program::<true> as *const () as u64,
            ];
        }
    }

    /// Leaves all transfers from and to virtual-8086 mode to the interpreter.
    pub(crate) fn forbid_virtual_8086_mode(&mut self) {
        self.virtual_8086.flags = 0;
        self.interrupt_program = [routines::ask_interpreter as *const () as u64; 2];
    }
}
