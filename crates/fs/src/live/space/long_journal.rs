//! Tracks whether a commit needs the journal longer than it was made.

use std::sync::atomic::{AtomicU32, Ordering::SeqCst};
use std::time::{Duration, Instant};

use parking_lot::{Mutex, MutexGuard};

/// Time without use after which a long journal gets short again.
const IDLE_TIME: Duration = Duration::from_secs(10);

/// The users of a long journal.
#[derive(Default)]
pub(in crate::live) struct LongJournal {
    /// Held while the length changes.
    changing: Mutex<()>,
    users: AtomicU32,
    unused_since: Mutex<Option<Instant>>,
}

/// Keeps the journal from getting shorter.
pub(in crate::live) struct JournalUse<'a> {
    long: &'a LongJournal,
}

impl LongJournal {
    /// Counts a user, until the result is dropped.
    pub fn begin_use(&self) -> JournalUse<'_> {
        self.users.fetch_add(1, SeqCst);
        JournalUse { long: self }
    }

    /// The lock under which the length changes.
    pub fn lock(&self) -> MutexGuard<'_, ()> {
        self.changing.lock()
    }

    pub fn is_used(&self) -> bool {
        self.users.load(SeqCst) > 0
    }

    /// Whether the journal is long, and no commit has needed that for a while.
    pub fn is_idle(&self) -> bool {
        self.unused_since.lock().is_some_and(|since| since.elapsed() > IDLE_TIME)
    }

    /// The journal has its own length again.
    pub fn note_restored(&self) {
        *self.unused_since.lock() = None;
    }
}

impl Drop for JournalUse<'_> {
    fn drop(&mut self) {
        *self.long.unused_since.lock() = Some(Instant::now());
        self.long.users.fetch_sub(1, SeqCst);
    }
}
