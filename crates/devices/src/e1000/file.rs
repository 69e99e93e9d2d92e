//! The registers in memory, by their offsets: what software wrote there, and the statistics.

use ring3_core::net::MacAddress;
use serde::{Deserialize, Serialize};

use super::registers::{self, ADDRESS_VALID, LEN, RAH, RAL, statistics};

/// All of them. Those that do something when they are read or written are the card's.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Vec<u32>", into = "Vec<u32>")]
pub(super) struct File(Box<[u32]>);

/// There are not so many registers.
#[derive(Debug, thiserror::Error)]
#[error("a network card has {} registers", LEN / 4)]
pub(super) struct WrongCount;

impl TryFrom<Vec<u32>> for File {
    type Error = WrongCount;

    fn try_from(words: Vec<u32>) -> Result<File, WrongCount> {
        if words.len() == LEN / 4 { Ok(File(words.into())) } else { Err(WrongCount) }
    }
}

impl From<File> for Vec<u32> {
    fn from(file: File) -> Vec<u32> {
        file.0.into()
    }
}

impl File {
    /// After a reset, with the first receive address from the EEPROM.
    pub(super) fn new(address: MacAddress) -> File {
        let mut file = File(vec![0; LEN / 4].into());
        let [a, b, c, d, e, f] = address.0;
        file.set(RAL, u32::from_le_bytes([a, b, c, d]));
        file.set(RAH, u32::from_le_bytes([e, f, 0, 0]) | ADDRESS_VALID);
        file.set(registers::CTRL, registers::ctrl::FULL_DUPLEX | registers::ctrl::SPEED_1000);
        // 48 KiB for reception, of 64 (PBA).
        file.set(registers::PBA, 0x0010_0030);
        file.set(registers::VET, 0x8100);
        file
    }

    pub(super) fn get(&self, offset: u32) -> u32 {
        self.0.get(offset as usize / 4).copied().unwrap_or_default()
    }

    pub(super) fn set(&mut self, offset: u32, value: u32) {
        if let Some(register) = self.0.get_mut(offset as usize / 4) {
            *register = value;
        }
    }

    /// Adds to one of the statistics, which stays where it is at its end.
    pub(super) fn count(&mut self, offset: u32, more: u32) {
        self.set(offset, self.get(offset).saturating_add(more));
    }

    /// Adds to two that are one number of 64 bits.
    fn count_bytes(&mut self, offset: u32, more: usize) {
        let whole = u64::from(self.get(offset + 4)) << 32 | u64::from(self.get(offset));
        let whole = whole.saturating_add(more as u64);
        self.set(offset, whole as u32);
        self.set(offset + 4, (whole >> 32) as u32);
    }

    pub(super) fn count_received(&mut self, destination: MacAddress, bytes: usize) {
        self.count(statistics::RECEIVED, 1);
        self.count(statistics::ALL_RECEIVED, 1);
        self.count_bytes(statistics::BYTES_RECEIVED, bytes);
        self.count_bytes(statistics::ALL_BYTES_RECEIVED, bytes);
        if destination == MacAddress::BROADCAST {
            self.count(statistics::BROADCASTS_RECEIVED, 1);
        } else if destination.is_group() {
            self.count(statistics::MULTICASTS_RECEIVED, 1);
        }
    }

    pub(super) fn count_sent(&mut self, destination: Option<MacAddress>, bytes: usize, cut: bool) {
        self.count(statistics::SENT, 1);
        self.count(statistics::ALL_SENT, 1);
        self.count_bytes(statistics::BYTES_SENT, bytes);
        self.count_bytes(statistics::ALL_BYTES_SENT, bytes);
        self.count(statistics::CUT, cut.into());
        if destination == Some(MacAddress::BROADCAST) {
            self.count(statistics::BROADCASTS_SENT, 1);
        } else if destination.is_some_and(MacAddress::is_group) {
            self.count(statistics::MULTICASTS_SENT, 1);
        }
    }
}
