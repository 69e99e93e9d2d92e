//! The conversation with the process of a part. Machines and most servers speak QMP; the server of a page tells its
//! state to whoever connects.

use std::io;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::mpsc::{self, UnboundedReceiver, UnboundedSender};
use tokio::task::spawn_local;

use crate::definition::{Definition, Server};

/// Upper bound of the bytes in a message. A process that sends more is cut off.
const MESSAGE_MAX: u64 = 4 << 20;

/// A message from the process.
#[derive(Debug)]
pub(crate) enum Said {
    /// The answer to the question with this number: a value, or the reason why there is none.
    Answer(u64, Result<Value, String>),
    /// Something has happened in a machine.
    Event(Value),
    /// The connection has ended.
    Closed,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Link {
    end: End,
    last: u64,
    says: UnboundedReceiver<Said>,
}

#[derive(Debug)]
enum End {
    /// Lines go to a task that writes them, which may have to wait.
    Qmp(UnboundedSender<String>),
    /// Each question is a connection.
    Status { socket: PathBuf, says: UnboundedSender<Said> },
}

impl Link {
    /// Connects to the process of a part with this definition, which listens at `socket`. Returns once it has
    /// answered.
    pub(crate) async fn open(definition: &Definition, socket: &Path) -> io::Result<Link> {
        let (to_us, says) = mpsc::unbounded_channel();
        if matches!(definition, Definition::Server(Server::Web(_))) {
            read_status(socket).await?;
            let end = End::Status { socket: socket.to_owned(), says: to_us };
            return Ok(Link { end, last: 0, says });
        }
        let (from, to) = UnixStream::connect(socket).await?.into_split();
        let (lines, to_write) = mpsc::unbounded_channel();
        spawn_local(write(to, to_write));
        spawn_local(read(BufReader::new(from), to_us));
        let mut link = Link { end: End::Qmp(lines), last: 0, says };
        let number = link.ask("qmp_capabilities", &json!({}));
        loop {
            match link.said().await {
                Said::Answer(answered, _) if answered == number => return Ok(link),
                Said::Closed => return Err(io::ErrorKind::UnexpectedEof.into()),
                Said::Answer(..) | Said::Event(_) => {}
            }
        }
    }

    /// Asks the process to execute a command. Returns the number of the question.
    pub(crate) fn ask(&mut self, command: &str, arguments: &Value) -> u64 {
        self.last += 1;
        match &self.end {
            End::Qmp(lines) => {
                let question =
                    json!({ "execute": command, "arguments": arguments, "id": self.last });
                // If the connection has ended, this is said.
                let _ = lines.send(format!("{question}\n"));
            }
            End::Status { socket, says } => {
                let (socket, says, number) = (socket.clone(), says.clone(), self.last);
                spawn_local(async move {
                    let answer = read_status(&socket).await.map_err(|error| error.to_string());
                    let _ = says.send(Said::Answer(number, answer));
                });
            }
        }
        self.last
    }

    /// Asks whether the process answers. Returns the number of the question.
    pub(crate) fn ping(&mut self, definition: &Definition) -> u64 {
        let command = match definition {
            Definition::Machine(_) => "query-status",
            Definition::Server(_) => "qmp_capabilities",
        };
        self.ask(command, &json!({}))
    }

    /// Returns the next message.
    pub(crate) async fn said(&mut self) -> Said {
        self.says.recv().await.unwrap_or(Said::Closed)
    }
}

async fn write(mut to: OwnedWriteHalf, mut lines: UnboundedReceiver<String>) {
    while let Some(line) = lines.recv().await {
        if to.write_all(line.as_bytes()).await.is_err() {
            return;
        }
    }
}

async fn read(mut from: BufReader<OwnedReadHalf>, says: UnboundedSender<Said>) {
    let mut line = Vec::new();
    loop {
        line.clear();
        let length = (&mut from).take(MESSAGE_MAX).read_until(b'\n', &mut line).await;
        if !matches!(length, Ok(1..)) || line.last() != Some(&b'\n') {
            break;
        }
        let Ok(mut message) = serde_json::from_slice::<Value>(&line) else { break };
        let said = if message.get("event").is_some() {
            Said::Event(message)
        } else if let Some(number) = message.get("id").and_then(Value::as_u64) {
            let answer = match message["error"]["desc"].as_str() {
                Some(reason) => Err(reason.to_owned()),
                None => Ok(message["return"].take()),
            };
            Said::Answer(number, answer)
        } else {
            // The greeting.
            continue;
        };
        if says.send(said).is_err() {
            return;
        }
    }
    let _ = says.send(Said::Closed);
}

async fn read_status(socket: &Path) -> io::Result<Value> {
    let mut bytes = Vec::new();
    let connection = UnixStream::connect(socket).await?;
    connection.take(MESSAGE_MAX).read_to_end(&mut bytes).await?;
    Ok(serde_json::from_slice(&bytes)?)
}
