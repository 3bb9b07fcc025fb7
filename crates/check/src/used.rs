//! The set of claimed blocks.

use xact_types::{BlockNr, Run};

/// Blocks of a chunk.
const CHUNK_BLOCKS: u64 = 1 << 15;
const CHUNK_WORDS: usize = (CHUNK_BLOCKS / 64) as usize;

/// One bit for each block, in chunks. A chunk without a claimed block takes no memory, so a large
/// empty volume takes little.
pub(crate) struct UsedBlocks {
    chunks: Vec<Option<Box<[u64; CHUNK_WORDS]>>>,
    count: u64,
}

impl UsedBlocks {
    pub fn new(blocks: u64) -> UsedBlocks {
        let chunks = (0..blocks.div_ceil(CHUNK_BLOCKS)).map(|_| None).collect();
        UsedBlocks { chunks, count: 0 }
    }

    /// Number of claimed blocks.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Claims the blocks of a run, which is within the volume; returns the first one that was
    /// claimed before.
    pub fn claim(&mut self, run: Run) -> Option<BlockNr> {
        let mut twice = None;
        let (mut at, end) = (run.start.0, run.end().0);
        while at < end {
            let word_start = at / 64 * 64;
            let next = end.min(word_start + 64);
            let mask = ones(next - at) << (at % 64);
            let chunk =
                self.chunks[(at / CHUNK_BLOCKS) as usize].get_or_insert_with(|| Box::new([0; CHUNK_WORDS]));
            let word = &mut chunk[(at % CHUNK_BLOCKS / 64) as usize];
            let claimed = *word & mask;
            if claimed != 0 && twice.is_none() {
                twice = Some(BlockNr(word_start + u64::from(claimed.trailing_zeros())));
            }
            self.count += u64::from((mask & !*word).count_ones());
            *word |= mask;
            at = next;
        }
        twice
    }

    /// The bits of `len` blocks from `start` on, as a block bitmap holds them; bits behind the last
    /// are 0.
    pub fn bitmap(&self, start: BlockNr, len: u32) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(len.div_ceil(64) as usize * 8);
        for first in (0..len).step_by(64) {
            let (at, shift) = (start.0 + u64::from(first), (start.0 + u64::from(first)) % 64);
            let low = self.word(at) >> shift;
            let high = if shift == 0 { 0 } else { self.word(at + 64) << (64 - shift) };
            let bits = (low | high) & ones(u64::from(len - first).min(64));
            bytes.extend_from_slice(&bits.to_le_bytes());
        }
        bytes.truncate(len.div_ceil(8) as usize);
        bytes
    }

    /// The word with the bit of a block.
    fn word(&self, block: u64) -> u64 {
        match self.chunks.get((block / CHUNK_BLOCKS) as usize) {
            Some(Some(chunk)) => chunk[(block % CHUNK_BLOCKS / 64) as usize],
            _ => 0,
        }
    }
}

/// The lowest `count` bits, 1 to 64.
fn ones(count: u64) -> u64 {
    u64::MAX >> (64 - count)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// Claims and bitmaps at every border of words and chunks, compared with a plain set.
    #[test]
    fn a_plain_set_gives_the_same() {
        let blocks = 3 * CHUNK_BLOCKS - 5;
        let mut used = UsedBlocks::new(blocks);
        let mut plain = BTreeSet::new();
        let starts = [0, 1, 63, 64, CHUNK_BLOCKS - 65, CHUNK_BLOCKS - 1, 2 * CHUNK_BLOCKS, blocks - 70];
        for (start, len) in starts.into_iter().zip([1, 62, 2, 64, 130, 3, 1, 70]) {
            let run = Run { start: BlockNr(start), len };
            let twice = (start..start + u64::from(len)).find(|block| plain.contains(block));
            assert_eq!(used.claim(run), twice.map(BlockNr), "{run:?}");
            plain.extend(start..start + u64::from(len));
            assert_eq!(used.count(), plain.len() as u64);
        }
        for start in [0, 1, 7, CHUNK_BLOCKS - 64, CHUNK_BLOCKS + 1, blocks - 100] {
            for len in [1, 8, 63, 64, 65, 100] {
                let bytes = used.bitmap(BlockNr(start), len);
                for at in 0..len {
                    let (bit, block) = (bytes[(at / 8) as usize] >> (at % 8) & 1, start + u64::from(at));
                    assert_eq!(bit != 0, plain.contains(&block), "block {block}");
                }
                let behind =
                    (len..bytes.len() as u32 * 8).any(|at| bytes[(at / 8) as usize] >> (at % 8) & 1 != 0);
                assert!(!behind, "bits behind the last block");
            }
        }
    }
}
