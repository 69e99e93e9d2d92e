//! Paging: from linear to guest-physical addresses (SDM vol. 3, chapter 5).

use ring3_core::memory::{Memory, PageKind};

use crate::cpu::{Cpu, Cr0, Cr4};
use crate::exception::{Fault, Stopped, vector};
use crate::tlb::Rights;

/// What an access wants.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// Data is read.
    Read,
    /// Data is written.
    Write,
    /// An instruction is fetched.
    Fetch,
}

/// Bits of page-directory and page-table entries (SDM vol. 3, tables 5-4 to 5-6).
mod entry {
    pub(super) const PRESENT: u32 = 1 << 0;
    pub(super) const WRITABLE: u32 = 1 << 1;
    pub(super) const USER: u32 = 1 << 2;
    pub(super) const ACCESSED: u32 = 1 << 5;
    pub(super) const DIRTY: u32 = 1 << 6;
    /// In a page-directory entry: it maps a 4 MiB page.
    pub(super) const LARGE: u32 = 1 << 7;
    pub(super) const GLOBAL: u32 = 1 << 8;
    /// In a 4 MiB page's entry, without PSE-36: bits 21 to 13 are reserved.
    pub(super) const LARGE_RESERVED: u32 = 0x3f_e000;
}

/// Bits of a page fault's error code (SDM vol. 3, figure 5-12).
mod code {
    pub(super) const PROTECTION: u32 = 1 << 0;
    pub(super) const WRITE: u32 = 1 << 1;
    pub(super) const USER: u32 = 1 << 2;
    pub(super) const RESERVED: u32 = 1 << 3;
}

/// What the page tables say about a linear page.
struct Found {
    /// Address and content of the page-directory entry, where it is not the leaf.
    directory: Option<(u64, u32)>,
    leaf_address: u64,
    leaf: u32,
    /// Guest-physical address of the page.
    page: u64,
    /// The rights of all levels together.
    rights: u32,
}

/// Where a linear page is mapped, and what is allowed there.
struct Mapping {
    page: u64,
    writable: bool,
    dirty: bool,
    global: bool,
    large: bool,
}

impl Cpu {
    /// The guest-physical address of `linear`, with the checks that `access` by
    /// the user (or the supervisor) needs; sets accessed and dirty bits and
    /// fills the TLB. The exception is #PF, with CR2 set.
    pub(crate) fn translate(
        &mut self,
        memory: &mut Memory,
        linear: u64,
        access: Access,
        user: bool,
    ) -> Result<u64, Stopped> {
        self.page_walks += 1;
        let mapping = if self.cr0.contains(Cr0::PG) {
            self.walk(memory, linear, access, user)?
        } else {
            Mapping {
                page: linear & !0xfff,
                writable: true,
                dirty: true,
                global: false,
                large: false,
            }
        };
        let reachable = memory.kind(mapping.page) != PageKind::Device;
        let rights = Rights {
            read: reachable,
            write: mapping.writable && mapping.dirty && memory.is_plain_ram(mapping.page),
            fetch: reachable,
            global: mapping.global,
            large: mapping.large,
        };
        self.tlb[usize::from(user)].fill(linear, mapping.page, rights);
        Ok(mapping.page | linear & 0xfff)
    }

    /// Walks the page tables with all checks, and sets accessed and dirty bits.
    fn walk(
        &mut self,
        memory: &mut Memory,
        linear: u64,
        access: Access,
        user: bool,
    ) -> Result<Mapping, Stopped> {
        let mut fault_code = 0;
        if access == Access::Write {
            fault_code |= code::WRITE;
        }
        if user {
            fault_code |= code::USER;
        }
        let found = match self.find(memory, linear) {
            Ok(found) => found,
            Err(reason) => return Err(self.page_fault(linear, fault_code | reason)),
        };
        // SDM vol. 3, 5.6.1: a supervisor write needs R/W only if CR0.WP is set.
        let writable = found.rights & entry::WRITABLE != 0 || !user && !self.cr0.contains(Cr0::WP);
        if user && found.rights & entry::USER == 0 || access == Access::Write && !writable {
            return Err(self.page_fault(linear, fault_code | code::PROTECTION));
        }
        let mut leaf = found.leaf | entry::ACCESSED;
        if access == Access::Write {
            leaf |= entry::DIRTY;
        }
        if let Some((address, directory)) = found.directory
            && directory & entry::ACCESSED == 0
        {
            write_entry(memory, address, directory | entry::ACCESSED);
        }
        if leaf != found.leaf {
            write_entry(memory, found.leaf_address, leaf);
        }
        Ok(Mapping {
            page: found.page,
            writable,
            dirty: leaf & entry::DIRTY != 0,
            global: leaf & entry::GLOBAL != 0 && self.cr4.contains(Cr4::PGE),
            large: found.directory.is_none(),
        })
    }

    /// Two-level paging with 4 KiB and 4 MiB pages (SDM vol. 3, 5.3): the entries that map
    /// `linear`, or the error code's bits that say why there are none.
    fn find(&self, memory: &Memory, linear: u64) -> Result<Found, u32> {
        let directory_address = (self.cr3 & 0xffff_f000) | (linear >> 22 & 0x3ff) << 2;
        let directory = read_entry(memory, directory_address);
        if directory & entry::PRESENT == 0 {
            return Err(0);
        }
        if directory & entry::LARGE != 0 && self.cr4.contains(Cr4::PSE) {
            if directory & entry::LARGE_RESERVED != 0 {
                return Err(code::PROTECTION | code::RESERVED);
            }
            return Ok(Found {
                directory: None,
                leaf_address: directory_address,
                leaf: directory,
                page: u64::from(directory & 0xffc0_0000) | linear & 0x3f_f000,
                rights: directory,
            });
        }
        let leaf_address = u64::from(directory & 0xffff_f000) | (linear >> 12 & 0x3ff) << 2;
        let leaf = read_entry(memory, leaf_address);
        if leaf & entry::PRESENT == 0 {
            return Err(0);
        }
        Ok(Found {
            directory: Some((directory_address, directory)),
            leaf_address,
            leaf,
            page: u64::from(leaf & 0xffff_f000),
            rights: directory & leaf,
        })
    }

    /// The guest-physical address of `linear`, if it is mapped; for looking at a
    /// guest from outside, which changes nothing and asks for no rights.
    pub fn probe(&self, memory: &Memory, linear: u64) -> Option<u64> {
        if !self.cr0.contains(Cr0::PG) {
            return Some(linear);
        }
        let found = self.find(memory, linear).ok()?;
        Some(found.page | linear & 0xfff)
    }

    #[cold]
    fn page_fault(&mut self, linear: u64, error_code: u32) -> Stopped {
        self.cr2 = linear;
        self.fault(Fault::with_code(vector::PF, error_code))
    }
}

fn read_entry(memory: &Memory, address: u64) -> u32 {
    let mut bytes = [0; 4];
    memory.read(address, &mut bytes);
    u32::from_le_bytes(bytes)
}

fn write_entry(memory: &mut Memory, address: u64, value: u32) {
    memory.write(address, &value.to_le_bytes());
}
