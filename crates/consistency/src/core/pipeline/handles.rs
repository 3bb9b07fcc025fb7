//! Handles: their begin, their credits, their waits and their end.

use std::sync::Arc;

use xact_types::{CommitId, Error, Result};

use super::Pipeline;
use crate::core::waits::{self, WaitRegistry, Waiting};

impl Pipeline {
    /// See [`crate::Engine::start`]. `may` returns whether the operation may still begin, and is
    /// called again after each wait. `is_full` returns whether the running commit should take no
    /// more, for reasons other than its credits. With `back`, the handle begins in the draining
    /// commit, if none has begun in the next one.
    pub fn start(
        &self,
        credits: u32,
        back: bool,
        may: impl Fn() -> Result<()>,
        is_full: impl Fn() -> bool,
    ) -> Result<CommitId> {
        let mut state = self.state.lock();
        // Whether this handle is among those that wait for a commit of their own.
        let mut counted = false;
        let begun = loop {
            if let Err(error) = self.volume.poison.check().and_then(|()| may()) {
                break Err(error);
            }
            if back && let Some(commit) = state.join_draining(credits) {
                break Ok(commit);
            }
            if credits > state.max_alone {
                break Err(Error::TooLarge { blocks: credits.into(), limit: state.max_alone.into() });
            }
            // The limit on a commit can change during this wait.
            let alone = credits > state.max_credits;
            if alone != counted {
                state.waiting_alone = if alone { state.waiting_alone + 1 } else { state.waiting_alone - 1 };
                counted = alone;
            }
            if state.locked.is_none() {
                let full = is_full();
                // A handle that needs an empty commit gets the next one, before small ones fill it.
                let first = state.reserved == 0;
                let fits = state.reserved + u64::from(credits) <= u64::from(state.max_credits);
                if !full && if alone { first } else { fits && !(first && state.waiting_alone > 0) } {
                    if state.is_idle && state.since.is_none() {
                        self.due.notify_all();
                    }
                    break Ok(state.begin(credits));
                }
                state.crowded = true;
                self.due.notify_all();
            }
            self.switched.wait(&mut state);
        };
        if counted {
            state.waiting_alone -= 1;
            self.switched.notify_all();
        }
        let commit = begun?;
        waits::handle_begins(self.id);
        Ok(commit)
    }

    /// See [`crate::Engine::extend`].
    pub fn extend(&self, commit: CommitId, more: u32) -> Result<bool> {
        self.volume.poison.check()?;
        let mut state = self.state.lock();
        let max_credits = u64::from(state.max_credits);
        let reserved = state.reserved_of(commit);
        let fits = *reserved + u64::from(more) <= max_credits;
        if fits {
            *reserved += u64::from(more);
        }
        Ok(fits)
    }

    /// See [`crate::Engine::stop`].
    pub fn stop(&self, commit: CommitId, unused: u32) {
        let mut state = self.state.lock();
        waits::handle_ends(self.id);
        *state.reserved_of(commit) -= u64::from(unused);
        if state.running != commit {
            let draining = state.draining.as_mut().expect("just looked at");
            draining.handles -= 1;
            if draining.handles == 0 {
                self.drained.notify_all();
            }
            return;
        }
        state.handles -= 1;
        if state.handles == 0 && state.locked.is_some() {
            self.drained.notify_all();
        }
        if state.crowded && unused > 0 {
            self.switched.notify_all();
        }
        if state.reserved >= state.enough && !state.is_enough {
            state.is_enough = true;
            self.due.notify_all();
        }
    }

    /// A handle of a draining commit has also made a block part of the next commit. The block takes
    /// a credit of its own there, so that the two commits together take no more than was reserved.
    pub fn charge_next(&self, commit: CommitId, credits: u32) {
        if credits > 0 {
            let mut state = self.state.lock();
            *state.reserved_of(commit) -= u64::from(credits);
            state.reserved += u64::from(credits);
        }
    }

    /// See [`crate::Engine::waits_in_handles`].
    pub fn waits_in_handles(&self) -> u64 {
        self.state.lock().waits_begun
    }
}

impl WaitRegistry for Pipeline {
    fn begin_wait(self: Arc<Self>) -> Option<Waiting> {
        if !waits::has_handle(self.id) {
            return None;
        }
        let mut state = self.state.lock();
        let number = state.waits_begun;
        state.waits_begun += 1;
        state.waits.insert(number);
        if state.closing {
            self.drained.notify_all();
        }
        drop(state);
        Some(Waiting::new(self, number))
    }

    fn end_wait(&self, number: u64) {
        let mut state = self.state.lock();
        state.waits.remove(&number);
        if state.closing {
            self.drained.notify_all();
        }
    }
}
