//! The guests in which the benchmark suite runs, and how each is made ready for it.

use std::env;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use clap::ValueEnum;
use ring3_tern::TERN;

use super::monitor::Monitor;
use super::peer::{Kind, PROMPT, Peer, Processor, is_installed};
use super::suite::{self, Needs};
use super::{BenchError, Settings, bochs};

/// An operating system that has the suite.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Guest {
    Linux,
    /// Linux for 64 bits.
    Amd64,
    Tern,
}

/// The guests that are measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum Guests {
    /// Linux
    Linux,
    /// Linux for 64 bits
    Amd64,
    /// Tern, the system that is part of ring3
    Tern,
    /// Linux and Tern, compared with each other
    Both,
}

/// A Linux that is measured alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum Linux {
    /// Linux
    #[value(name = "linux")]
    Bits32,
    /// Linux for 64 bits
    #[value(name = "amd64")]
    Bits64,
}

impl Linux {
    /// Returns the processor of the machines in which it runs.
    pub(super) fn processor(self) -> Processor {
        match self {
            Linux::Bits32 => Processor::Bits32,
            Linux::Bits64 => Processor::Bits64,
        }
    }

    /// Returns its kernel, an initial RAM disk with busybox, and that busybox for the host.
    pub(super) fn shell(self, settings: &Settings) -> Result<[PathBuf; 3], BenchError> {
        let [kernel, initrd, busybox] = match self {
            Linux::Bits32 => ["linux-686/vmlinuz", "initramfs.cpio.gz", "busybox"],
            Linux::Bits64 => ["linux-amd64/vmlinuz", "initramfs-amd64.cpio.gz", "busybox-amd64"],
        };
        Ok([settings.guest(kernel)?, settings.guest(initrd)?, settings.guest(busybox)?])
    }
}

impl Guests {
    pub(super) fn all(self) -> &'static [Guest] {
        match self {
            Guests::Linux => &[Guest::Linux],
            Guests::Amd64 => &[Guest::Amd64],
            Guests::Tern => &[Guest::Tern],
            Guests::Both => &[Guest::Linux, Guest::Tern],
        }
    }

    /// Returns the processor of the machines in which they run.
    pub(super) fn processor(self) -> Processor {
        self.all()[0].processor()
    }

    /// Returns the name of the suite's program for the host that they are compared with.
    pub(super) fn native_suite(self) -> &'static str {
        match self.processor() {
            Processor::Bits32 => "suite",
            Processor::Bits64 => "suite-amd64",
        }
    }
}

/// The bus by which a guest has its disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Bus {
    Ide,
    Virtio,
}

/// What a machine has besides a guest.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Extras<'a> {
    /// For the kernel's command line.
    pub(super) words: &'a str,
    /// The size of the IDE disk, which is empty.
    pub(super) disk_bytes: usize,
    pub(super) options: &'a [OsString],
}

/// Returns the value of the option for the first disk of a bus.
pub(super) fn first_disk(bus: Bus, path: &Path) -> OsString {
    let mut drive = OsString::from(match bus {
        Bus::Ide => "format=raw,if=ide,index=0,file=",
        Bus::Virtio => "format=raw,if=virtio,file=",
    });
    drive.push(path);
    drive
}

/// The prompt of Tern's shell when it starts, and the command that makes it the one of the other guests. The
/// command itself, which the terminal shows, does not contain that.
const TERN_PROMPT: &str = "/ # ";
const TERN_PREPARATION: &str = "PS1=ring3':~# '";

/// The program of GRUB that makes discs, and the commands of GRUB that boot Tern from one.
const MAKER: &str = "grub-mkrescue";
const TERN_MENU: &str = "multiboot /tern\nmodule /tern.img\nboot\n";

/// Writes Tern's kernel and boot archive to `directory`, unless they are there, and returns the paths.
pub(super) fn tern_files(directory: &Path) -> Result<(PathBuf, PathBuf), BenchError> {
    let tern = TERN.ok_or(BenchError::NoTern)?;
    let (kernel, archive) = (directory.join("tern"), directory.join("tern.img"));
    for (path, bytes) in [(&kernel, tern.kernel), (&archive, tern.archive)] {
        if !path.exists() {
            fs::write(path, bytes).map_err(BenchError::Disk)?;
        }
    }
    Ok((kernel, archive))
}

impl Guest {
    pub(super) fn name(self) -> &'static str {
        match self {
            Guest::Linux => "Linux",
            Guest::Amd64 => "amd64",
            Guest::Tern => "Tern",
        }
    }

    /// Returns the processor of the machines in which it runs.
    pub(super) fn processor(self) -> Processor {
        match self {
            Guest::Linux | Guest::Tern => Processor::Bits32,
            Guest::Amd64 => Processor::Bits64,
        }
    }

    /// Boots it with the disk `disk` by `bus` and the additional `options`, neither of which Bochs knows, and makes it
    /// ready. Temporary files are in `directory`.
    pub(super) fn boot(
        self,
        kind: Kind,
        settings: &Settings,
        bus: Bus,
        disk: &Path,
        options: &[OsString],
        directory: &Path,
    ) -> Result<Peer, BenchError> {
        let peer = if kind == Kind::Bochs {
            bochs::boot(&settings.guest("suite.iso")?, disk, directory)?
        } else {
            let (kernel, initrd) = self.files(settings, directory)?;
            let mut all = vec!["-vga".into(), "std".into(), "-drive".into(), first_disk(bus, disk)];
            all.extend_from_slice(options);
            kind.boot_kernel_with(self.processor(), "console=ttyS0", &kernel, &initrd, &all)?
        };
        self.prepare(bus, peer)
    }

    /// Boots it like [`Guest::boot`], in a machine that has a monitor if it is one of this program.
    pub(super) fn boot_with_monitor(
        self,
        kind: Kind,
        settings: &Settings,
        extras: &Extras<'_>,
        directory: &Path,
    ) -> Result<(Peer, Option<Monitor>), BenchError> {
        let Extras { words, disk_bytes, options } = *extras;
        let name = format!("{}-{kind:?}-{words}", self.name());
        let file = |extension| directory.join(format!("{name}.{extension}"));
        let (disk, socket) = (file("disk"), file("qmp"));
        fs::write(&disk, vec![0; disk_bytes.max(512)]).map_err(BenchError::Disk)?;
        let is_ours = kind != Kind::Qemu;
        let mut all =
            vec!["-vga".into(), "std".into(), "-drive".into(), first_disk(Bus::Ide, &disk)];
        if is_ours {
            let mut target = OsString::from("unix:");
            target.push(&socket);
            target.push(",server=on,wait=off");
            all.extend(["-qmp".into(), target]);
        }
        all.extend_from_slice(options);
        let (kernel, initrd) = self.files(settings, directory)?;
        let words = format!("console=ttyS0 {words}");
        let words = words.trim_end();
        let peer = kind.boot_kernel_with(self.processor(), words, &kernel, &initrd, &all)?;
        let peer = self.prepare(Bus::Ide, peer)?;
        Ok((peer, is_ours.then(|| Monitor::connect(&socket)).transpose()?))
    }

    /// Waits until it has booted, and makes its shell ready.
    fn prepare(self, bus: Bus, mut peer: Peer) -> Result<Peer, BenchError> {
        peer.wait_for(self.prompt())?;
        peer.work(match self {
            Guest::Linux | Guest::Amd64 => suite::preparation(bus),
            Guest::Tern => TERN_PREPARATION,
        })?;
        Ok(peer)
    }

    /// Returns the prompt of its shell when it has booted.
    pub(super) fn prompt(self) -> &'static str {
        match self {
            Guest::Linux | Guest::Amd64 => PROMPT,
            Guest::Tern => TERN_PROMPT,
        }
    }

    /// Starts it with nothing that it does not need. This program starts Tern without being told to.
    pub(super) fn start(
        self,
        kind: Kind,
        settings: &Settings,
        directory: &Path,
    ) -> Result<Peer, BenchError> {
        let engine: &[&str] = match (self, kind) {
            (Guest::Tern, Kind::Translator) => &[],
            (Guest::Tern, Kind::Interpreter) => &["--engine", "interpreter"],
            _ => {
                let (kernel, initrd) = self.files(settings, directory)?;
                let words = "console=ttyS0";
                return kind.boot_kernel_with(self.processor(), words, &kernel, &initrd, &[]);
            }
        };
        let program = env::current_exe().map_err(|error| BenchError::Start("ring3", error))?;
        let mut command = Command::new(program);
        // Standard error has the line that says so.
        command.arg("run").args(engine).stderr(Stdio::null());
        Peer::start(kind, command)
    }

    /// Returns a disc from which a PC boots it by GRUB.
    pub(super) fn disc(self, settings: &Settings, directory: &Path) -> Result<PathBuf, BenchError> {
        if self == Guest::Linux {
            return settings.guest("grub.iso");
        }
        let disc = directory.join("tern.iso");
        if disc.exists() {
            return Ok(disc);
        }
        if !is_installed(MAKER) {
            let how = "apt-get install grub-common grub-pc-bin xorriso";
            return Err(BenchError::NotInstalled(MAKER, how));
        }
        let root = directory.join("root");
        let menu = root.join("boot/grub");
        fs::create_dir_all(&menu).map_err(BenchError::Disk)?;
        tern_files(&root)?;
        fs::write(menu.join("grub.cfg"), TERN_MENU).map_err(BenchError::Disk)?;
        let output = Command::new(MAKER)
            .args(["--directory=/usr/lib/grub/i386-pc", "--output"])
            .args([&disc, &root])
            .output()
            .map_err(BenchError::Disk)?;
        if !output.status.success() {
            let said = String::from_utf8_lossy(&output.stderr);
            return Err(BenchError::Disc(self.name(), said.lines().last().unwrap_or("").into()));
        }
        Ok(disc)
    }

    /// Returns its kernel and its initial RAM disk.
    pub(super) fn files(
        self,
        settings: &Settings,
        directory: &Path,
    ) -> Result<(PathBuf, PathBuf), BenchError> {
        match self {
            Guest::Linux => {
                Ok((settings.guest("linux-686/vmlinuz")?, settings.guest("suite.cpio.gz")?))
            }
            Guest::Amd64 => {
                Ok((settings.guest("linux-amd64/vmlinuz")?, settings.guest("suite-amd64.cpio.gz")?))
            }
            Guest::Tern => tern_files(directory),
        }
    }

    /// Returns the path of what a benchmark needs, or None if there is none.
    pub(super) fn path(self, needs: Needs, bus: Bus) -> Option<&'static str> {
        match (needs, self) {
            (Needs::Nothing | Needs::Server, _) => None,
            (Needs::Disk, _) if bus == Bus::Virtio => Some("/dev/vda"),
            (Needs::Disk, Guest::Linux | Guest::Amd64) => Some("/dev/sda"),
            (Needs::Disk, Guest::Tern) => Some("/dev/hda"),
            (Needs::Screen, Guest::Linux | Guest::Amd64) => Some("/dev/tty1"),
            (Needs::Screen, Guest::Tern) => Some("/dev/console"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_echo_of_a_preparation_is_no_prompt() {
        assert!(!TERN_PREPARATION.contains(PROMPT));
        for bus in [Bus::Ide, Bus::Virtio] {
            assert!(!suite::preparation(bus).contains(PROMPT));
        }
    }

    #[test]
    fn machines_of_64_bits_have_a_suite_for_that() {
        assert_eq!(Guests::Amd64.native_suite(), "suite-amd64");
        assert_eq!(Guests::Both.native_suite(), "suite");
    }

    #[test]
    fn all_guests_have_what_benchmarks_need() {
        for guest in [Guest::Linux, Guest::Amd64, Guest::Tern] {
            assert!(guest.path(Needs::Disk, Bus::Ide) != guest.path(Needs::Screen, Bus::Ide));
            assert_eq!(guest.path(Needs::Nothing, Bus::Ide), None);
        }
    }
}
