//! Hash maps by addresses. They need no protection against whoever chooses the addresses: a guest that
//! chooses them badly only slows itself down.

use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasherDefault, Hasher};

/// A hasher that multiplies (Knuth, *The Art of Computer Programming*, vol. 3, 6.4).
#[derive(Debug, Default)]
pub(crate) struct Multiply(u64);

impl Hasher for Multiply {
    fn finish(&self) -> u64 {
        // Maps take the low bits of the hash, and the low bits of a product depend only on those of its
        // factors, which are equal for the addresses of all pages.
        self.0.rotate_left(32)
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u64((*byte).into());
        }
    }

    fn write_u32(&mut self, number: u32) {
        self.write_u64(number.into());
    }

    fn write_usize(&mut self, number: usize) {
        self.write_u64(number as u64);
    }

    fn write_u64(&mut self, number: u64) {
        self.0 = (self.0.rotate_left(29) ^ number).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }
}

/// A map by addresses.
pub(crate) type Map<K, V> = HashMap<K, V, BuildHasherDefault<Multiply>>;
/// A set of addresses.
pub(crate) type Set<K> = HashSet<K, BuildHasherDefault<Multiply>>;
