//! Starts User Mode Linux: Linux built as a program of the host. It runs only programs of the host's own
//! instruction set, so it uses the host's busybox, which it reaches through its root file system, the host's
//! own.

use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};

use super::BenchError;
use super::peer::{Kind, MEMORY, PROMPT, Peer, is_installed};

/// The place of the kernel and busybox in Debian.
const KERNEL: &str = "linux.uml";
pub(super) const BUSYBOX: &str = "/usr/bin/busybox";

/// Returns what must be installed first, or None if nothing is missing.
pub(super) fn missing() -> Option<&'static str> {
    if is_installed(KERNEL) && Path::new(BUSYBOX).exists() {
        None
    } else {
        Some("apt-get install user-mode-linux busybox-static")
    }
}

/// Boots it with 128 MiB. `directory` holds its files, and its programs in the folder `bin`.
pub(super) fn boot(directory: &Path) -> Result<Peer, BenchError> {
    let init = directory.join("init");
    write_init(&init, &directory.join("bin"))
        .map_err(|error| BenchError::Start(Kind::Uml.name(), error))?;
    let mut command = Command::new(KERNEL);
    command.args(["rootfstype=hostfs", "rootflags=/", "ro", "con=null", "con0=fd:0,fd:1"]);
    command.arg(format!("mem={MEMORY}M")).arg(format!("init={}", init.display()));
    // UML reports there what it finds on the host.
    command.stderr(Stdio::null());
    Peer::start(Kind::Uml, command)
}

/// Writes the script of the first process: a shell on the console, with `bin` as its path and a file system
/// in memory for its files.
fn write_init(init: &Path, bin: &Path) -> io::Result<()> {
    let (bin, prompt) = (bin.display(), PROMPT.replace('~', "\\w"));
    let script = format!(
        "#!{BUSYBOX} sh\n\
         export PATH={bin} HOME=/root PS1='{prompt}'\n\
         mount -t proc proc /proc\n\
         mount -t tmpfs tmpfs /mnt\n\
         cd /root\n\
         exec setsid cttyhack sh\n"
    );
    fs::write(init, script)?;
    fs::set_permissions(init, fs::Permissions::from_mode(0o755))
}
