//! A system in a process, and its serial port.

use std::env;
use std::ffi::OsString;
use std::fs;
use std::io::{self, Read, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::{Duration, Instant};

use super::BenchError;

/// What the guests' shell shows when it waits for a command.
pub(super) const PROMPT: &str = "ring3:~# ";

/// What a guest has, in MiB.
pub(super) const MEMORY: &str = "128";

/// A peer that says nothing for so long says nothing any more. Decompressing a kernel is silent work.
const PATIENCE: Duration = Duration::from_secs(900);

/// What can run a guest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Translator,
    /// The translator, with time that is a function of the instructions executed.
    Deterministic,
    Interpreter,
    Qemu,
    /// Is started by [`bochs`](super::bochs) alone.
    Bochs,
    /// Is started by [`v86`](super::v86) alone.
    V86,
    /// Is started by [`uml`](super::uml) alone.
    Uml,
}

impl Kind {
    /// Those that are installed and can boot any kernel or disc, but for a deterministic one.
    pub(super) fn installed() -> Vec<Kind> {
        let mut kinds = vec![Kind::Translator, Kind::Interpreter];
        kinds.extend(is_installed(QEMU).then_some(Kind::Qemu));
        kinds
    }

    pub(super) fn name(self) -> &'static str {
        match self {
            Kind::Translator => "ring3",
            Kind::Deterministic => "deterministic",
            Kind::Interpreter => "interpreter",
            Kind::Qemu => "QEMU (TCG)",
            Kind::Bochs => "Bochs",
            Kind::V86 => "v86",
            Kind::Uml => "UML",
        }
    }

    /// Boots a machine of 128 MiB from a disc.
    pub(super) fn boot_disc(self, disc: &Path) -> Result<Peer, BenchError> {
        self.start(&["-cdrom".into(), disc.into()])
    }

    /// Boots a kernel in such a machine, which has what else `options` say.
    pub(super) fn boot_kernel(
        self,
        kernel: &Path,
        initrd: &Path,
        options: &[OsString],
    ) -> Result<Peer, BenchError> {
        let mut boot = vec!["-kernel".into(), kernel.into(), "-initrd".into(), initrd.into()];
        boot.extend(["-append".into(), "console=ttyS0".into()]);
        boot.extend_from_slice(options);
        self.start(&boot)
    }

    /// Starts the kernel `image` in such a machine, which has what else `options` say.
    pub(super) fn boot_image(self, image: &Path, options: &[OsString]) -> Result<Peer, BenchError> {
        let mut boot = vec!["-kernel".into(), image.into()];
        boot.extend_from_slice(options);
        self.start(&boot)
    }

    fn start(self, boot: &[OsString]) -> Result<Peer, BenchError> {
        let mut command = if self == Kind::Qemu {
            Command::new(QEMU)
        } else {
            let program = env::current_exe().map_err(|error| BenchError::Start("ring3", error))?;
            let mut command = Command::new(program);
            command.arg("qemu");
            command
        };
        let accelerator = if self == Kind::Interpreter { "interpreter" } else { "tcg" };
        command.args(["-accel", accelerator, "-cpu", "max", "-m", MEMORY, "-nodefaults"]);
        command.args(["-serial", "stdio", "-display", "none", "-no-reboot"]);
        if self == Kind::Deterministic {
            command.args(["-icount", "shift=auto"]);
        }
        command.args(boot);
        Peer::start(self, command)
    }
}

const QEMU: &str = "qemu-system-i386";

/// True when `PATH` leads to `program`.
pub(super) fn is_installed(program: &str) -> bool {
    let path = env::var_os("PATH").unwrap_or_default();
    env::split_paths(&path).any(|directory| directory.join(program).exists())
}

/// A running system. It ends when this is dropped.
pub(super) struct Peer {
    name: &'static str,
    child: Child,
    keys: Box<dyn Write>,
    screen: Receiver<Vec<u8>>,
    /// What it has shown and nobody has waited for yet.
    shown: Vec<u8>,
}

impl Peer {
    /// The system that `command` starts, whose serial port is its standard input and output.
    pub(super) fn start(kind: Kind, mut command: Command) -> Result<Peer, BenchError> {
        let failed = |error| BenchError::Start(kind.name(), error);
        let mut child =
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().map_err(failed)?;
        let no_pipe = || failed(io::ErrorKind::BrokenPipe.into());
        let keys = child.stdin.take().ok_or_else(no_pipe)?;
        let screen = child.stdout.take().ok_or_else(no_pipe)?;
        Ok(Peer::new(kind.name(), child, keys, screen))
    }

    /// The system in the process `child`, to whose serial port what is written to `keys` goes, and from which comes
    /// what is read from `output`.
    pub(super) fn new(
        name: &'static str,
        child: Child,
        keys: impl Write + 'static,
        mut output: impl Read + Send + 'static,
    ) -> Peer {
        let (sender, screen) = channel();
        thread::spawn(move || {
            let mut buffer = [0; 4096];
            while let Ok(length @ 1..) = output.read(&mut buffer) {
                if sender.send(buffer[..length].to_vec()).is_err() {
                    break;
                }
            }
        });
        Peer { name, child, keys: Box::new(keys), screen, shown: Vec::new() }
    }

    /// Waits until it shows `wanted`, and gives what it has shown before.
    pub(super) fn wait_for(&mut self, wanted: &'static str) -> Result<String, BenchError> {
        loop {
            let found =
                self.shown.windows(wanted.len()).position(|bytes| bytes == wanted.as_bytes());
            if let Some(at) = found {
                let before = String::from_utf8_lossy(&self.shown[..at]).into_owned();
                self.shown.drain(..at + wanted.len());
                return Ok(before);
            }
            let Ok(bytes) = self.screen.recv_timeout(PATIENCE) else {
                let last = &self.shown[self.shown.len().saturating_sub(200)..];
                let last = String::from_utf8_lossy(last).into_owned();
                return Err(BenchError::Silent(self.name, PATIENCE.as_secs(), wanted, last));
            };
            self.shown.extend(bytes);
        }
    }

    /// Types `command`, and waits until it is done. Gives the time it took the host's processors, in seconds, and
    /// what it has shown.
    pub(super) fn work(&mut self, command: &str) -> Result<(f64, String), BenchError> {
        let before = self.time()?;
        let shown = self.run(command)?;
        Ok((self.time()? - before, shown))
    }

    /// The same with the time that passes until it is done.
    pub(super) fn wait_for_work(&mut self, command: &str) -> Result<(f64, String), BenchError> {
        let before = Instant::now();
        let shown = self.run(command)?;
        Ok((before.elapsed().as_secs_f64(), shown))
    }

    fn run(&mut self, command: &str) -> Result<String, BenchError> {
        let typed = format!("{command}\n");
        self.keys
            .write_all(typed.as_bytes())
            .and_then(|()| self.keys.flush())
            .map_err(|error| BenchError::Start(self.name, error))?;
        // The line comes back as it was typed, and has no prompt in it.
        self.wait_for("\n")?;
        self.wait_for(PROMPT)
    }

    /// How often one of its threads has slept until something came.
    pub(super) fn wake_ups(&self) -> Result<u64, BenchError> {
        wake_ups(&self.child).map_err(|error| BenchError::Time(self.name, error))
    }

    /// The host's memory that it has, that of the guest and all, in KiB: each page counts as the part of it that is not others' (proc(5), Pss in
    /// `smaps_rollup`), and those that are mapped more than once count once.
    pub(super) fn memory(&self) -> Result<u32, BenchError> {
        let text = fs::read_to_string(format!("/proc/{}/smaps_rollup", self.child.id()));
        let text = text.map_err(|error| BenchError::Memory(self.name, error))?;
        let number = |line: &str| -> Option<u32> {
            line.strip_prefix("Pss:")?.trim().strip_suffix("kB")?.trim().parse().ok()
        };
        Ok(text.lines().find_map(number).unwrap_or(0))
    }

    /// The time of the host's processors that it has taken, in seconds.
    pub(super) fn time(&self) -> Result<f64, BenchError> {
        processor_time(&self.child).map_err(|error| BenchError::Time(self.name, error))
    }
}

/// What the process `child` and those that it has started have had of the host's processors, in seconds.
pub(super) fn processor_time(child: &Child) -> io::Result<f64> {
    Ok(time_with_children(child.id())?.as_secs_f64())
}

/// The time of the threads of the process `id`: the first number in `schedstat` of each (Linux, Documentation/scheduler/sched-stats.rst);
/// of its children that have ended (proc(5), `cutime` and `cstime` in `stat`); and of those that it has, in the same way.
fn time_with_children(id: u32) -> io::Result<Duration> {
    let mut sum = time_of_ended_children(id)?;
    for thread in fs::read_dir(format!("/proc/{id}/task"))? {
        let thread = thread?.path();
        // One that has just ended has no files any more.
        let text = fs::read_to_string(thread.join("schedstat")).unwrap_or_default();
        let nanoseconds = text.split(' ').next().and_then(|word| word.parse().ok());
        sum += Duration::from_nanos(nanoseconds.unwrap_or(0));
        let children = fs::read_to_string(thread.join("children")).unwrap_or_default();
        for child in children.split_whitespace().filter_map(|word| word.parse().ok()) {
            sum += time_with_children(child).unwrap_or_default();
        }
    }
    Ok(sum)
}

fn time_of_ended_children(id: u32) -> io::Result<Duration> {
    let text = fs::read_to_string(format!("/proc/{id}/stat"))?;
    // The name before the other fields is in parentheses, and may have spaces.
    let fields = text.rsplit(')').next().unwrap_or_default();
    let ticks: u64 =
        fields.split_whitespace().skip(13).take(2).filter_map(|n| n.parse::<u64>().ok()).sum();
    Ok(Duration::from_secs(ticks) / rustix::param::clock_ticks_per_second() as u32)
}

/// How often a thread of the process `child` has slept until something came: the voluntary switches in its `status` (proc(5)).
pub(super) fn wake_ups(child: &Child) -> io::Result<u64> {
    let mut sum = 0;
    for thread in fs::read_dir(format!("/proc/{}/task", child.id()))? {
        // One that has just ended has no file any more.
        let text = fs::read_to_string(thread?.path().join("status")).unwrap_or_default();
        let number =
            |line: &str| line.strip_prefix("voluntary_ctxt_switches:")?.trim().parse().ok();
        sum += text.lines().find_map(number).unwrap_or(0u64);
    }
    Ok(sum)
}

impl Drop for Peer {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
