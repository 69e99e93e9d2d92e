//! A test's connection to a machine's QMP socket.

use std::collections::VecDeque;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;

use serde_json::{Value, json};

use super::{PATIENCE, wait_until};

/// A client that has negotiated.
pub(crate) struct Qmp {
    lines: BufReader<UnixStream>,
    /// The events that arrived before an answer.
    events: VecDeque<Value>,
}

impl Qmp {
    /// Connects to the socket at `path` when it is there.
    pub(crate) fn connect(path: &Path) -> Qmp {
        let socket = wait_until("there is no QMP socket", || UnixStream::connect(path).ok());
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut qmp = Qmp { lines: BufReader::new(socket), events: VecDeque::new() };
        assert!(qmp.receive()["QMP"].is_object());
        qmp.done("qmp_capabilities", json!({}));
        qmp
    }

    fn receive(&mut self) -> Value {
        let mut line = String::new();
        self.lines.read_line(&mut line).expect("QMP answers");
        serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error}: {line:?}"))
    }

    /// Returns the answer to a command.
    #[allow(clippy::needless_pass_by_value)] // Calls read better with json!(..) as it is.
    pub(crate) fn ask(&mut self, command: &str, arguments: Value) -> Value {
        let message = json!({"execute": command, "arguments": arguments});
        // It is sent in one piece: after "quit" the answer and the end may arrive before a second piece
        // would.
        let message = message.to_string();
        self.lines.get_mut().write_all(message.as_bytes()).expect("QMP takes commands");
        loop {
            let message = self.receive();
            if message.get("event").is_none() {
                return message;
            }
            self.events.push_back(message);
        }
    }

    /// Returns the result of a command, which must succeed.
    #[track_caller]
    pub(crate) fn done(&mut self, command: &str, arguments: Value) -> Value {
        let mut answer = self.ask(command, arguments);
        assert!(answer.get("return").is_some(), "{command}: {answer}");
        answer["return"].take()
    }

    /// Asserts that a command fails with an error of class `class` that mentions `part`.
    #[track_caller]
    pub(crate) fn refused(&mut self, command: &str, arguments: Value, class: &str, part: &str) {
        let answer = self.ask(command, arguments);
        let error = &answer["error"];
        let description = error["desc"].as_str().unwrap_or_default();
        assert!(error["class"] == class && description.contains(part), "{command}: {answer}");
    }

    /// Returns the data of the next event `name`, skipping others.
    pub(crate) fn event(&mut self, name: &str) -> Value {
        loop {
            let mut event = match self.events.pop_front() {
                Some(event) => event,
                None => self.receive(),
            };
            if event["event"] == name {
                return event["data"].take();
            }
        }
    }

    /// Returns whether event `name` arrived before the last answer.
    pub(crate) fn has_event(&self, name: &str) -> bool {
        self.events.iter().any(|event| event["event"] == name)
    }
}
