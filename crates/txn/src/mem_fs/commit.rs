//! The file system in memory within one commit.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;

use xact_fs::inode_ops::mem::{MemNode, MemTree};
use xact_fs::quota::Payer;
use xact_fs::{
    Allocate, Attr, AttrChange, BlockContents, ChangedBy, DataMode, DirItem, Entry, InodeOps, InstallOps,
    Name, NewContents, NewInode, ReservationOps, SeekTo, Stamp, ValidationOps, XattrChanges,
    is_persisted_folder,
};
use xact_types::{CommitId, Error, FileBlock, Ino, Result};

use super::{MemFs, MemReadView};

/// The file system within one commit.
pub(crate) struct MemCommit<'a> {
    pub(super) tree: MemTree,
    pub(super) views: &'a BTreeMap<u64, MemTree>,
    pub(super) expired_below: u64,
    pub(super) reserved: BTreeSet<Ino>,
    pub(super) id: u64,
    pub(super) changed: bool,
    pub(super) reads_left: Option<u64>,
    pub(super) missing: bool,
    /// The stamp of a view opened after the commit, and whether one was opened.
    pub(super) next_stamp: u64,
    pub(super) opens_view: bool,
}

impl MemCommit<'_> {
    fn look(&mut self) -> Result<&mut MemTree> {
        if !self.changed
            && let Some(left) = &mut self.reads_left
        {
            if *left == 0 {
                self.missing = true;
                return Err(Error::Ended);
            }
            *left -= 1;
        }
        Ok(&mut self.tree)
    }

    fn change(&mut self) -> &mut MemTree {
        self.changed = true;
        &mut self.tree
    }

    /// Compares an item of an inode as of a stamp with the present one.
    fn differs<R: PartialEq>(
        &mut self,
        ino: Ino,
        since: Stamp,
        item: impl Fn(&MemNode) -> R,
    ) -> Result<Option<ChangedBy>> {
        self.look()?;
        let now = self.tree.node(ino).ok().map(&item);
        let then = self.views[&since.0].node(ino).ok().map(&item);
        // The author is not recorded here.
        Ok((now != then).then_some(ChangedBy(None)))
    }
}

impl ValidationOps for MemCommit<'_> {
    type Fs = MemFs;
    type ReadView = MemReadView;

    fn entry_changed_since(&mut self, dir: Ino, name: &Name, since: Stamp) -> Result<Option<ChangedBy>> {
        self.look()?;
        let item =
            |tree: &MemTree| tree.node(dir).ok().and_then(|node| node.names.get(name).map(|(e, _)| *e));
        let differs = item(&self.tree) != item(&self.views[&since.0]);
        Ok(differs.then_some(ChangedBy(None)))
    }

    fn any_entry_changed_since(
        &mut self,
        dir: Ino,
        since: Stamp,
        ignored: &dyn Fn(&Name) -> bool,
    ) -> Result<Option<ChangedBy>> {
        self.differs(dir, since, |node| {
            let mut names = node.names.clone();
            names.retain(|name, _| !(ignored(name) || is_persisted_folder(dir, name)));
            names
        })
    }

    fn blocks_changed_since(
        &mut self,
        ino: Ino,
        blocks: Range<FileBlock>,
        since: Stamp,
    ) -> Result<Option<ChangedBy>> {
        self.differs(ino, since, |node| {
            let inside = node.blocks.iter().filter(|(at, _)| blocks.contains(at));
            inside.map(|(at, block)| (*at, block.clone())).collect::<Vec<_>>()
        })
    }

    fn xattr_changed_since(&mut self, ino: Ino, name: &[u8], since: Stamp) -> Result<Option<ChangedBy>> {
        self.differs(ino, since, |node| node.xattrs.get(name).cloned())
    }

    fn any_xattr_changed_since(&mut self, ino: Ino, since: Stamp) -> Result<Option<ChangedBy>> {
        self.differs(ino, since, |node| node.xattrs.clone())
    }

    fn attr_changed_since(&mut self, ino: Ino, since: Stamp) -> Result<Option<ChangedBy>> {
        self.differs(ino, since, |node| node.attr)
    }

    fn check_view(&self, stamp: Stamp) -> Result<()> {
        if stamp.0 < self.expired_below { Err(Error::TooOld) } else { Ok(()) }
    }

    fn set_transaction(&mut self, _: u64) {}

    fn open_view_after(&mut self, base: &Arc<MemFs>) -> MemReadView {
        self.opens_view = true;
        MemReadView { base: base.clone(), stamp: self.next_stamp }
    }

    fn check_xattrs(&mut self, _ino: Option<Ino>, _changes: &XattrChanges) -> Result<()> {
        Ok(())
    }

    fn exists(&mut self, ino: Ino) -> Result<bool> {
        self.look()?;
        Ok(self.tree.node(ino).is_ok())
    }
}

impl ReservationOps for MemCommit<'_> {
    type Staged = NewContents;

    fn reserve_adoption(&mut self, _: Ino, _: Payer) -> Result<()> {
        Ok(())
    }

    fn reserve_charge(&mut self, _: Payer, _: u64, _: u64) {
        assert!(!self.changed, "a charge is announced before the first change");
    }

    fn reserve_payer_change(&mut self, ino: Ino, _: Payer) -> Result<()> {
        assert!(!self.changed, "a charge is announced before the first change");
        self.look()?.attr(ino).map(drop)
    }

    fn reserve_install(&mut self, ino: Ino, _: &NewContents) -> Result<()> {
        assert!(!self.changed, "an install is announced before the first change");
        self.look()?.attr(ino).map(drop)
    }

    fn reserve_new_file(&mut self, _: &NewContents) {
        assert!(!self.changed, "an install is announced before the first change");
    }
}

impl InstallOps for MemCommit<'_> {
    fn adopt_inode(&mut self, ino: Ino, new: &NewInode) -> Result<()> {
        assert!(self.reserved.remove(&ino), "{ino} was not reserved");
        self.change().adopt(ino, Ino::ROOT, new);
        Ok(())
    }

    fn install(&mut self, ino: Ino, staged: &mut NewContents, size: u64) -> Result<()> {
        let block_size = self.tree.block_size() as u64;
        let tree = self.change();
        if let Some(cut) = staged.cut {
            let size = tree.attr(ino)?.size;
            tree.set_size(ino, size.min(u64::from(cut.0) * block_size))?;
        }
        let blocks = std::mem::take(&mut staged.blocks).into_iter();
        let bytes = |data: Option<BlockContents>| data.map(|data| data.bytes()).transpose();
        let blocks = blocks.map(|(at, data)| Ok((at, bytes(data)?))).collect::<Result<_>>()?;
        tree.install(ino, blocks, size)
    }

    fn commit_id(&self) -> Option<CommitId> {
        Some(CommitId(self.id))
    }
}

impl InodeOps for MemCommit<'_> {
    fn attr(&mut self, ino: Ino) -> Result<Attr> {
        self.look()?.attr(ino)
    }

    fn set_attr(&mut self, ino: Ino, change: &AttrChange) -> Result<()> {
        self.change().set_attr(ino, change)
    }

    fn add_links(&mut self, ino: Ino, delta: i32) -> Result<()> {
        self.change().add_links(ino, delta)
    }

    fn link_max(&self) -> u32 {
        self.tree.link_max()
    }

    fn dir_nlink(&self) -> bool {
        self.tree.dir_nlink()
    }

    fn target_max(&self) -> usize {
        self.tree.target_max()
    }

    fn new_inode(&mut self, parent: Ino, new: &NewInode) -> Result<Ino> {
        self.change().new_inode(parent, new)
    }

    fn hold(&mut self, ino: Ino) -> Result<()> {
        self.change().hold(ino)
    }

    fn entry(&mut self, dir: Ino, name: &Name) -> Result<Option<Entry>> {
        self.look()?.entry(dir, name)
    }

    fn add_entry(&mut self, dir: Ino, name: &Name, entry: Entry) -> Result<()> {
        self.change().add_entry(dir, name, entry)
    }

    fn remove_entry(&mut self, dir: Ino, name: &Name) -> Result<()> {
        self.change().remove_entry(dir, name)
    }

    fn set_entry(&mut self, dir: Ino, name: &Name, entry: Entry) -> Result<()> {
        self.change().set_entry(dir, name, entry)
    }

    fn is_empty(&mut self, dir: Ino) -> Result<bool> {
        self.look()?.is_empty(dir)
    }

    fn parent(&mut self, dir: Ino) -> Result<Ino> {
        self.look()?.parent(dir)
    }

    fn set_parent(&mut self, dir: Ino, parent: Ino) -> Result<()> {
        self.change().set_parent(dir, parent)
    }

    fn list(&mut self, dir: Ino, cookie: u64, each: &mut dyn FnMut(DirItem<'_>) -> bool) -> Result<()> {
        self.look()?.list(dir, cookie, each)
    }

    fn read_link(&mut self, ino: Ino) -> Result<Vec<u8>> {
        self.look()?.read_link(ino)
    }

    fn set_link(&mut self, ino: Ino, target: &[u8]) -> Result<()> {
        self.change().set_link(ino, target)
    }

    fn read(&mut self, ino: Ino, offset: u64, len: usize, out: &mut Vec<u8>) -> Result<()> {
        self.look()?.read(ino, offset, len, out)
    }

    fn write(&mut self, ino: Ino, offset: u64, data: &[u8]) -> Result<()> {
        self.change().write(ino, offset, data)
    }

    fn set_size(&mut self, ino: Ino, size: u64) -> Result<()> {
        assert_eq!(size % self.tree.block_size() as u64, 0, "a commit changes whole blocks");
        self.change().set_size(ino, size)
    }

    fn allocate(&mut self, ino: Ino, offset: u64, len: u64, how: Allocate) -> Result<()> {
        self.change().allocate(ino, offset, len, how)
    }

    fn seek(&mut self, ino: Ino, offset: u64, to: SeekTo) -> Result<u64> {
        self.look()?.seek(ino, offset, to)
    }

    fn size_max(&self, flags: u32) -> u64 {
        self.tree.size_max(flags)
    }

    fn has_extents(&self) -> bool {
        self.tree.has_extents()
    }

    fn has_projects(&self) -> bool {
        self.tree.has_projects()
    }

    fn gives_group_of_folder(&self) -> bool {
        self.tree.gives_group_of_folder()
    }

    fn takes_file_mode(&self, mode: DataMode) -> bool {
        self.tree.takes_file_mode(mode)
    }

    fn xattr(&mut self, ino: Ino, name: &[u8]) -> Result<Option<Vec<u8>>> {
        self.look()?.xattr(ino, name)
    }

    fn list_xattrs(&mut self, ino: Ino) -> Result<Vec<Vec<u8>>> {
        self.look()?.list_xattrs(ino)
    }

    fn set_xattr(&mut self, ino: Ino, name: &[u8], value: Option<&[u8]>) -> Result<()> {
        self.change().set_xattr(ino, name, value)
    }
}
