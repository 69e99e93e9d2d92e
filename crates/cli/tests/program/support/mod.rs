//! Helpers for the tests of the program: the program itself, a directory for files, and the smallest of
//! kernels.

pub(crate) mod browser;
pub(crate) mod frames;
pub(crate) mod guest;
pub(crate) mod images;
pub(crate) mod namespace;
pub(crate) mod pty;
pub(crate) mod qmp;
pub(crate) mod screen;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// How long a test waits for a machine. A guest that hangs must not hang the tests, but a busy host may take
/// many times as long as usual.
pub(crate) const PATIENCE: Duration = Duration::from_secs(180);

/// Waits until `ready` returns a value, and returns it. Fails with `complaint` after too long a time.
#[track_caller]
pub(crate) fn wait_until<T>(complaint: &str, ready: impl FnMut() -> Option<T>) -> T {
    wait_up_to(PATIENCE, complaint, ready)
}

/// The same with a patience of its own.
#[track_caller]
pub(crate) fn wait_up_to<T>(
    patience: Duration,
    complaint: &str,
    mut ready: impl FnMut() -> Option<T>,
) -> T {
    let deadline = Instant::now() + patience;
    loop {
        if let Some(found) = ready() {
            return found;
        }
        assert!(Instant::now() < deadline, "{complaint}");
        thread::sleep(Duration::from_millis(5));
    }
}

/// Returns whether a program listens at `socket`, without connecting to it: a debugger that connects would be
/// the first of the machine. The file is there a little earlier.
pub(crate) fn listens(socket: &Path) -> bool {
    // The fourth field holds the flags of the socket, and the last one its path.
    const LISTENS: &str = "00010000";
    let path = socket.to_str().expect("the path is plain");
    let is_this = |line: &str| {
        let fields: Vec<&str> = line.split_ascii_whitespace().collect();
        fields.get(3) == Some(&LISTENS) && fields.get(7) == Some(&path)
    };
    fs::read_to_string("/proc/net/unix").unwrap().lines().any(is_this)
}

/// Returns the program under test, to add arguments.
pub(crate) fn ring3() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ring3"));
    command.env_remove("RING3_LOG");
    command
}

/// Returns the standard output of `command`, which must succeed.
#[track_caller]
pub(crate) fn output(command: &mut Command) -> Vec<u8> {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(output.status.success(), "{command:?}: {output:?}");
    output.stdout
}

/// Returns the program `name`, which Debian may have installed only where root looks for programs.
pub(crate) fn system_program(name: &str) -> Command {
    let path = Path::new("/usr/sbin").join(name);
    Command::new(if path.exists() { path } else { name.into() })
}

/// Returns the contents of `file` in the ext2 file system of the raw image `disk`.
#[track_caller]
pub(crate) fn read_ext2(disk: &Path, file: &str) -> Vec<u8> {
    output(system_program("debugfs").arg("-R").arg(format!("cat {file}")).arg(disk))
}

/// Returns Debian's SeaBIOS. If the host does not have it, this prints a note, and the test passes.
pub(crate) fn seabios() -> Option<PathBuf> {
    let path = PathBuf::from("/usr/share/seabios/bios-256k.bin");
    if path.is_file() {
        return Some(path);
    }
    ring3_skipped::package(format_args!(
        "{} is missing: install the package seabios",
        path.display()
    ));
    None
}

/// An empty directory that is removed at the end of the test.
pub(crate) struct Directory(PathBuf);

impl Directory {
    pub(crate) fn new() -> Directory {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let path =
            Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{}-{number}", std::process::id()));
        std::fs::create_dir_all(&path).expect("the target directory is writable");
        Directory(path)
    }

    /// Returns the path of a file in it, which need not exist.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// Creates a file in it.
    pub(crate) fn file(&self, name: &str, contents: &[u8]) -> PathBuf {
        let path = self.path(name);
        std::fs::write(&path, contents).expect("the target directory is writable");
        path
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        // If this fails, files are left in the target directory.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Returns a bzImage whose protected-mode code is `code`, at 1 MiB, and which asks for 2 MiB of memory
/// (Linux, Documentation/arch/x86/boot.rst, "The Real-Mode Kernel Header").
pub(crate) fn kernel(code: &[u8]) -> Vec<u8> {
    let mut file = vec![0; 1024];
    let paragraphs = code.len().div_ceil(16) as u32;
    let fields: [(usize, &[u8]); 11] = [
        (0x1f1, &[1]),                          // setup_sects
        (0x1f4, &paragraphs.to_le_bytes()),     // syssize
        (0x1fe, &0xaa55u16.to_le_bytes()),      // boot_flag
        (0x200, &[0xeb, 0x6a]),                 // jump over the header
        (0x202, b"HdrS"),                       // header
        (0x206, &0x020fu16.to_le_bytes()),      // version
        (0x211, &[1]),                          // loadflags: LOADED_HIGH
        (0x22c, &0x7fff_ffffu32.to_le_bytes()), // initrd_addr_max
        (0x238, &255u32.to_le_bytes()),         // cmdline_size
        (0x258, &0x10_0000u64.to_le_bytes()),   // pref_address
        (0x260, &0x10_0000u32.to_le_bytes()),   // init_size
    ];
    for (offset, bytes) in fields {
        file[offset..offset + bytes.len()].copy_from_slice(bytes);
    }
    file.extend(code);
    file.resize(1024 + 16 * paragraphs as usize, 0);
    file
}

/// Code that waits forever with interrupts off: CLI; HLT; JMP to the HLT.
pub(crate) const HALT_FOR_EVER: &[u8] = &[0xfa, 0xf4, 0xeb, 0xfd];
