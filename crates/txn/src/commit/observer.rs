//! Notifies caches of the base before and after a commit.

use super::changes::Changes;

/// A cache of the base, such as the kernel's, which must not mix parts of a commit with the state
/// before it. `()` observes nothing.
///
/// A commit calls `before` and then `after`, once each, or neither if there is nothing to apply or
/// it is refused earlier.
pub trait CommitObserver {
    /// Called without locks of the base, after all slow steps. It may wait for operations on the
    /// base. From its return until `after`, no cache may copy items that are about to change.
    fn before(&mut self, _changes: &Changes) {}

    /// The base shows all of the changes, or none if the commit was refused. Called without locks;
    /// no step in between has waited for the device.
    fn after(&mut self) {}
}

impl CommitObserver for () {}
