//! Allocation of blocks and inodes.
//!
//! Two steps, so that data can be written before anything on disk refers to it, and so that a
//! transaction can keep what it was given for long without touching the disk:
//! 1. `take` and `take_inode` mark bits in a map in memory: nobody else gets them;
//! 2. `link` and `link_inode` set the bits on disk, within a handle. What was taken and never
//!    linked goes back by `give_back`; after a crash it was simply never used.
//!
//! Freeing is the mirror: `free` clears the bits on disk within a handle at once, but in memory
//! they stay set until that handle's commit is durable (else a crash could leave two owners), and
//! until the [`Hold`] under which they were freed is dropped.
//!
//! Invariants, for each group under its lock:
//! 1. a bit that is set on disk, in its newest version, is set in memory;
//! 2. a bit set in memory but not on disk is taken, or freed and not yet available: the group's
//!    `pending` counts these, and a map with none of them may be dropped and loaded again;
//! 3. all bits of the system zone are set in memory.
//!
//! On disk there may be two versions, where a commit is closed while operations in it go on
//! (`Engine::update_shared`). What a handle does it does to both: a bit that it sets is clear in
//! both, since what the later commit has freed is set in memory, and one that it clears is its own,
//! and set in both. Counts and checksums are each version's own.
//!
//! A group whose bitmap is damaged (checksum, count, or fixed metadata marked free) is not used;
//! the first such damage is what [`Allocator::damage`] names.
//!
//! Lock order: handle → one group's lock → the engine's short lock of a block. No two groups are
//! locked at once (eviction of a cold map only tries a second lock).

mod bitmap;
mod blocks;
mod group;
mod groups;
mod hold;
mod inodes;
mod search;
mod space;
mod trim;
mod zone;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize};

use parking_lot::Mutex;
use xact_consistency::{Engine, Handle, Version};
use xact_layout::feature::incompat;
use xact_layout::group::GroupDesc;
use xact_layout::superblock::Superblock;
pub use xact_types::Run;
use xact_types::{BlockNr, Error, GroupNr, Ino, Result};

use crate::api::VolumeSpace;
use crate::metadata_blocks::MetadataBlocks;
pub(crate) use bitmap::set_bits;
use groups::Groups;
pub use hold::Hold;
use space::Counters;
pub use space::{Purpose, Reservation};

/// Allocates the blocks and inodes of one volume. Clones are the same allocator.
#[derive(Clone)]
pub struct Allocator {
    shared: Arc<Shared>,
}

/// What all clones, reservations and pending frees share.
pub(crate) struct Shared {
    engine: Arc<Engine>,
    sb: Superblock,
    groups: Groups,
    counters: Arc<Counters>,
    /// Groups that have a map in memory.
    loaded: AtomicUsize,
    /// Where the search for a map to drop goes on.
    evict_hand: AtomicU32,
    /// Where the search for a new top-level directory's group goes on.
    spread_hand: AtomicU32,
    damage: Mutex<Option<Error>>,
    /// Freed blocks are discarded before they are handed out again.
    discard: AtomicBool,
    #[cfg(feature = "faults")]
    discard_at_once: AtomicBool,
}

impl Allocator {
    /// An allocator that has read nothing, and takes the journal's blocks for those of a file: see
    /// [`crate::fixed_blocks::open_allocator`].
    pub(crate) fn new(engine: Arc<Engine>, sb: Superblock) -> Allocator {
        let blocks = sb.blocks_count();
        // `ext4_calculate_resv_clusters`: writing into reserved blocks needs nodes only where there
        // are extents.
        let emergency = if sb.has_incompat(incompat::EXTENTS) { (blocks / 50).min(4096) } else { 0 };
        let reserved = sb.reserved_blocks_count().min(blocks);
        let shared = Shared {
            engine,
            groups: Groups::new(&sb, Vec::new()),
            sb,
            counters: Arc::new(Counters::new(reserved, emergency)),
            loaded: AtomicUsize::new(0),
            evict_hand: AtomicU32::new(0),
            spread_hand: AtomicU32::new(0),
            damage: Mutex::new(None),
            discard: AtomicBool::new(false),
            #[cfg(feature = "faults")]
            discard_at_once: AtomicBool::new(false),
        };
        Allocator { shared: Arc::new(shared) }
    }

    /// Sets, for a new allocator that nothing shares yet, where the journal's blocks are. What it
    /// knows of groups it learns again: what was read to find the journal does not know where it
    /// is.
    pub(crate) fn set_journal(&mut self, runs: Vec<Run>) {
        let mut fixed = runs;
        let shared = Arc::get_mut(&mut self.shared).expect("nothing shares a new allocator");
        if shared.sb.has_incompat(incompat::MMP) {
            fixed.push(Run { start: BlockNr(shared.sb.mmp_block()), len: 1 });
        }
        shared.groups = Groups::new(&shared.sb, fixed);
    }

    /// Reads all group descriptors, and no bitmap. Whoever takes, frees or counts does so by
    /// itself; to be called beforehand where nobody shall wait for it then, and where damage is to
    /// be told at once.
    ///
    /// Errors: `Corrupt` for a descriptor whose checksum does not match, or whose bitmaps or
    /// inode table lie outside the volume, over one another or over the journal.
    pub fn read_groups(&self) -> Result<()> {
        self.shared.read_all().map(|_| ())
    }

    /// The superblock as it was on opening: its geometry and features.
    pub fn superblock(&self) -> &Superblock {
        &self.shared.sb
    }

    pub fn engine(&self) -> &Arc<Engine> {
        &self.shared.engine
    }

    /// Whether [`Self::reserve`] would succeed for this many now.
    pub fn can_reserve(&self, blocks: u64, purpose: Purpose) -> bool {
        self.shared.read_all().is_ok() && self.shared.counters.has(blocks, purpose)
    }

    /// How many blocks could be reserved now.
    pub fn reservable(&self, purpose: Purpose) -> u64 {
        self.shared.counters.reservable(purpose)
    }

    /// Inode numbers that can be taken.
    pub fn free_inodes(&self) -> u64 {
        self.shared.counters.free_inodes()
    }

    /// Blocks that were freed and cannot be taken yet.
    pub fn pending_blocks(&self) -> u64 {
        self.shared.counters.pending()
    }

    /// Reserves `blocks` blocks, for delayed allocation. `NoSpace` where they are not there; then
    /// [`Allocator::reclaimable`] tells whether a commit would help.
    pub fn reserve(&self, blocks: u64, purpose: Purpose) -> Result<Reservation> {
        self.shared.read_all()?;
        let left = self.shared.counters.reserve(blocks, blocks, purpose)?;
        Ok(Reservation::new(self.shared.counters.clone(), left))
    }

    /// Marks between 1 and `max` contiguous blocks, near `goal`, as taken (step 1). With a
    /// reservation that has blocks left, takes at most those and draws on it.
    ///
    /// Errors: `NoSpace`; the damage of a bitmap where that is what hides the space.
    pub fn take(
        &self,
        goal: BlockNr,
        max: u32,
        purpose: Purpose,
        reservation: Option<&mut Reservation>,
    ) -> Result<Run> {
        let shared = &self.shared;
        shared.read_all()?;
        match reservation.filter(|r| r.left() > 0) {
            Some(reservation) => {
                let want = u64::from(max.max(1)).min(reservation.left()) as u32;
                let run = shared.take_near(goal, want)?;
                reservation.draw(u64::from(run.len));
                Ok(run)
            }
            None => {
                let reserved = shared.counters.reserve(1, u64::from(max.max(1)), purpose)?;
                let taken = shared.take_near(goal, reserved as u32);
                let used = taken.as_ref().map_or(0, |run| u64::from(run.len));
                shared.counters.add(reserved - used);
                taken
            }
        }
    }

    /// Gives back blocks that were taken and never linked.
    pub fn give_back(&self, run: Run) {
        self.shared.give_back(run);
    }

    /// Reads into memory what linking or freeing a run will need, so that a handle does not wait
    /// for it. Who needs it is told of errors.
    pub fn read_ahead(&self, run: Run) {
        if self.read_groups().is_ok() && self.shared.sb.contains(run.start, u64::from(run.len)) {
            self.shared.read_ahead_of(run);
        }
    }

    /// The same for linking or freeing an inode, and for giving it its first block.
    pub fn read_ahead_inode(&self, ino: Ino) {
        if self.read_groups().is_ok() {
            self.shared.read_ahead_of_inode(ino);
        }
    }

    /// Sets the bits of taken blocks on disk (step 2). Needs [`Allocator::credits_for`].
    pub fn link(&self, h: &mut Handle, run: Run) -> Result<()> {
        self.shared.link(h, run)
    }

    /// Frees linked blocks: on disk now; to be taken again once the handle's commit is durable
    /// and `hold` is dropped. Needs [`Allocator::credits_for`].
    ///
    /// Errors, before anything was changed: `Corrupt` for blocks outside the volume, for fixed
    /// metadata, and for what is free already.
    pub fn free(&self, h: &mut Handle, run: Run, hold: Option<Hold>) -> Result<()> {
        self.shared.read_all()?;
        self.shared.free(h, run, hold)
    }

    /// Whether a run may belong to a file: within the volume and outside its fixed metadata.
    /// To be asked of every extent that is read from disk.
    ///
    /// Errors: a descriptor cannot be read.
    pub fn is_usable(&self, run: Run) -> Result<bool> {
        Ok(self.shared.sb.contains(run.start, u64::from(run.len)) && !self.shared.is_fixed(run)?)
    }

    /// Credits that linking or freeing a run takes: bitmap and descriptor of each group.
    pub fn credits_for(&self, run_len: u32) -> u32 {
        let more = run_len.saturating_sub(1).div_ceil(self.shared.sb.blocks_per_group());
        2 * (1 + more)
    }

    /// Credits of `link_inode`: inode bitmap, descriptor, a block bitmap that was never written,
    /// and the inode's block of the table (in which it is written next).
    pub const LINK_INODE_CREDITS: u32 = 4;
    /// Credits of `free_inode`: inode bitmap and descriptor.
    pub const FREE_INODE_CREDITS: u32 = 2;

    /// Reserves an inode number in memory: a file near its parent, directories spread over the
    /// volume. `NoSpace` when there is none.
    pub fn take_inode(&self, parent: Ino, is_dir: bool) -> Result<Ino> {
        self.shared.read_all()?;
        self.shared.take_inode(parent, is_dir)
    }

    /// Gives back a number that was taken and never linked.
    pub fn give_back_inode(&self, ino: Ino) {
        self.shared.give_back_inode(ino);
    }

    /// Marks a taken inode as used on disk, and prepares its block of the inode table.
    pub fn link_inode(&self, h: &mut Handle, ino: Ino, is_dir: bool) -> Result<()> {
        self.shared.link_inode(h, ino, is_dir)
    }

    /// Marks an inode as free on disk; its number may be taken again once the commit is durable.
    ///
    /// Errors, before anything was changed: `Corrupt` for a reserved or already free inode.
    pub fn free_inode(&self, h: &mut Handle, ino: Ino, is_dir: bool) -> Result<()> {
        self.shared.read_all()?;
        self.shared.free_inode(h, ino, is_dir)
    }

    /// Where the first data of an inode should go: its own group.
    pub fn goal_for(&self, ino: Ino) -> BlockNr {
        let group = self.shared.sb.inode_place(ino).map_or(GroupNr(0), |place| place.0);
        self.shared.sb.group_start(group)
    }

    /// Blocks and inodes that were freed and become available by a commit (held blocks only by the
    /// end of the views that hold them).
    pub fn reclaimable(&self) -> u64 {
        self.shared.counters.pending() + self.shared.counters.pending_inodes()
    }

    /// Makes the running commit durable, so that what was freed becomes available. Waits for open
    /// handles: the caller must have none. Returns whether anything was pending.
    pub fn reclaim(&self) -> Result<bool> {
        let pending = self.reclaimable() > 0;
        if pending {
            self.shared.engine.commit(self.shared.engine.running())?;
        }
        Ok(pending)
    }

    /// What `statfs` tells.
    pub fn space(&self) -> Result<VolumeSpace> {
        let shared = &self.shared;
        let zone = &shared.read_all()?.zone;
        let sb = &shared.sb;
        let overhead = match u64::from(sb.overhead_clusters()) * u64::from(sb.cluster_blocks()) {
            0 => zone.blocks() + u64::from(sb.first_data_block()),
            known => known,
        };
        Ok(VolumeSpace {
            block_size: sb.block_size(),
            blocks: sb.blocks_count().saturating_sub(overhead),
            free_blocks: shared.counters.free(),
            available_blocks: shared.counters.available(),
            inodes: u64::from(sb.inodes_count()),
            free_inodes: shared.counters.free_inodes(),
        })
    }

    /// Writes the free counts into the superblock (one credit), where it has others. ext4 lets them
    /// lag behind the descriptors while mounted, and a crash leaves them so; an unmount brings them
    /// up to date.
    pub fn write_counts(&self, h: &mut Handle) -> Result<()> {
        if self.read_groups().is_err() {
            // Damaged; so nothing was taken or freed.
            return Ok(());
        }
        let blocks = self.shared.counters.disk_free_blocks();
        let inodes = self.shared.counters.disk_free_inodes() as u32;
        let now = crate::superblock::read(&self.shared.engine, &self.shared.sb)?;
        if now.free_blocks_count() == blocks && now.free_inodes_count() == inodes {
            return Ok(());
        }
        crate::superblock::update(h, &self.shared.sb, |sb| {
            sb.set_free_blocks_count(blocks);
            sb.set_free_inodes_count(inodes);
        })
    }

    /// The first damage met in a bitmap; its group is no longer used.
    pub fn damage(&self) -> Option<Error> {
        self.shared.damage.lock().clone()
    }

    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }
}

impl Shared {
    pub(crate) fn engine(&self) -> &Arc<Engine> {
        &self.engine
    }

    pub(crate) fn superblock(&self) -> &Superblock {
        &self.sb
    }

    /// Changes a descriptor in each of its versions, and seals it.
    fn change_desc(
        &self,
        h: &mut Handle,
        group: GroupNr,
        mut change: impl FnMut(Version, &mut GroupDesc),
    ) -> Result<()> {
        let (block, at) = self.sb.desc_place(group);
        let size = usize::from(self.sb.desc_size());
        h.update_shared(block, |version, bytes| {
            let mut desc = GroupDesc::new(&bytes[at..at + size]);
            change(version, &mut desc);
            desc.seal(&self.sb, group);
            bytes[at..at + size].copy_from_slice(desc.as_bytes());
        })?;
        Ok(())
    }

    /// The newest descriptor of a group.
    fn desc(&self, group: GroupNr) -> Result<GroupDesc> {
        let (block, at) = self.sb.desc_place(group);
        let bytes = self.engine.read(block)?;
        Ok(GroupDesc::new(&bytes[at..at + usize::from(self.sb.desc_size())]))
    }

    /// The descriptor as the handle's commit has it.
    fn own_desc(&self, h: &Handle, group: GroupNr) -> Result<GroupDesc> {
        let (block, at) = self.sb.desc_place(group);
        let bytes = h.read_own(block)?;
        Ok(GroupDesc::new(&bytes[at..at + usize::from(self.sb.desc_size())]))
    }
}

/// Single metadata blocks for extent trees and attributes, from the emergency pool if need be.
impl MetadataBlocks for Allocator {
    fn take(&self, goal: BlockNr) -> Result<BlockNr> {
        Ok(Allocator::take(self, goal, 1, Purpose::Metadata, None)?.start)
    }

    fn give_back(&self, block: BlockNr) {
        Allocator::give_back(self, Run { start: block, len: 1 });
    }

    fn link(&self, handle: &mut Handle, block: BlockNr) -> Result<()> {
        Allocator::link(self, handle, Run { start: block, len: 1 })
    }

    fn is_usable(&self, run: Run) -> Result<bool> {
        Allocator::is_usable(self, run)
    }

    fn free(&self, handle: &mut Handle, block: BlockNr) -> Result<()> {
        Allocator::free(self, handle, Run { start: block, len: 1 }, None)
    }
}
