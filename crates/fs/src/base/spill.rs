//! Contents of a transaction that are kept on the volume, for want of memory, before they are anybody's.
//!
//! Crash argument: they are in blocks that are taken in memory only, so a crash finds these free. A
//! transaction that ends without them gives them back. Its commit makes them blocks of its files where they
//! are, without writing them again: as staged contents from then on (`install.rs`), and the commit's own
//! flush covers them as any data that was written before it.

use std::fmt;
use std::io::IoSlice;
use std::sync::Arc;

use parking_lot::Mutex;
use xact_base::{BlockNr, Error, Ino, Result, Run};

use super::Base;
use crate::alloc::Purpose;

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

/// One of the blocks that were spilled together. Its place is its own as long as a clone of it is there.
#[derive(Clone)]
pub struct SpilledBlock {
    run: Arc<SpilledRun>,
    index: u32,
}

struct SpilledRun {
    base: Arc<Base>,
    run: Run,
    /// Those that have become a file's.
    linked: Mutex<Vec<bool>>,
}

impl SpilledBlock {
    pub(super) fn place(&self) -> BlockNr {
        self.run.run.start.offset(self.index.into())
    }

    fn read(&self) -> Result<Arc<[u8]>> {
        let base = &self.run.base;
        let mut bytes: Arc<[u8]> = std::iter::repeat_n(0, base.block_bytes() as usize).collect();
        let buf = Arc::get_mut(&mut bytes).expect("nobody else has it yet");
        base.engine.read_data(self.place(), buf)?;
        Ok(bytes)
    }

    /// The block is a file's: it is not given back any more.
    pub(super) fn set_linked(&self) {
        let was = std::mem::replace(&mut self.run.linked.lock()[self.index as usize], true);
        assert!(!was, "a spilled block becomes one file's, once");
    }
}

impl Drop for SpilledRun {
    fn drop(&mut self) {
        let linked = self.linked.get_mut();
        for part in linked.chunk_by_mut(|one, two| one == two).scan(0, |at, part| {
            let run = Run { start: self.run.start.offset(*at), len: part.len() as u32 };
            *at += part.len() as u64;
            Some((part[0], run))
        }) {
            if let (false, run) = part {
                self.base.allocator.give_back(run);
            }
        }
    }
}

impl Base {
    /// Bytes of file contents that a transaction keeps in memory at the most, about.
    pub fn private_bytes_max(&self) -> u64 {
        self.options.data_cache_bytes / 4
    }

    /// Writes contents of consecutive blocks of a file to free blocks, behind `after` if it is given.
    /// `NoSpace`: nothing was written.
    pub fn spill(
        self: &Arc<Self>,
        ino: Ino,
        after: Option<&SpilledBlock>,
        blocks: &[Arc<[u8]>],
        privileged: bool,
    ) -> Result<Vec<SpilledBlock>> {
        if self.engine.is_read_only() {
            return Err(Error::ReadOnly);
        }
        let purpose = Purpose::Data { privileged };
        let count = blocks.len() as u64;
        let mut reservation = match self.allocator.reserve(count, purpose) {
            // What was freed becomes available with its commit.
            Err(Error::NoSpace) => {
                self.reclaim()?;
                self.allocator.reserve(count, purpose)?
            }
            result => result?,
        };
        let mut goal = after.map_or_else(|| self.allocator.goal_for(ino), |block| block.place().offset(1));
        let mut spilled = Vec::with_capacity(blocks.len());
        let mut rest = blocks;
        while !rest.is_empty() {
            let run = self.allocator.take(goal, rest.len() as u32, purpose, Some(&mut reservation))?;
            goal = run.end();
            let linked = Mutex::new(vec![false; run.len as usize]);
            let whole = Arc::new(SpilledRun { base: self.clone(), run, linked });
            let (now, later) = rest.split_at(run.len as usize);
            let slices: Vec<IoSlice<'_>> = now.iter().map(|bytes| IoSlice::new(bytes)).collect();
            self.engine.write_data(run.start, &slices)?;
            spilled.extend((0..run.len).map(|index| SpilledBlock { run: whole.clone(), index }));
            rest = later;
        }
        Ok(spilled)
    }
}
