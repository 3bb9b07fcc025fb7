//! An fsync that does not wait for other files' changes: a record of the log with the changes of
//! the operations that went ahead of the running commit (`core::ahead`).
//!
//! The record looks like any other: it changes bytes of blocks, or replaces them. What it leaves is
//! a state of the volume in which these operations have happened and no other operation of the
//! commit has. The commit, which contains them too, stays open, and its own record or generation
//! follows.
//!
//! Invariants, in addition to those of `log`:
//! 1. A record ahead is written by a leader while the commit before the running one is durable. So
//!    records are in the order of the states that they lead to: the durable one, those ahead, that
//!    of the commit.
//! 2. Blocks that an operation ahead has allocated were free in the durable state and in the
//!    running commit, because no block is allocated before the commit that frees it is durable. So
//!    no later owner of a block can be lost or found twice, whichever of the two a crash leaves.
//! 3. An operation ahead frees nothing.
//! 4. Data that moved to the running commit (`redirect`) is not in a record ahead. While there is
//!    such data, the whole commit is made durable.
//!
//! Small commits are written whole: several callers share one record, and it is short.

use std::sync::atomic::Ordering::Relaxed;

use xact_types::{CommitId, Result};

use super::Generations;
use super::commit::CommitKind;
use crate::core::ahead::Join;
use crate::mechanism::{CommitsAhead, Mechanism, ReserveClass};

impl Generations {
    /// Whether a commit is large: then an fsync does not wait for all of its changes.
    fn is_large(&self, commit: CommitId) -> bool {
        self.core.blocks.changed_blocks(commit) >= self.core.steps.ahead_blocks
    }

    /// Leader: makes the operations ahead of the running commit durable, or else all of it.
    fn write_ahead(&self, commit: CommitId) -> Result<()> {
        let Some((batch, frozen)) = self.core.blocks.ahead.take(commit) else {
            return self.commit_running(CommitKind::Log);
        };
        let mut state = self.state.lock();
        if frozen.is_empty() {
            // But data that was written before must become durable all the same.
            self.core.volume.flush()?;
            self.core.blocks.ahead.written(batch, &frozen);
            return Ok(());
        }
        if !self.write_record(commit, &mut state.log, &frozen)? {
            drop(state);
            return self.commit_running(CommitKind::Log);
        }
        self.commits.fetch_add(1, Relaxed);
        self.committed_blocks.fetch_add(frozen.blocks.len() as u64, Relaxed);
        self.core.blocks.ahead.written(batch, &frozen);
        self.count_logged();
        Ok(())
    }
}

impl CommitsAhead for Generations {
    fn goes_ahead_now(&self) -> bool {
        self.goes_ahead() && self.is_large(self.core.pipeline.running())
    }

    fn start_ahead(&self, credits: u32, class: ReserveClass, waits: bool) -> Result<(CommitId, Option<u64>)> {
        let pipeline = &self.core.pipeline;
        loop {
            if waits && self.goes_ahead() && self.is_large(pipeline.running()) {
                // A record ahead would have to wait for it in any case.
                pipeline.await_previous();
            }
            let commit = self.start(credits, class)?;
            let follows = pipeline.durable().0 + 1 == commit.0;
            if !self.goes_ahead() || !follows || !self.is_large(commit) {
                return Ok((commit, None));
            }
            match self.core.blocks.ahead.join(commit) {
                Join::Batch(batch) => return Ok((commit, Some(batch))),
                Join::Refused => return Ok((commit, None)),
                Join::Later => {
                    pipeline.stop(commit, credits);
                    self.core.blocks.ahead.await_batch();
                }
            }
        }
    }

    fn commit_ahead(&self, commit: CommitId, batch: u64) -> Result<()> {
        if self.redirect.newest() > self.core.pipeline.durable() {
            return self.commit(commit);
        }
        let ticket = self.core.volume.flush_ticket();
        let ahead = &self.core.blocks.ahead;
        if self.core.pipeline.durable() >= commit || ahead.is_durable(batch) {
            return self.core.guard(self.core.volume.flush_data());
        }
        let lead = || self.core.guard(self.write_ahead(commit));
        self.core.pipeline.lead_until(commit, || ahead.is_durable(batch), lead)?;
        self.core.guard(self.core.volume.flush_for(ticket))
    }
}
