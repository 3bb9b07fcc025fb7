//! The open descriptors and mounts of this process's own transactions: descriptors of the library
//! itself, and mounts that show views. Neither obstructs another thread's begin.

use std::cell::RefCell;
use std::collections::HashSet;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::{Mutex, MutexGuard, Once, PoisonError};

type Locked = MutexGuard<'static, Option<State>>;

#[derive(Default)]
struct State {
    descriptors: HashSet<RawFd>,
    views: HashSet<u64>,
}

static STATE: Mutex<Option<State>> = Mutex::new(None);

thread_local! {
    /// While this thread forks.
    static HELD: RefCell<Option<Locked>> = const { RefCell::new(None) };
}

fn lock() -> Locked {
    STATE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A child that is forked while another thread holds the lock would wait for it forever, since that
/// thread does not exist in the child. So the forking thread holds it. (A lock of `parking_lot`
/// would not do: its waiting threads are in tables with locks of their own.)
fn survive_forks() {
    extern "C" fn before() {
        let locked = lock();
        HELD.set(Some(locked));
    }
    extern "C" fn after() {
        drop(HELD.take());
    }
    static ONCE: Once = Once::new();
    // SAFETY: the handlers are functions of this library, which is never unloaded (it has
    // thread-local state).
    ONCE.call_once(|| unsafe { _ = libc::pthread_atfork(Some(before), Some(after), Some(after)) });
}

fn with<R>(action: impl FnOnce(&mut State) -> R) -> R {
    survive_forks();
    action(lock().get_or_insert_default())
}

/// Whether a descriptor is the library's own.
pub fn is_own(number: RawFd) -> bool {
    with(|state| state.descriptors.contains(&number))
}

/// Whether a mount shows the view of a transaction that a thread of this process is in.
pub fn shows_view(mount: u64) -> bool {
    with(|state| state.views.contains(&mount))
}

pub fn add_views(mounts: &[u64]) {
    with(|state| state.views.extend(mounts));
}

pub fn remove_views(mounts: &[u64]) {
    with(|state| mounts.iter().for_each(|mount| _ = state.views.remove(mount)));
}

/// A descriptor of the library's own.
pub struct Own(OwnedFd);

impl Own {
    pub fn new(file: OwnedFd) -> Own {
        with(|state| state.descriptors.insert(file.as_raw_fd()));
        Own(file)
    }
}

impl AsFd for Own {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl Drop for Own {
    fn drop(&mut self) {
        with(|state| state.descriptors.remove(&self.0.as_raw_fd()));
    }
}
