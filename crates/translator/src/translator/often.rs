//! Instructions that fault again and again.
//!
//! A signal takes longer than a thousand instructions, and none of them may come for ever: whatever the reason is, in time the instruction is left to
//! the interpreter. There it stays for so long that the signals of another attempt count for nothing.

use ring3_core::memory::{Memory, PAGE_SHIFT};
use ring3_x86::cpu::Cpu;

use super::Translator;

/// So many signals for one instruction that the interpreter had to execute after each of them have it left to that.
const LEAVINGS: u8 = 3;
/// So many signals of any kind do, if each comes [soon](SOON) after the one before.
const SIGNALS: u8 = 8;
/// The same where that was so before.
const SIGNALS_AGAIN: u8 = 2;
/// Instructions up to the next signal that comes too soon.
const SOON: u64 = 1000;
/// Times that it is executed there before it is translated once more; then twice as many.
const FIRST_PATIENCE: u32 = 256;

/// The signals of one instruction.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Signals {
    /// Those after which the interpreter had to execute it.
    leavings: u8,
    /// Those of any kind that came soon after the one before.
    soon: u8,
    /// The count of instructions at the last one.
    last: u64,
}

/// How long an instruction that the interpreter has had to execute again and again is left to it. It may write to devices, or to a page with
/// code, for ever, or may have met some such pages among others.
#[derive(Debug, Clone, Copy)]
pub(super) struct Patience {
    /// How often it was executed there.
    executed: u32,
    /// How often it will be.
    most: u32,
    /// It could not be executed otherwise. In segmented code that mostly writes to data beside code, and does not come alone.
    is_needed: bool,
}

impl Translator {
    /// The linear address of the instruction at EIP.
    pub(super) fn linear_of_instruction(&self) -> u32 {
        self.modes.current().1.linear(self.context.eip)
    }

    /// There was a signal for the instruction at EIP. True when too many of them have come one after the other: then it is left to the interpreter.
    pub(super) fn note_signal(&mut self, cpu: &mut Cpu, memory: &mut Memory) -> bool {
        let instruction = self.linear_of_instruction();
        let most = if self.patience.contains_key(&instruction) { SIGNALS_AGAIN } else { SIGNALS };
        let signals = self.signals.entry(instruction).or_default();
        let is_soon = cpu.instructions.wrapping_sub(signals.last) < SOON;
        signals.soon = if is_soon { signals.soon + 1 } else { 1 };
        signals.last = cpu.instructions;
        if signals.soon < most {
            return false;
        }
        self.leave_to_interpreter(cpu, memory, false);
        true
    }

    /// The interpreter executes the instruction at EIP. True when that has happened so often that a signal each time is too much.
    fn note_leaving(&mut self) -> bool {
        let signals = self.signals.entry(self.linear_of_instruction()).or_default();
        signals.leavings += 1;
        let is_often = signals.leavings >= LEAVINGS;
        if is_often {
            signals.leavings = 0;
        }
        is_often
    }

    /// Has the interpreter execute the instruction at EIP from now on, if it has often done so, maybe as it writes to a page that holds code.
    pub(super) fn leave_if_often(
        &mut self,
        cpu: &mut Cpu,
        memory: &mut Memory,
        written: Option<u32>,
    ) {
        if !self.note_leaving() {
            return;
        }
        let instruction = self.linear_of_instruction();
        let is_segmented = self.modes.current().1.segmented.is_some();
        if let Some(page) = written
            && is_segmented
            && self.patience.contains_key(&instruction)
        {
            // It goes on writing beside code, as programs in real mode do.
            self.changing.add(page);
            memory.forget_code(page);
            self.drop_page(page);
            self.translate_writers(page);
            return;
        }
        let code = self.leave_to_interpreter(cpu, memory, true);
        if let (Some(page), Some(code)) = (written, code) {
            self.changing.note_writer(page, instruction, code);
        }
    }

    /// Has the interpreter execute the instruction at EIP from now on, whether that is needed or not. Gives the page that it is in.
    fn leave_to_interpreter(
        &mut self,
        cpu: &mut Cpu,
        memory: &mut Memory,
        is_needed: bool,
    ) -> Option<u32> {
        let instruction = self.linear_of_instruction();
        self.signals.remove(&instruction);
        self.left.insert(instruction);
        let first = Patience { executed: 0, most: FIRST_PATIENCE, is_needed };
        self.patience.entry(instruction).or_insert(first).is_needed = is_needed;
        self.drop_block(cpu, memory)
    }

    /// The instruction at EIP, which is left to the interpreter, is executed by it once more. If that was so for long enough, it is
    /// translated again: a loop that has written over old code, as decompressors do, goes on elsewhere. True when it could not be executed otherwise.
    pub(super) fn count_left(&mut self, cpu: &mut Cpu, memory: &mut Memory) -> bool {
        let instruction = self.linear_of_instruction();
        let Some(patience) = self.patience.get_mut(&instruction) else { return true };
        let is_needed = patience.is_needed;
        patience.executed += 1;
        if patience.executed >= patience.most {
            let most = patience.most.saturating_mul(2);
            *patience = Patience { executed: 0, most, is_needed };
            self.left.remove(&instruction);
            self.drop_block(cpu, memory);
        }
        is_needed
    }

    /// Drops the block of the instruction at EIP, which is to be translated in another way. Gives the page that it is in.
    pub(super) fn drop_block(&mut self, cpu: &mut Cpu, memory: &mut Memory) -> Option<u32> {
        let linear = self.linear_of_instruction();
        let space = self.spaces.current(cpu.is_user());
        let place = space.fetch(cpu, memory, &self.blocks, linear)?;
        let page = (place >> PAGE_SHIFT) as u32;
        self.drop_page(page);
        Some(page)
    }
}
