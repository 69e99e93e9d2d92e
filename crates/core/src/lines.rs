//! IRQ lines: the wires from devices to the interrupt controllers.

/// The 16 IRQ lines of the ISA bus (IRQ 0 to IRQ 15).
///
/// A device sets the level of its line; the board passes every change on to
/// the interrupt controllers in the order in which they happened, so that a
/// line that goes down and up again within one access is still an edge.
#[derive(Debug, Default)]
pub struct IrqLines {
    levels: u16,
    changes: Vec<(u8, bool)>,
}

impl IrqLines {
    /// Number of lines.
    pub const COUNT: u8 = 16;

    /// Drives line `line` (0 to 15; others are ignored) high or low.
    pub fn set(&mut self, line: u8, high: bool) {
        if line >= Self::COUNT || self.is_high(line) == high {
            return;
        }
        self.levels ^= 1 << line;
        self.changes.push((line, high));
    }

    /// The level of line `line`; low for one that does not exist.
    pub fn is_high(&self, line: u8) -> bool {
        line < Self::COUNT && self.levels >> line & 1 != 0
    }

    /// All levels, one bit a line: what a saved machine keeps.
    pub fn levels(&self) -> u16 {
        self.levels
    }

    /// Puts the levels of a saved machine back, with no edges.
    pub fn restore(&mut self, levels: u16) {
        self.levels = levels;
        self.changes.clear();
    }

    /// The changes since the last call, oldest first: line and new level.
    pub fn drain_changes(&mut self) -> std::vec::Drain<'_, (u8, bool)> {
        self.changes.drain(..)
    }

    /// True when [`IrqLines::drain_changes`] would return something.
    pub fn has_changes(&self) -> bool {
        !self.changes.is_empty()
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
        assert_eq!(lines.levels(), 1 << 4);
        assert!(!lines.is_high(99));
    }
}
