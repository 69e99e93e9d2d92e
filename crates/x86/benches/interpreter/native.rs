//! Runs the same bytes from the same state on the host's processor.

use std::time::{Duration, Instant};

use ring3_hostcpu::{Runner, State, Stop};

use crate::programs::Program;

/// The host's processor with one program.
pub(crate) struct Native<'a> {
    runner: &'a mut Runner,
    start: State,
    code: Vec<u8>,
    data: Vec<u8>,
}

impl Native<'_> {
    /// Prepares `program` for the processor behind `runner`.
    pub(crate) fn new<'a>(runner: &'a mut Runner, program: &Program) -> Native<'a> {
        let (start, code, data) = (program.start.clone(), program.bytes(), Program::data());
        Native { runner, start, code, data }
    }

    /// Runs the program once, or returns why this is impossible. The time includes the way in and out (some
    /// microseconds), but not the setting of the data.
    pub(crate) fn run(&mut self) -> Result<(State, Duration), String> {
        self.runner.data_mut().copy_from_slice(&self.data);
        let begin = Instant::now();
        // SAFETY: the code is one of the constants of `programs`, which only compute, read and write memory
        // and branch within themselves.
        let result = unsafe { self.runner.run_program(&self.start, &self.code) };
        let time = begin.elapsed();
        match result {
            Ok((state, Stop::Reached)) => Ok((state, time)),
            Ok((_, stop)) => Err(format!("ended with {stop:?}")),
            Err(refused) => Err(refused.to_string()),
        }
    }

    /// Returns the data as the last run left them.
    pub(crate) fn data(&self) -> &[u8] {
        self.runner.data()
    }
}
