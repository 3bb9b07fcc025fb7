//! The inode cache: one [`CachedInode`] for each inode in use, in shards.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};

use parking_lot::Mutex;
use xact_types::{CommitId, Ino};

use crate::live::inode::cached::{CachedInode, InodeState};

const SHARDS: usize = 16;

pub(in crate::live) struct InodeCache {
    shards: [Mutex<Shard>; SHARDS],
    /// Number of inodes that a shard may hold before it drops unused ones.
    limit: usize,
    /// The newest commit with changes of a dropped inode: an inode that is loaded (again) may have
    /// changes up to it that are not durable yet.
    dropped: AtomicU64,
    inode_size: u16,
}

#[derive(Default)]
struct Shard {
    inodes: HashMap<Ino, Arc<CachedInode>>,
    /// Length at which the next scan for unused inodes is worthwhile.
    scan_at: usize,
}

impl InodeCache {
    /// A cache that keeps about `limit` inodes beyond those in use.
    pub fn new(limit: usize, inode_size: u16) -> InodeCache {
        InodeCache {
            shards: Default::default(),
            limit: limit.div_ceil(SHARDS).max(8),
            dropped: AtomicU64::new(0),
            inode_size,
        }
    }

    /// The cached inode; it may not be loaded yet.
    pub fn get(&self, ino: Ino) -> Arc<CachedInode> {
        let mut shard = self.shards[ino.0 as usize % SHARDS].lock();
        if let Some(cached) = shard.inodes.get(&ino) {
            cached.referenced.store(true, Relaxed);
            return cached.clone();
        }
        if shard.inodes.len() >= self.limit.max(shard.scan_at) {
            shard.inodes.retain(|_, cached| !self.is_idle(cached));
            // If most inodes are in use, do not scan again at once.
            shard.scan_at = shard.inodes.len() + self.limit / 4;
        }
        let cached = Arc::new(CachedInode::new(ino, InodeState::free(self.inode_size)));
        shard.inodes.insert(ino, cached.clone());
        cached
    }

    /// The inode of a number that was just taken; the old contents of its place in the table do not
    /// count.
    pub fn get_free(&self, ino: Ino) -> Arc<CachedInode> {
        let cached = self.get(ino);
        cached.loaded.store(true, SeqCst);
        cached
    }

    /// Number of holds of an inode ([`crate::View::hold`]).
    pub fn holds(&self, ino: Ino) -> u64 {
        self.peek(ino).map_or(0, |cached| cached.holds.load(SeqCst))
    }

    /// Whether an inode may be dropped: only the shard refers to it, so no thread can use it while
    /// the shard is locked, and it has no state that is not on the volume.
    fn is_idle(&self, cached: &Arc<CachedInode>) -> bool {
        if Arc::strong_count(cached) > 1 || cached.referenced.swap(false, Relaxed) {
            return false;
        }
        if cached.holds.load(SeqCst) > 0 || !cached.pages.lock().map.is_empty() {
            return false;
        }
        let Some(state) = cached.state.try_read() else { return false };
        if state.dirty || !state.versions.is_empty() {
            return false;
        }
        self.dropped.fetch_max(state.last_commit.0, SeqCst);
        true
    }

    /// See `InodeCache::dropped`.
    pub fn dropped_commit(&self) -> CommitId {
        CommitId(self.dropped.load(SeqCst))
    }

    /// The inodes in memory for which `wanted` is true.
    pub fn all(&self, wanted: impl Fn(&CachedInode) -> bool) -> Vec<Ino> {
        let inodes = self.shards.iter().flat_map(|shard| {
            let shard = shard.lock();
            shard.inodes.values().cloned().collect::<Vec<_>>()
        });
        inodes.filter(|cached| wanted(cached)).map(|cached| cached.ino).collect()
    }

    /// The inode if it is in memory.
    pub fn peek(&self, ino: Ino) -> Option<Arc<CachedInode>> {
        self.shards[ino.0 as usize % SHARDS].lock().inodes.get(&ino).cloned()
    }
}
