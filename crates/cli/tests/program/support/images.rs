//! A directory with images, and `ring3 img` and qemu-img in it.

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

/// Longer than any step of a command takes.
const PATIENCE: Duration = Duration::from_secs(60);

/// A directory for images.
pub(crate) struct Place(tempfile::TempDir);

impl Place {
    pub(crate) fn new() -> Place {
        Place(tempfile::tempdir().unwrap())
    }

    /// Returns the path of the directory.
    pub(crate) fn directory(&self) -> &Path {
        self.0.path()
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// Returns `program` with the words of `line`, where two quotation marks stand for an empty one.
    fn program(&self, program: &str, line: &str) -> Command {
        let words = line.split(' ').filter(|word| !word.is_empty());
        let mut command = Command::new(program);
        command.args(words.map(|word| if word == "''" { "" } else { word }));
        command.current_dir(self.0.path());
        command
    }

    pub(crate) fn run(&self, program: &str, line: &str) -> Output {
        self.program(program, line).output().unwrap()
    }

    /// Returns `ring3 img` with its output dropped.
    pub(crate) fn command(&self, line: &str) -> Command {
        let mut command = self.program(env!("CARGO_BIN_EXE_ring3"), &format!("img {line}"));
        command.stdout(Stdio::null()).stderr(Stdio::null());
        command
    }

    /// Runs `ring3 img`, which must end with `status`, and returns its output.
    pub(crate) fn img_status(&self, line: &str, status: i32) -> String {
        let output = self.run(env!("CARGO_BIN_EXE_ring3"), &format!("img {line}"));
        let said = format!(
            "{}{}",
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr)
        );
        assert_eq!(output.status.code(), Some(status), "ring3 img {line}: {said}");
        said
    }

    /// Runs `ring3 img`, which must succeed, and returns its output.
    pub(crate) fn img(&self, line: &str) -> String {
        self.img_status(line, 0)
    }

    pub(crate) fn json(&self, line: &str) -> Value {
        serde_json::from_str(&self.img(line)).unwrap()
    }

    /// Runs qemu-img, which must succeed, and returns its output.
    pub(crate) fn qemu(&self, line: &str) -> String {
        let output = self.run("qemu-img", line);
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "qemu-img {line}: {said}");
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    pub(crate) fn write(&self, name: &str, bytes: &[u8]) {
        std::fs::write(self.path(name), bytes).unwrap();
    }

    /// Returns the names of all files.
    pub(crate) fn files(&self) -> Vec<String> {
        let entries = std::fs::read_dir(self.0.path()).unwrap();
        let mut names: Vec<String> =
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    /// Returns the names of hidden files.
    pub(crate) fn hidden(&self) -> Vec<String> {
        self.files().into_iter().filter(|name| name.starts_with('.')).collect()
    }

    /// Waits until `is_so`. Returns false if that does not happen in time.
    pub(crate) fn comes(&self, mut is_so: impl FnMut(&Place) -> bool) -> bool {
        let start = Instant::now();
        while !is_so(self) {
            if start.elapsed() > PATIENCE {
                return false;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        true
    }
}
