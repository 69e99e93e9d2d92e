//! `ring3 doctor -m SIZE`: whether machines of a size fit into this host.

use std::fmt::{self, Display, Formatter};
use std::path::Path;

use ring3_host::memory::{HostMemory, Limit, Room};
use ring3_vm::control::LEAST_ROOM;
use ring3_vm::{EngineChoice, EngineIn};
use rustix::fs::statvfs;
use serde::Serialize;

use super::{Check, State};
use crate::limits;

/// What the process of a machine takes beside the guest's memory, in bytes: tables, translated code and the screen.
const BESIDE: u64 = 150 * MIB;
const MIB: u64 = 1 << 20;

/// The machines that are to fit.
#[derive(Debug, Clone, Copy)]
pub(super) struct Machines {
    /// Bytes of memory of each.
    pub(super) size: u64,
    pub(super) count: u32,
}

/// Whether they do.
#[derive(Debug, Serialize)]
pub(super) struct Verdict {
    count: u32,
    size_mib: u64,
    pub(super) fits: bool,
    /// The largest size, in MiB, with which as many fit by what is free now. None if nothing is known.
    largest_mib: Option<u64>,
}

impl Display for Verdict {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let (machines, verb) =
            if self.count == 1 { ("machine", "fits") } else { ("machines", "fit") };
        write!(f, "{} {machines} with {} MiB ", self.count, self.size_mib)?;
        match (self.fits, self.largest_mib) {
            (true, _) => write!(f, "{verb} into this host"),
            (false, Some(largest @ 1..)) => {
                write!(f, "would not fit into this host: give at most -m {largest}M")
            }
            (false, _) => write!(f, "would not fit into this host"),
        }
    }
}

/// What is there of something that machines take.
struct Supply {
    name: &'static str,
    bytes: u64,
    /// What each machine takes of it beside its own memory, and what must be left for all.
    beside: u64,
    left: u64,
    advice: &'static str,
}

impl Supply {
    fn of_host(Room { limit, bytes }: Room) -> Supply {
        let (name, advice) = match limit {
            Limit::Host => (
                "memory of the host (with swap)",
                "end other programs, add swap, or give machines less memory (-m)",
            ),
            Limit::Group => (
                "memory of the control group",
                "raise memory.max (MemoryMax of a systemd unit), or give machines less memory (-m)",
            ),
            Limit::Commit => (
                "memory that the host promises (vm.overcommit_memory=2)",
                "sysctl vm.overcommit_memory=0, or a higher vm.overcommit_ratio",
            ),
        };
        Supply { name, bytes, beside: BESIDE, left: LEAST_ROOM, advice }
    }

    /// Returns the largest size with which `count` machines fit.
    fn largest(&self, count: u32) -> u64 {
        let for_all = self.bytes.saturating_sub(self.left);
        (for_all / u64::from(count)).saturating_sub(self.beside)
    }

    fn check(&self, machines: Machines) -> Check {
        let Machines { size, count } = machines;
        let each = size.saturating_add(self.beside);
        let needed = each.saturating_mul(count.into()).saturating_add(self.left);
        let found = format!("{} MiB free, {} MiB needed", self.bytes / MIB, needed.div_ceil(MIB));
        if self.bytes >= needed {
            return Check::ok(self.name, found);
        }
        Check { name: self.name, state: State::Short, found, advice: Some(self.advice) }
    }
}

/// Checks all that limits machines, whose memory is in the file system of `directory` if one is given.
pub(super) fn check(machines: Machines, directory: Option<&Path>) -> (Vec<Check>, Verdict) {
    let mut supplies: Vec<_> =
        HostMemory::open().rooms().into_iter().map(Supply::of_host).collect();
    let mut checks = Vec::new();
    if let Some(directory) = directory {
        let name = "file system of --memory-path";
        let engine = EngineIn { choice: EngineChoice::Auto, directory: Some(directory.to_owned()) };
        match (engine.check(), statvfs(directory)) {
            (Err(error), _) => checks.push(Check {
                name,
                state: State::Short,
                found: error.to_string(),
                advice: Some("choose another directory, such as one of a tmpfs"),
            }),
            // A tmpfs without a limit has no blocks.
            (Ok(()), Ok(status)) if status.f_blocks > 0 => supplies.push(Supply {
                name,
                bytes: status.f_bavail.saturating_mul(status.f_frsize),
                beside: 0,
                left: LEAST_ROOM,
                advice: "remove files there, or mount it with a larger size",
            }),
            (Ok(()), _) => checks.push(Check::ok(name, "not limited")),
        }
    }
    if let Err(too_low) = limits::check_for_machine(machines.size) {
        checks.push(Check {
            name: "limits of a process",
            state: State::Short,
            found: too_low.to_string(),
            advice: None,
        });
    }
    checks.extend(supplies.iter().map(|supply| supply.check(machines)));
    let largest = supplies.iter().map(|supply| supply.largest(machines.count)).min();
    let verdict = Verdict {
        count: machines.count,
        size_mib: machines.size / MIB,
        fits: checks.iter().all(|check| check.state != State::Short),
        largest_mib: largest.map(|bytes| bytes / MIB),
    };
    (checks, verdict)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_size_is_one_that_fits() {
        for (free, count) in [(4096, 1), (4096, 8), (1500, 3), (167, 1)] {
            let supply = Supply::of_host(Room { limit: Limit::Group, bytes: free * MIB });
            let size = supply.largest(count);
            let state = |size| supply.check(Machines { size, count }).state;
            assert_eq!(state(size), State::Ok, "{free} {count}");
            assert_eq!(state(size + MIB), State::Short, "{free} {count}");
        }
        let none = Supply::of_host(Room { limit: Limit::Host, bytes: 0 });
        assert_eq!(none.largest(1), 0);
        assert_eq!(none.check(Machines { size: u64::MAX, count: u32::MAX }).state, State::Short);
    }

    #[test]
    fn the_verdict_says_what_to_give() {
        let verdict = |count, fits, largest_mib| {
            Verdict { count, size_mib: 512, fits, largest_mib }.to_string()
        };
        assert_eq!(verdict(1, true, Some(900)), "1 machine with 512 MiB fits into this host");
        assert_eq!(
            verdict(8, false, Some(90)),
            "8 machines with 512 MiB would not fit into this host: give at most -m 90M"
        );
        assert_eq!(
            verdict(8, false, Some(0)),
            "8 machines with 512 MiB would not fit into this host"
        );
    }
}
