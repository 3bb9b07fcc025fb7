//! Writes a volume's fixed metadata.

use std::collections::BTreeMap;

use xact_device::BlockDevice;
use xact_layout::group::{BLOCK_UNINIT, GroupDesc, INODE_UNINIT, INODE_ZEROED, bitmap_checksum};
use xact_layout::inode::Inode;
use xact_layout::superblock::{SUPERBLOCK_BYTES, SUPERBLOCK_OFFSET, Superblock};
use xact_types::{BlockNr, Error, GroupNr, Ino, Result, Run};

use super::place::BlockLayout;
use super::plan::VolumePlan;
use crate::alloc::set_bits;

/// Bytes that are zeroed in one write.
const ZERO_CHUNK_BYTES: usize = 1 << 20;

pub(super) struct Writer<'a> {
    device: &'a dyn BlockDevice,
    pub plan: &'a VolumePlan,
    pub place: &'a BlockLayout,
    inodes: BTreeMap<Ino, Inode>,
    journal_backup: [u32; 17],
    written_bytes: u64,
}

impl<'a> Writer<'a> {
    pub fn new(device: &'a dyn BlockDevice, plan: &'a VolumePlan, place: &'a BlockLayout) -> Writer<'a> {
        Writer { device, plan, place, inodes: BTreeMap::new(), journal_backup: [0; 17], written_bytes: 0 }
    }

    pub fn write(&mut self, block: BlockNr, bytes: &[u8]) -> Result<()> {
        self.write_bytes(block.0 * u64::from(self.plan.sb.block_size()), bytes)
    }

    fn write_bytes(&mut self, offset: u64, bytes: &[u8]) -> Result<()> {
        self.written_bytes += bytes.len() as u64;
        self.device.write_at(bytes, offset).map_err(|error| Error::io("writing the new volume", error))
    }

    pub fn zero(&mut self, run: Run) -> Result<()> {
        let chunk = (ZERO_CHUNK_BYTES / self.plan.sb.block_size() as usize) as u32;
        let zeros = vec![0; ZERO_CHUNK_BYTES];
        for at in (0..run.len).step_by(chunk as usize) {
            let blocks = chunk.min(run.len - at);
            let len = blocks as usize * self.plan.sb.block_size() as usize;
            self.write(run.start.offset(u64::from(at)), &zeros[..len])?;
        }
        Ok(())
    }

    fn flush(&self) -> Result<()> {
        self.device.flush().map_err(|error| Error::io("flushing the new volume", error))
    }

    pub fn set_inode(&mut self, ino: Ino, inode: Inode) {
        self.inodes.insert(ino, inode);
    }

    pub fn set_journal_backup(&mut self, words: [u32; 17]) {
        self.journal_backup = words;
    }

    /// Erases the identification of the old contents: boot sector, superblock, and signatures of
    /// other file systems near the start.
    ///
    /// It is flushed before any other write; otherwise a crash could leave an old superblock that
    /// looks valid over half of a new volume.
    pub fn wipe(&mut self) -> Result<()> {
        self.write_bytes(0, &[0; 4096])?;
        self.flush()
    }

    /// Writes the rest, the primary superblock last.
    pub fn finish(mut self) -> Result<()> {
        let (descs, free_blocks, free_inodes) = self.write_groups()?;
        self.write_inode_table()?;

        let mut sb = self.plan.sb.clone();
        sb.set_free_blocks_count(free_blocks);
        sb.set_free_inodes_count(free_inodes);
        if self.plan.journal_blocks > 0 {
            sb.set_journal_backup(self.journal_backup);
        }
        let table = self.descriptor_table(&descs);
        for group in (0..sb.group_count()).map(GroupNr).filter(|group| sb.has_backup(*group)) {
            let start = sb.group_start(group);
            self.write(start.offset(1), &table)?;
            if group.0 > 0 {
                let copy = superblock_for(&sb, group);
                self.write_bytes(start.0 * u64::from(sb.block_size()), copy.as_bytes())?;
            }
        }
        // The whole volume must be durable before it has a superblock.
        self.flush()?;
        sb.set_kbytes_written(self.written_bytes.div_ceil(1024));
        let primary = superblock_for(&sb, GroupNr(0));
        self.write_bytes(SUPERBLOCK_OFFSET, primary.as_bytes())?;
        self.flush()
    }

    /// Writes the bitmaps of the groups in use. Returns all descriptors, and the free blocks and
    /// inodes.
    fn write_groups(&mut self) -> Result<(Vec<GroupDesc>, u64, u32)> {
        let sb = &self.plan.sb;
        let mut descs = Vec::with_capacity(sb.group_count() as usize);
        let (mut free_blocks, mut free_inodes) = (0, 0);
        for group in (0..sb.group_count()).map(GroupNr) {
            let place = self.place.groups[group.0 as usize];
            let mut desc = GroupDesc::new(&vec![0; usize::from(sb.desc_size())]);
            desc.set_block_bitmap(place.block_bitmap);
            desc.set_inode_bitmap(place.inode_bitmap);
            desc.set_inode_table(place.inode_table);
            desc.set_flags(if self.plan.zeroed { INODE_ZEROED } else { 0 });
            self.write_block_bitmap(group, &mut desc)?;
            self.write_inode_bitmap(group, &mut desc)?;
            desc.seal(sb, group);
            free_blocks += u64::from(desc.free_blocks());
            free_inodes += desc.free_inodes();
            descs.push(desc);
        }
        Ok((descs, free_blocks, free_inodes))
    }

    fn write_block_bitmap(&mut self, group: GroupNr, desc: &mut GroupDesc) -> Result<()> {
        let sb = &self.plan.sb;
        let start = sb.group_start(group).0;
        let len = sb.blocks_in_group(group);
        let parts: Vec<(u64, u64)> = self.place.used.within(start, start + u64::from(len)).collect();
        let used: u64 = parts.iter().map(|(from, to)| to - from).sum();
        desc.set_free_blocks(len - used as u32);
        // The flag means that only the copies of superblock and descriptors are in use; and the
        // last group's bitmap has padding bits.
        let last = group.0 + 1 == sb.group_count();
        if !last && used == u64::from(sb.base_meta_blocks(group)) {
            desc.set_flags(desc.flags() | BLOCK_UNINIT);
            return Ok(());
        }
        let mut bitmap = vec![0; sb.block_size() as usize];
        for (from, to) in parts {
            set_bits(&mut bitmap, (from - start) as u32, (to - from) as u32);
        }
        set_bits(&mut bitmap, len, 8 * sb.block_size() - len);
        desc.set_block_bitmap_csum(bitmap_checksum(sb, &bitmap, (sb.blocks_per_group() / 8) as usize));
        self.write(desc.block_bitmap(), &bitmap)
    }

    fn write_inode_bitmap(&mut self, group: GroupNr, desc: &mut GroupDesc) -> Result<()> {
        let sb = &self.plan.sb;
        let len = sb.inodes_per_group();
        let used = if group.0 == 0 { self.plan.used_inodes() } else { 0 };
        desc.set_free_inodes(len - used);
        desc.set_itable_unused(len - used);
        if used == 0 {
            desc.set_flags(desc.flags() | INODE_UNINIT);
            return Ok(());
        }
        desc.set_used_dirs(2);
        let mut bitmap = vec![0; sb.block_size() as usize];
        set_bits(&mut bitmap, 0, used);
        set_bits(&mut bitmap, len, 8 * sb.block_size() - len);
        desc.set_inode_bitmap_csum(bitmap_checksum(sb, &bitmap, (len / 8) as usize));
        self.write(desc.inode_bitmap(), &bitmap)
    }

    /// Writes the part of group 0's table with inodes in use.
    fn write_inode_table(&mut self) -> Result<()> {
        let sb = &self.plan.sb;
        let size = usize::from(sb.inode_size());
        let blocks = self.plan.used_inodes().div_ceil(sb.inodes_per_block());
        let mut table = vec![0; (blocks * sb.block_size()) as usize];
        for (ino, inode) in &self.inodes {
            let mut inode = inode.clone();
            inode.seal(sb, *ino);
            let at = (ino.0 - 1) as usize * size;
            table[at..at + size].copy_from_slice(inode.as_bytes());
        }
        self.write(self.place.groups[0].inode_table, &table)
    }

    fn descriptor_table(&self, descs: &[GroupDesc]) -> Vec<u8> {
        let sb = &self.plan.sb;
        let mut table = vec![0; (sb.gdt_blocks() * sb.block_size()) as usize];
        for (slot, desc) in table.chunks_exact_mut(usize::from(sb.desc_size())).zip(descs) {
            slot.copy_from_slice(desc.as_bytes());
        }
        table
    }
}

/// The copy of the superblock in a group.
fn superblock_for(sb: &Superblock, group: GroupNr) -> Superblock {
    let mut copy = sb.clone();
    copy.set_block_group_nr(group.0 as u16);
    copy.seal();
    copy
}

const _: () = assert!(SUPERBLOCK_OFFSET as usize + SUPERBLOCK_BYTES <= 4096);
