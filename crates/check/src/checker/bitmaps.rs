//! Step 5: compares bitmaps and counts with the findings of the other steps.

use xact_layout::group::{BLOCK_UNINIT, INODE_UNINIT, bitmap_checksum, bitmap_csum_matches};
use xact_types::{BlockNr, GroupNr, Result, Site};

use super::Checker;

/// The counts found for a group.
#[derive(Default)]
struct Counted {
    free_blocks: u32,
    free_inodes: u32,
    directories: u32,
}

/// The findings of the comparison of a bitmap with its group.
struct CheckedBitmap {
    block: BlockNr,
    /// The number of wrong bits, and what the first one stands for.
    wrong: usize,
    first: Option<String>,
    sum_fits: bool,
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
        let first = wrong.first().map(|&index| format!("block {}", start.0 + u64::from(index)));
        let sum = bitmap_checksum(sb, &bytes, (sb.clusters_per_group() / 8) as usize);
        let sum_fits = !sb.has_metadata_csum() || bitmap_csum_matches(sb, desc.block_bitmap_csum(), sum);
        let checked = CheckedBitmap { block: desc.block_bitmap(), wrong: wrong.len(), first, sum_fits };
        self.report_bitmap(group, "block", checked, &bytes, len);
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
        let first = wrong.first().map(|&index| sb.inode_at(group, index).to_string());
        let sum = bitmap_checksum(sb, &bytes, (len / 8) as usize);
        let sum_fits = !sb.has_metadata_csum() || bitmap_csum_matches(sb, desc.inode_bitmap_csum(), sum);
        let checked = CheckedBitmap { block: desc.inode_bitmap(), wrong: wrong.len(), first, sum_fits };
        self.report_bitmap(group, "inode", checked, &bytes, len);
        Ok(())
    }

    /// Reports what is wrong with a bitmap of `len` bits, and bits behind them that are not set.
    fn report_bitmap(&mut self, group: GroupNr, kind: &str, checked: CheckedBitmap, bytes: &[u8], len: u32) {
        let CheckedBitmap { block, wrong, first, sum_fits } = checked;
        let site = Site::Block(block);
        if let Some(first) = first {
            let what =
                format!("{kind} bitmap of {group} is wrong for {wrong} {kind}s, the first of them {first}");
            self.report.problem(site, what);
        }
        if !(len..8 * self.volume.sb.block_size()).all(|index| bit(bytes, index)) {
            self.report.problem(site, format!("{kind} bitmap of {group} has free {kind}s behind the last"));
        }
        if !sum_fits {
            self.report.problem(site, format!("checksum of the {kind} bitmap of {group} does not match"));
        }
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
