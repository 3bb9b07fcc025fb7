//! Staging: writes a transaction's new file contents to free blocks before its commit. The crash
//! argument is at the head of `commit::install`.

use std::collections::BTreeSet;
use std::io::IoSlice;
use std::sync::Arc;

use xact_consistency::{DataInLog, DataWrite};
use xact_device::WriteHint;
use xact_layout::extent::MAX_WRITTEN_LEN;
use xact_layout::superblock::Superblock;
use xact_types::{Error, FileBlock, Ino, Result, Run};

use crate::alloc::Purpose;
use crate::extent::Replacement;
use crate::live::LiveFs;
use crate::live::data::fallocate::UNWRITTEN_LEN_MAX;
use crate::live::space::make_space::SpaceCaller;
use crate::versioned_fs::commit::Staging;
use crate::versioned_fs::contents::{BlockChange, BlockContents, NewContents, SpilledBlock};

/// End of every file.
pub(super) const END: FileBlock = FileBlock(u32::MAX);

/// New contents of a file, in free blocks that are not linked to it yet. Its drop gives the blocks
/// back.
pub struct StagedBlocks {
    fs: Arc<LiveFs>,
    pub(super) new: NewContents,
    /// Places of the blocks with contents; empty after the install.
    pub(super) runs: Vec<(FileBlock, Run)>,
    /// Contents that already have their places.
    pub(super) spilled: Vec<SpilledPart>,
    /// Places of blocks that will read as zeros.
    pub(super) unwritten: Vec<(FileBlock, Run)>,
    /// The contents go through the journal, in the commit.
    pub(super) journaled: bool,
    /// First file blocks of the runs whose contents wait in memory for the commit.
    pub(super) deferred: BTreeSet<FileBlock>,
}

/// Spilled blocks that are contiguous in the file and on the volume.
pub(super) struct SpilledPart {
    pub at: FileBlock,
    pub blocks: Vec<SpilledBlock>,
}

impl SpilledPart {
    pub fn run(&self) -> Run {
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

impl StagedBlocks {
    /// Takes free blocks near a file for its new contents, and writes the contents there unless
    /// they go through the journal. Holds no lock during the writes.
    pub(super) fn stage(fs: &Arc<LiveFs>, ino: Ino, new: NewContents, by: Staging) -> Result<StagedBlocks> {
        if fs.engine.is_read_only() {
            return Err(Error::ReadOnly);
        }
        let holes = fs.holes_to_fill(ino, &new)?;
        let count = new.blocks.iter().filter(|(_, data)| in_memory(data).is_some()).count() as u64
            + holes.iter().map(|(_, len)| u64::from(*len)).sum::<u64>();
        let purpose = Purpose::Data { privileged: by.privileged };
        let mut reservation = fs.reserve_with_effort(count, purpose, SpaceCaller::Commit(by.begun))?;
        let bytes = new.in_commit * fs.block_bytes();
        let journaled = fs.engine.data_in_log() == DataInLog::All
            && fs.data_mode_of(ino).journals_staged(bytes, new.replaced_soon, fs.writeback.log_takes());
        let spilled = spilled_parts(&fs.sb, &new);
        // In a commit for which no caller waits, as far as memory allows: there may be another
        // before it is durable that replaces these contents.
        let waits = new.may_wait && fs.engine.deferred_bytes() + bytes <= fs.page_cache.deferred_max();
        let (runs, unwritten, deferred) = (Vec::new(), Vec::new(), BTreeSet::new());
        let mut staged = StagedBlocks { fs: fs.clone(), new, runs, spilled, unwritten, journaled, deferred };
        let mut goal = fs.allocator.goal_for(ino);
        let mut rest = staged.new.blocks.as_slice();
        loop {
            let others = rest.iter().take_while(|(_, data)| in_memory(data).is_none()).count();
            rest = &rest[others..];
            let Some((at, _)) = rest.first() else { break };
            let run = fs.allocator.take(goal, run_length(rest), purpose, Some(&mut reservation))?;
            staged.runs.push((*at, run));
            goal = run.end();
            let (now, later) = rest.split_at(run.len as usize);
            if !journaled && waits && fs.engine.may_defer(run.start, run.len.into())? {
                staged.deferred.insert(*at);
            } else if !journaled {
                let slices: Vec<IoSlice<'_>> = now
                    .iter()
                    .filter_map(|(_, data)| in_memory(data))
                    .map(|bytes| IoSlice::new(bytes))
                    .collect();
                let how = DataWrite { hint: WriteHint::Background, ..DataWrite::default() };
                fs.engine.write_data_as(run.start, &slices, how)?;
            }
            rest = later;
        }
        for (mut at, mut len) in holes {
            while len > 0 {
                let most = len.min(UNWRITTEN_LEN_MAX);
                let run = fs.allocator.take(goal, most, purpose, Some(&mut reservation))?;
                staged.unwritten.push((FileBlock(at), run));
                goal = run.end();
                (at, len) = (at + run.len, len - run.len);
            }
        }
        Ok(staged)
    }
}

impl LiveFs {
    /// First block and length of each hole in the ranges `reserved`, in the file's present state.
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
                // Blocks that the commit itself turns into holes.
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

/// Adds a block after all others, to the last run if it is contiguous.
fn add_to_runs(runs: &mut Vec<(u32, u32)>, at: u32) {
    match runs.last_mut() {
        Some((first, len)) if *first + *len == at => *len += 1,
        _ => runs.push((at, 1)),
    }
}

pub(super) fn in_memory(data: &Option<BlockContents>) -> Option<&Arc<[u8]>> {
    data.as_ref().and_then(BlockContents::in_memory)
}

/// Spilled contents in the order of the file. A part lies within one group, like a run that is
/// taken at once, because credits are counted by group.
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

/// Number of contiguous blocks at the start of `blocks` with contents in memory.
fn run_length(blocks: &[BlockChange]) -> u32 {
    let follows = |pair: &[BlockChange]| in_memory(&pair[1].1).is_some() && pair[1].0.0 == pair[0].0.0 + 1;
    1 + blocks.windows(2).take_while(|pair| follows(pair)).count() as u32
}

impl StagedBlocks {
    pub(super) fn run_count(&self) -> u64 {
        // If other callers have mapped blocks since, two pieces of an unwritten run may be left.
        (self.runs.len() + self.spilled.len()) as u64 + 2 * self.unwritten.len() as u64
    }

    /// Number of blocks that go through the journal.
    pub(super) fn journaled_blocks(&self) -> u64 {
        if self.journaled { self.runs.iter().map(|(_, run)| u64::from(run.len)).sum() } else { 0 }
    }

    /// The blocks that an install adds to the file.
    pub(super) fn replacement(&self) -> Replacement {
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
