//! What a commit reserves before its first change: for each file that it installs, and for what it
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

    /// Says, before the operation's first change, that an install into an existing file will come:
    /// what it takes of the journal is added to the operation's budget.
    fn reserve_install(&mut self, ino: Ino, staged: &StagedBlocks) -> Result<()> {
        let fs = self.fs;
        let locked = self.state(ino)?;
        let state = &locked.state;
        fs.check_is_file(&locked.cached, state)?;
        fs.check_writable_map(state)?;
        let extents = fs.extents(ino, state);
        // An inline file has one block by then.
        let (unpacking, unmapped) = (is_inline(state), fs.unmapped_inode());
        let inode = if unpacking { &unmapped } else { &state.inode };
        let runs = staged.run_count();
        // Extents that go, and extents that may come of those that lose a piece in their middle.
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
        // The last step of a removal asks for its worst case, however little it then takes; what it
        // does not take is there for the next removal.
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

    /// Says, before the operation's first change, that it will charge blocks and inodes to a payer.
    fn reserve_charge(&mut self, payer: Payer, blocks: u64, inodes: u64) {
        let more = Charge { payer, bytes: blocks * self.fs.block_bytes(), inodes };
        self.reserve_quota(Wanted { now: None, more });
    }

    /// As `reserve_charge`, for all that an inode is charged, which gets another payer.
    fn reserve_payer_change(&mut self, ino: Ino, payer: Payer) -> Result<()> {
        let charged = self.state(ino)?.state.charged;
        self.reserve_quota(Wanted { now: Some(charged.payer), more: Charge { payer, ..charged } });
        Ok(())
    }

    /// As `reserve_install`, for a file that the operation makes itself.
    fn reserve_new_file(&mut self, staged: &StagedBlocks) {
        let fs = self.fs;
        let owner = Owner { ino: Ino::ROOT, generation: 0 };
        let extents = Extents::new(&fs.engine, &fs.sb, &fs.allocator, owner);
        let map = extents.map_changes(&fs.unmapped_inode(), staged.replacement());
        let nodes = map.changed + map.new + staged.journaled_blocks();
        self.reserve_moves_of(staged);
        self.reserve_metadata(nodes, staged.run_count() + map.new, map.new);
    }

    /// As `reserve_charge`, for a number that was taken and reserved for a payer.
    fn reserve_adoption(&mut self, ino: Ino, reserved_for: Payer) -> Result<()> {
        self.lock_new(ino)?;
        self.reserve_move(Charge { payer: reserved_for, bytes: 0, inodes: 1 });
        Ok(())
    }
}

impl Operation<'_> {
    /// What was spilled was reserved for its payer then.
    fn reserve_moves_of(&mut self, staged: &StagedBlocks) {
        staged
            .spilled
            .iter()
            .flat_map(|part| &part.blocks)
            .for_each(|block| self.reserve_move(block.charge()));
    }

    /// Adds `nodes` metadata blocks, and the bitmaps and descriptors of the groups that `runs`
    /// runs of blocks lie in, to the operation's budget. All files share the groups.
    fn reserve_metadata(&mut self, nodes: u64, runs: u64, growth: u64) {
        let groups = u64::from(self.fs.sb.group_count());
        let before = self.expected_runs.min(groups);
        self.expected_runs += runs;
        let more = self.expected_runs.min(groups) - before;
        let credits = nodes + u64::from(CREDITS_PER_BLOCK) * more;
        self.reserve_more(u32::try_from(credits).unwrap_or(u32::MAX), growth);
    }
}
