//! Random numbers for tests, which are always and everywhere the same for the same seed.

/// A generator of random numbers: SplitMix64 (Steele, Lea and Flood, *Fast splittable
/// pseudorandom number generators*, 2014).
#[derive(Debug, Clone)]
pub(crate) struct Random {
    state: u64,
    /// Bytes that are used, from the end, instead of random bits, as long as there are any.
    given: Vec<u8>,
}

impl Random {
    /// The numbers of case `case` in the series `seed`, so that any case can be run alone.
    pub(crate) fn new(seed: u64, case: u64) -> Random {
        let mut seeds = Random { state: seed, given: Vec::new() };
        let state = seeds.next() ^ case.wrapping_mul(0xd134_2543_de82_ef95);
        Random { state, given: Vec::new() }
    }

    /// The numbers made from `given`, and then those of the series `seed`.
    pub(crate) fn given(given: &[u8], seed: u64) -> Random {
        Random { given: given.iter().rev().copied().collect(), ..Random::new(seed, 0) }
    }

    /// 64 random bits.
    pub(crate) fn next(&mut self) -> u64 {
        if let Some(bytes) = self.take_given() {
            return u64::from_le_bytes(bytes);
        }
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.state ^ self.state >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }

    /// 32 random bits.
    pub(crate) fn bits(&mut self) -> u32 {
        match self.take_given() {
            Some(bytes) => u32::from_le_bytes(bytes),
            None => (self.next() >> 32) as u32,
        }
    }

    /// The next given bytes, completed with zeros, or `None` if there are none left.
    fn take_given<const N: usize>(&mut self) -> Option<[u8; N]> {
        if self.given.is_empty() {
            return None;
        }
        Some(std::array::from_fn(|_| self.given.pop().unwrap_or(0)))
    }

    /// 0 to `end - 1`.
    pub(crate) fn below(&mut self, end: u32) -> u32 {
        ((u64::from(self.bits()) * u64::from(end)) >> 32) as u32
    }

    /// Returns true in `chance` of a hundred cases.
    pub(crate) fn percent(&mut self, chance: u32) -> bool {
        self.below(100) < chance
    }

    /// One of `choices`.
    pub(crate) fn pick<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len() as u32) as usize]
    }

    /// A number with which instructions often go wrong: often at the edge of a range, often small, sometimes
    /// any number.
    pub(crate) fn number(&mut self) -> u32 {
        const EDGES: [u32; 24] = [
            0,
            1,
            2,
            0xffff_ffff,
            0xffff_fffe,
            0x8000_0000,
            0x8000_0001,
            0x7fff_ffff,
            0x7fff_fffe,
            0x80,
            0x7f,
            0xff,
            0x100,
            0xffff_ff80,
            0xffff_ff7f,
            0x8000,
            0x7fff,
            0xffff,
            0x1_0000,
            0xffff_8000,
            0xffff_7fff,
            0x8080_8080,
            0x5555_5555,
            0xaaaa_aaaa,
        ];
        /// Counts of shifts at which the behaviour changes.
        const COUNTS: [u32; 14] = [0, 1, 2, 7, 8, 9, 15, 16, 17, 18, 30, 31, 32, 33];
        match self.below(10) {
            0..=3 => self.pick(&EDGES),
            4 => self.pick(&EDGES).wrapping_add(self.below(5)).wrapping_sub(2),
            5 => self.pick(&COUNTS),
            6 => self.below(64),
            7 => 1 << self.below(32),
            // Each byte is an edge of its own.
            8 => u32::from_le_bytes(std::array::from_fn(|_| self.pick(&EDGES) as u8)),
            _ => self.bits(),
        }
    }
}
