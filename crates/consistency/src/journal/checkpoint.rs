//! Writes committed blocks home, so that the log's tail can move and its space be reused.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use xact_types::{BlockNr, CommitId, Result};

use crate::core::block::{BlockRef, SlotState};
use crate::core::cache::Slot;
use crate::core::dirty_blocks::DirtyBlocks;
use crate::fault::Fault;
use crate::journal::Journal;

impl Journal {
    /// Writes the oldest transactions home until no more than `target` blocks of the log are in
    /// use. Skips blocks that a later durable commit has whole, since its copy stays in the log,
    /// and blocks that a later durable commit freed, since it revoked them.
    pub(super) fn checkpoint_to(&self, target: u32) -> Result<()> {
        let _alone = self.checkpointing.lock();
        let (passed, last, homeward) = self.choose(target);
        if passed == 0 {
            return Ok(());
        }
        for chunk in homeward.chunks(self.core.steps.checkpoint_blocks) {
            self.write_home(chunk, last)?;
        }
        // Durable by this flush: the blocks at home. Without it the tail could pass the only copies
        // of some blocks, and a crash would lose acknowledged changes.
        if !self.core.faults.has(Fault::NoFlushBeforeTail) {
            self.core.volume.flush()?;
        }
        self.move_tail(passed)
    }

    /// The number of oldest transactions to take, the last of them, and their blocks that must go
    /// home, sorted.
    fn choose(&self, target: u32) -> (usize, CommitId, Vec<Arc<Slot>>) {
        let state = self.log.state.lock();
        let mut left = state.used;
        let mut passed = 0;
        let mut last = CommitId(0);
        let mut homeward = Vec::new();
        for transaction in &state.committed {
            if left <= target {
                break;
            }
            left -= transaction.len;
            passed += 1;
            last = transaction.commit;
            homeward.extend(transaction.blocks.iter().cloned());
        }
        drop(state);
        homeward.retain(|slot| self.must_go_home(&slot.lock_any(), last).is_some());
        homeward.sort_unstable_by_key(|slot| slot.block);
        homeward.dedup_by_key(|slot| slot.block);
        (passed, last, homeward)
    }

    /// The contents of a block that must go home before the tail passes commit `last`, with the
    /// commit that they belong to. `None` if nothing must: the block is home, or the log also has
    /// it behind `last`.
    fn must_go_home(&self, state: &SlotState, last: CommitId) -> Option<(CommitId, BlockRef)> {
        let (newest, contents) = state.committed.as_ref()?;
        let whole = if self.core.faults.has(Fault::TailPastBase) { Some(*newest) } else { state.whole };
        (whole <= Some(last)).then(|| (*newest, contents.clone()))
    }

    fn write_home(&self, chunk: &[Arc<Slot>], last: CommitId) -> Result<()> {
        // Held during the write, so that `settle` can be sure that no freed block is being written.
        let _writing = self.home_writes.lock();
        let mut blocks: Vec<(BlockNr, BlockRef)> = Vec::with_capacity(chunk.len());
        let mut written = Vec::with_capacity(chunk.len());
        for slot in chunk {
            let mut state = slot.lock_any();
            let Some((commit, mut contents)) = self.must_go_home(&state, last) else { continue };
            if self.core.faults.has(Fault::CheckpointUncommitted) {
                contents = state.newest.clone().unwrap_or(contents);
            }
            state.writing = true;
            blocks.push((slot.block, contents));
            written.push((commit, slot));
        }
        self.core.volume.write_sorted(&blocks)?;
        self.checkpoint_writes.fetch_add(blocks.len() as u64, Relaxed);
        for (commit, slot) in written {
            let mut state = slot.lock_any();
            state.writing = false;
            if state.committed.as_ref().is_some_and(|(newest, _)| *newest == commit) {
                state.committed = None;
                self.pinned_blocks.fetch_sub(1, Relaxed);
                DirtyBlocks::drop_data_contents(&mut state);
            }
        }
        Ok(())
    }

    /// Moves the tail past the `passed` oldest transactions, whose blocks are durable at home or
    /// in a later transaction.
    fn move_tail(&self, passed: usize) -> Result<()> {
        let (start, sequence) = {
            let state = self.log.state.lock();
            match state.committed.get(passed) {
                Some(next) => (next.start, next.sequence),
                // The transaction that is being written, or will be, begins at the head.
                None => (state.head, state.sequence),
            }
        };
        {
            let mut head = self.head.lock();
            head.fields.start = start;
            head.fields.sequence = sequence;
            head.write(&self.core.volume)?;
        }
        // Durable by this flush: the tail. The space before it may be overwritten from now on. A
        // recovery that began at the old tail would find the middle of a newer transaction there
        // and drop everything after it.
        self.core.volume.flush()?;
        let mut state = self.log.state.lock();
        let gone: Vec<_> = state.committed.drain(..passed).collect();
        state.used -= gone.iter().map(|t| t.len).sum::<u32>();
        drop(state);
        let mut out = Vec::new();
        let mut logged = self.log.logged.lock();
        for transaction in &gone {
            for slot in &transaction.blocks {
                if logged.get(&slot.block.0) == Some(&transaction.commit) {
                    logged.remove(&slot.block.0);
                    out.push(slot);
                }
            }
        }
        drop(logged);
        for slot in out {
            let mut state = slot.lock_any();
            // A newer commit may hold it again.
            if state.in_no_commit() {
                self.core.blocks.set_data(&mut state, false);
            }
        }
        Ok(())
    }
}
