//! The file that says what `ring3 bench driver` does.

use std::fs;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use thiserror::Error;

use crate::BenchError;
use crate::guest::tern_files;

/// The reasons why a file is refused.
#[derive(Debug, Error)]
pub enum PlanError {
    /// The file cannot be read.
    #[error("{0} cannot be read: {1}")]
    Read(PathBuf, std::io::Error),
    /// The file does not have the right form.
    #[error("{0}: {1}")]
    Form(PathBuf, String),
}

/// What is measured.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Plan {
    /// The script that is executed. This path and all others are relative to the directory of the file.
    pub(super) script: PathBuf,
    /// The directory for the results.
    pub(super) results: PathBuf,
    #[serde(default = "one")]
    pub(super) rounds: u32,
    /// How many seconds a guest may take until it is ready for the script.
    #[serde(default = "start_seconds")]
    pub(super) start_seconds: u64,
    /// How many seconds the script may take.
    #[serde(default = "script_seconds")]
    pub(super) script_seconds: u64,
    #[serde(rename = "configuration")]
    pub(super) configurations: Vec<Configuration>,
    #[serde(rename = "guest", default)]
    pub(super) guests: Vec<Guest>,
}

fn one() -> u32 {
    1
}

fn start_seconds() -> u64 {
    300
}

fn script_seconds() -> u64 {
    3600
}

/// A way to execute the script.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Configuration {
    pub(super) name: String,
    pub(super) kind: Kind,
    /// Further options of `ring3 run` or of QEMU.
    #[serde(default)]
    pub(super) options: Vec<String>,
    /// A directory with programs for the script on the host.
    pub(super) path: Option<PathBuf>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Kind {
    /// The host itself, without a guest.
    Native,
    Translator,
    Interpreter,
    /// The translator, with time that is a function of the instructions executed.
    Deterministic,
    /// Both engines in lock-step.
    Verify,
    Qemu,
}

/// A system with benchdriverserver. What it boots is Tern, a kernel or a disk.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Guest {
    pub(super) name: String,
    /// It is Tern, the system that is part of this program.
    #[serde(default)]
    pub(super) tern: bool,
    pub(super) kernel: Option<PathBuf>,
    #[serde(default)]
    pub(super) initrd: Option<PathBuf>,
    /// The kernel's command line.
    pub(super) append: Option<String>,
    /// A disk image, to which nothing is written.
    pub(super) disk: Option<PathBuf>,
    /// The memory in MiB.
    #[serde(default = "memory")]
    pub(super) memory: u32,
    #[serde(default)]
    pub(super) card: Card,
    /// The port of benchdriverserver in the guest.
    #[serde(default = "port")]
    pub(super) port: u16,
}

fn memory() -> u32 {
    128
}

fn port() -> u16 {
    1235
}

/// A network card.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Card {
    #[default]
    Virtio,
    E1000,
    Ne2kPci,
}

impl Plan {
    /// Reads the file at `path`.
    pub(super) fn read(path: &Path) -> Result<Plan, PlanError> {
        let text =
            fs::read_to_string(path).map_err(|error| PlanError::Read(path.to_owned(), error))?;
        let directory = path.parent().unwrap_or(Path::new(""));
        Plan::parse(&text, directory).map_err(|error| PlanError::Form(path.to_owned(), error))
    }

    fn parse(text: &str, directory: &Path) -> Result<Plan, String> {
        let mut plan: Plan = toml::from_str(text).map_err(|error| one_line(text, &error))?;
        plan.check()?;
        let mut paths = vec![&mut plan.script, &mut plan.results];
        paths.extend(plan.configurations.iter_mut().filter_map(|it| it.path.as_mut()));
        for Guest { kernel, initrd, disk, .. } in &mut plan.guests {
            paths.extend([kernel, initrd, disk].into_iter().flatten());
        }
        for path in paths {
            *path = directory.join(&path);
        }
        Ok(plan)
    }

    /// Makes the guests that are Tern ready: writes their files to `directory`, and lets them start the server.
    pub(super) fn prepare_tern(&mut self, directory: &Path) -> Result<(), BenchError> {
        for guest in self.guests.iter_mut().filter(|guest| guest.tern) {
            let (kernel, archive) = tern_files(directory)?;
            (guest.kernel, guest.initrd) = (Some(kernel), Some(archive));
            let words = guest.append.take().map(|words| words + " ").unwrap_or_default();
            guest.append = Some(format!("{words}run=benchdriverserver {}", guest.port));
        }
        Ok(())
    }

    fn check(&self) -> Result<(), String> {
        let configurations = self.configurations.iter().map(|it| &it.name);
        check_names("configuration", configurations)?;
        check_names("guest", self.guests.iter().map(|it| &it.name))?;
        if self.guests.iter().any(|guest| guest.name == HOST) {
            return Err(format!("a guest cannot have the name {HOST:?}"));
        }
        for guest in &self.guests {
            let name = &guest.name;
            let all = [guest.tern, guest.kernel.is_some(), guest.disk.is_some()];
            if all.iter().filter(|is_given| **is_given).count() != 1 {
                return Err(format!(
                    "guest {name:?} must have either a kernel, or a disk, or tern = true"
                ));
            }
            if guest.disk.is_some() && (guest.initrd.is_some() || guest.append.is_some()) {
                return Err(format!("guest {name:?} has no kernel for its initrd and append"));
            }
            if guest.tern && guest.initrd.is_some() {
                return Err(format!("guest {name:?} is Tern, which has its own initrd"));
            }
        }
        let has_machine = self.configurations.iter().any(|it| it.kind != Kind::Native);
        if has_machine && self.guests.is_empty() {
            return Err("there is no guest".into());
        }
        if self.rounds == 0 { Err("rounds must be at least 1".into()) } else { Ok(()) }
    }
}

/// The place of a guest's name in the results of a native configuration.
pub(super) const HOST: &str = "host";

/// Names are parts of file names and of lines with commas.
fn check_names<'a>(what: &str, names: impl Iterator<Item = &'a String>) -> Result<(), String> {
    let mut seen = Vec::new();
    for name in names {
        let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
        if name.is_empty() || !name.chars().all(is_part) {
            return Err(format!(
                "the name {name:?} of a {what} must have letters, digits, _ and - only"
            ));
        }
        if seen.contains(&name) {
            return Err(format!("there are two {what}s with the name {name:?}"));
        }
        seen.push(name);
    }
    Ok(())
}

/// Returns an error of the parser with the number of its line.
fn one_line(text: &str, error: &toml::de::Error) -> String {
    let message = error.message().replace('\n', ", ");
    match error.span() {
        Some(span) => {
            let before = text.get(..span.start).unwrap_or_default();
            format!("line {}: {message}", before.matches('\n').count() + 1)
        }
        None => message,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAN: &str = r#"
script = "script.sh"
results = "/results"
rounds = 2

[[configuration]]
name = "native"
kind = "native"
path = "bin"

[[configuration]]
name = "small-qemu"
kind = "qemu"
options = ["-cpu", "qemu32"]

[[guest]]
name = "debian"
kernel = "vmlinuz"
initrd = "suite.cpio.gz"
append = "console=ttyS0 benchdriver=1235"
card = "ne2k_pci"
"#;

    fn parse(text: &str) -> Result<Plan, String> {
        Plan::parse(text, Path::new("/plan"))
    }

    #[test]
    fn paths_are_relative_to_the_file() {
        let plan = parse(PLAN).unwrap();
        assert_eq!(plan.script, Path::new("/plan/script.sh"));
        assert_eq!(plan.results, Path::new("/results"));
        assert_eq!(plan.configurations[0].path.as_deref(), Some(Path::new("/plan/bin")));
        assert_eq!(plan.configurations[1].kind, Kind::Qemu);
        assert_eq!(plan.guests[0].initrd.as_deref(), Some(Path::new("/plan/suite.cpio.gz")));
        assert_eq!((plan.guests[0].card, plan.guests[0].port), (Card::Ne2kPci, 1235));
        assert_eq!((plan.rounds, plan.start_seconds, plan.script_seconds), (2, 300, 3600));
    }

    #[test]
    fn the_example_is_a_plan() {
        let plan = parse(include_str!("../../examples/driver.toml")).unwrap();
        assert_eq!((plan.configurations.len(), plan.guests.len()), (4, 2));
    }

    #[test]
    fn mistakes_are_named_in_one_line() {
        for (old, new, complaint) in [
            ("rounds = 2", "turns = 2", "line 4: unknown field `turns`"),
            ("rounds = 2", "rounds = 0", "rounds must be at least 1"),
            ("\"native\"\npath", "\"v86\"\npath", "line 8: unknown variant `v86`"),
            ("small-qemu", "small/qemu", "\"small/qemu\" of a configuration must have letters"),
            ("small-qemu", "native", "two configurations with the name \"native\""),
            ("name = \"debian\"", "name = \"host\"", "cannot have the name \"host\""),
            ("kernel = \"vmlinuz\"", "", "either a kernel, or a disk, or tern"),
            ("kernel = \"vmlinuz\"", "tern = true", "its own initrd"),
            ("initrd", "tern = true\ninitrd", "either a kernel, or a disk, or tern"),
            ("kernel = \"vmlinuz\"", "disk = \"disk\"", "no kernel for its initrd"),
            ("[[guest]]", "[guest]", "line 16: "),
        ] {
            let error = parse(&PLAN.replace(old, new)).unwrap_err();
            assert!(error.contains(complaint) && !error.contains('\n'), "{error}");
        }
    }
}
