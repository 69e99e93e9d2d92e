//! Records which forms of the instruction table a test executes, for `make cpu-coverage`.
//!
//! With `RING3_COVERAGE` set to a folder, each engine adds its counts to a file there with the name of the
//! test: lines with a form and the number of its executions.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs::{self, OpenOptions};
use std::io::Write as _;
use std::path::{Path, PathBuf};

use iced_x86::Code;
use ring3_x86::cpu::Cpu;
use ring3_x86::decode::Op;
use ring3_x86::interpreter::Interpreter;
use ring3_x86::observer::Observer;

/// Makes an interpreter, which counts forms if the environment asks for it.
pub(crate) fn interpreter() -> Interpreter {
    let mut engine = Interpreter::new();
    if let Some(folder) = std::env::var_os("RING3_COVERAGE") {
        let file = Path::new(&folder).join(test_name());
        engine.set_observer(Some(Box::new(Counter { file, counts: BTreeMap::new() })));
    }
    engine
}

/// The name of this test's program, without the hash that cargo adds.
fn test_name() -> String {
    let program = std::env::current_exe().expect("the path of this program");
    let stem = program.file_stem().unwrap_or_default().to_string_lossy().into_owned();
    stem.rsplit_once('-').map_or(stem.clone(), |(name, _)| name.to_owned())
}

/// Counts executed instructions by form.
#[derive(Debug)]
struct Counter {
    file: PathBuf,
    counts: BTreeMap<Code, u64>,
}

impl Observer for Counter {
    fn instruction(&mut self, _: &Cpu, op: &Op) {
        if let Some(form) = op.form.form() {
            *self.counts.entry(form.code).or_default() += 1;
        }
    }
}

impl Drop for Counter {
    fn drop(&mut self) {
        let mut lines = String::new();
        for (code, count) in &self.counts {
            let _ = writeln!(lines, "{code:?} {count}");
        }
        let folder = self.file.parent().unwrap_or(Path::new("."));
        fs::create_dir_all(folder).expect("the folder RING3_COVERAGE");
        let mut file = OpenOptions::new().create(true).append(true).open(&self.file).unwrap();
        // There is only one write, so that tests that end at the same time do not mix their lines.
        file.write_all(lines.as_bytes()).unwrap();
    }
}
