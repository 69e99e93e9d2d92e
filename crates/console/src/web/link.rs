//! The connection of a page with the server of consoles, which is made again when the server has died.

use std::sync::Arc;
use std::time::Duration;

use ring3_supervisor::place::Place;
use serde_json::Value;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::UnixStream;
use tokio::net::unix::OwnedReadHalf;
use tokio::select;
use tokio::sync::Mutex;
use tokio::sync::mpsc::{self, Sender};
use tokio::task::spawn_blocking;
use tokio::time::sleep;

use crate::client::{Message, Understood, find, line, understand};
use crate::error::Error;
use crate::protocol::{Command, MESSAGE_MAX};

/// The pause before the server is looked for again.
const AGAIN: Duration = Duration::from_millis(200);
/// The most commands that wait to be sent.
const COMMANDS: usize = 32;

/// Something that has happened.
#[derive(Debug)]
pub(super) enum Incoming {
    /// There is a new connection, for these commands. They are numbered from 1.
    Connected(Sender<Command>),
    /// The server has said something.
    Message(Message),
    /// There is no connection, for this reason.
    Gone(String),
}

/// Keeps a connection with the server, as long as somebody listens. One page at a time looks for it (`looking`).
pub(super) async fn stay_connected(
    place: Place,
    looking: Arc<Mutex<()>>,
    incoming: Sender<Incoming>,
) {
    loop {
        let Err(error) = talk(&place, &looking, &incoming).await else { return };
        if incoming.send(Incoming::Gone(error.to_string())).await.is_err() {
            return;
        }
        sleep(AGAIN).await;
    }
}

/// Talks with the server until it has gone, or nobody listens any more.
async fn talk(
    place: &Place,
    looking: &Arc<Mutex<()>>,
    incoming: &Sender<Incoming>,
) -> Result<(), Error> {
    let there = place.clone();
    // A supervisor that hangs keeps the thread, and there is no more than this one.
    let turn = Arc::clone(looking).lock_owned().await;
    let found = spawn_blocking(move || {
        let found = find(&there);
        drop(turn);
        found
    });
    let name = found.await.map_err(|_| Error::Ended)??;
    let absent = |source| Error::Absent { name: name.clone(), source };
    let stream = UnixStream::connect(place.part(&name).control()).await.map_err(absent)?;
    let (from, mut to) = stream.into_split();
    let mut from = BufReader::new(from);
    // The greeting.
    read_line(&mut from).await?;
    let (commands, mut to_send) = mpsc::channel(COMMANDS);
    if incoming.send(Incoming::Connected(commands)).await.is_err() {
        return Ok(());
    }
    let write = async {
        let mut number = 0;
        while let Some(command) = to_send.recv().await {
            number += 1;
            to.write_all(line(&command, number).as_bytes()).await.map_err(|_| Error::Ended)?;
        }
        Ok(())
    };
    let read = async {
        loop {
            let message = read_message(&mut from).await?;
            if incoming.send(Incoming::Message(message)).await.is_err() {
                return Ok(());
            }
        }
    };
    select! {
        ended = write => ended,
        ended = read => ended,
    }
}

async fn read_line(from: &mut BufReader<OwnedReadHalf>) -> Result<Value, Error> {
    let mut line = Vec::new();
    let read = from.take(MESSAGE_MAX as u64).read_until(b'\n', &mut line).await;
    if read.is_err() || line.last() != Some(&b'\n') {
        return Err(Error::Ended);
    }
    serde_json::from_slice(&line).map_err(|_| Error::Ended)
}

async fn read_message(from: &mut BufReader<OwnedReadHalf>) -> Result<Message, Error> {
    match understand(read_line(from).await?)? {
        Understood::Whole(message) => Ok(message),
        Understood::OutputFollows { length, lost } => {
            let mut bytes = vec![0; length];
            from.read_exact(&mut bytes).await.map_err(|_| Error::Ended)?;
            Ok(Message::Output { bytes, lost })
        }
    }
}
