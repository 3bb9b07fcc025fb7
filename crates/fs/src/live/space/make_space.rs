//! The steps that are tried before a caller gets `NoSpace`.
//!
//! [`LiveFs::make_space`] takes the next one of these steps, and then the caller tries again:
//! 1. Wait for deletions under way, and make freed space available by a commit. This step is taken
//!    again, for a while, if others take that space first.
//! 2. Let open transactions give way, one at a time. Two things hold space: views of the past keep
//!    deleted files and spilled versions, and transactions hold space of their own
//!    ([`crate::live::space::tx_space`]). If the views hold more, the oldest views expire; else the
//!    transaction that holds most is revoked.
//! 3. Wait for commits under way, which may be refused and then give back the space they hold.
//!
//! A call inside a transaction takes step 1 only. A commit takes steps 1 and 2, and its own view is
//! spared. When the pool of a volume with generations is full, transactions do not give way: they
//! hold no part of the pool.
//!
//! Locks: the caller holds no inode lock and no handle. It may hold its own transaction's lock; no
//! step waits for the lock of another transaction.

use std::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, Instant};

use xact_consistency::Snapshots;
use xact_types::{Ino, Result};

use crate::alloc::{Purpose, Reservation};
use crate::live::LiveFs;
use crate::versioned_fs::read_as_of::Stamp;

/// Maximum wait for deletions by other callers.
const REMOVALS_WAIT_MAX: Duration = Duration::from_secs(2);
/// Maximum wait for commits by other callers. Such a commit may itself be waiting until the kernel
/// has the answer to this caller's request.
const COMMITS_WAIT_MAX: Duration = Duration::from_secs(1);
const COMMITS_WAIT_STEP: Duration = Duration::from_millis(5);
/// How long step 1 is taken again. Programs that delete and write all the time must not keep a
/// caller from the next steps.
const RECLAIM_MAX: Duration = Duration::from_secs(2);
/// Maximum total wait of one caller, approximately.
const WAIT_MAX: Duration = Duration::from_secs(20);

/// The kind of caller that found no space.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SpaceCaller {
    /// A call outside of transactions.
    Outside,
    /// The commit of a transaction whose view has this stamp.
    Commit(Stamp),
    /// A call inside a transaction.
    Inside,
}

/// The steps already taken for one caller.
#[derive(Default)]
pub(in crate::live) struct Effort {
    /// Blocks that the caller needs at least; 0 if unknown.
    pub needed: u64,
    reclaimed: bool,
    /// Blocks and inodes that were freed and not available when step 1 ended.
    unavailable: u64,
    waited_for_commits: Duration,
    since: Option<Instant>,
}

impl LiveFs {
    /// Takes the next step after `NoSpace`. False when no step is left, or the caller has waited
    /// long enough.
    pub(in crate::live) fn make_space(&self, effort: &mut Effort, caller: SpaceCaller) -> Result<bool> {
        let elapsed = effort.since.get_or_insert_with(Instant::now).elapsed();
        if elapsed > WAIT_MAX {
            return Ok(false);
        }
        let reclaims_again = elapsed < RECLAIM_MAX;
        let round = self.space.rounds.load(SeqCst);
        if !effort.reclaimed || reclaims_again && self.more_was_freed(effort) {
            let released = self.space.held_deletions.wait(|ino| !self.is_deletion_pending(ino));
            let waited = self.wait_for_removals() || released;
            effort.reclaimed = !(waited && reclaims_again);
            // Freed space becomes available with its commit, and reserved space when the dirty data
            // it is for is written.
            if waited
                || self.allocator.reclaimable() > 0
                || self.has_long_journal()
                || self.engine.reserved_space() > 0
            {
                let before = self.allocator.reclaimable();
                self.reclaim()?;
                // Space that is freed during the commit is available by the next one.
                effort.unavailable = before.min(self.allocator.reclaimable());
                return Ok(true);
            }
        }
        if self.engine.snapshots().is_some_and(Snapshots::is_pool_full) {
            return Ok(false);
        }
        let gave_way = match caller {
            SpaceCaller::Inside => false,
            SpaceCaller::Outside => self.have_transactions_give_way(effort.needed, round, None)?,
            SpaceCaller::Commit(stamp) => {
                self.have_transactions_give_way(effort.needed, round, Some(stamp))?
            }
        };
        effort.reclaimed &= !gave_way;
        if gave_way || caller != SpaceCaller::Outside {
            return Ok(gave_way);
        }
        let waits = effort.waited_for_commits < COMMITS_WAIT_MAX && self.space.transactions.any_pinned();
        if waits {
            std::thread::sleep(COMMITS_WAIT_STEP);
            effort.waited_for_commits += COMMITS_WAIT_STEP;
            effort.reclaimed &= self.space.transactions.any_pinned();
        }
        // Others may have deleted something since step 1, as the last one that holds space.
        Ok(waits || reclaims_again && self.more_was_freed(effort))
    }

    /// Whether step 1 would make more available than it did for this caller.
    fn more_was_freed(&self, effort: &Effort) -> bool {
        self.space.removals.load(SeqCst) > 0 || self.allocator.reclaimable() > effort.unavailable
    }

    /// Reserves blocks, making space if necessary.
    pub(in crate::live) fn reserve_with_effort(
        &self,
        blocks: u64,
        purpose: Purpose,
        caller: SpaceCaller,
    ) -> Result<Reservation> {
        let mut effort = Effort { needed: blocks, ..Effort::default() };
        loop {
            match self.allocator.reserve(blocks, purpose) {
                Err(error) if error.is_no_space() && self.make_space(&mut effort, caller)? => {}
                result => return result,
            }
        }
    }

    /// Whether a deleted inode still has its space.
    fn is_deletion_pending(&self, ino: Ino) -> bool {
        self.inodes.peek(ino).is_some_and(|cached| {
            // Its deletion holds the lock.
            cached.state.try_read().is_none_or(|state| state.live && state.inode.links_count() == 0)
        })
    }

    /// Waits for running removals to end, up to [`REMOVALS_WAIT_MAX`]. Returns whether any ran.
    fn wait_for_removals(&self) -> bool {
        let removals = &self.space.removals;
        let until = Instant::now() + REMOVALS_WAIT_MAX;
        let any = removals.load(SeqCst) > 0;
        while removals.load(SeqCst) > 0 && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(1));
        }
        any
    }

    /// Makes one transaction, or the views of one stamp, give way. False if they hold nothing.
    /// `below`: only views with older stamps may expire. `round`: the number of rounds before the
    /// caller found no space.
    fn have_transactions_give_way(&self, needed: u64, round: u64, below: Option<Stamp>) -> Result<bool> {
        let _giving_way = self.space.giving_way.lock();
        // Another caller has made space since this one found none.
        if self.space.rounds.load(SeqCst) != round {
            return Ok(true);
        }
        let inodes = self.allocator.free_inodes() == 0;
        let largest = self.space.transactions.largest(inodes);
        let held = largest.as_ref().map_or(0, |(_, size)| *size);
        let past = self.held_by_views(inodes);
        let expires_first = past > 0 && past >= held;
        // No transaction loses its space to a request that exceeds the sum of all that is held.
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
            self.space.rounds.fetch_add(1, SeqCst);
        }
        Ok(gave_way)
    }

    /// Number of blocks that views of the past keep (deleted ones, and those of spilled versions),
    /// or of deleted inodes; approximate.
    fn held_by_views(&self, inodes: bool) -> u64 {
        let unlinked = self.mvcc.unlinked();
        if inodes {
            return unlinked.len() as u64;
        }
        let inodes = unlinked.into_iter().filter_map(|ino| self.inodes.peek(ino));
        let sectors = inodes.filter_map(|cached| Some(cached.state.try_read()?.inode.sectors(&self.sb)));
        let deleted = sectors.sum::<u64>() / (self.block_bytes() / 512);
        self.allocator.pending_blocks() + self.spilled_versions() + deleted
    }
}
