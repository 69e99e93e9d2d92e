//! Guests that do nothing any more, or that start again and again, and the messages about them:
//!
//! * guests that have halted with interrupts disabled, so that only a reset or an NMI can wake them up;
//! * guests for 64-bit processors, which halt, or fault, soon after they have looked for long mode;
//! * firmware that has found nothing to boot;
//! * systems that say that they have failed;
//! * resets and triple faults without end.

use std::time::{Duration, Instant};

use ring3_core::device::GuestFailure;
use ring3_x86::flags::Eflags;
use ring3_x86::segment::sreg;
use tracing::{info, warn};

use crate::config::OnPanic;
use crate::kernel_file::FOR_64_BITS;
use crate::machine::session::Session;
use crate::machine::{Ending, Report, Vm};

/// A guest that gives up within this number of instructions after it has looked for long mode does so for
/// lack of it. A kernel's own check takes some hundred of them; Linux's real-mode code then writes its
/// complaint by calls of the firmware.
const SOON: u64 = 10_000_000;

/// The text that SeaBIOS writes to the screen and to port 402h when it has tried everything (its `boot.c`).
const NOTHING_TO_BOOT: &[u8] = b"No bootable device.";

/// Number of resets in a second that count as a loop.
const LOOP: u32 = 10;

const SECOND: Duration = Duration::from_secs(1);

/// How long a loop of resets is not reported again.
const PAUSE: Duration = Duration::from_secs(60);

/// Observations of a guest that gives up. They are no state of the machine: nothing that the guest sees
/// depends on them.
#[derive(Debug, Default)]
pub(super) struct GivingUp {
    /// Number of bytes of [`NOTHING_TO_BOOT`] that firmware has written.
    complained: usize,
    /// Whether it was reported that firmware has found nothing to boot.
    told_nothing: bool,
    /// The number of resets at which it was reported that the guest is for 64-bit processors.
    told_64_bits: Option<u64>,
    /// The number of resets at which it was reported that the guest's system has failed.
    told_failure: Option<u64>,
    resets: Resets,
    /// CS and EIP of the triple fault that is about to reset the processor.
    fault: Option<(u16, u64)>,
}

/// Counts resets, so that reports on them are limited in rate.
#[derive(Debug, Default)]
struct Resets {
    /// The beginning of the second in which they are counted.
    since: Option<Instant>,
    count: u32,
    /// The end of the time in which a loop is not reported.
    quiet_until: Option<Instant>,
}

/// The report on a reset.
#[derive(Debug, PartialEq, Eq)]
enum ResetReport {
    Nothing,
    /// It is a single one.
    Single,
    /// It is one of a loop, with this number in the last second.
    Loop(u32),
}

impl Resets {
    /// Counts a reset at host time `now`, and returns the report on it.
    fn note(&mut self, now: Instant) -> ResetReport {
        let passed = self.since.map(|since| now.saturating_duration_since(since));
        if passed.is_some_and(|passed| passed < SECOND) {
            self.count += 1;
            return ResetReport::Nothing;
        }
        let is_next_second = passed.is_some_and(|passed| passed < 2 * SECOND);
        let before = if is_next_second { self.count } else { 0 };
        (self.since, self.count) = (Some(now), 1);
        if before < LOOP {
            return ResetReport::Single;
        }
        if self.quiet_until.is_some_and(|until| now < until) {
            return ResetReport::Nothing;
        }
        self.quiet_until = Some(now + PAUSE);
        ResetReport::Loop(before)
    }
}

impl Vm {
    /// Returns whether nothing happens before an input or a timer.
    pub(super) fn is_idle(&self) -> bool {
        // The processor learns of the pin when it runs next, after an input that has just come in.
        let interrupt_pin = self.board.interrupt_requested();
        self.cpu.is_halted() && !(interrupt_pin && self.cpu.is_interruptible())
    }

    /// Returns whether the processor is halted and takes no interrupts. (An NMI would still wake it up, but
    /// no system is known to wait for one.)
    fn is_stuck(&self) -> bool {
        self.cpu.is_halted() && !self.cpu.eflags().contains(Eflags::IF)
    }

    /// Returns the ending, if the processor is halted, takes no interrupts, and that ends the run.
    pub(super) fn end_if_stuck(&self) -> Option<Ending> {
        if !(self.config.ends_when_stuck && self.is_idle() && self.is_stuck()) {
            return None;
        }
        if self.lacks_64_bits() {
            return Some(Ending::For64Bits);
        }
        let reason =
            "the guest has halted with interrupts disabled, and no tool is connected that could reset it or send an NMI".to_owned();
        Some(Ending::Stuck(self.report(reason)))
    }

    /// Handles an idle guest. Returns the ending if nothing can wake it up and that ends the run. Otherwise
    /// reports this once.
    pub(super) fn notice_stuck(&mut self, session: &mut Session) -> Option<Ending> {
        let ending = self.end_if_stuck();
        if ending.is_some() {
            return ending;
        }
        let resets = Some(self.stats.resets);
        let is_stuck = self.is_stuck();
        if self.lacks_64_bits() && (is_stuck || self.halts_in_a_loop()) {
            if self.giving_up.told_64_bits != resets {
                warn!("the guest has given up: it {FOR_64_BITS}");
                self.giving_up.told_64_bits = resets;
            }
        } else if is_stuck && session.told_stuck != resets {
            warn!(
                "the guest has halted with interrupts disabled: only a reset or an NMI can wake it up"
            );
            session.told_stuck = resets;
        }
        None
    }

    /// Returns whether the guest has looked for long mode a short time ago.
    fn lacks_64_bits(&self) -> bool {
        if self.cpu.model.has_long_mode() {
            return false;
        }
        let sought = self.cpu.long_mode_sought;
        sought.is_some_and(|sought| self.cpu.instructions - sought <= SOON)
    }

    /// Returns whether the instruction after HLT is a jump back to it.
    fn halts_in_a_loop(&self) -> bool {
        let halt = self.cpu.ip.wrapping_sub(1);
        let next = self.cpu.next_instruction(&self.memory);
        next.is_some_and(|next| next.is_jmp_short_or_near() && next.near_branch_target() == halt)
    }

    /// Takes a byte that firmware has written for those who debug it. Returns the ending if this says that
    /// firmware has found nothing to boot and that ends the run.
    pub(super) fn listen_to_firmware(&mut self, byte: u8) -> Option<Ending> {
        if self.software.kernel().is_some() {
            return None;
        }
        let GivingUp { complained, told_nothing, .. } = &mut self.giving_up;
        // The first letter occurs nowhere else in the text.
        *complained = if byte == NOTHING_TO_BOOT[*complained] {
            *complained + 1
        } else {
            usize::from(byte == NOTHING_TO_BOOT[0])
        };
        if *complained < NOTHING_TO_BOOT.len() {
            return None;
        }
        *complained = 0;
        if self.config.ends_when_stuck {
            return Some(Ending::NothingToBoot);
        }
        // Firmware tries again every minute, by a reset.
        if !std::mem::replace(told_nothing, true) {
            warn!(
                "the firmware has found no operating system on the drives and no network to boot from; check the drives' files"
            );
        }
        None
    }

    /// Notes that the guest has said that its system has failed. Returns the ending, if that ends the run.
    pub(super) fn hear_of(&mut self, failure: GuestFailure) -> Option<Ending> {
        let resets = Some(self.stats.resets);
        if self.giving_up.told_failure != resets {
            let instructions = self.cpu.instructions;
            match failure {
                GuestFailure::Panic => {
                    warn!(
                        "the guest's system has failed (panic), after {instructions} instructions"
                    );
                }
                GuestFailure::CrashLoaded => {
                    warn!("the guest's system has failed, and another kernel takes over");
                }
            }
            self.giving_up.told_failure = resets;
        }
        self.failure = Some(failure);
        let ends = failure == GuestFailure::Panic && self.config.on_panic == Some(OnPanic::End);
        ends.then_some(Ending::Panicked)
    }

    /// Returns the reason for ending the run at a triple fault.
    pub(super) fn triple_fault_reason(&self) -> String {
        let hint = self.hint_at_64_bits();
        format!("triple fault{hint}")
    }

    /// Returns what is added to the report on a triple fault.
    fn hint_at_64_bits(&self) -> String {
        if self.lacks_64_bits() {
            format!("; the guest looked for 64-bit mode just before: it {FOR_64_BITS}")
        } else {
            String::new()
        }
    }

    /// Notes that the processor has shut down. The chipset answers by resetting it.
    pub(super) fn note_triple_fault(&mut self) {
        self.giving_up.fault = Some((self.cpu.segment(sreg::CS).selector, self.cpu.ip));
    }

    /// Returns whether the processor has shut down and is about to be reset.
    pub(super) fn has_faulted(&self) -> bool {
        self.giving_up.fault.is_some()
    }

    /// Reports that the guest, or its processor alone, is about to be reset, unless this is one of very many
    /// resets.
    pub(super) fn note_reset(&mut self, what: &str) {
        self.stats.resets += 1;
        let fault = self.giving_up.fault.take();
        let report = self.giving_up.resets.note(Instant::now());
        let (cs, eip) = fault.unwrap_or((self.cpu.segment(sreg::CS).selector, self.cpu.ip));
        let hint = if fault.is_some() { self.hint_at_64_bits() } else { String::new() };
        match report {
            ResetReport::Nothing => {}
            // Some guests use a triple fault to return to real mode. A kernel that was started without
            // firmware has failed.
            ResetReport::Single if fault.is_some() && self.software.kernel().is_some() => {
                warn!("triple fault at {cs:04x}:{eip:08x}: the machine starts again{hint}");
            }
            ResetReport::Single if fault.is_some() => {
                info!("triple fault at {cs:04x}:{eip:08x}: the processor starts again{hint}");
            }
            ResetReport::Single => info!("the guest has reset the {what}"),
            ResetReport::Loop(count) => {
                let how = if fault.is_some() { "by a triple fault " } else { "" };
                warn!(
                    "the guest resets again and again: {count} times in the last second, the last time {how}at \
                     {cs:04x}:{eip:08x}{hint}; with --no-reboot the first reset ends the run"
                );
            }
        }
    }

    /// Returns a report with `reason` and the state of the processor.
    pub(super) fn report(&self, reason: String) -> Report {
        Report { reason, cpu: self.cpu.report(&self.memory) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_loop_of_resets_is_reported_once_a_minute() {
        let start = Instant::now();
        let mut resets = Resets::default();
        let mut said = Vec::new();
        // A thousand resets each second, for more than two minutes.
        for number in 0..125_000 {
            let report = resets.note(start + Duration::from_millis(number));
            if report != ResetReport::Nothing {
                said.push((number, report));
            }
        }
        let again = |at| (at, ResetReport::Loop(1000));
        assert_eq!(said, [(0, ResetReport::Single), again(1000), again(61_000), again(121_000)]);
    }

    #[test]
    fn single_resets_are_all_reported() {
        let start = Instant::now();
        let mut resets = Resets::default();
        for number in 0..20 {
            assert_eq!(resets.note(start + number * SECOND), ResetReport::Single);
        }
        // Many resets long ago do not make the next one part of a loop.
        for _ in 0..2 * LOOP {
            resets.note(start + 20 * SECOND);
        }
        assert_eq!(resets.note(start + 30 * SECOND), ResetReport::Single);
    }
}
