//! Packets of a running machine: the command `x-ring3-capture`. QEMU has the object `filter-dump` for a file.
//!
//! The client listens at a Unix socket, to which the machine sends the packets as in a file of packets
//! ([`ring3_net::pcap`]), with virtual time, until the client disconnects or the machine ends.

use std::io::Write;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::thread;

use ring3_net::pcap;
use serde::Deserialize;
use serde_json::Value;
use tracing::warn;

use crate::commands::{Machine, done};
use crate::protocol::{Arguments, Failure, read};

/// Nanoseconds in a second.
const SECOND: u64 = 1_000_000_000;

/// Executes `x-ring3-capture`.
pub(crate) fn capture(machine: &Machine, arguments: Arguments) -> Result<Value, Failure> {
    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Capture {
        socket: PathBuf,
        name: Option<String>,
    }
    let Capture { socket, name } = read(arguments)?;
    let nics = machine.control.describe()?.nics;
    if nics.is_empty() {
        return Err(Failure::generic("the machine has no network card"));
    }
    let card = match &name {
        None => None,
        Some(name) => {
            let is_meant = |nic: &&ring3_vm::inspect::NicInfo| {
                nic.name() == name
                    || nic.device.name() == name
                    || nic.network.as_ref() == Some(name)
            };
            let nic = nics.iter().find(is_meant);
            let missing = || Failure::device_not_found(format!("Device '{name}' not found"));
            Some(nic.ok_or_else(missing)?.device)
        }
    };
    let failed = |error| Failure::generic(format!("{}: {error}", socket.display()));
    let mut stream = UnixStream::connect(&socket).map_err(failed)?;
    let packets = machine.control.tap(card)?;
    let send = move || -> std::io::Result<()> {
        stream.write_all(&pcap::file_header())?;
        for tapped in packets {
            if tapped.lost > 0 {
                warn!("a capture is too slow and has lost {} packets", tapped.lost);
            }
            let nanos = tapped.time.as_nanos();
            let (seconds, rest) = ((nanos / SECOND) as u32, (nanos % SECOND) as u32);
            stream.write_all(&pcap::record(seconds, rest, &tapped.packet.bytes))?;
        }
        Ok(())
    };
    let started = thread::Builder::new().name("capture".into()).spawn(move || {
        // The client has seen enough.
        let _ = send();
    });
    started.map_err(|error| Failure::generic(format!("cannot start a thread: {error}")))?;
    done()
}
