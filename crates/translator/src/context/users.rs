//! The fields of the context by which supervisor code finds memory of users.

use ring3_x86::flags::Eflags;

use super::{Context, REGIONS};

impl Context {
    /// Returns whether EFLAGS.AC is set.
    pub(crate) fn has_ac(&self) -> bool {
        self.system_flags & Eflags::AC.bits() != 0
    }

    /// Sets the window of user code that supervisor code uses to the one at `base`. If SMAP keeps it closed
    /// (`is_closed`) while AC is clear, it is the supervisor's own window then.
    pub(crate) fn set_user_window(&mut self, base: u64, is_closed: bool) {
        self.user_windows = [if is_closed { self.own_window } else { base }, base];
        self.user_window = self.user_windows[usize::from(self.has_ac())];
    }

    /// Makes all regions the supervisor's.
    pub(crate) fn forget_regions(&mut self) {
        for region in 0..REGIONS {
            self.set_region(region, false);
        }
    }

    /// Makes the region of number `region` the user's, or the supervisor's.
    pub(crate) fn set_region(&mut self, region: usize, is_users: bool) {
        let window =
            if is_users { &raw const self.user_window } else { &raw const self.own_window };
        self.regions[region] = window.addr() as u64;
    }
}
