//! The volume-wide state of write-back: counters, and the flusher thread.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use xact_consistency::Engine;
use xact_types::{Latencies, LatencySnapshot};

use super::flusher_thread::FlusherThread;
use crate::live::data::data_mode::Placement;

/// Write-back of the whole volume.
pub(in crate::live) struct Writeback {
    pub(super) engine: Arc<Engine>,
    written: WrittenBlocks,
    /// How long `fsync` and `fdatasync` took.
    pub(super) sync_times: Latencies,
    flusher: FlusherThread,
}

impl Writeback {
    pub fn new(engine: Arc<Engine>) -> Writeback {
        Writeback {
            engine,
            written: WrittenBlocks::default(),
            sync_times: Latencies::default(),
            flusher: FlusherThread::default(),
        }
    }

    /// Counts blocks that were written back.
    pub(super) fn count_written(&self, placement: Placement, blocks: u32) {
        let WrittenBlocks { new, overwritten } = &self.written;
        let count = if placement == Placement::Written { overwritten } else { new };
        count.fetch_add(blocks.into(), Relaxed);
    }

    /// Blocks of file data written back so far: to new places, and over old contents (RFJ-6).
    pub fn written_blocks(&self) -> (u64, u64) {
        (self.written.new.load(Relaxed), self.written.overwritten.load(Relaxed))
    }

    /// How long each `fsync` and `fdatasync` took so far.
    pub fn sync_times(&self) -> LatencySnapshot {
        self.sync_times.snapshot()
    }

    pub fn flusher(&self) -> &FlusherThread {
        &self.flusher
    }

    /// Bytes of file data that the log accepts at once without filling up.
    pub fn log_takes(&self) -> u64 {
        // One handle may have half of the log; a quarter of that leaves space for others.
        u64::from(self.engine.max_credits() / 4) * self.engine.block_size() as u64
    }
}

/// Blocks of file data that were written back.
#[derive(Default)]
struct WrittenBlocks {
    new: AtomicU64,
    overwritten: AtomicU64,
}
