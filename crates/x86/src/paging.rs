//! Paging: the translation from linear to guest-physical addresses (SDM vol. 3, chapter 5). What somebody outside
//! the guest asks of page tables is in [`outside`].

mod outside;

use ring3_core::memory::{Memory, Target};

use crate::access::is_canonical;
use crate::cpu::{Cpu, Cr0, Cr4};
use crate::cpuid::Features;
use crate::exception::{Fault, Stopped, vector};
use crate::tlb::{PageSize, Rights, Space};

/// The kind of an access.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// Data is read.
    Read,
    /// Data is written.
    Write,
    /// An instruction is fetched.
    Fetch,
}

/// The originator of an access (SDM vol. 3, 5.6).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum By {
    /// Code at privilege 3: a user-mode access.
    User,
    /// Code of lower privilege levels: an explicit supervisor-mode access.
    Supervisor,
    /// The processor, when it accesses its tables: an implicit supervisor-mode access at any privilege level.
    Processor,
}

impl By {
    /// Returns the originator for user code (`is_user`) or supervisor code.
    #[inline(always)]
    pub(crate) fn code(is_user: bool) -> By {
        if is_user { By::User } else { By::Supervisor }
    }

    #[inline(always)]
    pub(crate) fn is_user(self) -> bool {
        self == By::User
    }
}

/// Bits of paging-structure entries (SDM vol. 3, tables 5-4 to 5-6 and 5-8 to 5-11).
mod entry {
    pub(super) const PRESENT: u64 = 1 << 0;
    pub(super) const WRITABLE: u64 = 1 << 1;
    pub(super) const USER: u64 = 1 << 2;
    pub(super) const ACCESSED: u64 = 1 << 5;
    pub(super) const DIRTY: u64 = 1 << 6;
    /// In an entry of a higher level: the entry maps a large page.
    pub(super) const LARGE: u64 = 1 << 7;
    /// In a page-table entry: a bit of the memory type, on models with a page attribute table.
    pub(super) const PAT: u64 = 1 << 7;
    pub(super) const GLOBAL: u64 = 1 << 8;
    /// In the entry of a large page: a bit of the memory type, on models with a page attribute table.
    pub(super) const LARGE_PAT: u64 = 1 << 12;
    /// In an entry of 8 bytes: instructions cannot be fetched from here.
    pub(super) const NO_EXECUTE: u64 = 1 << 63;
    /// The address in an entry of 8 bytes, before the processor's number of address bits is considered.
    pub(super) const ADDRESS: u64 = 0x000f_ffff_ffff_f000;
    /// In [`PageEntries::directory`](super::PageEntries::directory): it is the entry of a page of 1 GiB. The
    /// bit is reserved, so no entry that maps anything has it.
    pub(super) const IS_HUGE: u64 = 1 << 51;
    /// In a page-directory-pointer-table entry: the reserved low bits.
    pub(super) const POINTER_RESERVED: u64 = 0x1e6;
}

/// Bits of a page fault's error code (SDM vol. 3, figure 5-12).
mod code {
    pub(super) const PROTECTION: u32 = 1 << 0;
    pub(super) const WRITE: u32 = 1 << 1;
    pub(super) const USER: u32 = 1 << 2;
    pub(super) const RESERVED: u32 = 1 << 3;
    pub(super) const FETCH: u32 = 1 << 4;
}

/// The mapping of a linear page by the page tables.
struct Found {
    /// Addresses and contents of the entries that refer to tables, the highest first.
    upper: Upper,
    leaf_address: u64,
    leaf: u64,
    /// Guest-physical address of the page, before address line 20 is masked.
    page: u64,
    /// The combined rights of all levels.
    rights: u64,
    /// Whether any level forbids fetching instructions.
    no_execute: bool,
    size: PageSize,
}

/// Addresses and contents of the entries above the one that maps a page.
#[derive(Clone, Copy, Default)]
struct Upper {
    entries: [(u64, u64); Upper::MOST],
    count: usize,
}

impl Upper {
    /// The most entries.
    const MOST: usize = 3;

    /// No entry.
    const NONE: Upper = Upper { entries: [(0, 0); Upper::MOST], count: 0 };

    /// A page-directory entry alone.
    fn directory(address: u64, entry: u64) -> Upper {
        Upper { entries: [(address, entry), (0, 0), (0, 0)], count: 1 }
    }

    fn push(&mut self, address: u64, entry: u64) {
        self.entries[self.count] = (address, entry);
        self.count += 1;
    }

    fn entries(&self) -> &[(u64, u64)] {
        &self.entries[..self.count]
    }

    /// Returns the content of the last one.
    fn last(&self) -> Option<u64> {
        self.entries().last().map(|(_, entry)| *entry)
    }

    /// Returns what these entries of 4-level paging say together of what the last one maps. A change of another
    /// one matters only if the rights change.
    fn combined(&self) -> u64 {
        const GIVEN_BY_ALL: u64 = entry::PRESENT | entry::WRITABLE | entry::USER | entry::ACCESSED;
        let contents = self.entries().iter().map(|(_, content)| *content);
        let (given, forbidden) =
            contents.fold((u64::MAX, 0), |(all, any), content| (all & content, any | content));
        let huge = if self.count < Upper::MOST { entry::IS_HUGE } else { 0 };
        self.last().unwrap_or(0) & !GIVEN_BY_ALL
            | given & GIVEN_BY_ALL
            | forbidden & entry::NO_EXECUTE
            | huge
    }
}

/// A linear page in the form that an engine may keep until it is invalidated ([`Cpu::take_invalidations`]).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PageMapping {
    /// Guest-physical address of the page.
    pub address: u64,
    /// Whether it can be written at once: writing is allowed, and the dirty bit is set.
    pub writable: bool,
    /// Whether it stays mapped over loads of CR3.
    pub global: bool,
    /// Whether user code can access it.
    pub user: bool,
    /// The size in bytes of the guest's page that contains it, which is 4 MiB without paging. While address
    /// line 20 is masked, a large page is no longer contiguous and counts as small ones.
    pub size: u32,
}

/// The entries that map a linear page, by which changes are recognised.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PageEntries {
    /// The page-directory entry of a page table or of a large page. With 4-level paging it has the rights that
    /// all levels down to it give together; or it is the entry of a page of 1 GiB, marked as such.
    pub directory: u64,
    /// Guest-physical address and content of the page-table entry, if there is one, and its size in bytes.
    leaf: Option<(u64, u64, usize)>,
}

impl PageEntries {
    /// Returns whether the page is global if CR4.PGE is set (SDM vol. 3, 4.10.2.4).
    pub fn are_global(&self) -> bool {
        let last = self.leaf.map_or(self.directory, |(_, leaf, _)| leaf);
        last & entry::GLOBAL != 0
    }

    /// Returns whether all levels allow writes (SDM vol. 3, 5.6.1).
    pub fn are_writable(&self) -> bool {
        let last = self.leaf.map_or(self.directory, |(_, leaf, _)| leaf);
        self.directory & last & entry::WRITABLE != 0
    }

    /// Returns whether the page-table entry, if there is one, is unchanged in memory.
    pub fn leaf_is_unchanged(&self, memory: &Memory) -> bool {
        let Some((address, leaf, size)) = self.leaf else { return true };
        leaf == if size == 8 { read_u64(memory, address) } else { read_u32(memory, address).into() }
    }
}

/// The guest-physical page to which a linear page is mapped, and the accesses that are allowed.
struct Mapping {
    page: u64,
    /// Whether data can be accessed.
    has_data: bool,
    writable: bool,
    executable: bool,
    dirty: bool,
    global: bool,
    user: bool,
    size: PageSize,
}

impl Cpu {
    /// Returns the guest-physical address of `linear`, with the checks that `access` needs. It sets accessed
    /// and dirty bits and fills the TLB. Its exception is #PF, with CR2 set, or #GP(0) for an address that is
    /// not canonical where the instruction has not checked that.
    pub(crate) fn translate(
        &mut self,
        memory: &mut Memory,
        linear: u64,
        access: Access,
        by: By,
    ) -> Result<u64, Stopped> {
        self.page_walks += 1;
        if !is_canonical(linear) {
            return Err(self.general_protection(0));
        }
        let user = by.is_user();
        let mapping = self.mapping(memory, linear, access, by)?;
        // User data while alignment is checked, and data that a breakpoint watches, take the slow path, where
        // these checks are made.
        let at_once =
            mapping.has_data && !(user && self.checks_alignment || self.watches_page(linear));
        // An observer sees only accesses that do not find their page in the TLB.
        if let Target::Place(place) = memory.read_target(mapping.page)
            && !self.notes_accesses
        {
            let rights = Rights {
                read: at_once,
                write: mapping.writable
                    && mapping.dirty
                    && at_once
                    && memory.write_target(mapping.page) == Target::Place(place)
                    && memory.is_plain(place),
                fetch: mapping.executable,
                global: mapping.global,
                user: mapping.user,
                page: mapping.size,
            };
            self.tlb.fill(Space::of(user), linear, place, rights);
        }
        Ok(mapping.page | linear & 0xfff)
    }

    /// Returns the page of `linear` for an access by user code (`user`) or supervisor code, with accessed and
    /// dirty bits set. Returns None and changes nothing if the access faults, or if each access must be
    /// checked.
    pub fn map_page(
        &mut self,
        memory: &mut Memory,
        linear: u64,
        access: Access,
        user: bool,
    ) -> Option<PageMapping> {
        let is_checked =
            user && self.checks_alignment || self.watches_page(linear) || self.notes_accesses;
        if is_checked || !is_canonical(linear) {
            return None;
        }
        let cr2 = self.cr2;
        let Ok(mapping) = self.mapping(memory, linear, access, By::code(user)) else {
            self.cr2 = cr2;
            return None;
        };
        Some(self.page_mapping(&mapping))
    }

    /// Returns the page and the entries that map it for an `access` other than a write, if the accessed bits
    /// are already set, so that the access would change nothing. Returns None without paging. A processor may
    /// have such a page in its TLB before anything has accessed it (SDM vol. 3, 5.10.2.3).
    pub fn page_in_advance(
        &self,
        memory: &Memory,
        linear: u64,
        access: Access,
        user: bool,
    ) -> Option<(PageMapping, PageEntries)> {
        let is_checked =
            user && self.checks_alignment || self.watches_page(linear) || self.notes_accesses;
        if is_checked
            || access == Access::Write
            || !self.cr0.contains(Cr0::PG)
            || !is_canonical(linear)
        {
            return None;
        }
        let found = self.find(memory, linear).ok()?;
        let accessed = found.upper.entries().iter().fold(found.leaf, |all, (_, entry)| all & entry);
        if accessed & entry::ACCESSED == 0 {
            return None;
        }
        let mapping = self.allowed(&found, access, By::code(user))?;
        Some((self.page_mapping(&mapping), self.entries(&found)))
    }

    fn page_mapping(&self, mapping: &Mapping) -> PageMapping {
        let has_pages = self.cr0.contains(Cr0::PG);
        let size = match (has_pages, mapping.size) {
            _ if !self.a20() => 4 << 10,
            (true, PageSize::Small) => 4 << 10,
            (true, PageSize::Large) if self.cr4.contains(Cr4::PAE) => 2 << 20,
            (true, PageSize::Huge) => 1 << 30,
            _ => 4 << 20,
        };
        PageMapping {
            address: mapping.page,
            writable: mapping.writable && mapping.dirty,
            global: mapping.global,
            user: mapping.user,
            size,
        }
    }

    /// Returns the mapping of `linear`: by the page tables, with all checks and with accessed and dirty bits
    /// set, or without paging to the same address.
    fn mapping(
        &mut self,
        memory: &mut Memory,
        linear: u64,
        access: Access,
        by: By,
    ) -> Result<Mapping, Stopped> {
        if self.cr0.contains(Cr0::PG) {
            return self.walk(memory, linear, access, by);
        }
        Ok(Mapping {
            page: linear & !0xfff & self.address_mask,
            has_data: true,
            writable: true,
            executable: true,
            dirty: true,
            global: false,
            user: false,
            size: PageSize::Small,
        })
    }

    /// Returns the entries that map `linear` now, or None if it is not mapped.
    pub fn page_entries(&self, memory: &Memory, linear: u64) -> Option<PageEntries> {
        if !self.cr0.contains(Cr0::PG) {
            return Some(PageEntries { directory: 0, leaf: None });
        }
        let found = self.find(memory, linear).ok()?;
        Some(self.entries(&found))
    }

    fn entries(&self, found: &Found) -> PageEntries {
        let size = if self.cr4.contains(Cr4::PAE) { 8 } else { 4 };
        if self.is_in_long_mode() {
            let mut upper = found.upper;
            if found.size == PageSize::Small {
                let leaf = Some((found.leaf_address, found.leaf, size));
                return PageEntries { directory: upper.combined(), leaf };
            }
            upper.push(found.leaf_address, found.leaf);
            return PageEntries { directory: upper.combined(), leaf: None };
        }
        match found.upper.last() {
            Some(directory) => {
                PageEntries { directory, leaf: Some((found.leaf_address, found.leaf, size)) }
            }
            None => PageEntries { directory: found.leaf, leaf: None },
        }
    }

    /// Returns the present page-directory entry for `linear`, whether it maps anything or not, or 0 if there
    /// is none; see [`PageEntries::directory`].
    pub fn directory_entry(&self, memory: &Memory, linear: u64) -> u64 {
        if !self.cr0.contains(Cr0::PG) {
            return 0;
        }
        if self.is_in_long_mode() {
            return self.long_directory_entry(memory, linear);
        }
        match self.directory_address(linear) {
            Some(address) if self.cr4.contains(Cr4::PAE) => read_u64(memory, address),
            Some(address) => read_u32(memory, address).into(),
            None => 0,
        }
    }

    /// Does the same with 4-level paging.
    fn long_directory_entry(&self, memory: &Memory, linear: u64) -> u64 {
        let reserved = self.reserved_in_long_entry();
        let mut upper = Upper::default();
        let mut table = self.cr3 & entry::ADDRESS;
        for level in &LEVELS[..Upper::MOST] {
            let address = (table | (linear >> level.shift & 0x1ff) << 3) & self.address_mask;
            let content = read_u64(memory, address);
            upper.push(address, content);
            let may_be_leaf = level.size.is_some();
            if may_be_leaf && content & entry::LARGE != 0 {
                break;
            }
            let never_leaf = if may_be_leaf { 0 } else { entry::LARGE };
            if level.size != Some(PageSize::Large)
                && check_entry(content, reserved | never_leaf).is_err()
            {
                return 0;
            }
            table = content & entry::ADDRESS;
        }
        upper.combined()
    }

    /// Returns the guest-physical address of the page-directory entry for `linear`, or None if there is no
    /// page directory.
    fn directory_address(&self, linear: u64) -> Option<u64> {
        let address = if self.cr4.contains(Cr4::PAE) {
            // Reserved bits were checked when the pointer was loaded.
            let pointer = self.pdptes[(linear >> 30 & 3) as usize];
            check_entry(pointer, 0).ok()?;
            pointer & entry::ADDRESS | (linear >> 21 & 0x1ff) << 3
        } else {
            self.cr3 & 0xffff_f000 | (linear >> 22 & 0x3ff) << 2
        };
        Some(address & self.address_mask)
    }

    /// Walks the page tables with all checks, and sets accessed and dirty bits.
    fn walk(
        &mut self,
        memory: &mut Memory,
        linear: u64,
        access: Access,
        by: By,
    ) -> Result<Mapping, Stopped> {
        let fault_code = self.fault_code(access, by);
        let found = match self.find(memory, linear) {
            Ok(found) => found,
            Err(reason) => return Err(self.page_fault(linear, fault_code | reason)),
        };
        let Some(mapping) = self.allowed(&found, access, by) else {
            return Err(self.page_fault(linear, fault_code | code::PROTECTION));
        };
        let mut leaf = found.leaf | entry::ACCESSED;
        if access == Access::Write {
            leaf |= entry::DIRTY;
        }
        for (address, upper) in found.upper.entries() {
            if upper & entry::ACCESSED == 0 {
                note(memory, *address, upper | entry::ACCESSED);
            }
        }
        if leaf != found.leaf {
            note(memory, found.leaf_address, leaf);
        }
        Ok(Mapping { dirty: leaf & entry::DIRTY != 0, ..mapping })
    }

    /// Returns the bits of a page fault's error code that tell of the access.
    fn fault_code(&self, access: Access, by: By) -> u32 {
        let mut fault_code = 0;
        if access == Access::Write {
            fault_code |= code::WRITE;
        }
        if by.is_user() {
            fault_code |= code::USER;
        }
        let has_execute_disable = self.msrs.no_execute && self.cr4.contains(Cr4::PAE);
        if access == Access::Fetch && (has_execute_disable || self.cr4.contains(Cr4::SMEP)) {
            fault_code |= code::FETCH;
        }
        fault_code
    }

    /// Returns the error code of the page fault that an access to data at `linear`, which is within one page,
    /// raises if user code (`user`) or supervisor code makes it. Returns None if it raises none, or if that
    /// depends on more than the page tables and CR0: on EFLAGS.AC, or on an entry of the TLB.
    pub fn known_page_fault(
        &self,
        memory: &Memory,
        linear: u32,
        access: Access,
        user: bool,
    ) -> Option<u32> {
        let linear = u64::from(linear);
        let cached = self.tlb.entry(Space::of(user), linear);
        let is_cached = match access {
            Access::Write => cached.for_write(linear, 1).is_some(),
            Access::Read | Access::Fetch => cached.for_read(linear, 1).is_some(),
        };
        if !self.cr0.contains(Cr0::PG) || is_cached || self.notes_accesses {
            return None;
        }
        let by = if user { By::User } else { By::Supervisor };
        let reason = match self.find(memory, linear) {
            Err(reason) => reason,
            Ok(found) => {
                let depends_on_ac =
                    !user && self.cr4.contains(Cr4::SMAP) && found.rights & entry::USER != 0;
                if depends_on_ac || self.allowed(&found, access, by).is_some() {
                    return None;
                }
                code::PROTECTION
            }
        };
        Some(self.fault_code(access, by) | reason)
    }

    /// Returns the mapping that was found, if it allows the access.
    fn allowed(&self, found: &Found, access: Access, by: By) -> Option<Mapping> {
        let is_users = found.rights & entry::USER != 0;
        let is_refused = by.is_user() && !is_users;
        // SDM vol. 3, 5.6.1: a supervisor write needs R/W only if CR0.WP is set. For user pages, CR4.SMEP
        // forbids supervisor code to fetch, and CR4.SMAP forbids it to access data.
        let writable =
            found.rights & entry::WRITABLE != 0 || !by.is_user() && !self.cr0.contains(Cr0::WP);
        let (has_data, has_code) = match by {
            By::User => (true, true),
            _ if !is_users => (true, true),
            By::Supervisor => {
                (!self.supervisor_is_kept_from_users(), !self.cr4.contains(Cr4::SMEP))
            }
            By::Processor => (!self.cr4.contains(Cr4::SMAP), false),
        };
        let executable = has_code && !found.no_execute;
        let is_allowed = match access {
            Access::Read => has_data,
            Access::Write => has_data && writable,
            Access::Fetch => executable,
        };
        (is_allowed && !is_refused).then(|| Mapping {
            page: found.page & self.address_mask,
            has_data,
            writable,
            executable,
            dirty: found.leaf & entry::DIRTY != 0,
            global: found.leaf & entry::GLOBAL != 0 && self.cr4.contains(Cr4::PGE),
            user: is_users,
            size: found.size,
        })
    }

    /// Returns the entries that map `linear`, or the error code's bits that say why there are none.
    fn find(&self, memory: &Memory, linear: u64) -> Result<Found, u32> {
        if !self.cr4.contains(Cr4::PAE) {
            self.find_32_bit(memory, linear)
        } else if self.is_in_long_mode() {
            self.find_4_level(memory, linear)
        } else {
            self.find_pae(memory, linear)
        }
    }

    /// Walks the tables of two-level paging with 4 KiB and 4 MiB pages (SDM vol. 3, 5.3).
    fn find_32_bit(&self, memory: &Memory, linear: u64) -> Result<Found, u32> {
        let directory_address = self.directory_address(linear).ok_or(0u32)?;
        let directory = u64::from(read_u32(memory, directory_address));
        let has_large_pages = self.cr4.contains(Cr4::PSE);
        if has_large_pages && directory & entry::LARGE != 0 {
            check_entry(directory, self.reserved_in_large_page())?;
            // With PSE-36, bits 20 to 13 are bits 39 to 32 of the address.
            let page = directory & 0xffc0_0000 | (directory & 0x1f_e000) << 19;
            return Ok(Found {
                upper: Upper::NONE,
                leaf_address: directory_address,
                leaf: directory,
                page: page | linear & 0x3f_f000,
                rights: directory,
                no_execute: false,
                size: PageSize::Large,
            });
        }
        check_entry(directory, 0)?;
        let leaf_address = directory & 0xffff_f000 | (linear >> 12 & 0x3ff) << 2;
        let leaf_address = leaf_address & self.address_mask;
        let leaf = u64::from(read_u32(memory, leaf_address));
        // Without CR4.PSE no bit is reserved.
        check_entry(leaf, if has_large_pages { self.unless_pat(entry::PAT) } else { 0 })?;
        Ok(Found {
            upper: Upper::directory(directory_address, directory),
            leaf_address,
            leaf,
            page: leaf & 0xffff_f000,
            rights: directory & leaf,
            no_execute: false,
            size: PageSize::Small,
        })
    }

    /// Walks the tables of PAE paging: three levels, the first one in registers, with 4 KiB and 2 MiB pages
    /// (SDM vol. 3, 5.4).
    fn find_pae(&self, memory: &Memory, linear: u64) -> Result<Found, u32> {
        let directory_address = self.directory_address(linear).ok_or(0u32)?;
        let reserved = self.reserved_in_pae_entry();
        let directory = read_u64(memory, directory_address);
        if directory & entry::LARGE != 0 {
            check_entry(directory, reserved | 0x1f_e000 | self.unless_pat(entry::LARGE_PAT))?;
            return Ok(Found {
                upper: Upper::NONE,
                leaf_address: directory_address,
                leaf: directory,
                page: directory & entry::ADDRESS & !0x1f_ffff | linear & 0x1f_f000,
                rights: directory,
                no_execute: directory & entry::NO_EXECUTE != 0,
                size: PageSize::Large,
            });
        }
        check_entry(directory, reserved)?;
        let leaf_address = directory & entry::ADDRESS | (linear >> 12 & 0x1ff) << 3;
        let leaf_address = leaf_address & self.address_mask;
        let leaf = read_u64(memory, leaf_address);
        check_entry(leaf, reserved | self.unless_pat(entry::PAT))?;
        Ok(Found {
            upper: Upper::directory(directory_address, directory),
            leaf_address,
            leaf,
            page: leaf & entry::ADDRESS,
            rights: directory & leaf,
            no_execute: (directory | leaf) & entry::NO_EXECUTE != 0,
            size: PageSize::Small,
        })
    }

    /// Walks the tables of 4-level paging, with pages of 4 KiB, 2 MiB and 1 GiB (SDM vol. 3, 5.5).
    fn find_4_level(&self, memory: &Memory, linear: u64) -> Result<Found, u32> {
        let reserved = self.reserved_in_long_entry();
        let mut upper = Upper::default();
        let mut table = self.cr3 & entry::ADDRESS;
        let (mut rights, mut forbids) = (u64::MAX, 0);
        for level in &LEVELS {
            let index = linear >> level.shift & 0x1ff;
            let address = (table | index << 3) & self.address_mask;
            let content = read_u64(memory, address);
            let is_leaf = match level.size {
                Some(PageSize::Small) => true,
                Some(_) => content & entry::LARGE != 0,
                None => false,
            };
            (rights, forbids) = (rights & content, forbids | content);
            if is_leaf {
                let offset_bits = (1 << level.shift) - 1;
                let size = level.size.unwrap_or(PageSize::Small);
                check_entry(content, reserved | self.reserved_in_long_leaf(size, offset_bits))?;
                return Ok(Found {
                    upper,
                    leaf_address: address,
                    leaf: content,
                    page: (content & entry::ADDRESS & !offset_bits)
                        | (linear & offset_bits & !0xfff),
                    rights,
                    no_execute: forbids & entry::NO_EXECUTE != 0,
                    size,
                });
            }
            let never_leaf = if level.size.is_none() { entry::LARGE } else { 0 };
            check_entry(content, reserved | never_leaf)?;
            upper.push(address, content);
            table = content & entry::ADDRESS;
        }
        unreachable!("the last level maps pages")
    }

    /// Returns the reserved bits in all entries of 4-level paging (SDM vol. 3, tables 5-15 to 5-20). Bits 62
    /// to 52 are ignored there.
    fn reserved_in_long_entry(&self) -> u64 {
        let no_execute = if self.msrs.no_execute { 0 } else { entry::NO_EXECUTE };
        bits(self.model.physical_address_bits(), 51) | no_execute
    }

    /// Returns the further reserved bits in the entry of a page of this size, whose offsets have the bits
    /// `offset_bits`: those of the address below the page, and all of it where no such page is offered.
    fn reserved_in_long_leaf(&self, size: PageSize, offset_bits: u64) -> u64 {
        match size {
            PageSize::Small => 0,
            PageSize::Huge if !self.model.features().contains(Features::PAGE_1_GIB) => entry::LARGE,
            PageSize::Large | PageSize::Huge => offset_bits & entry::ADDRESS & !entry::LARGE_PAT,
        }
    }

    /// Returns `bit` if it is reserved because there is no page attribute table, and otherwise 0.
    fn unless_pat(&self, bit: u64) -> u64 {
        if self.model.features().contains(Features::PAT) { 0 } else { bit }
    }

    /// Returns the reserved bits in the entry of a 4 MiB page: those of address bits that do not exist (SDM
    /// vol. 3, 5.3).
    fn reserved_in_large_page(&self) -> u64 {
        let address_bits = self.model.physical_address_bits();
        let first = if self.model.features().contains(Features::PSE36) {
            address_bits.min(40) - 19
        } else {
            13
        };
        bits(first, 21) | self.unless_pat(entry::LARGE_PAT)
    }

    /// Returns the reserved bits in all entries of 8 bytes (SDM vol. 3, 5.4.2).
    fn reserved_in_pae_entry(&self) -> u64 {
        let no_execute = if self.msrs.no_execute { 0 } else { entry::NO_EXECUTE };
        bits(self.model.physical_address_bits(), 62) | no_execute
    }

    /// Loads the four page-directory-pointer-table entries from the address in `cr3`, if `cr0` and `cr4`
    /// select PAE paging. The exception is #GP, and then nothing is loaded (SDM vol. 3, 5.4.1).
    pub(crate) fn load_pdptes(
        &mut self,
        memory: &Memory,
        cr0: Cr0,
        cr3: u64,
        cr4: Cr4,
    ) -> Result<(), Stopped> {
        if !cr0.contains(Cr0::PG) || !cr4.contains(Cr4::PAE) || self.msrs.long.enabled {
            return Ok(());
        }
        let table = cr3 & 0xffff_ffe0 & self.address_mask;
        let pdptes: [u64; 4] =
            std::array::from_fn(|index| read_u64(memory, table + 8 * index as u64));
        let reserved = entry::POINTER_RESERVED | bits(self.model.physical_address_bits(), 63);
        if pdptes.iter().any(|pdpte| pdpte & entry::PRESENT != 0 && pdpte & reserved != 0) {
            return Err(self.general_protection(0));
        }
        self.pdptes = pdptes;
        Ok(())
    }

    /// Loads CR3 as MOV to CR3 and a task switch do. The exception is #GP, for a page-directory-pointer table
    /// with reserved bits, and in long mode for an address with more bits than the processor has.
    pub(crate) fn load_cr3(&mut self, memory: &Memory, value: u64) -> Result<(), Stopped> {
        if value >> self.model.physical_address_bits() != 0 && self.is_in_long_mode() {
            return Err(self.general_protection(0));
        }
        self.load_pdptes(memory, self.cr0, value, self.cr4)?;
        self.set_cr3(value);
        Ok(())
    }

    #[cold]
    fn page_fault(&mut self, linear: u64, error_code: u32) -> Stopped {
        self.cr2 = linear;
        self.fault(Fault::with_code(vector::PF, error_code))
    }
}

/// A level of 4-level paging.
struct Level {
    /// The lowest bit of the linear address that selects an entry.
    shift: u32,
    /// The size of the pages that its entries can map.
    size: Option<PageSize>,
}

/// The levels from PML4 to page table.
const LEVELS: [Level; 4] = [
    Level { shift: 39, size: None },
    Level { shift: 30, size: Some(PageSize::Huge) },
    Level { shift: 21, size: Some(PageSize::Large) },
    Level { shift: 12, size: Some(PageSize::Small) },
];

/// Fails with the error code's bits if `entry` is not present, or has a bit of `reserved` set.
fn check_entry(entry: u64, reserved: u64) -> Result<(), u32> {
    if entry & entry::PRESENT == 0 {
        Err(0)
    } else if entry & reserved != 0 {
        Err(code::PROTECTION | code::RESERVED)
    } else {
        Ok(())
    }
}

/// Returns a mask of the bits `first` to `last`.
const fn bits(first: u32, last: u32) -> u64 {
    (u64::MAX >> (63 - last)) & (u64::MAX << first)
}

fn read_u32(memory: &Memory, address: u64) -> u32 {
    u32::from_le_bytes(memory.read_aligned(address))
}

fn read_u64(memory: &Memory, address: u64) -> u64 {
    u64::from_le_bytes(memory.read_aligned(address))
}

/// Writes back an entry in which accessed and dirty bits were set; both are in its first byte.
fn note(memory: &mut Memory, address: u64, entry: u64) {
    memory.write(address, &[entry as u8]);
}
