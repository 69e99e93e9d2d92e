//! Where processors differ, or a case cannot be run, without being undefined
//! as [`ring3_x86::undefined`] has it.

use iced_x86::{Code, Mnemonic};
use ring3_hostcpu::{PAGE_SIZE, Stop, Vendor, gpr};
use ring3_x86::undefined::undefined;

use crate::common::comparison::{Case, Outcome, Scene, data_offset};
use crate::common::guest::SUPERVISOR_START;
use crate::scene::IntegerScene;

impl Scene for IntegerScene {
    fn case(&self) -> &Case {
        &self.0
    }

    fn is_left_out(&self, ours: &Outcome, _: Vendor) -> bool {
        let case = &self.0;
        // The host's descriptor table may know it.
        if self.reads_unknown_selector() {
            return true;
        }
        // With a mask of no bytes AMD's processors fault where others and we do not.
        if self.masks_all_bytes() {
            return true;
        }
        match ours.stop {
            // An endless loop.
            Stop::Timeout => true,
            Stop::Reached => {
                // What is fetched in the middle of the instruction could be anything.
                let into_itself =
                    ours.state.eip.wrapping_sub(case.start.eip) < case.code.len() as u32;
                // Of a PUSH of a segment register, some processors write two bytes and
                // some four: only the latter may fault in the second page.
                let crosses_page = ours.state.gpr[gpr::ESP] % PAGE_SIZE > PAGE_SIZE - 4;
                into_itself || pushes_segment(case) && crosses_page
            }
            Stop::Exception { vector: 14, cr2, .. } => {
                // On the host nothing is mapped there.
                let supervisor = cr2.wrapping_sub(SUPERVISOR_START) < 8 * PAGE_SIZE;
                // Accesses that wrap around at 4 GiB may raise #SS or #GP (SDM vol. 3, 6.3).
                let wraps = cr2 >= 0xffff_fff0;
                // AMD's processors raise #UD without fetching the rest of the instruction.
                let undefined =
                    matches!(case.instruction.mnemonic(), Mnemonic::Ud0 | Mnemonic::Ud1);
                supervisor || wraps || undefined
            }
            Stop::Exception { .. } => false,
        }
    }

    fn forgive(&self, host: &mut Outcome, ours: &Outcome) {
        if ours.stop == Stop::Reached {
            self.forgive_undefined(host, ours);
            if pushes_segment(&self.0) {
                forgive_unwritten(host, ours);
            }
            self.forgive_image(host, ours);
        } else if matches!(self.0.instruction.mnemonic(), Mnemonic::Fxsave | Mnemonic::Fxrstor) {
            // Processors access the parts of the image in an order of their own, so that either
            // of its pages may be the first one to fault.
            let page_fault =
                |outcome: &Outcome| matches!(outcome.stop, Stop::Exception { vector: 14, .. });
            if page_fault(host) && page_fault(ours) {
                host.stop = ours.stop;
            }
        } else if self.0.instruction.mnemonic() == Mnemonic::Maskmovq {
            // AMD's processors set TOP and the tags before the fault, which does no harm: they
            // are set when the instruction starts again.
            host.state.fx = ours.state.fx.clone();
        } else if matches!(self.0.instruction.mnemonic(), Mnemonic::Popa | Mnemonic::Popad) {
            // Some registers may have been popped before the fault; ESP has not moved, so that
            // it does no harm to do it again.
            let stack_pointer = host.state.gpr[gpr::ESP];
            host.state.gpr = ours.state.gpr;
            host.state.gpr[gpr::ESP] = stack_pointer;
        }
    }
}

impl IntegerScene {
    /// Of an image of FXSAVE, the pointers and the opcode are kept by each processor in its own way,
    /// and AMD's have a bit more in MXCSR.
    fn forgive_image(&self, host: &mut Outcome, ours: &Outcome) {
        if self.0.instruction.mnemonic() != Mnemonic::Fxsave {
            return;
        }
        for offset in (6..24).chain(28..32) {
            if let Some(place) = data_offset(self.memory_address().wrapping_add(offset)) {
                host.data[place] = ours.data[place];
            }
        }
    }

    /// What the manual leaves undefined when the instruction completes.
    fn forgive_undefined(&self, host: &mut Outcome, ours: &Outcome) {
        if host.stop != Stop::Reached {
            return;
        }
        let undefined = undefined(&self.0.instruction, self.0.start.gpr[gpr::ECX] as u8);
        if undefined.destination {
            *host = ours.clone();
        }
        let mask = undefined.flags.bits();
        host.state.eflags = host.state.eflags & !mask | ours.state.eflags & mask;
    }
}

/// Intel's recent processors leave the high word on the stack alone, as we do; AMD's
/// write zeros to it (SDM vol. 2, PUSH, "IA-32 architecture compatibility").
fn forgive_unwritten(host: &mut Outcome, ours: &Outcome) {
    let high_word = ours.state.gpr[gpr::ESP].wrapping_add(2);
    for place in [high_word, high_word.wrapping_add(1)].into_iter().filter_map(data_offset) {
        host.data[place] = ours.data[place];
    }
}

/// PUSH of a segment register with a 32-bit operand.
fn pushes_segment(case: &Case) -> bool {
    matches!(
        case.instruction.code(),
        Code::Pushd_ES
            | Code::Pushd_CS
            | Code::Pushd_SS
            | Code::Pushd_DS
            | Code::Pushd_FS
            | Code::Pushd_GS
    )
}
