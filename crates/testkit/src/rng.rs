//! A small random generator whose numbers are the same everywhere, forever: replay lines rely on
//! it.

/// SplitMix64, or given choices.
#[derive(Debug, Clone)]
pub struct Rng {
    state: u64,
    /// Bytes from a fuzzer that give all choices, the next one last.
    given: Option<Vec<u8>>,
}

impl Rng {
    pub fn new(seed: u64) -> Rng {
        Rng { state: seed, given: None }
    }

    /// Takes its choices from `bytes`, as few as each needs; 0 when none are left.
    pub fn given(bytes: &[u8]) -> Rng {
        Rng { state: 0, given: Some(bytes.iter().rev().copied().collect()) }
    }

    /// Whether all given choices are taken.
    pub fn is_spent(&self) -> bool {
        self.given.as_ref().is_some_and(Vec::is_empty)
    }

    /// A generator whose numbers depend on all of `parts`.
    pub fn of(parts: &[u64]) -> Rng {
        let mut rng = Rng::new(0x5851_f42d_4c95_7f2d);
        for part in parts {
            rng.state = rng.next() ^ part;
        }
        rng
    }

    #[expect(clippy::should_implement_trait, reason = "it is not an iterator: it never ends")]
    pub fn next(&mut self) -> u64 {
        self.number(8)
    }

    /// A number of `bytes` bytes; of all 8 without given choices.
    fn number(&mut self, bytes: u32) -> u64 {
        if let Some(given) = &mut self.given {
            return (0..bytes).fold(0, |n, at| n | u64::from(given.pop().unwrap_or(0)) << (8 * at));
        }
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `limit` (which is not 0).
    pub fn below(&mut self, limit: u64) -> u64 {
        self.number((limit - 1).checked_ilog2().unwrap_or(0) / 8 + 1) % limit
    }

    /// True once in `n` times.
    pub fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }

    pub fn pick<'a, T>(&mut self, from: &'a [T]) -> &'a T {
        &from[self.below(from.len() as u64) as usize]
    }
}
