//! `ring3 top`: what a supervisor's machines and servers use of the host.

use std::time::Duration;

use clap::Args;
use ring3_console::Error;
use ring3_console::top;

use crate::supervisor::At;

/// The text that `ring3 top --help` shows below the options.
const HELP: &str = "\
Keys: the arrows mark a machine or a server; s starts it, p pauses it, o presses its power button, k kills it, q leaves.

Exit status: 0 if you leave or after the last list, 1 after an error, 2 if the command line is wrong";

/// The options of `ring3 top`.
#[derive(Debug, Args)]
#[command(after_help = HELP)]
pub(crate) struct TopArguments {
    /// Print lists as text
    #[arg(short, long)]
    batch: bool,

    /// The time between two lists, in seconds
    #[arg(short, long, value_name = "SECONDS", default_value = "2", value_parser = seconds)]
    delay: Duration,

    /// How many lists to show; by default one with --batch, and otherwise as many as come
    #[arg(short = 'n', long, value_name = "TIMES")]
    iterations: Option<u64>,

    #[command(flatten)]
    at: At,
}

/// Reads a number of seconds.
fn seconds(text: &str) -> Result<Duration, &'static str> {
    let number = text.parse().ok().filter(|number| (0.1..=86400.0).contains(number));
    number.map(Duration::from_secs_f64).ok_or("give seconds, from 0.1 to 86400")
}

/// Shows lists.
pub(crate) fn run(arguments: &TopArguments) -> Result<(), Error> {
    top::run(&top::Options {
        place: arguments.at.place(),
        batch: arguments.batch,
        delay: arguments.delay,
        times: arguments.iterations.or(arguments.batch.then_some(1)),
    })
}
