//! Figures of a live volume, for people and tests.

use xact_types::LatencySnapshot;

use super::LiveFs;

impl LiveFs {
    /// Memory that old versions for open views take, roughly, in bytes.
    pub fn kept_bytes(&self) -> u64 {
        self.mvcc.kept_bytes()
    }

    /// Blocks of file data written back so far: to new places, and over old contents (RFJ-6).
    pub fn written_blocks(&self) -> (u64, u64) {
        self.writeback.written_blocks()
    }

    /// How long each `fsync` and `fdatasync` took so far.
    pub fn sync_times(&self) -> LatencySnapshot {
        self.writeback.sync_times()
    }

    /// Blocks of file data that a read found in the cache, and that it had to read.
    pub fn cache_lookups(&self) -> (u64, u64) {
        self.page_cache.lookups()
    }

    /// Limit of cached file data in bytes.
    pub fn cache_limit_bytes(&self) -> u64 {
        self.page_cache.limit_bytes()
    }

    /// Bytes of file data in the cache.
    pub fn cached_bytes(&self) -> u64 {
        self.page_cache.bytes()
    }
}
