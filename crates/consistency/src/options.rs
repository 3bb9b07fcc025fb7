//! The options with which an engine is opened.

use std::time::Duration;

use xact_types::Steps;
use xact_types::settings::Id;

/// How a transaction is written to the journal (JOJ-2, JOJ-3).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum CommitWrites {
    /// As jbd2 by default: descriptors and copies, flush, commit block, flush.
    #[default]
    TwoStep,
    /// Everything in one write behind a checksum over the whole transaction, and one flush (ext4's
    /// `journal_checksum,journal_async_commit`).
    Single,
}

/// How a transaction records a changed block (JOJ-9).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum LogRecords {
    /// As jbd2: a copy of it.
    #[default]
    Block,
    /// The changed bytes, if they are few. Only xact can replay the log until it is empty, as it is
    /// after a clean close.
    SubBlock,
}

/// The effect of an fsync on a volume with generations (SNAP-12).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Fsync {
    /// Writes all changes to the intent log. `sync`, age and a full log make a generation.
    Log,
    /// Makes a generation, as the paper does.
    Generation,
    /// As `Log`. But if only the data and the inode of a file were changed, the record has only
    /// what this file depends on.
    #[default]
    File,
}

/// Settings of an engine. The defaults are those of a stock ext4 mount.
#[derive(Debug, Clone)]
pub struct EngineOptions {
    /// The running commit becomes durable after this time at most.
    pub commit_interval: Duration,
    /// With generations: the number of dirty metadata blocks, those in the intent log included, at
    /// which the next one is made at once (SNAP-5). By default half of what a commit can take, so
    /// that it is on its way before a caller has to wait for it.
    pub dirty_blocks: Option<u32>,
    pub commit_writes: CommitWrites,
    pub log_records: LogRecords,
    pub fsync: Fsync,
    /// File data is on the device before the commit that refers to it (ext4's `data=ordered`).
    /// Without it, a crash may show the previous contents of newly allocated blocks
    /// (`data=writeback`).
    pub ordered_data: bool,
    /// Memory for cached metadata blocks. Blocks that are dirty, or committed and not yet in their
    /// own place, stay in memory and may exceed it for a while.
    pub cache_bytes: usize,
    /// The sizes of steps; crash tests lower them.
    pub steps: Steps,
    /// Nothing is ever changed, except that the log that a crash left is replayed first if the
    /// device can be written, as the kernel does for a read-only mount.
    pub read_only: bool,
    /// With `read_only`: the log that a crash left is ignored, and nothing is written. A volume
    /// with a journal is read as its checkpoints left it, which may be inconsistent; one with
    /// generations as its newest generation (ext4's `noload`).
    pub no_recovery: bool,
    /// Leaves out one ordering rule; for the crash explorer's canaries only.
    #[cfg(feature = "faults")]
    pub fault: Option<crate::Fault>,
}

impl Default for EngineOptions {
    fn default() -> EngineOptions {
        EngineOptions {
            commit_interval: Id::Commit.setting().default_duration(),
            dirty_blocks: None,
            commit_writes: CommitWrites::default(),
            log_records: LogRecords::default(),
            fsync: Fsync::default(),
            ordered_data: true,
            cache_bytes: 64 << 20,
            steps: Steps::default(),
            read_only: false,
            no_recovery: false,
            #[cfg(feature = "faults")]
            fault: None,
        }
    }
}

impl EngineOptions {
    /// The rule to be left out, if any.
    #[cfg(feature = "faults")]
    pub fn faults(&self) -> crate::fault::Faults {
        crate::fault::Faults::new(self.fault)
    }

    /// The rule to be left out, if any.
    #[cfg(not(feature = "faults"))]
    pub fn faults(&self) -> crate::fault::Faults {
        crate::fault::Faults
    }
}
