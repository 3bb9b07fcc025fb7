//! An engine for unit tests: writes through, and makes every handle a commit of its own, so that
//! credits are counted as strictly as they can be.

use std::collections::{HashMap, HashSet};
use std::io::IoSlice;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};

use parking_lot::Mutex;
use xact_consistency::{BlockRef, DataWrite, Engine, EngineStats};
use xact_device::BlockDevice;
use xact_types::{BlockNr, CommitId, Error, Result};

pub struct TestEngine {
    device: Arc<dyn BlockDevice>,
    block_size: usize,
    state: Mutex<State>,
    /// Credits that one handle may have.
    pub max_credits: AtomicU32,
    /// Blocks that may still be changed before a change fails.
    pub changes_left: AtomicU32,
    pub poisoned: AtomicBool,
}

#[derive(Default)]
struct State {
    cache: HashMap<BlockNr, BlockRef>,
    running: u64,
    changed: HashSet<BlockNr>,
    granted: u32,
}

impl TestEngine {
    pub fn new(device: Arc<dyn BlockDevice>, block_size: usize) -> Arc<TestEngine> {
        Arc::new(TestEngine {
            device,
            block_size,
            state: Mutex::default(),
            max_credits: AtomicU32::new(u32::MAX),
            changes_left: AtomicU32::new(u32::MAX),
            poisoned: AtomicBool::new(false),
        })
    }

    fn offset(&self, block: BlockNr) -> u64 {
        block.0 * self.block_size as u64
    }

    fn store(&self, state: &mut State, block: BlockNr, contents: BlockRef) -> Result<bool> {
        let left = self.changes_left.load(Relaxed);
        if left == 0 {
            return Err(Error::io("a test's failure", std::io::Error::from_raw_os_error(libc::EIO)));
        }
        self.changes_left.store(left - 1, Relaxed);
        self.device
            .write_at(&contents, self.offset(block))
            .map_err(|e| Error::io("writing a metadata block", e))?;
        state.cache.insert(block, contents);
        Ok(state.changed.insert(block))
    }

    fn load(&self, state: &mut State, block: BlockNr) -> Result<BlockRef> {
        if let Some(contents) = state.cache.get(&block) {
            return Ok(contents.clone());
        }
        let mut bytes = vec![0; self.block_size];
        self.device
            .read_at(&mut bytes, self.offset(block))
            .map_err(|e| Error::io("reading a metadata block", e))?;
        let contents = BlockRef::from(bytes);
        state.cache.insert(block, contents.clone());
        Ok(contents)
    }
}

impl Engine for TestEngine {
    fn block_size(&self) -> usize {
        self.block_size
    }

    fn is_read_only(&self) -> bool {
        false
    }

    fn read(&self, block: BlockNr) -> Result<BlockRef> {
        self.load(&mut self.state.lock(), block)
    }

    fn start(&self, credits: u32) -> Result<CommitId> {
        let mut state = self.state.lock();
        let limit = self.max_credits.load(Relaxed);
        if credits > limit {
            return Err(Error::TooLarge { blocks: credits.into(), limit: limit.into() });
        }
        state.running += 1;
        state.changed.clear();
        state.granted = credits;
        Ok(CommitId(state.running))
    }

    fn extend(&self, commit: CommitId, more: u32) -> Result<bool> {
        let mut state = self.state.lock();
        assert_eq!(commit.0, state.running, "one handle at a time");
        let fits = state.granted + more <= self.max_credits.load(Relaxed);
        if fits {
            state.granted += more;
        }
        Ok(fits)
    }

    fn stop(&self, _commit: CommitId, _unused: u32) {}

    fn update(&self, commit: CommitId, block: BlockNr, change: &mut dyn FnMut(&mut [u8])) -> Result<bool> {
        let mut state = self.state.lock();
        assert_eq!(commit.0, state.running, "one handle at a time");
        let mut bytes = self.load(&mut state, block)?.to_vec();
        change(&mut bytes);
        self.store(&mut state, block, bytes.into())
    }

    fn create(&self, _commit: CommitId, block: BlockNr, contents: BlockRef) -> Result<bool> {
        self.store(&mut self.state.lock(), block, contents)
    }

    fn forget(&self, _commit: CommitId, block: BlockNr) -> Result<()> {
        let mut state = self.state.lock();
        // Whoever reads it after this has a bug; this makes it show.
        self.store(&mut state, block, vec![0xDB; self.block_size].into())?;
        state.cache.remove(&block);
        state.changed.remove(&block);
        Ok(())
    }

    fn on_durable(&self, _commit: CommitId, action: Box<dyn FnOnce() + Send>) {
        action();
    }

    fn commit(&self, _commit: CommitId) -> Result<()> {
        Ok(())
    }

    fn durable(&self) -> CommitId {
        self.running()
    }

    fn running(&self) -> CommitId {
        CommitId(self.state.lock().running)
    }

    fn flush_data(&self) -> Result<()> {
        Ok(())
    }

    fn sync(&self) -> Result<()> {
        Ok(())
    }

    fn max_credits(&self) -> u32 {
        self.max_credits.load(Relaxed)
    }

    fn read_data(&self, start: BlockNr, buf: &mut [u8]) -> Result<()> {
        self.device.read_at(buf, self.offset(start)).map_err(|e| Error::io("reading data", e))
    }

    fn write_data_as(&self, start: BlockNr, bufs: &[IoSlice<'_>], _: DataWrite) -> Result<()> {
        self.device.write_vectored_at(bufs, self.offset(start)).map_err(|e| Error::io("writing data", e))
    }

    fn discard(&self, _start: BlockNr, _blocks: u64) -> Result<()> {
        Ok(())
    }

    fn poison(&self, _why: &str) {
        self.poisoned.store(true, Relaxed);
    }

    fn health(&self) -> Result<()> {
        Ok(())
    }

    fn close(&self) -> Result<()> {
        Ok(())
    }

    fn stats(&self) -> EngineStats {
        EngineStats::default()
    }
}
