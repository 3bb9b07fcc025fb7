//! The set of claimed blocks.

use xact_types::{BlockNr, Run};

/// One bit for each block.
pub(crate) struct UsedBlocks {
    words: Vec<u64>,
    blocks: u64,
    count: u64,
}

impl UsedBlocks {
    pub fn new(blocks: u64) -> UsedBlocks {
        UsedBlocks { words: vec![0; blocks.div_ceil(64) as usize], blocks, count: 0 }
    }

    pub fn contains(&self, block: u64) -> bool {
        block < self.blocks && self.words[(block / 64) as usize] >> (block % 64) & 1 != 0
    }

    /// Number of claimed blocks.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Claims the blocks of a run, which is within the volume; returns the first one that was
    /// claimed before.
    pub fn claim(&mut self, run: Run) -> Option<BlockNr> {
        let mut twice = None;
        for block in run.start.0..run.end().0 {
            let (word, bit) = (&mut self.words[(block / 64) as usize], 1 << (block % 64));
            if *word & bit != 0 {
                twice = twice.or(Some(BlockNr(block)));
            } else {
                *word |= bit;
                self.count += 1;
            }
        }
        twice
    }
}
