//! The guests in which the benchmark suite runs, and how each is made ready for it.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};

use clap::ValueEnum;
use ring3_tern::TERN;

use super::peer::{Kind, PROMPT, Peer};
use super::suite::{self, Needs};
use super::{BenchError, Settings, bochs};

/// An operating system that has the suite.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Guest {
    Linux,
    Tern,
}

/// The guests that are measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum Guests {
    /// Linux
    Linux,
    /// Tern, the system that is part of ring3
    Tern,
    /// Both, compared with each other
    Both,
}

impl Guests {
    pub(super) fn all(self) -> &'static [Guest] {
        match self {
            Guests::Linux => &[Guest::Linux],
            Guests::Tern => &[Guest::Tern],
            Guests::Both => &[Guest::Linux, Guest::Tern],
        }
    }
}

/// The prompt of Tern's shell when it starts, and the command that makes it the one of the other guests. The
/// command itself, which the terminal shows, does not contain that.
const TERN_PROMPT: &str = "/ # ";
const TERN_PREPARATION: &str = "PS1=ring3':~# '";

impl Guest {
    pub(super) fn name(self) -> &'static str {
        match self {
            Guest::Linux => "Linux",
            Guest::Tern => "Tern",
        }
    }

    /// Boots it with the IDE disk `disk` and the additional `options`, which Bochs does not know, and makes it
    /// ready. Temporary files are in `directory`.
    pub(super) fn boot(
        self,
        kind: Kind,
        settings: &Settings,
        disk: &Path,
        options: &[OsString],
        directory: &Path,
    ) -> Result<Peer, BenchError> {
        let mut peer = if kind == Kind::Bochs {
            bochs::boot(&settings.guest("suite.iso")?, disk, directory)?
        } else {
            let (kernel, initrd) = self.files(settings, directory)?;
            let mut drive = OsString::from("format=raw,if=ide,index=0,file=");
            drive.push(disk);
            let mut all = vec!["-vga".into(), "std".into(), "-drive".into(), drive];
            all.extend_from_slice(options);
            kind.boot_kernel(&kernel, &initrd, &all)?
        };
        let (prompt, preparation) = match self {
            Guest::Linux => (PROMPT, suite::PREPARATION),
            Guest::Tern => (TERN_PROMPT, TERN_PREPARATION),
        };
        peer.wait_for(prompt)?;
        peer.work(preparation)?;
        Ok(peer)
    }

    /// Returns its kernel and its initial RAM disk.
    fn files(
        self,
        settings: &Settings,
        directory: &Path,
    ) -> Result<(PathBuf, PathBuf), BenchError> {
        if self == Guest::Linux {
            return Ok((settings.guest("linux-686/vmlinuz")?, settings.guest("suite.cpio.gz")?));
        }
        let tern = TERN.ok_or(BenchError::NoTern)?;
        let (kernel, archive) = (directory.join("tern"), directory.join("tern.img"));
        for (path, bytes) in [(&kernel, tern.kernel), (&archive, tern.archive)] {
            if !path.exists() {
                fs::write(path, bytes).map_err(BenchError::Disk)?;
            }
        }
        Ok((kernel, archive))
    }

    /// Returns the path of what a benchmark needs, or None if there is none.
    pub(super) fn path(self, needs: Needs) -> Option<&'static str> {
        match (needs, self) {
            (Needs::Nothing | Needs::Server, _) => None,
            (Needs::Disk, Guest::Linux) => Some("/dev/sda"),
            (Needs::Disk, Guest::Tern) => Some("/dev/hda"),
            (Needs::Screen, Guest::Linux) => Some("/dev/tty1"),
            (Needs::Screen, Guest::Tern) => Some("/dev/console"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_echo_of_a_preparation_is_no_prompt() {
        assert!(!TERN_PREPARATION.contains(PROMPT) && !suite::PREPARATION.contains(PROMPT));
    }

    #[test]
    fn both_guests_have_what_benchmarks_need() {
        for guest in Guests::Both.all() {
            assert!(guest.path(Needs::Disk) != guest.path(Needs::Screen));
            assert_eq!(guest.path(Needs::Nothing), None);
        }
    }
}
