//! The generations: metadata that a generation on disk refers to is never overwritten.
//!
//! Layer: consistency. The mechanism is that of the paper on meta-data snapshotting. The ext4
//! layout is unchanged; a map says where each metadata block lies (`docs/FORMAT.md`).
//!
//! ```text
//!                 root slot A      root slot B
//!                (generation n)   (generation n+1, being written)
//!                     |                |
//!                map of n  . . . . map of n+1         equal nodes are shared
//!               /    |   \         /
//!      moved blocks of n  ...  moved blocks of n+1    every other block is at home, the place
//!        (in the pool)           (in the pool)        that its number names
//! ```
//!
//! A commit (`commit`) makes one generation:
//!
//! 1. The running commit is closed (`pipeline`): operations that began in it end in it, and others
//!    begin in the next one at once (`draining` keeps the two apart). Nothing is written before the
//!    last operation in the closed commit has ended. A commit that changes the snapshots opens the
//!    next commit only after that, since a snapshot must hold everything that was done before it.
//! 2. Its blocks get free pool blocks, or their homes (`writeback_home`), and the map is updated.
//! 3. Blocks, map nodes and the pool's bitmap are written, all to places that generation n does not
//!    use. **Flush.**
//! 4. The root goes to the slot that generation n is not in. **Flush.** Generation n+1 is durable.
//! 5. Only now do readers use the new map, and waiters are woken. Only now can the blocks that n+1
//!    freed be reused: pool blocks (by the next commit), and blocks of files (`on_durable`).
//!
//! An `fsync` needs none of these steps: it writes a record of the changes to a log that continues
//! the generation on disk (`log`), and the next generation includes them. If only the data of the
//! file is new, the record has no changes of other files (`ahead`).
//!
//! Invariants, which are the crash argument:
//! 1. No block that the durable generation or a snapshot refers to is ever written. A write goes to
//!    a pool block that is clear in the pool's bitmap, to the inactive copy of a bitmap block, or
//!    to the home of a block. Metadata is written home only if the durable generation has it in the
//!    pool and no snapshot has anything in its home (`writeback_home`). The same holds for file
//!    data in the pool that the commit did not change. Changed file data goes to blocks that are
//!    free in the durable generation and in every snapshot. `redirect` and `place_blocks` describe
//!    the exceptions.
//! 2. A root is written only when everything that it leads to is durable. All file data whose
//!    `write_data` returned before the commit was closed is durable by then, too. The same holds
//!    for a record of the log if data is ordered. With `data=writeback`, one flush may make the
//!    data and the record durable, in any order.
//! 3. A root counts only if it is whole: each sector has its stamp, and the checksum is right. The
//!    slot of the durable generation is never overwritten. So at any moment one slot holds a whole
//!    root, whose generation is complete. A torn root that a crash left is wiped, durably, before
//!    another root is written to its slot. Without the wipe, a second crash could tear the new root
//!    and thereby complete the old one, since both have the same number. By then the pool blocks
//!    of the old one may have been reused.
//! 4. A generation is reported as durable, and what it freed is reused, only after the flush behind
//!    its root.
//! 5. After a failed write or flush nothing is written any more.
//!
//! A crash leaves the newest generation that has a whole root, with its log. Nothing is replayed:
//! opening reads two slots, picks one, and reads the log's area, whose size is bounded.
//!
//! Locks, in order: `pruning`, a leader's turn (`pipeline`), `redirect.gate`, `state`, a cache
//! shard, a slot, `published_map`.

mod admission;
mod ahead;
mod commit;
mod convert;
mod export;
mod format;
mod image;
mod log;
mod map;
mod partial;
mod pool;
mod pool_use;
mod published_map;
mod redirect;
mod root;
mod salvage;
mod snapshot_refs;
mod snapshots;
mod writeback_home;

use std::io::IoSlice;
use std::sync::Arc;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicU64};

use parking_lot::{Mutex, RwLock};
use xact_device::BlockDevice;
use xact_layout::generations::{PoolShape, Root};
use xact_layout::superblock::Superblock;
use xact_types::{BlockNr, CommitId, Error, Result, Site};

use crate::core::Core;
use crate::core::block::NewData;
use crate::core::dirty_blocks::DirtyBlocks;
use crate::core::pipeline::Pipeline;
use crate::core::superblock_io::{self, Health};
use crate::core::volume::Volume;
use crate::fault::Fault;
use crate::mechanism::{
    CommitsAhead, DataInLog, DataLog, DataWrite, EngineStats, Mechanism, ReserveClass, SpaceReservation,
};
use crate::options::{EngineOptions, Fsync};
use crate::recovery::RecoveryReport;
use crate::snapshots::Snapshots;

use admission::Admission;
use commit::CommitKind;
pub use convert::{VolumeOn, unmark_backups, volume_on};
pub use format::{default_pool_bytes, format as format_generations, min_pool_bytes};
use log::Log;
use map::{Map, MapReader};
use pool::Pool;
use published_map::{Logged, PublishedMap};
use redirect::Redirect;
use root::{Roots, read_roots};
pub use salvage::{BlockDamage, DamagedBlocks, Salvage};
use snapshot_refs::SnapshotRefs;
use snapshots::SnapshotEntry;

/// The mechanism of volumes whose metadata is found through the map of a generation.
pub(crate) struct Generations {
    core: Arc<Core>,
    reader: Arc<MapReader>,
    published: Arc<PublishedMap>,
    state: Mutex<State>,
    homes: writeback_home::Homes,
    snapshot_refs: RwLock<Arc<SnapshotRefs>>,
    redirect: Redirect,
    /// Held while a snapshot of chosen paths is made.
    pruning: Mutex<()>,
    /// See [`Fsync`]: fsyncs go to the log.
    logs: AtomicBool,
    /// They go there ahead of other changes.
    goes_ahead: AtomicBool,
    /// The most blocks in the log.
    most_logged: usize,
    /// See [`EngineOptions::ordered_data`].
    ordered_data: AtomicBool,
    /// The number of dirty blocks at which a generation is due.
    enough: u64,
    /// Which operations may begin, by the part of the pool that was free after the last commit.
    admission: Admission,
    commits: AtomicU64,
    committed_blocks: AtomicU64,
    blocks_written_home: AtomicU64,
}

/// The durable generation, and the base of the next one. Changed by leaders only.
struct State {
    root: Root,
    /// The slot of the root.
    slot: usize,
    map: Map,
    snapshots: Vec<SnapshotEntry>,
    /// Read when the first generation is made.
    pool: Option<Pool>,
    /// The log of the generation, if this engine has made it.
    log: Option<Log>,
    /// The block at which the write-back home continues.
    home_cursor: BlockNr,
    /// The other slot has a torn root that a crash left.
    has_torn_root: bool,
}

/// The answer to what only a volume with generations can do.
const NO_GENERATIONS: &str =
    "the volume has no generations, and so no snapshots ('xact convert --to generations' changes that)";

impl Generations {
    /// Opens a generations volume: reads the two root slots and continues from the newer whole one.
    ///
    /// Errors: `Usage` for a volume without generations; `Corrupt` if no slot holds a whole root.
    pub fn open(
        device: Arc<dyn BlockDevice>,
        options: &EngineOptions,
    ) -> Result<(Arc<Core>, Arc<Generations>, RecoveryReport)> {
        let home = superblock_io::read(&*device)?;
        // A conversion may have torn it (`convert`). Then it only gives the position of the roots.
        let is_sound = home.health != Health::Unsound;
        let mut superblock = home.superblock;
        if !superblock_io::has_generations(&superblock) {
            return Err(Error::Usage(NO_GENERATIONS.into()));
        }
        let faults = options.faults();
        let whole = shape_of(&superblock, device.size_bytes());
        let Roots { slot, root, has_torn } = read_roots(&*device, &whole, superblock.uuid(), faults)?;
        let shape = root.shape;
        let mut volume = Volume::new(device, shape.block_size as usize, shape.volume_blocks)?;
        volume.extend_reach(shape.device_blocks);
        if !options.read_only && !volume.device_is_read_only() {
            // A commit must find its pool blocks, also those on the host of a sparse image.
            volume.fill_holes(std::iter::once(shape.volume_blocks..shape.device_blocks))?;
        }
        let volume = Arc::new(volume);
        let reader = Arc::new(MapReader { volume: volume.clone(), shape });
        if root.map_levels != reader.levels() {
            return Err(Error::corrupt(Site::Root, "the map's levels do not fit the volume"));
        }
        let map = Map::new(root.map_levels, root.map);
        let logged = match options.no_recovery {
            true => Logged::default(),
            false => log::read(&reader, &root, &map, faults)?,
        };
        if !is_sound {
            let seen = export::GenerationReader { reader: &reader, map: &map, logged: Some(&logged) };
            superblock = export::superblock(&seen, shape.block_size as usize)?;
            if superblock.blocks_count() != shape.volume_blocks
                || superblock.block_size() != shape.block_size
                || superblock.uuid() != root.uuid
            {
                return Err(Error::corrupt(Site::Superblock, "checksum does not match"));
            }
        }
        let snapshots = snapshots::read_list(&reader, &root)?;
        let refs = SnapshotRefs::new(reader.clone(), superblock.clone(), &snapshots);
        let redirect = Redirect::default();
        redirect.active.store(root.has_moved_data, SeqCst);
        redirect.logged.store(logged.values().flatten().any(|logged| logged.data), SeqCst);
        let report = RecoveryReport { intent_log_blocks: logged.len() as u64, ..RecoveryReport::default() };
        let published = Arc::new(PublishedMap::new(reader.clone(), root.generation, map.clone(), logged));
        let credits = commit::max_credits(&reader);
        let pipeline = Pipeline::new(volume.clone(), credits, credits);
        let blocks = DirtyBlocks::new(volume.clone(), published.clone(), options.cache_bytes, usize::MAX)
            .beside(pipeline.draining())
            .with_faults(faults);
        let core = Core::new(volume, pipeline, blocks, options);
        let generations = Generations {
            core: core.clone(),
            reader: reader.clone(),
            published,
            homes: writeback_home::Homes::of(&superblock),
            snapshot_refs: RwLock::new(Arc::new(refs)),
            redirect,
            pruning: Mutex::default(),
            logs: AtomicBool::new(false),
            goes_ahead: AtomicBool::new(false),
            most_logged: log::most_blocks(&reader, credits),
            ordered_data: AtomicBool::new(options.ordered_data),
            enough: options.dirty_blocks.unwrap_or(credits / 2).max(1).into(),
            admission: Admission::new(&reader, !snapshots.is_empty()),
            commits: AtomicU64::new(0),
            committed_blocks: AtomicU64::new(0),
            blocks_written_home: AtomicU64::new(0),
            state: Mutex::new(State {
                root,
                slot,
                map,
                snapshots,
                pool: None,
                log: None,
                home_cursor: BlockNr(0),
                has_torn_root: has_torn,
            }),
        };
        generations.choose_log(options.fsync);
        generations.count_logged();
        if !core.read_only {
            if generations.state.lock().root.used > shape.pool_blocks() / 2 {
                let _turn = core.pipeline.lead_alone();
                let mut state = generations.state.lock();
                generations.pool(&mut state)?;
                core.guard(generations.make_room(&mut state))?;
            }
            generations.drop_unpruned()?;
        }
        Ok((core, Arc::new(generations), report))
    }
}

/// A pool from the end of the volume to `end_bytes`.
fn shape_of(superblock: &Superblock, end_bytes: u64) -> PoolShape {
    let block_size = superblock.block_size();
    PoolShape {
        block_size,
        volume_blocks: superblock.blocks_count(),
        device_blocks: end_bytes / u64::from(block_size),
    }
}

impl Generations {
    fn choose_log(&self, fsync: Fsync) {
        let logs = fsync != Fsync::Generation;
        self.logs.store(logs, SeqCst);
        self.goes_ahead.store(fsync == Fsync::File, SeqCst);
        self.core.blocks.set_sub_block_records(logs);
    }

    /// The blocks in the log count among the dirty blocks of the next generation.
    fn count_logged(&self) {
        let logged = self.published.logged_blocks() as u64;
        self.core.pipeline.set_enough(self.enough.saturating_sub(logged).max(1));
    }

    fn orders_data(&self) -> bool {
        self.ordered_data.load(SeqCst)
    }

    fn uses_log(&self) -> bool {
        self.logs.load(SeqCst)
    }

    fn goes_ahead(&self) -> bool {
        self.goes_ahead.load(SeqCst)
    }

    /// Makes a commit durable, as a generation or by the log.
    fn commit_by(&self, commit: CommitId, as_generation: bool) -> Result<()> {
        let ticket = self.core.volume.flush_ticket();
        // Data that became part of a commit, as metadata does, must be durable for the caller too.
        let commit = commit.max(self.redirect.newest());
        if self.core.pipeline.durable() >= commit {
            // It may have become durable a moment ago, by flushes that had begun before the
            // caller's data was written.
            return self.core.guard(self.core.volume.flush_data());
        }
        self.core.pipeline.make_durable(commit, || {
            let kind = if as_generation { CommitKind::Generation } else { CommitKind::Log };
            self.core.guard(self.commit_running(kind))
        })?;
        // A generation whose flushes had begun before this call does not cover data written since
        // then. In all other cases the flush has happened and this does nothing.
        self.core.guard(self.core.volume.flush_for(ticket))
    }
}

impl Mechanism for Generations {
    fn start(&self, credits: u32, class: ReserveClass) -> Result<CommitId> {
        // SNAP-6: removals and the write-back of accepted data join the generation that is still in
        // memory.
        let back = class != ReserveClass::Any;
        self.core.pipeline.start(credits, back, || self.admission.check(class), || false)
    }

    fn commit(&self, commit: CommitId) -> Result<()> {
        self.commit_by(commit, false)
    }

    fn commit_wholly(&self, commit: CommitId) -> Result<()> {
        self.commit_by(commit, true)
    }

    fn read_data(&self, start: BlockNr, buf: &mut [u8]) -> Result<()> {
        let volume = &self.core.volume;
        volume.check_range(start, volume.blocks_in(buf.len())?)?;
        self.read_redirected(start, buf)
    }

    fn write_data(&self, start: BlockNr, bufs: &[IoSlice<'_>], write: DataWrite) -> Result<()> {
        self.write_redirected(start, bufs, write)
    }

    fn write_unread(&self, start: BlockNr, bufs: &[IoSlice<'_>]) -> Result<()> {
        self.core.volume.write(start, bufs)
    }

    fn may_defer(&self, start: BlockNr, blocks: u64) -> Result<bool> {
        self.all_at_home(start, blocks)
    }

    fn flush_data(&self) -> Result<()> {
        let moved = self.redirect.newest();
        if moved > self.core.pipeline.durable() {
            return self.commit(moved);
        }
        self.core.guard(self.core.volume.flush())
    }

    fn may_discard(&self) -> bool {
        // A block that is free now may be in use by a snapshot.
        !self.redirect.active.load(SeqCst)
    }

    fn leave_clean(&self) -> Result<()> {
        // The commit that the sync waited for may have been led by an fsync, and so be in the log.
        self.end_log(&mut self.state.lock())
    }

    fn stats(&self) -> EngineStats {
        EngineStats {
            commits: self.commits.load(Relaxed),
            committed_blocks: self.committed_blocks.load(Relaxed),
            checkpoint_writes: self.blocks_written_home.load(Relaxed),
            ..self.core.stats()
        }
    }

    fn set_fsync(&self, fsync: Fsync, ordered_data: bool) {
        self.choose_log(fsync);
        self.ordered_data.store(ordered_data, SeqCst);
    }

    fn data_log(&self) -> Option<&dyn DataLog> {
        Some(self)
    }

    fn ahead(&self) -> Option<&dyn CommitsAhead> {
        Some(self)
    }

    fn space(&self) -> Option<&dyn SpaceReservation> {
        Some(&self.admission)
    }

    fn snapshots(&self) -> Option<&dyn Snapshots> {
        Some(self)
    }
}

impl DataLog for Generations {
    fn data_in_log(&self) -> DataInLog {
        if self.uses_log() && self.orders_data() { DataInLog::Synced } else { DataInLog::None }
    }

    fn journal_data(&self, commit: CommitId, block: BlockNr, new: NewData) -> Result<bool> {
        self.take_data(commit, block, new)
    }

    fn holds_data(&self, start: BlockNr, blocks: u64) -> bool {
        !self.core.faults.has(Fault::DataBesideItsCopy) && self.has_copy(start, blocks)
    }

    fn forget_data(&self, commit: CommitId, start: BlockNr, blocks: u64) -> Result<()> {
        self.forget_copies(commit, start, blocks)
    }
}
