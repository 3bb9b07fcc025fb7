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
//! - Deleting a snapshot takes the blocks of the list. What a removal that has begun still needs is bounded by
//!   the groups that its blocks lie in.
//!
//! Removals take places, too: of metadata that a snapshot holds. So the room for them is large and not endless;
//! deleting a snapshot always works, and frees what it alone had.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use xact_base::{Error, Result};

use super::commit::{credits_within, max_credits};
use super::map::MapReader;
use crate::engine::Room;

/// Places that must be free for operations of any kind.
pub(super) fn for_all(places: u64) -> u64 {
    places / 2
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
    free: AtomicU64,
    for_all: u64,
    for_removals: u64,
    credits: u32,
    removals_credits: u32,
    /// That there is no room was told, and there has been none since.
    told: AtomicBool,
}

impl Left {
    /// Of a pool that is not known yet: there is room, or the engine makes some when it opens.
    pub fn new(reader: &MapReader) -> Left {
        let places = reader.shape.places();
        Left {
            free: AtomicU64::new(places),
            for_all: for_all(places),
            for_removals: for_removals(places),
            credits: max_credits(reader),
            removals_credits: credits_within(reader, of_a_removals_commit(places)),
            told: AtomicBool::new(false),
        }
    }

    /// After a commit. Gives the credits that the next one may have in all.
    pub fn set(&self, free: u64) -> u32 {
        self.free.store(free, Relaxed);
        if free < self.for_all {
            return self.removals_credits;
        }
        self.told.store(false, Relaxed);
        self.credits
    }

    /// Whether there is no room for operations of any kind.
    pub fn is_full(&self) -> bool {
        self.free.load(Relaxed) < self.for_all
    }

    /// `NoSpace` unless an operation of this kind may begin.
    pub fn check(&self, room: Room) -> Result<()> {
        let needed = match room {
            Room::Any => self.for_all,
            Room::Removal => self.for_removals,
            Room::Upkeep => 0,
        };
        if self.free.load(Relaxed) >= needed {
            return Ok(());
        }
        if !self.told.swap(true, Relaxed) {
            log::warn!(
                "the pool is full: programs are told \"no space\", and files can only be deleted, until there is room \
                 in it; see 'xact stat', and delete snapshots ('xact snapshot list', 'delete', 'prune')"
            );
        }
        Err(Error::NoSpace)
    }
}
