//! Starts v86, an emulator in JavaScript and WebAssembly, under Node.js.

use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::BenchError;
use super::peer::{Kind, MEMORY, Peer, is_installed};

/// The program that starts v86.
const SCRIPT: &str = include_str!("v86.mjs");
/// SeaBIOS, which v86 does not include, in its place in Debian.
const FIRMWARE: [&str; 2] =
    ["/usr/share/seabios/bios.bin", "/usr/share/seabios/vgabios-stdvga.bin"];

/// Returns v86's library, where `npm install --global v86` puts it.
fn library() -> Option<PathBuf> {
    let root = Command::new("npm").args(["root", "--global"]).output().ok()?;
    let root = String::from_utf8(root.stdout).ok()?;
    let library = Path::new(root.trim()).join("v86/build/libv86.mjs");
    library.exists().then_some(library)
}

/// Returns what must be installed first, or None if nothing is missing.
pub(super) fn missing() -> Option<&'static str> {
    if !is_installed("node") || !is_installed("npm") {
        Some("apt-get install nodejs npm")
    } else if library().is_none() {
        Some("npm install --global v86")
    } else if FIRMWARE.iter().any(|file| !Path::new(file).exists()) {
        Some("apt-get install seabios")
    } else {
        None
    }
}

/// Boots `kernel` with `initrd` in a machine of 128 MiB.
pub(super) fn boot(kernel: &Path, initrd: &Path) -> Result<Peer, BenchError> {
    start(&[kernel, initrd, Path::new("console=ttyS0")])
}

/// Boots a machine of 128 MiB from `disc`.
pub(super) fn boot_disc(disc: &Path) -> Result<Peer, BenchError> {
    start(&[disc])
}

fn start(what: &[&Path]) -> Result<Peer, BenchError> {
    let no_library = || BenchError::Start(Kind::V86.name(), io::ErrorKind::NotFound.into());
    let mut command = Command::new("node");
    command.args(["--input-type=module", "--eval", SCRIPT]);
    command.arg(library().ok_or_else(no_library)?);
    command.args(FIRMWARE).arg(MEMORY).args(what);
    Peer::start(Kind::V86, command)
}
