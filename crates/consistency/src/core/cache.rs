//! The cache of metadata blocks. It also holds every block that is not yet in its own place.
//!
//! A block in memory is a [`Slot`]. Locks, in order: shard, then slot. The shard's lock is never
//! held during I/O. A slot's lock is held while its block is read: two readers of one missing block
//! read it once, and readers of other blocks do not wait.
//!
//! Invariants:
//! 1. A slot is in the map of its shard until `evicted` is set, under the slot's lock. A thread
//!    that finds it set looks the block up again. So a block has at most one live slot at any time.
//! 2. Only clean slots are evicted: those in no commit, with no contents that wait for the write
//!    home.
//!
//! Each shard evicts by two queues, so that one pass over a large folder does not drive out blocks
//! in use. A block enters `probation`. If it is used again after other blocks came in, it moves to
//! `lasting`, which is a clock.

use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed};

use parking_lot::{Mutex, MutexGuard, RwLock};
use xact_types::BlockNr;

use super::block::SlotState;

const SHARDS: usize = 64;
/// Slots that one insertion examines, at most, to find one to evict.
const EVICTION_EFFORT: usize = 16;

/// A block in memory.
pub(crate) struct Slot {
    pub block: BlockNr,
    /// Used again since the clock's hand passed.
    hot: AtomicBool,
    /// The shard's count of insertions when this slot came in.
    born: u32,
    state: Mutex<SlotState>,
}

impl Slot {
    /// `None` if the slot was evicted since it was looked up. The result of `waits` is held while
    /// another thread has the lock, since that thread may be reading the block.
    fn lock_live<W>(&self, waits: impl Fn() -> W) -> Option<MutexGuard<'_, SlotState>> {
        let state = self.state.try_lock().unwrap_or_else(|| {
            let _waits = waits();
            self.state.lock()
        });
        if state.evicted { None } else { Some(state) }
    }

    /// Locks a slot that was part of a commit. The slot may have been freed and evicted since then;
    /// in that case its state says that it is in no commit.
    pub fn lock_any(&self) -> MutexGuard<'_, SlotState> {
        self.state.lock()
    }
}

/// Block numbers need no protection against chosen collisions beyond being spread.
#[derive(Default)]
pub(crate) struct BlockHasher(u64);

impl Hasher for BlockHasher {
    fn write(&mut self, bytes: &[u8]) {
        for &b in bytes {
            self.write_u64(u64::from(b));
        }
    }

    fn write_u64(&mut self, n: u64) {
        self.0 = (self.0 ^ n).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(26);
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

pub(crate) type BlockMap<T> = HashMap<u64, T, BuildHasherDefault<BlockHasher>>;

#[derive(Default)]
struct Shard {
    map: BlockMap<Arc<Slot>>,
    probation: VecDeque<Arc<Slot>>,
    lasting: VecDeque<Arc<Slot>>,
    inserted: u32,
}

pub(crate) struct BlockCache {
    shards: Box<[RwLock<Shard>]>,
    /// Insertions so far in each shard, readable without the shard's lock.
    ages: Box<[AtomicU32]>,
    /// Blocks that were found in the cache, by shard.
    hits: Box<[AtomicU64]>,
    slots_per_shard: usize,
}

impl BlockCache {
    pub fn new(limit_bytes: usize, block_size: usize) -> BlockCache {
        BlockCache {
            shards: (0..SHARDS).map(|_| RwLock::default()).collect(),
            ages: (0..SHARDS).map(|_| AtomicU32::new(0)).collect(),
            hits: (0..SHARDS).map(|_| AtomicU64::new(0)).collect(),
            slots_per_shard: (limit_bytes / block_size / SHARDS).max(4),
        }
    }

    /// Lookups so far: those that found the block, and those that did not.
    pub fn lookups(&self) -> (u64, u64) {
        let hits = self.hits.iter().map(|count| count.load(Relaxed)).sum();
        let misses = self.ages.iter().map(|count| u64::from(count.load(Relaxed))).sum();
        (hits, misses)
    }

    fn shard_of(block: BlockNr) -> usize {
        (block.0.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 58) as usize % SHARDS
    }

    /// Runs `work` on the block's slot, under its lock. The slot may be empty.
    pub fn with<R>(&self, block: BlockNr, work: impl FnOnce(&Arc<Slot>, &mut SlotState) -> R) -> R {
        self.with_or_wait(block, || (), work)
    }

    /// As `with`; the result of `waits` is held while this waits for the lock.
    pub fn with_or_wait<R, W>(
        &self,
        block: BlockNr,
        waits: impl Fn() -> W,
        work: impl FnOnce(&Arc<Slot>, &mut SlotState) -> R,
    ) -> R {
        loop {
            let slot = self.find(block);
            if let Some(mut state) = slot.lock_live(&waits) {
                return work(&slot, &mut state);
            }
        }
    }

    /// The block's slot, if it has one.
    pub fn peek(&self, block: BlockNr) -> Option<Arc<Slot>> {
        self.shards[BlockCache::shard_of(block)].read().map.get(&block.0).cloned()
    }

    fn find(&self, block: BlockNr) -> Arc<Slot> {
        let index = BlockCache::shard_of(block);
        let found = self.shards[index].read().map.get(&block.0).cloned();
        match found {
            Some(slot) => {
                self.hits[index].fetch_add(1, Relaxed);
                // Uses right after the first one count as one use: an inode table block is asked
                // for once for each of its inodes. Only a use after other blocks have come in makes
                // the block hot.
                let age = self.ages[index].load(Relaxed).wrapping_sub(slot.born);
                if !slot.hot.load(Relaxed) && age as usize > self.slots_per_shard / 8 {
                    slot.hot.store(true, Relaxed);
                }
                slot
            }
            None => self.insert(index, block),
        }
    }

    fn insert(&self, index: usize, block: BlockNr) -> Arc<Slot> {
        let mut shard = self.shards[index].write();
        if let Some(slot) = shard.map.get(&block.0) {
            return slot.clone();
        }
        shard.inserted = shard.inserted.wrapping_add(1);
        self.ages[index].store(shard.inserted, Relaxed);
        let slot = Arc::new(Slot {
            block,
            hot: AtomicBool::new(false),
            born: shard.inserted,
            state: Mutex::default(),
        });
        for _ in 0..EVICTION_EFFORT {
            if shard.map.len() < self.slots_per_shard {
                break;
            }
            shard.turn_clock();
        }
        shard.map.insert(block.0, slot.clone());
        shard.probation.push_back(slot.clone());
        slot
    }

    #[cfg(test)]
    pub fn len(&self) -> usize {
        self.shards.iter().map(|s| s.read().map.len()).sum()
    }
}

impl Shard {
    /// Examines one slot: evicts it, or moves it on.
    fn turn_clock(&mut self) {
        let young = !self.probation.is_empty() && self.probation.len() * 4 >= self.map.len();
        let from_probation = young || self.lasting.is_empty();
        let queue = if from_probation { &mut self.probation } else { &mut self.lasting };
        let Some(slot) = queue.pop_front() else { return };
        let keep = slot.hot.swap(false, Relaxed) || !slot.evict_if_clean();
        if keep {
            self.lasting.push_back(slot);
        } else {
            self.map.remove(&slot.block.0);
        }
    }
}

impl Slot {
    fn evict_if_clean(&self) -> bool {
        match self.state.try_lock() {
            Some(mut state) if state.is_clean() => {
                state.evicted = true;
                true
            }
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::volume::Volume;
    use super::*;
    use xact_device::MemoryDevice;
    use xact_types::CommitId;

    fn volume(blocks: u64) -> Volume {
        let bytes = (0..blocks * 1024).map(|i| (i / 1024) as u8).collect();
        Volume::new(Arc::new(MemoryDevice::from_bytes(bytes)), 1024, blocks).unwrap()
    }

    fn read(cache: &BlockCache, volume: &Volume, block: u64) -> u8 {
        cache.with(BlockNr(block), |_, s| s.load(BlockNr(block), volume).unwrap()[0])
    }

    #[test]
    fn the_limit_holds_and_scans_do_not_drive_out_what_is_used() {
        let volume = volume(20_000);
        let cache = BlockCache::new(1024 * 1024, 1024);
        for round in 0..50 {
            for hot in 0..64 {
                assert_eq!(read(&cache, &volume, hot), hot as u8);
            }
            for scan in 0..200 {
                read(&cache, &volume, 1000 + round * 200 + scan);
            }
        }
        assert!(cache.len() <= 1024 + SHARDS);
        let before = volume.counts().reads;
        for hot in 0..64 {
            read(&cache, &volume, hot);
        }
        assert!(
            volume.counts().reads - before <= 6,
            "{} hot blocks were evicted",
            volume.counts().reads - before
        );
    }

    #[test]
    fn dirty_slots_stay() {
        let volume = volume(10_000);
        let cache = BlockCache::new(256 * 1024, 1024);
        for block in 0..1000 {
            cache.with(BlockNr(block), |_, s| {
                s.load(BlockNr(block), &volume).unwrap();
                s.joined = Some(CommitId(1));
            });
        }
        for block in 1000..9000 {
            read(&cache, &volume, block);
        }
        let before = volume.counts().reads;
        for block in 0..1000 {
            read(&cache, &volume, block);
        }
        assert_eq!(volume.counts().reads, before);
    }

    #[test]
    fn one_read_for_many_readers() {
        let volume = volume(100);
        let cache = BlockCache::new(256 * 1024, 1024);
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| (0..100).for_each(|b| assert_eq!(read(&cache, &volume, b), b as u8)));
            }
        });
        assert_eq!(volume.counts().reads, 100);
    }
}
