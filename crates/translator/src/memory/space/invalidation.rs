//! Compares what software has invalidated with the page tables, and drops the differences.

use std::io;

use ring3_core::memory::{Memory, PAGE_SIZE, Target};
use ring3_x86::cpu::{Cpu, Cr4};
use ring3_x86::paging::{Access, PageEntries};
use tracing::debug;

use super::fill::is_writable;
use super::{DIRECTORY_STEP, Fetched, LARGEST_PAGE, MOST_STALE, Mapped, Space};
use crate::code::block_store::BlockStore;

/// The present contents of the page tables.
struct Now<'a> {
    cpu: &'a Cpu,
    memory: &'a Memory,
    /// Whether the pages are for user code.
    is_user: bool,
}

impl Now<'_> {
    /// Returns whether `entries` still map the page of `linear`.
    fn has(&self, linear: u32, entries: &PageEntries) -> bool {
        self.cpu.directory_entry(self.memory, linear.into()) == entries.directory
            && entries.leaf_is_unchanged(self.memory)
    }

    /// Returns whether a page that `entries` map is invalidated by loads of CR3.
    fn is_local(&self, entries: &PageEntries) -> bool {
        !(self.cpu.cr4().contains(Cr4::PGE) && entries.are_global())
    }

    /// Returns whether the window may have a page that belongs to users (`is_users`), or to the supervisor.
    /// With SMAP, the window of supervisor code has no pages of users.
    fn may_have(&self, is_users: bool) -> bool {
        if self.is_user { is_users } else { !(is_users && self.cpu.cr4().contains(Cr4::SMAP)) }
    }

    /// Returns the new mapping of a small page whose entries have changed, if it is at the same place and can
    /// still be read at once. Mostly it is a page that two processes share after one has forked from the
    /// other, and to which neither may write now.
    fn with_other_rights(&self, linear: u32, mapped: &Mapped) -> Option<Mapped> {
        let (mapping, entries) =
            self.cpu.page_in_advance(self.memory, linear.into(), Access::Read, self.is_user)?;
        let is_same = mapping.size as usize == mapped.len
            && self.may_have(mapping.user)
            && self.memory.read_target(mapping.address) == Target::Place(mapped.place);
        let writable = mapped.writable && is_writable(self.memory, &mapping, mapped.place);
        is_same.then_some(Mapped { writable, entries, ..*mapped })
    }
}

/// The differences between a space and the page tables.
#[derive(Default)]
struct Changes {
    /// Small pages that are no longer mapped, with their places.
    small: Vec<(u32, usize)>,
    /// Large pages that are no longer mapped, with their lengths.
    large: Vec<(u32, usize)>,
    /// Small pages that may now only be read.
    protected: Vec<u32>,
    /// Pages from which instructions are no longer fetched.
    fetched: Vec<Fetched>,
}

impl Changes {
    /// Returns whether `mapped`, at `page`, stays mapped, perhaps for reading only. Notes what changes.
    fn keep_mapped(&mut self, now: &Now, page: u32, mapped: &mut Mapped) -> bool {
        if now.has(page, &mapped.entries) {
            return true;
        }
        if mapped.len != PAGE_SIZE as usize {
            self.large.push((page, mapped.len));
            return false;
        }
        if let Some(other) = now.with_other_rights(page, mapped) {
            if mapped.writable && !other.writable {
                self.protected.push(page);
            }
            *mapped = other;
            return true;
        }
        self.small.push((page, mapped.place));
        false
    }

    /// Returns whether instructions are still fetched from `fetched`, at `page`. Notes the page if not.
    fn keep_fetched(&mut self, now: &Now, page: u32, fetched: &Fetched) -> bool {
        let stays = now.has(page, &fetched.entries);
        if !stays {
            self.fetched.push(*fetched);
        }
        stays
    }
}

impl Space {
    /// Drops the page of `linear`, which software has invalidated, if the page tables differ.
    pub(crate) fn invalidate(
        &mut self,
        cpu: &Cpu,
        memory: &Memory,
        blocks: &BlockStore,
        linear: u32,
    ) -> io::Result<()> {
        // If a directory entry has changed, it maps a large page now or before, or refers to another page
        // table, so more than this page may differ.
        let first = linear & !(LARGEST_PAGE - 1);
        let has_changed = |part: &u32| {
            let known = self.directories.get(&(part / DIRECTORY_STEP));
            known.is_some_and(|known| *known != Some(cpu.directory_entry(memory, (*part).into())))
        };
        if self.has_huge || [first, first + DIRECTORY_STEP].iter().any(has_changed) {
            return self.invalidate_all(cpu, memory, blocks, true);
        }
        let page = linear & !0xfff;
        let is_stale = |entries: &PageEntries| !entries.leaf_is_unchanged(memory);
        if let Some(fetched) = self.fetched.get(&page).copied()
            && is_stale(&fetched.entries)
        {
            self.fetched.remove(&page);
            self.forget_fetched(&fetched, blocks);
        }
        if let Some(mapped) = self.small.get(&page).copied()
            && is_stale(&mapped.entries)
        {
            let now = Now { cpu, memory, is_user: self.is_user };
            if let Some(other) = now.with_other_rights(page, &mapped) {
                self.small.insert(page, other);
                if mapped.writable && !other.writable {
                    self.window.protect(page, mapped.len, false)?;
                }
                return Ok(());
            }
            self.small.remove(&page);
            self.stale.insert(page, mapped.place);
            if !self.is_user || self.stale.len() > MOST_STALE {
                self.settle()?;
            }
        }
        Ok(())
    }

    /// Drops what differs from the page tables, after software has invalidated all that is not global, or
    /// everything if `with_global`.
    pub(crate) fn invalidate_all(
        &mut self,
        cpu: &Cpu,
        memory: &Memory,
        blocks: &BlockStore,
        with_global: bool,
    ) -> io::Result<()> {
        for (part, known) in &mut self.directories {
            let entry = cpu.directory_entry(memory, u64::from(part * DIRECTORY_STEP));
            if with_global {
                *known = Some(entry);
            } else if *known != Some(entry) {
                *known = None;
            }
        }
        let now = Now { cpu, memory, is_user: self.is_user };
        let changes = if with_global || self.is_user {
            self.take_changes(&now)
        } else {
            self.take_local_changes(&now)
        };
        if self.fetched.is_empty() && !changes.fetched.is_empty() {
            self.forget_targets();
        } else {
            for fetched in &changes.fetched {
                self.forget_fetched(fetched, blocks);
            }
        }
        self.change_window(changes).or_else(|error| {
            debug!(%error, "the host refuses to change a mapping");
            self.clear()
        })
    }

    /// Removes the differences in all pages, and returns them.
    fn take_changes(&mut self, now: &Now) -> Changes {
        let mut changes = Changes::default();
        let Space { local, small, large, fetched, .. } = self;
        local.clear();
        let mut note = |page: u32, entries: &PageEntries| {
            if !now.is_user && now.is_local(entries) {
                local.insert(page);
            }
        };
        for pages in [small, large] {
            pages.retain(|page, mapped| {
                let stays = changes.keep_mapped(now, *page, mapped);
                if stays {
                    note(*page, &mapped.entries);
                }
                stays
            });
        }
        fetched.retain(|page, fetched| {
            let stays = changes.keep_fetched(now, *page, fetched);
            if stays {
                note(*page, &fetched.entries);
            }
            stays
        });
        changes
    }

    /// Removes the differences in the pages that are not global, and returns them.
    fn take_local_changes(&mut self, now: &Now) -> Changes {
        let mut changes = Changes::default();
        let Space { local, small, large, fetched, .. } = self;
        local.retain(|page| {
            let mut stays = false;
            for pages in [&mut *small, &mut *large] {
                let Some(mapped) = pages.get_mut(page) else { continue };
                if changes.keep_mapped(now, *page, mapped) {
                    stays = true;
                } else {
                    pages.remove(page);
                }
            }
            if let Some(known) = fetched.get(page) {
                if changes.keep_fetched(now, *page, known) {
                    stays = true;
                } else {
                    fetched.remove(page);
                }
            }
            stays
        });
        changes
    }

    /// Applies `changes` to the window.
    fn change_window(&mut self, mut changes: Changes) -> io::Result<()> {
        for (start, len) in changes.large {
            self.window.unmap(start, len)?;
        }
        self.hide(changes.small)?;
        changes.protected.sort_unstable();
        let in_a_row = |page: &u32, next: &u32| next - page == PAGE_SIZE as u32;
        for run in changes.protected.chunk_by(in_a_row) {
            self.window.protect(run[0], run.len() * PAGE_SIZE as usize, false)?;
        }
        Ok(())
    }
}
