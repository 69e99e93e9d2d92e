//! Samples of what the guest executes, taken at equal distances of virtual time.
//!
//! A sample lies between two instructions and only looks: the guest goes the same way with and without it. Virtual time
//! decides when it is taken, so a run that repeats has the same samples each time, whatever the host does.

use std::collections::BTreeMap;
use std::io;

use ring3_core::clock::Time;
use ring3_x86::cpu::reg;
pub use ring3_x86::engine::HostCode;
use ring3_x86::segment::sreg;

use crate::inspect::MemoryRange;
use crate::machine::Vm;

/// The most return addresses that are looked for on a stack, which the guest may have made up.
const FRAMES_MAX: usize = 64;

/// The most bytes of a stack frame.
const FRAME_BYTES_MAX: u64 = 64 << 10;

/// The most different stacks that are told apart: some 20 MiB.
const STACKS_MAX: usize = 1 << 16;

/// What the processor did.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Activity {
    /// It executed code at a privilege level from 0 to 2, or in real mode.
    Supervisor,
    /// It executed code at privilege level 3.
    User,
    /// It waited for an interrupt.
    Idle,
}

/// What the processor did, and where.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Stack {
    /// What it did.
    pub activity: Activity,
    /// The linear address of the next instruction and those to which the functions return, the innermost first.
    /// There are none where nothing was executed, and none for stacks beyond those that are told apart.
    pub frames: Vec<u64>,
}

/// The samples of a run.
#[derive(Debug, Clone)]
pub struct Profile {
    /// Nanoseconds between two samples.
    interval: u64,
    next: Time,
    samples: BTreeMap<Stack, u64>,
}

impl Profile {
    fn new(per_second: u32, now: Time) -> Profile {
        let interval = 1_000_000_000 / u64::from(per_second.clamp(1, RATE_MAX));
        Profile { interval, next: now.plus_nanos(interval), samples: BTreeMap::new() }
    }

    /// Returns each stack, and how many samples have found it.
    pub fn samples(&self) -> impl Iterator<Item = (&Stack, u64)> {
        self.samples.iter().map(|(stack, count)| (stack, *count))
    }

    /// Returns when the next sample is due.
    pub(crate) fn next(&self) -> Time {
        self.next
    }

    /// Begins again to wait for the next sample, since time has gone back.
    pub(crate) fn restart(&mut self, now: Time) {
        self.next = now.plus_nanos(self.interval);
    }

    /// Counts `stack` for all samples that are due at `now`. After a wait these may be many.
    fn count(&mut self, stack: Stack, now: Time) {
        let due = now.nanos_since(self.next) / self.interval + 1;
        self.next = self.next.plus_nanos(due.saturating_mul(self.interval));
        let is_known = self.samples.len() < STACKS_MAX || self.samples.contains_key(&stack);
        let stack = if is_known { stack } else { Stack { frames: Vec::new(), ..stack } };
        *self.samples.entry(stack).or_default() += due;
    }
}

/// The most samples in a second of virtual time.
pub const RATE_MAX: u32 = 100_000;

impl Vm {
    /// Takes `per_second` samples in each second of virtual time from now on, at most [`RATE_MAX`]. This changes
    /// nothing for the guest.
    pub fn take_samples(&mut self, per_second: u32) {
        self.profile = Some(Box::new(Profile::new(per_second, self.now())));
    }

    /// Returns the samples since [`Vm::take_samples`].
    pub fn profile(&self) -> Option<&Profile> {
        self.profile.as_deref()
    }

    /// Lets profilers of the host find names for translated code. It must be called before the machine runs.
    pub fn reveal_code(&mut self) -> io::Result<()> {
        self.engine.reveal_code()
    }

    /// Returns the translated code that there is.
    pub fn host_code(&self) -> Vec<HostCode> {
        self.engine.host_code()
    }

    /// Takes the samples that are due at `now`.
    pub(crate) fn sample(&mut self, now: Time) {
        let Some(mut profile) = self.profile.take_if(|profile| profile.next <= now) else { return };
        profile.count(self.stack(), now);
        self.profile = Some(profile);
    }

    fn stack(&self) -> Stack {
        if self.cpu.is_halted() {
            return Stack { activity: Activity::Idle, frames: Vec::new() };
        }
        let code = self.cpu.segment(sreg::CS);
        let mut frames = vec![self.cpu.linear_ip()];
        let stack = self.cpu.segment(sreg::SS);
        let is_flat =
            |segment: &ring3_x86::segment::Segment| segment.base == 0 && segment.attributes.big();
        if self.cpu.is_in_64_bit_mode() {
            self.find_callers::<8>(&mut frames);
        } else if self.cpu.in_protected_mode() && is_flat(code) && is_flat(stack) {
            self.find_callers::<4>(&mut frames);
        }
        let activity = if self.cpu.is_user() { Activity::User } else { Activity::Supervisor };
        Stack { activity, frames }
    }

    /// Adds the return addresses, of `SIZE` bytes each, that a chain of frame pointers leads to. EBP may be anything,
    /// so each frame must be above the one before it, and near it, and what it returns to must come after a CALL.
    fn find_callers<const SIZE: usize>(&self, frames: &mut Vec<u64>) {
        let size = SIZE as u64;
        let all = u64::MAX >> (64 - 8 * size);
        let [mut below, mut frame] =
            [reg::SP, reg::BP].map(|register| self.cpu.gpr(register) & all);
        while frames.len() <= FRAMES_MAX {
            let is_frame = frame.is_multiple_of(size)
                && (below..below.saturating_add(FRAME_BYTES_MAX)).contains(&frame);
            if !is_frame {
                return;
            }
            let Some(caller) = self.word::<SIZE>(frame.wrapping_add(size)) else { return };
            if !self.comes_after_call(caller) {
                return;
            }
            frames.push(caller);
            below = frame.saturating_add(2 * size);
            match self.word::<SIZE>(frame) {
                Some(next) => frame = next,
                None => return,
            }
        }
    }

    /// Returns whether there is a near CALL before linear address `address`: by a displacement of 32 bits (E8), or
    /// by an operand in a register or in memory (FF /2) with or without SIB and displacement.
    fn comes_after_call(&self, address: u64) -> bool {
        let Some(bytes) = self.bytes(address.wrapping_sub(7), 7) else { return false };
        let is_indirect =
            |len: &usize| bytes[7 - len] == 0xff && bytes[8 - len] & 0b0011_1000 == 0b0001_0000;
        bytes[2] == 0xe8 || [2, 3, 4, 6, 7].iter().any(is_indirect)
    }

    fn word<const SIZE: usize>(&self, address: u64) -> Option<u64> {
        let bytes = self.bytes(address, SIZE)?;
        Some(bytes.iter().rev().fold(0, |value, byte| value << 8 | u64::from(*byte)))
    }

    fn bytes(&self, address: u64, len: usize) -> Option<Vec<u8>> {
        self.peek(MemoryRange { address, len, is_linear: true })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stack(frames: &[u64]) -> Stack {
        Stack { activity: Activity::Supervisor, frames: frames.to_vec() }
    }

    #[test]
    fn a_long_wait_is_as_many_samples_as_were_due() {
        let mut profile = Profile::new(1000, Time::ZERO);
        assert_eq!(profile.next(), Time::from_nanos(1_000_000));
        profile.count(stack(&[1]), Time::from_nanos(1_000_000));
        assert_eq!(profile.next(), Time::from_nanos(2_000_000));
        profile.count(stack(&[1]), Time::from_nanos(5_999_999));
        assert_eq!(profile.next(), Time::from_nanos(6_000_000));
        assert_eq!(profile.samples().collect::<Vec<_>>(), [(&stack(&[1]), 5)]);
    }

    #[test]
    fn stacks_beyond_the_limit_are_counted_together() {
        let mut profile = Profile::new(RATE_MAX, Time::ZERO);
        for number in 0..STACKS_MAX as u64 + 10 {
            profile.count(stack(&[number]), profile.next());
        }
        profile.count(stack(&[5]), profile.next());
        let samples: Vec<_> = profile.samples().collect();
        assert_eq!(samples.len(), STACKS_MAX + 1);
        assert_eq!(samples[0], (&stack(&[]), 10));
        assert_eq!(samples[6], (&stack(&[5]), 2));
    }
}
