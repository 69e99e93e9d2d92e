//! The sites of a block.

use iced_x86::{Instruction, OpKind};
use ring3_x86::decode;

use super::{BlockBuilder, repeats};
use crate::code::{copy, strings};
use crate::numeric;

/// The memory operand of a numeric instruction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Operand {
    None,
    /// One of flat code.
    Flat,
    /// One of segmented code, by the segment register with this number.
    Segment(u8),
}

/// The host code of one instruction.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Site {
    /// The host address where it begins.
    pub(crate) host: u32,
    /// The instruction's address, less that of the block.
    pub(crate) offset: u16,
    /// Number of the block's instructions that precede it.
    pub(crate) before: u16,
    /// Number of instructions that have been subtracted from the budget, but not executed yet, when it is
    /// executed. It is one of them.
    pub(crate) ahead: u16,
    /// The guest's ESP less R15D at its beginning.
    pub(crate) stack_offset: i32,
    /// Whether it is repeated. The context's `repeat_count` is then the count with which it began.
    pub(crate) repeats: bool,
    /// Whether it compares elements, and so may end before its count does.
    pub(crate) compares: bool,
    /// Whether its count is in CX alone.
    pub(crate) counts_by_cx: bool,
    /// Whether it loads from memory to which it then stores, and is a write for the guest from the beginning.
    pub(crate) modifies: bool,
    /// Whether it uses numeric registers.
    pub(crate) is_numeric: bool,
    /// The memory operand of a numeric instruction.
    pub(crate) operand: Operand,
    /// Its index in the list of instructions that blocks leave to the interpreter, if a routine that it calls
    /// may leave it.
    pub(crate) deferred: Option<u32>,
    /// Whether it makes an access to a device, and nothing else.
    pub(crate) accesses_device: bool,
    /// Whether it reads device registers while their values are known.
    pub(crate) reads_device: bool,
    /// Its index in the list of instructions that blocks leave to the interpreter, if it is a far transfer.
    pub(crate) transfer: Option<u32>,
}

impl Site {
    /// Returns the count of a repeated instruction, given the value of ECX.
    pub(crate) fn count_in(&self, ecx: u32) -> u32 {
        if self.counts_by_cx { ecx & 0xffff } else { ecx }
    }
}

impl BlockBuilder<'_> {
    /// Begins the site of `instruction`.
    pub(super) fn begin_site(&mut self, instruction: &Instruction) {
        let is_landing = std::mem::take(&mut self.is_landing);
        let is_join = std::mem::take(&mut self.is_join);
        if is_landing {
            self.begin_count();
        }
        let is_numeric = numeric::is_numeric(instruction);
        self.sites.push(Site {
            host: self.emitter.here(),
            offset: instruction.ip32().wrapping_sub(self.eip) as u16,
            before: self.instructions,
            ahead: 0,
            stack_offset: self.emitter.stack_offset(),
            repeats: repeats(instruction),
            compares: strings::compares(instruction),
            counts_by_cx: decode::has_16_bit_addresses(instruction),
            modifies: copy::exchanges_with_memory(instruction),
            is_numeric,
            operand: match self.mode.segmented {
                _ if !is_numeric || instruction.op_kinds().all(|kind| kind != OpKind::Memory) => {
                    Operand::None
                }
                None => Operand::Flat,
                Some(_) => Operand::Segment(instruction.memory_segment().number() as u8),
            },
            deferred: None,
            accesses_device: false,
            reads_device: false,
            transfer: None,
        });
        if is_landing {
            // The check is inside of the site: the site is no entry of the block, and all instructions before
            // it were counted.
            self.begin_check();
        }
        if is_join {
            self.join(instruction.ip32());
        }
        self.instructions += 1;
        self.note_form(instruction.code());
        self.prepare_repeat_counters(instruction);
    }
}
