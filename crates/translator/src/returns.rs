//! The host's stack while translated code runs. Calls of the guest are calls of the host, so that its processor predicts
//! where they return to; the address on the guest's stack decides.
//!
//! A call pushes the address of its landing, which continues if what the guest returns to is what comes after the call, and
//! else goes by the jump table. So the stack may have less than the guest's, or others' returns after the guest has
//! switched its own, and nothing comes of it but time. What it leads to must stay what it was: it is emptied when a block
//! is dropped or a page that code was fetched from is another one.

use std::io;

use crate::host_memory::{PAGE, Range};
use crate::routines;

/// Below the stack there is room for handlers of signals that do not ask for a stack of their own, about so many bytes.
const ROOM: usize = 64 << 10;
/// A call reads what is so far below, and faults where the stack is full. It is no multiple of 4 KiB: the processor would have the read
/// wait for the last call's write, whose address has the same low bits (Intel's optimization manual, "4-KByte aliasing").
pub(crate) const ROOM_CHECK: usize = ROOM - PAGE / 2;
/// Bytes for returns.
const RETURNS: usize = 64 << 10;
/// Bytes above them.
const BOTTOM: usize = PAGE;

/// See the module.
#[derive(Debug)]
pub(crate) struct Returns {
    range: Range,
    /// RSP.
    top: u64,
}

impl Returns {
    /// An empty stack.
    pub(crate) fn new() -> io::Result<Returns> {
        let range = Range::reserve(PAGE + ROOM + RETURNS + BOTTOM)?;
        range.map_zeros(PAGE, ROOM + RETURNS + BOTTOM, libc::PROT_READ | libc::PROT_WRITE)?;
        range.write(Returns::EMPTY, routines::return_by_table as *const () as u64);
        let mut returns = Returns { range, top: 0 };
        returns.clear();
        Ok(returns)
    }

    /// Where an empty one has what is returned to.
    const EMPTY: usize = PAGE + ROOM + RETURNS;

    /// RSP to enter translated code with.
    pub(crate) fn top(&self) -> u64 {
        self.top
    }

    /// RSP when it was left.
    pub(crate) fn set_top(&mut self, top: u64) {
        self.top = top;
    }

    /// RSP where nothing is returned to by it.
    pub(crate) fn empty(&self) -> u64 {
        (self.range.address() + Returns::EMPTY) as u64
    }

    /// Nothing is returned to by it.
    pub(crate) fn clear(&mut self) {
        self.top = self.empty();
    }

    /// A fault at `address` means that it is full.
    pub(crate) fn is_full_at(&self, address: u64) -> bool {
        (address as usize).wrapping_sub(self.range.address()) < PAGE
    }
}
