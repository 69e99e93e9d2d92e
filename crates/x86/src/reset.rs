//! Power-on, RESET and INIT (SDM vol. 3, 10.1.1 and table 10-1).

use std::mem;

use crate::cpu::{Cpu, Cr0};

impl Cpu {
    /// Performs RESET, which restores the state after power-on. The count of instructions continues, and the
    /// time-stamp counter's clock and the A20M# pin belong to the machine.
    pub fn reset(&mut self) {
        let mut fresh = Cpu::of_model(self.model);
        fresh.transcendental = self.transcendental;
        fresh.vendor = self.vendor;
        fresh.guest_tools = self.guest_tools;
        fresh.counting = mem::take(&mut self.counting);
        fresh.clock = self.clock.take();
        fresh.address_mask = self.address_mask;
        fresh.instructions = self.instructions;
        fresh.debugger = mem::take(&mut self.debugger);
        fresh.system_calls = mem::take(&mut self.system_calls);
        fresh.page_walks = self.page_walks;
        fresh.set_fetch_generation(self.fetch_generation + 1);
        *self = fresh;
    }

    /// Performs INIT: like RESET, except that the x87, MMX and SSE state, the MSRs and the caching bits of
    /// CR0 do not change.
    pub fn init(&mut self) {
        let caching = self.cr0() & (Cr0::CD | Cr0::NW);
        let fpu = mem::take(&mut self.fpu);
        let sse = mem::take(&mut self.sse);
        let msrs = self.msrs;
        self.reset();
        self.fpu = fpu;
        self.sse = sse;
        self.msrs = msrs;
        self.set_cr0((self.cr0() - (Cr0::CD | Cr0::NW)) | caching);
    }
}
