//! What a space keeps when guest-physical memory gets another map.

use std::io;

use ring3_core::memory::{Memory, Target};

use super::LongSpace;

impl LongSpace {
    /// Drops what is at another place now, or is no longer RAM.
    pub(crate) fn check_places(&mut self, memory: &Memory) -> io::Result<()> {
        let mapped = self.mapped.iter().filter(|(_, mapped)| {
            let len = mapped.len as u64;
            let is_there = memory.run_of_places(mapped.address, len) == Some(mapped.place);
            !is_there || !memory.holds(mapped.address, len)
        });
        let gone: Vec<_> = mapped.map(|(start, mapped)| (*start, mapped.len)).collect();
        for (start, len) in gone {
            self.units.unmap(start, len)?;
            self.mapped.remove(&start);
        }
        let before = self.fetched.len();
        self.fetched.retain(|_, fetched| {
            memory.read_target(fetched.address) == Target::Place(fetched.place)
        });
        if self.fetched.len() != before {
            self.forget_targets();
        }
        Ok(())
    }
}
