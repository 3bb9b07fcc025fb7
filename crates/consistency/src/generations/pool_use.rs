//! What the places of the pool are in use for: who asks why the pool is full is told who holds it.
//!
//! A snapshot holds more than what it alone has in the pool. Where it has a block in the block's own place, the
//! volume's newer contents must be elsewhere: they are in the pool for as long as the snapshot is there, and go home by
//! the sweep when it is gone. Such places count as displaced.

use xact_types::{BlockNr, Result};

use super::snapshots::Kept;
use super::{Generations, GenerationsEngine, State, room};

/// Moved blocks that are looked at in one go.
const CHUNK: usize = 1024;

/// What the pool's places are in use for, in bytes. Those in use are the sum of `snapshots_bytes`, `displaced_bytes`,
/// `newest_bytes` and `log_bytes`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PoolUse {
    pub size_bytes: u64,
    pub used_bytes: u64,
    /// What snapshots have and the volume does not any more, with the list of snapshots.
    pub snapshots_bytes: u64,
    /// Of the volume itself: what cannot go home since snapshots have something there.
    pub displaced_bytes: u64,
    /// The remainder: what the newest generation has moved and not yet brought home, and its map.
    pub newest_bytes: u64,
    /// The area of the intent log, in use for good.
    pub log_bytes: u64,
    /// Not in use yet: what the next generation takes at the most for what was changed until now.
    pub in_flight_bytes: u64,
    /// What has to be free for anything to be added; with less, files can be deleted only.
    pub needed_bytes: u64,
}

impl PoolUse {
    /// What is in use for nothing but snapshots, with what they keep from going home.
    pub fn for_snapshots_bytes(&self) -> u64 {
        self.snapshots_bytes + self.displaced_bytes
    }

    pub fn is_full(&self) -> bool {
        self.size_bytes.saturating_sub(self.used_bytes) < self.needed_bytes
    }
}

/// Blocks of the volume that snapshots keep from their own places.
pub(super) struct Displaced {
    pub blocks: u64,
    /// By snapshot: those that no other keeps from there.
    pub by_one: Vec<u64>,
}

impl GenerationsEngine {
    /// What the pool is in use for now. Costs what the pool holds, and commits wait for that long.
    pub fn pool_use(&self) -> Result<PoolUse> {
        let shared = &self.shared;
        let state = shared.state.lock();
        let bytes = |places: u64| places * shared.volume.block_size as u64;
        let snapshots = shared.places_of_snapshots(&state)?;
        let displaced = shared.displaced(&state)?.blocks;
        let log = state.root.log.map_or(0, |(_, blocks)| u64::from(blocks));
        let used = state.root.used;
        let newest = used.saturating_sub(snapshots + displaced + log);
        let changed = shared.pipeline.reserved() + shared.live.logged_blocks() as u64;
        Ok(PoolUse {
            size_bytes: bytes(shared.reader.shape.places()),
            used_bytes: bytes(used),
            snapshots_bytes: bytes(snapshots),
            displaced_bytes: bytes(displaced),
            newest_bytes: bytes(newest),
            log_bytes: bytes(log),
            in_flight_bytes: bytes(changed + shared.reader.most_nodes(changed)),
            needed_bytes: bytes(room::for_all(shared.reader.shape.places())),
        })
    }

    /// Whether there is so little room in the pool that nothing can be added. Costs nothing.
    pub fn is_pool_full(&self) -> bool {
        self.shared.room.is_full()
    }
}

impl Generations {
    /// Places that snapshots have and the durable generation does not.
    fn places_of_snapshots(&self, state: &State) -> Result<u64> {
        let mut count = state.root.snapshots.map_or(0, |(_, blocks)| u64::from(blocks));
        let mut counted = vec![&state.map];
        for Kept { map, .. } in &state.snapshots {
            map.only_here(&self.reader, &counted, &mut |_| count += 1)?;
            counted.push(map);
        }
        Ok(count)
    }

    /// Of the durable generation, what snapshots keep from going home.
    pub(super) fn displaced(&self, state: &State) -> Result<Displaced> {
        let mut displaced = Displaced { blocks: 0, by_one: vec![0; state.snapshots.len()] };
        if state.snapshots.is_empty() {
            return Ok(displaced);
        }
        let held = self.held.read().clone();
        let mut from = BlockNr(0);
        loop {
            let moved = state.map.moved(&self.reader, from, CHUNK)?;
            for (block, _) in moved.iter().filter(|(block, _)| self.homes.may_ever(*block)) {
                let holders = held.holders_of_home(*block)?;
                displaced.blocks += u64::from(!holders.is_empty());
                if let [only] = holders[..] {
                    displaced.by_one[only] += 1;
                }
            }
            match moved.last() {
                Some((last, _)) if moved.len() == CHUNK => from = last.offset(1),
                _ => return Ok(displaced),
            }
        }
    }
}
