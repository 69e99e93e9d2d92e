//! Functions for numbers in headers, and for ranges.

use crate::error::{Fault, Result};

/// Returns the 16-bit little-endian number at byte `at`.
pub(crate) fn le16(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes(bytes[at..at + 2].try_into().expect("two bytes"))
}

/// Returns the 32-bit little-endian number at byte `at`.
pub(crate) fn le32(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

/// Returns the 64-bit little-endian number at byte `at`.
pub(crate) fn le64(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}

/// Returns the 16-bit big-endian number at byte `at`.
pub(crate) fn be16(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes(bytes[at..at + 2].try_into().expect("two bytes"))
}

/// Returns the 32-bit big-endian number at byte `at`.
pub(crate) fn be32(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

/// Returns the 64-bit big-endian number at byte `at`.
pub(crate) fn be64(bytes: &[u8], at: usize) -> u64 {
    u64::from_be_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}

/// Divides the `len` bytes from `offset` on at multiples of `unit`. Returns offset and length of each piece.
pub(crate) fn pieces(offset: u64, len: u64, unit: u64) -> impl Iterator<Item = (u64, u64)> {
    let end = offset + len;
    let piece =
        move |start: u64| (start < end).then(|| (start, (unit - start % unit).min(end - start)));
    std::iter::successors(piece(offset), move |(start, len)| piece(start + len))
}

/// Returns a new UUID of version 4 (RFC 9562, 5.4).
pub(crate) fn random_uuid() -> Result<[u8; 16]> {
    let mut uuid = [0; 16];
    let filled = rustix::rand::getrandom(&mut uuid, rustix::rand::GetRandomFlags::empty());
    if filled.map_err(|error| Fault::Io(error.into()))? < uuid.len() {
        return Err(Fault::Io(std::io::ErrorKind::Interrupted.into()));
    }
    uuid[6] = uuid[6] & 0x0f | 0x40;
    uuid[8] = uuid[8] & 0x3f | 0x80;
    Ok(uuid)
}
