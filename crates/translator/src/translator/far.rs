//! Far transfers of real mode and virtual-8086 mode stay in translated code between segments of code that it has come to before.

use ring3_x86::cpu::{Cpu, Cr0};
use ring3_x86::flags::Eflags;
use ring3_x86::segment::sreg;

use super::Translator;
use crate::context::{FAR_MODES, FarMode};
use crate::mode::{Loading, Segmented};

/// What all segments of code have in common that far transfers lead to and from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Family {
    /// The mode but for its base.
    segmented: Segmented,
    /// CR3 of virtual-8086 mode, which has a space for each.
    cr3: Option<u64>,
    /// [`Space::tables_generation`](crate::space::Space::tables_generation).
    tables: u64,
}

/// The last byte of the vectors of real mode.
const LAST_VECTOR_BYTE: u16 = 0x3ff;

impl Translator {
    /// Code whose jump table is at `table` is about to be entered.
    pub(super) fn allow_far_transfers(&mut self, cpu: &Cpu, table: u64) {
        let mode = self.modes.current().1;
        let Some(segmented) = mode.segmented else { return };
        if segmented.loading == Loading::Protected {
            return;
        }
        let is_user = cpu.is_user();
        let space = self.spaces.current(is_user);
        let family = Family {
            segmented: Segmented { base: 0, ..segmented },
            cr3: is_user.then(|| cpu.cr3()),
            tables: space.tables_generation(),
        };
        if self.family != Some(family) {
            self.family = Some(family);
            self.context.far_modes = [FarMode::NONE; FAR_MODES];
        }
        let returns = self.spaces.current(is_user).returns();
        self.context.no_returns = returns.empty();
        let code = cpu.segment(sreg::CS);
        if code.base == u64::from(code.selector) << 4 {
            self.context.note_far_mode(code.selector, table);
        }
        let is_real = !cpu.cr0().contains(Cr0::PE);
        let has_vectors =
            is_real && cpu.idtr.limit >= LAST_VECTOR_BYTE && !cpu.eflags().contains(Eflags::AC);
        let real_vectors = has_vectors.then_some(cpu.idtr.base as u32);
        let returns = mode.changes_interrupt_flag() && !cpu.nmi_is_blocked();
        self.context.allow_far_interrupts(real_vectors, returns);
    }

    /// Takes back where far transfers have gone, so that the mode is that of the code which was left.
    pub(super) fn take_far_transfers(&mut self, cpu: &mut Cpu) {
        if std::mem::take(&mut self.context.has_gone_far) == 0 {
            return;
        }
        let selector = self.context.selectors[usize::from(sreg::CS)];
        cpu.load_code_without_descriptor(selector);
        self.enter_mode(cpu);
        let (mode, _) = self.modes.current();
        let space = self.spaces.current(cpu.is_user());
        (self.context.table, self.context.index_mask) = space.enter(mode);
    }

    /// Forgets where far transfers go.
    pub(super) fn forget_far_transfers(&mut self) {
        self.family = None;
        self.context.far_modes = [FarMode::NONE; FAR_MODES];
    }
}
