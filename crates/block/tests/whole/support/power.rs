//! Storage that loses everything that was not flushed.

use std::io;
use std::sync::Mutex;

use ring3_block::storage::{Memory, Storage};

/// A change of the storage, or a flush.
#[derive(Debug, Clone)]
pub(crate) enum Event {
    Write { offset: u64, bytes: Vec<u8> },
    Zero { offset: u64, len: u64 },
    Size(u64),
    Flush,
}

/// Memory that keeps a list of all changes.
#[derive(Debug, Default)]
pub(crate) struct Power {
    now: Memory,
    events: Mutex<Vec<Event>>,
}

/// Random numbers that depend only on a seed.
#[derive(Debug, Clone)]
pub(crate) struct Random(pub(crate) u64);

impl Random {
    /// Returns a number below `bound` (xorshift64*).
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 16) % bound
    }
}

impl Power {
    fn note(&self, event: Event) {
        self.events.lock().unwrap().push(event);
    }

    pub(crate) fn events(&self) -> Vec<Event> {
        self.events.lock().unwrap().clone()
    }

    pub(crate) fn len(&self) -> usize {
        self.events.lock().unwrap().len()
    }
}

/// Returns the contents after a power cut that follows the first `cut` events: all flushed data, and any part
/// of the others, in units of sectors.
pub(crate) fn left_after(events: &[Event], cut: usize, random: &mut Random) -> Vec<u8> {
    let flushed =
        events[..cut].iter().rposition(|event| matches!(event, Event::Flush)).unwrap_or(0);
    let memory = Memory::default();
    // Of the others either nothing is left, or a quarter, half, three quarters or all.
    let keeps = [0, 1, 2, 3, 4][random.below(5) as usize];
    for (index, event) in events[..cut].iter().enumerate() {
        let mut is_kept = || index < flushed || random.below(4) < keeps;
        match event {
            Event::Write { offset, bytes } => {
                for (sector, part) in bytes.chunks(512).enumerate() {
                    if is_kept() {
                        memory.write_at(part, offset + sector as u64 * 512).unwrap();
                    }
                }
            }
            Event::Zero { offset, len } => {
                if is_kept() {
                    memory.write_zeroes(*offset, *len).unwrap();
                }
            }
            Event::Size(size) => {
                if is_kept() {
                    memory.set_size(*size).unwrap();
                }
            }
            Event::Flush => {}
        }
    }
    memory.bytes()
}

impl Storage for Power {
    fn read_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<()> {
        self.now.read_at(bytes, offset)
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.note(Event::Write { offset, bytes: bytes.to_vec() });
        self.now.write_at(bytes, offset)
    }

    fn flush(&self) -> io::Result<()> {
        self.note(Event::Flush);
        Ok(())
    }

    fn size(&self) -> io::Result<u64> {
        self.now.size()
    }

    fn set_size(&self, size: u64) -> io::Result<()> {
        self.note(Event::Size(size));
        self.now.set_size(size)
    }

    fn write_zeroes(&self, offset: u64, len: u64) -> io::Result<()> {
        self.note(Event::Zero { offset, len });
        self.now.write_zeroes(offset, len)
    }

    /// Behaves like a disk that loses discarded data.
    fn discard(&self, offset: u64, len: u64) -> io::Result<()> {
        let len = self.now.size()?.saturating_sub(offset).min(len);
        if len == 0 { Ok(()) } else { self.write_zeroes(offset, len) }
    }

    fn run_at(&self, _offset: u64, end: u64) -> io::Result<(bool, u64)> {
        Ok((true, end))
    }
}
