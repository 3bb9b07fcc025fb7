//! Blocks: gives back or links taken blocks, frees linked blocks, and makes freed blocks available.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use xact_consistency::Handle;
use xact_layout::group::{BLOCK_UNINIT, GroupDesc};
use xact_types::{BlockNr, Error, GroupNr, Result, Site};

use super::bitmap::{bits_all_clear, bits_all_set, clear_bits, set_bits};
use super::group::Prefetch;
use super::{AllocatorCore, Hold, Run};

/// The part of a run within one group.
#[derive(Clone, Copy)]
pub(super) struct Piece {
    pub group: GroupNr,
    /// First bit.
    pub index: u32,
    pub len: u32,
}

impl AllocatorCore {
    /// Splits a run at the borders of groups.
    pub(super) fn pieces(&self, run: Run) -> impl Iterator<Item = Piece> + '_ {
        let mut start = run.start;
        std::iter::from_fn(move || {
            let left = run.end().0.saturating_sub(start.0);
            if left == 0 {
                return None;
            }
            let group = self.sb.group_of(start);
            let index = (start.0 - self.sb.group_start(group).0) as u32;
            let len = left.min(u64::from(self.sb.blocks_in_group(group) - index)) as u32;
            start = start.offset(u64::from(len));
            Some(Piece { group, index, len })
        })
    }

    /// Reads the blocks for linking or freeing a run into the engine's cache.
    pub(super) fn read_ahead_of(&self, run: Run) {
        self.pieces(run).for_each(|piece| self.read_ahead(piece.group, Prefetch::BlockBitmap));
    }

    pub(super) fn give_back(&self, run: Run) {
        self.make_available(run);
    }

    /// Makes a freed run available: its free is durable, and no view reads it.
    pub(super) fn release(&self, run: Run) {
        self.discard_freed(run);
        self.make_available(run);
        self.counters.end_pending(u64::from(run.len));
    }

    fn make_available(&self, run: Run) {
        for piece in self.pieces(run) {
            let group = self.group(piece.group);
            let mut state = group.state.lock();
            let unbacked = self.count_freed(piece.group, &state, piece.index, piece.len);
            let map = self.block_map(piece.group, &mut state).expect("a map with pending bits stays loaded");
            assert!(map.bits.all_set(piece.index, piece.len), "blocks given back were taken or freed");
            map.bits.clear(piece.index, piece.len);
            map.pending -= piece.len;
            map.cursor = map.cursor.min(piece.index);
            group.free_blocks.fetch_add(piece.len, Relaxed);
            let before = map.bits.zeros_before(piece.index);
            let joined = before + map.bits.zeros_at(piece.index, u32::MAX);
            group.largest_run.fetch_max(joined, Relaxed);
            self.counters.add_freed(piece.len.into(), unbacked.into());
        }
    }

    pub(super) fn link(&self, h: &mut Handle, run: Run) -> Result<()> {
        for piece in self.pieces(run) {
            self.link_piece(h, piece)?;
        }
        Ok(())
    }

    fn link_piece(&self, h: &mut Handle, Piece { group: number, index, len }: Piece) -> Result<()> {
        let group = self.group(number);
        let mut state = self.lock(number, Prefetch::BlockBitmap);
        let map = self.block_map(number, &mut state)?;
        assert!(map.bits.all_set(index, len) && map.pending >= len, "linked blocks were taken");
        let desc = self.desc(number)?;
        let uninit = self.is_block_uninit(&desc);
        if desc.free_blocks() < len
            || !uninit && !bits_all_clear(&self.engine.read(group.block_bitmap)?, index, len)
        {
            return Err(Error::corrupt(
                Site::Group(number),
                "the block bitmap was changed by another writer",
            ));
        }
        if uninit {
            h.create_shared(group.block_bitmap, self.fresh_block_bitmap(number))?;
        }
        let checksums = h.update_shared(group.block_bitmap, |_, bytes| {
            set_bits(bytes, index, len);
            self.block_checksum(bytes)
        })?;
        self.change_desc(h, number, |version, desc| {
            desc.set_flags(desc.flags() & !BLOCK_UNINIT);
            desc.set_free_blocks(desc.free_blocks() - len);
            self.set_block_checksum(desc, *checksums.of(version));
        })?;
        map.pending -= len;
        self.counters.linked(u64::from(len));
        Ok(())
    }

    pub(super) fn free(self: &Arc<Self>, h: &mut Handle, run: Run, hold: Option<Hold>) -> Result<()> {
        let site = Site::Block(run.start);
        if !self.sb.contains(run.start, u64::from(run.len)) {
            return Err(Error::corrupt(site, "blocks to be freed lie outside the volume"));
        }
        if self.all().zone.touches(run) {
            return Err(Error::corrupt(site, "blocks to be freed hold the volume's own metadata"));
        }
        // Check everything before the first change.
        for piece in self.pieces(run) {
            self.check_used(piece)?;
        }
        for piece in self.pieces(run) {
            self.free_piece(h, piece)?;
        }
        self.counters.begin_pending(u64::from(run.len));
        let shared = self.clone();
        #[cfg(feature = "faults")]
        if self.discards_at_once() {
            self.discard_freed(run);
        }
        h.on_durable(move || match hold {
            Some(hold) => hold.keep(shared, run),
            None => shared.release(run),
        });
        Ok(())
    }

    /// Checks that the blocks are in use on disk, so that they can be freed.
    fn check_used(&self, Piece { group: number, index, len }: Piece) -> Result<()> {
        let group = self.group(number);
        let mut state = self.lock(number, Prefetch::BlockBitmap);
        self.block_map(number, &mut state)?;
        let desc = self.desc(number)?;
        let start = self.sb.group_start(number).0 + u64::from(index);
        if self.is_block_uninit(&desc) || !bits_all_set(&self.engine.read(group.block_bitmap)?, index, len) {
            return Err(Error::corrupt(Site::Block(BlockNr(start)), "blocks to be freed are already free"));
        }
        if desc.free_blocks() + len > self.sb.blocks_in_group(number) {
            return Err(Error::corrupt(Site::Group(number), "count of free blocks is too high"));
        }
        Ok(())
    }

    fn free_piece(&self, h: &mut Handle, Piece { group: number, index, len }: Piece) -> Result<()> {
        let group = self.group(number);
        let mut state = self.lock(number, Prefetch::BlockBitmap);
        // The map is loaded before the disk changes, because its bits stay set.
        let map = self.block_map(number, &mut state)?;
        let checksums = h.update_shared(group.block_bitmap, |_, bytes| {
            clear_bits(bytes, index, len);
            self.block_checksum(bytes)
        })?;
        self.change_desc(h, number, |version, desc| {
            desc.set_free_blocks(desc.free_blocks() + len);
            self.set_block_checksum(desc, *checksums.of(version));
        })?;
        map.pending += len;
        self.leave_unused(h, number)?;
        self.counters.freed(u64::from(len));
        Ok(())
    }

    pub(super) fn is_block_uninit(&self, desc: &GroupDesc) -> bool {
        self.sb.has_group_csum() && desc.has_flag(BLOCK_UNINIT)
    }

    pub(super) fn set_block_checksum(&self, desc: &mut GroupDesc, checksum: u32) {
        if self.sb.has_metadata_csum() {
            desc.set_block_bitmap_csum(checksum);
        }
    }
}
