//! The running and the draining commit, under the pipeline's lock.

use std::collections::BTreeSet;
use std::time::Instant;

use xact_types::CommitId;

use super::Action;

/// A commit that is closed while handles are open in it and others begin in the next.
pub(super) struct Draining {
    pub commit: CommitId,
    pub handles: u32,
    /// As [`State::reserved`].
    pub reserved: u64,
    /// Handles that may still begin in it; see [`State::join_draining`].
    pub may_join_draining: u32,
}

pub(super) struct State {
    /// Credits of one commit.
    pub max_credits: u32,
    /// Credits that one handle may have if it has the commit for itself, as the commit of a large
    /// user transaction does.
    pub max_alone: u32,
    pub running: CommitId,
    pub draining: Option<Draining>,
    /// The time at which it was locked.
    pub locked: Option<Instant>,
    /// A leader has locked the running commit, or is about to.
    pub closing: bool,
    pub handles: u32,
    /// Running waits of handles, for the device or for a thread that may wait for it, by the order
    /// in which they began.
    pub waits: BTreeSet<u64>,
    /// The number of such waits so far.
    pub waits_begun: u64,
    /// Credits that are used, or that open handles may still use.
    pub reserved: u64,
    /// When the running commit's first handle began.
    pub since: Option<Instant>,
    pub durable: CommitId,
    pub leading: bool,
    /// An operation waits for space, so the running commit is due now.
    pub crowded: bool,
    /// The number of credits at which the commit is due even if no operation waits, and whether it
    /// has reached them.
    pub enough: u64,
    pub is_enough: bool,
    /// The background thread sleeps until it is notified, not until a point in time. While it
    /// sleeps until a time, a notification would only cost a thread's wake-up for each commit: it
    /// looks at the running commit's age when it wakes.
    pub is_idle: bool,
    /// Unwritten commits that must follow their data in any mode.
    pub ordered: BTreeSet<CommitId>,
    /// Handles that wait for a commit of their own.
    pub waiting_alone: u32,
    pub actions: Vec<(CommitId, Action)>,
    pub stopping: bool,
}

impl State {
    pub fn new(max_credits: u32, max_alone: u32) -> State {
        State {
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
        }
    }

    /// The reserved credits of a commit in which a handle is open.
    pub fn reserved_of(&mut self, commit: CommitId) -> &mut u64 {
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
    pub fn begin(&mut self, credits: u32) -> CommitId {
        self.handles += 1;
        self.reserved += u64::from(credits);
        self.since.get_or_insert_with(Instant::now);
        self.running
    }

    /// A handle begins in the draining commit, as if the commit had been closed a moment later. It
    /// may not if a handle has begun in the next commit: an earlier operation must not become
    /// durable after a later one.
    pub fn join_draining(&mut self, credits: u32) -> Option<CommitId> {
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

    pub fn open_next(&mut self) {
        self.running = CommitId(self.running.0 + 1);
        self.handles = 0;
        self.reserved = 0;
        self.since = None;
        self.crowded = false;
        self.is_enough = false;
    }
}
