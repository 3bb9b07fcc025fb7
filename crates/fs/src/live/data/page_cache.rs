//! Accounting of cached file data: the limit, the clock that evicts clean pages, and the list of
//! inodes with dirty pages. The pages themselves are in the cached inodes.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::time::Instant;

use parking_lot::Mutex;
use xact_types::Ino;

use super::pages::{Changed, Page, Pages};
use crate::live::inode::cache::InodeCache;
use crate::live::inode::cached::CachedInode;

const QUEUES: usize = 16;
/// Maximum pages that an insertion visits for each inserted page: one to replace it, and more where
/// many are in use or dirty.
const STEPS_PER_PAGE: usize = 4;

pub(in crate::live) struct PageCache {
    limit_bytes: u64,
    page_bytes: u64,
    /// A block of zeros, for pages that have no contents yet.
    zeros: Arc<[u8]>,
    bytes: AtomicU64,
    dirty_bytes: AtomicU64,
    /// Blocks that reads found in the cache, and blocks that they did not find.
    hits: AtomicU64,
    misses: AtomicU64,
    /// Cached pages in the order in which the clock visits them. A visit drops an entry whose page
    /// no longer exists.
    queues: [Mutex<VecDeque<(Ino, u32)>>; QUEUES],
    next_queue: AtomicUsize,
    /// Inodes with dirty pages or other dirty state, and the time when they became dirty.
    dirty_inodes: Mutex<BTreeMap<Ino, Instant>>,
    /// Files that were truncated to zero: their new data should reach the disk soon.
    emptied: Mutex<BTreeSet<Ino>>,
}

impl PageCache {
    pub fn new(limit_bytes: u64, page_bytes: u64) -> PageCache {
        PageCache {
            limit_bytes,
            page_bytes,
            zeros: std::iter::repeat_n(0, page_bytes as usize).collect(),
            bytes: AtomicU64::new(0),
            dirty_bytes: AtomicU64::new(0),
            hits: AtomicU64::new(0),
            misses: AtomicU64::new(0),
            queues: Default::default(),
            next_queue: AtomicUsize::new(0),
            dirty_inodes: Mutex::default(),
            emptied: Mutex::default(),
        }
    }

    /// A block of zeros, for pages that have no contents yet.
    pub fn zeros(&self) -> Arc<[u8]> {
        self.zeros.clone()
    }

    /// Whether this is the shared block of zeros.
    pub fn is_zeros(&self, data: &Arc<[u8]>) -> bool {
        Arc::ptr_eq(data, &self.zeros)
    }

    /// Inserts a page as it is on the device, unless another thread has inserted it.
    pub fn insert_clean(&self, ino: Ino, pages: &mut Pages, at: u32, data: Arc<[u8]>) {
        pages.map.entry(at).or_insert_with(|| {
            self.inserted(ino, at);
            Page { data, dirty: false, changed: Changed::default(), reserved: false, referenced: false }
        });
    }

    /// Inserts the pages that a commit has installed. Pages of replaced blocks were dropped before.
    pub fn insert_installed(&self, cached: &CachedInode, blocks: impl Iterator<Item = (u32, Arc<[u8]>)>) {
        let mut pages = cached.pages.lock();
        for (at, data) in blocks {
            let changed = Changed::default();
            let page = Page { data, dirty: false, changed, reserved: false, referenced: true };
            let old = pages.map.insert(at, page);
            assert!(old.is_none(), "the pages of replaced blocks were dropped");
            self.inserted(cached.ino, at);
        }
    }

    /// Inserts a dirty page of zeros with a reserved block.
    pub fn insert_reserved(&self, ino: Ino, pages: &mut Pages, at: u32) {
        let (data, changed) = (self.zeros(), Changed::ALL);
        pages.map.insert(at, Page { data, dirty: true, changed, reserved: true, referenced: true });
        pages.count_dirty(at);
        self.inserted(ino, at);
        self.dirtied(1);
    }

    /// Inserts or replaces a page and marks it dirty. `changed`: the range that differs from the
    /// old contents, in the cache or on the device. The page has a block, or its space is reserved.
    pub fn put_dirty(&self, cached: &CachedInode, at: u32, data: Arc<[u8]>, changed: Changed) {
        let mut pages = cached.pages.lock();
        let pages = &mut *pages;
        match pages.map.get_mut(&at) {
            Some(page) => {
                page.data = data;
                page.referenced = true;
                page.changed = if page.dirty { page.changed.join(changed) } else { changed };
                if !page.dirty {
                    page.dirty = true;
                    pages.count_dirty(at);
                    self.dirtied(1);
                }
            }
            None => {
                pages.map.insert(at, Page { data, dirty: true, changed, reserved: false, referenced: true });
                pages.count_dirty(at);
                self.inserted(cached.ino, at);
                self.dirtied(1);
            }
        }
    }

    /// Counts a page that was added to an inode's map; the clock will visit it.
    fn inserted(&self, ino: Ino, at: u32) {
        self.bytes.fetch_add(self.page_bytes, Relaxed);
        self.queues[queue_of(ino, at)].lock().push_back((ino, at));
    }

    /// Counts pages that were removed from an inode's map.
    pub fn removed(&self, pages: u64) {
        self.bytes.fetch_sub(pages * self.page_bytes, Relaxed);
    }

    fn dirtied(&self, pages: u64) {
        self.dirty_bytes.fetch_add(pages * self.page_bytes, Relaxed);
    }

    pub fn cleaned(&self, pages: u64) {
        self.dirty_bytes.fetch_sub(pages * self.page_bytes, Relaxed);
    }

    pub fn mark_dirty_inode(&self, ino: Ino) {
        self.mark_dirty_inode_from(ino, Instant::now());
    }

    /// Marks the inode dirty since `since`, or since the earlier time that it already has.
    pub fn mark_dirty_inode_from(&self, ino: Ino, since: Instant) {
        let mut list = self.dirty_inodes.lock();
        let noted = list.entry(ino).or_insert(since);
        *noted = since.min(*noted);
    }

    /// Records that a file with contents was truncated to zero.
    pub fn note_emptied(&self, ino: Ino) {
        self.emptied.lock().insert(ino);
    }

    /// Files truncated to zero since the last call.
    pub fn take_emptied(&self) -> BTreeSet<Ino> {
        std::mem::take(&mut *self.emptied.lock())
    }

    /// Number of dirty inodes.
    pub fn dirty_count(&self) -> usize {
        self.dirty_inodes.lock().len()
    }

    /// Takes an inode off the list of dirty ones; returns since when it was on it.
    pub fn unmark_dirty_inode(&self, ino: Ino) -> Option<Instant> {
        self.dirty_inodes.lock().remove(&ino)
    }

    /// Inodes that became dirty before `before`, in rising order.
    pub fn dirty_inodes(&self, before: Option<Instant>) -> Vec<Ino> {
        let list = self.dirty_inodes.lock();
        list.iter().filter(|(_, since)| before.is_none_or(|b| **since <= b)).map(|(ino, _)| *ino).collect()
    }

    /// Whether dirty data is above the limit at which the flusher is woken.
    pub fn wants_flush(&self) -> bool {
        self.dirty_bytes.load(Relaxed) > self.limit_bytes / 4
    }

    /// Whether a writer must first write some data back itself; `own_pages` is the number of dirty
    /// pages in its file. A writer with few dirty pages does not wait for the dirty data of others
    /// until a higher limit.
    pub fn must_throttle(&self, own_pages: u64) -> bool {
        let dirty = self.dirty_bytes.load(Relaxed);
        let has_few = own_pages * self.page_bytes < self.limit_bytes / 32;
        dirty > if has_few { self.limit_bytes / 4 * 3 } else { self.limit_bytes / 2 }
    }

    /// Whether a writer may have to write some data back.
    pub fn may_throttle(&self) -> bool {
        self.dirty_bytes.load(Relaxed) > self.limit_bytes / 2
    }

    /// Counts a read's blocks that were in the cache, and those that were not.
    pub fn looked_up(&self, hits: u64, misses: u64) {
        self.hits.fetch_add(hits, Relaxed);
        self.misses.fetch_add(misses, Relaxed);
    }

    pub fn lookups(&self) -> (u64, u64) {
        (self.hits.load(Relaxed), self.misses.load(Relaxed))
    }

    /// Maximum bytes of file data that wait for a commit, in addition to dirty pages.
    pub fn deferred_max(&self) -> u64 {
        self.limit_bytes / 4
    }

    pub fn limit_bytes(&self) -> u64 {
        self.limit_bytes
    }

    pub fn bytes(&self) -> u64 {
        self.bytes.load(Relaxed)
    }

    /// Drops clean pages down to the limit, after `inserted` pages were inserted. The number of
    /// visited pages is bounded, so that no caller pays for the dirty pages of others.
    pub fn evict(&self, inodes: &InodeCache, inserted: usize) {
        let mut steps = QUEUES + inserted * STEPS_PER_PAGE;
        let mut run = Vec::new();
        while steps > 0 {
            let over = self.bytes.load(Relaxed).saturating_sub(self.limit_bytes).div_ceil(self.page_bytes);
            if over == 0 {
                return;
            }
            // Queues fill evenly, so an empty one is rare while there are pages to drop.
            let queue = &self.queues[self.next_queue.fetch_add(1, Relaxed) % QUEUES];
            let Some(ino) = next_run(&mut queue.lock(), steps.min(over as usize), &mut run) else {
                steps -= 1;
                continue;
            };
            steps -= run.len();
            let Some(cached) = inodes.peek(ino) else { continue };
            let mut pages = cached.pages.lock();
            let mut dropped = 0;
            run.retain(|at| {
                let Some(page) = pages.map.get_mut(at) else { return false };
                let stays = page.dirty || page.referenced;
                page.referenced = false;
                if !stays {
                    pages.map.remove(at);
                    dropped += 1;
                }
                stays
            });
            drop(pages);
            self.removed(dropped);
            queue.lock().extend(run.iter().map(|at| (ino, *at)));
        }
    }
}

/// Takes up to `most` entries from the front of a queue, all of the same inode.
fn next_run(queue: &mut VecDeque<(Ino, u32)>, most: usize, run: &mut Vec<u32>) -> Option<Ino> {
    run.clear();
    let ino = queue.front()?.0;
    while let Some(&(_, at)) = queue.front().filter(|(other, _)| *other == ino && run.len() < most) {
        run.push(at);
        queue.pop_front();
    }
    Some(ino)
}

/// Neighbouring pages share a queue, and a large file is spread over all queues.
fn queue_of(ino: Ino, at: u32) -> usize {
    (ino.0 as usize).wrapping_add(at as usize / 32) % QUEUES
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A writer with few dirty pages continues while another one fills the cache, up to a limit.
    #[test]
    fn a_writer_with_few_dirty_pages_does_not_wait_for_others() {
        let cache = PageCache::new(1000 * 4096, 4096);
        cache.dirtied(400);
        assert!(!cache.may_throttle() && !cache.must_throttle(400));
        cache.dirtied(200);
        assert!(cache.may_throttle() && cache.must_throttle(590) && !cache.must_throttle(10));
        cache.dirtied(160);
        assert!(cache.must_throttle(10));
    }

    /// A file far larger than the limit, in large requests, stays within the limit.
    #[test]
    fn one_large_file_does_not_outgrow_the_limit() {
        let inodes = InodeCache::new(16, 256);
        let cache = PageCache::new(100 * 4096, 4096);
        let cached = inodes.get(Ino(12));
        for request in 0..40u32 {
            for at in request * 256..(request + 1) * 256 {
                let (data, changed) = (Arc::new([]), Changed::default());
                let page = Page { data, dirty: false, changed, reserved: false, referenced: true };
                cached.pages.lock().map.insert(at, page);
                cache.inserted(cached.ino, at);
            }
            cache.evict(&inodes, 256);
            assert!(cache.bytes() <= 100 * 4096, "{} pages are cached", cache.bytes() / 4096);
            assert_eq!(cached.pages.lock().map.len() as u64, cache.bytes() / 4096);
        }
    }
}
