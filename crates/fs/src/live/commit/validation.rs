//! What a transaction's commit asks of the volume beyond the ordinary [`crate::InodeOps`] calls:
//! validation item by item, and inode numbers that are reserved before. New file contents are in
//! `commit::install`.

use std::ops::Range;
use std::sync::Arc;

use xact_consistency::Fault;
use xact_layout::inode::Inode;
use xact_types::{FileBlock, Ino, Result};

use crate::api::{Name, PERSISTED_FOLDER};
use crate::live::LiveFs;
use crate::live::data::writeback::WritebackRequest;
use crate::live::mvcc::read_view::ReadView;
use crate::live::mvcc::stamps::{ChangedBy, Stamp};
use crate::live::mvcc::versions::Versions;
use crate::live::op::Operation;
use crate::xattr::XattrChanges;

impl Operation<'_> {
    /// Who changed the name (made, removed, or pointed it elsewhere) after `since`, if anybody
    /// did. Exact while a view of that stamp is open, as are all of these.
    pub fn entry_changed_since(&mut self, dir: Ino, name: &Name, since: Stamp) -> Result<Option<ChangedBy>> {
        self.changed_since(dir, |versions| versions.name_changed_since(name, since))
    }

    /// That the folder of kept transactions comes and goes is no change.
    pub fn any_entry_changed_since(&mut self, dir: Ino, since: Stamp) -> Result<Option<ChangedBy>> {
        let besides = (dir == Ino::ROOT).then_some(PERSISTED_FOLDER.as_bytes());
        self.changed_since(dir, |versions| versions.any_name_changed_since(since, besides))
    }

    pub fn blocks_changed_since(
        &mut self,
        ino: Ino,
        blocks: Range<FileBlock>,
        since: Stamp,
    ) -> Result<Option<ChangedBy>> {
        self.changed_since(ino, |versions| versions.any_block_changed_since(blocks, since))
    }

    pub fn xattr_changed_since(&mut self, ino: Ino, name: &[u8], since: Stamp) -> Result<Option<ChangedBy>> {
        self.changed_since(ino, |versions| versions.xattr_changed_since(name, since))
    }

    pub fn any_xattr_changed_since(&mut self, ino: Ino, since: Stamp) -> Result<Option<ChangedBy>> {
        self.changed_since(ino, |versions| versions.any_xattr_changed_since(since))
    }

    /// Any of the attributes, times included.
    pub fn attr_changed_since(&mut self, ino: Ino, since: Stamp) -> Result<Option<ChangedBy>> {
        self.changed_since(ino, |versions| versions.attr_changed_since(since))
    }

    fn changed_since(
        &mut self,
        ino: Ino,
        newest: impl FnOnce(&Versions) -> Option<Stamp>,
    ) -> Result<Option<ChangedBy>> {
        let stamp = newest(&self.any_state(ino)?.state.versions);
        Ok(stamp.map(|stamp| self.fs.mvcc.stamps().changed_by(stamp)))
    }

    /// Fails where the view of this stamp is expired: what changed since is not known any more.
    pub fn check_view(&self, stamp: Stamp) -> Result<()> {
        self.fs.mvcc.check_view(stamp)
    }

    /// Says, before the first change, which user transaction this operation is the commit of.
    pub fn sign(&mut self, transaction: u64) {
        self.transaction = Some(transaction);
    }

    /// A view of the volume as this operation leaves it, opened while it holds all of its locks:
    /// nothing can have changed what it looked at between the operation and the view.
    pub fn open_view_after(&self, fs: &Arc<LiveFs>) -> ReadView {
        assert!(std::ptr::eq(self.fs, &**fs), "the view is of the same volume");
        fs.open_view()
    }

    /// Whether the inode is in use now.
    pub fn exists(&mut self, ino: Ino) -> Result<bool> {
        Ok(self.any_state(ino)?.state.live)
    }

    /// As [`LiveFs::check_xattrs`], of inodes as they are under the commit's locks.
    pub fn check_xattrs(&mut self, ino: Option<Ino>, changes: &XattrChanges) -> Result<()> {
        let fs = self.fs;
        let Some(ino) = ino else { return fs.check_new_xattrs(changes) };
        fs.xattrs(ino).check(&self.state(ino)?.state.inode, changes)
    }
}

impl LiveFs {
    /// Writes back what is dirty of the inodes that a commit will change, so that the commit's
    /// sizes do not cover data that is not on the device.
    pub fn prepare_commit(&self, inodes: &[Ino]) -> Result<()> {
        for ino in inodes {
            if let Some(cached) = self.inodes.peek(*ino) {
                self.write_back(&cached, WritebackRequest::INODE)?;
            }
        }
        Ok(())
    }

    /// Whether an inode, a new one where none is named, can hold these changes of its attributes;
    /// errors as of setting them. One that is gone holds anything: its commit will fail for that.
    pub fn check_xattrs(&self, ino: Option<Ino>, changes: &XattrChanges) -> Result<()> {
        let Some(ino) = ino else { return self.check_new_xattrs(changes) };
        let cached = self.cached_inode(ino)?;
        let state = cached.state.read();
        if state.live { self.xattrs(ino).check(&state.inode, changes) } else { Ok(()) }
    }

    fn check_new_xattrs(&self, changes: &XattrChanges) -> Result<()> {
        let mut inode = Inode::zeroed(self.sb.inode_size());
        inode.set_extra_isize(self.extra_isize());
        self.xattrs(Ino(0)).check(&inode, changes)
    }

    /// For the tests of crashes: see [`Fault::PersistedRemovedApart`].
    pub fn removes_persisted_apart(&self) -> bool {
        self.options.faults.has(Fault::PersistedRemovedApart)
    }
}
