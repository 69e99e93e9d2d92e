//! Debug registers: breakpoints on instructions, data and ports, and the reports in DR6 (SDM vol. 3, chapter
//! 19).
//!
//! While no breakpoint is enabled they cost nothing. While one is, [`Attention::BREAKPOINTS`] makes the
//! engine execute instructions one by one, and pages with watched data stay out of the TLB's quick path, so
//! that each access to them is compared.

use crate::cpu::{Attention, Cpu, Cr4};
use crate::exception::{Fault, Stopped, vector};
use crate::flags::Eflags;
use crate::interrupt::{Event, Source};

/// DR6.BD: an access to a debug register while DR7.GD was set.
const REGISTER_ACCESS: u32 = 1 << 13;
/// DR6.BS: single step.
pub(crate) const SINGLE_STEP: u32 = 1 << 14;
/// DR6.BT: a switch to a task whose TSS has the T flag.
pub(crate) const TASK_SWITCH: u32 = 1 << 15;

/// The bits of DR6 and DR7 that are always set, and those that software can set (SDM vol. 3, figure 19-1).
const DR6_ONES: u32 = 0xffff_0ff0;
const DR6_BITS: u32 = 0x0000_e00f;
/// DR6.B0 to B3.
const DR6_HITS: u32 = 0x0000_000f;
const DR7_ONES: u32 = 0x0000_0400;
const DR7_BITS: u32 = 0xffff_23ff;
/// The enables of the four breakpoints in DR7, and those that a task switch clears, including LE.
const DR7_ENABLES: u32 = 0x0000_00ff;
const DR7_LOCAL: u32 = 0x0000_0155;
/// DR7.GD: the next access to a debug register is a #DB.
const DR7_GENERAL_DETECT: u32 = 1 << 13;

/// The accesses for which breakpoints wait, as bits selected by the value of DR7's R/W field (SDM vol. 3,
/// 19.2.4).
mod kind {
    pub(super) const EXECUTE: u32 = 1 << 0;
    pub(super) const WRITE: u32 = 1 << 1;
    pub(super) const PORT: u32 = 1 << 2;
    pub(super) const READ_OR_WRITE: u32 = 1 << 3;
}

/// The number of bytes that a breakpoint covers, by DR7's LEN field.
const LENGTHS: [u64; 4] = [1, 2, 8, 4];

impl Cpu {
    /// Returns whether DR7.GD is set, so that the next access to a debug register is a #DB.
    pub fn guards_debug_registers(&self) -> bool {
        self.dr[7] as u32 & DR7_GENERAL_DETECT != 0
    }

    /// Reads debug register `number`, 0 to 7, for MOV. Raises #DB if DR7.GD is set.
    pub(crate) fn read_debug_register(&mut self, number: u8) -> Result<u64, Stopped> {
        let register = self.debug_register(number)?;
        Ok(self.dr[register])
    }

    /// Writes debug register `number`, 0 to 7, for MOV. Raises #GP(0) for a bit in the upper half of DR6 or
    /// DR7 (SDM vol. 3, 19.2.6).
    pub(crate) fn write_debug_register(&mut self, number: u8, value: u64) -> Result<(), Stopped> {
        let register = self.debug_register(number)?;
        if register >= 6 && value >> 32 != 0 {
            return Err(self.general_protection(0));
        }
        self.dr[register] = match register {
            6 => u64::from(value as u32 & DR6_BITS | DR6_ONES),
            7 => u64::from(value as u32 & DR7_BITS | DR7_ONES),
            _ => value,
        };
        if register != 6 {
            self.breakpoints_changed();
        }
        Ok(())
    }

    /// Returns the register that `number` selects: DR4 and DR5 are other names of DR6 and DR7 while CR4.DE is
    /// clear.
    fn debug_register(&mut self, number: u8) -> Result<usize, Stopped> {
        let register = match number {
            4 | 5 if self.cr4.contains(Cr4::DE) => return Err(self.undefined_opcode()),
            4 | 5 => usize::from(number) + 2,
            _ => usize::from(number & 7),
        };
        if self.guards_debug_registers() {
            self.debug_event(REGISTER_ACCESS);
            return Err(self.fault(Fault::new(vector::DB)));
        }
        Ok(register)
    }

    /// Updates the effects of breakpoints after a change of DR0 to DR3 or DR7.
    pub(crate) fn breakpoints_changed(&mut self) {
        let enabled = self.dr[7] as u32 & DR7_ENABLES != 0;
        if enabled || self.attention.contains(Attention::BREAKPOINTS) {
            // Different pages hold watched data now.
            self.translation_changed();
        }
        self.attention.set(Attention::BREAKPOINTS, enabled);
    }

    /// Disables the local breakpoints, as a task switch does (SDM vol. 3, 19.2.4).
    pub(crate) fn disable_local_breakpoints(&mut self) {
        self.dr[7] &= !u64::from(DR7_LOCAL);
        self.breakpoints_changed();
    }

    /// Returns the enabled breakpoints of `kinds` that cover any of the `size` bytes at `address`, as bits of
    /// DR6.
    fn breakpoints(&self, kinds: u32, address: u64, size: u64) -> u32 {
        let control = self.dr[7] as u32;
        let mut hits = 0;
        for number in 0..4 {
            let enabled = control >> (2 * number) & 3 != 0;
            let kind = control >> (16 + 4 * number) & 3;
            let length = LENGTHS[(control >> (18 + 4 * number) & 3) as usize];
            let start = self.dr[number] & !(length - 1);
            let covers = start.wrapping_sub(address) < size || address.wrapping_sub(start) < length;
            if enabled && kinds >> kind & 1 != 0 && covers {
                hits |= 1 << number;
            }
        }
        hits
    }

    /// Returns the breakpoints on the instruction at CS:EIP.
    pub(crate) fn instruction_breakpoints(&self) -> u32 {
        self.breakpoints(kind::EXECUTE, self.linear_ip(), 1)
    }

    /// Returns whether the guest has a breakpoint on data in the page of `linear`, or the debugger a watchpoint.
    pub(crate) fn watches_page(&self, linear: u64) -> bool {
        self.debugger.watches(linear & !0xfff, 0x1000)
            || self.attention.contains(Attention::BREAKPOINTS)
                && self.breakpoints(kind::WRITE | kind::READ_OR_WRITE, linear & !0xfff, 0x1000) != 0
    }

    /// Notes the breakpoints on `size` bytes of data at `linear`, which are being read or written, and the
    /// watchpoints of the debugger.
    pub(crate) fn watch_data(
        &mut self,
        linear: u64,
        size: usize,
        is_write: bool,
    ) -> Result<(), Stopped> {
        self.watch_for_debugger(linear, size, is_write)?;
        if self.attention.contains(Attention::BREAKPOINTS) {
            let kinds = kind::READ_OR_WRITE | if is_write { kind::WRITE } else { 0 };
            let hits = self.breakpoints(kinds, linear, size as u64);
            self.note_debug_conditions(hits);
        }
        Ok(())
    }

    /// Notes the breakpoints on `size` ports from `port` on. Such breakpoints exist only with CR4.DE.
    pub(crate) fn watch_port(&mut self, port: u16, size: usize) {
        if self.attention.contains(Attention::BREAKPOINTS) && self.cr4.contains(Cr4::DE) {
            let hits = self.breakpoints(kind::PORT, port.into(), size as u64);
            self.note_debug_conditions(hits);
        }
    }

    /// Notes conditions, as bits of DR6, that trap after the instruction.
    pub(crate) fn note_debug_conditions(&mut self, conditions: u32) {
        self.debug_conditions |= conditions;
        self.attention.set(Attention::DEBUG_TRAP, self.debug_conditions != 0);
    }

    /// Takes the noted conditions.
    pub(crate) fn take_debug_conditions(&mut self) -> u32 {
        self.attention -= Attention::DEBUG_TRAP;
        std::mem::take(&mut self.debug_conditions)
    }

    /// Makes the debug exception for `conditions`: DR6 reports them, and the handler may access the debug
    /// registers. Bits 0 to 3 are those of the last exception; the others stay until software clears them
    /// (SDM vol. 3, 19.2.3).
    pub(crate) fn debug_event(&mut self, conditions: u32) -> Event {
        self.dr[6] = self.dr[6] & !u64::from(DR6_HITS) | u64::from(conditions);
        self.dr[7] &= !u64::from(DR7_GENERAL_DETECT);
        Event { vector: vector::DB, error_code: None, source: Source::Exception }
    }

    /// Returns whether RF is set.
    pub fn has_resume_flag(&self) -> bool {
        self.system_flags.contains(Eflags::RF)
    }

    /// Clears RF, which affects one instruction only (SDM vol. 3, 19.3.1.1).
    pub fn use_resume_flag(&mut self) {
        self.system_flags.remove(Eflags::RF);
        self.attention -= Attention::RESUME;
    }

    /// Sets RF, because the instruction at EIP has begun and must not trigger its breakpoint again.
    pub fn set_resume_flag(&mut self) {
        self.system_flags.insert(Eflags::RF);
        self.attention |= Attention::RESUME;
    }
}
