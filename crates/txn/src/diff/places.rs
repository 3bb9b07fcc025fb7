//! Paths of inodes and names in one of the two compared states.

use std::cell::RefCell;
use std::collections::HashMap;
use std::convert::Infallible;
use std::rc::Rc;

use xact_types::{Above, Ino, InodePaths, ShownPath, path_by_number};

use super::Side;
use crate::overlay::Overlay;
use crate::validation::paths::Paths;

/// The directory and name of each inode in one of the two states.
pub(crate) struct Places<'a> {
    changed: HashMap<Ino, (Ino, &'a [u8])>,
    met: &'a Paths,
    known: RefCell<InodePaths>,
}

impl<'a> Places<'a> {
    pub fn of(overlay: &'a Overlay, side: Side, met: &'a Paths) -> Places<'a> {
        let mut changed = HashMap::new();
        for (&dir, node) in &overlay.nodes {
            for (name, change) in node.names.iter() {
                let entry = if side == Side::Old { change.base } else { change.now };
                if let Some(entry) = entry {
                    changed.insert(entry.ino, (dir, name.as_slice()));
                }
            }
        }
        Places { changed, met, known: RefCell::default() }
    }

    pub fn place(&self, ino: Ino) -> Option<(Ino, &'a [u8])> {
        self.changed.get(&ino).copied().or_else(|| self.met.place(ino))
    }

    /// The inode's path, as far as it is known; it begins with an inode that was only used by
    /// number.
    fn path(&self, ino: Ino) -> Rc<[u8]> {
        let above = |at| {
            let above = match self.place(at) {
                _ if at == Ino::ROOT => Above::Top(Some(Vec::new())),
                Some((dir, name)) => Above::Folder(dir, name),
                None => Above::Top(Some(path_by_number(at))),
            };
            Ok::<_, Infallible>(above)
        };
        let Ok(path) = self.known.borrow_mut().path(ino, above);
        path.expect("each way up has a top")
    }

    /// The path of a name, as shown. If it is shown by number, the known part of the path is added
    /// to `deep`.
    pub fn path_in(&self, dir: Ino, name: &[u8], deep: &mut Vec<Rc<[u8]>>) -> Vec<u8> {
        let ShownPath { shown, cut } = ShownPath::of_name(dir, self.path(dir), name);
        deep.extend(cut);
        shown
    }

    /// The path of an inode, as shown.
    pub fn path_of(&self, ino: Ino, deep: &mut Vec<Rc<[u8]>>) -> Vec<u8> {
        match self.place(ino) {
            Some((dir, name)) => self.path_in(dir, name, deep),
            None => path_by_number(ino),
        }
    }

    /// Memory of the paths of folders in bytes.
    pub fn bytes(&self) -> usize {
        self.known.borrow().bytes()
    }
}
