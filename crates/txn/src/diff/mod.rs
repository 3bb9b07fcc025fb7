//! The net effect of a transaction by path, for users who decide about the transaction.

pub(crate) mod budget;
pub(crate) mod by_file;
pub(crate) mod by_path;
pub(crate) mod places;
mod renames;

use xact_fs::Attr;

/// The kind of a difference.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum What {
    /// The name is new.
    Added,
    /// The name no longer exists.
    Deleted,
    /// The contents changed, or the name has another inode (as after "write a new file, rename it
    /// over").
    Modified,
    /// Renamed from another path, which no longer exists or has another inode.
    Renamed,
    /// Only permissions, owner, times, flags or extended attributes changed.
    Attributes,
}

/// One line of a diff.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Difference {
    /// The kind of the difference.
    pub what: What,
    /// Path from the root of the volume, with a leading `/`; for a deletion, the old path.
    pub path: Vec<u8>,
    /// The old path of a rename.
    pub from: Option<Vec<u8>>,
    /// The old path if a folder above was renamed.
    pub was_at: Option<Vec<u8>>,
    /// The attributes as of the transaction's begin, or in the older snapshot.
    pub old: Option<Attr>,
    /// The attributes in the transaction, or in the newer snapshot.
    pub new: Option<Attr>,
}

impl Difference {
    /// The path in one of the two states.
    pub fn path_on(&self, side: Side) -> &[u8] {
        let old = self.from.as_ref().or(self.was_at.as_ref());
        if side == Side::Old { old.unwrap_or(&self.path) } else { &self.path }
    }
}

/// The two states of the volume that are compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Side {
    /// The state as of the transaction's begin (or its last partial commit).
    Old,
    /// The state in the transaction's view.
    New,
}

impl Difference {
    /// Memory in bytes.
    pub fn bytes(&self) -> usize {
        size_of::<Difference>()
            + self.path.len()
            + self.from.as_ref().map_or(0, Vec::len)
            + self.was_at.as_ref().map_or(0, Vec::len)
            + 32
    }
}
