//! `ring3`: PC operating systems in ordinary unprivileged processes.
//!
//! The command-line program. It reads the files that it is given, builds a
//! machine of crate `ring3_vm` from them, connects the machine's serial port with the terminal
//! or a file, and says how the run ended. `ring3 run --help` has the options:
//!
//! ```text
//! ring3 run --kernel vmlinuz --initrd initramfs.cpio.gz --append console=ttyS0
//! ```
//!
//! * [`args`]: the command line;
//! * [`run`]: `ring3 run`;
//! * [`bench`]: `ring3 bench`;
//! * [`drives`]: its drives;
//! * [`display`]: its screen;
//! * [`serial`]: what is behind the serial port;
//! * [`debug_console`]: what is behind the port for messages of the firmware.
//!
//! The escape key and the terminal in raw mode are in crate `ring3_display`, which shares them.
#![forbid(unsafe_code)]

mod args;
mod bench;
mod debug_console;
mod display;
mod drives;
mod run;
mod serial;

use std::io::Write;
use std::process::ExitCode;

use clap::Parser;
use ring3_display::tty::{self, Stderr};
use tracing::level_filters::LevelFilter;
use tracing_subscriber::EnvFilter;

use args::{Arguments, Command};

/// Which log messages go to standard error, as in `RING3_LOG=info` or
/// `RING3_LOG=warn,ring3_devices=debug`.
const LOG_VARIABLE: &str = "RING3_LOG";

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    log_to_stderr();
    tty::restore_before_panic_message();
    let ended = match arguments.command {
        Command::Run(arguments) => {
            arguments.check().unwrap_or_else(|error| error.exit());
            run::run(&arguments).map_err(|error| error.to_string())
        }
        Command::Bench(arguments) => bench::run(&arguments).map_err(|error| error.to_string()),
    };
    match ended {
        Ok(status) => status.into(),
        Err(error) => {
            // Nobody is left to be told when this fails too.
            let _ = writeln!(Stderr, "ring3: {error}");
            run::Status::HostError.into()
        }
    }
}

fn log_to_stderr() {
    let filter = EnvFilter::builder()
        .with_default_directive(LevelFilter::WARN.into())
        .with_env_var(LOG_VARIABLE)
        .from_env_lossy();
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_ansi(tty::stderr_is_terminal())
        .with_writer(|| Stderr)
        .init();
}
