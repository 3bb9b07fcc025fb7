//! The fence between the kernel's caches and a commit. A fence holds the inodes that its commit is
//! about to change. It also holds requests of the kernel for these inodes: they wait until the
//! change is visible.
//!
//! ```text
//!                begin                block                release
//!     (none) ──────────▶ open ──────────────────▶ blocked ─────────────▶ (none)
//!                        ▲  │ a fill since `watch`:   │
//!                        │  └─ stays open             │
//!                        └────────────────────────────┘ too many wait while others are still open
//! ```
//! A fence covers all inodes of one commit, and an inode is under one fence at a time. An inode
//! under a fence is in one of two states:
//! - **open**: the kernel is being made to forget what it has cached of the inode. A *fill* is a
//!   request whose reply the kernel keeps in its cache: a page, a listing, an ACL. Fills are
//!   answered and recorded.
//! - **blocked**: the kernel has nothing cached of the inode. Fills are parked. They occupy no
//!   worker.
//!
//! From begin to release, replies give attributes and names a lifetime of 0 (`may_keep`), and no
//! caller waits for that. A thread that replies asks for the lifetime first and reads the inode
//! second. So attributes that the kernel may keep were read either before the fence began or after
//! its release. In the first case the kernel is then made to forget them.
//!
//! After the release an inode's attributes are *fresh*: replies still give them no lifetime. The
//! kernel (6.18, `fuse_change_attributes_common`) marks attributes as valid before it has stored
//! them, so another program would find the old ones with a new expiry time. While attributes have
//! no lifetime, every thread that calls asks for them itself. A thread that asks again has stored
//! the attributes of its first reply: then the attributes get a lifetime. They also get one after a
//! fixed number of replies, in case many threads ask only once each.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::{Condvar, Mutex};
use xact_types::Ino;

use crate::transport::parked_request::ParkedRequest;

/// Fills that may wait while an inode of their fence is still open. The kernel sends at most 64
/// reads ahead at a time (`max_background`). If all of these waited, no READ could be sent for a
/// page that the kernel has to forget next and has locked for such a READ.
const WAITING_MAX: usize = 24;

/// After this number of replies an inode is no longer fresh, even if no thread has asked twice.
const FRESH_ANSWERS: u8 = 8;
/// Inodes for which replies are counted. After a commit of more, the rest get a lifetime at once.
const FRESH_MAX: usize = 1 << 16;

/// The outcome of a fill.
pub enum Admission {
    Now,
    /// It is parked until the fence is released.
    Later,
    /// It is answered now, and so are these, which were parked.
    WithThese(Vec<ParkedRequest>),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct FenceNr(u64);

struct FencedInode {
    fence: FenceNr,
    is_blocked: bool,
    filled: bool,
}

#[derive(Default)]
struct Fence {
    inodes: Vec<Ino>,
    /// All inodes are blocked, and the commit waits for no more requests of the kernel.
    complete: bool,
    waiting: Vec<ParkedRequest>,
}

/// An inode whose fence was released.
struct Fresh {
    /// The number of further replies without a lifetime.
    left: u8,
    /// Threads that have received its attributes since the release.
    readers: Vec<u32>,
}

#[derive(Default)]
struct State {
    inodes: HashMap<Ino, FencedInode>,
    fences: HashMap<FenceNr, Fence>,
    fresh: HashMap<Ino, Fresh>,
    last: u64,
}

impl State {
    fn fence(&mut self, nr: FenceNr) -> &mut Fence {
        self.fences.get_mut(&nr).expect("a fence exists until it is released")
    }

    fn inode(&mut self, ino: Ino) -> &mut FencedInode {
        self.inodes.get_mut(&ino).expect("inodes of a fence are fenced until it is released")
    }

    /// Opens all inodes of a fence again; returns the parked requests.
    fn open(&mut self, nr: FenceNr) -> Vec<ParkedRequest> {
        let fence = self.fence(nr);
        fence.complete = false;
        let waiting = std::mem::take(&mut fence.waiting);
        for ino in fence.inodes.clone() {
            let fenced = self.inode(ino);
            (fenced.is_blocked, fenced.filled) = (false, true);
        }
        waiting
    }
}

/// All fences of a mount.
#[derive(Default)]
pub struct CacheFence {
    /// Read by every request, so without a lock.
    count: AtomicUsize,
    /// Length of `State::fresh`.
    fresh: AtomicUsize,
    state: Mutex<State>,
    released: Condvar,
}

impl CacheFence {
    /// Whether any fence exists.
    pub fn any(&self) -> bool {
        self.count.load(Ordering::SeqCst) > 0
    }

    /// Puts all of these inodes under a new fence, in the open state. Waits until no other fence
    /// covers any of them, and takes all of them at once, so two commits never wait for each other.
    pub fn begin(&self, inodes: Vec<Ino>) -> FenceNr {
        let mut state = self.state.lock();
        while inodes.iter().any(|ino| state.inodes.contains_key(ino)) {
            self.released.wait(&mut state);
        }
        state.last += 1;
        let fence = FenceNr(state.last);
        for &ino in &inodes {
            state.inodes.insert(ino, FencedInode { fence, is_blocked: false, filled: false });
        }
        state.fences.insert(fence, Fence { inodes, ..Fence::default() });
        self.count.fetch_add(1, Ordering::SeqCst);
        fence
    }

    /// Whether the kernel may keep attributes of this inode that are read from now on, when they
    /// are sent to a waiting thread (0: not known).
    pub fn may_keep(&self, ino: Ino, thread: u32) -> bool {
        self.may_keep_for(ino, Some(thread))
    }

    /// The same for names in this inode.
    pub fn may_keep_names(&self, ino: Ino) -> bool {
        self.may_keep_for(ino, None)
    }

    fn may_keep_for(&self, ino: Ino, attributes_to: Option<u32>) -> bool {
        if !self.any() && self.fresh.load(Ordering::SeqCst) == 0 {
            return true;
        }
        let mut state = self.state.lock();
        if state.inodes.contains_key(&ino) {
            return false;
        }
        let Some(fresh) = state.fresh.get_mut(&ino) else { return true };
        let thread = attributes_to.filter(|&thread| thread != 0);
        let is_back = thread.is_some_and(|thread| fresh.readers.contains(&thread));
        fresh.readers.extend(thread);
        fresh.left -= 1;
        if is_back || fresh.left == 0 {
            state.fresh.remove(&ino);
            self.fresh.store(state.fresh.len(), Ordering::SeqCst);
        }
        is_back
    }

    /// Admits, parks or notes a fill of an inode.
    pub fn admit(&self, ino: Ino, park: impl FnOnce() -> ParkedRequest) -> Admission {
        if !self.any() {
            return Admission::Now;
        }
        let mut state = self.state.lock();
        let Some(fenced) = state.inodes.get_mut(&ino) else { return Admission::Now };
        let nr = fenced.fence;
        if !fenced.is_blocked {
            fenced.filled = true;
            return Admission::Now;
        }
        let fence = state.fence(nr);
        if fence.complete || fence.waiting.len() < WAITING_MAX {
            fence.waiting.push(park());
            return Admission::Later;
        }
        Admission::WithThese(state.open(nr))
    }

    /// Starts counting fills of this inode.
    pub fn watch(&self, ino: Ino) {
        self.state.lock().inode(ino).filled = false;
    }

    /// Blocks these inodes, all at once, unless some were filled since `watch`: then returns those.
    pub fn block(&self, inodes: &[Ino]) -> Vec<Ino> {
        let mut state = self.state.lock();
        let filled: Vec<Ino> = inodes.iter().copied().filter(|&ino| state.inode(ino).filled).collect();
        if filled.is_empty() {
            for &ino in inodes {
                state.inode(ino).is_blocked = true;
            }
        }
        filled
    }

    /// Marks the fence as complete: the commit waits for no more requests of the kernel. False if
    /// some inode is open (again).
    pub fn complete(&self, nr: FenceNr) -> bool {
        let mut state = self.state.lock();
        let inodes = state.fence(nr).inodes.clone();
        let complete = inodes.iter().all(|&ino| state.inode(ino).is_blocked);
        state.fence(nr).complete = complete;
        complete
    }

    /// Blocks the inodes that are open, also those that were filled.
    pub fn force(&self, nr: FenceNr) {
        let mut state = self.state.lock();
        let inodes = state.fence(nr).inodes.clone();
        for ino in inodes {
            state.inode(ino).is_blocked = true;
        }
        state.fence(nr).complete = true;
    }

    /// Opens all inodes of a fence again; returns the parked requests, to be answered.
    pub fn open(&self, nr: FenceNr) -> Vec<ParkedRequest> {
        self.state.lock().open(nr)
    }

    /// Ends a fence; returns the parked requests in the order of their arrival, to be answered.
    pub fn release(&self, nr: FenceNr) -> Vec<ParkedRequest> {
        let mut state = self.state.lock();
        let fence = state.fences.remove(&nr).expect("a fence is released once");
        for ino in &fence.inodes {
            state.inodes.remove(ino);
            if state.fresh.len() < FRESH_MAX || state.fresh.contains_key(ino) {
                state.fresh.insert(*ino, Fresh { left: FRESH_ANSWERS, readers: Vec::new() });
            }
        }
        self.fresh.store(state.fresh.len(), Ordering::SeqCst);
        self.count.fetch_sub(1, Ordering::SeqCst);
        self.released.notify_all();
        fence.waiting
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::thread;
    use std::time::Duration;

    use super::*;
    use crate::transport::channel::Channel;

    const A: Ino = Ino(12);
    const B: Ino = Ino(13);

    fn park(channel: &Arc<Channel>) -> impl FnOnce() -> ParkedRequest {
        let channel = channel.clone();
        || ParkedRequest { channel, request: vec![1] }
    }

    fn channel() -> Arc<Channel> {
        Arc::new(Channel::new(std::fs::File::open("/dev/null").unwrap().into()))
    }

    #[test]
    fn fills_are_answered_noted_parked_and_returned() {
        let (fences, channel) = (CacheFence::default(), channel());
        let is_now = |ino| matches!(fences.admit(ino, park(&channel)), Admission::Now);
        assert!(is_now(A) && fences.may_keep(A, 1));
        let fence = fences.begin(vec![A, B]);
        assert!(!fences.may_keep(A, 1) && !fences.may_keep(A, 1) && fences.may_keep(Ino(14), 1));
        assert!(!fences.may_keep_names(A) && fences.may_keep_names(Ino(14)));
        assert!(is_now(A) && is_now(Ino(14)));
        assert_eq!(fences.block(&[A, B]), [A]);
        assert!(is_now(B) && !fences.complete(fence));
        fences.watch(A);
        fences.watch(B);
        assert_eq!(fences.block(&[A, B]), []);
        assert!(fences.complete(fence));
        for _ in 0..100 {
            assert!(!is_now(A));
        }
        assert_eq!(fences.release(fence).len(), 100);
        assert!(is_now(A) && !fences.any());
    }

    #[test]
    fn attributes_are_fresh_until_a_thread_asks_again() {
        let fences = CacheFence::default();
        fences.release(fences.begin(vec![A, B]));
        assert!(!fences.may_keep(A, 1), "sent, and not yet stored");
        assert!(!fences.may_keep_names(A) && !fences.may_keep(A, 2));
        assert!(fences.may_keep(A, 1), "thread 1 has stored them");
        assert!(fences.may_keep(A, 3) && fences.may_keep_names(A));
        // An inode is not fresh for another fence.
        fences.release(fences.begin(vec![A]));
        assert!(!fences.may_keep(A, 1));
        // For unknown threads, or threads that ask once each, a number of replies is enough.
        let short_lived = (0..2 * FRESH_ANSWERS).filter(|_| !fences.may_keep(B, 0)).count();
        assert_eq!(short_lived, usize::from(FRESH_ANSWERS));
        let short_lived = (2..30).filter(|&thread| !fences.may_keep(A, thread)).count();
        assert_eq!(short_lived, usize::from(FRESH_ANSWERS) - 1);
    }

    #[test]
    fn too_many_parked_fills_open_an_incomplete_fence() {
        let (fences, channel) = (CacheFence::default(), channel());
        let fence = fences.begin(vec![A, B]);
        assert_eq!(fences.block(&[A]), []);
        for _ in 0..WAITING_MAX {
            assert!(matches!(fences.admit(A, park(&channel)), Admission::Later));
        }
        let Admission::WithThese(all) = fences.admit(A, park(&channel)) else { panic!("it waits") };
        assert_eq!(all.len(), WAITING_MAX);
        assert_eq!(fences.block(&[A, B]), [A, B], "all of it begins again");
        fences.watch(B);
        assert_eq!(fences.block(&[B]), []);
        assert!(!fences.complete(fence), "A is open");
        fences.force(fence);
        assert!(matches!(fences.admit(A, park(&channel)), Admission::Later));
        assert_eq!(fences.release(fence).len(), 1);
    }

    #[test]
    fn an_inode_is_under_one_fence_at_a_time() {
        let fences = CacheFence::default();
        let first = fences.begin(vec![A, B]);
        let other = fences.begin(vec![Ino(14)]);
        thread::scope(|scope| {
            let second = scope.spawn(|| fences.begin(vec![B, Ino(15)]));
            thread::sleep(Duration::from_millis(20));
            assert!(!second.is_finished() && fences.may_keep(Ino(15), 1));
            fences.release(first);
            fences.release(second.join().unwrap());
        });
        fences.release(other);
        assert!(!fences.any());
    }
}
