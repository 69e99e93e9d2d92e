//! What software invalidates is compared with the page tables, and what differs is dropped.

use std::io;

use ring3_core::memory::Memory;
use ring3_x86::cpu::{Cpu, Cr4};
use ring3_x86::paging::PageEntries;

use super::{DIRECTORY_STEP, Fetched, LARGEST_PAGE, MOST_STALE, Space};
use crate::blocks::Blocks;
use crate::map::Map;

impl Space {
    /// The page of `linear` was invalidated.
    pub(crate) fn invalidate(
        &mut self,
        cpu: &Cpu,
        memory: &Memory,
        blocks: &Blocks,
        linear: u32,
    ) -> io::Result<()> {
        // Where that has changed it was a large page, or another table of pages.
        let first = linear & !(LARGEST_PAGE - 1);
        let has_changed = |part: &u32| {
            let known = self.directories.get(&(part / DIRECTORY_STEP));
            known.is_some_and(|known| *known != Some(cpu.directory_entry(memory, *part)))
        };
        if [first, first + DIRECTORY_STEP].iter().any(has_changed) {
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
        if self.small.get(&page).is_some_and(|mapped| is_stale(&mapped.entries)) {
            self.small.remove(&page);
            self.stale.push(page);
            if !self.is_user || self.stale.len() > MOST_STALE {
                self.settle()?;
            }
        }
        Ok(())
    }

    /// All that is not global was invalidated, or everything if `with_global`: drops what the page tables say otherwise now.
    pub(crate) fn invalidate_all(
        &mut self,
        cpu: &Cpu,
        memory: &Memory,
        blocks: &Blocks,
        with_global: bool,
    ) -> io::Result<()> {
        let mut now = Map::default();
        for (part, known) in &mut self.directories {
            let entry = cpu.directory_entry(memory, part * DIRECTORY_STEP);
            now.insert(*part, entry);
            if with_global {
                *known = Some(entry);
            } else if *known != Some(entry) {
                *known = None;
            }
        }
        if !self.has_local && !with_global {
            return Ok(());
        }
        let globals_count = cpu.cr4().contains(Cr4::PGE);
        let mut has_local = false;
        let mut stays = |page: u32, global: &mut bool, entries: &PageEntries| {
            let is_unchanged = || {
                now.get(&(page / DIRECTORY_STEP)) == Some(&entries.directory)
                    && entries.leaf_is_unchanged(memory)
            };
            let stays = *global && !with_global || is_unchanged();
            // It may have been noted before global pages were enabled.
            *global |= globals_count && entries.are_global();
            has_local |= stays && !*global;
            stays
        };
        let mut dropped = Vec::new();
        for pages in [&mut self.small, &mut self.large] {
            pages.retain(|start, mapped| {
                let stays = stays(*start, &mut mapped.global, &mapped.entries);
                if !stays {
                    dropped.push((*start, mapped.len));
                }
                stays
            });
        }
        let is_stale = |page: &u32, fetched: &mut Fetched| {
            !stays(*page, &mut fetched.global, &fetched.entries)
        };
        let stale: Vec<_> = self.fetched.extract_if(is_stale).collect();
        self.has_local = has_local;
        if self.fetched.is_empty() && !stale.is_empty() {
            self.forget_targets();
        } else {
            for (_, fetched) in stale {
                self.forget_fetched(&fetched, blocks);
            }
        }
        self.unmap(dropped)
    }
}
