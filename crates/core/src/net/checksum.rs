//! The arithmetic of the Internet's checksums (RFC 1071): a field has the complement of the [`folded`] [`sum`] of what it covers.

/// The sum of big-endian words, the last one filled up with zeros (section 1). Of less than 4 GiB it does not overflow.
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

/// A sum with its carries added again, until it is a word.
pub fn folded(mut sum: u64) -> u16 {
    while sum > 0xffff {
        sum = (sum >> 16) + (sum & 0xffff);
    }
    sum as u16
}
