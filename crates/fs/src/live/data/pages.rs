//! Cached file data of one inode.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use crate::alloc::Reservation;
use crate::live::data::writeback::write_pattern::WriteHistory;

/// Cached file data, by file block.
#[derive(Default)]
pub(in crate::live) struct Pages {
    pub map: BTreeMap<u32, Page>,
    /// Number of dirty pages in `map`.
    pub dirty: usize,
    /// No page below this one is dirty: write-back starts its search here.
    pub dirty_from: u32,
    /// Space reserved for dirty pages that have no block yet, one block each.
    pub reservation: Option<Reservation>,
    /// Number of pages with `Page::reserved`.
    pub reserved: u64,
    /// Blocks reserved in the engine for dirty pages and the inode; see `space_reservation.rs`.
    pub writeback_reserved: u64,
    /// The part of `writeback_reserved` that a running operation has not used yet.
    pub writeback_ahead: u64,
    pub pattern: WriteHistory,
    /// Sizes that the file had between two writes, in rising order, for the size on disk. Not every
    /// one, see [`Pages::note_size`].
    pub sizes: Vec<u64>,
}

pub(in crate::live) struct Page {
    /// One file-system block; bytes past the end of the file are undefined.
    pub data: Arc<[u8]>,
    pub dirty: bool,
    /// The range in which a dirty page may differ from its block.
    pub changed: Changed,
    /// One block of the reservation belongs to this page.
    pub reserved: bool,
    /// Used since the clock's last visit.
    pub referenced: bool,
}

/// A range of bytes within a block.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(in crate::live) struct Changed {
    pub from: u32,
    pub to: u32,
}

impl Changed {
    /// All bytes of a block of any size.
    pub const ALL: Changed = Changed { from: 0, to: u32::MAX };

    pub fn new(from: usize, to: usize) -> Changed {
        Changed { from: from as u32, to: to as u32 }
    }

    /// From the first byte of either to the last.
    pub fn join(self, other: Changed) -> Changed {
        Changed { from: self.from.min(other.from), to: self.to.max(other.to) }
    }

    /// Within a block of `len` bytes.
    pub fn range(self, len: usize) -> Range<usize> {
        self.from as usize..len.min(self.to as usize)
    }
}

impl Pages {
    /// Whether all pages of the range are in the cache.
    pub fn has_all(&self, mut blocks: Range<u64>) -> bool {
        blocks.all(|at| self.map.contains_key(&(at as u32)))
    }

    pub fn is_dirty(&self, at: u32) -> bool {
        self.map.get(&at).is_some_and(|page| page.dirty)
    }

    /// Counts the page at `at` as dirty; it was clean or not in the cache.
    pub fn count_dirty(&mut self, at: u32) {
        self.dirty += 1;
        self.dirty_from = self.dirty_from.min(at);
    }

    /// A write makes the file longer than `size`. Of sizes less than `apart` bytes from each other
    /// one is kept.
    pub fn note_size(&mut self, size: u64, apart: u64) {
        while self.sizes.last().is_some_and(|last| *last > size) {
            // The file was truncated since.
            self.sizes.pop();
        }
        if self.sizes.last().is_none_or(|last| size - last >= apart.max(1)) {
            self.sizes.push(size);
        }
    }

    /// The largest of these sizes in a range, which excludes its start.
    pub fn size_between(&self, after: u64, last: u64) -> Option<u64> {
        let below = self.sizes.partition_point(|size| *size <= last);
        self.sizes[..below].last().copied().filter(|size| *size > after)
    }

    /// Takes a page's reference to its buffer, so that the buffer can be changed in place. The
    /// caller holds the inode's lock exclusively and puts the contents back.
    pub fn detach(&mut self, at: u32) {
        if let Some(page) = self.map.get_mut(&at) {
            page.data = Arc::new([]);
        }
    }
}
