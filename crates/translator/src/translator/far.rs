//! Far transfers of segmented code, which stay in translated code if they go to a code segment that was
//! entered before.

use ring3_core::memory::Memory;
use ring3_x86::cpu::{Cpu, Cr0};
use ring3_x86::flags::Eflags;
use ring3_x86::segment::{Segment, sreg};

use super::Translator;
use crate::context::{FAR_MODES, FarMode};
use crate::mode::{Loading, Mode, Segmented};

/// What all code segments that far transfers lead to and from have in common.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Family {
    /// Whether they are those of users.
    is_user: bool,
    /// The mode without the properties of CS.
    segmented: Segmented,
    /// CR3 for code of users, which has a space for each value.
    cr3: Option<u64>,
    /// The value of [`Space::tables_generation`](crate::memory::space::Space::tables_generation).
    tables: u64,
}

/// The code segments to which far transfers can lead.
#[derive(Debug)]
pub(super) struct Far {
    /// The family of each of [`Context::far_modes`](crate::context::Context::far_modes), or None if no
    /// segment is known there.
    families: [Option<Family>; 2],
    /// The contents of CS for each segment of protected mode.
    segments: [Segment; FAR_MODES],
}

impl Far {
    pub(super) fn new() -> Far {
        Far { families: [None; 2], segments: [Segment::null(0); FAR_MODES] }
    }

    /// Returns whether IOPL is 3 in the virtual-8086 mode whose code segments are known, or None if none are.
    pub(super) fn virtual_8086_privilege(&self) -> Option<bool> {
        match self.families[0]?.segmented.loading {
            Loading::Virtual8086 { is_privileged } => Some(is_privileged),
            _ => None,
        }
    }

    /// Returns whether the segments that are known without descriptors are those of users with CR3 = `cr3`
    /// and these [jump tables](Family::tables).
    pub(super) fn is_program_of(&self, cr3: u64, tables: u64) -> bool {
        self.families[0].is_some_and(|family| family.cr3 == Some(cr3) && family.tables == tables)
    }

    /// Returns the contents of CS for the segment of protected mode at `place`.
    pub(super) fn segment(&self, place: usize) -> Segment {
        self.segments[place]
    }
}

/// Offset of the last byte of the interrupt vectors of real mode.
const LAST_VECTOR_BYTE: u16 = 0x3ff;

impl Translator {
    /// Prepares far transfers for code that is about to be entered, whose jump table is at `table`.
    pub(super) fn allow_far_transfers(&mut self, cpu: &mut Cpu, memory: &mut Memory, table: u64) {
        let mode = self.modes.current().1;
        let Some(segmented) = mode.segmented else { return };
        let is_protected = segmented.loading == Loading::Protected;
        self.prepare_far_transfers(cpu, &mode, true);
        self.context.no_returns = self.spaces.current(mode.is_user).returns().empty();
        self.note_far_mode(cpu, memory, table, is_protected);
        let is_real = !cpu.cr0().contains(Cr0::PE);
        let has_vectors =
            is_real && cpu.idtr.limit >= LAST_VECTOR_BYTE && !cpu.eflags().contains(Eflags::AC);
        self.context.real_vectors = cpu.idtr.base as u32;
        self.context.allow_vectors(has_vectors);
        let may_return = mode.changes_interrupt_flag()
            && !cpu.nmi_is_blocked()
            && !(is_protected && cpu.eflags().contains(Eflags::NT));
        self.context.allow_far_returns(is_protected, may_return);
    }

    /// Makes far transfers of code of `mode` find the code segments that are known for such code. If those of
    /// other code are known, forgets them, or returns false unless it `may_replace` them.
    pub(super) fn prepare_far_transfers(
        &mut self,
        cpu: &Cpu,
        mode: &Mode,
        may_replace: bool,
    ) -> bool {
        let Some(segmented) = mode.segmented else { return false };
        let is_protected = segmented.loading == Loading::Protected;
        let is_user = mode.is_user;
        let limit = if is_protected { 0 } else { segmented.limit };
        let is_32_bit = !is_protected && segmented.is_32_bit;
        let family = Family {
            is_user,
            segmented: Segmented { base: 0, limit, is_32_bit, ..segmented },
            cr3: is_user.then(|| cpu.cr3()),
            tables: self.spaces.current(is_user).tables_generation(),
        };
        let which = usize::from(is_protected);
        let is_same = self.far.families[which] == Some(family);
        if !is_same && may_replace {
            self.far.families[which] = Some(family);
            self.context.far_modes[which] = [FarMode::NONE; FAR_MODES];
        }
        is_same || may_replace
    }

    /// Makes the code segment that is about to be entered one that far transfers find.
    fn note_far_mode(
        &mut self,
        cpu: &mut Cpu,
        memory: &mut Memory,
        table: u64,
        is_protected: bool,
    ) {
        let code = *cpu.segment(sreg::CS);
        let place = FarMode::place(code.selector);
        let known = &self.context.far_modes[FarMode::BY_DESCRIPTOR][place];
        let mut mode = FarMode {
            selector: code.selector.into(),
            base: code.base as u32,
            table,
            code_limit: self.context.code_limit,
            ..FarMode::NONE
        };
        if is_protected {
            if known.selector == mode.selector
                && known.table == table
                && self.far.segments[place] == code
            {
                return;
            }
            let Translator { descriptors, limits, context, .. } = self;
            let Some(known) = descriptors.note_code(cpu, memory, limits, context) else { return };
            (mode.host, mode.descriptor) = (known.host, known.descriptor);
        } else if code.base != u64::from(code.selector) << 4 {
            return;
        }
        self.context.far_modes[usize::from(is_protected)][place] = mode;
        if is_protected {
            self.far.segments[place] = code;
        }
    }

    /// Gives CS to the processor if far transfers have loaded it. The current mode is then that of the code
    /// that was left.
    pub(super) fn take_far_transfers(&mut self, cpu: &mut Cpu) {
        if std::mem::take(&mut self.context.has_gone_far) == 0 {
            return;
        }
        let selector = self.context.selectors[usize::from(sreg::CS)];
        if cpu.in_protected_mode() {
            cpu.set_segment(sreg::CS, self.far.segments[FarMode::place(selector)]);
        } else {
            cpu.load_code_without_descriptor(selector);
        }
        self.enter_mode(cpu);
        let (mode, _) = self.modes.current();
        let space = self.spaces.current(cpu.is_user());
        (self.context.table, self.context.index_mask) = space.enter(mode);
    }

    /// Forgets the code segments to which far transfers can lead.
    pub(super) fn forget_far_transfers(&mut self) {
        self.far.families = [None; 2];
        self.context.far_modes = [[FarMode::NONE; FAR_MODES]; 2];
    }
}
