//! Write-back of many inodes: their data in as few writes as it takes, and past the page cache below.
//!
//! What is dirty in a thousand files lies in a thousand places of memory, and on the device mostly side by side: new
//! blocks are taken near each other. So the data of several inodes is written together, sorted by place, and then each is
//! linked. As long as it is on its way nothing refers to it, so the argument of [`crate::live::data::writeback`] holds for each.
//!
//! *Whose time it takes.* What goes into the page cache is written by whoever flushes next, and that is somebody's fsync
//! of a few bytes (the paper on RFJ: metadata waits for its data, instead of forcing it out). Nobody waits for
//! what is written here. So it is on the device when it is linked: an fsync that commits it along has nothing left to write.
//!
//! *Locks.* Those of all inodes of a group are held, upgradable, while their data is written: in rising order, as
//! everywhere. They are made exclusive and let go of from the last to the first: whoever reads one of them, and so keeps
//! it from being made exclusive, may wait for a later one, never for an earlier one. Of an inode that somebody else
//! has at the moment the group does without.

use std::io::IoSlice;
use std::sync::Arc;
use std::time::Instant;

use parking_lot::RwLock;
use xact_consistency::{DataWrite, Room};
use xact_device::Waits;
use xact_types::{BlockNr, Error, Result};

use crate::live::LiveFs;
use crate::live::data::writeback::{WriteBack, WritebackBatch};
use crate::live::inode::cached::CachedInode;

/// Inodes and pages that are written together at the most: how long a writer to one of them may have to wait.
const INODES_MAX: usize = 256;
const PAGES_MAX: usize = 256;
/// A run of so many bytes goes past the page cache by itself; smaller ones there are passed on together.
const LARGE_RUN_BYTES: usize = 64 << 10;
/// So few runs do so whatever their size.
const FEW_RUNS: usize = 4;

/// Data for blocks that follow each other.
struct DataRun<'a> {
    start: BlockNr,
    pages: Vec<IoSlice<'a>>,
    bytes: usize,
}

impl LiveFs {
    /// Writes back what is dirty; with `before`, only inodes that have been dirty since then.
    ///
    /// Errors: the first one that an inode met by itself (its extents are damaged); all others are written all the same.
    pub(in crate::live) fn write_back_all(&self, before: Option<Instant>) -> Result<()> {
        let mut inodes = Vec::new();
        for ino in self.page_cache.dirty_inodes(before) {
            match self.inodes.peek(ino) {
                Some(cached) => inodes.push(cached),
                None => self.page_cache.unmark_dirty_inode(ino),
            }
        }
        let mut rest = &inodes[..];
        // Those that are in somebody's hands, or have more than a group takes.
        let mut alone = Vec::new();
        let mut failed = None;
        while !rest.is_empty() {
            let (group, met) = self.collect_group(rest, &mut alone, &mut failed);
            rest = &rest[met..];
            self.write_data_of(&group, false)?;
            for batch in group.into_iter().rev() {
                let cached = batch.cached.clone();
                if self.finish(batch)? {
                    alone.push(cached);
                } else {
                    self.settle(&cached);
                }
            }
        }
        for cached in alone {
            if let Err(error) = self.write_back(&cached, WriteBack::INODE) {
                failed.get_or_insert(error);
            }
        }
        failed.map_or(Ok(()), Err)
    }

    /// What there is to write back of the first of these inodes, as much as makes a group, and how many of them that
    /// were. One that meets an error is left out, and stays dirty.
    fn collect_group(
        &self,
        inodes: &[Arc<CachedInode>],
        alone: &mut Vec<Arc<CachedInode>>,
        failed: &mut Option<Error>,
    ) -> (Vec<WritebackBatch>, usize) {
        let (mut group, mut pages) = (Vec::new(), 0);
        let mut met = 0;
        for cached in inodes {
            if group.len() == INODES_MAX || pages >= PAGES_MAX {
                break;
            }
            met += 1;
            let Some(guard) = RwLock::try_upgradable_read_arc(&cached.state) else {
                alone.push(cached.clone());
                continue;
            };
            let collected = match guard.live {
                true => self.collect(cached, guard, WriteBack::INODE),
                false => Ok(None),
            };
            match collected {
                Ok(Some(batch)) => {
                    pages += batch.pages();
                    group.push(batch);
                }
                Ok(None) => self.settle(cached),
                Err(error) => {
                    failed.get_or_insert(error);
                }
            }
        }
        (group, met)
    }

    /// Writes the data of the batches to its places, but for what goes through the journal. `synced`: a flush is to
    /// follow. Where that fails the blocks that were taken for it are given back.
    pub(in crate::live) fn write_data_of(&self, batches: &[WritebackBatch], synced: bool) -> Result<()> {
        let written = self.write_runs(&runs_of(batches), synced);
        if written.is_err() {
            self.give_back_all(batches);
        }
        written
    }

    fn write_runs(&self, runs: &[DataRun<'_>], synced: bool) -> Result<()> {
        // Of several that a flush waits for, it has the device take them together.
        let few = runs.len() <= if synced { 1 } else { FEW_RUNS };
        let mut unflushed = None;
        for run in runs {
            let now = few || !synced && run.bytes >= LARGE_RUN_BYTES;
            let waits = if now { Waits::Flush } else { Waits::Later };
            self.engine.write_data_as(run.start, &run.pages, DataWrite { waits, room: Room::Upkeep })?;
            if !now {
                unflushed = Some((unflushed.map_or(run.start, |(first, _)| first), run));
            }
        }
        match unflushed {
            Some((first, last)) if !synced => {
                let end = last.start.0 + (last.bytes as u64).div_ceil(self.block_bytes());
                self.engine.pass_on_data(first, end - first.0)
            }
            _ => Ok(()),
        }
    }

    fn give_back_all(&self, batches: &[WritebackBatch]) {
        batches.iter().for_each(|batch| self.give_back(batch.segments()));
    }
}

/// In the order of their places, as much as there is side by side together.
fn runs_of(batches: &[WritebackBatch]) -> Vec<DataRun<'_>> {
    let segments = batches.iter().flat_map(WritebackBatch::segments).filter(|segment| !segment.journaled);
    let mut sorted: Vec<_> = segments.collect();
    sorted.sort_unstable_by_key(|segment| segment.start);
    let mut runs: Vec<DataRun<'_>> = Vec::new();
    for segment in sorted {
        let follows = |run: &&mut DataRun<'_>| run.start.offset(run.pages.len() as u64) == segment.start;
        let run = match runs.last_mut().filter(follows) {
            Some(run) => run,
            None => {
                runs.push(DataRun { start: segment.start, pages: Vec::new(), bytes: 0 });
                runs.last_mut().expect("just added")
            }
        };
        for page in &segment.pages {
            run.pages.push(IoSlice::new(&page.data));
            run.bytes += page.data.len();
        }
    }
    runs
}
