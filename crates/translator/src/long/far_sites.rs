//! The units that the accesses of each site go to: those that are near, those of the second group of
//! [`distances`](crate::long::distances), or, at *far* sites, any. A far site takes the distance from a table, so
//! that each access waits for three loads; one that goes to the second group loads its distance beside the check.
//!
//! A site is made anew when its check has failed although its page is there. In code of users others of its page soon
//! follow: those that access the stack, or those that access data. So once a few of one kind go elsewhere in a page,
//! all of that kind there do, unless their own checks fail. Code of the supervisor has near and far sites only.

use iced_x86::{Instruction, OpKind, Register};
use ring3_core::memory::PAGE_SHIFT;

use crate::long::distances::is_low;
use crate::map::Map;
use crate::memory::units::unit_of;

/// Sites of one kind in a page after which all are taken for such ones.
const FEW: u8 = 3;
/// Upper bound of the sites of which something is known.
const MOST: usize = 1 << 16;

/// The units that the accesses of a site go to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Reach {
    /// Those that are near.
    #[default]
    Near,
    /// Those of the second group.
    Second,
    /// Those of any group: the site is far.
    All,
}

/// What a site accesses memory by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Base {
    Stack,
    /// RBP, which may point into the stack.
    Frame,
    Other,
}

impl Base {
    fn of(instruction: &Instruction) -> Base {
        let has_operand = instruction.op_kinds().any(|kind| kind == OpKind::Memory);
        match instruction.memory_base() {
            Register::RSP => Base::Stack,
            _ if !has_operand => Base::Stack,
            Register::RBP => Base::Frame,
            _ => Base::Other,
        }
    }
}

/// Which checks of a site have failed.
#[derive(Debug, Clone, Copy, Default)]
struct Failed {
    near: bool,
    second: bool,
}

/// Number of sites in a page that go to the second group, and of those that are far.
#[derive(Debug, Clone, Copy, Default)]
struct Page {
    second: u8,
    far: u8,
}

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct FarSites {
    /// By the linear addresses of the instructions.
    sites: Map<u64, Failed>,
    /// Those in code of users, by the number of the page.
    pages: Map<(u64, Base), Page>,
}

impl FarSites {
    /// Notes that the check of `instruction`, in code of users (`is_user`) or of the supervisor, has failed for a unit
    /// of another group: `of` it, if all accesses of a site can go to it alone. Returns false if the site is far.
    pub(crate) fn add(&mut self, instruction: &Instruction, is_user: bool, of: Reach) -> bool {
        let before = self.reach(instruction, is_user);
        if before == Reach::All {
            return false;
        }
        if self.sites.len() >= MOST {
            *self = FarSites::default();
        }
        let failed = self.sites.entry(instruction.ip()).or_default();
        failed.near |= before == Reach::Near || of != Reach::Near;
        failed.second |= before == Reach::Second || of != Reach::Second || !is_user;
        if is_user {
            let after = self.reach(instruction, is_user);
            let key = (instruction.ip() >> PAGE_SHIFT, Base::of(instruction));
            let page = self.pages.entry(key).or_default();
            match after {
                Reach::Near => {}
                Reach::Second => page.second = page.second.saturating_add(1),
                Reach::All => page.far = page.far.saturating_add(1),
            }
        }
        true
    }

    /// Returns the units that the accesses of `instruction`, in code of users (`is_user`) or of the supervisor, are
    /// taken to go to.
    pub(crate) fn reach(&self, instruction: &Instruction, is_user: bool) -> Reach {
        if let Some(failed) = self.sites.get(&instruction.ip()) {
            return match (failed.near, failed.second) {
                (true, true) => Reach::All,
                (true, false) => Reach::Second,
                (false, _) => Reach::Near,
            };
        }
        if !is_user {
            return Reach::Near;
        }
        if let Some(linear) = constant_address(instruction) {
            return if is_low(unit_of(linear)) { Reach::Second } else { Reach::Near };
        }
        let key = (instruction.ip() >> PAGE_SHIFT, Base::of(instruction));
        match self.pages.get(&key) {
            Some(page) if page.far >= FEW => Reach::All,
            Some(page) if page.second >= FEW => Reach::Second,
            _ => Reach::Near,
        }
    }
}

/// Returns the address of `instruction`'s memory operand, if that is a number.
fn constant_address(instruction: &Instruction) -> Option<u64> {
    let has_operand = instruction.op_kinds().any(|kind| kind == OpKind::Memory);
    let is_number = matches!(instruction.memory_base(), Register::None | Register::RIP)
        && instruction.memory_index() == Register::None
        && !matches!(instruction.memory_segment(), Register::FS | Register::GS);
    (has_operand && is_number).then(|| instruction.memory_displacement64())
}

#[cfg(test)]
mod tests {
    use iced_x86::{Decoder, DecoderOptions};

    use super::*;

    /// Returns `MOV RAX, [RBX]`, or another instruction with these bytes, at `ip`.
    fn at(ip: u64, bytes: &[u8]) -> Instruction {
        Decoder::with_ip(64, bytes, ip, DecoderOptions::NONE).decode()
    }

    const LOAD: &[u8] = &[0x48, 0x8b, 0x03];
    const POP: &[u8] = &[0x58];

    #[test]
    fn a_site_is_far_once_its_checks_for_both_groups_have_failed() {
        let mut sites = FarSites::default();
        let load = at(0x40_1000, LOAD);
        assert_eq!(sites.reach(&load, true), Reach::Near);
        assert!(sites.add(&load, true, Reach::Second));
        assert_eq!(sites.reach(&load, true), Reach::Second);
        assert!(sites.add(&load, true, Reach::Near));
        assert_eq!(sites.reach(&load, true), Reach::All);
        assert!(!sites.add(&load, true, Reach::Near));
        let other = at(0x40_2000, LOAD);
        assert!(sites.add(&other, true, Reach::All), "a third group");
        assert_eq!(sites.reach(&other, true), Reach::All);
        let supervisor = at(0xffff_ffff_8100_0000, LOAD);
        assert!(sites.add(&supervisor, false, Reach::Second));
        assert_eq!(sites.reach(&supervisor, false), Reach::All);
    }

    #[test]
    fn a_page_whose_data_is_elsewhere_still_has_its_stack_near() {
        let mut sites = FarSites::default();
        for offset in 0..u64::from(FEW) {
            assert_eq!(sites.reach(&at(0x40_1800, LOAD), true), Reach::Near);
            assert!(sites.add(&at(0x40_1000 + 3 * offset, LOAD), true, Reach::Second));
        }
        let load = at(0x40_1800, LOAD);
        assert_eq!(sites.reach(&load, true), Reach::Second);
        assert_eq!(sites.reach(&at(0x40_2800, LOAD), true), Reach::Near, "another page");
        assert_eq!(sites.reach(&at(0x40_1900, POP), true), Reach::Near);
        assert!(sites.add(&load, true, Reach::Near));
        assert_eq!(sites.reach(&load, true), Reach::Near, "its own check counts");
    }

    #[test]
    fn the_group_of_a_constant_address_is_known() {
        let sites = FarSites::default();
        // MOV EAX, [RIP + 256]
        let relative = &[0x8b, 0x05, 0, 1, 0, 0];
        assert_eq!(sites.reach(&at(0x40_1000, relative), true), Reach::Second);
        assert_eq!(sites.reach(&at(0x5555_5555_4000, relative), true), Reach::Near);
        assert_eq!(sites.reach(&at(0x40_1000, relative), false), Reach::Near);
        // MOV RAX, FS:[0]
        let based = &[0x64, 0x48, 0x8b, 0x04, 0x25, 0, 0, 0, 0];
        assert_eq!(sites.reach(&at(0x40_1000, based), true), Reach::Near);
    }
}
