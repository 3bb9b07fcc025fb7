//! Data of files whose own place a snapshot holds.
//!
//! Its new contents become part of the running commit like those of a metadata block, and so go to
//! the pool. Whether a block is there is looked up in what is pending and in the durable map; a block
//! that is there stays in the pool until the sweep brings it home.
//!
//! Invariants:
//! 1. Data is written in place only to a block that no snapshot has there and that is not in the
//!    pool. Both are looked at under `gate`, which a commit that creates a snapshot holds alone from
//!    when it is closed until all know of the snapshot: so no write begun before changes what the
//!    snapshot has.
//! 2. `flush_data` and `commit` make a commit durable that has data in it which was written before
//!    (`newest`): a caller was told that its data is written, not where.
//! 3. Data that a caller was told is accepted finds its places (`room`): they were promised when it was, whether a
//!    snapshot had its block by then or not, and are promised until it is part of a commit.

use std::collections::HashMap;
use std::io::IoSlice;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};

use parking_lot::{Mutex, RwLock};
use xact_base::{BlockNr, CommitId, Result};

use super::Generations;
use crate::engine::{BlockRef, DataWrite, Room};
use crate::fault::Fault;

/// Blocks that one handle takes.
const HANDLE_BLOCKS: usize = 64;

#[derive(Default)]
pub(super) struct Redirect {
    /// There are snapshots, or data was moved for one that there was: blocks must be looked up.
    pub active: AtomicBool,
    pub gate: RwLock<()>,
    /// Moved blocks that the durable map may not have yet, with the last commit that has them.
    pending: Mutex<HashMap<u64, CommitId>>,
    /// The last commit that has data.
    newest: AtomicU64,
}

impl Redirect {
    /// A commit is durable, as a generation or in the log, and readers go by it.
    pub fn published(&self, commit: CommitId) {
        self.pending.lock().retain(|_, last| *last > commit);
    }

    /// The commit that must be durable for all data written so far to be.
    pub fn newest(&self) -> CommitId {
        CommitId(self.newest.load(SeqCst))
    }
}

impl Generations {
    fn is_moved(&self, block: BlockNr) -> Result<bool> {
        // In this order: a block leaves the pending ones after it has come into the map.
        Ok(self.redirect.pending.lock().contains_key(&block.0) || self.live.has_moved(block)?)
    }

    fn must_move(&self, block: BlockNr) -> Result<bool> {
        let held = !self.faults.has(Fault::OverwriteHeld) && self.held.read().has_data(block)?;
        Ok(held || self.is_moved(block)?)
    }

    pub(super) fn write_data(&self, start: BlockNr, bufs: &[IoSlice<'_>], write: DataWrite) -> Result<()> {
        if !self.redirect.active.load(SeqCst) {
            let _gate = self.redirect.gate.read();
            // The first snapshot may have been created while this waited.
            if !self.redirect.active.load(SeqCst) {
                return self.volume.write_for(start, bufs, write.waits);
            }
        }
        let blocks: Vec<&[u8]> =
            bufs.iter().flat_map(|buf| buf.chunks_exact(self.volume.block_size)).collect();
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
                self.volume.write(first, &slices)?;
            }
        }
        // Not under the gate: a handle may have to wait for the commit that holds it.
        moved.chunks(HANDLE_BLOCKS).try_for_each(|part| self.move_data(part, write.room))
    }

    fn move_data(&self, blocks: &[(BlockNr, BlockRef)], room: Room) -> Result<()> {
        let commit = self.start(blocks.len() as u32, room)?;
        let mut unused = blocks.len() as u32;
        let done = blocks.iter().try_for_each(|(block, contents)| {
            self.redirect.pending.lock().insert(block.0, commit);
            unused -= u32::from(self.metadata.create(commit, *block, contents.clone())?);
            Ok(())
        });
        self.redirect.newest.fetch_max(commit.0, SeqCst);
        self.pipeline.stop(commit, unused);
        done
    }

    pub(super) fn read_data(&self, start: BlockNr, buf: &mut [u8]) -> Result<()> {
        if !self.redirect.active.load(SeqCst) {
            return self.volume.read(start, buf);
        }
        let block_size = self.volume.block_size;
        let count = buf.len() / block_size;
        let mut at = 0;
        while at < count {
            let first = start.offset(at as u64);
            if self.is_moved(first)? {
                let contents = self.metadata.read(first)?;
                buf[at * block_size..][..block_size].copy_from_slice(&contents);
                at += 1;
                continue;
            }
            let begun = at;
            at += 1;
            while at < count && !self.is_moved(start.offset(at as u64))? {
                at += 1;
            }
            self.volume.read(first, &mut buf[begun * block_size..at * block_size])?;
        }
        Ok(())
    }
}
