//! Parts of a transaction: some of its changes apart from the rest, by path.
//!
//! An overlay is taken apart along two kinds of pieces: changes of names, and changes of an inode
//! itself. Link counts, subdirectory counts and `..` follow from the names, so they are worked out
//! anew for each part ([`Overlay::part`]); an inode that was born belongs to the names it has.
//!
//! What has to stay together:
//! 1. all names that one rename concerns, and names that several renames share;
//! 2. to commit: a name in a new folder and that folder's own; a folder's deletion and all
//!    deletions in it;
//! 3. to drop: a name that comes back in a deleted folder and that folder's own; a new folder and
//!    all names in it.
//!
//! What then could still not be, folders moved into each other, is refused.

use std::collections::BTreeSet;

use xact_fs::{Attr, AttrChange, FileKind};
use xact_types::{Errno, Error, Ino, Result};

use crate::diff::{self, Budget, Found, NameAt, Places, Side};
use crate::overlay::{FileChange, Node, Overlay};
use crate::read_set::Paths;

/// What is to happen with the selected changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Purpose {
    Commit,
    Drop,
}

/// Which side of a selection a part is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Keep {
    Selected,
    Others,
}

/// Some of an overlay's changes.
#[derive(Debug, Default)]
pub(crate) struct Selection {
    names: BTreeSet<NameAt>,
    inodes: BTreeSet<Ino>,
}

impl Selection {
    /// The changes at and below `paths` (from the volume's root, with or without a leading `/`),
    /// with what has to stay together with them.
    pub fn of(
        overlay: &Overlay,
        met: &Paths,
        paths: &[impl AsRef<[u8]>],
        purpose: Purpose,
        budget: &mut Budget,
    ) -> Result<Selection> {
        let all = diff::all(overlay, met, budget)?;
        let mut selection = Selection::default();
        for path in paths {
            let path = clean(path.as_ref());
            let mut any = false;
            for found in all.iter().filter(|found| concerns(found, &path)) {
                selection.add(found);
                any = true;
            }
            if !any {
                let shown = String::from_utf8_lossy(&path);
                let shown = if shown.is_empty() { "/" } else { &shown };
                return Err(Error::Usage(format!("the transaction changes nothing at or below {shown}")));
            }
        }
        while selection.close_over(overlay, met, &all, purpose) {}
        Ok(selection)
    }

    fn add(&mut self, found: &Found) -> bool {
        let before = (self.names.len(), self.inodes.len());
        self.names.extend(found.names.iter().cloned());
        self.inodes.extend(found.ino);
        before != (self.names.len(), self.inodes.len())
    }

    /// One round of the rules in the module's head; false when nothing came of it.
    fn close_over(&mut self, overlay: &Overlay, met: &Paths, all: &[Found], purpose: Purpose) -> bool {
        let mut grown = false;
        for found in all {
            if found.names.iter().any(|at| self.names.contains(at)) {
                grown |= self.add(found);
            }
        }
        let side = if purpose == Purpose::Commit { Side::New } else { Side::Old };
        let places = Places::of(overlay, side, met);
        let mut more: Vec<NameAt> = Vec::new();
        for (dir, name) in &self.names {
            let Some(node) = overlay.nodes.get(dir) else { continue };
            let Some(change) = node.names.get(name) else { continue };
            let (arrives, leaves) = match purpose {
                Purpose::Commit => (change.now, change.base),
                Purpose::Drop => (change.base, change.now),
            };
            let is_new = match purpose {
                Purpose::Commit => node.born,
                Purpose::Drop => node.removed_dir && !node.born,
            };
            if arrives.is_some()
                && is_new
                && let Some((parent, name)) = places.place(*dir)
            {
                more.push((parent, name.to_vec()));
            }
            // A folder that goes takes all that changed in it along.
            if let Some(gone) = leaves.and_then(|entry| overlay.nodes.get(&entry.ino)) {
                let goes = match purpose {
                    Purpose::Commit => gone.removed_dir,
                    Purpose::Drop => gone.born && gone.origin.kind == FileKind::Directory,
                };
                if goes {
                    more.extend(gone.names.iter().map(|(name, _)| (gone.origin.ino, name.clone())));
                }
            }
        }
        for at in more {
            grown |= self.names.insert(at);
        }
        grown
    }
}

/// Without slashes at the ends, and with one at the start: `a/b/` as `/a/b`. Empty for the root.
fn clean(path: &[u8]) -> Vec<u8> {
    let parts = path.split(|&byte| byte == b'/').filter(|part| !part.is_empty() && *part != b".");
    parts.fold(Vec::new(), |mut clean, part| {
        clean.push(b'/');
        clean.extend_from_slice(part);
        clean
    })
}

fn concerns(found: &Found, path: &[u8]) -> bool {
    let below = |of: &[u8]| of.strip_prefix(path).is_some_and(|rest| rest.first().is_none_or(|b| *b == b'/'));
    let Found { difference, .. } = found;
    below(&difference.path)
        || difference.from.as_deref().is_some_and(below)
        || found.deep.iter().any(|path| below(path))
}

impl Overlay {
    /// The selected changes alone, or all others.
    pub fn part(&self, selection: &Selection, keep: Keep) -> Overlay {
        let kept = |selected: bool| selected == (keep == Keep::Selected);
        let mut part = self.clone();
        for (&ino, node) in &mut part.nodes {
            node.names.retain(|name| kept(selection.names.contains(&(ino, name.to_vec()))));
            if diff::own_change(node).is_some() && !kept(selection.inodes.contains(&ino)) {
                node.forget_own_change();
            }
        }
        part.settle();
        part
    }

    /// The attributes of an inode after the commit of this part; `ESTALE` for one that it has deleted, which
    /// may be there for a while.
    pub fn still_has(&self, now: Attr) -> Result<Attr> {
        let deleted = now.nlink == 0 && self.nodes.contains_key(&now.ino);
        if deleted { Err(Error::Posix(Errno::ESTALE)) } else { Ok(now) }
    }

    /// After the commit of `part`, which was selected: the base has that now. `attr` tells the
    /// attributes of an inode as of the view opened with that commit.
    pub fn absorb(&mut self, selection: &Selection, part: &Overlay, attr: impl Fn(Ino) -> Result<Attr>) {
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
        self.settle();
        self.nodes.retain(|&ino, node| {
            if node.born {
                return true;
            }
            let changes_contents = node.file.is_changed(node.origin.size);
            // What the part has deleted has no rest.
            let Ok(now) = attr(ino) else { return false };
            node.origin = now;
            if !changes_contents {
                node.file = FileChange { size: now.size, ..FileChange::default() };
            }
            true
        });
    }

    /// Works out anew what follows from the names, and drops nodes that say nothing any more.
    fn settle(&mut self) {
        self.derive_links();
        self.nodes.retain(|_, node| {
            if node.born {
                return node.holds > 0 || node.nlink(0, u32::MAX) > 0;
            }
            if diff::own_change(node).is_none() && !node.changes_structure() {
                // Times that moved in passing have nothing left to go with.
                node.changed = AttrChange::default();
            }
            node.is_changed()
        });
        self.recount();
    }

    /// Works out anew what follows from the names: link counts, subdirectories, where `..` points.
    pub fn derive_links(&mut self) {
        let mut gained: Vec<(Ino, Ino)> = Vec::new();
        let mut lost: Vec<(Ino, Ino)> = Vec::new();
        for (&dir, node) in &mut self.nodes {
            let is_dir = |entry: Option<xact_fs::Entry>| {
                i64::from(entry.is_some_and(|entry| entry.kind == FileKind::Directory))
            };
            node.subdirs = 0;
            for (_, change) in node.names.iter().filter(|(_, change)| change.now != change.base) {
                node.subdirs += is_dir(change.now) - is_dir(change.base);
                gained.extend(change.now.map(|entry| (entry.ino, dir)));
                lost.extend(change.base.map(|entry| (entry.ino, dir)));
            }
            node.links = 0;
            node.removed_dir = node.born && node.origin.kind == FileKind::Directory;
            node.parent = None;
        }
        for (ino, _) in &lost {
            if let Some(node) = self.nodes.get_mut(ino) {
                node.links -= 1;
                node.removed_dir = node.origin.kind == FileKind::Directory;
            }
        }
        let left: BTreeSet<(Ino, Ino)> = lost.into_iter().collect();
        for (ino, dir) in gained {
            if let Some(node) = self.nodes.get_mut(&ino) {
                node.links += 1;
                node.removed_dir = false;
                let is_dir = node.origin.kind == FileKind::Directory;
                node.parent = (is_dir && !left.contains(&(ino, dir))).then_some(dir);
            }
        }
        for node in self.nodes.values_mut().filter(|node| node.origin.kind == FileKind::Directory) {
            // A directory has one name, and its own `.` on top.
            node.links = if node.born && !node.removed_dir { 2 } else { 0 };
        }
    }

    /// Refuses folders that would lie in each other. `parent` tells where a folder is in the base.
    pub fn check_shape(&self, parent: impl Fn(Ino) -> Result<Ino>, met: &Paths) -> Result<()> {
        for (&dir, node) in self.nodes.iter().filter(|(_, node)| node.parent.is_some()) {
            let mut at = dir;
            let mut seen = BTreeSet::new();
            while at != Ino::ROOT {
                if !seen.insert(at) {
                    let path = met.of(dir);
                    return Err(Error::Usage(format!(
                        "{path} cannot be taken apart from the rest: folders would lie in each other"
                    )));
                }
                let own = self.nodes.get(&at).and_then(|node| node.parent);
                at = own.map_or_else(|| parent(at), Ok)?;
            }
            debug_assert!(node.origin.kind == FileKind::Directory);
        }
        Ok(())
    }
}

impl Node {
    /// Everything that is not a matter of names.
    fn forget_own_change(&mut self) {
        self.changed = AttrChange { ctime: self.changed.ctime, ..AttrChange::default() };
        self.xattrs.clear();
        self.file = FileChange { size: self.origin.size, ..FileChange::default() };
    }
}
