//! An engine for unit tests of the code above it, on a device that need not hold a volume.
//!
//! Every handle is a commit of its own, so that credits are counted as strictly as possible: the
//! next handle writes the changes of the one before. Nothing is flushed, nothing survives a crash,
//! and actions that wait for a commit run at once. One thread uses it, with one handle at a time.

use std::cell::Cell;
use std::io::IoSlice;
use std::sync::Arc;

use xact_device::BlockDevice;
use xact_types::{BlockNr, CommitId, Error, Result};

use crate::core::Core;
use crate::core::dirty_blocks::DirtyBlocks;
use crate::core::pipeline::Pipeline;
use crate::core::volume::Volume;
use crate::engine::Engine;
use crate::fault::Fault;
use crate::mechanism::{DataWrite, EngineStats, Mechanism, ReserveClass};
use crate::options::EngineOptions;
use crate::recovery::RecoveryReport;

/// Cached blocks never leave memory, so that a freed one keeps the pattern that shows its use.
const CACHE_BYTES: usize = 1 << 40;

thread_local! {
    static CHANGES_LEFT: Cell<Option<u32>> = const { Cell::new(None) };
}

/// Makes this thread's changes of blocks fail after `changes` of them; `None`: no change fails.
pub fn fail_after(changes: Option<u32>) {
    CHANGES_LEFT.set(changes);
}

pub(crate) fn before_change() -> Result<()> {
    match CHANGES_LEFT.get() {
        None => Ok(()),
        Some(0) => Err(Error::io("a test's failure", std::io::ErrorKind::Other.into())),
        Some(left) => {
            CHANGES_LEFT.set(Some(left - 1));
            Ok(())
        }
    }
}

/// The engine, with settings for a test.
#[derive(Clone)]
pub struct TestEngine {
    pub engine: Arc<Engine>,
    core: Arc<Core>,
}

impl TestEngine {
    pub fn new(device: Arc<dyn BlockDevice>, block_size: usize) -> TestEngine {
        let blocks = device.size_bytes() / block_size as u64;
        let volume = Arc::new(Volume::new(device, block_size, blocks).expect("the device is its own size"));
        let pipeline = Pipeline::new(volume.clone(), u32::MAX, u32::MAX);
        let dirty =
            DirtyBlocks::new(volume.clone(), volume.clone(), CACHE_BYTES, usize::MAX).spoiling_freed();
        let options = EngineOptions { fault: Some(Fault::ActionsAtOnce), ..EngineOptions::default() };
        let core = Core::new(volume, pipeline, dirty, &options);
        let mechanism = Arc::new(WriteThrough { core: core.clone() });
        let engine = Engine::without_threads(core.clone(), mechanism, RecoveryReport::default());
        TestEngine { engine, core }
    }

    /// Sets the credits that one handle may have.
    pub fn set_max_credits(&self, credits: u32) {
        self.core.pipeline.limit_credits(credits);
        self.core.pipeline.limit_alone(credits);
    }
}

struct WriteThrough {
    core: Arc<Core>,
}

impl WriteThrough {
    fn write_back(&self) -> Result<()> {
        let Core { volume, pipeline, blocks, .. } = &*self.core;
        let commit = pipeline.lock()?;
        let frozen = blocks.freeze(commit, |_, _| {});
        let deferred = self.core.deferred.begin(commit, self.core.faults);
        pipeline.switch();
        deferred.write(volume)?;
        let changed: Vec<_> = frozen.blocks.iter().map(|b| (b.slot.block, b.contents.clone())).collect();
        volume.write_sorted(&changed)?;
        frozen.blocks.iter().for_each(|block| block.slot.lock_any().committing = None);
        pipeline.finish(commit);
        Ok(())
    }
}

impl Mechanism for WriteThrough {
    fn start(&self, credits: u32, _class: ReserveClass) -> Result<CommitId> {
        let pipeline = &self.core.pipeline;
        pipeline.make_durable(pipeline.running(), || self.write_back())?;
        pipeline.start(credits, false, || Ok(()), || false)
    }

    fn commit(&self, commit: CommitId) -> Result<()> {
        self.core.pipeline.make_durable(commit, || self.write_back())
    }

    fn read_data(&self, start: BlockNr, buf: &mut [u8]) -> Result<()> {
        self.core.volume.read(start, buf)
    }

    fn write_data(&self, start: BlockNr, bufs: &[IoSlice<'_>], _write: DataWrite) -> Result<()> {
        self.core.volume.write(start, bufs)
    }

    fn flush_data(&self) -> Result<()> {
        Ok(())
    }

    fn leave_clean(&self) -> Result<()> {
        Ok(())
    }

    fn stats(&self) -> EngineStats {
        EngineStats::default()
    }
}

impl Drop for WriteThrough {
    fn drop(&mut self) {
        // A test that poisons it does not look at the device.
        let _ = self.core.pipeline.make_durable(self.core.pipeline.running(), || self.write_back());
    }
}
