//! The volume's side of a transaction's commit.
//!
//! - `size`: the journal blocks and free space that a commit needs
//! - `staging`: writes new file contents to free blocks before the commit
//! - `validation`: changes since the transaction began, under the commit's locks
//! - `reservation`: reservations before the first change
//! - `install`: links staged contents to the files

mod install;
mod reservation;
pub(super) mod size;
pub(super) mod staging;
mod validation;

use std::sync::Arc;

use xact_consistency::Fault;
use xact_types::{CommitId, Ino, Result};

use crate::live::LiveFs;
use crate::live::data::writeback::WritebackRequest;
use crate::live::op::Operation;
use crate::versioned_fs::commit::{CommitSize, CommitTarget, Staging};
use crate::versioned_fs::contents::NewContents;
use crate::xattr::XattrChanges;
use staging::StagedBlocks;

impl CommitTarget for LiveFs {
    type Staged = StagedBlocks;
    type Operation<'a> = Operation<'a>;

    /// Checks that an inode can hold these changes of its attributes; `None` means a new inode.
    /// Errors: as when setting them. A deleted inode passes: validation of the commit reports it.
    fn check_xattrs(&self, ino: Option<Ino>, changes: &XattrChanges) -> Result<()> {
        let Some(ino) = ino else { return self.check_new_xattrs(changes) };
        let cached = self.cached_inode(ino)?;
        let state = cached.state.read();
        if state.live { self.xattrs(ino).check(&state.inode, changes) } else { Ok(()) }
    }

    fn stage(self: &Arc<Self>, ino: Ino, new: NewContents, by: Staging) -> Result<StagedBlocks> {
        StagedBlocks::stage(self, ino, new, by)
    }

    /// Writes back the dirty data of the inodes that a commit will change, so that the sizes in the
    /// commit do not cover data that is not on the device.
    fn prepare(&self, inodes: &[Ino]) -> Result<()> {
        for ino in inodes {
            if let Some(cached) = self.inodes.peek(*ino) {
                self.write_back(&cached, WritebackRequest::INODE)?;
            }
        }
        Ok(())
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
        self.engine.commit(commit)
    }

    /// For crash tests: see [`Fault::PersistedRemovedApart`].
    fn removes_persisted_apart(&self) -> bool {
        self.options.faults.has(Fault::PersistedRemovedApart)
    }
}
