//! A conversation of questions and answers by QMP: with a machine, and with the supervisor.

use std::io::{self, ErrorKind};
use std::path::Path;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::time::timeout;

use crate::protocol::MESSAGE_MAX;

/// How long an answer may take.
const PATIENCE: Duration = Duration::from_secs(10);

/// See the module. A question that is given up in the middle makes it useless.
#[derive(Debug)]
pub(crate) struct Monitor {
    from: BufReader<OwnedReadHalf>,
    to: OwnedWriteHalf,
    line: Vec<u8>,
    last: u64,
}

impl Monitor {
    /// Connects to `socket`, and waits for the first answer.
    pub(crate) async fn open(socket: &Path) -> io::Result<Monitor> {
        let (from, to) = UnixStream::connect(socket).await?.into_split();
        let mut monitor = Monitor { from: BufReader::new(from), to, line: Vec::new(), last: 0 };
        monitor.ask("qmp_capabilities", &json!({})).await?;
        Ok(monitor)
    }

    /// Asks the other end to execute a command, and returns its answer.
    pub(crate) async fn ask(&mut self, command: &str, arguments: &Value) -> io::Result<Value> {
        let answer = timeout(PATIENCE, self.ask_at_leisure(command, arguments)).await;
        answer.unwrap_or_else(|_| Err(ErrorKind::TimedOut.into()))
    }

    async fn ask_at_leisure(&mut self, command: &str, arguments: &Value) -> io::Result<Value> {
        self.last += 1;
        let question = json!({ "execute": command, "arguments": arguments, "id": self.last });
        self.to.write_all(format!("{question}\n").as_bytes()).await?;
        loop {
            let mut message = self.message().await?;
            if message["id"] == self.last {
                return match message["error"]["desc"].as_str() {
                    Some(reason) => Err(io::Error::other(reason.to_owned())),
                    None => Ok(message["return"].take()),
                };
            }
        }
    }

    /// Returns the next message. This may be given up, and begun again.
    pub(crate) async fn message(&mut self) -> io::Result<Value> {
        let room = (MESSAGE_MAX - self.line.len()) as u64;
        (&mut self.from).take(room).read_until(b'\n', &mut self.line).await?;
        if self.line.last() != Some(&b'\n') {
            return Err(ErrorKind::UnexpectedEof.into());
        }
        let message = serde_json::from_slice(&self.line);
        self.line.clear();
        Ok(message?)
    }
}
