//! A volume in memory with its past, to test transactions without disk structures.
//!
//! Every open view has a copy of the tree (inodes are shared until they change). A commit runs
//! on a copy too, which replaces the tree if it succeeds; the first attempt of each is broken off
//! at some read, as the base does when it needs more locks.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;

use parking_lot::Mutex;
use xact_base::{CommitId, Error, FileBlock, Ino, Result, Timestamp};
use xact_fs::posix;
use xact_fs::quota::Payer;
use xact_fs::tree::mem::{MemNode, MemTree};
use xact_fs::{
    Allocate, Attr, AttrChange, BlockContents, Caller, DirItem, Entry, Name, NewInode, RenameHow, SeekTo,
    SetAttr, SpilledBlock, Tree, View, VolumeSpace, WriteHow, XattrChanges, XattrHow,
};

use crate::base::{ChangedBy, CommitSize, CommitTree, NewContents, Stamp, VersionedBase};

#[derive(Debug)]
pub(crate) struct MemBase {
    state: Mutex<MemState>,
    block_size: u32,
}

#[derive(Debug)]
struct MemState {
    tree: MemTree,
    clock: u64,
    views: BTreeMap<u64, MemTree>,
    reserved: BTreeSet<Ino>,
    /// Commits that changed something, and the last one that was waited for.
    commits: u64,
    durable: u64,
    /// Inodes that the next reservation refuses with `NoSpace`.
    inodes_left: u64,
}

pub(crate) struct MemHold {
    base: Arc<MemBase>,
    stamp: u64,
}

impl Drop for MemHold {
    fn drop(&mut self) {
        self.base.state.lock().views.remove(&self.stamp).expect("views are closed once");
    }
}

impl MemBase {
    pub fn new(block_size: u32) -> Arc<MemBase> {
        MemBase::with(MemTree::new(block_size as usize))
    }

    pub fn with(tree: MemTree) -> Arc<MemBase> {
        let block_size = tree.block_size() as u32;
        let state = MemState {
            tree,
            clock: 0,
            views: BTreeMap::new(),
            reserved: BTreeSet::new(),
            commits: 0,
            durable: 0,
            inodes_left: u64::MAX,
        };
        Arc::new(MemBase { state: Mutex::new(state), block_size })
    }

    /// An operation outside any transaction.
    fn outside<R>(&self, action: impl FnOnce(&mut MemTree) -> R) -> R {
        action(&mut self.state.lock().tree)
    }

    pub fn tree(&self) -> MemTree {
        self.state.lock().tree.clone()
    }

    pub fn commits(&self) -> u64 {
        self.state.lock().commits
    }

    pub fn durable(&self) -> u64 {
        self.state.lock().durable
    }

    pub fn limit_inodes(&self, left: u64) {
        self.state.lock().inodes_left = left;
    }

    /// Nothing of any transaction is left.
    pub fn assert_idle(&self) {
        let state = self.state.lock();
        assert!(state.views.is_empty(), "views are open");
        assert!(state.reserved.is_empty(), "inodes are reserved: {:?}", state.reserved);
        let nameless = state.tree.inodes().filter(|(_, node)| node.attr.nlink == 0).count();
        assert_eq!(nameless, 0, "inodes without a name are left");
    }

    fn past<R>(&self, stamp: Stamp, read: impl FnOnce(&mut MemTree) -> R) -> R {
        read(self.state.lock().views.get_mut(&stamp.0).expect("the view is open"))
    }
}

impl VersionedBase for MemBase {
    type Hold = MemHold;
    type Staged = NewContents;
    type Tree<'a> = MemCommit<'a>;

    fn open_view(self: &Arc<Self>) -> MemHold {
        let mut state = self.state.lock();
        state.clock += 1;
        let stamp = state.clock;
        let copy = state.tree.clone();
        state.views.insert(stamp, copy);
        MemHold { base: self.clone(), stamp }
    }

    fn stamp(hold: &MemHold) -> Stamp {
        Stamp(hold.stamp)
    }

    fn attr_at(&self, ino: Ino, stamp: Stamp) -> Result<Attr> {
        self.past(stamp, |tree| tree.attr(ino))
    }

    fn entry_at(&self, dir: Ino, name: &Name, stamp: Stamp) -> Result<Option<Entry>> {
        self.past(stamp, |tree| tree.entry(dir, name))
    }

    fn list_at(
        &self,
        dir: Ino,
        cookie: u64,
        stamp: Stamp,
        each: &mut dyn FnMut(DirItem<'_>) -> bool,
    ) -> Result<()> {
        self.past(stamp, |tree| tree.list_from(dir, cookie, each))
    }

    fn parent_at(&self, dir: Ino, stamp: Stamp) -> Result<Ino> {
        self.past(stamp, |tree| tree.parent(dir))
    }

    fn read_link_at(&self, ino: Ino, stamp: Stamp) -> Result<Vec<u8>> {
        self.past(stamp, |tree| tree.read_link(ino))
    }

    /// With rubbish behind the end of the file, as a real block may have.
    fn read_block_at(&self, ino: Ino, at: FileBlock, stamp: Stamp) -> Result<Option<Arc<[u8]>>> {
        let (size, block) =
            self.past(stamp, |tree| Ok::<_, Error>((tree.attr(ino)?.size, tree.block(ino, at)?)))?;
        let start = u64::from(at.0) * u64::from(self.block_size);
        Ok(block.map(|mut block| {
            let end = size.saturating_sub(start).min(u64::from(self.block_size)) as usize;
            Arc::make_mut(&mut block)[end..].fill(0xEE);
            block
        }))
    }

    fn seek_at(&self, ino: Ino, at: FileBlock, to: SeekTo, stamp: Stamp) -> Result<Option<FileBlock>> {
        let bs = u64::from(self.block_size);
        match self.past(stamp, |tree| tree.seek_to(ino, u64::from(at.0) * bs, to)) {
            Ok(offset) => Ok(Some(FileBlock(offset.div_ceil(bs) as u32))),
            Err(Error::Posix(_)) if to == SeekTo::Data => Ok(None),
            Err(Error::Posix(_)) => Ok(Some(at)),
            Err(error) => Err(error),
        }
    }

    fn xattr_at(&self, ino: Ino, name: &[u8], stamp: Stamp) -> Result<Option<Vec<u8>>> {
        self.past(stamp, |tree| tree.xattr(ino, name))
    }

    /// Any number of any size.
    fn check_xattrs(&self, _ino: Option<Ino>, _changes: &XattrChanges) -> Result<()> {
        Ok(())
    }

    fn list_xattrs_at(&self, ino: Ino, stamp: Stamp) -> Result<Vec<Vec<u8>>> {
        self.past(stamp, |tree| tree.list_xattrs(ino))
    }

    fn block_size(&self) -> u32 {
        self.block_size
    }

    fn size_max(&self, flags: u32) -> u64 {
        self.state.lock().tree.size_max(flags)
    }

    fn has_extents(&self) -> bool {
        self.state.lock().tree.has_extents()
    }

    fn has_projects(&self) -> bool {
        self.state.lock().tree.has_projects()
    }

    fn link_max(&self) -> u32 {
        self.state.lock().tree.link_max()
    }

    fn dir_nlink(&self) -> bool {
        self.state.lock().tree.dir_nlink()
    }

    fn target_max(&self) -> usize {
        self.state.lock().tree.target_max()
    }

    fn space(&self) -> Result<VolumeSpace> {
        Ok(VolumeSpace {
            block_size: self.block_size,
            blocks: 0,
            free_blocks: 0,
            available_blocks: 0,
            inodes: 0,
            free_inodes: 0,
        })
    }

    fn now(&self) -> Timestamp {
        self.state.lock().tree.now()
    }

    fn reserve_inode(&self, _parent: Ino, _is_dir: bool) -> Result<Ino> {
        let mut state = self.state.lock();
        state.inodes_left = state.inodes_left.checked_sub(1).ok_or(Error::NoSpace)?;
        let ino = state.tree.reserve();
        state.reserved.insert(ino);
        Ok(ino)
    }

    fn unreserve_inode(&self, ino: Ino) {
        let mut state = self.state.lock();
        state.inodes_left = state.inodes_left.saturating_add(1);
        assert!(state.reserved.remove(&ino), "{ino} was not reserved");
    }

    fn private_bytes_max(&self) -> u64 {
        u64::MAX
    }

    fn spill(
        self: &Arc<Self>,
        _: Ino,
        _: Option<&SpilledBlock>,
        _: &[Arc<[u8]>],
        _: bool,
    ) -> Result<Vec<SpilledBlock>> {
        unreachable!("a tree in memory has no limit")
    }

    fn stage(self: &Arc<Self>, ino: Ino, new: NewContents, _privileged: bool) -> Result<NewContents> {
        assert!(new.blocks.is_sorted_by_key(|(at, _)| *at));
        assert!(new.reserved.is_sorted_by_key(|range| range.start));
        for range in &new.reserved {
            assert!(!new.blocks.iter().any(|(at, data)| data.is_some() && range.contains(at)));
        }
        assert_eq!(new.is_new, self.state.lock().reserved.contains(&ino));
        Ok(new)
    }

    fn prepare(&self, _files: &[Ino]) -> Result<()> {
        Ok(())
    }

    fn commit<R>(
        &self,
        inodes: &[Ino],
        _size: &CommitSize,
        mut action: impl FnMut(&mut MemCommit<'_>) -> Result<R>,
    ) -> Result<R> {
        assert!(inodes.is_sorted(), "locks are taken in order");
        let mut state = self.state.lock();
        let mut reads_left = Some(state.commits % 7);
        loop {
            let MemState { tree, views, reserved, commits, clock, .. } = &mut *state;
            let mut commit = MemCommit {
                tree: tree.clone(),
                views,
                reserved: reserved.clone(),
                id: *commits + 1,
                changed: false,
                reads_left,
                missing: false,
                next_stamp: *clock + 1,
                opens_view: false,
            };
            let result = action(&mut commit);
            if commit.missing {
                assert!(!commit.changed, "a commit read something new after its first change");
                reads_left = None;
                continue;
            }
            let MemCommit { tree, reserved, changed, id, next_stamp, opens_view, .. } = commit;
            match &result {
                Ok(_) => {
                    if opens_view {
                        state.clock = next_stamp;
                        state.views.insert(next_stamp, tree.clone());
                    }
                    (state.tree, state.reserved, state.commits) = (tree, reserved, id);
                }
                Err(error) => assert!(!changed, "a commit failed after its first change: {error}"),
            }
            return result;
        }
    }

    fn wait_durable(&self, commit: CommitId) -> Result<()> {
        let mut state = self.state.lock();
        state.durable = state.durable.max(commit.0);
        Ok(())
    }
}

/// The base within one commit.
pub(crate) struct MemCommit<'a> {
    tree: MemTree,
    views: &'a BTreeMap<u64, MemTree>,
    reserved: BTreeSet<Ino>,
    id: u64,
    changed: bool,
    reads_left: Option<u64>,
    missing: bool,
    /// The stamp that a view opened after the commit has, and whether one was.
    next_stamp: u64,
    opens_view: bool,
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

    /// An item of an inode then and now.
    fn differs<R: PartialEq>(
        &mut self,
        ino: Ino,
        since: Stamp,
        item: impl Fn(&MemNode) -> R,
    ) -> Result<Option<ChangedBy>> {
        self.look()?;
        let now = self.tree.node(ino).ok().map(&item);
        let then = self.views[&since.0].node(ino).ok().map(&item);
        // Who it was is not kept here.
        Ok((now != then).then_some(ChangedBy(None)))
    }
}

impl CommitTree for MemCommit<'_> {
    type Base = MemBase;
    type Hold = MemHold;
    type Staged = NewContents;

    fn entry_changed_since(&mut self, dir: Ino, name: &Name, since: Stamp) -> Result<Option<ChangedBy>> {
        self.look()?;
        let item =
            |tree: &MemTree| tree.node(dir).ok().and_then(|node| node.names.get(name).map(|(e, _)| *e));
        let differs = item(&self.tree) != item(&self.views[&since.0]);
        Ok(differs.then_some(ChangedBy(None)))
    }

    fn any_entry_changed_since(&mut self, dir: Ino, since: Stamp) -> Result<Option<ChangedBy>> {
        self.differs(dir, since, |node| node.names.clone())
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

    fn check_xattrs(&mut self, _ino: Option<Ino>, _changes: &XattrChanges) -> Result<()> {
        Ok(())
    }

    fn any_xattr_changed_since(&mut self, ino: Ino, since: Stamp) -> Result<Option<ChangedBy>> {
        self.differs(ino, since, |node| node.xattrs.clone())
    }

    fn attr_changed_since(&mut self, ino: Ino, since: Stamp) -> Result<Option<ChangedBy>> {
        self.differs(ino, since, |node| node.attr)
    }

    fn check_view(&self, _: Stamp) -> Result<()> {
        Ok(())
    }

    fn sign(&mut self, _: u64) {}

    fn open_view_after(&mut self, base: &Arc<MemBase>) -> MemHold {
        self.opens_view = true;
        MemHold { base: base.clone(), stamp: self.next_stamp }
    }

    fn exists(&mut self, ino: Ino) -> Result<bool> {
        self.look()?;
        Ok(self.tree.node(ino).is_ok())
    }

    fn adopt_inode(&mut self, ino: Ino, new: &NewInode) -> Result<()> {
        assert!(self.reserved.remove(&ino), "{ino} was not reserved");
        self.change().adopt(ino, Ino::ROOT, new);
        Ok(())
    }

    fn expect_charge(&mut self, _: Payer, _: u64, _: u64) {
        assert!(!self.changed, "a charge is announced before the first change");
    }

    fn expect_payer(&mut self, ino: Ino, _: Payer) -> Result<()> {
        assert!(!self.changed, "a charge is announced before the first change");
        self.look()?.attr(ino).map(drop)
    }

    fn expect_install(&mut self, ino: Ino, _: &NewContents) -> Result<()> {
        assert!(!self.changed, "an install is announced before the first change");
        self.look()?.attr(ino).map(drop)
    }

    fn expect_new_file(&mut self, _: &NewContents) {
        assert!(!self.changed, "an install is announced before the first change");
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

impl Tree for MemCommit<'_> {
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

/// The base itself, for operations outside transactions.
impl View for MemBase {
    fn lookup(&self, dir: Ino, name: &Name) -> Result<Attr> {
        self.outside(|t| posix::lookup(t, dir, name))
    }

    fn attr(&self, ino: Ino) -> Result<Attr> {
        self.outside(|t| posix::attr(t, ino))
    }

    fn set_attr(&self, caller: &Caller, ino: Ino, change: &SetAttr) -> Result<Attr> {
        self.outside(|t| posix::set_attr(t, caller, ino, change))
    }

    fn read_link(&self, ino: Ino) -> Result<Vec<u8>> {
        self.outside(|t| posix::read_link(t, ino))
    }

    fn make_node(&self, caller: &Caller, dir: Ino, name: &Name, mode: u16, rdev: u64) -> Result<Attr> {
        self.outside(|t| posix::make_node(t, caller, dir, name, mode, rdev))
    }

    fn make_dir(&self, caller: &Caller, dir: Ino, name: &Name, perm: u16) -> Result<Attr> {
        self.outside(|t| posix::make_dir(t, caller, dir, name, perm))
    }

    fn make_symlink(&self, caller: &Caller, dir: Ino, name: &Name, target: &[u8]) -> Result<Attr> {
        self.outside(|t| posix::make_symlink(t, caller, dir, name, target))
    }

    fn make_unnamed(&self, caller: &Caller, dir: Ino, perm: u16) -> Result<Attr> {
        self.outside(|t| posix::make_unnamed(t, caller, dir, perm))
    }

    fn link(&self, _: &Caller, ino: Ino, dir: Ino, name: &Name) -> Result<Attr> {
        self.outside(|t| posix::link(t, ino, dir, name))
    }

    fn unlink(&self, _: &Caller, dir: Ino, name: &Name) -> Result<()> {
        self.outside(|t| posix::unlink(t, dir, name))
    }

    fn remove_dir(&self, _: &Caller, dir: Ino, name: &Name) -> Result<()> {
        self.outside(|t| posix::remove_dir(t, dir, name))
    }

    fn rename(&self, caller: &Caller, from: (Ino, &Name), to: (Ino, &Name), how: RenameHow) -> Result<()> {
        self.outside(|t| posix::rename(t, caller, from, to, how))
    }

    fn read_dir(&self, dir: Ino, cookie: u64, each: &mut dyn FnMut(DirItem<'_>) -> bool) -> Result<()> {
        self.outside(|t| posix::read_dir(t, dir, cookie, each))
    }

    fn hold(&self, ino: Ino) -> Result<()> {
        self.outside(|t| t.hold(ino))
    }

    fn release(&self, ino: Ino, count: u64) {
        self.outside(|t| t.release(ino, count));
    }

    fn read(&self, ino: Ino, offset: u64, len: usize, out: &mut Vec<u8>) -> Result<()> {
        self.outside(|t| posix::read(t, ino, offset, len, out))
    }

    fn write(&self, ino: Ino, offset: u64, data: &[u8], how: WriteHow) -> Result<u64> {
        self.outside(|t| posix::write(t, ino, offset, data, how))
    }

    fn allocate(&self, _: &Caller, ino: Ino, offset: u64, len: u64, how: Allocate) -> Result<()> {
        self.outside(|t| posix::allocate(t, ino, offset, len, how))
    }

    fn copy_range(&self, from: (Ino, u64), to: (Ino, u64), len: u64, how: WriteHow) -> Result<u64> {
        self.outside(|t| posix::copy_range(t, from, to, len, how))
    }

    fn seek(&self, ino: Ino, offset: u64, to: SeekTo) -> Result<u64> {
        self.outside(|t| posix::seek(t, ino, offset, to))
    }

    fn sync_file(&self, _: Ino, _: bool) -> Result<()> {
        Ok(())
    }

    fn sync_all(&self) -> Result<()> {
        Ok(())
    }

    fn xattr(&self, ino: Ino, name: &[u8]) -> Result<Vec<u8>> {
        self.outside(|t| posix::xattr(t, ino, name))
    }

    fn list_xattrs(&self, ino: Ino) -> Result<Vec<Vec<u8>>> {
        self.outside(|t| posix::list_xattrs(t, ino))
    }

    fn set_xattr(&self, _: &Caller, ino: Ino, name: &[u8], value: &[u8], how: XattrHow) -> Result<()> {
        self.outside(|t| posix::set_xattr(t, ino, name, value, how))
    }

    fn remove_xattr(&self, _: &Caller, ino: Ino, name: &[u8]) -> Result<()> {
        self.outside(|t| posix::remove_xattr(t, ino, name))
    }

    fn space(&self) -> Result<VolumeSpace> {
        VersionedBase::space(self)
    }
}
