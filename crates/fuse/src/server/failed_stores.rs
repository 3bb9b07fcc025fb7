//! Stores through mappings that could not be written, for the log.
//!
//! The kernel makes a page of a mapping writable without a request. The daemon sees the page when
//! the kernel writes it back, and may have no space for it then. `msync`, `fsync` and `close`
//! report that to a program that calls them; the log names the file in any case.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use xact::text::printable_bytes;
use xact_types::{Error, Ino};

use crate::server::Server;

/// Each file is logged once in this time.
const LOG_AGAIN: Duration = Duration::from_secs(10);

/// The files that were logged last.
#[derive(Default)]
pub struct FailedStores(Mutex<BTreeMap<Ino, Instant>>);

impl FailedStores {
    /// Whether the file is due to be logged.
    fn is_due(&self, ino: Ino) -> bool {
        let mut logged = self.0.lock();
        logged.retain(|_, at| at.elapsed() < LOG_AGAIN);
        let is_due = !logged.contains_key(&ino);
        logged.entry(ino).or_insert_with(Instant::now);
        is_due
    }
}

impl Server {
    /// Logs that the stores into these bytes of a file of the volume are lost.
    pub(crate) fn note_failed_stores(self: &Arc<Self>, ino: Ino, bytes: Range<u64>, error: &Error) {
        self.note_no_space(error);
        if !self.failed_stores.is_due(ino) {
            return;
        }
        let error = self.sentence(error);
        let log = move |file: String| {
            tracing::error!(
                "stores through a mapping of {file} are lost, from byte {} to {} at least: {error}",
                bytes.start,
                bytes.end - 1
            );
        };
        // The search for the path reads folders, and the kernel waits for the answer.
        let log_later = log.clone();
        let started = self.spawn(move |server| {
            log_later(match server.volume.path_of(ino) {
                Some(path) => printable_bytes(&path).to_string(),
                None => ino.to_string(),
            });
        });
        if started.is_err() {
            log(ino.to_string());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_file_is_logged_once() {
        let stores = FailedStores::default();
        assert!(stores.is_due(Ino(12)));
        assert!(!stores.is_due(Ino(12)));
        assert!(stores.is_due(Ino(13)));
        let before = |time: Duration| Instant::now().checked_sub(time);
        // A machine that was started since has no such time.
        let Some(long_ago) = before(LOG_AGAIN) else { return };
        stores.0.lock().insert(Ino(12), long_ago);
        stores.0.lock().insert(Ino(13), before(LOG_AGAIN / 2).unwrap());
        assert!(stores.is_due(Ino(12)) && !stores.is_due(Ino(13)));
    }
}
