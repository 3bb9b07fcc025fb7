//! The fence between the kernel's caches and a commit: the inodes that commits are about to change,
//! and the kernel's requests for these that wait until the change is visible.
//!
//! ```text
//!                begin                block                release
//!     (none) ──────────▶ open ──────────────────▶ blocked ─────────────▶ (none)
//!                        ▲  │ a fill since `watch`:   │
//!                        │  └─ stays open             │
//!                        └────────────────────────────┘ too many wait while others are still open
//! ```
//! A fence has all inodes of a commit; an inode has one fence at a time. Each inode of it is:
//! - **open**: the kernel is being made to forget what it has. A *fill*, a request whose reply the
//!   kernel keeps for good (a page, a listing, an ACL), is answered, and noted.
//! - **blocked**: the kernel has nothing of the inode. Fills are parked, without a worker that
//!   waits.
//!
//! From begin to release, replies give attributes and names a lifetime of 0 (`may_keep`), and no
//! caller waits for that. A thread that replies asks for the lifetime first and looks at the inode
//! second: so what the kernel may keep was looked at before the fence, and is among what the kernel
//! is made to forget, or after it.
//!
//! After the release an inode's attributes are *fresh*: answers still have no lifetime. The kernel
//! (6.18, `fuse_change_attributes_common`) says that attributes are good before it has written them
//! down: another program would find old ones under a new date. While they have no lifetime it asks
//! for itself, and when they get one they are there already: a thread that got them and asks again
//! has come back from writing them down. Where many threads ask once each, a number of answers
//! counts as that.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::{Condvar, Mutex};
use xact_types::Ino;

use crate::transport::parked_request::ParkedRequest;

/// Fills that may wait while an inode of their fence is still open. The kernel sends no more than
/// 64 reads ahead at a time (`max_background`): were they all to wait, none would come for the
/// pages that the kernel has to forget next, and has locked for such a read.
const WAITING_MAX: usize = 24;

/// After so many answers an inode is fresh no more, if no thread has asked twice before.
const FRESH_ANSWERS: u8 = 8;
/// Inodes for which that is counted; after a commit of more, the rest get a lifetime at once.
const FRESH_MAX: usize = 1 << 16;

/// What becomes of a fill.
pub enum Admission {
    Now,
    /// It is kept until the fence is released.
    Later,
    /// It is answered now, and so are these, which had waited.
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
    /// All are blocked, and nothing of the kernel is waited for any more.
    complete: bool,
    waiting: Vec<ParkedRequest>,
}

/// An inode whose fence was released.
struct Fresh {
    /// How many more answers have no lifetime.
    left: u8,
    /// Threads that were told its attributes since.
    told: Vec<u32>,
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
        self.fences.get_mut(&nr).expect("a fence is there until it is released")
    }

    fn inode(&mut self, ino: Ino) -> &mut FencedInode {
        self.inodes.get_mut(&ino).expect("inodes of a fence are fenced until it is released")
    }

    /// Opens all inodes of a fence again; returns what waited.
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
    /// Looked at by every request, so without a lock.
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

    /// Puts all of these inodes under a new fence, open; waits until none is under another. It
    /// takes them all at once, so two commits never wait for each other.
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

    /// Whether the kernel may keep attributes of this inode that are looked at from now on, for a
    /// thread (0: not known) that waits for them.
    pub fn may_keep(&self, ino: Ino, thread: u32) -> bool {
        self.may_keep_told(ino, Some(thread))
    }

    /// The same for names in this inode.
    pub fn may_keep_names(&self, ino: Ino) -> bool {
        self.may_keep_told(ino, None)
    }

    fn may_keep_told(&self, ino: Ino, attributes_to: Option<u32>) -> bool {
        if !self.any() && self.fresh.load(Ordering::SeqCst) == 0 {
            return true;
        }
        let mut state = self.state.lock();
        if state.inodes.contains_key(&ino) {
            return false;
        }
        let Some(fresh) = state.fresh.get_mut(&ino) else { return true };
        let thread = attributes_to.filter(|&thread| thread != 0);
        let is_back = thread.is_some_and(|thread| fresh.told.contains(&thread));
        fresh.told.extend(thread);
        fresh.left -= 1;
        if is_back || fresh.left == 0 {
            state.fresh.remove(&ino);
            self.fresh.store(state.fresh.len(), Ordering::SeqCst);
        }
        is_back
    }

    /// A fill of an inode has come.
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

    /// Fills from now on count.
    pub fn watch(&self, ino: Ino) {
        self.state.lock().inode(ino).filled = false;
    }

    /// Blocks these inodes, all at once, unless some were filled since `watch`: returns those.
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

    /// Says that nothing of the kernel is waited for any more; false where some inode is open
    /// (again).
    pub fn complete(&self, nr: FenceNr) -> bool {
        let mut state = self.state.lock();
        let inodes = state.fence(nr).inodes.clone();
        let complete = inodes.iter().all(|&ino| state.inode(ino).is_blocked);
        state.fence(nr).complete = complete;
        complete
    }

    /// Blocks what is open, whatever was filled.
    pub fn force(&self, nr: FenceNr) {
        let mut state = self.state.lock();
        let inodes = state.fence(nr).inodes.clone();
        for ino in inodes {
            state.inode(ino).is_blocked = true;
        }
        state.fence(nr).complete = true;
    }

    /// Opens all inodes of a fence again; returns what waited, to be answered.
    pub fn open(&self, nr: FenceNr) -> Vec<ParkedRequest> {
        self.state.lock().open(nr)
    }

    /// Ends a fence; returns what waited, in the order in which it came, to be answered.
    pub fn release(&self, nr: FenceNr) -> Vec<ParkedRequest> {
        let mut state = self.state.lock();
        let fence = state.fences.remove(&nr).expect("a fence is released once");
        for ino in &fence.inodes {
            state.inodes.remove(ino);
            if state.fresh.len() < FRESH_MAX || state.fresh.contains_key(ino) {
                state.fresh.insert(*ino, Fresh { left: FRESH_ANSWERS, told: Vec::new() });
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
    fn fills_are_answered_noted_put_aside_and_given_back() {
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
    fn attributes_are_fresh_until_a_thread_comes_back() {
        let fences = CacheFence::default();
        fences.release(fences.begin(vec![A, B]));
        assert!(!fences.may_keep(A, 1), "told, and not yet written down");
        assert!(!fences.may_keep_names(A) && !fences.may_keep(A, 2));
        assert!(fences.may_keep(A, 1), "thread 1 has written them down");
        assert!(fences.may_keep(A, 3) && fences.may_keep_names(A));
        // Not of another fence.
        fences.release(fences.begin(vec![A]));
        assert!(!fences.may_keep(A, 1));
        // Of threads that are not known, or ask once each, a number of answers is enough.
        let told = (0..2 * FRESH_ANSWERS).filter(|_| !fences.may_keep(B, 0)).count();
        assert_eq!(told, usize::from(FRESH_ANSWERS));
        let told = (2..30).filter(|&thread| !fences.may_keep(A, thread)).count();
        assert_eq!(told, usize::from(FRESH_ANSWERS) - 1);
    }

    #[test]
    fn too_many_that_wait_open_a_fence_that_is_not_complete() {
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
