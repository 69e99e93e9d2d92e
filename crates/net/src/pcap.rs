//! The format of files of packets that tcpdump and Wireshark read (draft-ietf-opsawg-pcap).
//!
//! What is written has times in nanoseconds. No crate is used: the format is two headers, and the crate that
//! reads and writes all its variants is larger than this file.

use std::io::{self, ErrorKind, Read};

use ring3_core::net::PACKET_MAX;
use thiserror::Error;

/// Bytes of the header of a file, and of that of a packet.
pub const FILE_HEADER_LEN: usize = 24;
const PACKET_HEADER_LEN: usize = 16;

/// The magic numbers of files with times in nanoseconds and in microseconds.
const NANOSECONDS: u32 = 0xa1b2_3c4d;
const MICROSECONDS: u32 = 0xa1b2_c3d4;
/// The version, 2.4.
const VERSION: [u16; 2] = [2, 4];
/// The link type Ethernet.
const ETHERNET: u32 = 1;

/// Returns what a file begins with.
pub fn file_header() -> [u8; FILE_HEADER_LEN] {
    let [major, minor] = VERSION.map(u32::from);
    // The next two fields say that times are UTC, and that all their digits are certain.
    let fields = [NANOSECONDS, minor << 16 | major, 0, 0, PACKET_MAX as u32, ETHERNET];
    let mut header = [0; FILE_HEADER_LEN];
    header.copy_from_slice(fields.map(u32::to_le_bytes).as_flattened());
    header
}

/// Returns a packet as it stands in a file, with its time.
pub fn record(seconds: u32, nanoseconds: u32, packet: &[u8]) -> Vec<u8> {
    let length = packet.len() as u32;
    let fields = [seconds, nanoseconds, length, length];
    let mut record = Vec::with_capacity(PACKET_HEADER_LEN + packet.len());
    record.extend_from_slice(fields.map(u32::to_le_bytes).as_flattened());
    record.extend_from_slice(packet);
    record
}

/// The reasons why packets cannot be read.
#[derive(Debug, Error)]
pub enum ReadError {
    /// The file cannot be read.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// It is of another format.
    #[error("it is no file of packets: give one that pcap=FILE or tcpdump has written")]
    Other,
    /// The packets are of another network.
    #[error("its packets are of link type {0}, not of Ethernet")]
    LinkType(u32),
    /// A packet is impossible.
    #[error("it is damaged: a packet has {0} bytes")]
    Damaged(u32),
}

/// A packet that was read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    /// Its time, in seconds since 1970 or since the machine was switched on.
    pub seconds: u32,
    /// The nanoseconds in that second.
    pub nanoseconds: u32,
    /// Its bytes, perhaps not all of them.
    pub packet: Vec<u8>,
}

/// The packets in a file, one after the other.
#[derive(Debug)]
pub struct Reader<R> {
    input: R,
    is_swapped: bool,
    has_microseconds: bool,
}

impl<R: Read> Reader<R> {
    /// Reads the beginning of a file.
    ///
    /// # Errors
    /// If it is no file of packets.
    pub fn new(mut input: R) -> Result<Reader<R>, ReadError> {
        let mut header = [0; FILE_HEADER_LEN];
        input.read_exact(&mut header).map_err(|error| match error.kind() {
            ErrorKind::UnexpectedEof => ReadError::Other,
            _ => error.into(),
        })?;
        let magic = header.first_chunk().copied().map_or(0, u32::from_le_bytes);
        let (is_swapped, magic) = match magic {
            NANOSECONDS | MICROSECONDS => (false, magic),
            _ => (true, magic.swap_bytes()),
        };
        if magic != NANOSECONDS && magic != MICROSECONDS {
            return Err(ReadError::Other);
        }
        let reader = Reader { input, is_swapped, has_microseconds: magic == MICROSECONDS };
        // The upper bits say how long check sequences are.
        let link = reader.number(header, 20) & 0x0fff_ffff;
        if link != ETHERNET {
            return Err(ReadError::LinkType(link));
        }
        Ok(reader)
    }

    fn number<const N: usize>(&self, header: [u8; N], at: usize) -> u32 {
        let field = header[at..].first_chunk().copied().unwrap_or_default();
        if self.is_swapped { u32::from_be_bytes(field) } else { u32::from_le_bytes(field) }
    }

    /// Reads the next packet. Returns None at the end, also if the last packet is not complete.
    ///
    /// # Errors
    /// If the file cannot be read, or is damaged.
    pub fn next_record(&mut self) -> Result<Option<Record>, ReadError> {
        let mut header = [0; PACKET_HEADER_LEN];
        if !self.fill(&mut header)? {
            return Ok(None);
        }
        let [seconds, fraction, len] = [0, 4, 8].map(|at| self.number(header, at));
        if len as usize > PACKET_MAX {
            return Err(ReadError::Damaged(len));
        }
        let mut packet = vec![0; len as usize];
        if !self.fill(&mut packet)? {
            return Ok(None);
        }
        let nanoseconds =
            if self.has_microseconds { fraction.saturating_mul(1000) } else { fraction };
        Ok(Some(Record { seconds, nanoseconds, packet }))
    }

    /// Fills `bytes`, and returns false if the file ends before.
    fn fill(&mut self, bytes: &mut [u8]) -> io::Result<bool> {
        match self.input.read_exact(bytes) {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == ErrorKind::UnexpectedEof => Ok(false),
            Err(error) => Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn all(bytes: &[u8]) -> Result<Vec<Record>, ReadError> {
        let mut reader = Reader::new(bytes)?;
        let mut records = Vec::new();
        while let Some(record) = reader.next_record()? {
            records.push(record);
        }
        Ok(records)
    }

    #[test]
    fn what_is_written_is_read() {
        let file = [&file_header()[..], &record(5, 6, &[7; 60]), &record(8, 9, &[])].concat();
        let first = Record { seconds: 5, nanoseconds: 6, packet: vec![7; 60] };
        let second = Record { seconds: 8, nanoseconds: 9, packet: vec![] };
        assert_eq!(all(&file).unwrap(), [first.clone(), second]);
        // The last one is being written.
        assert_eq!(all(&file[..file.len() - 1]).unwrap(), [first]);
    }

    #[test]
    fn files_of_hosts_of_the_other_kind_are_read() {
        let fields = [MICROSECONDS, 0x0002_0004, 0, 0, 65535, ETHERNET, 1, 2, 4, 60, 0x0102_0304];
        let file: Vec<u8> = fields.into_iter().flat_map(u32::to_be_bytes).collect();
        let packet = vec![1, 2, 3, 4];
        assert_eq!(all(&file).unwrap(), [Record { seconds: 1, nanoseconds: 2000, packet }]);
    }

    #[test]
    fn other_files_are_refused() {
        let mut wireless = file_header();
        wireless[20] = 105;
        let huge = [&file_header()[..], &[0xff; 16]].concat();
        for (file, part) in [
            (&[][..], "no file of packets"),
            (&[0; 100], "no file of packets"),
            (&wireless, "link type 105"),
            (&huge, "a packet has 4294967295 bytes"),
        ] {
            let error = all(file).unwrap_err().to_string();
            assert!(error.contains(part), "{error}");
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let file = [&file_header()[..], &bytes].concat();
            let _ = all(&bytes);
            let _ = all(&file);
        }
    }
}
