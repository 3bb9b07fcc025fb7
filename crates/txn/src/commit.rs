//! Committing: what a transaction looked at and changed, held against the base as it is now, and
//! its net effect brought into the base, as one operation in one jbd2 transaction.
//!
//! Order within the operation:
//! 0. Before it, without locks: new contents of files are written to free places (staged).
//! 1. All locks, in the base's total order (rising inode number); so any number of commits can
//!    be under way without a deadlock.
//! 2. Validation, and room in the journal: nothing has changed yet, so a conflict, or a commit
//!    that is too large, leaves no trace.
//! 3. Application. It cannot meet a conflict any more. Each name, block, attribute and link count
//!    is brought straight from the base's state to the transaction's last one, so the order among
//!    them does not matter, with three exceptions: an inode is made before anything is said about
//!    it; attributes are set before links go, since the last link takes the inode with it; and
//!    the links of an inode change once, by their sum, so that none passes through 0.
//!
//! Why validation is enough for serializability: all that the transaction saw of the base is as
//! it was, so running it now would have taken the same way and come to the same end. What is not
//! compared is merged instead: times, sizes and link counts of directories, and link counts of
//! files, are changed by differences, not set.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use xact_fs::{Attr, AttrChange, AttrSet, FileKind, InodeOps, NewInode};
use xact_layout::inode::flag;
use xact_types::{AccessCheck, Error, FileBlock, Ino, Result, Timestamp};

use crate::base::{ChangedBy, CommitSize, CommitTree, DirGrowth, NewContents, Stamp};
use crate::overlay::{Node, Overlay};
use crate::permission::PermissionBasis;
use crate::ranges::Ranges;
use crate::read_set::ReadSet;
use crate::transaction::Durability;

/// Why a commit is refused, and a write before it.
pub(crate) const CONTENTS_CHANGED: &str = "its contents were changed meanwhile";

pub(crate) struct Commit<'a> {
    pub overlay: &'a Overlay,
    /// All changes of the transaction, of which `overlay` may be a part.
    pub whole: &'a Overlay,
    pub reads: &'a ReadSet,
    pub stamp: Stamp,
    /// The transaction's number.
    pub id: u64,
    /// Validate what was read too, not only what was written.
    pub serializable: bool,
    /// Looks at attributes were asked for by a kernel, which asks for more than programs do.
    pub mounted: bool,
}

/// Flags that people set; the rest is the file system's own bookkeeping.
fn user_flags(flags: u32) -> u32 {
    flags & flag::USER_MODIFIABLE
}

/// Flags that forbid changes to everybody.
fn guard_flags(flags: u32) -> u32 {
    flags & (flag::IMMUTABLE | flag::APPEND)
}

impl<'a> Commit<'a> {
    /// Inodes born in the transaction that somebody will be able to reach.
    fn born(&self) -> impl Iterator<Item = (Ino, &'a Node)> {
        let nodes = &self.overlay.nodes;
        nodes.iter().filter(|(_, node)| self.survives(node)).map(|(ino, node)| (*ino, node))
    }

    /// A born inode without a name is dropped: whoever holds it holds it in the transaction,
    /// which ends.
    fn survives(&self, node: &Node) -> bool {
        node.born && node.nlink(0, u32::MAX) > 0
    }

    /// Inodes of the base that the transaction changes.
    fn changed(&self) -> impl Iterator<Item = (Ino, &'a Node)> {
        let nodes = &self.overlay.nodes;
        nodes.iter().filter(|(_, node)| !node.born && node.is_changed()).map(|(ino, node)| (*ino, node))
    }

    /// Both: everything that the commit brings into the base.
    fn nodes(&self) -> impl Iterator<Item = (Ino, &'a Node)> {
        self.born().chain(self.changed())
    }

    /// Whether the net effect is nothing, or only times of directories in which names came and
    /// went again: a log file written and deleted is no reason to write to the device.
    pub fn is_empty(&self) -> bool {
        self.born().next().is_none() && self.changed().all(|(_, node)| node.changes_dir_times_only())
    }

    /// Numbers that the base will know after the commit.
    pub fn adopts(&self, ino: Ino) -> bool {
        self.overlay.nodes.get(&ino).is_some_and(|node| self.survives(node))
    }

    /// Every inode of the base that the commit looks at or changes.
    pub fn inodes(&self) -> Vec<Ino> {
        let mut all: BTreeSet<Ino> = self.changed().map(|(ino, _)| ino).collect();
        self.reads.inodes(&mut all);
        if !self.serializable {
            all.extend(PermissionBasis::of(self.whole, self.reads).inodes());
        }
        all.into_iter().collect()
    }

    /// A conflict where an inode is gone that the transaction knew before it was reopened. To be asked before
    /// the locks: nobody can lock what never was.
    pub fn check_gone(&self) -> Result<()> {
        let gone = &self.reads.offline.gone;
        let met =
            if gone.is_empty() { None } else { self.inodes().into_iter().find(|ino| gone.contains(ino)) };
        met.map_or(Ok(()), |ino| self.conflict(ino, "it was deleted meanwhile", ChangedBy(None)))
    }

    /// Files whose contents change, with what they become.
    pub fn files(&self, block_size: u32, durability: Durability) -> impl Iterator<Item = (Ino, NewContents)> {
        let replaced_soon = durability == Durability::Consolidated;
        let block_size = u64::from(block_size);
        let changed = || self.nodes().filter(|(_, node)| changes_contents(node));
        let in_commit = changed().map(|(_, node)| node.file.blocks.with_contents()).sum();
        changed().map(move |(ino, node)| {
            let file = &node.file;
            let mut reserved = Ranges::default();
            for range in file.reserved.iter() {
                reserved.insert(range.start / block_size..range.end.div_ceil(block_size));
            }
            for at in file.blocks.iter().filter(|(_, block)| block.is_some()).map(|(at, _)| u64::from(at.0)) {
                reserved.remove(at..at + 1);
            }
            let blocks = file.blocks.iter().map(|(at, block)| (*at, block.clone())).collect();
            let reserved = reserved.iter().map(file_blocks).collect();
            let (cut, is_new) = (file.base_end, node.born);
            (ino, NewContents { blocks, cut, reserved, is_new, in_commit, replaced_soon })
        })
    }

    /// Adds to what the operation takes.
    pub fn add_size(&self, size: &mut CommitSize) {
        for (ino, node) in self.nodes() {
            size.inodes.insert(ino);
            size.made += u64::from(node.born);
            size.unlinked += u64::from(node.links < 0 || node.removed_dir);
            size.xattrs += u64::from(!node.xattrs.is_empty());
            size.symlinks += u64::from(node.target.is_some());
            if node.origin.kind == FileKind::Directory {
                let mut dir = DirGrowth::default();
                if !node.born {
                    dir.size = node.origin.size;
                    // Where `..` points is in its first block.
                    dir.changed += u64::from(node.parent.is_some());
                }
                for (name, change) in node.names.iter() {
                    if change.base.is_none() {
                        dir.added += 1;
                        dir.added_bytes += name.len() as u64;
                    } else {
                        dir.changed += 1;
                    }
                }
                size.directories.push(dir);
            }
        }
    }

    /// Within one operation on the base, before its first change: whether it may be, and what it needs.
    pub fn prepare<T: CommitTree>(&self, tree: &mut T, staged: &BTreeMap<Ino, T::Staged>) -> Result<()> {
        self.validate(tree)?;
        tree.sign(self.id);
        for (ino, node) in self.nodes().filter(|(_, node)| !node.xattrs.is_empty()) {
            tree.check_xattrs((!node.born).then_some(ino), &node.xattrs)?;
        }
        self.announce_charges(tree)?;
        self.born().try_for_each(|(ino, node)| tree.reserve_adoption(ino, node.first_payer()))?;
        for (ino, node) in self.nodes() {
            match staged.get(&ino) {
                Some(staged) if node.born => tree.reserve_new_file(staged),
                Some(staged) => tree.reserve_install(ino, staged)?,
                None => {}
            }
        }
        Ok(())
    }

    /// Says to whom new inodes, and those that change hands, will be charged.
    fn announce_charges<T: CommitTree>(&self, tree: &mut T) -> Result<()> {
        for (ino, node) in self.nodes() {
            let payer = node.payer();
            if node.born {
                let contents = node.file.blocks.with_contents();
                let own = u64::from(node.origin.kind == FileKind::Directory);
                tree.reserve_charge(payer, contents + own, 1);
            } else if payer != node.first_payer() {
                tree.reserve_payer_change(ino, payer)?;
            }
        }
        Ok(())
    }

    fn conflict<R>(&self, ino: Ino, why: &'static str, by: ChangedBy) -> Result<R> {
        Err(Error::Conflict { path: self.reads.paths.of(ino), why, conflicting_tx: by.0 })
    }

    fn conflict_name<R>(&self, dir: Ino, name: &[u8], by: ChangedBy) -> Result<R> {
        let path = self.reads.paths.of_name(dir, name);
        Err(Error::Conflict { path, why: "the name was changed meanwhile", conflicting_tx: by.0 })
    }

    /// As `conflict`, on attributes of an inode.
    fn attr_conflict<R, T: CommitTree>(&self, tree: &mut T, ino: Ino, why: &'static str) -> Result<R> {
        // Where the inode is gone, or the change is not the attributes' own, nobody is named.
        let by = tree.attr_changed_since(ino, self.stamp)?.unwrap_or(ChangedBy(None));
        self.conflict(ino, why, by)
    }

    fn validate<T: CommitTree>(&self, tree: &mut T) -> Result<()> {
        tree.check_view(self.stamp)?;
        for (ino, node) in self.changed() {
            self.validate_write(tree, ino, node)?;
        }
        self.validate_shape(tree)?;
        if self.serializable { self.validate_reads(tree) } else { self.validate_permission(tree) }
    }

    /// What the right to make the changes rested on (see [`crate::permission`]). Permission bits are the front
    /// end's, so they are compared where there is one.
    fn validate_permission<T: CommitTree>(&self, tree: &mut T) -> Result<()> {
        const WHO: AttrSet = AttrSet::MODE.with(AttrSet::OWNER);
        let basis = PermissionBasis::of(self.whole, self.reads);
        for (&ino, was) in &basis.changed {
            let now = self.still_there(tree, ino, was)?;
            if guard_flags(was.flags) != guard_flags(now.flags) && AccessCheck::CommitFlags.is_made() {
                return self.attr_conflict(
                    tree,
                    ino,
                    "its immutable or append-only flag was changed meanwhile",
                );
            }
            if self.mounted && AccessCheck::CommitMode.is_made() {
                self.compare(tree, ino, WHO, was, &now)?;
            }
        }
        if !self.mounted {
            return Ok(());
        }
        if AccessCheck::CommitWay.is_made() {
            for (&folder, was) in &basis.folders {
                let now = self.still_there(tree, folder, was)?;
                self.compare(tree, folder, WHO, was, &now)?;
            }
            for &(folder, name) in &basis.names {
                if let Some(by) = self.name_changed(tree, folder, name)? {
                    return self.conflict_name(folder, name, by);
                }
            }
        }
        for &(ino, name) in basis.lists.iter().filter(|_| AccessCheck::CommitAcl.is_made()) {
            if let Some(by) = self.xattr_changed(tree, ino, name)? {
                return self.conflict(ino, "its access control list was changed meanwhile", by);
            }
        }
        Ok(())
    }

    /// An inode as it is now; a conflict where it is gone, or has lost its last name.
    fn still_there<T: CommitTree>(&self, tree: &mut T, ino: Ino, was: &Attr) -> Result<Attr> {
        if !tree.exists(ino)? {
            return self.attr_conflict(tree, ino, "it was deleted meanwhile");
        }
        let now = tree.attr(ino)?;
        if now.nlink == 0 && was.nlink > 0 {
            return self.attr_conflict(tree, ino, "it was deleted meanwhile");
        }
        Ok(now)
    }

    fn validate_write<T: CommitTree>(&self, tree: &mut T, ino: Ino, node: &Node) -> Result<()> {
        // Names first: who loses a race for a name wants to hear of the name.
        for (name, _) in node.names.iter() {
            if let Some(by) = self.name_changed(tree, ino, name)? {
                return self.conflict_name(ino, name, by);
            }
        }
        let was = &node.origin;
        let now = self.still_there(tree, ino, was)?;
        let mut written = AttrSet::NONE;
        if node.changed.perm.is_some() {
            written |= AttrSet::MODE;
        }
        if node.changed.uid.is_some() || node.changed.gid.is_some() || node.changed.project.is_some() {
            written |= AttrSet::OWNER;
        }
        if node.changed.flags.is_some() {
            written |= AttrSet::FLAGS;
        }
        if node.file.sets_size(was.size) {
            written |= AttrSet::SIZE;
        }
        self.compare(tree, ino, written, was, &now)?;
        for at in node.file.blocks.keys() {
            self.blocks_unchanged(tree, ino, *at..at.offset(1))?;
        }
        if let Some(end) = node.file.base_end {
            self.blocks_unchanged(tree, ino, end..FileBlock(u32::MAX))?;
        }
        for name in node.xattrs.keys() {
            if let Some(by) = self.xattr_changed(tree, ino, name)? {
                return self.conflict(ino, "an extended attribute was changed meanwhile", by);
            }
        }
        let limit = tree.link_max();
        let too_many = match was.kind {
            FileKind::Directory => {
                !tree.dir_nlink() && i64::from(now.nlink) + node.subdirs > i64::from(limit)
            }
            _ => i64::from(now.nlink) + node.links > i64::from(limit),
        };
        if too_many {
            return self.attr_conflict(tree, ino, "it was given so many links meanwhile that no more fit");
        }
        Ok(())
    }

    fn blocks_unchanged<T: CommitTree>(
        &self,
        tree: &mut T,
        ino: Ino,
        blocks: Range<FileBlock>,
    ) -> Result<()> {
        let changed = match self.reads.offline.contents.contains(&ino) {
            true => Some(ChangedBy(None)),
            false => tree.blocks_changed_since(ino, blocks, self.stamp)?,
        };
        if let Some(by) = changed {
            return self.conflict(ino, CONTENTS_CHANGED, by);
        }
        Ok(())
    }

    // What has changed since the transaction's begin: while the volume was open, or when nobody watched.

    fn name_changed<T: CommitTree>(&self, tree: &mut T, dir: Ino, name: &[u8]) -> Result<Option<ChangedBy>> {
        // Most transactions were never closed, and then the name need not be copied.
        let offline = &self.reads.offline.names;
        if !offline.is_empty() && offline.contains(&(dir, name.to_vec())) {
            return Ok(Some(ChangedBy(None)));
        }
        tree.entry_changed_since(dir, name, self.stamp)
    }

    fn listing_changed<T: CommitTree>(&self, tree: &mut T, dir: Ino) -> Result<Option<ChangedBy>> {
        if self.reads.offline.listings.contains(&dir) {
            return Ok(Some(ChangedBy(None)));
        }
        tree.any_entry_changed_since(dir, self.stamp)
    }

    fn xattr_changed<T: CommitTree>(&self, tree: &mut T, ino: Ino, name: &[u8]) -> Result<Option<ChangedBy>> {
        let offline = &self.reads.offline.xattrs;
        if !offline.is_empty() && offline.contains(&(ino, name.to_vec())) {
            return Ok(Some(ChangedBy(None)));
        }
        tree.xattr_changed_since(ino, name, self.stamp)
    }

    fn xattrs_changed<T: CommitTree>(&self, tree: &mut T, ino: Ino) -> Result<Option<ChangedBy>> {
        if self.reads.offline.xattr_lists.contains(&ino) {
            return Ok(Some(ChangedBy(None)));
        }
        tree.any_xattr_changed_since(ino, self.stamp)
    }

    fn compare<T: CommitTree>(
        &self,
        tree: &mut T,
        ino: Ino,
        attrs: AttrSet,
        was: &Attr,
        now: &Attr,
    ) -> Result<()> {
        if attrs.has(AttrSet::MODE) && was.perm != now.perm {
            return self.attr_conflict(tree, ino, "its permissions were changed meanwhile");
        }
        if attrs.has(AttrSet::OWNER) && (was.uid, was.gid, was.project) != (now.uid, now.gid, now.project) {
            return self.attr_conflict(tree, ino, "its owner was changed meanwhile");
        }
        if attrs.has(AttrSet::FLAGS) && user_flags(was.flags) != user_flags(now.flags) {
            return self.attr_conflict(tree, ino, "its flags were changed meanwhile");
        }
        // Size and times of a directory are the sum of what everybody does in it.
        if was.kind == FileKind::Directory {
            return Ok(());
        }
        if attrs.has(AttrSet::SIZE) && was.size != now.size {
            return self.attr_conflict(tree, ino, "its size was changed meanwhile");
        }
        if attrs.has(AttrSet::MTIME) && was.mtime != now.mtime {
            return self.attr_conflict(tree, ino, "it was written meanwhile");
        }
        Ok(())
    }

    /// What keeps the tree a tree, under every isolation: directories that were removed are still
    /// empty, and no directory above a moved one has moved itself.
    fn validate_shape<T: CommitTree>(&self, tree: &mut T) -> Result<()> {
        for &dir in &self.reads.emptied {
            if let Some(by) = self.listing_changed(tree, dir)? {
                return self.conflict(dir, "names in it were changed meanwhile", by);
            }
        }
        for (&dir, &was) in &self.reads.parents {
            if !tree.exists(dir)? || tree.parent(dir)? != was {
                return self.attr_conflict(tree, dir, "it was moved meanwhile");
            }
        }
        Ok(())
    }

    /// A kernel asks for all attributes of a file that is opened. Where the transaction writes to
    /// the file, its time of modification is the transaction's own in the end, and that it was
    /// told the old one before says nothing about what it did: else two that write different
    /// pages of one file would collide.
    fn kernel_stat_only(&self, ino: Ino) -> bool {
        let writes =
            |node: &Node| node.origin.kind == FileKind::Regular && node.file.is_changed(node.origin.size);
        self.mounted && self.overlay.nodes.get(&ino).is_some_and(writes)
    }

    fn validate_reads<T: CommitTree>(&self, tree: &mut T) -> Result<()> {
        let reads = self.reads;
        for (&dir, names) in &reads.names {
            for name in names {
                if let Some(by) = self.name_changed(tree, dir, name)? {
                    return self.conflict_name(dir, name, by);
                }
            }
        }
        for &dir in &reads.listings {
            if let Some(by) = self.listing_changed(tree, dir)? {
                return self.conflict(dir, "it was listed, and names in it were changed meanwhile", by);
            }
        }
        for (&ino, (attrs, was)) in &reads.attrs {
            let now = self.still_there(tree, ino, was)?;
            let attrs = if self.kernel_stat_only(ino) { attrs.without(AttrSet::MTIME) } else { *attrs };
            self.compare(tree, ino, attrs, was, &now)?;
        }
        for (&ino, &size) in &reads.min_sizes {
            if !tree.exists(ino)? || tree.attr(ino)?.size < size {
                return self.attr_conflict(tree, ino, "it was cut shorter meanwhile");
            }
        }
        for (&ino, blocks) in &reads.blocks {
            for range in blocks.iter() {
                self.blocks_unchanged(tree, ino, file_blocks(range))?;
            }
        }
        for (&ino, names) in &reads.xattrs {
            for name in names {
                if let Some(by) = self.xattr_changed(tree, ino, name)? {
                    return self.conflict(ino, "an extended attribute was changed meanwhile", by);
                }
            }
        }
        for &ino in &reads.xattr_lists {
            if let Some(by) = self.xattrs_changed(tree, ino)? {
                return self.conflict(ino, "its extended attributes were changed meanwhile", by);
            }
        }
        Ok(())
    }

    /// The changes, in the same operation.
    pub fn apply<T: CommitTree>(&self, tree: &mut T, staged: &mut BTreeMap<Ino, T::Staged>) -> Result<()> {
        for (ino, node) in self.born() {
            adopt(tree, ino, node)?;
        }
        for (ino, node) in self.nodes() {
            if let Some(staged) = staged.get_mut(&ino) {
                apply_file(tree, ino, node, staged)?;
            }
            for (name, value) in &node.xattrs {
                // What the base does not have need not be removed.
                if value.is_some() || tree.xattr(ino, name)?.is_some() {
                    tree.set_xattr(ino, name, value.as_deref())?;
                }
            }
        }
        for (dir, node) in self.nodes() {
            for (name, change) in node.names.iter() {
                match (change.base, change.now) {
                    (Some(_), None) => tree.remove_entry(dir, name)?,
                    (Some(base), Some(now)) if base != now => tree.set_entry(dir, name, now)?,
                    (None, Some(now)) => tree.add_entry(dir, name, now)?,
                    _ => {}
                }
            }
            if let Some(parent) = node.parent
                && !node.born
                && !node.removed_dir
            {
                tree.set_parent(dir, parent)?;
            }
        }
        for (ino, node) in self.nodes() {
            apply_attr(tree, ino, node)?;
            apply_links(tree, ino, node)?;
        }
        Ok(())
    }
}

/// Block numbers that come of offsets in files, so they are below the largest file block.
fn file_blocks(range: Range<u64>) -> Range<FileBlock> {
    FileBlock(range.start as u32)..FileBlock(range.end as u32)
}

fn changes_contents(node: &Node) -> bool {
    let was = if node.born { 0 } else { node.origin.size };
    node.origin.kind == FileKind::Regular && node.file.is_changed(was)
}

fn adopt<T: CommitTree>(tree: &mut T, ino: Ino, node: &Node) -> Result<()> {
    let origin = &node.origin;
    let new = NewInode {
        kind: origin.kind,
        perm: origin.perm,
        uid: origin.uid,
        gid: origin.gid,
        project: origin.project,
        rdev: origin.rdev,
        time: origin.mtime,
        flags: origin.flags,
    };
    tree.adopt_inode(ino, &new)?;
    if let Some(parent) = node.parent {
        tree.set_parent(ino, parent)?;
    }
    if let Some(target) = &node.target {
        tree.set_link(ino, target)?;
    }
    Ok(())
}

fn apply_file<T: CommitTree>(tree: &mut T, ino: Ino, node: &Node, staged: &mut T::Staged) -> Result<()> {
    let file = &node.file;
    // Where the transaction has not changed the size, what it is now stays.
    let was = if node.born { 0 } else { node.origin.size };
    let size = if file.sets_size(was) { file.size } else { tree.attr(ino)?.size };
    tree.install(ino, staged, size)
}

/// Attributes that the transaction has set. Times that others have moved on meanwhile do not go
/// back, and those of directories never do.
fn apply_attr<T: InodeOps>(tree: &mut T, ino: Ino, node: &Node) -> Result<()> {
    let new = &node.changed;
    if *new == AttrChange::default() {
        return Ok(());
    }
    let now = tree.attr(ino)?;
    let is_dir = now.kind == FileKind::Directory;
    let merged = |new: Option<Timestamp>, was: Timestamp, now: Timestamp| {
        let others = !node.born && now != was;
        new.map(|new| if is_dir && !node.born || others { new.max(now) } else { new })
    };
    let change = AttrChange {
        mtime: merged(new.mtime, node.origin.mtime, now.mtime),
        ctime: merged(new.ctime, node.origin.ctime, now.ctime),
        flags: new.flags.map(|flags| now.flags & !flag::USER_MODIFIABLE | user_flags(flags)),
        ..*new
    };
    tree.set_attr(ino, &change)
}

fn apply_links<T: InodeOps>(tree: &mut T, ino: Ino, node: &Node) -> Result<()> {
    // Link counts fit 16 bits, and so do their differences.
    let by = |delta: i64| i32::try_from(delta).expect("link counts are small");
    if node.born {
        return tree.add_links(ino, by(i64::from(node.nlink(0, tree.link_max()))));
    }
    if node.removed_dir {
        let now = tree.attr(ino)?.nlink;
        return tree.add_links(ino, -by(i64::from(now)));
    }
    if node.subdirs != 0 {
        tree.add_subdirs(ino, by(node.subdirs))?;
    }
    if node.links != 0 {
        tree.add_links(ino, by(node.links))?;
    }
    Ok(())
}
