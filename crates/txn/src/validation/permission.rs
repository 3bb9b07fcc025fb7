//! The basis of the permission to make a transaction's changes.
//!
//! The front end checks permissions at each call, in the view. A commit makes the changes later, so
//! it must not make a change for which the permission was withdrawn in between. It compares, under
//! every isolation,
//! 1. mode, owner, access control lists, and the immutable and append-only flags of every inode
//!    that it changes;
//! 2. mode, owner and access control lists of the folders above these, and the names on the paths.
//!
//! A serializable transaction has recorded all of this as read. Under snapshot isolation, these are
//! the only reads that are validated, unless the read set was coarsened: then all reads are
//! validated. If another process has changed any of this, that is a conflict, even if the
//! transaction's changes would still be permitted. The kernel, which knows all groups and
//! capabilities of the caller, checks them again at the next attempt.

use std::collections::{BTreeMap, BTreeSet};

use xact_fs::Attr;
use xact_fs::posix::ACL_NAMES;
use xact_types::Ino;

use super::read_set::ReadSet;
use crate::overlay::Overlay;

/// The inodes, names and lists to compare.
#[derive(Debug, Default)]
pub(crate) struct PermissionBasis<'a> {
    /// Changed inodes, with their attributes as of the view.
    pub changed: BTreeMap<Ino, &'a Attr>,
    /// Folders above these that the front end has read.
    pub folders: BTreeMap<Ino, &'a Attr>,
    /// Names on the paths, except those that the transaction has changed itself.
    pub names: BTreeSet<(Ino, &'a [u8])>,
    /// Access control lists that the front end has read, present or not.
    pub lists: BTreeSet<(Ino, &'a [u8])>,
}

impl<'a> PermissionBasis<'a> {
    pub fn of(overlay: &'a Overlay, reads: &'a ReadSet) -> PermissionBasis<'a> {
        let mut basis = PermissionBasis::default();
        let changed =
            overlay.nodes.iter().filter(|(_, node)| node.is_changed() && !node.changes_dir_times_only());
        let mut met = BTreeSet::new();
        for (&ino, node) in changed {
            if !node.born {
                basis.changed.insert(ino, &node.origin);
            }
            basis.add_path(ino, overlay, reads, &mut met);
        }
        // Inodes that lose or get a name count, too: a rename within one folder changes only its
        // times.
        let names = overlay.nodes.values().flat_map(|node| node.names.iter());
        let ends = names.filter(|(_, change)| change.base != change.now).flat_map(|(_, c)| [c.base, c.now]);
        for ino in ends.flatten().map(|entry| entry.ino) {
            if let Some(node) = overlay.nodes.get(&ino).filter(|node| !node.born) {
                basis.changed.insert(ino, &node.origin);
            }
        }
        let inodes = basis.changed.keys().chain(basis.folders.keys());
        for (ino, names) in inodes.filter_map(|ino| Some((*ino, reads.xattrs.get(ino)?))) {
            basis
                .lists
                .extend(ACL_NAMES.into_iter().filter(|acl| names.contains(*acl)).map(|acl| (ino, acl)));
        }
        basis
    }

    /// Adds the folders above an inode, by the names by which they were last found. `met`: folders
    /// that were already added.
    fn add_path(&mut self, mut at: Ino, overlay: &'a Overlay, reads: &'a ReadSet, met: &mut BTreeSet<Ino>) {
        while at != Ino::ROOT
            && met.insert(at)
            && let Some((folder, name)) = reads.paths.place(at)
        {
            let node = overlay.nodes.get(&folder);
            let is_own = node.is_some_and(|node| node.born || node.names.get(name).is_some());
            if !is_own {
                self.names.insert((folder, name));
            }
            if node.is_none_or(|node| !node.born)
                && let Some((_, attr)) = reads.attrs.get(&folder)
            {
                self.folders.insert(folder, attr);
            }
            at = folder;
        }
    }

    pub fn inodes(&self) -> impl Iterator<Item = Ino> {
        let named = self.names.iter().map(|(folder, _)| folder);
        self.changed.keys().chain(self.folders.keys()).chain(named).copied()
    }
}
