//! Loopback (12.0, and application note 937): a packet is transmitted to the chip's own receiver, which keeps the end of it.

use ring3_core::net::MacAddress;

use super::{CHECK_ERRORS, CHECK_LEN, Dp8390};
use crate::ne2000::registers::{data, interrupt, received, transmit, transmitted};

impl Dp8390 {
    /// What is in the FIFO after it is the end of the packet and the number of its bytes. Transmitter and receiver share the logic for check
    /// sequences, so a packet is received with an error unless software has made its sequence.
    pub(super) fn loop_back(&mut self, packet: Vec<u8>) {
        let silence = match self.transmit_configuration & transmit::LOOPBACK {
            transmit::LOOPBACK_CONTROLLER => {
                transmitted::CARRIER_LOST | transmitted::HEARTBEAT_MISSING
            }
            transmit::LOOPBACK_ENCODER => transmitted::HEARTBEAT_MISSING,
            _ => 0,
        };
        self.transmit_status = transmitted::WELL | silence;
        let mut bytes = packet;
        if self.data_configuration & data::WORDS != 0 {
            // One byte of each word goes out.
            let first = usize::from(self.data_configuration & data::HIGH_FIRST == 0);
            bytes = bytes.into_iter().skip(first).step_by(2).collect();
        }
        let is_intact = if self.transmit_configuration & transmit::INHIBIT_CHECK == 0 {
            let check = crc32fast::hash(&bytes);
            bytes.extend(check.to_le_bytes());
            false
        } else {
            let (packet, check) = bytes.split_at(bytes.len().saturating_sub(CHECK_LEN));
            check == crc32fast::hash(packet).to_le_bytes()
        };
        let destination = bytes.first_chunk().map(|address| MacAddress(*address));
        let is_ours = destination.is_some_and(|destination| self.accepts(destination));
        if is_ours && !is_intact {
            self.receive_status = received::CHECK_ERROR;
            self.interrupt_status |= interrupt::RECEIVE_ERROR;
            self.count(CHECK_ERRORS);
        } else {
            self.receive_status = received::INTACT;
        }
        let [low, high] = (bytes.len() as u16).to_le_bytes();
        for (index, byte) in bytes.into_iter().chain([low, high, high]).enumerate() {
            self.fifo[index % 8] = byte;
        }
        self.fifo_position = 0;
    }

    /// The next byte of the FIFO.
    pub(super) fn read_fifo(&mut self) -> u8 {
        let byte = self.fifo[usize::from(self.fifo_position)];
        self.fifo_position = (self.fifo_position + 1) % 8;
        byte
    }
}
