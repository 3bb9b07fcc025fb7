//! Precedence for a transaction that has lost again and again (TX-21).
//!
//! Who commits first wins, so somebody always gets through; but a long transaction may lose to a stream of
//! short ones for good. One that is tried again after [`LOSSES`] conflicts in a row has a *claim* while it is open:
//! on all files and folders that its lost tries had to do with. A commit that would change any of these
//! waits until the transaction with the claim has ended, but no longer than the claim's term, which is twice the
//! longest of the lost tries and a second. Then it goes on as ever, and mostly finds a conflict.
//!
//! **Between users** there is less. Anybody can lose tries on purpose, and claim what he may only read. So commits of
//! one user wait for claims of all other users together for [`PATIENCE`] at a time, and for a share of [`SHARE`] of the
//! time in the long run: a commit that has waited that long goes on. In the same way a begin with a claim waits for
//! commits that run only as long as its user has patience left, since later commits wait behind it; then it begins
//! without a claim.
//!
//! Why this cannot livelock, among the transactions of one user. Claims have an age, that of the first lost try, which
//! is kept from try to try, so there is always an oldest one. Claims are made, and the view of their transaction opened,
//! while no commit runs, and commits look at the claims before they begin: so no commit of that user that would change
//! what is claimed comes between the begin and the end of the oldest one's transaction. It can lose only
//! 1. to a call outside of any transaction, which waits for nobody;
//! 2. on something that none of its lost tries had to do with: what is claimed grows with each such loss, and a
//!    command that does the same again has the same to do with the same things;
//! 3. as it took longer than the term, which doubles with each such loss;
//! 4. to a commit of another user, where it took longer than that user had patience for: a second, if nobody has made
//!    him wait in the ten seconds before;
//! 5. as it has no claim, where commits that ran at its begin took longer than a second.
//!
//! So a command that is run again on the same things in bounded time gets through, unless others change them, all the
//! time; and beside others too, if it takes less than a second. Then the next one is the oldest.
//!
//! Why nobody waits for ever. A commit waits only for claims older than its own transaction's, holds nothing that
//! others wait for meanwhile, and claims have terms.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex, RwLock, RwLockReadGuard};
use xact_types::Ino;

/// Tries that are lost before the next one has a claim.
pub const LOSSES: u32 = 3;
/// Added to a claim's term, for tries that take no time to speak of.
const TERM_MIN: Duration = Duration::from_secs(1);
/// How long commits of one user wait, at a time, for claims of others.
pub const PATIENCE: Duration = Duration::from_secs(1);
/// One part in so many of the time is what they wait in the long run.
const SHARE: u32 = 10;
/// Users above which those whose patience is whole are not remembered.
const USERS_MAX: usize = 64;
/// Files and folders of lost tries that are remembered. A command that has to do with more has a claim on these.
const INODES_MAX: usize = 1 << 16;

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
        let inodes = Arc::make_mut(&mut self.inodes);
        let room = INODES_MAX.saturating_sub(inodes.len());
        inodes.extend(lost.inodes.into_iter().take(room));
        self.longest = self.longest.max(lost.took);
    }

    /// Whether the next try has a claim. Its begin waits for the commits that run.
    pub fn have_weight(&self) -> bool {
        self.count >= LOSSES
    }

    /// Bytes that they take in memory.
    pub fn bytes(&self) -> usize {
        self.inodes.len() * 16
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
    open: Vec<OpenClaim>,
    /// How many have ended.
    ended: u64,
    patience: HashMap<u32, Patience>,
}

#[derive(Debug)]
struct OpenClaim {
    age: u64,
    owner: u32,
    until: Instant,
    inodes: Arc<BTreeSet<Ino>>,
}

/// How much longer a user's commits wait for claims of others.
#[derive(Debug, Clone, Copy)]
struct Patience {
    left: Duration,
    /// When that was so.
    at: Instant,
}

impl Patience {
    fn now(self, now: Instant) -> Duration {
        (self.left + now.saturating_duration_since(self.at) / SHARE).min(PATIENCE)
    }

    /// As `now`, or nothing where a wait would be so short that many would follow each other.
    fn worth_waiting(self, now: Instant) -> Duration {
        Some(self.now(now)).filter(|left| *left >= PATIENCE / 20).unwrap_or_default()
    }
}

impl Claims {
    fn patience(&self, user: u32, now: Instant) -> Duration {
        self.patience.get(&user).map_or(PATIENCE, |patience| patience.worth_waiting(now))
    }

    /// The user has waited since `from`.
    fn note_wait(&mut self, user: u32, from: Instant) {
        let now = Instant::now();
        // What came back while he waited is not counted.
        let before = self.patience.get(&user).map_or(PATIENCE, |patience| patience.now(from));
        let left = before.saturating_sub(now - from);
        if self.patience.len() >= USERS_MAX {
            self.patience.retain(|_, patience| patience.now(now) < PATIENCE);
        }
        self.patience.insert(user, Patience { left, at: now });
    }
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
        claims.open.retain(|claim| claim.age != self.age);
        claims.ended += 1;
        self.turns.ended.notify_all();
    }
}

impl Turns {
    /// Makes the claim that losses give to a user's transaction, if any, and runs `begin` while no commit runs.
    pub(crate) fn claim<R>(
        self: &Arc<Self>,
        losses: &Losses,
        owner: u32,
        begin: impl FnOnce() -> R,
    ) -> (Option<Claim>, R) {
        if !losses.have_weight() {
            return (None, begin());
        }
        let asked = Instant::now();
        let patience = self.claims.lock().patience(owner, asked);
        let Some(_alone) = self.passage.try_write_for(patience) else {
            self.claims.lock().note_wait(owner, asked);
            return (None, begin());
        };
        let mut claims = self.claims.lock();
        claims.note_wait(owner, asked);
        let until = Instant::now() + losses.longest * 2 + TERM_MIN;
        claims.open.push(OpenClaim { age: losses.age, owner, until, inodes: losses.inodes.clone() });
        drop(claims);
        (Some(Claim { turns: self.clone(), age: losses.age }), begin())
    }

    /// Waits until nobody has an older claim on what a commit of `owner` would change, or he has waited long enough for
    /// others; claims that come later wait until the result is dropped. `own`: the age of the committer's own claim.
    pub(crate) fn wait(
        &self,
        own: Option<u64>,
        owner: u32,
        changed: impl Fn() -> Vec<Ino>,
    ) -> RwLockReadGuard<'_, ()> {
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
            let for_others = now + claims.patience(owner, now);
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
                return turn;
            };
            drop(turn);
            let seen = claims.ended;
            self.waiting.fetch_add(1, Ordering::SeqCst);
            while claims.ended == seen && !self.ended.wait_until(&mut claims, until).timed_out() {}
            self.waiting.fetch_sub(1, Ordering::SeqCst);
            if !is_own {
                claims.note_wait(owner, now);
            }
        }
    }

    /// Commits that wait for one with a claim just now.
    pub fn waiting(&self) -> usize {
        self.waiting.load(Ordering::SeqCst)
    }
}
