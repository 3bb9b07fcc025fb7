//! The end of a commit: the leader closes it, opens the next one, and reports it as durable.

use std::sync::atomic::Ordering;
use std::time::Instant;

use xact_types::{CommitId, Result};

use super::Pipeline;
use super::state::Draining;

/// The most handles that begin in a commit after it is closed. Threads that want it durable wait
/// for these handles.
const JOIN_DRAINING_MAX: u32 = 32;

/// The number of waits that may begin while a leader keeps its commit open for handles.
pub(super) const WAITS_MAX: u64 = 256;

impl Pipeline {
    /// Leader: closes the running commit to new handles and waits for those in it to end.
    pub fn lock(&self) -> Result<CommitId> {
        let mut state = self.state.lock();
        state.closing = true;
        let patience = state.waits_begun + WAITS_MAX;
        while state.handles > 0 {
            if let Err(error) = self.volume.poison.check() {
                state.closing = false;
                return Err(error);
            }
            let lasts = state.waits.first().is_some_and(|first| first + WAITS_MAX <= state.waits_begun);
            if state.waits.is_empty() || state.waits_begun >= patience && !lasts {
                state.locked.get_or_insert_with(Instant::now);
            } else if let Some(locked) = state.locked.take() {
                self.held_up.add(locked.elapsed());
                self.switched.notify_all();
            }
            self.drained.wait(&mut state);
        }
        state.closing = false;
        self.volume.poison.check()?;
        state.locked.get_or_insert_with(Instant::now);
        Ok(state.running)
    }

    /// Leader: closes the running commit, with the next one open at once, and waits until the
    /// handles in it have ended.
    pub fn close_and_open_next(&self) -> Result<CommitId> {
        let mut state = self.state.lock();
        self.volume.poison.check()?;
        let began = Instant::now();
        let commit = state.running;
        if state.handles > 0 {
            let (handles, reserved) = (state.handles, state.reserved);
            let may_join_draining = JOIN_DRAINING_MAX;
            state.draining = Some(Draining { commit, handles, reserved, may_join_draining });
            self.draining.store(commit.0, Ordering::Release);
        }
        state.open_next();
        self.held_up.add(began.elapsed());
        self.switched.notify_all();
        while state.draining.as_ref().is_some_and(|draining| draining.handles > 0) {
            self.drained.wait(&mut state);
            self.volume.poison.check()?;
        }
        if state.draining.take().is_some() {
            self.draining.store(0, Ordering::Release);
            self.switched.notify_all();
        }
        Ok(commit)
    }

    /// Leader: opens the next commit.
    pub fn switch(&self) {
        let mut state = self.state.lock();
        assert!(state.handles == 0, "only a commit without handles is switched");
        let locked = state.locked.take().expect("only a locked commit is switched");
        self.held_up.add(locked.elapsed());
        state.open_next();
        self.switched.notify_all();
    }

    /// Leader: `commit` is durable. Runs what waits for that; the leader's end wakes the waiters.
    pub fn finish(&self, commit: CommitId) {
        loop {
            let mut state = self.state.lock();
            let (ready, rest): (Vec<_>, Vec<_>) =
                std::mem::take(&mut state.actions).into_iter().partition(|(id, _)| *id <= commit);
            state.actions = rest;
            if ready.is_empty() {
                state.durable = commit;
                state.ordered.retain(|later| *later > commit);
                self.durable.store(commit.0, Ordering::Release);
                return;
            }
            drop(state);
            for (_, action) in ready {
                action();
            }
        }
    }

    /// See [`crate::Engine::await_drained`].
    pub fn await_drained(&self, commit: CommitId) -> Result<()> {
        if self.draining.load(Ordering::Acquire) == 0 {
            return Ok(());
        }
        let mut state = self.state.lock();
        while state.draining.as_ref().is_some_and(|draining| draining.commit < commit) {
            self.volume.poison.check()?;
            self.switched.wait(&mut state);
        }
        Ok(())
    }
}
