//! `--perf-map`: the names of translated code, in the file in which `perf report` looks for those of code that a
//! program has made (Linux, tools/perf/Documentation/jit-interface.txt).

use std::fmt::Write as _;
use std::fs::{self, OpenOptions};
use std::io::{self, Write as _};
use std::path::PathBuf;
use std::process;

use clap::Args;
use ring3_vm::Vm;
use ring3_vm::profile::HostCode;
use thiserror::Error;

use crate::symbols::Symbols;

/// The option.
#[derive(Debug, Args)]
#[command(next_help_heading = "What the guest executes")]
pub(crate) struct PerfMapArguments {
    /// When the run ends, write /tmp/perf-PID.map, by which "perf report" names translated code by its address in the
    /// guest
    #[arg(long)]
    pub(crate) perf_map: bool,
}

/// The reasons why translated code has no names.
#[derive(Debug, Error)]
pub(crate) enum PerfMapError {
    /// The host refuses to move the code.
    #[error("cannot show translated code to perf: {0}")]
    Reveal(#[source] io::Error),
    /// The file cannot be written.
    #[error("cannot write the names of translated code to {}: {source}", path.display())]
    Write { path: PathBuf, source: io::Error },
}

/// Names that are written when the run ends.
#[derive(Debug)]
pub(crate) struct Output {
    symbols: Symbols,
}

impl PerfMapArguments {
    /// Prepares `vm`.
    pub(crate) fn begin(
        &self,
        vm: &mut Vm,
        symbols: Symbols,
    ) -> Result<Option<Output>, PerfMapError> {
        if !self.perf_map {
            return Ok(None);
        }
        vm.reveal_code().map_err(PerfMapError::Reveal)?;
        Ok(Some(Output { symbols }))
    }
}

impl Output {
    /// Writes the names.
    pub(crate) fn finish(&self, vm: &Vm) -> Result<(), PerfMapError> {
        let path = path();
        let text = lines(&vm.host_code(), &self.symbols);
        write(&path, &text).map_err(|source| PerfMapError::Write { path, source })
    }
}

/// Returns the path at which perf looks for the file.
pub(crate) fn path() -> PathBuf {
    PathBuf::from(format!("/tmp/perf-{}.map", process::id()))
}

/// Writes a new file. Everybody may create files in this directory, so one that is there is not followed.
fn write(path: &PathBuf, text: &str) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    OpenOptions::new().write(true).create_new(true).open(path)?.write_all(text.as_bytes())
}

/// Returns a line for each block: its address and its length in hexadecimal, and its name.
fn lines(code: &[HostCode], symbols: &Symbols) -> String {
    let mut text = String::new();
    for HostCode { start, len, linear, is_user } in code {
        let symbol = if *is_user { None } else { symbols.find(*linear) };
        let activity = if *is_user { "user" } else { "supervisor" };
        let name = symbol.unwrap_or_else(|| format!("{linear:#010x}"));
        let _ = writeln!(text, "{start:x} {len:x} guest:{activity}:{name}");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_lines() {
        let code = |start, linear, is_user| HostCode { start, len: 32, linear, is_user };
        let code = [
            code(0x1000_0000, 0xc100_0000, false),
            code(0x1000_0020, 0x0804_8000, true),
            code(0x2800_0000, 0xffff_ffff_8100_0000, false),
        ];
        let expected = "10000000 20 guest:supervisor:0xc1000000\n10000020 20 guest:user:0x08048000\n\
            28000000 20 guest:supervisor:0xffffffff81000000\n";
        assert_eq!(lines(&code, &Symbols::default()), expected);
    }

    #[test]
    fn a_link_is_not_followed() {
        let directory = tempfile::tempdir().unwrap();
        let (other, path) = (directory.path().join("other"), directory.path().join("map"));
        fs::write(&other, "kept").unwrap();
        std::os::unix::fs::symlink(&other, &path).unwrap();
        write(&path, "new").unwrap();
        assert_eq!(fs::read_to_string(&other).unwrap(), "kept");
        assert_eq!(fs::read_to_string(&path).unwrap(), "new");
    }
}
