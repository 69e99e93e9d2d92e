//! `--profile`: samples of where the guest is, as folded stacks for other programs or as a flame graph.

mod flame;

use std::collections::BTreeMap;
use std::fmt::Write as _;

use clap::Args;
use ring3_vm::Vm;
use ring3_vm::profile::{Activity, RATE_MAX, Stack};

use crate::report::{self, Target, WriteError};
use crate::symbols::Symbols;

/// The options.
#[derive(Debug, Args)]
#[command(next_help_heading = "What the guest executes")]
pub(crate) struct ProfileArguments {
    /// Look at equal distances of virtual time where the guest is, and when the run ends write it to this file: as
    /// folded stacks for other programs (FILE.folded) or as a flame graph (FILE.svg)
    #[arg(long, value_name = "FILE")]
    pub(crate) profile: Option<Target<Format>>,

    /// Take so many samples for a profile in a second of virtual time
    #[arg(
        long, value_name = "NUMBER", default_value_t = RATE, requires = "profile",
        value_parser = clap::value_parser!(u32).range(1..=i64::from(RATE_MAX))
    )]
    profile_rate: u32,
}

/// Samples a second. It has no common divisor with the frequencies of guests' timers, whose interrupts would
/// otherwise be found always or never.
const RATE: u32 = 997;

/// The formats of its file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Format {
    Folded,
    Svg,
}

impl report::Format for Format {
    const REPORT: &'static str = "profile";
    const ENDS: &'static str = ".folded or .svg";

    fn of_extension(extension: &str) -> Option<Format> {
        match extension {
            "folded" => Some(Format::Folded),
            "svg" => Some(Format::Svg),
            _ => None,
        }
    }
}

/// A profile that is written when the run ends.
#[derive(Debug)]
pub(crate) struct Output {
    file: report::Output<Format>,
    symbols: Symbols,
}

impl ProfileArguments {
    /// Makes `vm` take samples, and opens the file, if the options ask for a profile.
    pub(crate) fn begin(
        &self,
        vm: &mut Vm,
        symbols: &Symbols,
    ) -> Result<Option<Output>, WriteError> {
        let Some(target) = &self.profile else { return Ok(None) };
        let file = target.create()?;
        vm.take_samples(self.profile_rate);
        Ok(Some(Output { file, symbols: symbols.clone() }))
    }
}

impl Output {
    /// Writes the samples of `vm`.
    pub(crate) fn finish(self, vm: &mut Vm) -> Result<(), WriteError> {
        let samples = vm.profile().into_iter().flat_map(ring3_vm::profile::Profile::samples);
        let report = Report::new(samples, &self.symbols);
        self.file.write(|format| {
            Ok(match format {
                Format::Folded => report.folded(),
                Format::Svg => flame::draw(&report),
            })
        })
    }
}

/// Samples by the names of the functions, the outermost first. The first name says what the processor did.
#[derive(Debug, Default, PartialEq, Eq)]
struct Report(BTreeMap<Vec<String>, u64>);

impl Report {
    fn new<'a>(samples: impl Iterator<Item = (&'a Stack, u64)>, symbols: &Symbols) -> Report {
        let mut report = Report::default();
        for (stack, count) in samples {
            let names_known = stack.activity == Activity::Supervisor;
            let mut names = vec![activity(stack.activity).to_owned()];
            for (depth, address) in stack.frames.iter().enumerate().rev() {
                // A CALL may be the last instruction of its function.
                let within = address.saturating_sub(u64::from(depth > 0));
                let function = names_known.then(|| symbols.function(within)).flatten();
                names.push(function.map_or_else(|| format!("{address:#010x}"), escape));
            }
            if stack.frames.is_empty() && stack.activity != Activity::Idle {
                names.push("(other)".to_owned());
            }
            *report.0.entry(names).or_default() += count;
        }
        report
    }

    /// Returns a line for each stack, as the tools that draw flame graphs read them.
    fn folded(&self) -> String {
        let mut text = String::new();
        for (names, count) in &self.0 {
            let _ = writeln!(text, "{} {count}", names.join(";"));
        }
        text
    }
}

fn activity(activity: Activity) -> &'static str {
    match activity {
        Activity::Supervisor => "supervisor",
        Activity::User => "user",
        Activity::Idle => "idle",
    }
}

/// Returns `name` without the characters that separate names and counts.
fn escape(name: &str) -> String {
    name.replace(|c: char| c == ';' || c.is_whitespace() || c.is_control(), "_")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(symbols: &Symbols) -> Report {
        let stack = |activity, frames: &[u64]| Stack { activity, frames: frames.to_vec() };
        let stacks = [
            (stack(Activity::Supervisor, &[0xc100_0014, 0xc100_0010]), 3),
            (stack(Activity::Supervisor, &[0xc100_0018, 0xc100_0010]), 4),
            (stack(Activity::Supervisor, &[]), 1),
            (stack(Activity::User, &[0x0804_8000]), 2),
            (stack(Activity::Idle, &[]), 5),
        ];
        Report::new(stacks.iter().map(|(stack, count)| (stack, *count)), symbols)
    }

    #[test]
    fn stacks_are_lines_with_counts() {
        let folded = report(&Symbols::default()).folded();
        let lines: Vec<_> = folded.lines().collect();
        assert_eq!(
            lines,
            [
                "idle 5",
                "supervisor;(other) 1",
                "supervisor;0xc1000010;0xc1000014 3",
                "supervisor;0xc1000010;0xc1000018 4",
                "user;0x08048000 2",
            ]
        );
    }

    #[test]
    fn code_of_the_supervisor_has_names() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("System.map");
        let map = "08048000 t not_ours\nc1000000 t outer\nc1000010 T inner;x\n";
        std::fs::write(&path, map).unwrap();
        let symbols = Symbols::read(&[path]).unwrap();
        let folded = report(&symbols).folded();
        // The call at the end of `outer` returns to where `inner` begins.
        let expected =
            "idle 5\nsupervisor;(other) 1\nsupervisor;outer;inner_x 7\nuser;0x08048000 2\n";
        assert_eq!(folded, expected);
    }

    #[test]
    fn a_name_says_what_is_written() {
        assert_eq!("a.svg".parse::<Target<Format>>().unwrap().format, Format::Svg);
        assert_eq!("a.folded".parse::<Target<Format>>().unwrap().format, Format::Folded);
        assert!("a.csv".parse::<Target<Format>>().is_err());
    }
}
