//! `ring3`: PC operating systems in ordinary unprivileged processes.
//!
//! The command-line program. It reads the files on its command line, builds a machine of crate `ring3_vm`
//! from them, connects the machine's serial ports with the terminal, files or sockets, and reports how the
//! run ended. `ring3 run --help` lists the options:
//!
//! ```text
//! ring3 run --kernel vmlinuz --initrd initramfs.cpio.gz --append console=ttyS0
//! ```
//!
//! * [`args`]: the command line;
//! * [`mistakes`]: answers to command lines that users of other programs type;
//! * [`limits`]: the host's limits on this process;
//! * [`run`]: `ring3 run`;
//! * [`qemu`]: `ring3 qemu`, which runs a machine from QEMU's command line;
//! * [`doctor`]: `ring3 doctor`;
//! * [`img`]: `ring3 img`;
//! * [`vblock`]: `ring3 vblock`;
//! * [`nat`]: `ring3 nat`; [`starter`]: the process that starts it;
//! * [`switch`]: `ring3 switch`;
//! * [`netmodel`]: `ring3 netmodel`;
//! * [`boot`]: the files that the machine boots;
//! * [`board`]: the devices of its board;
//! * [`drives`]: its drives;
//! * [`nics`]: its network cards;
//! * [`display`]: its screen;
//! * [`data_directories`]: the directories in which firmware is installed;
//! * [`serial`]: the back-ends of its serial ports;
//! * [`characters`]: character back-ends that serial ports and monitors share;
//! * [`debug_console`]: the back-end of the port for the firmware's messages;
//! * [`output`]: files and standard output as targets of bytes from the guest;
//! * [`repetition`]: recordings and event logs;
//! * [`trace`]: what the guest does, as text;
//! * [`replay`]: runs that are repeated from their recordings;
//! * [`diff_log`]: `ring3 diff-log`;
//! * [`rtc`]: the time of its real-time clock;
//! * [`sandbox`]: the rights that a machine's process keeps;
//! * [`secrets`]: passwords by their names;
//! * [`shipped`]: completions and manual pages;
//! * [`snapshot`], [`dump`]: `ring3 snapshot` and `ring3 dump`;
//! * [`inspect`]: `ring3 inspect`;
//! * [`capture`]: `ring3 capture`;
//! * [`console`], [`top`]: `ring3 console` and `ring3 top`;
//! * [`machine_socket`]: commands to machines that run;
//! * [`signals`]: signals that end the program;
//! * [`status`]: the program's exit statuses;
//! * [`log`]: log messages.
//!
//! The escape key and the terminal in raw mode are in crate `ring3_display`, which uses them too.
#![forbid(unsafe_code)]
// The documentation of an option is its help text, in which brackets mark optional parts.
#![allow(rustdoc::broken_intra_doc_links)]

mod args;
mod board;
mod boot;
mod capture;
mod channels;
mod characters;
mod console;
mod data_directories;
mod debug_console;
mod diff_log;
mod display;
mod doctor;
mod drives;
mod dump;
mod histogram;
mod identity;
mod img;
mod incoming;
mod inspect;
mod last;
mod limits;
mod log;
mod machine_socket;
mod mistakes;
mod nat;
mod netmodel;
mod nics;
mod observe;
mod output;
mod perf_map;
mod profile;
mod qemu;
mod repetition;
mod replay;
mod report;
mod rtc;
mod run;
mod sandbox;
mod secrets;
mod serial;
mod shipped;
mod signals;
mod smbios;
mod snapshot;
mod starter;
mod status;
mod supervisor;
mod switch;
mod symbols;
mod top;
mod trace;
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

/// Returns this program with other arguments. Its file may have the name of one of QEMU's programs, so the
/// process gets ring3's own name.
fn own_program(arguments: Vec<OsString>) -> io::Result<Program> {
    Program::running(env!("CARGO_BIN_NAME"), arguments)
}

/// The result of a command line, or work that is still to do.
enum Work {
    Done(ExitCode),
    /// The NAT must be the only thread of the process, since rights are given up thread by thread.
    Nat(Box<NatArguments>),
}

/// Returns the exit status for the result `ended`, after printing an error.
fn status_of(ended: Result<Status, String>) -> ExitCode {
    ended.map_or_else(
        |error| {
            complain(&error);
            Status::HostError.into()
        },
        ExitCode::from,
    )
}

/// Executes the command line.
fn work() -> Work {
    let words: Vec<_> = env::args_os().collect();
    // A name of one of QEMU's programs makes this program behave like it.
    let name = words.first().map(|word| word.to_string_lossy()).unwrap_or_default();
    if qemu::architecture(&name).is_some() {
        let words = words.iter().map(|word| word.to_string_lossy().into_owned());
        return Work::Done(qemu::main(&words.collect::<Vec<_>>()));
    }
    let arguments = mistakes::parse(&words);
    let ended = match arguments.command {
        Command::Run(mut arguments) => {
            arguments.place_files().map_err(|error| error.to_string()).and_then(|()| {
                arguments.choose_tern();
                start(&arguments)
            })
        }
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
        Command::Supervisor(arguments) => log::start(None, None)
            .map_err(|error| error.to_string())
            .and_then(|()| supervisor::run(&arguments).map_err(|error| error.to_string()))
            .map(|()| Status::Ended),
        Command::Ctl(arguments) => supervisor::ctl::run(&arguments)
            .map(|()| Status::Ended)
            .map_err(|error| error.to_string()),
        Command::Console(arguments) => log::start(None, None)
            .map_err(|error| error.to_string())
            .and_then(|()| console::run(&arguments).map_err(|error| error.to_string()))
            .map(|()| Status::Ended),
        Command::Top(arguments) => log::start(None, None)
            .map_err(|error| error.to_string())
            .and_then(|()| top::run(&arguments).map_err(|error| error.to_string()))
            .map(|()| Status::Ended),
        Command::Starter(arguments) => log::start(None, None)
            .map_err(|error| error.to_string())
            .and_then(|()| starter::run(&arguments).map_err(|error| error.to_string()))
            .map(|()| Status::Ended),
        Command::Switch(arguments) => log::start(None, None)
            .map_err(|error| error.to_string())
            .and_then(|()| switch::run(&arguments))
            .map(|()| Status::Ended),
        Command::Snapshot(arguments) => log::start(None, None)
            .map_err(|error| error.to_string())
            .and_then(|()| snapshot::run(&arguments).map_err(|error| error.to_string()))
            .map(|()| Status::Ended),
        Command::Dump(arguments) => {
            dump::run(&arguments).map(|()| Status::Ended).map_err(|error| error.to_string())
        }
        Command::Inspect(arguments) => {
            inspect::run(&arguments).map(|()| Status::Ended).map_err(|error| error.to_string())
        }
        Command::Capture(arguments) => {
            capture::run(&arguments).map(|()| Status::Ended).map_err(|error| error.to_string())
        }
        Command::DiffLog(arguments) => diff_log::run(&arguments).map_err(|error| error.to_string()),
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

/// Runs a machine, if the arguments do not contradict each other.
fn start(arguments: &RunArguments) -> Result<Status, String> {
    arguments.check().and_then(|()| arguments.check_boot()).unwrap_or_else(|error| error.exit());
    run::run(arguments).map_err(|error| error.to_string())
}

fn complain(message: &str) {
    // If this fails too, nobody is left to be told.
    let _ = writeln!(Stderr, "ring3: {message}");
}
