//! How a transaction runs, and in which states it can be.

/// What a commit checks.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Isolation {
    /// Nothing that the transaction has read or written was changed by others: the result is as
    /// if it had run alone, at the moment of its commit.
    #[default]
    Serializable,
    /// Only what it has written. Two transactions may then each read what the other writes.
    Snapshot,
}

/// When `commit` returns.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Durability {
    /// When a crash cannot undo it any more.
    #[default]
    Durable,
    /// When it is visible. It becomes durable together with the next durable commit, `fsync` or
    /// `sync`, or by itself within seconds; a crash before that undoes it as a whole, and with it
    /// all that came after.
    Ordered,
    /// As `Ordered`, of contents that later commits are going to replace (TX-10): as far as the
    /// volume's mode lets data into the journal and there is room, they wait there for the next
    /// durable commit, and what has been replaced by then is never written.
    Consolidated,
}

/// How a transaction runs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct TxOptions {
    /// Its number, which those that lose a conflict to it are given.
    pub id: u64,
    pub isolation: Isolation,
    /// It is a kernel that looks at attributes, and it asks for all of a file that is opened: where
    /// the transaction writes to the file itself, the time of modification does not count as read.
    pub mounted: bool,
    /// Whose it is: the user on whose behalf space is used.
    pub owner: u32,
}

/// Where a transaction stands; see [`Transaction`](crate::Transaction).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TxState {
    Active,
    Committing,
    Committed,
    Aborted,
}
