//! The leading of a commit: a hook for the thread that leads.
//!
//! Other threads wait for the leader (see `pipeline`). A server that gives some of its threads a
//! low priority has to raise it while they lead: otherwise a thread of high priority waits for one
//! that does not get a CPU (priority inversion).

use std::cell::Cell;

thread_local! {
    static WHEN_LEADING: Cell<Option<fn(bool)>> = const { Cell::new(None) };
}

/// Sets the function that this thread calls when it begins to lead a commit (with `true`) and when
/// it has ended (with `false`). It runs without a lock of the engine, and must not call the engine.
pub fn when_leading(action: Option<fn(bool)>) {
    WHEN_LEADING.set(action);
}

pub(super) fn begins() {
    if let Some(action) = WHEN_LEADING.get() {
        action(true);
    }
}

pub(super) fn ends() {
    if let Some(action) = WHEN_LEADING.get() {
        action(false);
    }
}
