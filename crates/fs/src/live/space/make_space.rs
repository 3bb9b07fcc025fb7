//! What is tried before a caller gets `NoSpace`.
//!
//! In this order, each of it by [`LiveFs::make_space`], after which the caller tries again:
//! 1. Deletions under way are waited for, and what was freed is made available by a commit.
//! 2. Open transactions give way, one at a time: whichever gives more of the views of the past that
//!    keep deleted space, the oldest first, and the transaction that holds most
//!    ([`crate::live::space::tx_space`]).
//!
//! 3. Commits under way are waited for, which may be refused and then give back what they have
//!    taken.
//!
//! A transaction that wants to hold more has the first only; its commit has the first two, and its
//! own view is spared. Transactions do not give way where the pool of a volume with generations is
//! what is full: they hold none of it.
//!
//! Locks: the caller holds none of inodes and no handle. It may hold its own transaction's; nothing
//! here waits for the lock of another one.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::SeqCst};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use xact_consistency::Snapshots;
use xact_types::{Error, Result};

use crate::alloc::{Purpose, Reservation};
use crate::live::LiveFs;
use crate::versioned_fs::read_as_of::Stamp;

/// How long deletions of others are waited for.
const REMOVALS_WAIT_MAX: Duration = Duration::from_secs(2);
/// How long commits of others are waited for. Such a commit may itself wait until the kernel has
/// the caller's answer.
const COMMITS_WAIT_MAX: Duration = Duration::from_secs(1);
const COMMITS_WAIT_STEP: Duration = Duration::from_millis(5);
/// How long a caller waits for space in all, about.
const WAIT_MAX: Duration = Duration::from_secs(20);

/// Who finds no space.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Asker {
    /// A call outside of transactions.
    Outside,
    /// The commit of a transaction whose view is of this instant.
    Commit(Stamp),
    /// A call inside a transaction.
    Inside,
}

/// What was tried for one caller so far.
#[derive(Default)]
pub(in crate::live) struct Effort {
    /// Blocks that the caller cannot do without, as far as is known.
    pub needed: u64,
    reclaimed: bool,
    waited_for_commits: Duration,
    since: Option<Instant>,
}

/// The state of what makes space.
#[derive(Default)]
pub(in crate::live) struct SpaceMaking {
    /// Held while transactions give way, so that no more of them do than it takes.
    making: Mutex<()>,
    /// How often they have.
    rounds: AtomicU64,
    /// Removals of blocks that run just now.
    removals: AtomicUsize,
}

/// Counts a removal as under way.
pub(in crate::live) struct RemovalUnderWay<'a>(&'a AtomicUsize);

impl SpaceMaking {
    pub fn begin_removal(&self) -> RemovalUnderWay<'_> {
        self.removals.fetch_add(1, SeqCst);
        RemovalUnderWay(&self.removals)
    }
}

impl Drop for RemovalUnderWay<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, SeqCst);
    }
}

impl LiveFs {
    /// After `NoSpace`: does the next thing that may help. False where nothing is left to be done,
    /// or the caller has waited long enough.
    pub(in crate::live) fn make_space(&self, effort: &mut Effort, asker: Asker) -> Result<bool> {
        if effort.since.get_or_insert_with(Instant::now).elapsed() > WAIT_MAX {
            return Ok(false);
        }
        let round = self.space.making.rounds.load(SeqCst);
        if !effort.reclaimed {
            effort.reclaimed = true;
            let waited = self.wait_for_removals();
            // What was freed becomes available with its commit, and what was reserved by being
            // written.
            if waited
                || self.allocator.reclaimable() > 0
                || self.has_long_journal()
                || self.engine.reserved_space() > 0
            {
                self.reclaim()?;
                return Ok(true);
            }
        }
        if self.engine.snapshots().is_some_and(Snapshots::is_pool_full) {
            return Ok(false);
        }
        let gave_way = match asker {
            Asker::Inside => false,
            Asker::Outside => self.have_transactions_give_way(effort.needed, round, None)?,
            Asker::Commit(stamp) => self.have_transactions_give_way(effort.needed, round, Some(stamp))?,
        };
        effort.reclaimed &= !gave_way;
        if gave_way || asker != Asker::Outside {
            return Ok(gave_way);
        }
        let waits = effort.waited_for_commits < COMMITS_WAIT_MAX && self.space.transactions.any_pinned();
        if waits {
            std::thread::sleep(COMMITS_WAIT_STEP);
            effort.waited_for_commits += COMMITS_WAIT_STEP;
            effort.reclaimed &= self.space.transactions.any_pinned();
        }
        Ok(waits)
    }

    /// Reserves blocks, after having made space where that is needed.
    pub(in crate::live) fn reserve_with_effort(
        &self,
        blocks: u64,
        purpose: Purpose,
        asker: Asker,
    ) -> Result<Reservation> {
        let mut effort = Effort { needed: blocks, ..Effort::default() };
        loop {
            match self.allocator.reserve(blocks, purpose) {
                Err(Error::NoSpace) if self.make_space(&mut effort, asker)? => {}
                result => return result,
            }
        }
    }

    /// Waits until removals that run have ended, for a while; whether there were any.
    fn wait_for_removals(&self) -> bool {
        let removals = &self.space.making.removals;
        let until = Instant::now() + REMOVALS_WAIT_MAX;
        let any = removals.load(SeqCst) > 0;
        while removals.load(SeqCst) > 0 && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(1));
        }
        any
    }

    /// One transaction, or the views of an instant, give way; false where there is nothing that
    /// they hold. `below`: only views from before that instant. `round`: the number of rounds
    /// before the caller found no space.
    fn have_transactions_give_way(&self, needed: u64, round: u64, below: Option<Stamp>) -> Result<bool> {
        let _making = self.space.making.making.lock();
        // Another caller has made space since the caller looked.
        if self.space.making.rounds.load(SeqCst) != round {
            return Ok(true);
        }
        let inodes = self.allocator.free_inodes() == 0;
        let largest = self.space.transactions.largest(inodes);
        let held = largest.as_ref().map_or(0, |(_, size)| *size);
        let past = self.held_by_views(inodes);
        let expires_first = past > 0 && past >= held;
        // No transaction loses anything for a request that all of them together could not meet.
        let all = self.allocator.reservable(Purpose::Data { privileged: true })
            + self.space.transactions.blocks()
            + past;
        if !inodes && needed > all {
            return Ok(false);
        }
        let gave_way = expires_first && self.expire_some_views(below)?
            || largest.is_some_and(|(space, _)| space.revoke())
            || !expires_first && self.expire_some_views(below)?;
        if gave_way {
            self.space.making.rounds.fetch_add(1, SeqCst);
        }
        Ok(gave_way)
    }

    /// Blocks, or inodes, that were deleted and are kept for views of the past; about.
    fn held_by_views(&self, inodes: bool) -> u64 {
        let unlinked = self.mvcc.unlinked();
        if inodes {
            return unlinked.len() as u64;
        }
        let inodes = unlinked.into_iter().filter_map(|ino| self.inodes.peek(ino));
        let sectors = inodes.filter_map(|cached| Some(cached.state.try_read()?.inode.sectors(&self.sb)));
        self.allocator.pending_blocks() + sectors.sum::<u64>() / (self.block_bytes() / 512)
    }
}
