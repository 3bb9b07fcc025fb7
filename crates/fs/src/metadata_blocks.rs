//! The source of metadata blocks for on-disk structures that grow (extent trees, attributes).

use xact_consistency::Handle;
use xact_types::{BlockNr, Result, Run};

/// Single blocks for metadata. A block is taken in memory only; linking it in a handle changes the
/// volume.
pub trait MetadataBlocks {
    /// Takes a free block near `goal`; `NoSpace` if none is free. Until it is linked, only this
    /// process knows that it is in use.
    fn take(&self, goal: BlockNr) -> Result<BlockNr>;

    /// Gives back a block that was taken and not linked.
    fn give_back(&self, block: BlockNr);

    /// Marks a taken block as used, in its bitmap and group descriptor.
    fn link(&self, handle: &mut Handle, block: BlockNr) -> Result<()>;

    /// Whether a run may belong to a file: it lies within the volume and outside its fixed
    /// metadata. Pointers of a corrupt or crafted volume are checked with this before use.
    ///
    /// Errors: a descriptor cannot be read.
    fn is_usable(&self, run: Run) -> Result<bool>;

    /// Frees a linked block. The caller makes the handle forget its contents.
    fn free(&self, handle: &mut Handle, block: BlockNr) -> Result<()>;
}

/// Credits for linking or freeing one block: its group's bitmap and descriptor.
pub const CREDITS_PER_BLOCK: u32 = 2;
