//! Executes a script in several guests, each in several kinds of machines, and on the host, and stores what it
//! prints: what the first paper calls benchdriver.
//!
//! * `plan`: the file that says what is measured;
//! * `machine`: starts a machine, and reaches the server in its guest;
//! * `protocol`: the conversation with that server;
//! * `measurements`: the lines of the suite in the output, and the files.

mod machine;
mod measurements;
mod plan;
mod protocol;

use std::fs;
use std::io::{self, ErrorKind};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::process::ExitStatus;
use std::thread;
use std::time::{Duration, Instant};

use thiserror::Error;

use crate::arguments::DriverArguments;
use crate::server::Server;
use crate::{BenchError, show};
use machine::Machine;
use measurements::{Results, Round};
pub use plan::PlanError;
use plan::{Configuration, Guest, HOST, Kind, Plan};
use protocol::ProtocolError;

/// The reasons why one run fails. The others go on.
#[derive(Debug, Error)]
enum RunError {
    #[error("it cannot be started: {0}")]
    Start(io::Error),
    #[error("the machine has ended with {0}; its last line: {1:?}")]
    Ended(ExitStatus, String),
    #[error("benchdriverserver has not answered in {0} seconds; the machine's last line: {1:?}")]
    Silent(u64, String),
    #[error("the script has not ended in {0} seconds")]
    Late(u64),
    #[error("the script has ended with status {0}: see {1}")]
    Status(u8, PathBuf),
    #[error("the results cannot be stored: {0}")]
    Store(io::Error),
    #[error(transparent)]
    Protocol(ProtocolError),
}

impl RunError {
    /// The error of a conversation that may take `most`.
    fn of(error: ProtocolError, most: Duration) -> RunError {
        match error {
            ProtocolError::Connection(error) if error.kind() == ErrorKind::TimedOut => {
                RunError::Late(most.as_secs())
            }
            error => RunError::Protocol(error),
        }
    }
}

/// A configuration with a guest, or a native one.
struct Pair<'a> {
    configuration: &'a Configuration,
    guest: Option<&'a Guest>,
}

impl Pair<'_> {
    fn guest_name(&self) -> &str {
        self.guest.map_or(HOST, |guest| &guest.name)
    }

    /// The name of its files.
    fn file_name(&self) -> String {
        format!("{}-{}", self.configuration.name, self.guest_name())
    }
}

/// Does all that the file says, round by round, so that what changes on the host in the meantime changes all
/// of them.
pub(super) fn measure(arguments: &DriverArguments) -> Result<(), BenchError> {
    let mut plan = Plan::read(&arguments.file)?;
    // The machines have their files there until this is dropped.
    let directory = tempfile::tempdir().map_err(BenchError::Disk)?;
    plan.prepare_tern(directory.path())?;
    let script =
        fs::read(&plan.script).map_err(|error| PlanError::Read(plan.script.clone(), error))?;
    let server = Server::listen(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)))?;
    let port = server.address()?.port();
    thread::spawn(move || server.run());
    let pairs = pairs(&plan);
    let names: Vec<_> = pairs.iter().map(Pair::file_name).collect();
    let mut results = Results::begin(&plan, &names)
        .map_err(|error| BenchError::Results(plan.results.clone(), error))?;
    let mut failures = 0;
    for number in 1..=plan.rounds {
        for pair in &pairs {
            let begin = Instant::now();
            let said =
                match run(&plan, pair, number, &script_for(pair, port, &script), &mut results) {
                    Ok(count) => {
                        format!("{count} measurements in {:.1} s", begin.elapsed().as_secs_f64())
                    }
                    Err(error) => {
                        failures += 1;
                        error.to_string()
                    }
                };
            let (name, guest) = (&pair.configuration.name, pair.guest_name());
            show(&format!("{name}, {guest}, round {number}: {said}"))?;
        }
    }
    let all = pairs.len() * plan.rounds as usize;
    if failures > 0 { Err(BenchError::Runs(failures, all)) } else { Ok(()) }
}

fn pairs(plan: &Plan) -> Vec<Pair<'_>> {
    let mut pairs = Vec::new();
    for configuration in &plan.configurations {
        if configuration.kind == Kind::Native {
            pairs.push(Pair { configuration, guest: None });
        } else {
            pairs.extend(plan.guests.iter().map(|it| Pair { configuration, guest: Some(it) }));
        }
    }
    pairs
}

/// Returns the script, with the address of the network benchmarks' server.
fn script_for(pair: &Pair<'_>, port: u16, script: &[u8]) -> Vec<u8> {
    let host = if pair.guest.is_some() { "10.0.2.2" } else { "127.0.0.1" };
    [format!("export SERVER={host}:{port}\n").as_bytes(), script].concat()
}

/// Executes the script once, and returns the number of measurements.
fn run(
    plan: &Plan,
    pair: &Pair<'_>,
    number: u32,
    script: &[u8],
    results: &mut Results,
) -> Result<usize, RunError> {
    let name = pair.file_name();
    let open = |kind: &str| results.open(&name, kind).map_err(RunError::Store);
    let (output, errors) = (open("out")?, open("err")?);
    let native_errors = errors.try_clone().map_err(RunError::Store)?;
    let configuration = pair.configuration;
    let mut round = Round::begin(&configuration.name, pair.guest_name(), number, output, errors);
    let ended = match pair.guest {
        None => machine::execute_natively(plan, configuration, script, native_errors, &mut round),
        Some(guest) => {
            let console = results.path(&name, "console");
            let mut machine = Machine::start(configuration, guest, &console)?;
            let stream = machine.connect(Duration::from_secs(plan.start_seconds))?;
            round.start();
            let most = Duration::from_secs(plan.script_seconds);
            machine.execute(&stream, script, most, &mut round)
        }
    };
    // What has come before an error is worth keeping.
    results.store(&round).map_err(RunError::Store)?;
    match ended? {
        0 => Ok(round.count()),
        status => Err(RunError::Status(status, results.path(&name, "err"))),
    }
}
