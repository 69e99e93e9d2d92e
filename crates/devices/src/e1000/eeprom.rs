//! The serial EEPROM with what the card is, of 64 words (chapter 5): by the pins of its Microwire interface (EECD) and by a register that
//! reads for software (EERD). It cannot be written.

use ring3_core::net::MacAddress;
use serde::{Deserialize, Serialize};

const WORDS: usize = 64;
/// The sum of all words (chapter 5, the checksum word).
const SUM: u16 = 0xbaba;

// EECD.
const CLOCK: u32 = 1 << 0;
const SELECT: u32 = 1 << 1;
const DATA_IN: u32 = 1 << 2;
const DATA_OUT: u32 = 1 << 3;
const WRITE_ENABLE: u32 = 3 << 4;
const REQUEST: u32 = 1 << 6;
const GRANT: u32 = 1 << 7;
const PRESENT: u32 = 1 << 8;
const WRITABLE: u32 = CLOCK | SELECT | DATA_IN | WRITE_ENABLE | REQUEST;

// EERD.
const READ_DONE: u32 = 1 << 4;
const READ_START: u32 = 1 << 0;

/// A start bit, two bits of opcode and six of address come in before data go out.
const COMMAND_BITS: u8 = 9;
/// A one and the opcode of a read.
const READ: u16 = 0b110;

/// The pins, and what has gone over them.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Eeprom {
    eecd: u32,
    eerd: u32,
    /// What has come in since the start bit, and how many bits.
    command: u16,
    received: u8,
    /// What goes out, at bit 16: a zero, and then the word from its upper end.
    data: u32,
}

/// What is in the EEPROM of a card with that address.
fn contents(address: MacAddress) -> [u16; WORDS] {
    let mut words = [0; WORDS];
    for (word, bytes) in words.iter_mut().zip(address.0.as_chunks().0) {
        *word = u16::from_le_bytes(*bytes);
    }
    // Software's compatibility word, the first control word, subsystem and IDs, the second control word.
    words[0x03] = 0x0d00;
    words[0x0a..=0x0f].copy_from_slice(&[0x4408, 0x001e, 0x8086, 0x100e, 0x8086, 0x3040]);
    let sum = words.iter().fold(0, |sum: u16, word| sum.wrapping_add(*word));
    words[WORDS - 1] = SUM.wrapping_sub(sum);
    words
}

impl Eeprom {
    pub(super) fn eecd(&self) -> u32 {
        let granted = if self.eecd & REQUEST != 0 { GRANT } else { 0 };
        let out =
            if self.received < COMMAND_BITS || self.data >> 16 & 1 != 0 { DATA_OUT } else { 0 };
        self.eecd | granted | out | PRESENT
    }

    /// Software sets the pins. The EEPROM looks at them when its clock rises.
    pub(super) fn set_eecd(&mut self, address: MacAddress, value: u32) {
        let rises = value & CLOCK & !self.eecd != 0;
        self.eecd = value & WRITABLE;
        if value & SELECT == 0 {
            (self.command, self.received, self.data) = (0, 0, 0);
        } else if rises && self.received == COMMAND_BITS {
            self.data <<= 1;
        } else if rises {
            let bit = u16::from(value & DATA_IN != 0);
            // Zeros before the start bit are nothing.
            if self.received > 0 || bit == 1 {
                self.command = self.command << 1 | bit;
                self.received += 1;
            }
            if self.received == COMMAND_BITS && self.command >> 6 == READ {
                self.data = contents(address)[usize::from(self.command) % WORDS].into();
            }
        }
    }

    pub(super) fn eerd(&self) -> u32 {
        self.eerd
    }

    pub(super) fn set_eerd(&mut self, address: MacAddress, value: u32) {
        if value & READ_START != 0 {
            let word = (value >> 8 & 0xff) as usize;
            let data = contents(address).get(word).copied().unwrap_or(0xffff);
            self.eerd = u32::from(data) << 16 | value & 0xff00 | READ_DONE;
        }
    }

    pub(super) fn is_possible(&self) -> bool {
        self.eecd & !WRITABLE == 0 && self.received <= COMMAND_BITS
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ADDRESS: MacAddress = MacAddress([0x52, 0x54, 0, 0x12, 0x34, 0x56]);

    /// Reads word `word` by the pins, each bit after the clock has risen, as drivers do.
    fn by_pins(eeprom: &mut Eeprom, word: u32) -> u16 {
        eeprom.set_eecd(ADDRESS, REQUEST | SELECT);
        for bit in (0..COMMAND_BITS).rev() {
            let data = if (6 << 6 | word) >> bit & 1 != 0 { DATA_IN } else { 0 };
            eeprom.set_eecd(ADDRESS, REQUEST | SELECT | data);
            eeprom.set_eecd(ADDRESS, REQUEST | SELECT | data | CLOCK);
        }
        let mut value = 0;
        for _ in 0..16 {
            eeprom.set_eecd(ADDRESS, REQUEST | SELECT);
            eeprom.set_eecd(ADDRESS, REQUEST | SELECT | CLOCK);
            value = value << 1 | u16::from(eeprom.eecd() & DATA_OUT != 0);
        }
        eeprom.set_eecd(ADDRESS, 0);
        value
    }

    #[test]
    fn words_are_read_in_both_ways() {
        let mut eeprom = Eeprom::default();
        let mut sum: u16 = 0;
        for word in 0..WORDS as u32 {
            eeprom.set_eerd(ADDRESS, word << 8 | READ_START);
            let value = (eeprom.eerd() >> 16) as u16;
            assert_eq!(by_pins(&mut eeprom, word), value, "word {word}");
            sum = sum.wrapping_add(value);
        }
        assert_eq!(sum, SUM);
        assert_eq!(by_pins(&mut eeprom, 0), 0x5452);
    }
}
