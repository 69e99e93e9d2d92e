//! Instructions of commands, exactly: in a deterministic machine into which nothing comes from outside, so that all
//! hosts, busy or not, count alike. The commands are a script in its boot archive, and the machine counts for a program
//! in it (the guest tool `histogram`).

use std::env;
use std::fmt::Write;
use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use ring3_tern::{TERN, with_file, with_services};

use super::{choosing, without_dma};
use crate::BenchError;
use crate::children::spawn;
use crate::guest::{Bus, first_disk, tern_files};
use crate::peer::{Kind, MEMORY};

/// The script in the archive.
const SCRIPT: &str = "etc/orders";
/// What the script does for a command: it executes it, and shows how many instructions were executed meanwhile,
/// those of the kernel and those of programs, or what went wrong.
const COUNT: &str = "\
count() {
    if hist sh -c \"$1\" >/tmp/shown 2>/tmp/counted; then
        echo \"= $(tail -n 1 /tmp/counted)\"
    else
        echo \"$1:\"; cat /tmp/shown /tmp/counted
    fi
}
";
const RESULT: &str = "= ";
/// The port of the device by which Tern ends the machine.
const DEBUG_EXIT: &str = "0xf4";

/// The line for a service that is not pinged for a thousand seconds: whether a ping comes in a measurement would depend
/// on when it begins.
const SELDOM_PINGED: &str = "    period 1000000\n";

/// What the machine has besides Tern.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Extras<'a> {
    /// For the kernel's command line.
    pub(super) words: &'a str,
    /// The size of the IDE disk, which is empty.
    pub(super) disk_bytes: usize,
}

/// What the machine is to do.
#[derive(Debug)]
pub(super) struct Orders {
    script: String,
    pairs: usize,
}

impl Orders {
    pub(super) fn new() -> Orders {
        Orders { script: COUNT.into(), pairs: 0 }
    }

    /// Starts the driver `service` with the way `way`, and waits until `probe` succeeds.
    pub(super) fn choose(&mut self, service: &str, way: &str, probe: &str) {
        self.script += &choosing(service, way, probe);
        self.script.push('\n');
    }

    /// Counts the instructions by which the second command exceeds the first. The commands have no quotation marks.
    pub(super) fn compare(&mut self, commands: [&str; 2]) {
        self.pairs += 1;
        for command in commands {
            let _ = writeln!(self.script, "count '{command}'");
        }
    }

    /// Executes all of it, and returns the numbers of instructions, in the order of the pairs. Temporary files are in
    /// `directory`.
    pub(super) fn execute(
        &self,
        extras: &Extras<'_>,
        directory: &Path,
    ) -> Result<Vec<f64>, BenchError> {
        let tern = TERN.ok_or(BenchError::NoTern)?;
        let archive = with_file(tern.archive, SCRIPT, &self.script)
            .and_then(|archive| without_dma(&archive))
            .and_then(|archive| with_services(&archive, |text| Some(seldom_pinged(text))))
            .ok_or(BenchError::NoTern)?;
        let file = |extension| directory.join(format!("counted-{}.{extension}", extras.words));
        let (image, disk) = (file("img"), file("disk"));
        fs::write(&image, archive).map_err(BenchError::Disk)?;
        fs::write(&disk, vec![0; extras.disk_bytes.max(512)]).map_err(BenchError::Disk)?;
        let (kernel, _) = tern_files(directory)?;

        let failed = |error| BenchError::Start(Kind::Deterministic.name(), error);
        let mut command = Command::new(env::current_exe().map_err(failed)?);
        command.args(["run", "--deterministic", "--guest-tools", "histogram", "--memory", MEMORY]);
        command.args(["--debug-exit", DEBUG_EXIT, "--serial", "stdio", "--serial", "null"]);
        command.arg("--drive").arg(first_disk(Bus::Ide, &disk));
        command.arg("--kernel").arg(kernel).arg("--initrd").arg(image);
        command.arg("--append").arg(format!("{} run=sh /{SCRIPT}", extras.words));
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let output = spawn(&mut command).and_then(Child::wait_with_output).map_err(failed)?;
        let shown = String::from_utf8_lossy(&output.stdout);
        let counts: Vec<f64> = shown.lines().filter_map(count).collect();
        if counts.len() != 2 * self.pairs {
            let said = String::from_utf8_lossy(&output.stderr);
            let all = format!("{shown}{said}");
            return Err(BenchError::NotRun(SCRIPT.into(), Kind::Deterministic.name(), all));
        }
        Ok(counts.chunks_exact(2).map(|pair| pair[1] - pair[0]).collect())
    }
}

/// Returns the lines about services so that none of them is pinged soon.
fn seldom_pinged(services: &str) -> String {
    let mut text = String::new();
    for line in services.lines().filter(|line| !line.trim_start().starts_with("period ")) {
        text.push_str(line);
        text.push('\n');
        if line.starts_with("service ") {
            text.push_str(SELDOM_PINGED);
        }
    }
    text
}

/// Returns the number of instructions in a line of the script's output, if it has one.
fn count(line: &str) -> Option<f64> {
    let mut words = line.strip_prefix(RESULT)?.split_whitespace();
    let (kernel, programs) = (words.next()?, words.next()?);
    let of = |word: &str| word.parse::<f64>().ok();
    (words.next() == Some("instructions")).then_some(of(kernel)? + of(programs)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_read() {
        assert_eq!(count("=      1000       234 instructions\r"), Some(1234.0));
        for line in ["", "= 1 instructions", "= 1 2 ADD", "1 2 instructions", "= x 2 instructions"]
        {
            assert_eq!(count(line), None, "{line}");
        }
    }

    #[test]
    fn every_service_has_one_period() {
        let text =
            "# All.\nusers\n    calls a\n\nservice pm\n    period 10000\n    calls b\nservice is\n";
        let right = "# All.\nusers\n    calls a\n\nservice pm\n    period 1000000\n    calls b\nservice is\n    \
                     period 1000000\n";
        assert_eq!(seldom_pinged(text), right);
    }
}
