//! SYSCALL and SYSRET in translated code: what they need of the supervisor's space and of that of users, and
//! the processor's state after them.

use std::{io, mem};

use ring3_x86::cpu::Cpu;
use ring3_x86::flags::Eflags;
use ring3_x86::long_mode::FlatCode;

use super::Long;
use super::system::IN_PLACE;
use crate::long::jump_table::slot_offset;
use crate::long::space::LongSpace;

/// What differs between code of the supervisor and of users, for translated code that goes from one to the
/// other.
#[derive(Debug, Clone, Copy, Default)]
#[repr(C)]
pub(crate) struct Side {
    /// The value of `LongContext::distance`.
    pub(crate) distance: u64,
    /// The value of `LongContext::table`.
    pub(crate) table: u64,
    /// The value of RSP, while the other side's code runs.
    pub(crate) returns: u64,
    /// The value of `LongContext::no_returns`.
    pub(crate) no_returns: u64,
    /// The selectors in CS and SS.
    pub(crate) selectors: [u32; 2],
}

impl Side {
    /// Returns what there is for code in `space`, with these selectors in CS and SS.
    fn of(space: &LongSpace, code: u16, stack: u16) -> Side {
        Side {
            distance: space.units.near().distance(),
            table: space.table.address(),
            returns: space.returns.top(),
            no_returns: space.no_returns(),
            selectors: [code.into(), stack.into()],
        }
    }
}

/// Values of `LongContext::crossed_to`: the last change of privilege in translated code.
pub(crate) mod crossed_to {
    /// None: the privilege is that with which translated code was entered.
    pub(crate) const NOTHING: u32 = 0;
    pub(crate) const SUPERVISOR: u32 = 1;
    pub(crate) const USER: u32 = 2;
}

impl Long {
    /// Prepares SYSCALL and SYSRET. If they may stay in translated code, the tables of checks show both
    /// spaces.
    pub(super) fn allow_calls(&mut self, cpu: &Cpu) -> io::Result<()> {
        let long = &cpu.msrs.long;
        // No more flags than these change then, as long as the users' other flags are not cleared either.
        let is_usual = long.system_calls
            && long.flag_mask & u64::from(IN_PLACE.bits()) == u64::from(IN_PLACE.bits())
            && !cpu.tells_system_calls();
        let slot = if is_usual { self.system_slot(long.lstar) } else { None };
        let ((kernel, Some(user)), Some(slot)) = (self.spaces.known(), slot) else {
            self.low.context().forbid_calls();
            return Ok(());
        };
        self.low.show(&kernel.units)?;
        self.low.show(&user.units)?;
        let (code, first) = ((long.star >> 32) as u16 & !3, (long.star >> 48) as u16);
        let sides = [
            Side::of(kernel, code, code.wrapping_add(8)),
            Side::of(user, first.wrapping_add(16) | 3, first.wrapping_add(8) | 3),
        ];
        let context = self.low.context();
        context.allow_calls(sides);
        context.flag_mask = long.flag_mask;
        context.system_entry = long.lstar;
        context.system_entry_slot = slot_offset(slot);
        Ok(())
    }

    /// Returns the slot of the jump table for SYSCALL, which leads to `entry`.
    fn system_slot(&mut self, entry: u64) -> Option<u32> {
        if let Some((_, slot)) = self.system_slot.filter(|(known, _)| *known == entry) {
            return Some(slot);
        }
        let slot = self.slots.find_or_add(entry, false)?;
        self.system_slot = Some((entry, slot));
        Some(slot)
    }

    /// Gives the processor the privilege to which SYSCALL or SYSRET has led in translated code, and the
    /// spaces the tops of their stacks.
    pub(super) fn come_back(&mut self, cpu: &mut Cpu) {
        let context = self.low.context();
        let top = context.returns;
        let crossed = mem::take(&mut context.crossed_to);
        match crossed {
            crossed_to::SUPERVISOR => cpu.enter_system(),
            crossed_to::USER => cpu.leave_system(FlatCode::Bits64),
            _ => {}
        }
        let other_top = context.sides[usize::from(!cpu.is_user())].returns;
        let (kernel, user) = self.spaces.known_mut();
        let (this, other) = if cpu.is_user() { (user, Some(kernel)) } else { (Some(kernel), user) };
        if let Some(space) = this {
            space.returns.set_top(top);
        }
        if crossed != crossed_to::NOTHING {
            if let Some(space) = other {
                space.returns.set_top(other_top);
            }
            cpu.note_users();
        }
        self.note_alignment_flag(cpu);
    }

    /// Gives the processor the value of AC that STAC and CLAC have left.
    fn note_alignment_flag(&mut self, cpu: &mut Cpu) {
        let flag = self.low.context().other_flags & u64::from(Eflags::AC.bits()) != 0;
        if flag != cpu.has_alignment_flag() {
            cpu.set_alignment_flag(flag);
        }
    }
}
