//! The history of lost attempts of an application that retries: the basis of a claim.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use xact_types::Ino;

/// Number of lost attempts after which the next one has a claim.
pub const LOSSES_BEFORE_PRIORITY: u32 = 3;
/// Maximum number of files and folders of lost attempts that are remembered. A command that uses
/// more has a claim on these.
const INODES_MAX: usize = 1 << 16;

/// An attempt that was lost to a conflict: the inodes that it used, and its duration.
#[derive(Debug, Clone, Default)]
pub struct LostAttempt {
    /// Number of the transaction.
    pub id: u64,
    /// The files and folders that it used.
    pub inodes: BTreeSet<Ino>,
    /// Time from its begin to the conflict.
    pub took: Duration,
}

/// Attempts lost in a row before the next one.
#[derive(Debug, Clone, Default)]
pub struct AbortHistory {
    count: u32,
    /// Number of the first attempt's transaction; numbers rise with time.
    pub(super) age: u64,
    pub(super) inodes: Arc<BTreeSet<Ino>>,
    pub(super) longest: Duration,
}

impl AbortHistory {
    /// Adds an attempt to the history.
    pub fn add(&mut self, lost: LostAttempt) {
        if self.count == 0 {
            self.age = lost.id;
        }
        self.count += 1;
        let inodes = Arc::make_mut(&mut self.inodes);
        let room = INODES_MAX.saturating_sub(inodes.len());
        inodes.extend(lost.inodes.into_iter().take(room));
        self.longest = self.longest.max(lost.took);
    }

    /// Whether the next attempt has a claim. Its begin then waits for running commits.
    pub fn gives_priority(&self) -> bool {
        self.count >= LOSSES_BEFORE_PRIORITY
    }

    /// Memory in bytes.
    pub fn bytes(&self) -> usize {
        self.inodes.len() * 16
    }
}
