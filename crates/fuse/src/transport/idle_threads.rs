//! Threads that wait for something to do.
//!
//! The thread that has waited for the shortest time is called first: its memory is in the CPU's
//! caches, while the others become old and end.

use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex, MutexGuard};

/// Threads that wait for a `T`.
pub struct IdleThreads<T> {
    state: Mutex<State<T>>,
}

struct State<T> {
    slots: Vec<Arc<Slot<T>>>,
    closed: bool,
}

/// A waiting thread. Its item is changed under the lock of the state.
struct Slot<T> {
    item: Mutex<Option<T>>,
    call: Condvar,
}

impl<T> Default for IdleThreads<T> {
    fn default() -> IdleThreads<T> {
        IdleThreads { state: Mutex::new(State { slots: Vec::new(), closed: false }) }
    }
}

impl<T> IdleThreads<T> {
    /// Gives `item()` to the thread that began to wait last. Where no thread waits, it returns
    /// false and does not call `item`.
    pub fn give(&self, item: impl FnOnce() -> T) -> bool {
        let mut state = self.state.lock();
        let Some(slot) = state.slots.pop() else { return false };
        *slot.item.lock() = Some(item());
        slot.call.notify_one();
        true
    }

    /// Waits for an item. `None`: none came in this time, or the threads are to end.
    pub fn wait(&self, most: Duration) -> Option<T> {
        self.wait_in_steps(most, None::<(fn(), Duration)>)
    }

    /// The same in two steps. A thread that has waited for the first one runs `rest`, keeps its
    /// place, and waits for the second one.
    pub fn wait_and_rest(&self, first: Duration, rest: impl FnOnce(), second: Duration) -> Option<T> {
        self.wait_in_steps(first, Some((rest, second)))
    }

    fn wait_in_steps(&self, first: Duration, mut second: Option<(impl FnOnce(), Duration)>) -> Option<T> {
        let slot = Arc::new(Slot { item: Mutex::new(None), call: Condvar::new() });
        let mut until = Instant::now() + first;
        let mut state = self.state.lock();
        if !state.closed {
            state.slots.push(slot.clone());
        }
        loop {
            if let Some(item) = slot.item.lock().take() {
                return Some(item);
            }
            if state.closed {
                return None;
            }
            let timed_out = slot.call.wait_until(&mut state, until).timed_out();
            if !timed_out || slot.item.lock().is_some() || state.closed {
                continue;
            }
            match second.take() {
                Some((rest, most)) => {
                    MutexGuard::unlocked(&mut state, rest);
                    until = Instant::now() + most;
                }
                None => {
                    state.slots.retain(|other| !Arc::ptr_eq(other, &slot));
                    return None;
                }
            }
        }
    }

    /// Ends all waits, and the later ones at once. What was given is still received.
    pub fn close(&self) {
        let mut state = self.state.lock();
        state.closed = true;
        for slot in state.slots.drain(..) {
            slot.call.notify_one();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
    use std::thread;

    use super::*;

    const LONG: Duration = Duration::from_secs(60);

    fn waiting(threads: &IdleThreads<u32>) -> usize {
        threads.state.lock().slots.len()
    }

    fn until(condition: impl Fn() -> bool) {
        while !condition() {
            thread::yield_now();
        }
    }

    #[test]
    fn the_last_thread_is_called_first() {
        let (threads, rested) = (IdleThreads::default(), AtomicUsize::new(0));
        assert!(!threads.give(|| panic!("no thread waits")));
        let rest = || _ = rested.fetch_add(1, SeqCst);
        thread::scope(|scope| {
            let first = scope.spawn(|| threads.wait(LONG));
            until(|| waiting(&threads) == 1);
            // A thread that rests keeps its place.
            let second = scope.spawn(|| threads.wait_and_rest(Duration::ZERO, rest, LONG));
            until(|| waiting(&threads) == 2 && rested.load(SeqCst) == 1);
            let third = scope.spawn(|| threads.wait(LONG));
            until(|| waiting(&threads) == 3);
            for item in [3, 2, 1] {
                assert!(threads.give(|| item));
            }
            let received = [first, second, third].map(|thread| thread.join().unwrap());
            assert_eq!(received, [Some(1), Some(2), Some(3)]);
            assert_eq!(rested.load(SeqCst), 1);
        });
        assert!(!threads.give(|| 4));
    }

    #[test]
    fn waits_end() {
        let threads = IdleThreads::<u32>::default();
        assert_eq!(threads.wait(Duration::from_millis(1)), None);
        assert_eq!(waiting(&threads), 0);
        thread::scope(|scope| {
            let thread = scope.spawn(|| threads.wait(LONG));
            until(|| waiting(&threads) == 1);
            threads.close();
            assert_eq!(thread.join().unwrap(), None);
        });
        assert_eq!(threads.wait(LONG), None);
        assert!(!threads.give(|| 1));
    }
}
