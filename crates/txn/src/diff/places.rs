//! Where things are in one of the two states that are compared: paths of inodes and names.

use std::cell::RefCell;
use std::collections::{HashMap, HashSet};
use std::rc::Rc;

use xact_types::Ino;

use super::Side;
use crate::overlay::Overlay;
use crate::validation::paths::Paths;

/// Longest path of a difference, in bytes: no call takes a longer one. What is deeper is shown by
/// the number of its folder, and selected by this much of its path. Else a list of folders in
/// folders took memory in the square of their number.
const PATH_KEPT: usize = 4096;

/// Where things are in one of the two states: directory and name by inode.
pub(crate) struct Places<'a> {
    changed: HashMap<Ino, (Ino, &'a [u8])>,
    met: &'a Paths,
    /// Paths that were asked for, and of all folders above.
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

    /// The inode's path, as far as it is known; an inode that was only met by number begins it.
    /// Each step is gone once for all paths, so that all of them together cost what there is of
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
                // What was met has changed since, so it might go round.
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

    /// The path of a name, as it is shown. Where that is by number, `deep` gets what can be said of
    /// the path.
    pub fn path_in(&self, dir: Ino, name: &[u8], deep: &mut Vec<Rc<[u8]>>) -> Vec<u8> {
        let folder = self.path(dir);
        if folder.len() + 1 + name.len() <= PATH_KEPT {
            return joined(&folder, name);
        }
        deep.push(folder);
        joined(format!("/<{dir}>").as_bytes(), name)
    }

    /// The same of an inode.
    pub fn path_of(&self, ino: Ino, deep: &mut Vec<Rc<[u8]>>) -> Vec<u8> {
        let path = self.path(ino);
        if path.len() < PATH_KEPT {
            return path.to_vec();
        }
        deep.push(path);
        format!("/<{ino}>").into_bytes()
    }

    /// Bytes that the paths of folders take.
    pub fn bytes(&self) -> usize {
        self.known.borrow().values().map(|path| path.len() + 64).sum()
    }
}
