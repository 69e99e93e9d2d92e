//! Measures how much later a machine starts under a supervisor than by `ring3 run`, and how quickly a server that was
//! killed is replaced.

use std::env;
use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use ring3_supervisor::client::Client;
use ring3_supervisor::command::Command as Order;
use ring3_supervisor::definition::{Definition, Name, parse_machine, parse_server};
use ring3_supervisor::error::Error;
use ring3_supervisor::place::Place;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use super::data::Log;
use super::statistics::{SPREAD, Series, cell};
use super::{BenchError, SuperviseArguments, children, show};

/// Machines that are started in each turn, one after the other.
const STARTS: u32 = 20;
/// The pause before the supervisor replaces a server that was killed for the first time.
const BACK_OFF_MS: f64 = 100.0;
/// The columns of a name, and of a figure.
const NAME: usize = 34;
const WIDE: usize = 9;

/// Returns a Multiboot kernel (Multiboot Specification 0.6.96, 3.1) that ends its machine at once.
fn kernel() -> Vec<u8> {
    const MAGIC: u32 = 0x1bad_b002;
    /// The header has the addresses below.
    const ADDRESSES: u32 = 1 << 16;
    const LOAD: u32 = 0x10_0000;
    let checksum = MAGIC.wrapping_add(ADDRESSES).wrapping_neg();
    // The header, the beginning, no end of the file's data and of the zeros behind it, and the entry.
    let header = [MAGIC, ADDRESSES, checksum, LOAD, LOAD, 0, 0, LOAD + 32];
    // MOV EDX, F4h; OUT DX, AL; HLT
    let code = [0xba, 0xf4, 0, 0, 0, 0xee, 0xf4];
    header.iter().flat_map(|word| word.to_le_bytes()).chain(code).collect()
}

/// The supervisor, which is told to end when this is dropped.
struct Supervisor {
    child: Child,
    client: Client,
    events: Client,
}

impl Supervisor {
    fn start(directory: &Path) -> Result<Supervisor, BenchError> {
        let failed = |error| BenchError::Start("the supervisor", error);
        let mut command = Command::new(env::current_exe().map_err(failed)?);
        command.args(["supervisor", "--directory"]).arg(directory);
        command.stdin(Stdio::null()).stderr(Stdio::null());
        let child = children::spawn(&mut command).map_err(failed)?;
        let place = Place::new(Some(directory));
        let until = Instant::now() + Duration::from_secs(10);
        let connect = || loop {
            match Client::connect(&place) {
                Err(Error::Absent { .. }) if Instant::now() < until => {
                    std::thread::sleep(Duration::from_millis(5));
                }
                result => return result,
            }
        };
        let (client, mut events) = (connect()?, connect()?);
        events.execute(&Order::Events {})?;
        Ok(Supervisor { child, client, events })
    }

    /// Waits until a part is in a state.
    fn reaches(&mut self, name: &Name, state: &str) -> Result<(), BenchError> {
        loop {
            let event = self.events.message()?;
            if event["data"]["name"] == name.as_str() && event["data"]["state"] == state {
                return Ok(());
            }
        }
    }
}

impl Drop for Supervisor {
    fn drop(&mut self) {
        if self.client.execute(&Order::Quit { leave: false }).is_err() {
            let _ = self.child.kill();
        }
        let _ = self.child.wait();
    }
}

/// Returns the milliseconds from the order to start a machine to its end.
fn alone(kernel: &Path) -> Result<f64, BenchError> {
    let failed = |error| BenchError::Start("ring3", error);
    let mut command = Command::new(env::current_exe().map_err(failed)?);
    command.args([
        "run",
        "--memory",
        "16M",
        "--debug-exit",
        "0xf4",
        "--serial",
        "null",
        "--kernel",
    ]);
    command.arg(kernel).stdin(Stdio::null()).stderr(Stdio::null());
    let start = Instant::now();
    children::spawn(&mut command).and_then(|mut child| child.wait()).map_err(failed)?;
    Ok(milliseconds(start))
}

fn supervised(
    supervisor: &mut Supervisor,
    name: &Name,
    definition: &Definition,
) -> Result<f64, BenchError> {
    let (name, definition) = (name.clone(), definition.clone());
    let start = Instant::now();
    supervisor
        .client
        .execute(&Order::Launch { name: name.clone(), definition: Box::new(definition) })?;
    supervisor.client.execute(&Order::Start { name: name.clone() })?;
    supervisor.reaches(&name, "ended")?;
    let time = milliseconds(start);
    supervisor.client.execute(&Order::Remove { name })?;
    Ok(time)
}

/// Returns the milliseconds from a server's death until its successor works.
fn replaced(supervisor: &mut Supervisor, name: &Name) -> Result<f64, BenchError> {
    let asked = supervisor.client.execute(&Order::Query { name: Some(name.clone()) })?;
    let pid = asked["pid"].as_i64().and_then(|pid| Pid::from_raw(pid as i32));
    let start = Instant::now();
    if let Some(pid) = pid {
        kill_process(pid, Signal::KILL)
            .map_err(|error| BenchError::Start("a server", error.into()))?;
    }
    supervisor.reaches(name, "running")?;
    Ok(milliseconds(start))
}

fn milliseconds(since: Instant) -> f64 {
    since.elapsed().as_secs_f64() * 1e3
}

/// Starts machines in turns, and shows the medians.
pub(super) fn measure(arguments: &SuperviseArguments) -> Result<(), BenchError> {
    let settings = &arguments.settings;
    let directory = tempfile::tempdir().map_err(BenchError::Disk)?;
    let kernel_file = directory.path().join("kernel");
    fs::write(&kernel_file, kernel()).map_err(BenchError::Disk)?;
    let mut log = Log::begin(settings)?;
    let mut supervisor = Supervisor::start(&directory.path().join("run"))?;
    let defined = |text: Result<Definition, String>| {
        text.map_err(|error| BenchError::Supervisor(Error::Refused(error)))
    };
    let name =
        |text: &str| text.parse::<Name>().map_err(|error| BenchError::Supervisor(error.into()));
    let machine = defined(parse_machine(&format!(
        "memory = \"16M\"\ndebug-exit = \"0xf4\"\nserial = \"null\"\nrestart = \"never\"\nkernel = {}",
        Value::from(kernel_file.to_string_lossy())
    )))?;
    let (machine_name, server) = (name("machine")?, name("server")?);
    let [mut run, mut under, mut back] = [(); 3].map(|()| Series::default());
    for turn in 0..settings.runs {
        // A new one each time, so that the pause is the first one.
        let definition = defined(parse_server("kind = \"switch\""))?;
        supervisor
            .client
            .execute(&Order::Launch { name: server.clone(), definition: Box::new(definition) })?;
        supervisor.reaches(&server, "running")?;
        back.add(turn, replaced(&mut supervisor, &server)? - BACK_OFF_MS);
        supervisor.client.execute(&Order::Stop { name: server.clone(), wait: true })?;
        supervisor.client.execute(&Order::Remove { name: server.clone() })?;
        let (mut one, mut other) = (0.0, 0.0);
        for _ in 0..STARTS {
            one += alone(&kernel_file)?;
            other += supervised(&mut supervisor, &machine_name, &machine)?;
        }
        run.add(turn, one / f64::from(STARTS));
        under.add(turn, other / f64::from(STARTS));
    }
    show("Elapsed time in milliseconds (medians; ± half the distance between the quartiles)")?;
    let later = under.with(&run, |under, run| under - run);
    for (name, series) in [
        ("a machine's start and end", &run),
        ("the same under a supervisor", &under),
        ("later", &later),
        ("a killed server is replaced after", &back),
    ] {
        log.add_series("ring3", name, "milliseconds", series)?;
        show(&format!("{name:<NAME$}{}", cell(series.figure(), WIDE, 2, "")))?;
    }
    show(&format!("{:<NAME$}{:>WIDE$}{:SPREAD$}", "and the pause before that", BACK_OFF_MS, ""))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_s_header_has_a_checksum() {
        let kernel = kernel();
        let words = kernel[..12].chunks(4).map(|word| u32::from_le_bytes(word.try_into().unwrap()));
        assert_eq!(words.fold(0, u32::wrapping_add), 0);
    }
}
