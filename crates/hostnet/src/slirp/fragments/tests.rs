use super::*;

const SECOND: Duration = Duration::from_secs(1);

/// Makes a frame with one fragment; `offset` is in bytes.
fn fragment(identification: u16, offset: usize, more: bool, payload: &[u8]) -> Vec<u8> {
    let mut frame = vec![0; 12];
    frame.extend([8, 0, 0x45, 0]);
    frame.extend((20 + payload.len() as u16).to_be_bytes());
    frame.extend(identification.to_be_bytes());
    frame.extend(((offset / 8) as u16 | u16::from(more) << 13).to_be_bytes());
    frame.extend([64, 17, 0, 0, 10, 0, 2, 15, 10, 0, 2, 2]);
    set_checksum(&mut frame[ETHERNET_LEN..]);
    frame.extend(payload);
    frame
}

impl Fragments {
    fn give(&mut self, frame: &[u8], now: Duration) -> Option<Vec<u8>> {
        let ip = Ipv4::of(frame).expect("a sound header");
        self.take(frame, &ip, now).map(Cow::into_owned)
    }
}

fn noise(len: usize, mut state: u64) -> Vec<u8> {
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state as u8
    };
    (0..len).map(|_| next()).collect()
}

/// Cuts a datagram with `payload` into fragments of `size` bytes.
fn cut(identification: u16, payload: &[u8], size: usize) -> Vec<Vec<u8>> {
    let offsets = (0..payload.len()).step_by(size);
    let of = |offset: usize| {
        let end = payload.len().min(offset + size);
        fragment(identification, offset, end < payload.len(), &payload[offset..end])
    };
    offsets.map(of).collect()
}

#[test]
fn a_datagram_is_whole_in_whatever_order_its_fragments_come() {
    for (len, size) in [(9, 8), (100, 8), (3000, 1480), (40_000, 1480), (65_515, 1480), (500, 24)] {
        let payload = noise(len, 0x9e37_79b9 + len as u64);
        let whole = fragment(7, 0, false, &[]);
        for seed in 1..20 {
            let mut frames = cut(7, &payload, size);
            // The orders range from the right one to any order, as long as there are not too many gaps.
            let reach = [1, 2, 5, 100][seed % 4];
            for (index, byte) in noise(frames.len(), seed as u64).into_iter().enumerate() {
                let other = (index + usize::from(byte) % reach).min(frames.len() - 1);
                frames.swap(index, other);
            }
            let mut fragments = Fragments::default();
            let (last, others) = frames.split_last().unwrap();
            for frame in others {
                assert_eq!(fragments.give(frame, SECOND), None);
                // A duplicate changes nothing.
                assert_eq!(fragments.give(frame, SECOND), None);
            }
            let frame = fragments.give(last, SECOND).expect("it is whole");
            let ip = Ipv4::of(&frame).expect("a sound header");
            assert!(!ip.is_fragment() && ip.payload() == payload, "{len} {size} {seed}");
            assert_eq!(ip.headers()[..ETHERNET_LEN + 2], whole[..ETHERNET_LEN + 2]);
            assert_eq!(fragments.bytes(), 0);
        }
    }
}

/// Fragments that contradict the first one, and whether the datagram is complete after them.
#[test]
fn fragments_that_contradict_each_other_are_dropped() {
    let bytes = |len: usize, value: u8| vec![value; len];
    let (a, b) = (bytes(16, 1), bytes(16, 2));
    let cases: [(&str, Vec<Vec<u8>>, bool); 14] = [
        ("both", vec![fragment(1, 0, true, &a), fragment(1, 16, false, &b)], true),
        ("a last one alone", vec![fragment(1, 16, false, &b)], false),
        ("a first one alone", vec![fragment(1, 0, true, &a)], false),
        ("of another datagram", vec![fragment(1, 0, true, &a), fragment(2, 16, false, &b)], false),
        ("an overlap", vec![fragment(1, 0, true, &a), fragment(1, 8, false, &b)], false),
        (
            "an overlap, and then what would have been right",
            vec![
                fragment(1, 0, true, &a),
                fragment(1, 8, true, &b),
                fragment(1, 0, true, &a),
                fragment(1, 16, false, &b),
            ],
            false,
        ),
        (
            "the same place with other bytes",
            vec![fragment(1, 0, true, &a), fragment(1, 0, true, &b), fragment(1, 16, false, &b)],
            false,
        ),
        (
            "two ends",
            vec![fragment(1, 16, false, &b), fragment(1, 32, false, &b), fragment(1, 0, true, &a)],
            false,
        ),
        (
            "something behind the end",
            vec![fragment(1, 16, false, &b), fragment(1, 32, true, &b), fragment(1, 0, true, &a)],
            false,
        ),
        (
            "an end before what has come",
            vec![fragment(1, 32, true, &b), fragment(1, 16, false, &b), fragment(1, 0, true, &a)],
            false,
        ),
        ("no bytes", vec![fragment(1, 0, true, &a), fragment(1, 16, false, &[])], false),
        (
            "a length that is no multiple of 8",
            vec![fragment(1, 0, true, &a[..9]), fragment(1, 16, false, &b)],
            false,
        ),
        ("beyond the longest datagram", vec![fragment(1, 65_528, false, &a)], false),
        (
            "an inner piece that lacks",
            vec![fragment(1, 0, true, &a), fragment(1, 32, false, &b)],
            false,
        ),
    ];
    for (case, frames, is_whole) in cases {
        let mut fragments = Fragments::default();
        let results: Vec<_> = frames.iter().map(|frame| fragments.give(frame, SECOND)).collect();
        assert!(results[..results.len() - 1].iter().all(Option::is_none), "{case}");
        assert_eq!(results.last().unwrap().is_some(), is_whole, "{case}");
    }
    // The flag that must be zero: libslirp would take the datagram for a fragment.
    let mut reserved = fragment(1, 0, false, &a);
    reserved[ETHERNET_LEN + 6] = 0x80;
    set_checksum(&mut reserved[ETHERNET_LEN..]);
    assert_eq!(Fragments::default().give(&reserved, SECOND), None);
}

/// Options in the header of the first fragment make the datagram longer than its offsets say.
#[test]
fn the_longest_datagram_counts_its_header() {
    let payload = noise(65_515, 3);
    let mut frames = cut(1, &payload, 1480);
    let first = &mut frames[0];
    first[ETHERNET_LEN] = 0x46;
    first.splice(ETHERNET_LEN + 20..ETHERNET_LEN + 20, [1, 1, 1, 0]);
    let len = (first.len() - ETHERNET_LEN) as u16;
    first[ETHERNET_LEN + 2..][..2].copy_from_slice(&len.to_be_bytes());
    set_checksum(&mut first[ETHERNET_LEN..]);
    let mut fragments = Fragments::default();
    for frame in frames.iter().rev() {
        assert_eq!(fragments.give(frame, SECOND), None);
    }
}

#[test]
fn memory_and_time_are_bounded() {
    let mut fragments = Fragments::default();
    // Datagrams as large as possible, without their first fragments.
    for identification in 0..2000 {
        let piece = noise(1480, 9);
        for offset in [8, 32_000, 64_000] {
            fragments.give(&fragment(identification, offset, true, &piece), SECOND);
            assert!(fragments.bytes() <= BYTES_MAX && fragments.datagrams.len() <= DATAGRAMS_MAX);
        }
    }
    // Tiny fragments with gaps between them.
    let mut fragments = Fragments::default();
    for offset in (0..65_000).step_by(16) {
        fragments.give(&fragment(1, offset, true, &[0; 8]), SECOND);
        assert!(fragments.datagrams[0].pieces.len() <= GAPS_MAX + 1);
    }
    assert!(fragments.datagrams[0].is_bad);
    // The second half comes too late, and begins another datagram.
    let mut fragments = Fragments::default();
    fragments.give(&fragment(1, 0, true, &[1; 16]), SECOND);
    let late = SECOND + PATIENCE;
    assert_eq!(fragments.give(&fragment(1, 16, false, &[2; 16]), late), None);
    assert_eq!(fragments.datagrams.len(), 1);
    assert!(fragments.give(&fragment(1, 0, true, &[1; 16]), late + SECOND).is_some());
}
