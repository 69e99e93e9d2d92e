//! `ring3 dump`: writes the memory and the registers of a running machine into an ELF core, for debuggers.

use std::path::PathBuf;

use clap::Args;
use serde_json::json;

use crate::machine_socket::{self, AskError};

/// The options of `ring3 dump`.
#[derive(Debug, Args)]
pub(crate) struct DumpArguments {
    /// The socket of the machine: that of its --qmp unix:PATH
    #[arg(value_name = "SOCKET")]
    socket: PathBuf,

    /// The file, an ELF core that gdb and crash open
    #[arg(value_name = "FILE")]
    file: PathBuf,

    /// Show memory at the addresses of the code that runs now, as gdb needs it to use a kernel's symbols, and
    /// not at physical addresses. Memory that is not mapped there is in the file, but debuggers do not see it
    #[arg(long)]
    paging: bool,

    /// Write the memory from this physical address on, and no other; with --length
    #[arg(long, value_name = "ADDRESS", value_parser = number, requires = "length")]
    begin: Option<u64>,

    /// The number of bytes to write; with --begin
    #[arg(long, value_name = "BYTES", value_parser = number, requires = "begin")]
    length: Option<u64>,
}

/// Parses a number in decimal, or in hexadecimal after 0x.
fn number(text: &str) -> Result<u64, String> {
    let parsed = match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16),
        None => text.parse(),
    };
    parsed.map_err(|_| "give a number, such as 4096 or 0x1000".to_owned())
}

/// Executes `ring3 dump`.
pub(crate) fn run(arguments: &DumpArguments) -> Result<(), AskError> {
    let DumpArguments { socket, file, paging, begin, length } = arguments;
    let file = machine_socket::absolute(file)?;
    let mut wanted = json!({"paging": paging, "protocol": format!("file:{}", file.display())});
    if let (Some(begin), Some(length)) = (begin, length) {
        wanted["begin"] = json!(begin);
        wanted["length"] = json!(length);
    }
    machine_socket::ask(socket, "dump-guest-memory", &wanted)?;
    Ok(())
}
