//! Volumes without a journal: metadata is written home in no particular order.
//!
//! Layer: consistency. Commits exist here too, since the file system above is the same. A commit
//! writes every block that changed since the last one home and flushes; the actions that wait for
//! it (reuse of freed blocks) run then.
//!
//! Invariants:
//! 1. While the volume is open for writing its superblock says "not clean" (`EXT4_VALID_FS` is
//!    off), and that is durable before the first write of metadata.
//! 2. "Clean" is written only after a flush behind the last write.
//!
//! A crash leaves any subset of the blocks of the commit that was being written, torn by sectors,
//! and everything of the commits before. Only e2fsck makes such a volume sound again, and the
//! superblock's state says that it must run.

use std::io::IoSlice;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use xact_device::BlockDevice;
use xact_layout::superblock::STATE_CLEAN;
use xact_types::{BlockNr, CommitId, Error, Result, Site};

use crate::core::Core;
use crate::core::dirty_blocks::DirtyBlocks;
use crate::core::pipeline::Pipeline;
use crate::core::superblock_io::{self, Flags, Health, SuperblockPlace};
use crate::core::volume::Volume;
use crate::fault::Fault;
use crate::mechanism::{DataWrite, EngineStats, Mechanism, ReserveClass};
use crate::options::EngineOptions;

/// The fewest credits of one commit; the cache's size allows more.
const MIN_CREDITS: usize = 4096;

pub(crate) struct Unjournaled {
    core: Arc<Core>,
    superblock_place: SuperblockPlace,
    /// Whether the volume was clean when it was opened, and so may be called clean again.
    was_clean: bool,
    /// The superblock says "not clean" on the volume.
    marked: AtomicBool,
    commits: AtomicU64,
    written_blocks: AtomicU64,
}

impl Unjournaled {
    /// Opens a volume without a journal.
    pub fn open(
        device: Arc<dyn BlockDevice>,
        options: &EngineOptions,
    ) -> Result<(Arc<Core>, Arc<Unjournaled>)> {
        let found = superblock_io::read(&*device)?;
        let superblock = found.superblock;
        if superblock_io::has_journal(&superblock)? {
            return Err(Error::Usage("the volume has a journal, which must not be passed by".into()));
        }
        if found.health == Health::Unsound {
            return Err(Error::corrupt(Site::Superblock, "checksum does not match"));
        }
        let block_size = superblock.block_size() as usize;
        let volume = Arc::new(Volume::new(device, block_size, superblock.blocks_count())?);
        let credits = (options.cache_bytes / block_size / 2).max(MIN_CREDITS);
        let pipeline = Pipeline::new(volume.clone(), credits as u32, credits as u32);
        let blocks = DirtyBlocks::new(volume.clone(), volume.clone(), options.cache_bytes, usize::MAX);
        let core = Core::new(volume, pipeline, blocks, options);
        let unjournaled = Unjournaled {
            core: core.clone(),
            superblock_place: SuperblockPlace::of(&superblock),
            was_clean: superblock.state() & STATE_CLEAN != 0,
            marked: AtomicBool::new(false),
            commits: AtomicU64::new(0),
            written_blocks: AtomicU64::new(0),
        };
        Ok((core, Arc::new(unjournaled)))
    }

    /// Leader: writes the changes of the running commit home.
    fn write_back(&self) -> Result<()> {
        let commit = self.core.pipeline.lock()?;
        let frozen = self.core.blocks.freeze(commit, |block, contents| {
            if block == self.superblock_place.block {
                let bytes = Arc::make_mut(contents);
                Flags { clean: Some(false), ..Flags::default() }.apply(self.superblock_place.within(bytes));
            }
        });
        let deferred = self.core.deferred.begin(commit, self.core.faults);
        self.core.pipeline.switch();
        deferred.write(&self.core.volume)?;
        if !frozen.is_empty() {
            self.mark_in_use()?;
        }
        let blocks: Vec<_> = frozen.blocks.iter().map(|b| (b.slot.block, b.contents.clone())).collect();
        self.core.volume.write_sorted(&blocks)?;
        // Durable by this flush: all changes and all data of this commit. Without it freed blocks
        // would be reused while the volume still says that they belong to their old owner.
        if !self.core.faults.has(Fault::NoFlushAfterHome) {
            self.core.volume.flush()?;
        }
        for block in &frozen.blocks {
            block.slot.lock_any().committing = None;
        }
        if !frozen.is_empty() {
            self.commits.fetch_add(1, Relaxed);
            self.written_blocks.fetch_add(blocks.len() as u64, Relaxed);
        }
        self.core.pipeline.finish(commit);
        Ok(())
    }

    fn mark_in_use(&self) -> Result<()> {
        if self.marked.load(Relaxed) {
            return Ok(());
        }
        self.superblock_place
            .write_home(&self.core.volume, Flags { clean: Some(false), ..Flags::default() })?;
        // Durable by this flush: "not clean". Without it a crash in the following writes would
        // leave a broken volume that claims to be clean, and nothing would check it.
        self.core.volume.flush()?;
        self.marked.store(true, Relaxed);
        Ok(())
    }

    fn mark_clean(&self) -> Result<()> {
        if !self.marked.load(Relaxed) || !self.was_clean {
            return Ok(());
        }
        self.superblock_place
            .write_home(&self.core.volume, Flags { clean: Some(true), ..Flags::default() })?;
        // Durable by this flush: "clean". Everything else was durable by the flush of the last
        // commit.
        self.core.volume.flush()
    }
}

impl Mechanism for Unjournaled {
    fn start(&self, credits: u32, _class: ReserveClass) -> Result<CommitId> {
        self.core.pipeline.start(credits, false, || Ok(()), || false)
    }

    fn commit(&self, commit: CommitId) -> Result<()> {
        let Core { volume, pipeline, .. } = &*self.core;
        let ticket = volume.flush_ticket();
        if pipeline.durable() < commit {
            pipeline.make_durable(commit, || self.core.guard(self.write_back()))?;
        }
        // Data written since that commit's flush began.
        if self.core.faults.has(Fault::NoFlushAfterHome) {
            return Ok(());
        }
        self.core.guard(volume.flush_for(ticket))
    }

    fn read_data(&self, start: BlockNr, buf: &mut [u8]) -> Result<()> {
        self.core.volume.read(start, buf)
    }

    fn write_data(&self, start: BlockNr, bufs: &[IoSlice<'_>], write: DataWrite) -> Result<()> {
        self.core.volume.write_for(start, bufs, write.hint)
    }

    fn flush_data(&self) -> Result<()> {
        self.core.guard(self.core.volume.flush())
    }

    fn leave_clean(&self) -> Result<()> {
        self.mark_clean()
    }

    fn stats(&self) -> EngineStats {
        EngineStats {
            commits: self.commits.load(Relaxed),
            committed_blocks: self.written_blocks.load(Relaxed),
            checkpoint_writes: self.written_blocks.load(Relaxed),
            device: self.core.volume.counts(),
            ..EngineStats::default()
        }
    }
}
