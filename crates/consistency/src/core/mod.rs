//! The parts that every mechanism is made of: the volume, dirty blocks, and the life of a commit.
//!
//! Nothing here depends on the mechanism.

pub(crate) mod ahead;
pub(crate) mod block;
pub(crate) mod cache;
mod cancelled;
pub(crate) mod deferred_data;
pub(crate) mod dirty_blocks;
pub(crate) mod draining;
pub(crate) mod leader;
pub(crate) mod pipeline;
pub(crate) mod poison;
pub(crate) mod superblock_io;
pub(crate) mod superblock_watch;
pub(crate) mod volume;
pub(crate) mod waits;

use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use parking_lot::Mutex;
use xact_types::{Error, Result, Steps};

use crate::fault::Faults;
use crate::mechanism::EngineStats;
use crate::options::EngineOptions;
use deferred_data::DeferredData;
use dirty_blocks::DirtyBlocks;
use pipeline::Pipeline;
use volume::Volume;

/// The state that the engine, its mechanism and its threads share.
pub(crate) struct Core {
    pub volume: Arc<Volume>,
    pub pipeline: Arc<Pipeline>,
    pub blocks: DirtyBlocks,
    /// File data that goes to its place with a commit.
    pub deferred: DeferredData,
    pub read_only: bool,
    /// The age at which a commit is written without a request.
    pub commit_interval: Duration,
    pub steps: Steps,
    pub faults: Faults,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

impl Core {
    pub fn new(
        volume: Arc<Volume>,
        pipeline: Arc<Pipeline>,
        blocks: DirtyBlocks,
        options: &EngineOptions,
    ) -> Arc<Core> {
        Arc::new(Core {
            read_only: options.read_only || volume.device_is_read_only(),
            commit_interval: options.commit_interval,
            steps: options.steps,
            faults: options.faults(),
            threads: Mutex::default(),
            volume,
            pipeline,
            blocks,
            deferred: DeferredData::default(),
        })
    }

    /// Poisons the volume on any failure of the engine's own work, which leaves the engine in an
    /// unknown state.
    pub fn guard<T>(&self, result: Result<T>) -> Result<T> {
        if let Err(error) = &result {
            self.poison(&error.to_string());
        }
        result
    }

    pub fn poison(&self, why: &str) {
        self.volume.poison.set(why);
        self.pipeline.give_up();
    }

    pub fn check_open(&self) -> Result<()> {
        if self.read_only { Err(Error::ReadOnly) } else { Ok(()) }
    }

    /// The counters that do not depend on the mechanism.
    pub fn stats(&self) -> EngineStats {
        let (metadata_hits, metadata_misses) = self.blocks.cache.lookups();
        EngineStats { metadata_hits, metadata_misses, device: self.volume.counts(), ..EngineStats::default() }
    }

    /// Closes the volume in good order. Later calls fail.
    pub fn close(&self) {
        self.volume.poison.close();
        self.pipeline.give_up();
    }

    /// Starts a thread that [`Self::end_threads`] waits for. It must end with the pipeline's
    /// background work.
    pub fn start_thread(&self, name: &str, work: impl FnOnce() + Send + 'static) -> Result<()> {
        let thread = std::thread::Builder::new().name(name.into()).spawn(work);
        self.threads.lock().push(thread.map_err(|e| Error::io("starting a thread", e))?);
        Ok(())
    }

    pub fn end_threads(&self) {
        self.pipeline.stop_background();
        for thread in self.threads.lock().drain(..) {
            // A thread that panicked has poisoned the volume already.
            let _ = thread.join();
        }
    }
}
