//! What is known of each instruction of a block.

/// The host code of one instruction.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Site {
    /// The address where it begins.
    pub(crate) host: u32,
    /// The instruction's address, less that of the block.
    pub(crate) offset: u16,
    /// How many instructions of the block come before it.
    pub(crate) before: u16,
    /// How many of them are taken from the budget when it is executed.
    pub(crate) counted: u16,
    /// How far the guest's ESP is above R15D there.
    pub(crate) stack_offset: i32,
    /// It is repeated: the context's `count` has the count with which it began.
    pub(crate) repeats: bool,
    /// It compares, and may end before its count does.
    pub(crate) compares: bool,
    /// It has its count in CX alone.
    pub(crate) counts_by_cx: bool,
    /// It uses numeric registers.
    pub(crate) is_numeric: bool,
    /// The number of the segment register by which a numeric instruction of segmented code accesses memory, if it does.
    pub(crate) operand: Option<u8>,
    /// Its number among those that are left to the interpreter, where a routine that it calls does that.
    pub(crate) left: Option<u32>,
    /// It reads registers of devices while they are known.
    pub(crate) reads_device: bool,
    /// The number of the segment register that it loads.
    pub(crate) loads: Option<u8>,
    /// Its number among those that are left to the interpreter, if it is a far transfer.
    pub(crate) transfer: Option<u32>,
}

impl Site {
    /// The count of a repeated instruction that is in `ecx`.
    pub(crate) fn count_in(&self, ecx: u32) -> u32 {
        if self.counts_by_cx { ecx & 0xffff } else { ecx }
    }
}
