//! Copies of the superblock and of the group descriptors: the check goes by one of them where the
//! primary ones are unusable.
//!
//! Nothing is written to the device. A copy is put into an overlay ([`xact_device::Overlay`]), as
//! e2fsck would write it, and every later step reads the volume through that. What the copies hold
//! of the volume's contents (free counts, parts that were never used) is as old as they are.

use std::sync::Arc;

use xact_device::{BlockDevice, Overlay};
use xact_layout::checksum::crc32c;
use xact_layout::feature::{compat, incompat};
use xact_layout::group::{GroupDesc, INODE_UNINIT};
use xact_layout::superblock::{SUPERBLOCK_BYTES, SUPERBLOCK_OFFSET, Superblock};
use xact_layout::{get_u32, put_u32};
use xact_types::{BlockNr, Error, GroupNr, Result, Site};

use crate::report::Report;

const LOG_BLOCK_SIZE_AT: usize = 0x18;
const BLOCKS_PER_GROUP_AT: usize = 0x20;
const CHECKSUM_AT: usize = 0x3FC;

/// Groups with copies on most volumes (`sparse_super`; `sparse_super2` has one in group 1).
const GROUPS: [u32; 8] = [1, 3, 5, 7, 9, 25, 27, 49];

/// Whether an error of opening a volume may come from its superblock alone.
pub(crate) fn is_of_superblock(error: &Error) -> bool {
    match error {
        Error::Corrupt(found) => found.site == Site::Superblock,
        // Without the magic number a device is not a volume.
        Error::Usage(_) => true,
        _ => false,
    }
}

/// A device with a usable superblock in the place of the unusable one, and what the check goes by,
/// as a phrase; `None` if there is none.
///
/// A superblock with nothing wrong but its checksum is newer than its copies. It is used as it is,
/// unless a copy says that the volume has another shape.
pub(crate) fn with_usable_superblock(
    device: &Arc<dyn BlockDevice>,
) -> Result<Option<(Arc<dyn BlockDevice>, String)>> {
    let copy = find(&**device)?;
    let own = any_superblock(&**device)?;
    let shape = |sb: &Superblock| {
        (sb.uuid(), sb.blocks_count(), sb.block_size(), sb.blocks_per_group(), sb.inodes_per_group())
    };
    let (mut sb, text) = match (own, copy) {
        (Some(own), copy) if copy.as_ref().is_none_or(|(copy, _)| shape(copy) == shape(&own)) => {
            (own, "checked as it is".to_owned())
        }
        (_, Some((mut copy, group))) => {
            copy.set_block_group_nr(0);
            if copy.has_compat(compat::HAS_JOURNAL)
                && copy.journal_inum() != 0
                && !copy.has_incompat(incompat::XACT_GENERATIONS)
            {
                // No copy says whether the log has changes that are not in their places. An empty
                // log is replayed as well.
                copy.set_feature_incompat(copy.feature_incompat() | incompat::RECOVER);
            }
            (copy, format!("checked by its copy in {group}"))
        }
        (_, None) => return Ok(None),
    };
    sb.seal();
    let overlay = Overlay::new(device.clone());
    overlay.write_at(sb.as_bytes(), SUPERBLOCK_OFFSET).map_err(|e| Error::io("reading the superblock", e))?;
    Ok(Some((Arc::new(overlay), text)))
}

fn find(device: &dyn BlockDevice) -> Result<Option<(Superblock, GroupNr)>> {
    let mut primary = [0; SUPERBLOCK_BYTES];
    if device.size_bytes() < SUPERBLOCK_OFFSET + SUPERBLOCK_BYTES as u64 {
        return Ok(None);
    }
    read(device, &mut primary, SUPERBLOCK_OFFSET)?;
    // The size of groups by the damaged one, and the sizes that mke2fs chooses.
    let says = (get_u32(&primary, LOG_BLOCK_SIZE_AT), get_u32(&primary, BLOCKS_PER_GROUP_AT));
    let usual = (0..=6).map(|log| (log, 8 * (1024 << log)));
    for (log, per_group) in std::iter::once(says).filter(|(log, _)| *log <= 6).chain(usual) {
        let block_size = 1024u64 << log;
        for group in GROUPS {
            let block = u64::from(log == 0) + u64::from(group) * u64::from(per_group);
            let at = block * block_size;
            if at.saturating_add(SUPERBLOCK_BYTES as u64) > device.size_bytes() {
                break;
            }
            let mut bytes = [0; SUPERBLOCK_BYTES];
            read(device, &mut bytes, at)?;
            // A copy says where it is, so the copy of a volume in a file is not mistaken for one.
            if let Ok(sb) = Superblock::decode(&bytes)
                && u32::from(sb.block_group_nr()) == group
                && sb.group_start(GroupNr(group)).0 * u64::from(sb.block_size()) == at
                && sb.blocks_count() * u64::from(sb.block_size()) <= device.size_bytes()
            {
                return Ok(Some((sb, GroupNr(group))));
            }
        }
    }
    Ok(None)
}

/// A device in which group descriptors that cannot be right are replaced by copies, each with a
/// problem. One can be right as long as bitmaps and an inode table may be where it says.
pub(crate) fn with_usable_descriptors(
    device: Arc<dyn BlockDevice>,
    report: &mut Report,
) -> Result<Arc<dyn BlockDevice>> {
    let Some(sb) = any_superblock(&*device)? else { return Ok(device) };
    if sb.has_incompat(incompat::XACT_GENERATIONS) {
        return Ok(device);
    }
    let size = usize::from(sb.desc_size());
    let overlay = Overlay::new(device.clone());
    let mut is_changed = false;
    for first in (0..sb.group_count()).step_by(sb.descs_per_block() as usize) {
        let groups = first..sb.group_count().min(first + sb.descs_per_block());
        let place = sb.desc_place(GroupNr(first)).0;
        let Some(mut bytes) = block(&*device, &sb, place)? else { continue };
        let mut wrong: Vec<(u32, usize)> = (groups.zip(0..).map(|(group, index)| (group, index * size)))
            .filter(|&(_, at)| !may_be_right(&sb, &bytes[at..at + size]))
            .collect();
        let damaged = wrong.len();
        for copy in copies(&sb, GroupNr(first), place) {
            if wrong.is_empty() {
                break;
            }
            let Some(from) = block(&*device, &sb, copy)? else { continue };
            wrong.retain(|&(group, at)| {
                let copied = &from[at..at + size];
                if !may_be_right(&sb, copied) {
                    return true;
                }
                let what = format!("places its bitmaps or inode table wrong; checked by its copy in {copy}");
                report.problem(Site::Group(GroupNr(group)), what);
                bytes[at..at + size].copy_from_slice(&refreshed(&sb, copied, GroupNr(group)));
                false
            });
        }
        if wrong.len() < damaged {
            is_changed = true;
            let written = overlay.write_at(&bytes, place.0 * u64::from(sb.block_size()));
            written.map_err(|e| Error::io("reading the group descriptors", e))?;
        }
    }
    Ok(if is_changed { Arc::new(overlay) } else { device })
}

/// The superblock in its own place, whatever its checksum is.
fn any_superblock(device: &dyn BlockDevice) -> Result<Option<Superblock>> {
    let mut bytes = [0; SUPERBLOCK_BYTES];
    if device.size_bytes() < SUPERBLOCK_OFFSET + SUPERBLOCK_BYTES as u64 {
        return Ok(None);
    }
    read(device, &mut bytes, SUPERBLOCK_OFFSET)?;
    let sb = Superblock::decode(&bytes).or_else(|_| {
        let sum = crc32c(!0, &bytes[..CHECKSUM_AT]);
        put_u32(&mut bytes, CHECKSUM_AT, sum);
        Superblock::decode(&bytes)
    });
    let fits = |sb: &Superblock| sb.blocks_count() * u64::from(sb.block_size()) <= device.size_bytes();
    Ok(sb.ok().filter(fits))
}

fn may_be_right(sb: &Superblock, bytes: &[u8]) -> bool {
    let desc = GroupDesc::new(bytes);
    let table = u64::from(sb.inode_table_blocks());
    let (blocks, inodes, first) = (desc.block_bitmap(), desc.inode_bitmap(), desc.inode_table());
    let is_inside = |start: BlockNr, len| start > sb.own_block() && sb.contains(start, len);
    let is_in_table = |block: BlockNr| (first.0..first.0.saturating_add(table)).contains(&block.0);
    is_inside(blocks, 1)
        && is_inside(inodes, 1)
        && is_inside(first, table)
        && blocks != inodes
        && !is_in_table(blocks)
        && !is_in_table(inodes)
}

/// The places of copies of a block of descriptors: with `meta_bg` in the second and the last of the
/// groups that it describes, else after each copy of the superblock.
fn copies(sb: &Superblock, first: GroupNr, place: BlockNr) -> Vec<BlockNr> {
    let per_block = sb.descs_per_block();
    let last = GroupNr(sb.group_count().min(first.0 + per_block) - 1);
    let after_superblock = |group: GroupNr| u64::from(sb.has_backup(group));
    if place == sb.own_block().offset(1 + u64::from(first.0 / per_block)) {
        let backups = (1..sb.group_count()).map(GroupNr).filter(|&group| sb.has_backup(group));
        backups
            .map(|group| sb.group_start(group).offset(1 + u64::from(first.0 / per_block)))
            .take(GROUPS.len())
            .collect()
    } else {
        [GroupNr(first.0 + 1), last]
            .into_iter()
            .filter(|group| group.0 > first.0 && group.0 <= last.0)
            .map(|group| sb.group_start(group).offset(after_superblock(group)))
            .collect()
    }
}

/// A copy without what it says about inodes that were never used, which is old (as libext2fs does).
fn refreshed(sb: &Superblock, bytes: &[u8], group: GroupNr) -> Vec<u8> {
    let mut desc = GroupDesc::new(bytes);
    if sb.has_group_csum() {
        desc.set_flags(desc.flags() & !INODE_UNINIT);
        desc.set_itable_unused(0);
        desc.seal(sb, group);
    }
    desc.as_bytes().to_vec()
}

/// A block; `None` if it lies outside of the volume.
fn block(device: &dyn BlockDevice, sb: &Superblock, block: BlockNr) -> Result<Option<Vec<u8>>> {
    if !sb.contains(block, 1) {
        return Ok(None);
    }
    let mut bytes = vec![0; sb.block_size() as usize];
    read(device, &mut bytes, block.0 * u64::from(sb.block_size()))?;
    Ok(Some(bytes))
}

fn read(device: &dyn BlockDevice, bytes: &mut [u8], at: u64) -> Result<()> {
    device.read_at(bytes, at).map_err(|e| Error::io("reading the superblock", e))
}
