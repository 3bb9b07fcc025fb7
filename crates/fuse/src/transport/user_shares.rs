//! Sharing of the workers between users.
//!
//! A user may have [`WORKERS_OF_USER`] requests answered at a time. If few workers are left, the
//! limit is a quarter of these. A user that calls alone for a while may have half of all workers.
//! Further requests are *parked*: copied, so that the worker can continue with requests of others.
//! Root and the mount's owner have no limit, and cost nothing here.
//!
//! A user with many requests at a time, while others call, is *busy*. All requests of a busy user
//! are parked, and answered by threads of a lower priority (`background`), so that other callers do
//! not wait for a CPU behind them. At most [`WORKERS_OF_BUSY_USER`] are answered at a time: each
//! holds locks that other requests need, and takes a share of the device.
//!
//! A request that does not fit in the space for parked ones is answered at once, however long that
//! takes. The exception is one that could wait for the lock of a transaction while few workers are
//! left: it fails with `EAGAIN`.
//!
//! Why nothing deadlocks. A worker waits for another request of its user only when it writes to a
//! file with an atomic section (`ioctl/atomic_write`), and is woken after a second. If all workers
//! of a user wait like this, the user's other requests wait for that second.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::transport::channel::Channel;
use crate::transport::parked_request::ParkedRequest;

/// Workers that requests of one user occupy at a time.
pub const WORKERS_OF_USER: usize = 4;
/// Threads that answer requests of a busy user.
const WORKERS_OF_BUSY_USER: usize = 2;
/// A user with this number of requests at a time, from several threads, is busy. One thread alone
/// may seem to have several: it sends the next request as soon as it has the reply, before the
/// worker that has replied counts the request as done.
const MANY: usize = 3;
/// How long the user stays busy after that.
const BUSY: Duration = Duration::from_millis(100);
/// Users whose numbers are equal modulo this share a slot.
const SLOTS: usize = 64;
/// Bytes of requests that may be parked, of one user and of all.
const PARKED_MAX: usize = 2 << 20;
const PARKED_MAX_ALL: usize = 8 << 20;
/// Memory of a parked request without its bytes.
const PARKED_BYTES: usize = 64;

#[derive(Default)]
struct Slot {
    /// Requests that are being answered.
    busy: AtomicUsize,
    /// The time until which its user counts as busy, in milliseconds since the start; 0: not busy.
    busy_until: AtomicU64,
    /// The thread whose request came last.
    caller: AtomicU32,
    /// Length of `queue`, readable without its lock.
    waiting: AtomicU32,
    queue: Mutex<Queue>,
}

#[derive(Default)]
struct Queue {
    parked: VecDeque<ParkedRequest>,
    bytes: usize,
}

/// The outcome of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Share {
    /// It is answered now, and is not counted.
    Unlimited,
    /// It is answered now. The worker reports when it is done ([`Shares::done`]).
    Now(SlotNr),
    /// It waits. The worker asks for the next one of this user that may be answered
    /// ([`Shares::next`]).
    Parked(SlotNr),
    /// It cannot be parked. It is answered now nevertheless, or refused if it may wait. The worker
    /// reports when that is done.
    Crowded(SlotNr),
}

impl Share {
    pub fn slot(self) -> Option<SlotNr> {
        match self {
            Share::Unlimited => None,
            Share::Now(nr) | Share::Parked(nr) | Share::Crowded(nr) => Some(nr),
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SlotNr(usize);

/// The shares of the workers, by user.
pub struct Shares {
    slots: [Slot; SLOTS],
    /// Requests of all users with limits that are being answered.
    busy: AtomicUsize,
    /// The slot of the last request ([`SLOTS`] for users without a limit), and the time since which
    /// only this slot has called, in milliseconds since the start.
    last: AtomicUsize,
    alone_since: AtomicU64,
    parked_bytes: AtomicUsize,
    started: Instant,
    workers: usize,
    /// The mount's owner.
    owner: u32,
}

impl Shares {
    /// For a pool of this number of workers.
    pub fn new(workers: usize) -> Shares {
        // SAFETY: geteuid has no arguments and cannot fail.
        let owner = unsafe { libc::geteuid() };
        Shares {
            slots: std::array::from_fn(|_| Slot::default()),
            busy: AtomicUsize::new(0),
            last: AtomicUsize::new(SLOTS),
            alone_since: AtomicU64::new(0),
            parked_bytes: AtomicUsize::new(0),
            started: Instant::now(),
            workers,
            owner,
        }
    }

    fn slot(&self, nr: SlotNr) -> &Slot {
        &self.slots[nr.0]
    }

    /// Counts a request of the slot as being answered; false if the slot has used up its share.
    fn enter(&self, slot: &Slot) -> bool {
        let own = slot.busy.fetch_add(1, SeqCst);
        let free = self.workers.saturating_sub(self.busy.fetch_add(1, SeqCst));
        let is_alone = self.is_alone();
        let is_busy = !is_alone && slot.busy_until.load(Relaxed) > self.now();
        let share = if is_busy { WORKERS_OF_BUSY_USER } else { WORKERS_OF_USER };
        if own == 0 || own < share.min(free / 4) || own < self.workers / 2 && is_alone {
            return true;
        }
        self.leave(slot);
        false
    }

    fn leave(&self, slot: &Slot) {
        self.busy.fetch_sub(1, SeqCst);
        slot.busy.fetch_sub(1, SeqCst);
    }

    /// Notes a request of this slot.
    fn note(&self, slot: usize) {
        if self.last.load(Relaxed) != slot {
            self.last.store(slot, Relaxed);
            self.alone_since.store(self.now(), Relaxed);
        }
    }

    /// Whether no other user has called for a while.
    fn is_alone(&self) -> bool {
        self.now() > self.alone_since.load(Relaxed) + BUSY.as_millis() as u64
    }

    fn now(&self) -> u64 {
        self.started.elapsed().as_millis() as u64
    }

    /// Whether the slot's user is busy, counting the new request of this thread.
    fn is_busy(&self, slot: &Slot, thread: u32) -> bool {
        let before = slot.busy.load(Relaxed) + slot.waiting.load(Relaxed) as usize;
        // Threads of other PID namespaces have no number here.
        let is_another = thread == 0 || slot.caller.load(Relaxed) != thread;
        if is_another {
            slot.caller.store(thread, Relaxed);
        }
        if is_another && before + 1 >= MANY {
            slot.busy_until.store(self.now() + BUSY.as_millis() as u64, Relaxed);
        } else {
            match slot.busy_until.load(Relaxed) {
                0 => return false,
                until if until <= self.now() => {
                    slot.busy_until.store(0, Relaxed);
                    return false;
                }
                _ => {}
            }
        }
        !self.is_alone()
    }

    /// Admits or parks a request. One of no thread, such as closing a file, is the kernel's own.
    pub fn admit(&self, uid: u32, thread: u32, channel: &Arc<Channel>, request: &[u8]) -> Share {
        if uid == 0 || uid == self.owner {
            if thread != 0 {
                self.note(SLOTS);
            }
            return Share::Unlimited;
        }
        let nr = SlotNr(uid as usize % SLOTS);
        self.note(nr.0);
        let slot = self.slot(nr);
        if !self.is_busy(slot, thread) && self.enter(slot) {
            return Share::Now(nr);
        }
        let size = request.len() + PARKED_BYTES;
        let mut queue = slot.queue.lock();
        let all = self.parked_bytes.fetch_add(size, SeqCst) + size;
        if queue.bytes + size > PARKED_MAX || all > PARKED_MAX_ALL {
            drop(queue);
            self.parked_bytes.fetch_sub(size, SeqCst);
            slot.busy.fetch_add(1, SeqCst);
            self.busy.fetch_add(1, SeqCst);
            return Share::Crowded(nr);
        }
        queue.bytes += size;
        queue.parked.push_back(ParkedRequest::new(channel, request));
        slot.waiting.fetch_add(1, SeqCst);
        Share::Parked(nr)
    }

    /// Whether few workers are left for others.
    pub fn is_crowded(&self) -> bool {
        self.busy.load(SeqCst) * 4 > self.workers * 3
    }

    /// Called when an admitted request is answered. Returns the next one of the same user, which is
    /// then admitted.
    ///
    /// No request is lost. A worker that parks one calls [`Shares::next`] afterwards. Either the
    /// user's share has a free place then, or a thread that occupies a place in it calls this
    /// later.
    pub fn done(&self, nr: SlotNr) -> Option<ParkedRequest> {
        self.leave(self.slot(nr));
        self.next(nr)
    }

    /// The next parked request, if the user's share has a free place.
    pub fn next(&self, nr: SlotNr) -> Option<ParkedRequest> {
        let slot = self.slot(nr);
        loop {
            if slot.waiting.load(SeqCst) == 0 || !self.enter(slot) {
                return None;
            }
            let mut queue = slot.queue.lock();
            if let Some(parked) = queue.parked.pop_front() {
                let size = parked.request.len() + PARKED_BYTES;
                queue.bytes -= size;
                slot.waiting.fetch_sub(1, SeqCst);
                drop(queue);
                self.parked_bytes.fetch_sub(size, SeqCst);
                return Some(parked);
            }
            drop(queue);
            // Another worker has taken it. One that was parked since then may have found no free
            // place.
            self.leave(slot);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::thread;

    fn channel() -> Arc<Channel> {
        Arc::new(Channel::new(std::fs::File::open("/dev/null").unwrap().into()))
    }

    fn slot_of(uid: usize) -> SlotNr {
        SlotNr(uid % SLOTS)
    }

    #[test]
    fn requests_beyond_a_share_are_parked_and_taken_in_order() {
        let (shares, channel, nr) = (Shares::new(64), channel(), slot_of(1000));
        // A user that calls alone is not busy, and has not been alone for long.
        for _ in 0..WORKERS_OF_USER {
            assert!(shares.enter(shares.slot(nr)));
        }
        for n in 0..3 {
            assert_eq!(shares.admit(1000, 1, &channel, &[n]), Share::Parked(nr));
            assert!(shares.next(nr).is_none());
        }
        assert!(matches!(shares.admit(1001, 1, &channel, b"other"), Share::Now(_)));
        assert_eq!(shares.admit(0, 1, &channel, b"root"), Share::Unlimited);
        // The requests of several threads make the user busy, with fewer threads.
        (WORKERS_OF_BUSY_USER..WORKERS_OF_USER).for_each(|_| assert!(shares.done(nr).is_none()));
        for n in 0..3 {
            assert_eq!(shares.done(nr).unwrap().request, [n]);
        }
        (0..WORKERS_OF_BUSY_USER).for_each(|_| assert!(shares.done(nr).is_none()));
        assert_eq!(shares.parked_bytes.load(SeqCst), 0);
    }

    /// While others call, a request goes to the background even if the share has a free place.
    #[test]
    fn a_busy_user_is_answered_in_the_background_only_beside_others() {
        let (shares, channel, nr) = (Shares::new(64), channel(), slot_of(1000));
        let many = || {
            for thread in 1..MANY as u32 {
                assert_eq!(shares.admit(1000, thread, &channel, b"request"), Share::Now(nr));
            }
        };
        many();
        let same_thread = MANY as u32 - 1;
        assert_eq!(shares.admit(1000, same_thread, &channel, b"not done"), Share::Now(nr));
        assert!(shares.done(nr).is_none());
        assert_eq!(shares.admit(1000, 9, &channel, b"one more"), Share::Parked(nr));
        assert!(shares.next(nr).is_none(), "a busy user has {WORKERS_OF_BUSY_USER} threads");
        assert!(shares.done(nr).is_some());
        (0..WORKERS_OF_BUSY_USER).for_each(|_| assert!(shares.done(nr).is_none()));
        assert_eq!(shares.admit(1000, 1, &channel, b"still"), Share::Parked(nr));
        assert!(shares.next(nr).is_some() && shares.done(nr).is_none());
        assert!(matches!(shares.admit(1001, 1, &channel, b"other"), Share::Now(_)));

        thread::sleep(BUSY * 2);
        assert_eq!(shares.admit(1000, 1, &channel, b"alone"), Share::Now(nr));
        assert!(shares.done(nr).is_none());
        thread::sleep(BUSY * 2);
        many();
        assert_eq!(shares.admit(1000, 9, &channel, b"many, and alone"), Share::Now(nr));
    }

    /// Callers of other PID namespaces have no thread number.
    #[test]
    fn callers_without_a_number_make_a_user_busy_too() {
        let (shares, channel, nr) = (Shares::new(64), channel(), slot_of(1000));
        for _ in 1..MANY {
            assert_eq!(shares.admit(1000, 0, &channel, b"request"), Share::Now(nr));
        }
        assert_eq!(shares.admit(1000, 0, &channel, b"one more"), Share::Parked(nr));
    }

    #[test]
    fn a_user_alone_has_half_of_the_workers_until_another_calls() {
        let (shares, channel) = (Shares::new(64), channel());
        let now = |uid: u32| matches!(shares.admit(uid, 1, &channel, b"request"), Share::Now(_));
        assert!(now(1000));
        thread::sleep(BUSY * 2);
        assert_eq!((0..64).filter(|_| now(1000)).count(), 31);
        assert!(now(1001));
        assert!(!now(1000));
    }

    #[test]
    fn many_users_leave_some_workers_free() {
        let shares = Shares::new(64);
        for uid in 1000..1012 {
            while shares.enter(shares.slot(slot_of(uid))) {}
        }
        let busy = shares.busy.load(SeqCst);
        assert!((40..64).contains(&busy), "{busy} workers are busy");
        assert!(matches!(shares.admit(1012, 1, &channel(), b"first"), Share::Now(_)));
    }

    #[test]
    fn a_request_that_cannot_be_parked_takes_no_memory() {
        let (shares, channel, nr) = (Shares::new(64), channel(), slot_of(1000));
        while shares.enter(shares.slot(nr)) {}
        let large = vec![0; 1 << 20];
        assert_eq!(shares.admit(1000, 1, &channel, &large), Share::Parked(nr));
        assert_eq!(shares.admit(1000, 1, &channel, &large), Share::Crowded(nr));
        assert!(!shares.is_crowded());
        assert!(shares.done(nr).is_none(), "the share is used up");
    }

    /// Many threads that answer and park; each request is answered once.
    #[test]
    fn no_parked_request_is_lost() {
        const EACH: usize = 20_000;
        let (shares, channel, answered) = (Shares::new(64), channel(), AtomicUsize::new(0));
        thread::scope(|scope| {
            for _ in 0..WORKERS_OF_USER * 2 {
                scope.spawn(|| {
                    for _ in 0..EACH {
                        let (nr, mut admitted) = match shares.admit(1000, 1, &channel, b"request") {
                            Share::Now(nr) => (nr, true),
                            Share::Parked(nr) => (nr, shares.next(nr).is_some()),
                            other => panic!("{other:?}: it fits"),
                        };
                        while admitted {
                            answered.fetch_add(1, SeqCst);
                            admitted = shares.done(nr).is_some();
                        }
                    }
                });
            }
        });
        assert_eq!(answered.load(SeqCst), WORKERS_OF_USER * 2 * EACH);
        assert_eq!((shares.busy.load(SeqCst), shares.parked_bytes.load(SeqCst)), (0, 0));
    }
}
