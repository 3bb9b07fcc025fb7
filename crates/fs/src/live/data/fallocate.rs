//! `fallocate`: reserves, punches out, or zeroes ranges.
//!
//! An operation on a large range takes several commits, each of which leaves a consistent file. So
//! a crash may leave the range done in part.

use xact_layout::inode::flag;
use xact_types::{Error, FileBlock, Ino, Result, Run};

use crate::alloc::{Allocator, Purpose, Reservation};
use crate::api::Allocate;
use crate::extent::Mapping;
use crate::inode_ops::InodeOps;
use crate::live::LiveFs;
use crate::live::data::inline::is_inline;
use crate::live::data::remove::Removal;
use crate::live::inode::cached::{CachedInode, InodeState};
use crate::live::op::Operation;
use crate::versioned_fs::commit::ReservationOps;

/// Maximum blocks of one unwritten extent.
pub(in crate::live) const UNWRITTEN_LEN_MAX: u32 = 32_767;

/// Runs that are given back on drop unless they were linked.
struct TakenRuns<'a> {
    allocator: &'a Allocator,
    runs: Vec<(FileBlock, Run)>,
}

impl Drop for TakenRuns<'_> {
    fn drop(&mut self) {
        self.runs.drain(..).for_each(|(_, run)| self.allocator.give_back(run));
    }
}

impl Operation<'_> {
    pub(in crate::live) fn allocate_range(
        &mut self,
        ino: Ino,
        offset: u64,
        len: u64,
        how: Allocate,
    ) -> Result<()> {
        let fs = self.fs;
        let locked = self.state(ino)?;
        fs.check_is_file(&locked.cached, &locked.state)?;
        fs.check_writable_map(&locked.state)?;
        // It changes the pages at both ends of the range, and at the end of the file.
        self.with_writeback_reserved(ino, (3, 3), |op| op.allocate_reserved(ino, offset, len, how))
    }

    fn allocate_reserved(&mut self, ino: Ino, offset: u64, len: u64, how: Allocate) -> Result<()> {
        let fs = self.fs;
        self.unpack_inline(ino)?;
        let end = offset + len;
        match how {
            Allocate::Reserve { keep_size } => {
                let blocks = self.blocks_to_reserve(ino, offset, end)?;
                let reservation = self.reserve_blocks(ino, blocks)?;
                self.reserve_range(ino, offset, end, reservation)?;
                self.grow_to(ino, end, keep_size)
            }
            Allocate::PunchHole => self.punch(ino, offset, end, Removal::Hole),
            Allocate::ZeroRange { keep_size } => {
                let size = self.state(ino)?.state.size;
                let zeroed = if keep_size { end.min(size) } else { end };
                // The whole range may be a hole after the punch, so all of it is reserved before
                // the first change.
                let blocks = end.div_ceil(fs.block_bytes()) - offset / fs.block_bytes();
                let blocks = if zeroed > offset { blocks } else { 0 };
                let reservation = self.reserve_blocks(ino, blocks)?;
                self.punch(ino, offset, end.min(size), Removal::Replaced)?;
                if zeroed > offset {
                    self.reserve_range(ino, offset, end, reservation)?;
                }
                self.grow_to(ino, end, keep_size)
            }
        }
    }

    fn grow_to(&mut self, ino: Ino, end: u64, keep_size: bool) -> Result<()> {
        if !keep_size && end > self.state(ino)?.state.size { self.set_size(ino, end) } else { Ok(()) }
    }

    /// The holes of a byte range; see [`LiveFs::holes`].
    fn holes_of(&mut self, ino: Ino, offset: u64, end: u64) -> Result<Vec<(u32, u32)>> {
        let fs = self.fs;
        let bs = fs.block_bytes();
        let locked = self.state(ino)?;
        fs.holes(&locked.cached, &locked.state, (offset / bs) as u32, end.div_ceil(bs) as u32)
    }

    fn blocks_to_reserve(&mut self, ino: Ino, offset: u64, end: u64) -> Result<u64> {
        Ok(self.holes_of(ino, offset, end)?.iter().map(|(_, len)| u64::from(*len)).sum())
    }

    /// Reserves `blocks` blocks for a file, before the first change: `NoSpace` and `EDQUOT` change
    /// nothing.
    fn reserve_blocks(&mut self, ino: Ino, blocks: u64) -> Result<Reservation> {
        let fs = self.fs;
        let payer = fs.quotas.payer_of(&self.state(ino)?.state.inode);
        self.reserve_charge(payer, blocks, 0);
        self.blocks_needed = blocks;
        fs.allocator.reserve(blocks, Purpose::Data { privileged: self.privileges().reserve })
    }

    /// Maps every hole of the range to unwritten blocks. Pages without a block count as mapped,
    /// because their space is reserved.
    fn reserve_range(&mut self, ino: Ino, offset: u64, end: u64, mut reservation: Reservation) -> Result<()> {
        let fs = self.fs;
        let holes = self.holes_of(ino, offset, end)?;
        if holes.is_empty() {
            return Ok(());
        }
        // Blocks are taken before the handle begins, so that it does not wait for a bitmap.
        let mut taken = TakenRuns { allocator: &fs.allocator, runs: Vec::new() };
        let purpose = Purpose::Data { privileged: self.privileges().reserve };
        let mut goal = fs.allocator.goal_for(ino);
        for (at, len) in holes {
            let mut done = 0;
            while done < len {
                let most = (len - done).min(UNWRITTEN_LEN_MAX);
                let run = fs.allocator.take(goal, most, purpose, Some(&mut reservation))?;
                taken.runs.push((FileBlock(at + done), run));
                fs.allocator.read_ahead(run);
                goal = run.end();
                done += run.len;
            }
        }
        self.change_inode(ino)?;
        for (at, run) in std::mem::take(&mut taken.runs) {
            let locked = self.state(ino)?;
            let extents = fs.extents(ino, &locked.state);
            let credits =
                extents.credits_insert(&locked.state.inode, 1, run.len) + fs.allocator.credits_for(run.len);
            if !self.ensure(credits)? {
                self.next_commit(credits)?;
            }
            let (_, handle, _, state) = self.parts(ino);
            fs.allocator.link(handle, run)?;
            extents.insert(handle, &mut state.inode, at, run, true)?;
            self.touch(ino);
        }
        Ok(())
    }

    /// Makes a range read as zeros: whole blocks become holes, partial blocks are cleared.
    fn punch(&mut self, ino: Ino, offset: u64, end: u64, why: Removal) -> Result<()> {
        let fs = self.fs;
        let bs = fs.block_bytes();
        let size = self.state(ino)?.state.size;
        let (first, past) = (offset.div_ceil(bs), (end / bs).min(u64::from(u32::MAX)));
        // Partial blocks at both ends, up to the end of the file.
        let mut parts = Vec::new();
        if first > past {
            parts.push((offset, end));
        } else {
            parts.push((offset, first * bs));
            parts.push((past * bs, end));
        }
        for (from, to) in parts {
            let to = to.min(size);
            if from < to && self.has_data_at(ino, from / bs)? {
                self.write(ino, from, &vec![0; (to - from) as usize])?;
            }
        }
        let locked = self.state(ino)?;
        if first < past && fs.has_block_map(&locked.state) {
            let (first, past) = (FileBlock(first as u32), FileBlock(past as u32));
            fs.read_ahead_removal(ino, &locked.state, first, past)?;
            self.change_inode(ino)?;
            self.remove_range(ino, first, past, why)?;
        }
        Ok(())
    }

    fn has_data_at(&mut self, ino: Ino, at: u64) -> Result<bool> {
        let fs = self.fs;
        let locked = self.state(ino)?;
        Ok(fs.has_data(&locked.cached, &locked.state, FileBlock(at as u32))?.0)
    }
}

impl LiveFs {
    /// Checks that block numbers fit into the inode's map: files without extents (ext2, ext3) have
    /// pointers of 32 bits.
    pub(in crate::live) fn check_writable_map(&self, state: &InodeState) -> Result<()> {
        if state.inode.flags() & flag::EXTENTS != 0 || self.sb.blocks_count() <= 1 << 32 {
            return Ok(());
        }
        Err(Error::Unsupported(
            "writing to files without extents on a volume of more than 2^32 blocks".into(),
        ))
    }

    /// Whether blocks are reserved past the end of the file.
    pub(in crate::live) fn has_blocks_past_end(
        &self,
        cached: &CachedInode,
        state: &InodeState,
    ) -> Result<bool> {
        let Ok(first) = u32::try_from(state.size.div_ceil(self.block_bytes())) else { return Ok(false) };
        let mut found = false;
        if self.has_block_map(state) && state.inode.sectors(&self.sb) > 0 {
            let past = FileBlock(first)..FileBlock(u32::MAX);
            self.extents(cached.ino, state).iterate(&state.inode, past, &mut |_| {
                found = true;
                Ok(false)
            })?;
        }
        Ok(found)
    }

    /// The holes of a range as first block and length, without pages that wait for a block.
    pub(in crate::live) fn holes(
        &self,
        cached: &CachedInode,
        state: &InodeState,
        first: u32,
        past: u32,
    ) -> Result<Vec<(u32, u32)>> {
        if is_inline(state) {
            // The inline bytes will get block 0.
            let first = first.max(1);
            return Ok(if first < past { vec![(first, past - first)] } else { Vec::new() });
        }
        let extents = self.extents(cached.ino, state);
        let mut holes: Vec<(u32, u32)> = Vec::new();
        let mut at = first;
        while at < past {
            let (is_hole, len) = match extents.map(&state.inode, FileBlock(at))? {
                Mapping::Hole { len } => (true, len),
                Mapping::Written { len, .. } | Mapping::Unwritten { len, .. } => (false, len),
            };
            let end = at.saturating_add(len).min(past);
            if is_hole {
                let pages = cached.pages.lock();
                let mut start = at;
                for (&waiting, _) in pages.map.range(at..end).filter(|(_, page)| page.reserved) {
                    if waiting > start {
                        holes.push((start, waiting - start));
                    }
                    start = waiting + 1;
                }
                if end > start {
                    holes.push((start, end - start));
                }
            }
            at = end;
        }
        Ok(holes)
    }
}
