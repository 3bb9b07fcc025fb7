//! Contention management: precedence for a transaction that was aborted again and again (TX-21).
//!
//! The first to commit wins, so one of those that collide always commits. But a long transaction
//! may lose to a stream of short ones without end. A transaction that is tried again after
//! [`abort_history::LOSSES_BEFORE_PRIORITY`] conflicts in a row has a [`PriorityClaim`] while it is
//! open: on all files and folders that its lost attempts had to do with. A commit that would change
//! any of these waits until the transaction with the claim has ended, but no longer than the
//! claim's term, which is twice the longest of the lost attempts and a second. Then it continues as
//! usual, and mostly finds a conflict.
//!
//! **Between users** a claim counts for less. Any user can lose attempts on purpose, and claim what
//! he may only read. So commits of one user wait for claims of all other users together for
//! [`wait_budget::WAIT_FOR_OTHERS_MAX`] at a time, and for a tenth of the time in the long run
//! (`SHARE`): a commit that has waited that long continues. In the same way a begin with a claim
//! waits for running commits only as long as its user has wait budget left, since later commits
//! wait behind it; then it begins without a claim.
//!
//! Why this cannot livelock, among the transactions of one user. Claims have an age, that of the
//! first lost attempt, which is kept from attempt to attempt, so there is always an oldest one.
//! Claims are made, and the view of their transaction opened, while no commit runs, and commits
//! look at the claims before they begin: so no commit of that user that would change what is
//! claimed comes between the begin and the end of the oldest one's transaction. It can lose only
//! 1. to a call outside of any transaction, which waits for no claim;
//! 2. on something that none of its lost attempts had to do with: what is claimed grows with each
//!    such loss, and a command that does the same again has to do with the same things;
//! 3. because it took longer than the term, which doubles with each such loss;
//! 4. to a commit of another user, where it took longer than that user's wait budget: a second, if
//!    nothing has made him wait in the ten seconds before;
//! 5. because it has no claim, where commits that ran at its begin took longer than a second.
//!
//! So a command that is run again on the same things in bounded time gets through, unless others
//! change them all the time; and beside others too, if it takes less than a second. Then the next
//! one is the oldest.
//!
//! Why no commit waits without end. A commit waits only for claims older than its own
//! transaction's, holds nothing that others wait for in that time, and claims have terms.

pub(crate) mod abort_history;
pub(crate) mod wait_budget;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex, RwLock, RwLockReadGuard};
use xact_types::Ino;

pub use abort_history::{AbortHistory, LostAttempt};
use wait_budget::WaitBudgets;

/// Added to a claim's term, for attempts that take next to no time.
const TERM_MIN: Duration = Duration::from_secs(1);

/// Which transactions of a volume have precedence over others.
#[derive(Debug, Default)]
pub struct ContentionManager {
    /// Shared: by a commit from its look at the claims on. Exclusive: by a begin that makes a
    /// claim.
    commit_gate: RwLock<()>,
    claims: Mutex<Claims>,
    ended: Condvar,
    /// Commits that wait.
    waiting: AtomicUsize,
}

#[derive(Debug, Default)]
struct Claims {
    open: Vec<OpenClaim>,
    /// How many have ended.
    ended: u64,
    wait_budgets: WaitBudgets,
}

#[derive(Debug)]
struct OpenClaim {
    age: u64,
    owner: u32,
    until: Instant,
    inodes: Arc<BTreeSet<Ino>>,
}

/// A claim, open until it is dropped.
#[derive(Debug)]
pub(crate) struct PriorityClaim {
    manager: Arc<ContentionManager>,
    pub age: u64,
}

impl Drop for PriorityClaim {
    fn drop(&mut self) {
        let mut claims = self.manager.claims.lock();
        claims.open.retain(|claim| claim.age != self.age);
        claims.ended += 1;
        self.manager.ended.notify_all();
    }
}

impl ContentionManager {
    /// Makes the claim that the lost attempts give to a user's transaction, if any, and runs
    /// `begin` while no commit runs.
    pub(crate) fn claim_priority<R>(
        self: &Arc<Self>,
        history: &AbortHistory,
        owner: u32,
        begin: impl FnOnce() -> R,
    ) -> (Option<PriorityClaim>, R) {
        if !history.gives_priority() {
            return (None, begin());
        }
        let asked = Instant::now();
        let budget = self.claims.lock().wait_budgets.left(owner, asked);
        let Some(_alone) = self.commit_gate.try_write_for(budget) else {
            self.claims.lock().wait_budgets.note_wait(owner, asked);
            return (None, begin());
        };
        let mut claims = self.claims.lock();
        claims.wait_budgets.note_wait(owner, asked);
        let until = Instant::now() + history.longest * 2 + TERM_MIN;
        claims.open.push(OpenClaim { age: history.age, owner, until, inodes: history.inodes.clone() });
        drop(claims);
        (Some(PriorityClaim { manager: self.clone(), age: history.age }), begin())
    }

    /// Waits until there is no older claim on what a commit of `owner` would change, or until that
    /// user has waited long enough for others; claims that come later wait until the result is
    /// dropped. `own`: the age of the claim of the committing transaction itself.
    pub(crate) fn wait_for_claims(
        &self,
        own: Option<u64>,
        owner: u32,
        changed: impl Fn() -> Vec<Ino>,
    ) -> RwLockReadGuard<'_, ()> {
        loop {
            let gate = self.commit_gate.read();
            let claims = self.claims.lock();
            if claims.open.is_empty() {
                return gate;
            }
            // Looking at the transaction takes its lock, which a long call in it may have.
            drop(claims);
            let changed = changed();
            let mut claims = self.claims.lock();
            let now = Instant::now();
            let for_others = now + claims.wait_budgets.left(owner, now);
            let until = |claim: &OpenClaim| match claim.owner == owner {
                true => claim.until,
                false => claim.until.min(for_others),
            };
            let first = claims.open.iter().find(|claim| {
                own.is_none_or(|own| claim.age < own)
                    && until(claim) > now
                    && changed.iter().any(|ino| claim.inodes.contains(ino))
            });
            let Some((until, is_own)) = first.map(|claim| (until(claim), claim.owner == owner)) else {
                return gate;
            };
            drop(gate);
            let seen = claims.ended;
            self.waiting.fetch_add(1, Ordering::SeqCst);
            while claims.ended == seen && !self.ended.wait_until(&mut claims, until).timed_out() {}
            self.waiting.fetch_sub(1, Ordering::SeqCst);
            if !is_own {
                claims.wait_budgets.note_wait(owner, now);
            }
        }
    }

    /// Commits that wait now for a transaction with a claim.
    pub fn waiting(&self) -> usize {
        self.waiting.load(Ordering::SeqCst)
    }
}
