//! The state after a failed write or flush: nothing is written any more.
//!
//! A device that failed a write or a flush may have lost any write since the last good flush, and
//! reports the failure only once. A retry would continue as if nothing were lost. So the first
//! failure ends all writing; the log, or e2fsck, repairs the volume at the next mount.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use xact_types::{Error, Result};

#[derive(Default)]
pub(crate) struct Poison {
    set: AtomicBool,
    why: Mutex<Option<Arc<str>>>,
}

impl Poison {
    /// Keeps the first reason, and logs it.
    pub fn set(&self, why: &str) {
        if self.stop(why) {
            tracing::error!("the volume is read-only from now on, after an error: {why}");
        }
    }

    /// The volume was closed in good order. Later calls fail in the same way.
    pub fn close(&self) {
        self.stop("the volume was closed");
    }

    /// Whether this is the first reason.
    fn stop(&self, why: &str) -> bool {
        let mut reason = self.why.lock();
        let first = reason.is_none();
        if first {
            *reason = Some(why.into());
            self.set.store(true, Ordering::Release);
        }
        first
    }

    pub fn is_set(&self) -> bool {
        self.set.load(Ordering::Acquire)
    }

    pub fn check(&self) -> Result<()> {
        if !self.is_set() {
            return Ok(());
        }
        let why = self.why.lock().clone().unwrap_or_else(|| "unknown".into());
        Err(Error::Poisoned(why))
    }
}
