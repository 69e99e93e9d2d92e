//! The guest code that a block is made from.

use ring3_x86::cpuid::Model;
use ring3_x86::decode::{self, MAX_LENGTH};

use crate::map::Set;
use crate::mode::{Mode, ModeNumber};

/// Bytes of `MOV register, [ESP]` and RET.
const READS_ITS_ADDRESS: usize = 4;

/// The part of a block's guest code that is in a second page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Second {
    /// Its linear address.
    pub(crate) linear: u32,
    /// Its place in guest memory.
    pub(crate) place: usize,
    /// Whether the block's first instruction crosses into this page, so that the processor fetches both pages
    /// with it. Otherwise a call in the block leads here.
    pub(crate) is_crossed_into: bool,
}

impl Second {
    /// Returns how many bytes of guest code it has at most.
    pub(crate) fn len(&self) -> usize {
        if self.is_crossed_into { MAX_LENGTH } else { READS_ITS_ADDRESS }
    }
}

/// The guest code that a block is made from.
pub(crate) struct Source<'a> {
    /// The bytes from the first instruction to the end of the page, followed by the beginning of the next
    /// page if the first instruction [crosses](Source::crossing) into it.
    pub(crate) bytes: &'a [u8],
    /// The beginning of the next page if the first instruction crosses into it. Such an instruction has a
    /// block of its own.
    pub(crate) crossing: Option<Second>,
    /// The address in CS of the first instruction.
    pub(crate) eip: u32,
    /// The place of the first instruction in guest memory.
    pub(crate) place: usize,
    /// The processor that the guest sees; it decides which instructions exist.
    pub(crate) model: Model,
    /// The mode of the code, and its number.
    pub(crate) mode: (ModeNumber, Mode),
    /// The linear addresses of barred instructions, which are left to the interpreter.
    pub(crate) barred: &'a Set<u32>,
    /// The linear addresses at which the debugger has breakpoints, in order.
    pub(crate) breakpoints: &'a [u32],
    /// The linear addresses of instructions of supervisor code that also access memory of users.
    pub(crate) for_user: &'a Set<u32>,
    /// The linear addresses of instructions that have read device registers for which a read has no effect on
    /// the device.
    pub(crate) device_reads: &'a Set<u32>,
    /// The linear addresses of numeric instructions that have met pending exceptions.
    pub(crate) numeric_errors: &'a Set<u32>,
    /// The linear addresses of loads of segment registers that have raised exceptions again and again.
    pub(crate) refused_loads: &'a Set<u32>,
    /// The index that the next instruction which a block leaves to the interpreter gets in
    /// [`Translator`](crate::Translator)'s list of them.
    pub(crate) next_op: u32,
    /// Finds the place of a linear address, and the bytes from there to the end of the page, if instructions
    /// were fetched from that page before.
    pub(crate) known_code: &'a dyn Fn(u32) -> Option<(usize, &'a [u8])>,
    /// Where the code is, if its page keeps changing.
    pub(crate) changing: Option<ChangingSource<'a>>,
    /// The address of the first free [counter](crate::code::counters), if instructions are counted.
    pub(crate) counters: Option<u32>,
}

impl Source<'_> {
    /// Returns whether the debugger has a breakpoint at `linear`.
    pub(crate) fn has_breakpoint(&self, linear: u32) -> bool {
        self.breakpoints.binary_search(&linear).is_ok()
    }
}

/// Where code that keeps changing is.
#[derive(Clone, Copy)]
pub(crate) struct ChangingSource<'a> {
    /// The address in this process of the block's first byte.
    pub(crate) host: u64,
    /// The places of instructions that read their immediate operand from memory.
    pub(crate) immediates: &'a Set<usize>,
}

/// Returns whether `bytes`, which begin with an instruction and reach to the end of its page or to the limit
/// of CS, lack a part of that instruction.
pub(crate) fn crosses(bytes: &[u8], mode: &Mode) -> bool {
    // The lengths of instructions are the same on all models.
    let mut decoder = decode::decoder(bytes, mode.code_size(), 0, Model::Max);
    let instruction = decoder.decode();
    bytes.len() < MAX_LENGTH && decode::goes_on(&decoder, &instruction)
}
