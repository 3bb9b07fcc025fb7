//! The uses of blocks, which `xact journal` shows for the copies in a log.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use xact_device::BlockDevice;
use xact_layout::inode::flag;
use xact_layout::superblock::Superblock;
use xact_types::{BlockNr, GroupNr, Ino, Result};

use crate::checker::Checker;
use crate::replay::replayed;
use crate::report::Report;
use crate::volume::Volume;

/// The use of a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Use {
    Superblock,
    GroupDescriptors,
    BlockBitmap(GroupNr),
    InodeBitmap(GroupNr),
    /// Part of an inode table: its first and last inode.
    Inodes(Ino, Ino),
    /// A node of an extent tree, or an array of pointers.
    Map(Ino),
    Directory(Ino),
    /// Target of a symbolic link.
    Link(Ino),
    Attributes(Ino),
    /// File data.
    Data(Ino),
    /// Not in use.
    Free,
}

/// Finds the uses of `wanted` on the volume, as after the replay of its log. On a damaged volume,
/// finds as many as it can.
pub fn uses(device: Arc<dyn BlockDevice>, wanted: &BTreeSet<BlockNr>) -> Result<BTreeMap<BlockNr, Use>> {
    let mut report = Report::default();
    let volume = Volume::open(replayed(device, &mut report)?.device)?;
    let mut found = BTreeMap::new();
    for &block in wanted {
        found.insert(block, fixed_use(&volume, block).unwrap_or(Use::Free));
    }
    let inodes = volume.sb.inodes_count();
    let mut progress = |_: &'static str, _: f64| ();
    let mut checker = Checker::new(&volume, report, &mut progress);
    for number in 1..=inodes {
        let Some(inode) = volume.inode(Ino(number))? else { continue };
        if inode.mode() == 0 || (inode.links_count() == 0 && inode.dtime() != 0) {
            continue;
        }
        let ino = Ino(number);
        let contents = match () {
            () if inode.is_directory() => Use::Directory(ino),
            () if inode.is_symlink() => Use::Link(ino),
            () => Use::Data(ino),
        };
        let mut note = |block: BlockNr, of: Use| {
            if let Some(old) = found.get_mut(&block).filter(|old| **old == Use::Free) {
                *old = of;
            }
        };
        note(BlockNr(inode.xattr_block()), Use::Attributes(ino));
        let maps = inode.is_regular() || inode.is_directory() || inode.is_symlink();
        if !maps || inode.flags() & flag::INLINE_DATA != 0 || (inode.is_symlink() && inode.size() < 60) {
            continue;
        }
        let Some(mapped) = checker.walk_map(ino, &inode, true)? else { continue };
        for node in &mapped.nodes {
            note(*node, Use::Map(ino));
        }
        for extent in &mapped.extents {
            let past = extent.run.end();
            let inside: Vec<BlockNr> = wanted.range(extent.run.start..past).copied().collect();
            inside.into_iter().for_each(|block| note(block, contents));
        }
    }
    Ok(found)
}

pub(crate) fn fixed_use(volume: &Volume, block: BlockNr) -> Option<Use> {
    let sb: &Superblock = &volume.sb;
    if block == sb.own_block() {
        return Some(Use::Superblock);
    }
    let group = sb.group_of(block);
    if group.0 >= sb.group_count() {
        return None;
    }
    let base = sb.base_meta_blocks(group);
    if block.0 < sb.group_start(group).0 + u64::from(base) {
        return Some(Use::GroupDescriptors);
    }
    // With flex groups they may be in another group than their own.
    volume.descs.iter().zip(0..).find_map(|(desc, number)| {
        let table = desc.inode_table();
        if desc.block_bitmap() == block {
            return Some(Use::BlockBitmap(GroupNr(number)));
        }
        if desc.inode_bitmap() == block {
            return Some(Use::InodeBitmap(GroupNr(number)));
        }
        let at = block.0.checked_sub(table.0).filter(|at| *at < u64::from(sb.inode_table_blocks()))?;
        let first = at as u32 * sb.inodes_per_block();
        let last = (first + sb.inodes_per_block()).min(sb.inodes_per_group()) - 1;
        Some(Use::Inodes(sb.inode_at(GroupNr(number), first), sb.inode_at(GroupNr(number), last)))
    })
}
