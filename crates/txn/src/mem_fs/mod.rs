//! A versioned file system in memory, for tests of transactions without disk structures.
//!
//! Every open view has a copy of the tree (inodes are shared until they change). A commit runs on a
//! copy, too, which replaces the tree if it succeeds. The first attempt of each commit is aborted
//! at some read, as in the live file system when it needs more locks.

mod commit;
mod view;

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;

use parking_lot::Mutex;
use xact_fs::inode_ops::mem::MemTree;
use xact_fs::quota::Payer;
use xact_fs::{
    Attr, ChangedBy, CommitSize, CommitTarget, DataMode, DirItem, Entry, HoldsTxSpace, InodeLimits, InodeOps,
    Name, NewContents, ReadAsOf, SeekTo, SpaceLimits, SpillPlace, SpilledBlock, Staging, Stamp, XattrChanges,
};
use xact_types::{CommitId, Error, FileBlock, Ino, Result, Timestamp};

use commit::MemCommit;

#[derive(Debug)]
pub(crate) struct MemFs {
    state: Mutex<MemState>,
    block_size: u32,
}

#[derive(Debug)]
struct MemState {
    tree: MemTree,
    clock: u64,
    views: BTreeMap<u64, MemTree>,
    /// Views with stamps below this one are expired.
    expired_below: u64,
    reserved: BTreeSet<Ino>,
    /// Number of commits with changes, and the last one that was waited for.
    commits: u64,
    durable: u64,
    /// Number of inodes after which reservations fail with `NoSpace`.
    inodes_left: u64,
    /// The last commit for which there is space.
    last_commit: u64,
}

pub(crate) struct MemReadView {
    base: Arc<MemFs>,
    stamp: u64,
}

impl Drop for MemReadView {
    fn drop(&mut self) {
        self.base.state.lock().views.remove(&self.stamp).expect("views are closed once");
    }
}

impl MemFs {
    pub fn new(block_size: u32) -> Arc<MemFs> {
        MemFs::with(MemTree::new(block_size as usize))
    }

    pub fn with(tree: MemTree) -> Arc<MemFs> {
        let block_size = tree.block_size() as u32;
        let state = MemState {
            tree,
            clock: 0,
            views: BTreeMap::new(),
            expired_below: 0,
            reserved: BTreeSet::new(),
            commits: 0,
            durable: 0,
            inodes_left: u64::MAX,
            last_commit: u64::MAX,
        };
        Arc::new(MemFs { state: Mutex::new(state), block_size })
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

    /// Makes all commits after this one fail for lack of space.
    pub fn fail_commits_after(&self, last: u64) {
        self.state.lock().last_commit = last;
    }

    /// Asserts that no transaction has left any state.
    pub fn assert_idle(&self) {
        let state = self.state.lock();
        assert!(state.views.is_empty(), "views are open");
        assert!(state.reserved.is_empty(), "inodes are reserved: {:?}", state.reserved);
        let nameless = state.tree.inodes().filter(|(_, node)| node.attr.nlink == 0).count();
        assert_eq!(nameless, 0, "inodes without a name are left");
    }

    /// Expires all views that are open now.
    pub fn expire_views(&self) {
        let mut state = self.state.lock();
        state.expired_below = state.clock + 1;
    }

    fn past<R>(&self, stamp: Stamp, read: impl FnOnce(&mut MemTree) -> Result<R>) -> Result<R> {
        let mut state = self.state.lock();
        let tree = state.views.get_mut(&stamp.0).expect("the view is open");
        let result = read(tree);
        if stamp.0 < state.expired_below { Err(Error::TooOld) } else { result }
    }
}

impl ReadAsOf for MemFs {
    type ReadView = MemReadView;

    fn open_view(self: &Arc<Self>) -> MemReadView {
        let mut state = self.state.lock();
        state.clock += 1;
        let stamp = state.clock;
        let copy = state.tree.clone();
        state.views.insert(stamp, copy);
        MemReadView { base: self.clone(), stamp }
    }

    fn stamp(view: &MemReadView) -> Stamp {
        Stamp(view.stamp)
    }

    fn check_stamp(&self, stamp: Stamp) -> Result<()> {
        self.past(stamp, |_| Ok(()))
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

    /// Returns junk after the end of the file, as a real block may have.
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

    fn list_xattrs_at(&self, ino: Ino, stamp: Stamp) -> Result<Vec<Vec<u8>>> {
        self.past(stamp, |tree| tree.list_xattrs(ino))
    }

    fn blocks_changed_since(
        &self,
        ino: Ino,
        blocks: Range<FileBlock>,
        since: Stamp,
    ) -> Result<Option<ChangedBy>> {
        self.find_changed_block(ino, since, since, &mut |changed| blocks.contains(&changed.start))
            .map(|(by, _)| by)
    }

    /// Neither authors nor the order of changes are recorded here.
    fn find_changed_block(
        &self,
        ino: Ino,
        since: Stamp,
        _after: Stamp,
        wanted: &mut dyn FnMut(Range<FileBlock>) -> bool,
    ) -> Result<(Option<ChangedBy>, Stamp)> {
        let state = self.state.lock();
        let blocks = |tree: &MemTree| tree.node(ino).map(|node| node.blocks.clone()).unwrap_or_default();
        let (now, then) = (blocks(&state.tree), blocks(&state.views[&since.0]));
        let mut changed = now.keys().chain(then.keys()).filter(|at| now.get(at) != then.get(at));
        Ok((changed.find(|at| wanted(**at..at.offset(1))).map(|_| ChangedBy(None)), since))
    }
}

impl InodeLimits for MemFs {
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

    fn gives_group_of_folder(&self) -> bool {
        self.state.lock().tree.gives_group_of_folder()
    }

    fn takes_file_mode(&self, mode: DataMode) -> bool {
        self.state.lock().tree.takes_file_mode(mode)
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
}

impl HoldsTxSpace for MemFs {
    type Space = ();
    type Pinned = ();

    fn open_space(self: &Arc<Self>, _id: u64, _owner: u32) {}

    fn check_space(_: &()) -> Result<()> {
        Ok(())
    }

    fn pin_space(_: &()) -> Result<()> {
        Ok(())
    }

    fn reserve_inode(&self, _: &(), _: Ino, _: bool, _: Payer, _: SpaceLimits) -> Result<Ino> {
        let mut state = self.state.lock();
        state.inodes_left = state.inodes_left.checked_sub(1).ok_or(Error::NoSpace)?;
        let ino = state.tree.reserve();
        state.reserved.insert(ino);
        Ok(ino)
    }

    fn unreserve_inode(&self, _: &(), ino: Ino) {
        let mut state = self.state.lock();
        state.inodes_left = state.inodes_left.saturating_add(1);
        assert!(state.reserved.remove(&ino), "{ino} was not reserved");
    }

    fn adopted_inode(&self, _: &(), ino: Ino) {
        assert!(!self.state.lock().reserved.contains(&ino), "{ino} was not adopted");
    }

    fn private_bytes_max(&self) -> u64 {
        u64::MAX
    }

    fn spill(
        self: &Arc<Self>,
        _: &(),
        _: &SpillPlace<'_>,
        _: &[Arc<[u8]>],
        _: SpaceLimits,
    ) -> Result<Vec<SpilledBlock>> {
        unreachable!("a tree in memory has no limit")
    }
}

impl CommitTarget for MemFs {
    type Staged = NewContents;
    type Operation<'a> = MemCommit<'a>;

    fn now(&self) -> Timestamp {
        self.state.lock().tree.now()
    }

    /// Accepts any number of attributes of any size.
    fn check_xattrs(&self, _ino: Option<Ino>, _changes: &XattrChanges) -> Result<()> {
        Ok(())
    }

    fn stage(self: &Arc<Self>, ino: Ino, new: NewContents, _: Staging) -> Result<NewContents> {
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
        if state.commits >= state.last_commit {
            return Err(Error::NoSpace);
        }
        let mut reads_left = Some(state.commits % 7);
        loop {
            let MemState { tree, views, expired_below, reserved, commits, clock, .. } = &mut *state;
            let mut commit = MemCommit {
                tree: tree.clone(),
                views,
                expired_below: *expired_below,
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
