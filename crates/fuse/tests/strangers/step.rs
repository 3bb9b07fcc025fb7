//! Steps of a history. Each makes sense after any others, so that a history can be shortened: a
//! step that refers to something that does not exist has no effect.

use std::fmt;

use crate::call::Call;

/// A process of a user: one that lives on, or one that may be killed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Actor {
    pub user: usize,
    pub mortal: bool,
}

impl Actor {
    pub fn user(user: usize) -> Actor {
        Actor { user, mortal: false }
    }

    pub fn mortal(user: usize) -> Actor {
        Actor { user, mortal: true }
    }
}

impl fmt::Display for Actor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mortal = if self.mortal { "'" } else { "" };
        match self.user {
            crate::ROOT => write!(f, "root{mortal}"),
            user => write!(f, "user {user}{mortal}"),
        }
    }
}

/// The savepoint call of a transaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Savepoint {
    Make,
    RollBack,
    Release,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// On both file systems.
    Plain(Actor, Call),
    /// A transaction, known by its number from here on.
    Begin {
        by: Actor,
        tx: usize,
        snapshot: bool,
    },
    In {
        tx: usize,
        call: Call,
    },
    Commit {
        tx: usize,
        flags: u32,
    },
    Abort {
        tx: usize,
    },
    /// The channel is closed.
    Leave {
        tx: usize,
    },
    Select {
        tx: usize,
        path: String,
    },
    DropSelected {
        tx: usize,
    },
    Keep {
        tx: usize,
    },
    Attach {
        by: Actor,
        tx: usize,
    },
    /// By its owner, on the control channel; `nth` of the open savepoints.
    Savepoint {
        tx: usize,
        what: Savepoint,
        nth: usize,
    },
    Info {
        by: Actor,
        tx: usize,
        next: bool,
    },
    /// `passed`: on the transaction's own channel, which was passed. `again`: the list that was
    /// made before.
    Diff {
        by: Actor,
        tx: usize,
        by_file: bool,
        passed: bool,
        again: bool,
    },
    /// A list of changes, then both sides of each.
    ReadSides {
        by: Actor,
        tx: usize,
        by_file: bool,
    },
    /// Reads the inode at a path, in the view or outside, on a channel that has no list.
    ReadNumber {
        by: Actor,
        tx: usize,
        path: String,
        of_view: bool,
        new: bool,
    },
    /// A folder or file of the view is opened for reading, and the descriptor passed.
    PassView {
        tx: usize,
        path: String,
        to: Actor,
    },
    PassChannel {
        tx: usize,
        to: Actor,
    },
    /// With the descriptor of a view that was passed.
    Foreign {
        by: Actor,
        what: Savepoint,
        number: u64,
    },
    /// An atomic write of a file that is opened with these flags.
    Start {
        by: Actor,
        path: String,
        flags: u64,
    },
    Section {
        by: Actor,
        page: u64,
        tag: u64,
    },
    EndSection {
        by: Actor,
        commit: bool,
    },
    /// The descriptor is closed, and the atomic write neither committed nor aborted.
    LetGo {
        by: Actor,
    },
    Map {
        by: Actor,
        path: String,
    },
    Store {
        by: Actor,
        offset: u64,
        tag: u64,
    },
    /// One user has stored into a page that is not written out yet, when another user's atomic
    /// write writes to it.
    StoreUnder {
        by: Actor,
        offset: u64,
        tag: u64,
        section: Actor,
        written: u64,
    },
    Unmap {
        by: Actor,
    },
    /// A control call on a file that does not accept it.
    Stray {
        by: Actor,
        path: String,
        command: u32,
        fill: u8,
    },
    /// Kills the mortal process of a user.
    Kill {
        user: usize,
    },
    Compare,
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Step::Plain(by, call) => write!(f, "{by}: {call}"),
            Step::In { tx, call } => write!(f, "in transaction {tx}: {call}"),
            other => write!(f, "{other:?}"),
        }
    }
}
