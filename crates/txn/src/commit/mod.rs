//! Commit: validates a transaction's reads and changes against the present state of the volume, and
//! applies its net effect as one operation in one commit of the engine.
//!
//! Steps of a commit:
//! 0. Before the operation, without locks, new contents of files are written to free blocks
//!    (staged).
//! 1. All locks are taken in one total order (rising inode number, see `lock_set`), so any number
//!    of commits can run without a deadlock.
//! 2. Validation ([`crate::validation`]) and the reservation of journal space. Nothing has changed
//!    yet, so a conflict, or a commit that is too large, leaves no trace.
//! 3. Application (`apply`), which can no longer conflict. Each name, block, attribute and link
//!    count changes directly from its state on the volume to the transaction's last state. So the
//!    order of these changes does not matter, with three exceptions: an inode is created before its
//!    other changes; attributes are set before links are removed, because the removal of the last
//!    link deletes the inode; and the link count of an inode changes once, by the sum, so that it
//!    never passes through 0.
//!
//! A partial commit leaves some items out of its validation (`partial`). It still examines these
//! items under the same locks, and those that others have changed stay conflicts.
//!
//! Validation is enough for serializability: all that the transaction has read of the volume is
//! unchanged, so a run at this moment would have done the same. Items that are not compared are
//! merged instead. Sizes and link counts of directories, and link counts of files, change by a
//! difference. Times of directories never go back.

mod apply;
pub(crate) mod changes;
mod lock_set;
pub(crate) mod observer;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ops::Range;

use xact_fs::{CommitOps, CommitSize, DirGrowth, FileKind, NewContents, Stamp};
use xact_layout::inode::flag;
use xact_types::{FileBlock, Ino, Result};

use crate::options::Durability;
use crate::overlay::{Node, Overlay};
use crate::partial::LeftOut;
use crate::partial::pins::{Met, Pins};
use crate::ranges::Ranges;
use crate::validation::read_set::ReadSet;

pub(crate) struct Commit<'a> {
    pub overlay: &'a Overlay,
    /// All changes of the transaction; `overlay` may be a part of them.
    pub whole: &'a Overlay,
    pub reads: &'a ReadSet,
    pub stamp: Stamp,
    /// The transaction's number.
    pub id: u64,
    /// Validate reads, too, not only writes.
    pub serializable: bool,
    /// Attributes were read by a kernel, which reads more of them than programs do.
    pub mounted: bool,
    /// Items that are conflicts since an earlier partial commit.
    pub pins: &'a Pins,
    /// Items that a partial commit leaves out; `None` for a commit of all changes.
    pub left_out: Option<LeftOut>,
    /// Conflicts with these items.
    pub met: RefCell<Met>,
}

impl<'a> Commit<'a> {
    /// Inodes created in the transaction that will be reachable.
    fn born(&self) -> impl Iterator<Item = (Ino, &'a Node)> {
        let nodes = &self.overlay.nodes;
        nodes.iter().filter(|(_, node)| self.survives(node)).map(|(ino, node)| (*ino, node))
    }

    /// Whether a new inode survives. One without a name does not: only the transaction holds it.
    fn survives(&self, node: &Node) -> bool {
        node.born && node.nlink(0, u32::MAX) > 0
    }

    /// Inodes of the base that the transaction changes.
    pub(crate) fn changed(&self) -> impl Iterator<Item = (Ino, &'a Node)> {
        let nodes = &self.overlay.nodes;
        nodes.iter().filter(|(_, node)| !node.born && node.is_changed()).map(|(ino, node)| (*ino, node))
    }

    /// All nodes that the commit applies.
    fn nodes(&self) -> impl Iterator<Item = (Ino, &'a Node)> {
        self.born().chain(self.changed())
    }

    /// Whether the net effect is empty, or only times of directories in which names were added and
    /// removed again: a log file that was written and deleted need not be written to the device.
    pub fn is_empty(&self) -> bool {
        self.born().next().is_none() && self.changed().all(|(_, node)| node.changes_dir_times_only())
    }

    /// Whether the base will use this number after the commit.
    pub fn adopts(&self, ino: Ino) -> bool {
        self.overlay.nodes.get(&ino).is_some_and(|node| self.survives(node))
    }

    /// Files whose contents change, with the new contents.
    pub fn files(&self, block_size: u32, durability: Durability) -> impl Iterator<Item = (Ino, NewContents)> {
        let replaced_soon = durability == Durability::Consolidated;
        let may_wait = durability != Durability::Durable;
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
            (ino, NewContents { blocks, cut, reserved, is_new, in_commit, replaced_soon, may_wait })
        })
    }

    /// Adds this commit to the size of the operation.
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
                    // `..` is in the first block.
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

    /// Validates and reserves, within one operation on the base, before its first change.
    pub fn prepare<T: CommitOps>(&self, tree: &mut T, staged: &BTreeMap<Ino, T::Staged>) -> Result<()> {
        self.validate(tree)?;
        tree.set_transaction(self.id);
        for (ino, node) in self.nodes().filter(|(_, node)| !node.xattrs.is_empty()) {
            tree.check_xattrs((!node.born).then_some(ino), &node.xattrs)?;
        }
        self.reserve_charges(tree)?;
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

    /// Reserves the quota charges of new inodes, and of those that get another payer.
    fn reserve_charges<T: CommitOps>(&self, tree: &mut T) -> Result<()> {
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
}

/// Flags that users set; the others are internal to the file system.
pub(crate) fn user_flags(flags: u32) -> u32 {
    flags & flag::USER_MODIFIABLE
}

/// Converts block numbers from offsets in files, which are below the largest file block.
pub(crate) fn file_blocks(range: Range<u64>) -> Range<FileBlock> {
    FileBlock(range.start as u32)..FileBlock(range.end as u32)
}

fn changes_contents(node: &Node) -> bool {
    let was = if node.born { 0 } else { node.origin.size };
    node.origin.kind == FileKind::Regular && node.file.is_changed(was)
}
