//! Steps 1 and 2 of the crash argument: each dirty page gets a block, which is taken in memory
//! only.

use xact_types::{BlockNr, FileBlock, Result};

use super::collect::{DirtyPage, Segment};
use super::write_pattern::WritePattern;
use crate::alloc::{Purpose, Run};
use crate::extent::Mapping;
use crate::journal_modes::DataMode;
use crate::live::LiveFs;
use crate::live::data::data_mode::Placement;
use crate::live::inode::cached::{CachedInode, InodeState};

impl LiveFs {
    /// Gives every dirty page a block, and groups contiguous pages with contiguous blocks into
    /// segments.
    pub(super) fn place(
        &self,
        cached: &CachedInode,
        state: &InodeState,
        dirty: Vec<(u32, DirtyPage)>,
        (mode, pattern): (DataMode, WritePattern),
    ) -> Result<Vec<Segment>> {
        let mut segments: Vec<Segment> = Vec::new();
        let extents = self.extents(cached.ino, state);
        let mut goal = self.allocator.goal_for(cached.ino);
        let mut dirty = dirty.into_iter().peekable();
        while let Some((at, data)) = dirty.next() {
            let mapping = match extents.map(&state.inode, FileBlock(at)) {
                Ok(mapping) => mapping,
                Err(error) => {
                    self.give_back(&segments);
                    return Err(error);
                }
            };
            let (limit, start, placement) = match mapping {
                Mapping::Written { start, len } => (len, Some(start), Placement::Written),
                Mapping::Unwritten { start, len } => (len, Some(start), Placement::Unwritten),
                Mapping::Hole { len } => (len, None, Placement::Fresh),
            };
            let held = |ahead: u64| start.is_some_and(|start| self.engine.holds_data(start.offset(ahead), 1));
            let journaled = held(0);
            let many = mode.may_journal_many(placement, pattern);
            let limit = if journaled || many { limit.min(self.options.steps.journaled_pages) } else { limit };
            let mut pages = vec![data];
            while pages.len() < limit as usize && held(pages.len() as u64) == journaled {
                match dirty.next_if(|(next, _)| *next == at + pages.len() as u32) {
                    Some((_, data)) => pages.push(data),
                    None => break,
                }
            }
            match start {
                Some(start) => {
                    // It was asked for when the write was accepted; the image may have been sparse
                    // in another place then.
                    if let Err(error) = self.allocator.back(Run { start, len: pages.len() as u32 }) {
                        self.give_back(&segments);
                        return Err(error);
                    }
                    goal = start.offset(pages.len() as u64);
                    segments.push(Segment { at: FileBlock(at), start, placement, pages, journaled });
                }
                None => {
                    if at > 0
                        && goal == self.allocator.goal_for(cached.ino)
                        && let Ok(Mapping::Written { start, .. }) =
                            extents.map(&state.inode, FileBlock(at - 1))
                    {
                        goal = start.offset(1);
                    }
                    if let Err(error) = self.place_fresh(cached, at, pages, &mut goal, &mut segments) {
                        self.give_back(&segments);
                        return Err(error);
                    }
                }
            }
        }
        Ok(segments)
    }

    fn place_fresh(
        &self,
        cached: &CachedInode,
        mut at: u32,
        mut pages: Vec<DirtyPage>,
        goal: &mut BlockNr,
        segments: &mut Vec<Segment>,
    ) -> Result<()> {
        while !pages.is_empty() {
            let run = {
                let mut in_cache = cached.pages.lock();
                let reservation = in_cache.reservation.as_mut();
                self.allocator.take(
                    *goal,
                    pages.len() as u32,
                    Purpose::Data { privileged: true },
                    reservation,
                )?
            };
            let rest = pages.split_off(run.len as usize);
            let (at_block, start, placement) = (FileBlock(at), run.start, Placement::Fresh);
            segments.push(Segment { at: at_block, start, placement, pages, journaled: false });
            pages = rest;
            at += run.len;
            *goal = run.start.offset(u64::from(run.len));
        }
        Ok(())
    }

    /// Gives back the blocks of segments that will not be linked.
    pub(super) fn give_back(&self, segments: &[Segment]) {
        for segment in segments.iter().filter(|segment| segment.placement == Placement::Fresh) {
            self.allocator.give_back(segment.run());
        }
    }
}
