//! The host's stack while translated code runs. Calls of the guest are calls of the host, so that its
//! processor predicts where they return to. But the address on the guest's stack decides where they do.
//!
//! A call pushes the host address of its landing. The landing continues with the instruction after the call
//! if the guest returns to that, and otherwise goes on by the jump table. So the host's stack may have fewer
//! returns than the guest's, or those of another stack after the guest has switched its own; the only effect
//! is lost time. But code at a landing must remain what it was. So the stack is emptied when a block is
//! dropped, or when another page of memory takes the place of one that code was fetched from.
//!
//! Memory below the top holds no returns: signals and the routines that translated code calls overwrite it.
//! So whoever enters translated code must first note the top with which it was last left
//! ([`Returns::set_top`]).

use std::io;

use crate::memory::host_memory::{PAGE, Range};

/// Bytes below the stack for handlers of signals that do not ask for a stack of their own.
const ROOM: usize = 64 << 10;
/// A call reads the address that is this much below RSP, and faults if the stack is full. The distance is not
/// a multiple of 4 KiB: the processor would make the read wait for the last call's write, whose address would
/// have the same low bits (Intel's optimization manual, "4-KByte aliasing").
pub(crate) const ROOM_CHECK: usize = ROOM - PAGE / 2;
/// Bytes for returns.
const RETURNS: usize = 64 << 10;
/// Bytes above the returns.
const BOTTOM: usize = PAGE;

/// See the module.
#[derive(Debug)]
pub(crate) struct Returns {
    range: Range,
    /// The value of RSP.
    top: u64,
    /// Whether translated code was entered with this value, and it was not noted anew since.
    is_lent: bool,
}

impl Returns {
    /// Returns an empty stack, from which the host returns to `bottom`: the address of code that finds the right
    /// place, and leaves the stack empty.
    pub(crate) fn new(bottom: u64) -> io::Result<Returns> {
        let range = Range::reserve(PAGE + ROOM + RETURNS + BOTTOM)?;
        range.map_zeros(PAGE, ROOM + RETURNS + BOTTOM, libc::PROT_READ | libc::PROT_WRITE)?;
        range.write(Returns::EMPTY, bottom);
        let mut returns = Returns { range, top: 0, is_lent: false };
        returns.clear();
        Ok(returns)
    }

    /// Offset in the range of the lowest element, which is never removed.
    const EMPTY: usize = PAGE + ROOM + RETURNS;

    /// Returns the value of RSP with which translated code is entered. The caller must note it anew by
    /// [`Returns::set_top`] after translated code was left.
    pub(crate) fn lend(&mut self) -> u64 {
        debug_assert!(!self.is_lent, "the top is not what translated code has left");
        self.is_lent = true;
        self.top
    }

    /// Returns the value of RSP.
    pub(crate) fn top(&self) -> u64 {
        self.top
    }

    /// Notes the value of RSP with which translated code was left.
    pub(crate) fn set_top(&mut self, top: u64) {
        self.top = top;
        self.is_lent = false;
    }

    /// Returns the value of RSP of an empty stack.
    pub(crate) fn empty(&self) -> u64 {
        (self.range.address() + Returns::EMPTY) as u64
    }

    /// Empties the stack.
    pub(crate) fn clear(&mut self) {
        self.top = self.empty();
    }

    /// Returns whether a fault at `address` means that the stack is full.
    pub(crate) fn is_full_at(&self, address: u64) -> bool {
        (address as usize).wrapping_sub(self.range.address()) < PAGE
    }
}
