//! Requests and replies (doc/proto.md, "Transmission").
//!
//! Each connection has one thread, which receives requests, and waits with them while the client accepts no
//! replies and so leaves no room. The device's threads execute requests, several at a time and in any order,
//! and [send the replies](super::outbox) themselves if the client accepts them at once. So no client makes
//! another one wait: its part of the shared memory is [limited](super::budget), and a client that accepts
//! nothing while another one waits for memory has to go.
//!
//! A hang-up is noticed at once, whatever the thread waits for. If the client has announced that it
//! disconnects, all its requests are executed. Otherwise requests that have not begun are dropped, and those
//! that have begun end at the next [piece](super::execution).

use std::io::{self, ErrorKind};
use std::os::fd::OwnedFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

use ring3_block::nbd::protocol::Command;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{RecvFlags, recv};

use super::budget::Budget;
use super::execution::{GONE, HEADER_LEN, Header, PAYLOAD_MAX, execute, reply};
use super::handshake::Chosen;
use super::outbox::Outbox;
use super::wrong;
use crate::device::Failed;
use crate::listening::Connection;
use crate::request::cost;

/// How long a client may accept nothing while others wait for memory.
const PATIENCE: Duration = Duration::from_secs(10);
/// How long a client may accept nothing before its further requests wait.
const DEAF: Duration = Duration::from_secs(1);
/// The time between two checks of these limits.
const LOOK: Timespec = Timespec { tv_sec: 1, tv_nsec: 0 };
/// Number of bytes that are read at once, except for the data of large requests.
const BUFFER_LEN: usize = 64 << 10;

/// The part of a request that is received next.
enum Taking {
    /// The header of a request.
    Header,
    /// The memory for a request whose header was received.
    Room(Header),
    /// The data of a request, and the number of bytes of them that were received.
    Data(Header, Vec<u8>, usize),
    /// Nothing more.
    End,
}

/// The buffer for bytes from the client.
struct Input {
    buffer: Box<[u8]>,
    start: usize,
    end: usize,
    /// Whether the last read has emptied the socket.
    is_drained: bool,
}

impl Input {
    fn new() -> Input {
        let buffer = vec![0; BUFFER_LEN].into_boxed_slice();
        Input { buffer, start: 0, end: 0, is_drained: true }
    }

    fn buffered(&self) -> &[u8] {
        &self.buffer[self.start..self.end]
    }

    /// Reads more bytes. Returns their number, 0 at the end of the connection, or None if nothing has come.
    fn fill(&mut self, socket: &Outbox) -> io::Result<Option<usize>> {
        self.buffer.copy_within(self.start..self.end, 0);
        (self.start, self.end) = (0, self.end - self.start);
        let room = BUFFER_LEN - self.end;
        let count = receive(socket, &mut self.buffer[self.end..])?;
        self.is_drained = count.is_none_or(|count| count < room);
        self.end += count.unwrap_or(0);
        Ok(count)
    }
}

/// Reads from the client without waiting. Returns the number of bytes, 0 at the end of the connection, or
/// None if nothing has come.
fn receive(socket: &Outbox, bytes: &mut [u8]) -> io::Result<Option<usize>> {
    loop {
        match recv(socket, &mut *bytes, RecvFlags::DONTWAIT) {
            Ok((count, _)) => return Ok(Some(count)),
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => return Ok(None),
            Err(error) => return Err(error.into()),
        }
    }
}

/// Returns whether the client has hung up.
fn hangs_up(socket: &Outbox) -> bool {
    let hung_up = PollFlags::RDHUP | PollFlags::HUP | PollFlags::ERR;
    let mut fds = [PollFd::new(socket, PollFlags::RDHUP)];
    poll(&mut fds, Some(&Timespec::default())).is_ok() && fds[0].revents().intersects(hung_up)
}

/// Serves a client until it has gone.
pub(super) fn transmit(
    socket: OwnedFd,
    chosen: Chosen,
    budget: &Arc<Budget>,
    connection: &Connection,
) -> io::Result<()> {
    let outbox = Arc::new(Outbox::new(socket, budget)?);
    let mut client = Client {
        chosen: Arc::new(chosen),
        outbox: Arc::clone(&outbox),
        input: Input::new(),
        taking: Taking::Header,
        data_since: Instant::now(),
        has_hung_up: false,
    };
    let mut result = Ok(());
    loop {
        if !matches!(client.taking, Taking::End) {
            match client.take(connection) {
                Ok(()) => {}
                // The client has not announced that it disconnects, so its requests need not be executed.
                Err(error) => {
                    client.abandon();
                    result = Err(error);
                }
            }
        }
        if matches!(client.taking, Taking::End) {
            outbox.end();
            if outbox.account.requests() == 0 {
                return result;
            }
        }
        if let Err(error) = client.wait() {
            client.abandon();
            result = Err(error);
        }
    }
}

/// The state of a connection.
struct Client {
    chosen: Arc<Chosen>,
    outbox: Arc<Outbox>,
    input: Input,
    taking: Taking,
    /// When data of a request last came.
    data_since: Instant,
    /// Whether the client has hung up: it accepts no more replies, and what it has sent before can still be
    /// read.
    has_hung_up: bool,
}

impl Client {
    /// Drops the client's requests, since it has gone or has to go.
    fn abandon(&mut self) {
        // A request of which only a part has come is dropped too.
        if let Taking::Data(header, ..) = std::mem::replace(&mut self.taking, Taking::End) {
            self.outbox.account.give_back(size(header));
        }
        self.outbox.abandon();
    }

    /// Receives requests as far as they have come and there is memory for them.
    fn take(&mut self, connection: &Connection) -> io::Result<()> {
        let outbox = Arc::clone(&self.outbox);
        loop {
            match std::mem::replace(&mut self.taking, Taking::Header) {
                Taking::Header => {
                    let Some(bytes) = self.input.buffered().first_chunk::<HEADER_LEN>() else {
                        match self.input.fill(&outbox)? {
                            None => return Ok(()),
                            Some(0) => return Err(ErrorKind::UnexpectedEof.into()),
                            Some(_) => continue,
                        }
                    };
                    let header = Header::of(bytes).ok_or_else(|| wrong("no request"))?;
                    self.input.start += HEADER_LEN;
                    connection.is_active();
                    match Command::of(header.kind) {
                        Some(Command::Disconnect) => {
                            self.taking = Taking::End;
                            return Ok(());
                        }
                        Some(Command::Write) if header.len > PAYLOAD_MAX => {
                            return Err(wrong("a request that is too long"));
                        }
                        _ => self.taking = Taking::Room(header),
                    }
                }
                // A client that accepts no replies gets no more memory, so that others find some.
                Taking::Room(header) if self.is_deaf() || !outbox.account.take(size(header)) => {
                    self.taking = Taking::Room(header);
                    return Ok(());
                }
                Taking::Room(header) => {
                    let is_write = Command::of(header.kind) == Some(Command::Write);
                    let data = vec![0; if is_write { size(header) } else { 0 }];
                    self.data_since = Instant::now();
                    self.taking = Taking::Data(header, data, 0);
                }
                Taking::Data(header, mut data, come) => {
                    let result = self.take_data(&mut data, come);
                    let come = result.as_ref().copied().unwrap_or(0);
                    if result.is_err() || come < data.len() {
                        self.taking = Taking::Data(header, data, come);
                        return result.map(drop);
                    }
                    self.wait_for_turn(header);
                    self.ask(header, data);
                }
                Taking::End => {
                    self.taking = Taking::End;
                    return Ok(());
                }
            }
            // One more read would only find the socket empty.
            if self.input.buffered().is_empty()
                && self.input.is_drained
                && matches!(self.taking, Taking::Header)
            {
                return Ok(());
            }
        }
    }

    /// Receives data of a request, of which `come` bytes were received before, as far as they have come.
    /// Returns the new number of received bytes.
    fn take_data(&mut self, data: &mut [u8], mut come: usize) -> io::Result<usize> {
        let there = self.input.buffered();
        let now = there.len().min(data.len() - come);
        data[come..come + now].copy_from_slice(&there[..now]);
        self.input.start += now;
        come += now;
        while come < data.len() {
            match receive(&self.outbox, &mut data[come..])? {
                None => break,
                Some(0) => return Err(ErrorKind::UnexpectedEof.into()),
                Some(count) => {
                    come += count;
                    self.data_since = Instant::now();
                }
            }
        }
        Ok(come)
    }

    /// Waits for the client's turn for a request. One that has hung up needs none: little can come from it.
    fn wait_for_turn(&self, header: Header) {
        let has_hung_up = || {
            // Replies go out meanwhile.
            if self.outbox.waits_since().is_some() {
                self.outbox.send();
            }
            hangs_up(&self.outbox)
        };
        if let Some(turn) = self.chosen.export.share.begin(has_hung_up) {
            turn.end(if size(header) > 0 { cost(size(header) as u64) } else { 0 });
        }
    }

    /// Lets a thread of the device execute a request, and send the reply.
    fn ask(&self, header: Header, data: Vec<u8>) {
        let (chosen, outbox) = (Arc::clone(&self.chosen), Arc::clone(&self.outbox));
        self.chosen.export.device.ask(move || {
            // If the client accepts no replies, a request whose only effect is its reply is not worth
            // executing.
            let has_ended = || match Command::of(header.kind) {
                Some(Command::Read | Command::BlockStatus) => outbox.is_gone(),
                _ => outbox.is_abandoned(),
            };
            let act = || {
                if has_ended() { Err(GONE) } else { execute(&chosen, header, &data, &has_ended) }
            };
            // The client gets an answer even if this code panics.
            let result =
                catch_unwind(AssertUnwindSafe(act)).unwrap_or(Err(Failed { errno: libc::EIO }));
            outbox.push(reply(header, result, chosen.structured, size(header)));
        });
    }

    /// Waits until there is something to do.
    fn wait(&mut self) -> io::Result<()> {
        let replies_since = self.outbox.waits_since();
        let waits_since = self.waits_since();
        let mut events = PollFlags::empty();
        events.set(PollFlags::IN, matches!(self.taking, Taking::Header | Taking::Data(..)));
        events.set(PollFlags::OUT, replies_since.is_some());
        events.set(PollFlags::RDHUP, !self.has_hung_up);
        let bell = PollFd::new(&*self.outbox.bell, PollFlags::IN);
        let mut fds = [bell, PollFd::new(&*self.outbox, events)];
        // A hang-up is reported again and again, even if it is not asked for, so the socket must be left out.
        let is_deaf = self.has_hung_up && !events.contains(PollFlags::IN);
        let fds = if is_deaf { &mut fds[..1] } else { &mut fds[..] };
        match poll(fds, waits_since.map(|_| &LOOK)) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        let [bell, others @ ..] = fds else { return Ok(()) };
        if !bell.revents().is_empty() {
            self.outbox.bell.quieten();
        }
        let events = others.first().map_or(PollFlags::empty(), PollFd::revents);
        if events.intersects(PollFlags::RDHUP | PollFlags::HUP | PollFlags::ERR) {
            self.has_hung_up = true;
            self.outbox.close();
        } else if events.contains(PollFlags::OUT) {
            self.outbox.send();
        }
        // If the client has accepted or sent something just now, the time is counted anew.
        let is_stuck = |since: Instant| since.elapsed() >= PATIENCE;
        if self.waits_since().is_some_and(is_stuck)
            && !events.contains(PollFlags::IN)
            && self.outbox.account.is_wanted()
        {
            return Err(io::Error::new(
                ErrorKind::TimedOut,
                "the client neither reads replies nor sends its data",
            ));
        }
        Ok(())
    }

    /// Returns whether the client has not accepted queued replies for a while.
    fn is_deaf(&self) -> bool {
        self.outbox.waits_since().is_some_and(|since| since.elapsed() >= DEAF)
    }

    /// Returns since when the connection waits for its client while it keeps memory from others, or None if
    /// it does not.
    fn waits_since(&self) -> Option<Instant> {
        let data_since = matches!(self.taking, Taking::Data(..)).then_some(self.data_since);
        self.outbox.waits_since().into_iter().chain(data_since).min()
    }
}

/// Returns the number of data bytes of a request or of its reply.
fn size(header: Header) -> usize {
    match Command::of(header.kind) {
        Some(Command::Read | Command::Write) => header.len.min(PAYLOAD_MAX) as usize,
        _ => 0,
    }
}
