//! Real volumes as the base of transactions.

use std::ops::Range;
use std::sync::Arc;

use xact_fs::quota::Payer;
use xact_fs::{
    Attr, ChangedBy, CommitSize, DirItem, Entry, LiveFs, Name, NewContents, NewInode, Operation, PinnedSpace,
    ReadView, SeekTo, SpaceLimits, SpillPlace, SpilledBlock, StagedBlocks, Staging, Stamp, TxSpace, View,
    VolumeSpace, XattrChanges,
};
use xact_types::{CommitId, FileBlock, Ino, Result, Timestamp};

use crate::base::{CommitTree, VersionedBase};

impl VersionedBase for LiveFs {
    type Hold = ReadView;
    type Staged = StagedBlocks;
    type Space = Arc<TxSpace>;
    type Pinned = PinnedSpace;
    type Tree<'a> = Operation<'a>;

    fn open_view(self: &Arc<Self>) -> ReadView {
        LiveFs::open_view(self)
    }

    fn stamp(hold: &ReadView) -> Stamp {
        hold.stamp()
    }

    fn attr_at(&self, ino: Ino, stamp: Stamp) -> Result<Attr> {
        LiveFs::attr_at(self, ino, stamp)
    }

    fn entry_at(&self, dir: Ino, name: &Name, stamp: Stamp) -> Result<Option<Entry>> {
        LiveFs::entry_at(self, dir, name, stamp)
    }

    fn list_at(
        &self,
        dir: Ino,
        cookie: u64,
        stamp: Stamp,
        each: &mut dyn FnMut(DirItem<'_>) -> bool,
    ) -> Result<()> {
        LiveFs::list_at(self, dir, cookie, stamp, each)
    }

    fn parent_at(&self, dir: Ino, stamp: Stamp) -> Result<Ino> {
        LiveFs::parent_at(self, dir, stamp)
    }

    fn read_link_at(&self, ino: Ino, stamp: Stamp) -> Result<Vec<u8>> {
        LiveFs::read_link_at(self, ino, stamp)
    }

    fn read_block_at(&self, ino: Ino, at: FileBlock, stamp: Stamp) -> Result<Option<Arc<[u8]>>> {
        LiveFs::read_block_at(self, ino, at, stamp)
    }

    fn seek_at(&self, ino: Ino, at: FileBlock, to: SeekTo, stamp: Stamp) -> Result<Option<FileBlock>> {
        LiveFs::seek_at(self, ino, at, to, stamp)
    }

    fn xattr_at(&self, ino: Ino, name: &[u8], stamp: Stamp) -> Result<Option<Vec<u8>>> {
        LiveFs::xattr_at(self, ino, name, stamp)
    }

    fn blocks_changed_since(
        &self,
        ino: Ino,
        blocks: Range<FileBlock>,
        since: Stamp,
    ) -> Result<Option<ChangedBy>> {
        LiveFs::blocks_changed_since(self, ino, blocks, since)
    }

    fn find_changed_block(
        &self,
        ino: Ino,
        since: Stamp,
        after: Stamp,
        wanted: &mut dyn FnMut(FileBlock) -> bool,
    ) -> Result<(Option<ChangedBy>, Stamp)> {
        LiveFs::find_changed_block(self, ino, since, after, wanted)
    }

    fn check_xattrs(&self, ino: Option<Ino>, changes: &XattrChanges) -> Result<()> {
        LiveFs::check_xattrs(self, ino, changes)
    }

    fn list_xattrs_at(&self, ino: Ino, stamp: Stamp) -> Result<Vec<Vec<u8>>> {
        LiveFs::list_xattrs_at(self, ino, stamp)
    }

    fn block_size(&self) -> u32 {
        LiveFs::block_size(self)
    }

    fn size_max(&self, flags: u32) -> u64 {
        LiveFs::size_max(self, flags)
    }

    fn has_extents(&self) -> bool {
        LiveFs::has_extents(self)
    }

    fn has_projects(&self) -> bool {
        LiveFs::has_projects(self)
    }

    fn link_max(&self) -> u32 {
        LiveFs::link_max(self)
    }

    fn dir_nlink(&self) -> bool {
        LiveFs::dir_nlink(self)
    }

    fn target_max(&self) -> usize {
        LiveFs::target_max(self)
    }

    fn space(&self) -> Result<VolumeSpace> {
        View::space(self)
    }

    fn now(&self) -> Timestamp {
        Timestamp::now()
    }

    fn open_space(self: &Arc<Self>, id: u64, owner: u32) -> Arc<TxSpace> {
        LiveFs::open_tx_space(self, id, owner)
    }

    fn check_space(space: &Arc<TxSpace>) -> Result<()> {
        space.check()
    }

    fn pin_space(space: &Arc<TxSpace>) -> Result<PinnedSpace> {
        space.begin_commit()
    }

    fn reserve_inode(
        &self,
        space: &Arc<TxSpace>,
        parent: Ino,
        is_dir: bool,
        payer: Payer,
        limits: SpaceLimits,
    ) -> Result<Ino> {
        LiveFs::reserve_inode(self, space, parent, is_dir, payer, limits)
    }

    fn unreserve_inode(&self, space: &Arc<TxSpace>, ino: Ino) {
        LiveFs::unreserve_inode(self, space, ino);
    }

    fn adopted_inode(&self, space: &Arc<TxSpace>, ino: Ino) {
        LiveFs::adopted_inode(self, space, ino);
    }

    fn private_bytes_max(&self) -> u64 {
        LiveFs::private_bytes_max(self)
    }

    fn spill(
        self: &Arc<Self>,
        space: &Arc<TxSpace>,
        place: &SpillPlace<'_>,
        blocks: &[Arc<[u8]>],
        limits: SpaceLimits,
    ) -> Result<Vec<SpilledBlock>> {
        LiveFs::spill(self, space, place, blocks, limits)
    }

    fn stage(self: &Arc<Self>, ino: Ino, new: NewContents, by: Staging) -> Result<StagedBlocks> {
        self.stage_blocks(ino, new, by)
    }

    fn prepare(&self, files: &[Ino]) -> Result<()> {
        self.prepare_commit(files)
    }

    fn commit<R>(
        &self,
        inodes: &[Ino],
        size: &CommitSize,
        action: impl FnMut(&mut Operation<'_>) -> Result<R>,
    ) -> Result<R> {
        self.run(inodes, self.commit_budget(size), action)
    }

    fn wait_durable(&self, commit: CommitId) -> Result<()> {
        self.engine().commit(commit)
    }

    fn sync(&self) -> Result<()> {
        View::sync_all(self)
    }

    fn removes_persisted_apart(&self) -> bool {
        LiveFs::removes_persisted_apart(self)
    }
}

impl CommitTree for Operation<'_> {
    type Base = LiveFs;
    type Hold = ReadView;
    type Staged = StagedBlocks;

    fn entry_changed_since(&mut self, dir: Ino, name: &Name, since: Stamp) -> Result<Option<ChangedBy>> {
        Operation::entry_changed_since(self, dir, name, since)
    }

    fn any_entry_changed_since(&mut self, dir: Ino, since: Stamp) -> Result<Option<ChangedBy>> {
        Operation::any_entry_changed_since(self, dir, since)
    }

    fn blocks_changed_since(
        &mut self,
        ino: Ino,
        blocks: Range<FileBlock>,
        since: Stamp,
    ) -> Result<Option<ChangedBy>> {
        Operation::blocks_changed_since(self, ino, blocks, since)
    }

    fn xattr_changed_since(&mut self, ino: Ino, name: &[u8], since: Stamp) -> Result<Option<ChangedBy>> {
        Operation::xattr_changed_since(self, ino, name, since)
    }

    fn any_xattr_changed_since(&mut self, ino: Ino, since: Stamp) -> Result<Option<ChangedBy>> {
        Operation::any_xattr_changed_since(self, ino, since)
    }

    fn attr_changed_since(&mut self, ino: Ino, since: Stamp) -> Result<Option<ChangedBy>> {
        Operation::attr_changed_since(self, ino, since)
    }

    fn check_view(&self, stamp: Stamp) -> Result<()> {
        Operation::check_view(self, stamp)
    }

    fn sign(&mut self, transaction: u64) {
        Operation::sign(self, transaction);
    }

    fn open_view_after(&mut self, base: &Arc<LiveFs>) -> ReadView {
        Operation::open_view_after(self, base)
    }

    fn check_xattrs(&mut self, ino: Option<Ino>, changes: &XattrChanges) -> Result<()> {
        Operation::check_xattrs(self, ino, changes)
    }

    fn exists(&mut self, ino: Ino) -> Result<bool> {
        Operation::exists(self, ino)
    }

    fn reserve_adoption(&mut self, ino: Ino, payer: Payer) -> Result<()> {
        Operation::reserve_adoption(self, ino, payer)
    }

    fn adopt_inode(&mut self, ino: Ino, new: &NewInode) -> Result<()> {
        Operation::adopt_inode(self, ino, new)
    }

    fn reserve_charge(&mut self, payer: Payer, blocks: u64, inodes: u64) {
        Operation::reserve_charge(self, payer, blocks, inodes);
    }

    fn reserve_payer_change(&mut self, ino: Ino, payer: Payer) -> Result<()> {
        Operation::reserve_payer_change(self, ino, payer)
    }

    fn reserve_install(&mut self, ino: Ino, staged: &StagedBlocks) -> Result<()> {
        Operation::reserve_install(self, ino, staged)
    }

    fn reserve_new_file(&mut self, staged: &StagedBlocks) {
        Operation::reserve_new_file(self, staged);
    }

    fn install(&mut self, ino: Ino, staged: &mut StagedBlocks, size: u64) -> Result<()> {
        Operation::install(self, ino, staged, size)
    }

    fn commit_id(&self) -> Option<CommitId> {
        Operation::commit_id(self)
    }
}
