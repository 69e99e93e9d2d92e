//! Interrupts (ICR, ITR, ICS, IMS, IMC): their causes, which of them count, and how the card holds them back so that there is one for many packets.

use ring3_core::clock::{Tag, Time};
use ring3_core::device::Context;
use serde::{Deserialize, Serialize};

use super::file::File;
use super::registers::{self as r, cause};

/// What a delay is counted in, in nanoseconds: those of descriptors, and the time between two interrupts.
const DELAY_UNIT: u64 = 1024;
const THROTTLE_UNIT: u64 = 256;

/// Timers: when an interrupt may come again, and when the delay is over after the last packet, and after the first.
const THROTTLE: Tag = 0;
const RECEIVED: Delay =
    Delay { after_last: 1, after_first: 2, registers: [r::RDTR, r::RADV], cause: cause::RECEIVED };
const SENT: Delay =
    Delay { after_last: 3, after_first: 4, registers: [r::TIDV, r::TADV], cause: cause::SENT };

/// How an interrupt for packets is held back.
#[derive(Debug)]
struct Delay {
    after_last: Tag,
    after_first: Tag,
    /// How long, after the last packet and after the first.
    registers: [u32; 2],
    cause: u32,
}

/// Causes that there are, those that count, and the pin.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Interrupts {
    causes: u32,
    mask: u32,
    asserted: bool,
    /// Before that there is no other one.
    not_before: u64,
    /// There is a time at which the delay ends whatever comes meanwhile.
    received_waits: bool,
    sent_waits: bool,
}

impl Interrupts {
    pub(super) fn is_asserted(&self) -> bool {
        self.asserted
    }

    pub(super) fn mask(&self) -> u32 {
        self.mask
    }

    /// Software reads the causes, which clears them.
    pub(super) fn take(&mut self, context: &mut Context<'_>, file: &File) -> u32 {
        let causes = std::mem::take(&mut self.causes);
        self.settle(context, file);
        causes
    }

    /// Software clears causes.
    pub(super) fn clear(&mut self, context: &mut Context<'_>, file: &File, causes: u32) {
        self.causes &= !causes;
        self.settle(context, file);
    }

    pub(super) fn enable(&mut self, context: &mut Context<'_>, file: &File, causes: u32) {
        self.mask |= causes & cause::ALL;
        self.settle(context, file);
    }

    pub(super) fn disable(&mut self, context: &mut Context<'_>, file: &File, causes: u32) {
        self.mask &= !causes;
        self.settle(context, file);
    }

    pub(super) fn raise(&mut self, context: &mut Context<'_>, file: &File, causes: u32) {
        self.causes |= causes & cause::ALL;
        self.settle(context, file);
    }

    /// Software has set another time between two interrupts, which may end sooner.
    pub(super) fn set_interval(&mut self, context: &mut Context<'_>, file: &File) {
        self.not_before = self.not_before.min(next_after(context.now, file));
        self.settle(context, file);
    }

    /// A packet has come.
    pub(super) fn received(&mut self, context: &mut Context<'_>, file: &File) {
        self.received_waits = self.delay(context, file, &RECEIVED, self.received_waits);
    }

    /// A descriptor was used for which the interrupt is to be held back.
    pub(super) fn sent(&mut self, context: &mut Context<'_>, file: &File) {
        self.sent_waits = self.delay(context, file, &SENT, self.sent_waits);
    }

    fn delay(
        &mut self,
        context: &mut Context<'_>,
        file: &File,
        delay: &Delay,
        waits: bool,
    ) -> bool {
        let [last, first] = delay.registers.map(|register| u64::from(file.get(register) & 0xffff));
        if last == 0 {
            self.raise(context, file, delay.cause);
            return false;
        }
        context.set_timer(delay.after_last, context.now.plus_nanos(last * DELAY_UNIT));
        if first > 0 && !waits {
            context.set_timer(delay.after_first, context.now.plus_nanos(first * DELAY_UNIT));
        }
        true
    }

    pub(super) fn timer(&mut self, context: &mut Context<'_>, file: &File, tag: Tag) {
        for delay in [RECEIVED, SENT] {
            if tag == delay.after_last || tag == delay.after_first {
                context.cancel_timer(delay.after_last);
                context.cancel_timer(delay.after_first);
                if delay.cause == cause::SENT {
                    self.sent_waits = false;
                } else {
                    self.received_waits = false;
                }
                self.causes |= delay.cause;
            }
        }
        self.settle(context, file);
    }

    /// Drives the pin as the causes say, but not more often than software wants it.
    fn settle(&mut self, context: &mut Context<'_>, file: &File) {
        let wanted = self.causes & self.mask != 0;
        let not_before = Time::from_nanos(self.not_before);
        if wanted && !self.asserted && context.now < not_before {
            context.set_timer(THROTTLE, not_before);
            return;
        }
        if wanted && !self.asserted {
            self.not_before = next_after(context.now, file);
        }
        self.asserted = wanted;
    }

    /// Nothing waits any more.
    pub(super) fn stop(context: &mut Context<'_>) {
        for tag in
            [THROTTLE, RECEIVED.after_last, RECEIVED.after_first, SENT.after_last, SENT.after_first]
        {
            context.cancel_timer(tag);
        }
    }

    pub(super) fn is_possible(&self) -> bool {
        (self.causes | self.mask) & !cause::ALL == 0
    }
}

/// When the next interrupt may come after one at `now`, in nanoseconds of virtual time.
fn next_after(now: Time, file: &File) -> u64 {
    now.plus_nanos(u64::from(file.get(r::ITR)) * THROTTLE_UNIT).as_nanos()
}
