//! Statistics of a live volume.

use xact_types::{Ino, LatencySnapshot};

use super::LiveFs;
use super::data::writeback::file_writes::WrittenBlocks;

impl LiveFs {
    /// Memory used by old versions for open views in bytes, approximately.
    pub fn version_bytes(&self) -> u64 {
        self.mvcc.version_bytes()
    }

    /// Blocks of file data written back so far: to new places, and over old contents (RFJ-6).
    pub fn written_blocks(&self) -> WrittenBlocks {
        let (files, mut sum) = self.file_writes();
        files.iter().for_each(|(_, blocks)| sum.add(*blocks));
        sum
    }

    /// The same by file, in the order of inode numbers, and of deleted and other files together.
    pub fn file_writes(&self) -> (Vec<(Ino, WrittenBlocks)>, WrittenBlocks) {
        self.writeback.files.all()
    }

    /// Inodes without a name that are still in use, and those that are being truncated.
    pub fn orphans(&self) -> Vec<Ino> {
        self.orphans.list()
    }

    /// Number of errors that the superblock notes.
    pub fn errors_noted(&self) -> u64 {
        self.health.errors_noted()
    }

    /// Durations of all `fsync` and `fdatasync` calls so far.
    pub fn sync_times(&self) -> LatencySnapshot {
        self.writeback.sync_times()
    }

    /// Blocks of file data that reads found in the cache, and blocks that they read from the
    /// device.
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
