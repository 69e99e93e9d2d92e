//! The arithmetic of the Internet's checksums (RFC 1071). A checksum field holds the complement of the
//! [`folded`] [`sum`] of the bytes that the checksum covers.

/// Returns the sum of the big-endian words in `bytes`; zeros complete the last word (section 1). It does not
/// overflow for fewer than 4 GiB.
pub fn sum(bytes: &[u8]) -> u64 {
    let mut words = bytes.chunks_exact(4);
    let of_dwords: u64 = words
        .by_ref()
        .map(|word| u64::from(u32::from_be_bytes([word[0], word[1], word[2], word[3]])))
        .sum();
    let mut last = [0; 4];
    last[..words.remainder().len()].copy_from_slice(words.remainder());
    of_dwords + u64::from(u32::from_be_bytes(last))
}

/// Adds the carries of a sum to it until the result fits into a word.
pub fn folded(mut sum: u64) -> u16 {
    while sum > 0xffff {
        sum = (sum >> 16) + (sum & 0xffff);
    }
    sum as u16
}
