//! What machines may send, by their processes.

use std::collections::BTreeMap;
use std::num::NonZero;
use std::os::fd::AsFd;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use ring3_host::admission::Peer;
use ring3_host::turns::{Share, Terms, Turns, WEIGHT};
use serde::Deserialize;

/// What the machine of a process may send.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct MachineShare {
    /// The number of the process.
    pub pid: i32,
    /// Its weight among the others; 0 counts as 1. By default 100.
    pub weight: Option<u32>,
    /// The most bytes a second, whatever the others leave.
    pub bandwidth: Option<NonZero<u64>>,
}

/// The shares of all machines. Those of one process have one together.
#[derive(Debug)]
pub(super) struct Shares {
    turns: Arc<Turns>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    terms: BTreeMap<i32, Terms>,
    connected: BTreeMap<i32, Weak<Share>>,
}

impl Shares {
    /// Shares out so many bytes a second.
    pub(super) fn new(bandwidth: NonZero<u64>) -> Shares {
        Shares { turns: Turns::new(Some(bandwidth)), state: Mutex::default() }
    }

    /// Returns the share of the machine at the other end of `connection`. One whose process the host does not tell has one
    /// of its own.
    pub(super) fn of(&self, connection: impl AsFd) -> Arc<Share> {
        let Peer::Process { process, .. } = Peer::of(connection) else {
            return Arc::new(self.turns.join(Terms::default()));
        };
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.connected.retain(|_, share| share.strong_count() > 0);
        if let Some(share) = state.connected.get(&process).and_then(Weak::upgrade) {
            return share;
        }
        let terms = state.terms.get(&process).copied().unwrap_or_default();
        let share = Arc::new(self.turns.join(terms));
        state.connected.insert(process, Arc::downgrade(&share));
        share
    }

    /// Says what machines may send. All others have the usual weight and no limit.
    pub(super) fn set(&self, machines: &[MachineShare]) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let terms = |machine: &MachineShare| Terms {
            weight: machine.weight.unwrap_or(WEIGHT),
            most: machine.bandwidth,
        };
        state.terms = machines.iter().map(|machine| (machine.pid, terms(machine))).collect();
        for (process, share) in &state.connected {
            if let Some(share) = share.upgrade() {
                share.set(state.terms.get(process).copied().unwrap_or_default());
            }
        }
    }
}
