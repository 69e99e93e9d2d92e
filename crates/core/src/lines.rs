//! IRQ lines: the wires from devices to the interrupt controllers.

use serde::{Deserialize, Serialize};

/// The 16 IRQ lines of the ISA bus (IRQ 0 to IRQ 15), and the interrupt pins of the PCI functions, which the
/// chipset's router connects to these lines. Lines 16 to 23 go only to the inputs of the I/O APIC with these
/// numbers.
///
/// A device sets the level of its line or pin. The board passes every change on to the interrupt controllers,
/// in the order in which the changes happened, so that a line that goes low and high again within one access
/// is still an edge. A line is high while an ISA device or any PCI pin that is routed to it drives it.
#[derive(Debug, Default)]
pub struct IrqLines {
    state: LineLevels,
    changes: Vec<(u8, bool)>,
    messages: Vec<Message>,
}

/// An interrupt that a PCI device sends without a line, by a write to an address (PCI Local Bus Specification
/// 3.0, 6.8).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Message {
    /// The address written; a local APIC listens at FEE00000h to FEEFFFFFh.
    pub address: u64,
    /// The value written.
    pub data: u32,
}

/// The drivers of the lines, which a saved machine keeps.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LineLevels {
    /// A bit for each line that an ISA device drives.
    isa: u16,
    /// For each line, a bit for each of its sharing devices that drives it.
    shared: [u8; IrqLines::ALL as usize],
    /// For the lines of the timers (IRQ 0 and IRQ 8), a bit for each that the replacement of their own
    /// devices drives.
    replacement: u16,
    /// Whether the replacement drives these lines now.
    is_replaced: bool,
    /// For each router input PIRQA to PIRQD, a bit for each PCI device number that drives it.
    pci: [u32; IrqLines::ROUTER_INPUTS as usize],
    /// For each router input, the line to which it is routed.
    routes: [Option<u8>; IrqLines::ROUTER_INPUTS as usize],
}

impl LineLevels {
    fn levels(&self) -> u32 {
        let routed = self.pci.iter().zip(&self.routes).filter(|(drivers, _)| **drivers != 0);
        let shared = (0..).zip(&self.shared).filter(|(_, drivers)| **drivers != 0);
        let lines = routed.filter_map(|(_, line)| *line).chain(shared.map(|(line, _)| line));
        let isa = if self.is_replaced {
            self.isa & !IrqLines::OF_TIMERS | self.replacement & IrqLines::OF_TIMERS
        } else {
            self.isa
        };
        lines.fold(isa.into(), |levels, line| levels | 1 << line)
    }
}

impl IrqLines {
    /// Number of lines of the ISA bus.
    pub const COUNT: u8 = 16;
    /// Number of all lines, including those that go only to the I/O APIC.
    pub const ALL: u8 = 24;
    /// The bits of IRQ 0 and IRQ 8.
    const OF_TIMERS: u16 = 1 << 0 | 1 << 8;
    /// Number of inputs of the PCI interrupt router.
    pub const ROUTER_INPUTS: u8 = 4;

    // Devices drive their lines anew at every event, so as a rule nothing changes.

    /// Drives line `line` (0 to 15; others are ignored) high or low.
    pub fn set(&mut self, line: u8, high: bool) {
        if line < Self::COUNT && (self.state.isa >> line & 1 != 0) != high {
            self.change(|state| state.isa ^= 1 << line);
        }
    }

    /// Drives line `line` (0 to 23) high or low for `driver` (0 to 7), one of up to eight devices that share
    /// it. The line is high while any of them drives it, as with cards that drive it by open collectors.
    /// Other numbers are ignored.
    pub fn set_shared(&mut self, line: u8, driver: u8, high: bool) {
        if line < Self::ALL
            && driver < u8::BITS as u8
            && (self.state.shared[usize::from(line)] >> driver & 1 != 0) != high
        {
            self.change(|state| state.shared[usize::from(line)] ^= 1 << driver);
        }
    }

    /// Lets [`IrqLines::set_replacement`] alone drive the lines of the interval timer (IRQ 0) and the
    /// real-time clock (IRQ 8) from now on, or gives the lines back to these devices.
    pub fn replace_timers(&mut self, replaces: bool) {
        if self.state.is_replaced != replaces {
            self.change(|state| state.is_replaced = replaces);
        }
    }

    /// Returns whether the interval timer and the real-time clock are cut off from their lines.
    pub fn timers_are_replaced(&self) -> bool {
        self.state.is_replaced
    }

    /// Drives line 0 or 8 (others are ignored) high or low. This takes effect while [timers are
    /// replaced](IrqLines::replace_timers).
    pub fn set_replacement(&mut self, line: u8, high: bool) {
        let bit = if line < Self::COUNT { (1 << line) & Self::OF_TIMERS } else { 0 };
        if (self.state.replacement & bit != 0) != high {
            self.change(|state| state.replacement ^= bit);
        }
    }

    /// Asserts or deasserts interrupt pin `pin` (0 for INTA# to 3 for INTD#) of PCI device number `slot` (0
    /// to 31). The pin of slot n is wired to router input n - 1 + pin, as on the boards with this chipset. A
    /// device combines the requests of its functions itself.
    pub fn set_pci(&mut self, slot: u8, pin: u8, asserted: bool) {
        let input = slot.wrapping_add(pin).wrapping_sub(1) % Self::ROUTER_INPUTS;
        let slot = slot % 32;
        if (self.state.pci[usize::from(input)] >> slot & 1 != 0) != asserted {
            self.change(|state| state.pci[usize::from(input)] ^= 1 << slot);
        }
    }

    /// Routes input `input` (0 for PIRQA to 3; others are ignored) to line `line`, or to none.
    pub fn route(&mut self, input: u8, line: Option<u8>) {
        if input < Self::ROUTER_INPUTS {
            let line = line.filter(|line| *line < Self::COUNT);
            self.change(|state| state.routes[usize::from(input)] = line);
        }
    }

    fn change(&mut self, change: impl FnOnce(&mut LineLevels)) {
        let before = self.state.levels();
        change(&mut self.state);
        let after = self.state.levels();
        for line in (0..Self::ALL).filter(|line| (before ^ after) >> line & 1 != 0) {
            self.changes.push((line, after >> line & 1 != 0));
        }
    }

    /// Returns whether line `line` is high. A line that does not exist is low.
    pub fn is_high(&self, line: u8) -> bool {
        line < Self::ALL && self.state.levels() >> line & 1 != 0
    }

    /// Returns the drivers of the lines, for a saved machine.
    pub fn levels(&self) -> LineLevels {
        self.state.clone()
    }

    /// Restores the levels of a saved machine, without edges.
    pub fn restore(&mut self, levels: LineLevels) {
        self.state = levels;
        self.changes.clear();
    }

    /// Returns the changes since the last call, oldest first: line and new level.
    pub fn drain_changes(&mut self) -> std::vec::Drain<'_, (u8, bool)> {
        self.changes.drain(..)
    }

    /// Sends an interrupt as a message.
    pub fn send_message(&mut self, message: Message) {
        self.messages.push(message);
    }

    /// Returns the messages since the last call, oldest first.
    pub fn drain_messages(&mut self) -> std::vec::Drain<'_, Message> {
        self.messages.drain(..)
    }

    /// Returns whether [`IrqLines::drain_changes`] would return something.
    pub fn has_changes(&self) -> bool {
        !self.changes.is_empty()
    }

    /// Returns whether [`IrqLines::drain_messages`] would return something.
    pub fn has_messages(&self) -> bool {
        !self.messages.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn edges_are_kept_in_order() {
        let mut lines = IrqLines::default();
        lines.set(4, true);
        lines.set(4, true);
        lines.set(4, false);
        lines.set(4, true);
        lines.set(99, true);
        assert!(lines.has_changes());
        assert_eq!(lines.drain_changes().collect::<Vec<_>>(), [(4, true), (4, false), (4, true)]);
        assert!(lines.is_high(4));
        assert!(!lines.is_high(99));
    }

    #[test]
    fn isa_devices_can_share_a_line() {
        let mut lines = IrqLines::default();
        lines.set_shared(4, 0, true);
        lines.set_shared(4, 2, true);
        lines.set_shared(4, 0, false);
        lines.set_shared(4, 8, true);
        lines.set_shared(24, 0, true);
        assert_eq!(lines.drain_changes().collect::<Vec<_>>(), [(4, true)]);
        lines.set(4, true);
        lines.set_shared(4, 2, false);
        assert!(!lines.has_changes());
        lines.set(4, false);
        assert_eq!(lines.drain_changes().collect::<Vec<_>>(), [(4, false)]);
    }

    #[test]
    fn lines_to_the_io_apic_alone_are_no_isa_devices() {
        let mut lines = IrqLines::default();
        lines.set(16, true);
        assert!(!lines.has_changes());
        lines.set_shared(23, 1, true);
        lines.set_shared(16, 0, true);
        assert_eq!(lines.drain_changes().collect::<Vec<_>>(), [(23, true), (16, true)]);
        assert!(lines.is_high(23) && !lines.is_high(17));
    }

    #[test]
    fn the_lines_of_the_timers_can_be_replaced() {
        let mut lines = IrqLines::default();
        lines.set(0, true);
        lines.set(3, true);
        lines.set_replacement(8, true);
        lines.set_replacement(5, true);
        lines.drain_changes();
        lines.replace_timers(true);
        assert_eq!(lines.drain_changes().collect::<Vec<_>>(), [(0, false), (8, true)]);
        lines.set(8, true);
        lines.set(8, false);
        lines.set_replacement(8, false);
        assert!(lines.timers_are_replaced());
        assert_eq!(lines.drain_changes().collect::<Vec<_>>(), [(8, false)]);
        lines.replace_timers(false);
        assert_eq!(lines.drain_changes().collect::<Vec<_>>(), [(0, true)]);
    }

    #[test]
    fn pci_pins_share_lines() {
        let mut lines = IrqLines::default();
        lines.route(0, Some(11));
        lines.route(1, Some(11));
        lines.set_pci(1, 0, true);
        lines.set_pci(2, 0, true);
        lines.set_pci(5, 0, true);
        lines.set_pci(1, 0, false);
        lines.set_pci(5, 0, false);
        assert_eq!(lines.drain_changes().collect::<Vec<_>>(), [(11, true)]);
        lines.route(1, None);
        lines.route(9, Some(1));
        assert_eq!(lines.drain_changes().collect::<Vec<_>>(), [(11, false)]);
        lines.route(1, Some(5));
        assert_eq!(lines.drain_changes().collect::<Vec<_>>(), [(5, true)]);
    }
}
