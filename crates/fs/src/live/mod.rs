//! The live file system: the volume itself, which everybody shares.
//!
//! - `inode`: inodes in memory, each with its lock; their cache; access times
//! - `op`: an operation under its locks, in one commit; the volume as [`crate::InodeOps`]; directories over the
//!   extent tree; what handles need is read ahead, so that none waits for the device
//! - `data`: file data, cached; which of it goes through the journal; reserved, punched and zeroed ranges; truncation
//!   and deletion over several commits
//! - `data/writeback`: dirty data to the device, data first
//! - `mvcc`: the volume as of an instant, for transactions
//! - `commit`: what a transaction's commit does to the volume
//! - `space`: what transactions hold before that; what is tried before the volume counts as full; a longer journal
//!   for large commits
//! - `health`: corruption that is met, shutdown; `maintenance`: label, trimming
//! - `view`: the volume as a [`crate::View`]

mod commit;
mod data;
mod health;
mod inode;
mod maintenance;
mod mvcc;
mod op;
mod space;
mod view;

#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;

use parking_lot::RwLock;
use xact_consistency::{Engine, Faults, Handle, Room};
use xact_layout::feature::{incompat, ro_compat};
use xact_layout::inode::{Inode, flag};
use xact_layout::superblock::Superblock;
use xact_types::{Errno, Error, FileBlock, Ino, LatencySnapshot, Result, Site};

use crate::alloc::Allocator;
use crate::api::{Attr, FileKind};
use crate::extent::{self, Extents, Owner};
use crate::inode_table::InodeTable;
use crate::modes::{ModeChoice, Modes};
use crate::orphan::Orphans;
use crate::quota::{QuotaLimits, Quotas, project_of};
use crate::xattr::Xattrs;
use data::inline;
use data::page_cache::PageCache;
use data::writeback::Writeback;
use health::Health;
use inode::cache::InodeCache;
use inode::cached::{CachedInode, InodeState};
use inode::device_number;
use mvcc::Mvcc;
use op::inode_ops::LINK_MAX;
use op::run::Unfinished;
use space::journal_size::LongJournal;
use space::make_space::SpaceMaking;
use space::tx_space::TxSpaces;

pub use commit::install::{BlockChange, NewContents, StagedBlocks, Staging};
pub use commit::size::{CommitSize, DirGrowth};
pub use data::mode::{DataMode, InodeUpdate};
pub use health::{OnError, Shutdown};
pub use inode::access_time::{AccessOptions, AccessTimes};
pub use mvcc::read_view::ReadView;
pub use mvcc::stamps::{ChangedBy, Stamp};
pub use op::run::{Budget, Operation, Privileges};
pub use space::spill::{BlockContents, SpilledBlock};
pub use space::tx_space::{PinnedSpace, SpaceLimits, SpillPlace, TxSpace, TxSpaceUse};

/// How the live file system uses memory.
#[derive(Debug, Clone, Copy)]
pub struct LiveOptions {
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

impl Default for LiveOptions {
    fn default() -> LiveOptions {
        LiveOptions {
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
pub struct LiveFs {
    engine: Arc<dyn Engine>,
    sb: Superblock,
    allocator: Allocator,
    table: InodeTable,
    orphans: Orphans,
    quotas: Quotas,
    inodes: InodeCache,
    page_cache: PageCache,
    pub(crate) modes: Modes,
    pub(crate) mode_options: ModeChoice,
    writeback: Writeback,
    health: Health,
    mvcc: Mvcc,
    long_journal: LongJournal,
    options: LiveOptions,
    tx_spaces: TxSpaces,
    space_making: SpaceMaking,
}

impl LiveFs {
    /// Opens the file system on an engine that has been recovered; deletes what was left without a
    /// name.
    pub fn open(engine: Arc<dyn Engine>, sb: Superblock, options: LiveOptions) -> Result<Arc<LiveFs>> {
        let allocator = Allocator::open(engine.clone(), sb.clone())?;
        if engine.journal().is_some() {
            // What is there to be recovered takes longer, and the kernel tells such damage on mounting, too.
            allocator.read_groups()?;
        }
        allocator.set_discard(options.discard);
        let table = InodeTable::new(&allocator);
        let orphans = Orphans::open(&allocator, &table)?;
        let quotas = Quotas::open(&allocator, &table, options.quota_limits)?;
        let fs = Arc::new(LiveFs {
            inodes: InodeCache::new(options.inode_cache, sb.inode_size()),
            page_cache: PageCache::new(options.data_cache_bytes, u64::from(sb.block_size())),
            modes: options.modes,
            mode_options: options.mode_options,
            writeback: Writeback::new(engine.clone()),
            health: Health::new(engine.clone(), sb.clone(), options.on_error),
            engine,
            sb,
            allocator,
            table,
            orphans,
            quotas,
            mvcc: Mvcc::new(options.versions_bytes),
            long_journal: LongJournal::default(),
            options,
            tx_spaces: TxSpaces::default(),
            space_making: SpaceMaking::default(),
        });
        let root = fs.cached_inode(Ino::ROOT)?;
        if !root.state.read().inode.is_directory() {
            return Err(Error::corrupt(Site::Inode(Ino::ROOT), "the root is no directory"));
        }
        if !fs.engine.is_read_only() {
            let mut handle = Handle::begin_for(&fs.engine, 1, Room::Upkeep)?;
            fs.orphans.begin_use(&mut handle)?;
            drop(handle);
            fs.clean_up_orphans()?;
            fs.restore_journal()?;
        }
        if options.flusher && !fs.engine.is_read_only() {
            fs.writeback.flusher().start(&fs)?;
        }
        Ok(fs)
    }

    /// Finishes the deletions and truncations that a crash interrupted (`ext4_orphan_cleanup`).
    fn clean_up_orphans(&self) -> Result<()> {
        let orphans = self.orphans.list();
        if !orphans.is_empty() {
            self.allocator.read_groups()?;
        }
        for ino in orphans {
            let cached = self.cached_inode(ino)?;
            let mut state = RwLock::write_arc(&cached.state);
            if !state.live {
                // Its chain goes through the inode's own bytes, so it was in use as an orphan.
                state.live = true;
            }
            if state.inode.links_count() == 0 {
                self.delete(&cached, &mut state)?;
            } else {
                let first = state.inode.size().div_ceil(self.block_bytes());
                let first = FileBlock(u32::try_from(first).unwrap_or(u32::MAX));
                let rest = Unfinished { ino, first, past: FileBlock(u32::MAX), hold: None };
                self.finish_removal(&cached, &mut state, &rest)?;
            }
        }
        Ok(())
    }

    /// Writes everything back, deletes what only held inodes kept, empties the engine's log and
    /// marks the volume clean. Nothing may use the file system afterwards.
    pub fn close(&self) -> Result<()> {
        self.writeback.flusher().end();
        if self.engine.health().is_ok() && !self.engine.is_read_only() {
            self.write_back_all(None)?;
            for ino in self.orphans.list() {
                self.cached_inode(ino)?.holds.store(0, SeqCst);
                self.delete_if_unused(ino)?;
            }
            self.restore_journal()?;
            // So that the handle need not wait for them. Where they are damaged, nothing was taken or freed.
            let _ = self.allocator.read_groups();
            let mut handle = Handle::begin_for(&self.engine, 2, Room::Upkeep)?;
            self.orphans.end_use(&mut handle)?;
            self.allocator.write_counts(&mut handle)?;
        }
        let healthy = self.engine.health();
        self.engine.close()?;
        self.health.release_claim(healthy.is_ok())
    }

    pub fn engine(&self) -> &Arc<dyn Engine> {
        &self.engine
    }

    /// The superblock as it was on opening.
    pub fn superblock(&self) -> &Superblock {
        &self.sb
    }

    /// Memory that old versions for open views take, roughly, in bytes.
    pub fn kept_bytes(&self) -> u64 {
        self.mvcc.kept_bytes()
    }

    /// Blocks of file data written back so far: to new places, and over old contents (RFJ-6).
    pub fn written_blocks(&self) -> (u64, u64) {
        self.writeback.written_blocks()
    }

    /// How long each `fsync` and `fdatasync` took so far.
    pub fn sync_times(&self) -> LatencySnapshot {
        self.writeback.sync_times()
    }

    /// Blocks of file data that a read found in the cache, and that it had to read.
    pub fn cache_lookups(&self) -> (u64, u64) {
        self.page_cache.lookups()
    }

    /// Limit of cached file data in bytes.
    pub fn cache_limit_bytes(&self) -> u64 {
        self.page_cache.limit_bytes()
    }

    /// Bytes of file data in the cache.
    pub fn cached_bytes(&self) -> u64 {
        self.page_cache.bytes()
    }

    pub fn block_size(&self) -> u32 {
        self.sb.block_size()
    }

    fn block_bytes(&self) -> u64 {
        u64::from(self.sb.block_size())
    }

    /// See [`crate::InodeOps::size_max`] (`ext4_max_size`, `ext4_max_bitmap_size`).
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

    /// See [`crate::InodeOps::has_extents`].
    pub fn has_extents(&self) -> bool {
        self.sb.has_incompat(incompat::EXTENTS)
    }

    /// See [`crate::InodeOps::has_projects`].
    pub fn has_projects(&self) -> bool {
        self.sb.has_ro_compat(ro_compat::PROJECT) && self.sb.inode_size() > 128
    }

    /// Links that an inode may have; see [`crate::InodeOps::link_max`].
    pub fn link_max(&self) -> u32 {
        LINK_MAX
    }

    /// See [`crate::InodeOps::dir_nlink`].
    pub fn dir_nlink(&self) -> bool {
        self.sb.has_ro_compat(ro_compat::DIR_NLINK)
    }

    /// See [`crate::InodeOps::target_max`]: one block, and its terminating NUL.
    pub fn target_max(&self) -> usize {
        self.block_bytes() as usize - 1
    }

    /// The inode, loaded. It may turn out not to be in use ([`InodeState::live`]).
    fn cached_inode(&self, ino: Ino) -> Result<Arc<CachedInode>> {
        let cached = self.inodes.get(ino);
        if !cached.loaded.load(SeqCst) {
            self.load(&cached)?;
        }
        Ok(cached)
    }

    fn load(&self, cached: &CachedInode) -> Result<()> {
        let mut state = cached.state.write();
        if cached.loaded.load(SeqCst) {
            return Ok(());
        }
        // A caller's number that cannot be an inode's is the caller's mistake, not damage.
        if cached.ino.0 == 0 || cached.ino.0 > self.sb.inodes_count() {
            return Err(Error::Posix(Errno::ESTALE));
        }
        let inode = self.table.read(cached.ino)?;
        let in_use = inode.mode() != 0 && (inode.links_count() > 0 || self.orphans.contains(cached.ino));
        *state = if in_use {
            if FileKind::from_mode(inode.mode()).is_none() {
                return Err(Error::corrupt(Site::Inode(cached.ino), "unknown file type"));
            }
            let charged = self.quotas.charge_of(cached.ino, &inode);
            InodeState { charged, ..InodeState::loaded(inode, self.inodes.dropped_commit()) }
        } else {
            InodeState { inode, ..InodeState::free(self.sb.inode_size()) }
        };
        cached.loaded.store(true, SeqCst);
        Ok(())
    }

    /// The inode of a number that was just taken; what its place in the table holds does not count.
    fn cached_free_inode(&self, ino: Ino) -> Arc<CachedInode> {
        let cached = self.inodes.get(ino);
        cached.loaded.store(true, SeqCst);
        cached
    }

    fn extents(&self, ino: Ino, state: &InodeState) -> Extents<'_> {
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
    fn has_block_map(&self, state: &InodeState) -> bool {
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
    fn show_attr(&self, cached: &CachedInode, state: &InodeState) -> Attr {
        cached.unseen_times.store(false, SeqCst);
        self.attr_of(cached, state)
    }

    /// What `stat` tells; the caller holds the inode's lock.
    fn attr_of(&self, cached: &CachedInode, state: &InodeState) -> Attr {
        let inode: &Inode = &state.inode;
        let kind = FileKind::from_mode(inode.mode()).expect("checked when the inode was loaded");
        let is_device = matches!(kind, FileKind::CharDevice | FileKind::BlockDevice);
        Attr {
            ino: cached.ino,
            kind,
            perm: inode.mode() & 0o7777,
            uid: inode.uid(),
            gid: inode.gid(),
            project: project_of(&self.sb, inode),
            nlink: u32::from(inode.links_count()),
            size: state.size,
            sectors: inode.sectors(&self.sb) + cached.pages.lock().promised * (self.block_bytes() / 512),
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
