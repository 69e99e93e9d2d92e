//! Operand sizes: one trait for byte, word and doubleword, so that an instruction is written once for all of
//! them.

use ring3_core::memory::Memory;

/// An operand of 8, 16, 32 or 64 bits.
pub trait Word: Copy + Eq + std::fmt::Debug + 'static {
    /// Size in bits.
    const BITS: u32;
    /// Size in bytes.
    const BYTES: usize = Self::BITS as usize / 8;
    /// The sign bit alone.
    const SIGN: u64 = 1 << (Self::BITS - 1);
    /// All bits.
    const MASK: u64 = u64::MAX >> (64 - Self::BITS);

    /// Returns the low bits of `value`.
    fn truncate(value: u64) -> Self;
    /// Returns the value, zero-extended to 64 bits.
    fn zero_extend(self) -> u64;
    /// Returns the value, sign-extended to 64 bits.
    fn sign_extend(self) -> u64;
    /// Reads a value at place `address` (see [`Memory::load`]).
    fn load(memory: &Memory, address: usize) -> Self;
    /// Writes the value at place `address` (see [`Memory::store`]).
    fn store(self, memory: &mut Memory, address: usize);
}

macro_rules! word {
    ($unsigned:ty, $signed:ty) => {
        impl Word for $unsigned {
            const BITS: u32 = <$unsigned>::BITS;

            #[inline(always)]
            fn truncate(value: u64) -> Self {
                value as Self
            }

            #[inline(always)]
            fn zero_extend(self) -> u64 {
                self as u64
            }

            #[inline(always)]
            fn sign_extend(self) -> u64 {
                self as $signed as i64 as u64
            }

            #[inline(always)]
            fn load(memory: &Memory, address: usize) -> Self {
                Self::from_le_bytes(memory.load(address))
            }

            #[inline(always)]
            fn store(self, memory: &mut Memory, address: usize) {
                memory.store(address, self.to_le_bytes());
            }
        }
    };
}

word!(u8, i8);
word!(u16, i16);
word!(u32, i32);
word!(u64, i64);
