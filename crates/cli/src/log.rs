//! Log messages: which are written, where they go, and how many there may be.

mod limit;

use std::env;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use ring3_display::tty::{self, Stderr};
use thiserror::Error;
use tracing::level_filters::LevelFilter;
use tracing_subscriber::EnvFilter;

use limit::Limited;

/// The environment variable that selects the messages to log if the command line does not, as in
/// `RING3_LOG=info` or `RING3_LOG=warn,ring3_devices=debug`.
const VARIABLE: &str = "RING3_LOG";

/// A valid filter for messages, by level and part of the program.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct LogFilter(String);

/// The reason why a filter is refused.
#[derive(Debug, Error, PartialEq, Eq)]
#[error("give error, warn, info, debug, trace or off, also by part, as in warn,ring3_vm=debug")]
pub(crate) struct BadLogFilter;

impl FromStr for LogFilter {
    type Err = BadLogFilter;

    fn from_str(text: &str) -> Result<LogFilter, BadLogFilter> {
        // These are questions, though each word could be the name of a part.
        let is_question = text == "help" || text == "?";
        match EnvFilter::builder().parse(text) {
            Ok(_) if !is_question => Ok(LogFilter(text.to_owned())),
            _ => Err(BadLogFilter),
        }
    }
}

/// The reason why there is no log.
#[derive(Debug, Error)]
pub(crate) enum LogError {
    #[error("cannot write the log to {path}: {source}", path = .path.display())]
    File { path: PathBuf, source: io::Error },
}

/// Starts the log. `filter`, or else the environment, selects its messages. They go to a file, which is
/// created or emptied, or else to standard error.
pub(crate) fn start(filter: Option<&LogFilter>, file: Option<&Path>) -> Result<(), LogError> {
    let from_environment = || env::var(VARIABLE).unwrap_or_default();
    let filter = filter.map_or_else(from_environment, |LogFilter(text)| text.clone());
    // Errors in the environment's filter are reported, and the wrong parts left out.
    let filter =
        EnvFilter::builder().with_default_directive(LevelFilter::WARN.into()).parse_lossy(filter);
    let log = tracing_subscriber::fmt().with_env_filter(filter);
    if let Some(path) = file {
        let fails = |source| LogError::File { path: path.to_owned(), source };
        let file = File::create(path).map_err(fails)?;
        log.with_ansi(false).map_event_format(Limited::new).with_writer(file).init();
    } else {
        let log = log.with_ansi(tty::stderr_is_terminal());
        log.map_event_format(Limited::new).with_writer(|| Stderr).init();
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn filters_are_checked() {
        for good in ["warn", "off", "ring3_vm=debug,info", "ring3::firmware=trace"] {
            assert!(good.parse::<LogFilter>().is_ok(), "{good}");
        }
        for bad in ["ring3_vm=loud", "a=b=c"] {
            assert_eq!(bad.parse::<LogFilter>(), Err(BadLogFilter), "{bad}");
        }
    }
}
