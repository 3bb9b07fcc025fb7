//! A block of the volume that holds an old version.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

use xact_types::{BlockNr, Run};

use crate::alloc::Allocator;

/// One block of the volume with an old version; the drop gives it back.
pub(in crate::live) struct SpilledVersion {
    place: BlockNr,
    allocator: Allocator,
    /// Number of all such blocks.
    count: Arc<AtomicU64>,
}

impl SpilledVersion {
    /// Takes over a block that was taken and not linked.
    pub fn new(place: BlockNr, allocator: &Allocator, count: &Arc<AtomicU64>) -> SpilledVersion {
        count.fetch_add(1, SeqCst);
        SpilledVersion { place, allocator: allocator.clone(), count: count.clone() }
    }

    pub fn place(&self) -> BlockNr {
        self.place
    }
}

impl Drop for SpilledVersion {
    fn drop(&mut self) {
        self.allocator.give_back(Run { start: self.place, len: 1 });
        self.count.fetch_sub(1, SeqCst);
    }
}
