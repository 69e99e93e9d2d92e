//! A connection with the supervisor, for programs that send it commands.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;

use serde_json::Value;

use crate::command::Command;
use crate::error::Error;
use crate::place::Place;

/// See the module.
#[derive(Debug)]
pub struct Client {
    stream: UnixStream,
    messages: BufReader<UnixStream>,
}

impl Client {
    /// Connects to the supervisor at `place`.
    pub fn connect(place: &Place) -> Result<Client, Error> {
        let socket = place.control();
        let absent = |source| Error::Absent { socket: socket.clone(), source };
        let stream = UnixStream::connect(&socket).map_err(absent)?;
        let messages = BufReader::new(stream.try_clone().map_err(absent)?);
        let mut client = Client { stream, messages };
        // The greeting.
        client.message()?;
        Ok(client)
    }

    /// Executes a command and returns its result.
    pub fn execute(&mut self, command: &Command) -> Result<Value, Error> {
        let text = serde_json::to_string(command).map_err(|_| Error::Ended)?;
        writeln!(self.stream, "{text}").map_err(|_| Error::Ended)?;
        let mut answer = self.message()?;
        match answer["error"]["desc"].as_str() {
            None => Ok(answer["return"].take()),
            Some(reason) => Err(Error::Refused(reason.to_owned())),
        }
    }

    /// Returns the next message, after [`Command::Events`] for example.
    pub fn message(&mut self) -> Result<Value, Error> {
        let mut line = String::new();
        match self.messages.read_line(&mut line) {
            Ok(1..) => serde_json::from_str(&line).map_err(|_| Error::Ended),
            Ok(0) | Err(_) => Err(Error::Ended),
        }
    }
}
