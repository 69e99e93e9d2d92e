//! Where processors differ, or a case cannot be run, without being undefined
//! as [`ring3_x86::undefined`] has it.

use std::ops::Range;

use iced_x86::{Code, Mnemonic};
use ring3_hostcpu::{Layout, PAGE_SIZE, State, Stop, gpr};

use crate::guest::SUPERVISOR_START;
use crate::scene::Scene;

/// Cases that cannot be compared, which shows when they have run on our side.
pub(crate) fn is_left_out(scene: &Scene, ours: &State, our_stop: Stop) -> bool {
    if scene.reads_unknown_selector() {
        return true;
    }
    match our_stop {
        // An endless loop.
        Stop::Timeout => true,
        // What is fetched in the middle of the instruction could be anything.
        Stop::Reached => {
            let into_itself = ours.eip.wrapping_sub(scene.start.eip) < scene.code.len() as u32;
            let crosses_page = ours.gpr[gpr::ESP] % PAGE_SIZE > PAGE_SIZE - 4;
            into_itself || pushes_segment(scene) && crosses_page
        }
        Stop::Exception { vector: 14, cr2, .. } => {
            let supervisor = cr2.wrapping_sub(SUPERVISOR_START) < 8 * PAGE_SIZE;
            // Accesses that wrap around at 4 GiB may raise #SS or #GP (SDM vol. 3, 6.3).
            let wraps = cr2 >= 0xffff_fff0;
            // AMD's processors raise #UD without fetching the rest of the instruction.
            let undefined = matches!(scene.instruction.mnemonic(), Mnemonic::Ud0 | Mnemonic::Ud1);
            supervisor || wraps || undefined
        }
        Stop::Exception { .. } => false,
    }
}

/// A page fault's error code as it is without execute-disable, which the host has and
/// two-level paging has not: bit 4 says that an instruction was fetched.
pub(crate) fn as_without_nx(stop: Stop) -> Stop {
    match stop {
        Stop::Exception { vector: 14, error_code, cr2 } => {
            Stop::Exception { vector: 14, error_code: error_code & !0x10, cr2 }
        }
        other => other,
    }
}

/// Makes `host` equal to `ours` where it may be different.
pub(crate) fn forgive(scene: &Scene, host: &mut State, ours: &State, our_stop: Stop) {
    let faulted = matches!(our_stop, Stop::Exception { .. });
    if faulted && matches!(scene.instruction.mnemonic(), Mnemonic::Popa | Mnemonic::Popad) {
        // Some registers may have been popped already; ESP has not moved, so that
        // it does no harm to do it again.
        let stack_pointer = host.gpr[gpr::ESP];
        host.gpr = ours.gpr;
        host.gpr[gpr::ESP] = stack_pointer;
    }
}

/// The bytes of the data region that PUSH of a segment register may leave alone: its high
/// word (SDM vol. 2, PUSH, "IA-32 architecture compatibility").
pub(crate) fn unwritten(scene: &Scene, ours: &State, our_stop: Stop) -> Option<Range<usize>> {
    if !pushes_segment(scene) || our_stop != Stop::Reached {
        return None;
    }
    let start = ours.gpr[gpr::ESP].wrapping_add(2).checked_sub(Layout::FIXED.data.start)?;
    (start + 2 <= Layout::FIXED.data.len).then_some(start as usize..start as usize + 2)
}

fn pushes_segment(scene: &Scene) -> bool {
    matches!(
        scene.instruction.code(),
        Code::Pushd_ES
            | Code::Pushd_CS
            | Code::Pushd_SS
            | Code::Pushd_DS
            | Code::Pushd_FS
            | Code::Pushd_GS
    )
}
