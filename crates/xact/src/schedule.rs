//! Scheduled snapshots with a retention policy.

use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use xact_types::{Error, Result};

use crate::retention::{Date, RetentionPolicy};
use crate::volume::{Volume, now_seconds};

/// Prefix of the names of scheduled snapshots. A schedule deletes no others.
pub const AUTOMATIC: &str = "auto-";

/// A thread that creates snapshots until it is dropped.
pub struct Schedule {
    stop: Arc<Stop>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct Stop {
    asked: Mutex<bool>,
    changed: Condvar,
}

impl Schedule {
    /// Creates a snapshot at each interval `every` if anything has changed since the last one, of
    /// `paths` or (with none) of the volume, and then deletes the scheduled ones that `policy` does
    /// not keep. `failed` receives errors. On a full volume the next snapshot is attempted at its
    /// time.
    ///
    /// # Errors
    /// [`Error::Usage`] on a volume without generations; [`Error::Io`] where no thread can be
    /// started.
    pub fn start(
        volume: &Arc<Volume>,
        every: Duration,
        policy: RetentionPolicy,
        paths: Vec<Vec<u8>>,
        failed: impl Fn(&Error) + Send + 'static,
    ) -> Result<Schedule> {
        volume.snapshot_names()?;
        let (stop, volume) = (Arc::new(Stop::default()), volume.clone());
        let stopped = stop.clone();
        let thread = std::thread::Builder::new()
            .name("xact-snapshots".into())
            .spawn(move || {
                while stopped.wait(every) {
                    if let Err(error) = volume.snapshot_now(&policy, &paths) {
                        failed(&error);
                    }
                }
            })
            .map_err(|e| Error::io("starting a thread", e))?;
        Ok(Schedule { stop, thread: Some(thread) })
    }
}

impl Stop {
    /// Waits for this long; false if it was asked to stop.
    fn wait(&self, time: Duration) -> bool {
        let until = Instant::now() + time;
        let mut asked = self.asked.lock();
        while !*asked && !self.changed.wait_until(&mut asked, until).timed_out() {}
        !*asked
    }
}

impl Drop for Schedule {
    fn drop(&mut self) {
        *self.stop.asked.lock() = true;
        self.stop.changed.notify_all();
        if let Some(thread) = self.thread.take() {
            // A panic in it was already reported.
            let _ = thread.join();
        }
    }
}

impl Volume {
    /// One round of a schedule: a snapshot named by the time, of some paths or (with none) of the
    /// volume, unless nothing has changed since the newest one, and then [`Volume::prune`] over
    /// the scheduled ones. The comparison of chosen paths takes time in proportion to the number of
    /// files below them.
    ///
    /// # Errors
    /// As [`Volume::create_snapshot_of`] and [`Volume::prune`].
    pub fn snapshot_now(&self, policy: &RetentionPolicy, paths: &[Vec<u8>]) -> Result<()> {
        self.sync()?;
        let changed = match paths {
            [] => self.generations()?.has_changed_since_newest(),
            _ => match self.newest_automatic(paths)? {
                Some(newest) => !self.diff_snapshots(&newest, None)?.is_empty(),
                None => true,
            },
        };
        if changed {
            let now = now_seconds();
            let name = format!("{AUTOMATIC}{}", Date::of(now));
            let made = match paths {
                [] => self.create_snapshot(&name),
                _ => self.create_snapshot_of(&name, paths),
            };
            match made {
                // Two rounds within a second.
                Err(Error::Usage(_)) if self.snapshot_names()?.contains(&name) => {}
                made => made?,
            }
        }
        self.prune(policy, AUTOMATIC, false).map(|_| ())
    }

    fn newest_automatic(&self, paths: &[Vec<u8>]) -> Result<Option<String>> {
        for name in self.snapshot_names()?.into_iter().rev().filter(|name| name.starts_with(AUTOMATIC)) {
            if self.snapshot_paths(&name)? == paths {
                return Ok(Some(name));
            }
        }
        Ok(None)
    }

    /// Deletes the snapshots whose names begin with `prefix` and that no rule keeps, each in a
    /// commit of its own, and returns their names, from the oldest on. With `dry_run` nothing is
    /// deleted.
    ///
    /// # Errors
    /// [`Error::Usage`] for a policy that keeps nothing.
    pub fn prune(&self, policy: &RetentionPolicy, prefix: &str, dry_run: bool) -> Result<Vec<String>> {
        let now = now_seconds();
        let expired = policy.expired(&self.generations()?.times(), prefix, now)?;
        if !dry_run {
            expired.iter().try_for_each(|name| self.delete_snapshot(name))?;
        }
        Ok(expired)
    }
}
