//! Allocation of blocks and inodes.
//!
//! Allocation has two steps. So data can be written before any metadata on disk refers to it, and a
//! transaction can hold space for a long time without changing the disk:
//! 1. `take` and `take_inode` mark bits in a map in memory: no other caller gets them.
//! 2. `link` and `link_inode` set the bits on disk, within a handle. Space that was taken but not
//!    linked goes back by `give_back`; after a crash it is free, because the disk never changed.
//!
//! Freeing is the reverse: `free` clears the bits on disk within a handle at once. In memory they
//! stay set until that handle's commit is durable (otherwise a crash could leave two owners), and
//! until the [`Hold`] under which they were freed is dropped.
//!
//! Invariants, for each group under its lock:
//! 1. A bit that is set on disk, in its newest version, is set in memory.
//! 2. A bit set in memory but not on disk is taken, or freed and not yet available. The group's
//!    `pending` counts these bits; a map without them may be dropped and loaded again.
//! 3. All bits of the system zone are set in memory.
//!
//! A block may have two versions, while a commit is closed but operations in it still run
//! (`Engine::update_shared`). A handle makes its change in both. A bit that it sets is clear in
//! both versions, because bits freed by the later commit are still set in memory. A bit that it
//! clears belongs to its own file, and is set in both. Each version has its own counts and
//! checksums.
//!
//! A group with a corrupt bitmap (checksum, count, or fixed metadata marked free) is not used;
//! [`Allocator::damage`] returns the first such corruption, and [`Allocator::take_damage`] the new
//! ones.
//!
//! Lock order: handle → one group's lock → the engine's short lock of a block. No two groups are
//! locked at once (eviction of an unused map only tries a second lock).

mod ahead;
mod bitmap;
mod blocks;
mod damage;
mod group;
mod groups;
mod hold;
mod host;
mod inodes;
mod search;
mod space;
mod trim;
mod unused_again;
mod zone;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize};

use xact_consistency::{Engine, Handle, Version};
use xact_layout::feature::incompat;
use xact_layout::group::GroupDesc;
use xact_layout::superblock::Superblock;
pub use xact_types::Run;
use xact_types::{BlockNr, Corruption, Error, GroupNr, Ino, Result, Site};

use crate::api::VolumeSpace;
use crate::metadata_blocks::MetadataBlocks;
pub(crate) use bitmap::set_bits;
use damage::Damage;
use groups::Groups;
pub use hold::Hold;
use space::Counters;
pub use space::{Purpose, Reservation};

/// Allocates the blocks and inodes of one volume. Clones are the same allocator.
#[derive(Clone)]
pub struct Allocator {
    shared: Arc<AllocatorCore>,
}

/// The state that all clones, reservations and pending frees share.
pub(crate) struct AllocatorCore {
    engine: Arc<Engine>,
    sb: Superblock,
    groups: Groups,
    counters: Arc<Counters>,
    /// Groups that have a map in memory.
    loaded: AtomicUsize,
    /// Group at which the search for a map to drop continues.
    evict_hand: AtomicU32,
    /// Group at which the search for a new top-level directory's group continues.
    spread_hand: AtomicU32,
    /// Block at which space on the host of a sparse image is taken next (`host`).
    host_hand: AtomicU64,
    damage: Damage,
    /// Freed blocks are discarded before they are handed out again.
    discard: AtomicBool,
    #[cfg(feature = "faults")]
    discard_at_once: AtomicBool,
}

impl Allocator {
    /// An allocator that has read nothing. It treats the journal's blocks as those of a file: see
    /// [`crate::fixed_blocks::open_allocator`].
    pub(crate) fn new(engine: Arc<Engine>, sb: Superblock) -> Allocator {
        let blocks = sb.blocks_count();
        // `ext4_calculate_resv_clusters`: writing into reserved blocks needs tree nodes only with
        // extents.
        let emergency = if sb.has_incompat(incompat::EXTENTS) { (blocks / 50).min(4096) } else { 0 };
        let reserved = sb.reserved_blocks_count().min(blocks);
        let shared = AllocatorCore {
            engine,
            groups: Groups::new(&sb, Vec::new()),
            sb,
            counters: Arc::new(Counters::new(reserved, emergency)),
            loaded: AtomicUsize::new(0),
            evict_hand: AtomicU32::new(0),
            spread_hand: AtomicU32::new(0),
            host_hand: AtomicU64::new(0),
            damage: Damage::default(),
            discard: AtomicBool::new(false),
            #[cfg(feature = "faults")]
            discard_at_once: AtomicBool::new(false),
        };
        Allocator { shared: Arc::new(shared) }
    }

    /// Sets the journal's blocks, for a new allocator without clones. It forgets the groups that
    /// were read to find the journal, because these were read without knowledge of its blocks.
    pub(crate) fn set_journal(&mut self, runs: Vec<Run>) {
        let mut fixed = runs;
        let shared = Arc::get_mut(&mut self.shared).expect("nothing shares a new allocator");
        if shared.sb.has_incompat(incompat::MMP) {
            fixed.push(Run { start: BlockNr(shared.sb.mmp_block()), len: 1 });
        }
        shared.groups = Groups::new(&shared.sb, fixed);
    }

    /// Reads all group descriptors, but no bitmap. Calls that take, free or count do this
    /// themselves; a separate call avoids a wait then, or reports corruption early.
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

    /// Whether [`Self::reserve`] would succeed now for this number of blocks.
    pub fn can_reserve(&self, blocks: u64, purpose: Purpose) -> bool {
        self.shared.read_all().is_ok() && self.shared.counters.has(blocks, purpose)
    }

    /// Number of blocks that could be reserved now.
    pub fn reservable(&self, purpose: Purpose) -> u64 {
        self.shared.counters.reservable(purpose)
    }

    /// Inode numbers that can be taken.
    pub fn free_inodes(&self) -> u64 {
        self.shared.counters.free_inodes()
    }

    /// Number of freed blocks that cannot be taken yet.
    pub fn pending_blocks(&self) -> u64 {
        self.shared.counters.pending()
    }

    /// Reserves `blocks` blocks, for delayed allocation. After `NoSpace` or `HostFull`,
    /// [`Allocator::reclaimable`] shows whether a commit would help.
    pub fn reserve(&self, blocks: u64, purpose: Purpose) -> Result<Reservation> {
        self.shared.read_all()?;
        let left = self.shared.reserve(blocks, blocks, purpose)?;
        Ok(Reservation::new(self.shared.counters.clone(), left))
    }

    /// Marks between 1 and `max` contiguous blocks, near `goal`, as taken (step 1). With a
    /// reservation that has blocks left, takes at most those and draws on it.
    ///
    /// Errors: `NoSpace`, `HostFull`; the corruption of a bitmap, if that makes the space unusable.
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
                reservation.consume(u64::from(run.len));
                Ok(run)
            }
            None => {
                let reserved = shared.reserve(1, u64::from(max.max(1)), purpose)?;
                let taken = shared.take_near(goal, reserved as u32);
                let used = taken.as_ref().map_or(0, |run| u64::from(run.len));
                shared.counters.add(reserved - used);
                taken
            }
        }
    }

    /// Gives back blocks that were taken and not linked.
    pub fn give_back(&self, run: Run) {
        self.shared.give_back(run);
    }

    /// Reads the blocks for linking or freeing a run into memory, so that a handle does not wait
    /// for them. The link or free itself returns errors.
    pub fn read_ahead(&self, run: Run) {
        if self.read_groups().is_ok() && self.shared.sb.contains(run.start, u64::from(run.len)) {
            self.shared.read_ahead_of(run);
        }
    }

    /// Reads the blocks for linking or freeing an inode, and for giving it its first block.
    pub fn read_ahead_inode(&self, ino: Ino) {
        if self.read_groups().is_ok() {
            self.shared.read_ahead_of_inode(ino);
        }
    }

    /// Sets the bits of taken blocks on disk (step 2). Needs [`Allocator::credits_for`].
    pub fn link(&self, h: &mut Handle, run: Run) -> Result<()> {
        self.shared.link(h, run)
    }

    /// Frees linked blocks on disk. They can be taken again once the handle's commit is durable and
    /// `hold` is dropped. Needs [`Allocator::credits_for`].
    ///
    /// Errors, before anything was changed: `Corrupt` for blocks outside the volume, for fixed
    /// metadata, and for free blocks.
    pub fn free(&self, h: &mut Handle, run: Run, hold: Option<Hold>) -> Result<()> {
        self.shared.read_all()?;
        self.shared.free(h, run, hold)
    }

    /// Whether a run may belong to a file: it lies within the volume and outside its fixed
    /// metadata. Every extent that is read from disk is checked with this.
    ///
    /// Errors: a descriptor cannot be read.
    pub fn is_usable(&self, run: Run) -> Result<bool> {
        Ok(self.shared.sb.contains(run.start, u64::from(run.len)) && !self.shared.is_fixed(run)?)
    }

    /// Credits for linking or freeing a run: bitmap and descriptor of each group.
    pub fn credits_for(&self, run_len: u32) -> u32 {
        let more = run_len.saturating_sub(1).div_ceil(self.shared.sb.blocks_per_group());
        2 * (1 + more)
    }

    /// Credits of `link_inode`: inode bitmap, descriptor, a block bitmap that was never written,
    /// and the inode's block of the table (in which the inode is stored next).
    pub const LINK_INODE_CREDITS: u32 = 4;
    /// Credits of `free_inode`: inode bitmap and descriptor.
    pub const FREE_INODE_CREDITS: u32 = 2;

    /// Takes an inode number in memory: files near their parent, directories spread over the
    /// volume. `NoSpace` if none is free; `HostFull`.
    pub fn take_inode(&self, parent: Ino, is_dir: bool) -> Result<Ino> {
        self.shared.read_all()?;
        self.shared.take_inode(parent, is_dir)
    }

    /// Gives back a number that was taken and not linked.
    pub fn give_back_inode(&self, ino: Ino) {
        self.shared.give_back_inode(ino);
    }

    /// Marks a taken inode as used on disk, and prepares its block of the inode table.
    pub fn link_inode(&self, h: &mut Handle, ino: Ino, is_dir: bool) -> Result<()> {
        self.shared.link_inode(h, ino, is_dir)
    }

    /// Marks an inode as free on disk; its number may be taken again once the commit is durable.
    ///
    /// Errors, before anything was changed: `Corrupt` for a reserved or free inode.
    pub fn free_inode(&self, h: &mut Handle, ino: Ino, is_dir: bool) -> Result<()> {
        self.shared.read_all()?;
        self.shared.free_inode(h, ino, is_dir)
    }

    /// Goal for an inode's first data: the start of its own group.
    pub fn goal_for(&self, ino: Ino) -> BlockNr {
        let group = self.shared.sb.inode_place(ino).map_or(GroupNr(0), |place| place.0);
        self.shared.sb.group_start(group)
    }

    /// Number of freed blocks and inodes that a commit makes available (held blocks only after the
    /// end of the views that hold them).
    pub fn reclaimable(&self) -> u64 {
        self.shared.counters.pending() + self.shared.counters.pending_inodes()
    }

    /// Makes the running commit durable, so that freed space becomes available. Waits for open
    /// handles: the caller must have none. Returns whether anything was pending.
    pub fn reclaim(&self) -> Result<bool> {
        let pending = self.reclaimable() > 0;
        if pending {
            self.shared.engine.commit(self.shared.engine.running())?;
        }
        Ok(pending)
    }

    /// The space figures of `statfs`.
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

    /// Writes the free counts into the superblock (one credit) if they differ. As in ext4, they may
    /// lag behind the descriptors while mounted and after a crash; an unmount updates them.
    pub fn write_counts(&self, h: &mut Handle) -> Result<()> {
        if self.read_groups().is_err() {
            // The groups are corrupt, so nothing was taken or freed.
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

    /// The first corruption found in a bitmap; its group is no longer used.
    pub fn damage(&self) -> Option<Error> {
        self.shared.damage.first()
    }

    /// The corruption found since the last call, for the record in the superblock.
    pub(crate) fn take_damage(&self) -> Vec<Corruption> {
        self.shared.damage.take_unrecorded()
    }

    /// A number that was just taken is in use, so its bitmap is corrupt. The number stays taken in
    /// memory: the next caller gets another one.
    pub(crate) fn report_used_inode(&self, ino: Ino) -> Error {
        let what = "the inode is in use, but the inode bitmap says that it is free";
        let corruption = Corruption { site: Site::Inode(ino), what };
        self.shared.damage.add(&corruption);
        Error::Corrupt(corruption)
    }

    pub(crate) fn shared(&self) -> &Arc<AllocatorCore> {
        &self.shared
    }
}

impl AllocatorCore {
    pub(crate) fn engine(&self) -> &Arc<Engine> {
        &self.engine
    }

    pub(crate) fn superblock(&self) -> &Superblock {
        &self.sb
    }

    /// Changes a descriptor in each of its versions, and updates its checksum.
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

    /// The descriptor's version in the handle's commit.
    fn own_desc(&self, h: &Handle, group: GroupNr) -> Result<GroupDesc> {
        let (block, at) = self.sb.desc_place(group);
        let bytes = h.read_own(block)?;
        Ok(GroupDesc::new(&bytes[at..at + usize::from(self.sb.desc_size())]))
    }
}

/// Single metadata blocks for extent trees and attributes, from the emergency pool if necessary.
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
