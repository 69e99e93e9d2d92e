//! A client's end of a connection with the server of consoles.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;

use ring3_supervisor::client::Client as Supervisor;
use ring3_supervisor::command::{Command as Order, State, Status};
use ring3_supervisor::definition::{Console, Definition, Name, Server};
use ring3_supervisor::place::Place;
use serde_json::{Value, json};

use crate::error::Error;
use crate::protocol::{Command, MESSAGE_MAX, OUTPUT_MAX};

/// The name of a server that is defined because there is none.
const USUAL: &str = "console";

/// Returns the name of the server of consoles at `place`. Defines one if there is none, and starts it if it does not run.
pub fn find(place: &Place) -> Result<Name, Error> {
    let mut supervisor = Supervisor::connect(place)?;
    let parts = supervisor.execute(&Order::Query { name: None })?;
    let parts: Vec<Status> = serde_json::from_value(parts).unwrap_or_default();
    let usual: Name = USUAL.parse().map_err(ring3_supervisor::error::Error::Definition)?;
    match parts.iter().find(|part| part.kind == "console") {
        Some(part) if part.state == State::Ended => {
            supervisor.execute(&Order::Start { name: part.name.clone() })?;
            Ok(part.name.clone())
        }
        Some(part) => Ok(part.name.clone()),
        None if parts.iter().any(|part| part.name == usual) => Err(Error::NameTaken(usual)),
        None => {
            let definition = Definition::Server(Server::Console(Console::default()));
            supervisor.execute(&Order::Launch {
                name: usual.clone(),
                definition: Box::new(definition),
            })?;
            Ok(usual)
        }
    }
}

/// A message of the server.
#[derive(Debug, Clone, PartialEq)]
pub enum Message {
    /// The answer to the command with this number: a value, or the reason why there is none.
    Answer(u64, Result<Value, String>),
    /// The console that the client sees has said this, after bytes that are lost.
    Output {
        /// The bytes.
        bytes: Vec<u8>,
        /// How many are lost.
        lost: u64,
    },
    /// Another event: its name and its data.
    Event(String, Value),
}

/// The end of a connection that sends commands.
#[derive(Debug)]
pub struct Sender {
    stream: UnixStream,
    last: u64,
}

/// The end of a connection that receives messages.
#[derive(Debug)]
pub struct Receiver {
    stream: BufReader<UnixStream>,
}

/// Connects to the server `name`. One that `watches` can never type.
pub fn connect(place: &Place, name: &Name, watches: bool) -> Result<(Sender, Receiver), Error> {
    let own = place.part(name);
    let socket = if watches { own.watch() } else { own.control() };
    let absent = |source| Error::Absent { name: name.clone(), source };
    let stream = UnixStream::connect(socket).map_err(absent)?;
    let mut receiver = Receiver { stream: BufReader::new(stream.try_clone().map_err(absent)?) };
    // The greeting.
    receiver.line()?;
    Ok((Sender { stream, last: 0 }, receiver))
}

impl Sender {
    /// Sends a command. Returns its number.
    pub fn send(&mut self, command: &Command) -> Result<u64, Error> {
        self.last += 1;
        let line = line(command, self.last);
        self.stream.write_all(line.as_bytes()).map_err(|_| Error::Ended)?;
        Ok(self.last)
    }
}

/// Returns the line by which a command with this number is sent.
pub(crate) fn line(command: &Command, number: u64) -> String {
    let mut message = json!(command);
    message["id"] = json!(number);
    format!("{message}\n")
}

impl Receiver {
    fn line(&mut self) -> Result<Value, Error> {
        let mut line = Vec::new();
        let read = (&mut self.stream).take(MESSAGE_MAX as u64).read_until(b'\n', &mut line);
        if !matches!(read, Ok(1..)) || line.last() != Some(&b'\n') {
            return Err(Error::Ended);
        }
        serde_json::from_slice(&line).map_err(|_| Error::Ended)
    }

    /// Waits for the next message.
    pub fn message(&mut self) -> Result<Message, Error> {
        match understand(self.line()?)? {
            Understood::Whole(message) => Ok(message),
            Understood::OutputFollows { length, lost } => {
                let mut bytes = vec![0; length];
                self.stream.read_exact(&mut bytes).map_err(|_| Error::Ended)?;
                Ok(Message::Output { bytes, lost })
            }
        }
    }
}

/// What a line of the server means.
pub(crate) enum Understood {
    /// A message.
    Whole(Message),
    /// Output of this length comes next.
    OutputFollows { length: usize, lost: u64 },
}

/// Returns the meaning of a line.
pub(crate) fn understand(mut message: Value) -> Result<Understood, Error> {
    if let Some(number) = message["id"].as_u64() {
        let answer = match message["error"]["desc"].as_str() {
            Some(reason) => Err(reason.to_owned()),
            None => Ok(message["return"].take()),
        };
        return Ok(Understood::Whole(Message::Answer(number, answer)));
    }
    let data = message["data"].take();
    if message["event"] != "OUTPUT" {
        let event = message["event"].as_str().unwrap_or_default().to_owned();
        return Ok(Understood::Whole(Message::Event(event, data)));
    }
    let length = data["length"].as_u64().and_then(|length| usize::try_from(length).ok());
    let length = length.filter(|length| *length <= OUTPUT_MAX).ok_or(Error::Ended)?;
    Ok(Understood::OutputFollows { length, lost: data["lost"].as_u64().unwrap_or_default() })
}
