//! Contention management: precedence for a transaction that was aborted several times (TX-21), and
//! conflicts between open transactions ([`open_writes`]).
//!
//! The first transaction to commit wins, so one of several conflicting transactions always commits.
//! But a long transaction may lose to a stream of short ones again and again. A transaction that is
//! retried after [`abort_history::LOSSES_BEFORE_PRIORITY`] conflicts in a row has a
//! [`PriorityClaim`] while it is open, on all files and folders that its lost attempts used. A
//! commit that would change any of these waits until the transaction with the claim has ended, but
//! at most for the claim's term, which is twice the longest lost attempt plus a second. Then it
//! continues as usual, and mostly finds a conflict.
//!
//! **Between users** a claim has less effect, because any user can lose attempts on purpose, and
//! claim files that are only readable. So commits of one user wait for the claims of all other
//! users together at most [`wait_budget::WAIT_FOR_OTHERS_MAX`] at a time, and a tenth of the time
//! in the long run (`SHARE`); then they continue. Similarly, a begin with a claim waits for running
//! commits only while its user has wait budget left, because later commits wait for this begin;
//! then it begins without a claim.
//!
//! *No livelock* among the transactions of one user. A claim has an age, that of the first lost
//! attempt, which later attempts inherit; so one claim is always the oldest. A claim is made, and
//! the view of its transaction opened, while no commit runs, and a commit checks the claims before
//! it begins. So no commit of that user that would change claimed inodes comes between the begin
//! and the end of the transaction with the oldest claim. That transaction can lose only
//! 1. to a call outside transactions, which waits for no claim;
//! 2. on an inode that none of its lost attempts used: the claimed set grows with each such loss,
//!    and a command that does the same again uses the same inodes;
//! 3. because it took longer than the term, which doubles with each such loss;
//! 4. to a commit of another user, if it took longer than that user's wait budget: a second, if the
//!    user has not waited in the ten seconds before;
//! 5. because it has no claim, if commits that ran at its begin took longer than a second.
//!
//! So a command that is retried on the same inodes in bounded time succeeds, unless calls outside
//! transactions change them all the time. Other users do not prevent that if the command takes less
//! than a second. Then the next claim is the oldest.
//!
//! *No endless wait.* A commit waits only for claims older than that of its own transaction, holds
//! no lock for which others wait, and claims have terms.

pub(crate) mod abort_history;
pub(crate) mod open_writes;
pub(crate) mod wait_budget;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex, RwLock, RwLockReadGuard};
use xact_types::Ino;

pub use abort_history::{AbortHistory, LostAttempt};
use open_writes::OpenWrites;
use wait_budget::WaitBudgets;

/// Minimum term of a claim, which is added to it, for very short attempts.
const TERM_MIN: Duration = Duration::from_secs(1);

/// The claims of a volume's transactions.
#[derive(Debug, Default)]
pub struct ContentionManager {
    /// Held shared by a commit from its check of the claims on, and exclusively by a begin that
    /// makes a claim.
    commit_gate: RwLock<()>,
    claims: Mutex<Claims>,
    ended: Condvar,
    /// Number of waiting commits.
    waiting: AtomicUsize,
    open_writes: OpenWrites,
}

#[derive(Debug, Default)]
struct Claims {
    open: Vec<OpenClaim>,
    /// Number of claims that have ended.
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

/// A claim, which ends with its drop.
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
    /// Makes the claim to which the lost attempts entitle a user's transaction, if any, and runs
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

    /// Waits until there is no older claim on the inodes that a commit of `owner` would change, or
    /// until that user's wait budget is used up. Later claims wait until the result is dropped.
    /// `own`: the age of the committing transaction's own claim.
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
            // Reading the transaction takes its lock, which a long call in it may hold.
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

    #[cfg(test)]
    pub(crate) fn recorded_items(&self) -> usize {
        self.open_writes.recorded_items()
    }

    /// Number of commits that are waiting for a transaction with a claim.
    pub fn waiting(&self) -> usize {
        self.waiting.load(Ordering::SeqCst)
    }
}
