//! Starts Bochs, which has no kernel loader and cannot connect a serial port to standard output. It boots a
//! disc, its serial port is a connection to this program on the loopback interface, and its screen is a
//! terminal that nobody reads.

use std::fs::{self, File};
use std::io::{self, Read};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command};
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::{Mode, OFlags};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};

use super::BenchError;
use super::children::spawn;
use super::peer::{Kind, Peer, is_installed};

const PROGRAM: &str = "bochs";
/// The place of its firmware in Debian.
const BIOS: &str = "/usr/share/bochs/BIOS-bochs-latest";
const VGA_BIOS: &str = "/usr/share/vgabios/vgabios.bin";

/// How long it may take until it connects to its serial port, which it does before its firmware starts.
const TIME_TO_CONNECT: Duration = Duration::from_secs(60);

/// Returns what must be installed first, or None if nothing is missing.
pub(super) fn missing() -> Option<&'static str> {
    let is_there =
        is_installed(PROGRAM) && [BIOS, VGA_BIOS].iter().all(|it| Path::new(it).exists());
    (!is_there).then_some("apt-get install bochs bochs-term bochsbios vgabios")
}

/// Boots a machine of 128 MiB from `disc`, with a hard disk. Its files are in `directory`.
pub(super) fn boot(disc: &Path, disk: &Path, directory: &Path) -> Result<Peer, BenchError> {
    if let Some(how) = missing() {
        return Err(BenchError::NotInstalled(Kind::Bochs.name(), how));
    }
    start(disc, disk, directory).map_err(|error| BenchError::Start(Kind::Bochs.name(), error))
}

fn start(disc: &Path, disk: &Path, directory: &Path) -> io::Result<Peer> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let log = directory.join("bochs.log");
    let configuration = directory.join("bochsrc");
    let text = configuration_text(disc, disk, &log, listener.local_addr()?.port());
    fs::write(&configuration, text)?;
    forget_lock(disk)?;
    let mut command = Command::new(PROGRAM);
    command.arg("-q").arg("-f").arg(configuration);
    if has_debugger()? {
        // The debugger waits for its first command.
        let commands = directory.join("bochs-commands");
        fs::write(&commands, "continue\n")?;
        command.arg("-rc").arg(commands);
    }
    let (mut screen, terminal) = pseudoterminal()?;
    command.env("TERM", "vt100");
    command.stdin(terminal.try_clone()?).stderr(terminal.try_clone()?).stdout(terminal);
    let mut child = spawn(&mut command)?;
    // This closes the other ends of the terminal, so that the reader sees the end of Bochs.
    drop(command);
    thread::spawn(move || {
        let mut buffer = [0; 4096];
        while let Ok(1..) = screen.read(&mut buffer) {}
    });
    match connection(&listener, &mut child) {
        Ok(serial) => Ok(Peer::new(Kind::Bochs.name(), child, serial.try_clone()?, serial)),
        Err(error) => {
            // The process may have ended by itself.
            let _ = child.kill();
            let _ = child.wait();
            let log = fs::read_to_string(log).unwrap_or_default();
            let panic = log.lines().find(|line| line.contains(">>PANIC<<"));
            let reason = panic.unwrap_or("its log does not say why");
            Err(io::Error::new(error.kind(), format!("{error}; {reason}")))
        }
    }
}

/// Removes the lock of `disk`, which an earlier Bochs has left there when it was killed.
fn forget_lock(disk: &Path) -> io::Result<()> {
    let mut lock = disk.as_os_str().to_owned();
    lock.push(".lock");
    match fs::remove_file(lock) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// Returns its configuration (the documentation of Bochs, "bochsrc"). The speaker is left out, since it ends
/// Bochs on hosts without a sound card.
fn configuration_text(disc: &Path, disk: &Path, log: &Path, port: u16) -> String {
    format!(
        "display_library: term
config_interface: textconfig
plugin_ctrl: speaker=0
memory: guest=128, host=128
romimage: file={BIOS}
vgaromimage: file={VGA_BIOS}
ata0: enabled=1, ioaddr1=0x1f0, ioaddr2=0x3f0, irq=14
ata1: enabled=1, ioaddr1=0x170, ioaddr2=0x370, irq=15
ata0-master: type=disk, path=\"{}\", mode=flat
ata1-master: type=cdrom, path=\"{}\", status=inserted
boot: cdrom
cpu: count=1, ips=50000000
clock: sync=none
com1: enabled=1, mode=socket-client, dev=127.0.0.1:{port}
log: {}
panic: action=fatal
error: action=report
info: action=ignore
",
        disk.display(),
        disc.display(),
        log.display(),
    )
}

/// Returns whether it was built with its debugger, as Debian's package is.
fn has_debugger() -> io::Result<bool> {
    let output = Command::new(PROGRAM).arg("--help").output()?;
    let says = |bytes: &[u8]| String::from_utf8_lossy(bytes).contains("-rc ");
    Ok(says(&output.stdout) || says(&output.stderr))
}

/// Opens a pseudoterminal, and returns our end and that of a program.
fn pseudoterminal() -> io::Result<(File, File)> {
    let ours = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC)?;
    grantpt(&ours)?;
    unlockpt(&ours)?;
    let name = ptsname(&ours, Vec::new())?;
    let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC;
    let theirs = rustix::fs::open(name, flags, Mode::empty())?;
    Ok((File::from(ours), File::from(theirs)))
}

/// Waits until Bochs connects or ends.
fn connection(listener: &TcpListener, child: &mut Child) -> io::Result<TcpStream> {
    listener.set_nonblocking(true)?;
    let deadline = Instant::now() + TIME_TO_CONNECT;
    loop {
        match listener.accept() {
            Ok((stream, _)) => {
                stream.set_nonblocking(false)?;
                return Ok(stream);
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
        if let Some(status) = child.try_wait()? {
            return Err(io::Error::other(format!("it ended with {status}")));
        }
        if Instant::now() >= deadline {
            return Err(io::ErrorKind::TimedOut.into());
        }
        thread::sleep(Duration::from_millis(20));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_that_was_left_is_forgotten() {
        let directory = tempfile::tempdir().unwrap();
        let [disk, lock] = ["disk", "disk.lock"].map(|name| directory.path().join(name));
        fs::write(&lock, "").unwrap();
        for _ in 0..2 {
            forget_lock(&disk).unwrap();
            assert!(!lock.exists());
        }
    }
}
