//! The remote DMA, by which the host moves data through the card's data port (9.0).

use ring3_core::device::Width;

use super::Dp8390;
use crate::ne2000::buffer::Buffer;
use crate::ne2000::registers::{command, data, interrupt};

impl Dp8390 {
    /// The command register was written: the remote DMA begins what it says.
    pub(super) fn begin_remote(&mut self, buffer: &Buffer) {
        match self.command & command::REMOTE {
            command::REMOTE_READ | command::REMOTE_WRITE if self.remote_count == 0 => {
                self.interrupt_status |= interrupt::REMOTE_COMPLETE;
            }
            command::SEND_PACKET => self.begin_packet(buffer),
            _ => {}
        }
    }

    /// The oldest packet in the ring is to be read ("Send Packet Command"): as many bytes as its header says.
    fn begin_packet(&mut self, buffer: &Buffer) {
        self.remote_address = u16::from(self.boundary) << 8;
        let count = [2, 3].map(|offset| buffer.read(self.remote_address | offset));
        self.remote_count = u16::from_le_bytes(count);
        self.next_pointers[0] = buffer.read(self.remote_address | 1);
    }

    fn is_reading(&self) -> bool {
        let remote = self.command & command::REMOTE;
        matches!(remote, command::REMOTE_READ | command::SEND_PACKET) && self.remote_count > 0
    }

    fn is_writing(&self) -> bool {
        self.command & command::REMOTE == command::REMOTE_WRITE && self.remote_count > 0
    }

    /// Bytes of a transfer, however the data port is accessed.
    fn unit(&self) -> usize {
        if self.data_configuration & data::WORDS != 0 { 2 } else { 1 }
    }

    /// The host reads the data port; ones where there is nothing for it.
    pub(in crate::ne2000) fn read_data(&mut self, buffer: &Buffer, width: Width) -> u32 {
        (0..transfers(width)).fold(0, |value, transfer| {
            let mut word = 0xffff;
            if self.is_reading() {
                word = 0;
                for index in 0..self.unit() {
                    word |= u32::from(buffer.read(self.remote_address)) << (8 * index);
                    self.remote_address = self.address_after(self.remote_address, 1);
                }
                self.end_transfer(buffer);
            }
            value | word << (16 * transfer)
        })
    }

    /// The host writes the data port.
    pub(in crate::ne2000) fn write_data(&mut self, buffer: &mut Buffer, width: Width, value: u32) {
        for transfer in 0..transfers(width) {
            if !self.is_writing() {
                return;
            }
            for index in 0..self.unit() {
                let byte = (value >> (16 * transfer + 8 * index)) as u8;
                buffer.write(self.remote_address, byte);
                self.remote_address = self.address_after(self.remote_address, 1);
            }
            self.end_transfer(buffer);
        }
    }

    /// A transfer is done; perhaps it was the last one.
    fn end_transfer(&mut self, buffer: &Buffer) {
        self.remote_count = self.remote_count.saturating_sub(self.unit() as u16);
        if self.remote_count > 0 {
            return;
        }
        self.interrupt_status |= interrupt::REMOTE_COMPLETE;
        if self.command & command::REMOTE == command::SEND_PACKET {
            self.set_boundary(self.next_pointers[0]);
            let has_more = self.boundary != self.current;
            if self.data_configuration & data::AUTO_INITIALIZE != 0 && has_more {
                self.begin_packet(buffer);
            }
        }
    }

    /// The host reads the data port again and again: how many accesses there are, into `bytes`, after which the remote DMA goes on.
    pub(in crate::ne2000) fn read_data_string(
        &mut self,
        buffer: &Buffer,
        width: Width,
        bytes: &mut [u8],
    ) -> usize {
        if !self.is_reading() {
            return 0;
        }
        let ram = buffer.ram(self.remote_address, self.string_len(width, bytes.len()));
        let len = whole(width, ram.len());
        bytes[..len].copy_from_slice(&ram[..len]);
        self.end_string(width, len)
    }

    /// The host writes it in the same way.
    pub(in crate::ne2000) fn write_data_string(
        &mut self,
        buffer: &mut Buffer,
        width: Width,
        bytes: &[u8],
    ) -> usize {
        if !self.is_writing() {
            return 0;
        }
        let ram = buffer.ram_mut(self.remote_address, self.string_len(width, bytes.len()));
        let len = whole(width, ram.len());
        ram[..len].copy_from_slice(&bytes[..len]);
        self.end_string(width, len)
    }

    /// Bytes, of `len` at most, that are beside each other in the buffer, go by accesses of `width` and do not end the transfer.
    fn string_len(&self, width: Width, len: usize) -> usize {
        if usize::from(width.bytes()) != self.unit() * transfers(width) {
            return 0;
        }
        let before_end = usize::from(self.remote_count) - 1;
        len.min(before_end).min(self.bytes_to_stop(self.remote_address))
    }

    fn end_string(&mut self, width: Width, len: usize) -> usize {
        if len == 0 {
            // An address at the end of the ring is left alone: only an access goes on from there.
            return 0;
        }
        self.remote_address = self.address_after(self.remote_address, len);
        self.remote_count -= len as u16;
        len / usize::from(width.bytes())
    }
}

/// Transfers of an access: the bus makes two of one that is wider than the port.
fn transfers(width: Width) -> usize {
    if width == Width::Dword { 2 } else { 1 }
}

/// What of `len` bytes are whole accesses.
fn whole(width: Width, len: usize) -> usize {
    len - len % usize::from(width.bytes())
}
