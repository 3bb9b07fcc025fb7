//! The flusher thread: it wakes after a fixed time, or when it is woken, and runs one round of
//! write-back.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::JoinHandle;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use xact_types::{Error, Result};

/// Starts, wakes and stops the thread.
#[derive(Default)]
pub(in crate::live) struct FlusherThread {
    requests: Mutex<Requests>,
    wake: Condvar,
    failure_logged: AtomicBool,
    thread: Mutex<Option<JoinHandle<()>>>,
}

#[derive(Default)]
struct Requests {
    /// A round is due at once.
    woken: bool,
    stop: bool,
}

impl FlusherThread {
    /// Starts the thread. It calls `round` until that returns false; each round begins with
    /// [`Self::wait`].
    pub fn start(&self, mut round: impl FnMut() -> bool + Send + 'static) -> Result<()> {
        let thread = std::thread::Builder::new()
            .name("xact-flusher".into())
            .spawn(move || while round() {})
            .map_err(|e| Error::io("starting the flusher thread", e))?;
        *self.thread.lock() = Some(thread);
        Ok(())
    }

    /// Stops the thread, and waits for it unless it is the caller.
    pub fn stop(&self) {
        self.requests.lock().stop = true;
        self.wake.notify_one();
        if let Some(thread) = self.thread.lock().take()
            && thread.thread().id() != std::thread::current().id()
        {
            let _ = thread.join();
        }
    }

    /// Starts the next round at once.
    pub(super) fn wake(&self) {
        let mut requests = self.requests.lock();
        if !requests.woken {
            requests.woken = true;
            self.wake.notify_one();
        }
    }

    /// Waits for the next round, `round` at most; returns whether the thread was woken, or `None`
    /// to stop.
    pub(super) fn wait(&self, round: Duration) -> Option<bool> {
        let mut requests = self.requests.lock();
        if !requests.stop && !requests.woken {
            self.wake.wait_for(&mut requests, round);
        }
        if requests.stop { None } else { Some(std::mem::take(&mut requests.woken)) }
    }

    /// Logs the first failure to write data back.
    pub(super) fn log_failure(&self, error: &str) {
        if !self.failure_logged.swap(true, Relaxed) {
            tracing::warn!("writing data back failed, it stays in memory: {error}");
        }
    }
}
