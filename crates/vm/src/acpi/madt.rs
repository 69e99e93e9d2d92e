//! The Multiple APIC Description Table (ACPI 6.5, 5.2.12): one processor with its local APIC, the I/O APIC,
//! and the IRQ lines that are not at the input with their own number, or not triggered by edges.

use acpi_tables::madt::{EnabledStatus, IoApic, ProcessorLocalApic};
use acpi_tables::sdt::Sdt;
use ring3_devices::{acpi_pm, io_apic, local_apic};

use super::dsdt::ROUTABLE;
use super::{HEADER_LEN, OEM_ID, OEM_REVISION, OEM_TABLE_ID, bytes};

/// The revision with the structures that are used here.
const REVISION: u8 = 1;
/// Flag: there are two 8259A as well.
const PCAT_COMPAT: u32 = 1 << 0;
/// The type of an interrupt source override (ACPI 6.5, 5.2.12.5).
const OVERRIDE: u8 = 2;
/// The type of a local APIC NMI (ACPI 6.5, 5.2.12.7).
const LOCAL_APIC_NMI: u8 = 4;
/// The processor UID that stands for all processors.
const EVERY_PROCESSOR: u8 = 0xff;
/// MPS INTI flags: as usual on the bus, which on ISA is edges of an active-high line.
const OF_THE_BUS: u16 = 0;
/// MPS INTI flags: an active-high level.
const ACTIVE_HIGH_LEVEL: u16 = 0b11 << 2 | 0b01;

/// Returns the table.
pub(super) fn madt() -> Sdt {
    let body = [
        (local_apic::DEFAULT_ADDRESS as u32).to_le_bytes().to_vec(),
        PCAT_COMPAT.to_le_bytes().to_vec(),
        bytes(&ProcessorLocalApic::new(0, 0, EnabledStatus::Enabled)),
        bytes(&IoApic::new(0, io_apic::ADDRESS as u32, 0)),
        source_override(0, io_apic::INPUT_IRQ0, OF_THE_BUS),
        source_override(acpi_pm::SCI_IRQ, acpi_pm::SCI_IRQ, ACTIVE_HIGH_LEVEL),
        ROUTABLE.map(|line| source_override(line, line, ACTIVE_HIGH_LEVEL)).concat(),
        vec![LOCAL_APIC_NMI, 6, EVERY_PROCESSOR, 0, 0, local_apic::LINT_NMI as u8],
    ];
    let len = HEADER_LEN as u32;
    let mut madt = Sdt::new(*b"APIC", len, REVISION, OEM_ID, OEM_TABLE_ID, OEM_REVISION);
    madt.append_slice(&body.concat());
    madt
}

/// Returns a structure that says that IRQ line `irq` is at input `input` of the I/O APIC.
fn source_override(irq: u8, input: u8, flags: u16) -> Vec<u8> {
    let input = u32::from(input).to_le_bytes();
    [&[OVERRIDE, 10, 0, irq][..], &input, &flags.to_le_bytes()].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_structures_say_where_the_apics_are() {
        let madt = madt();
        let madt = madt.as_slice();
        assert_eq!(madt[36..44], [0, 0, 0xe0, 0xfe, 1, 0, 0, 0], "local APICs and flags");
        let (mut rest, mut structures) = (&madt[44..], Vec::new());
        while let [_, length, ..] = rest {
            let (structure, others) = rest.split_at(usize::from(*length));
            structures.push(structure);
            rest = others;
        }
        let expected: [&[u8]; 8] = [
            &[0, 8, 0, 0, 1, 0, 0, 0],
            &[1, 12, 0, 0, 0, 0, 0xc0, 0xfe, 0, 0, 0, 0],
            &[2, 10, 0, 0, 2, 0, 0, 0, 0, 0],
            &[2, 10, 0, 9, 9, 0, 0, 0, 0xd, 0],
            &[2, 10, 0, 5, 5, 0, 0, 0, 0xd, 0],
            &[2, 10, 0, 10, 10, 0, 0, 0, 0xd, 0],
            &[2, 10, 0, 11, 11, 0, 0, 0, 0xd, 0],
            &[4, 6, 0xff, 0, 0, 1],
        ];
        assert_eq!(structures, expected);
    }
}
