//! The time of the host's processors, shared out between machines by weight.
//!
//! Four times a second the supervisor asks each machine what it has used and whether its limit kept it waiting, and sets the
//! limits by which all that is there is used, and busy machines share it by their weights ([`shares`]). While there
//! is enough for all, there are no limits. Neither control groups nor rights are needed. Where the supervisor has a control
//! group that it may divide ([`groups`]), the kernel knows the weights, too, and keeps to them also when other programs leave
//! less than the limits promise.

mod groups;
mod shares;

use std::collections::BTreeMap;
use std::rc::Rc;
use std::thread::available_parallelism;
use std::time::Duration;

use serde::Deserialize;
use serde_json::json;
use tokio::time::{Instant, MissedTickBehavior, interval};
use tracing::warn;

use crate::command::State;
use crate::definition::{Definition, Machine, Name, OptionValue};
use crate::part::Part;
use crate::supervisor::House;
pub(crate) use groups::Groups;
use shares::{Claim, PROCESSOR};

/// The time between two looks at the machines.
const INTERVAL: Duration = Duration::from_millis(250);
/// The parts of the time of a processor in which limits are computed, in one of the hundredths that machines know.
const PARTS_OF_A_PERCENT: f64 = 100.0;
/// The weight of a machine whose definition gives none.
const WEIGHT: u32 = 100;

/// The table `cpu` of the supervisor's file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Processors {
    /// What all machines together may use, in hundredths of the time of one processor; None for all that the
    /// supervisor itself may use.
    pub budget: Option<u32>,
}

impl Processors {
    /// Returns what is shared out.
    fn parts(self) -> u64 {
        let all = || available_parallelism().map_or(1, |count| count.get() as u64) * PROCESSOR;
        self.budget.map_or_else(all, |percent| u64::from(percent.max(1)) * PROCESSOR / 100)
    }
}

/// What a machine had used when it was last asked.
#[derive(Debug, Clone, Copy)]
struct Reading {
    pid: i32,
    at: Instant,
    used_nanos: u64,
    rests: u64,
}

/// Shares out the time of processors between all machines, for ever.
pub(crate) async fn share(house: Rc<House>, processors: Processors, groups: Option<Groups>) {
    let budget = processors.parts();
    let mut ticks = interval(INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut known: BTreeMap<Name, Reading> = BTreeMap::new();
    let mut groups = groups.map(|groups| (groups, BTreeMap::new()));
    loop {
        ticks.tick().await;
        if let Some((groups, members)) = &mut groups {
            group(groups, members, &house.machines());
        }
        let mut machines = Vec::new();
        for part in house.machines() {
            if part.state() != State::Running {
                known.remove(&part.name);
                continue;
            }
            let Some((reading, limit)) = ask(&part).await else { continue };
            let before = known.insert(part.name.clone(), reading);
            // What a new process has used until now says nothing.
            let Some(before) = before.filter(|before| before.pid == reading.pid) else { continue };
            let claim = claim(&part, &before, &reading);
            machines.push((part, limit, claim));
        }
        let claims: Vec<Claim> = machines.iter().map(|(_, _, claim)| *claim).collect();
        for ((part, limit, _), new) in machines.iter().zip(shares::share(budget, &claims)) {
            if *limit != new {
                let percent = new.map(|parts| f64::from(parts as u32) / PARTS_OF_A_PERCENT);
                part.tell("x-ring3-limit-cpu", json!({"percent": percent})).await;
            }
        }
    }
}

/// Gives the processes of machines their weights in the kernel. `members` are those that have them.
fn group(groups: &Groups, members: &mut BTreeMap<Name, i32>, machines: &[Rc<Part>]) {
    let mut left = std::mem::take(members);
    for part in machines {
        let Some(pid) = part.pid() else { continue };
        if left.remove(&part.name) != Some(pid)
            && let Definition::Machine(machine) = &*part.definition.borrow()
            && let Err(error) = groups.put(&part.name, pid, machine.cpu_weight.unwrap_or(WEIGHT))
        {
            warn!("{} has no control group: {error}", part.name);
        }
        members.insert(part.name.clone(), pid);
    }
    for name in left.keys() {
        groups.remove(name);
    }
}

fn claim(part: &Part, before: &Reading, now: &Reading) -> Claim {
    let (weight, most) = match &*part.definition.borrow() {
        Definition::Machine(Machine { cpu_weight, options, .. }) => {
            let limit = match options.get("cpu-limit") {
                Some(OptionValue::Number(percent)) => u64::try_from(*percent).ok(),
                _ => None,
            };
            (cpu_weight.unwrap_or(WEIGHT), limit.map(|percent| percent * PROCESSOR / 100))
        }
        Definition::Server(_) => (WEIGHT, None),
    };
    let nanos = (now.at - before.at).as_nanos().max(1);
    let used = u128::from(now.used_nanos.saturating_sub(before.used_nanos));
    Claim {
        used: (used * u128::from(PROCESSOR) / nanos) as u64,
        waits: now.rests != before.rests,
        weight,
        most: most.unwrap_or(PROCESSOR).clamp(PROCESSOR / 100, PROCESSOR),
    }
}

/// Asks a machine what it has used, and for its limit. None if it does not answer.
async fn ask(part: &Part) -> Option<(Reading, Option<u64>)> {
    #[derive(Deserialize)]
    #[serde(rename_all = "kebab-case")]
    struct Answer {
        used_nanos: u64,
        rests: u64,
        percent: Option<f64>,
    }
    let pid = part.pid()?;
    let answer = part.ask_soon("x-ring3-cpu", json!({})).await?;
    let Answer { used_nanos, rests, percent } = serde_json::from_value(answer).ok()?;
    let limit = percent.map(|percent| (percent * PARTS_OF_A_PERCENT).round() as u64);
    Some((Reading { pid, at: Instant::now(), used_nanos, rests }, limit))
}
