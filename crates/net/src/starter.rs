//! A process that starts a program for a machine, again and again (`ring3 starter`).
//!
//! A machine's process gives up its right to start programs before the guest executes anything. But a NAT
//! or a switch that has died is replaced by another. So a second process, which reads nothing of the
//! guest's, waits for the machine to ask for it. Whoever has taken the machine over can ask for this
//! program with these arguments, and for nothing else.
//!
//! A request is a byte, and the standard input of the program as a descriptor, if it has one. Whatever was
//! started before ends first. The answer is empty, or the reason why the program cannot be started, after a
//! byte that says which.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::process::{Child, Stdio};
use std::slice;
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType, recvmsg, sendmsg, socketpair,
};
use tracing::warn;

use crate::error::NetError;
use crate::program::Program;

/// How long the process may take to start the program.
const PATIENCE: Duration = Duration::from_secs(10);
/// Upper bound of an answer, in bytes.
const ANSWER_MAX: usize = 1024;

/// The words of a request and of the answers to it.
const START: &[u8] = b"s";
const STARTED: u8 = b'+';
const FAILED: u8 = b'-';

/// The machine's end.
#[derive(Debug)]
pub(crate) struct Starter {
    program: Program,
    socket: OwnedFd,
    process: Child,
}

impl Starter {
    /// Starts the process. `program` is the one that [serves](serve) what it starts.
    pub(crate) fn new(program: Program) -> Result<Starter, NetError> {
        let fails = |error: Errno| NetError::Program {
            program: program.path.clone(),
            source: error.into(),
        };
        let (ours, theirs) = pair().map_err(fails)?;
        set_socket_timeout(&ours, Timeout::Recv, Some(PATIENCE)).map_err(fails)?;
        let process = program.spawn(Stdio::from(theirs))?;
        Ok(Starter { program, socket: ours, process })
    }

    /// Starts the program with this standard input, or none.
    pub(crate) fn start(&self, stdin: Option<&OwnedFd>) -> Result<(), NetError> {
        self.ask(stdin)
            .map_err(|source| NetError::Program { program: self.program.path.clone(), source })
    }

    fn ask(&self, stdin: Option<&OwnedFd>) -> io::Result<()> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        let stdin = stdin.map(AsFd::as_fd);
        if let Some(stdin) = &stdin {
            control.push(SendAncillaryMessage::ScmRights(slice::from_ref(stdin)));
        }
        sendmsg(&self.socket, &[IoSlice::new(START)], &mut control, SendFlags::NOSIGNAL)?;
        let mut answer = [0; ANSWER_MAX];
        let (len, _) = rustix::io::retry_on_intr(|| {
            rustix::net::recv(&self.socket, &mut answer[..], RecvFlags::empty())
        })?;
        match answer.get(..len).and_then(<[u8]>::split_first) {
            Some((&STARTED, [])) => Ok(()),
            Some((&FAILED, reason)) => {
                Err(io::Error::other(String::from_utf8_lossy(reason).into_owned()))
            }
            _ => Err(io::Error::other("the process that starts it has ended")),
        }
    }
}

impl Drop for Starter {
    fn drop(&mut self) {
        // It ends when nobody can ask it any more, and what it has started ends before.
        let _ = rustix::net::shutdown(&self.socket, rustix::net::Shutdown::Both);
        if let Err(error) = self.process.wait() {
            warn!("cannot wait for the process that starts programs: {error}");
        }
    }
}

/// Makes two ends of a socket whose messages have boundaries.
fn pair() -> rustix::io::Result<(OwnedFd, OwnedFd)> {
    socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
}

/// Starts `program` whenever the machine at the other end of `socket` asks for it, until that has ended. A
/// program that `outlives` the machine is left alone then, and when another is started.
pub fn serve(program: &Program, outlives: bool, socket: &OwnedFd) -> io::Result<()> {
    let mut running = Running { child: None, outlives };
    while let Some(Request { stdin }) = next(socket)? {
        running.end();
        let answer = match program.spawn(stdin.map_or_else(Stdio::null, Stdio::from)) {
            Ok(child) => {
                running.child = Some(child);
                vec![STARTED]
            }
            Err(error) => {
                let reason = match error {
                    NetError::Program { source, .. } => source.to_string(),
                    error => error.to_string(),
                };
                let mut answer = vec![FAILED];
                answer.extend(reason.bytes().take(ANSWER_MAX - 1));
                answer
            }
        };
        match rustix::net::send(socket, &answer, SendFlags::NOSIGNAL) {
            Ok(_) => {}
            // The machine has ended.
            Err(Errno::PIPE) => break,
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

/// A request.
struct Request {
    /// The standard input of the program; None for an empty one.
    stdin: Option<OwnedFd>,
}

/// Waits for a request. Returns None if there will be no more.
fn next(socket: &OwnedFd) -> io::Result<Option<Request>> {
    let mut request = [0; START.len()];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let received = rustix::io::retry_on_intr(|| {
        recvmsg(socket, &mut [IoSliceMut::new(&mut request)], &mut control, RecvFlags::CMSG_CLOEXEC)
    })?;
    if received.bytes == 0 {
        return Ok(None);
    }
    let mut stdin = None;
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = message {
            stdin = rights.last().or(stdin);
        }
    }
    Ok(Some(Request { stdin }))
}

/// What was started last.
struct Running {
    child: Option<Child>,
    outlives: bool,
}

impl Running {
    /// Ends it, unless it outlives the machine.
    fn end(&mut self) {
        let Some(mut child) = self.child.take() else { return };
        let ended = if self.outlives {
            // One that has ended already is reaped.
            child.try_wait().map(drop)
        } else {
            child.kill().and_then(|()| child.wait()).map(drop)
        };
        if let Err(error) = ended {
            warn!("a program that was started cannot be ended: {error}");
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.end();
    }
}
