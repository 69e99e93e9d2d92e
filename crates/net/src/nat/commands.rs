//! Commands that guests start by connecting to an address in their network (`guestfwd=…-cmd:COMMAND`).
//!
//! The NAT gives up the right to start anything, so a process beside it starts the commands. This process
//! listens at a Unix socket to which the NAT connects. It knows nothing of the guest except the connection
//! that it passes on, and ends with the NAT.

use std::env;
use std::fs::{self, DirBuilder};
use std::io::{self, ErrorKind};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio, id};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use tracing::warn;

use crate::error::NetError;
use crate::program::Program;

/// Number of names that are tried for a directory.
const NAMES_MAX: u32 = 1000;
/// Upper bound of the commands that run at a time.
const COMMANDS_MAX: usize = 64;

/// The process beside the NAT. It ends when this is dropped.
#[derive(Debug)]
pub(super) struct Commands {
    /// The socket at which it listens.
    pub(super) socket: PathBuf,
    /// A connection whose other end is the standard input of that process; it ends with the NAT.
    _alive: UnixStream,
}

impl Commands {
    /// Starts `program`, which must [serve] `command`.
    pub(super) fn start(program: &Program, command: &str) -> Result<Commands, NetError> {
        let fails = |source| NetError::Program { program: program.path.clone(), source };
        let directory = new_directory().map_err(fails)?;
        let socket = directory.join("socket");
        let listener = UnixListener::bind(&socket).map_err(fails)?;
        let (alive, theirs) = UnixStream::pair().map_err(fails)?;
        program
            .command()
            .arg(command)
            .stdin(OwnedFd::from(listener))
            .stdout(OwnedFd::from(theirs))
            .spawn()
            .map_err(fails)?;
        Ok(Commands { socket, _alive: alive })
    }
}

/// Makes a directory that only this user can read.
fn new_directory() -> io::Result<PathBuf> {
    let mut number = 0;
    loop {
        let directory = env::temp_dir().join(format!("ring3-nat-{}-{number}", id()));
        match DirBuilder::new().mode(0o700).create(&directory) {
            Ok(()) => return Ok(directory),
            // The name is taken by another command, or by a process that had the same number, in a container
            // or before a reset of the host.
            Err(error) if error.kind() == ErrorKind::AlreadyExists && number < NAMES_MAX => {
                number += 1;
            }
            Err(error) => return Err(error),
        }
    }
}

/// Starts `command` for each connection to `listener`, with the connection as its standard input, output and
/// error, until the process at the other end of `alive` has ended. Then removes the directory of the
/// listener's socket, too.
pub fn serve(command: &str, listener: OwnedFd, alive: &OwnedFd) -> io::Result<()> {
    let listener = UnixListener::from(listener);
    let mut running: Vec<Child> = Vec::new();
    loop {
        // poll() always reports a hang-up.
        let mut fds =
            [PollFd::new(&listener, PollFlags::IN), PollFd::new(alive, PollFlags::empty())];
        match poll(&mut fds, None) {
            Ok(_) if !fds[1].revents().is_empty() => break,
            Ok(_) => {}
            Err(Errno::INTR) => continue,
            Err(error) => return Err(error.into()),
        }
        let (connection, _) = listener.accept()?;
        running.retain_mut(|child| matches!(child.try_wait(), Ok(None)));
        if running.len() == COMMANDS_MAX {
            warn!(
                "{COMMANDS_MAX} processes of the command \"{command}\" are running; another connection of the guest is refused"
            );
            continue;
        }
        match start(command, &connection) {
            Ok(child) => running.push(child),
            Err(error) => warn!("the command \"{command}\" cannot be started: {error}"),
        }
    }
    let address = listener.local_addr()?;
    let socket = address.as_pathname().unwrap_or(Path::new(""));
    fs::remove_file(socket)?;
    socket.parent().map_or(Ok(()), fs::remove_dir)
}

fn start(command: &str, connection: &UnixStream) -> io::Result<Child> {
    let end = || connection.as_fd().try_clone_to_owned().map(Stdio::from);
    Command::new("sh").args(["-c", command]).stdin(end()?).stdout(end()?).stderr(end()?).spawn()
}
