//! Host code that all blocks share, at the beginning of the cache: what they rarely execute, and what would make them
//! longer. They go there by fields of the context.
//!
//! A branch whose target the jump table does not know is left by the number of its [exit](crate::long::block::Exit).

use iced_x86::{Code, Instruction, Register};

use crate::code::cache::CodeCache;
use crate::long::context::at;
use crate::long::low::LowMemory;
use crate::long::space::Stubs;
use crate::long::writer::Writer;

/// The addresses in the context of code that blocks share.
#[derive(Debug, Clone, Copy, Default)]
#[repr(C)]
pub(crate) struct Shared {
    /// Leaves translated code for the reason in R10D.
    pub(crate) way_out: u64,
    /// Leaves translated code by the exit with the number in R11D, since the jump table has no code for the target in
    /// R10. The guest's RCX is still in the context.
    pub(crate) missed: u64,
    /// Returns to the address in R10, which is not that of the last call's landing, by the jump table. The guest's RSP
    /// is that after the return, its RCX is in R11, and the number of the exit in ECX.
    pub(crate) elsewhere: u64,
}

/// Writes all of this to the empty `cache`, and the code to which spaces lead where they have none.
pub(crate) fn write(cache: &mut CodeCache, low: &mut LowMemory) -> Stubs {
    let addresses = low.addresses();
    let mut add = |write: fn(&mut Writer)| {
        let place = cache.end();
        let mut writer = Writer::new(place, addresses, false);
        write(&mut writer);
        cache.add(&writer.emitter.finish());
        place
    };
    low.context().shared = Shared {
        way_out: add(Writer::way_out).into(),
        missed: add(Writer::miss).into(),
        elsewhere: add(Writer::return_by_table).into(),
    };
    Stubs { miss: add(Writer::leave_to_look_up), landing: add(Writer::land_on_empty_stack) }
}

impl Writer {
    /// Writes [`Shared::way_out`].
    fn way_out(&mut self) {
        self.load_context();
        self.jump_by(at::LEAVE);
    }

    /// Writes [`Shared::missed`].
    fn miss(&mut self) {
        self.restore_rcx();
        self.note_target();
        let number = Instruction::with2(Code::Mov_r32_rm32, Register::R10D, Register::R11D);
        self.emitter.instruction(number);
        self.jump_by(at::WAY_OUT);
    }

    /// Writes [`Shared::elsewhere`].
    fn return_by_table(&mut self) {
        let number = self.field(at::MISSED_EXIT);
        self.emitter.instruction(Instruction::with2(Code::Mov_rm32_r32, number, Register::ECX));
        self.forget_call();
        let missed = self.look_up();
        self.jump_to_found();
        self.emitter.land(missed);
        let number = self.field(at::MISSED_EXIT);
        self.emitter.instruction(Instruction::with2(Code::Mov_r32_rm32, Register::R11D, number));
        self.jump_by(at::MISSED);
    }
}
