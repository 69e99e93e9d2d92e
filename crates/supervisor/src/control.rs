//! The socket for commands.

use std::io;
use std::rc::Rc;
use std::sync::Arc;

use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{Semaphore, broadcast};
use tokio::task::spawn_local;
use tokio::time::{Duration, sleep};
use tracing::{debug, warn};

use crate::command::Command;
use crate::error::Refusal;
use crate::supervisor::House;

/// Upper bound of the bytes in a message.
const MESSAGE_MAX: u64 = 1 << 20;
/// The most clients at a time. Others wait.
const CLIENTS: usize = 64;
/// The pause after a connection could not be accepted, for lack of descriptors for example.
const PAUSE: Duration = Duration::from_millis(100);

/// Serves all who connect.
pub(crate) async fn serve(house: Rc<House>, listener: UnixListener) {
    let room = Arc::new(Semaphore::new(CLIENTS));
    loop {
        let Ok(place) = Arc::clone(&room).acquire_owned().await else { return };
        match listener.accept().await {
            Ok((stream, _)) => {
                let house = Rc::clone(&house);
                spawn_local(async move {
                    if let Err(error) = talk(&house, stream).await {
                        debug!("a client has left: {error}");
                    }
                    drop(place);
                });
            }
            Err(error) => {
                warn!("a client cannot connect: {error}");
                sleep(PAUSE).await;
            }
        }
    }
}

async fn talk(house: &Rc<House>, stream: UnixStream) -> io::Result<()> {
    let (from, mut to) = stream.into_split();
    let mut from = BufReader::new(from);
    let version = json!({ "package": concat!("ring3 supervisor ", env!("CARGO_PKG_VERSION")) });
    send(&mut to, &json!({ "QMP": { "version": version, "capabilities": [] } })).await?;
    while let Some(line) = next_line(&mut from, MESSAGE_MAX).await? {
        let message: Value = serde_json::from_slice(&line).unwrap_or_default();
        let id = message.get("id").cloned();
        let (mut answer, events) = answer(house, message).await;
        if let Some(id) = id {
            answer["id"] = id;
        }
        send(&mut to, &answer).await?;
        if let Some(events) = events {
            return pass_on(events, &mut to).await;
        }
    }
    Ok(())
}

/// Returns the next line that is not empty, or as much of it as `most` bytes hold. None if there are no more.
pub(crate) async fn next_line(
    from: &mut BufReader<OwnedReadHalf>,
    most: u64,
) -> io::Result<Option<Vec<u8>>> {
    loop {
        let mut line = Vec::new();
        if from.take(most).read_until(b'\n', &mut line).await? == 0 {
            return Ok(None);
        }
        if !line.trim_ascii().is_empty() {
            return Ok(Some(line));
        }
    }
}

/// Returns the message for the result of a command.
pub(crate) fn result_message(result: Result<Value, Refusal>) -> Value {
    match result {
        Ok(value) => json!({ "return": value }),
        Err(refusal) => {
            json!({ "error": { "class": "GenericError", "desc": refusal.to_string() } })
        }
    }
}

/// Returns the answer to a message, and the events if it asks for them.
async fn answer(
    house: &Rc<House>,
    mut message: Value,
) -> (Value, Option<broadcast::Receiver<String>>) {
    if let Value::Object(fields) = &mut message {
        fields.remove("id");
        fields.entry("arguments").or_insert_with(|| json!({}));
    }
    let command = serde_json::from_value::<Command>(message);
    let events = matches!(command, Ok(Command::Events {})).then(|| house.events());
    let result = match command {
        Ok(command) => house.execute(command).await,
        Err(error) => Err(error.into()),
    };
    (result_message(result), events)
}

async fn send(to: &mut OwnedWriteHalf, message: &Value) -> io::Result<()> {
    to.write_all(format!("{message}\n").as_bytes()).await
}

async fn pass_on(
    mut events: broadcast::Receiver<String>,
    to: &mut OwnedWriteHalf,
) -> io::Result<()> {
    loop {
        match events.recv().await {
            Ok(line) => to.write_all(format!("{line}\n").as_bytes()).await?,
            Err(broadcast::error::RecvError::Lagged(count)) => {
                send(to, &json!({ "event": "LOST", "data": { "count": count } })).await?;
            }
            Err(broadcast::error::RecvError::Closed) => return Ok(()),
        }
    }
}
