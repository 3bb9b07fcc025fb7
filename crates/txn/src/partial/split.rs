//! Splits an overlay: into the selected changes or all others, and the rest after a partial commit.

use std::collections::BTreeSet;

use xact_fs::{Attr, AttrChange, FileKind};
use xact_types::{Errno, Error, Ino, Result};

use super::selection::Selection;
use crate::diff::by_path::own_change;
use crate::overlay::{FileChange, Node, Overlay};
use crate::validation::paths::Paths;

/// The side of a selection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Keep {
    Selected,
    Others,
}

impl Overlay {
    /// The selected changes only, or all others.
    pub fn part(&self, selection: &Selection, keep: Keep) -> Overlay {
        let kept = |selected: bool| selected == (keep == Keep::Selected);
        let mut part = self.clone();
        for (&ino, node) in &mut part.nodes {
            node.names.retain(|name| kept(selection.names.contains(&(ino, name.to_vec()))));
            if own_change(node).is_some() && !kept(selection.inodes.contains(&ino)) {
                node.forget_own_change();
            }
        }
        part.normalize();
        part
    }

    /// The attributes of an inode after the commit of this part; `ESTALE` if the part has deleted
    /// it, even if the base still has it for a while.
    pub fn still_has(&self, now: Attr) -> Result<Attr> {
        let deleted = now.nlink == 0 && self.nodes.contains_key(&now.ino);
        if deleted { Err(Error::Posix(Errno::ESTALE)) } else { Ok(now) }
    }

    /// Removes the selected `part` after its commit, because the base has it now. `attr` returns
    /// the attributes of an inode as of the view opened with that commit, `stays` whether an inode
    /// keeps those that it had: it may be a conflict.
    pub fn absorb(
        &mut self,
        selection: &Selection,
        part: &Overlay,
        stays: impl Fn(Ino) -> bool,
        attr: impl Fn(Ino) -> Result<Attr>,
    ) {
        for (&ino, node) in &mut self.nodes {
            node.names.retain(|name| !selection.names.contains(&(ino, name.to_vec())));
            let adopted = node.born && part.nodes.get(&ino).is_some_and(|node| node.nlink(0, u32::MAX) > 0);
            if adopted || selection.inodes.contains(&ino) {
                node.forget_own_change();
            }
            if adopted {
                (node.born, node.target, node.holds) = (false, None, 0);
            }
        }
        self.normalize();
        self.nodes.retain(|&ino, node| {
            if node.born || stays(ino) {
                return true;
            }
            let changes_contents = node.file.is_changed(node.origin.size);
            // An inode that the part has deleted has no remaining changes. One that others have
            // deleted has them, and they are conflicts.
            let Ok(now) = attr(ino) else { return !part.nodes.contains_key(&ino) };
            node.origin = now;
            if !changes_contents {
                node.file = FileChange { size: now.size, ..FileChange::default() };
            }
            true
        });
    }

    /// Derives the values that follow from the names again, and drops nodes without changes.
    fn normalize(&mut self) {
        self.derive_links();
        self.nodes.retain(|_, node| {
            if node.born {
                return node.holds > 0 || node.nlink(0, u32::MAX) > 0;
            }
            if own_change(node).is_none() && !node.changes_structure() {
                // Times that were changed by other changes are dropped with them.
                node.changed = AttrChange::default();
            }
            node.is_changed()
        });
        self.recount();
    }

    /// Refuses folders that would contain each other. `parent` returns a folder's parent in the
    /// base.
    pub fn check_shape(&self, parent: impl Fn(Ino) -> Result<Ino>, met: &Paths) -> Result<()> {
        // Folders from which a way to the root is known, so that each folder is visited once.
        let mut sound = BTreeSet::new();
        for (&dir, node) in self.nodes.iter().filter(|(_, node)| node.parent.is_some()) {
            let mut at = dir;
            let mut seen = BTreeSet::new();
            while at != Ino::ROOT && !sound.contains(&at) {
                if !seen.insert(at) {
                    let path = met.of(dir);
                    return Err(Error::Usage(format!(
                        "{path} cannot be separated from the other changes: folders would contain each other"
                    )));
                }
                let own = self.nodes.get(&at).and_then(|node| node.parent);
                at = match own.map_or_else(|| parent(at), Ok) {
                    // Others have deleted it, so it is in no cycle, and its changes conflict.
                    Err(Error::Posix(_)) => break,
                    parent => parent?,
                };
            }
            sound.extend(seen);
            debug_assert!(node.origin.kind == FileKind::Directory);
        }
        Ok(())
    }
}

impl Node {
    /// Drops the changes of the inode itself, and keeps those of names.
    fn forget_own_change(&mut self) {
        self.changed = AttrChange { ctime: self.changed.ctime, ..AttrChange::default() };
        self.xattrs.clear();
        self.file = FileChange { size: self.origin.size, ..FileChange::default() };
    }
}
