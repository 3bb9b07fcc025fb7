//! New contents of files that become part of them in a transaction's commit.
//!
//! Crash argument:
//! 1. *Staging*: blocks are taken in memory only, and the contents go there. A crash finds them free.
//! 2. *Install*: the operation's handle takes the old blocks out of the file and links the new
//!    ones, and sets the size: all in the commit that carries the rest of the transaction. The
//!    engine flushes before its commit record, in every mode (`order_data`), so a commit that is there
//!    has its data; a crash before it leaves the old blocks, which nobody has touched: the same commit
//!    frees them, and they cannot be reused before it is durable.
//!    So nobody has to wait until the device has it before that flush: the contents are on their way meanwhile.
//! 3. Contents that are few (`data::mode`) are not written when they are staged: install puts them into
//!    the same commit as blocks of the journal, which is there as a whole or not at all. What the log
//!    had of an earlier owner of such a block was revoked when it was freed.
//! 4. Of these, what replaces a written block goes to that block's place (`Overwrites`), and what was taken for
//!    it is given back. Until the commit is durable the place holds the old contents, as in 2: only the
//!    checkpoint writes there, after it. A write in place from before (`writeback`) has been passed on by then,
//!    under the same lock of the inode, and is flushed with the commit, so it cannot come later than the checkpoint.
//!    Open views read what they need of the old contents from memory, where it is put before.

use std::collections::BTreeMap;
use std::io::IoSlice;
use std::ops::Range;
use std::sync::Arc;

use xact_consistency::{DataInLog, DataWrite, Fault, Handle, NewData};
use xact_device::Waits;
use xact_layout::extent::MAX_WRITTEN_LEN;
use xact_layout::superblock::Superblock;
use xact_types::{BlockNr, Error, FileBlock, Ino, Result, Run};

use crate::alloc::Purpose;
use crate::extent::{Extents, Mapping, Owner, Replacement};
use crate::live::LiveFs;
use crate::live::data::fallocate::UNWRITTEN_LEN_MAX;
use crate::live::data::inline::{UNPACK_CREDITS, is_inline};
use crate::live::data::remove::Removal;
use crate::live::inode::cached::{CachedInode, InodeState};
use crate::live::mvcc::stamps::Stamp;
use crate::live::mvcc::versions::BlockVersion;
use crate::live::op::run::Operation;
use crate::live::space::make_space::Asker;
use crate::live::space::spill::{BlockContents, SpilledBlock};
use crate::metadata_blocks::CREDITS_PER_BLOCK;
use crate::quota::{Charge, Payer, Wanted};

/// New contents of one file block; `None` makes it a hole.
pub type BlockChange = (FileBlock, Option<BlockContents>);

/// End of every file.
const END: FileBlock = FileBlock(u32::MAX);

/// What a file's contents are to become.
#[derive(Debug, Clone, Default)]
pub struct NewContents {
    /// In rising order.
    pub blocks: Vec<BlockChange>,
    /// All other blocks from here on go.
    pub cut: Option<FileBlock>,
    /// Where these blocks have no place after that, they get one and read as zeros; in rising
    /// order, and none of them in `blocks` with contents.
    pub reserved: Vec<Range<FileBlock>>,
    /// The file is yet to be made.
    pub is_new: bool,
    /// Blocks with contents in all files of the commit: a few of them travel in the journal.
    pub in_commit: u64,
    /// Later commits are going to replace them: more of them may wait in the journal for that.
    pub replaced_soon: bool,
}

/// The transaction whose commit stages contents.
#[derive(Debug, Clone, Copy)]
pub struct Staging {
    /// The space reserved for root may be used.
    pub privileged: bool,
    /// The view that the commit rests on.
    pub begun: Stamp,
}

/// New contents of a file, written to free blocks and not yet part of it. Dropped, it gives the
/// blocks back.
pub struct StagedBlocks {
    fs: Arc<LiveFs>,
    new: NewContents,
    /// Places of the blocks with contents; empty once they are the file's.
    runs: Vec<(FileBlock, Run)>,
    /// Contents that have their places already.
    spilled: Vec<SpilledPart>,
    /// Places of blocks that are to read as zeros.
    unwritten: Vec<(FileBlock, Run)>,
    /// The contents go to their places by way of the journal, in the commit.
    journaled: bool,
}

/// Spilled blocks that follow each other, in the file and on the volume.
struct SpilledPart {
    at: FileBlock,
    blocks: Vec<SpilledBlock>,
}

impl SpilledPart {
    fn run(&self) -> Run {
        Run { start: self.blocks[0].place(), len: self.blocks.len() as u32 }
    }
}

impl Drop for StagedBlocks {
    fn drop(&mut self) {
        for (_, run) in self.runs.drain(..).chain(self.unwritten.drain(..)) {
            self.fs.allocator.give_back(run);
        }
    }
}

impl LiveFs {
    /// Takes free blocks near a file for its new contents, and writes these there unless the commit
    /// will carry them. Holds no lock while it writes.
    pub fn stage_blocks(self: &Arc<Self>, ino: Ino, new: NewContents, by: Staging) -> Result<StagedBlocks> {
        if self.engine.is_read_only() {
            return Err(Error::ReadOnly);
        }
        let holes = self.holes_to_fill(ino, &new)?;
        let count = new.blocks.iter().filter(|(_, data)| in_memory(data).is_some()).count() as u64
            + holes.iter().map(|(_, len)| u64::from(*len)).sum::<u64>();
        let purpose = Purpose::Data { privileged: by.privileged };
        let mut reservation = self.reserve_with_effort(count, purpose, Asker::Commit(by.begun))?;
        let bytes = new.in_commit * self.block_bytes();
        let journaled = self.engine.data_in_log() == DataInLog::All
            && self.modes.data.journals_staged(bytes, new.replaced_soon, self.writeback.log_takes());
        let spilled = spilled_parts(&self.sb, &new);
        let (runs, unwritten) = (Vec::new(), Vec::new());
        let mut staged = StagedBlocks { fs: self.clone(), new, runs, spilled, unwritten, journaled };
        let mut goal = self.allocator.goal_for(ino);
        let mut rest = staged.new.blocks.as_slice();
        loop {
            let others = rest.iter().take_while(|(_, data)| in_memory(data).is_none()).count();
            rest = &rest[others..];
            let Some((at, _)) = rest.first() else { break };
            let run = self.allocator.take(goal, run_length(rest), purpose, Some(&mut reservation))?;
            staged.runs.push((*at, run));
            goal = run.end();
            let (now, later) = rest.split_at(run.len as usize);
            if !journaled {
                let slices: Vec<IoSlice<'_>> = now
                    .iter()
                    .filter_map(|(_, data)| in_memory(data))
                    .map(|bytes| IoSlice::new(bytes))
                    .collect();
                let how = DataWrite { waits: Waits::Nobody, ..DataWrite::default() };
                self.engine.write_data_as(run.start, &slices, how)?;
            }
            rest = later;
        }
        for (mut at, mut len) in holes {
            while len > 0 {
                let most = len.min(UNWRITTEN_LEN_MAX);
                let run = self.allocator.take(goal, most, purpose, Some(&mut reservation))?;
                staged.unwritten.push((FileBlock(at), run));
                goal = run.end();
                (at, len) = (at + run.len, len - run.len);
            }
        }
        Ok(staged)
    }

    /// First block and length of what `reserved` will find without a place, as the file is now.
    fn holes_to_fill(&self, ino: Ino, new: &NewContents) -> Result<Vec<(u32, u32)>> {
        let mut holes = Vec::new();
        if new.reserved.is_empty() {
            return Ok(holes);
        }
        let cached = if new.is_new { None } else { Some(self.cached_inode(ino)?) };
        let state = cached.as_ref().map(|cached| cached.state.read());
        let kept = if new.is_new { FileBlock(0) } else { new.cut.unwrap_or(END) };
        for range in &new.reserved {
            let middle = range.end.min(kept).max(range.start);
            if let (Some(cached), Some(state)) = (&cached, &state)
                && state.live
                && range.start < middle
            {
                self.check_is_file(cached, state)?;
                let now = self.holes(cached, state, range.start.0, middle.0)?;
                // Blocks that the commit itself makes holes.
                let made = new.blocks.iter().filter(|(_, data)| data.is_none()).map(|(at, _)| *at);
                for at in made.filter(|at| (range.start..middle).contains(at)) {
                    let before = now.partition_point(|(first, _)| *first <= at.0);
                    if before.checked_sub(1).is_none_or(|i| at.0 >= now[i].0 + now[i].1) {
                        add_to_runs(&mut holes, at.0);
                    }
                }
                holes.extend(now);
            }
            if middle < range.end {
                holes.push((middle.0, range.end.0 - middle.0));
            }
        }
        Ok(holes)
    }
}

/// Adds a block behind those that are there, to the last run where it follows that.
fn add_to_runs(runs: &mut Vec<(u32, u32)>, at: u32) {
    match runs.last_mut() {
        Some((first, len)) if *first + *len == at => *len += 1,
        _ => runs.push((at, 1)),
    }
}

fn in_memory(data: &Option<BlockContents>) -> Option<&Arc<[u8]>> {
    data.as_ref().and_then(BlockContents::in_memory)
}

/// The contents that were spilled, in the order of the file, each part within a group as what is taken at
/// once: by that its credits are counted.
fn spilled_parts(sb: &Superblock, new: &NewContents) -> Vec<SpilledPart> {
    let mut parts: Vec<SpilledPart> = Vec::new();
    for (at, data) in &new.blocks {
        let Some(BlockContents::Spilled(block)) = data else { continue };
        match parts.last_mut() {
            Some(part)
                if part.at.offset(part.blocks.len() as u32) == *at
                    && part.run().end() == block.place()
                    && sb.group_of(block.place()) == sb.group_of(part.run().start)
                    && part.run().len < MAX_WRITTEN_LEN =>
            {
                part.blocks.push(block.clone());
            }
            _ => parts.push(SpilledPart { at: *at, blocks: vec![block.clone()] }),
        }
    }
    parts
}

/// Blocks at the start of `blocks` that have contents in memory and follow each other.
fn run_length(blocks: &[BlockChange]) -> u32 {
    let follows = |pair: &[BlockChange]| in_memory(&pair[1].1).is_some() && pair[1].0.0 == pair[0].0.0 + 1;
    1 + blocks.windows(2).take_while(|pair| follows(pair)).count() as u32
}

/// Blocks of a file that keep their places under new contents, by the journal.
#[derive(Default)]
struct Overwrites(BTreeMap<FileBlock, BlockNr>);

impl Overwrites {
    /// The blocks of a run in parts, each with its place in the file if it keeps that, or else where it is.
    fn split(&self, at: FileBlock, run: Run) -> Vec<(FileBlock, Run, Option<BlockNr>)> {
        let mut parts: Vec<(FileBlock, Run, Option<BlockNr>)> = Vec::new();
        for i in 0..run.len {
            let (at, start) = (at.offset(i), run.start.offset(u64::from(i)));
            let kept = self.0.get(&at).copied();
            match parts.last_mut() {
                Some((_, part, None)) if kept.is_none() => part.len += 1,
                _ => parts.push((at, Run { start, len: 1 }, kept)),
            }
        }
        parts
    }
}

/// Ranges of blocks that an install takes out of the file first; `kept` stay in it.
fn replaced(new: &NewContents, kept: &Overwrites) -> Vec<(FileBlock, FileBlock)> {
    let end = new.cut.unwrap_or(END);
    let mut ranges: Vec<(FileBlock, FileBlock)> = Vec::new();
    for (at, _) in new.blocks.iter().filter(|(at, _)| *at < end && !kept.0.contains_key(at)) {
        match ranges.last_mut() {
            Some((_, past)) if *past == *at => *past = at.offset(1),
            _ => ranges.push((*at, at.offset(1))),
        }
    }
    if let Some(cut) = new.cut {
        ranges.push((cut, END));
    }
    ranges
}

impl Operation<'_> {
    /// Says, before the operation's first change, that an install into an existing file will come:
    /// what it takes of the journal is added to the operation's budget.
    pub fn reserve_install(&mut self, ino: Ino, staged: &StagedBlocks) -> Result<()> {
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
    pub fn reserve_charge(&mut self, payer: Payer, blocks: u64, inodes: u64) {
        let more = Charge { payer, bytes: blocks * self.fs.block_bytes(), inodes };
        self.reserve_quota(Wanted { now: None, more });
    }

    /// As `reserve_charge`, for all that an inode is charged, which gets another payer.
    pub fn reserve_payer_change(&mut self, ino: Ino, payer: Payer) -> Result<()> {
        let charged = self.state(ino)?.state.charged;
        self.reserve_quota(Wanted { now: Some(charged.payer), more: Charge { payer, ..charged } });
        Ok(())
    }

    /// As `reserve_install`, for a file that the operation makes itself.
    pub fn reserve_new_file(&mut self, staged: &StagedBlocks) {
        let fs = self.fs;
        let owner = Owner { ino: Ino::ROOT, generation: 0 };
        let extents = Extents::new(&fs.engine, &fs.sb, &fs.allocator, owner);
        let map = extents.map_changes(&fs.unmapped_inode(), staged.replacement());
        let nodes = map.changed + map.new + staged.journaled_blocks();
        self.reserve_moves_of(staged);
        self.reserve_metadata(nodes, staged.run_count() + map.new, map.new);
    }

    /// What was spilled was promised to its payer then.
    fn reserve_moves_of(&mut self, staged: &StagedBlocks) {
        staged
            .spilled
            .iter()
            .flat_map(|part| &part.blocks)
            .for_each(|block| self.reserve_move(block.charge()));
    }

    /// As `reserve_charge`, for a number that was reserved and promised to a payer.
    pub fn reserve_adoption(&mut self, ino: Ino, promised_to: Payer) -> Result<()> {
        self.lock_new(ino)?;
        self.reserve_move(Charge { payer: promised_to, bytes: 0, inodes: 1 });
        Ok(())
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

    /// Makes staged blocks the file's, in this commit: after a crash the file has all of it or
    /// nothing. Bytes past `size` are ignored.
    pub fn install(&mut self, ino: Ino, staged: &mut StagedBlocks, size: u64) -> Result<()> {
        let fs = self.fs;
        self.change_inode(ino)?;
        self.unpack_inline(ino)?;
        let kept = self.overwrite(ino, staged)?;
        for (first, past) in replaced(&staged.new, &kept) {
            self.remove_range(ino, first, past, Removal::Replaced)?;
            assert!(self.unfinished.is_empty(), "an install is announced before it is begun");
        }
        let keep = self.keeping();
        let (_, handle, cached, state) = self.parts(ino);
        if let Some(until) = keep {
            // What is kept already was data; the rest were holes.
            for (at, _) in staged.new.blocks.iter().filter(|(_, data)| data.is_some()) {
                state.versions.keep_block(until, *at, BlockVersion::Hole);
            }
            fs.mvcc.note_versioned(ino);
        }
        if !staged.spilled.is_empty() || !(staged.journaled || staged.runs.is_empty()) {
            handle.order_data();
        }
        let mut contents = staged.new.blocks.iter().filter_map(|(_, data)| in_memory(data));
        let runs = staged.runs.drain(..).flat_map(|(at, run)| kept.split(at, run));
        for (at, run, kept) in runs {
            if kept.is_some() {
                fs.allocator.give_back(run);
            } else {
                fs.allocator.link(handle, run)?;
                fs.extents(cached.ino, state).insert(handle, &mut state.inode, at, run, false)?;
            }
            let start = kept.unwrap_or(run.start);
            // The runs have a block for each of the contents, in the same order.
            for (i, data) in contents.by_ref().take(run.len as usize).enumerate() {
                let block = start.offset(i as u64);
                if fs.options.faults.has(Fault::PlaceBeforeCommit)
                    && kept.is_some()
                    && !fs.engine.holds_data(block, 1)
                {
                    fs.engine.write_data(block, &[IoSlice::new(data)])?;
                }
                if staged.journaled {
                    handle.journal_data(block, NewData { contents: data.clone(), changed: None })?;
                }
            }
        }
        for part in staged.spilled.drain(..) {
            let run = part.run();
            fs.allocator.link(handle, run)?;
            fs.extents(cached.ino, state).insert(handle, &mut state.inode, part.at, run, false)?;
            part.blocks.iter().for_each(SpilledBlock::set_linked);
        }
        for (at, run) in staged.unwritten.drain(..) {
            fs.install_unwritten(handle, cached, state, at, run)?;
        }
        let installed = staged.new.blocks.iter().rev().find(|(_, data)| data.is_some());
        let installed_end = installed.map_or(0, |(at, _)| (u64::from(at.0) + 1) * fs.block_bytes());
        let count = staged.new.blocks.len();
        let blocks = std::mem::take(&mut staged.new.blocks).into_iter();
        let in_memory = blocks.filter_map(|(at, data)| match data {
            Some(BlockContents::Memory(data)) => Some((at.0, data)),
            _ => None,
        });
        fs.page_cache.insert_installed(cached, in_memory);
        state.size = size;
        let on_disk = fs.size_without_dirty(cached, state, installed_end).min(size);
        state.inode.set_size(on_disk);
        state.dirty = on_disk != size;
        if state.dirty {
            fs.page_cache.mark_dirty_inode(ino);
        }
        self.touch(ino);
        fs.page_cache.evict(&fs.inodes, count);
        Ok(())
    }

    /// Finds out which of the staged contents overwrite their block where it is, keeps what open views need of
    /// it, and drops the pages that it had.
    fn overwrite(&mut self, ino: Ino, staged: &StagedBlocks) -> Result<Overwrites> {
        let mut found = Overwrites::default();
        if !staged.journaled {
            return Ok(found);
        }
        let (fs, keep) = (self.fs, self.keeping());
        let locked = self.state(ino)?;
        let end = staged.new.cut.unwrap_or(END);
        let contents = staged.new.blocks.iter().filter(|(_, data)| in_memory(data).is_some());
        for (at, _) in contents.take_while(|(at, _)| *at < end) {
            let mapping = fs.extents(ino, &locked.state).map(&locked.state.inode, *at)?;
            let Mapping::Written { start, .. } = mapping else { continue };
            // Nobody shall wait for the device's read with a handle open: then it gets a new place.
            if keep.is_some()
                && !locked.cached.pages.lock().map.contains_key(&at.0)
                && !fs.engine.holds_data(start, 1)
            {
                continue;
            }
            if let Some(until) = keep {
                fs.keep_block(&locked.cached, &mut locked.state, *at, until)?;
            }
            fs.drop_pages(&locked.cached, &locked.state, at.0, at.0 + 1);
            found.0.insert(*at, start);
        }
        Ok(found)
    }
}

impl StagedBlocks {
    fn run_count(&self) -> u64 {
        // What others have given a place meanwhile may leave of a run the pieces at its ends.
        (self.runs.len() + self.spilled.len()) as u64 + 2 * self.unwritten.len() as u64
    }

    /// What of the contents takes room in the commit.
    fn journaled_blocks(&self) -> u64 {
        if self.journaled { self.runs.iter().map(|(_, run)| u64::from(run.len)).sum() } else { 0 }
    }

    /// What an install brings into the file.
    fn replacement(&self) -> Replacement {
        let spilled = || self.spilled.iter().map(|part| (part.at, part.run()));
        let places = || self.runs.iter().chain(&self.unwritten).copied().chain(spilled());
        Replacement {
            runs: self.run_count(),
            blocks: places().map(|(_, run)| u64::from(run.len)).sum(),
            gone: 0,
            end: places().map(|(at, run)| u64::from(at.0) + u64::from(run.len)).max().unwrap_or(0),
        }
    }
}

impl LiveFs {
    /// Gives blocks that have no place this one, where they read as zeros; what others have given
    /// a place since it was taken stays as it is.
    fn install_unwritten(
        &self,
        handle: &mut Handle,
        cached: &CachedInode,
        state: &mut InodeState,
        at: FileBlock,
        run: Run,
    ) -> Result<()> {
        let mut next = 0;
        for (first, len) in self.holes(cached, state, at.0, at.0 + run.len)? {
            let skipped = first - at.0;
            let part = |from: u32, to: u32| Run { start: run.start.offset(u64::from(from)), len: to - from };
            if skipped > next {
                self.allocator.give_back(part(next, skipped));
            }
            let place = part(skipped, skipped + len);
            self.allocator.link(handle, place)?;
            self.extents(cached.ino, state).insert(
                handle,
                &mut state.inode,
                FileBlock(first),
                place,
                true,
            )?;
            next = skipped + len;
        }
        if next < run.len {
            self.allocator.give_back(Run { start: run.start.offset(u64::from(next)), len: run.len - next });
        }
        Ok(())
    }

    /// How large the file may be on disk: up to the first block past its size there whose data is
    /// only in memory (somebody has written since `prepare_commit`), but past what is installed.
    fn size_without_dirty(&self, cached: &CachedInode, state: &InodeState, installed_end: u64) -> u64 {
        let block = self.block_bytes();
        let on_disk = state.inode.size();
        let first = u32::try_from(on_disk / block).unwrap_or(u32::MAX);
        let pages = cached.pages.lock();
        let dirty = pages.map.range(first..).find(|(_, page)| page.dirty);
        match dirty {
            Some((at, _)) => (u64::from(*at) * block).max(on_disk).max(installed_end),
            None => u64::MAX,
        }
    }
}
