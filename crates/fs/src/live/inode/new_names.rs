//! The names that a folder has gained in one commit; `live::op::new_names` has their use.

use std::collections::BTreeSet;

use xact_types::{BlockNr, CommitId};

/// The names that a folder has gained in one commit, as far as they are known.
pub(in crate::live) struct NewNames {
    commit: CommitId,
    /// Names of inodes that were made in the commit; `None` after any other change of the folder.
    count: Option<u32>,
    /// The blocks that were changed, and perhaps some that were freed.
    pub changed: BTreeSet<BlockNr>,
    /// The folder before the commit: its number of blocks, and whether it had an index.
    pub blocks: u32,
    pub indexed: bool,
}

/// A change of a folder's names.
#[derive(Clone, Copy)]
pub(in crate::live) enum NameChange {
    /// A name of an inode of the same commit was added.
    Added,
    Removed,
    /// Such a name was given to another such inode.
    Moved,
    Other,
}

impl NewNames {
    /// A record that begins with the folder's first change in a commit. `known`: the folder was not
    /// changed in the commit before.
    pub fn begin(commit: CommitId, known: bool, blocks: u32, indexed: bool) -> NewNames {
        NewNames { commit, count: known.then_some(0), changed: BTreeSet::new(), blocks, indexed }
    }

    pub fn is_of(&self, commit: CommitId) -> bool {
        self.commit == commit
    }

    /// Call after a change; true if the folder has its old names again.
    pub fn note(&mut self, change: NameChange, updated: &[BlockNr]) -> bool {
        self.count = self.count.and_then(|count| match change {
            NameChange::Added => Some(count + 1),
            NameChange::Removed => count.checked_sub(1),
            NameChange::Moved => Some(count),
            NameChange::Other => None,
        });
        match self.count {
            Some(_) => self.changed.extend(updated),
            None => self.changed.clear(),
        }
        self.count == Some(0) && matches!(change, NameChange::Removed)
    }
}
