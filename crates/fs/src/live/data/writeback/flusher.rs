//! Write-back by age, in a thread of its own; and by writers, where too much is dirty.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use xact_types::{Error, Ino, Result};

use super::WritebackRequest;
use crate::live::LiveFs;

/// How long data may stay dirty before the flusher takes it (sync(2) does not reach us, so this
/// is what a user waits for at most).
const DIRTY_AGE_MAX: Duration = Duration::from_secs(5);

/// Wakes the flusher thread: every second, when it is kicked, or to stop.
#[derive(Default)]
pub(in crate::live) struct Flusher {
    state: Mutex<FlusherState>,
    wake: Condvar,
    reported: AtomicBool,
    thread: Mutex<Option<JoinHandle<()>>>,
}

#[derive(Default)]
struct FlusherState {
    kicked: bool,
    stop: bool,
}

impl Flusher {
    /// Starts the thread. It keeps only a weak reference between its rounds, so that a file system
    /// that is dropped without `close` (a test's crash) ends it.
    pub fn start(&self, fs: &Arc<LiveFs>) -> Result<()> {
        let weak = Arc::downgrade(fs);
        let thread = std::thread::Builder::new()
            .name("xact-flusher".into())
            .spawn(move || {
                while let Some(fs) = weak.upgrade() {
                    if !fs.flush_round() {
                        return;
                    }
                }
            })
            .map_err(|e| Error::io("starting the flusher thread", e))?;
        *self.thread.lock() = Some(thread);
        Ok(())
    }

    /// Ends the thread, and waits for it unless it is the caller.
    pub fn end(&self) {
        self.stop();
        if let Some(thread) = self.thread.lock().take()
            && thread.thread().id() != std::thread::current().id()
        {
            let _ = thread.join();
        }
    }

    fn kick(&self) {
        let mut state = self.state.lock();
        if !state.kicked {
            state.kicked = true;
            self.wake.notify_one();
        }
    }

    fn stop(&self) {
        self.state.lock().stop = true;
        self.wake.notify_one();
    }

    /// `None` to stop, else whether it was kicked.
    fn wait(&self) -> Option<bool> {
        let mut state = self.state.lock();
        if !state.stop && !state.kicked {
            self.wake.wait_for(&mut state, Duration::from_secs(1));
        }
        if state.stop { None } else { Some(std::mem::take(&mut state.kicked)) }
    }

    /// Logs once that data cannot be written back.
    fn report(&self, error: &str) {
        if !self.reported.swap(true, Relaxed) {
            log::warn!("writing data back failed, it stays in memory: {error}");
        }
    }
}

impl LiveFs {
    /// Holds a writer back while too much is dirty, by letting it do some of the work.
    pub(in crate::live) fn throttle(&self, ino: Ino) -> Result<()> {
        if self.page_cache.wants_flush() {
            self.writeback.flusher.kick();
        }
        if self.page_cache.may_throttle() {
            let cached = self.cached_inode(ino)?;
            let own = cached.pages.lock().dirty as u64;
            if !self.page_cache.must_throttle(own) {
                return Ok(());
            }
            // With the inode's times: nothing of what leaves the cache stays behind in memory
            // (DIU-3).
            self.write_back(&cached, WritebackRequest::INODE)?;
        }
        Ok(())
    }

    /// One round of the flusher; false when it is to end.
    fn flush_round(&self) -> bool {
        let Some(kicked) = self.writeback.flusher.wait() else { return false };
        let before = Instant::now().checked_sub(DIRTY_AGE_MAX);
        let before = if kicked { None } else { Some(before.unwrap_or_else(Instant::now)) };
        let written = self.write_back_emptied().and_then(|()| self.write_back_all(before));
        let written = written.and_then(|()| self.restore_idle_journal());
        if let Err(error) = written {
            // The engine has poisoned itself where it was a write error; a read error (an extent
            // block that cannot be read) leaves the data in memory for the next try.
            if self.engine.health().is_err() {
                return false;
            }
            self.writeback.flusher.report(&error.to_string());
        }
        true
    }

    /// Writes back files that were cut to nothing and written again since the last round: the
    /// truncation is in the next commit, and its data had better be (`auto_da_alloc` of ext4, which
    /// does it at the close; no close comes to us).
    fn write_back_emptied(&self) -> Result<()> {
        for ino in self.page_cache.take_emptied() {
            if let Some(cached) = self.inodes.peek(ino) {
                self.write_back(&cached, WritebackRequest::INODE)?;
            }
        }
        Ok(())
    }
}
