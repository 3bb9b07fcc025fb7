//! The engine of volumes without a journal: metadata is written home, in no order that would
//! survive a crash.
//!
//! Layer: consistency. Commits exist here too, since the file system above is the same: a commit
//! writes every block that changed since the last one home and flushes, and what waits for it
//! (reuse of freed blocks) happens then.
//!
//! Invariants:
//! 1. While the volume is open for writing its superblock says "not clean" (`EXT4_VALID_FS` is
//!    off), and that is durable before the first write of metadata.
//! 2. "Clean" is written back only after a flush behind the last write.
//!
//! What a crash leaves: any subset of the blocks of the commit that was being written, torn by
//! sectors, and everything of the commits before. Only e2fsck makes such a volume sound again,
//! and the superblock's state says that it must run.

use std::io::IoSlice;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::thread::JoinHandle;
use std::time::Duration;

use parking_lot::Mutex;
use xact_device::BlockDevice;
use xact_layout::superblock::STATE_CLEAN;
use xact_types::{BlockNr, CommitId, Error, Result, Site};

use crate::core::dirty_blocks::Metadata;
use crate::core::pipeline::{Action, Pipeline};
use crate::core::shared::{Shared, engine_of_shared, shared_fields};
use crate::core::superblock_io::{self, Flags, Health, SuperblockPlace};
use crate::core::volume::Volume;
use crate::engine::{BlockRef, DataWrite, Engine, EngineStats};
use crate::fault::{Fault, Faults};
use crate::journal::location;
use crate::options::EngineOptions;

/// Credits of one commit, at the least; the cache's size allows more.
const MIN_CREDITS: usize = 4096;

pub struct NoneEngine {
    home: Arc<Home>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

struct Home {
    volume: Arc<Volume>,
    pipeline: Arc<Pipeline>,
    metadata: Metadata,
    superblock_place: SuperblockPlace,
    /// Whether the volume was clean when it was opened, and so may be called clean again.
    was_clean: bool,
    /// The superblock says "not clean" on the volume.
    marked: AtomicBool,
    read_only: bool,
    commit_interval: Duration,
    commits: AtomicU64,
    written_blocks: AtomicU64,
    faults: Faults,
}

impl NoneEngine {
    /// Opens a volume without a journal.
    pub fn open(device: Arc<dyn BlockDevice>, options: EngineOptions) -> Result<Arc<NoneEngine>> {
        let found = superblock_io::read(&*device)?;
        let superblock = found.superblock;
        if location::has_journal(&superblock)? {
            return Err(Error::Usage("the volume has a journal, which must not be passed by".into()));
        }
        if found.health == Health::Unsound {
            return Err(Error::corrupt(Site::Superblock, "checksum does not match"));
        }
        let block_size = superblock.block_size() as usize;
        let volume = Arc::new(Volume::new(device, block_size, superblock.blocks_count())?);
        let credits = (options.cache_bytes / block_size / 2).max(MIN_CREDITS);
        let home = Arc::new(Home {
            pipeline: Pipeline::new(volume.clone(), credits as u32, credits as u32),
            metadata: Metadata::new(volume.clone(), volume.clone(), options.cache_bytes, usize::MAX),
            superblock_place: SuperblockPlace::of(&superblock),
            was_clean: superblock.state() & STATE_CLEAN != 0,
            marked: AtomicBool::new(false),
            read_only: options.read_only || volume.device_is_read_only(),
            commit_interval: options.commit_interval,
            commits: AtomicU64::new(0),
            written_blocks: AtomicU64::new(0),
            faults: options.faults(),
            volume,
        });
        let mut threads = Vec::new();
        if !home.read_only {
            let background = home.clone();
            let thread = std::thread::Builder::new()
                .name("xact-write-back".into())
                .spawn(move || background.commit_when_due())
                .map_err(|e| Error::io("starting a thread", e))?;
            threads.push(thread);
        }
        Ok(Arc::new(NoneEngine { home, threads: Mutex::new(threads) }))
    }

    fn end_threads(&self) {
        self.home.pipeline.stop_background();
        for thread in self.threads.lock().drain(..) {
            // A thread that panicked has poisoned the volume already.
            let _ = thread.join();
        }
    }
}

impl Drop for NoneEngine {
    fn drop(&mut self) {
        self.end_threads();
    }
}

impl Home {
    /// Leader: writes what the running commit changed home.
    fn write_back(&self) -> Result<()> {
        let commit = self.pipeline.lock()?;
        let frozen = self.metadata.freeze(commit, |block, contents| {
            if block == self.superblock_place.block {
                let bytes = Arc::make_mut(contents);
                Flags { clean: Some(false), ..Flags::default() }.apply(self.superblock_place.within(bytes));
            }
        });
        self.pipeline.switch();
        if !frozen.is_empty() {
            self.mark_in_use()?;
        }
        let blocks: Vec<_> = frozen.blocks.iter().map(|b| (b.slot.block, b.contents.clone())).collect();
        self.volume.write_sorted(&blocks)?;
        // Durable by this flush: all changes and all data of this commit. Without it freed blocks
        // would be given away while the volume still says that they belong to their old owner.
        if !self.faults.has(Fault::NoFlushAfterHome) {
            self.volume.flush()?;
        }
        for block in &frozen.blocks {
            block.slot.lock_any().committing = None;
        }
        if !frozen.is_empty() {
            self.commits.fetch_add(1, Relaxed);
            self.written_blocks.fetch_add(blocks.len() as u64, Relaxed);
        }
        self.pipeline.finish(commit);
        Ok(())
    }

    fn mark_in_use(&self) -> Result<()> {
        if self.marked.load(Relaxed) {
            return Ok(());
        }
        self.superblock_place.write_home(&self.volume, Flags { clean: Some(false), ..Flags::default() })?;
        // Durable by this flush: "not clean". Without it a crash in the writes that follow would
        // leave a broken volume that claims to be whole, and nobody would check it.
        self.volume.flush()?;
        self.marked.store(true, Relaxed);
        Ok(())
    }

    fn mark_clean(&self) -> Result<()> {
        if !self.marked.load(Relaxed) || !self.was_clean {
            return Ok(());
        }
        self.superblock_place.write_home(&self.volume, Flags { clean: Some(true), ..Flags::default() })?;
        // Durable by this flush: "clean"; all that it speaks of was by the flush of the last commit.
        self.volume.flush()
    }
}

impl Shared for Home {
    shared_fields!();

    fn commit(&self, commit: CommitId) -> Result<()> {
        let ticket = self.volume.flush_ticket();
        if self.pipeline.durable() < commit {
            self.pipeline.make_durable(commit, || self.guard(self.write_back()))?;
        }
        // For data written since that commit's flush began.
        if self.faults.has(Fault::NoFlushAfterHome) {
            return Ok(());
        }
        self.guard(self.volume.flush_for(ticket))
    }
}

impl Engine for NoneEngine {
    engine_of_shared!(home);

    fn start(&self, credits: u32) -> Result<CommitId> {
        self.home.check_open()?;
        self.home.pipeline.start(credits, false, || Ok(()), || false)
    }

    fn on_durable(&self, commit: CommitId, action: Action) {
        self.home.pipeline.on_durable(commit, action);
    }

    fn flush_data(&self) -> Result<()> {
        self.home.check_open()?;
        self.home.guard(self.home.volume.flush())
    }

    fn read_data(&self, start: BlockNr, buf: &mut [u8]) -> Result<()> {
        self.home.volume.read(start, buf)
    }

    fn write_data_as(&self, start: BlockNr, bufs: &[IoSlice<'_>], write: DataWrite) -> Result<()> {
        self.home.check_open()?;
        let volume = &self.home.volume;
        volume.check_writable(start, volume.blocks_in(bufs.iter().map(|b| b.len()).sum())?)?;
        let written = volume.write_for(start, bufs, write.waits);
        if volume.poison.is_set() {
            self.home.pipeline.give_up();
        }
        written
    }

    fn discard(&self, start: BlockNr, blocks: u64) -> Result<()> {
        self.home.check_open()?;
        self.home.volume.poison.check()?;
        self.home.volume.discard(start, blocks)
    }

    fn close(&self) -> Result<()> {
        if self.home.read_only {
            return Ok(());
        }
        let result = self.home.volume.poison.check().and_then(|()| self.sync());
        self.end_threads();
        result?;
        let _turn = self.home.pipeline.lead_alone();
        self.home.guard(self.home.mark_clean())?;
        self.home.volume.poison.close();
        self.home.pipeline.give_up();
        Ok(())
    }

    fn stats(&self) -> EngineStats {
        EngineStats {
            commits: self.home.commits.load(Relaxed),
            committed_blocks: self.home.written_blocks.load(Relaxed),
            checkpoint_writes: self.home.written_blocks.load(Relaxed),
            device: self.home.volume.counts(),
            ..EngineStats::default()
        }
    }
}
