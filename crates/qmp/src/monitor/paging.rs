//! `info tlb`: the pages that the page tables of the running code map, as QEMU shows them (SDM vol. 3, 5.3 to
//! 5.5).

use std::fmt::Write;

use ring3_vm::inspect::MemoryRange;

use crate::commands::Machine;
use crate::protocol::Failure;

/// The most pages that are shown, since there can be a million.
const SHOWN_MAX: usize = 20_000;
/// The most tables that are looked at: without a page, a guest can make them lead to each other millions of times.
const TABLES_MAX: usize = 20_000;

const CR0_PG: u64 = 1 << 31;
const CR4_PSE: u64 = 1 << 4;
const CR4_PAE: u64 = 1 << 5;

/// Bits of an entry, with the letters by which QEMU shows them.
const LETTERS: [(u64, char); 9] = [
    (1 << 63, 'X'),
    (1 << 8, 'G'),
    (LARGE, 'P'),
    (1 << 6, 'D'),
    (1 << 5, 'A'),
    (1 << 4, 'C'),
    (1 << 3, 'T'),
    (1 << 2, 'U'),
    (1 << 1, 'W'),
];
const PRESENT: u64 = 1 << 0;
const LARGE: u64 = 1 << 7;
/// The address in an entry.
const ADDRESS: u64 = 0x000f_ffff_ffff_f000;
const PAGE: u64 = 0x1000;

/// Shows the pages.
pub(super) fn pages(machine: &Machine) -> Result<String, Failure> {
    let registers = machine.control.registers()?;
    let [cr0, _, cr3, cr4] = registers.control;
    if cr0 & CR0_PG == 0 {
        return Ok("PG disabled".to_owned());
    }
    let mut shown = Shown { text: String::new(), left: SHOWN_MAX, tables: TABLES_MAX };
    if cr4 & CR4_PAE == 0 {
        let large = (cr4 & CR4_PSE) << 3;
        let tables = Tables { machine, bytes: 4, large };
        tables.show(cr3 & 0xffff_f000, 0, &[22, 12], &mut shown)?;
    } else {
        let tables = Tables { machine, bytes: 8, large: LARGE };
        if registers.is_in_long_mode() {
            tables.show(cr3 & ADDRESS, 0, &[39, 30, 21, 12], &mut shown)?;
        } else {
            let pointers = tables.entries(cr3 & 0xffff_ffe0, 4)?;
            for (linear, pointer) in (0..).step_by(1 << 30).zip(pointers) {
                if pointer & PRESENT != 0 {
                    tables.show(pointer & ADDRESS, linear, &[21, 12], &mut shown)?;
                }
            }
        }
    }
    if shown.is_full() {
        let _ = writeln!(shown.text, "and more: only {SHOWN_MAX} pages are shown");
    }
    Ok(shown.text)
}

/// The lines so far.
struct Shown {
    text: String,
    /// How many more may follow, and how many more tables may be looked at.
    left: usize,
    tables: usize,
}

impl Shown {
    fn is_full(&self) -> bool {
        self.left == 0 || self.tables == 0
    }

    fn page(&mut self, linear: u64, physical: u64, entry: u64) {
        if self.left == 0 {
            return;
        }
        self.left -= 1;
        let letter = |(bit, letter): (u64, char)| if entry & bit != 0 { letter } else { '-' };
        let letters: String = LETTERS.map(letter).iter().collect();
        // Bit 47 of an address is repeated in those above it.
        let linear = (linear << 16).cast_signed() >> 16;
        // Writing to a string cannot fail.
        let _ = writeln!(self.text, "{linear:016x}: {physical:016x} {letters}");
    }
}

/// Page directories and tables in the guest's memory.
struct Tables<'a> {
    machine: &'a Machine,
    /// The size of an entry.
    bytes: u64,
    /// The bit of an entry of a page directory that makes it one of a large page.
    large: u64,
}

impl Tables<'_> {
    /// Returns the `count` entries at a physical address.
    fn entries(&self, address: u64, count: u64) -> Result<Vec<u64>, Failure> {
        let len = (count * self.bytes) as usize;
        let range = MemoryRange { address, len, is_linear: false };
        let bytes = self.machine.control.read_memory(range)?.unwrap_or_default();
        let entry =
            |bytes: &[u8]| bytes.iter().rev().fold(0, |value, byte| value << 8 | u64::from(*byte));
        Ok(bytes.chunks(self.bytes as usize).map(entry).collect())
    }

    /// Shows the pages of the table at `address`, which maps memory from `linear` on. `shifts` has, for this level
    /// and those below it, the lowest bit of a linear address that selects an entry.
    fn show(
        &self,
        address: u64,
        linear: u64,
        shifts: &[u32],
        shown: &mut Shown,
    ) -> Result<(), Failure> {
        let Some((shift, below)) = shifts.split_first() else { return Ok(()) };
        shown.tables = shown.tables.saturating_sub(1);
        for (number, entry) in (0..).zip(self.entries(address, PAGE / self.bytes)?) {
            let linear = linear + (number << shift);
            if entry & PRESENT == 0 || shown.is_full() {
                continue;
            }
            if below.is_empty() {
                // In the entry of a small page, this bit is another one (PAT).
                shown.page(linear, entry & ADDRESS, entry & !LARGE);
            } else if entry & self.large != 0 {
                shown.page(linear, entry & ADDRESS & !((1 << shift) - 1), entry);
            } else {
                self.show(entry & ADDRESS, linear, below, shown)?;
            }
        }
        Ok(())
    }
}
