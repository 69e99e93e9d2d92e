//! SYSENTER and SYSEXIT: most calls of a system begin and end with them. Translated code goes from one side to the other by
//! itself, with what it needs there in the context, and the processor learns of it when translated code is left.

use ring3_x86::cpu::{Cpu, Cr0};
use ring3_x86::flags::Eflags;

use super::Translator;
use crate::context::{Side, crossed_to};
use crate::mode;

impl Translator {
    /// Lets SYSENTER and SYSEXIT stay in translated code, if all that is looked at before code of the other side is entered would be as
    /// it should. Else the interpreter executes them.
    pub(super) fn allow_fast_calls(&mut self, cpu: &Cpu) {
        let is_allowed = mode::is_flat(self.modes.current().0)
            && cpu.has_fast_calls()
            && !cpu.interrupt_pin
            && !(cpu.cr0().contains(Cr0::AM) && cpu.eflags().contains(Eflags::AC))
            && self.page_fault.is_none()
            && self.spaces.is_ready_for_user()
            && [false, true].into_iter().all(|is_user| {
                self.numeric.code_selector(is_user) == cpu.fast_call_selectors(is_user).0
            });
        if is_allowed {
            for is_user in [false, true] {
                let space = self.spaces.current(is_user);
                let (table, index_mask) = space.enter(mode::flat(is_user));
                let (code, stack) = cpu.fast_call_selectors(is_user);
                let side = &mut self.context.sides[usize::from(is_user)];
                (side.window, side.table, side.index_mask) =
                    (space.window().base(), table, index_mask);
                (side.code, side.stack) = (code, stack);
            }
            self.context.fast_call_entry = cpu.msrs.sysenter_eip;
            self.context.fast_call_stack = cpu.msrs.sysenter_esp;
        }
        self.context.allow_fast_calls(is_allowed);
    }

    /// Gives where calls return to, of the code that runs and of the other side, to translated code.
    pub(super) fn load_returns(&mut self, cpu: &Cpu) {
        let is_user = cpu.is_user();
        self.context.returns = self.spaces.current(is_user).returns().top();
        if self.spaces.is_ready_for_user() {
            let top = self.spaces.current(!is_user).returns().top();
            self.context.sides[usize::from(!is_user)].returns = top;
        }
    }

    /// Translated code was left, maybe on another side than it was entered: takes back where calls return to, and has the processor be there.
    pub(super) fn come_back(&mut self, cpu: &mut Cpu) {
        let is_user = match std::mem::take(&mut self.context.crossed_to) {
            crossed_to::NOTHING => {
                let returns = self.spaces.current(cpu.is_user()).returns();
                return returns.set_top(self.context.returns);
            }
            side => side == crossed_to::USER,
        };
        // Registers and IF are taken from the context later.
        if is_user {
            cpu.sysexit();
        } else {
            cpu.sysenter();
        }
        self.enter_mode(cpu);
        let context = &mut self.context;
        self.spaces.current(is_user).returns().set_top(context.returns);
        let other = context.sides[usize::from(!is_user)];
        self.spaces.current(!is_user).returns().set_top(other.returns);
        let Side { window, table, index_mask, .. } = context.sides[usize::from(is_user)];
        (context.window, context.table, context.index_mask) = (window, table, index_mask);
    }
}
