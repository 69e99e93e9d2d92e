//! Observation points for tools: each block, instruction, exception and memory access of a guest.
//!
//! They cost nothing when unused. An engine with an observer executes one instruction at a time, which it
//! can do anyway for single-stepping; the loop that runs at full speed knows nothing of observers.
//! Memory accesses, for an observer that wants them, are seen because the TLB then stays empty, so that
//! each of them takes the slow path, where they are noted. The guest does the same either way, but for
//! one thing: without a TLB, changes of page tables without a flush are seen at once.
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

/// A memory access of an instruction, or of the delivery of an event. One that crosses a page
/// boundary is one access; reads of page tables and of instructions are none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemoryAccess {
    /// The linear address of its first byte.
    pub linear: u64,
    /// Its length in bytes.
    pub bytes: u8,
    /// It writes.
    pub writes: bool,
}

/// What is told about a guest. The processor that is shown cannot be changed: a guest does not
/// notice that it is observed.
pub trait Observer: Debug + Send {
    /// The instruction at [`Cpu::ip`] begins a block: the one before it has, or could have,
    /// transferred control.
    fn block(&mut self, cpu: &Cpu) {
        let _ = cpu;
    }

    /// The instruction at [`Cpu::ip`] is about to be executed. It is told again when it starts
    /// again, with the answer of a device or to continue a repeated string instruction.
    fn instruction(&mut self, cpu: &Cpu, op: &Op) {
        let _ = (cpu, op);
    }

    /// An exception or interrupt is about to be delivered; [`Cpu::ip`] is what will be pushed.
    /// INT n, INT3 and INTO are none of these but instructions.
    /// It is told again when its delivery needed a device.
    fn event(&mut self, cpu: &Cpu, event: &Event) {
        let _ = (cpu, event);
    }

    /// True when it is to be told of memory accesses.
    fn wants_accesses(&self) -> bool {
        false
    }

    /// The last instruction, or the last delivery of an event, has accessed memory, or has tried to and
    /// failed. Told in the order of the accesses, once that instruction or delivery is over.
    fn access(&mut self, cpu: &Cpu, access: MemoryAccess) {
        let _ = (cpu, access);
    }
}

impl Cpu {
    /// Begins or ends to be executed one instruction at a time, and to note memory accesses.
    pub(crate) fn set_observed(&mut self, observer: Option<&dyn Observer>) {
        self.attention.set(Attention::OBSERVED, observer.is_some());
        let notes_accesses = observer.is_some_and(Observer::wants_accesses);
        if self.notes_accesses != notes_accesses {
            self.notes_accesses = notes_accesses;
            self.translation_changed();
        }
    }

    /// Notes a memory access for the observer, if there is one that wants it.
    pub(crate) fn note_access(&mut self, linear: u64, bytes: usize, writes: bool) {
        if self.notes_accesses {
            self.accesses.push(MemoryAccess { linear, bytes: bytes as u8, writes });
        }
    }
}
