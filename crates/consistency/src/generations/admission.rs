//! Admission control: which operations may start at which fill level of the pool.
//!
//! ```text
//!  free pool blocks, in 32nds of the pool
//!  32 .................. 16 .................. 4 ...... 2 ...... 0
//!      anything           removals, accepted     running operations, unmounting,
//!                         data                   deleting a snapshot
//! ```
//! A commit must never find the pool empty, since it would have to stop half-way. When an operation
//! begins, one commit may be on its way, and the operation joins another. So the pool must keep
//! free what these two can take together.
//!
//! All numbers that follow are 32nds of the pool.
//!
//! - While 16 or more are free, any operation may begin, and a commit takes 7 at most
//!   ([`of_a_commit`]). So two commits leave at least 2. Such commits hold transactions of the
//!   largest size. Two of them in a row may leave less than 4; then removals are refused until pool
//!   blocks are freed. As a rule commits are small, and removals can use everything between 16
//!   and 4.
//! - While less than 16 are free, a commit takes at most half of one 32nd, or is a single removal.
//!   So two commits that begin with 4 leave some 3.
//! - One of the two also takes the blocks that the intent log has made durable since the last
//!   generation, 1 at most ([`of_the_log`]). The log's own area is another 1, in use at all times.
//! - Accepted data (file data, and the metadata that maps it) waits in memory. While there is a
//!   snapshot, any of it may have to go to the pool. So its pool blocks are reserved, with the
//!   nodes of the map above them. Reserved pool blocks count as used for all other operations.
//!   After a reservation at most a few blocks may be missing from the 16 ([`for_reservations`]). So
//!   reserved data can always be written back.
//! - Deleting a snapshot takes the blocks of the new list of snapshots. A running removal takes a
//!   limited number of blocks: a few for each group that it frees blocks in.
//!
//! Removals take pool blocks too, for metadata that a snapshot holds. So their share is large, but
//! it can be used up. Deleting a snapshot always works, and frees the blocks that it alone had.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed, Ordering::SeqCst};

use xact_types::{Error, Result};

use super::commit::{credits_within, max_credits};
use super::map::MapReader;
use crate::mechanism::{ReserveClass, SpaceReservation};

/// Pool blocks that must be free for operations of any kind.
pub(super) fn for_all(pool_blocks: u64) -> u64 {
    pool_blocks / 2
}

/// Below that, the share of reservations alone. It is a few blocks, so that when no file can be
/// created, writes to existing files still work for a little longer, and not the other way round.
fn for_reservations(pool_blocks: u64) -> u64 {
    (pool_blocks / 64).min(32)
}

fn for_removals(pool_blocks: u64) -> u64 {
    pool_blocks / 8
}

/// Pool blocks that one commit may take.
pub(super) fn of_a_commit(pool_blocks: u64) -> u64 {
    pool_blocks / 32 * 7
}

/// The fewest blocks of a pool in which a commit may take this number of them.
pub(super) fn pool_for_commits_of(blocks: u64) -> u64 {
    blocks.div_ceil(7) * 32
}

/// The most pool blocks of the intent log's area, and the most that a generation takes for logged
/// blocks, on top of its own.
pub(super) fn of_the_log(pool_blocks: u64) -> u64 {
    pool_blocks / 32
}

fn of_a_removals_commit(pool_blocks: u64) -> u64 {
    pool_blocks / 64
}

/// The largest number of blocks, up to `most`, that takes at most `room` pool blocks with its nodes
/// of the map.
pub(super) fn most_within(room: u64, mut most: u64, nodes: impl Fn(u64) -> u64) -> u64 {
    let mut least = 0;
    while least < most {
        let middle = (least + most).div_ceil(2);
        if middle + nodes(middle) <= room {
            least = middle;
        } else {
            most = middle - 1;
        }
    }
    least
}

pub(super) struct Admission {
    reader: Arc<MapReader>,
    free: AtomicU64,
    /// Blocks that were accepted and are not part of a commit yet. They are always counted, and
    /// matter only while `has_snapshots`.
    reserved: AtomicU64,
    /// There is a snapshot, or one is being created.
    has_snapshots: AtomicBool,
    for_all: u64,
    for_reservations: u64,
    for_removals: u64,
    credits: u32,
    removals_credits: u32,
    /// A warning that the pool is full was logged, and the free space has not grown much since.
    warned: AtomicBool,
}

impl Admission {
    /// For a pool whose bitmap is not read yet: there is space, or the engine makes some when it
    /// opens.
    pub fn new(reader: &Arc<MapReader>, has_snapshots: bool) -> Admission {
        let pool_blocks = reader.shape.pool_blocks();
        Admission {
            reader: reader.clone(),
            free: AtomicU64::new(pool_blocks),
            reserved: AtomicU64::new(0),
            has_snapshots: AtomicBool::new(has_snapshots),
            for_all: for_all(pool_blocks),
            for_reservations: for_reservations(pool_blocks),
            for_removals: for_removals(pool_blocks),
            credits: max_credits(reader),
            removals_credits: credits_within(reader, of_a_removals_commit(pool_blocks)),
            warned: AtomicBool::new(false),
        }
    }

    /// Notes the free blocks after a commit. Returns the credits that the next commit may have in
    /// all.
    pub fn set(&self, free: u64) -> u32 {
        self.free.store(free, SeqCst);
        if free > self.for_all / 8 * 9 {
            self.warned.store(false, Relaxed);
        }
        if self.is_full() { self.removals_credits } else { self.credits }
    }

    /// Sets whether snapshots may keep blocks in the pool from going home.
    pub fn set_has_snapshots(&self, has_snapshots: bool) {
        self.has_snapshots.store(has_snapshots, SeqCst);
    }

    /// Whether there is no space for operations of any kind.
    pub fn is_full(&self) -> bool {
        self.left() < self.for_all
    }

    /// Free pool blocks that are not reserved.
    fn left(&self) -> u64 {
        self.free.load(SeqCst).saturating_sub(self.reserved_pool_blocks())
    }

    /// Pool blocks for the reserved blocks, and for the nodes of the map above them.
    pub fn reserved_pool_blocks(&self) -> u64 {
        let reserved = self.reserved();
        if reserved > 0 { reserved + self.reader.most_nodes(reserved) } else { 0 }
    }

    /// `NoSpace` unless an operation of this kind may begin.
    pub fn check(&self, class: ReserveClass) -> Result<()> {
        let needed = match class {
            ReserveClass::Any => self.for_all,
            ReserveClass::Removal => self.for_removals,
            ReserveClass::Upkeep => 0,
        };
        if needed == 0 || self.left() >= needed {
            return Ok(());
        }
        self.warn_once();
        Err(Error::NoSpace)
    }

    /// Once, until there is clearly more space again. Not if reservations alone take the space:
    /// they end with the next commit.
    fn warn_once(&self) {
        if self.free.load(SeqCst) < self.for_all && !self.warned.swap(true, Relaxed) {
            tracing::warn!(
                "the pool is full: writes fail with \"no space\", and files can only be deleted, until pool \
                 blocks are freed; see 'xact stat', and delete snapshots ('xact snapshot list', 'delete', 'prune')"
            );
        }
    }
}

impl SpaceReservation for Admission {
    /// Reserves pool blocks for `blocks` blocks, to be given back by [`Self::release`]. An error
    /// reserves none.
    ///
    /// A snapshot that is being created looks for space after it has announced itself
    /// (`set_has_snapshots`). So either it sees this reservation, or this sees the snapshot.
    fn reserve(&self, blocks: u64) -> Result<()> {
        self.reserved.fetch_add(blocks, SeqCst);
        if blocks == 0
            || !self.has_snapshots.load(SeqCst)
            || self.left() + self.for_reservations >= self.for_all
        {
            return Ok(());
        }
        self.release(blocks);
        self.warn_once();
        Err(Error::NoSpace)
    }

    fn release(&self, blocks: u64) {
        let before = self.reserved.fetch_sub(blocks, SeqCst);
        assert!(before >= blocks, "more was released than reserved");
    }

    /// Blocks that count as reserved.
    fn reserved(&self) -> u64 {
        if self.has_snapshots.load(SeqCst) { self.reserved.load(SeqCst) } else { 0 }
    }
}
