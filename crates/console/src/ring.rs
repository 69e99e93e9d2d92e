//! The last bytes of a stream.

use std::collections::VecDeque;

/// Bytes with their positions in the stream. There are never more than a certain number; the oldest go first.
#[derive(Debug)]
pub(crate) struct Ring {
    bytes: VecDeque<u8>,
    most: usize,
    end: u64,
}

impl Ring {
    /// Makes one that keeps `most` bytes.
    pub(crate) fn new(most: usize) -> Ring {
        Ring { bytes: VecDeque::new(), most, end: 0 }
    }

    /// Adds bytes.
    pub(crate) fn push(&mut self, bytes: &[u8]) {
        self.end += bytes.len() as u64;
        let kept = &bytes[bytes.len().saturating_sub(self.most)..];
        let surplus = (self.bytes.len() + kept.len()).saturating_sub(self.most);
        self.bytes.drain(..surplus);
        self.bytes.extend(kept);
    }

    /// Returns the position behind the last byte.
    pub(crate) fn end(&self) -> u64 {
        self.end
    }

    /// Returns the position of the oldest byte.
    pub(crate) fn start(&self) -> u64 {
        self.end - self.bytes.len() as u64
    }

    /// Returns at most `most` bytes from position `from` on, or from the oldest byte if that one is gone.
    pub(crate) fn read(&self, from: u64, most: usize) -> Vec<u8> {
        let skipped = from.saturating_sub(self.start()) as usize;
        self.bytes.iter().skip(skipped).take(most).copied().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_bytes_go_first() {
        let mut ring = Ring::new(4);
        ring.push(b"abc");
        assert_eq!((ring.start(), ring.end(), ring.read(1, 9)), (0, 3, b"bc".to_vec()));
        ring.push(b"de");
        assert_eq!((ring.start(), ring.end(), ring.read(0, 2)), (1, 5, b"bc".to_vec()));
        ring.push(b"0123456789");
        assert_eq!((ring.start(), ring.end(), ring.read(0, 9)), (11, 15, b"6789".to_vec()));
        assert_eq!(ring.read(15, 9), b"");
        let mut none = Ring::new(0);
        none.push(b"x");
        assert_eq!((none.start(), none.end(), none.read(0, 1)), (1, 1, vec![]));
    }
}
