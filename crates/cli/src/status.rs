//! How the program ends.

use std::process::ExitCode;

use ring3_display::tty;

/// The exit statuses of the program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Status {
    /// The guest has switched the machine off, or the person outside has.
    Ended,
    /// Something on the host's side.
    HostError,
    /// The command line.
    WrongCommandLine,
    /// The processor cannot go on.
    Stopped,
    /// The guest has halted for good.
    Stuck,
    /// The engines differ.
    Different,
    /// The guest has given this status itself.
    Guest(u8),
    /// This signal.
    Signal(i32),
}

impl Status {
    /// Odd statuses that a guest can give, and that mean something else otherwise.
    pub(crate) const OF_OTHERS: [u8; 3] = [1, 3, 5];
}

impl From<Status> for ExitCode {
    fn from(status: Status) -> ExitCode {
        ExitCode::from(match status {
            Status::Ended => 0,
            Status::HostError => 1,
            Status::WrongCommandLine => 2,
            Status::Stopped => 3,
            Status::Stuck => 4,
            Status::Different => 5,
            Status::Guest(status) => status,
            Status::Signal(signal) => {
                // Shells, and what else starts programs, are to see what has ended this one.
                tty::die_of(signal);
                // Shells show the same.
                128 + signal as u8
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_book_has_all_statuses() {
        let page = include_str!("../../../book/src/exit-statuses.md");
        let listed: Vec<&str> = page
            .lines()
            .filter_map(|line| line.strip_prefix("| ")?.split(" |").next())
            .filter(|status| status.parse::<u8>().is_ok())
            .collect();
        let all = [
            Status::Ended,
            Status::HostError,
            Status::WrongCommandLine,
            Status::Stopped,
            Status::Stuck,
            Status::Different,
        ];
        let codes: Vec<ExitCode> =
            listed.iter().map(|status| ExitCode::from(status.parse::<u8>().unwrap())).collect();
        assert_eq!(codes, all.map(ExitCode::from));
    }
}
