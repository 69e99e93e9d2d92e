//! The host's side of channels: clients of Unix sockets, one at a time at each.
//!
//! Nothing is lost on the way. A client that does not read holds up the guest's program at the other end, and only that:
//! bytes wait here up to the channel's window. What the guest sends while no client is there is dropped.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use ring3_core::channel::{ChannelEvent, WINDOW};
use ring3_core::device::DeviceId;
use ring3_core::input::{DeviceInput, Input};
use ring3_host::socket::SocketFile;
use ring3_host::stream;
use ring3_vm::{Sender, Vm};
use rustix::event::Timespec;
use thiserror::Error;
use tracing::debug;

use crate::characters::{CharacterError, Connections, connections};
use crate::qemu::settings::{Address, Character, Place, SocketPlace};
use crate::serial::clients::{has_hung_up, next_connection};

/// Bytes that are read and written at once.
const CHUNK: usize = 16 << 10;
/// How often it is looked whether a client has gone that has sent more than the guest takes.
const AGAIN: Duration = Duration::from_millis(50);

/// The value of `--channel`: the name of a channel, and where its clients are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ChannelTarget {
    pub(crate) name: String,
    pub(crate) place: ChannelPlace,
}

/// Where the clients of a channel are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ChannelPlace {
    /// They connect to a Unix socket with this path.
    Socket(PathBuf),
    /// At the character device with this number ([`crate::characters`]), a socket.
    Character(usize),
}

/// The reason why a `--channel` is refused.
#[derive(Debug, Error, PartialEq, Eq)]
#[error("give NAME=unix:PATH")]
pub(crate) struct BadChannelTarget;

impl FromStr for ChannelTarget {
    type Err = BadChannelTarget;

    fn from_str(text: &str) -> Result<ChannelTarget, BadChannelTarget> {
        let (name, place) = text.split_once('=').ok_or(BadChannelTarget)?;
        let path = place.strip_prefix("unix:").filter(|path| !path.is_empty());
        let place = ChannelPlace::Socket(path.ok_or(BadChannelTarget)?.into());
        Ok(ChannelTarget { name: name.to_owned(), place })
    }
}

/// The reasons why channels cannot be connected.
#[derive(Debug, Error)]
pub(crate) enum ChannelError {
    #[error("the machine has no channel {0}: name one that it was started with")]
    Unknown(String),
    #[error(
        "the clients of channel {0} cannot be there: give a character device that is a socket, or null"
    )]
    NoSocket(String),
    #[error(transparent)]
    Place(#[from] CharacterError),
    #[error("cannot start a thread for a channel: {0}")]
    Thread(#[source] io::Error),
}

/// The host's side of all channels that have one.
#[derive(Debug, Default)]
pub(crate) struct Channels {
    /// By their numbers.
    all: Vec<Option<Arc<Channel>>>,
    /// The sockets' files, which are removed when the run ends.
    sockets: Vec<SocketFile>,
}

impl Channels {
    /// Lets clients in at the places of `targets`, some of them among `characters`, for the channels of `vm`, whose
    /// inputs go to `sender`.
    pub(crate) fn open(
        targets: &[ChannelTarget],
        characters: &[Character],
        vm: &Vm,
        sender: &Sender,
    ) -> Result<Channels, ChannelError> {
        let status = vm.channels();
        let is_known =
            |target: &ChannelTarget| status.iter().any(|known| known.name == target.name);
        if let Some(target) = targets.iter().find(|target| !is_known(target)) {
            return Err(ChannelError::Unknown(target.name.clone()));
        }
        let mut channels = Channels::default();
        for (number, status) in (0..).zip(status) {
            let state = State { credit: WINDOW.saturating_sub(status.waiting), ..State::default() };
            let (sender, state) = (sender.clone(), Mutex::new(state));
            let channel = Channel { number, sender, state, changed: Condvar::new() };
            // The clients of a machine that was saved are not here.
            if status.is_connected {
                channel.tell(ChannelEvent::Closed);
            }
            if status.sent > 0 {
                channel.tell(ChannelEvent::Taken(status.sent));
            }
            let target = targets.iter().find(|target| target.name == status.name);
            let socket = target.map(|target| target.socket(characters)).transpose()?.flatten();
            let Some(socket) = socket else {
                channels.all.push(None);
                continue;
            };
            let Connections { next, file, .. } = connections(&socket)?;
            channels.sockets.extend(file);
            let channel = Arc::new(channel);
            let (reader, writer) = (channel.clone(), channel.clone());
            spawn(move || reader.let_in(next))?;
            spawn(move || writer.write())?;
            channels.all.push(Some(channel));
        }
        Ok(channels)
    }

    /// Takes what the guest's end of channel `number` does.
    pub(crate) fn take(&self, number: u8, event: ChannelEvent) {
        if let Some(Some(channel)) = self.all.get(usize::from(number)) {
            channel.take(event);
        }
    }
}

impl ChannelTarget {
    /// Returns the socket with its clients, unless there are none.
    fn socket(&self, characters: &[Character]) -> Result<Option<SocketPlace>, ChannelError> {
        match &self.place {
            ChannelPlace::Socket(path) => Ok(Some(SocketPlace {
                address: Address::Unix(path.clone()),
                is_server: true,
                telnet: false,
                reconnect: None,
            })),
            ChannelPlace::Character(index) => match characters.get(*index).map(|one| &one.place) {
                Some(Place::Socket(socket)) if !socket.telnet => Ok(Some(socket.clone())),
                Some(Place::Null | Place::Unknown) => Ok(None),
                _ => Err(ChannelError::NoSocket(self.name.clone())),
            },
        }
    }
}

fn spawn(run: impl FnOnce() + Send + 'static) -> Result<(), ChannelError> {
    thread::Builder::new().name("channel".into()).spawn(run).map_err(ChannelError::Thread)?;
    Ok(())
}

/// The host's side of a channel.
#[derive(Debug)]
struct Channel {
    number: u8,
    sender: Sender,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// The client, once the guest's end knows of it.
    client: Option<Arc<File>>,
    /// A client of which it does not yet know. What it has sent before is not for this one.
    newcomer: Option<Arc<File>>,
    /// What the guest has sent, up to the window.
    output: VecDeque<u8>,
    /// How many bytes the guest's end has room for.
    credit: usize,
}

impl Channel {
    /// Locks the state. A thread that panicked has left it consistent.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn tell(&self, event: ChannelEvent) {
        let input = DeviceInput::Channel { channel: self.number, event };
        self.sender.send(Input::Device { device: DeviceId::CHANNELS, input });
    }

    fn take(&self, event: ChannelEvent) {
        let mut state = self.lock();
        match event {
            ChannelEvent::Bytes(bytes) => state.output.extend(bytes),
            ChannelEvent::Taken(count) => {
                state.credit = state.credit.saturating_add(count as usize).min(WINDOW);
            }
            ChannelEvent::Heard => state.client = state.newcomer.take(),
            ChannelEvent::Opened | ChannelEvent::Closed => {}
        }
        self.changed.notify_all();
    }

    /// Writes what the guest sends to its client, if there is one, for as long as the process lasts.
    fn write(&self) {
        loop {
            let mut state = self.lock();
            while state.output.is_empty() {
                state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
            }
            let length = state.output.len().min(CHUNK);
            let bytes: Vec<u8> = state.output.drain(..length).collect();
            let client = state.client.clone();
            drop(state);
            if let Some(client) = client
                && let Err(error) = (&*client).write_all(&bytes)
            {
                debug!("the client of a channel is disconnected: {error}");
                // The thread that reads there learns of it.
                stream::hang_up(&client);
            }
            self.tell(ChannelEvent::Taken(length as u32));
        }
    }

    /// Lets clients in, one after the other.
    fn let_in(&self, mut next: Box<dyn FnMut() -> io::Result<OwnedFd> + Send>) {
        while let Some(connection) = next_connection(&mut next, "a channel") {
            let client = Arc::new(File::from(connection));
            self.lock().newcomer = Some(client.clone());
            self.tell(ChannelEvent::Opened);
            self.read(&client);
            // A client that sends no more may still want to read.
            while !has_hung_up(&client, None) {}
            let mut state = self.lock();
            (state.client, state.newcomer) = (None, None);
            drop(state);
            stream::hang_up(&client);
            self.tell(ChannelEvent::Closed);
        }
    }

    /// Passes the bytes of `client` to the guest until there are no more.
    fn read(&self, mut client: &File) {
        let mut buffer = [0; CHUNK];
        loop {
            let room = self.wait_for_credit(client);
            let length = match client.read(&mut buffer[..room.min(CHUNK)]) {
                Ok(0) => return,
                Ok(length) => length,
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) => {
                    debug!("nothing more can be read from the client of a channel: {error}");
                    return;
                }
            };
            self.lock().credit -= length;
            self.tell(ChannelEvent::Bytes(buffer[..length].to_vec()));
        }
    }

    /// Waits until the guest has room, or `client` has gone. Returns for how many bytes, which are 0 in the latter case.
    fn wait_for_credit(&self, client: &File) -> usize {
        let mut state = self.lock();
        while state.credit == 0 {
            let waited = self.changed.wait_timeout(state, AGAIN);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
            if has_hung_up(client, Some(&Timespec::default())) {
                return 0;
            }
        }
        state.credit
    }
}
