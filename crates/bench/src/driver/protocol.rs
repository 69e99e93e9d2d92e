//! The conversation with benchdriverserver (`guest/commands/benchdriverserver.c` describes it), of which a
//! guest may make anything.

use std::io::{self, Read, Write};

use thiserror::Error;

/// Upper bound of the bytes of a script, as the server has it.
const MOST_SCRIPT: usize = 1 << 20;
/// Upper bound of the bytes of a frame.
const MOST_FRAME: u32 = 65536;
/// Upper bound of the bytes of a script's output, which is stored.
const MOST_OUTPUT: usize = 64 << 20;

/// The reasons why a conversation ends early.
#[derive(Debug, Error)]
pub(super) enum ProtocolError {
    /// The connection fails or ends.
    #[error("the connection to benchdriverserver has ended: {0}")]
    Connection(io::Error),
    /// The guest sends something else.
    #[error("the guest does not send what benchdriverserver does: channel {0}, {1} bytes")]
    Frame(u8, u32),
    /// The guest sends too much.
    #[error("the script has more than {} MiB of output", MOST_OUTPUT >> 20)]
    Output,
    /// The script is too long.
    #[error("the script has more than {} MiB", MOST_SCRIPT >> 20)]
    Script,
    /// The output cannot be stored.
    #[error("the output cannot be stored: {0}")]
    Store(io::Error),
}

/// What benchdriverserver sends.
#[derive(Debug, PartialEq, Eq)]
enum Frame {
    /// It is ready for a script.
    Ready,
    /// The script has ended with this status.
    Ended(u8),
    /// Standard output of the script.
    Output(Vec<u8>),
    /// Standard error of the script.
    Errors(Vec<u8>),
}

fn read_frame(server: &mut impl Read) -> Result<Frame, ProtocolError> {
    let mut read = |bytes: &mut [u8]| server.read_exact(bytes).map_err(ProtocolError::Connection);
    let mut header = [0; 5];
    read(&mut header)?;
    let [channel, length @ ..] = header;
    let length = u32::from_be_bytes(length);
    if length > MOST_FRAME {
        return Err(ProtocolError::Frame(channel, length));
    }
    let mut data = vec![0; length as usize];
    read(&mut data)?;
    match (channel, data.as_slice()) {
        (0, []) => Ok(Frame::Ready),
        (0, [status]) => Ok(Frame::Ended(*status)),
        (1, _) => Ok(Frame::Output(data)),
        (2, _) => Ok(Frame::Errors(data)),
        _ => Err(ProtocolError::Frame(channel, length)),
    }
}

/// Waits until the server is ready for a script.
pub(super) fn greet(server: &mut impl Read) -> Result<(), ProtocolError> {
    match read_frame(server)? {
        Frame::Ready => Ok(()),
        Frame::Ended(_) => Err(ProtocolError::Frame(0, 1)),
        Frame::Output(data) => Err(ProtocolError::Frame(1, data.len() as u32)),
        Frame::Errors(data) => Err(ProtocolError::Frame(2, data.len() as u32)),
    }
}

/// The places for a script's output.
pub(super) trait Sink {
    /// Takes standard output.
    fn output(&mut self, bytes: &[u8]) -> io::Result<()>;
    /// Takes standard error.
    fn errors(&mut self, bytes: &[u8]) -> io::Result<()>;
}

/// Lets the server, which is ready, execute `script`. Returns the script's status.
pub(super) fn execute(
    server: &mut (impl Read + Write),
    script: &[u8],
    sink: &mut impl Sink,
) -> Result<u8, ProtocolError> {
    if script.len() > MOST_SCRIPT {
        return Err(ProtocolError::Script);
    }
    let message = [&(script.len() as u32).to_be_bytes(), script].concat();
    server.write_all(&message).map_err(ProtocolError::Connection)?;
    let mut total = 0;
    let mut count = |bytes: &[u8]| {
        total += bytes.len();
        if total > MOST_OUTPUT { Err(ProtocolError::Output) } else { Ok(()) }
    };
    loop {
        match read_frame(server)? {
            Frame::Ready => return Err(ProtocolError::Frame(0, 0)),
            Frame::Ended(status) => return Ok(status),
            Frame::Output(data) => {
                count(&data)?;
                sink.output(&data).map_err(ProtocolError::Store)?;
            }
            Frame::Errors(data) => {
                count(&data)?;
                sink.errors(&data).map_err(ProtocolError::Store)?;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A server that has sent its part, and keeps what is written to it.
    struct Server<'a>(&'a [u8], Vec<u8>);

    impl Read for Server<'_> {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            self.0.read(buffer)
        }
    }

    impl Write for Server<'_> {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.1.write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    /// Both channels.
    #[derive(Default)]
    struct Both([Vec<u8>; 2]);

    impl Sink for Both {
        fn output(&mut self, bytes: &[u8]) -> io::Result<()> {
            self.0[0].extend(bytes);
            Ok(())
        }

        fn errors(&mut self, bytes: &[u8]) -> io::Result<()> {
            self.0[1].extend(bytes);
            Ok(())
        }
    }

    fn frame(channel: u8, data: &[u8]) -> Vec<u8> {
        [&[channel], &(data.len() as u32).to_be_bytes()[..], data].concat()
    }

    fn run(sent: &[u8]) -> Result<(u8, [Vec<u8>; 2]), String> {
        let (mut server, mut both) = (Server(sent, Vec::new()), Both::default());
        let status = execute(&mut server, b"ls", &mut both).map_err(|error| error.to_string())?;
        assert_eq!(server.1, b"\0\0\0\x02ls");
        Ok((status, both.0))
    }

    #[test]
    fn channels_are_separated() {
        let frames = [frame(1, b"one "), frame(2, b"error"), frame(1, b"two"), frame(0, b"\x03")];
        assert_eq!(run(&frames.concat()), Ok((3, [b"one two".to_vec(), b"error".to_vec()])));
    }

    #[test]
    fn other_frames_end_the_conversation() {
        for (sent, complaint) in [
            (frame(3, b"x"), "channel 3, 1 bytes"),
            (frame(0, b"xx"), "channel 0, 2 bytes"),
            (frame(0, b""), "channel 0, 0 bytes"),
            (b"\x01\xff\xff\xff\xff".to_vec(), "channel 1, 4294967295 bytes"),
            (frame(1, b"all")[..6].to_vec(), "has ended"),
            (vec![], "has ended"),
        ] {
            let error = run(&sent).unwrap_err();
            assert!(error.contains(complaint), "{error}");
        }
    }

    #[test]
    fn there_is_an_end_of_output() {
        let much = frame(2, &vec![b'x'; MOST_FRAME as usize]).repeat((MOST_OUTPUT >> 16) + 1);
        assert!(run(&much).unwrap_err().contains("more than 64 MiB"));
    }

    #[test]
    fn only_a_ready_server_gets_a_script() {
        assert!(greet(&mut &frame(0, b"")[..]).is_ok());
        for sent in [frame(0, b"x"), frame(1, b""), frame(2, b"x"), vec![0]] {
            assert!(greet(&mut &sent[..]).is_err(), "{sent:?}");
        }
    }

    #[test]
    fn scripts_fit_into_the_server() {
        let script = vec![b' '; MOST_SCRIPT + 1];
        let error = execute(&mut Server(b"", vec![]), &script, &mut Both::default()).unwrap_err();
        assert!(matches!(error, ProtocolError::Script));
    }
}
