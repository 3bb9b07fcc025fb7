//! Write-back of many inodes: their data in as few writes as it takes, and past the page cache below.
//!
//! What is dirty in a thousand files lies in a thousand places of memory, and on the device mostly side by side: new
//! blocks are taken near each other. So the data of several inodes is written together, sorted by place, and then each is
//! linked. As long as it is on its way nothing refers to it, so the argument of [`super::writeback`] holds for each.
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
use xact_consistency::{DataWrite, ReserveClass};
use xact_device::WriteHint;
use xact_types::{BlockNr, Error, Result};

use super::Base;
use super::cell::Cell;
use super::writeback::{Gathered, WriteBack};

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

impl Base {
    /// Writes back what is dirty; with `before`, only inodes that have been dirty since then.
    ///
    /// Errors: the first one that an inode met by itself (its extents are damaged); all others are written all the same.
    pub(super) fn write_back_all(&self, before: Option<Instant>) -> Result<()> {
        let mut cells = Vec::new();
        for ino in self.cache.dirty_inodes(before) {
            match self.cells.peek(ino) {
                Some(cell) => cells.push(cell),
                None => self.cache.unmark_dirty_inode(ino),
            }
        }
        let mut rest = &cells[..];
        // Those that are in somebody's hands, or have more than a group takes.
        let mut alone = Vec::new();
        let mut failed = None;
        while !rest.is_empty() {
            let (group, met) = self.gather_group(rest, &mut alone, &mut failed);
            rest = &rest[met..];
            self.write_data_of(&group, false)?;
            for batch in group.into_iter().rev() {
                let cell = batch.cell.clone();
                if self.finish(batch)? {
                    alone.push(cell);
                } else {
                    self.settle(&cell);
                }
            }
        }
        for cell in alone {
            if let Err(error) = self.write_back(&cell, WriteBack::INODE) {
                failed.get_or_insert(error);
            }
        }
        failed.map_or(Ok(()), Err)
    }

    /// What there is to write back of the first of these inodes, as much as makes a group, and how many of them that
    /// were. One that meets an error is left out, and stays dirty.
    fn gather_group(
        &self,
        cells: &[Arc<Cell>],
        alone: &mut Vec<Arc<Cell>>,
        failed: &mut Option<Error>,
    ) -> (Vec<Gathered>, usize) {
        let (mut group, mut pages) = (Vec::new(), 0);
        let mut met = 0;
        for cell in cells {
            if group.len() == INODES_MAX || pages >= PAGES_MAX {
                break;
            }
            met += 1;
            let Some(guard) = RwLock::try_upgradable_read_arc(&cell.state) else {
                alone.push(cell.clone());
                continue;
            };
            let gathered = match guard.live {
                true => self.gather(cell, guard, WriteBack::INODE),
                false => Ok(None),
            };
            match gathered {
                Ok(Some(batch)) => {
                    pages += batch.pages();
                    group.push(batch);
                }
                Ok(None) => self.settle(cell),
                Err(error) => {
                    failed.get_or_insert(error);
                }
            }
        }
        (group, met)
    }

    /// Writes the data of the batches to its places, but for what goes through the journal. `synced`: a flush is to
    /// follow. Where that fails the blocks that were taken for it are given back.
    pub(super) fn write_data_of(&self, batches: &[Gathered], synced: bool) -> Result<()> {
        let written = self.write_runs(&runs_of(batches), synced);
        if written.is_err() {
            self.give_back_all(batches);
        }
        written
    }

    fn write_runs(&self, runs: &[DataRun<'_>], synced: bool) -> Result<()> {
        // Of several that a flush waits for, it has the device take them together.
        let few = runs.len() <= if synced { 1 } else { FEW_RUNS };
        let mut cached = None;
        for run in runs {
            let now = few || !synced && run.bytes >= LARGE_RUN_BYTES;
            let hint = if now { WriteHint::FlushFollows } else { WriteHint::Buffered };
            self.engine.write_data_as(
                run.start,
                &run.pages,
                DataWrite { hint, class: ReserveClass::Upkeep },
            )?;
            if !now {
                cached = Some((cached.map_or(run.start, |(first, _)| first), run));
            }
        }
        match cached {
            Some((first, last)) if !synced => {
                let end = last.start.0 + (last.bytes as u64).div_ceil(self.block_bytes());
                self.engine.flush_page_cache_range(first, end - first.0)
            }
            _ => Ok(()),
        }
    }

    fn give_back_all(&self, batches: &[Gathered]) {
        batches.iter().for_each(|batch| self.give_back(batch.segments()));
    }
}

/// In the order of their places, as much as there is side by side together.
fn runs_of(batches: &[Gathered]) -> Vec<DataRun<'_>> {
    let segments = batches.iter().flat_map(Gathered::segments).filter(|segment| !segment.journaled);
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
