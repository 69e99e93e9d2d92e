//! `ring3 supervisor`: a daemon that starts machines and servers, watches them, and replaces them.

pub(crate) mod ctl;

use std::path::PathBuf;

use clap::Args;
use ring3_supervisor::Options;
use ring3_supervisor::error::Error;
use ring3_supervisor::place::Place;

/// The text that `ring3 supervisor --help` shows below the options.
const HELP: &str = "\
The file is in TOML. Keys of a machine are options of \"ring3 run\" without dashes, beside disk, network, needs,
restart, deadline, start and stop-timeout:

  [server.disks]
  kind = \"vblock\"
  device.root = { file = \"root.qcow2\" }

  [server.lan]
  kind = \"switch\"
  uplink = [\"user\"]

  [machine.web]
  memory = \"512M\"
  kernel = \"vmlinuz\"
  append = \"console=ttyS0 root=/dev/vda\"
  disk = [\"disks:root:rw\"]
  network = [\"lan\"]

  [memory]
  budget = \"4G\"       # for all machines together; each has a balloon

SIGTERM and SIGINT end all machines and servers, and then the supervisor. After SIGHUP they go on, and the next
supervisor takes them over; so it does after a supervisor was killed.

Exit status: 0 after quit or a signal, 1 after an error, 2 if the command line is wrong";

/// The options of `ring3 supervisor`.
#[derive(Debug, Args)]
#[command(after_help = HELP)]
pub(crate) struct SupervisorArguments {
    /// A file with machines and servers. Without it there are those that another supervisor had, and those of
    /// "ring3 ctl launch"
    #[arg(value_name = "FILE")]
    file: Option<PathBuf>,

    #[command(flatten)]
    at: At,
}

/// Where a supervisor is.
#[derive(Debug, Args)]
pub(crate) struct At {
    /// The supervisor's directory, with its sockets and logs; by default ring3 in $XDG_RUNTIME_DIR. Each
    /// directory has one supervisor
    #[arg(long, value_name = "PATH")]
    directory: Option<PathBuf>,
}

impl At {
    pub(crate) fn place(&self) -> Place {
        Place::new(self.directory.as_deref())
    }
}

/// Runs a supervisor until it is told to end.
pub(crate) fn run(arguments: &SupervisorArguments) -> Result<(), Error> {
    let program = std::env::current_exe().map_err(Error::Host)?;
    let configuration = arguments.file.clone();
    ring3_supervisor::run(&Options { place: arguments.at.place(), configuration, program })
}
