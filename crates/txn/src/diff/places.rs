//! Paths of inodes and names in one of the two compared states.

use std::cell::RefCell;
use std::collections::{HashMap, HashSet};
use std::rc::Rc;

use xact_types::Ino;

use super::Side;
use crate::overlay::Overlay;
use crate::validation::paths::Paths;

/// Maximum length of a path in a difference, in bytes: no call accepts a longer one. A deeper name
/// is shown with the number of its folder, and selected by this part of its path. Otherwise a list
/// of nested folders would use memory in the square of their number.
const PATH_KEPT: usize = 4096;

/// The directory and name of each inode in one of the two states.
pub(crate) struct Places<'a> {
    changed: HashMap<Ino, (Ino, &'a [u8])>,
    met: &'a Paths,
    /// Requested paths, and those of all folders above.
    known: RefCell<HashMap<Ino, Rc<[u8]>>>,
}

/// `name` in a folder with this path.
fn joined(folder: &[u8], name: &[u8]) -> Vec<u8> {
    let room = PATH_KEPT.saturating_sub(folder.len());
    let mut path = Vec::with_capacity(folder.len() + 1 + name.len());
    path.extend_from_slice(folder);
    if room > 0 {
        path.push(b'/');
        path.extend_from_slice(&name[..name.len().min(room - 1)]);
    }
    path
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
    /// number. Each folder is visited once for all paths, so their total cost is the number of
    /// folders.
    pub fn path(&self, ino: Ino) -> Rc<[u8]> {
        let mut known = self.known.borrow_mut();
        let (mut below, mut seen) = (Vec::new(), HashSet::new());
        let mut at = ino;
        let mut path: Rc<[u8]> = loop {
            if at == Ino::ROOT {
                break Rc::from([]);
            }
            if let Some(path) = known.get(&at) {
                break path.clone();
            }
            match self.place(at) {
                // Names have changed since they were found, so they might form a loop.
                Some((dir, name)) if seen.insert(at) => {
                    below.push((at, name));
                    at = dir;
                }
                _ => break format!("/<{at}>").into_bytes().into(),
            }
        };
        for (at, name) in below.into_iter().rev() {
            if path.len() < PATH_KEPT {
                path = joined(&path, name).into();
            }
            known.insert(at, path.clone());
        }
        path
    }

    /// The path of a name, as shown. If it is shown by number, the known part of the path is added
    /// to `deep`.
    pub fn path_in(&self, dir: Ino, name: &[u8], deep: &mut Vec<Rc<[u8]>>) -> Vec<u8> {
        let folder = self.path(dir);
        if folder.len() + 1 + name.len() <= PATH_KEPT {
            return joined(&folder, name);
        }
        deep.push(folder);
        joined(format!("/<{dir}>").as_bytes(), name)
    }

    /// The path of an inode, as shown.
    pub fn path_of(&self, ino: Ino, deep: &mut Vec<Rc<[u8]>>) -> Vec<u8> {
        let path = self.path(ino);
        if path.len() < PATH_KEPT {
            return path.to_vec();
        }
        deep.push(path);
        format!("/<{ino}>").into_bytes()
    }

    /// Memory of the paths of folders in bytes.
    pub fn bytes(&self) -> usize {
        self.known.borrow().values().map(|path| path.len() + 64).sum()
    }
}
