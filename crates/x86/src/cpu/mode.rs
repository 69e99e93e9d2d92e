//! Modes and privilege, the control registers, and what follows from their changes.

use crate::cpu::invalidations::Invalidations;
use crate::cpu::{Attention, Cpu, Cr0, Cr4};
use crate::decode::CodeMode;
use crate::flags::Eflags;
use crate::jumps::Jumps;
use crate::segment::{Segment, sreg};
use crate::tlb::Space;

/// The bit of addresses that A20M# masks.
const ADDRESS_LINE_20: u64 = 1 << 20;

impl Cpu {
    /// Current privilege level (SDM vol. 3, 6.5).
    #[inline(always)]
    pub fn cpl(&self) -> u8 {
        self.cpl
    }

    /// Loads CS for a transfer to privilege level `cpl`.
    pub(crate) fn set_code_segment(&mut self, segment: Segment, cpl: u8) {
        let selector = segment.selector & !3 | u16::from(cpl);
        let segment = Segment { selector, ..segment };
        if *self.segment(sreg::CS) != segment {
            self.set_segment(sreg::CS, segment);
        }
    }

    /// CPL is the DPL of SS in protected mode (SDM vol. 3, 25.4.1: the two are always equal),
    /// 3 in virtual-8086 and 0 in real mode. It is not the RPL of CS, which between MOV to CR0 and
    /// the far jump into protected mode is part of a real-mode address.
    pub(super) fn update_cpl(&mut self) {
        self.cpl = if !self.cr0.contains(Cr0::PE) {
            0
        } else if self.system_flags.contains(Eflags::VM) {
            3
        } else {
            self.segments[sreg::SS as usize].attributes.dpl()
        };
        self.tlb.enter(Space::of(self.is_user()));
        self.update_fetch_tag();
        self.update_alignment_check();
    }

    pub(super) fn update_fetch_tag(&mut self) {
        let limited = self.segment(sreg::CS).limit != u32::MAX;
        let bits = self.code_mode().index() as u64
            | u64::from(self.is_user()) << 2
            | u64::from(limited) << 3;
        self.fetch_tag = bits << 32 | self.fetch_generation << 36;
    }

    /// Alignment is checked where the TLB does not help, so that it costs nothing while it is
    /// off: entries for the user give no rights while it is on.
    fn update_alignment_check(&mut self) {
        let checks = self.is_user() && self.cr0.contains(Cr0::AM) && self.has_flag(Eflags::AC);
        if checks != self.checks_alignment {
            self.checks_alignment = checks;
            self.tlb.flush_space(Space::of(true));
        }
    }

    /// EFLAGS.AC is set.
    pub fn has_alignment_flag(&self) -> bool {
        self.has_flag(Eflags::AC)
    }

    /// Sets EFLAGS.AC, as STAC and CLAC do.
    pub fn set_alignment_flag(&mut self, value: bool) {
        self.system_flags.set(Eflags::AC, value);
        self.update_alignment_check();
        self.forget_open_pages();
    }

    /// Supervisor code that is open to pages of the user no longer, as EFLAGS.AC is clear, has them in the TLB no longer.
    pub(super) fn forget_open_pages(&mut self) {
        if self.supervisor_is_kept_from_users() {
            self.tlb.flush_user_pages();
        }
    }

    /// Supervisor code is kept from data in pages of the user now: CR4.SMAP is set and EFLAGS.AC is not (SDM vol. 3, 5.6.1).
    pub fn supervisor_is_kept_from_users(&self) -> bool {
        self.cr4.contains(Cr4::SMAP) && !self.has_flag(Eflags::AC)
    }

    /// The code that runs is the user's, and its accesses must be aligned: CR0.AM and EFLAGS.AC are set.
    pub fn alignment_is_checked(&self) -> bool {
        self.checks_alignment
    }

    /// EFLAGS as PUSHF pushes it.
    pub fn pushed_flags(&self) -> u32 {
        self.eflags_image() & !(Eflags::RF | Eflags::VM).bits()
    }

    /// Sets IF, without what STI does beside.
    pub fn set_interrupt_flag(&mut self, value: bool) {
        self.system_flags.set(Eflags::IF, value);
    }

    /// Protected mode, not virtual-8086 mode.
    #[inline(always)]
    pub fn in_protected_mode(&self) -> bool {
        self.cr0.contains(Cr0::PE) && !self.has_flag(Eflags::VM)
    }

    /// Virtual-8086 mode.
    pub fn in_virtual_8086_mode(&self) -> bool {
        self.cr0.contains(Cr0::PE) && self.has_flag(Eflags::VM)
    }

    /// Accesses are user accesses for paging.
    #[inline(always)]
    pub fn is_user(&self) -> bool {
        self.cpl == 3
    }

    /// Code is 32-bit by default (CS.D).
    #[inline(always)]
    pub(crate) fn code_is_32_bit(&self) -> bool {
        self.segments[sreg::CS as usize].attributes.big()
    }

    /// How code is decoded now.
    #[inline(always)]
    pub fn code_mode(&self) -> CodeMode {
        CodeMode { is_32_bit: self.code_is_32_bit(), is_flat: self.is_flat }
    }

    /// The bits of ESP that count: all 32, or 16 with a 16-bit stack segment.
    #[inline(always)]
    pub(crate) fn stack_mask(&self) -> u64 {
        if self.segments[sreg::SS as usize].attributes.big() { 0xffff_ffff } else { 0xffff }
    }

    /// CR0.
    pub fn cr0(&self) -> Cr0 {
        self.cr0
    }

    /// CR4.
    pub fn cr4(&self) -> Cr4 {
        self.cr4
    }

    /// CR3.
    pub fn cr3(&self) -> u64 {
        self.cr3
    }

    /// Sets CR0 without the checks that MOV to CR0 makes first.
    pub fn set_cr0(&mut self, value: Cr0) {
        let changed = self.cr0 ^ (value | Cr0::ET);
        self.cr0 = value | Cr0::ET;
        if changed.intersects(Cr0::PE | Cr0::AM) {
            self.update_cpl();
        }
        // Without paging, addresses mean what they mean at any privilege.
        if changed.contains(Cr0::PG) || changed.contains(Cr0::WP) && value.contains(Cr0::PG) {
            self.translation_changed();
        }
    }

    /// Sets CR3, as MOV to CR3 does: what is not global leaves the TLB.
    pub fn set_cr3(&mut self, value: u64) {
        self.cr3 = value;
        self.tlb.flush_non_global();
        self.invalidations.note_non_global();
        self.forget_jumps();
    }

    /// Sets the page-directory-pointer-table entries, as loads of CR3 do with PAE paging, without
    /// checks.
    pub fn set_pdptes(&mut self, entries: [u64; 4]) {
        self.pdptes = entries;
        self.translation_changed();
    }

    /// Sets CR4 without the checks that MOV to CR4 makes first. The TLB is emptied where a bit changes on which it depends what page tables
    /// mean (SDM vol. 3, 5.10.4.1).
    pub fn set_cr4(&mut self, value: Cr4) {
        const OF_PAGING: Cr4 =
            Cr4::PSE.union(Cr4::PAE).union(Cr4::PGE).union(Cr4::SMEP).union(Cr4::SMAP);
        let changed = self.cr4 ^ value;
        self.cr4 = value;
        if changed.intersects(OF_PAGING) {
            self.translation_changed();
        }
    }

    /// Drives the A20M# pin. While address line 20 is not `high`, bit 20 is 0 in each guest-physical address
    /// that leaves the processor, for data, instructions and page tables alike: below 2 MiB addresses wrap round
    /// at 1 MiB as on the 8086 (SDM vol. 3, 21.1.1). It is high at power-on, and a reset of the processor leaves it
    /// as it is. To be called between two instructions.
    pub fn set_a20(&mut self, high: bool) {
        if high != self.a20() {
            self.address_mask = if high { u64::MAX } else { !ADDRESS_LINE_20 };
            self.translation_changed();
        }
    }

    /// Address line 20 is not masked.
    pub fn a20(&self) -> bool {
        self.address_mask == u64::MAX
    }

    /// Drops everything that was derived from the page tables.
    pub(crate) fn translation_changed(&mut self) {
        self.tlb.flush();
        self.invalidations.note_all();
        self.forget_jumps();
    }

    /// STI was executed while IF was clear: no interrupt comes before the next instruction is over (SDM vol. 2, STI).
    pub fn hold_interrupts(&mut self) {
        self.attention |= Attention::SHADOW;
    }

    /// The page at `place` has come to hold code that another engine than the interpreter has decoded: writes there must
    /// be noticed.
    pub fn protect_code(&mut self, place: usize) {
        self.tlb.protect(place);
    }

    /// What was invalidated since the last call.
    pub fn take_invalidations(&mut self) -> Invalidations {
        std::mem::take(&mut self.invalidations)
    }

    /// True where [`Cpu::take_invalidations`] has something to tell.
    pub fn has_invalidations(&self) -> bool {
        !self.invalidations.is_empty()
    }

    /// INVLPG.
    pub(crate) fn invalidate_page(&mut self, linear: u64) {
        if self.a20() {
            self.invalidations.note_page(linear);
        } else {
            // Of a large page, engines have its parts.
            self.invalidations.note_all();
        }
        let was_large = self.tlb.flush_page(linear);
        if was_large || self.jumps.has_fetched(linear) {
            self.forget_jumps();
        }
    }

    /// What is fetched at an address may have changed, or what was decoded there was dropped.
    pub(crate) fn forget_jumps(&mut self) {
        self.set_fetch_generation(self.fetch_generation + 1);
        self.jumps.forget_fetches();
    }

    /// Goes on with another generation of what is fetched.
    pub(crate) fn set_fetch_generation(&mut self, generation: u64) {
        // The tag has not all bits of it: what is kept from long ago is not to be taken for new.
        if generation << 36 == 0 {
            self.jumps = Jumps::default();
        }
        self.fetch_generation = generation;
        self.update_fetch_tag();
    }

    /// `linear` with all else that tells what is executed there: how it is decoded, the
    /// privilege, and [`Cpu::fetch_generation`].
    #[inline(always)]
    pub(crate) fn fetch_key(&self, linear: u64) -> u64 {
        linear | self.fetch_tag
    }

    /// Code is fetched from the page of `linear`.
    pub(crate) fn note_fetch(&mut self, linear: u64) {
        self.jumps.note_fetch(linear);
    }

    /// The block at `linear` begins with decoded instruction number `at`.
    pub(crate) fn note_jump(&mut self, linear: u64, at: usize) {
        // Where CS has a limit, somebody must look at it.
        if self.segment(sreg::CS).limit == u32::MAX {
            self.jumps.note(self.fetch_key(linear), at);
        }
    }

    /// The number of the first decoded instruction of the block at EIP, if it is known.
    #[inline(always)]
    pub(crate) fn known_jump(&self) -> Option<usize> {
        let linear = self.segment(sreg::CS).base.wrapping_add(self.ip) & 0xffff_ffff;
        self.jumps.find(self.fetch_key(linear))
    }
}
