//! Inodes: chooses a number, marks it on disk, and initialises inode tables.
//!
//! Placement follows Orlov, as in ext2 to ext4. A file goes into its folder's group, a folder near
//! its parent as long as that group is not crowded, and each top-level folder into another group:
//! so trees spread over the volume, and each tree stays together.

use std::io::IoSlice;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use xact_consistency::Handle;
use xact_layout::group::{BLOCK_UNINIT, INODE_UNINIT};
use xact_types::{Error, GroupNr, Ino, Result, Site};

use super::AllocatorCore;
use super::bitmap::{bits_all_clear, bits_all_set, clear_bits, set_bits};
use super::group::{Group, Prefetch};

/// Number of groups that the search for a top-level folder's place examines.
const SPREAD_MAX: u32 = 64;
/// Blocks of an inode table that are read to see whether they hold zeros; the number that Linux
/// reads ahead (`inode_readahead_blks`).
const TABLE_READ: u32 = 32;

impl AllocatorCore {
    pub(super) fn take_inode(&self, parent: Ino, is_dir: bool) -> Result<Ino> {
        let home = self.sb.inode_place(parent).map_or(GroupNr(0), |place| place.0);
        let first = if !is_dir {
            home
        } else if parent == Ino::ROOT {
            self.spread_group()
        } else {
            self.roomy_group(home)
        };
        let mut host_full = false;
        if let Some(ino) = self.take_inode_in(first, &mut host_full)? {
            return Ok(ino);
        }
        // Move away from a full group in growing steps, so that files of one folder share groups
        // again.
        let count = u64::from(self.sb.group_count());
        let mut at = (u64::from(home.0) + u64::from(parent.0)) % count;
        let mut step = 1u64;
        while step < count {
            at = (at + step) % count;
            let number = GroupNr(at as u32);
            if self.group(number).free_blocks.load(Relaxed) > 0
                && let Some(ino) = self.take_inode_in(number, &mut host_full)?
            {
                return Ok(ino);
            }
            step *= 2;
        }
        for number in self.groups_from(home) {
            if let Some(ino) = self.take_inode_in(number, &mut host_full)? {
                return Ok(ino);
            }
        }
        if host_full {
            return Err(Error::HostFull);
        }
        if self.counters.pending_inodes() > 0 {
            // The commit that makes them available may help.
            return Err(Error::NoSpace);
        }
        Err(self.damage.first().unwrap_or(Error::NoSpace))
    }

    fn averages(&self) -> (u32, u32) {
        let groups = u64::from(self.sb.group_count());
        ((self.counters.free_inodes() / groups) as u32, (self.counters.free() / groups) as u32)
    }

    /// The group for a top-level folder: of the groups examined that have more than their share of
    /// free space, the one with the fewest folders.
    fn spread_group(&self) -> GroupNr {
        let count = self.sb.group_count();
        let (inodes, blocks) = self.averages();
        // Neighbouring groups share a flex group's tables: step over it.
        let stride = 1u32.checked_shl(u32::from(self.sb.log_groups_per_flex())).unwrap_or(count).min(count);
        let hand = self.spread_hand.fetch_add(1, Relaxed).wrapping_mul(stride);
        let start = hand % count;
        (0..count.min(SPREAD_MAX))
            .map(|i| GroupNr((start + i * stride % count) % count))
            .filter(|number| {
                let group = self.group(*number);
                group.free_inodes.load(Relaxed) >= inodes.max(1) && group.free_blocks.load(Relaxed) >= blocks
            })
            .min_by_key(|number| self.group(*number).dirs.load(Relaxed))
            .unwrap_or(GroupNr(start))
    }

    /// The group for a deeper folder: its parent's, or the next one that is not crowded.
    fn roomy_group(&self, home: GroupNr) -> GroupNr {
        let (inodes, blocks) = self.averages();
        let inodes_least = inodes.saturating_sub(self.sb.inodes_per_group() / 4).max(1);
        let blocks_least = blocks.saturating_sub(self.sb.blocks_per_group() / 4);
        self.groups_from(home)
            .take(SPREAD_MAX as usize)
            .find(|number| {
                let group = self.group(*number);
                group.free_inodes.load(Relaxed) >= inodes_least
                    && group.free_blocks.load(Relaxed) >= blocks_least
            })
            .unwrap_or(home)
    }

    /// Sets `host_full` if an inode was free whose block of the table has no space on the host.
    fn take_inode_in(&self, number: GroupNr, host_full: &mut bool) -> Result<Option<Ino>> {
        let group = self.group(number);
        if group.free_inodes.load(Relaxed) == 0 {
            return Ok(None);
        }
        let mut state = self.lock(number, Prefetch::InodeMap);
        let map = match self.inode_map(number, &mut state) {
            Ok(map) => map,
            Err(Error::Corrupt(_)) => return Ok(None),
            Err(error) => return Err(error),
        };
        let len = map.bits.len();
        let Some(index) = map.bits.next_zero(map.cursor, len).or_else(|| map.bits.next_zero(0, len)) else {
            return Ok(None);
        };
        let index = match self.back_inode(number, &mut state, index) {
            Ok(()) => index,
            Err(Error::HostFull) => {
                *host_full = true;
                let Some(index) = self.backed_inode(number, &mut state)? else { return Ok(None) };
                index
            }
            Err(error) => return Err(error),
        };
        let map = self.inode_map(number, &mut state)?;
        map.bits.set(index, 1);
        map.cursor = index + 1;
        map.pending += 1;
        group.free_inodes.fetch_sub(1, Relaxed);
        self.counters.take_inode();
        Ok(Some(self.sb.inode_at(number, index)))
    }

    pub(super) fn give_back_inode(&self, ino: Ino) {
        self.make_inode_available(ino);
        self.counters.give_back_inode();
    }

    fn make_inode_available(&self, ino: Ino) {
        let (number, index) = self.sb.inode_place(ino).expect("a taken inode is on the volume");
        let group = self.group(number);
        let mut state = group.state.lock();
        let map = self.inode_map(number, &mut state).expect("a map with pending bits stays loaded");
        assert!(map.bits.is_set(index), "an inode given back was taken or freed");
        map.bits.clear(index, 1);
        map.pending -= 1;
        map.cursor = map.cursor.min(index);
        group.free_inodes.fetch_add(1, Relaxed);
    }

    /// Reads the blocks for linking or freeing an inode, and for giving it a block, into the
    /// engine's cache.
    pub(super) fn read_ahead_of_inode(&self, ino: Ino) {
        if let Some((number, _)) = self.sb.inode_place(ino) {
            self.read_ahead(number, Prefetch::InodeBitmap);
            self.read_ahead(number, Prefetch::BlockBitmap);
        }
    }

    pub(super) fn link_inode(&self, h: &mut Handle, ino: Ino, is_dir: bool) -> Result<()> {
        let (number, index) = self.sb.inode_place(ino).expect("a taken inode is on the volume");
        let group = self.group(number);
        let mut state = self.lock(number, Prefetch::InodeBitmap);
        let state = &mut *state;
        let desc = self.desc(number)?;
        // The kernel, too, writes both bitmaps of a group when its first inode is used.
        let block_uninit = self.is_block_uninit(&desc);
        if block_uninit {
            self.block_map(number, state)?;
        }
        let map = self.inode_map(number, state)?;
        assert!(map.bits.is_set(index) && map.pending > 0, "a linked inode was taken");
        let uninit = self.sb.has_group_csum() && desc.has_flag(INODE_UNINIT);
        if desc.free_inodes() == 0
            || !uninit && !bits_all_clear(&self.engine.read(group.inode_bitmap)?, index, 1)
        {
            return Err(Error::corrupt(
                Site::Group(number),
                "the inode bitmap was changed by another writer",
            ));
        }
        self.prepare_table(h, number, index)?;
        if uninit {
            h.create_shared(group.inode_bitmap, self.fresh_inode_bitmap())?;
        }
        let checksums = h.update_shared(group.inode_bitmap, |_, bytes| {
            set_bits(bytes, index, 1);
            self.inode_checksum(bytes)
        })?;
        if block_uninit {
            h.create_shared(group.block_bitmap, self.fresh_block_bitmap(number))?;
        }
        let block_checksums = if block_uninit || self.is_block_uninit(&self.own_desc(h, number)?) {
            Some(h.update_shared(group.block_bitmap, |_, bytes| self.block_checksum(bytes))?)
        } else {
            None
        };
        let per_group = self.sb.inodes_per_group();
        self.change_desc(h, number, |version, desc| {
            if self.sb.has_group_csum() {
                let unused = if desc.has_flag(INODE_UNINIT) { per_group } else { desc.itable_unused() };
                desc.set_itable_unused(unused.min(per_group - index - 1));
                desc.set_flags(desc.flags() & !(INODE_UNINIT | BLOCK_UNINIT));
            }
            desc.set_free_inodes(desc.free_inodes() - 1);
            if is_dir {
                desc.set_used_dirs(desc.used_dirs() + 1);
            }
            if self.sb.has_metadata_csum() {
                desc.set_inode_bitmap_csum(*checksums.of(version));
            }
            if let Some(checksums) = &block_checksums {
                self.set_block_checksum(desc, *checksums.of(version));
            }
        })?;
        map.pending -= 1;
        if is_dir {
            group.dirs.fetch_add(1, Relaxed);
        }
        self.counters.linked_inode();
        Ok(())
    }

    /// Ensures that the table's block of inode `index`, and all blocks before it, have no old
    /// bytes.
    ///
    /// mke2fs leaves the part of the table given by `bg_itable_unused` unwritten. Blocks of it that
    /// hold zeros are used as they are. Otherwise the block itself is created as zeros within the
    /// handle. Skipped blocks (a lower inode was taken and is not linked yet) are zeroed on the
    /// device now: no metadata refers to them before this commit, and they are durable with it,
    /// like data written before it.
    fn prepare_table(&self, h: &mut Handle, number: GroupNr, index: u32) -> Result<()> {
        let group = self.group(number);
        if index < group.table_ready.load(Relaxed) {
            return Ok(());
        }
        let per_block = self.sb.inodes_per_block();
        let target = index / per_block;
        self.look_for_zeros(group, target);
        let ready = group.table_ready.load(Relaxed);
        if index < ready {
            return Ok(());
        }
        let block_size = self.sb.block_size() as usize;
        let first = ready / per_block;
        if first < target {
            let zeros = vec![0; block_size * (target - first) as usize];
            self.engine.write_unread(group.inode_table.offset(u64::from(first)), &[IoSlice::new(&zeros)])?;
        }
        h.create_shared(group.inode_table.offset(u64::from(target)), vec![0; block_size])?;
        group.table_ready.store(((target + 1) * per_block).min(self.sb.inodes_per_group()), Relaxed);
        Ok(())
    }

    /// Raises `table_ready` over the zeros that follow it: holes of an image, or a device that was
    /// zeroed. Stops at the first other block, for the rest of the mount.
    ///
    /// Crash argument: nothing has written these blocks since the volume was opened. mke2fs, an
    /// unmount and a recovery end with a flush, so the zeros are durable. A commit changes a block
    /// that has these contents, and leaves it out if its inodes are zeros again at the end
    /// (SNAP-6).
    fn look_for_zeros(&self, group: &Group, target: u32) {
        let per_block = self.sb.inodes_per_block();
        let block_size = self.sb.block_size() as usize;
        let blocks = self.sb.inode_table_blocks();
        while group.rest_may_be_zero.load(Relaxed) {
            let first = group.table_ready.load(Relaxed) / per_block;
            if first > target {
                return;
            }
            let mut contents = vec![0; block_size * TABLE_READ.min(blocks - first) as usize];
            // A range that cannot be read is overwritten.
            let read = self.engine.read_data(group.inode_table.offset(u64::from(first)), &mut contents);
            let zeros = contents.chunks(block_size).take_while(|block| block.iter().all(|b| *b == 0)).count();
            if read.is_err() || zeros * block_size < contents.len() {
                group.rest_may_be_zero.store(false, Relaxed);
            }
            if read.is_ok() {
                let ready = (first + zeros as u32) * per_block;
                group.table_ready.store(ready.min(self.sb.inodes_per_group()), Relaxed);
            }
        }
    }

    pub(super) fn free_inode(self: &Arc<Self>, h: &mut Handle, ino: Ino, is_dir: bool) -> Result<()> {
        let Some((number, index)) = self.sb.inode_place(ino) else {
            return Err(Error::corrupt(Site::Inode(ino), "an inode to be freed is not on the volume"));
        };
        if ino < self.sb.first_inode() {
            return Err(Error::corrupt(Site::Inode(ino), "an inode to be freed is reserved"));
        }
        let group = self.group(number);
        let mut state = self.lock(number, Prefetch::InodeBitmap);
        let map = self.inode_map(number, &mut state)?;
        let desc = self.desc(number)?;
        let uninit = self.sb.has_group_csum() && desc.has_flag(INODE_UNINIT);
        if uninit || !bits_all_set(&self.engine.read(group.inode_bitmap)?, index, 1) {
            return Err(Error::corrupt(Site::Inode(ino), "an inode to be freed is already free"));
        }
        if desc.free_inodes() >= self.sb.inodes_per_group() || is_dir && desc.used_dirs() == 0 {
            return Err(Error::corrupt(Site::Group(number), "counts of inodes do not match its bitmap"));
        }
        let checksums = h.update_shared(group.inode_bitmap, |_, bytes| {
            clear_bits(bytes, index, 1);
            self.inode_checksum(bytes)
        })?;
        self.change_desc(h, number, |version, desc| {
            desc.set_free_inodes(desc.free_inodes() + 1);
            if is_dir {
                desc.set_used_dirs(desc.used_dirs() - 1);
            }
            if self.sb.has_metadata_csum() {
                desc.set_inode_bitmap_csum(*checksums.of(version));
            }
        })?;
        map.pending += 1;
        self.leave_unused(h, number)?;
        drop(state);
        if is_dir {
            group.dirs.fetch_sub(1, Relaxed);
        }
        self.counters.freed_inode();
        let shared = self.clone();
        h.on_durable(move || {
            shared.make_inode_available(ino);
            shared.counters.end_pending_inode();
        });
        Ok(())
    }
}
