//! The net effect of a transaction by path, for people: what they decide over.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::rc::Rc;
use std::sync::Arc;

use xact_fs::{Attr, Entry, FileKind};
use xact_types::{Ino, Result};

use crate::account::{Account, Charge, Resource};
use crate::overlay::{Node, Overlay};
use crate::read_set::Paths;

/// What happened to a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum What {
    Added,
    Deleted,
    /// Its contents, or what the name stands for (as by "write a new file, rename it over").
    Modified,
    /// From another path, which is gone or stands for something else.
    Renamed,
    /// Permissions, owner, times, flags or extended attributes, and nothing else.
    Attributes,
}

/// One line of a diff.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Difference {
    pub what: What,
    /// From the root of the volume, with a leading `/`; of what is deleted, where it was.
    pub path: Vec<u8>,
    /// Where a renamed one was.
    pub from: Option<Vec<u8>>,
    /// Where what is not renamed itself was, if a folder above it was.
    pub was_at: Option<Vec<u8>>,
    /// What was there as of the transaction's begin, and what is there now.
    pub old: Option<Attr>,
    pub new: Option<Attr>,
}

impl Difference {
    /// Where this is in one of the two states.
    pub fn path_on(&self, side: Side) -> &[u8] {
        let old = self.from.as_ref().or(self.was_at.as_ref());
        if side == Side::Old { old.unwrap_or(&self.path) } else { &self.path }
    }
}

/// The two states of the volume that a difference is between.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// As of the transaction's begin (or its last partial commit).
    Old,
    /// As the transaction sees it.
    New,
}

/// A name in a directory.
pub(crate) type NameAt = (Ino, Vec<u8>);

/// A difference with what of the overlay it consists of.
#[derive(Debug)]
pub(crate) struct Found {
    pub difference: Difference,
    pub names: Vec<NameAt>,
    pub ino: Option<Ino>,
    /// What a renamed one has taken the name of.
    pub replaced: Option<Attr>,
    /// Where it is, and where it was, as far as the paths of the difference are too long to say it.
    pub deep: Vec<Rc<[u8]>>,
}

/// Longest path of a difference, in bytes: no call takes a longer one. What is deeper is shown by the number of its
/// folder, and selected by this much of its path. Else a list of folders in folders took memory in the square of their
/// number.
const PATH_KEPT: usize = 4096;

/// What a difference takes in memory while the list is made, its paths and names apart.
const FOUND_BYTES: usize = size_of::<Found>() + size_of::<Difference>() + 128;

impl Difference {
    /// Bytes that it takes in memory.
    pub fn bytes(&self) -> usize {
        size_of::<Difference>()
            + self.path.len()
            + self.from.as_ref().map_or(0, Vec::len)
            + self.was_at.as_ref().map_or(0, Vec::len)
            + 32
    }
}

/// The memory that a list takes while it is made, charged to whom it is made for.
pub(crate) struct Budget {
    used: u64,
    charge: Charge,
}

impl Budget {
    pub fn of(account: &Arc<Account>) -> Budget {
        Budget { used: 0, charge: account.nothing(Resource::Memory) }
    }

    /// `ENOMEM` where the user may not have so much more.
    pub fn add(&mut self, bytes: usize) -> Result<()> {
        self.used += bytes as u64;
        self.charge.cover(self.used)
    }
}

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

    /// The inode's path, as far as it is known; an inode that was only met by number begins it. Each step is gone
    /// once for all paths, so that all of them together cost what there is of folders.
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

    /// The path of a name, as it is shown. Where that is by number, `deep` gets what can be said of the path.
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
    fn bytes(&self) -> usize {
        self.known.borrow().values().map(|path| path.len() + 64).sum()
    }
}

/// How an inode of the base differs by itself, names apart.
pub(crate) fn own_change(node: &Node) -> Option<What> {
    if node.born {
        return None;
    }
    if node.origin.kind == FileKind::Regular && node.file.is_changed(node.origin.size) {
        return Some(What::Modified);
    }
    let set = &node.changed;
    let told = set.perm.is_some() || set.uid.is_some() || set.gid.is_some() || set.flags.is_some();
    // Names that come and go move the times of their folder, but for that of the last access.
    let timed = set.atime.is_some() || set.mtime.is_some() && node.origin.kind != FileKind::Directory;
    (told || timed || !node.xattrs.is_empty()).then_some(What::Attributes)
}

/// A list while it is made.
struct List<'b> {
    found: Vec<Found>,
    budget: &'b mut Budget,
}

impl List<'_> {
    fn push(&mut self, found: Found) -> Result<()> {
        let path = |path: &Option<Vec<u8>>| path.as_ref().map_or(0, Vec::len);
        // What is said by name is looked up by it, too.
        let names: usize = found.names.iter().map(|(_, name)| 2 * name.len() + 64).sum();
        let paths =
            found.difference.path.len() + path(&found.difference.from) + path(&found.difference.was_at);
        self.budget.add(FOUND_BYTES + names + paths)?;
        self.found.push(found);
        Ok(())
    }
}

/// All differences, by path. `ENOMEM` where they take more than `budget` has.
pub(crate) fn all(overlay: &Overlay, met: &Paths, budget: &mut Budget) -> Result<Vec<Found>> {
    let (old, new) = (Places::of(overlay, Side::Old, met), Places::of(overlay, Side::New, met));
    let gone = nameless(overlay);
    let mut list = List { found: Vec::new(), budget };
    of_names(overlay, &old, &new, &gone, &mut list)?;
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

/// Inodes of the base that the transaction has left without a name, as far as it knows of names.
fn nameless(overlay: &Overlay) -> BTreeSet<Ino> {
    let left = |(ino, node): (&Ino, &Node)| {
        let gone = node.removed_dir || i64::from(node.origin.nlink) + node.links <= 0;
        let is_gone = !node.born && gone && *ino != Ino::ROOT;
        (is_gone && (node.removed_dir || node.origin.kind != FileKind::Directory)).then_some(*ino)
    };
    overlay.nodes.iter().filter_map(left).collect()
}

fn was(overlay: &Overlay, entry: Entry) -> Option<Attr> {
    overlay.nodes.get(&entry.ino).map(|node| node.origin)
}

fn now(overlay: &Overlay, ino: Ino) -> Option<Attr> {
    // Limits of link counts and the block size matter to fields that nobody is told here.
    overlay.nodes.get(&ino).map(|node| node.attr(u32::MAX, 4096))
}

fn of_names(
    overlay: &Overlay,
    old: &Places<'_>,
    new: &Places<'_>,
    gone: &BTreeSet<Ino>,
    list: &mut List<'_>,
) -> Result<()> {
    let changes = || {
        overlay.nodes.iter().flat_map(|(&dir, node)| {
            node.names.iter().filter(|(_, c)| c.base != c.now).map(move |(name, c)| (dir, name, *c))
        })
    };
    // Names that no longer stand for an inode of the base, which may have another now.
    let mut sources: BTreeMap<Ino, Vec<NameAt>> = BTreeMap::new();
    for (dir, name, change) in changes() {
        if let Some(base) = change.base
            && change.now.is_none_or(|now| now.ino != base.ino)
        {
            sources.entry(base.ino).or_default().push((dir, name.clone()));
        }
    }
    let mut explained: BTreeSet<NameAt> = BTreeSet::new();
    for (dir, name, change) in changes() {
        let Some(entry) = change.now else { continue };
        let at = (dir, name.clone());
        let mut deep = Vec::new();
        let source = sources.get_mut(&entry.ino).and_then(Vec::pop);
        let (what, from) = match (&source, change.base) {
            (Some(source), _) => (What::Renamed, Some(old.path_in(source.0, &source.1, &mut deep))),
            (None, Some(_)) => (What::Modified, None),
            (None, None) => (What::Added, None),
        };
        let before = if source.is_some() { Some(entry) } else { change.base };
        let path = new.path_in(dir, name, &mut deep);
        let was_at = (what == What::Modified)
            .then(|| old.path_in(dir, name, &mut deep))
            .filter(|was_at| *was_at != path);
        let difference = Difference {
            what,
            path,
            from,
            was_at,
            old: before.and_then(|entry| was(overlay, entry)),
            new: now(overlay, entry.ino),
        };
        explained.extend(source.clone());
        let names = source.into_iter().chain([at]).collect();
        let base = change.base.map(|entry| entry.ino).filter(|ino| gone.contains(ino));
        let replaced = change.base.and_then(|entry| was(overlay, entry));
        list.push(Found { difference, names, ino: base, replaced, deep })?;
    }
    for (dir, name, change) in changes() {
        let at = (dir, name.clone());
        if let (Some(base), None) = (change.base, change.now)
            && !explained.contains(&at)
        {
            let mut deep = Vec::new();
            let path = old.path_in(dir, name, &mut deep);
            let old = was(overlay, base);
            let difference =
                Difference { what: What::Deleted, path, from: None, was_at: None, old, new: None };
            // What was done to it before goes with it.
            let ino = gone.contains(&base.ino).then_some(base.ino);
            list.push(Found { difference, names: vec![at], ino, replaced: None, deep })?;
        }
    }
    Ok(())
}
