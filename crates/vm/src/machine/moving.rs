//! What a machine that moves to another process needs: its memory is watched while it runs, everything else is
//! read or taken over while it stands still, and the networks learn where it is.

use std::sync::Arc;

use ring3_core::disk::DriveId;
use ring3_core::net::{MacAddress, Packet};
use ring3_core::state::RestoreError;

use crate::control::DriveInfo;
use crate::door::Door;
use crate::drives::{Drive, Empty};
use crate::machine::{SavedMachine, Vm, VmError};
use crate::networks::Networks;

/// The smallest frame of Ethernet, without its check sequence (IEEE 802.3, 4A.4.2).
const FRAME_MIN: usize = 60;

/// Functions for those who move a machine.
impl Vm {
    /// Returns whether the machine may go on elsewhere: a run that is recorded, logged or repeated may not.
    pub fn may_move(&self) -> bool {
        !self.is_logged() && !self.is_replayed()
    }

    /// Begins to note the pages of memory that are written to, as numbers of pages of
    /// [`Memory::all_contents`](ring3_core::memory::Memory::all_contents).
    pub fn watch_memory(&mut self) {
        self.memory.watch();
        self.cpu.protect_all_code();
    }

    /// Ends what [`Vm::watch_memory`] has begun.
    pub fn stop_watching_memory(&mut self) {
        self.memory.stop_watching();
    }

    /// Returns the pages that were written to since the last call. None if they are not watched, since this is
    /// another machine.
    pub fn take_written_pages(&mut self) -> Option<Vec<u32>> {
        let written = self.memory.take_written();
        self.cpu.protect_all_code();
        written
    }

    /// Returns the drives, and what does the work of each.
    pub fn drives(&self) -> Vec<(DriveInfo, Arc<dyn Drive>)> {
        let drives = self.describe_drives().into_iter().map(|info| {
            let drive = self.drives.of(info.drive).unwrap_or_else(|| Arc::new(Empty));
            (info, drive)
        });
        drives.collect()
    }

    /// Returns whether drives have answered all requests.
    pub fn are_drives_idle(&self) -> bool {
        !self.drives.are_waiting()
    }

    /// Lets `drive` do the work of drive `at` from now on. The guest does not notice: it must have the same
    /// medium, or the machine must stand still until such a drive is there again.
    pub fn exchange_drive(&mut self, at: DriveId, drive: Arc<dyn Drive>) {
        self.drives.exchange(at, drive);
    }

    /// Makes this machine, which has not run, the one in `saved`, with the contents that its memory has now.
    pub fn arrive(&mut self, saved: &SavedMachine) -> Result<(), VmError> {
        if *saved.config() != self.config {
            let reason = "its configuration has changed on the way".to_owned();
            return Err(RestoreError::Damaged { name: "machine".to_owned(), reason }.into());
        }
        self.memory.restore_layout(saved.memory())?;
        self.take_over(saved)
    }

    /// Closes the networks behind the cards of this machine, which goes on elsewhere.
    pub fn disconnect(&mut self, door: &mut Door) {
        door.drop_sources();
        self.networks = Networks::default();
    }

    /// Sends a packet from each network card by which switches learn where it is now: a RARP request for the
    /// card's own address (RFC 903), as other machines that move send it.
    pub fn announce(&mut self) {
        for (card, nic) in self.config.cards() {
            self.networks.send(card, announcement(nic.mac));
        }
        // What is congested is of no interest: the cards have sent nothing.
        self.networks.flush();
    }
}

fn announcement(MacAddress(address): MacAddress) -> Packet {
    let mut frame = [[0xff; 6], address].concat();
    frame.extend([0x80, 0x35]); // RARP
    frame.extend([0, 1, 8, 0, 6, 4, 0, 3]); // Ethernet, IPv4, the lengths of their addresses, request
    for hardware in [address, address] {
        frame.extend(hardware);
        frame.extend([0; 4]);
    }
    frame.resize(FRAME_MIN, 0);
    Packet::frame(frame)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;
    use crate::engines::EngineChoice;
    use crate::machine::saved::tests::machine;

    #[test]
    fn a_machine_arrives_in_parts() {
        let mut old = machine();
        let first = old.save_without_contents();
        old.watch_memory();
        old.memory.write(0x5000, &[1, 2, 3]);
        old.cpu.set_gpr(3, 77);
        assert_eq!(old.take_written_pages(), Some(vec![5]));
        assert!(old.may_move() && old.are_drives_idle());
        let mut new = Vm::restore(&first, EngineChoice::Translator).unwrap();
        let contents = old.memory().all_contents().to_vec();
        new.fill_memory(|bytes| bytes.copy_from_slice(&contents));
        new.arrive(&old.save_without_contents()).unwrap();
        old.stop_watching_memory();
        assert!(new.save() == old.save());
        let config = Config { memory_bytes: 33 << 20, ..old.config.clone() };
        let mut other = Vm::new(config, (*old.software).clone()).unwrap();
        assert!(other.arrive(&first).is_err());
    }

    #[test]
    fn a_card_announces_itself() {
        let packet = announcement(MacAddress([0x52, 0x54, 0, 1, 2, 3]));
        assert_eq!(packet.bytes.len(), 60);
        assert_eq!(
            packet.bytes[..14],
            [255, 255, 255, 255, 255, 255, 0x52, 0x54, 0, 1, 2, 3, 0x80, 0x35]
        );
        assert_eq!(packet.bytes[22..28], [0x52, 0x54, 0, 1, 2, 3]);
        assert_eq!(packet.bytes[32..38], [0x52, 0x54, 0, 1, 2, 3]);
    }
}
