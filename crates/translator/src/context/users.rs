//! Where supervisor code finds memory of the user.

use ring3_x86::flags::Eflags;

use super::{Context, REGIONS};

impl Context {
    /// Whether EFLAGS.AC is set.
    pub(crate) fn has_ac(&self) -> bool {
        self.system_flags & Eflags::AC.bits() != 0
    }

    /// The window of user code for supervisor code is at `base`, where it is not `closed` to it while AC is clear.
    pub(crate) fn set_user_window(&mut self, base: u64, is_closed: bool) {
        self.user_windows = [if is_closed { self.own_window } else { base }, base];
        self.user_window = self.user_windows[usize::from(self.has_ac())];
    }

    /// All regions are the supervisor's.
    pub(crate) fn forget_regions(&mut self) {
        for region in 0..REGIONS {
            self.set_region(region, false);
        }
    }

    /// The region of that number is the user's, or is not.
    pub(crate) fn set_region(&mut self, region: usize, is_users: bool) {
        let window =
            if is_users { &raw const self.user_window } else { &raw const self.own_window };
        self.regions[region] = window.addr() as u64;
    }
}
