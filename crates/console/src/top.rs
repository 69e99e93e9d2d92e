//! What all machines and servers of a supervisor do and use, as a list that is brought up to date: on the terminal, with
//! keys for power, or as text.
//!
//! * [`table`]: the list;
//! * [`screen`]: the terminal.

mod screen;
mod table;

use std::io::{self, Write};
use std::thread;
use std::time::{Duration, Instant};

use ring3_supervisor::client::Client;
use ring3_supervisor::command::{Command, Usage};
use ring3_supervisor::place::Place;

use crate::error::Error;
use crate::rates::Sample;

/// Over how long a time the first rates are measured.
const FIRST: Duration = Duration::from_millis(250);

/// What a person wants to see.
#[derive(Debug, Clone)]
pub struct Options {
    /// The place of the supervisor.
    pub place: Place,
    /// Whether to print text.
    pub batch: bool,
    /// The time between two lists.
    pub delay: Duration,
    /// How many lists there are. None means without end.
    pub times: Option<u64>,
}

/// Shows the list until the person leaves, or as often as is wanted.
pub fn run(options: &Options) -> Result<(), Error> {
    let mut client = Client::connect(&options.place)?;
    if !options.batch {
        return screen::run(options, client);
    }
    let mut before = sample(&mut client)?;
    thread::sleep(FIRST.min(options.delay));
    let mut output = io::stdout().lock();
    let mut left = options.times;
    while left != Some(0) {
        let now = sample(&mut client)?;
        let mut text = String::new();
        for line in table::lines(&before, &now) {
            text.push_str(line.trim_end());
            text.push('\n');
        }
        left = left.map(|left| left - 1);
        if left != Some(0) {
            text.push('\n');
        }
        match output.write_all(text.as_bytes()).and_then(|()| output.flush()) {
            Ok(()) => {}
            // Whoever has read it has seen enough.
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => return Ok(()),
            Err(error) => return Err(Error::Output(error)),
        }
        before = now;
        if left != Some(0) {
            thread::sleep(options.delay);
        }
    }
    Ok(())
}

/// Asks the supervisor what its parts use.
fn sample(client: &mut Client) -> Result<Sample, Error> {
    let usage = client.execute(&Command::Usage {})?;
    let mut parts: Vec<Usage> = serde_json::from_value(usage).unwrap_or_default();
    // Machines first; the supervisor sorts by name.
    parts.sort_by_key(|part| part.status.kind != "machine");
    Ok(Sample { at: Instant::now(), parts })
}
