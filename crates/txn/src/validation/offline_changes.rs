//! Changes made while the volume was not mounted by xact, found by the fingerprints of a persisted
//! transaction when it is reopened.

use std::collections::BTreeSet;

use xact_types::Ino;

/// Changes between the end of one mount and the next.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(crate) struct OfflineChanges {
    /// Deleted inodes, whether or not their numbers were reused.
    pub gone: BTreeSet<Ino>,
    pub names: BTreeSet<(Ino, Vec<u8>)>,
    pub listings: BTreeSet<Ino>,
    /// Files with changes in blocks that the transaction has read or written.
    pub contents: BTreeSet<Ino>,
    pub xattrs: BTreeSet<(Ino, Vec<u8>)>,
    pub xattr_lists: BTreeSet<Ino>,
}

/// Whether a name of this inode is in a set.
pub(super) fn has_name(names: &BTreeSet<(Ino, Vec<u8>)>, ino: Ino, name: &[u8]) -> bool {
    // Most transactions were never persisted, and then the name need not be copied.
    !names.is_empty() && names.contains(&(ino, name.to_vec()))
}
