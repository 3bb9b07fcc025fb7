//! The journal's inode gets more blocks for a commit that its log would not take, and loses them
//! again.
//!
//! The steps, and what a crash between any two of them leaves, are at the head of
//! `consistency/src/journal/resize.rs`. Of those steps, here:
//! 1. New blocks are taken in memory, filled with zeros, and the tree that maps them
//!    (`journal_map`) is written to free blocks. All of it is durable before the commit that links
//!    it: a crash finds it free.
//! 2. One commit links the blocks and changes the inode and its backup in the superblock. What it
//!    frees (nodes of the tree before, blocks when the journal gets shorter) stays *held* until the
//!    inode is at home: until then a recovery still goes by the old tree.

use std::io::IoSlice;
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use xact_consistency::{Fault, Handle, ReserveClass, ResizableJournal};
use xact_layout::extent::MAX_WRITTEN_LEN;
use xact_layout::get_u32;
use xact_layout::inode::{BLOCK_AREA_AT, flag};
use xact_types::{Error, Ino, Result, Run};

use crate::alloc::{Allocator, Hold, Purpose, Reservation};
use crate::inode_table::InodeTable;
use crate::journal_map::{JournalMap, NewTree};
use crate::live::LiveFs;
use crate::live::space::make_space::{Asker, Effort};
use crate::superblock;

/// A long journal that was not used for this time gets short again.
const IDLE_TIME: Duration = Duration::from_secs(10);
/// Bytes of zeros that are written at once.
const ZEROS_BYTES: usize = 1 << 20;

/// Who needs the journal long.
#[derive(Default)]
pub(in crate::live) struct LongJournal {
    /// Held while the length changes.
    changing: Mutex<()>,
    users: AtomicU32,
    unused_since: Mutex<Option<Instant>>,
}

/// Keeps the journal as long as it is.
pub(in crate::live) struct JournalUse<'a> {
    long: &'a LongJournal,
}

impl LongJournal {
    fn enter(&self) -> JournalUse<'_> {
        self.users.fetch_add(1, SeqCst);
        JournalUse { long: self }
    }

    fn is_idle(&self) -> bool {
        self.unused_since.lock().is_some_and(|since| since.elapsed() > IDLE_TIME)
    }
}

impl Drop for JournalUse<'_> {
    fn drop(&mut self) {
        *self.long.unused_since.lock() = Some(Instant::now());
        self.long.users.fetch_sub(1, SeqCst);
    }
}

/// Blocks that are taken and not linked; given back when dropped.
struct Taken<'a> {
    allocator: &'a Allocator,
    runs: Vec<Run>,
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        self.runs.drain(..).for_each(|run| self.allocator.give_back(run));
    }
}

/// A change of the journal's blocks.
struct Switch<'a> {
    before: JournalMap,
    map: JournalMap,
    /// The blocks that it gets.
    taken: Taken<'a>,
    /// The blocks that it loses.
    freed: Vec<Run>,
}

impl LiveFs {
    /// Makes the journal so long that one operation may have `credits`, and keeps it so until the
    /// result is dropped. The caller holds no lock.
    ///
    /// Errors: `NoSpace`; `TooLarge` where there is no journal that could get longer.
    pub(in crate::live) fn lengthen_journal(
        &self,
        credits: u32,
        privileged: bool,
        asker: Asker,
    ) -> Result<JournalUse<'_>> {
        let limit = u64::from(self.engine.max_credits());
        let refused = Error::TooLarge { blocks: credits.into(), limit };
        let Some(journal) = self.engine.journal().filter(|_| self.sb.cluster_blocks() == 1) else {
            return Err(refused);
        };
        let in_use = self.space.long_journal.enter();
        let mut effort = Effort::default();
        loop {
            match self.lengthen_to(journal, credits, Purpose::Data { privileged }) {
                Err(Error::NoSpace) if self.make_space(&mut effort, asker)? => {}
                Ok(true) => return Ok(in_use),
                Ok(false) => return Err(refused),
                Err(error) => return Err(error),
            }
        }
    }

    /// False where the journal cannot get longer. `NoSpace` changes nothing.
    fn lengthen_to(&self, journal: &dyn ResizableJournal, credits: u32, purpose: Purpose) -> Result<bool> {
        let _changing = self.space.long_journal.changing.lock();
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

    /// What one commit of the log as it is may change for the journal's own sake.
    fn journal_credits(&self) -> u32 {
        self.engine.max_credits() / 2
    }

    /// Adds as many blocks as one commit can, towards `blocks` in all.
    fn add_to_journal(
        &self,
        journal: &dyn ResizableJournal,
        blocks: u32,
        purpose: Purpose,
        reservation: &mut Reservation,
    ) -> Result<()> {
        let before = self.journal_map()?;
        let mut map = before.clone();
        let mut taken = Taken { allocator: &self.allocator, runs: Vec::new() };
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

    /// Gives the journal's inode another map, in one durable commit. What was freed stays held by
    /// the result, which must live until the inode is at home.
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
        // Durable by this flush: the zeros and the tree. Without it the inode could be home, and
        // the log not be found through it, or be found to hold what a file held there before.
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
        // The superblock keeps a copy of where the journal is, which e2fsck compares.
        superblock::update(handle, &self.sb, |sb| sb.set_journal_backup(backup))
    }

    /// Makes the journal what it was made, unless a commit needs it longer.
    pub(in crate::live) fn restore_journal(&self) -> Result<()> {
        let Some(journal) = self.engine.journal() else { return Ok(()) };
        let _changing = self.space.long_journal.changing.lock();
        let Some(made_with) = journal.size().made_with else { return Ok(()) };
        if self.space.long_journal.users.load(SeqCst) > 0 {
            return Ok(());
        }
        let cut_first = self.options.faults.has(Fault::ShorterAfterInode);
        if !cut_first {
            journal.shorten()?;
        }
        match self.cut_journal(journal, made_with) {
            // A full volume, without a block for a new node: a later time.
            Err(Error::NoSpace) => return Ok(()),
            result => result?,
        }
        if cut_first {
            journal.shorten()?;
        }
        *self.space.long_journal.unused_since.lock() = None;
        journal.forget_size()
    }

    pub(in crate::live) fn has_long_journal(&self) -> bool {
        self.engine.journal().is_some_and(|journal| journal.size().made_with.is_some())
    }

    /// Makes what was freed, or is the journal's for no reason any more, available. The caller
    /// holds no lock.
    pub(in crate::live) fn reclaim(&self) -> Result<()> {
        self.write_back_all(None)?;
        self.restore_journal()?;
        self.engine.sync()
    }

    /// As [`Self::restore_journal`], where no commit has needed the length for a while.
    pub(in crate::live) fn restore_idle_journal(&self) -> Result<()> {
        if self.space.long_journal.is_idle() { self.restore_journal() } else { Ok(()) }
    }

    /// Takes the blocks behind the first `blocks` from the journal's inode, in as many commits as
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
            let taken = Taken { allocator: &self.allocator, runs: Vec::new() };
            let hold = self.switch_journal_map(Switch { before, map, taken, freed })?;
            // The inode is at home by this: until then the blocks of the tree before are held.
            journal.checkpoint()?;
            drop(hold);
        }
    }
}
