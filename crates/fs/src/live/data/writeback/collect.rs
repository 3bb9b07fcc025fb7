//! Collects the pages of a batch, and chooses those that go through the journal.

use std::sync::Arc;

use xact_consistency::DataInLog;
use xact_types::{BlockNr, FileBlock, Result, Run};

use super::WritebackRequest;
use super::write_pattern::WritePattern;
use crate::live::LiveFs;
use crate::live::data::data_mode::{BatchFacts, Placement};
use crate::live::data::pages::Changed;
use crate::live::inode::cached::{CachedInode, InodeState, UpgradableGuard};

/// A page as it was when its batch was collected.
pub(super) struct DirtyPage {
    pub data: Arc<[u8]>,
    pub changed: Changed,
}

/// Contiguous pages that go to contiguous blocks.
pub(super) struct Segment {
    pub at: FileBlock,
    pub start: BlockNr,
    pub placement: Placement,
    pub pages: Vec<DirtyPage>,
    /// The data goes through the journal; set from the start if the log has older copies.
    pub journaled: bool,
}

impl Segment {
    pub fn len(&self) -> u32 {
        self.pages.len() as u32
    }

    pub fn run(&self) -> Run {
        Run { start: self.start, len: self.len() }
    }
}

/// Pages of one inode that are written back together.
pub(super) struct WritebackBatch {
    pub cached: Arc<CachedInode>,
    pub guard: UpgradableGuard,
    pub segments: Vec<Segment>,
    /// The inode changes, too.
    pub links: bool,
    /// The inode has more dirty pages than these.
    pub more: bool,
}

impl WritebackBatch {
    pub fn pages(&self) -> usize {
        self.segments.iter().map(|segment| segment.pages.len()).sum()
    }
}

impl LiveFs {
    /// Steps 1 and 2 of the crash argument without the writes: collects the inode's dirty pages,
    /// each with its place. `None` if there is nothing to write back.
    pub(super) fn collect(
        &self,
        cached: &Arc<CachedInode>,
        guard: UpgradableGuard,
        how: WritebackRequest,
    ) -> Result<Option<WritebackBatch>> {
        let dirty = collect_dirty(cached, self.options.batch_pages);
        let more = dirty.len() == self.options.batch_pages;
        let inode_waits = !guard.dirty || (how.data_only() && guard.size == guard.inode.size());
        if dirty.is_empty() && inode_waits {
            return Ok(None);
        }
        let pattern = note_pattern(cached, &dirty, how);
        let mut segments = self.place(cached, &guard, dirty, pattern)?;
        let linked_now = segments.iter().any(|segment| segment.placement != Placement::Written);
        self.choose_journaled(&guard, &mut segments, (how, pattern), linked_now || !inode_waits);
        Ok(Some(WritebackBatch {
            cached: cached.clone(),
            guard,
            segments,
            links: linked_now || !inode_waits,
            more,
        }))
    }

    /// Decides which segments go through the journal.
    fn choose_journaled(
        &self,
        state: &InodeState,
        segments: &mut [Segment],
        (how, pattern): (WritebackRequest, WritePattern),
        links: bool,
    ) {
        let data = self.engine.data_in_log();
        if data == DataInLog::None {
            return;
        }
        let batch = BatchFacts {
            synced: how.synced,
            bytes: segments.iter().map(|segment| u64::from(segment.len())).sum::<u64>() * self.block_bytes(),
            pattern,
            log_takes: self.writeback.log_takes(),
            commits: links
                || how.awaited(state) > self.engine.durable()
                || segments.iter().any(|segment| segment.journaled),
        };
        for segment in segments {
            segment.journaled |= match data {
                DataInLog::All => self.modes.data.journals(&state.inode, segment.placement, batch),
                _ => self.modes.data.journals_sync(batch),
            };
        }
    }
}

/// Learns from a sync, and returns the file's pattern.
fn note_pattern(cached: &CachedInode, dirty: &[(u32, DirtyPage)], how: WritebackRequest) -> WritePattern {
    let mut pages = cached.pages.lock();
    if let (true, Some((first, _)), Some((last, _))) = (how.synced, dirty.first(), dirty.last()) {
        let whole = (last - first) as usize + 1 == dirty.len();
        pages.pattern.synced(*first..last.saturating_add(1), whole);
    }
    pages.pattern.pattern()
}

fn collect_dirty(cached: &CachedInode, pages_max: usize) -> Vec<(u32, DirtyPage)> {
    let pages = cached.pages.lock();
    if pages.dirty == 0 {
        return Vec::new();
    }
    let dirty = pages.map.range(pages.dirty_from..).filter(|(_, page)| page.dirty);
    dirty
        .take(pages_max)
        .map(|(at, page)| (*at, DirtyPage { data: page.data.clone(), changed: page.changed }))
        .collect()
}
