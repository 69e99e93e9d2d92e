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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::reg;
    use crate::undefined::Vendor;

    #[test]
    fn init_keeps_registers_that_reset_clears() {
        let mut cpu = Cpu::new();
        cpu.set_flat_entry(8, 16, 0x1000);
        cpu.set_gpr(reg::SP, 0x8000);
        cpu.set_cr0(Cr0::PE | Cr0::ET);
        cpu.msrs.sysenter_eip = 0x1234;
        cpu.instructions = 77;
        cpu.vendor = Vendor::Amd;
        cpu.init();
        assert!(!cpu.in_protected_mode());
        assert_eq!((cpu.ip, cpu.segment(1).base), (0xfff0, 0xffff_0000));
        assert_eq!((cpu.gpr(reg::SP), cpu.msrs.sysenter_eip, cpu.instructions), (0, 0x1234, 77));
        assert_eq!(cpu.cr0(), Cr0::ET);
        cpu.reset();
        assert_eq!(cpu.cr0(), Cr0::ET | Cr0::CD | Cr0::NW);
        assert_eq!((cpu.msrs.sysenter_eip, cpu.instructions), (0, 77));
        assert_eq!(cpu.vendor, Vendor::Amd);
    }
}
