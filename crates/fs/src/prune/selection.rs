//! Finds the inodes of the selected paths.

use std::collections::BTreeMap;

use xact_types::{Errno, Error, Ino, Result};

use crate::api::{Attr, Entry, FileKind, View};

/// A folder above a selected inode that is not selected itself.
pub(super) struct ParentDir {
    pub parent: Ino,
    /// The remaining names.
    pub entries: BTreeMap<Vec<u8>, Entry>,
}

#[derive(Default)]
pub(super) struct Selection {
    /// Paths from the volume's root, without a leading slash; no path is below another.
    pub paths: Vec<Vec<u8>>,
    pub parents: BTreeMap<Ino, ParentDir>,
    /// Inodes that stay unchanged, with their number of names here; 0 for a folder, which has one.
    pub whole: BTreeMap<Ino, u32>,
}

const LOST_FOUND: &[u8] = b"lost+found";

impl Selection {
    pub fn find(view: &dyn View, paths: &[Vec<u8>]) -> Result<Selection> {
        let mut selection = Selection { paths: tops(paths)?, ..Selection::default() };
        selection.parent_dir(Ino::ROOT, Ino::ROOT);
        for path in selection.paths.clone() {
            selection.follow(view, &path)?;
        }
        // Without lost+found, e2fsck reports a problem.
        if let Ok(found) = view.lookup(Ino::ROOT, LOST_FOUND)
            && found.is_dir()
            && !selection.whole.contains_key(&found.ino)
        {
            selection.parent_dir(Ino::ROOT, Ino::ROOT).entries.insert(LOST_FOUND.to_vec(), entry_of(&found));
            selection.parent_dir(found.ino, Ino::ROOT);
        }
        Ok(selection)
    }

    fn parent_dir(&mut self, dir: Ino, parent: Ino) -> &mut ParentDir {
        self.parents.entry(dir).or_insert(ParentDir { parent, entries: BTreeMap::new() })
    }

    /// Walks a path from the root, and selects the inode at its end.
    fn follow(&mut self, view: &dyn View, path: &[u8]) -> Result<()> {
        let shown = String::from_utf8_lossy(path);
        let names: Vec<&[u8]> = path.split(|&byte| byte == b'/').collect();
        let (mut dir, mut parent) = (Ino::ROOT, Ino::ROOT);
        for (index, name) in names.iter().enumerate() {
            let found = match view.lookup(dir, name) {
                Err(Error::Posix(Errno::ENOENT)) => {
                    return Err(Error::Usage(format!("/{shown} does not exist")));
                }
                found => found?,
            };
            self.parent_dir(dir, parent).entries.insert(name.to_vec(), entry_of(&found));
            if index + 1 == names.len() {
                return self.take(view, &found);
            }
            if !found.is_dir() {
                return Err(Error::Usage(format!("/{shown}: no folder leads there")));
            }
            (parent, dir) = (dir, found.ino);
        }
        Ok(())
    }

    /// Selects an inode, and all below it.
    fn take(&mut self, view: &dyn View, top: &Attr) -> Result<()> {
        let mut folders = Vec::new();
        self.take_one(entry_of(top), &mut folders);
        while let Some(folder) = folders.pop() {
            view.read_dir(folder, 0, &mut |item| {
                if item.name != b"." && item.name != b".." {
                    self.take_one(Entry { ino: item.ino, kind: item.kind }, &mut folders);
                }
                true
            })?;
        }
        Ok(())
    }

    fn take_one(&mut self, entry: Entry, folders: &mut Vec<Ino>) {
        if entry.kind != FileKind::Directory {
            *self.whole.entry(entry.ino).or_default() += 1;
        } else if self.whole.insert(entry.ino, 0).is_none() {
            // Once, even if a corrupt volume has a folder within itself.
            folders.push(entry.ino);
        }
    }
}

fn entry_of(attr: &Attr) -> Entry {
    Entry { ino: attr.ino, kind: attr.kind }
}

/// The paths in order, each once, without those below others.
fn tops(paths: &[Vec<u8>]) -> Result<Vec<Vec<u8>>> {
    let mut sorted = Vec::new();
    for path in paths {
        let names: Vec<&[u8]> =
            path.split(|&byte| byte == b'/').filter(|name| !name.is_empty() && name != b".").collect();
        if names.is_empty() {
            return Err(Error::Usage("the root is the whole volume: give no paths for that".into()));
        }
        if names.contains(&&b".."[..]) {
            return Err(Error::Usage("no '..' in paths of a volume".into()));
        }
        sorted.push(names);
    }
    sorted.sort();
    let mut tops: Vec<Vec<&[u8]>> = Vec::new();
    for names in sorted {
        if tops.last().is_none_or(|top| !names.starts_with(top)) {
            tops.push(names);
        }
    }
    Ok(tops.into_iter().map(|names| names.join(&b'/')).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_below_another_is_no_top() {
        let text = |paths: &[&str]| paths.iter().map(|path| path.as_bytes().to_vec()).collect::<Vec<_>>();
        let found = tops(&text(&["/b/c", "a//x", "b", "./a/x/", "a/xy", "b/c/d"])).unwrap();
        assert_eq!(found, text(&["a/x", "a/xy", "b"]));
        assert!(tops(&text(&["a", "/"])).is_err());
        assert!(tops(&text(&["a/../b"])).is_err());
    }
}
