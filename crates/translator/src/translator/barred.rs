//! Barred instructions: those that fault again and again, and are left to the interpreter for a while
//! ([`patience`](crate::patience)).

use ring3_core::memory::{Memory, PAGE_SHIFT};
use ring3_x86::cpu::Cpu;

use super::Translator;
use crate::patience::{Patience, SIGNALS};

/// The number that takes the place of [`SIGNALS`] for an instruction that was left to the interpreter before.
const SIGNALS_AGAIN: u8 = 2;
/// A barred instruction. It may always write to devices or to a page with code, or may have met a few such
/// pages among others.
#[derive(Debug, Clone, Copy)]
pub(super) struct Barred {
    patience: Patience,
    /// Whether only the interpreter could execute it. In segmented code such an instruction mostly writes to
    /// data beside code, and more such instructions follow.
    is_needed: bool,
}

impl Translator {
    /// Returns the linear address of the instruction at EIP.
    pub(super) fn linear_of_instruction(&self) -> u32 {
        self.modes.current().1.linear(self.context.eip)
    }

    /// Notes a signal for the instruction at EIP. Returns true if too many have come one after the other, and
    /// then leaves the instruction to the interpreter.
    pub(super) fn note_signal(&mut self, cpu: &mut Cpu, memory: &mut Memory) -> bool {
        let instruction = self.linear_of_instruction();
        let most = if self.patience.contains_key(&instruction) { SIGNALS_AGAIN } else { SIGNALS };
        if self.signals.entry(instruction).or_default().note(cpu.instructions) < most {
            return false;
        }
        self.bar(cpu, memory, false);
        true
    }

    /// Notes that the interpreter executes the instruction at EIP after a signal. Returns true if this has
    /// happened so often that one signal for each execution is too much.
    fn note_leaving(&mut self) -> bool {
        self.signals.entry(self.linear_of_instruction()).or_default().note_leaving()
    }

    /// Notes a signal for a numeric error of the instruction at EIP. Returns true if there were several, and
    /// then makes the instruction look for pending exceptions.
    pub(super) fn note_numeric_error(&mut self, cpu: &mut Cpu, memory: &mut Memory) -> bool {
        let looks = self.note_leaving() && self.numeric_errors.insert(self.linear_of_instruction());
        if looks {
            self.drop_block(cpu, memory);
        }
        looks
    }

    /// Notes that the interpreter has executed the load of a segment register at EIP, in code of users
    /// (`by_user`) or of the supervisor, and that it has raised an exception. After several of them, makes
    /// translated code look whether the load is refused.
    pub(super) fn note_refused_load(&mut self, by_user: bool) {
        let linear = self.linear_of_instruction();
        if self.note_leaving() && self.refused_loads.insert(linear) {
            let place = self.spaces.get(by_user).and_then(|space| space.fetched(linear));
            if let Some(place) = place {
                self.drop_page((place >> PAGE_SHIFT) as u32);
            }
        }
    }

    /// Leaves the instruction at EIP to the interpreter from now on, if the interpreter has often executed it
    /// after signals. `written` is the page with code that the instruction writes to, if it does.
    pub(super) fn bar_if_often(
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
            // The instruction goes on writing beside code, as programs in real mode do.
            self.changing.add(page, cpu.instructions);
            memory.forget_code(page);
            self.drop_page(page);
            self.translate_writers(page);
            return;
        }
        let code = self.bar(cpu, memory, true);
        if let (Some(page), Some(code)) = (written, code) {
            self.changing.note_writer(page, instruction.into(), code);
        }
    }

    /// Leaves the instruction at EIP to the interpreter from now on. `is_needed` says whether only the
    /// interpreter can execute it. Returns the page that it is in.
    fn bar(&mut self, cpu: &mut Cpu, memory: &mut Memory, is_needed: bool) -> Option<u32> {
        let instruction = self.linear_of_instruction();
        self.signals.remove(&instruction);
        self.barred.insert(instruction);
        let first = Barred { patience: Patience::default(), is_needed };
        self.patience.entry(instruction).or_insert(first).is_needed = is_needed;
        self.drop_block(cpu, memory)
    }

    /// Counts one more execution by the interpreter of the instruction at EIP. After enough of them the
    /// instruction is translated again: a loop that has written over old code, as decompressors do, writes
    /// elsewhere by then. Returns true if only the interpreter could execute the instruction.
    pub(super) fn count_barred(&mut self, cpu: &mut Cpu, memory: &mut Memory) -> bool {
        let instruction = self.linear_of_instruction();
        let Some(barred) = self.patience.get_mut(&instruction) else { return true };
        let is_needed = barred.is_needed;
        if barred.patience.count() {
            self.barred.remove(&instruction);
            self.drop_block(cpu, memory);
        }
        is_needed
    }

    /// Drops the block of the instruction at EIP, so that it is translated in another way. Returns the page
    /// that it is in.
    pub(super) fn drop_block(&mut self, cpu: &mut Cpu, memory: &mut Memory) -> Option<u32> {
        let linear = self.linear_of_instruction();
        let space = self.spaces.current(cpu.is_user());
        let place = space.fetch(cpu, memory, &self.blocks, linear)?;
        let page = (place >> PAGE_SHIFT) as u32;
        self.drop_page(page);
        Some(page)
    }
}
