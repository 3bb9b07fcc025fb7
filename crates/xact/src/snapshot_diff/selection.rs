//! Differences if a snapshot has chosen paths only: both states are read completely below these, in
//! time in proportion to the number of files. Other paths are not compared, since one of the two
//! lacks them.
//!
//! A file that was moved out of the chosen paths counts as deleted, one that was moved into them as
//! added.

use std::collections::{BTreeMap, BTreeSet};

use xact_fs::{Entry, FileKind};
use xact_txn::Difference;
use xact_types::{Errno, Error, Ino, Result};

use super::{Differ, Found, NameAt, NameChange, Paths, State, is_another, sorted};

/// A name of each inode that was read.
pub(super) type Names = BTreeMap<Ino, NameAt>;

/// The paths that two snapshots have in common; `None` if both are of the volume.
pub(super) fn tops(old: Vec<Vec<u8>>, new: Vec<Vec<u8>>) -> Option<Vec<Vec<u8>>> {
    match (old.is_empty(), new.is_empty()) {
        (true, true) => None,
        (true, false) => Some(new),
        (false, true) => Some(old),
        (false, false) => {
            let inner = |of: &[Vec<u8>], within: &[Vec<u8>]| -> BTreeSet<Vec<u8>> {
                of.iter().filter(|path| is_below(path, within)).cloned().collect()
            };
            Some(inner(&old, &new).union(&inner(&new, &old)).cloned().collect())
        }
    }
}

/// Whether a path is one of these or below one.
fn is_below(path: &[u8], tops: &[Vec<u8>]) -> bool {
    let rest = |top: &Vec<u8>| path.strip_prefix(&top[..]);
    tops.iter().filter_map(rest).any(|rest| rest.is_empty() || rest[0] == b'/')
}

impl State {
    /// The inode at a path, and the folder and name of the path; `None` if it does not exist.
    fn at(&self, path: &[u8]) -> Result<Option<(NameAt, Entry)>> {
        let mut found: Option<(NameAt, Entry)> = None;
        for name in path.split(|&byte| byte == b'/') {
            let dir = match &found {
                None => Ino::ROOT,
                Some((_, entry)) if entry.kind == FileKind::Directory => entry.ino,
                Some(_) => return Ok(None),
            };
            match self.view.lookup(dir, name) {
                Ok(attr) => found = Some(((dir, name.to_vec()), Entry { ino: attr.ino, kind: attr.kind })),
                Err(Error::Posix(Errno::ENOENT | Errno::ESTALE)) => return Ok(None),
                Err(error) => return Err(error),
            }
        }
        Ok(found)
    }

    /// Collects all inodes from a name down.
    fn collect(&self, top: &(NameAt, Entry), names: &mut Names) -> Result<()> {
        let mut left = vec![top.clone()];
        while let Some((at, entry)) = left.pop() {
            names.entry(entry.ino).or_insert(at);
            if entry.kind != FileKind::Directory {
                continue;
            }
            match self.entries(entry.ino) {
                // It was removed concurrently.
                Err(Error::Posix(_)) => {}
                below => left.extend(below?.into_iter().map(|(name, below)| ((entry.ino, name), below))),
            }
        }
        Ok(())
    }
}

impl Differ<'_> {
    pub(super) fn within(&self, tops: &[Vec<u8>]) -> Result<Vec<Difference>> {
        let (mut before, mut names) = (Names::new(), Names::new());
        let mut ends = Vec::new();
        for top in tops {
            let (old, new) = (self.old.at(top)?, self.new.at(top)?);
            old.iter().try_for_each(|top| self.old.collect(top, &mut before))?;
            new.iter().try_for_each(|top| self.new.collect(top, &mut names))?;
            ends.push((old, new));
        }
        let mut attrs = BTreeMap::new();
        for &ino in before.keys().chain(names.keys()) {
            // Only inodes with a name: a pruned image does not have the other parts of the inode
            // tables (`fs/src/prune`).
            let old = if before.contains_key(&ino) { self.old.attr(ino)? } else { None };
            let new = if names.contains_key(&ino) { self.new.attr(ino)? } else { None };
            attrs.insert(ino, (old, new));
        }
        let mut changes = self.name_changes(&attrs)?;
        for (old, new) in ends {
            let same = match (&old, &new) {
                (Some(old), Some(new)) => old.1.ino == new.1.ino && !is_another(&attrs, old.1.ino),
                (None, None) => true,
                _ => false,
            };
            // One path: a replaced folder on the way makes no difference.
            let at = new.as_ref().or(old.as_ref()).map(|(at, _)| at.clone());
            if let (false, Some(at)) = (same, at) {
                let entry = |found: Option<(NameAt, Entry)>| found.map(|(_, entry)| entry);
                changes.push(NameChange { at, old: entry(old), new: entry(new) });
            }
        }
        let mut found = Vec::new();
        let mut paths = (Paths::default(), Paths::default());
        self.of_names(&changes, &attrs, &mut paths, &mut found)?;
        self.in_place(&changes, &attrs, Some(&names), &mut paths, &mut found)?;
        let here = |found: &Found| {
            let path = found.cut.as_deref().unwrap_or(&found.difference.path);
            let path = path.strip_prefix(b"/").unwrap_or_default();
            let is_above = || found.cut.is_some() && tops.iter().any(|top| top.starts_with(path));
            is_below(path, tops) || is_above()
        };
        Ok(sorted(found.into_iter().filter(here).map(|found| found.difference)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_have_in_common_what_is_in_both() {
        let text = |paths: &[&str]| paths.iter().map(|path| path.as_bytes().to_vec()).collect::<Vec<_>>();
        assert_eq!(tops(vec![], vec![]), None);
        assert_eq!(tops(text(&["a"]), vec![]), Some(text(&["a"])));
        let common = tops(text(&["a", "b/c", "d"]), text(&["a/x", "b", "e"]));
        assert_eq!(common, Some(text(&["a/x", "b/c"])));
        assert!(!is_below(b"ab", &text(&["a"])));
    }
}
