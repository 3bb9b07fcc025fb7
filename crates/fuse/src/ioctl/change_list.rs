//! The list of changes that a control channel returns page by page, and that it reads contents by.

use std::collections::HashMap;
use std::sync::{Arc, OnceLock};

use xact::{Account, Charge, Difference, Resource, SearchedFolders, Side};
use xact_types::{Ino, Result};

/// The changes of a transaction, or between snapshots, as of one moment.
pub struct ChangeList {
    /// The transaction; 0 for snapshots.
    pub of: u64,
    pub changes: Vec<Difference>,
    /// Folders that the channel's user may search.
    pub searched: SearchedFolders,
    /// The positions in `changes` of each side of a change. It is built when contents are first
    /// read.
    index: OnceLock<HashMap<(Ino, bool), Vec<usize>>>,
    _memory: Charge,
}

/// Approximate memory of the index for one change, in bytes.
const INDEX_BYTES: usize = 160;

impl ChangeList {
    /// `ENOMEM`: the list takes more memory than the user may have.
    pub fn new(of: u64, changes: Vec<Difference>, account: &Arc<Account>) -> Result<ChangeList> {
        let bytes: usize = changes.iter().map(|change| change.bytes() + INDEX_BYTES).sum();
        let memory = account.charge(Resource::Memory, bytes as u64)?;
        let searched = SearchedFolders::default();
        Ok(ChangeList { of, changes, searched, index: OnceLock::new(), _memory: memory })
    }

    /// The paths at which this inode is one side of a change.
    pub fn paths_of(&self, side: Side, ino: Ino) -> impl Iterator<Item = &[u8]> {
        let index = self.index.get_or_init(|| {
            let mut index: HashMap<_, Vec<_>> = HashMap::new();
            for (at, change) in self.changes.iter().enumerate() {
                for (attr, is_new) in [(&change.old, false), (&change.new, true)] {
                    if let Some(attr) = attr {
                        index.entry((attr.ino, is_new)).or_default().push(at);
                    }
                }
            }
            index
        });
        let found = index.get(&(ino, side == Side::New)).into_iter().flatten();
        found.map(move |&at| self.changes[at].path_on(side))
    }
}
