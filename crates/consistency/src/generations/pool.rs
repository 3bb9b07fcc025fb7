//! The bitmap of the pool: which pool blocks are in use.
//!
//! Each block of the bitmap has two copies on the device. A generation that changes a bitmap block
//! writes the copy that the previous generation does not use, and its root says which copy counts.
//! So the bitmap itself needs no pool blocks, and two generations never share a copy that one of
//! them changes.
//!
//! Invariant: the bit of a pool block is set if the durable generation, the one being written, or a
//! snapshot uses it. Pool blocks that a generation frees are cleared after its last `take`, so the
//! commit that frees a block never takes it. The next commit begins when this one is durable.

use std::sync::Arc;

use xact_layout::checksum::crc32c;
use xact_layout::generations::{PoolShape, Root};
use xact_types::{BlockNr, Error, Result, Site};

use crate::core::block::BlockRef;
use crate::core::volume::Volume;

pub(crate) struct Pool {
    shape: PoolShape,
    /// Bit n stands for the n-th block of the pool.
    bits: Vec<u64>,
    blocks: Vec<BitmapBlock>,
    used: u64,
    /// The position at which the search continues.
    cursor: u64,
}

#[derive(Clone, Copy)]
struct BitmapBlock {
    sum: u32,
    copy: usize,
    changed: bool,
}

impl Pool {
    /// A pool with all blocks free.
    pub fn empty(shape: PoolShape) -> Pool {
        let blocks = shape.bitmap_blocks() as usize;
        let words = blocks * shape.block_size as usize / 8;
        // All blocks count as changed, so that the first generation writes all.
        let block = BitmapBlock { sum: 0, copy: 1, changed: true };
        Pool { shape, bits: vec![0; words], blocks: vec![block; blocks], used: 0, cursor: 0 }
    }

    /// Reads the bitmap of a generation.
    pub fn read(volume: &Volume, root: &Root) -> Result<Pool> {
        let mut pool = Pool::empty(root.shape);
        let words = volume.block_size / 8;
        for (index, &(sum, copy)) in root.bitmaps.iter().enumerate() {
            let pool_block = root.shape.bitmap_block(index as u64, copy);
            let bytes = volume.read_block(pool_block)?;
            if crc32c(!0, &bytes) != sum {
                return Err(Error::corrupt(
                    Site::Block(pool_block),
                    "checksum of the pool's bitmap does not match",
                ));
            }
            pool.blocks[index] = BitmapBlock { sum, copy, changed: false };
            for (word, bytes) in pool.bits[index * words..].iter_mut().zip(bytes.chunks_exact(8)) {
                *word = u64::from_le_bytes(bytes.try_into().expect("8 bytes"));
            }
        }
        pool.used = pool.bits.iter().map(|word| u64::from(word.count_ones())).sum();
        if pool.used != root.used {
            return Err(Error::corrupt(Site::Root, "counts other places in use than the pool's bitmap"));
        }
        Ok(pool)
    }

    pub fn used(&self) -> u64 {
        self.used
    }

    pub fn free(&self) -> u64 {
        self.shape.pool_blocks() - self.used
    }

    /// The number of a block within the pool.
    fn index(&self, pool_block: BlockNr) -> u64 {
        pool_block.0 - self.shape.volume_blocks
    }

    pub fn is_used(&self, pool_block: BlockNr) -> bool {
        let index = self.index(pool_block);
        self.bits[(index / 64) as usize] & 1 << (index % 64) != 0
    }

    fn set(&mut self, pool_block: BlockNr, used: bool) {
        let index = self.index(pool_block);
        let (word, bit) = ((index / 64) as usize, 1u64 << (index % 64));
        if used {
            self.bits[word] |= bit;
            self.used += 1;
        } else {
            self.bits[word] &= !bit;
            self.used -= 1;
        }
        let per_block = 8 * u64::from(self.shape.block_size);
        self.blocks[(index / per_block) as usize].changed = true;
    }

    /// Takes the next free block. Blocks taken one after the other are adjacent as far as the pool
    /// has space, so that a generation is written in few writes.
    pub fn take(&mut self) -> Result<BlockNr> {
        let (first, count) = (self.shape.first_pool_block().0, self.shape.pool_blocks());
        let mut looked = 0;
        while looked < count {
            let pool_block = BlockNr(first + self.cursor % count);
            let index = self.index(pool_block);
            // A word without a free bit is skipped at once.
            let full = index.is_multiple_of(64) && self.bits[(index / 64) as usize] == !0;
            let step = if full { 64 } else { 1 };
            self.cursor = (self.cursor + step) % count;
            looked += step;
            if !full && !self.is_used(pool_block) {
                self.set(pool_block, true);
                return Ok(pool_block);
            }
        }
        Err(Error::NoSpace)
    }

    /// Takes `len` free, adjacent pool blocks.
    pub fn take_run(&mut self, len: u64) -> Result<BlockNr> {
        let (first, end) = (self.shape.first_pool_block().0, self.shape.device_blocks);
        let mut start = first;
        for pool_block in first..end {
            if self.is_used(BlockNr(pool_block)) {
                start = pool_block + 1;
            } else if pool_block + 1 - start == len {
                (start..=pool_block).for_each(|pool_block| self.set(BlockNr(pool_block), true));
                return Ok(BlockNr(start));
            }
        }
        Err(Error::NoSpace)
    }

    /// Frees a pool block; `Corrupt` for one that is free already or outside the pool.
    pub fn release(&mut self, pool_block: BlockNr) -> Result<()> {
        if !self.shape.contains(pool_block) || !self.is_used(pool_block) {
            return Err(Error::corrupt(Site::Block(pool_block), "a pool block is in use that is free"));
        }
        self.set(pool_block, false);
        Ok(())
    }

    /// Adds the changed blocks of the bitmap to `out`, each for the copy that does not count yet.
    pub fn write_changed(&mut self, out: &mut Vec<(BlockNr, BlockRef)>) {
        let words = self.shape.block_size as usize / 8;
        for (index, block) in self.blocks.iter_mut().enumerate().filter(|(_, block)| block.changed) {
            let part = &self.bits[index * words..][..words];
            let bytes: Vec<u8> = part.iter().flat_map(|word| word.to_le_bytes()).collect();
            *block = BitmapBlock { sum: crc32c(!0, &bytes), copy: 1 - block.copy, changed: false };
            out.push((self.shape.bitmap_block(index as u64, block.copy), Arc::from(bytes)));
        }
    }

    /// The bitmap as the root records it.
    pub fn bitmaps(&self) -> Vec<(u32, usize)> {
        self.blocks.iter().map(|block| (block.sum, block.copy)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHAPE: PoolShape = PoolShape { block_size: 1024, volume_blocks: 1001, device_blocks: 1600 };

    #[test]
    fn every_place_is_given_once() {
        let mut pool = Pool::empty(SHAPE);
        let mut taken: Vec<u64> = (0..SHAPE.pool_blocks()).map(|_| pool.take().unwrap().0).collect();
        assert!(matches!(pool.take(), Err(Error::NoSpace)));
        assert!(taken.is_sorted() && taken[0] == SHAPE.first_pool_block().0);
        assert_eq!(pool.free(), 0);
        taken.dedup();
        assert_eq!(taken.len() as u64, SHAPE.pool_blocks());
        pool.release(BlockNr(1300)).unwrap();
        assert!(pool.release(BlockNr(1300)).is_err());
        assert!(pool.release(BlockNr(SHAPE.first_pool_block().0 - 1)).is_err());
        assert_eq!(pool.take().unwrap(), BlockNr(1300));
    }

    #[test]
    fn copies_take_turns() {
        let mut pool = Pool::empty(SHAPE);
        let mut out = Vec::new();
        pool.write_changed(&mut out);
        assert_eq!(out[0].0, SHAPE.bitmap_block(0, 0));
        pool.write_changed(&mut out);
        assert_eq!(out.len(), 1, "nothing changed");
        pool.take().unwrap();
        pool.write_changed(&mut out);
        assert_eq!(out[1].0, SHAPE.bitmap_block(0, 1));
    }
}
