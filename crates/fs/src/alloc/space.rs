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
//! `host` says the same of blocks with space on the host, of which there are `unbacked` fewer.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering::Relaxed, Ordering::SeqCst};

use xact_types::{Error, Result};

/// Blocks for metadata that keep their space on the host while data gets some: deletes, splits, and
/// the extent nodes of accepted data work on a full host.
const BACKED_EMERGENCY: i64 = 1024;
/// As many of them a trim leaves alone.
const KEPT_BY_TRIM: i64 = 256;

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
    /// Free blocks without space on the host of a sparse image, at least; see `host`.
    unbacked: AtomicI64,
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
            unbacked: AtomicI64::new(0),
            pending: AtomicU64::new(0),
            pending_inodes: AtomicU64::new(0),
            disk_free_blocks: AtomicU64::new(0),
            disk_free_inodes: AtomicU64::new(0),
            free_inodes: AtomicI64::new(0),
            root_reserve: root_reserve as i64,
            emergency: emergency as i64,
        }
    }

    /// Sets the counts from the sums of all descriptors. `sparse`: no block is known to have space
    /// on the host.
    pub fn begin(&self, free_blocks: u64, free_inodes: u64, sparse: bool) {
        self.unbacked.store(if sparse { free_blocks as i64 } else { 0 }, SeqCst);
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

    /// Number of blocks that must stay free because they have no space on the host, or because
    /// metadata may need those that have.
    fn unbacked_floor(&self, purpose: Purpose) -> i64 {
        let unbacked = self.unbacked.load(SeqCst);
        match purpose {
            Purpose::Data { .. } if unbacked > 0 => unbacked + self.emergency.min(BACKED_EMERGENCY),
            _ => unbacked,
        }
    }

    /// Reserves as many blocks as are free, between `least` and `most`. `HostFull` if more space on
    /// the host has to be taken first.
    pub fn reserve(&self, least: u64, most: u64, purpose: Purpose) -> Result<u64> {
        let own = self.floor(purpose);
        let most = most.min(i64::MAX as u64) as i64;
        loop {
            let mut granted = 0;
            let reserved = self.unreserved.fetch_update(SeqCst, SeqCst, |free| {
                let floor = own.max(self.unbacked_floor(purpose));
                granted = (free - floor).max(0).min(most);
                (granted as u64 >= least).then_some(free - granted)
            });
            match reserved {
                // A discard that began in between takes a part of them back.
                Ok(free) if free - granted < self.unbacked.load(SeqCst) => self.add(granted as u64),
                Ok(_) => return Ok(granted as u64),
                Err(free) if (free - own).max(0) as u64 >= least => return Err(Error::HostFull),
                Err(_) => return Err(Error::NoSpace),
            }
        }
    }

    pub fn unbacked(&self) -> u64 {
        self.unbacked.load(SeqCst).max(0) as u64
    }

    /// Number of blocks that a reservation of `most` blocks lacks, of those that the volume has,
    /// because they have no space on the host.
    pub fn short_of_backed(&self, most: u64, purpose: Purpose) -> u64 {
        if self.unbacked() == 0 {
            return 0;
        }
        let free = self.unreserved.load(SeqCst);
        let wanted = (free - self.floor(purpose)).clamp(0, most.min(i64::MAX as u64) as i64);
        (wanted - (free - self.unbacked_floor(purpose))).max(0) as u64
    }

    /// Counts free blocks that got space on the host.
    pub fn backed(&self, blocks: u64) {
        self.unbacked.fetch_sub(blocks as i64, SeqCst);
    }

    /// Counts blocks without space on the host that are about to become free.
    pub fn unback(&self, blocks: u64) {
        self.unbacked.fetch_add(blocks as i64, SeqCst);
    }

    /// Counts free blocks that are about to lose their space on the host; false, without a change,
    /// if reservations or metadata may need it.
    pub fn try_unback(&self, blocks: u64) -> bool {
        if blocks == 0 {
            return true;
        }
        self.unback(blocks);
        let backed = self.unreserved.load(SeqCst) - self.unbacked.load(SeqCst);
        let enough = backed >= self.emergency.min(KEPT_BY_TRIM);
        if !enough {
            self.backed(blocks);
        }
        enough
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

    /// Counts blocks that became free, some of them without space on the host.
    pub fn add_freed(&self, blocks: u64, unbacked: u64) {
        // In this order: `unbacked` may be too high for a moment, never too low.
        self.unback(unbacked);
        self.unreserved.fetch_add(blocks as i64, SeqCst);
    }

    pub fn end_pending(&self, blocks: u64) {
        self.pending.fetch_sub(blocks, Relaxed);
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
