//! The inode cache: one cell for each inode in use, in shards.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};

use parking_lot::Mutex;
use xact_types::{CommitId, Ino};

use super::cell::{Cell, State};

const SHARDS: usize = 16;

pub(super) struct Cells {
    shards: [Mutex<Shard>; SHARDS],
    /// Cells that a shard may hold before it drops some that nobody uses.
    limit: usize,
    /// The newest commit that a dropped cell knew of: an inode that is loaded (again) may have
    /// changes up to it that are not durable yet.
    dropped: AtomicU64,
    inode_size: u16,
}

#[derive(Default)]
struct Shard {
    cells: HashMap<Ino, Arc<Cell>>,
    /// Length at which the next sweep is worth its while.
    sweep_at: usize,
}

impl Cells {
    /// A cache that keeps about `limit` inodes beyond those in use.
    pub fn new(limit: usize, inode_size: u16) -> Cells {
        Cells {
            shards: Default::default(),
            limit: limit.div_ceil(SHARDS).max(8),
            dropped: AtomicU64::new(0),
            inode_size,
        }
    }

    /// The inode's cell, perhaps not loaded yet.
    pub fn get(&self, ino: Ino) -> Arc<Cell> {
        let mut shard = self.shards[ino.0 as usize % SHARDS].lock();
        if let Some(cell) = shard.cells.get(&ino) {
            cell.referenced.store(true, Relaxed);
            return cell.clone();
        }
        if shard.cells.len() >= self.limit.max(shard.sweep_at) {
            shard.cells.retain(|_, cell| !self.is_idle(cell));
            // Where most cells are in use, do not sweep again at once.
            shard.sweep_at = shard.cells.len() + self.limit / 4;
        }
        let cell = Arc::new(Cell::new(ino, State::free(self.inode_size)));
        shard.cells.insert(ino, cell.clone());
        cell
    }

    /// Whether a cell may be dropped: the shard alone refers to it (so nobody can come to use it
    /// while the shard is locked), and it holds nothing that the volume does not.
    fn is_idle(&self, cell: &Arc<Cell>) -> bool {
        if Arc::strong_count(cell) > 1 || cell.referenced.swap(false, Relaxed) {
            return false;
        }
        if cell.holds.load(SeqCst) > 0 || !cell.pages.lock().map.is_empty() {
            return false;
        }
        let Some(state) = cell.state.try_read() else { return false };
        if state.dirty || !state.versions.is_empty() {
            return false;
        }
        self.dropped.fetch_max(state.last_commit.0, SeqCst);
        true
    }

    /// See `Cells::dropped`.
    pub fn dropped_commit(&self) -> CommitId {
        CommitId(self.dropped.load(SeqCst))
    }

    /// The inode's cell if it is in memory.
    pub fn peek(&self, ino: Ino) -> Option<Arc<Cell>> {
        self.shards[ino.0 as usize % SHARDS].lock().cells.get(&ino).cloned()
    }
}
