//! One block group in memory: counts that are read without a lock, and maps, which are loaded when
//! they are first needed.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};

use parking_lot::{Mutex, MutexGuard};
use xact_consistency::lock_within;
use xact_layout::group::{
    BLOCK_UNINIT, GroupDesc, INODE_UNINIT, INODE_ZEROED, bitmap_checksum, bitmap_csum_matches,
};
use xact_layout::superblock::Superblock;
use xact_types::{BlockNr, Error, GroupNr, Result, Site};

use super::AllocatorCore;
use super::bitmap::{Bitmap, set_bits};
use super::host::GroupHost;

/// Maximum number of maps in memory: 16 MiB of block maps at 4 KiB each.
const LOADED_MAX: usize = 4096;

pub(super) struct Group {
    // Places on disk; they never change while the volume is open.
    pub block_bitmap: BlockNr,
    pub inode_bitmap: BlockNr,
    pub inode_table: BlockNr,
    // For choosing a group without its lock; changed under it.
    pub free_blocks: AtomicU32,
    pub free_inodes: AtomicU32,
    pub dirs: AtomicU32,
    /// Upper bound of the longest free run (`u32::MAX`: not known).
    pub largest_run: AtomicU32,
    /// Inodes at the start of the table whose blocks were written, or hold zeros; the rest of the
    /// table may have old bytes.
    pub table_ready: AtomicU32,
    /// No block after that was found to have other bytes than zeros.
    pub rest_may_be_zero: AtomicBool,
    /// Free blocks that have no space on the host of a sparse image, or may have none.
    pub unbacked: AtomicU32,
    /// Blocks of the group, free or not, may have no space there.
    pub has_holes: AtomicBool,
    pub state: Mutex<GroupMaps>,
}

#[derive(Default)]
pub(super) struct GroupMaps {
    blocks: Slot,
    inodes: Slot,
    pub(super) host: GroupHost,
}

/// The place in memory of a bitmap.
#[derive(Default)]
struct Slot {
    map: Option<Map>,
    /// The bitmap on disk is damaged, and stays unused.
    damage: Option<Error>,
}

impl Slot {
    fn is_known(&self) -> bool {
        self.map.is_some() || self.damage.is_some()
    }
}

/// A bitmap in memory, and its differences from the disk.
pub(super) struct Map {
    pub bits: Bitmap,
    /// Bit at which the next search starts.
    pub cursor: u32,
    /// Number of bits that are set in memory but not on disk.
    pub pending: u32,
}

impl Group {
    /// `sparse`: blocks may have no space on the host.
    pub fn new(sb: &Superblock, desc: &GroupDesc, sparse: bool) -> Group {
        Group {
            block_bitmap: desc.block_bitmap(),
            inode_bitmap: desc.inode_bitmap(),
            inode_table: desc.inode_table(),
            free_blocks: AtomicU32::new(desc.free_blocks()),
            free_inodes: AtomicU32::new(desc.free_inodes()),
            dirs: AtomicU32::new(desc.used_dirs()),
            largest_run: AtomicU32::new(u32::MAX),
            table_ready: AtomicU32::new(table_ready(sb, desc)),
            rest_may_be_zero: AtomicBool::new(true),
            unbacked: AtomicU32::new(if sparse { desc.free_blocks() } else { 0 }),
            has_holes: AtomicBool::new(sparse),
            state: Mutex::default(),
        }
    }
}

/// The number of inodes in the written part of an inode table: whole blocks up to the last used
/// inode, or all if the rest was zeroed too.
pub(super) fn table_ready(sb: &Superblock, desc: &GroupDesc) -> u32 {
    let all = sb.inodes_per_group();
    if !sb.has_group_csum() || desc.has_flag(INODE_ZEROED) {
        return all;
    }
    if desc.has_flag(INODE_UNINIT) {
        return 0;
    }
    let used = all.saturating_sub(desc.itable_unused());
    used.next_multiple_of(sb.inodes_per_block()).min(all)
}

/// The blocks of a group to read before its lock is taken.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Prefetch {
    /// The bitmap for the map in memory, unless that is loaded.
    BlockMap,
    InodeMap,
    /// The bitmap in any case, because it will be changed.
    BlockBitmap,
    InodeBitmap,
}

impl AllocatorCore {
    /// Locks a group, after reading the blocks of `prefetch` into the engine's cache: no thread
    /// waits for the device under this lock.
    pub(super) fn lock(&self, number: GroupNr, prefetch: Prefetch) -> MutexGuard<'_, GroupMaps> {
        let group = self.group(number);
        let has_map = |state: &GroupMaps| match prefetch {
            Prefetch::BlockMap => state.blocks.is_known(),
            Prefetch::InodeMap => state.inodes.is_known(),
            Prefetch::BlockBitmap | Prefetch::InodeBitmap => false,
        };
        if matches!(prefetch, Prefetch::BlockMap | Prefetch::InodeMap) {
            let state = lock_within(&self.engine, &group.state);
            if has_map(&state) {
                return state;
            }
        }
        self.read_ahead(number, prefetch);
        lock_within(&self.engine, &group.state)
    }

    /// Reads the blocks of `prefetch` into the engine's cache. Their users return errors.
    pub(super) fn read_ahead(&self, number: GroupNr, prefetch: Prefetch) {
        let Ok(desc) = self.desc(number) else { return };
        let (uninit, bitmap) = match prefetch {
            Prefetch::BlockMap | Prefetch::BlockBitmap => (BLOCK_UNINIT, desc.block_bitmap()),
            Prefetch::InodeMap | Prefetch::InodeBitmap => (INODE_UNINIT, desc.inode_bitmap()),
        };
        if !(self.sb.has_group_csum() && desc.has_flag(uninit)) {
            let _ = self.engine.read(bitmap);
        }
    }

    /// The block map of a group; reads and checks the bitmap if it is not in memory.
    pub(super) fn block_map<'a>(&self, number: GroupNr, state: &'a mut GroupMaps) -> Result<&'a mut Map> {
        self.map(
            &mut state.blocks,
            || self.load_blocks(number),
            || {
                let lost = self.group(number).free_blocks.swap(0, Relaxed);
                self.lose_unbacked(number);
                self.counters.lose(u64::from(lost));
            },
        )
    }

    /// The inode map of a group; see `block_map`.
    pub(super) fn inode_map<'a>(&self, number: GroupNr, state: &'a mut GroupMaps) -> Result<&'a mut Map> {
        self.map(
            &mut state.inodes,
            || self.load_inodes(number),
            || {
                let lost = self.group(number).free_inodes.swap(0, Relaxed);
                self.counters.lose_inodes(u64::from(lost));
            },
        )
    }

    /// The map of a slot. `lose` is called if the bitmap is damaged: what is free in the group
    /// cannot be used.
    fn map<'a>(
        &self,
        slot: &'a mut Slot,
        load: impl FnOnce() -> Result<Bitmap>,
        lose: impl FnOnce(),
    ) -> Result<&'a mut Map> {
        if let Some(damage) = &slot.damage {
            return Err(damage.clone());
        }
        if slot.map.is_none() {
            match load() {
                Ok(bits) => {
                    slot.map = Some(Map { bits, cursor: 0, pending: 0 });
                    if self.loaded.fetch_add(1, Relaxed) >= LOADED_MAX {
                        self.evict();
                    }
                }
                Err(error) => {
                    if let Error::Corrupt(corruption) = &error {
                        lose();
                        slot.damage = Some(error.clone());
                        self.damage.add_group(corruption);
                    }
                    return Err(error);
                }
            }
        }
        Ok(slot.map.as_mut().expect("loaded above"))
    }

    /// Drops the maps of a group that do not differ from the disk, if a short search finds one.
    fn evict(&self) {
        for _ in 0..64 {
            let hand = self.evict_hand.fetch_add(1, Relaxed) % self.sb.group_count();
            let Some(mut state) = self.group(GroupNr(hand)).state.try_lock() else { continue };
            let state = &mut *state;
            let mut dropped = 0;
            for slot in [&mut state.blocks, &mut state.inodes] {
                dropped += usize::from(slot.map.take_if(|map| map.pending == 0).is_some());
            }
            if dropped > 0 {
                self.loaded.fetch_sub(dropped, Relaxed);
                return;
            }
        }
    }

    fn load_blocks(&self, number: GroupNr) -> Result<Bitmap> {
        let desc = self.desc(number)?;
        let corrupt = |what| Err(Error::corrupt(Site::Block(desc.block_bitmap()), what));
        let len = self.sb.blocks_in_group(number);
        let bits = if self.sb.has_group_csum() && desc.has_flag(BLOCK_UNINIT) {
            Bitmap::from_bytes(&self.fresh_block_bitmap(number), len)
        } else {
            let bytes = self.engine.read(desc.block_bitmap())?;
            if self.sb.has_metadata_csum()
                && !bitmap_csum_matches(&self.sb, desc.block_bitmap_csum(), self.block_checksum(&bytes))
            {
                return corrupt("checksum of the block bitmap does not match");
            }
            Bitmap::from_bytes(&bytes, len)
        };
        let start = self.sb.group_start(number);
        let end = start.offset(u64::from(len));
        if !self
            .all()
            .zone
            .within(start, end)
            .all(|r| bits.all_set((r.0 - start.0) as u32, (r.1 - r.0) as u32))
        {
            return corrupt("the block bitmap marks fixed metadata as free");
        }
        if bits.zeros() != desc.free_blocks() {
            return corrupt("the block bitmap and the count of free blocks differ");
        }
        Ok(bits)
    }

    fn load_inodes(&self, number: GroupNr) -> Result<Bitmap> {
        let desc = self.desc(number)?;
        let corrupt = |what| Err(Error::corrupt(Site::Block(desc.inode_bitmap()), what));
        let len = self.sb.inodes_per_group();
        let mut bits = if self.sb.has_group_csum() && desc.has_flag(INODE_UNINIT) {
            Bitmap::from_bytes(&self.fresh_inode_bitmap(), len)
        } else {
            let bytes = self.engine.read(desc.inode_bitmap())?;
            if self.sb.has_metadata_csum()
                && !bitmap_csum_matches(&self.sb, desc.inode_bitmap_csum(), self.inode_checksum(&bytes))
            {
                return corrupt("checksum of the inode bitmap does not match");
            }
            Bitmap::from_bytes(&bytes, len)
        };
        if bits.zeros() != desc.free_inodes() {
            return corrupt("the inode bitmap and the count of free inodes differ");
        }
        if number == GroupNr(0) {
            bits.set(0, (self.sb.first_inode().0 - 1).min(len));
        }
        Ok(bits)
    }

    pub(super) fn block_checksum(&self, bytes: &[u8]) -> u32 {
        bitmap_checksum(&self.sb, bytes, (self.sb.clusters_per_group() / 8) as usize)
    }

    pub(super) fn inode_checksum(&self, bytes: &[u8]) -> u32 {
        bitmap_checksum(&self.sb, bytes, (self.sb.inodes_per_group() / 8) as usize)
    }

    /// The initial block bitmap of a group with `BLOCK_UNINIT`: the group's fixed metadata and the
    /// bits without a block are set.
    pub(super) fn fresh_block_bitmap(&self, number: GroupNr) -> Vec<u8> {
        let mut bytes = vec![0; self.sb.block_size() as usize];
        let len = self.sb.blocks_in_group(number);
        let start = self.sb.group_start(number);
        for (from, to) in self.all().zone.within(start, start.offset(u64::from(len))) {
            set_bits(&mut bytes, (from - start.0) as u32, (to - from) as u32);
        }
        set_bits(&mut bytes, len, 8 * self.sb.block_size() - len);
        bytes
    }

    /// The initial inode bitmap of a group with `INODE_UNINIT`.
    pub(super) fn fresh_inode_bitmap(&self) -> Vec<u8> {
        let mut bytes = vec![0; self.sb.block_size() as usize];
        let len = self.sb.inodes_per_group();
        set_bits(&mut bytes, len, 8 * self.sb.block_size() - len);
        bytes
    }
}
