//! Contents of a transaction that are kept on the volume, for want of memory, before they are
//! anybody's.
//!
//! Whose they are, and who may take them away, is in `tx_space.rs`, which writes them.
//!
//! Crash argument: they are in blocks that are taken in memory only, so a crash finds these free. A
//! transaction that ends without them gives them back. Its commit makes them blocks of its files
//! where they are, without writing them again: as staged contents from then on (`commit::install`),
//! and the commit's own flush covers them as any data that was written before it.

use std::fmt;
use std::sync::Arc;

use xact_types::{BlockNr, Result};

use crate::live::LiveFs;
use crate::live::space::tx_space::SpilledRun;
use crate::quota::Charge;

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

/// One of the blocks that were spilled together. Its place is its own as long as a clone of it is
/// there.
#[derive(Clone)]
pub struct SpilledBlock {
    run: Arc<SpilledRun>,
    index: u32,
}

impl SpilledBlock {
    pub(in crate::live) fn new(run: Arc<SpilledRun>, index: u32) -> SpilledBlock {
        SpilledBlock { run, index }
    }

    pub(in crate::live) fn place(&self) -> BlockNr {
        self.run.start().offset(self.index.into())
    }

    /// What it is charged until it is a file's.
    pub(in crate::live) fn charge(&self) -> Charge {
        self.run.charge()
    }

    fn read(&self) -> Result<Arc<[u8]>> {
        let mut bytes: Arc<[u8]> = std::iter::repeat_n(0, self.run.block_bytes()).collect();
        let buf = Arc::get_mut(&mut bytes).expect("nobody else has it yet");
        self.run.read(self.index, buf)?;
        Ok(bytes)
    }

    /// The block is a file's: it is not given back any more.
    pub(in crate::live) fn set_linked(&self) {
        self.run.set_linked(self.index);
    }
}

impl LiveFs {
    /// Bytes of file contents that a transaction keeps in memory at most, about.
    pub fn private_bytes_max(&self) -> u64 {
        self.options.data_cache_bytes / 4
    }
}
