//! The net effect of a transaction by path, as people see it when they decide over the transaction.

pub(crate) mod budget;
pub(crate) mod by_file;
pub(crate) mod by_path;
pub(crate) mod places;
mod renames;

use xact_fs::Attr;

/// What happened to a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum What {
    Added,
    Deleted,
    /// Its contents, or what the name stands for (as by "write a new file, rename it over").
    Modified,
    /// From another path, which is gone or stands for something else.
    Renamed,
    /// Permissions, owner, times, flags or extended attributes, and nothing else.
    Attributes,
}

/// One line of a diff.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Difference {
    pub what: What,
    /// From the root of the volume, with a leading `/`; of what is deleted, where it was.
    pub path: Vec<u8>,
    /// Where a renamed one was.
    pub from: Option<Vec<u8>>,
    /// Where what is not renamed itself was, if a folder above it was.
    pub was_at: Option<Vec<u8>>,
    /// What was there as of the transaction's begin, and what is there now.
    pub old: Option<Attr>,
    pub new: Option<Attr>,
}

impl Difference {
    /// Where this is in one of the two states.
    pub fn path_on(&self, side: Side) -> &[u8] {
        let old = self.from.as_ref().or(self.was_at.as_ref());
        if side == Side::Old { old.unwrap_or(&self.path) } else { &self.path }
    }
}

/// The two states of the volume that a difference is between.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// As of the transaction's begin (or its last partial commit).
    Old,
    /// As the transaction sees it.
    New,
}

impl Difference {
    /// Bytes that it takes in memory.
    pub fn bytes(&self) -> usize {
        size_of::<Difference>()
            + self.path.len()
            + self.from.as_ref().map_or(0, Vec::len)
            + self.was_at.as_ref().map_or(0, Vec::len)
            + 32
    }
}
