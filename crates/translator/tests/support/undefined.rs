//! Finds where a program leaves flags undefined. The translator leaves the host's flags there, and what the
//! program then does with them cannot be compared.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use iced_x86::Mnemonic;
use ring3_x86::cpu::Cpu;
use ring3_x86::decode::Op;
use ring3_x86::interpreter::Interpreter;
use ring3_x86::observer::Observer;
use ring3_x86::undefined::TABLE;

const NONE: u64 = u64::MAX;

/// Notes the first instruction executed by an interpreter that leaves flags undefined.
#[derive(Debug, Clone)]
pub(crate) struct Watch(Arc<AtomicU64>);

impl Watch {
    /// Returns an interpreter, and a watch that observes it.
    pub(crate) fn interpreter() -> (Interpreter, Watch) {
        let watch = Watch(Arc::new(AtomicU64::new(NONE)));
        let mut interpreter = Interpreter::new();
        interpreter.set_observer(Some(Box::new(watch.clone())));
        (interpreter, watch)
    }

    /// Returns how many instructions were executed before the first one that left flags undefined, if there
    /// was one.
    pub(crate) fn instructions_before(&self) -> Option<u64> {
        Some(self.0.load(Ordering::Relaxed)).filter(|before| *before != NONE)
    }
}

impl Observer for Watch {
    fn instruction(&mut self, cpu: &Cpu, op: &Op) {
        let mnemonic = op.form.form().map(|form| form.code.mnemonic());
        if mnemonic.is_some_and(leaves_flags_undefined) && self.instructions_before().is_none() {
            self.0.store(cpu.instructions, Ordering::Relaxed);
        }
    }
}

/// Returns whether an instruction leaves flags undefined. Logical instructions do not count: all processors,
/// and both engines, clear AF.
fn leaves_flags_undefined(mnemonic: Mnemonic) -> bool {
    let is_logical =
        matches!(mnemonic, Mnemonic::And | Mnemonic::Or | Mnemonic::Xor | Mnemonic::Test);
    !is_logical && TABLE.iter().any(|row| row.mnemonics.contains(&mnemonic))
}
