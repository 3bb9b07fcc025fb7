//! Differences between two snapshots, or between a snapshot and the volume as it is now, in time in
//! proportion to the differences.
//!
//! 1. The two block maps are compared without their common parts. This finds the metadata blocks
//!    that differ.
//! 2. Blocks of inode tables among them are compared inode by inode. This finds the inodes that
//!    differ: each change of a file or a folder changes its inode, at least a time in it.
//! 3. Folders among them are listed in both states. This finds names that were added, were removed,
//!    or stand for another inode.
//! 4. An inode that changed under an unchanged name may be in a folder that did not change. Folders
//!    are searched for its name from the file's own group outwards, since ext4 allocates files near
//!    their folders.
//!
//! If one of the two has chosen paths only, both are read completely below these (`selection`).
//!
//! A file counts as modified by its size and time of modification; contents are not compared.

mod selection;

use std::collections::hash_map::Entry as MapEntry;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::rc::Rc;
use std::sync::Arc;

use xact_consistency::{BlockRef, Engine, SnapshotImage};
use xact_fs::{Attr, Entry, FileKind, PERSISTED_FOLDER, View};
use xact_layout::group::{GroupDesc, INODE_UNINIT};
use xact_layout::inode::Inode;
use xact_layout::superblock::Superblock;
use xact_txn::{Difference, What};
use xact_types::{Above, BlockNr, Errno, Error, GroupNr, Ino, InodePaths, Result, ShownPath};

use crate::snapshot::Snapshot;
use crate::volume::Volume;

impl Volume {
    /// The differences from the snapshot `old` to the snapshot `new`, or to the volume as it is
    /// now, sorted by path. Snapshots of chosen paths are compared in the paths that both have.
    ///
    /// # Errors
    /// [`Error::Usage`] for an unknown snapshot; [`Error::Io`] if one is deleted concurrently.
    pub fn diff_snapshots(&self, old: &str, new: Option<&str>) -> Result<Vec<Difference>> {
        let snapshots = self.generations()?;
        if new.is_none() && !self.engine().is_read_only() {
            self.sync()?;
        }
        let chosen = |name| snapshots.paths(name);
        let tops = selection::tops(chosen(old)?, new.map(chosen).transpose()?.unwrap_or_default());
        let blocks = if tops.is_none() { snapshots.changed_blocks(old, new)? } else { Vec::new() };
        let past = |name: &str| -> Result<State> {
            let image = snapshots.image(Some(name))?;
            Ok(State { view: Snapshot::new(image.clone()).view()?, blocks: Blocks::Past(image) })
        };
        let now = || State { view: self.base(), blocks: Blocks::Now(self.engine().clone()) };
        let new = match new {
            Some(name) => past(name)?,
            None => now(),
        };
        let differ = Differ { sb: self.superblock(), old: past(old)?, new };
        let mut differences = match tops {
            Some(tops) => differ.within(&tops)?,
            None => differ.all(&blocks)?,
        };
        // Persisted transactions are internal.
        differences
            .retain(|found| found.path.split(|b| *b == b'/').nth(1) != Some(PERSISTED_FOLDER.as_bytes()));
        Ok(differences)
    }
}

/// The folders whose paths are known.
#[derive(Default)]
struct Paths {
    of: InodePaths,
    /// Folders that were listed, each with the folder above it and its name there. So each folder
    /// is listed once, however many of those in it differ.
    names: HashMap<Ino, NameAt>,
}

/// A difference, and the beginning of its path if that is too long to be shown.
struct Found {
    difference: Difference,
    cut: Option<Rc<[u8]>>,
}

/// The source of the blocks of a state.
enum Blocks {
    Past(Arc<dyn SnapshotImage>),
    Now(Arc<Engine>),
}

struct State {
    view: Arc<dyn View>,
    blocks: Blocks,
}

struct Differ<'a> {
    /// The geometry, in which the states agree.
    sb: &'a Superblock,
    old: State,
    new: State,
}

/// The directories of each group in which no name was searched for yet.
type Searched = HashMap<GroupNr, std::vec::IntoIter<Ino>>;

/// A directory and a name in it.
type NameAt = (Ino, Vec<u8>);

/// A name that stands for another inode than before.
struct NameChange {
    at: NameAt,
    old: Option<Entry>,
    new: Option<Entry>,
}

impl State {
    fn block(&self, sb: &Superblock, block: BlockNr) -> Result<BlockRef> {
        match &self.blocks {
            Blocks::Now(engine) => engine.read(block),
            Blocks::Past(image) => {
                let mut bytes = vec![0; sb.block_size() as usize];
                image
                    .read_at(&mut bytes, block.0 * u64::from(sb.block_size()))
                    .map_err(|e| Error::io("reading a snapshot", e))?;
                Ok(bytes.into())
            }
        }
    }

    /// `None` for an inode that is not in use.
    fn attr(&self, ino: Ino) -> Result<Option<Attr>> {
        match self.view.attr(ino) {
            Ok(attr) => Ok(Some(attr)),
            Err(Error::Posix(Errno::ESTALE | Errno::ENOENT)) => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn entries(&self, dir: Ino) -> Result<BTreeMap<Vec<u8>, Entry>> {
        let mut entries = BTreeMap::new();
        self.view.read_dir(dir, 0, &mut |item| {
            if item.name != b"." && item.name != b".." {
                entries.insert(item.name.to_vec(), Entry { ino: item.ino, kind: item.kind });
            }
            true
        })?;
        Ok(entries)
    }

    /// The path of a directory; `None` if it was removed concurrently.
    fn dir_path(&self, dir: Ino, paths: &mut Paths) -> Result<Option<Rc<[u8]>>> {
        let Paths { of, names } = paths;
        of.path(dir, |at| self.above(at, names))
    }

    fn above(&self, dir: Ino, names: &mut HashMap<Ino, NameAt>) -> Result<Above<Vec<u8>>> {
        if dir == Ino::ROOT {
            return Ok(Above::Top(Some(Vec::new())));
        }
        if !names.contains_key(&dir) {
            let mut parent = dir;
            self.view.read_dir(dir, 0, &mut |item| {
                if item.name == b".." {
                    parent = item.ino;
                }
                item.name == b"."
            })?;
            if parent != dir {
                let folders =
                    self.entries(parent)?.into_iter().filter(|(_, below)| below.kind == FileKind::Directory);
                names.extend(folders.map(|(name, below)| (below.ino, (parent, name))));
            }
        }
        Ok(names.get(&dir).map_or(Above::Top(None), |(parent, name)| Above::Folder(*parent, name.clone())))
    }

    fn path(&self, at: &NameAt, paths: &mut Paths) -> Result<Option<ShownPath>> {
        let folder = self.dir_path(at.0, paths)?;
        Ok(folder.map(|folder| ShownPath::of_name(at.0, folder, &at.1)))
    }

    /// The directories whose inodes are in a group.
    fn directories(&self, sb: &Superblock, group: GroupNr) -> Result<Vec<Ino>> {
        let desc = self.descriptor(sb, group)?;
        let unused = match sb.has_group_csum() {
            true if desc.has_flag(INODE_UNINIT) => sb.inodes_per_group(),
            true => desc.itable_unused().min(sb.inodes_per_group()),
            false => 0,
        };
        let count = sb.inodes_per_group() - unused;
        let mut found = Vec::new();
        for block in 0..count.div_ceil(sb.inodes_per_block()) {
            let first = block * sb.inodes_per_block();
            let bytes = self.block(sb, desc.inode_table().offset(block.into()))?;
            let inodes = bytes.chunks_exact(usize::from(sb.inode_size())).take((count - first) as usize);
            for (index, bytes) in (first..).zip(inodes) {
                let inode = Inode::new(bytes);
                if inode.is_directory() && inode.links_count() > 0 {
                    found.push(sb.inode_at(group, index));
                }
            }
        }
        Ok(found)
    }

    fn descriptor(&self, sb: &Superblock, group: GroupNr) -> Result<GroupDesc> {
        let (block, at) = sb.desc_place(group);
        let bytes = self.block(sb, block)?;
        Ok(GroupDesc::new(&bytes[at..at + usize::from(sb.desc_size())]))
    }
}

impl Differ<'_> {
    fn all(&self, blocks: &[BlockNr]) -> Result<Vec<Difference>> {
        let mut attrs = BTreeMap::new();
        for ino in self.changed_inodes(blocks)? {
            let sides = (self.old.attr(ino)?, self.new.attr(ino)?);
            if sides != (None, None) {
                attrs.insert(ino, sides);
            }
        }
        let names = self.name_changes(&attrs)?;
        let mut found = Vec::new();
        let mut paths = (Paths::default(), Paths::default());
        self.of_names(&names, &attrs, &mut paths, &mut found)?;
        self.in_place(&names, &attrs, None, &mut paths, &mut found)?;
        Ok(sorted(found.into_iter().map(|found| found.difference)))
    }

    /// Inodes whose bytes differ, of those in blocks that differ.
    fn changed_inodes(&self, blocks: &[BlockNr]) -> Result<BTreeSet<Ino>> {
        let sb = self.sb;
        let mut tables = Vec::new();
        for group in (0..sb.group_count()).map(GroupNr) {
            tables.push((self.old.descriptor(sb, group)?.inode_table(), group));
        }
        tables.sort_unstable();
        let mut found = BTreeSet::new();
        for &block in blocks {
            let Some(&(table, group)) = tables[..tables.partition_point(|t| t.0 <= block)].last() else {
                continue;
            };
            let at = block.0 - table.0;
            if at >= u64::from(sb.inode_table_blocks()) {
                continue;
            }
            let (old, new) = (self.old.block(sb, block)?, self.new.block(sb, block)?);
            let size = usize::from(sb.inode_size());
            let first = at as u32 * sb.inodes_per_block();
            for (index, (old, new)) in (first..).zip(old.chunks_exact(size).zip(new.chunks_exact(size))) {
                if old != new && index < sb.inodes_per_group() {
                    found.insert(sb.inode_at(group, index));
                }
            }
        }
        Ok(found)
    }

    fn name_changes(&self, attrs: &BTreeMap<Ino, (Option<Attr>, Option<Attr>)>) -> Result<Vec<NameChange>> {
        let mut changes = Vec::new();
        for (&dir, (old, new)) in attrs {
            let list = |state: &State, attr: &Option<Attr>| match attr {
                Some(attr) if attr.is_dir() && attr.nlink > 0 => state.entries(dir),
                _ => Ok(BTreeMap::new()),
            };
            let (old, new) = (list(&self.old, old)?, list(&self.new, new)?);
            let all: BTreeSet<&Vec<u8>> = old.keys().chain(new.keys()).collect();
            for name in all {
                let (old, new) = (old.get(name).copied(), new.get(name).copied());
                let same = match (old, new) {
                    (Some(old), Some(new)) => old.ino == new.ino && !is_another(attrs, old.ino),
                    _ => false,
                };
                if !same {
                    changes.push(NameChange { at: (dir, name.clone()), old, new });
                }
            }
        }
        Ok(changes)
    }

    fn of_names(
        &self,
        names: &[NameChange],
        attrs: &BTreeMap<Ino, (Option<Attr>, Option<Attr>)>,
        (old_paths, new_paths): &mut (Paths, Paths),
        found: &mut Vec<Found>,
    ) -> Result<()> {
        // Names that no longer stand for an inode, which may have another now.
        let mut left: BTreeMap<Ino, Vec<&NameAt>> = BTreeMap::new();
        for change in names {
            if let Some(old) = change.old
                && !is_another(attrs, old.ino)
            {
                left.entry(old.ino).or_default().push(&change.at);
            }
        }
        let mut explained: BTreeSet<&NameAt> = BTreeSet::new();
        for NameChange { at, old, new } in names {
            let Some(entry) = new else { continue };
            let from = left.get_mut(&entry.ino).and_then(Vec::pop);
            let Some(ShownPath { shown: path, cut }) = self.new.path(at, new_paths)? else { continue };
            let what = match (&from, old) {
                (Some(_), _) => What::Renamed,
                (None, Some(_)) => What::Modified,
                (None, None) => What::Added,
            };
            let before = if from.is_some() { Some(*entry) } else { *old };
            let was = before.map(|entry| self.old.attr(entry.ino)).transpose()?.flatten();
            explained.extend(from);
            let from = from.map(|from| self.old.path(from, old_paths)).transpose()?.flatten();
            let from = from.map(|from| from.shown);
            let new = self.new.attr(entry.ino)?;
            let difference = Difference { what, path, from, was_at: None, old: was, new };
            found.push(Found { difference, cut });
        }
        for NameChange { at, old, new } in names {
            if let (Some(entry), None) = (old, new)
                && !explained.contains(at)
                && let Some(ShownPath { shown: path, cut }) = self.old.path(at, old_paths)?
            {
                let old = self.old.attr(entry.ino)?;
                let what = What::Deleted;
                let difference = Difference { what, path, from: None, was_at: None, old, new: None };
                found.push(Found { difference, cut });
            }
        }
        Ok(())
    }

    /// Changes of inodes that have kept their names. The names are in `known`, or are searched for.
    fn in_place(
        &self,
        names: &[NameChange],
        attrs: &BTreeMap<Ino, (Option<Attr>, Option<Attr>)>,
        known: Option<&selection::Names>,
        (_, paths): &mut (Paths, Paths),
        found: &mut Vec<Found>,
    ) -> Result<()> {
        let mut wanted: BTreeMap<Ino, Difference> = BTreeMap::new();
        for (&ino, (old, new)) in attrs {
            let (Some(old), Some(new)) = (old, new) else { continue };
            if is_another(attrs, ino) || ino < self.sb.first_inode() && ino != Ino::ROOT {
                continue;
            }
            let Some(what) = self.own_change(old, new)? else { continue };
            let (old, new) = (Some(*old), Some(*new));
            wanted.insert(ino, Difference { what, path: Vec::new(), from: None, was_at: None, old, new });
        }
        if let Some(root) = wanted.remove(&Ino::ROOT) {
            add(found, root, ShownPath { shown: b"/".to_vec(), cut: None });
        }
        for change in names {
            if let Some(entry) = change.new
                && let Some(difference) = wanted.remove(&entry.ino)
                && let Some(path) = self.new.path(&change.at, paths)?
            {
                add(found, difference, path);
            }
        }
        let dirs: Vec<Ino> =
            wanted.iter().filter(|(_, d)| d.new.is_some_and(|a| a.is_dir())).map(|(i, _)| *i).collect();
        for dir in dirs {
            let difference = wanted.remove(&dir).expect("was just found");
            if self.new.dir_path(dir, paths)?.is_some()
                && let Some(at) = paths.names.get(&dir).cloned()
                && let Some(path) = self.new.path(&at, paths)?
            {
                add(found, difference, path);
            }
        }
        if let Some(known) = known {
            for (ino, difference) in wanted {
                if let Some(at) = known.get(&ino)
                    && let Some(path) = self.new.path(at, paths)?
                {
                    add(found, difference, path);
                }
            }
            return Ok(());
        }
        let mut searched = Searched::new();
        while let Some((&ino, _)) = wanted.first_key_value() {
            self.search(ino, &mut wanted, &mut searched, paths, found)?;
            // An inode without a name was deleted, and may be open still.
            wanted.remove(&ino);
        }
        Ok(())
    }

    /// Searches for the name of an inode, and on the way collects names of other wanted ones. So
    /// each folder is searched once for all of them.
    fn search(
        &self,
        ino: Ino,
        wanted: &mut BTreeMap<Ino, Difference>,
        searched: &mut Searched,
        paths: &mut Paths,
        found: &mut Vec<Found>,
    ) -> Result<()> {
        let count = self.sb.group_count();
        let home = self.sb.inode_place(ino).map_or(0, |(group, _)| group.0);
        let outwards = (0..count).map(|n| GroupNr((home + n) % count));
        for group in outwards {
            let left = match searched.entry(group) {
                MapEntry::Occupied(left) => left.into_mut(),
                MapEntry::Vacant(new) => new.insert(self.new.directories(self.sb, group)?.into_iter()),
            };
            for dir in left {
                let entries = match self.new.entries(dir) {
                    // It was removed concurrently.
                    Err(Error::Posix(_)) => continue,
                    entries => entries?,
                };
                for (name, entry) in entries {
                    if let Some(difference) = wanted.remove(&entry.ino)
                        && let Some(path) = self.new.path(&(dir, name), paths)?
                    {
                        add(found, difference, path);
                    }
                }
                if !wanted.contains_key(&ino) {
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    /// The change of an inode, apart from its names.
    fn own_change(&self, old: &Attr, new: &Attr) -> Result<Option<What>> {
        let is_dir = new.kind == FileKind::Directory;
        if !is_dir && (old.size, old.mtime) != (new.size, new.mtime) {
            return Ok(Some(What::Modified));
        }
        let set = |attr: &Attr| (attr.perm, attr.uid, attr.gid, attr.flags & !INDEXED, attr.rdev);
        if set(old) != set(new) || self.xattrs(&self.old, old.ino)? != self.xattrs(&self.new, new.ino)? {
            return Ok(Some(What::Attributes));
        }
        Ok(None)
    }

    fn xattrs(&self, state: &State, ino: Ino) -> Result<BTreeMap<Vec<u8>, Vec<u8>>> {
        let names = match state.view.list_xattrs(ino) {
            Err(Error::Posix(_)) => return Ok(BTreeMap::new()),
            names => names?,
        };
        names.into_iter().map(|name| Ok((name.clone(), state.view.xattr(ino, &name)?))).collect()
    }
}

fn add(found: &mut Vec<Found>, difference: Difference, path: ShownPath) {
    found.push(Found { difference: Difference { path: path.shown, ..difference }, cut: path.cut });
}

/// In the order of the paths.
fn sorted(all: impl Iterator<Item = Difference>) -> Vec<Difference> {
    let mut all: Vec<Difference> = all.collect();
    all.sort_by(|a, b| (&a.path, a.what).cmp(&(&b.path, b.what)));
    all.dedup();
    all
}

/// `EXT4_INDEX_FL`, `EXT4_EXTENTS_FL`: the internal form of a folder or file, not its settings.
const INDEXED: u32 = 0x1000 | 0x8_0000;

/// Whether the number stands for different inodes in the two states.
fn is_another(attrs: &BTreeMap<Ino, (Option<Attr>, Option<Attr>)>, ino: Ino) -> bool {
    match attrs.get(&ino) {
        Some((Some(old), Some(new))) => (old.generation, old.kind) != (new.generation, new.kind),
        Some(_) => true,
        None => false,
    }
}
