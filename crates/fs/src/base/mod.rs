//! The base: the volume itself, which everybody shares.
//!
//! - `cell`, `cells`: inodes in memory, each with its lock; their cache
//! - `op`, `tree`: an operation under its locks, in one commit; the base as a [`crate::Tree`]
//! - `data`, `data_cache`, `writeback`: file data, cached, written back data first
//! - `inline`: contents in the inode itself
//! - `data_mode`, `pattern`: which of it goes through the journal, and how a file is written
//! - `fallocate`: reserved, punched and zeroed ranges
//! - `read_ahead`: what handles will need, so that none waits for the device
//! - `room`: what the engine promises to what is dirty
//! - `remove`: truncation, holes, deletion over several commits
//! - `views`, `versions`, `as_of`: the volume as of an instant, for transactions
//! - `apply`, `install`, `commit_size`: what a transaction's commit does to the volume; `spill`: what it
//!   has on the volume before that; `tx_space`: whose that is, and how much it may be
//! - `make_space`: what is tried before the volume counts as full
//! - `journal_size`: a longer journal for large commits
//! - `dir_blocks`: directories over the extent tree
//! - `whole`: damage, label, trimming, shutdown
//! - `access`: access times
//! - `shared`: reads under the shared lock; `view`: the base as a [`crate::View`]

mod access;
mod apply;
mod as_of;
mod cell;
mod cells;
mod commit_size;
mod data;
mod data_cache;
mod data_mode;
mod device_number;
mod dir_blocks;
mod fallocate;
mod inline;
mod install;
mod journal_size;
mod make_space;
mod op;
mod pattern;
mod read_ahead;
mod remove;
mod room;
mod shared;
mod spill;
mod tree;
mod tx_space;
mod versions;
mod view;
mod views;
mod whole;
mod writeback;
mod writeback_all;

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::thread::JoinHandle;

use parking_lot::{Mutex, RwLock};
use xact_consistency::mmp::Mmp;
use xact_consistency::{Engine, Faults, Handle, ReserveClass};
use xact_layout::feature::{incompat, ro_compat};
use xact_layout::inode::{Inode, flag};
use xact_layout::superblock::Superblock;
use xact_types::{Errno, Error, FileBlock, Ino, Latencies, LatencySnapshot, Result, Site};

use crate::alloc::Allocator;
use crate::api::{Attr, FileKind};
use crate::extent::{self, Extents, Owner};
use crate::inode_table::InodeTable;
use crate::modes::{ModeChoice, Modes};
use crate::orphan::Orphans;
use crate::quota::{QuotaLimits, Quotas, project_of};
use crate::xattr::Xattrs;
use cell::{Cell, State};
use cells::Cells;
use data_cache::DataCache;
use journal_size::LongJournal;
use make_space::SpaceMaking;
use tx_space::TxSpaces;
use views::Views;
use whole::Conduct;
use writeback::{Flusher, WrittenBlocks};

pub use access::{AccessOptions, AccessTimes};
pub use as_of::ViewHold;
pub use commit_size::{CommitSize, DirGrowth};
pub use data_mode::{DataMode, InodeUpdate};
pub use install::{BlockChange, NewContents, StagedBlocks, Staging};
pub use op::{BaseTree, Needs, Rights};
pub use spill::{BlockContents, SpilledBlock};
pub use tx_space::{PinnedSpace, SpaceLimits, SpillPlace, TxSpace, TxSpaceUse};
pub use views::{ChangedBy, Stamp};
pub use whole::{OnError, Shutdown};

/// How the base uses memory.
#[derive(Debug, Clone, Copy)]
pub struct BaseOptions {
    /// Limit of cached file data in bytes.
    pub data_cache_bytes: u64,
    /// Inodes kept in memory beyond those in use.
    pub inode_cache: usize,
    /// Limit of what is kept of the past for open views, in bytes; past it the oldest views go.
    pub versions_bytes: u64,
    /// What all open transactions of one user, not root, may hold of what is free, in percent.
    pub tx_space_percent: u8,
    /// Whether a thread writes dirty data back by age; without it (crash tests that want every
    /// write at a known point) data stays until a sync or until memory is short.
    pub flusher: bool,
    pub modes: Modes,
    /// What of them was asked for, and is not the volume's own or a default.
    pub mode_options: ModeChoice,
    pub faults: Faults,
    pub quota_limits: QuotaLimits,
    pub access: AccessOptions,
    /// Freed blocks are discarded.
    pub discard: bool,
    /// What damage leads to; by default what the superblock says.
    pub on_error: Option<OnError>,
}

impl Default for BaseOptions {
    fn default() -> BaseOptions {
        BaseOptions {
            data_cache_bytes: 128 << 20,
            inode_cache: 32 << 10,
            versions_bytes: 32 << 20,
            tx_space_percent: 50,
            flusher: true,
            modes: Modes::default(),
            mode_options: ModeChoice::default(),
            faults: Faults::default(),
            quota_limits: QuotaLimits::default(),
            access: AccessOptions::default(),
            discard: false,
            on_error: None,
        }
    }
}

/// An open volume as everybody sees it.
pub struct Base {
    engine: Arc<Engine>,
    sb: Superblock,
    allocator: Allocator,
    table: InodeTable,
    orphans: Orphans,
    quotas: Quotas,
    cells: Cells,
    cache: DataCache,
    /// A block of zeros, for pages that have no contents yet.
    zeros: Arc<[u8]>,
    pub(crate) modes: Modes,
    pub(crate) mode_options: ModeChoice,
    written: WrittenBlocks,
    /// How long `fsync` and `fdatasync` took.
    sync_times: Latencies,
    conduct: Conduct,
    views: Views,
    long_journal: LongJournal,
    /// Inodes with old versions.
    versioned: Mutex<BTreeSet<Ino>>,
    /// Memory that old versions take, roughly.
    kept_bytes: AtomicU64,
    options: BaseOptions,
    /// Inodes without a name that only views keep, those from before an instant by which the name was gone.
    zombies: Mutex<BTreeMap<Ino, Stamp>>,
    tx_spaces: TxSpaces,
    space_making: SpaceMaking,
    flusher: Flusher,
    flusher_thread: Mutex<Option<JoinHandle<()>>>,
    mmp: Mutex<Option<Mmp>>,
}

impl Base {
    /// Opens the base on an engine that has been recovered; deletes what was left without a
    /// name.
    pub fn open(engine: Arc<Engine>, sb: Superblock, options: BaseOptions) -> Result<Arc<Base>> {
        let allocator = Allocator::open(engine.clone(), sb.clone())?;
        if engine.journal().is_some() {
            // What is there to be recovered takes longer, and the kernel tells such damage on mounting, too.
            allocator.read_groups()?;
        }
        allocator.set_discard(options.discard);
        let table = InodeTable::new(&allocator);
        let orphans = Orphans::open(&allocator, &table)?;
        let quotas = Quotas::open(&allocator, &table, options.quota_limits)?;
        let base = Arc::new(Base {
            cells: Cells::new(options.inode_cache, sb.inode_size()),
            cache: DataCache::new(options.data_cache_bytes, u64::from(sb.block_size())),
            zeros: std::iter::repeat_n(0, sb.block_size() as usize).collect(),
            modes: options.modes,
            mode_options: options.mode_options,
            written: WrittenBlocks::default(),
            sync_times: Latencies::default(),
            conduct: Conduct::new(options.on_error, &sb),
            engine,
            sb,
            allocator,
            table,
            orphans,
            quotas,
            views: Views::default(),
            long_journal: LongJournal::default(),
            versioned: Mutex::default(),
            kept_bytes: AtomicU64::new(0),
            options,
            zombies: Mutex::default(),
            tx_spaces: TxSpaces::default(),
            space_making: SpaceMaking::default(),
            flusher: Flusher::default(),
            flusher_thread: Mutex::new(None),
            mmp: Mutex::new(None),
        });
        let root = base.cell(Ino::ROOT)?;
        if !root.state.read().inode.is_directory() {
            return Err(Error::corrupt(Site::Inode(Ino::ROOT), "the root is no directory"));
        }
        if !base.engine.is_read_only() {
            let mut handle = Handle::begin_for(&base.engine, 1, ReserveClass::Upkeep)?;
            base.orphans.begin_use(&mut handle)?;
            drop(handle);
            base.clean_up_orphans()?;
            base.restore_journal()?;
        }
        if options.flusher && !base.engine.is_read_only() {
            // The thread keeps only a weak reference between its rounds, so that a base that is
            // dropped without `close` (a test's crash) ends it.
            let weak = Arc::downgrade(&base);
            let thread = std::thread::Builder::new()
                .name("xact-flusher".into())
                .spawn(move || {
                    while let Some(base) = weak.upgrade() {
                        if !base.flush_round() {
                            return;
                        }
                    }
                })
                .map_err(|e| Error::io("starting the flusher thread", e))?;
            *base.flusher_thread.lock() = Some(thread);
        }
        Ok(base)
    }

    /// Finishes the deletions and truncations that a crash interrupted (`ext4_orphan_cleanup`).
    fn clean_up_orphans(&self) -> Result<()> {
        let orphans = self.orphans.list();
        if !orphans.is_empty() {
            self.allocator.read_groups()?;
        }
        for ino in orphans {
            let cell = self.cell(ino)?;
            let mut state = RwLock::write_arc(&cell.state);
            if !state.live {
                // Its chain goes through the inode's own bytes, so it was in use as an orphan.
                state.live = true;
            }
            if state.inode.links_count() == 0 {
                self.delete(&cell, &mut state)?;
            } else {
                let first = state.inode.size().div_ceil(self.block_bytes());
                let first = FileBlock(u32::try_from(first).unwrap_or(u32::MAX));
                let rest = op::Unfinished { ino, first, past: FileBlock(u32::MAX), hold: None };
                self.finish_removal(&cell, &mut state, &rest)?;
            }
        }
        Ok(())
    }

    /// Writes everything back, deletes what only held inodes kept, empties the engine's log and
    /// marks the volume clean. Nothing may use the base afterwards.
    pub fn close(&self) -> Result<()> {
        self.flusher.stop();
        if let Some(thread) = self.flusher_thread.lock().take()
            && thread.thread().id() != std::thread::current().id()
        {
            let _ = thread.join();
        }
        if self.engine.health().is_ok() && !self.engine.is_read_only() {
            self.write_back_all(None)?;
            for ino in self.orphans.list() {
                self.cell(ino)?.holds.store(0, SeqCst);
                self.delete_if_unused(ino)?;
            }
            self.restore_journal()?;
            // So that the handle need not wait for them. Where they are damaged, nothing was taken or freed.
            let _ = self.allocator.read_groups();
            let mut handle = Handle::begin_for(&self.engine, 2, ReserveClass::Upkeep)?;
            self.orphans.end_use(&mut handle)?;
            self.allocator.write_counts(&mut handle)?;
        }
        let healthy = self.engine.health();
        self.engine.close()?;
        // Where nothing may be written any more, the volume counts as ours until the number is old.
        match self.mmp.lock().take() {
            Some(mmp) if healthy.is_ok() => mmp.release(),
            _ => Ok(()),
        }
    }

    /// Keeps the claim on a volume that several machines reach, until the base is closed.
    pub(crate) fn keep_claim(&self, mmp: Mmp) {
        mmp.guard(self.engine.clone());
        *self.mmp.lock() = Some(mmp);
    }

    pub fn engine(&self) -> &Arc<Engine> {
        &self.engine
    }

    /// The superblock as it was on opening.
    pub fn superblock(&self) -> &Superblock {
        &self.sb
    }

    /// Memory that old versions for open views take, roughly, in bytes.
    pub fn kept_bytes(&self) -> u64 {
        self.kept_bytes.load(SeqCst)
    }

    /// Blocks of file data written back so far: to new places, and over old contents (RFJ-6).
    pub fn written_blocks(&self) -> (u64, u64) {
        self.written.counts()
    }

    /// How long each `fsync` and `fdatasync` took so far.
    pub fn sync_times(&self) -> LatencySnapshot {
        self.sync_times.snapshot()
    }

    /// Blocks of file data that a read found in the cache, and that it had to read.
    pub fn cache_lookups(&self) -> (u64, u64) {
        self.cache.lookups()
    }

    /// Limit of cached file data in bytes.
    pub fn cache_limit_bytes(&self) -> u64 {
        self.cache.limit_bytes()
    }

    /// Bytes of file data in the cache.
    pub fn cached_bytes(&self) -> u64 {
        self.cache.bytes()
    }

    pub fn block_size(&self) -> u32 {
        self.sb.block_size()
    }

    fn block_bytes(&self) -> u64 {
        u64::from(self.sb.block_size())
    }

    /// See [`crate::Tree::size_max`] (`ext4_max_size`, `ext4_max_bitmap_size`).
    pub fn size_max(&self, flags: u32) -> u64 {
        if self.sb.rev_level() == 0 {
            // Without feature words nobody can be told of larger files.
            return i32::MAX as u64;
        }
        let mut blocks = u64::from(u32::MAX);
        if flags & flag::EXTENTS == 0 {
            blocks = blocks.min(extent::mapped_blocks_max(self.sb.block_size()));
        }
        if !self.sb.has_ro_compat(ro_compat::HUGE_FILE) {
            // `i_blocks` counts sectors in 32 bits, the arrays or nodes among them.
            let all = u64::from(u32::MAX) / (self.block_bytes() / 512);
            blocks = blocks.min(all - all / 256);
        }
        blocks * self.block_bytes()
    }

    /// See [`crate::Tree::has_extents`].
    pub fn has_extents(&self) -> bool {
        self.sb.has_incompat(incompat::EXTENTS)
    }

    /// See [`crate::Tree::has_projects`].
    pub fn has_projects(&self) -> bool {
        self.sb.has_ro_compat(ro_compat::PROJECT) && self.sb.inode_size() > 128
    }

    /// Links that an inode may have; see [`crate::Tree::link_max`].
    pub fn link_max(&self) -> u32 {
        tree::LINK_MAX
    }

    /// See [`crate::Tree::dir_nlink`].
    pub fn dir_nlink(&self) -> bool {
        self.sb.has_ro_compat(ro_compat::DIR_NLINK)
    }

    /// See [`crate::Tree::target_max`]: one block, and its terminating NUL.
    pub fn target_max(&self) -> usize {
        self.block_bytes() as usize - 1
    }

    /// The inode's cell, loaded. The inode may turn out not to be in use (`State::live`).
    fn cell(&self, ino: Ino) -> Result<Arc<Cell>> {
        let cell = self.cells.get(ino);
        if !cell.loaded.load(SeqCst) {
            self.load(&cell)?;
        }
        Ok(cell)
    }

    fn load(&self, cell: &Cell) -> Result<()> {
        let mut state = cell.state.write();
        if cell.loaded.load(SeqCst) {
            return Ok(());
        }
        // A caller's number that cannot be an inode's is the caller's mistake, not damage.
        if cell.ino.0 == 0 || cell.ino.0 > self.sb.inodes_count() {
            return Err(Error::Posix(Errno::ESTALE));
        }
        let inode = self.table.read(cell.ino)?;
        let in_use = inode.mode() != 0 && (inode.links_count() > 0 || self.orphans.contains(cell.ino));
        *state = if in_use {
            if FileKind::from_mode(inode.mode()).is_none() {
                return Err(Error::corrupt(Site::Inode(cell.ino), "unknown file type"));
            }
            let charged = self.quotas.charge_of(cell.ino, &inode);
            State { charged, ..State::loaded(inode, self.cells.dropped_commit()) }
        } else {
            State { inode, ..State::free(self.sb.inode_size()) }
        };
        cell.loaded.store(true, SeqCst);
        Ok(())
    }

    /// The cell of an inode that was just taken; what its place in the table holds does not count.
    fn cell_of_free(&self, ino: Ino) -> Arc<Cell> {
        let cell = self.cells.get(ino);
        cell.loaded.store(true, SeqCst);
        cell
    }

    fn extents(&self, ino: Ino, state: &State) -> Extents<'_> {
        let owner = Owner { ino, generation: state.inode.generation() };
        Extents::new(&self.engine, &self.sb, &self.allocator, owner)
    }

    fn xattrs(&self, ino: Ino) -> Xattrs<'_> {
        Xattrs::new(&self.engine, &self.sb, &self.allocator, &self.table, ino)
    }

    /// Credits for writing an inode, its quotas included.
    fn credits_inode(&self) -> u32 {
        InodeTable::CREDITS + 1 + self.quotas.credits()
    }

    /// Whether `i_block` maps blocks: not for device nodes, and not for short symbolic links.
    fn has_block_map(&self, state: &State) -> bool {
        if inline::is_inline(state) {
            return false;
        }
        match FileKind::from_mode(state.inode.mode()) {
            Some(FileKind::Regular | FileKind::Directory) => true,
            Some(FileKind::Symlink) => state.inode.flags() & flag::EXTENTS != 0 || state.inode.size() >= 60,
            _ => false,
        }
    }

    /// As [`Self::attr_of`], for somebody who may compare the times with later ones.
    fn show_attr(&self, cell: &Cell, state: &State) -> Attr {
        cell.unseen_times.store(false, SeqCst);
        self.attr_of(cell, state)
    }

    /// What `stat` tells; the caller holds the inode's lock.
    fn attr_of(&self, cell: &Cell, state: &State) -> Attr {
        let inode: &Inode = &state.inode;
        let kind = FileKind::from_mode(inode.mode()).expect("checked when the inode was loaded");
        let is_device = matches!(kind, FileKind::CharDevice | FileKind::BlockDevice);
        Attr {
            ino: cell.ino,
            kind,
            perm: inode.mode() & 0o7777,
            uid: inode.uid(),
            gid: inode.gid(),
            project: project_of(&self.sb, inode),
            nlink: u32::from(inode.links_count()),
            size: state.size,
            sectors: inode.sectors(&self.sb) + self.promised_sectors(cell),
            atime: inode.atime(),
            mtime: inode.mtime(),
            ctime: inode.ctime(),
            crtime: inode.crtime(),
            rdev: if is_device { device_number::decode(inode.block_area()) } else { 0 },
            flags: inode.flags(),
            generation: inode.generation(),
        }
    }
}
