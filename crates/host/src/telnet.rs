//! The part of the telnet protocol that a serial line or a monitor needs (RFC 854). The client is asked to
//! send each key at once, not to echo it (RFC 857, RFC 858), and to leave bytes as they are (RFC 856). Its
//! own messages about options are skipped.

use std::io::{self, Read, Write};

const IAC: u8 = 255;
const SB: u8 = 250;
const SE: u8 = 240;
/// WILL, WONT, DO and DONT, each of which is followed by the number of an option.
const WITH_OPTION: std::ops::RangeInclusive<u8> = 251..=254;
const WILL: u8 = 251;
const DO: u8 = 253;
const BINARY: u8 = 0;
const ECHO: u8 = 1;
const SUPPRESS_GO_AHEAD: u8 = 3;

/// The first bytes for a client.
pub const GREETING: [u8; 12] =
    [IAC, WILL, ECHO, IAC, WILL, SUPPRESS_GO_AHEAD, IAC, WILL, BINARY, IAC, DO, BINARY];

/// The client's position in a command.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum State {
    #[default]
    Data,
    Command,
    Option,
    Subnegotiation,
    EndOfSubnegotiation,
}

/// Removes the commands from the bytes that a client sends.
#[derive(Debug, Default)]
pub struct Filter(State);

impl Filter {
    /// Returns the data in `bytes`.
    pub fn data(&mut self, bytes: &[u8]) -> Vec<u8> {
        bytes.iter().filter_map(|byte| self.byte(*byte)).collect()
    }

    fn byte(&mut self, byte: u8) -> Option<u8> {
        let (state, data) = match (self.0, byte) {
            (State::Data, IAC) => (State::Command, None),
            (State::Data, byte) => (State::Data, Some(byte)),
            (State::Command, IAC) => (State::Data, Some(IAC)),
            (State::Command, SB) => (State::Subnegotiation, None),
            (State::Command, byte) if WITH_OPTION.contains(&byte) => (State::Option, None),
            (State::Command | State::Option, _) | (State::EndOfSubnegotiation, SE) => {
                (State::Data, None)
            }
            (State::Subnegotiation, IAC) => (State::EndOfSubnegotiation, None),
            (State::Subnegotiation | State::EndOfSubnegotiation, _) => {
                (State::Subnegotiation, None)
            }
        };
        self.0 = state;
        data
    }
}

/// Returns `bytes` in the form in which they are sent to a client: each FFh is doubled.
pub fn escaped(bytes: &[u8]) -> Vec<u8> {
    let mut escaped = Vec::with_capacity(bytes.len());
    for byte in bytes {
        if *byte == IAC {
            escaped.push(IAC);
        }
        escaped.push(*byte);
    }
    escaped
}

/// A reader of the data that a client sends, without its commands.
#[derive(Debug)]
pub struct Reader<R> {
    inner: R,
    filter: Filter,
}

impl<R: Read> Reader<R> {
    /// Returns a reader of the data that `inner` contains.
    pub fn new(inner: R) -> Reader<R> {
        Reader { inner, filter: Filter::default() }
    }
}

impl<R: Read> Read for Reader<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            let length = self.inner.read(buffer)?;
            let data = self.filter.data(&buffer[..length]);
            buffer[..data.len()].copy_from_slice(&data);
            // A read of zero bytes would mean the end.
            if !data.is_empty() || length == 0 {
                return Ok(data.len());
            }
        }
    }
}

/// A writer that sends data to a client.
#[derive(Debug)]
pub struct Writer<W>(pub W);

impl<W: Write> Write for Writer<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.write_all(&escaped(bytes))?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_taken_out_wherever_they_are_divided() {
        // DO ECHO, a subnegotiation of the terminal's size with FFh in it, a doubled FFh, and an interrupt.
        let sent = b"a\xff\xfd\x01b\xff\xfa\x1f\x00\xff\xff\x00\xff\xf0c\xff\xffd\xff\xf4e";
        for chunk in 1..sent.len() {
            let mut filter = Filter::default();
            let data: Vec<u8> = sent.chunks(chunk).flat_map(|part| filter.data(part)).collect();
            assert_eq!(data, b"abc\xffde", "{chunk}");
        }
        let mut all = Vec::new();
        Reader::new(&sent[..]).read_to_end(&mut all).unwrap();
        assert_eq!(all, b"abc\xffde");
    }

    #[test]
    fn data_comes_back() {
        let data: Vec<u8> = (0..=255).collect();
        assert_eq!(Filter::default().data(&escaped(&data)), data);
        let mut sent = Vec::new();
        Writer(&mut sent).write_all(&data).unwrap();
        assert_eq!(Filter::default().data(&sent), data);
        assert_eq!(Filter::default().data(&GREETING), b"");
    }
}
