//! Where translated code is in this process, whose memory the real processor finds there in a comparison.

use std::fs;
use std::ops::Range;

/// Returns the addresses of all translated code in this process (Linux, Documentation/filesystems/proc.rst,
/// `maps`).
pub(crate) fn translated_code() -> Vec<Range<u64>> {
    let maps = fs::read_to_string("/proc/self/maps").unwrap();
    let is_code = |line: &&str| line.contains(" r-xs ") && line.contains("translated");
    let number = |text: &str| u64::from_str_radix(text, 16).unwrap();
    let range = |line: &str| {
        let (start, rest) = line.split_once('-').unwrap();
        number(start)..number(rest.split(' ').next().unwrap())
    };
    maps.lines().filter(is_code).map(range).collect()
}
