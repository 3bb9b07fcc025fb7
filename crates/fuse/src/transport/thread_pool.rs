//! A pool of threads that stay for a while after their work: starting one takes longer than most of
//! their work.

use std::io;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use parking_lot::{Condvar, Mutex, MutexGuard};

use crate::transport::single_caller;

/// How long a thread without work stays.
const IDLE_MAX: Duration = Duration::from_secs(10);

pub type Work = Box<dyn FnOnce() + Send>;

/// An idle thread's slot for new work. All of it is changed under the lock of the state.
#[derive(Default)]
struct Idle {
    work: Mutex<Option<Work>>,
    given: Condvar,
}

#[derive(Default)]
struct State {
    /// Slots of idle threads. The last one is used first, while the others become old and end.
    idle: Vec<Arc<Idle>>,
    threads: usize,
    closed: bool,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    ended: Condvar,
}

/// Threads of one name. Idle ones end when the pool is dropped.
pub struct ThreadPool {
    name: &'static str,
    shared: Arc<Shared>,
}

impl ThreadPool {
    pub fn new(name: &'static str) -> ThreadPool {
        ThreadPool { name, shared: Arc::default() }
    }

    /// Runs `work`, which must not panic, on a thread of the pool. If no thread can be started, the
    /// error returns the work.
    pub fn run(&self, work: Work) -> Result<(), (io::Error, Work)> {
        let mut state = self.shared.state.lock();
        if let Some(idle) = state.idle.pop() {
            *idle.work.lock() = Some(work);
            idle.given.notify_one();
            return Ok(());
        }
        state.threads += 1;
        drop(state);
        // The new thread takes its first work from its slot too, so after an error the work is
        // still here.
        let idle = Arc::new(Idle { work: Mutex::new(Some(work)), given: Condvar::new() });
        let (shared, own) = (self.shared.clone(), idle.clone());
        let started = thread::Builder::new().name(self.name.into()).spawn(move || {
            single_caller::begin_thread();
            shared.serve(&own);
        });
        let Err(error) = started else { return Ok(()) };
        self.shared.one_ended();
        let work = idle.work.lock().take().expect("no thread has taken it");
        Err((error, work))
    }

    /// Ends idle threads at once, and others when their work is done.
    pub fn close(&self) {
        let mut state = self.shared.state.lock();
        state.closed = true;
        for idle in state.idle.drain(..) {
            idle.given.notify_one();
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
    fn serve(&self, idle: &Arc<Idle>) {
        let mut state = self.state.lock();
        loop {
            let work = idle.work.lock().take();
            if let Some(work) = work {
                MutexGuard::unlocked(&mut state, work);
                // Closing the pool has emptied the list of idle threads.
                if state.closed {
                    break;
                }
                state.idle.push(idle.clone());
            } else if state.closed {
                break;
            } else if idle.given.wait_for(&mut state, IDLE_MAX).timed_out() {
                let before = state.idle.len();
                state.idle.retain(|other| !Arc::ptr_eq(other, idle));
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
