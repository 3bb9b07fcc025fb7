//! File data that is not written home at once: a snapshot holds the home of the block, or a commit
//! has a copy of the data.
//!
//! The new contents of such a block become part of the running commit, like those of a metadata
//! block. If the commit goes to the log, the record has the contents and makes them durable
//! (`journal_data`): a small fsync needs one write and one flush. If the commit makes a generation,
//! it writes them home, or to the pool if a snapshot holds their home. The place of a block is
//! looked up in the pending blocks, in the log, and in the durable map. A block in the pool stays
//! there until a commit writes it home.
//!
//! Invariants:
//! 1. Data is written in place only to a block for which three things hold: no snapshot has the
//!    block at home, the block is not in the pool, and neither the log nor a commit on its way has
//!    a copy of it. After a crash the copy would be read, not the block (JOJ-8). All of this is
//!    checked under `gate`. A commit that creates a snapshot holds the gate exclusively from its
//!    closing until all threads see the snapshot. By then all earlier writes in place have ended,
//!    and later ones leave the snapshot's blocks alone.
//! 2. Data written before a call of `flush_data` or `commit` may be part of a commit (`newest`).
//!    These calls make that commit durable too: their caller cannot know where its data went.
//! 3. Accepted data always finds pool blocks (`admission`): they are reserved from the time when
//!    the data is accepted until the data is part of a commit. This holds even if no snapshot has
//!    the block of the data yet.
//! 4. The cache keeps a block's contents until they are at home or in the pool. Then it drops them,
//!    since other code may write there from then on.

use std::collections::HashMap;
use std::io::IoSlice;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};

use parking_lot::{Mutex, RwLock};
use xact_types::{BlockNr, CommitId, Result};

use super::Generations;
use crate::core::block::{BlockRef, NewData};
use crate::core::cache::Slot;
use crate::core::dirty_blocks::Frozen;
use crate::fault::Fault;
use crate::mechanism::{DataWrite, Mechanism, ReserveClass};

#[derive(Default)]
pub(super) struct Redirect {
    /// There are snapshots, or data was moved for an earlier one: blocks must be looked up in the
    /// map.
    pub active: AtomicBool,
    /// There may be data that is pending, or in the log.
    pub logged: AtomicBool,
    pub gate: RwLock<()>,
    /// Blocks of data in a commit that readers do not see yet, with the last such commit.
    pending: Mutex<HashMap<u64, CommitId>>,
    /// The last commit that has data.
    newest: AtomicU64,
    /// The cache's slots of data in the log.
    slots: Mutex<Vec<Arc<Slot>>>,
}

impl Redirect {
    /// Data of a block is about to become part of a commit.
    fn expect(&self, block: BlockNr, commit: CommitId) {
        let mut pending = self.pending.lock();
        pending.insert(block.0, commit);
        self.logged.store(true, SeqCst);
    }

    /// A commit is durable and readers see it: by the log, or as a generation, which has an empty
    /// log.
    pub fn published(&self, commit: CommitId, by_log: bool) {
        let mut pending = self.pending.lock();
        pending.retain(|_, last| *last > commit);
        self.logged.store(by_log || !pending.is_empty(), SeqCst);
    }

    /// The commit that must be durable so that all data written so far is.
    pub fn newest(&self) -> CommitId {
        CommitId(self.newest.load(SeqCst))
    }

    fn is_pending(&self, start: BlockNr, blocks: u64) -> bool {
        let pending = self.pending.lock();
        !pending.is_empty() && (start.0..start.0 + blocks).any(|block| pending.contains_key(&block))
    }
}

impl Generations {
    /// Whether the log, or a commit on its way, has a copy of any of these blocks.
    pub(super) fn has_copy(&self, start: BlockNr, blocks: u64) -> bool {
        // In this order: a block leaves the pending ones after it has entered the log.
        self.redirect.logged.load(SeqCst)
            && (self.redirect.is_pending(start, blocks) || self.published.has_logged_data(start, blocks))
    }

    fn is_moved(&self, block: BlockNr) -> Result<bool> {
        // In this order, as above.
        Ok(self.has_copy(block, 1) || self.redirect.active.load(SeqCst) && self.published.has_moved(block)?)
    }

    fn must_move(&self, block: BlockNr) -> Result<bool> {
        let is_referred = !self.core.faults.has(Fault::OverwriteSnapshotData)
            && self.snapshot_refs.read().has_data(block)?;
        Ok(is_referred || !self.core.faults.has(Fault::DataBesideItsCopy) && self.is_moved(block)?)
    }

    /// Whether any of the blocks may be, or may have to go, outside of its own place.
    fn is_looked_up(&self, start: BlockNr, blocks: u64) -> bool {
        self.redirect.active.load(SeqCst) || self.has_copy(start, blocks)
    }

    /// Whether data of these blocks, which are free, would be written to their own places.
    pub(super) fn all_at_home(&self, start: BlockNr, blocks: u64) -> Result<bool> {
        if !self.is_looked_up(start, blocks) {
            return Ok(true);
        }
        for at in 0..blocks {
            if self.must_move(start.offset(at))? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    pub(super) fn write_redirected(
        &self,
        start: BlockNr,
        bufs: &[IoSlice<'_>],
        write: DataWrite,
    ) -> Result<()> {
        let count = self.core.volume.blocks_in(bufs.iter().map(|buf| buf.len()).sum())?;
        if !self.is_looked_up(start, count) {
            let _gate = self.redirect.gate.read();
            // The first snapshot may have been created during the wait.
            if !self.is_looked_up(start, count) {
                return self.core.volume.write_for(start, bufs, write.hint);
            }
        }
        let blocks: Vec<&[u8]> =
            bufs.iter().flat_map(|buf| buf.chunks_exact(self.core.volume.block_size)).collect();
        let mut moved: Vec<(BlockNr, BlockRef)> = Vec::new();
        {
            let _gate = self.redirect.gate.read();
            let mut at = 0;
            while at < blocks.len() {
                let first = start.offset(at as u64);
                if self.must_move(first)? {
                    moved.push((first, blocks[at].into()));
                    at += 1;
                    continue;
                }
                let begun = at;
                at += 1;
                while at < blocks.len() && !self.must_move(start.offset(at as u64))? {
                    at += 1;
                }
                let slices: Vec<IoSlice<'_>> = blocks[begun..at].iter().map(|b| IoSlice::new(b)).collect();
                self.core.volume.write(first, &slices)?;
            }
        }
        // Not under the gate: a handle may have to wait for the commit that holds it.
        moved.chunks(self.core.steps.moved_blocks).try_for_each(|part| self.move_data(part, write.class))
    }

    fn move_data(&self, blocks: &[(BlockNr, BlockRef)], class: ReserveClass) -> Result<()> {
        let commit = self.start(blocks.len() as u32, class)?;
        let mut unused = blocks.len() as u32;
        let done = blocks.iter().try_for_each(|(block, contents)| {
            let new = NewData { contents: contents.clone(), changed: None };
            unused -= u32::from(self.take_data(commit, *block, new)?);
            Ok(())
        });
        self.redirect.newest.fetch_max(commit.0, SeqCst);
        self.core.pipeline.stop(commit, unused);
        done
    }

    /// Makes contents of a block of file data part of a commit in which a handle is open.
    pub(super) fn take_data(&self, commit: CommitId, block: BlockNr, new: NewData) -> Result<bool> {
        self.redirect.expect(block, commit);
        self.core.blocks.journal_data(commit, block, new)
    }

    /// Blocks of file data were freed. The next record lists those that the log has; otherwise no
    /// data could be written there before the next generation.
    pub(super) fn forget_copies(&self, commit: CommitId, start: BlockNr, blocks: u64) -> Result<()> {
        if !self.has_copy(start, blocks) {
            return Ok(());
        }
        for block in (0..blocks).map(|n| start.offset(n)).filter(|block| self.has_copy(*block, 1)) {
            self.core.blocks.forget(commit, block)?;
        }
        Ok(())
    }

    /// Leader: the log has the data of a commit, durably.
    pub(super) fn data_is_logged(&self, frozen: &Frozen) {
        let data = frozen.blocks.iter().filter(|block| block.data).map(|block| block.slot.clone());
        self.redirect.slots.lock().extend(data);
        self.let_go_of_freed(frozen);
    }

    /// Leader: a generation is durable: the data of the log and of its own commit is in its place.
    pub(super) fn data_is_placed(&self, frozen: &Frozen) {
        let own = frozen.blocks.iter().filter(|block| block.data).map(|block| block.slot.clone());
        let logged = std::mem::take(&mut *self.redirect.slots.lock());
        for slot in logged.into_iter().chain(own) {
            let mut state = slot.lock_any();
            // Not if a later commit has the block again.
            if state.data && state.in_no_commit() {
                state.newest = None;
                self.core.blocks.set_data(&mut state, false);
            }
        }
        self.let_go_of_freed(frozen);
    }

    fn let_go_of_freed(&self, frozen: &Frozen) {
        for &block in &frozen.forgotten {
            self.core.blocks.cache.with(block, |_, state| {
                if state.data && state.in_no_commit() {
                    self.core.blocks.set_data(state, false);
                }
            });
        }
    }

    pub(super) fn read_redirected(&self, start: BlockNr, buf: &mut [u8]) -> Result<()> {
        let block_size = self.core.volume.block_size;
        let count = buf.len() / block_size;
        if !self.is_looked_up(start, count as u64) {
            return self.core.volume.read(start, buf);
        }
        let mut at = 0;
        while at < count {
            let first = start.offset(at as u64);
            if self.is_moved(first)? {
                let contents = self.core.blocks.read(first)?;
                buf[at * block_size..][..block_size].copy_from_slice(&contents);
                at += 1;
                continue;
            }
            let begun = at;
            at += 1;
            while at < count && !self.is_moved(start.offset(at as u64))? {
                at += 1;
            }
            self.core.volume.read(first, &mut buf[begun * block_size..at * block_size])?;
        }
        Ok(())
    }
}
