//! Far sites: those whose accesses go to units at several [distances](crate::long::distances), and therefore
//! take the distance from a table.
//!
//! A site is made anew as a far one when its check has failed although its page is there. In code of users
//! others of its page soon follow: those that access the stack, or those that access data. So once a few of
//! one kind are far in a page, all of that kind there are.

use iced_x86::{Instruction, Register};
use ring3_core::memory::PAGE_SHIFT;

use crate::map::{Map, Set};

/// Sites of one kind in a page after which all are far.
const FEW: u8 = 3;
/// Upper bound of the far sites that are known.
const MOST: usize = 1 << 16;

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct FarSites {
    /// The linear addresses of the instructions.
    sites: Set<u64>,
    /// Number of them in code of users, by the number of their page and by whether they access the stack.
    pages: Map<(u64, bool), u8>,
}

/// Returns whether `instruction` accesses the stack, and no other memory.
fn accesses_stack(instruction: &Instruction) -> bool {
    let is_in_stack = matches!(instruction.memory_base(), Register::RSP | Register::RBP);
    let has_operand = instruction.op_kinds().any(|kind| kind == iced_x86::OpKind::Memory);
    is_in_stack || !has_operand
}

impl FarSites {
    /// Makes `instruction`, in code of users (`is_user`) or of the supervisor, a far site. Returns false if
    /// it is one already.
    pub(crate) fn add(&mut self, instruction: &Instruction, is_user: bool) -> bool {
        if self.contains(instruction, is_user) {
            return false;
        }
        if self.sites.len() >= MOST {
            *self = FarSites::default();
        }
        self.sites.insert(instruction.ip());
        if is_user {
            let page = (instruction.ip() >> PAGE_SHIFT, accesses_stack(instruction));
            let count = self.pages.entry(page).or_default();
            *count = count.saturating_add(1);
        }
        true
    }

    /// Returns whether `instruction`, in code of users (`is_user`) or of the supervisor, is a far site.
    pub(crate) fn contains(&self, instruction: &Instruction, is_user: bool) -> bool {
        let is_in_such_a_page = || {
            let page = (instruction.ip() >> PAGE_SHIFT, accesses_stack(instruction));
            self.pages.get(&page).is_some_and(|count| *count >= FEW)
        };
        self.sites.contains(&instruction.ip()) || is_user && is_in_such_a_page()
    }
}
