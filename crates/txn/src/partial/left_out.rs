//! The items that a partial commit leaves out of its validation.
//!
//! The caller has chosen some of the transaction's changes. What was read of the files and folders
//! whose changes were not chosen does not count for them: a program reads a file mostly to change
//! it, and the choice says that the rest does not depend on it. All else counts:
//! 1. what the chosen changes write, and what was read of the inodes that they concern;
//! 2. the folders and names on the paths to these, by their old and their new places, with all that
//!    was read of these folders (new folders, renames, and the basis of permissions);
//! 3. everything that was read of files which the transaction does not change: any of it may have
//!    led to the chosen changes;
//! 4. the places of folders above moved ones, under every isolation.
//!
//! An inode with several changes of which one is chosen (a hard link, a file that is also renamed)
//! belongs to the chosen ones completely, as does each folder in which a name is chosen. Of such a
//! folder, other changed names are left out one by one.

use std::collections::BTreeSet;

use xact_fs::FileKind;
use xact_types::Ino;

use crate::diff::Side;
use crate::diff::by_path::{NameAt, own_change};
use crate::diff::places::Places;
use crate::overlay::{Node, Overlay};
use crate::validation::paths::Paths;

/// Items whose changes by others do not matter for a partial commit.
#[derive(Debug, Default)]
pub(crate) struct LeftOut {
    inodes: BTreeSet<Ino>,
    names: BTreeSet<NameAt>,
}

impl LeftOut {
    /// The items that a commit of `part` leaves out of the changes of `whole`. `refused`: a file of
    /// which a change was refused with a conflict.
    pub fn of(part: &Overlay, whole: &Overlay, met: &Paths, refused: Option<Ino>) -> LeftOut {
        let needed = needed(part, whole, met);
        // A folder in which names were made and removed again has no change that could be dropped.
        let is_changed = |node: &Node| own_change(node).is_some() || node.changes_structure();
        let changed = whole.nodes.iter().filter(|(_, node)| !node.born && is_changed(node));
        let changed = changed.map(|(ino, _)| *ino).chain(refused);
        let inodes: BTreeSet<Ino> = changed.filter(|ino| !needed.contains(ino)).collect();
        let mut names = BTreeSet::new();
        for (&dir, node) in &whole.nodes {
            let chosen =
                |name: &[u8]| part.nodes.get(&dir).is_some_and(|node| node.names.get(name).is_some());
            for (name, change) in node.names.iter().filter(|(name, _)| !chosen(name)) {
                // A name on a path to the chosen changes, before or after a rename, counts. A new
                // link of a file is on no path of the volume.
                let is_link =
                    change.base.is_none() && change.now.is_some_and(|now| now.kind != FileKind::Directory);
                let ends = [change.base, change.now].into_iter().flatten();
                if is_link || ends.clone().all(|entry| !needed.contains(&entry.ino)) {
                    names.insert((dir, name.clone()));
                }
            }
        }
        // Programs replace files by renames. So a changed file may be replaced by others at its
        // name, which the transaction has only looked up.
        names.extend(inodes.iter().filter_map(|ino| met.place(*ino)).map(|(dir, name)| (dir, name.to_vec())));
        LeftOut { inodes, names }
    }

    pub fn has(&self, ino: Ino) -> bool {
        self.inodes.contains(&ino)
    }

    pub fn has_name(&self, dir: Ino, name: &[u8]) -> bool {
        !self.names.is_empty() && self.names.contains(&(dir, name.to_vec()))
    }

    /// The changes of the transaction that are left out, by inode.
    pub fn inodes(&self) -> impl Iterator<Item = Ino> {
        self.inodes.iter().copied()
    }

    pub fn names(&self) -> impl Iterator<Item = &NameAt> {
        self.names.iter()
    }
}

/// The inodes that the changes of `part` concern, and all folders above them in the old and in the
/// new state.
fn needed(part: &Overlay, whole: &Overlay, met: &Paths) -> BTreeSet<Ino> {
    let mut next: Vec<Ino> = vec![Ino::ROOT];
    for (&ino, node) in &part.nodes {
        // A new inode without a name is part of no change.
        if !node.born || node.nlink(0, u32::MAX) > 0 {
            next.push(ino);
        }
        let ends = node.names.iter().flat_map(|(_, change)| [change.base, change.now]);
        next.extend(ends.flatten().map(|entry| entry.ino));
    }
    let (old, new) = (Places::of(whole, Side::Old, met), Places::of(whole, Side::New, met));
    let mut needed = BTreeSet::new();
    while let Some(ino) = next.pop() {
        if needed.insert(ino) {
            let places = [old.place(ino), new.place(ino), met.place(ino)];
            next.extend(places.into_iter().flatten().map(|(dir, _)| dir));
        }
    }
    needed
}
