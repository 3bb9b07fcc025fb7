//! The background thread waits here until the running commit is due.

use std::time::{Duration, Instant};

use xact_types::CommitId;

use super::Pipeline;

/// Why the background thread should commit.
pub(crate) struct Due {
    pub commit: CommitId,
    /// An operation waits for space, so the commit must be ended even if it changed nothing.
    pub crowded: bool,
}

/// How often the background thread looks whether the running commit is older than it was
/// ([`Pipeline::age_from`]): several times in a commit interval, and once a second at least. A
/// notification would wake it at every fsync.
fn look_interval(interval: Duration) -> Duration {
    (interval / 8).min(Duration::from_secs(1))
}

impl Pipeline {
    /// The running commit, if it has any changes, has some that were accepted at `since`: it is due
    /// an interval after that.
    pub fn age_from(&self, since: Instant) {
        let mut state = self.state.lock();
        if let Some(own) = &mut state.since {
            *own = since.min(*own);
        }
    }

    /// Background thread: waits until the running commit is due. `None` if the thread should end.
    pub fn wait_due(&self, interval: Duration) -> Option<Due> {
        let mut state = self.state.lock();
        loop {
            if state.stopping || self.volume.poison.is_set() {
                return None;
            }
            if state.crowded && !state.leading {
                return Some(Due { commit: state.running, crowded: true });
            }
            if state.is_enough && !state.leading {
                return Some(Due { commit: state.running, crowded: false });
            }
            match state.since.map(|since| since + interval) {
                Some(at) if at <= Instant::now() && !state.leading => {
                    return Some(Due { commit: state.running, crowded: false });
                }
                Some(at) if at > Instant::now() => {
                    let at = at.min(Instant::now() + look_interval(interval));
                    self.due.wait_until(&mut state, at);
                }
                // The next commit's first handle, or the leader, ends this wait.
                _ => {
                    state.is_idle = true;
                    self.due.wait(&mut state);
                    state.is_idle = false;
                }
            }
        }
    }

    /// Background thread: the running commit turned out to be empty; its age counts from now.
    pub fn reset_age(&self, commit: CommitId) {
        let mut state = self.state.lock();
        if state.running != commit {
            return;
        }
        state.is_enough = false;
        let is_empty = state.handles == 0 && state.reserved == 0 && state.actions.is_empty();
        if is_empty && !state.crowded {
            state.since = None;
        } else if let Some(since) = &mut state.since {
            *since = Instant::now();
        }
    }

    pub fn stop_background(&self) {
        self.state.lock().stopping = true;
        self.due.notify_all();
    }
}
