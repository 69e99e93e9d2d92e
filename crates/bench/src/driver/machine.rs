//! A machine with a guest whose benchdriverserver can be reached, and the host itself in its place.

use std::env;
use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::net::TcpListener;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use ring3_host::deadline::Deadline;
use ring3_host::stream::Stream;

use super::plan::{Card, Configuration, Guest, Kind};
use super::protocol::{self, Sink};
use super::{Plan, RunError};
use crate::children;
use crate::peer::QEMU;

/// How long the first attempt to reach the guest may take; each further one may take twice as long, up to
/// the last one's. Until the guest answers, its NAT keeps connections waiting.
const ATTEMPTS: [Duration; 2] = [Duration::from_millis(500), Duration::from_secs(8)];

/// The pause between two attempts.
const PAUSE: Duration = Duration::from_millis(100);

/// A process that ends with all that it has started when this is dropped.
struct Process(Child);

impl Process {
    fn start(command: &mut Command) -> Result<Process, RunError> {
        children::spawn(command.stdin(Stdio::null())).map(Process).map_err(RunError::Start)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        children::end_descendants(self.0.id());
        // The process may have ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A running machine.
pub(super) struct Machine {
    process: Process,
    /// The output of its serial port and of its program.
    console: PathBuf,
    port: u16,
}

impl Machine {
    /// Starts a machine, whose console goes to the end of the file `console`.
    pub(super) fn start(
        configuration: &Configuration,
        guest: &Guest,
        console: &Path,
    ) -> Result<Machine, RunError> {
        let port = free_port().map_err(RunError::Start)?;
        let recording = console.with_extension("recording");
        let command = command(configuration, guest, port, &recording);
        let mut command = command.map_err(RunError::Start)?;
        let log = File::options().create(true).append(true).open(console);
        let log = log.map_err(RunError::Store)?;
        let errors = log.try_clone().map_err(RunError::Store)?;
        let process = Process::start(command.stdout(log).stderr(errors))?;
        Ok(Machine { process, console: console.to_owned(), port })
    }

    /// Waits until the guest is ready for a script.
    pub(super) fn connect(&mut self, most: Duration) -> Result<Stream, RunError> {
        let end = Instant::now() + most;
        let mut patience = ATTEMPTS[0];
        while Instant::now() < end {
            let attempt = Stream::tcp(("127.0.0.1", self.port));
            if let Ok(stream) = attempt
                && protocol::greet(&mut Deadline::new(&stream, patience)).is_ok()
            {
                return Ok(stream);
            }
            self.look()?;
            thread::sleep(PAUSE);
            patience = (patience * 2).min(ATTEMPTS[1]);
        }
        Err(RunError::Silent(most.as_secs(), last_line(&self.console)))
    }

    /// Fails if the machine has ended.
    fn look(&mut self) -> Result<(), RunError> {
        match self.process.0.try_wait() {
            Ok(Some(status)) => Err(RunError::Ended(status, last_line(&self.console))),
            Ok(None) => Ok(()),
            Err(error) => Err(RunError::Start(error)),
        }
    }

    /// Lets the guest execute `script`, and returns its status.
    pub(super) fn execute(
        &mut self,
        stream: &Stream,
        script: &[u8],
        most: Duration,
        sink: &mut impl Sink,
    ) -> Result<u8, RunError> {
        let ended = protocol::execute(&mut Deadline::new(stream, most), script, sink);
        ended.map_err(|error| {
            // If the machine has ended, its own complaint says more.
            thread::sleep(PAUSE);
            self.look().err().unwrap_or_else(|| RunError::of(error, most))
        })
    }
}

/// The end of the console that is looked at.
const END: u64 = 1000;

/// Returns the last line of the console, or the one before which says that it is an error.
fn last_line(console: &Path) -> String {
    let read = || {
        let mut file = File::open(console)?;
        let length = file.seek(SeekFrom::End(0))?;
        file.seek(SeekFrom::Start(length.saturating_sub(END)))?;
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes)?;
        Ok::<_, io::Error>(String::from_utf8_lossy(&bytes).into_owned())
    };
    let text = read().unwrap_or_default();
    let lines = || text.lines().rev().map(str::trim);
    // After the complaint about a command line there is advice.
    let complaint = lines().find(|line| line.starts_with("error:"));
    complaint.or_else(|| lines().find(|line| !line.is_empty())).unwrap_or_default().into()
}

/// Returns a port of this host that is free now.
fn free_port() -> io::Result<u16> {
    Ok(TcpListener::bind(("127.0.0.1", 0))?.local_addr()?.port())
}

/// Returns the command that starts a machine, at whose `port` on this host the guest's server answers. A
/// deterministic machine writes its inputs to the file `recording`.
fn command(
    configuration: &Configuration,
    guest: &Guest,
    port: u16,
    recording: &Path,
) -> io::Result<Command> {
    let is_qemu = configuration.kind == Kind::Qemu;
    let mut command = if is_qemu { Command::new(QEMU) } else { Command::new(env::current_exe()?) };
    command.args(match configuration.kind {
        Kind::Qemu => {
            &["-accel", "tcg", "-cpu", "max", "-nodefaults", "-vga", "std", "-no-reboot"][..]
        }
        Kind::Interpreter => &["run", "--engine", "interpreter", "--no-reboot"],
        Kind::Deterministic => &["run", "--deterministic", "--no-reboot"],
        Kind::Verify => &["run", "--verify", "--no-reboot"],
        Kind::Translator | Kind::Native => &["run", "--engine", "translator", "--no-reboot"],
    });
    let mut option = |name: &str, value: OsString| {
        // QEMU has one dash.
        command.arg(if is_qemu { name[1..].into() } else { OsString::from(name) }).arg(value);
    };
    if configuration.kind == Kind::Deterministic {
        // It is not without, as packets come at any time.
        option("--record", recording.into());
    }
    if is_qemu {
        option("--m", guest.memory.to_string().into());
    } else {
        option("--memory", format!("{}M", guest.memory).into());
    }
    option("--display", "none".into());
    option("--serial", "stdio".into());
    for (name, file) in [("--kernel", &guest.kernel), ("--initrd", &guest.initrd)] {
        if let Some(file) = file {
            option(name, file.into());
        }
    }
    if let Some(text) = &guest.append {
        option("--append", text.into());
    }
    if let Some(disk) = &guest.disk {
        // A comma in a value is written twice.
        let path = disk.display().to_string().replace(',', ",,");
        option("--drive", format!("if=ide,index=0,snapshot=on,file={path}").into());
    }
    let model = match guest.card {
        Card::Virtio if is_qemu => "virtio-net-pci",
        Card::Virtio => "virtio",
        Card::E1000 => "e1000",
        Card::Ne2kPci => "ne2k_pci",
    };
    let forward = format!("hostfwd=tcp:127.0.0.1:{port}-:{}", guest.port);
    option("--nic", format!("user,model={model},{forward}").into());
    command.args(&configuration.options);
    Ok(command)
}

/// Executes `script` on the host, and returns its status. The file `errors` takes its standard error.
pub(super) fn execute_natively(
    plan: &Plan,
    configuration: &Configuration,
    script: &[u8],
    errors: File,
    sink: &mut impl Sink,
) -> Result<u8, RunError> {
    let mut file = tempfile::NamedTempFile::new().map_err(RunError::Store)?;
    file.write_all(script).map_err(RunError::Store)?;
    let (ours, theirs) = UnixStream::pair().map_err(RunError::Start)?;
    let mut command = Command::new("/bin/sh");
    command.arg(file.path()).stdout(OwnedFd::from(theirs)).stderr(errors);
    if let Some(programs) = &configuration.path {
        let programs = fs::canonicalize(programs).map_err(RunError::Start)?;
        let others = env::var_os("PATH").unwrap_or_default();
        let all = std::iter::once(programs).chain(env::split_paths(&others));
        command.env("PATH", env::join_paths(all).unwrap_or(others));
    }
    let mut process = Process::start(&mut command)?;
    // Otherwise the output would not end, as this process could still write some.
    drop(command);
    let most = Duration::from_secs(plan.script_seconds);
    let mut output = Deadline::new(&ours, most);
    let mut buffer = [0; 4096];
    loop {
        match output.read(&mut buffer) {
            Ok(0) => break,
            Ok(bytes) => sink.output(&buffer[..bytes]).map_err(RunError::Store)?,
            Err(error) if error.kind() == io::ErrorKind::TimedOut => {
                return Err(RunError::Late(most.as_secs()));
            }
            Err(error) => return Err(RunError::Start(error)),
        }
    }
    let status = process.0.wait().map_err(RunError::Start)?;
    // A script that a signal has ended has a status above that of all scripts.
    Ok(status.code().map_or(u8::MAX, |code| code as u8))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(kind: Kind, guest: &Guest) -> String {
        let configuration =
            Configuration { name: "it".into(), kind, options: vec!["--more".into()], path: None };
        let command = command(&configuration, guest, 5000, Path::new("r")).unwrap();
        let words = command.get_args().map(|word| word.to_string_lossy().into_owned());
        words.collect::<Vec<_>>().join(" ")
    }

    fn guest() -> Guest {
        Guest {
            name: "it".into(),
            tern: false,
            kernel: None,
            initrd: None,
            append: None,
            disk: None,
            memory: 64,
            card: Card::Virtio,
            port: 1235,
        }
    }

    #[test]
    fn machines_have_their_commands() {
        let disk = Guest { disk: Some("a,b".into()), card: Card::Ne2kPci, ..guest() };
        assert_eq!(
            words(Kind::Verify, &disk),
            "run --verify --no-reboot --memory 64M --display none --serial stdio \
             --drive if=ide,index=0,snapshot=on,file=a,,b \
             --nic user,model=ne2k_pci,hostfwd=tcp:127.0.0.1:5000-:1235 --more"
        );
        assert!(
            words(Kind::Deterministic, &disk).contains("--deterministic --no-reboot --record r")
        );
        let kernel = Guest { kernel: Some("k".into()), append: Some("a b".into()), ..guest() };
        assert_eq!(
            words(Kind::Qemu, &kernel),
            "-accel tcg -cpu max -nodefaults -vga std -no-reboot -m 64 -display none -serial stdio \
             -kernel k -append a b \
             -nic user,model=virtio-net-pci,hostfwd=tcp:127.0.0.1:5000-:1235 --more"
        );
    }

    #[test]
    fn the_last_line_of_a_console_has_words() {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(&[b'x'; 300]).unwrap();
        file.write_all(b"\r\npanic\r\n \r\n").unwrap();
        assert_eq!(last_line(file.path()), "panic");
        file.write_all(b"error: no such option\n\nUsage\n").unwrap();
        assert_eq!(last_line(file.path()), "error: no such option");
        assert_eq!(last_line(Path::new("/none")), "");
    }
}
