//! The use of the pool's blocks, which explains why the pool is full.
//!
//! A snapshot holds more than the pool blocks that it alone has. If it has a block at home, the
//! volume's newer contents of that block cannot be there: they are in the pool while the snapshot
//! exists, and are written home when it is deleted. Such pool blocks count as displaced.

use xact_types::{BlockNr, Result};

use super::snapshots::SnapshotEntry;
use super::{Generations, State, admission};
use crate::snapshots::PoolUse;

/// Moved blocks that are examined at once.
const CHUNK: usize = 1024;

/// Blocks of the volume that snapshots keep from their own places.
pub(super) struct Displaced {
    pub blocks: u64,
    /// For each snapshot, those blocks that no other snapshot keeps from there.
    pub by_one: Vec<u64>,
}

impl Generations {
    /// See [`crate::Snapshots::pool_use`].
    pub(super) fn count_pool_use(&self) -> Result<PoolUse> {
        let state = self.state.lock();
        let bytes = |pool_blocks: u64| pool_blocks * self.core.volume.block_size as u64;
        let snapshots = self.pool_blocks_of_snapshots(&state)?;
        let displaced = self.displaced(&state)?.blocks;
        let log = state.root.log.map_or(0, |(_, blocks)| u64::from(blocks));
        let used = state.root.used;
        let newest = used.saturating_sub(snapshots + displaced + log);
        let changed = self.core.pipeline.reserved() + self.published.logged_blocks() as u64;
        Ok(PoolUse {
            size_bytes: bytes(self.reader.shape.pool_blocks()),
            used_bytes: bytes(used),
            snapshots_bytes: bytes(snapshots),
            displaced_bytes: bytes(displaced),
            newest_bytes: bytes(newest),
            log_bytes: bytes(log),
            in_flight_bytes: bytes(changed + self.reader.most_nodes(changed)),
            needed_bytes: bytes(admission::for_all(self.reader.shape.pool_blocks())),
        })
    }

    /// Pool blocks that snapshots have and the durable generation does not.
    fn pool_blocks_of_snapshots(&self, state: &State) -> Result<u64> {
        let mut count = state.root.snapshots.map_or(0, |(_, blocks)| u64::from(blocks));
        let mut counted = vec![&state.map];
        for SnapshotEntry { map, .. } in &state.snapshots {
            map.only_here(&self.reader, &counted, &mut |_| count += 1)?;
            counted.push(map);
        }
        Ok(count)
    }

    /// Blocks of the durable generation that snapshots keep from going home.
    pub(super) fn displaced(&self, state: &State) -> Result<Displaced> {
        let mut displaced = Displaced { blocks: 0, by_one: vec![0; state.snapshots.len()] };
        if state.snapshots.is_empty() {
            return Ok(displaced);
        }
        let refs = self.snapshot_refs.read().clone();
        let mut from = BlockNr(0);
        loop {
            let moved = state.map.moved(&self.reader, from, CHUNK)?;
            for (block, _) in moved.iter().filter(|(block, _)| self.homes.may_ever(*block)) {
                let holders = refs.holders_of_home(*block)?;
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
