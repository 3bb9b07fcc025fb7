//! The volume-wide state of write-back: counters, and the flusher thread.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

use xact_consistency::Engine;
use xact_types::{CommitId, Latencies, LatencySnapshot};

use super::file_writes::FileWrites;
use super::flusher_thread::FlusherThread;
use super::write_parts::WriteParts;

/// Write-back of the whole volume.
pub(in crate::live) struct Writeback {
    pub(super) engine: Arc<Engine>,
    /// RFJ-6.
    pub files: FileWrites,
    /// How long `fsync` and `fdatasync` took.
    pub(super) sync_times: Latencies,
    /// The newest commit in which a folder got another path, or a transaction changed anything.
    moved_folder: AtomicU64,
    flusher: FlusherThread,
    pub parts: WriteParts,
}

impl Writeback {
    pub fn new(engine: Arc<Engine>, next_part: Duration) -> Writeback {
        Writeback {
            engine,
            files: FileWrites::default(),
            sync_times: Latencies::default(),
            moved_folder: AtomicU64::new(0),
            flusher: FlusherThread::default(),
            parts: WriteParts::new(next_part),
        }
    }

    /// A folder gets another path in this commit.
    pub fn note_moved_folder(&self, commit: CommitId) {
        self.moved_folder.fetch_max(commit.0, SeqCst);
    }

    /// The newest commit in which a folder got another path.
    pub fn moved_folder(&self) -> CommitId {
        CommitId(self.moved_folder.load(SeqCst))
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
