//! Notification of caches of the base around a commit.

use super::changes::Changes;

/// A cache of what the base shows, such as the kernel's, which must not show some of a commit
/// beside the state before it. `()` observes nothing.
///
/// A commit calls `before` and then `after`, once each, or neither where there is nothing to apply
/// or it is refused earlier.
pub trait CommitObserver {
    /// No lock of the base is held, and all that takes long is done. It may wait for operations on
    /// the base. From its return until `after`, nobody may take a copy of what is about to change.
    fn before(&mut self, _changes: &Changes) {}

    /// The base shows the changes, all of them, or the commit was refused and it is as it was. No
    /// lock is held, and nothing has waited for the device.
    fn after(&mut self) {}
}

impl CommitObserver for () {}
