//! The ring of the log: which parts are live, and writing to it.
//!
//! ```text
//!  first          tail                          head               end
//!    |  free        |  committed, not yet home    |  free            |
//!    +--------------+-----------------------------+------------------+
//!                    txn txn txn ...               next transaction
//! ```

use std::collections::VecDeque;
use std::io::IoSlice;
use std::sync::Arc;

use parking_lot::{Mutex, RwLock};
use xact_device::WriteHint;
use xact_layout::jbd2::{JournalSuperblock, LogFormat};
use xact_types::{CommitId, Error, Result, Site};

use crate::core::cache::{BlockMap, Slot};
use crate::core::volume::Volume;
use crate::journal::location::JournalLayout;

/// Shorter rings cannot hold a transaction of a useful size.
const MIN_RING_BLOCKS: u32 = 16;

/// A ring of journal blocks from `first` to `end`, exclusively.
#[derive(Debug, Clone)]
pub(crate) struct Ring {
    pub layout: JournalLayout,
    pub first: u32,
    pub end: u32,
}

impl Ring {
    /// The ring of the journal superblock; `Corrupt` if its fields make no sense.
    pub fn new(layout: JournalLayout, superblock: &JournalSuperblock) -> Result<Ring> {
        let corrupt = |what| Err(Error::corrupt(Site::JournalSuperblock, what));
        if superblock.maxlen > layout.blocks() {
            return corrupt("says that the journal is longer than its file");
        }
        let (first, end) = (superblock.first, superblock.log_end());
        if end <= first || end - first < MIN_RING_BLOCKS {
            return corrupt("leaves no room for a log");
        }
        Ok(Ring { layout, first, end })
    }

    pub fn blocks(&self) -> u32 {
        self.end - self.first
    }

    /// The block `count` further on; `at` lies in the ring.
    pub fn advance(&self, at: u32, count: u32) -> u32 {
        let offset = u64::from(at - self.first) + u64::from(count);
        self.first + (offset % u64::from(self.blocks())) as u32
    }

    /// Writes whole blocks from `at` on, with one device write for each contiguous part. The caller
    /// flushes.
    pub fn write(&self, volume: &Volume, at: u32, blocks: &[impl AsRef<[u8]>]) -> Result<()> {
        let mut at = at;
        let mut rest = blocks;
        while !rest.is_empty() {
            let (start, contiguous) = self.layout.place(at)?;
            let len = rest.len().min(contiguous as usize).min((self.end - at) as usize);
            let bufs: Vec<IoSlice<'_>> = rest[..len].iter().map(|b| IoSlice::new(b.as_ref())).collect();
            volume.write_for(start, &bufs, WriteHint::FlushFollows)?;
            at = self.advance(at, len as u32);
            rest = &rest[len..];
        }
        Ok(())
    }
}

/// A durable transaction whose blocks are not all home, or whose part of the log is still live.
pub(crate) struct Committed {
    pub commit: CommitId,
    pub sequence: u32,
    pub start: u32,
    /// Blocks that it takes in the log.
    pub len: u32,
    pub blocks: Vec<Arc<Slot>>,
}

pub(crate) struct LogState {
    /// Start of the next transaction, or of the one being written now.
    pub head: u32,
    /// Its sequence number.
    pub sequence: u32,
    /// Blocks from the durable tail to `head`.
    pub used: u32,
    /// Oldest first. Removed when the tail that passed them is durable.
    pub committed: VecDeque<Committed>,
}

pub(crate) struct Log {
    /// Changes only while the log is empty, by a thread that leads.
    ring: RwLock<Arc<Ring>>,
    pub format: LogFormat,
    pub state: Mutex<LogState>,
    /// Blocks with a copy in the live log or in the commit being written, by the newest such
    /// commit. Only these need a revoke record when they are freed.
    pub logged: Mutex<BlockMap<CommitId>>,
}

impl Log {
    pub fn new(ring: Ring, format: LogFormat, head: u32, sequence: u32) -> Log {
        let state = LogState { head, sequence, used: 0, committed: VecDeque::new() };
        Log { ring: RwLock::new(Arc::new(ring)), format, state: Mutex::new(state), logged: Mutex::default() }
    }

    pub fn ring(&self) -> Arc<Ring> {
        self.ring.read().clone()
    }

    pub fn set_ring(&self, ring: Ring) {
        *self.ring.write() = Arc::new(ring);
    }

    /// Blocks that may be used before the tail must move. One block always stays free, so that a
    /// full ring differs from an empty one.
    pub fn capacity(&self) -> u32 {
        self.ring.read().blocks() - 1
    }

    /// Blocks from the durable tail to the head.
    pub fn used(&self) -> u32 {
        self.state.lock().used
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::journal::location::JournalRun;
    use xact_device::MemoryDevice;
    use xact_types::BlockNr;

    #[test]
    fn writes_wrap_and_follow_the_runs() {
        let runs = vec![
            JournalRun { log_block: 0, start: BlockNr(10), blocks: 20 },
            JournalRun { log_block: 20, start: BlockNr(50), blocks: 20 },
        ];
        let ring = Ring { layout: JournalLayout::new(runs).unwrap(), first: 1, end: 40 };
        let volume = Volume::new(Arc::new(MemoryDevice::new(100 * 1024)), 1024, 100).unwrap();
        let blocks: Vec<Vec<u8>> = (0..30).map(|i| vec![i as u8 + 1; 1024]).collect();
        ring.write(&volume, 15, &blocks).unwrap();
        assert_eq!(volume.counts().writes, 3);
        let first = |b: u64| volume.read_block(BlockNr(b)).unwrap()[0];
        assert_eq!((first(25), first(29)), (1, 5));
        assert_eq!((first(50), first(69)), (6, 25));
        assert_eq!((first(11), first(15)), (26, 30));
        assert_eq!((first(10), first(16), first(70)), (0, 0, 0));
        assert_eq!(ring.advance(39, 1), 1);
        assert_eq!(ring.advance(1, 39), 1);
    }
}
