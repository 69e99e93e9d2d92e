//! The exit statuses of the program.

use std::process::ExitCode;

use ring3_display::tty;

/// The ways in which the program ends, each with an exit status.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Status {
    /// The guest or the user has ended the machine.
    Ended,
    /// An error on the host's side.
    HostError,
    /// An error in the command line.
    WrongCommandLine,
    /// The processor has stopped.
    Stopped,
    /// Nothing will ever happen in the guest.
    Stuck,
    /// The engines differ.
    Different,
    /// The guest has chosen this status.
    Guest(u8),
    /// This signal has ended the program.
    Signal(i32),
}

impl Status {
    /// Odd statuses that a guest can choose although they have another meaning.
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
                // Shells and service managers learn from this which signal has ended the program.
                tty::die_of(signal);
                // Shells show the same status for a process that a signal has ended.
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
