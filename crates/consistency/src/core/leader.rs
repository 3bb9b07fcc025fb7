//! What a thread does while it leads a commit.
//!
//! Other threads wait for the leader (see `pipeline`). A server that gives some of its threads a low
//! priority has to raise it while they lead: otherwise a thread of high priority waits for one that
//! does not get a CPU (priority inversion).

use std::cell::Cell;

thread_local! {
    static WHEN_LEADING: Cell<Option<fn(bool)>> = const { Cell::new(None) };
}

/// Sets what the calling thread does when it begins to lead a commit (called with `true`) and when
/// it has ended (`false`). The function is called without a lock of the engine, and must not call
/// the engine.
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
