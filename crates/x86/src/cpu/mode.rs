//! Modes, privilege and control registers, and the effects of their changes.

use crate::cpu::invalidations::Invalidations;
use crate::cpu::{Attention, Cpu, Cr0, Cr4, LINEAR_32_BIT, reg};
use crate::decode::{CodeMode, CodeSize};
use crate::flags::Eflags;
use crate::jumps::Jumps;
use crate::segment::{Segment, View, sreg};
use crate::tlb::Space;

/// The lowest bit of the tag in [`Cpu::fetch_key`], which is above all bits in which canonical addresses of
/// one half differ. All of them are inverted in the other half. No tag is the inverse of another one, because
/// three of its bits are the number of a mode, and seven minus that is none, or not one of 64-bit mode.
const TAG_SHIFT: u32 = 48;
/// The lowest bit of the generation in the tag.
const GENERATION_SHIFT: u32 = TAG_SHIFT + 5;

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

    /// Updates CPL. It is the DPL of SS in protected mode (SDM vol. 3, 25.4.1: the two are always equal), 3
    /// in virtual-8086 mode and 0 in real mode. It is not the RPL of CS, which is part of a real-mode address
    /// between MOV to CR0 and the far jump into protected mode.
    pub(super) fn update_cpl(&mut self) {
        self.cpl = if !self.cr0.contains(Cr0::PE) {
            0
        } else if self.system_flags.contains(Eflags::VM) {
            3
        } else {
            self.segments[sreg::SS as usize].attributes.dpl()
        };
        self.has_run_users |= self.is_user();
        self.tlb.enter(Space::of(self.is_user()));
        self.update_fetch_tag();
        self.update_alignment_check();
    }

    /// Notes that code of users has run, for an engine that has come back from it to the supervisor's.
    pub fn note_users(&mut self) {
        self.has_run_users = true;
    }

    /// Returns whether CPL has been 3 at any time since the last call.
    pub fn take_users(&mut self) -> bool {
        let is_user = self.is_user();
        std::mem::replace(&mut self.has_run_users, is_user)
    }

    pub(super) fn update_fetch_tag(&mut self) {
        let bits = self.code_mode.index() as u64
            | u64::from(self.is_user()) << 3
            | u64::from(self.code_has_limit()) << 4;
        self.fetch_tag = bits << TAG_SHIFT | self.fetch_generation << GENERATION_SHIFT;
    }

    /// Returns whether CS has a limit below the highest address of its code.
    fn code_has_limit(&self) -> bool {
        !self.is_in_64_bit_mode() && self.segment(sreg::CS).limit != u32::MAX
    }

    /// Returns the highest offset in CS at which there may be code. In 64-bit mode all canonical addresses
    /// may have code.
    #[inline(always)]
    pub(crate) fn code_limit(&self) -> u64 {
        if self.is_in_64_bit_mode() { u64::MAX } else { self.segment(sreg::CS).limit.into() }
    }

    /// Returns whether long mode is active (IA32_EFER.LMA): paging is enabled with IA32_EFER.LME set.
    #[inline(always)]
    pub fn is_in_long_mode(&self) -> bool {
        self.msrs.long.enabled && self.cr0.contains(Cr0::PG)
    }

    /// Returns whether the running code is 64-bit code, not compatibility mode or code outside long mode.
    #[inline(always)]
    pub fn is_in_64_bit_mode(&self) -> bool {
        self.code_mode.size == CodeSize::Bits64
    }

    /// Updates what accesses need of segment register `register`.
    pub(super) fn update_view(&mut self, register: u8) {
        let place = usize::from(register & 7);
        let segment = &self.segments[place];
        self.views[place] = if self.code_mode.size == CodeSize::Bits64 {
            View::in_64_bit_mode(register, segment)
        } else {
            View::of(segment)
        };
        if register == sreg::SS {
            self.stack_mask = match (self.code_mode.size, segment.attributes.big()) {
                (CodeSize::Bits64, _) => u64::MAX,
                (_, true) => 0xffff_ffff,
                (_, false) => 0xffff,
            };
        }
    }

    /// Clears the upper half of a general register. Those of RAX to RDI are undefined after a change from 64-bit
    /// mode to another one (SDM vol. 1, 3.4.1.1). Here they are zero, as they are outside long mode, so that an
    /// engine has the same registers in all modes but 64-bit mode.
    pub(crate) fn drop_upper_half(&mut self, register: u8) {
        self.set_gpr(register, self.gpr(register) & LINEAR_32_BIT);
    }

    /// Updates the mode in which code is decoded, and what depends on it.
    pub(super) fn update_code_mode(&mut self) {
        let code = self.segments[sreg::CS as usize].attributes;
        let size = if code.is_64_bit() && self.is_in_long_mode() {
            CodeSize::Bits64
        } else {
            CodeSize::of(code.big())
        };
        let was_64_bit = self.code_mode.size == CodeSize::Bits64;
        self.code_mode.size = size;
        if was_64_bit != (size == CodeSize::Bits64) {
            self.linear_mask = if was_64_bit { LINEAR_32_BIT } else { u64::MAX };
            if was_64_bit {
                (reg::AX..=reg::DI).for_each(|register| self.drop_upper_half(register));
            }
            (sreg::ES..=sreg::GS).for_each(|register| self.update_view(register));
        }
        let has_no_limits = [sreg::DS, sreg::ES, sreg::SS].into_iter().all(|register| {
            let view = self.view(register);
            view.base == 0 && view.reads_at_once && view.writes_at_once
        });
        self.code_mode.is_flat = has_no_limits && self.stack_mask != 0xffff;
        self.update_fetch_tag();
    }

    /// Updates whether alignment is checked. The check is made where the TLB does not allow an access, so
    /// that it costs nothing while it is off: while it is on, TLB entries give the user no rights.
    fn update_alignment_check(&mut self) {
        let checks = self.is_user() && self.cr0.contains(Cr0::AM) && self.has_flag(Eflags::AC);
        if checks != self.checks_alignment {
            self.checks_alignment = checks;
            self.tlb.flush_space(Space::of(true));
        }
    }

    /// Returns whether EFLAGS.AC is set.
    pub fn has_alignment_flag(&self) -> bool {
        self.has_flag(Eflags::AC)
    }

    /// Sets EFLAGS.AC, as STAC and CLAC do.
    pub fn set_alignment_flag(&mut self, value: bool) {
        self.system_flags.set(Eflags::AC, value);
        self.update_alignment_check();
        self.forget_open_pages();
    }

    /// Drops the TLB entries of user pages if supervisor code may no longer access them because EFLAGS.AC is
    /// clear.
    pub(super) fn forget_open_pages(&mut self) {
        if self.supervisor_is_kept_from_users() {
            self.tlb.flush_user_pages();
        }
    }

    /// Returns whether supervisor code may not access data in user pages: CR4.SMAP is set and EFLAGS.AC is
    /// clear (SDM vol. 3, 5.6.1).
    pub fn supervisor_is_kept_from_users(&self) -> bool {
        self.cr4.contains(Cr4::SMAP) && !self.has_flag(Eflags::AC)
    }

    /// Returns whether the accesses of the running code must be aligned: it is user code, and CR0.AM and
    /// EFLAGS.AC are set.
    pub fn alignment_is_checked(&self) -> bool {
        self.checks_alignment
    }

    /// Returns EFLAGS as PUSHF pushes it.
    pub fn pushed_flags(&self) -> u32 {
        self.eflags_image() & !(Eflags::RF | Eflags::VM).bits()
    }

    /// Sets IF, without the other effects of STI.
    pub fn set_interrupt_flag(&mut self, value: bool) {
        self.system_flags.set(Eflags::IF, value);
    }

    /// Returns whether the processor is in protected mode and not in virtual-8086 mode.
    #[inline(always)]
    pub fn in_protected_mode(&self) -> bool {
        self.cr0.contains(Cr0::PE) && !self.has_flag(Eflags::VM)
    }

    /// Returns whether the processor is in virtual-8086 mode.
    pub fn in_virtual_8086_mode(&self) -> bool {
        self.cr0.contains(Cr0::PE) && self.has_flag(Eflags::VM)
    }

    /// Returns whether accesses are user accesses for paging.
    #[inline(always)]
    pub fn is_user(&self) -> bool {
        self.cpl == 3
    }

    /// Returns the mode in which code is decoded now.
    #[inline(always)]
    pub fn code_mode(&self) -> CodeMode {
        self.code_mode
    }

    /// Returns the mask of the bits of RSP that are used: all of them in 64-bit mode, and otherwise 32, or 16
    /// with a 16-bit stack segment.
    #[inline(always)]
    pub(crate) fn stack_mask(&self) -> u64 {
        self.stack_mask
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
        // Paging activates and deactivates long mode.
        if changed.contains(Cr0::PG) {
            self.update_code_mode();
        }
        // Without paging, addresses have the same meaning at any privilege.
        if changed.contains(Cr0::PG) || changed.contains(Cr0::WP) && value.contains(Cr0::PG) {
            self.translation_changed();
        }
    }

    /// Sets CR3 and flushes the entries that are not global from the TLB, as MOV to CR3 does.
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

    /// Sets CR4 without the checks that MOV to CR4 makes first. It empties the TLB if a bit changes that
    /// affects the meaning of page tables (SDM vol. 3, 5.10.4.1).
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
    /// that leaves the processor, for data, instructions and page tables alike: below 2 MiB addresses wrap
    /// round at 1 MiB as on the 8086 (SDM vol. 3, 21.1.1). The line is high at power-on, and a reset of the
    /// processor does not change it. Call this only between two instructions.
    pub fn set_a20(&mut self, high: bool) {
        if high != self.a20() {
            self.address_mask = if high { u64::MAX } else { !ADDRESS_LINE_20 };
            self.translation_changed();
        }
    }

    /// Returns whether address line 20 is high, that is, not masked.
    pub fn a20(&self) -> bool {
        self.address_mask == u64::MAX
    }

    /// Drops everything that was derived from the page tables.
    pub fn translation_changed(&mut self) {
        self.tlb.flush();
        self.invalidations.note_all();
        self.forget_jumps();
    }

    /// Holds interrupts back until the next instruction is complete, as STI does if IF was clear (SDM vol. 2,
    /// STI).
    pub fn hold_interrupts(&mut self) {
        self.attention |= Attention::SHADOW;
    }

    /// Notes that an engine other than the interpreter has decoded code in the page at `place`, so that
    /// writes to this page must be noticed.
    pub fn protect_code(&mut self, place: usize) {
        self.tlb.protect(place);
    }

    /// Makes the next write to each page be noticed, as [`Cpu::protect_code`] does for one page.
    pub fn protect_all_code(&mut self) {
        self.tlb.protect_all();
    }

    /// Returns the invalidations since the last call.
    pub fn take_invalidations(&mut self) -> Invalidations {
        std::mem::take(&mut self.invalidations)
    }

    /// Returns whether [`Cpu::take_invalidations`] would return any.
    pub fn has_invalidations(&self) -> bool {
        !self.invalidations.is_empty()
    }

    /// Invalidates a page, as INVLPG does.
    pub(crate) fn invalidate_page(&mut self, linear: u64) {
        if self.a20() {
            self.invalidations.note_page(linear);
        } else {
            // Engines keep a large page in parts.
            self.invalidations.note_all();
        }
        let was_large = self.tlb.flush_page(linear);
        if was_large || self.jumps.has_fetched(linear) {
            self.forget_jumps();
        }
    }

    /// Notes that the bytes fetched at an address may have changed, or code that was decoded there was
    /// dropped.
    pub(crate) fn forget_jumps(&mut self) {
        self.set_fetch_generation(self.fetch_generation + 1);
        self.jumps.forget_fetches();
    }

    /// Sets the generation of fetched code.
    pub(crate) fn set_fetch_generation(&mut self, generation: u64) {
        // The tag does not contain all bits of the generation, so old entries must not be mistaken for new
        // ones.
        if generation << GENERATION_SHIFT == 0 {
            self.jumps = Jumps::default();
        }
        self.fetch_generation = generation;
        self.update_fetch_tag();
    }

    /// Returns `linear` together with the other values that determine what is executed there: how code is
    /// decoded, the privilege, and [`Cpu::fetch_generation`].
    #[inline(always)]
    pub(crate) fn fetch_key(&self, linear: u64) -> u64 {
        linear ^ self.fetch_tag
    }

    /// Notes that code is fetched from the page of `linear`.
    pub(crate) fn note_fetch(&mut self, linear: u64) {
        self.jumps.note_fetch(linear);
    }

    /// Notes that the block at `linear` begins with decoded instruction number `at`.
    pub(crate) fn note_jump(&mut self, linear: u64, at: usize) {
        // If CS has a limit, it must be checked at each jump.
        if !self.code_has_limit() {
            self.jumps.note(self.fetch_key(linear), at);
        }
    }

    /// Returns the number of the first decoded instruction of the block at EIP, if it is known.
    #[inline(always)]
    pub(crate) fn known_jump(&self) -> Option<usize> {
        self.jumps.find(self.fetch_key(self.linear_ip()))
    }
}
