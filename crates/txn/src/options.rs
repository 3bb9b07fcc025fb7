//! Options and states of a transaction.

/// The checks of a commit.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Isolation {
    /// No item that the transaction has read or written was changed by others. The result is as if
    /// the transaction had run alone, at the moment of its commit.
    #[default]
    Serializable,
    /// No item that it has written was changed by others. Two transactions may each read items that
    /// the other one writes.
    Snapshot,
}

/// When a conflict between the changes of two open transactions is found. Conflicts with changes
/// that are visible are found in the same way for both.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum ConflictDetection {
    /// Once one of them has committed: the other one fails.
    #[default]
    Lazy,
    /// At the change: an eager transaction fails at once if it changes what another open
    /// transaction has changed before. A lazy one that does so is not disturbed.
    Eager,
}

/// The point at which `commit` returns.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Durability {
    /// Once a crash can no longer undo the commit.
    #[default]
    Durable,
    /// Once the commit is visible. It becomes durable with the next durable commit, `fsync` or
    /// `sync`, and no later than a few seconds after. A crash before that undoes it as a whole,
    /// with all later commits.
    Ordered,
    /// As `Ordered`, for contents that later commits will replace (TX-10). Contents of both wait in
    /// memory, up to a limit, and are never written if they were replaced before the next durable
    /// commit. With `data=adaptive`, more of these contents go through the journal.
    Consolidated,
}

/// Options of a transaction.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct TxOptions {
    /// Its number, which is reported to transactions that conflict with it.
    pub id: u64,
    /// The checks of its commit.
    pub isolation: Isolation,
    /// When it finds conflicts with open transactions.
    pub detection: ConflictDetection,
    /// Attributes are read by a kernel, which asks for all attributes of a file when it is opened.
    /// If the transaction itself writes to the file, the time of modification does not count as
    /// read.
    pub mounted: bool,
    /// The user on whose behalf space is used.
    pub owner: u32,
}

/// The state of a transaction; see [`Transaction`](crate::Transaction).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum TxState {
    /// It can be used.
    Active,
    /// Its commit runs.
    Committing,
    /// Its changes are visible.
    Committed,
    /// Its changes were discarded.
    Aborted,
}
