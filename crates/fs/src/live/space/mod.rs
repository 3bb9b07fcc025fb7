//! Free space, and how a full volume finds some.
//!
//! - `tx_space`: space that open transactions hold before their commits; `tx_reserve`: how they get
//!   it
//! - `make_space`: the steps that are tried before a caller gets `NoSpace`
//! - `held_deletions`: deleted files whose space the kernel is about to release
//! - `journal_size`: the journal grows for the largest commit, and shrinks again; `long_journal`:
//!   whether a commit needs it long

mod held_deletions;
pub(super) mod journal_size;
mod long_journal;
pub(super) mod make_space;
mod tx_reserve;
pub(super) mod tx_space;

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::SeqCst};

use parking_lot::Mutex;

use held_deletions::HeldDeletions;
use long_journal::LongJournal;
use tx_space::TxSpaces;

/// Holders of space, and the state of making some free.
#[derive(Default)]
pub(super) struct Space {
    transactions: TxSpaces,
    long_journal: LongJournal,
    pub(super) held_deletions: HeldDeletions,
    /// Removals of blocks that are running.
    removals: AtomicUsize,
    /// Held while transactions give way, so that no more of them do than necessary.
    giving_way: Mutex<()>,
    /// How often transactions have given way.
    rounds: AtomicU64,
}

/// Counts a removal of blocks as running.
pub(super) struct RunningRemoval<'a>(&'a AtomicUsize);

impl Space {
    /// Blocks are being given back while the result lives: callers that find no space wait for it.
    pub fn begin_removal(&self) -> RunningRemoval<'_> {
        self.removals.fetch_add(1, SeqCst);
        RunningRemoval(&self.removals)
    }
}

impl Drop for RunningRemoval<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, SeqCst);
    }
}
