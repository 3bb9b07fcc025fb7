//! Validation calls of a transaction's commit: they report, for each item, whether it has changed
//! since the transaction began.

use std::ops::Range;
use std::sync::Arc;

use xact_layout::inode::Inode;
use xact_types::{FileBlock, Ino, Result};

use crate::api::{Name, is_persisted_folder};
use crate::live::LiveFs;
use crate::live::mvcc::read_view::ReadView;
use crate::live::mvcc::versions::Versions;
use crate::live::op::Operation;
use crate::versioned_fs::commit::ValidationOps;
use crate::versioned_fs::read_as_of::{ChangedBy, ReadAsOf, Stamp};
use crate::xattr::XattrChanges;

impl ValidationOps for Operation<'_> {
    type Fs = LiveFs;
    type ReadView = ReadView;

    fn entry_changed_since(&mut self, dir: Ino, name: &Name, since: Stamp) -> Result<Option<ChangedBy>> {
        self.changed_since(dir, |versions| versions.name_changed_since(name, since))
    }

    /// The folder of persisted transactions does not count.
    fn any_entry_changed_since(
        &mut self,
        dir: Ino,
        since: Stamp,
        ignored: &dyn Fn(&Name) -> bool,
    ) -> Result<Option<ChangedBy>> {
        let ignored = |name: &Name| is_persisted_folder(dir, name) || ignored(name);
        self.changed_since(dir, |versions| versions.any_name_changed_since(since, ignored))
    }

    fn blocks_changed_since(
        &mut self,
        ino: Ino,
        blocks: Range<FileBlock>,
        since: Stamp,
    ) -> Result<Option<ChangedBy>> {
        self.changed_since(ino, |versions| versions.any_block_changed_since(blocks, since))
    }

    fn xattr_changed_since(&mut self, ino: Ino, name: &[u8], since: Stamp) -> Result<Option<ChangedBy>> {
        self.changed_since(ino, |versions| versions.xattr_changed_since(name, since))
    }

    fn any_xattr_changed_since(&mut self, ino: Ino, since: Stamp) -> Result<Option<ChangedBy>> {
        self.changed_since(ino, |versions| versions.any_xattr_changed_since(since))
    }

    fn attr_changed_since(&mut self, ino: Ino, since: Stamp) -> Result<Option<ChangedBy>> {
        self.changed_since(ino, |versions| versions.attr_changed_since(since))
    }

    fn check_view(&self, stamp: Stamp) -> Result<()> {
        self.fs.mvcc.check_view(stamp)
    }

    fn set_transaction(&mut self, transaction: u64) {
        self.transaction = Some(transaction);
    }

    fn open_view_after(&mut self, fs: &Arc<LiveFs>) -> ReadView {
        assert!(std::ptr::eq(self.fs, &**fs), "the view is of the same volume");
        fs.open_view()
    }

    fn exists(&mut self, ino: Ino) -> Result<bool> {
        Ok(self.any_state(ino)?.state.live)
    }

    /// As [`CommitTarget::check_xattrs`](crate::CommitTarget::check_xattrs), of inodes as they are
    /// under the commit's locks.
    fn check_xattrs(&mut self, ino: Option<Ino>, changes: &XattrChanges) -> Result<()> {
        let fs = self.fs;
        let Some(ino) = ino else { return fs.check_new_xattrs(changes) };
        fs.xattrs(ino).check(&self.state(ino)?.state.inode, changes)
    }
}

impl Operation<'_> {
    fn changed_since(
        &mut self,
        ino: Ino,
        author: impl FnOnce(&Versions) -> Option<ChangedBy>,
    ) -> Result<Option<ChangedBy>> {
        Ok(author(&self.any_state(ino)?.state.versions))
    }
}

impl LiveFs {
    pub(super) fn check_new_xattrs(&self, changes: &XattrChanges) -> Result<()> {
        let mut inode = Inode::zeroed(self.sb.inode_size());
        inode.set_extra_isize(self.extra_isize());
        self.xattrs(Ino(0)).check(&inode, changes)
    }
}
