//! Where debuggers connect.

use std::io::{self, ErrorKind, Read, Write};
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use ring3_host::listener::{ListenError, Listener};
use ring3_host::socket::SocketFile;
use ring3_host::stream::Stream;
use ring3_vm::Control;
use thiserror::Error;
use tracing::warn;

use crate::session;

/// How long to wait after a debugger could not be accepted, for example when descriptors have run out.
const AFTER_ERROR: Duration = Duration::from_millis(100);

/// How long a debugger may take no output before it is disconnected.
const PATIENCE: Duration = Duration::from_secs(5);

/// The host of a TCP port for which none is given.
const THIS_HOST: &str = "127.0.0.1";

/// Executes a command of GDB's `monitor`, and returns its output.
pub type Monitor = Arc<dyn Fn(&str) -> String + Send + Sync>;

/// A place where debuggers connect.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Place {
    /// A new Unix socket with this path.
    Unix(PathBuf),
    /// A TCP port of this host alone.
    Tcp {
        /// A name or address of this host.
        host: String,
        /// The port.
        port: u16,
    },
    /// Standard input and output.
    Stdio,
}

/// The text names no place.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("give \"unix:PATH\", \"tcp::PORT\", \"tcp:HOST:PORT\" or \"stdio\"")]
pub struct BadPlace;

impl FromStr for Place {
    type Err = BadPlace;

    fn from_str(text: &str) -> Result<Place, BadPlace> {
        match text.split_once(':') {
            None if text == "stdio" => Ok(Place::Stdio),
            Some(("unix", path)) if !path.is_empty() => Ok(Place::Unix(path.into())),
            Some(("tcp", address)) => {
                let (host, port) = address.rsplit_once(':').unwrap_or(("", address));
                let host = if host.is_empty() { THIS_HOST } else { host };
                let port = port.parse().map_err(|_| BadPlace)?;
                Ok(Place::Tcp { host: host.to_owned(), port })
            }
            _ => Err(BadPlace),
        }
    }
}

/// The server of a machine. Its socket is removed with it; a debugger that is connected stays so.
#[derive(Debug)]
pub struct Server {
    listener: Option<Arc<Listener>>,
    _file: Option<SocketFile>,
}

impl Server {
    /// Serves debuggers at `place`, one after the other.
    ///
    /// # Errors
    /// If the place cannot be used, or if the host has no thread.
    pub fn start(
        control: &Control,
        place: &Place,
        monitor: Monitor,
    ) -> Result<Server, ListenError> {
        let mut listener = match place {
            Place::Unix(path) => Listener::unix(path)?,
            Place::Tcp { host, port } => Listener::tcp_of_this_host(host, *port)?,
            Place::Stdio => {
                Server::on_streams(control, monitor, io::stdin(), io::stdout());
                return Ok(Server { listener: None, _file: None });
            }
        };
        let file = listener.take_file();
        let listener = Arc::new(listener);
        let (accepting, control) = (listener.clone(), control.clone());
        spawn(move || accept(&accepting, &control, &monitor));
        Ok(Server { listener: Some(listener), _file: file })
    }

    /// Serves the one debugger that writes to `input` and reads from `output`.
    fn on_streams(
        control: &Control,
        monitor: Monitor,
        input: impl Read + Send + 'static,
        output: impl Write + Send + 'static,
    ) {
        let control = control.clone();
        spawn(move || session::serve(control, monitor, input, output));
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Some(listener) = &self.listener {
            listener.close();
        }
    }
}

fn spawn(work: impl FnOnce() + Send + 'static) {
    if let Err(error) = thread::Builder::new().name("gdb".into()).spawn(work) {
        warn!("the host has no thread for debuggers: {error}");
    }
}

/// Serves those who connect to `listener` until it is closed.
fn accept(listener: &Listener, control: &Control, monitor: &Monitor) {
    loop {
        let stream = match listener.wait() {
            Ok(stream) => stream,
            // It is closed.
            Err(error)
                if matches!(error.kind(), ErrorKind::NotConnected | ErrorKind::InvalidInput) =>
            {
                return;
            }
            Err(error) => {
                warn!("a debugger cannot connect: {error}");
                thread::sleep(AFTER_ERROR);
                continue;
            }
        };
        if let Err(error) = serve(stream, control, monitor) {
            warn!("a debugger cannot connect: {error}");
        }
    }
}

/// Serves the debugger at the other end of `stream`, and hangs up.
fn serve(stream: Stream, control: &Control, monitor: &Monitor) -> io::Result<()> {
    stream.set_write_patience(Some(PATIENCE))?;
    let (output, connection) = (stream.try_clone()?, stream.try_clone()?);
    session::serve(control.clone(), monitor.clone(), stream, output);
    connection.hang_up();
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_read() {
        let tcp = |host: &str, port| Ok(Place::Tcp { host: host.to_owned(), port });
        assert_eq!("stdio".parse(), Ok(Place::Stdio));
        assert_eq!("unix:/tmp/a:b".parse(), Ok(Place::Unix("/tmp/a:b".into())));
        assert_eq!("tcp::1234".parse(), tcp(THIS_HOST, 1234));
        assert_eq!("tcp:1234".parse(), tcp(THIS_HOST, 1234));
        assert_eq!("tcp:localhost:1234".parse(), tcp("localhost", 1234));
        for wrong in ["", "unix:", "tcp:", "tcp::", "tcp::x", "tcp::99999", "udp::1", "1234"] {
            assert_eq!(wrong.parse::<Place>(), Err(BadPlace), "{wrong}");
        }
    }
}
