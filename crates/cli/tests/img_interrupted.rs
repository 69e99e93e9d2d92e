//! `ring3 img` that is ended by signals: what is left of what it was making.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

/// Longer than any step takes.
const PATIENCE: Duration = Duration::from_secs(60);

struct Place(tempfile::TempDir);

impl Place {
    fn new() -> Place {
        Place(tempfile::tempdir().unwrap())
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn img(&self, line: &str) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_ring3"));
        command.arg("img").args(line.split(' ')).current_dir(self.0.path());
        command.stdout(Stdio::null()).stderr(Stdio::null());
        command
    }

    fn does(&self, line: &str) {
        assert!(self.img(line).status().unwrap().success(), "{line}");
    }

    fn files(&self) -> Vec<String> {
        let entries = std::fs::read_dir(self.0.path()).unwrap();
        let mut names: Vec<String> =
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    fn hidden(&self) -> Vec<String> {
        self.files().into_iter().filter(|name| name.starts_with('.')).collect()
    }

    /// Waits until `is_so`; false if that never comes.
    fn comes(&self, mut is_so: impl FnMut(&Place) -> bool) -> bool {
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

/// A source that takes a while to copy: bytes that cannot be compressed.
fn source(path: &Path, len: usize) {
    let mut state = 1_u64;
    let bytes: Vec<u8> = (0..len / 8)
        .flat_map(|_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state.to_le_bytes()
        })
        .collect();
    std::fs::write(path, bytes).unwrap();
}

fn signal(child: &Child, signal: Signal) {
    let pid = Pid::from_raw(child.id().cast_signed()).unwrap();
    kill_process(pid, signal).unwrap();
}

#[test]
fn nothing_hidden_is_left_by_a_signal() {
    use std::os::unix::process::ExitStatusExt;
    for (name, number) in [(Signal::INT, 2), (Signal::TERM, 15), (Signal::HUP, 1)] {
        for line in
            ["convert -c -f raw -O qcow2 source new", "convert -c -f raw -O qcow2 source old"]
        {
            let place = Place::new();
            source(&place.path("source"), 64 << 20);
            std::fs::write(place.path("old"), "old").unwrap();
            let mut child = place.img(line).spawn().unwrap();
            assert!(place.comes(|place| !place.hidden().is_empty()), "nothing was begun");
            signal(&child, name);
            assert_eq!(child.wait().unwrap().signal(), Some(number), "{line}");
            assert_eq!(place.files(), ["old", "source"], "{line}");
            assert_eq!(std::fs::read(place.path("old")).unwrap(), b"old");
        }
    }
}

#[test]
fn a_signal_that_is_ignored_interrupts_nothing() {
    let place = Place::new();
    source(&place.path("source"), 8 << 20);
    let program = env!("CARGO_BIN_EXE_ring3");
    let line = format!("trap '' HUP; exec {program} img convert -c -f raw -O qcow2 source new");
    let mut child =
        Command::new("sh").args(["-c", &line]).current_dir(place.0.path()).spawn().unwrap();
    assert!(place.comes(|place| !place.hidden().is_empty()), "nothing was begun");
    signal(&child, Signal::HUP);
    assert!(child.wait().unwrap().success());
    assert_eq!(place.files(), ["new", "source"]);
}

#[test]
fn what_a_kill_left_goes_with_the_next_command() {
    let place = Place::new();
    source(&place.path("source"), 64 << 20);
    for next in
        ["create -f qcow2 new 1M", "convert -f raw -O raw source new", "resize -f raw new +1M"]
    {
        let mut killed = place.img("convert -c -f raw -O qcow2 source new").spawn().unwrap();
        assert!(place.comes(|place| !place.hidden().is_empty()), "nothing was begun");
        signal(&killed, Signal::KILL);
        killed.wait().unwrap();
        assert_eq!(place.hidden().len(), 1);
        // The file of one that runs stays.
        let mut running = place.img("convert -c -f raw -O qcow2 source new").spawn().unwrap();
        assert!(
            place.comes(|place| place.files().contains(&format!(".new.{}.0.new", running.id())))
        );
        place.does("create -f raw another 1M");
        std::fs::write(place.path("new"), vec![0; 1 << 20]).unwrap();
        place.does(next);
        let left = place.hidden();
        assert!(left.is_empty() || left == [format!(".new.{}.0.new", running.id())], "{left:?}");
        assert!(running.wait().unwrap().success());
        assert_eq!(place.hidden(), Vec::<String>::new());
    }
}
