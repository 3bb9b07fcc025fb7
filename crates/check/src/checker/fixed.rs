//! Step 1: the superblock, the group descriptors, and the positions of the fixed metadata.

use xact_layout::feature::{compat, incompat, ro_compat};
use xact_layout::group::{BLOCK_UNINIT, GroupDesc, INODE_UNINIT};
use xact_layout::superblock::{STATE_ERRORS, Superblock};
use xact_types::{BlockNr, GroupNr, Result, Run, Site};

use super::Checker;

impl Checker<'_> {
    pub(crate) fn check_fixed(&mut self) -> Result<()> {
        let sb = &self.volume.sb;
        for (_, what) in superblock_problems(sb).into_iter().filter(|(wrong, _)| *wrong) {
            self.report.problem(Site::Superblock, what);
        }
        let sb = &self.volume.sb;
        if sb.state() & STATE_ERRORS != 0 {
            let times = sb.error_count();
            let last = String::from_utf8_lossy(sb.last_error_text()).into_owned();
            let text = match (last.is_empty(), sb.last_error_block()) {
                (true, _) => "errors were noted in use".into(),
                (_, 0) => format!("{times} errors were noted in use; the last is '{last}'"),
                (_, block) => {
                    format!("{times} errors were noted in use; the last is '{last}', of block {block}")
                }
            };
            self.report.remark(text);
        }
        if sb.first_data_block() > 0 {
            // The boot block is in no group, and no file may claim it.
            self.used.claim(Run { start: BlockNr(0), len: 1 });
        }
        for number in 0..sb.group_count() {
            self.check_group(GroupNr(number));
        }
        Ok(())
    }

    /// Blocks of a group that its own fixed metadata fills, in a group without a block bitmap.
    pub(crate) fn fixed_blocks_within(&self, group: GroupNr) -> u32 {
        let sb = &self.volume.sb;
        let desc = &self.volume.descs[group.0 as usize];
        let len = sb.blocks_in_group(group);
        let own = sb.group_start(group).0..sb.group_start(group).0 + u64::from(len);
        let table = desc.inode_table().0;
        let table_end = table.saturating_add(sb.inode_table_blocks().into());
        let of_table = own.end.min(table_end).saturating_sub(own.start.max(table)) as u32;
        let bitmaps = [desc.block_bitmap(), desc.inode_bitmap()];
        let of_bitmaps = bitmaps.iter().filter(|block| own.contains(&block.0)).count() as u32;
        sb.base_meta_blocks(group).min(len) + of_bitmaps + of_table
    }

    fn check_group(&mut self, group: GroupNr) {
        let sb = &self.volume.sb;
        let desc = &self.volume.descs[group.0 as usize];
        let site = Site::Group(group);
        if !desc.checksum_matches(sb, group) {
            self.report.problem(site, "checksum does not match");
        }
        for (_, what) in group_problems(sb, group, desc).into_iter().filter(|(wrong, _)| *wrong) {
            self.report.problem(site, what);
        }
        // Without `flex_bg` a group has its bitmaps and inode table within itself.
        let own_end = sb.group_start(group).0 + u64::from(sb.blocks_in_group(group));
        let own = (!sb.has_incompat(incompat::FLEX_BG)).then(|| sb.group_start(group).0..own_end);
        let start = sb.group_start(group);
        let base = sb.base_meta_blocks(group).min(sb.blocks_in_group(group));
        let parts = [
            (start, base, "superblock and descriptors"),
            (desc.block_bitmap(), 1, "block bitmap"),
            (desc.inode_bitmap(), 1, "inode bitmap"),
            (desc.inode_table(), sb.inode_table_blocks(), "inode table"),
        ];
        for (start, len, what) in parts.into_iter().filter(|part| part.1 > 0) {
            let is_own =
                |own: &std::ops::Range<u64>| own.start <= start.0 && start.0 + u64::from(len) <= own.end;
            if !sb.contains(start, len.into()) {
                self.report.problem(site, format!("{what} lies outside the volume"));
            } else if !own.as_ref().is_none_or(is_own) {
                self.report.problem(site, format!("{what} lies outside the group"));
            } else if let Some(block) = self.used.claim(Run { start, len }) {
                self.report.problem(site, format!("{what} shares {block} with other metadata"));
            }
        }
    }
}

/// Impossible values of a superblock, beyond those that `Superblock::decode` refuses
/// (`check_super_block` of e2fsck).
fn superblock_problems(sb: &Superblock) -> Vec<(bool, &'static str)> {
    /// `s_free_inodes_count` and the like of a group have 16 bits in old descriptors.
    const PER_GROUP_MAX: u32 = 1 << 16;
    let per_block = sb.inodes_per_block();
    let inodes_max =
        per_block.saturating_mul(sb.blocks_per_group().saturating_sub(4)).min(PER_GROUP_MAX - per_block);
    let desc_size = sb.desc_size_raw();
    let extra_max = sb.inode_size() - 128;
    let is_extra = |size: u16| size == 0 || (4..=extra_max).contains(&size) && size.is_multiple_of(4);
    let has_extra = extra_max > 0;
    let sums = sb.has_metadata_csum();
    vec![
        (sb.free_blocks_count() > sb.blocks_count(), "more free blocks than blocks"),
        (sb.reserved_blocks_count() > sb.blocks_count() / 2, "more than half of the blocks are reserved"),
        (sb.free_inodes_count() > sb.inodes_count(), "more free inodes than inodes"),
        (sb.inodes_per_group() > inodes_max, "too many inodes per group"),
        (
            desc_size > 1024 || desc_size & desc_size.wrapping_sub(1) != 0,
            "size of the group descriptors is out of range",
        ),
        (has_extra && !is_extra(sb.min_extra_isize()), "impossible minimum of the extra size of inodes"),
        (has_extra && !is_extra(sb.want_extra_isize()), "impossible extra size of new inodes"),
        (
            sums && sb.has_ro_compat(ro_compat::GDT_CSUM),
            "has the features metadata_csum and uninit_bg, which exclude each other",
        ),
        (
            !sums && sb.has_incompat(incompat::CSUM_SEED),
            "has the feature metadata_csum_seed without metadata_csum",
        ),
        (
            sb.has_incompat(incompat::SIXTY_FOUR_BIT) && !sb.has_incompat(incompat::EXTENTS),
            "has the feature 64bit without extents",
        ),
        (
            sb.has_compat(compat::RESIZE_INODE) && sb.has_incompat(incompat::META_BG),
            "has the features resize_inode and meta_bg, which exclude each other",
        ),
        (
            !sb.has_compat(compat::RESIZE_INODE) && sb.reserved_gdt_blocks() > 0,
            "reserves blocks for descriptors without the feature resize_inode",
        ),
        (
            sb.has_ro_compat(ro_compat::ORPHAN_PRESENT) && !sb.has_compat(compat::ORPHAN_FILE),
            "has the feature orphan_present without orphan_file",
        ),
    ]
}

/// Impossible values of a group descriptor, beyond the places of its parts.
fn group_problems(sb: &Superblock, group: GroupNr, desc: &GroupDesc) -> Vec<(bool, &'static str)> {
    let unused = desc.itable_unused();
    let has_sums = sb.has_group_csum();
    let is_uninit = desc.has_flag(BLOCK_UNINIT) || desc.has_flag(INODE_UNINIT);
    vec![
        (
            !has_sums && (is_uninit || unused > 0),
            "says that parts were never used, on a volume without checksums of groups",
        ),
        (
            desc.has_flag(BLOCK_UNINIT) && group.0 + 1 == sb.group_count(),
            "says of the last group that its block bitmap was never written",
        ),
        (
            has_sums && (unused > sb.inodes_per_group() || unused > desc.free_inodes()),
            "more unused inodes than free inodes",
        ),
    ]
}
