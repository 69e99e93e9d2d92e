//! `ring3 inspect`: shows what is in a running machine, down to each register.

mod changes;

use std::io::{self, ErrorKind, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use clap::Args;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use serde_json::{Value, json};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::low_level::pipe;
use thiserror::Error;

use crate::machine_socket::{AskError, Machine};

/// The options of `ring3 inspect`.
#[derive(Debug, Args)]
pub(crate) struct InspectArguments {
    /// The socket of the machine: that of its --qmp unix:PATH
    #[arg(value_name = "SOCKET")]
    socket: PathBuf,

    /// The part to show, such as processor or devices/pit/counters/0; by default all of it. A wrong name is
    /// answered with the right ones
    #[arg(value_name = "PATH", default_value = "", hide_default_value = true)]
    path: String,

    /// Show it as JSON, for programs
    #[arg(long)]
    json: bool,

    /// Go on, and show what has changed each second, or after each of this number of seconds, until Ctrl-C or until
    /// the machine ends
    #[arg(long, value_name = "SECONDS", num_args = 0..=1, default_missing_value = "1",
        value_parser = interval)]
    watch: Option<Duration>,
}

/// The shortest time between two looks, in seconds.
const INTERVAL_MIN: f64 = 0.01;
/// The longest one.
const INTERVAL_MAX: f64 = 86_400.0;

fn interval(text: &str) -> Result<Duration, String> {
    match text.parse() {
        Ok(seconds) if (INTERVAL_MIN..=INTERVAL_MAX).contains(&seconds) => {
            Ok(Duration::from_secs_f64(seconds))
        }
        _ => Err(format!("it must be a number of seconds, {INTERVAL_MIN} to {INTERVAL_MAX}")),
    }
}

/// The reasons why nothing is shown.
#[derive(Debug, Error)]
pub(crate) enum InspectError {
    #[error(transparent)]
    Ask(#[from] AskError),
    #[error("cannot write to standard output: {0}")]
    Output(#[source] io::Error),
    #[error("cannot wait for the next look: {0}")]
    Wait(#[source] io::Error),
}

/// Executes `ring3 inspect`.
pub(crate) fn run(arguments: &InspectArguments) -> Result<(), InspectError> {
    match show(arguments) {
        // Whoever reads it has seen enough, as head(1) does.
        Err(InspectError::Output(error)) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
        // A machine may end while somebody watches it.
        Err(InspectError::Ask(AskError::Ended(_))) if arguments.watch.is_some() => Ok(()),
        shown => shown,
    }
}

fn show(arguments: &InspectArguments) -> Result<(), InspectError> {
    let mut machine = Machine::connect(&arguments.socket)?;
    let mut before = look(&mut machine, arguments)?;
    match &before {
        Value::String(text) => write(text)?,
        value if arguments.watch.is_some() => write(&format!("{}\n", json!({"value": value})))?,
        value => write(&format!("{value:#}\n"))?,
    }
    let Some(interval) = arguments.watch else { return Ok(()) };
    let (signal, signalled) = UnixStream::pair().map_err(InspectError::Wait)?;
    for number in [SIGINT, SIGTERM] {
        let signal = signal.try_clone().map_err(InspectError::Wait)?;
        pipe::register(number, signal).map_err(InspectError::Wait)?;
    }
    let began = Instant::now();
    while wait(&mut machine, &signalled, Instant::now() + interval)? {
        let now = look(&mut machine, arguments)?;
        if now == before {
            continue;
        }
        let seconds = began.elapsed().as_secs_f64();
        let changes = if let (Value::String(before), Value::String(now)) = (&before, &now) {
            format!("after {seconds:.1} s:\n{}", changes::in_text(before, now))
        } else {
            let changes = changes::in_json(&before, &now);
            format!("{}\n", json!({"seconds": seconds, "changes": changes}))
        };
        write(&changes)?;
        before = now;
    }
    Ok(())
}

/// Returns the part as it is now: lines of text, or another value.
fn look(machine: &mut Machine, arguments: &InspectArguments) -> Result<Value, AskError> {
    let wanted = json!({"path": arguments.path, "text": !arguments.json});
    let mut shown = machine.ask("x-ring3-inspect", &wanted)?;
    let is_text = !arguments.json && shown["text"].is_string();
    Ok(shown[if is_text { "text" } else { "value" }].take())
}

fn write(text: &str) -> Result<(), InspectError> {
    let mut out = io::stdout();
    out.write_all(text.as_bytes()).and_then(|()| out.flush()).map_err(InspectError::Output)
}

/// Waits until `until`. Returns false if a signal comes before. A machine that ends meanwhile is an error.
fn wait(
    machine: &mut Machine,
    signalled: &UnixStream,
    until: Instant,
) -> Result<bool, InspectError> {
    loop {
        let left = until.saturating_duration_since(Instant::now());
        let left = Timespec::try_from(left).expect("it is at most a day");
        let mut ready = [machine.news(), signalled.as_fd()]
            .map(|end| PollFd::from_borrowed_fd(end, PollFlags::IN));
        match poll(&mut ready, Some(&left)) {
            Ok(0) => return Ok(true),
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(InspectError::Wait(error.into())),
        }
        let [news, signal] = ready.map(|end| !end.revents().is_empty());
        if signal {
            return Ok(false);
        }
        if news {
            machine.skip_events()?;
        }
    }
}
