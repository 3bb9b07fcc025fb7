//! Step 5: compares bitmaps and counts with the findings of the other steps.

use xact_layout::group::{BLOCK_UNINIT, INODE_UNINIT, bitmap_checksum, bitmap_csum_matches};
use xact_types::{GroupNr, Result, Site};

use super::Checker;

/// The counts found for a group.
#[derive(Default)]
struct Counted {
    free_blocks: u32,
    free_inodes: u32,
    directories: u32,
}

impl Checker<'_> {
    pub(crate) fn check_bitmaps(&mut self) -> Result<()> {
        let groups = self.volume.sb.group_count();
        let (mut free_blocks, mut free_inodes) = (0u64, 0u64);
        for number in 0..groups {
            if number % 16 == 0 {
                (self.progress)("bitmaps", f64::from(number) / f64::from(groups));
            }
            let group = GroupNr(number);
            let mut counted = Counted::default();
            self.check_block_bitmap(group, &mut counted)?;
            self.check_inode_bitmap(group, &mut counted)?;
            self.check_counts(group, &counted);
            free_blocks += u64::from(counted.free_blocks);
            free_inodes += u64::from(counted.free_inodes);
        }
        let sb = &self.volume.sb;
        let (sb_blocks, sb_inodes) = (sb.free_blocks_count(), u64::from(sb.free_inodes_count()));
        for (what, says, is) in [("blocks", sb_blocks, free_blocks), ("inodes", sb_inodes, free_inodes)] {
            if says == is {
                continue;
            }
            let text = format!("counts {says} free {what}, and there are {is}");
            // While a volume is mounted these counts lag behind those of the groups, and no program
            // uses them. For a generation of a mounted volume they are expected to be old.
            match (self.report.is_replayed, self.in_use) {
                (_, true) => {}
                (true, _) => self.report.remark(format!("the superblock {text}, as a crash leaves it")),
                (false, _) => self.report.problem(Site::Superblock, text),
            }
        }
        self.report.totals.used_blocks = self.used.count();
        self.report.totals.used_inodes = u64::from(self.volume.sb.inodes_count()) - free_inodes;
        Ok(())
    }

    fn check_block_bitmap(&mut self, group: GroupNr, counted: &mut Counted) -> Result<()> {
        let sb = &self.volume.sb;
        let desc = &self.volume.descs[group.0 as usize];
        let (start, len) = (sb.group_start(group), sb.blocks_in_group(group));
        let used = |index: u32| self.used.contains(start.0 + u64::from(index));
        counted.free_blocks = (0..len).filter(|&index| !used(index)).count() as u32;
        let uninit = sb.has_group_csum() && desc.has_flag(BLOCK_UNINIT);
        if uninit || !sb.contains(desc.block_bitmap(), 1) {
            // It stands for a group with nothing but fixed metadata, as the count of free blocks
            // shows.
            return Ok(());
        }
        let bytes = self.volume.block(desc.block_bitmap())?;
        let wrong: Vec<u32> = (0..len).filter(|&index| used(index) != bit(&bytes, index)).collect();
        let padded = (len..8 * sb.block_size()).all(|index| bit(&bytes, index));
        let sum = bitmap_checksum(sb, &bytes, (sb.clusters_per_group() / 8) as usize);
        let sum_fits = !sb.has_metadata_csum() || bitmap_csum_matches(sb, desc.block_bitmap_csum(), sum);
        let site = Site::Block(desc.block_bitmap());
        if let Some(first) = wrong.first() {
            let what = format!(
                "block bitmap of {group} is wrong for {} blocks, the first of them block {}",
                wrong.len(),
                start.0 + u64::from(*first)
            );
            self.report.problem(site, what);
        }
        if !padded {
            self.report.problem(site, format!("block bitmap of {group} has free blocks behind the last"));
        }
        if !sum_fits {
            self.report.problem(site, format!("checksum of the block bitmap of {group} does not match"));
        }
        Ok(())
    }

    fn check_inode_bitmap(&mut self, group: GroupNr, counted: &mut Counted) -> Result<()> {
        let sb = &self.volume.sb;
        let desc = &self.volume.descs[group.0 as usize];
        let len = sb.inodes_per_group();
        let seen = |index: u32| self.seen[sb.inode_at(group, index).0 as usize];
        counted.free_inodes = (0..len).filter(|&index| !seen(index).used).count() as u32;
        counted.directories =
            (0..len).filter(|&index| seen(index).used && seen(index).file_type == 2).count() as u32;
        let uninit = sb.has_group_csum() && desc.has_flag(INODE_UNINIT);
        if uninit || !sb.contains(desc.inode_bitmap(), 1) {
            return Ok(());
        }
        let bytes = self.volume.block(desc.inode_bitmap())?;
        let wrong: Vec<u32> = (0..len).filter(|&index| seen(index).used != bit(&bytes, index)).collect();
        let padded = (len..8 * sb.block_size()).all(|index| bit(&bytes, index));
        let sum = bitmap_checksum(sb, &bytes, (len / 8) as usize);
        let sum_fits = !sb.has_metadata_csum() || bitmap_csum_matches(sb, desc.inode_bitmap_csum(), sum);
        let site = Site::Block(desc.inode_bitmap());
        if let Some(first) = wrong.first() {
            let first = sb.inode_at(group, *first);
            let what = format!(
                "inode bitmap of {group} is wrong for {} inodes, the first of them {first}",
                wrong.len()
            );
            self.report.problem(site, what);
        }
        if !padded {
            self.report.problem(site, format!("inode bitmap of {group} has free inodes behind the last"));
        }
        if !sum_fits {
            self.report.problem(site, format!("checksum of the inode bitmap of {group} does not match"));
        }
        Ok(())
    }

    fn check_counts(&mut self, group: GroupNr, counted: &Counted) {
        let desc = &self.volume.descs[group.0 as usize];
        let counts = [
            ("free blocks", desc.free_blocks(), counted.free_blocks),
            ("free inodes", desc.free_inodes(), counted.free_inodes),
            ("directories", desc.used_dirs(), counted.directories),
        ];
        for (what, says, is) in counts {
            if says != is {
                self.report.problem(Site::Group(group), format!("counts {says} {what}, and there are {is}"));
            }
        }
    }
}

fn bit(bytes: &[u8], index: u32) -> bool {
    bytes[(index / 8) as usize] >> (index % 8) & 1 != 0
}
