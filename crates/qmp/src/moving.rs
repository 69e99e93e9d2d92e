//! Machines that move to another process: `migrate` and the commands that belong to it (QMP Reference Manual,
//! "Migration"). [`ring3_snapshot::moving`] does the work.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use ring3_snapshot::moving::{self, Counts, Parameters, Place, Progress, Stage, depart};
use ring3_vm::control::{NotHere, Status};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::commands::{Machine, done, none};
use crate::news::News;
use crate::protocol::{self, Arguments, Failure, read};

/// Bytes of a page of memory.
const PAGE: u64 = 4096;
/// Upper bound of the allowed downtime, in milliseconds, as in QEMU.
const DOWNTIME_MAX: u64 = 2_000_000;

/// The commands that need no machine, and are executed before it has arrived.
const WITHOUT_MACHINE: [&str; 29] = [
    "device-list-properties",
    "migrate-set-capabilities",
    "migrate-set-parameters",
    "migrate_cancel",
    "qom-list-types",
    "query-chardev",
    "query-chardev-backends",
    "query-command-line-options",
    "query-commands",
    "query-cpu-definitions",
    "query-cpus-fast",
    "query-current-machine",
    "query-events",
    "query-fdsets",
    "query-iothreads",
    "query-kvm",
    "query-machines",
    "query-migrate",
    "query-migrate-capabilities",
    "query-migrate-parameters",
    "query-name",
    "query-qmp-schema",
    "query-status",
    "query-target",
    "query-uuid",
    "query-version",
    "query-vnc",
    "query-vnc-servers",
    "quit",
];

/// Refuses commands for a machine that has not arrived yet: their answers would have to wait for it.
pub(crate) fn check_arrival(machine: &Machine, command: &str) -> Result<(), Failure> {
    if machine.control.status() == Status::Arriving && !WITHOUT_MACHINE.contains(&command) {
        return Err(Failure::generic("the machine has not arrived yet: wait until it has"));
    }
    Ok(())
}

/// A machine's departure, its parameters, and its arrival.
#[derive(Debug)]
pub(crate) struct Mover {
    progress: Arc<Progress>,
    parameters: Mutex<Parameters>,
    /// Whether clients want events about moves (capability "events").
    events: Arc<AtomicBool>,
    has_arrived: AtomicBool,
}

impl Mover {
    /// Makes the mover of a machine, whose events go to `news`.
    pub(crate) fn new(news: News) -> Mover {
        let events = Arc::new(AtomicBool::new(false));
        let are_wanted = Arc::clone(&events);
        let progress = Progress::telling(move |what| {
            if are_wanted.load(Ordering::Relaxed) {
                let (name, data) = match what {
                    moving::News::Stage(stage) => ("MIGRATION", json!({"status": status(stage)})),
                    moving::News::Round(number) => ("MIGRATION_PASS", json!({"pass": number})),
                };
                news.tell(protocol::news(name, Some(data)));
            }
        });
        let (progress, parameters) = (Arc::new(progress), Mutex::default());
        Mover { progress, parameters, events, has_arrived: AtomicBool::new(false) }
    }

    /// Notes that the machine has come from another process. Returns whether clients want to be told.
    pub(crate) fn note_arrival(&self) -> bool {
        self.has_arrived.store(true, Ordering::Relaxed);
        self.events.load(Ordering::Relaxed)
    }

    fn parameters(&self) -> MutexGuard<'_, Parameters> {
        self.parameters.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns QEMU's word for `stage`.
fn status(stage: &Stage) -> &'static str {
    match stage {
        Stage::None => "none",
        Stage::Setup => "setup",
        Stage::Active => "active",
        Stage::Device => "device",
        Stage::Completed => "completed",
        Stage::Failed(_) => "failed",
        Stage::Cancelled => "cancelled",
    }
}

/// The capability of moves that there is: clients get events about them.
const EVENTS: &str = "events";

/// Returns the capabilities.
pub(crate) fn capabilities(machine: &Machine, arguments: Arguments) -> Result<Value, Failure> {
    none(arguments)?;
    let state = machine.mover().events.load(Ordering::Relaxed);
    Ok(json!([{"capability": EVENTS, "state": state}]))
}

/// Sets capabilities.
pub(crate) fn set_capabilities(machine: &Machine, arguments: Arguments) -> Result<Value, Failure> {
    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Wanted {
        capabilities: Vec<Capability>,
    }
    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Capability {
        capability: String,
        state: bool,
    }
    let Wanted { capabilities } = read(arguments)?;
    let missing = capabilities.iter().find(|wanted| wanted.state && wanted.capability != EVENTS);
    if let Some(Capability { capability, .. }) = missing {
        return Err(Failure::generic(format!("there is no capability '{capability}'")));
    }
    for wanted in capabilities.iter().filter(|wanted| wanted.capability == EVENTS) {
        machine.mover().events.store(wanted.state, Ordering::Relaxed);
    }
    done()
}

/// Moves the machine.
pub(crate) fn migrate(machine: &Machine, arguments: Arguments) -> Result<Value, Failure> {
    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Migrate {
        uri: String,
        /// Tools send it, and QEMU ignores it.
        #[serde(default, rename = "detach")]
        _detach: bool,
    }
    let Migrate { uri, .. } = read(arguments)?;
    let place: Place = uri.parse().map_err(|error| Failure::generic(format!("{error}")))?;
    machine.control.check_is_here().map_err(|reason| Failure::generic(reason.to_string()))?;
    let Mover { progress, .. } = machine.mover();
    if !progress.begin() {
        return Err(Failure::generic("There's a migration process in progress"));
    }
    let parameters = *machine.mover().parameters();
    let (control, progress) = (machine.control.clone(), Arc::clone(progress));
    let moves = move || {
        if let Err(error) = depart(&control, &place, parameters, &progress) {
            tracing::warn!("the machine does not move to {place}: {error}");
        }
    };
    thread::Builder::new()
        .name("moving".into())
        .spawn(moves)
        .map_err(|error| Failure::generic(format!("no thread can be started: {error}")))?;
    done()
}

/// Cancels the departure, if the machine has not moved yet.
pub(crate) fn cancel(machine: &Machine, arguments: Arguments) -> Result<Value, Failure> {
    none(arguments)?;
    machine.mover().progress.cancel();
    done()
}

/// Checks that the machine is here. If it has not moved and waits for its disks, opens them.
pub(crate) fn come_back(machine: &Machine) -> Result<(), Failure> {
    let back = match machine.control.check_is_here() {
        Ok(()) => Ok(()),
        Err(NotHere::WithoutDisks) => {
            moving::come_back(&machine.control, &machine.mover().progress)
        }
        Err(moved @ NotHere::Moved) => Err(moved.into()),
    };
    back.map_err(|reason| Failure::generic(reason.to_string()))
}

/// Sets parameters.
pub(crate) fn set_parameters(machine: &Machine, arguments: Arguments) -> Result<Value, Failure> {
    #[derive(Deserialize)]
    #[serde(deny_unknown_fields, rename_all = "kebab-case")]
    struct Wanted {
        max_bandwidth: Option<u64>,
        downtime_limit: Option<u64>,
    }
    let Wanted { max_bandwidth, downtime_limit } = read(arguments)?;
    if downtime_limit.is_some_and(|limit| limit > DOWNTIME_MAX) {
        let reason =
            format!("downtime-limit must be a number of milliseconds up to {DOWNTIME_MAX}");
        return Err(Failure::generic(reason));
    }
    let mut parameters = machine.mover().parameters();
    if let Some(bandwidth) = max_bandwidth {
        parameters.bandwidth = bandwidth;
    }
    if let Some(limit) = downtime_limit {
        parameters.downtime = Duration::from_millis(limit);
    }
    done()
}

/// Returns the parameters.
pub(crate) fn parameters(machine: &Machine, arguments: Arguments) -> Result<Value, Failure> {
    none(arguments)?;
    let Parameters { downtime, bandwidth } = *machine.mover().parameters();
    Ok(json!({"max-bandwidth": bandwidth, "downtime-limit": millis(downtime)}))
}

/// Returns how far the machine has moved.
pub(crate) fn query(machine: &Machine, arguments: Arguments) -> Result<Value, Failure> {
    none(arguments)?;
    let (stage, counts) = machine.mover().progress.look();
    if stage == Stage::None {
        // The other end of a move knows only this.
        return Ok(if machine.control.status() == Status::Arriving {
            json!({"status": status(&Stage::Setup)})
        } else if machine.mover().has_arrived.load(Ordering::Relaxed) {
            json!({"status": status(&Stage::Completed)})
        } else {
            json!({})
        });
    }
    let mut info = json!({
        "status": status(&stage),
        "total-time": millis(counts.time),
        "setup-time": millis(counts.setup),
        "ram": ram(&counts),
    });
    match stage {
        Stage::Completed => info["downtime"] = json!(millis(counts.downtime)),
        Stage::Failed(why) => info["error-desc"] = json!(why),
        Stage::Active | Stage::Device => {
            info["expected-downtime"] = json!(millis(counts.downtime));
        }
        Stage::None | Stage::Setup | Stage::Cancelled => {}
    }
    Ok(info)
}

fn ram(counts: &Counts) -> Value {
    let before_standing = counts.before_standing.unwrap_or(counts.transferred);
    json!({
        "transferred": counts.transferred,
        "remaining": counts.remaining,
        "total": counts.total,
        "duplicate": counts.zero,
        "normal": counts.normal,
        "normal-bytes": counts.normal * PAGE,
        "mbps": f64::from((counts.rate / 1000) as u32) * 8.0 / 1e3,
        "dirty-sync-count": counts.rounds,
        "dirty-pages-rate": counts.written_rate,
        "pages-per-second": counts.rate / PAGE,
        "page-size": PAGE,
        "precopy-bytes": before_standing,
        "downtime-bytes": counts.transferred - before_standing,
        // There are no such ways here.
        "postcopy-bytes": 0,
        "postcopy-requests": 0,
        "multifd-bytes": 0,
        "dirty-sync-missed-zero-copy": 0,
    })
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
