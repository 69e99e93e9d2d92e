//! What blocks are made from.

use ring3_x86::cpuid::Model;
use ring3_x86::decode::{self, MAX_LENGTH};

use crate::map::Set;
use crate::mode::{Mode, ModeNumber};

/// The bytes of `MOV register, [ESP]` and RET.
const READS_ITS_ADDRESS: usize = 4;

/// Code in a second page that a block is made from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Second {
    /// Its linear address.
    pub(crate) linear: u32,
    /// Its place.
    pub(crate) place: usize,
    /// The first instruction goes on there, so the processor fetches it with that.
    pub(crate) is_crossed_into: bool,
}

impl Second {
    /// How many bytes it is at most.
    pub(crate) fn len(&self) -> usize {
        if self.is_crossed_into { MAX_LENGTH } else { READS_ITS_ADDRESS }
    }
}

/// What a block is made from.
pub(crate) struct Source<'a> {
    /// The bytes from its first instruction to the end of the page; where it [crosses](Source::crossing), those of that
    /// instruction and what comes after it.
    pub(crate) bytes: &'a [u8],
    /// The beginning of the next page, if the first instruction goes on there. It is a block of its own.
    pub(crate) crossing: Option<Second>,
    /// The address in CS of the first one.
    pub(crate) eip: u32,
    /// Its place.
    pub(crate) place: usize,
    /// Which processor it is for.
    pub(crate) model: Model,
    /// The mode of the code, and its number.
    pub(crate) mode: (ModeNumber, Mode),
    /// The linear addresses of instructions that are left to the interpreter.
    pub(crate) left: &'a Set<u32>,
    /// The same of instructions of supervisor code that access memory of the user too.
    pub(crate) for_user: &'a Set<u32>,
    /// The same of instructions that have read registers of devices which to read does nothing.
    pub(crate) device_reads: &'a Set<u32>,
    /// The number of the next instruction that is left to it by a block.
    pub(crate) next_op: u32,
    /// The place of a linear address in a page that instructions were fetched from before, and the bytes from there to the end of
    /// the page.
    pub(crate) known_code: &'a dyn Fn(u32) -> Option<(usize, &'a [u8])>,
    /// The page keeps changing.
    pub(crate) changing: Option<ChangingSource<'a>>,
}

/// Where code is that keeps changing.
#[derive(Clone, Copy)]
pub(crate) struct ChangingSource<'a> {
    /// The address in this process of the block's first byte.
    pub(crate) host: u64,
    /// The places of instructions that read their number from memory.
    pub(crate) numbers: &'a Set<usize>,
}

/// The bytes from an instruction to the end of its page, or to the limit of CS, do not have all of it.
pub(crate) fn crosses(bytes: &[u8], mode: &Mode) -> bool {
    let mut decoder = decode::decoder(bytes, mode.is_32_bit(), 0);
    let instruction = decoder.decode();
    bytes.len() < MAX_LENGTH && decode::goes_on(&decoder, &instruction)
}
