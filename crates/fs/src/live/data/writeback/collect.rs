//! Collects the pages of a batch, and chooses those that go through the journal.

use std::sync::Arc;

use xact_consistency::{DataInLog, Fault};
use xact_device::SECTOR_BYTES;
use xact_types::{BlockNr, FileBlock, Result, Run};

use super::WritebackRequest;
use super::write_pattern::WriteHistory;
use crate::journal_modes::DataMode;
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

    /// Whether it is one page that was changed within one sector.
    fn is_in_one_sector(&self) -> bool {
        let [page] = &self.pages[..] else { return false };
        let changed = page.changed.range(page.data.len());
        changed.is_empty() || changed.start / SECTOR_BYTES == (changed.end - 1) / SECTOR_BYTES
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
    /// The size on disk is not moved past this one, so that it shows no half write.
    pub size_max: u64,
    /// A caller waits for it to be durable.
    pub synced: bool,
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
        let mut dirty = collect_dirty(cached, self.options.steps.batch_pages);
        let more = dirty.len() == self.options.steps.batch_pages;
        let size_max = if more { self.end_between_writes(cached, &guard, &mut dirty) } else { None };
        let inode_waits = !guard.dirty || (how.data_only() && guard.size == guard.inode.size());
        if dirty.is_empty() && inode_waits {
            return Ok(None);
        }
        let history = note_history(cached, &dirty, how);
        let mode = self.data_mode(cached, &guard.inode);
        let mut segments = self.place(cached, &guard, dirty, (mode, history.pattern()))?;
        let linked_now = segments.iter().any(|segment| segment.placement != Placement::Written);
        self.choose_journaled(&guard, &mut segments, (how, mode, history), linked_now || !inode_waits);
        Ok(Some(WritebackBatch {
            cached: cached.clone(),
            guard,
            segments,
            links: linked_now || !inode_waits,
            more,
            size_max: size_max.unwrap_or(u64::MAX),
            synced: how.synced,
        }))
    }

    /// Shortens a batch that is not the last, so that it ends between two writes, and returns the
    /// file's size there. The commit of this batch may be the last one before a crash, and the size
    /// on disk should not show half of a write (DIU-1). `None`: one write is longer than the batch,
    /// or no write of the batch made the file longer.
    fn end_between_writes(
        &self,
        cached: &CachedInode,
        state: &InodeState,
        dirty: &mut Vec<(u32, DirtyPage)>,
    ) -> Option<u64> {
        let bs = self.block_bytes();
        let (first, last) = (u64::from(dirty.first()?.0), u64::from(dirty.last()?.0));
        let after = state.inode.size().max(first * bs);
        let size = cached.pages.lock().size_between(after, (last + 1) * bs)?;
        dirty.retain(|(at, _)| u64::from(*at) * bs < size);
        Some(size)
    }

    /// Decides which segments go through the journal.
    fn choose_journaled(
        &self,
        state: &InodeState,
        segments: &mut [Segment],
        (how, mode, history): (WritebackRequest, DataMode, WriteHistory),
        links: bool,
    ) {
        let data = self.engine.data_in_log();
        if data == DataInLog::None || (how.synced && self.options.faults.has(Fault::SmallSyncInPlace)) {
            return;
        }
        let blocks = |segments: &mut dyn Iterator<Item = &Segment>| {
            segments.map(|segment| u64::from(segment.len())).sum::<u64>()
        };
        let overwritten =
            blocks(&mut segments.iter().filter(|segment| segment.placement == Placement::Written));
        let batch = BatchFacts {
            synced: how.synced,
            of_synced_file: how.synced || history.has_syncs(),
            bytes: blocks(&mut segments.iter()) * self.block_bytes(),
            overwritten: overwritten * self.block_bytes(),
            one_sector: matches!(&segments[..], [only] if only.is_in_one_sector()),
            pattern: history.pattern(),
            log_takes: self.writeback.log_takes(),
            commits: links
                || how.awaited(state) > self.engine.durable()
                || segments.iter().any(|segment| segment.journaled),
        };
        for segment in segments {
            segment.journaled |= match data {
                DataInLog::All => mode.journals(segment.placement, batch),
                _ => mode.journals_sync(batch),
            };
        }
    }
}

/// Learns from a sync, and returns the file's history.
fn note_history(cached: &CachedInode, dirty: &[(u32, DirtyPage)], how: WritebackRequest) -> WriteHistory {
    let mut pages = cached.pages.lock();
    if let (true, Some((first, _)), Some((last, _))) = (how.synced, dirty.first(), dirty.last()) {
        let whole = (last - first) as usize + 1 == dirty.len();
        pages.pattern.synced(*first..last.saturating_add(1), whole);
    }
    pages.pattern
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
