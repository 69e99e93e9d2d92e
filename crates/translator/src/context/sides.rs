//! What SYSENTER, SYSEXIT, INT n and IRET need in translated code.

use super::Context;
use crate::routines::sides;

/// What is different for supervisor code and for user code while translated code goes from one to the other.
#[derive(Debug, Clone, Copy, Default)]
#[repr(C)]
pub(crate) struct Side {
    /// [`Context::window`].
    pub(crate) window: u64,
    /// [`Context::table`].
    pub(crate) table: u64,
    /// [`Context::returns`].
    pub(crate) returns: u64,
    /// [`Context::index_mask`].
    pub(crate) index_mask: u32,
    /// The selector of CS that SYSENTER or SYSEXIT loads.
    pub(crate) code: u16,
    /// The selector of SS that they load.
    pub(crate) stack: u16,
    /// The selector of CS that INT n and IRET may load: the one that code there had when it was entered last, as it counts as that of all numeric
    /// instructions.
    pub(crate) known_code: u16,
}

/// Where the host has the tables by which INT n finds its handler.
#[derive(Debug, Clone, Copy, Default)]
#[repr(C)]
pub(crate) struct Tables {
    /// The address of the IDT.
    pub(crate) idt: u64,
    /// The address of ESP0 in the TSS, after which comes SS0; 0 if it is not known.
    pub(crate) inner_stack: u64,
    /// The offset of the last byte of the IDT that is known; 0 if none is.
    pub(crate) idt_limit: u32,
}

/// What INT n or IRET is about to load.
#[derive(Debug, Clone, Copy, Default)]
#[repr(C)]
pub(crate) struct Transfer {
    /// Selectors of CS and SS.
    pub(crate) code: u16,
    pub(crate) stack: u16,
    /// The second byte of EFLAGS, but for OF and DF.
    pub(crate) flags: u8,
    /// RFLAGS with the status flags and DF.
    pub(crate) status: u32,
    /// Not 0 if IRET sets RF.
    pub(crate) resumes: u32,
    /// ESP.
    pub(crate) pointer: u32,
}

/// Values of [`Context::crossed_to`].
pub(crate) mod crossed_to {
    /// The privilege is that with which translated code was entered.
    pub(crate) const NOTHING: u32 = 0;
    /// SYSENTER or INT n was the last instruction to change it.
    pub(crate) const SUPERVISOR: u32 = 1;
    /// SYSEXIT or IRET was.
    pub(crate) const USER: u32 = 2;
}

/// Which instructions that change the privilege, or may do so, can stay in translated code.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct AllowedTransfers {
    /// SYSENTER and SYSEXIT.
    pub(crate) fast_calls: bool,
    /// INT n at privilege 0.
    pub(crate) interrupts_within: bool,
    /// INT n at privilege 3.
    pub(crate) interrupts_inward: bool,
    /// IRET that stays at privilege 0.
    pub(crate) returns_within: bool,
    /// IRET to privilege 3, where it is allowed within, too.
    pub(crate) returns_outward: bool,
}

impl Context {
    /// Has instructions that change the privilege, and their likes, go on in translated code, or else with the interpreter.
    pub(crate) fn allow_transfers(&mut self, allowed: &AllowedTransfers) {
        let or_leave = |is_allowed, routine: *const ()| {
            let routine = if is_allowed { routine } else { sides::leave_to_call as *const () };
            routine as u64
        };
        self.sysenter = or_leave(allowed.fast_calls, sides::sysenter as *const ());
        self.sysexit = or_leave(allowed.fast_calls, sides::sysexit as *const ());
        self.interrupt = [
            or_leave(allowed.interrupts_within, sides::interrupt_within as *const ()),
            or_leave(allowed.interrupts_inward, sides::interrupt_inward as *const ()),
        ];
        self.interrupt_return = [
            or_leave(allowed.returns_within, sides::interrupt_return as *const ()),
            or_leave(allowed.returns_outward, sides::return_outward as *const ()),
        ];
        self.outward_without_ac = [self.sysexit, self.interrupt_return[1]];
        if self.has_ac() {
            [self.sysexit, self.interrupt_return[1]] = [or_leave(false, std::ptr::null()); 2];
        }
    }
}
