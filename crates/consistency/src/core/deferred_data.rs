//! File data that goes to its place with a commit, and not before (TX-10).
//!
//! A commit for which no caller waits links new blocks to a file. Their contents stay here. The
//! leader writes them when it commits. If the same commit frees the blocks before that, nothing is
//! written.
//!
//! ```text
//!  defer_data --> here --------------------------> its place --> flush --> the commit's record
//!                  |  freed in the same commit                             (durable)
//!                  |  written over in place
//!                  '--> dropped
//! ```
//! Invariants:
//! 1. A block was free in every durable state until the commit that defers it. So until this commit
//!    is durable, only the block's file writes to the block, and any contents may be in it.
//! 2. The leader takes the contents of a commit when no handle is open in it (`begin`), and writes
//!    them before the flush that precedes the commit's record. So everything that a durable commit
//!    refers to is durable, as if it had been written before the handle ended.
//! 3. Only an operation in the same commit drops contents because it frees their block. If a later
//!    commit frees the block, a crash may undo that one alone, so the contents are written.
//! 4. Data that replaces deferred contents is written in place at once, under `overwriting`. The
//!    contents are dropped with it. The leader takes the contents only between such writes: it
//!    finds the contents here, or the write has ended and its flush covers it. While the leader
//!    writes, such a write waits, so that the older contents never come later.
//! 5. A block is not in a snapshot and has no copy in the log when it is deferred
//!    (`Mechanism::may_defer`), so its place is its own home. A snapshot gets the block only with
//!    the commit that defers it, or a later one. The leader takes the contents before operations
//!    begin after that snapshot.
//!
//! Locks, in order: `overwriting`, `state`. Neither is held while a thread waits for a commit.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

use parking_lot::{Condvar, Mutex, RwLock, RwLockReadGuard};
use xact_device::WriteHint;
use xact_types::{BlockNr, CommitId, Result};

use super::block::BlockRef;
use super::volume::Volume;
use crate::fault::{Fault, Faults};

#[derive(Default)]
pub(crate) struct DeferredData {
    state: Mutex<State>,
    /// Number of blocks. At 0, no search for them is needed.
    count: AtomicU64,
    /// Held by each write of newer data over deferred contents.
    overwriting: RwLock<()>,
    /// A leader has written its contents.
    written: Condvar,
}

#[derive(Default)]
struct State {
    /// Contents, with the commit that they go with.
    blocks: BTreeMap<u64, (CommitId, BlockRef)>,
    /// A leader is writing the contents of this commit and of those before it.
    writing: Option<CommitId>,
}

impl State {
    fn is_written_now(&self, commit: CommitId) -> bool {
        self.writing.is_some_and(|writing| commit <= writing)
    }
}

impl DeferredData {
    /// Number of blocks whose contents are here.
    pub fn blocks(&self) -> u64 {
        self.count.load(SeqCst)
    }

    /// Keeps the first contents of a block that was allocated for `commit`.
    pub fn defer(&self, commit: CommitId, block: BlockNr, contents: BlockRef) {
        let mut state = self.state.lock();
        state.blocks.insert(block.0, (commit, contents));
        self.count.store(state.blocks.len() as u64, SeqCst);
    }

    /// Whether contents of any of the blocks are here.
    pub fn has(&self, start: BlockNr, blocks: u64) -> bool {
        self.blocks() > 0 && self.state.lock().blocks.range(range(start, blocks)).next().is_some()
    }

    /// The contents that are here, by distance from `start`.
    pub fn in_memory(&self, start: BlockNr, blocks: u64) -> Vec<(u64, BlockRef)> {
        if self.blocks() == 0 {
            return Vec::new();
        }
        let state = self.state.lock();
        let found = state.blocks.range(range(start, blocks));
        found.map(|(block, (_, contents))| (block - start.0, contents.clone())).collect()
    }

    /// The blocks were freed in `commit`, or it has their contents in another way.
    pub fn forget(&self, commit: CommitId, start: BlockNr, blocks: u64) {
        if self.blocks() == 0 {
            return;
        }
        let mut state = self.state.lock();
        let found = state.blocks.range(range(start, blocks));
        let own: Vec<u64> =
            found.filter(|(_, (deferred, _))| *deferred == commit).map(|(block, _)| *block).collect();
        for block in own {
            state.blocks.remove(&block);
        }
        self.count.store(state.blocks.len() as u64, SeqCst);
    }

    /// Drops the contents of the first of these blocks and of those that follow it without a gap,
    /// for a write over them, which ends before the guard is dropped. Returns their number. `None`
    /// if the first block has none; it waits for a leader that is writing them.
    pub fn begin_overwrite(&self, start: BlockNr, blocks: u64) -> Option<(RwLockReadGuard<'_, ()>, u64)> {
        loop {
            let guard = self.overwriting.read();
            let mut state = self.state.lock();
            let &(commit, _) = state.blocks.get(&start.0)?;
            if state.is_written_now(commit) {
                drop(guard);
                self.written.wait(&mut state);
                continue;
            }
            let mut count = 0;
            while count < blocks {
                let block = start.0 + count;
                match state.blocks.get(&block) {
                    Some((commit, _)) if !state.is_written_now(*commit) => state.blocks.remove(&block),
                    _ => break,
                };
                count += 1;
            }
            self.count.store(state.blocks.len() as u64, SeqCst);
            drop(state);
            return Some((guard, count));
        }
    }

    /// Leader: takes the contents that go with `commit`, in which no handle is open.
    pub fn begin(&self, commit: CommitId, faults: Faults) -> DeferredBatch<'_> {
        let _none_is_overwritten = self.overwriting.write();
        let mut state = self.state.lock();
        let late = faults.has(Fault::DeferredDataLate);
        let is_due = |deferred: CommitId| deferred < commit || deferred == commit && !late;
        let found = state.blocks.iter().filter(|(_, (deferred, _))| is_due(*deferred));
        let blocks = found.map(|(block, (_, contents))| (BlockNr(*block), contents.clone())).collect();
        state.writing = Some(commit);
        DeferredBatch { all: self, blocks }
    }
}

/// The contents that a leader writes.
pub(crate) struct DeferredBatch<'a> {
    all: &'a DeferredData,
    /// Sorted by block number.
    blocks: Vec<(BlockNr, BlockRef)>,
}

impl DeferredBatch<'_> {
    /// Writes the contents to their places. A flush has to follow.
    pub fn write(self, volume: &Volume) -> Result<()> {
        if self.blocks.is_empty() {
            return Ok(());
        }
        volume.write_sorted_for(&self.blocks, WriteHint::Background)?;
        volume.note_data();
        let mut state = self.all.state.lock();
        for (block, _) in &self.blocks {
            state.blocks.remove(&block.0);
        }
        self.all.count.store(state.blocks.len() as u64, SeqCst);
        Ok(())
    }
}

impl Drop for DeferredBatch<'_> {
    fn drop(&mut self) {
        self.all.state.lock().writing = None;
        self.all.written.notify_all();
    }
}

fn range(start: BlockNr, blocks: u64) -> std::ops::Range<u64> {
    start.0..start.0 + blocks
}
