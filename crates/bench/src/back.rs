//! Measures how soon a debugger that goes back is answered, in the middle of Linux's boot.
//!
//! The boot is recorded and repeated up to its middle. There a client of GDB's remote protocol, as GDB itself would,
//! goes back by one instruction, again and again. The first step returns to the last checkpoint; the ones after it
//! have another one nearby.

use std::env;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use super::children::spawn;
use super::data::Log;
use super::peer::Kind;
use super::statistics::{Series, Turn, cell, median};
use super::{BenchError, show};
use crate::arguments::BackArguments;

/// The memory of the guest.
const MEMORY: &str = "128M";
/// Steps back after the first one.
const STEPS: usize = 20;
/// How long a replay may take to get to its middle.
const PATIENCE: Duration = Duration::from_secs(600);

/// A replay in which a debugger can go back. It ends when this is dropped.
struct Replay {
    child: Child,
    debugger: UnixStream,
}

/// Records a boot, and goes back in it on each engine.
pub(super) fn measure(arguments: &BackArguments) -> Result<(), BenchError> {
    let settings = &arguments.settings;
    let directory = tempfile::tempdir().map_err(BenchError::Disk)?;
    let (kernel, initrd) =
        (settings.guest("linux-686/vmlinuz")?, settings.guest("initramfs.cpio.gz")?);
    let failed = |error| BenchError::Start("ring3", error);
    let instructions = record(&kernel, &initrd, directory.path()).map_err(failed)?;
    show(&format!(
        "A boot of {} million instructions, repeated up to its middle: time until a debugger is answered",
        instructions / 1_000_000
    ))?;
    show(
        "that goes back by one instruction, in milliseconds (medians; ± half the distance between the",
    )?;
    show("quartiles).")?;
    show("                  first       next")?;
    let mut log = Log::begin(settings)?;
    for kind in [Kind::Translator, Kind::Interpreter] {
        let [mut first, mut next] = <[Series; 2]>::default();
        for turn in 0..settings.runs {
            let middle = instructions / 2;
            let mut replay = Replay::start(kind, middle, turn, directory.path()).map_err(failed)?;
            first.add(turn, replay.step_back().map_err(failed)?);
            let steps = (0..STEPS).map(|_| replay.step_back());
            let steps = steps.collect::<io::Result<Vec<_>>>().map_err(failed)?;
            next.add(turn, median(steps));
        }
        for (work, series) in [("first step back", &first), ("next step back", &next)] {
            log.add_series(kind.name(), work, "elapsed_seconds", series)?;
        }
        let milliseconds =
            |series: Series| cell(series.figure().map(|figure| figure.times(1000.0)), 7, 0, "");
        let [first, next] = [first, next].map(milliseconds);
        show(format!("{:<15}{first}{next}", kind.name()).trim_end())?;
    }
    Ok(())
}

fn own_program() -> io::Result<Command> {
    env::current_exe().map(Command::new)
}

/// Records a boot, which ends by itself, in file `recording` of `directory`. Returns the number of its
/// instructions.
fn record(kernel: &Path, initrd: &Path, directory: &Path) -> io::Result<u64> {
    let keys = directory.join("keys");
    fs::write(&keys, "poweroff -f\n")?;
    let mut command = own_program()?;
    command.args(["run", "--memory", MEMORY, "--append", "console=ttyS0 quiet", "--stats"]);
    command.arg("--record").arg(directory.join("recording"));
    command.arg("--kernel").arg(kernel).arg("--initrd").arg(initrd).stdin(File::open(keys)?);
    let output = spawn(command.stdout(Stdio::null()).stderr(Stdio::piped()))?.wait_with_output()?;
    let said = String::from_utf8_lossy(&output.stderr);
    let number = |line: &str| line.trim().strip_suffix(" instructions")?.parse().ok();
    let count = said.lines().find_map(number).filter(|_| output.status.success());
    count.ok_or_else(|| io::Error::other(said.trim().to_owned()))
}

impl Replay {
    /// Repeats the recorded boot up to `instructions` instructions, and connects to it.
    fn start(kind: Kind, instructions: u64, turn: Turn, directory: &Path) -> io::Result<Replay> {
        let engine = if kind == Kind::Interpreter { "interpreter" } else { "translator" };
        let socket = directory.join(format!("{engine}-{turn}"));
        let mut command = own_program()?;
        command.args(["run", "--engine", engine, "--serial", "null", "--replay"]);
        command.arg(directory.join("recording")).arg("--to").arg(instructions.to_string());
        command.arg("--gdb").arg(format!("unix:{}", socket.display())).stdin(Stdio::null());
        let mut child = spawn(&mut command)?;
        let begin = Instant::now();
        let debugger = loop {
            match UnixStream::connect(&socket) {
                Ok(stream) => break stream,
                Err(error) if begin.elapsed() > PATIENCE || child.try_wait()?.is_some() => {
                    // It may have ended by itself.
                    let _ = child.kill();
                    child.wait()?;
                    return Err(error);
                }
                Err(_) => thread::sleep(Duration::from_millis(50)),
            }
        };
        debugger.set_read_timeout(Some(PATIENCE))?;
        let mut replay = Replay { child, debugger };
        replay.ask("QStartNoAckMode")?;
        replay.debugger.write_all(b"+")?;
        Ok(replay)
    }

    /// Sends a packet, and returns the body of the answer (GDB manual, "Overview" of the remote protocol).
    fn ask(&mut self, body: &str) -> io::Result<String> {
        let sum = body.bytes().fold(0_u8, u8::wrapping_add);
        self.debugger.write_all(format!("${body}#{sum:02x}").as_bytes())?;
        let mut answer = Vec::new();
        while answer.iter().rev().nth(2) != Some(&b'#') {
            let mut byte = [0];
            self.debugger.read_exact(&mut byte)?;
            answer.extend(byte);
        }
        let answer = String::from_utf8_lossy(&answer[..answer.len() - 3]).into_owned();
        Ok(answer.trim_start_matches(['+', '$']).to_owned())
    }

    /// Goes back by one instruction. Returns how many seconds that took.
    fn step_back(&mut self) -> io::Result<f64> {
        let begin = Instant::now();
        let answer = self.ask("bs")?;
        let seconds = begin.elapsed().as_secs_f64();
        if answer.starts_with("T05") || answer.starts_with("S05") {
            Ok(seconds)
        } else {
            Err(io::Error::other(format!("a step back is answered by {answer:?}")))
        }
    }
}

impl Drop for Replay {
    fn drop(&mut self) {
        // The process may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
