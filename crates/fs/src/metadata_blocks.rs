//! Where the on-disk structures that grow by whole blocks (extent trees, attributes) get them.

use xact_consistency::Handle;
use xact_types::{BlockNr, Result, Run};

/// Single blocks for metadata. Taking is in memory only; what a handle links is on the volume.
pub trait MetadataBlocks {
    /// Takes a free block near `goal`; `NoSpace` when there is none. Until it is linked, only this
    /// process knows that it is in use.
    fn take(&self, goal: BlockNr) -> Result<BlockNr>;

    /// Returns a block that was taken and never linked.
    fn give_back(&self, block: BlockNr);

    /// Marks a taken block as used, in its bitmap and group descriptor.
    fn link(&self, handle: &mut Handle, block: BlockNr) -> Result<()>;

    /// Whether a run may belong to a file: it lies within the volume and outside of the volume's
    /// own metadata. What a damaged or crafted volume refers to is asked about before it is used.
    ///
    /// Errors: what tells it cannot be read.
    fn is_usable(&self, run: Run) -> Result<bool>;

    /// Frees a linked block. The caller has the handle forget its contents.
    fn free(&self, handle: &mut Handle, block: BlockNr) -> Result<()>;
}

/// Blocks that linking or freeing one block changes: its group's bitmap and descriptor.
pub const CREDITS_PER_BLOCK: u32 = 2;
