//! Pieces of guest memory as a whole.

use ring3_core::memory::Memory;

use super::queue::Segment;

/// The bytes in `segments`, of which there are no more than some MiB.
pub(super) fn gather(memory: &Memory, segments: &[Segment]) -> Vec<u8> {
    let len: usize = segments.iter().map(|segment| segment.len as usize).sum();
    let mut bytes = vec![0; len];
    let mut rest = bytes.as_mut_slice();
    for segment in segments {
        let (part, after) = rest.split_at_mut(segment.len as usize);
        memory.read(segment.address, part);
        rest = after;
    }
    bytes
}

/// Writes `bytes` to `segments`, as far as there is room; how many.
pub(super) fn scatter(memory: &mut Memory, segments: &[Segment], bytes: &[u8]) -> u32 {
    let mut rest = bytes;
    for segment in segments {
        let (part, after) = rest.split_at(rest.len().min(segment.len as usize));
        memory.write(segment.address, part);
        rest = after;
    }
    (bytes.len() - rest.len()) as u32
}

/// Takes the first bytes of `segments` into `bytes`, however they are cut. False where there are fewer.
pub(super) fn take_front(memory: &Memory, segments: &mut Vec<Segment>, bytes: &mut [u8]) -> bool {
    let mut rest = bytes;
    while !rest.is_empty() {
        let Some(first) = segments.first_mut() else { return false };
        let len = rest.len().min(first.len as usize);
        let (part, after) = rest.split_at_mut(len);
        memory.read(first.address, part);
        rest = after;
        first.address = first.address.wrapping_add(len as u64);
        first.len -= len as u32;
        if first.len == 0 {
            segments.remove(0);
        }
    }
    true
}

/// Bytes of all of them.
pub(super) fn len(segments: &[Segment]) -> u64 {
    segments.iter().map(|segment| u64::from(segment.len)).sum()
}
