//! Writes that arrive in parts.
//!
//! One write(2) on a mount is several FUSE requests if it begins within a page that the kernel has
//! not read, or is longer than a request. The unit of delayed inode update is the write (DIU-1), so
//! the size on disk must not stop between two parts. While more parts may follow, the file is not
//! written back. A write-back that meets such a file waits, for at most
//! [`Steps::next_part`](xact_types::Steps), with no lock held: the writer may have been killed
//! between two parts.
//!
//! Crash argument: `link` alone moves the size on disk. It runs under the inode's lock, which is
//! taken before [`WriteParts::holds`] is asked, and a part is noted under the same lock. So the
//! size on disk never ends where a part does, unless the next one took longer than the wait.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use xact_types::Ino;

/// The files of which a write has not ended.
pub(in crate::live) struct WriteParts {
    /// Entries of `files`. Every write reads it, so it has no lock.
    count: AtomicUsize,
    /// Each with the time of its last part.
    files: Mutex<HashMap<Ino, Instant>>,
    ended: Condvar,
    wait: Duration,
}

impl WriteParts {
    pub fn new(wait: Duration) -> WriteParts {
        WriteParts { count: AtomicUsize::new(0), files: Mutex::default(), ended: Condvar::new(), wait }
    }

    /// A part of a write was stored, and more may follow. The caller holds the inode's lock
    /// exclusively.
    pub fn begin(&self, ino: Ino) {
        let mut files = self.files.lock();
        // Files whose writer has not come back leave the list.
        files.retain(|_, last| last.elapsed() < self.wait);
        files.insert(ino, Instant::now());
        self.count.store(files.len(), SeqCst);
    }

    /// The write has ended.
    pub fn end(&self, ino: Ino) {
        if self.count.load(SeqCst) == 0 {
            return;
        }
        let mut files = self.files.lock();
        if files.remove(&ino).is_some() {
            self.count.store(files.len(), SeqCst);
            self.ended.notify_all();
        }
    }

    /// Whether more of a write of the file may follow.
    pub fn holds(&self, ino: Ino) -> bool {
        self.count.load(SeqCst) > 0
            && self.files.lock().get(&ino).is_some_and(|last| last.elapsed() < self.wait)
    }

    /// Waits until the write of a file has ended, or `until`, or the time for its next part.
    fn wait(&self, ino: Ino, until: Instant) {
        let mut files = self.files.lock();
        while let Some(last) = files.get(&ino) {
            let end = until.min(*last + self.wait);
            if self.ended.wait_until(&mut files, end).timed_out() {
                break;
            }
        }
    }
}

/// The patience of one write-back with the writers of a file.
pub(super) struct Patience<'a> {
    parts: &'a WriteParts,
    until: Option<Instant>,
}

impl<'a> Patience<'a> {
    pub fn new(parts: &'a WriteParts) -> Patience<'a> {
        Patience { parts, until: None }
    }

    /// Whether the caller has to release the inode's lock, which it holds, and call [`Self::wait`].
    /// After one [`Steps::next_part`](xact_types::Steps) of waiting it is always false: a thread
    /// that writes in parts all the time does not delay a write-back for ever.
    pub fn is_needed(&self, ino: Ino) -> bool {
        self.parts.holds(ino) && self.until.is_none_or(|until| Instant::now() < until)
    }

    pub fn wait(&mut self, ino: Ino) {
        let until = *self.until.get_or_insert_with(|| Instant::now() + self.parts.wait);
        self.parts.wait(ino, until);
    }
}
