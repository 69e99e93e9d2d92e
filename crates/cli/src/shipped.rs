//! `ring3 completions` and `ring3 man`: files that an installation has beside the program, made from the command line itself.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use clap::{Args, CommandFactory};
use clap_complete::Shell;
use thiserror::Error;

use crate::args::Arguments;

/// What `ring3 completions` is told.
#[derive(Debug, Args)]
pub(crate) struct CompletionsArguments {
    /// The shell that is to complete ring3's command lines
    shell: Shell,
}

/// What `ring3 man` is told.
#[derive(Debug, Args)]
pub(crate) struct ManArguments {
    /// The directory for the pages, which is made where it is missing
    #[arg(value_parser = directory)]
    directory: PathBuf,
}

/// A directory. It is not the name of a page: `ring3 man run` is no way to read one.
fn directory(text: &str) -> Result<PathBuf, String> {
    let is_section = text.parse::<u8>().is_ok();
    if text == "ring3" || is_section || Arguments::command().find_subcommand(text).is_some() {
        return Err(format!(
            "pages are written to a directory, and not shown: give ./{text} if it is one; \"ring3 help\" and \"ring3 help run\" \
             tell what is in them"
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

/// Writes to standard output what `arguments.shell` reads to complete command lines of ring3.
pub(crate) fn completions(arguments: &CompletionsArguments) -> Result<(), ShippedError> {
    let mut script = Vec::new();
    clap_complete::generate(arguments.shell, &mut Arguments::command(), "ring3", &mut script);
    match io::Write::write_all(&mut io::stdout(), &script) {
        // Who closes standard output does not want to read it.
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
