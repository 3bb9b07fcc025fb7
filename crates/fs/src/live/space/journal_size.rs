//! The journal's inode gets more blocks for a commit that is too large for its log, and loses them
//! afterwards.
//!
//! The head of `consistency/src/journal/resize.rs` lists all steps, and the state that a crash
//! between any two of them leaves. This module does two of them:
//! 1. New blocks are taken in memory and filled with zeros, and the tree that maps them
//!    (`journal_map`) is written to free blocks. All of this is durable before the commit that
//!    links it; a crash before that commit finds these blocks free.
//! 2. One commit links the blocks and changes the inode and its backup in the superblock. The
//!    blocks that it frees (nodes of the old tree; log blocks when the journal gets shorter) stay
//!    *held* until the inode is checkpointed: until then, recovery finds the log through the old
//!    tree.

use std::io::IoSlice;

use xact_consistency::{Fault, Handle, ReserveClass, ResizableJournal};
use xact_layout::extent::MAX_WRITTEN_LEN;
use xact_layout::get_u32;
use xact_layout::inode::{BLOCK_AREA_AT, flag};
use xact_types::{Error, Ino, Result, Run};

use crate::alloc::{Allocator, Hold, Purpose, Reservation};
use crate::inode_table::InodeTable;
use crate::journal_map::{JournalMap, NewTree};
use crate::live::LiveFs;
use crate::live::space::long_journal::JournalUse;
use crate::live::space::make_space::{Effort, SpaceCaller};
use crate::superblock;

/// Bytes of zeros in one write.
const ZEROS_BYTES: usize = 1 << 20;

/// Blocks that are taken but not linked; given back when dropped.
struct TakenBlocks<'a> {
    allocator: &'a Allocator,
    runs: Vec<Run>,
}

impl Drop for TakenBlocks<'_> {
    fn drop(&mut self) {
        self.runs.drain(..).for_each(|run| self.allocator.give_back(run));
    }
}

/// A change of the journal's blocks.
struct Switch<'a> {
    before: JournalMap,
    map: JournalMap,
    /// Blocks that the journal gets.
    taken: TakenBlocks<'a>,
    /// Blocks that the journal loses.
    freed: Vec<Run>,
}

impl LiveFs {
    /// Makes the journal long enough for one operation of `credits` blocks, and keeps that length
    /// until the result is dropped. The caller holds no lock.
    ///
    /// Errors: `NoSpace`; `TooLarge` if the volume has no journal that can get longer.
    pub(in crate::live) fn lengthen_journal(
        &self,
        credits: u32,
        privileged: bool,
        caller: SpaceCaller,
    ) -> Result<JournalUse<'_>> {
        let limit = u64::from(self.engine.max_credits());
        let refused = Error::TooLarge { blocks: credits.into(), limit };
        let Some(journal) = self.engine.journal().filter(|_| self.sb.cluster_blocks() == 1) else {
            return Err(refused);
        };
        let in_use = self.space.long_journal.begin_use();
        let mut effort = Effort::default();
        loop {
            match self.lengthen_to(journal, credits, Purpose::Data { privileged }) {
                Err(error) if error.is_no_space() && self.make_space(&mut effort, caller)? => {}
                Ok(true) => return Ok(in_use),
                Ok(false) => return Err(refused),
                Err(error) => return Err(error),
            }
        }
    }

    /// False if the journal cannot get longer. `NoSpace` leaves everything unchanged.
    fn lengthen_to(&self, journal: &dyn ResizableJournal, credits: u32, purpose: Purpose) -> Result<bool> {
        let _changing = self.space.long_journal.lock();
        if self.engine.max_credits() >= credits {
            return Ok(true);
        }
        let ino = Ino(self.sb.journal_inum());
        if self.table.read(ino)?.flags() & flag::EXTENTS == 0 {
            return Ok(false);
        }
        let blocks = journal.blocks_for(credits)?;
        let more = u64::from(blocks.saturating_sub(self.journal_map()?.blocks()));
        let mut reservation = self.allocator.reserve(more, purpose)?;
        journal.note_size()?;
        while journal.size().blocks < blocks {
            self.add_to_journal(journal, blocks, purpose, &mut reservation)?;
        }
        Ok(true)
    }

    fn journal_map(&self) -> Result<JournalMap> {
        let ino = Ino(self.sb.journal_inum());
        JournalMap::read(&self.engine, &self.sb, ino, &self.table.read(ino)?)
    }

    /// Credits that one commit may use for changing the journal itself, at its present length.
    fn journal_credits(&self) -> u32 {
        self.engine.max_credits() / 2
    }

    /// Adds as many blocks as one commit can, up to a total of `blocks`.
    fn add_to_journal(
        &self,
        journal: &dyn ResizableJournal,
        blocks: u32,
        purpose: Purpose,
        reservation: &mut Reservation,
    ) -> Result<()> {
        let before = self.journal_map()?;
        let mut map = before.clone();
        let mut taken = TakenBlocks { allocator: &self.allocator, runs: Vec::new() };
        let mut credits = 0;
        while map.blocks() < blocks && credits < self.journal_credits() {
            let most = (blocks - map.blocks()).min(MAX_WRITTEN_LEN);
            let run = self.allocator.take(map.end(), most, purpose, Some(&mut *reservation))?;
            taken.runs.push(run);
            map.push(run);
            credits += self.allocator.credits_for(run.len);
        }
        for run in &taken.runs {
            self.write_zeros(*run)?;
        }
        let runs = map.runs();
        let hold = self.switch_journal_map(Switch { before, map, taken, freed: Vec::new() })?;
        journal.lengthen(&runs)?;
        drop(hold);
        Ok(())
    }

    fn write_zeros(&self, run: Run) -> Result<()> {
        let zeros = vec![0; ZEROS_BYTES];
        let most = (ZEROS_BYTES as u64 / self.block_bytes()) as u32;
        let mut done = 0;
        while done < run.len {
            let len = most.min(run.len - done);
            let bytes = &zeros[..(u64::from(len) * self.block_bytes()) as usize];
            self.engine.write_data(run.start.offset(done.into()), &[IoSlice::new(bytes)])?;
            done += len;
        }
        Ok(())
    }

    /// Gives the journal's inode a new map, in one durable commit. The result holds the freed
    /// blocks; it must live until the inode is checkpointed.
    fn switch_journal_map(&self, mut switch: Switch<'_>) -> Result<Hold> {
        let ino = Ino(self.sb.journal_inum());
        let mut places = Vec::new();
        for _ in 0..switch.map.nodes_needed(self.block_bytes() as usize) {
            let run = self.allocator.take(switch.map.end(), 1, Purpose::Metadata, None)?;
            switch.taken.runs.push(run);
            places.push(run.start);
        }
        let tree = switch.map.tree(&self.sb, ino, self.table.read(ino)?.generation(), &places);
        for (block, bytes) in &tree.nodes {
            self.engine.write_data(*block, &[IoSlice::new(bytes)])?;
        }
        // This flush makes the zeros and the tree durable. Without it, a crash could leave the new
        // inode in its place but no tree behind it, or a log with old contents of a file.
        self.engine.flush_data()?;
        let runs =
            switch.taken.runs.iter().chain(&switch.freed).map(|run| self.allocator.credits_for(run.len));
        let old_nodes = self.allocator.credits_for(1) * switch.before.nodes.len() as u32;
        let credits = InodeTable::CREDITS + 1 + old_nodes + runs.sum::<u32>();
        let mut handle = Handle::begin_for(&self.engine, credits, ReserveClass::Upkeep)?;
        let hold = Hold::new();
        let changed = self.change_journal_inode(&mut handle, switch, &tree, &hold);
        if let Err(error) = &changed {
            self.engine.poison(&format!("changing the journal's length failed half-way: {error}"));
        }
        let commit = handle.commit_id();
        drop(handle);
        changed?;
        self.engine.commit(commit)?;
        Ok(hold)
    }

    fn change_journal_inode(
        &self,
        handle: &mut Handle,
        mut switch: Switch<'_>,
        tree: &NewTree,
        hold: &Hold,
    ) -> Result<()> {
        let ino = Ino(self.sb.journal_inum());
        for run in switch.taken.runs.drain(..) {
            self.allocator.link(handle, run)?;
        }
        for run in &switch.freed {
            self.allocator.free(handle, *run, Some(hold.clone()))?;
        }
        for node in &switch.before.nodes {
            handle.forget(*node)?;
            self.allocator.free(handle, Run { start: *node, len: 1 }, Some(hold.clone()))?;
        }
        let blocks = u64::from(switch.map.blocks());
        let backup = self.table.update(handle, ino, |inode| {
            inode.set_block_area(&tree.root);
            inode.set_size(blocks * self.block_bytes());
            let sectors = (blocks + tree.nodes.len() as u64) * self.block_bytes() / 512;
            inode.set_sectors(&self.sb, sectors);
            let mut backup = [0; 17];
            for (i, word) in backup[..15].iter_mut().enumerate() {
                *word = get_u32(inode.as_bytes(), BLOCK_AREA_AT + 4 * i);
            }
            (backup[15], backup[16]) = (inode.size_hi(), inode.size_lo());
            backup
        })?;
        // The superblock has a copy of the journal's map, which e2fsck compares.
        superblock::update(handle, &self.sb, |sb| sb.set_journal_backup(backup))
    }

    /// Restores the journal's original length, unless a commit needs it longer.
    pub(in crate::live) fn restore_journal(&self) -> Result<()> {
        let Some(journal) = self.engine.journal() else { return Ok(()) };
        let _changing = self.space.long_journal.lock();
        let Some(made_with) = journal.size().made_with else { return Ok(()) };
        if self.space.long_journal.is_used() {
            return Ok(());
        }
        let cut_first = self.options.faults.has(Fault::ShorterAfterInode);
        if !cut_first {
            journal.shorten()?;
        }
        match self.cut_journal(journal, made_with) {
            // The volume has no block for a new tree node: try again later.
            Err(error) if error.is_no_space() => return Ok(()),
            result => result?,
        }
        if cut_first {
            journal.shorten()?;
        }
        self.space.long_journal.note_restored();
        journal.forget_size()
    }

    pub(in crate::live) fn has_long_journal(&self) -> bool {
        self.engine.journal().is_some_and(|journal| journal.size().made_with.is_some())
    }

    /// Makes freed blocks available, and blocks that the journal no longer needs. The caller holds
    /// no lock.
    pub(in crate::live) fn reclaim(&self) -> Result<()> {
        self.write_back_all(None)?;
        self.restore_journal()?;
        self.engine.sync()
    }

    /// Calls [`Self::restore_journal`] if no commit has needed the length for a while.
    pub(in crate::live) fn restore_idle_journal(&self) -> Result<()> {
        if self.space.long_journal.is_idle() { self.restore_journal() } else { Ok(()) }
    }

    /// Removes the blocks after the first `blocks` from the journal's inode, in as many commits as
    /// needed.
    fn cut_journal(&self, journal: &dyn ResizableJournal, blocks: u32) -> Result<()> {
        loop {
            let before = self.journal_map()?;
            let mut map = before.clone();
            let mut freed: Vec<Run> = Vec::new();
            let mut credits = 0;
            while credits < self.journal_credits()
                && let Some(run) = map.pop(blocks)
            {
                credits += self.allocator.credits_for(run.len);
                freed.push(run);
            }
            if freed.is_empty() {
                return Ok(());
            }
            let taken = TakenBlocks { allocator: &self.allocator, runs: Vec::new() };
            let hold = self.switch_journal_map(Switch { before, map, taken, freed })?;
            // This checkpoints the inode; until then the blocks of the old tree are held.
            journal.checkpoint()?;
            drop(hold);
        }
    }
}
