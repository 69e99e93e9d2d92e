//! Observation points for tools: each block, instruction, exception and memory access of a guest.
//!
//! They cost nothing when unused. An engine with an observer executes one instruction at a time, which it
//! also does for single-stepping; the loop that runs at full speed knows nothing of observers. For an
//! observer that wants memory accesses, the TLB stays empty, so that each access takes the slow path, where
//! it is noted. The guest behaves in the same way as without an observer, except that changes of page tables
//! without a flush take effect at once, because there is no TLB.
//!
//! ```
//! use ring3_core::memory::Memory;
//! use ring3_x86::cpu::Cpu;
//! use ring3_x86::decode::Op;
//! use ring3_x86::engine::Engine;
//! use ring3_x86::interpreter::Interpreter;
//! use ring3_x86::observer::Observer;
//!
//! #[derive(Debug)]
//! struct Trace;
//!
//! impl Observer for Trace {
//!     fn instruction(&mut self, cpu: &Cpu, op: &Op) {
//!         if let Some(form) = op.form.form() {
//!             println!("{:08x} {:?}", cpu.ip, form.code);
//!         }
//!     }
//! }
//!
//! let mut memory = Memory::new(1 << 20)?;
//! memory.load_image(0x7c00, &[0xb8, 0x34, 0x12, 0xf4])?; // mov ax, 1234h; hlt
//! let mut cpu = Cpu::new();
//! cpu.set_real_mode_entry(0, 0x7c00);
//! let mut engine = Interpreter::new();
//! engine.set_observer(Some(Box::new(Trace)));
//! engine.run(&mut cpu, &mut memory, 1000);
//! # Ok::<(), ring3_core::memory::MemoryError>(())
//! ```

use std::fmt::Debug;

use crate::cpu::{Attention, Cpu};
use crate::decode::Op;
use crate::interrupt::Event;

/// A memory access of an instruction, or of the delivery of an event. An access that crosses a page boundary
/// is one access; reads of page tables and of instructions do not count.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemoryAccess {
    /// The linear address of its first byte.
    pub linear: u64,
    /// Its length in bytes.
    pub bytes: u8,
    /// Whether it is a write.
    pub writes: bool,
}

/// Receives the events of a guest. It cannot change the processor that it sees, so the guest does not notice
/// it.
pub trait Observer: Debug + Send {
    /// Called before the instruction at [`Cpu::ip`], which begins a block: the one before it has transferred
    /// control, or could have.
    fn block(&mut self, cpu: &Cpu) {
        let _ = cpu;
    }

    /// Called before the instruction at [`Cpu::ip`] is executed. It is called again when the instruction
    /// starts again, with the answer of a device or to continue a repeated string instruction.
    fn instruction(&mut self, cpu: &Cpu, op: &Op) {
        let _ = (cpu, op);
    }

    /// Called before an exception or interrupt is delivered; [`Cpu::ip`] is the value that will be pushed.
    /// INT n, INT3 and INTO are instructions and not events. It is called again if the delivery needed a
    /// device.
    fn event(&mut self, cpu: &Cpu, event: &Event) {
        let _ = (cpu, event);
    }

    /// Returns whether the observer wants memory accesses.
    fn wants_accesses(&self) -> bool {
        false
    }

    /// Called for each memory access of the last instruction or delivery of an event, including attempts that
    /// failed. The calls come in the order of the accesses, once that instruction or delivery is complete.
    fn access(&mut self, cpu: &Cpu, access: MemoryAccess) {
        let _ = (cpu, access);
    }
}

impl Cpu {
    /// Begins or ends execution by single instructions for an observer, and the recording of memory accesses.
    pub(crate) fn set_observed(&mut self, observer: Option<&dyn Observer>) {
        self.attention.set(Attention::OBSERVED, observer.is_some());
        let notes_accesses = observer.is_some_and(Observer::wants_accesses);
        if self.notes_accesses != notes_accesses {
            self.notes_accesses = notes_accesses;
            self.translation_changed();
        }
    }

    /// Notes a memory access for the observer, if there is one that wants accesses.
    pub(crate) fn note_access(&mut self, linear: u64, bytes: usize, writes: bool) {
        if self.notes_accesses {
            self.accesses.push(MemoryAccess { linear, bytes: bytes as u8, writes });
        }
    }
}
