//! Threads that stay for a while after their work: to start one takes longer than most of what they
//! do.

use std::io;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use parking_lot::{Condvar, Mutex, MutexGuard};

use crate::transport::single_caller;

/// How long a thread without work stays.
const IDLE_MAX: Duration = Duration::from_secs(10);

pub type Work = Box<dyn FnOnce() + Send>;

/// Where a thread waits for work: with the lock of the state, which all of this is changed under.
#[derive(Default)]
struct Seat {
    work: Mutex<Option<Work>>,
    given: Condvar,
}

#[derive(Default)]
struct State {
    /// Of threads that wait. The last one is taken first, while the others become old and end.
    idle: Vec<Arc<Seat>>,
    threads: usize,
    closed: bool,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    ended: Condvar,
}

/// Threads of one name. Those that wait end with it.
pub struct ThreadPool {
    name: &'static str,
    shared: Arc<Shared>,
}

impl ThreadPool {
    pub fn new(name: &'static str) -> ThreadPool {
        ThreadPool { name, shared: Arc::default() }
    }

    /// Runs `work`, which must not panic, on a thread of the pool. An error returns it: no thread
    /// can be started.
    pub fn run(&self, work: Work) -> Result<(), (io::Error, Work)> {
        let mut state = self.shared.state.lock();
        if let Some(seat) = state.idle.pop() {
            *seat.work.lock() = Some(work);
            seat.given.notify_one();
            return Ok(());
        }
        state.threads += 1;
        drop(state);
        // It waits for its first work as for any other: so an error leaves the work here.
        let seat = Arc::new(Seat { work: Mutex::new(Some(work)), given: Condvar::new() });
        let (shared, own_seat) = (self.shared.clone(), seat.clone());
        let started = thread::Builder::new().name(self.name.into()).spawn(move || {
            single_caller::begin_thread();
            shared.serve(&own_seat);
        });
        let Err(error) = started else { return Ok(()) };
        self.shared.one_ended();
        let work = seat.work.lock().take().expect("no thread has taken it");
        Err((error, work))
    }

    /// Threads that wait end, others when they are done.
    pub fn close(&self) {
        let mut state = self.shared.state.lock();
        state.closed = true;
        for seat in state.idle.drain(..) {
            seat.given.notify_one();
        }
    }

    /// Returns when all threads have ended.
    pub fn wait(&self) {
        let mut state = self.shared.state.lock();
        while state.threads > 0 {
            self.shared.ended.wait(&mut state);
        }
    }
}

impl Drop for ThreadPool {
    fn drop(&mut self) {
        self.close();
    }
}

impl Shared {
    fn serve(&self, seat: &Arc<Seat>) {
        let mut state = self.state.lock();
        loop {
            let work = seat.work.lock().take();
            if let Some(work) = work {
                MutexGuard::unlocked(&mut state, work);
                // Who closes the pool has taken all that wait from the list.
                if state.closed {
                    break;
                }
                state.idle.push(seat.clone());
            } else if state.closed {
                break;
            } else if seat.given.wait_for(&mut state, IDLE_MAX).timed_out() {
                let before = state.idle.len();
                state.idle.retain(|other| !Arc::ptr_eq(other, seat));
                if state.idle.len() < before {
                    break;
                }
            }
        }
        drop(state);
        self.one_ended();
    }

    fn one_ended(&self) {
        self.state.lock().threads -= 1;
        self.ended.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;
    use std::sync::atomic::Ordering::SeqCst;
    use std::sync::mpsc;

    use super::*;

    #[test]
    fn threads_are_used_again_and_all_work_is_done() {
        let (pool, done) = (ThreadPool::new("test"), Arc::new(AtomicUsize::new(0)));
        let (sender, receiver) = mpsc::channel();
        for _ in 0..100 {
            let sender = sender.clone();
            pool.run(Box::new(move || sender.send(thread::current().id()).unwrap())).ok().unwrap();
            let _thread = receiver.recv().unwrap();
        }
        assert!(pool.shared.state.lock().threads < 10, "each time a new thread");
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..1000 {
                        let done = done.clone();
                        pool.run(Box::new(move || _ = done.fetch_add(1, SeqCst))).ok().unwrap();
                    }
                });
            }
        });
        pool.close();
        pool.wait();
        assert_eq!(done.load(SeqCst), 4000);
    }
}
