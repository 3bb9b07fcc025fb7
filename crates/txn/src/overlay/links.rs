//! Values that follow from the names of an overlay: link counts, subdirectories, targets of `..`.

use std::collections::BTreeSet;

use xact_fs::FileKind;
use xact_types::Ino;

use super::Overlay;

impl Overlay {
    /// Derives these values from the names again.
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
            // A directory has one name, and its own `.`.
            node.links = if node.born && !node.removed_dir { 2 } else { 0 };
        }
    }
}
