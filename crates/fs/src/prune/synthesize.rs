//! Synthesizes the metadata of a partial image.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use xact_consistency::PartialSnapshot;
use xact_layout::dirent::{DirEntry, DirFormat, Packer, entry_bytes};
use xact_layout::extent::{Extent, write_root};
use xact_layout::feature::{compat, ro_compat};
use xact_layout::group::{BLOCK_UNINIT, GroupDesc, INODE_UNINIT, INODE_ZEROED, bitmap_checksum};
use xact_layout::inode::{BLOCK_AREA_BYTES, Inode, flag};
use xact_layout::superblock::{SUPERBLOCK_BYTES, Superblock};
use xact_layout::xattr::{self, Attribute, Value};
use xact_types::{BlockNr, Error, FileBlock, GroupNr, Ino, Result, Run};

use super::image::SourceImage;
use super::selection::{ParentDir, Selection};
use super::used::UsedBlocks;
use crate::alloc::set_bits;
use crate::api::FileKind;

/// `EXT4_LINK_MAX`: the link count of a folder with more subfolders is 1.
const LINK_MAX: u32 = 65_000;
/// Name of the attribute with inline contents that do not fit into `i_block` (`system.data`).
const REST: &[u8] = b"data";

pub(super) struct Synthesis<'a> {
    image: &'a SourceImage,
    used: UsedBlocks,
    inodes: BTreeMap<Ino, Inode>,
    /// Attribute blocks, with their number of users in the partial image.
    xattr_blocks: BTreeMap<BlockNr, u32>,
    partial: PartialSnapshot,
}

impl<'a> Synthesis<'a> {
    pub fn new(image: &'a SourceImage) -> Synthesis<'a> {
        Synthesis {
            image,
            used: UsedBlocks::default(),
            inodes: BTreeMap::new(),
            xattr_blocks: BTreeMap::new(),
            partial: PartialSnapshot::default(),
        }
    }

    pub fn synthesize(&mut self, selection: &Selection) -> Result<()> {
        self.reserved_inodes()?;
        for (&ino, &links) in &selection.whole {
            let mut inode = self.image.inode(ino)?;
            if links > 0 {
                inode.set_links_count(links as u16);
            }
            self.keep(ino, inode)?;
        }
        // Only now, when all blocks that stay in place are known.
        for (&ino, parent) in &selection.parents {
            self.write_parent(ino, parent)?;
        }
        self.shared_attributes()
    }

    /// Keeps the reserved inodes (the journal, the resize inode and the like) and the orphan file,
    /// but not the quota files.
    fn reserved_inodes(&mut self) -> Result<()> {
        let sb = &self.image.sb;
        let quotas = [sb.usr_quota_inum(), sb.grp_quota_inum(), sb.prj_quota_inum()];
        let reserved = (1..sb.first_inode().0).filter(|&ino| ino != Ino::ROOT.0 && !quotas.contains(&ino));
        for ino in reserved.map(Ino) {
            let inode = self.image.inode(ino)?;
            if ino == Ino::RESIZE {
                // All its other blocks are fixed metadata.
                let block = BlockNr(xact_layout::get_u32(inode.block_area(), 4 * 13).into());
                if block.0 != 0 {
                    self.used.add(sb, ino, Run { start: block, len: 1 })?;
                }
                self.inodes.insert(ino, inode);
            } else if inode.mode() != 0 || inode.links_count() > 0 || ino.0 == 1 {
                self.keep(ino, inode)?;
            }
        }
        if sb.has_compat(compat::ORPHAN_FILE) {
            let ino = Ino(sb.orphan_file_inum());
            self.keep(ino, self.image.inode(ino)?)?;
        }
        if sb.mmp_block() != 0 {
            self.used.add(sb, Ino(0), Run { start: BlockNr(sb.mmp_block()), len: 1 })?;
        }
        Ok(())
    }

    fn keep(&mut self, ino: Ino, inode: Inode) -> Result<()> {
        let (image, used) = (self.image, &mut self.used);
        image.blocks_of(ino, &inode, &mut |run| used.add(&image.sb, ino, run))?;
        self.attribute_block(ino, &inode)?;
        self.inodes.insert(ino, inode);
        Ok(())
    }

    fn attribute_block(&mut self, ino: Ino, inode: &Inode) -> Result<()> {
        let block = BlockNr(inode.xattr_block());
        if block.0 == 0 {
            return Ok(());
        }
        let users = self.xattr_blocks.entry(block).or_default();
        *users += 1;
        if *users == 1 { self.used.add(&self.image.sb, ino, Run { start: block, len: 1 }) } else { Ok(()) }
    }

    /// Sets the user counts of attribute blocks that are shared with inodes outside the selection.
    fn shared_attributes(&mut self) -> Result<()> {
        for (&block, &users) in &self.xattr_blocks {
            let mut bytes = self.image.block(block)?;
            if xattr::refcount(&bytes) != users {
                xattr::set_refcount(&mut bytes, &self.image.sb, block, users);
                self.partial.blocks.insert(block, bytes.into());
            }
        }
        Ok(())
    }

    /// Writes a parent folder with its remaining names, in as few blocks as they need.
    fn write_parent(&mut self, ino: Ino, parent: &ParentDir) -> Result<()> {
        let sb = &self.image.sb;
        let mut inode = self.image.inode(ino)?;
        self.attribute_block(ino, &inode)?;
        let blocks = entries(&DirFormat::new(sb, ino, inode.generation()), ino, parent);
        let len = blocks.len() as u32;
        let start = self.free_run(ino, len)?;
        let run = Run { start, len };
        self.used.add(sb, ino, run)?;
        for (index, bytes) in blocks.into_iter().enumerate() {
            self.partial.blocks.insert(start.offset(index as u64), bytes.into());
        }
        if inode.flags() & flag::INLINE_DATA != 0 {
            drop_inline(&mut inode);
        }
        let mut area = [0; BLOCK_AREA_BYTES];
        write_root(&mut area, 0, &[Extent { at: FileBlock(0), run, unwritten: false }.encode()]);
        inode.set_block_area(&area);
        inode.set_flags(inode.flags() & !(flag::INDEX | flag::INLINE_DATA) | flag::EXTENTS);
        inode.set_size(u64::from(len) * u64::from(sb.block_size()));
        let taken = u64::from(len) + u64::from(inode.xattr_block() != 0);
        inode.set_sectors(sb, taken * u64::from(sb.block_size() / 512));
        let folders =
            parent.entries.values().filter(|entry| entry.kind == FileKind::Directory).count() as u32;
        inode.set_links_count(if 2 + folders >= LINK_MAX { 1 } else { 2 + folders as u16 });
        self.inodes.insert(ino, inode);
        Ok(())
    }

    /// Contiguous blocks that are free in the partial image, from the group of an inode on.
    fn free_run(&self, ino: Ino, len: u32) -> Result<BlockNr> {
        let sb = &self.image.sb;
        let home = sb.inode_place(ino).map_or(0, |(group, _)| group.0);
        let found = (0..sb.group_count()).map(|n| GroupNr((home + n) % sb.group_count())).find_map(|group| {
            let taken = self.block_bitmap(group);
            UsedBlocks::find(sb, group, &taken, len)
        });
        found.ok_or(Error::NoSpace)
    }

    /// A group's bitmap at this point.
    fn block_bitmap(&self, group: GroupNr) -> Vec<u8> {
        let sb = &self.image.sb;
        let none = vec![0; sb.block_size() as usize];
        let mut bits = self.used.group(group).map_or(none, <[u8]>::to_vec);
        self.image.set_fixed(group, &mut bits);
        let len = sb.blocks_in_group(group);
        set_bits(&mut bits, len, 8 * sb.block_size() - len);
        bits
    }

    pub fn finish(mut self) -> Result<PartialSnapshot> {
        let image = self.image;
        let mut sb = image.sb.clone();
        if sb.has_ro_compat(ro_compat::QUOTA) {
            sb.set_feature_ro_compat(sb.feature_ro_compat() & !ro_compat::QUOTA);
            sb.set_usr_quota_inum(0);
            sb.set_grp_quota_inum(0);
            sb.set_prj_quota_inum(0);
        }
        let (mut free_blocks, mut free_inodes) = (0, 0);
        let mut table: BTreeMap<BlockNr, Vec<u8>> = BTreeMap::new();
        for group in (0..sb.group_count()).map(GroupNr) {
            let mut desc = image.descs[group.0 as usize].clone();
            desc.set_flags(desc.flags() & !INODE_ZEROED);
            self.block_bitmap_of(&sb, group, &mut desc);
            self.inodes_of(&sb, group, &mut desc)?;
            desc.seal(&sb, group);
            free_blocks += u64::from(desc.free_blocks());
            free_inodes += desc.free_inodes();
            let (block, at) = sb.desc_place(group);
            let bytes = match table.entry(block) {
                Entry::Occupied(known) => known.into_mut(),
                Entry::Vacant(place) => place.insert(image.block(block)?),
            };
            bytes[at..at + usize::from(sb.desc_size())].copy_from_slice(desc.as_bytes());
        }
        self.partial.blocks.extend(table.into_iter().map(|(block, bytes)| (block, bytes.into())));
        sb.set_free_blocks_count(free_blocks);
        sb.set_free_inodes_count(free_inodes);
        sb.seal();
        let mut bytes = image.block(sb.own_block())?;
        bytes[sb.own_offset()..][..SUPERBLOCK_BYTES].copy_from_slice(sb.as_bytes());
        self.partial.blocks.insert(sb.own_block(), bytes.into());
        self.partial.kept = self.used.ranges(&sb);
        let backups = (1..sb.group_count()).map(GroupNr).filter(|&group| sb.has_backup(group));
        self.partial.kept.extend(backups.map(|group| sb.group_start(group).0..sb.group_start(group).0 + 1));
        self.partial.kept.sort_by_key(|range| range.start);
        Ok(self.partial)
    }

    fn block_bitmap_of(&mut self, sb: &Superblock, group: GroupNr, desc: &mut GroupDesc) {
        let bits = self.block_bitmap(group);
        let len = sb.blocks_in_group(group);
        let used: u32 = bits.iter().map(|byte| byte.count_ones()).sum();
        desc.set_free_blocks(8 * sb.block_size() - used);
        // The flag means that only the group's own fixed metadata is in use.
        let start = sb.group_start(group).0;
        let within = |first: BlockNr, count: u32| {
            let first = first.0.wrapping_sub(start);
            if first < u64::from(len) { count } else { 0 }
        };
        let own = sb.base_meta_blocks(group)
            + within(desc.block_bitmap(), 1)
            + within(desc.inode_bitmap(), 1)
            + within(desc.inode_table(), sb.inode_table_blocks());
        let is_last = group.0 + 1 == sb.group_count();
        if !is_last && used - (8 * sb.block_size() - len) == own && self.used.group(group).is_none() {
            desc.set_flags(desc.flags() | BLOCK_UNINIT);
            desc.set_block_bitmap_csum(0);
            return;
        }
        desc.set_flags(desc.flags() & !BLOCK_UNINIT);
        if sb.has_metadata_csum() {
            desc.set_block_bitmap_csum(bitmap_checksum(sb, &bits, (sb.clusters_per_group() / 8) as usize));
        }
        self.partial.blocks.insert(desc.block_bitmap(), bits.into());
    }

    /// The inode bitmap and the table of a group, up to the last inode in use.
    fn inodes_of(&mut self, sb: &Superblock, group: GroupNr, desc: &mut GroupDesc) -> Result<()> {
        let per_group = sb.inodes_per_group();
        let first = sb.inode_at(group, 0);
        let here = self.inodes.range(first..Ino(first.0 + per_group));
        let reserved = if group.0 == 0 { sb.first_inode().0 - 1 } else { 0 };
        let mut bits = vec![0; sb.block_size() as usize];
        set_bits(&mut bits, 0, reserved);
        let (mut end, mut dirs) = (reserved, 0);
        let mut blocks: BTreeMap<u32, Vec<u8>> = BTreeMap::new();
        for (&ino, inode) in here {
            let mut inode = inode.clone();
            inode.seal(sb, ino);
            let index = ino.0 - first.0;
            set_bits(&mut bits, index, 1);
            end = end.max(index + 1);
            dirs += u32::from(inode.is_directory());
            let block = blocks.entry(index / sb.inodes_per_block());
            let bytes = block.or_insert_with(|| vec![0; sb.block_size() as usize]);
            let at = (index % sb.inodes_per_block()) as usize * usize::from(sb.inode_size());
            bytes[at..at + usize::from(sb.inode_size())].copy_from_slice(inode.as_bytes());
        }
        let used: u32 = bits.iter().map(|byte| byte.count_ones()).sum();
        desc.set_free_inodes(per_group - used);
        desc.set_used_dirs(dirs);
        desc.set_itable_unused(per_group - end);
        if end == 0 {
            desc.set_flags(desc.flags() | INODE_UNINIT);
            desc.set_inode_bitmap_csum(0);
            return Ok(());
        }
        desc.set_flags(desc.flags() & !INODE_UNINIT);
        set_bits(&mut bits, per_group, 8 * sb.block_size() - per_group);
        if sb.has_metadata_csum() {
            desc.set_inode_bitmap_csum(bitmap_checksum(sb, &bits, (per_group / 8) as usize));
        }
        self.partial.blocks.insert(desc.inode_bitmap(), bits.into());
        for index in 0..end.div_ceil(sb.inodes_per_block()) {
            let block = desc.inode_table().offset(index.into());
            match blocks.remove(&index) {
                Some(bytes) => {
                    self.partial.blocks.insert(block, bytes.into());
                }
                None => self.partial.zeros.push(block),
            }
        }
        Ok(())
    }
}

/// The blocks of a folder with these names.
fn entries(format: &DirFormat, own: Ino, parent: &ParentDir) -> Vec<Vec<u8>> {
    let folder = FileKind::Directory.dirent_type();
    let dots = [(&b"."[..], own, folder), (&b".."[..], parent.parent, folder)];
    let names = parent.entries.iter().map(|(name, entry)| (&name[..], entry.ino, entry.kind.dirent_type()));
    let (mut blocks, mut packer, mut used) = (Vec::new(), Packer::new(format, &[]), 0);
    for (name, ino, file_type) in dots.into_iter().chain(names) {
        used += entry_bytes(name.len());
        if used > format.entries_end() {
            blocks.push(std::mem::replace(&mut packer, Packer::new(format, &[])).finish());
            used = entry_bytes(name.len());
        }
        packer.push(&DirEntry { ino, file_type, name });
    }
    blocks.push(packer.finish());
    blocks
}

/// Removes the inline entries of a folder from its inode.
fn drop_inline(inode: &mut Inode) {
    let area = inode.xattr_area();
    let mut list = Vec::new();
    for entry in xattr::entries_in_body(area).into_iter().flatten().flatten() {
        let is_rest = entry.index == xattr::index::SYSTEM && entry.name == REST;
        if let (Value::Here(value), false) = (entry.value, is_rest) {
            list.push(Attribute { index: entry.index, name: entry.name.to_vec(), value: value.to_vec() });
        }
    }
    xattr::write_body(inode.xattr_area_mut(), &list);
}
