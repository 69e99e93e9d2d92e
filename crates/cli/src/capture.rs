//! `ring3 capture`: packets as text, those of a running machine's cards or those in a file.

use std::fs::{self, DirBuilder, File};
use std::io::{self, BufReader, ErrorKind, Read, Write};
use std::os::unix::fs::{DirBuilderExt, FileTypeExt};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

use clap::Args;
use ring3_net::describe::describe;
use ring3_net::pcap::{ReadError, Reader, Record};
use serde_json::json;
use thiserror::Error;

use crate::machine_socket::{self, AskError};

/// The options of `ring3 capture`. A line for each packet: the time in seconds, and what is in it.
#[derive(Debug, Args)]
pub(crate) struct CaptureArguments {
    /// The socket of a running machine, that of its --qmp unix:PATH, or a file of packets (pcap); - is
    /// standard input
    #[arg(value_name = "SOCKET|FILE")]
    source: PathBuf,

    /// Show the packets of this card of the machine, by the id of the card or of its network; by default those
    /// of all its cards
    #[arg(long, value_name = "ID")]
    card: Option<String>,

    /// End after this number of packets
    #[arg(short, long, value_name = "NUMBER")]
    count: Option<u64>,
}

/// The reasons why no packets are shown.
#[derive(Debug, Error)]
pub(crate) enum CaptureError {
    #[error(transparent)]
    Ask(#[from] AskError),
    #[error("cannot read {path}: {source}", path = .path.display())]
    Open { path: PathBuf, source: io::Error },
    #[error("{path}: {source}", path = .path.display())]
    Read { path: PathBuf, source: ReadError },
    #[error(
        "--card is for a running machine: {path} is a file, in which cards have no names", path = .0.display()
    )]
    Card(PathBuf),
    #[error("cannot make a socket for the packets: {0}")]
    Socket(#[source] io::Error),
    #[error("cannot write to standard output: {0}")]
    Output(#[source] io::Error),
}

/// Executes `ring3 capture`.
pub(crate) fn run(arguments: &CaptureArguments) -> Result<(), CaptureError> {
    let CaptureArguments { source, card, count } = arguments;
    let fails = |error| CaptureError::Open { path: source.clone(), source: error };
    let is_stdin = source == Path::new("-");
    let is_socket = !is_stdin
        && fs::metadata(source).map(|data| data.file_type().is_socket()).map_err(fails)?;
    let input: Box<dyn Read> = if is_socket {
        Box::new(machine(source, card.as_deref())?)
    } else if card.is_some() {
        return Err(CaptureError::Card(source.clone()));
    } else if is_stdin {
        Box::new(io::stdin())
    } else {
        Box::new(File::open(source).map_err(fails)?)
    };
    let fails = |error| CaptureError::Read { path: source.clone(), source: error };
    let mut reader = Reader::new(BufReader::new(input)).map_err(fails)?;
    let mut left = count.unwrap_or(u64::MAX);
    while left > 0 {
        let Some(record) = reader.next_record().map_err(fails)? else { break };
        left -= 1;
        let Record { seconds, nanoseconds, packet } = record;
        let line = format!("{seconds}.{nanoseconds:09} {}\n", describe(&packet));
        let mut out = io::stdout();
        match out.write_all(line.as_bytes()).and_then(|()| out.flush()) {
            // Whoever reads it has seen enough, as head(1) does.
            Err(error) if error.kind() == ErrorKind::BrokenPipe => break,
            written => written.map_err(CaptureError::Output)?,
        }
    }
    Ok(())
}

/// Returns the packets of the machine at `socket`, which sends them to a socket of our own. Nobody else can
/// reach that one, and its name is gone when the machine has connected.
fn machine(socket: &Path, card: Option<&str>) -> Result<impl Read + use<>, CaptureError> {
    let directory = std::env::temp_dir().join(format!("ring3-capture.{}", std::process::id()));
    DirBuilder::new().mode(0o700).create(&directory).map_err(CaptureError::Socket)?;
    let place = directory.join("socket");
    let asked = UnixListener::bind(&place).map_err(CaptureError::Socket).and_then(|listener| {
        let mut wanted = json!({"socket": place});
        if let Some(card) = card {
            wanted["name"] = json!(card);
        }
        machine_socket::ask(socket, "x-ring3-capture", &wanted)?;
        let (stream, _) = listener.accept().map_err(CaptureError::Socket)?;
        Ok(stream)
    });
    // An error does not matter: the directory is empty or has a dead socket.
    let _ = fs::remove_dir_all(&directory);
    asked
}
