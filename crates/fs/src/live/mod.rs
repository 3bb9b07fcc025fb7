//! The live file system: the volume itself, which all callers share.
//!
//! - `inode`: inodes in memory, each with its lock; their cache; access times
//! - `op`: one operation under its locks, in one commit; it implements [`crate::InodeOps`];
//!   directories over the extent tree; reading ahead, so that no handle waits for the device
//! - `data`: cached file data; the choice between journal and direct writes; reserved, punched and
//!   zeroed ranges; truncation and deletion over several commits
//! - `data/writeback`: writes dirty data to the device, data before metadata
//! - `mvcc`: the volume as of an instant, for transactions
//! - `commit`: the commit of a user transaction
//! - `space`: space held by open transactions; steps before `NoSpace`; a longer journal for large
//!   commits
//! - `health`: the reaction to corruption; `maintenance`: label, trimming, shutdown
//! - `view`: the volume as a [`crate::View`]

mod commit;
mod data;
mod health;
mod inode;
mod limits;
mod maintenance;
mod mvcc;
mod op;
mod options;
mod space;
mod stats;
mod stored_modes;
mod view;

#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};

use xact_consistency::{Engine, Handle, ReserveClass};
use xact_layout::superblock::Superblock;
use xact_types::{Error, Ino, Result, Site, Timestamp};

use crate::alloc::Allocator;
use crate::fixed_blocks::open_allocator;
use crate::inode_table::InodeTable;
use crate::journal_modes::{ModeChoice, Modes};
use crate::orphan::Orphans;
use crate::quota::Quotas;
use data::page_cache::PageCache;
use data::writeback::state::Writeback;
use health::Health;
use inode::cache::InodeCache;
use mvcc::Mvcc;
use space::Space;

pub use commit::staging::StagedBlocks;
pub use data::writeback::file_writes::WrittenBlocks;
pub use health::OnError;
pub use inode::access_time::{AccessOptions, AccessTimes};
pub use maintenance::Shutdown;
pub use mvcc::read_view::ReadView;
pub use op::{Budget, Operation, Privileges};
pub use options::{LiveOptions, OwnerOptions, Synced};
pub use space::tx_space::{PinnedSpace, TxHolding, TxSpace, TxSpaceUse};

/// An open volume, as callers outside transactions see it.
pub struct LiveFs {
    engine: Arc<Engine>,
    sb: Superblock,
    allocator: Allocator,
    table: InodeTable,
    orphans: Orphans,
    quotas: Quotas,
    inodes: InodeCache,
    page_cache: PageCache,
    modes: Modes,
    mode_options: ModeChoice,
    writeback: Writeback,
    health: Health,
    mvcc: Mvcc,
    options: LiveOptions,
    space: Space,
    /// The generation of the next new inode; see [`Self::next_generation`].
    generation: AtomicU32,
}

/// The start of the sequence of generations: a point that the time spreads over all of them.
fn first_generation() -> u32 {
    let now = Timestamp::now();
    (now.secs as u32).wrapping_mul(0x9e37_79b1) ^ now.nanos.wrapping_mul(0x85eb_ca6b)
}

impl LiveFs {
    /// Opens the file system on a recovered engine, and deletes inodes that a crash left without a
    /// name.
    pub fn open(engine: Arc<Engine>, sb: Superblock, options: LiveOptions) -> Result<Arc<LiveFs>> {
        let allocator = open_allocator(engine.clone(), sb.clone())?;
        if engine.journal().is_some() {
            // Recovery takes longer than this, and the kernel, too, reports such damage at the
            // mount.
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
            writeback: Writeback::new(engine.clone(), options.steps.next_part),
            health: Health::new(engine.clone(), sb.clone(), options.on_error),
            engine,
            sb,
            allocator,
            table,
            orphans,
            quotas,
            mvcc: Mvcc::new(options.versions_bytes),
            options,
            space: Space::default(),
            generation: AtomicU32::new(first_generation()),
        });
        let root = fs.cached_inode(Ino::ROOT)?;
        if !root.state.read().inode.is_directory() {
            return Err(Error::corrupt(Site::Inode(Ino::ROOT), "the root is not a directory"));
        }
        if !fs.engine.is_read_only() {
            let mut handle = Handle::begin_for(&fs.engine, 1, ReserveClass::Upkeep)?;
            fs.orphans.begin_use(&mut handle)?;
            drop(handle);
            fs.clean_up_orphans()?;
            fs.restore_journal()?;
        }
        if options.flusher && !fs.engine.is_read_only() {
            fs.start_flusher()?;
        }
        Ok(fs)
    }

    /// Writes everything back, deletes inodes that only holds kept, empties the engine's log and
    /// marks the volume clean. The file system must not be used afterwards. An error: something
    /// was lost, see [`Self::unsaved`].
    pub fn close(&self) -> Result<()> {
        self.writeback.flusher().stop();
        let mut unwritten = Ok(());
        if self.engine.health().is_ok() && !self.engine.is_read_only() {
            // The data of one inode that cannot be written does not keep that of all others from
            // being saved. A failure of the device poisons, which ends this.
            unwritten = self.write_back_all(None);
            self.engine.health()?;
            for ino in self.orphans.list() {
                self.cached_inode(ino)?.holds.store(0, SeqCst);
                self.delete_if_unused(ino)?;
            }
            self.restore_journal()?;
            // Read now, so that the handle does not wait for them. If they are damaged, no block
            // was taken or freed, so the error does not matter.
            let _ = self.allocator.read_groups();
            let mut handle = Handle::begin_for(&self.engine, 2, ReserveClass::Upkeep)?;
            self.orphans.end_use(&mut handle)?;
            self.allocator.write_counts(&mut handle)?;
        }
        let healthy = self.engine.health();
        self.engine.close()?;
        self.health.release_claim(healthy.is_ok())?;
        unwritten
    }

    /// Files and folders whose last changes are not durable: they are in memory only, or in a
    /// commit that is not durable. After a failed [`Self::close`] these changes are lost.
    /// Approximate while others work.
    pub fn unsaved(&self) -> Vec<Ino> {
        let durable = self.engine.durable();
        self.inodes.all(|cached| {
            let is_dirty = cached.pages.lock().dirty > 0;
            let Some(state) = cached.state.try_read() else { return is_dirty };
            state.live && (is_dirty || state.dirty || state.last_commit > durable)
        })
    }

    pub fn engine(&self) -> &Arc<Engine> {
        &self.engine
    }

    /// The superblock as it was on opening.
    pub fn superblock(&self) -> &Superblock {
        &self.sb
    }

    fn block_bytes(&self) -> u64 {
        u64::from(self.sb.block_size())
    }
}
