//! Veils: what a commit is about to change, and the kernel's requests for it that wait meanwhile.
//!
//! ```text
//!                begin                 shut                 lift
//!     (none) ──────────▶ open ──────────────────▶ shut ──────────────▶ (none)
//!                        ▲  │ a fill since `watch`:  │
//!                        │  └─ stays open            │
//!                        └───────────────────────────┘ too many wait while others are still open
//! ```
//! By inode; one veil for all inodes of a commit, one veil for an inode at a time.
//! - **open**: the kernel is being made to forget what it has. A *fill*, a request whose reply the kernel
//!   keeps for good (a page, a listing, an ACL), is answered, and noted.
//! - **shut**: the kernel has nothing of the inode. Fills are put aside, without a worker that waits.
//!
//! From begin to lift, attributes and names are told with a lifetime of 0 (`may_keep`), which nobody has
//! to wait for. Who tells them asks first and looks second: then what is told for good was looked at
//! before the veil, and is among what the kernel is made to forget, or after it.
//!
//! After the lift an inode's attributes are *fresh*: answers still have no lifetime. The kernel (6.18,
//! `fuse_change_attributes_common`) says that attributes are good before it has written them down: another
//! program would find old ones under a new date. While they have no lifetime it asks for itself, and when they
//! get one they are there already: a thread that was told them and asks again has come back from writing
//! them down. Where many threads ask once each, a number of answers stands for that.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::{Condvar, Mutex};
use xact_types::Ino;

use crate::transport::channel::Channel;

/// Fills that may wait while an inode of their veil is still open. The kernel sends no more than 64 reads
/// ahead at a time (`max_background`): were they all to wait, none would come for the pages that the kernel
/// has to forget next, and has locked for such a read.
const WAITING_MAX: usize = 24;

/// After so many answers an inode is fresh no more, if no thread has asked twice before.
const FRESH_ANSWERS: u8 = 8;
/// Inodes for which that is counted; after a commit of more, the rest get a lifetime at once.
const FRESH_MAX: usize = 1 << 16;

/// A request that waits.
pub struct Parked {
    pub channel: Arc<Channel>,
    pub request: Vec<u8>,
}

/// What becomes of a fill.
pub enum Admission {
    Now,
    /// It is kept until the veil is lifted.
    Later,
    /// It is answered now, and so are these, which had waited.
    WithThese(Vec<Parked>),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct VeilNr(u64);

struct Veiled {
    veil: VeilNr,
    is_shut: bool,
    filled: bool,
}

#[derive(Default)]
struct Drawn {
    inodes: Vec<Ino>,
    /// All are shut, and nothing of the kernel is waited for any more.
    complete: bool,
    waiting: Vec<Parked>,
}

/// An inode whose veil was lifted.
struct Fresh {
    /// How many more answers have no lifetime.
    left: u8,
    /// Threads that were told its attributes since.
    told: Vec<u32>,
}

#[derive(Default)]
struct State {
    veiled: HashMap<Ino, Veiled>,
    veils: HashMap<VeilNr, Drawn>,
    fresh: HashMap<Ino, Fresh>,
    last: u64,
}

impl State {
    fn drawn(&mut self, nr: VeilNr) -> &mut Drawn {
        self.veils.get_mut(&nr).expect("a veil is there until it is lifted")
    }

    fn inode(&mut self, ino: Ino) -> &mut Veiled {
        self.veiled.get_mut(&ino).expect("inodes of a veil are veiled until it is lifted")
    }

    /// Opens all inodes of a veil again; returns what waited.
    fn open(&mut self, nr: VeilNr) -> Vec<Parked> {
        let drawn = self.drawn(nr);
        drawn.complete = false;
        let waiting = std::mem::take(&mut drawn.waiting);
        for ino in drawn.inodes.clone() {
            let veiled = self.inode(ino);
            (veiled.is_shut, veiled.filled) = (false, true);
        }
        waiting
    }
}

/// All veils of a mount.
#[derive(Default)]
pub struct Veils {
    /// Looked at by every request, so without a lock.
    count: AtomicUsize,
    /// Length of `State::fresh`.
    fresh: AtomicUsize,
    state: Mutex<State>,
    lifted: Condvar,
}

impl Veils {
    /// Whether any veil is there at all.
    pub fn any(&self) -> bool {
        self.count.load(Ordering::SeqCst) > 0
    }

    /// Takes all of these inodes under a new veil, open; waits until none is under another. All at once,
    /// so two commits never wait for each other.
    pub fn begin(&self, inodes: Vec<Ino>) -> VeilNr {
        let mut state = self.state.lock();
        while inodes.iter().any(|ino| state.veiled.contains_key(ino)) {
            self.lifted.wait(&mut state);
        }
        state.last += 1;
        let veil = VeilNr(state.last);
        for &ino in &inodes {
            state.veiled.insert(ino, Veiled { veil, is_shut: false, filled: false });
        }
        state.veils.insert(veil, Drawn { inodes, ..Drawn::default() });
        self.count.fetch_add(1, Ordering::SeqCst);
        veil
    }

    /// Whether the kernel may keep attributes of this inode that are looked at from now on, for a thread
    /// (0: not known) that waits for them.
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
        if state.veiled.contains_key(&ino) {
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
    pub fn admit(&self, ino: Ino, park: impl FnOnce() -> Parked) -> Admission {
        if !self.any() {
            return Admission::Now;
        }
        let mut state = self.state.lock();
        let Some(veiled) = state.veiled.get_mut(&ino) else { return Admission::Now };
        let veil = veiled.veil;
        if !veiled.is_shut {
            veiled.filled = true;
            return Admission::Now;
        }
        let drawn = state.drawn(veil);
        if drawn.complete || drawn.waiting.len() < WAITING_MAX {
            drawn.waiting.push(park());
            return Admission::Later;
        }
        Admission::WithThese(state.open(veil))
    }

    /// Fills from now on count.
    pub fn watch(&self, ino: Ino) {
        self.state.lock().inode(ino).filled = false;
    }

    /// Shuts these inodes, all at once, unless some were filled since `watch`: returns those.
    pub fn shut(&self, inodes: &[Ino]) -> Vec<Ino> {
        let mut state = self.state.lock();
        let filled: Vec<Ino> = inodes.iter().copied().filter(|&ino| state.inode(ino).filled).collect();
        if filled.is_empty() {
            for &ino in inodes {
                state.inode(ino).is_shut = true;
            }
        }
        filled
    }

    /// Says that nothing of the kernel is waited for any more; false where some inode is open (again).
    pub fn complete(&self, nr: VeilNr) -> bool {
        let mut state = self.state.lock();
        let inodes = state.drawn(nr).inodes.clone();
        let complete = inodes.iter().all(|&ino| state.inode(ino).is_shut);
        state.drawn(nr).complete = complete;
        complete
    }

    /// Shuts what is open, whatever was filled.
    pub fn force(&self, nr: VeilNr) {
        let mut state = self.state.lock();
        let inodes = state.drawn(nr).inodes.clone();
        for ino in inodes {
            state.inode(ino).is_shut = true;
        }
        state.drawn(nr).complete = true;
    }

    /// Opens all inodes of a veil again; returns what waited, to be answered.
    pub fn open(&self, nr: VeilNr) -> Vec<Parked> {
        self.state.lock().open(nr)
    }

    /// Ends a veil; returns what waited, in the order in which it came, to be answered.
    pub fn lift(&self, nr: VeilNr) -> Vec<Parked> {
        let mut state = self.state.lock();
        let drawn = state.veils.remove(&nr).expect("a veil is lifted once");
        for ino in &drawn.inodes {
            state.veiled.remove(ino);
            if state.fresh.len() < FRESH_MAX || state.fresh.contains_key(ino) {
                state.fresh.insert(*ino, Fresh { left: FRESH_ANSWERS, told: Vec::new() });
            }
        }
        self.fresh.store(state.fresh.len(), Ordering::SeqCst);
        self.count.fetch_sub(1, Ordering::SeqCst);
        self.lifted.notify_all();
        drawn.waiting
    }
}

#[cfg(test)]
mod tests {
    use std::thread;
    use std::time::Duration;

    use super::*;

    const A: Ino = Ino(12);
    const B: Ino = Ino(13);

    fn park(channel: &Arc<Channel>) -> impl FnOnce() -> Parked {
        let channel = channel.clone();
        || Parked { channel, request: vec![1] }
    }

    fn channel() -> Arc<Channel> {
        Arc::new(Channel::new(std::fs::File::open("/dev/null").unwrap().into()))
    }

    #[test]
    fn fills_are_answered_noted_put_aside_and_given_back() {
        let (veils, channel) = (Veils::default(), channel());
        let is_now = |ino| matches!(veils.admit(ino, park(&channel)), Admission::Now);
        assert!(is_now(A) && veils.may_keep(A, 1));
        let veil = veils.begin(vec![A, B]);
        assert!(!veils.may_keep(A, 1) && !veils.may_keep(A, 1) && veils.may_keep(Ino(14), 1));
        assert!(!veils.may_keep_names(A) && veils.may_keep_names(Ino(14)));
        assert!(is_now(A) && is_now(Ino(14)));
        assert_eq!(veils.shut(&[A, B]), [A]);
        assert!(is_now(B) && !veils.complete(veil));
        veils.watch(A);
        veils.watch(B);
        assert_eq!(veils.shut(&[A, B]), []);
        assert!(veils.complete(veil));
        for _ in 0..100 {
            assert!(!is_now(A));
        }
        assert_eq!(veils.lift(veil).len(), 100);
        assert!(is_now(A) && !veils.any());
    }

    #[test]
    fn attributes_are_fresh_until_a_thread_comes_back() {
        let veils = Veils::default();
        veils.lift(veils.begin(vec![A, B]));
        assert!(!veils.may_keep(A, 1), "told, and not yet written down");
        assert!(!veils.may_keep_names(A) && !veils.may_keep(A, 2));
        assert!(veils.may_keep(A, 1), "thread 1 has written them down");
        assert!(veils.may_keep(A, 3) && veils.may_keep_names(A));
        // Not of another veil.
        veils.lift(veils.begin(vec![A]));
        assert!(!veils.may_keep(A, 1));
        // Of threads that are not known, or ask once each, a number of answers is enough.
        let told = (0..2 * FRESH_ANSWERS).filter(|_| !veils.may_keep(B, 0)).count();
        assert_eq!(told, usize::from(FRESH_ANSWERS));
        let told = (2..30).filter(|&thread| !veils.may_keep(A, thread)).count();
        assert_eq!(told, usize::from(FRESH_ANSWERS) - 1);
    }

    #[test]
    fn too_many_that_wait_open_a_veil_that_is_not_complete() {
        let (veils, channel) = (Veils::default(), channel());
        let veil = veils.begin(vec![A, B]);
        assert_eq!(veils.shut(&[A]), []);
        for _ in 0..WAITING_MAX {
            assert!(matches!(veils.admit(A, park(&channel)), Admission::Later));
        }
        let Admission::WithThese(all) = veils.admit(A, park(&channel)) else { panic!("it waits") };
        assert_eq!(all.len(), WAITING_MAX);
        assert_eq!(veils.shut(&[A, B]), [A, B], "all of it is begun anew");
        veils.watch(B);
        assert_eq!(veils.shut(&[B]), []);
        assert!(!veils.complete(veil), "A is open");
        veils.force(veil);
        assert!(matches!(veils.admit(A, park(&channel)), Admission::Later));
        assert_eq!(veils.lift(veil).len(), 1);
    }

    #[test]
    fn an_inode_is_under_one_veil_at_a_time() {
        let veils = Veils::default();
        let first = veils.begin(vec![A, B]);
        let other = veils.begin(vec![Ino(14)]);
        thread::scope(|scope| {
            let second = scope.spawn(|| veils.begin(vec![B, Ino(15)]));
            thread::sleep(Duration::from_millis(20));
            assert!(!second.is_finished() && veils.may_keep(Ino(15), 1));
            veils.lift(first);
            veils.lift(second.join().unwrap());
        });
        veils.lift(other);
        assert!(!veils.any());
    }
}
