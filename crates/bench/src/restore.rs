//! Measures how soon a saved machine runs again, and how much memory many machines from one file take.
//!
//! A key is pressed while the process starts. The guest's echo shows that it runs. Everything is in the
//! host's page cache, as it is for a machine that is started often.

use std::env;
use std::ffi::OsString;
use std::fs;
use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use super::data::Log;
use super::peer::{Kind, PROMPT, Peer, QEMU};
use super::statistics::{Series, cell};
use super::{BenchError, show};
use crate::arguments::RestoreArguments;

/// The name of the snapshot in QEMU's image.
const TAG: &str = "moment";

/// A guest in one kind of machine, with the files for it.
struct Machine<'a> {
    kind: Kind,
    memory: u32,
    kernel: PathBuf,
    initrd: PathBuf,
    directory: &'a Path,
}

/// Saves machines of all sizes, and continues and boots them in turns.
pub(super) fn measure(arguments: &RestoreArguments) -> Result<(), BenchError> {
    let RestoreArguments { settings, memory: sizes, machines: number } = arguments;
    let directory = tempfile::tempdir().map_err(BenchError::Disk)?;
    let make = |kind, memory| -> Result<Machine<'_>, BenchError> {
        let kernel = settings.guest("linux-686/vmlinuz")?;
        let initrd = settings.guest("initramfs.cpio.gz")?;
        Ok(Machine { kind, memory, kernel, initrd, directory: directory.path() })
    };
    show(
        "Time from the start of the process, in milliseconds: a boot until the guest's shell shows its",
    )?;
    show(
        "prompt; a saved machine until the guest echoes a key, which shows that it runs, and until its",
    )?;
    show("shell answers.")?;
    show("                             booted        runs     answers       file")?;
    let mut log = Log::begin(settings)?;
    for &memory in sizes {
        for kind in Kind::installed() {
            // The interpreter continues what the translator has saved: the file is the same for both.
            let maker = make(if kind == Kind::Qemu { kind } else { Kind::Translator }, memory)?;
            if kind != Kind::Interpreter {
                maker.save()?;
            }
            let machine = make(kind, memory)?;
            let [mut booted, mut runs, mut answers] = <[Series; 3]>::default();
            for turn in 0..settings.runs {
                if kind != Kind::Interpreter {
                    let begin = Instant::now();
                    machine.boot()?.wait_for(PROMPT)?;
                    booted.add(turn, begin.elapsed().as_secs_f64());
                }
                let begin = Instant::now();
                let mut peer = machine.restore()?;
                peer.wait_for("\n")?;
                runs.add(turn, begin.elapsed().as_secs_f64());
                peer.wait_for(PROMPT)?;
                answers.add(turn, begin.elapsed().as_secs_f64());
            }
            let name = kind.name();
            for (what, series) in [("boot", &booted), ("echo", &runs), ("answer", &answers)] {
                let work = format!("{what}, {memory} MiB");
                log.add_series(name, &work, "elapsed_seconds", series)?;
            }
            let milliseconds =
                |series: Series| cell(series.figure().map(|figure| figure.times(1000.0)), 6, 0, "");
            let [booted, runs, answers] = [booted, runs, answers].map(milliseconds);
            let file = machine.file_len().map_err(BenchError::Disk)? >> 20;
            show(&format!("{name:<11} {memory:>4} MiB {booted}{runs}{answers} {file:>6} MiB"))?;
        }
    }
    let Some(&shared) = sizes.last() else { return Ok(()) };
    show(&format!(
        "\n{number} machines of {shared} MiB from one file, each after its shell has answered:"
    ))?;
    show(
        "the sum of their shares of the host's memory (PSS) in MiB, and that of one that was booted.",
    )?;
    let booted = {
        let mut peer = make(Kind::Translator, shared)?.boot()?;
        peer.wait_for(PROMPT)?;
        peer.memory()? >> 10
    };
    for kind in [Kind::Translator, Kind::Interpreter] {
        let machine = make(kind, shared)?;
        let mut machines = Vec::new();
        for _ in 0..*number {
            let mut peer = machine.restore()?;
            peer.wait_for(PROMPT)?;
            machines.push(peer);
        }
        let mut memory = 0;
        for machine in &machines {
            memory += machine.memory()?;
        }
        let (name, all) = (kind.name(), memory >> 10);
        show(&format!("{name:<11} {all:>6} {booted:>6}"))?;
    }
    Ok(())
}

impl Machine<'_> {
    /// Returns the file of this machine in which it is saved, or QEMU's image.
    fn file(&self) -> PathBuf {
        let kind = if self.kind == Kind::Qemu { "qemu" } else { "own" };
        self.directory.join(format!("{kind}-{}", self.memory))
    }

    /// Returns the room that the file takes, in bytes.
    fn file_len(&self) -> io::Result<u64> {
        Ok(std::os::unix::fs::MetadataExt::blocks(&fs::metadata(self.file())?) * 512)
    }

    fn socket(&self) -> PathBuf {
        self.directory.join("socket")
    }

    fn own_program(&self) -> Result<Command, BenchError> {
        let program = env::current_exe();
        program.map(Command::new).map_err(|error| BenchError::Start(self.kind.name(), error))
    }

    /// Returns the command that starts the machine without a system.
    fn command(&self) -> Result<Command, BenchError> {
        let mut command;
        if self.kind == Kind::Qemu {
            command = Command::new(QEMU);
            command.args(["-accel", "tcg", "-cpu", "max", "-nodefaults", "-display", "none"]);
            command.args(["-serial", "stdio", "-m", &self.memory.to_string(), "-drive"]);
            command.arg(format!("if=none,format=qcow2,file={}", self.file().display()));
            command.arg("-monitor");
            command.arg(format!("unix:{},server=on,wait=off", self.socket().display()));
        } else {
            command = self.own_program()?;
            let engine = if self.kind == Kind::Interpreter { "interpreter" } else { "translator" };
            command.args(["run", "--engine", engine]);
        }
        Ok(command)
    }

    /// Starts a new machine.
    fn boot(&self) -> Result<Peer, BenchError> {
        let mut command = self.command()?;
        let prefix = if self.kind == Kind::Qemu {
            "-"
        } else {
            command.args(["--memory", &format!("{}M", self.memory), "--qmp"]);
            command.arg(format!("unix:{}", self.socket().display()));
            "--"
        };
        let (kernel, initrd) = (self.kernel.as_os_str(), self.initrd.as_os_str());
        let append = OsString::from("console=ttyS0 quiet");
        for (option, value) in [("kernel", kernel), ("initrd", initrd), ("append", &append)] {
            command.arg(format!("{prefix}{option}")).arg(value);
        }
        Peer::start(self.kind, command)
    }

    /// Continues the saved machine, and types an empty line there.
    fn restore(&self) -> Result<Peer, BenchError> {
        let mut command = self.command()?;
        if self.kind == Kind::Qemu {
            // The kernel is part of a machine of QEMU only by its command line.
            command.arg("-kernel").arg(&self.kernel).arg("-initrd").arg(&self.initrd);
            command.args(["-append", "console=ttyS0 quiet", "-loadvm", TAG]);
        } else {
            command.arg("--restore").arg(self.file());
        }
        let mut peer = Peer::start(self.kind, command)?;
        peer.type_text("\n")?;
        Ok(peer)
    }

    /// Boots the machine and saves it.
    fn save(&self) -> Result<(), BenchError> {
        let saves = |error| BenchError::Save(self.kind.name(), error);
        if self.kind == Kind::Qemu {
            let mut create = self.own_program()?;
            create.args(["img", "create", "-q", "-f", "qcow2"]).arg(self.file()).arg("64M");
            succeed(&mut create).map_err(saves)?;
        }
        let mut peer = self.boot()?;
        peer.wait_for(PROMPT)?;
        if self.kind == Kind::Qemu {
            return tell_monitor(&self.socket(), &format!("savevm {TAG}")).map_err(saves);
        }
        let mut save = self.own_program()?;
        save.args(["snapshot", "save"]).arg(self.socket()).arg(self.file());
        succeed(&mut save).map_err(saves)
    }
}

/// Executes a command that must succeed.
fn succeed(command: &mut Command) -> io::Result<()> {
    let output = command.stdin(Stdio::null()).output()?;
    if output.status.success() {
        return Ok(());
    }
    Err(io::Error::other(String::from_utf8_lossy(&output.stderr).trim().to_owned()))
}

/// Gives QEMU's monitor a command, and waits until it is done.
fn tell_monitor(socket: &Path, command: &str) -> io::Result<()> {
    let mut stream = BufReader::new(UnixStream::connect(socket)?);
    // The first prompt, and the one behind the echo of the command.
    writeln!(stream.get_mut(), "{command}")?;
    for _ in 0..2 {
        let mut shown = Vec::new();
        while !shown.ends_with(b"(qemu) ") {
            if stream.read_until(b' ', &mut shown)? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
    }
    Ok(())
}
