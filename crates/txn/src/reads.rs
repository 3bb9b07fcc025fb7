//! What a transaction has looked at: validated at commit, item by item.
//!
//! Only what came from the base is recorded; what a transaction reads of its own changes depends
//! on nobody else.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use xact_base::{Ino, Result};
use xact_fs::{Attr, AttrSet, Stamp};

use crate::ranges::Ranges;

#[derive(Debug, Default, Clone)]
pub(crate) struct Reads {
    /// Attributes that mattered, with all as they were.
    pub attrs: BTreeMap<Ino, (AttrSet, Attr)>,
    /// Files that must still be at least this long (bytes): data was read or written up to there.
    pub min_sizes: BTreeMap<Ino, u64>,
    /// File blocks.
    pub blocks: BTreeMap<Ino, Ranges>,
    /// Names, there or not.
    pub names: BTreeMap<Ino, BTreeSet<Vec<u8>>>,
    /// Directories that were listed.
    pub listings: BTreeSet<Ino>,
    /// Directories that had to be empty. As with `parents`, the shape of the tree rests on it,
    /// so it is validated under snapshot isolation too.
    pub emptied: BTreeSet<Ino>,
    /// Where `..` pointed.
    pub parents: BTreeMap<Ino, Ino>,
    pub xattrs: BTreeMap<Ino, BTreeSet<Vec<u8>>>,
    pub xattr_lists: BTreeSet<Ino>,
    /// Of files that the transaction has written to: up to where the changes of others were held against
    /// its own. Those are no reads.
    pub compared: HashMap<Ino, Stamp>,
    /// By which name an inode was met last, to tell people a path.
    pub paths: Paths,
    /// What was found changed when the transaction was opened anew (see `kept`).
    pub away: Away,
}

/// What others have changed while nobody watched: between the end of one mount and the next.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(crate) struct Away {
    /// Inodes that are gone, whoever has their number now.
    pub gone: BTreeSet<Ino>,
    pub names: BTreeSet<(Ino, Vec<u8>)>,
    pub listings: BTreeSet<Ino>,
    /// Files of whose contents that the transaction knows some have changed.
    pub contents: BTreeSet<Ino>,
    pub xattrs: BTreeSet<(Ino, Vec<u8>)>,
    pub xattr_lists: BTreeSet<Ino>,
}

impl Reads {
    pub fn name(&mut self, dir: Ino, name: &[u8]) {
        let names = self.names.entry(dir).or_default();
        if !names.contains(name) {
            names.insert(name.to_vec());
        }
    }

    pub fn xattr(&mut self, ino: Ino, name: &[u8]) {
        let names = self.xattrs.entry(ino).or_default();
        if !names.contains(name) {
            names.insert(name.to_vec());
        }
    }

    pub fn min_size(&mut self, ino: Ino, size: u64) {
        let min = self.min_sizes.entry(ino).or_default();
        *min = size.max(*min);
    }

    /// After a part was committed: what was read was validated just then, under the locks under
    /// which the new view was opened, so it holds as of that view with the attributes of then.
    /// What that commit has deleted is nobody's concern any more.
    pub fn rebase(&mut self, attr: impl Fn(Ino) -> Result<Attr>, parent: impl Fn(Ino) -> Result<Ino>) {
        let there = |ino: &Ino| attr(*ino).is_ok();
        self.attrs.retain(|ino, (_, was)| attr(*ino).map(|now| *was = now).is_ok());
        self.min_sizes.retain(|ino, min| attr(*ino).map(|now| *min = now.size.min(*min)).is_ok());
        self.blocks.retain(|ino, _| there(ino));
        self.names.retain(|ino, _| there(ino));
        self.listings.retain(there);
        self.emptied.retain(there);
        self.parents.retain(|dir, was| parent(*dir).map(|now| *was = now).is_ok());
        self.xattrs.retain(|ino, _| there(ino));
        self.xattr_lists.retain(there);
    }

    /// A number that grows with whatever is recorded.
    pub fn weight(&self) -> usize {
        let names = |map: &BTreeMap<Ino, BTreeSet<Vec<u8>>>| map.values().map(BTreeSet::len).sum::<usize>();
        let attrs = self.attrs.values().map(|(attrs, _)| attrs.bits().count_ones() as usize).sum::<usize>();
        let blocks =
            self.blocks.values().flat_map(Ranges::iter).map(|range| (range.end - range.start) as usize);
        attrs
            + blocks.sum::<usize>()
            + names(&self.names)
            + names(&self.xattrs)
            + self.min_sizes.len()
            + self.listings.len()
            + self.emptied.len()
            + self.parents.len()
            + self.xattr_lists.len()
    }

    /// Inodes whose state decides over the commit.
    pub fn inodes(&self, out: &mut BTreeSet<Ino>) {
        out.extend(self.attrs.keys());
        out.extend(self.min_sizes.keys());
        out.extend(self.blocks.keys());
        out.extend(self.names.keys());
        out.extend(&self.listings);
        out.extend(&self.emptied);
        out.extend(self.parents.keys());
        out.extend(self.xattrs.keys());
        out.extend(&self.xattr_lists);
    }
}

/// Names by which inodes were met.
#[derive(Debug, Default, Clone)]
pub(crate) struct Paths(HashMap<Ino, (Ino, Vec<u8>)>);

impl Paths {
    pub fn met(&mut self, dir: Ino, name: &[u8], ino: Ino) {
        match self.0.get_mut(&ino) {
            Some((d, n)) if *d == dir && n == name => {}
            _ => {
                self.0.insert(ino, (dir, name.to_vec()));
            }
        }
    }

    pub fn iter(&self) -> impl Iterator<Item = (Ino, Ino, &[u8])> {
        self.0.iter().map(|(ino, (dir, name))| (*ino, *dir, name.as_slice()))
    }

    /// The directory and the name by which an inode was met last.
    pub fn place(&self, ino: Ino) -> Option<(Ino, &[u8])> {
        self.0.get(&ino).map(|(dir, name)| (*dir, name.as_slice()))
    }

    /// A path from the root of the volume, as far as it is known: an inode that was only met by
    /// number is shown as `<inode N>`.
    pub fn of(&self, ino: Ino) -> String {
        let mut parts: Vec<String> = Vec::new();
        let mut at = ino;
        // Renames may have left a loop of old names.
        while at != Ino::ROOT && parts.len() < 4096 {
            match self.0.get(&at) {
                Some((dir, name)) => {
                    parts.push(String::from_utf8_lossy(name).into_owned());
                    at = *dir;
                }
                None => {
                    parts.push(format!("<{at}>"));
                    break;
                }
            }
        }
        parts.reverse();
        let path = parts.join("/");
        if path.starts_with('<') { path } else { format!("/{path}") }
    }

    pub fn of_name(&self, dir: Ino, name: &[u8]) -> String {
        let dir = self.of(dir);
        let name = String::from_utf8_lossy(name);
        if dir == "/" { format!("/{name}") } else { format!("{dir}/{name}") }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_lead_to_the_root_or_say_where_they_stop() {
        let mut paths = Paths::default();
        paths.met(Ino::ROOT, b"a", Ino(12));
        paths.met(Ino(12), b"b", Ino(13));
        assert_eq!(paths.of(Ino::ROOT), "/");
        assert_eq!(paths.of(Ino(13)), "/a/b");
        assert_eq!(paths.of_name(Ino::ROOT, b"x"), "/x");
        assert_eq!(paths.of_name(Ino(13), b"x"), "/a/b/x");
        assert_eq!(paths.of_name(Ino(99), b"x"), "<inode 99>/x");
        paths.met(Ino(13), b"loop", Ino(12));
        assert!(paths.of(Ino(13)).ends_with("/b"));
    }
}
