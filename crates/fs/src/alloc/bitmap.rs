//! Bitmaps: in memory by words of 64 bits, on disk by bytes. Bit n is bit n % 8 of byte n / 8.

/// A bitmap in memory; 1 is "in use". Bits past `len` are 1 in the last word.
pub(super) struct Bitmap {
    words: Box<[u64]>,
    len: u32,
}

impl Bitmap {
    /// The first `len` bits of a bitmap block.
    pub fn from_bytes(bytes: &[u8], len: u32) -> Bitmap {
        let mut words: Box<[u64]> = bytes
            .chunks(8)
            .take(len.div_ceil(64) as usize)
            .map(|chunk| {
                let mut word = [0xFF; 8];
                word[..chunk.len()].copy_from_slice(chunk);
                u64::from_le_bytes(word)
            })
            .collect();
        if !len.is_multiple_of(64) {
            words[(len / 64) as usize] |= !0 << (len % 64);
        }
        Bitmap { words, len }
    }

    pub fn len(&self) -> u32 {
        self.len
    }

    pub fn zeros(&self) -> u32 {
        self.words.iter().map(|w| w.count_zeros()).sum()
    }

    /// Number of zeros in a range.
    pub fn zeros_within(&self, start: u32, end: u32) -> u32 {
        let (mut count, mut at) = (0, start);
        while let Some(zero) = self.next_zero(at, end) {
            let zeros = self.zeros_at(zero, end - zero);
            count += zeros;
            at = zero + zeros;
        }
        count
    }

    pub fn is_set(&self, at: u32) -> bool {
        self.words[(at / 64) as usize] >> (at % 64) & 1 != 0
    }

    /// The first zero bit in `from..end`.
    pub fn next_zero(&self, from: u32, end: u32) -> Option<u32> {
        self.next(from, end, !0)
    }

    /// Number of contiguous zeros from `from` on, at most `max`.
    pub fn zeros_at(&self, from: u32, max: u32) -> u32 {
        let end = from.saturating_add(max).min(self.len);
        self.next(from, end, 0).unwrap_or(end).saturating_sub(from)
    }

    /// Number of contiguous zeros directly before `at`.
    pub fn zeros_before(&self, at: u32) -> u32 {
        let mut start = at;
        while start > 0 {
            // The word's bits below `start`, moved to its top.
            let bits = (start - 1) % 64 + 1;
            let word = self.words[((start - 1) / 64) as usize] << (64 - bits);
            let zeros = word.leading_zeros().min(bits);
            start -= zeros;
            if zeros < bits {
                break;
            }
        }
        at - start
    }

    /// First bit in `from..end` that is 1 after XOR with `flip`.
    fn next(&self, from: u32, end: u32, flip: u64) -> Option<u32> {
        let end = end.min(self.len);
        if from >= end {
            return None;
        }
        let mut at = (from / 64) as usize;
        let last = ((end - 1) / 64) as usize;
        let mut word = (self.words[at] ^ flip) & (!0 << (from % 64));
        loop {
            if word != 0 {
                let found = at as u32 * 64 + word.trailing_zeros();
                return (found < end).then_some(found);
            }
            if at == last {
                return None;
            }
            at += 1;
            word = self.words[at] ^ flip;
        }
    }

    pub fn set(&mut self, start: u32, len: u32) {
        self.each_word(start, len, |word, mask| *word |= mask);
    }

    pub fn clear(&mut self, start: u32, len: u32) {
        self.each_word(start, len, |word, mask| *word &= !mask);
    }

    /// Whether the range lies within the bitmap and all its bits are 1.
    pub fn all_set(&self, start: u32, len: u32) -> bool {
        start.checked_add(len).is_some_and(|end| end <= self.len && self.next(start, end, !0).is_none())
    }

    fn each_word(&mut self, start: u32, len: u32, mut change: impl FnMut(&mut u64, u64)) {
        let end = start + len;
        assert!(end <= self.len, "range lies within the bitmap");
        let mut at = start;
        while at < end {
            let count = (64 - at % 64).min(end - at);
            let mask = (!0u64 >> (64 - count)) << (at % 64);
            change(&mut self.words[(at / 64) as usize], mask);
            at += count;
        }
    }
}

/// Calls `change` with the index of each byte that has bits of the range, and the mask of these
/// bits. Stops at the first `false` and returns it.
fn each_byte(start: u32, len: u32, mut change: impl FnMut(usize, u8) -> bool) -> bool {
    let end = start + len;
    let mut at = start;
    while at < end {
        let count = (8 - at % 8).min(end - at);
        let mask = (0xFFu8 >> (8 - count)) << (at % 8);
        if !change((at / 8) as usize, mask) {
            return false;
        }
        at += count;
    }
    true
}

/// Sets bits in a bitmap block.
pub(crate) fn set_bits(bytes: &mut [u8], start: u32, len: u32) {
    each_byte(start, len, |at, mask| {
        bytes[at] |= mask;
        true
    });
}

/// Clears bits in a bitmap block.
pub(super) fn clear_bits(bytes: &mut [u8], start: u32, len: u32) {
    each_byte(start, len, |at, mask| {
        bytes[at] &= !mask;
        true
    });
}

pub(super) fn bits_all_set(bytes: &[u8], start: u32, len: u32) -> bool {
    each_byte(start, len, |at, mask| bytes[at] & mask == mask)
}

pub(super) fn bits_all_clear(bytes: &[u8], start: u32, len: u32) -> bool {
    each_byte(start, len, |at, mask| bytes[at] & mask == 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_and_searches_agree_with_a_plain_model() {
        let mut state = 12345u64;
        let mut random = move |below: u32| {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (state >> 33) as u32 % below
        };
        for len in [1u32, 63, 64, 65, 200, 1024, 1001] {
            let mut bytes = vec![0u8; 256];
            let mut model = vec![false; len as usize];
            let mut map = Bitmap::from_bytes(&bytes, len);
            for _ in 0..500 {
                let start = random(len);
                let count = 1 + random((len - start).min(90));
                let value = random(3) != 0;
                model[start as usize..(start + count) as usize].fill(value);
                if value {
                    map.set(start, count);
                    set_bits(&mut bytes, start, count);
                    assert!(bits_all_set(&bytes, start, count) && map.all_set(start, count));
                } else {
                    map.clear(start, count);
                    clear_bits(&mut bytes, start, count);
                    assert!(bits_all_clear(&bytes, start, count));
                }
                let from = random(len);
                let zero = model[from as usize..].iter().position(|b| !b).map(|p| p as u32 + from);
                assert_eq!(map.next_zero(from, len), zero);
                let run = model[from as usize..].iter().take_while(|b| !**b).count() as u32;
                assert_eq!(map.zeros_at(from, u32::MAX), run);
                assert_eq!(map.zeros_at(from, 5), run.min(5));
                let zeros = model[from as usize..].iter().filter(|bit| !**bit).count() as u32;
                assert_eq!(map.zeros_within(from, len), zeros);
                let before = model[..from as usize].iter().rev().take_while(|b| !**b).count() as u32;
                assert_eq!(map.zeros_before(from), before);
                assert_eq!(map.zeros(), model.iter().filter(|b| !**b).count() as u32);
                assert_eq!(Bitmap::from_bytes(&bytes, len).words, map.words);
            }
        }
    }
}
