//! The leaders of commits: one thread at a time, and the threads that wait for it.

use std::time::Instant;

use xact_types::{CommitId, Error, Result};

use super::Pipeline;
use crate::core::leader;

impl Pipeline {
    /// Waits until `commit` is durable. If no thread leads, this one does; `lead` commits the
    /// running commit.
    pub fn make_durable(&self, commit: CommitId, lead: impl Fn() -> Result<()>) -> Result<()> {
        self.lead_until(commit, || false, lead)
    }

    /// As `make_durable`; ends also when `is_done`.
    pub fn lead_until(
        &self,
        commit: CommitId,
        is_done: impl Fn() -> bool,
        lead: impl Fn() -> Result<()>,
    ) -> Result<()> {
        let mut state = self.state.lock();
        loop {
            if state.durable >= commit || is_done() {
                return Ok(());
            }
            self.volume.poison.check()?;
            if commit > state.running {
                return Err(Error::Usage(format!("{commit} has not begun")));
            }
            if state.leading {
                self.settled.wait(&mut state);
                continue;
            }
            state.leading = true;
            drop(state);
            let turn = Leading::begin(self);
            let began = Instant::now();
            let result = lead();
            drop(turn);
            result?;
            self.times.add(began.elapsed());
            state = self.state.lock();
        }
    }

    /// Waits while the commit before the running one is written.
    pub fn await_previous(&self) {
        let mut state = self.state.lock();
        while state.leading && state.durable.0 + 1 < state.running.0 {
            self.settled.wait(&mut state);
        }
    }

    /// Waits until no thread leads; then the caller leads, until it drops the result.
    pub fn lead_alone(&self) -> Leading<'_> {
        let mut state = self.state.lock();
        while state.leading {
            self.settled.wait(&mut state);
        }
        state.leading = true;
        drop(state);
        Leading::begin(self)
    }
}

/// A leader's turn. Its end wakes all threads that wait for a commit or for the next turn.
pub(crate) struct Leading<'a> {
    pipeline: &'a Pipeline,
}

impl<'a> Leading<'a> {
    fn begin(pipeline: &'a Pipeline) -> Leading<'a> {
        leader::begins();
        Leading { pipeline }
    }
}

impl Drop for Leading<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.pipeline.volume.poison.set("a commit panicked");
        }
        let is_awaited = {
            let mut state = self.pipeline.state.lock();
            state.leading = false;
            // The background thread is idle while a commit runs: the commit is due, and could not
            // be written while another one was.
            state.crowded || state.is_enough || (state.is_idle && state.since.is_some())
        };
        self.pipeline.settled.notify_all();
        if is_awaited {
            self.pipeline.due.notify_all();
        }
        if self.pipeline.volume.poison.is_set() {
            self.pipeline.give_up();
        }
        leader::ends();
    }
}
