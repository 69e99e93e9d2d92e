//! The form in which a machine travels.
//!
//! First come [`MAGIC`] and [`VERSION`] (4 bytes), then frames. A frame has its [`Kind`] (4 bytes), the number of
//! its bytes (4), their CRC-32 (4), and the bytes. All numbers are little-endian.

use std::io::{Read, Write};

use ring3_vm::SavedMachine;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::MoveError;
use super::channel::Channel;
use crate::format::SavedDrive;

/// The first bytes.
const MAGIC: &[u8; 16] = b"ring3 on move\r\n\0";
/// The version of the form. Both ends must have the same.
pub const VERSION: u32 = 2;
/// Bytes before those of a frame.
const HEADER: usize = 12;
/// Upper bound of the bytes of a frame.
const FRAME_MAX: usize = 2 << 20;
/// Bytes of frames that are parts of something.
const PART: usize = 1 << 20;
/// Upper bound of the bytes of a value that comes in parts.
const VALUE_MAX: usize = 1 << 30;

/// What a frame contains.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub(super) enum Kind {
    /// A part of a value, which the next frames continue.
    Part = 1,
    /// The last part of a value.
    Last = 2,
    /// Pages of memory; see `pages`.
    Pages = 3,
    /// Sectors that the guest has written over the image of a drive: the drive's number in the list (4 bytes),
    /// the number of the first sector (8), and their contents.
    Sectors = 4,
    /// Nothing more: the values [`Rest`] follow.
    End = 5,
    /// From the target: the machine can go on here. The contents are the name of this end of the connection, as
    /// [`Channel::here`] gives it.
    Ready = 6,
    /// From the target: why it cannot.
    Failed = 7,
    /// From the source: go on.
    Go = 8,
    /// From the target: it goes on.
    Gone = 9,
}

impl Kind {
    fn of(number: u32) -> Option<Kind> {
        let all = [
            Kind::Part,
            Kind::Last,
            Kind::Pages,
            Kind::Sectors,
            Kind::End,
            Kind::Ready,
            Kind::Failed,
            Kind::Go,
            Kind::Gone,
        ];
        all.into_iter().find(|kind| *kind as u32 == number)
    }
}

/// The first value: what the machine is.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Head {
    /// The machine as it was when the transfer began, without the contents of memory and without the kernel
    /// and its files.
    pub(super) machine: SavedMachine,
    /// The number of these files, which are the next values.
    pub(super) files: u32,
    /// Bytes of memory: RAM, the display's memory and ROMs.
    pub(super) memory_len: u64,
}

/// The last value.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Rest {
    /// The machine as it stands still.
    pub(super) machine: SavedMachine,
    pub(super) drives: Vec<MovedDrive>,
    /// Whether it ran.
    pub(super) runs: bool,
}

/// A drive of a machine that moves.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct MovedDrive {
    pub(super) saved: SavedDrive,
    /// Whether the guest can write to its file.
    pub(super) writes: bool,
    /// Whether its file is the socket of a server.
    pub(super) is_served: bool,
    /// Whether the guest may only read.
    pub(super) read_only: bool,
}

/// A frame that is made.
pub(super) struct Frame(Vec<u8>);

impl Frame {
    pub(super) fn new(kind: Kind) -> Frame {
        let mut bytes = vec![0; HEADER];
        bytes[..4].copy_from_slice(&(kind as u32).to_le_bytes());
        Frame(bytes)
    }

    pub(super) fn of(kind: Kind, bytes: &[u8]) -> Frame {
        let mut frame = Frame::new(kind);
        frame.0.extend(bytes);
        frame
    }

    /// Returns the bytes, to which more can be added.
    pub(super) fn bytes(&mut self) -> &mut Vec<u8> {
        &mut self.0
    }

    /// Returns the number of bytes, with those before them.
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    fn finish(&mut self) -> &[u8] {
        let (header, bytes) = self.0.split_at_mut(HEADER);
        header[4..8].copy_from_slice(&(bytes.len() as u32).to_le_bytes());
        header[8..].copy_from_slice(&crc32fast::hash(bytes).to_le_bytes());
        &self.0
    }
}

/// Sends the beginning.
pub(super) fn send_magic(to: &mut Channel) -> Result<(), MoveError> {
    let bytes = [&MAGIC[..], &VERSION.to_le_bytes()].concat();
    to.write_all(&bytes).map_err(|error| to.error(error))
}

/// Receives the beginning.
pub(super) fn receive_magic(from: &mut Channel) -> Result<(), MoveError> {
    let mut bytes = [0; MAGIC.len() + 4];
    from.read_exact(&mut bytes).map_err(|error| from.error(error))?;
    let (magic, version) = bytes.split_at(MAGIC.len());
    if magic != MAGIC {
        return Err(MoveError::Other);
    }
    match u32::from_le_bytes(version.try_into().expect("4 bytes")) {
        VERSION => Ok(()),
        other => Err(MoveError::Version(other)),
    }
}

/// Sends `frame`.
pub(super) fn send(to: &mut Channel, mut frame: Frame) -> Result<(), MoveError> {
    to.write_all(frame.finish()).map_err(|error| to.error(error))
}

/// Receives the next frame.
pub(super) fn receive(from: &mut Channel) -> Result<(Kind, Vec<u8>), MoveError> {
    let mut header = [0; HEADER];
    from.read_exact(&mut header).map_err(|error| from.error(error))?;
    let number = |at: usize| u32::from_le_bytes(header[at..at + 4].try_into().expect("4 bytes"));
    let (kind, len, crc) = (number(0), number(4) as usize, number(8));
    let kind = Kind::of(kind).ok_or_else(|| damaged("it has an unknown part"))?;
    if len > FRAME_MAX {
        return Err(damaged("a part is too long"));
    }
    let mut bytes = vec![0; len];
    from.read_exact(&mut bytes).map_err(|error| from.error(error))?;
    if crc32fast::hash(&bytes) != crc {
        return Err(damaged("a checksum is wrong"));
    }
    Ok((kind, bytes))
}

/// Sends `bytes` as a value.
pub(super) fn send_bytes(to: &mut Channel, bytes: &[u8]) -> Result<(), MoveError> {
    let mut rest = bytes;
    while rest.len() > PART {
        let (part, after) = rest.split_at(PART);
        send(to, Frame::of(Kind::Part, part))?;
        rest = after;
    }
    send(to, Frame::of(Kind::Last, rest))
}

/// Receives the bytes of a value.
pub(super) fn receive_bytes(from: &mut Channel) -> Result<Vec<u8>, MoveError> {
    let mut value = Vec::new();
    loop {
        let (kind, bytes) = receive(from)?;
        if value.len() + bytes.len() > VALUE_MAX {
            return Err(damaged("a value is too long"));
        }
        value.extend(bytes);
        match kind {
            Kind::Part => {}
            Kind::Last => return Ok(value),
            _ => return Err(damaged("its parts are in the wrong order")),
        }
    }
}

/// Returns `value` as bytes.
pub(super) fn packed(value: &impl Serialize) -> Result<Vec<u8>, MoveError> {
    let mut bytes = Vec::new();
    ciborium::into_writer(value, &mut bytes).map_err(|error| damaged(&error.to_string()))?;
    Ok(bytes)
}

/// Returns the value in `bytes`.
pub(super) fn unpacked<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, MoveError> {
    ciborium::from_reader(bytes).map_err(|error| damaged(&error.to_string()))
}

pub(super) fn damaged(reason: &str) -> MoveError {
    MoveError::Damaged(reason.to_owned())
}
