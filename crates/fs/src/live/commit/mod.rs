//! What a transaction's commit does to the volume.
//!
//! - `size`: how much of the journal and of free space it takes
//! - `staging`: new contents of files, written to free blocks before the commit
//! - `validation`: what has changed since the transaction began, under the commit's locks
//! - `reservation`: what it reserves before its first change
//! - `install`: staged contents become the files'

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

    /// Whether an inode, a new one where none is named, can hold these changes of its attributes; errors
    /// as of setting them. One that is gone holds anything: its commit will be told of that.
    fn check_xattrs(&self, ino: Option<Ino>, changes: &XattrChanges) -> Result<()> {
        let Some(ino) = ino else { return self.check_new_xattrs(changes) };
        let cached = self.cached_inode(ino)?;
        let state = cached.state.read();
        if state.live { self.xattrs(ino).check(&state.inode, changes) } else { Ok(()) }
    }

    fn stage(self: &Arc<Self>, ino: Ino, new: NewContents, by: Staging) -> Result<StagedBlocks> {
        StagedBlocks::stage(self, ino, new, by)
    }

    /// Writes back what is dirty of the inodes that a commit will change, so that the commit's
    /// sizes do not cover data that is not on the device.
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

    /// For the tests of crashes: see [`Fault::PersistedRemovedApart`].
    fn removes_persisted_apart(&self) -> bool {
        self.options.faults.has(Fault::PersistedRemovedApart)
    }
}
