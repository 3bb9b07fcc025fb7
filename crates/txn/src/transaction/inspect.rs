//! Inspection of a transaction's changes from outside: differences by path and by file, and both
//! sides of each.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use xact_fs::posix::{self, Access as Permission, Credentials};
use xact_fs::{Attr, FileKind, InodeOps, VersionedFs};
use xact_types::{AccessCheck, Errno, Error, Ino, Result, name_by_number};

use super::Transaction;
use crate::diff::budget::Budget;
use crate::diff::{Difference, Side, by_file, by_path};
use crate::overlay::Overlay;
use crate::tx_tree::{Access, TxTree};

/// The reader of contents by an inode's number.
#[derive(Debug, Clone, Copy)]
pub enum Reader<'a> {
    /// A caller that may read all files.
    Anybody,
    /// A user of a mount, and the paths by which this inode may be reached, as a diff shows them.
    User(&'a Credentials, &'a [&'a [u8]], &'a SearchedFolders),
}

/// How long a user's permission to search folders is remembered. A program that reads the changes
/// of a deep tree, file by file, would otherwise cost the square of its depth.
const SEARCHED_FOR: Duration = Duration::from_millis(100);

/// Folders that a user may search, or may not, with all folders above them; for paths that are too
/// long to be shown.
#[derive(Debug, Default)]
pub struct SearchedFolders(Mutex<Option<Searched>>);

#[derive(Debug)]
struct Searched {
    since: Instant,
    who: Credentials,
    may: HashMap<(Side, Ino), bool>,
}

impl SearchedFolders {
    /// Whether `who` may search a folder and all folders above it.
    fn may_search(
        &self,
        tree: &mut impl InodeOps,
        who: &Credentials,
        side: Side,
        folder: Ino,
    ) -> Result<bool> {
        let mut guard = self.0.lock();
        let searched = guard
            .take_if(|searched| searched.who == *who && searched.since.elapsed() < SEARCHED_FOR)
            .unwrap_or_else(|| Searched { since: Instant::now(), who: who.clone(), may: HashMap::new() });
        let may = &mut guard.insert(searched).may;
        let (mut way, mut at) = (Vec::new(), folder);
        let may_search = loop {
            // A folder that is above itself leads nowhere.
            if let Some(known) = may.insert((side, at), false) {
                way.push(at);
                break known;
            }
            way.push(at);
            let is_dir = match tree.attr(at) {
                Err(Error::Posix(_)) => false,
                attr => attr?.is_dir(),
            };
            if !is_dir || !posix::permits(tree, who, at, Permission::SEARCH)? {
                break false;
            }
            if at == Ino::ROOT {
                break true;
            }
            at = tree.parent(at)?;
        };
        may.extend(way.into_iter().map(|at| ((side, at), may_search)));
        Ok(may_search)
    }
}

impl Reader<'_> {
    fn may_read(&self, tree: &mut impl InodeOps, side: Side, ino: Ino) -> Result<bool> {
        let Reader::User(who, paths, folders) = self else { return Ok(true) };
        if who.uid == 0 || !AccessCheck::ReadPermission.is_made() {
            return Ok(true);
        }
        for path in *paths {
            if posix::permits_path(tree, who, path, ino, Permission::READ)? {
                return Ok(true);
            }
            if let Some((folder, name)) = name_by_number(path)
                && folders.may_search(tree, who, side, folder)?
                && tree.entry(folder, name)?.is_some_and(|entry| entry.ino == ino)
                && posix::permits(tree, who, ino, Permission::READ)?
            {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

impl<B: VersionedFs> Transaction<B> {
    pub(super) fn budget(&self) -> Budget {
        Budget::of(&self.memory.account())
    }

    /// The changes that a commit would make, by path, in the order of the paths. `ENOMEM` if the
    /// list exceeds the user's memory limit.
    pub fn diff(&self) -> Result<Vec<Difference>> {
        let inner = self.inner.read();
        inner.check_active()?;
        let mut budget = self.budget();
        let found = by_path::all(&inner.overlay, &self.reads.lock().paths, &mut budget)?;
        Ok(found.into_iter().map(|found| found.difference).collect())
    }

    /// The changes that a commit would make, file by file, in the order of the paths: a renamed
    /// folder is shown as its files, a file replaced by a rename as modified, and each path appears
    /// once. Nothing of it counts as read. A renamed folder that `who` may not list is shown as one
    /// difference.
    pub fn diff_by_file(&self, who: Option<&Credentials>) -> Result<Vec<Difference>> {
        let inner = self.inner.read();
        inner.check_active()?;
        let mut budget = self.budget();
        let found = by_path::all(&inner.overlay, &self.reads.lock().paths, &mut budget)?;
        let (nothing, reads) = (Overlay::default(), Mutex::default());
        let side = |overlay| {
            let mut tree = TxTree::new(&*self.base, inner.stamp, Access::Shared(overlay), &reads);
            tree.pins = Some(&inner.pins);
            tree
        };
        by_file::of(found, who, &mut side(&nothing), &mut side(&inner.overlay), &mut budget)
    }

    /// Reads one side of the differences without recording reads.
    fn peek<R>(&self, side: Side, action: impl FnOnce(&mut TxTree<'_, B>) -> Result<R>) -> Result<R> {
        let inner = self.inner.read();
        inner.check_active()?;
        let nothing = Overlay::default();
        let overlay = if side == Side::Old { &nothing } else { &inner.overlay };
        let reads = Mutex::default();
        let mut tree = TxTree::new(&*self.base, inner.stamp, Access::Shared(overlay), &reads);
        tree.pins = Some(&inner.pins);
        action(&mut tree)
    }

    /// Attributes of an inode on one side of a difference, without recording a read.
    pub fn peek_attr(&self, side: Side, ino: Ino) -> Result<Attr> {
        self.peek(side, |tree| posix::attr(tree, ino))
    }

    /// Contents of a file, or the target of a symbolic link, on one side of a difference, without
    /// recording a read; see [`View::read`](xact_fs::View::read). `EACCES` if `by` may not read it
    /// on that side.
    pub fn peek_contents(
        &self,
        by: &Reader<'_>,
        side: Side,
        ino: Ino,
        offset: u64,
        len: usize,
        out: &mut Vec<u8>,
    ) -> Result<()> {
        self.peek(side, |tree| match tree.attr(ino)?.kind {
            _ if !by.may_read(tree, side, ino)? => Err(Error::Posix(Errno::EACCES)),
            FileKind::Symlink => {
                let target = posix::read_link(tree, ino)?;
                let start = usize::try_from(offset).unwrap_or(usize::MAX).min(target.len());
                out.extend_from_slice(&target[start..target.len().min(start.saturating_add(len))]);
                Ok(())
            }
            _ => posix::read(tree, ino, offset, len, out),
        })
    }
}
