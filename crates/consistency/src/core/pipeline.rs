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
//!   operations in it work in memory. It stays open while one of them waits for the device, waits
//!   for a thread that may do so, or is the commit of a large transaction (`waits`). During that
//!   time only the leader waits. If waits keep arriving, the leader closes the commit after
//!   [`WAITS_MAX`] of them, unless one wait has lasted through that many others.
//! - A poisoned pipeline never leads again. All waiting threads are woken with the reason.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use xact_types::{CommitId, Error, Latencies, Result};

use super::leader;
use super::volume::Volume;
use super::waits::{self, WaitRegistry, Waiting};

pub(crate) type Action = Box<dyn FnOnce() + Send>;

/// The most handles that begin in a commit after it is closed. Threads that want it durable wait
/// for these handles.
const JOIN_DRAINING_MAX: u32 = 32;

/// The number of waits that may begin while a leader keeps its commit open for handles.
const WAITS_MAX: u64 = 256;

/// Why the background thread should commit.
pub(crate) struct Due {
    pub commit: CommitId,
    /// An operation waits for space, so the commit must be ended even if it changed nothing.
    pub crowded: bool,
}

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

/// A commit that is closed while handles are open in it and others begin in the next.
struct Draining {
    commit: CommitId,
    handles: u32,
    /// As [`State::reserved`].
    reserved: u64,
    /// Handles that may still begin in it; see [`State::join_draining`].
    may_join_draining: u32,
}

struct State {
    /// Credits of one commit.
    max_credits: u32,
    /// Credits that one handle may have if it has the commit for itself, as the commit of a large
    /// user transaction does.
    max_alone: u32,
    running: CommitId,
    draining: Option<Draining>,
    /// The time at which it was locked.
    locked: Option<Instant>,
    /// A leader has locked the running commit, or is about to.
    closing: bool,
    handles: u32,
    /// Running waits of handles, for the device or for a thread that may wait for it, by the order
    /// in which they began.
    waits: BTreeSet<u64>,
    /// The number of such waits so far.
    waits_begun: u64,
    /// Credits that are used, or that open handles may still use.
    reserved: u64,
    /// When the running commit's first handle began.
    since: Option<Instant>,
    durable: CommitId,
    leading: bool,
    /// An operation waits for space, so the running commit is due now.
    crowded: bool,
    /// The number of credits at which the commit is due even if no operation waits, and whether it
    /// has reached them.
    enough: u64,
    is_enough: bool,
    /// The background thread sleeps until it is notified, not until a point in time. While it
    /// sleeps until a time, a notification would only cost a thread's wake-up for each commit: it
    /// looks at the running commit's age when it wakes.
    is_idle: bool,
    /// Unwritten commits that must follow their data in any mode.
    ordered: BTreeSet<CommitId>,
    /// Handles that wait for a commit of their own.
    waiting_alone: u32,
    actions: Vec<(CommitId, Action)>,
    stopping: bool,
}

impl Pipeline {
    pub fn new(volume: Arc<Volume>, max_credits: u32, max_alone: u32) -> Arc<Pipeline> {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let pipeline = Arc::new(Pipeline {
            id: NEXT.fetch_add(1, Ordering::Relaxed),
            volume,
            state: Mutex::new(State {
                max_credits,
                max_alone,
                running: CommitId(1),
                draining: None,
                locked: None,
                closing: false,
                handles: 0,
                waits: BTreeSet::new(),
                waits_begun: 0,
                reserved: 0,
                since: None,
                durable: CommitId(0),
                leading: false,
                crowded: false,
                enough: u64::MAX,
                is_enough: false,
                is_idle: false,
                ordered: BTreeSet::new(),
                waiting_alone: 0,
                actions: Vec::new(),
                stopping: false,
            }),
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

    /// See [`crate::Engine::start`]. `may` returns whether the operation may still begin, and is
    /// called again after each wait. `is_full` returns whether the running commit should take no
    /// more, for reasons other than its credits. With `back`, the handle begins in the draining
    /// commit, if none has begun in the next one.
    pub fn start(
        &self,
        credits: u32,
        back: bool,
        may: impl Fn() -> Result<()>,
        is_full: impl Fn() -> bool,
    ) -> Result<CommitId> {
        let mut state = self.state.lock();
        // Whether this handle is among those that wait for a commit of their own.
        let mut counted = false;
        let begun = loop {
            if let Err(error) = self.volume.poison.check().and_then(|()| may()) {
                break Err(error);
            }
            if back && let Some(commit) = state.join_draining(credits) {
                break Ok(commit);
            }
            if credits > state.max_alone {
                break Err(Error::TooLarge { blocks: credits.into(), limit: state.max_alone.into() });
            }
            // The limit on a commit can change during this wait.
            let alone = credits > state.max_credits;
            if alone != counted {
                state.waiting_alone = if alone { state.waiting_alone + 1 } else { state.waiting_alone - 1 };
                counted = alone;
            }
            if state.locked.is_none() {
                let full = is_full();
                // A handle that needs an empty commit gets the next one, before small ones fill it.
                let first = state.reserved == 0;
                let fits = state.reserved + u64::from(credits) <= u64::from(state.max_credits);
                if !full && if alone { first } else { fits && !(first && state.waiting_alone > 0) } {
                    if state.is_idle && state.since.is_none() {
                        self.due.notify_all();
                    }
                    break Ok(state.begin(credits));
                }
                state.crowded = true;
                self.due.notify_all();
            }
            self.switched.wait(&mut state);
        };
        if counted {
            state.waiting_alone -= 1;
            self.switched.notify_all();
        }
        let commit = begun?;
        waits::handle_begins(self.id);
        Ok(commit)
    }

    /// See [`crate::Engine::extend`].
    pub fn extend(&self, commit: CommitId, more: u32) -> Result<bool> {
        self.volume.poison.check()?;
        let mut state = self.state.lock();
        let max_credits = u64::from(state.max_credits);
        let reserved = state.reserved_of(commit);
        let fits = *reserved + u64::from(more) <= max_credits;
        if fits {
            *reserved += u64::from(more);
        }
        Ok(fits)
    }

    /// See [`crate::Engine::stop`].
    pub fn stop(&self, commit: CommitId, unused: u32) {
        let mut state = self.state.lock();
        waits::handle_ends(self.id);
        *state.reserved_of(commit) -= u64::from(unused);
        if state.running != commit {
            let draining = state.draining.as_mut().expect("just looked at");
            draining.handles -= 1;
            if draining.handles == 0 {
                self.drained.notify_all();
            }
            return;
        }
        state.handles -= 1;
        if state.handles == 0 && state.locked.is_some() {
            self.drained.notify_all();
        }
        if state.crowded && unused > 0 {
            self.switched.notify_all();
        }
        if state.reserved >= state.enough && !state.is_enough {
            state.is_enough = true;
            self.due.notify_all();
        }
    }

    /// See [`crate::Engine::order_data`].
    pub fn order_data(&self, commit: CommitId) {
        self.state.lock().ordered.insert(commit);
    }

    /// Leader: whether `order_data` was called for the commit that it writes.
    pub fn is_ordered(&self, commit: CommitId) -> bool {
        self.state.lock().ordered.contains(&commit)
    }

    /// See [`crate::Engine::waits_in_handles`].
    pub fn waits_in_handles(&self) -> u64 {
        self.state.lock().waits_begun
    }

    /// Leader: closes the running commit to new handles and waits for those in it to end.
    pub fn lock(&self) -> Result<CommitId> {
        let mut state = self.state.lock();
        state.closing = true;
        let patience = state.waits_begun + WAITS_MAX;
        while state.handles > 0 {
            if let Err(error) = self.volume.poison.check() {
                state.closing = false;
                return Err(error);
            }
            let lasts = state.waits.first().is_some_and(|first| first + WAITS_MAX <= state.waits_begun);
            if state.waits.is_empty() || state.waits_begun >= patience && !lasts {
                state.locked.get_or_insert_with(Instant::now);
            } else if let Some(locked) = state.locked.take() {
                self.held_up.add(locked.elapsed());
                self.switched.notify_all();
            }
            self.drained.wait(&mut state);
        }
        state.closing = false;
        self.volume.poison.check()?;
        state.locked.get_or_insert_with(Instant::now);
        Ok(state.running)
    }

    /// A handle of a draining commit has also made a block part of the next commit. The block takes
    /// a credit of its own there, so that the two commits together take no more than was reserved.
    pub fn charge_next(&self, commit: CommitId, credits: u32) {
        if credits > 0 {
            let mut state = self.state.lock();
            *state.reserved_of(commit) -= u64::from(credits);
            state.reserved += u64::from(credits);
        }
    }

    /// See [`crate::Engine::await_drained`].
    pub fn await_drained(&self, commit: CommitId) -> Result<()> {
        if self.draining.load(Ordering::Acquire) == 0 {
            return Ok(());
        }
        let mut state = self.state.lock();
        while state.draining.as_ref().is_some_and(|draining| draining.commit < commit) {
            self.volume.poison.check()?;
            self.switched.wait(&mut state);
        }
        Ok(())
    }

    /// Leader: closes the running commit, with the next one open at once, and waits until the
    /// handles in it have ended.
    pub fn close_and_open_next(&self) -> Result<CommitId> {
        let mut state = self.state.lock();
        self.volume.poison.check()?;
        let began = Instant::now();
        let commit = state.running;
        if state.handles > 0 {
            let (handles, reserved) = (state.handles, state.reserved);
            let may_join_draining = JOIN_DRAINING_MAX;
            state.draining = Some(Draining { commit, handles, reserved, may_join_draining });
            self.draining.store(commit.0, Ordering::Release);
        }
        state.open_next();
        self.held_up.add(began.elapsed());
        self.switched.notify_all();
        while state.draining.as_ref().is_some_and(|draining| draining.handles > 0) {
            self.drained.wait(&mut state);
            self.volume.poison.check()?;
        }
        if state.draining.take().is_some() {
            self.draining.store(0, Ordering::Release);
            self.switched.notify_all();
        }
        Ok(commit)
    }

    /// Leader: opens the next commit.
    pub fn switch(&self) {
        let mut state = self.state.lock();
        assert!(state.handles == 0, "only a commit without handles is switched");
        let locked = state.locked.take().expect("only a locked commit is switched");
        self.held_up.add(locked.elapsed());
        state.open_next();
        self.switched.notify_all();
    }

    /// Leader: `commit` is durable. Runs what waits for that; the leader's end wakes the waiters.
    pub fn finish(&self, commit: CommitId) {
        loop {
            let mut state = self.state.lock();
            let (ready, rest): (Vec<_>, Vec<_>) =
                std::mem::take(&mut state.actions).into_iter().partition(|(id, _)| *id <= commit);
            state.actions = rest;
            if ready.is_empty() {
                state.durable = commit;
                state.ordered.retain(|later| *later > commit);
                self.durable.store(commit.0, Ordering::Release);
                return;
            }
            drop(state);
            for (_, action) in ready {
                action();
            }
        }
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

    /// Waits until `commit` is durable. If no thread leads, this one does; `lead` commits the
    /// running commit.
    pub fn make_durable(&self, commit: CommitId, lead: impl Fn() -> Result<()>) -> Result<()> {
        let mut state = self.state.lock();
        loop {
            if state.durable >= commit {
                return Ok(());
            }
            self.volume.poison.check()?;
            if commit > state.running {
                return Err(Error::Usage(format!("{commit} has not begun")));
            }
            if state.leading {
                self.settled.wait(&mut state);
                continue;
            }
            state.leading = true;
            drop(state);
            let turn = Leading::begin(self);
            let began = Instant::now();
            let result = lead();
            drop(turn);
            result?;
            self.times.add(began.elapsed());
            state = self.state.lock();
        }
    }

    /// Waits until no thread leads; then the caller leads, until it drops the result.
    pub fn lead_alone(&self) -> Leading<'_> {
        let mut state = self.state.lock();
        while state.leading {
            self.settled.wait(&mut state);
        }
        state.leading = true;
        drop(state);
        Leading::begin(self)
    }

    /// Background thread: waits until the running commit is due. `None` if the thread should end.
    pub fn wait_due(&self, interval: Duration) -> Option<Due> {
        let mut state = self.state.lock();
        loop {
            if state.stopping || self.volume.poison.is_set() {
                return None;
            }
            if state.crowded && !state.leading {
                return Some(Due { commit: state.running, crowded: true });
            }
            if state.is_enough && !state.leading {
                return Some(Due { commit: state.running, crowded: false });
            }
            match state.since.map(|since| since + interval) {
                Some(at) if at <= Instant::now() && !state.leading => {
                    return Some(Due { commit: state.running, crowded: false });
                }
                Some(at) if at > Instant::now() => {
                    self.due.wait_until(&mut state, at);
                }
                // The next commit's first handle, or the leader, ends this wait.
                _ => {
                    state.is_idle = true;
                    self.due.wait(&mut state);
                    state.is_idle = false;
                }
            }
        }
    }

    /// Background thread: the running commit turned out to be empty; its age counts from now.
    pub fn reset_age(&self, commit: CommitId) {
        let mut state = self.state.lock();
        if state.running != commit {
            return;
        }
        state.is_enough = false;
        let is_empty = state.handles == 0 && state.reserved == 0 && state.actions.is_empty();
        if is_empty && !state.crowded {
            state.since = None;
        } else if let Some(since) = &mut state.since {
            *since = Instant::now();
        }
    }

    pub fn stop_background(&self) {
        self.state.lock().stopping = true;
        self.due.notify_all();
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

impl State {
    /// The reserved credits of a commit in which a handle is open.
    fn reserved_of(&mut self, commit: CommitId) -> &mut u64 {
        if self.running == commit {
            assert!(self.handles > 0, "a handle ended twice");
            return &mut self.reserved;
        }
        match &mut self.draining {
            Some(draining) if draining.commit == commit && draining.handles > 0 => &mut draining.reserved,
            _ => panic!("{commit} has no handle any more"),
        }
    }

    /// A handle begins in the running commit.
    fn begin(&mut self, credits: u32) -> CommitId {
        self.handles += 1;
        self.reserved += u64::from(credits);
        self.since.get_or_insert_with(Instant::now);
        self.running
    }

    /// A handle begins in the draining commit, as if the commit had been closed a moment later. It
    /// may not if a handle has begun in the next commit: an earlier operation must not become
    /// durable after a later one.
    fn join_draining(&mut self, credits: u32) -> Option<CommitId> {
        let max_credits = u64::from(self.max_credits);
        let draining = self.draining.as_mut().filter(|draining| draining.handles > 0)?;
        let fits = draining.reserved + u64::from(credits) <= max_credits;
        if self.since.is_some() || !fits || draining.may_join_draining == 0 {
            return None;
        }
        draining.may_join_draining -= 1;
        draining.handles += 1;
        draining.reserved += u64::from(credits);
        Some(draining.commit)
    }

    fn open_next(&mut self) {
        self.running = CommitId(self.running.0 + 1);
        self.handles = 0;
        self.reserved = 0;
        self.since = None;
        self.crowded = false;
        self.is_enough = false;
    }
}

impl WaitRegistry for Pipeline {
    fn begin_wait(self: Arc<Self>) -> Option<Waiting> {
        if !waits::has_handle(self.id) {
            return None;
        }
        let mut state = self.state.lock();
        let number = state.waits_begun;
        state.waits_begun += 1;
        state.waits.insert(number);
        if state.closing {
            self.drained.notify_all();
        }
        drop(state);
        Some(Waiting::new(self, number))
    }

    fn end_wait(&self, number: u64) {
        let mut state = self.state.lock();
        state.waits.remove(&number);
        if state.closing {
            self.drained.notify_all();
        }
    }
}

/// A leader's turn. Its end wakes all threads that wait for a commit or for the next turn.
pub(crate) struct Leading<'a> {
    pipeline: &'a Pipeline,
}

impl<'a> Leading<'a> {
    fn begin(pipeline: &'a Pipeline) -> Leading<'a> {
        leader::begins();
        Leading { pipeline }
    }
}

impl Drop for Leading<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.pipeline.volume.poison.set("a commit panicked");
        }
        let is_awaited = {
            let mut state = self.pipeline.state.lock();
            state.leading = false;
            // The background thread is idle while a commit runs: the commit is due, and could not
            // be written while another one was.
            state.crowded || state.is_enough || (state.is_idle && state.since.is_some())
        };
        self.pipeline.settled.notify_all();
        if is_awaited {
            self.pipeline.due.notify_all();
        }
        if self.pipeline.volume.poison.is_set() {
            self.pipeline.give_up();
        }
        leader::ends();
    }
}
