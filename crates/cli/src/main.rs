//! `ring3`: PC operating systems in ordinary unprivileged processes.
//!
//! The command-line program. It reads the files that it is given, builds a machine of crate `ring3_vm` from
//! them, connects the machine's serial ports with the terminal, files or sockets, and reports how the run
//! ended. `ring3 run --help` lists the options:
//!
//! ```text
//! ring3 run --kernel vmlinuz --initrd initramfs.cpio.gz --append console=ttyS0
//! ```
//!
//! * [`args`]: the command line;
//! * [`mistakes`]: answers to what users of other programs type;
//! * [`limits`]: the host's limits on this process;
//! * [`run`]: `ring3 run`;
//! * [`qemu`]: `ring3 qemu`, the same from a QEMU command line;
//! * [`doctor`]: `ring3 doctor`;
//! * [`img`]: `ring3 img`;
//! * [`vblock`]: `ring3 vblock`;
//! * [`nat`]: `ring3 nat`;
//! * [`boot`]: what the machine boots;
//! * [`drives`]: its drives;
//! * [`nics`]: its network cards;
//! * [`display`]: its screen;
//! * [`data_directories`]: the directories in which firmware is installed;
//! * [`serial`]: the back-ends of its serial ports;
//! * [`characters`]: the common part of serial ports and monitors;
//! * [`debug_console`]: the back-end of the port for the firmware's messages;
//! * [`output`]: files and standard output as back-ends of either;
//! * [`repetition`]: recordings and event logs;
//! * [`rtc`]: the time that its real-time clock shows;
//! * [`secrets`]: passwords by their names;
//! * [`shipped`]: completions and manual pages;
//! * [`signals`]: signals that end the program;
//! * [`log`]: log messages.
//!
//! The escape key and the terminal in raw mode are in crate `ring3_display`, which shares them.
#![forbid(unsafe_code)]
// The help of an option is its documentation, and brackets in it are what may be left out.
#![allow(rustdoc::broken_intra_doc_links)]

mod args;
mod board;
mod boot;
mod characters;
mod data_directories;
mod debug_console;
mod display;
mod doctor;
mod drives;
mod img;
mod limits;
mod log;
mod mistakes;
mod nat;
mod netmodel;
mod nics;
mod output;
mod qemu;
mod repetition;
mod rtc;
mod run;
mod secrets;
mod serial;
mod shipped;
mod signals;
mod status;
mod switch;
mod vblock;

use std::env;
use std::ffi::OsString;
use std::io::{self, Write};
use std::process::ExitCode;

use ring3_display::tty::{self, Stderr};
use ring3_net::Program;

use args::{Command, RunArguments};
use nat::NatArguments;
use status::Status;

fn main() -> ExitCode {
    tty::restore_before_panic_message();
    let prepared = limits::check()
        .map_err(|error| error.to_string())
        .and_then(|()| limits::let_large_writes_fail().map_err(|error| error.to_string()))
        .and_then(|()| {
            limits::with_stack(work).map_err(|error| format!("cannot start a thread: {error}"))
        });
    let ended = match prepared {
        Ok(Work::Done(status)) => return status,
        Ok(Work::Nat(arguments)) => log::start(None, None)
            .map_err(|error| error.to_string())
            .and_then(|()| nat::run(&arguments)),
        Err(error) => Err(error),
    };
    status_of(ended)
}

/// This program with other arguments. The file may have the name of one of QEMU's programs, so it is called by its own.
fn own_program(arguments: Vec<OsString>) -> io::Result<Program> {
    Program::running(env!("CARGO_BIN_NAME"), arguments)
}

/// What the command line asks for.
enum Work {
    Done(ExitCode),
    /// A process gives up rights thread by thread, so the NAT is its only thread.
    Nat(Box<NatArguments>),
}

/// The status for what has `ended`, after a word about an error.
fn status_of(ended: Result<Status, String>) -> ExitCode {
    ended.map_or_else(
        |error| {
            complain(&error);
            Status::HostError.into()
        },
        ExitCode::from,
    )
}

/// Does what the command line says.
fn work() -> Work {
    let words: Vec<_> = env::args_os().collect();
    // By a name of QEMU's programs it is that program.
    let name = words.first().map(|word| word.to_string_lossy()).unwrap_or_default();
    if qemu::architecture(&name).is_some() {
        let words = words.iter().map(|word| word.to_string_lossy().into_owned());
        return Work::Done(qemu::main(&words.collect::<Vec<_>>()));
    }
    let arguments = mistakes::parse(&words);
    let ended = match arguments.command {
        Command::Run(mut arguments) => arguments
            .place_files()
            .map_err(|error| error.to_string())
            .and_then(|()| start(&arguments)),
        Command::Qemu { arguments } => return Work::Done(qemu::main(&arguments)),
        Command::Doctor(arguments) => doctor::run(&arguments).map_err(|error| error.to_string()),
        Command::Img(arguments) => {
            let ended = log::start(None, None)
                .map_err(|error| error.to_string())
                .and_then(|()| img::run(&arguments));
            return Work::Done(ended.unwrap_or_else(|error| {
                complain(&error);
                arguments.error_status()
            }));
        }
        Command::Vblock(arguments) => log::start(None, None)
            .map_err(|error| error.to_string())
            .and_then(|()| vblock::run(&arguments))
            .map(|()| Status::Ended),
        Command::Nat(arguments) => return Work::Nat(Box::new(arguments)),
        Command::Switch(arguments) => log::start(None, None)
            .map_err(|error| error.to_string())
            .and_then(|()| switch::run(&arguments))
            .map(|()| Status::Ended),
        Command::Completions(arguments) => shipped::completions(&arguments)
            .map(|()| Status::Ended)
            .map_err(|error| error.to_string()),
        Command::Man(arguments) => {
            shipped::man(&arguments).map(|()| Status::Ended).map_err(|error| error.to_string())
        }
        Command::Netmodel(arguments) => {
            netmodel::run(&arguments).map(|()| Status::Ended).map_err(|error| error.to_string())
        }
        Command::Bench(arguments) => log::start(None, None)
            .map_err(|error| error.to_string())
            .and_then(|()| ring3_bench::run(&arguments).map_err(|error| error.to_string()))
            .map(|()| Status::Ended),
    };
    Work::Done(status_of(ended))
}

/// Runs a machine, if the arguments go together.
fn start(arguments: &RunArguments) -> Result<Status, String> {
    arguments.check().and_then(|()| arguments.check_boot()).unwrap_or_else(|error| error.exit());
    run::run(arguments).map_err(|error| error.to_string())
}

fn complain(message: &str) {
    // Nobody is left to be told when this fails too.
    let _ = writeln!(Stderr, "ring3: {message}");
}
