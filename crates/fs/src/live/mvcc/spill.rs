//! Old versions of blocks beyond their share of memory, in free blocks of the volume.
//!
//! Crash argument: as for spilled contents of transactions (`live::space::tx_space`). The blocks
//! are taken in memory only, and nothing on the volume refers to them: neither a bitmap, nor an
//! inode, nor a record of the journal or of the intent log. So a crash at any time, whether a write
//! was torn or complete, finds these blocks free, with contents that no reader needs. Versions need
//! not survive a crash, because views do not. No flush is needed: a block is read back only through
//! the same device by the process that wrote it.
//!
//! That does not hold for a block that a snapshot still has: its new contents go to the pool with a
//! record of their own, and would take space there after their view has ended. So nothing is
//! written while the volume has snapshots.
//!
//! Until a block is given back, its bit in memory is set: no caller takes it and no discard reaches
//! it. It is given back under the lock of its inode, exclusively; a view reads it under that lock,
//! shared. So no view reads a block that was handed out again.
//!
//! Old versions never make the volume full for others: they take only space that is free to
//! ordinary users, within a share of it, and the oldest views expire when a caller finds no space
//! (`live::space::make_space`).

use std::io::IoSlice;
use std::sync::atomic::Ordering::SeqCst;

use xact_types::{Error, Ino, Result, Run};

use super::Contended;
use super::spilled_version::SpilledVersion;
use super::versions::BlockInMemory;
use crate::alloc::Purpose;
use crate::live::LiveFs;
use crate::live::inode::cached::InodeState;

/// Share of the limit of memory, in percent, to which versions are written out.
const LOW_PERCENT: u64 = 75;

impl LiveFs {
    /// Writes old versions to the volume until a part of their memory is free, as far as it has
    /// space for them. The caller holds no inode lock.
    pub(super) fn spill_versions(&self) {
        let enough = self.mvcc.limit_bytes / 100 * LOW_PERCENT;
        let inodes: Vec<Ino> = self.mvcc.versioned.lock().keys().copied().collect();
        // Those that other threads use come last: most versions may be of one of them.
        let waits = [Contended::Skip, Contended::Wait];
        for (contended, ino) in waits.into_iter().flat_map(|how| inodes.iter().map(move |ino| (how, *ino))) {
            let Some(cached) = self.inodes.peek(ino) else { continue };
            let Some(mut state) = contended.lock(&cached) else { continue };
            while self.mvcc.version_bytes() > enough {
                match self.spill_some(ino, &mut state) {
                    Ok(true) => {}
                    Ok(false) => break,
                    // A full volume: the oldest views expire instead. (After an error of the device
                    // the volume is poisoned, as after any failed write.)
                    Err(_) => return,
                }
            }
            if self.mvcc.version_bytes() <= enough {
                return;
            }
        }
    }

    /// Writes some versions of an inode; false if none is left in memory.
    fn spill_some(&self, ino: Ino, state: &mut InodeState) -> Result<bool> {
        let blocks = state.versions.blocks_in_memory(self.options.steps.spilled_blocks);
        if blocks.is_empty() {
            return Ok(false);
        }
        let purpose = Purpose::Data { privileged: false };
        let (spilled, free) = (self.spilled_versions(), self.allocator.reservable(purpose));
        let most = (spilled + free) * u64::from(self.options.version_space_percent) / 100;
        let count = most.saturating_sub(spilled).min(blocks.len() as u64);
        // While there are snapshots, a write into free space may go to the pool: see the head.
        let has_snapshots = self.engine.snapshots().is_some_and(|all| !all.times().is_empty());
        if count == 0 || has_snapshots || self.engine.is_read_only() {
            return Err(Error::NoSpace);
        }
        let mut reservation = self.allocator.reserve(count, purpose)?;
        let mut goal = self.allocator.goal_for(ino);
        let mut rest = &blocks[..count as usize];
        while !rest.is_empty() {
            let run = self.allocator.take(goal, rest.len() as u32, purpose, Some(&mut reservation))?;
            let (now, later) = rest.split_at(run.len as usize);
            self.spill_blocks(run, now, state)?;
            (goal, rest) = (run.end(), later);
        }
        self.mvcc.count(&mut state.versions);
        Ok(true)
    }

    fn spill_blocks(&self, run: Run, blocks: &[BlockInMemory], state: &mut InodeState) -> Result<()> {
        let place = |i| SpilledVersion::new(run.start.offset(i), &self.allocator, &self.mvcc.spilled);
        let places: Vec<SpilledVersion> = (0..u64::from(run.len)).map(place).collect();
        let slices: Vec<IoSlice<'_>> = blocks.iter().map(|block| IoSlice::new(&block.bytes)).collect();
        self.engine.write_data(run.start, &slices)?;
        for (block, place) in blocks.iter().zip(places) {
            state.versions.set_spilled(block, place);
        }
        Ok(())
    }

    /// Number of blocks of the volume that hold old versions.
    pub fn spilled_versions(&self) -> u64 {
        self.mvcc.spilled.load(SeqCst)
    }
}
