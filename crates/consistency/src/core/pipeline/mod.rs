//! The life of a commit: which operations join it, which thread writes it, and which wait for it.
//!
//! ```text
//!            lock (leader)          switch (leader)         finish (leader)
//!  RUNNING ----------------> LOCKED ---------------> COMMITTING ----------> DURABLE
//!  handles join and end      handles end,            the next commit is     actions have run,
//!           <--------------- none joins              RUNNING already        waiters are woken
//!            a handle waits for the device
//!
//!            close_and_open_next (leader)
//!  RUNNING ----------------> DRAINING -------------> COMMITTING ----------> DURABLE
//!                            handles end, others begin
//!                            in the next, which is RUNNING
//! ```
//!
//! - One commit is RUNNING or LOCKED at any time, and at most one is DRAINING or COMMITTING. So the
//!   log never holds two commits that are not durable. Neither the kernel nor e2fsck can handle a
//!   torn commit in front of an intact one.
//! - A commit is closed in one of two ways. *Locked*: no operation begins until the last handle in
//!   it has ended. *Without blocking* (the generations, SNAP-4): operations begin in the next
//!   commit at once, and `draining` keeps the two apart.
//! - The leader is the first thread that wants a commit durable while no other thread leads. It
//!   writes the running commit. Threads that arrive during the write join the next commit. When
//!   their turn comes, one of them leads for all (group commit).
//! - A locked commit blocks operations that want to begin. So a commit is locked only while the
//!   operations in it work in memory. It stays open while an operation in it waits for the device,
//!   or for a thread that may be waiting for the device. It also stays open while an operation in
//!   it applies a large transaction (`waits`). During that time only the leader waits.
//! - New operations could bring new waits without end. So the leader locks the commit when
//!   [`WAITS_MAX`](closing::WAITS_MAX) waits have begun since it began to close the commit. There
//!   is one exception: *long* waits. A wait is long when WAITS_MAX other waits have begun after it.
//!   The leader does not lock the commit before all long waits have ended.
//! - No thread leads in a poisoned pipeline. All waiting threads are woken with the reason.

mod background;
mod closing;
mod handles;
mod leading;
mod state;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::{Condvar, Mutex};
use xact_types::{CommitId, Latencies};

use super::volume::Volume;
use super::waits::WaitRegistry;
use state::State;

pub(crate) type Action = Box<dyn FnOnce() + Send>;

pub(crate) struct Pipeline {
    /// The number of this pipeline within the process.
    id: u64,
    volume: Arc<Volume>,
    state: Mutex<State>,
    /// The locked commit's last handle has ended.
    drained: Condvar,
    /// A new commit runs, or the running one has gained space.
    switched: Condvar,
    /// A leader has ended.
    settled: Condvar,
    /// The background thread has work to do.
    due: Condvar,
    /// Copy of `State::durable`, readable without the lock.
    durable: AtomicU64,
    /// The commit of `State::draining`, or 0.
    draining: Arc<AtomicU64>,
    /// The durations of commits.
    pub times: Latencies,
    /// How long new handles had to wait at each commit: from `lock` to `switch`, or until the
    /// commit was reopened. With `close_and_open_next`, the time of that call.
    pub held_up: Latencies,
}

impl Pipeline {
    pub fn new(volume: Arc<Volume>, max_credits: u32, max_alone: u32) -> Arc<Pipeline> {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let pipeline = Arc::new(Pipeline {
            id: NEXT.fetch_add(1, Ordering::Relaxed),
            volume,
            state: Mutex::new(State::new(max_credits, max_alone)),
            drained: Condvar::new(),
            switched: Condvar::new(),
            settled: Condvar::new(),
            due: Condvar::new(),
            durable: AtomicU64::new(0),
            draining: Arc::default(),
            times: Latencies::default(),
            held_up: Latencies::default(),
        });
        let registry: Arc<dyn WaitRegistry> = pipeline.clone();
        pipeline.volume.note_waits_in(&registry);
        pipeline
    }

    /// See [`crate::Engine::max_credits`].
    pub fn max_alone(&self) -> u32 {
        self.state.lock().max_alone
    }

    /// Changes what one handle may have. Those that wait for more are refused.
    pub fn limit_alone(&self, max_alone: u32) {
        self.state.lock().max_alone = max_alone;
        self.switched.notify_all();
    }

    /// Changes the total credits of a commit, from the running one on. A handle that needs more
    /// gets a commit for itself.
    pub fn limit_credits(&self, max_credits: u32) {
        self.state.lock().max_credits = max_credits;
        self.switched.notify_all();
    }

    /// Makes the running commit due at once when it has this number of blocks (SNAP-5).
    pub fn set_enough(&self, blocks: u64) {
        self.state.lock().enough = blocks;
    }

    pub fn durable(&self) -> CommitId {
        CommitId(self.durable.load(Ordering::Acquire))
    }

    /// Credits of the running and the draining commit that are used or may still be used.
    pub fn reserved(&self) -> u64 {
        let state = self.state.lock();
        state.reserved + state.draining.as_ref().map_or(0, |draining| draining.reserved)
    }

    pub fn running(&self) -> CommitId {
        self.state.lock().running
    }

    /// The draining commit, or 0. It is set before an operation begins in the next commit, and
    /// until the last handle of the draining one has ended.
    pub fn draining(&self) -> &Arc<AtomicU64> {
        &self.draining
    }

    /// See [`crate::Engine::order_data`].
    pub fn order_data(&self, commit: CommitId) {
        self.state.lock().ordered.insert(commit);
    }

    /// Leader: whether `order_data` was called for the commit that it writes.
    pub fn is_ordered(&self, commit: CommitId) -> bool {
        self.state.lock().ordered.contains(&commit)
    }

    /// See [`crate::Engine::on_durable`].
    pub fn on_durable(&self, commit: CommitId, action: Action) {
        let mut state = self.state.lock();
        if self.volume.poison.is_set() {
            return;
        }
        if state.durable < commit {
            state.actions.push((commit, action));
            return;
        }
        drop(state);
        action();
    }

    pub fn has_actions(&self) -> bool {
        !self.state.lock().actions.is_empty()
    }

    /// After the volume was poisoned: wakes all waiters, and drops the actions that wait for a
    /// commit.
    pub fn give_up(&self) {
        let dropped = std::mem::take(&mut self.state.lock().actions);
        for condition in [&self.drained, &self.switched, &self.settled, &self.due] {
            condition.notify_all();
        }
        drop(dropped);
    }
}
