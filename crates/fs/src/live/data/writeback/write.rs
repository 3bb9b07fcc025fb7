//! Steps 1 and 2 of the crash argument: writes the data of batches to its blocks.

use std::io::IoSlice;

use xact_consistency::{DataWrite, ReserveClass};
use xact_device::WriteHint;
use xact_types::{BlockNr, Result};

use super::collect::WritebackBatch;
use super::state::Writeback;
use crate::live::LiveFs;

/// Size at which a run is written past the host's page cache at once. Smaller runs go into that
/// cache, and one call starts the write-out of all of them.
const LARGE_RUN_BYTES: usize = 64 << 10;
/// Up to this number of runs, each is written past the cache whatever its size.
const FEW_RUNS: usize = 4;

/// Data for contiguous blocks.
struct DataRun<'a> {
    start: BlockNr,
    pages: Vec<IoSlice<'a>>,
    bytes: usize,
}

impl LiveFs {
    /// Writes the data of the batches to its blocks, except journaled segments. `synced`: a flush
    /// follows. An error gives back the blocks that were taken for the batches.
    pub(super) fn write_batches(&self, batches: &[WritebackBatch], synced: bool) -> Result<()> {
        let written = self.writeback.write_runs(&runs_of(batches), synced);
        if written.is_err() {
            batches.iter().for_each(|batch| self.give_back(&batch.segments));
        }
        written
    }
}

impl Writeback {
    fn write_runs(&self, runs: &[DataRun<'_>], synced: bool) -> Result<()> {
        // Several runs that a flush will wait for reach the device together, by that flush.
        let few = runs.len() <= if synced { 1 } else { FEW_RUNS };
        let mut unflushed = None;
        for run in runs {
            let now = few || !synced && run.bytes >= LARGE_RUN_BYTES;
            let write_hint = if now { WriteHint::FlushFollows } else { WriteHint::Buffered };
            self.engine.write_data_as(
                run.start,
                &run.pages,
                DataWrite { hint: write_hint, class: ReserveClass::Upkeep },
            )?;
            if !now {
                unflushed = Some((unflushed.map_or(run.start, |(first, _)| first), run));
            }
        }
        match unflushed {
            Some((first, last)) if !synced => {
                let end = last.start.0 + (last.bytes as u64).div_ceil(self.engine.block_size() as u64);
                self.engine.flush_page_cache_range(first, end - first.0)
            }
            _ => Ok(()),
        }
    }
}

/// The data of all segments that are not journaled, sorted by block, with contiguous blocks joined.
fn runs_of(batches: &[WritebackBatch]) -> Vec<DataRun<'_>> {
    let segments = batches.iter().flat_map(|batch| &batch.segments).filter(|segment| !segment.journaled);
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
