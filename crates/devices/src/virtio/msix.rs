//! MSI-X: interrupts as messages, which are writes of a device to the local APIC.
//!
//! From the PCI Local Bus Specification 3.0, section 6.8.2.

use ring3_core::device::Width;
use ring3_core::lines::{IrqLines, Message};
use serde::{Deserialize, Serialize};

/// Bytes of an entry of the table: message address, upper half, data, vector control.
pub(super) const ENTRY_LEN: u64 = 16;
const ENTRY_WORDS: usize = 4;
/// Vector control: the message waits.
const MASKED: u32 = 1 << 0;
/// Where the pending bits are, behind the table.
pub(super) const PENDING_OFFSET: u64 = 0x800;
/// Table and pending bits together have a page.
pub(super) const LEN: u64 = 0x1000;
/// The pending bits are one quadword, which gives room to so many vectors.
pub(super) const VECTORS_MAX: u16 = 64;

// Message control, a word of the capability.
/// Messages are in use.
pub(super) const ENABLE: u32 = 1 << 15;
/// All of them wait.
pub(super) const FUNCTION_MASK: u32 = 1 << 14;

/// The table and the messages that wait.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct MsiX {
    table: Vec<[u32; ENTRY_WORDS]>,
    /// A bit for each message that waits.
    pending: u64,
}

impl MsiX {
    /// That of `vectors` messages, up to [`VECTORS_MAX`]; all are masked.
    pub(super) fn new(vectors: u16) -> MsiX {
        MsiX { table: vec![[0, 0, 0, MASKED]; vectors.into()], pending: 0 }
    }

    /// Sends message `vector`, or lets it wait until it can be. `control` is message control, in which messages are in use.
    pub(super) fn send(&mut self, irq: &mut IrqLines, control: u32, vector: u16) {
        let Some([address, address_high, data, vector_control]) =
            self.table.get(usize::from(vector))
        else {
            return;
        };
        if control & FUNCTION_MASK != 0 || vector_control & MASKED != 0 {
            self.pending |= 1 << vector;
            return;
        }
        self.pending &= !(1 << vector);
        let address = u64::from(*address_high) << 32 | u64::from(*address & !3);
        irq.send_message(Message { address, data: *data });
    }

    /// Sends what has waited and need not any more.
    pub(super) fn send_pending(&mut self, irq: &mut IrqLines, control: u32) {
        if self.pending == 0 || control & (ENABLE | FUNCTION_MASK) != ENABLE {
            return;
        }
        let pending = self.pending;
        for vector in (0..VECTORS_MAX).filter(|vector| pending >> vector & 1 != 0) {
            self.send(irq, control, vector);
        }
    }

    /// The table and the pending bits from `offset` on; whole aligned dwords, as 6.8.2 demands.
    pub(super) fn read(&self, offset: u64, width: Width) -> u32 {
        if width != Width::Dword || !offset.is_multiple_of(4) {
            return 0;
        }
        if offset >= PENDING_OFFSET {
            let word = (offset - PENDING_OFFSET) / 4;
            return if word < 2 { (self.pending >> (32 * word)) as u32 } else { 0 };
        }
        let entry = self.table.get((offset / ENTRY_LEN) as usize);
        entry.map_or(0, |entry| entry[(offset % ENTRY_LEN / 4) as usize])
    }

    /// The driver writes to the table.
    pub(super) fn write(&mut self, offset: u64, width: Width, value: u32) {
        if width != Width::Dword || !offset.is_multiple_of(4) || offset >= PENDING_OFFSET {
            return;
        }
        if let Some(entry) = self.table.get_mut((offset / ENTRY_LEN) as usize) {
            entry[(offset % ENTRY_LEN / 4) as usize] = value;
        }
    }

    /// False for what no treatment can lead to.
    pub(super) fn is_possible(&self, vectors: u16) -> bool {
        let len = usize::from(vectors);
        self.table.len() == len && self.pending.checked_shr(vectors.into()).unwrap_or(0) == 0
    }
}
