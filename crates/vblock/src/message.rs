//! Messages of clients and providers at their own sockets: JSON objects, one on each line.

use std::fmt::Display;
use std::io::{self, ErrorKind, Read};
use std::time::Duration;

use ring3_host::deadline::Deadline;
use ring3_host::stream::Stream;
use serde_json::{Value, json};

/// Upper bound of the bytes in a message.
const MESSAGE_MAX: usize = 4096;
/// How long a message may take that has begun.
const PATIENCE: Duration = Duration::from_secs(10);

/// Returns the answer to a message.
pub(crate) fn answer_to(result: Result<Value, impl Display>) -> Value {
    match result {
        Ok(result) => json!({ "return": result }),
        Err(why) => json!({ "error": { "class": "GenericError", "desc": why.to_string() } }),
    }
}

/// Returns the next line, or None at the end of the connection. Takes no byte after the line, where NBD may
/// begin.
pub(crate) fn next_line(stream: &Stream) -> io::Result<Option<Vec<u8>>> {
    let mut line = Vec::new();
    let mut byte = [0];
    let mut first = stream;
    if first.read(&mut byte)? == 0 {
        return Ok(None);
    }
    // What has begun must go on.
    let mut rest = Deadline::new(stream, PATIENCE);
    while byte != *b"\n" {
        line.push(byte[0]);
        if line.len() > MESSAGE_MAX {
            return Err(io::Error::new(ErrorKind::InvalidData, "a message is too long"));
        }
        if rest.read(&mut byte)? == 0 {
            return Ok(None);
        }
    }
    Ok(Some(line))
}
