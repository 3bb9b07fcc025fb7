//! Space that a transaction holds before its commit: inode numbers and spilled contents.

use std::sync::Arc;

use xact_types::{Ino, Result};

use super::contents::{SpillPlace, SpilledBlock};
use crate::quota::Payer;

/// Whether the user's limit and quotas apply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SpaceLimits {
    Enforced,
    /// For a persisted transaction that is reopened: it had its space before.
    Exempt,
}

/// A file system with space for open transactions.
pub trait HoldsTxSpace {
    /// The space that one transaction holds; the drop gives it back.
    type Space: Send + Sync;
    /// Prevents the revocation of a space.
    type Pinned;

    /// An empty space, for a transaction with this number and owner.
    fn open_space(self: &Arc<Self>, id: u64, owner: u32) -> Self::Space;
    /// `SpaceRevoked` if the space was revoked.
    fn check_space(space: &Self::Space) -> Result<()>;
    /// Pins the space for a commit, until the result is dropped. Errors: see `check_space`.
    fn pin_space(space: &Self::Space) -> Result<Self::Pinned>;
    /// Takes an inode number in memory, near its parent's, charged to `payer`. `EDQUOT` if the
    /// owner or the payer exceeds a limit.
    fn reserve_inode(
        &self,
        space: &Self::Space,
        parent: Ino,
        is_dir: bool,
        payer: Payer,
        limits: SpaceLimits,
    ) -> Result<Ino>;
    /// Gives back a number that no commit has adopted.
    fn unreserve_inode(&self, space: &Self::Space, ino: Ino);
    /// Removes a number from the space because a commit has adopted it.
    fn adopted_inode(&self, space: &Self::Space, ino: Ino);

    /// Approximate limit of the contents that one transaction keeps in memory, in bytes.
    fn private_bytes_max(&self) -> u64;
    /// Writes contents of consecutive blocks of a file to free blocks. `NoSpace` and `EDQUOT` come
    /// before the first write.
    fn spill(
        self: &Arc<Self>,
        space: &Self::Space,
        place: &SpillPlace<'_>,
        blocks: &[Arc<[u8]>],
        limits: SpaceLimits,
    ) -> Result<Vec<SpilledBlock>>;
}
