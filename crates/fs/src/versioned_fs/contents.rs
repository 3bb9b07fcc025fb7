//! Contents of files that a transaction has written: in memory, or spilled to the volume.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use xact_types::{BlockNr, FileBlock, Ino, Result};

use crate::quota::{Charge, Payer};

/// Contents of a whole block in a transaction.
#[derive(Clone)]
pub enum BlockContents {
    Memory(Arc<[u8]>),
    Spilled(SpilledBlock),
}

impl BlockContents {
    /// The bytes, read from the volume if they are not in memory.
    pub fn bytes(&self) -> Result<Arc<[u8]>> {
        match self {
            BlockContents::Memory(bytes) => Ok(bytes.clone()),
            BlockContents::Spilled(block) => block.read(),
        }
    }

    pub fn in_memory(&self) -> Option<&Arc<[u8]>> {
        match self {
            BlockContents::Memory(bytes) => Some(bytes),
            BlockContents::Spilled(_) => None,
        }
    }
}

impl PartialEq for BlockContents {
    /// Whether both are known to be equal. Contents in memory are not compared with spilled ones.
    fn eq(&self, other: &BlockContents) -> bool {
        match (self, other) {
            (BlockContents::Memory(one), BlockContents::Memory(two)) => one == two,
            (BlockContents::Spilled(one), BlockContents::Spilled(two)) => one.place() == two.place(),
            _ => false,
        }
    }
}

impl fmt::Debug for BlockContents {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BlockContents::Memory(_) => f.write_str("in memory"),
            BlockContents::Spilled(block) => write!(f, "in {}", block.place()),
        }
    }
}

/// Blocks that were spilled together. When the last [`SpilledBlock`] of them is dropped, the blocks
/// that belong to no file are given back.
pub(crate) trait SpilledStorage: Send + Sync {
    fn start(&self) -> BlockNr;
    fn block_bytes(&self) -> usize;
    /// The charge for one block until it belongs to a file.
    fn charge(&self) -> Charge;
    /// `SpaceRevoked` if the blocks were revoked.
    fn read(&self, index: u32, buf: &mut [u8]) -> Result<()>;
    /// A block now belongs to a file, with its charge, and is not given back.
    fn set_linked(&self, index: u32);
}

/// One spilled block. Its place stays its own as long as a clone of it exists.
#[derive(Clone)]
pub struct SpilledBlock {
    run: Arc<dyn SpilledStorage>,
    index: u32,
}

impl SpilledBlock {
    pub(crate) fn new(run: Arc<dyn SpilledStorage>, index: u32) -> SpilledBlock {
        SpilledBlock { run, index }
    }

    pub(crate) fn place(&self) -> BlockNr {
        self.run.start().offset(self.index.into())
    }

    pub(crate) fn charge(&self) -> Charge {
        self.run.charge()
    }

    pub(crate) fn set_linked(&self) {
        self.run.set_linked(self.index);
    }

    fn read(&self) -> Result<Arc<[u8]>> {
        let mut bytes: Arc<[u8]> = std::iter::repeat_n(0, self.run.block_bytes()).collect();
        let buf = Arc::get_mut(&mut bytes).expect("the only reference");
        self.run.read(self.index, buf)?;
        Ok(bytes)
    }
}

/// The target of a spill.
pub struct SpillPlace<'a> {
    pub ino: Ino,
    pub payer: Payer,
    /// The previous block of the file, if it was spilled.
    pub after: Option<&'a SpilledBlock>,
}

/// New contents of one file block; `None` makes it a hole.
pub type BlockChange = (FileBlock, Option<BlockContents>);

/// New contents of a file.
#[derive(Debug, Clone, Default)]
pub struct NewContents {
    /// Changed blocks in rising order.
    pub blocks: Vec<BlockChange>,
    /// The file is truncated here first: all other blocks from here on are removed.
    pub cut: Option<FileBlock>,
    /// Blocks that are then holes in these ranges get a place and read as zeros. The ranges are in
    /// rising order and contain no block with contents in `blocks`.
    pub reserved: Vec<Range<FileBlock>>,
    /// The commit creates the file.
    pub is_new: bool,
    /// Number of blocks with contents in all files of the commit: small commits go through the
    /// journal.
    pub in_commit: u64,
    /// Later commits will replace these contents, so larger ones may go through the journal.
    pub replaced_soon: bool,
    /// No caller waits until they are durable, so they may stay in memory until the commit.
    pub may_wait: bool,
}
