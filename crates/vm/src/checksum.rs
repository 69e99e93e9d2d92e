//! Sums of bytes, by which firmware and systems recognize the tables and ROMs that are made for them: all
//! bytes of one sum up to 0.

/// The sum of `bytes`, modulo 256.
pub(crate) fn sum(bytes: &[u8]) -> u8 {
    bytes.iter().fold(0, |sum, byte| sum.wrapping_add(*byte))
}

/// Changes the byte at `place` so that the sum of all `bytes` is 0.
pub(crate) fn make_sum_zero(bytes: &mut [u8], place: usize) {
    bytes[place] = bytes[place].wrapping_sub(sum(bytes));
}
