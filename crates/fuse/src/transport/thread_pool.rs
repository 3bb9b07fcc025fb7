//! A pool of threads that stay for a while after their work: starting one takes longer than most of
//! their work. The threads that wait for requests of the kernel are in `worker_pool`.

use std::io;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

use crate::transport::idle_threads::IdleThreads;
use crate::transport::single_caller;

/// How long a thread without work stays.
const IDLE_MAX: Duration = Duration::from_secs(10);

pub type Work = Box<dyn FnOnce() + Send>;

#[derive(Default)]
struct Shared {
    idle: IdleThreads<Work>,
    threads: Mutex<usize>,
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
        let mut work = Some(work);
        if self.shared.idle.give(|| work.take().expect("the item is taken once")) {
            return Ok(());
        }
        *self.shared.threads.lock() += 1;
        // The new thread takes its first work from here, so after an error the work is still here.
        let first = Arc::new(Mutex::new(work));
        let (shared, own) = (self.shared.clone(), first.clone());
        let started = thread::Builder::new().name(self.name.into()).spawn(move || {
            single_caller::begin_thread();
            let mut next = own.lock().take();
            while let Some(work) = next {
                work();
                next = shared.idle.wait(IDLE_MAX);
            }
            shared.one_ended();
        });
        let Err(error) = started else { return Ok(()) };
        self.shared.one_ended();
        let work = first.lock().take().expect("no thread has taken it");
        Err((error, work))
    }

    /// Ends idle threads at once, and others when their work is done.
    pub fn close(&self) {
        self.shared.idle.close();
    }

    /// Returns when all threads have ended.
    pub fn wait(&self) {
        let mut threads = self.shared.threads.lock();
        while *threads > 0 {
            self.shared.ended.wait(&mut threads);
        }
    }
}

impl Drop for ThreadPool {
    fn drop(&mut self) {
        self.close();
    }
}

impl Shared {
    fn one_ended(&self) {
        *self.threads.lock() -= 1;
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
        assert!(*pool.shared.threads.lock() < 10, "each time a new thread");
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
