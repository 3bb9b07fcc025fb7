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
    /// The bytes; read, where they are not in memory.
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
    /// Whether both are known to be the same; what is in memory is not compared with what is not.
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

/// Blocks that were spilled together. Those that have not become a file's are given back when the
/// last [`SpilledBlock`] of them is dropped.
pub(crate) trait SpilledRun: Send + Sync {
    fn start(&self) -> BlockNr;
    fn block_bytes(&self) -> usize;
    /// What a block of it is charged until it is a file's.
    fn charge(&self) -> Charge;
    /// `SpaceRevoked` where the blocks were given to others.
    fn read(&self, index: u32, buf: &mut [u8]) -> Result<()>;
    /// A block is a file's: it is not given back any more, and its charge is the file's.
    fn set_linked(&self, index: u32);
}

/// One of the blocks that were spilled together. Its place is its own as long as a clone of it
/// exists.
#[derive(Clone)]
pub struct SpilledBlock {
    run: Arc<dyn SpilledRun>,
    index: u32,
}

impl SpilledBlock {
    pub(crate) fn new(run: Arc<dyn SpilledRun>, index: u32) -> SpilledBlock {
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
        let buf = Arc::get_mut(&mut bytes).expect("nobody else has it yet");
        self.run.read(self.index, buf)?;
        Ok(bytes)
    }
}

/// Where contents are spilled to.
pub struct SpillPlace<'a> {
    pub ino: Ino,
    pub payer: Payer,
    /// The block before them, if that was spilled.
    pub after: Option<&'a SpilledBlock>,
}

/// New contents of one file block; `None` makes it a hole.
pub type BlockChange = (FileBlock, Option<BlockContents>);

/// What a file's contents are to become.
#[derive(Debug, Clone, Default)]
pub struct NewContents {
    /// In rising order.
    pub blocks: Vec<BlockChange>,
    /// All other blocks from here on go.
    pub cut: Option<FileBlock>,
    /// Where these blocks have no place after that, they get one and read as zeros; in rising
    /// order, and none of them in `blocks` with contents.
    pub reserved: Vec<Range<FileBlock>>,
    /// The file is yet to be made.
    pub is_new: bool,
    /// Blocks with contents in all files of the commit: a few of them travel in the journal.
    pub in_commit: u64,
    /// Later commits are going to replace them: more of them may wait in the journal for that.
    pub replaced_soon: bool,
}
