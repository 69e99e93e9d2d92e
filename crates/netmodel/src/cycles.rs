//! Processor cycles by purpose.

use std::ops::{Add, Mul};

/// Processor cycles by the purpose for which they are spent.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Cycles {
    /// Exits of a guest.
    pub exits: f64,
    /// Interrupts.
    pub interrupts: f64,
    /// Elements of string port I/O.
    pub emulation: f64,
    /// Copies of data.
    pub copies: f64,
    /// Messages between processes.
    pub messages: f64,
    /// Waking threads.
    pub wake_ups: f64,
    /// Mapping pages at other addresses.
    pub remaps: f64,
}

impl Cycles {
    /// Returns the sum of all terms.
    pub fn total(&self) -> f64 {
        self.terms().iter().map(|(_, cycles)| cycles).sum()
    }

    /// Returns the names of the terms and their cycles.
    pub fn terms(&self) -> [(&'static str, f64); 7] {
        [
            ("exits", self.exits),
            ("interrupts", self.interrupts),
            ("emulation", self.emulation),
            ("copies", self.copies),
            ("messages", self.messages),
            ("wake-ups", self.wake_ups),
            ("remaps", self.remaps),
        ]
    }
}

impl Add for Cycles {
    type Output = Cycles;

    fn add(self, other: Cycles) -> Cycles {
        Cycles {
            exits: self.exits + other.exits,
            interrupts: self.interrupts + other.interrupts,
            emulation: self.emulation + other.emulation,
            copies: self.copies + other.copies,
            messages: self.messages + other.messages,
            wake_ups: self.wake_ups + other.wake_ups,
            remaps: self.remaps + other.remaps,
        }
    }
}

impl Mul<f64> for Cycles {
    type Output = Cycles;

    fn mul(self, times: f64) -> Cycles {
        Cycles {
            exits: self.exits * times,
            interrupts: self.interrupts * times,
            emulation: self.emulation * times,
            copies: self.copies * times,
            messages: self.messages * times,
            wake_ups: self.wake_ups * times,
            remaps: self.remaps * times,
        }
    }
}
