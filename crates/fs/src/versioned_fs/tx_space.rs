//! What a transaction holds of a volume before its commit: inode numbers and spilled contents.

use std::sync::Arc;

use xact_types::{Ino, Result};

use super::contents::{SpillPlace, SpilledBlock};
use crate::quota::Payer;

/// Whether the user's limit and quotas count.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SpaceLimits {
    Kept,
    /// A transaction that is opened again after a stop had its space before that.
    Exempt,
}

/// Space for transactions that are not committed yet.
pub trait HoldsTxSpace {
    /// What one transaction holds; given back when dropped.
    type Space: Send + Sync;
    /// Keeps it from being revoked.
    type Pinned;

    /// Nothing yet, for a transaction with this number and owner.
    fn open_space(self: &Arc<Self>, id: u64, owner: u32) -> Self::Space;
    /// `SpaceRevoked` where others needed what the transaction held.
    fn check_space(space: &Self::Space) -> Result<()>;
    /// Before a commit; it lasts until the result is dropped. Errors as `check_space`.
    fn pin_space(space: &Self::Space) -> Result<Self::Pinned>;
    /// Takes an inode number in memory, near its parent's, charged to `payer`. `EDQUOT` where that
    /// is more than the owner or the payer may have.
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
    /// A commit has adopted it.
    fn adopted_inode(&self, space: &Self::Space, ino: Ino);

    /// Bytes of contents that one transaction keeps in memory at the most, about.
    fn private_bytes_max(&self) -> u64;
    /// Writes contents of consecutive blocks of a file to places that nobody knows of. `NoSpace`,
    /// `EDQUOT`: nothing was written.
    fn spill(
        self: &Arc<Self>,
        space: &Self::Space,
        place: &SpillPlace<'_>,
        blocks: &[Arc<[u8]>],
        limits: SpaceLimits,
    ) -> Result<Vec<SpilledBlock>>;
}
