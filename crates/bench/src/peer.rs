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
use super::children::spawn;

/// The prompt of the guests' shell when it waits for a command.
pub(super) const PROMPT: &str = "ring3:~# ";

/// The memory of a 32-bit guest, in MiB.
pub(super) const MEMORY: &str = "128";

/// How long a peer may be silent before it counts as dead. Decompressing a kernel is silent work.
const PATIENCE: Duration = Duration::from_secs(900);

/// The processor of a machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Processor {
    Bits32,
    Bits64,
}

impl Processor {
    /// Returns QEMU's program for it.
    fn qemu(self) -> &'static str {
        match self {
            Processor::Bits32 => QEMU,
            Processor::Bits64 => "qemu-system-x86_64",
        }
    }

    /// Returns the model's name, for ring3 and for QEMU.
    fn model(self) -> &'static str {
        match self {
            Processor::Bits32 => "max",
            Processor::Bits64 => "qemu64",
        }
    }

    /// Returns the memory of a guest, in MiB. The suite needs more than 64 besides a 64-bit kernel.
    pub(super) fn memory(self) -> &'static str {
        match self {
            Processor::Bits32 => MEMORY,
            Processor::Bits64 => "256",
        }
    }
}

/// The kinds of systems that can run a guest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Translator,
    /// The translator, with time that is a function of the instructions executed.
    Deterministic,
    Interpreter,
    Qemu,
    /// [`bochs`](super::bochs) alone starts this kind.
    Bochs,
    /// [`v86`](super::v86) alone starts this kind.
    V86,
    /// [`uml`](super::uml) alone starts this kind.
    Uml,
}

impl Kind {
    /// Returns the kinds that are installed and can boot any 32-bit kernel or disc, without the deterministic one.
    pub(super) fn installed() -> Vec<Kind> {
        Kind::installed_with(Processor::Bits32)
    }

    /// Returns the kinds like [`Kind::installed`], for guests that need this processor.
    pub(super) fn installed_with(processor: Processor) -> Vec<Kind> {
        let mut kinds = vec![Kind::Translator, Kind::Interpreter];
        kinds.extend(is_installed(processor.qemu()).then_some(Kind::Qemu));
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
        self.start(Processor::Bits32, &["-cdrom".into(), disc.into()])
    }

    /// Boots a kernel in a machine of 128 MiB with the additional `options`.
    pub(super) fn boot_kernel(
        self,
        kernel: &Path,
        initrd: &Path,
        options: &[OsString],
    ) -> Result<Peer, BenchError> {
        self.boot_kernel_with(Processor::Bits32, "console=ttyS0", kernel, initrd, options)
    }

    /// Boots a kernel in a machine with this processor, with `words` on its command line and the additional
    /// `options`.
    pub(super) fn boot_kernel_with(
        self,
        processor: Processor,
        words: &str,
        kernel: &Path,
        initrd: &Path,
        options: &[OsString],
    ) -> Result<Peer, BenchError> {
        let mut boot = vec!["-kernel".into(), kernel.into(), "-initrd".into(), initrd.into()];
        boot.extend(["-append".into(), words.into()]);
        boot.extend_from_slice(options);
        self.start(processor, &boot)
    }

    /// Starts the kernel `image` in a machine of 128 MiB with the additional `options`.
    pub(super) fn boot_image(self, image: &Path, options: &[OsString]) -> Result<Peer, BenchError> {
        let mut boot = vec!["-kernel".into(), image.into()];
        boot.extend_from_slice(options);
        self.start(Processor::Bits32, &boot)
    }

    fn start(self, processor: Processor, boot: &[OsString]) -> Result<Peer, BenchError> {
        let mut command = if self == Kind::Qemu {
            Command::new(processor.qemu())
        } else {
            let program = env::current_exe().map_err(|error| BenchError::Start("ring3", error))?;
            let mut command = Command::new(program);
            command.arg("qemu");
            command
        };
        let accelerator = if self == Kind::Interpreter { "interpreter" } else { "tcg" };
        command.args(["-accel", accelerator, "-cpu", processor.model(), "-m", processor.memory()]);
        command.arg("-nodefaults");
        command.args(["-serial", "stdio", "-display", "none", "-no-reboot"]);
        if self == Kind::Deterministic {
            command.args(["-icount", "shift=auto"]);
        }
        command.args(boot);
        Peer::start(self, command)
    }
}

pub(super) const QEMU: &str = "qemu-system-i386";

/// Returns whether `program` can be found in `PATH`.
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
    /// Output that the system has shown and that nobody has waited for yet.
    shown: Vec<u8>,
}

impl Peer {
    /// Starts `command`, whose standard input and output are the system's serial port.
    pub(super) fn start(kind: Kind, mut command: Command) -> Result<Peer, BenchError> {
        let failed = |error| BenchError::Start(kind.name(), error);
        let mut child =
            spawn(command.stdin(Stdio::piped()).stdout(Stdio::piped())).map_err(failed)?;
        let no_pipe = || failed(io::ErrorKind::BrokenPipe.into());
        let keys = child.stdin.take().ok_or_else(no_pipe)?;
        let screen = child.stdout.take().ok_or_else(no_pipe)?;
        Ok(Peer::new(kind.name(), child, keys, screen))
    }

    /// Makes a peer of the process `child`. Bytes written to `keys` go to its serial port, and `output`
    /// returns the bytes that the port sends.
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

    /// Waits until the system shows `wanted`, and returns its output before that.
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

    /// Types `command`, and waits until it is done. Returns the processor time that it took on the host, in
    /// seconds, and its output.
    pub(super) fn work(&mut self, command: &str) -> Result<(f64, String), BenchError> {
        let before = self.time()?;
        let shown = self.run(command)?;
        Ok((self.time()? - before, shown))
    }

    /// Types `command`, and waits until it is done. Returns the seconds that passed, and its output.
    pub(super) fn wait_for_work(&mut self, command: &str) -> Result<(f64, String), BenchError> {
        let before = Instant::now();
        let shown = self.run(command)?;
        Ok((before.elapsed().as_secs_f64(), shown))
    }

    /// Types `text` at the system's serial port.
    pub(super) fn type_text(&mut self, text: &str) -> Result<(), BenchError> {
        let typed = self.keys.write_all(text.as_bytes()).and_then(|()| self.keys.flush());
        typed.map_err(|error| BenchError::Start(self.name, error))
    }

    fn run(&mut self, command: &str) -> Result<String, BenchError> {
        self.type_text(&format!("{command}\n"))?;
        // The terminal echoes the line as it was typed; it has no prompt in it.
        self.wait_for("\n")?;
        self.wait_for(PROMPT)
    }

    /// Returns how often one of the system's threads has slept until an event.
    pub(super) fn wake_ups(&self) -> Result<u64, BenchError> {
        wake_ups(&self.child).map_err(|error| BenchError::Time(self.name, error))
    }

    /// Returns the host's memory that the system uses, including the guest's, in KiB. Of a page that is
    /// shared, only this process's part counts (proc(5), Pss in `smaps_rollup`), and a page that is mapped
    /// more than once counts once.
    pub(super) fn memory(&self) -> Result<u32, BenchError> {
        let text = fs::read_to_string(format!("/proc/{}/smaps_rollup", self.child.id()));
        let text = text.map_err(|error| BenchError::Memory(self.name, error))?;
        let number = |line: &str| -> Option<u32> {
            line.strip_prefix("Pss:")?.trim().strip_suffix("kB")?.trim().parse().ok()
        };
        Ok(text.lines().find_map(number).unwrap_or(0))
    }

    /// Returns the processor time that the system has used on the host, in seconds.
    pub(super) fn time(&self) -> Result<f64, BenchError> {
        processor_time(&self.child).map_err(|error| BenchError::Time(self.name, error))
    }
}

/// Returns the processor time of the process `child` and its descendants, in seconds.
pub(super) fn processor_time(child: &Child) -> io::Result<f64> {
    Ok(time_with_children(child.id())?.as_secs_f64())
}

/// Returns the time of all threads of the process `id`: the first number in `schedstat` of each (Linux,
/// Documentation/scheduler/sched-stats.rst). The time of its children that have ended is added (proc(5),
/// `cutime` and `cstime` in `stat`), and that of its living children, computed in the same way.
fn time_with_children(id: u32) -> io::Result<Duration> {
    let mut sum = time_of_ended_children(id)?;
    for thread in fs::read_dir(format!("/proc/{id}/task"))? {
        // A thread that has just ended no longer has files.
        let text = fs::read_to_string(thread?.path().join("schedstat")).unwrap_or_default();
        let nanoseconds = text.split(' ').next().and_then(|word| word.parse().ok());
        sum += Duration::from_nanos(nanoseconds.unwrap_or(0));
    }
    for child in children(id)? {
        sum += time_with_children(child).unwrap_or_default();
    }
    Ok(sum)
}

/// Returns the living children of the process `id`.
pub(super) fn children(id: u32) -> io::Result<Vec<u32>> {
    let mut all = Vec::new();
    for thread in fs::read_dir(format!("/proc/{id}/task"))? {
        let text = fs::read_to_string(thread?.path().join("children")).unwrap_or_default();
        all.extend(text.split_whitespace().filter_map(|word| word.parse::<u32>().ok()));
    }
    Ok(all)
}

fn time_of_ended_children(id: u32) -> io::Result<Duration> {
    let text = fs::read_to_string(format!("/proc/{id}/stat"))?;
    // The name before the other fields is in parentheses and may contain spaces.
    let fields = text.rsplit(')').next().unwrap_or_default();
    let ticks: u64 =
        fields.split_whitespace().skip(13).take(2).filter_map(|n| n.parse::<u64>().ok()).sum();
    Ok(Duration::from_secs(ticks) / rustix::param::clock_ticks_per_second() as u32)
}

/// Returns how often a thread of the process `child` has slept until an event: the voluntary switches in its
/// `status` (proc(5)).
pub(super) fn wake_ups(child: &Child) -> io::Result<u64> {
    let mut sum = 0;
    for thread in fs::read_dir(format!("/proc/{}/task", child.id()))? {
        // A thread that has just ended no longer has this file.
        let text = fs::read_to_string(thread?.path().join("status")).unwrap_or_default();
        let number =
            |line: &str| line.strip_prefix("voluntary_ctxt_switches:")?.trim().parse().ok();
        sum += text.lines().find_map(number).unwrap_or(0u64);
    }
    Ok(sum)
}

impl Drop for Peer {
    fn drop(&mut self) {
        // The process may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
