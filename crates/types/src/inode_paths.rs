//! Paths of inodes whose folders and names are known, in linear time and memory however deep the
//! tree is.

use std::collections::{HashMap, HashSet};
use std::rc::Rc;

use crate::Ino;

/// Maximum length of a path that is shown, in bytes: no call accepts a longer one. A deeper name is
/// shown with the number of its folder. Otherwise a list of nested folders would use memory in the
/// square of their number.
pub const SHOWN_PATH_MAX: usize = 4096;

/// Memory of one inode in bytes, without its path.
const KNOWN_BYTES: usize = 64;

/// How the path of an inode continues upwards.
#[derive(Debug)]
pub enum Above<N> {
    /// The inode has this name in this folder.
    Folder(Ino, N),
    /// The inode's own path; empty for the root. `None`: it has none, nor has anything below it.
    Top(Option<Vec<u8>>),
}

/// The paths of inodes, cut at [`SHOWN_PATH_MAX`]. Each folder is visited once for all paths, and
/// those below the limit share the path that is cut.
#[derive(Debug, Default)]
pub struct InodePaths {
    known: HashMap<Ino, Option<Rc<[u8]>>>,
    bytes: usize,
}

/// A path as it is shown.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ShownPath {
    /// The path, or `/<inode N>/NAME` for one that is too long.
    pub shown: Vec<u8>,
    /// The beginning of a path that is too long.
    pub cut: Option<Rc<[u8]>>,
}

impl InodePaths {
    /// The path of an inode, with a leading `/`, and empty for the root. `above` returns how the
    /// path of an inode continues. An inode that is above itself is shown by its number.
    pub fn path<N: AsRef<[u8]>, E>(
        &mut self,
        ino: Ino,
        mut above: impl FnMut(Ino) -> Result<Above<N>, E>,
    ) -> Result<Option<Rc<[u8]>>, E> {
        let (mut below, mut seen) = (Vec::new(), HashSet::new());
        let mut at = ino;
        let mut path: Option<Rc<[u8]>> = loop {
            if let Some(path) = self.known.get(&at) {
                break path.clone();
            }
            match above(at)? {
                // Names may have changed since they were found, so they might form a loop.
                Above::Folder(folder, name) if seen.insert(at) => {
                    below.push((at, name));
                    at = folder;
                }
                Above::Folder(..) => break Some(path_by_number(at).into()),
                Above::Top(path) => break path.map(Rc::from),
            }
        };
        for (at, name) in below.into_iter().rev() {
            if let Some(folder) = path.as_ref().filter(|path| path.len() < SHOWN_PATH_MAX) {
                let joined = joined(folder, name.as_ref());
                self.bytes += joined.len();
                path = Some(joined.into());
            }
            self.known.insert(at, path.clone());
            self.bytes += KNOWN_BYTES;
        }
        Ok(path)
    }

    /// Memory in bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }
}

impl ShownPath {
    /// The path of a name in a folder with this path.
    pub fn of_name(dir: Ino, folder: Rc<[u8]>, name: &[u8]) -> ShownPath {
        match path_in(&folder, name) {
            Some(shown) => ShownPath { shown, cut: None },
            None => ShownPath { shown: joined(&path_by_number(dir), name), cut: Some(folder) },
        }
    }
}

/// The path of a name in a folder with this path; `None` if it is too long to be shown.
pub fn path_in(folder: &[u8], name: &[u8]) -> Option<Vec<u8>> {
    (folder.len() + 1 + name.len() <= SHOWN_PATH_MAX).then(|| joined(folder, name))
}

/// The folder and name of a path that was too long to be shown; `None` for any other path.
pub fn name_by_number(path: &[u8]) -> Option<(Ino, &[u8])> {
    let rest = path.strip_prefix(b"/<inode ")?;
    let end = rest.iter().position(|byte| *byte == b'>')?;
    let (digits, name) = (std::str::from_utf8(&rest[..end]).ok()?, rest[end..].strip_prefix(b">/")?);
    let ino = digits.parse().ok()?;
    (!name.is_empty() && !name.contains(&b'/')).then_some((Ino(ino), name))
}

/// An inode whose path is unknown or too long.
pub fn path_by_number(ino: Ino) -> Vec<u8> {
    format!("/<{ino}>").into_bytes()
}

/// `name` in a folder with this path, cut at the limit.
fn joined(folder: &[u8], name: &[u8]) -> Vec<u8> {
    let room = SHOWN_PATH_MAX.saturating_sub(folder.len());
    let mut path = Vec::with_capacity(folder.len() + 1 + name.len());
    path.extend_from_slice(folder);
    if room > 0 {
        path.push(b'/');
        path.extend_from_slice(&name[..name.len().min(room - 1)]);
    }
    path
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use super::*;

    /// A chain of folders from the root down to `Ino(12 + depth)`.
    fn chain(calls: &mut usize) -> impl FnMut(Ino) -> Result<Above<&'static [u8]>, Infallible> {
        |ino| {
            *calls += 1;
            Ok(match ino.0 {
                2 => Above::Top(Some(Vec::new())),
                12 => Above::Folder(Ino::ROOT, &[b'n'; 100]),
                _ => Above::Folder(Ino(ino.0 - 1), &[b'n'; 100]),
            })
        }
    }

    #[test]
    fn each_folder_is_visited_once() {
        let (mut paths, mut calls) = (InodePaths::default(), 0);
        const DEPTH: u32 = 20_000;
        for ino in (12..12 + DEPTH).rev() {
            paths.path(Ino(ino), chain(&mut calls)).unwrap();
        }
        assert_eq!(calls, DEPTH as usize + 1);
        let path = paths.path(Ino(12 + DEPTH - 1), chain(&mut calls)).unwrap().unwrap();
        assert_eq!(path.len(), SHOWN_PATH_MAX);
        let distinct: HashSet<*const u8> = paths.known.values().flatten().map(|path| path.as_ptr()).collect();
        assert!(distinct.len() <= SHOWN_PATH_MAX / 100 + 1, "{}", distinct.len());
    }

    #[test]
    fn long_paths_are_shown_by_number() {
        let mut paths = InodePaths::default();
        let mut path = |ino| paths.path(Ino(ino), chain(&mut 0)).unwrap().unwrap();
        let short = path(13);
        assert_eq!(short.len(), 202);
        let name = ShownPath::of_name(Ino(13), short.clone(), b"x");
        assert_eq!(name, ShownPath { shown: [&short[..], b"/x"].concat(), cut: None });
        let long = path(100);
        let name = ShownPath::of_name(Ino(100), long.clone(), b"x");
        assert_eq!((&name.shown[..], name.cut), (&b"/<inode 100>/x"[..], Some(long)));
    }

    #[test]
    fn a_path_by_number_names_its_folder() {
        assert_eq!(name_by_number(b"/<inode 100>/x y"), Some((Ino(100), &b"x y"[..])));
        let others: [&[u8]; 6] =
            [b"/<inode 100>", b"/<inode 100>/", b"/<inode 1>/x/y", b"/<inode x>/y", b"/a/<inode 1>/x", b"/x"];
        assert!(others.iter().all(|path| name_by_number(path).is_none()));
    }

    #[test]
    fn loops_and_lost_inodes_end() {
        let mut paths = InodePaths::default();
        let other = |ino: Ino| Ok::<_, Infallible>(Above::Folder(Ino(25 - ino.0), b"loop"));
        assert_eq!(&*paths.path(Ino(12), other).unwrap().unwrap(), b"/<inode 12>/loop/loop");
        let lost = |ino: Ino| {
            Ok::<_, Infallible>(if ino == Ino(20) { Above::Top(None) } else { Above::Folder(Ino(20), b"x") })
        };
        assert_eq!(paths.path(Ino(21), lost).unwrap(), None);
    }
}
