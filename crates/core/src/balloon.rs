//! What passes between a memory balloon and those outside who want memory back.
//!
//! A balloon is a device whose driver takes pages from its system, so that the host can have them. Those outside
//! say how large it should be, and the driver does what it can.

use serde::{Deserialize, Serialize};

use crate::clock::Time;
use crate::memory::PAGE_SIZE;

/// What those outside tell a balloon.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum BalloonRequest {
    /// The balloon should have this many pages of 4 KiB.
    Target {
        /// The number of pages.
        pages: u32,
    },
    /// The driver should give statistics every so many seconds of virtual time, from now on; 0 for never.
    Poll {
        /// The number of seconds.
        seconds: u32,
    },
}

/// What is known of a balloon.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct BalloonStatus {
    /// The pages that it should have.
    pub target: u32,
    /// The pages that it has, as the driver says.
    pub actual: u32,
    /// The seconds between two statistics, or 0.
    pub poll_seconds: u32,
    /// The last statistics: tags and values (virtio 1.2, 5.5.6.3).
    pub statistics: Vec<(u16, u64)>,
    /// When they came.
    pub updated: Option<Time>,
    /// How many pages it has given back to the host, among them those that the driver has reported as free.
    pub released: u64,
    /// How many times the host was asked for that, each time for consecutive pages.
    pub runs: u64,
}

impl BalloonStatus {
    /// Returns how many bytes a guest with `memory` bytes has for itself.
    pub fn left_of(&self, memory: u64) -> u64 {
        memory.saturating_sub(u64::from(self.actual) * PAGE_SIZE)
    }
}
