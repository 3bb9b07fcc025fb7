//! Counts of free space, and reservations before places are chosen (delayed allocation).
//!
//! There are three kinds of counts:
//! - `unreserved`: blocks that may be taken and are not reserved;
//! - `pending`, `pending_inodes`: freed, but not yet available (their free is not durable, or they
//!   are held);
//! - `disk_*`: the sums of the group descriptors, for the superblock's counts.
//!
//! Invariant: the maps in memory have at least as many zeros as `unreserved` plus all reservations.
//! So blocks are reserved before bits are searched, and bits are cleared before the count grows.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering::Relaxed};

use xact_types::{Error, Result};

/// The purpose of blocks, which decides the reserves that they may use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    /// A file's contents. `privileged`: the caller may use the blocks reserved for root.
    Data { privileged: bool },
    /// Extent nodes, directory and attribute blocks. They may also use a small emergency pool, so
    /// that deletes and splits work on a full volume.
    Metadata,
}

pub(super) struct Counters {
    unreserved: AtomicI64,
    pending: AtomicU64,
    pending_inodes: AtomicU64,
    disk_free_blocks: AtomicU64,
    disk_free_inodes: AtomicU64,
    /// Free numbers as users see them: a taken number is not free, a deleted one is free at once.
    free_inodes: AtomicI64,
    /// Reserved for root (`s_r_blocks_count`).
    root_reserve: i64,
    /// For metadata only, as the kernel's `s_resv_clusters`.
    emergency: i64,
}

impl Counters {
    /// Counters without free space until [`Self::begin`]. `emergency`: blocks for metadata only.
    pub fn new(root_reserve: u64, emergency: u64) -> Counters {
        Counters {
            unreserved: AtomicI64::new(0),
            pending: AtomicU64::new(0),
            pending_inodes: AtomicU64::new(0),
            disk_free_blocks: AtomicU64::new(0),
            disk_free_inodes: AtomicU64::new(0),
            free_inodes: AtomicI64::new(0),
            root_reserve: root_reserve as i64,
            emergency: emergency as i64,
        }
    }

    /// Sets the counts from the sums of all descriptors.
    pub fn begin(&self, free_blocks: u64, free_inodes: u64) {
        self.unreserved.store(free_blocks as i64, Relaxed);
        self.disk_free_blocks.store(free_blocks, Relaxed);
        self.disk_free_inodes.store(free_inodes, Relaxed);
        self.free_inodes.store(free_inodes as i64, Relaxed);
    }

    /// Number of blocks that must stay free for other purposes.
    fn floor(&self, purpose: Purpose) -> i64 {
        match purpose {
            Purpose::Metadata => 0,
            Purpose::Data { privileged: true } => self.emergency,
            Purpose::Data { privileged: false } => self.emergency + self.root_reserve,
        }
    }

    /// Reserves as many blocks as are free, between `least` and `most`.
    pub fn reserve(&self, least: u64, most: u64, purpose: Purpose) -> Result<u64> {
        let floor = self.floor(purpose);
        let mut granted = 0;
        self.unreserved
            .fetch_update(Relaxed, Relaxed, |free| {
                granted = (free - floor).max(0).min(most.min(i64::MAX as u64) as i64);
                (granted as u64 >= least).then_some(free - granted)
            })
            .map_err(|_| Error::NoSpace)?;
        Ok(granted as u64)
    }

    /// Whether this number of blocks could be reserved now.
    pub fn has(&self, blocks: u64, purpose: Purpose) -> bool {
        self.unreserved.load(Relaxed) - self.floor(purpose) >= blocks as i64
    }

    /// Number of blocks that could be reserved now.
    pub fn reservable(&self, purpose: Purpose) -> u64 {
        (self.unreserved.load(Relaxed) - self.floor(purpose)).max(0) as u64
    }

    /// Ends a reservation, or counts blocks that became available.
    pub fn add(&self, blocks: u64) {
        self.unreserved.fetch_add(blocks as i64, Relaxed);
    }

    /// Subtracts blocks that cannot be used, because a group's bitmap is corrupt.
    pub fn lose(&self, blocks: u64) {
        self.unreserved.fetch_sub(blocks as i64, Relaxed);
    }

    pub fn begin_pending(&self, blocks: u64) {
        self.pending.fetch_add(blocks, Relaxed);
    }

    pub fn end_pending(&self, blocks: u64) {
        self.pending.fetch_sub(blocks, Relaxed);
        self.add(blocks);
    }

    pub fn pending(&self) -> u64 {
        self.pending.load(Relaxed)
    }

    pub fn pending_inodes(&self) -> u64 {
        self.pending_inodes.load(Relaxed)
    }

    /// Counts taken blocks that were linked on disk.
    pub fn linked(&self, blocks: u64) {
        self.disk_free_blocks.fetch_sub(blocks, Relaxed);
    }

    /// Counts blocks that were freed on disk.
    pub fn freed(&self, blocks: u64) {
        self.disk_free_blocks.fetch_add(blocks, Relaxed);
    }

    pub fn take_inode(&self) {
        self.free_inodes.fetch_sub(1, Relaxed);
    }

    pub fn give_back_inode(&self) {
        self.free_inodes.fetch_add(1, Relaxed);
    }

    pub fn linked_inode(&self) {
        self.disk_free_inodes.fetch_sub(1, Relaxed);
    }

    pub fn freed_inode(&self) {
        self.disk_free_inodes.fetch_add(1, Relaxed);
        self.pending_inodes.fetch_add(1, Relaxed);
        self.give_back_inode();
    }

    /// Counts a freed inode that became available.
    pub fn end_pending_inode(&self) {
        self.pending_inodes.fetch_sub(1, Relaxed);
    }

    /// Subtracts the inodes of a group with a corrupt bitmap.
    pub fn lose_inodes(&self, inodes: u64) {
        self.free_inodes.fetch_sub(inodes as i64, Relaxed);
    }

    pub fn free_inodes(&self) -> u64 {
        self.free_inodes.load(Relaxed).max(0) as u64
    }

    /// The sum of the group descriptors.
    pub fn disk_free_blocks(&self) -> u64 {
        self.disk_free_blocks.load(Relaxed)
    }

    pub fn disk_free_inodes(&self) -> u64 {
        self.disk_free_inodes.load(Relaxed)
    }

    /// Free blocks as users see them: deleted blocks count at once, reserved blocks do not.
    pub fn free(&self) -> u64 {
        (self.unreserved.load(Relaxed) + self.pending() as i64).max(0) as u64
    }

    /// The part of `free` that unprivileged callers can use.
    pub fn available(&self) -> u64 {
        self.free().saturating_sub((self.emergency + self.root_reserve) as u64)
    }
}

/// Space that was reserved and not yet taken. Its drop ends the rest of the reservation.
pub struct Reservation {
    counters: Arc<Counters>,
    left: u64,
}

impl Reservation {
    pub(super) fn new(counters: Arc<Counters>, left: u64) -> Reservation {
        Reservation { counters, left }
    }

    /// Blocks still reserved.
    pub fn left(&self) -> u64 {
        self.left
    }

    /// Splits off `blocks` blocks, or all that are left, as another reservation.
    pub fn split(&mut self, blocks: u64) -> Reservation {
        let part = blocks.min(self.left);
        self.left -= part;
        Reservation::new(self.counters.clone(), part)
    }

    /// Adds another reservation of the same volume to this one.
    pub fn absorb(&mut self, mut other: Reservation) {
        self.left += std::mem::take(&mut other.left);
    }

    pub(super) fn consume(&mut self, blocks: u64) {
        self.left -= blocks;
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.counters.add(self.left);
    }
}
