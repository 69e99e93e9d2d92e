//! The System Resource Affinity Table (ACPI 6.5, 5.2.16) of a machine with room for more memory: all of it belongs to the only
//! processor.
//!
//! By it Linux knows how high addresses of memory can become, and makes room at its start for copies of what devices
//! that do not reach so far read and write.

use acpi_tables::sdt::Sdt;
use acpi_tables::srat::MemoryAffinity;
use ring3_core::memory::RamLayout;

use super::{HEADER_LEN, OEM_ID, OEM_REVISION, OEM_TABLE_ID, bytes};
use crate::config::Config;
use crate::extra_memory;

const REVISION: u8 = 1;
/// Behind the header: a word that is 1, and 8 reserved bytes.
const BEHIND_HEADER: [u8; 12] = [1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
/// The only domain.
const DOMAIN: u32 = 0;
/// Processor Local APIC Affinity (5.2.16.1): the processor with ID 0 is enabled, and in that domain.
const PROCESSOR: [u8; 16] = [0, 16, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];

/// Returns the table, if memory comes and goes.
pub(super) fn srat(config: &Config) -> Option<Sdt> {
    let region = extra_memory::region(config)?;
    let len = HEADER_LEN as u32;
    let mut table = Sdt::new(*b"SRAT", len, REVISION, OEM_ID, OEM_TABLE_ID, OEM_REVISION);
    table.append_slice(&BEHIND_HEADER);
    table.append_slice(&PROCESSOR);
    let mut add = |memory: MemoryAffinity| table.append_slice(&bytes(&memory.enabled()));
    for range in RamLayout::of(config.memory_bytes).ranges().iter().filter(|it| !it.is_empty()) {
        add(MemoryAffinity::new(DOMAIN, range.start, range.end - range.start));
    }
    add(MemoryAffinity::new(DOMAIN, region.start, region.end - region.start).hotpluggable());
    Some(table)
}

#[cfg(test)]
mod tests {
    use ring3_devices::virtio::memory::ExtraMemoryModel;

    use super::*;

    #[test]
    fn it_has_all_memory_that_may_be() {
        assert!(srat(&Config::default()).is_none());
        let extra_memory = Some(ExtraMemoryModel { region: 1 << 30, requested: 0 });
        let config = Config { memory_bytes: 4 << 30, extra_memory, ..Config::default() };
        let table = srat(&config).unwrap();
        let table = table.as_slice();
        assert_eq!(table.len(), 36 + 12 + 16 + 3 * 40);
        assert_eq!(table[4..8], (table.len() as u32).to_le_bytes());
        let (entries, _) = table[64..].as_chunks::<40>();
        let found: Vec<_> = entries
            .iter()
            .map(|entry| {
                assert_eq!(entry[..2], [1, 40]);
                let number = |at: usize| u64::from_le_bytes(entry[at..at + 8].try_into().unwrap());
                (number(8), number(16), entry[28])
            })
            .collect();
        assert_eq!(found, [(0, 3 << 30, 1), (4 << 30, 1 << 30, 1), (5 << 30, 1 << 30, 3)]);
    }
}
