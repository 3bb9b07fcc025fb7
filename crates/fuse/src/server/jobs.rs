//! Jobs: requests that take long, or wait for the kernel, run on separate threads. These are the
//! end of transactions, savepoints and lists of changes.
//!
//! For each user and [`Kind`], only a few jobs run at a time. The user's other jobs wait in the
//! order of their arrival, and delay no other user's. Jobs of the server itself, of root, and of
//! the mount's owner do not wait.
//!
//! Why nothing deadlocks. A job waits for locks, for the device, and for requests of the kernel,
//! which workers answer. No worker waits for a job. Among jobs only a commit waits for another one:
//! for the end of a transaction that has a claim (`xact_txn::ContentionManager`). So jobs of such a
//! transaction do not wait in the queue.

use std::collections::{HashMap, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use parking_lot::{Condvar, Mutex};
use xact::{Account, Resource};
use xact_types::{Errno, Result};

use crate::server::Server;
use crate::server::transactions::TxView;
use crate::transport::cpu_set::Confinement;
use crate::transport::priority;
use crate::transport::thread_pool::ThreadPool;

type Job = Box<dyn FnOnce(&Arc<Server>) + Send>;

/// Jobs of one user and kind that may wait. Each has a caller that waits for it.
const WAITING_MAX: usize = 1024;
/// Kinds of jobs. Each user has a queue for each kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Kind {
    /// Begins, ends and savepoints of transactions.
    End,
    /// Looks at the changes of a transaction.
    Look,
}

impl Kind {
    /// The number of jobs of one user that run at a time.
    fn most(self) -> usize {
        match self {
            Kind::End => 4,
            Kind::Look => 2,
        }
    }
}

#[derive(Default)]
struct Queue {
    running: usize,
    waiting: VecDeque<Job>,
}

/// All jobs of a server.
pub(crate) struct Jobs {
    /// Threads that may run on all CPUs, and threads for users who are confined to some. They are
    /// separate, since a thread is woken on its last CPU and waits for it there.
    threads: ThreadPool,
    confined_threads: ThreadPool,
    /// Threads of either pool that run jobs. A pool's own count includes those that are idle.
    running: Mutex<usize>,
    ended: Condvar,
    of_users: Mutex<HashMap<(u32, Kind), Queue>>,
}

impl Default for Jobs {
    fn default() -> Jobs {
        Jobs {
            threads: ThreadPool::new("xact-ending"),
            confined_threads: ThreadPool::new("xact-ending"),
            running: Mutex::default(),
            ended: Condvar::default(),
            of_users: Mutex::default(),
        }
    }
}

impl Jobs {
    /// Returns when no job is left.
    pub fn wait(&self) {
        let mut running = self.running.lock();
        while *running > 0 {
            self.ended.wait(&mut running);
        }
    }

    fn one_ended(&self) {
        *self.running.lock() -= 1;
        self.ended.notify_all();
    }

    /// The job, if it may run now; `None` if it was queued.
    fn admit(&self, user: (u32, Kind), job: Job) -> Result<Option<Job>> {
        let mut queues = self.of_users.lock();
        let queue = queues.entry(user).or_default();
        if queue.running < user.1.most() {
            queue.running += 1;
            return Ok(Some(job));
        }
        if queue.waiting.len() >= WAITING_MAX {
            return Err(Errno::EAGAIN.into());
        }
        queue.waiting.push_back(job);
        Ok(None)
    }

    /// Called when a job has ended: the next one of the same user, to be run in its place.
    fn next(&self, user: (u32, Kind)) -> Option<Job> {
        let mut queues = self.of_users.lock();
        let queue = queues.get_mut(&user).expect("a queue exists as long as one of its jobs runs");
        let next = queue.waiting.pop_front();
        if next.is_none() {
            queue.running -= 1;
            if queue.running == 0 {
                queues.remove(&user);
            }
        }
        next
    }
}

impl Server {
    /// Runs a job on a separate thread. `EAGAIN`: no thread can be started.
    pub(crate) fn spawn(self: &Arc<Self>, job: impl FnOnce(&Arc<Server>) + Send + 'static) -> Result<()> {
        self.start_thread(&Confinement::default(), move |server| server.run_job(Box::new(job)))
    }

    /// The same for a user, whose other jobs of this kind may have to end first. `EAGAIN`: too many
    /// wait.
    pub(crate) fn spawn_for(
        self: &Arc<Self>,
        account: &Account,
        kind: Kind,
        job: impl FnOnce(&Arc<Server>) + Send + 'static,
    ) -> Result<()> {
        if account.limit(Resource::Transactions) == u64::MAX {
            return self.spawn(job);
        }
        let user = (account.uid(), kind);
        let confinement = Confinement::current();
        let for_job = confinement.clone();
        let job = move |server: &Arc<Server>| {
            for_job.apply();
            job(server);
        };
        let Some(job) = self.jobs.admit(user, Box::new(job))? else { return Ok(()) };
        let started = self.start_thread(&confinement, move |server| {
            priority::set(kind == Kind::Look);
            let mut next = Some(job);
            while let Some(job) = next {
                server.run_job(job);
                next = server.jobs.next(user);
            }
        });
        started.inspect_err(|_| {
            // Either other jobs of the user run, and their threads will take the waiting ones, or
            // this was the only one. Then the next job of the user starts a thread.
            if let Some(waiting) = self.jobs.next(user) {
                self.run_job(waiting);
            }
        })
    }

    /// The same for the user of a transaction.
    pub(crate) fn spawn_of(
        self: &Arc<Self>,
        tx: &TxView,
        kind: Kind,
        job: impl FnOnce(&Arc<Server>) + Send + 'static,
    ) -> Result<()> {
        if tx.transaction.has_claim() { self.spawn(job) } else { self.spawn_for(&tx.account, kind, job) }
    }

    fn run_job(self: &Arc<Self>, job: Job) {
        if catch_unwind(AssertUnwindSafe(|| job(self))).is_err() {
            self.volume.poison("a panic at the end of a transaction");
        }
    }

    fn start_thread(
        self: &Arc<Self>,
        confinement: &Confinement,
        run: impl FnOnce(&Arc<Server>) + Send + 'static,
    ) -> Result<()> {
        *self.jobs.running.lock() += 1;
        let server = self.clone();
        let work = move || {
            priority::set(false);
            run(&server);
            Confinement::default().apply();
            server.jobs.one_ended();
        };
        let threads = if confinement.is_none() { &self.jobs.threads } else { &self.jobs.confined_threads };
        threads.run(Box::new(work)).map_err(|_| {
            self.jobs.one_ended();
            Errno::EAGAIN.into()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jobs_wait_only_for_those_of_the_same_user() {
        let jobs = Jobs::default();
        let (one, other) = ((1000, Kind::Look), (1001, Kind::Look));
        let nothing = || -> Job { Box::new(|_| ()) };
        for _ in 0..Kind::Look.most() {
            assert!(jobs.admit(one, nothing()).unwrap().is_some());
        }
        for _ in 0..WAITING_MAX {
            assert!(jobs.admit(one, nothing()).unwrap().is_none());
        }
        assert_eq!(jobs.admit(one, nothing()).err().unwrap().errno(), Errno::EAGAIN);
        // Another user, and another kind of the same user.
        assert!(jobs.admit(other, nothing()).unwrap().is_some());
        assert!(jobs.admit((1000, Kind::End), nothing()).unwrap().is_some());
        assert!(jobs.next(other).is_none() && jobs.next((1000, Kind::End)).is_none());
        for _ in 0..WAITING_MAX {
            assert!(jobs.next(one).is_some());
        }
        for _ in 0..Kind::Look.most() {
            assert!(jobs.next(one).is_none());
        }
        assert!(jobs.of_users.lock().is_empty());
    }
}
