//! The fields of the context by which translated code executes SYSENTER, SYSEXIT, INT n and IRET.

use super::Context;
use crate::routines::privileges::{self, ANY_DPL, ONLY_DPL_3};

/// The state that differs between supervisor code and user code, for translated code that goes from one to
/// the other.
#[derive(Debug, Clone, Copy, Default)]
#[repr(C)]
pub(crate) struct PrivilegeState {
    /// The value of [`Context::window`].
    pub(crate) window: u64,
    /// The value of [`Context::table`].
    pub(crate) table: u64,
    /// The value of [`Context::returns`].
    pub(crate) returns: u64,
    /// The value of [`Context::index_mask`].
    pub(crate) index_mask: u32,
    /// The selector of CS that SYSENTER or SYSEXIT loads.
    pub(crate) code: u16,
    /// The selector of SS that SYSENTER or SYSEXIT loads.
    pub(crate) stack: u16,
    /// The selector of CS that INT n and IRET may load: the one with which code of this privilege was last
    /// entered, since that counts as the selector of all its numeric instructions.
    pub(crate) known_code: u16,
}

/// The descriptor in the GDT from which LDTR or TR was loaded.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub(crate) struct Loaded {
    /// The host address of the descriptor.
    pub(crate) host: u64,
    /// The value with which the descriptor was loaded. While it has this value, loading the register once
    /// more has the same result.
    pub(crate) descriptor: u64,
    /// The selector, or a number that is none.
    pub(crate) selector: u32,
}

impl Default for Loaded {
    fn default() -> Loaded {
        Loaded { host: 0, descriptor: 0, selector: u32::MAX }
    }
}

/// Host addresses of the tables by which INT n finds its handler, and of the descriptors in LDTR and TR.
#[derive(Debug, Clone, Copy, Default)]
#[repr(C)]
pub(crate) struct Tables {
    /// The address of the IDT.
    pub(crate) idt: u64,
    /// The address of ESP0 in the TSS, which SS0 follows; 0 if it is not known.
    pub(crate) inner_stack: u64,
    /// The offset of the last byte of the IDT that is known; 0 if none is.
    pub(crate) idt_limit: u32,
    /// The descriptor of the LDT.
    pub(crate) local: Loaded,
    /// The descriptor of the TSS, as LTR finds it: not busy. It is known only while translated code may write
    /// to it.
    pub(crate) task: Loaded,
}

/// The values that INT n or IRET is about to load.
#[derive(Debug, Clone, Copy, Default)]
#[repr(C)]
pub(crate) struct Transfer {
    /// The selectors of CS and SS.
    pub(crate) code: u16,
    pub(crate) stack: u16,
    /// The second byte of EFLAGS, without OF and DF.
    pub(crate) flags: u8,
    /// RFLAGS with the status flags and DF.
    pub(crate) status: u32,
    /// RF or TF if IRET sets one of them. They concern the next instruction.
    pub(crate) of_next: u32,
    /// ESP.
    pub(crate) pointer: u32,
}

/// Values of [`Context::crossed_to`]: the last change of privilege in translated code.
pub(crate) mod crossed_to {
    /// None: the privilege is the one with which translated code was entered.
    pub(crate) const NOTHING: u32 = 0;
    /// SYSENTER or INT n was the last instruction that changed the privilege.
    pub(crate) const SUPERVISOR: u32 = 1;
    /// SYSEXIT or IRET was the last instruction that changed the privilege.
    pub(crate) const USER: u32 = 2;
    /// An interrupt or exception of virtual-8086 mode was the last one.
    pub(crate) const MONITOR: u32 = 3;
    /// IRET to virtual-8086 mode was the last one.
    pub(crate) const PROGRAM: u32 = 4;
}

/// Which of the instructions that change the privilege, or may do so, can stay in translated code.
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
    /// IRET to privilege 3. It also needs `returns_within`.
    pub(crate) returns_outward: bool,
}

impl Context {
    /// Forgets the descriptor of the TSS, since writing to its memory may need more than a store now.
    pub(crate) fn forget_task(&mut self) {
        self.tables.task = Loaded::default();
    }

    /// Sets the addresses at which instructions that may change the privilege go on: routines for those that
    /// are `allowed`, and the interpreter for the others.
    pub(crate) fn allow_transfers(&mut self, allowed: &AllowedTransfers) {
        let or_leave = |is_allowed, routine: *const ()| {
            let routine = if is_allowed { routine } else { privileges::leave_to_call as *const () };
            routine as u64
        };
        self.sysenter = or_leave(allowed.fast_calls, privileges::sysenter as *const ());
        self.sysexit = or_leave(allowed.fast_calls, privileges::sysexit as *const ());
        self.interrupt = [
            or_leave(allowed.interrupts_within, privileges::interrupt_within as *const ()),
            or_leave(
                allowed.interrupts_inward,
                privileges::interrupt_inward::<ONLY_DPL_3> as *const (),
            ),
        ];
        self.exception = [
            or_leave(allowed.interrupts_within, privileges::interrupt_within as *const ()),
            or_leave(
                allowed.interrupts_inward,
                privileges::interrupt_inward::<ANY_DPL> as *const (),
            ),
        ];
        self.interrupt_return = [
            or_leave(allowed.returns_within, privileges::interrupt_return as *const ()),
            or_leave(allowed.returns_outward, privileges::return_outward as *const ()),
        ];
        self.outward_without_ac = [self.sysexit, self.interrupt_return[1]];
        if self.has_ac() {
            [self.sysexit, self.interrupt_return[1]] = [or_leave(false, std::ptr::null()); 2];
        }
    }
}
