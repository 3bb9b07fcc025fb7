//! Bits and counts ahead of their commit: for an inode or blocks that an operation of the commit
//! has linked already (`Handle::catch_up`).
//!
//! The changes are those of `link_inode` and `link`, in the durable version of the bitmaps and
//! descriptors. An inode or a block is free there, because nothing is taken before the commit that
//! frees it is durable. A group that was never used is left to the commit: so are its bitmaps,
//! which have no durable contents.

use xact_consistency::Handle;
use xact_layout::group::{GroupDesc, INODE_UNINIT};
use xact_types::{GroupNr, Ino, Result};

use super::bitmap::{bits_all_clear, bits_all_set, set_bits};
use super::group::{Prefetch, table_ready};
use super::{Allocator, AllocatorCore, Run};

impl Allocator {
    /// Whether an inode is in use ahead of the handle's commit; `None` if that is not known.
    pub fn is_linked_ahead(&self, h: &Handle, ino: Ino) -> Result<Option<bool>> {
        self.shared.is_linked_ahead(h, ino)
    }

    /// Marks an inode as used, which the handle's commit does too. False: not ahead of it.
    pub fn catch_up_inode(&self, h: &mut Handle, ino: Ino) -> Result<bool> {
        self.shared.catch_up_inode(h, ino)
    }

    /// Marks blocks as used, which the handle's commit does too. False: not ahead of it.
    pub fn catch_up_run(&self, h: &mut Handle, run: Run) -> Result<bool> {
        self.shared.catch_up_run(h, run)
    }
}

impl AllocatorCore {
    fn desc_ahead(&self, h: &Handle, group: GroupNr) -> Result<Option<GroupDesc>> {
        let (block, at) = self.sb.desc_place(group);
        let size = usize::from(self.sb.desc_size());
        Ok(h.contents_ahead(block)?.map(|bytes| GroupDesc::new(&bytes[at..at + size])))
    }

    fn is_inode_uninit(&self, desc: &GroupDesc) -> bool {
        self.sb.has_group_csum() && desc.has_flag(INODE_UNINIT)
    }

    fn is_linked_ahead(&self, h: &Handle, ino: Ino) -> Result<Option<bool>> {
        let Some((number, index)) = self.sb.inode_place(ino) else { return Ok(None) };
        let Some(desc) = self.desc_ahead(h, number)? else { return Ok(None) };
        if self.is_inode_uninit(&desc) {
            return Ok(Some(false));
        }
        let bitmap = h.contents_ahead(self.group(number).inode_bitmap)?;
        Ok(bitmap.map(|bytes| bits_all_set(&bytes, index, 1)))
    }

    fn catch_up_inode(&self, h: &mut Handle, ino: Ino) -> Result<bool> {
        let Some((number, index)) = self.sb.inode_place(ino) else { return Ok(false) };
        let group = self.group(number);
        // Two operations must not mix up the checksums of their bitmaps.
        let _state = self.lock(number, Prefetch::InodeBitmap);
        let Some(desc) = self.desc_ahead(h, number)? else { return Ok(false) };
        // Both bitmaps of a group are written when its first inode is used.
        let is_unused = self.is_inode_uninit(&desc) || self.is_block_uninit(&desc);
        if is_unused || desc.free_inodes() == 0 || !self.is_table_ready_ahead(h, number, (&desc, index))? {
            return Ok(false);
        }
        let mut checksum = 0;
        let marked = h.catch_up(group.inode_bitmap, |bytes| {
            let is_free = bits_all_clear(bytes, index, 1);
            set_bits(bytes, index, 1);
            checksum = self.inode_checksum(bytes);
            is_free
        })?;
        let per_group = self.sb.inodes_per_group();
        Ok(marked
            && self.change_desc_ahead(h, number, |desc| {
                if self.sb.has_group_csum() {
                    desc.set_itable_unused(desc.itable_unused().min(per_group - index - 1));
                }
                desc.set_free_inodes(desc.free_inodes() - 1);
                if self.sb.has_metadata_csum() {
                    desc.set_inode_bitmap_csum(checksum);
                }
            })?)
    }

    /// Whether the part of the inode table that comes into use with inode `index` holds zeros. Its
    /// blocks are those that `itable_unused` of the durable descriptor does not count as written.
    fn is_table_ready_ahead(
        &self,
        h: &Handle,
        number: GroupNr,
        (desc, index): (&GroupDesc, u32),
    ) -> Result<bool> {
        let per_block = self.sb.inodes_per_block();
        let first = table_ready(&self.sb, desc).div_ceil(per_block);
        for at in first..=index / per_block {
            let contents = h.contents_ahead(self.group(number).inode_table.offset(u64::from(at)))?;
            if !contents.is_some_and(|bytes| bytes.iter().all(|&byte| byte == 0)) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn catch_up_run(&self, h: &mut Handle, run: Run) -> Result<bool> {
        for piece in self.pieces(run) {
            let (index, len) = (piece.index, piece.len);
            let _state = self.lock(piece.group, Prefetch::BlockBitmap);
            let desc = self.desc_ahead(h, piece.group)?;
            if !desc.is_some_and(|desc| !self.is_block_uninit(&desc) && desc.free_blocks() >= len) {
                return Ok(false);
            }
            let mut checksum = 0;
            let marked = h.catch_up(self.group(piece.group).block_bitmap, |bytes| {
                let is_free = bits_all_clear(bytes, index, len);
                set_bits(bytes, index, len);
                checksum = self.block_checksum(bytes);
                is_free
            })?;
            let counted = marked
                && self.change_desc_ahead(h, piece.group, |desc| {
                    desc.set_free_blocks(desc.free_blocks() - len);
                    self.set_block_checksum(desc, checksum);
                })?;
            if !counted {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn change_desc_ahead(
        &self,
        h: &mut Handle,
        group: GroupNr,
        mut change: impl FnMut(&mut GroupDesc),
    ) -> Result<bool> {
        let (block, at) = self.sb.desc_place(group);
        let size = usize::from(self.sb.desc_size());
        h.catch_up(block, |bytes| {
            let mut desc = GroupDesc::new(&bytes[at..at + size]);
            change(&mut desc);
            desc.seal(&self.sb, group);
            bytes[at..at + size].copy_from_slice(desc.as_bytes());
            true
        })
    }
}
