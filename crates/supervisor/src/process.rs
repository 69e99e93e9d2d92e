//! A process of a part: started here, or found by its socket after another supervisor had started it.

use std::ffi::OsString;
use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind};
use std::os::fd::OwnedFd;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::net::UnixStream;

/// See the module. It goes on when this is dropped.
#[derive(Debug)]
pub(crate) struct Process {
    pid: Pid,
    /// Becomes readable when the process ends (pidfd_open(2)).
    watched: AsyncFd<OwnedFd>,
    /// None if another supervisor has started it.
    child: Option<Child>,
}

/// The end of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    /// With status 0.
    Success,
    /// With another status.
    Status(i32),
    /// By a signal.
    Signal(i32),
    /// Only its parent, another supervisor, could have learnt how.
    Unknown,
}

impl From<ExitStatus> for End {
    fn from(status: ExitStatus) -> End {
        match (status.code(), status.signal()) {
            (Some(0), _) => End::Success,
            (Some(code), _) => End::Status(code),
            (None, Some(signal)) => End::Signal(signal),
            (None, None) => End::Unknown,
        }
    }
}

impl Process {
    /// Starts `program`, which is called ring3, with `arguments` in `directory`. What it writes is appended to the
    /// file `log`.
    pub(crate) fn start(
        program: &Path,
        arguments: &[OsString],
        directory: Option<&Path>,
        log: &Path,
    ) -> io::Result<Process> {
        let log: File = OpenOptions::new().create(true).append(true).open(log)?;
        let mut command = Command::new(program);
        command.arg0("ring3").args(arguments).stdin(Stdio::null());
        command.stdout(log.try_clone()?).stderr(log);
        if let Some(directory) = directory {
            command.current_dir(directory);
        }
        // A signal from the supervisor's terminal is not for it.
        let child = command.process_group(0).spawn()?;
        let pid = Pid::from_child(&child);
        Ok(Process { pid, watched: watch(pid)?, child: Some(child) })
    }

    /// Finds the process that listens at `socket`, if there is one.
    pub(crate) async fn find(socket: &Path) -> io::Result<Option<Process>> {
        let connection = match UnixStream::connect(socket).await {
            Ok(connection) => connection,
            Err(error)
                if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::ConnectionRefused) =>
            {
                return Ok(None);
            }
            Err(error) => return Err(error),
        };
        // These are the credentials at the time of listen(2).
        let pid = connection.peer_cred()?.pid().and_then(Pid::from_raw);
        let Some(pid) = pid else { return Ok(None) };
        // The socket is closed after the process has ended, and a process that ends keeps its number until then.
        Ok(Some(Process { pid, watched: watch(pid)?, child: None }))
    }

    /// Returns its number.
    pub(crate) fn id(&self) -> i32 {
        self.pid.as_raw_nonzero().get()
    }

    /// Waits until it has ended.
    pub(crate) async fn ended(&mut self) -> End {
        let readable = self.watched.ready(Interest::READABLE).await;
        if readable.is_err() {
            return End::Unknown;
        }
        match self.child.as_mut().map(Child::wait) {
            Some(Ok(status)) => status.into(),
            Some(Err(_)) | None => End::Unknown,
        }
    }

    /// Kills it, and waits until it has ended.
    pub(crate) async fn end_at_once(&mut self) {
        self.signal(Signal::KILL);
        self.ended().await;
    }

    /// Sends it a signal. One that has ended gets none.
    pub(crate) fn signal(&self, signal: Signal) {
        let _ = pidfd_send_signal(self.watched.get_ref(), signal);
    }
}

#[expect(
    deprecated,
    reason = "it is unsound for types that do not own their descriptor; this one does, and the other function is unsafe"
)]
fn watch(pid: Pid) -> io::Result<AsyncFd<OwnedFd>> {
    let process = pidfd_open(pid, PidfdFlags::NONBLOCK)?;
    AsyncFd::with_interest(process, Interest::READABLE)
}
