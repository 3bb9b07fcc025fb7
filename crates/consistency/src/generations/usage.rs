//! How full the pool is, and of what: for people who have to make room in it.

use xact_base::Result;

use super::{GenerationsEngine, room};

/// Bytes of a volume's pool.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PoolUse {
    pub size_bytes: u64,
    pub used_bytes: u64,
    /// Of those in use: what the snapshots hold and the newest generation does not, with their list.
    pub snapshot_bytes: u64,
    /// Of those in use: the area of the intent log.
    pub log_bytes: u64,
    /// Metadata that has changed since the newest generation, and takes places with the next one.
    pub waiting_bytes: u64,
    /// What has to be free for anything to be added; with less, files can be deleted only.
    pub needed_bytes: u64,
}

impl PoolUse {
    pub fn is_full(&self) -> bool {
        self.size_bytes.saturating_sub(self.used_bytes) < self.needed_bytes
    }
}

impl GenerationsEngine {
    /// As of the newest generation. Walks its map, and commits wait for that long.
    pub fn pool_use(&self) -> Result<PoolUse> {
        let shared = &self.shared;
        let state = shared.state.lock();
        let places = shared.reader.shape.places();
        let mut own = 0;
        state.map.only_here(&shared.reader, &[], &mut |_| own += 1)?;
        let log = state.root.log.map_or(0, |(_, blocks)| u64::from(blocks));
        let waiting = shared.live.logged_blocks() + shared.metadata.changed_blocks();
        let bytes = |blocks: u64| blocks * shared.volume.block_size as u64;
        Ok(PoolUse {
            size_bytes: bytes(places),
            used_bytes: bytes(state.root.used),
            snapshot_bytes: bytes(state.root.used.saturating_sub(own + log)),
            log_bytes: bytes(log),
            waiting_bytes: bytes(waiting as u64),
            needed_bytes: bytes(room::for_all(places)),
        })
    }

    /// Whether there is so little room in the pool that nothing can be added. Costs nothing.
    pub fn is_pool_full(&self) -> bool {
        self.shared.room.is_full()
    }
}
