//! A file with copies of packets, in the format that tcpdump and Wireshark read.

use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use ring3_core::net::Packet;
use ring3_hostnet::CaptureFilter;
use ring3_vm::networks::Network;
use tracing::warn;

use crate::card::Card;
use crate::error::NetError;
use crate::pcap;

/// A file of packets.
#[derive(Debug)]
pub struct Capture {
    /// None once a write has failed.
    file: Mutex<Option<File>>,
    filter: Option<CaptureFilter>,
}

impl Capture {
    /// Makes the file at `path`, and replaces one that exists. With `filter`, an expression in the form of
    /// tcpdump, only packets that it matches are written.
    pub fn create(path: &Path, filter: Option<&str>) -> Result<Capture, NetError> {
        let filter = filter.map(CaptureFilter::new).transpose()?;
        let fails = |source| NetError::Capture { path: path.to_owned(), source };
        let mut file = File::create(path).map_err(fails)?;
        file.write_all(&pcap::file_header()).map_err(fails)?;
        Ok(Capture { file: Mutex::new(Some(file)), filter })
    }

    /// Writes a packet with the host's time. An unfinished packet is written as it is.
    pub(crate) fn write(&self, packet: &Packet) {
        if self.filter.as_ref().is_some_and(|filter| !filter.matches(&packet.bytes)) {
            return;
        }
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let record = pcap::record(now.as_secs() as u32, now.subsec_nanos(), &packet.bytes);
        let mut file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        if let Err(error) = file.as_mut().map_or(Ok(()), |file| file.write_all(&record)) {
            *file = None;
            warn!("no more packets can be written to the capture file: {error}");
        }
    }
}

/// A network that also writes the packets it is sent to a capture.
#[derive(Debug)]
pub(crate) struct Captured {
    pub(crate) network: Box<dyn Network>,
    pub(crate) card: Card,
}

impl Network for Captured {
    fn send(&mut self, packet: Packet) {
        if let Some(capture) = self.card.capture() {
            capture.write(&packet);
        }
        self.network.send(packet);
    }

    fn flush(&mut self) {
        self.network.flush();
    }

    fn is_congested(&mut self) -> bool {
        self.network.is_congested()
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn each_packet_follows_a_header() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("pcap");
        let capture = Capture::create(&path, None).unwrap();
        capture.write(&Packet::frame(vec![7; 60]));
        capture.write(&Packet::frame(vec![8; 3]));
        let bytes = fs::read(&path).unwrap();
        let (header, records) = bytes.split_at(24);
        assert_eq!(header[..8], [0x4d, 0x3c, 0xb2, 0xa1, 2, 0, 4, 0]);
        assert_eq!(header[20..], [1, 0, 0, 0]);
        assert_eq!(records[8..16], [60, 0, 0, 0, 60, 0, 0, 0]);
        assert_eq!(records[16..76], [7; 60]);
        assert_eq!(records[76 + 8..], [3, 0, 0, 0, 3, 0, 0, 0, 8, 8, 8]);
    }

    #[test]
    fn a_file_that_cannot_be_made_is_an_error() {
        let error = Capture::create("/no/such/directory/pcap".as_ref(), None).unwrap_err();
        assert!(error.to_string().contains("/no/such/directory/pcap"), "{error}");
    }
}
