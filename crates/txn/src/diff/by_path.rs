//! All differences by path: changes of names (`renames`), and changes of an inode itself.

use std::collections::BTreeSet;
use std::rc::Rc;

use xact_fs::{Attr, Entry, FileKind};
use xact_types::{Ino, Result};

use super::budget::Budget;
use super::places::Places;
use super::renames;
use super::{Difference, Side, What};
use crate::overlay::{Node, Overlay};
use crate::validation::paths::Paths;

/// A name in a directory.
pub(crate) type NameAt = (Ino, Vec<u8>);

/// A difference, with the parts of the overlay that it consists of.
#[derive(Debug)]
pub(crate) struct Found {
    pub difference: Difference,
    pub names: Vec<NameAt>,
    pub ino: Option<Ino>,
    /// The inode that a rename has replaced.
    pub replaced: Option<Attr>,
    /// The present and old paths, as far as the paths of the difference are too long to show them.
    pub deep: Vec<Rc<[u8]>>,
}

/// Memory of a difference while the list is built, without its paths and names.
const FOUND_BYTES: usize = size_of::<Found>() + size_of::<Difference>() + 128;

/// All differences, by path. `ENOMEM` beyond `budget`.
pub(crate) fn all(overlay: &Overlay, met: &Paths, budget: &mut Budget) -> Result<Vec<Found>> {
    let (old, new) = (Places::of(overlay, Side::Old, met), Places::of(overlay, Side::New, met));
    let gone = nameless(overlay);
    let mut list = List { found: Vec::new(), budget };
    renames::of_names(overlay, &old, &new, &gone, &mut list)?;
    for (&ino, node) in overlay.nodes.iter().filter(|(ino, _)| !gone.contains(ino)) {
        let Some(what) = own_change(node) else { continue };
        let mut deep = Vec::new();
        let path = if ino == Ino::ROOT { b"/".to_vec() } else { new.path_of(ino, &mut deep) };
        let was_at = Some(old.path_of(ino, &mut deep)).filter(|was_at| ino != Ino::ROOT && *was_at != path);
        let (old, new) = (Some(node.origin), now(overlay, ino));
        let difference = Difference { what, path, from: None, was_at, old, new };
        list.push(Found { difference, names: Vec::new(), ino: Some(ino), replaced: None, deep })?;
    }
    let List { mut found, budget } = list;
    budget.add(old.bytes() + new.bytes())?;
    found.sort_by(|a, b| {
        let (a, b) = (&a.difference, &b.difference);
        (&a.path, a.what).cmp(&(&b.path, b.what))
    });
    Ok(found)
}

/// A list under construction.
pub(super) struct List<'b> {
    found: Vec<Found>,
    budget: &'b mut Budget,
}

impl List<'_> {
    pub fn push(&mut self, found: Found) -> Result<()> {
        let path = |path: &Option<Vec<u8>>| path.as_ref().map_or(0, Vec::len);
        // Names are also keys of a map.
        let names: usize = found.names.iter().map(|(_, name)| 2 * name.len() + 64).sum();
        let paths =
            found.difference.path.len() + path(&found.difference.from) + path(&found.difference.was_at);
        self.budget.add(FOUND_BYTES + names + paths)?;
        self.found.push(found);
        Ok(())
    }
}

/// The change of an inode of the base itself, without its names.
pub(crate) fn own_change(node: &Node) -> Option<What> {
    if node.born {
        return None;
    }
    if node.origin.kind == FileKind::Regular && node.file.is_changed(node.origin.size) {
        return Some(What::Modified);
    }
    let set = &node.changed;
    let set_values = set.perm.is_some() || set.uid.is_some() || set.gid.is_some() || set.flags.is_some();
    // Changes of names set the times of their folder, except the access time.
    let timed = set.atime.is_some() || set.mtime.is_some() && node.origin.kind != FileKind::Directory;
    (set_values || timed || !node.xattrs.is_empty()).then_some(What::Attributes)
}

/// Inodes of the base that the transaction has left without a name, as far as it knows their names.
fn nameless(overlay: &Overlay) -> BTreeSet<Ino> {
    let left = |(ino, node): (&Ino, &Node)| {
        let gone = node.removed_dir || i64::from(node.origin.nlink) + node.links <= 0;
        let is_gone = !node.born && gone && *ino != Ino::ROOT;
        (is_gone && (node.removed_dir || node.origin.kind != FileKind::Directory)).then_some(*ino)
    };
    overlay.nodes.iter().filter_map(left).collect()
}

pub(super) fn was(overlay: &Overlay, entry: Entry) -> Option<Attr> {
    overlay.nodes.get(&entry.ino).map(|node| node.origin)
}

pub(super) fn now(overlay: &Overlay, ino: Ino) -> Option<Attr> {
    // The limit of link counts and the block size affect only fields that are not shown here.
    overlay.nodes.get(&ino).map(|node| node.attr(u32::MAX, 4096))
}
