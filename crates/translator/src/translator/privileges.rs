//! The two privileges, that of user code and that of the supervisor, and the transfers between them. Most
//! system calls begin and end with SYSENTER and SYSEXIT, or INT n and IRET. Translated code goes from one
//! privilege to the other by itself, with the state of the other privilege in the context. The processor's
//! state is updated when translated code is left.

use ring3_x86::cpu::Cpu;
use ring3_x86::segment::{Segment, Selector, sreg};

use super::Translator;
use crate::context::{AllowedTransfers, PrivilegeState, crossed_to};
use crate::mode;

/// Returns whether the selector of `segment` tells if IRET to privilege 3 keeps it: it does if the selector
/// is 0 or has RPL 3. In protected mode this holds for all segments, unless one was loaded in real mode.
fn is_told_by_selector(segment: &Segment) -> bool {
    match Selector(segment.selector) {
        Selector(0) => *segment == Segment::null(0),
        selector if selector.rpl() == 3 => {
            segment.attributes.dpl() == 3 || segment.attributes.is_conforming()
        }
        _ => true,
    }
}

impl Translator {
    /// Lets SYSENTER, SYSEXIT, INT n and IRET stay in translated code, if everything that the engine checks
    /// before it enters code of the other privilege would be in order. Otherwise the interpreter executes
    /// them, as it does in compatibility mode, where they lead to 64-bit code.
    pub(super) fn allow_transfers(&mut self, cpu: &Cpu) {
        let is_flat = mode::is_flat(self.modes.current().0) && !cpu.is_in_long_mode();
        let is_ready = is_flat && self.spaces.is_ready_for_user();
        self.context.awaited = self.page_fault_awaited(cpu).map_or(u64::MAX, u64::from);
        // The interpreter tells of system calls.
        let is_untold = !cpu.tells_system_calls();
        let fast_calls = is_ready
            && is_untold
            && cpu.has_fast_calls()
            && !cpu.interrupt_pin
            && [false, true].into_iter().all(|is_user| {
                self.numeric.code_selector(is_user) == cpu.fast_call_selectors(is_user).0
            });
        for is_user in [false, true] {
            let state = &mut self.context.privileges[usize::from(is_user)];
            state.known_code = self.numeric.code_selector(is_user);
            if is_ready {
                let space = self.spaces.current(is_user);
                (state.table, state.index_mask) = space.enter(mode::flat(is_user));
                state.window = space.window().base();
            }
            if fast_calls {
                (state.code, state.stack) = cpu.fast_call_selectors(is_user);
            }
        }
        if fast_calls {
            self.context.fast_call_entry = cpu.msrs.sysenter_eip as u32;
            self.context.fast_call_stack = cpu.msrs.sysenter_esp as u32;
        }
        let data = [sreg::ES, sreg::DS, sreg::FS, sreg::GS];
        let returns_within = is_flat && !cpu.nmi_is_blocked();
        self.context.allow_transfers(&AllowedTransfers {
            fast_calls,
            interrupts_within: is_flat,
            interrupts_inward: is_ready && is_untold,
            returns_within,
            returns_outward: returns_within
                && is_ready
                && is_untold
                && data.into_iter().all(|register| is_told_by_selector(cpu.segment(register))),
        });
    }

    /// Copies the stacks of returns of both privileges to the context.
    pub(super) fn load_returns(&mut self, cpu: &Cpu) {
        let is_user = cpu.is_user();
        self.context.returns = self.spaces.current(is_user).returns().lend();
        if self.spaces.is_ready_for_user() {
            let top = self.spaces.current(!is_user).returns().top();
            self.context.privileges[usize::from(!is_user)].returns = top;
        }
    }

    /// Returns whether translated code has loaded no code segment other than the one that the processor has.
    pub(super) fn has_stayed(&self) -> bool {
        let context = &self.context;
        context.crossed_to == crossed_to::NOTHING
            && context.transferred == [false; 2]
            && context.has_gone_far == 0
    }

    /// Takes over the stacks of returns after translated code was left, perhaps at another privilege than it
    /// was entered at, and moves the processor to that privilege.
    pub(super) fn come_back(&mut self, cpu: &mut Cpu) {
        self.store_alignment_flag(cpu);
        if self.context.crossed_to != crossed_to::NOTHING {
            // Code of users has run, wherever translated code was entered and left.
            cpu.note_users();
        }
        let is_user = match std::mem::take(&mut self.context.crossed_to) {
            crossed_to::NOTHING => {
                self.descriptors.store_transferred(cpu, &mut self.context);
                let returns = self.spaces.current(cpu.is_user()).returns();
                returns.set_top(self.context.returns);
                return self.take_far_transfers(cpu);
            }
            crossed_to::MONITOR => return self.come_back_from_program_or_monitor(cpu, false),
            crossed_to::PROGRAM => return self.come_back_from_program_or_monitor(cpu, true),
            privilege => privilege == crossed_to::USER,
        };
        let [_, has_loaded_stack] = self.context.transferred;
        // The general registers and IF are taken from the context later.
        match is_user {
            _ if has_loaded_stack => {}
            false => cpu.sysenter(),
            true => cpu.sysexit(),
        }
        self.descriptors.store_transferred(cpu, &mut self.context);
        self.enter_mode(cpu);
        let context = &mut self.context;
        self.spaces.current(is_user).returns().set_top(context.returns);
        let other = context.privileges[usize::from(!is_user)];
        self.spaces.current(!is_user).returns().set_top(other.returns);
        let PrivilegeState { window, table, index_mask, .. } =
            context.privileges[usize::from(is_user)];
        (context.window, context.table, context.index_mask) = (window, table, index_mask);
    }
}
