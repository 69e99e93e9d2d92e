//! The memory that the chip of an NE2000 sees: the address of the card, and the buffers of packets.

use std::ops::Range;

use ring3_core::net::MacAddress;
use serde::{Deserialize, Serialize};

/// Where the buffers begin.
const START: u16 = 0x4000;
/// Bytes of the PROM. It is 8 bits wide, so each of its 16 bytes is in two places.
const PROM_LEN: usize = 32;
/// What is in the last two bytes of the PROM: the card is one with 16 bits.
const WORD_WIDE: u8 = b'W';
/// What is read where nothing is.
const NOTHING: u8 = 0xff;

/// PROM and RAM.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Buffer {
    #[serde(with = "serde_bytes")]
    prom: Vec<u8>,
    #[serde(with = "serde_bytes")]
    ram: Vec<u8>,
}

impl Buffer {
    /// The PROM of a card with that address, and `len` bytes of RAM, at most 48 KiB.
    pub(super) fn new(address: MacAddress, len: usize) -> Buffer {
        let mut bytes = [0; PROM_LEN / 2];
        bytes[..6].copy_from_slice(&address.0);
        bytes[14..].fill(WORD_WIDE);
        let prom = bytes.iter().flat_map(|byte| [*byte; 2]).collect();
        Buffer { prom, ram: vec![0; len] }
    }

    /// What was in the RAM is gone.
    pub(super) fn clear(&mut self) {
        self.ram.fill(0);
    }

    /// True when `other` has as much memory.
    pub(super) fn is_of_same_size(&self, other: &Buffer) -> bool {
        self.prom.len() == other.prom.len() && self.ram.len() == other.ram.len()
    }

    /// Takes over the PROM of `other`, with its address.
    pub(super) fn set_prom_of(&mut self, other: &Buffer) {
        self.prom.clone_from(&other.prom);
    }

    /// The byte at `address`.
    pub(super) fn read(&self, address: u16) -> u8 {
        let memory = if address < START { &self.prom } else { &self.ram };
        let offset = if address < START { address } else { address - START };
        memory.get(usize::from(offset)).copied().unwrap_or(NOTHING)
    }

    /// Writes the byte at `address`, if there is RAM.
    pub(super) fn write(&mut self, address: u16, value: u8) {
        let offset = address.checked_sub(START).map(usize::from);
        if let Some(byte) = offset.and_then(|offset| self.ram.get_mut(offset)) {
            *byte = value;
        }
    }

    /// The RAM from `address` on, of `len` bytes at most; none where there is none.
    pub(super) fn ram(&self, address: u16, len: usize) -> &[u8] {
        self.range(address, len).map_or(&[], |range| &self.ram[range])
    }

    /// The same to be written.
    pub(super) fn ram_mut(&mut self, address: u16, len: usize) -> &mut [u8] {
        match self.range(address, len) {
            Some(range) => &mut self.ram[range],
            None => &mut [],
        }
    }

    fn range(&self, address: u16, len: usize) -> Option<Range<usize>> {
        let start = usize::from(address.checked_sub(START)?);
        let end = (start + len).min(self.ram.len());
        (start < end).then_some(start..end)
    }

    /// The `len` bytes from `address` on, whatever is there.
    pub(super) fn bytes(&self, address: u16, len: u16) -> Vec<u8> {
        let ram = self.ram(address, len.into());
        if ram.len() == usize::from(len) {
            return ram.to_vec();
        }
        (0..len).map(|offset| self.read(address.wrapping_add(offset))).collect()
    }
}
