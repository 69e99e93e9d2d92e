//! The host's memory: a machine for whose guest the host may soon have no page stands still, and goes on when there is
//! memory again.

use std::fmt::{self, Display, Formatter};
use std::mem;
use std::path::PathBuf;
use std::thread;
use std::time::Duration;

use ring3_core::clock::Time;
use ring3_host::memory::{HostMemory, Limit, Room};
use ring3_translator::let_accesses_wait;
use tracing::{info, warn};

use crate::control::{Control, Ended, Event, Status};
use crate::door::Door;
use crate::machine::Vm;

/// A machine stands still when the host has less than this for it, in bytes. Between two looks a guest touches less: each
/// page that it touches for the first time costs a system call or a fault of the host.
pub const LEAST_ROOM: u64 = 16 << 20;
/// It goes on by itself when the host has this much.
const ENOUGH_ROOM: u64 = 2 * LEAST_ROOM;
/// The host is asked again after so many nanoseconds, since others take memory too.
const INTERVAL_NANOS: u64 = 100_000_000;
/// The time between two looks at whether there is memory again.
const PAUSE: Duration = Duration::from_millis(200);

/// What keeps a machine from having more memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scarce {
    /// The machine's own [limit](Control::limit_memory).
    Machine,
    /// The file system that its memory is in.
    FileSystem,
    /// What the host gives to this process.
    Host(Limit),
}

impl Scarce {
    /// Returns its name for programs.
    pub fn name(self) -> &'static str {
        match self {
            Scarce::Machine => "machine",
            Scarce::FileSystem => "file-system",
            Scarce::Host(Limit::Host) => "host",
            Scarce::Host(Limit::Commit) => "commit",
            Scarce::Host(Limit::Group) => "group",
        }
    }

    /// Returns what one can do about it.
    pub fn advice(self) -> &'static str {
        match self {
            Scarce::Machine => "raise it, or ask the guest for memory by a balloon",
            Scarce::FileSystem => "remove files there, or make it larger",
            Scarce::Host(Limit::Host) => {
                "end other programs, or ask guests for memory by their balloons"
            }
            Scarce::Host(Limit::Commit) => {
                "end other programs, or raise vm.overcommit_ratio, or set vm.overcommit_memory=0"
            }
            Scarce::Host(Limit::Group) => {
                "raise its memory.max (MemoryMax of a systemd unit), or ask the guest for memory by a balloon"
            }
        }
    }
}

impl Display for Scarce {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Scarce::Machine => "the limit of the machine's memory",
            Scarce::FileSystem => "the file system of the machine's memory",
            Scarce::Host(Limit::Host) => "the host's memory",
            Scarce::Host(Limit::Commit) => "what the host promises of its memory",
            Scarce::Host(Limit::Group) => "the control group's memory",
        })
    }
}

/// The host may soon have no page for a guest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shortage {
    /// What is scarce.
    pub scarce: Scarce,
    /// Bytes that are left.
    pub left: u64,
}

impl Display for Shortage {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "{} has {} MiB left for the guest", self.scarce, self.left >> 20)
    }
}

/// The memory of a machine, as those outside see it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct MemoryUse {
    /// Bytes of RAM.
    pub size: u64,
    /// Bytes that the host holds for RAM and for the memory beside it, if it tells.
    pub held: Option<u64>,
    /// The most that it may hold.
    pub limit: Option<u64>,
    /// Why the machine stands still, if it does for lack of memory.
    pub shortage: Option<Shortage>,
}

/// How a machine looks after the host's memory.
#[derive(Debug, Default)]
pub(super) struct Frugality {
    host: Option<HostMemory>,
    /// The directory in whose file system its memory is, if the user has chosen one.
    directory: Option<PathBuf>,
    limit: Option<u64>,
    /// When the host is asked next, if the machine does not hold more than `next_held` before.
    next: Time,
    next_held: u64,
    /// Why the machine stands still.
    shortage: Option<Shortage>,
}

impl Vm {
    /// Lets the machine stand still, from now on, before `host` has no memory for its guest, or the file system of
    /// `directory`, where its memory is. Should the host have none all the same, an access waits.
    pub fn save_host_memory(&mut self, host: HostMemory, directory: Option<PathBuf>) {
        let_accesses_wait();
        self.frugality = Frugality { host: Some(host), directory, ..Frugality::default() };
    }

    /// Returns the directory in whose file system its memory is, if the user has chosen one.
    pub(super) fn memory_directory(&self) -> Option<PathBuf> {
        self.frugality.directory.clone()
    }

    /// Looks after the host's memory as `other` did, which is no more.
    pub(super) fn be_frugal_as(&mut self, other: &mut Vm) {
        self.frugality = Frugality { next: Time::ZERO, ..mem::take(&mut other.frugality) };
    }

    /// Returns whether the machine was put to a stand, or is put to one now, since the host may soon have no page for
    /// the guest. It does not ask the host each time.
    pub(super) fn lacks_memory(&mut self, door: &mut Door) -> bool {
        let frugality = &self.frugality;
        if frugality.host.is_none() && frugality.limit.is_none() {
            return false;
        }
        let (now, held) = (door.host_time(), self.memory.held());
        if now < frugality.next && held.unwrap_or(0) < frugality.next_held {
            return false;
        }
        let room = self.room(held);
        let left = room.map_or(u64::MAX, |room| room.left);
        let frugality = &mut self.frugality;
        frugality.next = now.plus_nanos(INTERVAL_NANOS);
        // Half of what may be touched before the machine must stand still.
        frugality.next_held = held.unwrap_or(0).saturating_add(left.saturating_sub(LEAST_ROOM) / 2);
        let short = |room: &Shortage| room.left < needed(room.scarce, LEAST_ROOM);
        let Some(shortage) = room.filter(short) else {
            frugality.shortage = None;
            return false;
        };
        frugality.shortage = Some(shortage);
        // Whoever lets it go on, it looks at once.
        frugality.next = Time::ZERO;
        warn!(
            "{shortage}: the machine is paused; {}, and it continues where it stopped",
            shortage.scarce.advice()
        );
        door.stop_at(&Event::MemoryShort(shortage), Status::Starved);
        let control = door.sender().control();
        let waits = thread::Builder::new().name("memory".into()).spawn(move || {
            while matches!(control.go_on_with_memory(), Ok(false)) {
                thread::sleep(PAUSE);
            }
        });
        if let Err(error) = waits {
            warn!("the machine does not go on by itself, since there is no thread for it: {error}");
        }
        true
    }

    /// Returns the least that is left of anything, for a machine that holds so much.
    fn room(&self, held: Option<u64>) -> Option<Shortage> {
        let own = || Some((Scarce::Machine, self.frugality.limit?.saturating_sub(held?)));
        let host = self.frugality.host.as_ref();
        let of_host = host.and_then(HostMemory::room);
        let of_host = of_host.map(|Room { limit, bytes }| (Scarce::Host(limit), bytes));
        let of_file = host.and(self.memory.room()).map(|bytes| (Scarce::FileSystem, bytes));
        [own(), of_file, of_host]
            .into_iter()
            .flatten()
            .map(|(scarce, left)| Shortage { scarce, left })
            .min_by_key(|room| room.left.saturating_sub(needed(room.scarce, LEAST_ROOM)))
    }

    /// Lets the machine go on if it stands still for lack of memory and there is enough. Returns whether it does not
    /// stand still for that reason any more.
    fn go_on_with_memory(&mut self, door: &mut Door) -> bool {
        if door.sender().status() != Status::Starved {
            return true;
        }
        let room = self.room(self.memory.held());
        if room.is_some_and(|room| room.left < needed(room.scarce, ENOUGH_ROOM)) {
            return false;
        }
        info!("there is memory for the guest again: the machine goes on");
        self.frugality.shortage = None;
        door.resume();
        true
    }

    fn memory_use(&self) -> MemoryUse {
        MemoryUse {
            size: self.memory_now(),
            held: self.memory.held(),
            limit: self.frugality.limit,
            shortage: self.frugality.shortage,
        }
    }
}

/// Returns how much of it must be left, where it is `usual` for what everybody shares. What belongs to the machine
/// alone may be used up.
fn needed(scarce: Scarce, usual: u64) -> u64 {
    if scarce == Scarce::Machine { usual / LEAST_ROOM } else { usual }
}

impl Control {
    /// Returns what the machine has of the host's memory.
    pub fn memory_use(&self) -> Result<MemoryUse, Ended> {
        self.visit(|vm, _| vm.memory_use())
    }

    /// Limits what the host holds for the machine's memory, in bytes. One that holds so much stands still until the
    /// limit is higher or the guest has given memory back. None is no limit.
    pub fn limit_memory(&self, limit: Option<u64>) -> Result<(), Ended> {
        self.visit(move |vm, _| {
            vm.frugality.limit = limit;
            vm.frugality.next = Time::ZERO;
        })
    }

    fn go_on_with_memory(&self) -> Result<bool, Ended> {
        self.visit(Vm::go_on_with_memory)
    }
}
