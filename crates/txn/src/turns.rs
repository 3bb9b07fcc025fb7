//! Precedence for a transaction that has lost again and again (TX-21).
//!
//! Who commits first wins, so somebody always gets through; but a long transaction may lose to a stream of
//! short ones for good. One that is tried again after [`LOSSES`] conflicts in a row has a *claim* while it is open:
//! on all files and folders that its lost tries had to do with. A commit that would change any of these
//! waits until the transaction with the claim has ended, but no longer than the claim's term, which is twice the
//! longest of the lost tries and a second. Then it goes on as ever, and mostly finds a conflict.
//!
//! Why this cannot livelock. Claims have an age, that of the first lost try, which is kept from try to try, so
//! there is always an oldest one. Claims are made, and the view of their transaction opened, while no commit
//! runs, and commits look at the claims before they begin: so no commit that would change what is
//! claimed comes between the begin and the end of the oldest one's transaction. It can lose only
//! 1. to a call outside of any transaction, which waits for nobody;
//! 2. on something that none of its lost tries had to do with: what is claimed grows with each such loss, and a
//!    command that does the same again has the same to do with the same things;
//! 3. as it took longer than the term, which doubles with each such loss.
//!
//! So a command that is run again on the same things in bounded time gets through; then the next one is the
//! oldest.
//!
//! Why nobody waits for ever. A commit waits only for claims older than its own transaction's, holds nothing that
//! others wait for meanwhile, and claims have terms.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex, RwLock, RwLockReadGuard};
use xact_base::Ino;

/// Tries that are lost before the next one has a claim.
pub const LOSSES: u32 = 3;
/// Added to a claim's term, for tries that take no time to speak of.
const TERM_MIN: Duration = Duration::from_secs(1);

/// A try that was lost: what it had to do with, and how long it took.
#[derive(Debug, Clone, Default)]
pub struct Lost {
    pub id: u64,
    pub inodes: BTreeSet<Ino>,
    pub took: Duration,
}

/// The tries that one who tries again has lost in a row.
#[derive(Debug, Clone, Default)]
pub struct Losses {
    count: u32,
    /// Number of the first one's transaction: numbers rise with time.
    age: u64,
    inodes: Arc<BTreeSet<Ino>>,
    longest: Duration,
}

impl Losses {
    pub fn add(&mut self, lost: Lost) {
        if self.count == 0 {
            self.age = lost.id;
        }
        self.count += 1;
        Arc::make_mut(&mut self.inodes).extend(lost.inodes);
        self.longest = self.longest.max(lost.took);
    }

    /// Whether the next try has a claim. Its begin waits for the commits that run.
    pub fn have_weight(&self) -> bool {
        self.count >= LOSSES
    }
}

/// Who goes first on a volume.
#[derive(Debug, Default)]
pub struct Turns {
    /// Shared: by a commit from its look at the claims on. Exclusive: by who makes a claim.
    passage: RwLock<()>,
    claims: Mutex<Claims>,
    ended: Condvar,
    /// Commits that wait.
    waiting: AtomicUsize,
}

#[derive(Debug, Default)]
struct Claims {
    open: Vec<(u64, Instant, Arc<BTreeSet<Ino>>)>,
    /// How many have ended.
    ended: u64,
}

/// A claim, until it is dropped.
#[derive(Debug)]
pub(crate) struct Claim {
    turns: Arc<Turns>,
    pub age: u64,
}

impl Drop for Claim {
    fn drop(&mut self) {
        let mut claims = self.turns.claims.lock();
        claims.open.retain(|(age, ..)| *age != self.age);
        claims.ended += 1;
        self.turns.ended.notify_all();
    }
}

impl Turns {
    /// Makes the claim that losses give, if any, and runs `begin` while no commit runs.
    pub(crate) fn claim<R>(
        self: &Arc<Self>,
        losses: &Losses,
        begin: impl FnOnce() -> R,
    ) -> (Option<Claim>, R) {
        if !losses.have_weight() {
            return (None, begin());
        }
        let _alone = self.passage.write();
        let until = Instant::now() + losses.longest * 2 + TERM_MIN;
        self.claims.lock().open.push((losses.age, until, losses.inodes.clone()));
        (Some(Claim { turns: self.clone(), age: losses.age }), begin())
    }

    /// Waits until nobody has an older claim on what a commit would change; claims that come later
    /// wait until the result is dropped. `own`: the age of the committer's own claim.
    pub(crate) fn wait(&self, own: Option<u64>, changed: impl Fn() -> Vec<Ino>) -> RwLockReadGuard<'_, ()> {
        loop {
            let turn = self.passage.read();
            let claims = self.claims.lock();
            if claims.open.is_empty() {
                return turn;
            }
            // Looking at the transaction takes its lock, which a long call in it may have.
            drop(claims);
            let changed = changed();
            let mut claims = self.claims.lock();
            let now = Instant::now();
            let first = claims.open.iter().find(|(age, until, claimed)| {
                own.is_none_or(|own| *age < own)
                    && *until > now
                    && changed.iter().any(|ino| claimed.contains(ino))
            });
            let Some(until) = first.map(|(_, until, _)| *until) else { return turn };
            drop(turn);
            let seen = claims.ended;
            self.waiting.fetch_add(1, Ordering::SeqCst);
            while claims.ended == seen && !self.ended.wait_until(&mut claims, until).timed_out() {}
            self.waiting.fetch_sub(1, Ordering::SeqCst);
        }
    }

    /// Commits that wait for one with a claim just now.
    pub fn waiting(&self) -> usize {
        self.waiting.load(Ordering::SeqCst)
    }
}
