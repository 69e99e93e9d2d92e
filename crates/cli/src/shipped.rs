//! `ring3 completions` and `ring3 man`: files of an installation beside the program, made from the definition
//! of the command line.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use clap::{Args, CommandFactory};
use clap_complete::Shell;
use thiserror::Error;

use crate::args::Arguments;

/// The options of `ring3 completions`.
#[derive(Debug, Args)]
pub(crate) struct CompletionsArguments {
    /// The shell that completes ring3's command lines
    shell: Shell,
}

/// The options of `ring3 man`.
#[derive(Debug, Args)]
pub(crate) struct ManArguments {
    /// The directory for the pages, which is created if it does not exist
    #[arg(value_parser = directory)]
    directory: PathBuf,
}

/// Reads a directory. The name of a page is refused: `ring3 man run` is no way to read a page.
fn directory(text: &str) -> Result<PathBuf, String> {
    let is_section = text.parse::<u8>().is_ok();
    if text == "ring3" || is_section || Arguments::command().find_subcommand(text).is_some() {
        return Err(format!(
            "this command writes pages to a directory and shows none: give ./{text} if that is a directory; \"ring3 help\" and \
             \"ring3 help run\" show the same text"
        ));
    }
    Ok(text.into())
}

#[derive(Debug, Error)]
pub(crate) enum ShippedError {
    #[error("the completions cannot be written to standard output: {0}")]
    Output(#[source] io::Error),
    #[error("{path}: the pages cannot be written there: {source}", path = path.display())]
    Directory { path: PathBuf, source: io::Error },
}

/// Writes the script by which `arguments.shell` completes command lines of ring3 to standard output.
pub(crate) fn completions(arguments: &CompletionsArguments) -> Result<(), ShippedError> {
    let mut script = Vec::new();
    clap_complete::generate(arguments.shell, &mut Arguments::command(), "ring3", &mut script);
    match io::Write::write_all(&mut io::stdout(), &script) {
        // A reader that closes standard output does not want the rest.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        written => written.map_err(ShippedError::Output),
    }
}

/// Writes a manual page for ring3 and for each of its commands (ring3.1, ring3-run.1, ...).
pub(crate) fn man(arguments: &ManArguments) -> Result<(), ShippedError> {
    write_pages(&arguments.directory)
        .map_err(|source| ShippedError::Directory { path: arguments.directory.clone(), source })
}

fn write_pages(directory: &Path) -> io::Result<()> {
    fs::create_dir_all(directory)?;
    clap_mangen::generate_to(Arguments::command(), directory)
}
