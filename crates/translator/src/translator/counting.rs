//! Counts executed instructions by their form, while somebody wants a histogram. Blocks count by [counters];
//! here the counts are collected, and corrected where the engine corrects the budget.
//!
//! [counters]: crate::code::counters

use std::io;

use ring3_x86::cpu::Cpu;

use super::Translator;
use super::leaving::Middle;
use crate::code::block::{Block, Site};

impl Translator {
    /// Begins or ends counting, as the processor demands. The code is translated anew, with counters or
    /// without.
    pub(super) fn change_counting(&mut self, cpu: &Cpu) -> io::Result<()> {
        if self.counts.is_on() == cpu.counts_forms() {
            return Ok(());
        }
        self.counters.flushes += 1;
        self.forget_code();
        self.counts.turn(cpu.counts_forms(), &self.cache)
    }

    /// Adds all that blocks have counted to the processor's histogram.
    pub(super) fn collect_counts(&mut self, cpu: &mut Cpu) {
        self.counts.collect(self.blocks.iter(), &self.cache);
        let Some((counted, blocks)) = self.counts.take_counted() else { return };
        if let Some(all) = cpu.histogram_mut() {
            all.add_all(&counted);
        }
        if let Some(all) = cpu.hot_blocks_mut() {
            all.add_all(blocks);
        }
    }

    /// Takes back the instructions of `block` from `site` on that it has counted in advance. The site has
    /// completed `iterations` iterations of a repeated instruction.
    pub(super) fn take_back_rest(cpu: &mut Cpu, block: &Block, site: &Site, iterations: u64) {
        if let (Some(counts), Some(counted)) = (cpu.histogram_mut(), &block.counted) {
            for form in counted.forms(site.before, site.before + site.ahead) {
                counts.take_back(*form, block.is_user, 1);
            }
            for form in counted.forms(site.before, site.before + 1) {
                counts.add(*form, block.is_user, iterations);
            }
        }
    }

    /// Counts the rest of a block that is entered in the middle, at [`Context::target`], up to where it counts
    /// itself again.
    ///
    /// [`Context::target`]: crate::context::Context::target
    pub(super) fn count_rest(&self, cpu: &mut Cpu, middle: Middle) {
        if middle.counted == 0 || !self.counts.is_on() {
            return;
        }
        let entry = self.blocks.at(self.context.target as u32);
        if let (Some(counts), Some((block, site))) = (cpu.histogram_mut(), entry)
            && let Some(counted) = &block.counted
        {
            for form in counted.forms(site.before, site.before + site.ahead) {
                counts.add(*form, block.is_user, 1);
            }
        }
    }

    /// Counts the instruction with index `number` in [`Translator::ops`], which is complete although its count
    /// was taken back.
    pub(super) fn count_completed(&self, cpu: &mut Cpu, number: usize) {
        let is_user = cpu.is_user();
        if let Some(counts) = cpu.histogram_mut() {
            counts.add(self.ops[number].op.form, is_user, 1);
        }
    }

    /// Takes back the instruction with index `number`, which is left to the interpreter, if its block has
    /// counted it.
    pub(super) fn take_back_left(&mut self, cpu: &mut Cpu, number: usize) {
        let was_counted = std::mem::take(&mut self.context.gave_back) != 0;
        let is_user = cpu.is_user();
        if let Some(counts) = cpu.histogram_mut().filter(|_| was_counted) {
            counts.take_back(self.ops[number].op.form, is_user, 1);
        }
    }
}
