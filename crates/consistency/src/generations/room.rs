//! Who may begin an operation, by how much of the pool was free after the last commit.
//!
//! ```text
//!  free places, in 32nds of the pool
//!  32 .................. 16 .................. 4 ...... 2 ...... 0
//!      anything           removals, accepted     what has begun, unmounting,
//!                         data                   deleting a snapshot
//! ```
//! A commit must never find the pool empty: it would have to stop half-way. When an operation begins, one
//! commit may be on its way and another may run that it joins; so what they may take together is left.
//!
//! - While anything may begin, a commit takes 7 at the most ([`of_a_commit`]): from 16 down, two of them leave 2.
//!   Those are transactions of the largest size; after two of them in a row removals must wait for a snapshot
//!   to go. As a rule commits are small, and removals have all from 16 to 4.
//! - Below 16, a commit takes half of one (or is a single removal): from 4 down, two of them leave some 3.
//! - One of them takes along what the intent log has made durable since the last generation, 1 at the most
//!   ([`of_the_log`]); the log's own area is another 1, in use for good.
//! - What was accepted and waits in memory (file data, and what leads to it) has its places promised, with the nodes
//!   of the map above them, for as long as there is a snapshot: any of it may have to go to the pool then. Promised
//!   places count as used for everybody else, so a promise that would leave less than 16 (or a little less) is refused, and writing back
//!   what has one may go on to the end.
//! - Deleting a snapshot takes the blocks of the list. What a removal that has begun still needs is bounded by
//!   the groups that its blocks lie in.
//!
//! Removals take places, too: of metadata that a snapshot holds. So the room for them is large and not endless;
//! deleting a snapshot always works, and frees what it alone had.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed, Ordering::SeqCst};

use xact_types::{Error, Result};

use super::commit::{credits_within, max_credits};
use super::map::MapReader;
use crate::mechanism::{ReserveClass, SpaceReservation};

/// Places that must be free for operations of any kind.
pub(super) fn for_all(places: u64) -> u64 {
    places / 2
}

/// Below that, what promises alone may have: a few blocks, so that where files cannot be made, others can be written
/// to for a little longer, and not the other way round.
fn for_reservations(places: u64) -> u64 {
    (places / 64).min(32)
}

fn for_removals(places: u64) -> u64 {
    places / 8
}

/// Places that one commit may take.
pub(super) fn of_a_commit(places: u64) -> u64 {
    places / 32 * 7
}

/// Places of the intent log's area at the most, and places that a generation takes at the most for what was
/// logged, besides its own.
pub(super) fn of_the_log(places: u64) -> u64 {
    places / 32
}

fn of_a_removals_commit(places: u64) -> u64 {
    places / 64
}

pub(super) struct Left {
    reader: Arc<MapReader>,
    free: AtomicU64,
    /// Blocks that were accepted and are not part of a commit yet. They are counted at all times, and count while
    /// `held`.
    reserved: AtomicU64,
    /// There is a snapshot, or one is being created.
    held: AtomicBool,
    for_all: u64,
    for_reservations: u64,
    for_removals: u64,
    credits: u32,
    removals_credits: u32,
    /// That there is no room was told, and there has not been much more since.
    told: AtomicBool,
}

impl Left {
    /// Of a pool that is not known yet: there is room, or the engine makes some when it opens.
    pub fn new(reader: &Arc<MapReader>, held: bool) -> Left {
        let places = reader.shape.places();
        Left {
            reader: reader.clone(),
            free: AtomicU64::new(places),
            reserved: AtomicU64::new(0),
            held: AtomicBool::new(held),
            for_all: for_all(places),
            for_reservations: for_reservations(places),
            for_removals: for_removals(places),
            credits: max_credits(reader),
            removals_credits: credits_within(reader, of_a_removals_commit(places)),
            told: AtomicBool::new(false),
        }
    }

    /// After a commit. Gives the credits that the next one may have in all.
    pub fn set(&self, free: u64) -> u32 {
        self.free.store(free, SeqCst);
        if free > self.for_all / 8 * 9 {
            self.told.store(false, Relaxed);
        }
        if self.is_full() { self.removals_credits } else { self.credits }
    }

    /// Says whether snapshots may keep what is in the pool from going home.
    pub fn set_held(&self, held: bool) {
        self.held.store(held, SeqCst);
    }

    /// Whether there is no room for operations of any kind.
    pub fn is_full(&self) -> bool {
        self.left() < self.for_all
    }

    /// Free places that nobody was promised.
    fn left(&self) -> u64 {
        self.free.load(SeqCst).saturating_sub(self.reserved_places())
    }

    /// Places of the blocks that count as promised, and of the nodes of the map above them.
    pub fn reserved_places(&self) -> u64 {
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
        self.tell();
        Err(Error::NoSpace)
    }

    /// Once, until there is clearly more room again. Not where promises alone take it: they end with the next commit.
    fn tell(&self) {
        if self.free.load(SeqCst) < self.for_all && !self.told.swap(true, Relaxed) {
            log::warn!(
                "the pool is full: programs are told \"no space\", and files can only be deleted, until there is room \
                 in it; see 'xact stat', and delete snapshots ('xact snapshot list', 'delete', 'prune')"
            );
        }
    }
}

impl SpaceReservation for Left {
    /// Reserves places for so many blocks, to be given back by [`Self::release`]. None are reserved by an error.
    ///
    /// A snapshot that is being created at this moment looks for room after it has said so (`set_held`): either it
    /// sees this reservation, or this sees the snapshot.
    fn reserve(&self, blocks: u64) -> Result<()> {
        self.reserved.fetch_add(blocks, SeqCst);
        if blocks == 0 || !self.held.load(SeqCst) || self.left() + self.for_reservations >= self.for_all {
            return Ok(());
        }
        self.release(blocks);
        self.tell();
        Err(Error::NoSpace)
    }

    fn release(&self, blocks: u64) {
        let before = self.reserved.fetch_sub(blocks, SeqCst);
        assert!(before >= blocks, "more was released than reserved");
    }

    /// Blocks that count as reserved.
    fn reserved(&self) -> u64 {
        if self.held.load(SeqCst) { self.reserved.load(SeqCst) } else { 0 }
    }
}
