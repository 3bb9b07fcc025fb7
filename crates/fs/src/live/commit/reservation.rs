//! Reservations of a commit before its first change: for each file that it installs, and for quota
//! charges.

use xact_types::{Ino, Result};

use super::install::{Overwrites, replaced};
use super::staging::StagedBlocks;
use crate::extent::{Extents, Owner, Replacement};
use crate::live::data::inline::{UNPACK_CREDITS, is_inline};
use crate::live::op::Operation;
use crate::metadata_blocks::CREDITS_PER_BLOCK;
use crate::quota::{Charge, Payer, Wanted};
use crate::versioned_fs::commit::ReservationOps;

impl ReservationOps for Operation<'_> {
    type Staged = StagedBlocks;

    /// Adds the credits and blocks of an install into an existing file to the operation's budget.
    fn reserve_install(&mut self, ino: Ino, staged: &StagedBlocks) -> Result<()> {
        let fs = self.fs;
        let locked = self.state(ino)?;
        let state = &locked.state;
        fs.check_is_file(&locked.cached, state)?;
        fs.check_writable_map(state)?;
        let extents = fs.extents(ino, state);
        // By then, an inline file has one block.
        let (unpacking, unmapped) = (is_inline(state), fs.unmapped_inode());
        let inode = if unpacking { &unmapped } else { &state.inode };
        let runs = staged.run_count();
        // Extents that are removed, and additional ones where a removal splits an extent.
        let (mut gone, mut split) = (u64::from(unpacking), 0);
        let mut gone_blocks = 0;
        for (first, past) in replaced(&staged.new, &Overwrites::default()) {
            extents.iterate(inode, first..past, &mut |extent| {
                gone += 1;
                let part = extent.part(extent.at.max(first), extent.end().min(past));
                gone_blocks += u64::from(part.run.len);
                fs.allocator.read_ahead(part.run);
                Ok(true)
            })?;
            split += 1;
        }
        let change = Replacement { runs: runs + split, gone, ..staged.replacement() };
        let map = extents.map_changes(inode, change);
        let grown = change.blocks.saturating_sub(gone_blocks);
        let payer = fs.quotas.payer_of(&state.inode);
        // The last step of a removal asks for its worst case, and mostly uses less; the next
        // removal can use the rest.
        let asked = u64::from(extents.credits_remove(inode));
        let slack = asked.saturating_sub(self.expected_slack);
        self.expected_slack += slack;
        let first_block = if unpacking { u64::from(UNPACK_CREDITS) } else { 0 };
        self.reserve_charge(payer, grown, 0);
        self.reserve_moves_of(staged);
        self.reserve_metadata(
            map.changed + map.new + slack + first_block + staged.journaled_blocks(),
            runs + gone + map.new + map.freed,
            map.new,
        );
        Ok(())
    }

    fn reserve_charge(&mut self, payer: Payer, blocks: u64, inodes: u64) {
        let more = Charge { payer, bytes: blocks * self.fs.block_bytes(), inodes };
        self.reserve_quota(Wanted { now: None, more });
    }

    fn reserve_payer_change(&mut self, ino: Ino, payer: Payer) -> Result<()> {
        let charged = self.state(ino)?.state.charged;
        self.reserve_quota(Wanted { now: Some(charged.payer), more: Charge { payer, ..charged } });
        Ok(())
    }

    fn reserve_new_file(&mut self, staged: &StagedBlocks) {
        let fs = self.fs;
        let owner = Owner { ino: Ino::ROOT, generation: 0 };
        let extents = Extents::new(&fs.engine, &fs.sb, &fs.allocator, owner);
        let map = extents.map_changes(&fs.unmapped_inode(), staged.replacement());
        let nodes = map.changed + map.new + staged.journaled_blocks();
        self.reserve_moves_of(staged);
        self.reserve_metadata(nodes, staged.run_count() + map.new, map.new);
    }

    fn reserve_adoption(&mut self, ino: Ino, reserved_for: Payer) -> Result<()> {
        self.lock_new(ino)?;
        self.reserve_move(Charge { payer: reserved_for, bytes: 0, inodes: 1 });
        Ok(())
    }
}

impl Operation<'_> {
    /// Spilled blocks were reserved for their payer when they were spilled: those reservations
    /// become charges.
    fn reserve_moves_of(&mut self, staged: &StagedBlocks) {
        staged
            .spilled
            .iter()
            .flat_map(|part| &part.blocks)
            .for_each(|block| self.reserve_move(block.charge()));
    }

    /// Adds `nodes` metadata blocks to the operation's budget, and the bitmaps and descriptors of
    /// the groups with `runs` runs of blocks. All files share the groups.
    fn reserve_metadata(&mut self, nodes: u64, runs: u64, growth: u64) {
        let groups = u64::from(self.fs.sb.group_count());
        let before = self.expected_runs.min(groups);
        self.expected_runs += runs;
        let more = self.expected_runs.min(groups) - before;
        let credits = nodes + u64::from(CREDITS_PER_BLOCK) * more;
        self.reserve_more(u32::try_from(credits).unwrap_or(u32::MAX), growth);
    }
}
