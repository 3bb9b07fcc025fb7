//! The journal: every metadata change is written to a jbd2 log before it is written home.
//!
//! Layer: consistency. The bytes on disk are those of jbd2 (`xact_layout::jbd2`), so the kernel and
//! e2fsck replay our log and we replay theirs (`recovery`).
//!
//! ```text
//! volume:   | superblock | ... metadata at home ... | journal inode's blocks | ... data ... |
//!                 |                  ^                        |
//!                 | needs_recovery   | checkpoint             v
//! journal:  | journal superblock |  free  | txn n | txn n+1 | txn being written |  free   |
//!             start, sequence ------------^ tail             ^ head
//! two-step: | revokes | descriptor | copies | descriptor | copies | FLUSH | commit block | FLUSH
//! single:   FLUSH where data needs it | revokes | descriptor | copies | ... | commit block | FLUSH
//! ```
//!
//! The life of a change to a block, by the fields of its slot in the cache:
//!
//! ```text
//!   update        lock          both flushes           checkpoint
//!   newest  --->  committing  --->  committed  --->  home, evictable
//!   (joined)      (frozen)          (durable, in the log)
//! ```
//! Contents are shared, not copied: a change copies them only if a commit holds them.
//!
//! Invariants:
//! 1. A metadata block is written home only by a checkpoint, with contents of a durable commit
//!    (write-ahead). The one exception is the superblock's flag `needs_recovery`.
//! 2. A commit block is written only when everything that it commits is durable. That is all file
//!    data whose `write_data` returned before the commit was locked, and in two-step mode also the
//!    blocks of the transaction itself. In single mode, these blocks and the commit block are
//!    written together. The commit block has a checksum over all of them (v1), which reveals a torn
//!    transaction. The checksum does not cover revoke records. Each revoke record lies in the first
//!    sector of its block, together with the block's header: if that sector is missing, the
//!    transaction ends there.
//! 3. Three things happen only after the commit block is durable: the commit is reported as
//!    durable, blocks that it freed are reused, and the next transaction is written.
//! 4. Space of the log is overwritten only when a tail past it is durable. The tail passes a
//!    transaction only when each of its blocks is durable at home, or in a later durable
//!    transaction, or freed by one.
//! 5. If a commit frees a block of which the live log holds a copy, the commit has a revoke record
//!    for the block.
//! 6. A commit may contain file data in the same way as metadata. While the live log has a copy of
//!    a block, only a checkpoint writes that block in place (`SlotState::data`). The log has the
//!    copy until the tail has passed it or a durable commit has revoked it. If the live log has no
//!    copy of a block, a write to the block may go through the log or in place.
//! 7. Sub-block records (`LogRecords::SubBlock`) hold the bytes of a block that changed since the
//!    previous commit, or since the block was written in place. The base of each record must be in
//!    the log or at home. So the tail passes a transaction only when one of these holds for each of
//!    its blocks: the block is durable at home, a later durable transaction has a record of it that
//!    needs no older one (`SlotState::whole`), or a later durable transaction has freed it. A torn
//!    block at home is a mixture of old and new sectors. The records since the tail hold all bytes
//!    in which these differ, so they make the block whole.
//! 8. The log is live on the volume (`start` is not 0) only while `needs_recovery` is durable.
//! 9. After a failed write or flush nothing is written any more.
//!
//! The order of data and metadata, in words: an operation writes data to blocks that nothing
//! durable refers to, `write_data` returns, and only then does a handle update the extent or the
//! size that refers to them. The handle ends before its commit is locked, and the commit's first
//! flush begins after that. So by invariant 2 the data is durable before the commit block is even
//! written. A crash before that leaves blocks that nothing refers to.
//!
//! A crash leaves the log from the tail up to the last intact commit block, and any mixture of old
//! and new sectors in blocks that a checkpoint was writing home. All of those have their copy in
//! the live log (4), so the replay makes them whole. A transaction without an intact commit block
//! is dropped; it was never reported as durable (3).
//!
//! Locks, in order: a leader's turn (`pipeline`), `checkpointing`, `home_writes`, a cache shard, a
//! slot, `joined`, `log.state`, `log.logged`. Those from the cache shard on are held briefly, and
//! no I/O is done under them. `head` is held while the journal superblock is written, never for
//! long.

mod checkpoint;
mod commit;
pub(crate) mod location;
pub(crate) mod log;
mod resize;
pub(crate) mod superblock;

use std::io::IoSlice;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};

use parking_lot::{Condvar, Mutex};
use xact_device::BlockDevice;
use xact_layout::feature::incompat;
use xact_layout::jbd2::{Checksums, Features};
use xact_layout::superblock::Superblock;
use xact_types::{BlockNr, CommitId, Error, Result};

use crate::core::Core;
use crate::core::block::NewData;
use crate::core::dirty_blocks::DirtyBlocks;
use crate::core::pipeline::Pipeline;
use crate::core::superblock_io::{self, Flags, SuperblockPlace};
use crate::core::volume::Volume;
use crate::fault::Fault;
use crate::mechanism::{
    DataInLog, DataLog, DataWrite, EngineStats, Mechanism, ReserveClass, ResizableJournal,
};
use crate::options::{CommitWrites, EngineOptions, LogRecords};

use commit::{Limits, revokes_in};

use location::JournalLayout;
use log::{Log, Ring};
use superblock::{JournalHead, SharedHead};

/// The mechanism of volumes with a journal, in the mode that ext4 calls `ordered`.
pub(crate) struct Journal {
    core: Arc<Core>,
    log: Log,
    head: SharedHead,
    superblock_place: SuperblockPlace,
    /// As it was at opening; gives the journal's inode.
    superblock: Superblock,
    stock_checksums: Checksums,
    commit_writes: CommitWrites,
    log_records: LogRecords,
    ordered_data: bool,
    cache_bytes: usize,
    /// One checkpoint at a time.
    checkpointing: Mutex<()>,
    /// Held while a checkpoint's writes are under way.
    home_writes: Mutex<()>,
    checkpoint_due: Mutex<Wakeup>,
    checkpoint_wake: Condvar,
    /// Blocks whose committed contents are not home.
    pinned_blocks: AtomicUsize,
    commits: AtomicU64,
    committed_blocks: AtomicU64,
    journaled_data_blocks: AtomicU64,
    checkpoint_writes: AtomicU64,
    checkpoint_writes_saved: AtomicU64,
}

#[derive(Default)]
struct Wakeup {
    due: bool,
    stopping: bool,
}

/// The checksums that the kernel would choose.
fn stock_checksums(superblock: &Superblock) -> Checksums {
    if superblock.has_metadata_csum() { Checksums::V3 } else { Checksums::None }
}

impl Journal {
    /// Opens a volume that has a journal and an empty log: the log that a crash left has been
    /// replayed.
    ///
    /// Errors: `Usage` if there is no journal; `Unsupported` for journals on another device;
    /// `Corrupt`.
    pub fn open(device: Arc<dyn BlockDevice>, options: &EngineOptions) -> Result<(Arc<Core>, Arc<Journal>)> {
        let home = superblock_io::read(&*device)?;
        let superblock = home.superblock;
        if !superblock_io::has_journal(&superblock)? {
            return Err(Error::Usage("the volume has no journal".into()));
        }
        let block_size = superblock.block_size() as usize;
        let volume = Volume::new(device, block_size, superblock.blocks_count())?;
        let layout = JournalLayout::locate(&volume, &superblock)?;
        volume.reserve(layout.ranges());
        if !options.read_only && !volume.device_is_read_only() {
            // A commit cannot stop half-way because the host of a sparse image is full.
            volume.fill_holes(layout.ranges())?;
        }
        let mut head = JournalHead::read(&volume, &layout)?;
        // The log is empty, so its format may be chosen.
        let stock_checksums = stock_checksums(&superblock);
        let fields = &mut head.fields;
        fields.upgrade();
        fields.features.incompat &= !(Features::FAST_COMMIT | Features::XACT_PATCHES);
        if options.log_records == LogRecords::SubBlock {
            fields.features.incompat |= Features::XACT_PATCHES;
        }
        match options.commit_writes {
            CommitWrites::TwoStep => fields.set_checksums(stock_checksums),
            CommitWrites::Single => {
                fields.set_checksums(Checksums::V1);
                fields.features.incompat |= Features::ASYNC_COMMIT;
            }
        }
        fields.features.incompat |= Features::REVOKE;
        if superblock.has_incompat(incompat::SIXTY_FOUR_BIT) {
            fields.features.incompat |= Features::WIDE_BLOCKS;
        }
        let ring = Ring::new(layout, fields)?;
        let format = fields.format();
        let limits = Limits::of(revokes_in(options.commit_writes, &format), ring.blocks());
        let at = if (ring.first..ring.end).contains(&fields.head) { fields.head } else { ring.first };
        let log = Log::new(ring, format, at, fields.sequence.wrapping_add(1));

        let volume = Arc::new(volume);
        let pipeline = Pipeline::new(volume.clone(), limits.credits, limits.alone);
        let blocks = DirtyBlocks::new(volume.clone(), volume.clone(), options.cache_bytes, limits.forgotten)
            .with_sub_block_records(options.log_records == LogRecords::SubBlock)
            .with_faults(options.faults());
        let core = Core::new(volume, pipeline, blocks, options);
        let journal = Journal {
            core: core.clone(),
            log,
            head: SharedHead::new(head),
            superblock_place: SuperblockPlace::of(&superblock),
            superblock,
            stock_checksums,
            commit_writes: options.commit_writes,
            log_records: options.log_records,
            ordered_data: options.ordered_data,
            cache_bytes: options.cache_bytes,
            checkpointing: Mutex::new(()),
            home_writes: Mutex::new(()),
            checkpoint_due: Mutex::default(),
            checkpoint_wake: Condvar::new(),
            pinned_blocks: AtomicUsize::new(0),
            commits: AtomicU64::new(0),
            committed_blocks: AtomicU64::new(0),
            journaled_data_blocks: AtomicU64::new(0),
            checkpoint_writes: AtomicU64::new(0),
            checkpoint_writes_saved: AtomicU64::new(0),
        };
        Ok((core, Arc::new(journal)))
    }

    fn checkpoint_when_due(&self) {
        loop {
            {
                let mut wakeup = self.checkpoint_due.lock();
                while !wakeup.due && !wakeup.stopping {
                    self.checkpoint_wake.wait(&mut wakeup);
                }
                if wakeup.stopping || self.core.volume.poison.is_set() {
                    return;
                }
                wakeup.due = false;
            }
            // The newest transactions stay: their blocks will probably be committed again soon, and
            // then need not go home for now.
            let target = (self.log.capacity() / 4).min(self.log.used() / 2);
            let _ = self.core.guard(self.checkpoint_to(target));
        }
    }

    /// Called after each commit. Starts the checkpoint thread if the log is half full, or if blocks
    /// that are not home take half of the cache's memory.
    fn wake_checkpointer(&self) {
        let pinned = self.pinned_blocks.load(Relaxed) * self.core.volume.block_size;
        if self.log.used() > self.log.capacity() / 2 || pinned > self.cache_bytes / 2 {
            self.checkpoint_due.lock().due = true;
            self.checkpoint_wake.notify_all();
        }
    }

    fn empty_log(&self) -> Result<()> {
        self.checkpoint_to(0)?;
        let state = self.log.state.lock();
        let (at, sequence) = (state.head, state.sequence);
        drop(state);
        let mut head = self.head.lock();
        if head.fields.start == 0 {
            return Ok(());
        }
        head.fields.start = 0;
        head.fields.sequence = sequence;
        head.fields.head = at;
        // Nothing depends on the format of an empty log, so the log is left as the kernel would
        // leave it.
        head.fields.set_checksums(self.stock_checksums);
        head.fields.features.incompat &= !Features::XACT_PATCHES;
        head.write(&self.core.volume)?;
        // Durable by this flush: the empty log. It must not come after the superblock's flag: a
        // live log on a volume that claims to be clean is refused or discarded.
        self.core.volume.flush()?;
        self.superblock_place
            .write_home(&self.core.volume, Flags { recover: Some(false), ..Flags::default() })?;
        // Durable by this flush: the flag, so that the volume is as clean as close() says.
        self.core.volume.flush()
    }
}

impl Mechanism for Journal {
    fn start(&self, credits: u32, _class: ReserveClass) -> Result<CommitId> {
        let blocks = &self.core.blocks;
        self.core.pipeline.start(credits, false, || Ok(()), || blocks.has_forgotten_much())
    }

    fn commit(&self, commit: CommitId) -> Result<()> {
        let Core { volume, pipeline, .. } = &*self.core;
        let ticket = volume.data_ticket();
        if pipeline.durable() >= commit {
            // It may have become durable a moment ago, by flushes that had begun before the
            // caller's data was written.
            return self.core.guard(volume.flush_for(ticket));
        }
        pipeline.make_durable(commit, || self.core.guard(self.commit_running()))?;
        // A commit whose last flush had begun before this call does not cover data written since
        // then. In all other cases a flush has covered the data and this does nothing.
        self.core.guard(volume.flush_for(ticket))
    }

    fn read_data(&self, start: BlockNr, buf: &mut [u8]) -> Result<()> {
        let Core { volume, blocks: metadata, .. } = &*self.core;
        let blocks = volume.blocks_in(buf.len())?;
        // Looked up first: a block that is not found here is home, and the device has it.
        let waiting = metadata.data_in_memory(start, blocks);
        if (waiting.len() as u64) < blocks {
            volume.read(start, buf)?;
        }
        for (at, contents) in waiting {
            let from = at as usize * volume.block_size;
            buf[from..from + volume.block_size].copy_from_slice(&contents);
        }
        Ok(())
    }

    fn write_data(&self, start: BlockNr, bufs: &[IoSlice<'_>], write: DataWrite) -> Result<()> {
        let volume = &self.core.volume;
        let blocks = volume.blocks_in(bufs.iter().map(|b| b.len()).sum())?;
        assert!(!self.holds_data(start, blocks), "data is written beside its copy in the log");
        volume.write_for(start, bufs, write.hint)
    }

    fn flush_data(&self) -> Result<()> {
        self.core.guard(self.core.volume.flush_data())
    }

    fn start_threads(self: Arc<Self>) -> Result<()> {
        let journal = self.clone();
        self.core.start_thread("xact-checkpoint", move || journal.checkpoint_when_due())
    }

    fn stop_threads(&self) {
        self.checkpoint_due.lock().stopping = true;
        self.checkpoint_wake.notify_all();
    }

    fn leave_clean(&self) -> Result<()> {
        self.empty_log()
    }

    fn stats(&self) -> EngineStats {
        EngineStats {
            commits: self.commits.load(Relaxed),
            committed_blocks: self.committed_blocks.load(Relaxed),
            journaled_data_blocks: self.journaled_data_blocks.load(Relaxed),
            checkpoint_writes: self.checkpoint_writes.load(Relaxed),
            checkpoint_writes_saved: self.checkpoint_writes_saved.load(Relaxed),
            ..self.core.stats()
        }
    }

    fn data_log(&self) -> Option<&dyn DataLog> {
        Some(self)
    }

    fn journal(&self) -> Option<&dyn ResizableJournal> {
        Some(self)
    }
}

impl DataLog for Journal {
    fn data_in_log(&self) -> DataInLog {
        DataInLog::All
    }

    fn journal_data(&self, commit: CommitId, block: BlockNr, new: NewData) -> Result<bool> {
        self.core.blocks.journal_data(commit, block, new)
    }

    fn holds_data(&self, start: BlockNr, blocks: u64) -> bool {
        !self.core.faults.has(Fault::DataBesideItsCopy) && self.core.blocks.holds_data(start, blocks)
    }

    fn forget_data(&self, commit: CommitId, start: BlockNr, blocks: u64) -> Result<()> {
        self.core.blocks.forget_data(commit, start, blocks)
    }
}
