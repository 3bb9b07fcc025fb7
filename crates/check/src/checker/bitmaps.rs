//! Step 5: compares bitmaps and counts with the findings of the other steps.

use xact_layout::group::{BLOCK_UNINIT, INODE_UNINIT, bitmap_checksum, bitmap_csum_matches};
use xact_types::{BlockNr, GroupNr, Result, Site};

use super::Checker;
use super::found::DIRECTORY_TYPE;

/// The counts found for a group.
#[derive(Default)]
struct Counted {
    free_blocks: u32,
    free_inodes: u32,
    directories: u32,
}

/// A bitmap and what it should be.
struct Compared<'b> {
    block: BlockNr,
    kind: &'static str,
    says: &'b [u8],
    is: &'b [u8],
    /// The number of bits that stand for something.
    len: u32,
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
        let is = self.used.bitmap(start, len);
        counted.free_blocks = len - count_ones(&is);
        let uninit = sb.has_group_csum() && desc.has_flag(BLOCK_UNINIT);
        if uninit || !sb.contains(desc.block_bitmap(), 1) {
            // It stands for a group with nothing but fixed metadata.
            if uninit && len - counted.free_blocks > self.fixed_blocks_within(group) {
                let what = "says that its block bitmap was never written, and has blocks in use";
                self.report.problem(Site::Group(group), what);
            }
            return Ok(());
        }
        let bytes = self.volume.block(desc.block_bitmap())?;
        let sum = bitmap_checksum(sb, &bytes, (sb.clusters_per_group() / 8) as usize);
        let sum_fits = !sb.has_metadata_csum() || bitmap_csum_matches(sb, desc.block_bitmap_csum(), sum);
        let block = desc.block_bitmap();
        let compared = Compared { block, kind: "block", says: &bytes, is: &is, len, sum_fits };
        self.report_bitmap(group, &compared, |index| start.offset(index.into()).to_string());
        Ok(())
    }

    fn check_inode_bitmap(&mut self, group: GroupNr, counted: &mut Counted) -> Result<()> {
        let sb = &self.volume.sb;
        let desc = &self.volume.descs[group.0 as usize];
        let len = sb.inodes_per_group();
        let mut is = vec![0; len.div_ceil(8) as usize];
        for (index, seen) in self.seen.of_group(group).iter().enumerate().filter(|(_, seen)| seen.used) {
            is[index / 8] |= 1 << (index % 8);
            counted.directories += u32::from(seen.file_type == DIRECTORY_TYPE);
        }
        counted.free_inodes = len - count_ones(&is);
        let uninit = sb.has_group_csum() && desc.has_flag(INODE_UNINIT);
        if uninit || !sb.contains(desc.inode_bitmap(), 1) {
            return Ok(());
        }
        let bytes = self.volume.block(desc.inode_bitmap())?;
        let sum = bitmap_checksum(sb, &bytes, (len / 8) as usize);
        let sum_fits = !sb.has_metadata_csum() || bitmap_csum_matches(sb, desc.inode_bitmap_csum(), sum);
        let block = desc.inode_bitmap();
        let compared = Compared { block, kind: "inode", says: &bytes, is: &is, len, sum_fits };
        self.report_bitmap(group, &compared, |index| sb.inode_at(group, index).to_string());
        Ok(())
    }

    /// Reports wrong bits, and bits behind the last that are not set. `name` is what a bit stands
    /// for.
    fn report_bitmap(&mut self, group: GroupNr, compared: &Compared<'_>, name: impl Fn(u32) -> String) {
        let Compared { block, kind, says, is, len, sum_fits } = *compared;
        let site = Site::Block(block);
        let whole = (len / 8) as usize;
        let is_equal =
            says[..whole] == is[..whole] && (8 * whole as u32..len).all(|at| bit(says, at) == bit(is, at));
        if !is_equal {
            let wrong: Vec<u32> = (0..len).filter(|&at| bit(says, at) != bit(is, at)).collect();
            let (count, first) = (wrong.len(), name(wrong[0]));
            let what =
                format!("{kind} bitmap of {group} is wrong for {count} {kind}s, the first of them {first}");
            self.report.problem(site, what);
        }
        let behind = len.div_ceil(8);
        let is_filled = (len..8 * behind).all(|at| bit(says, at))
            && says[behind as usize..].iter().all(|&byte| byte == 0xFF);
        if !is_filled {
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

fn count_ones(bytes: &[u8]) -> u32 {
    bytes.iter().map(|byte| byte.count_ones()).sum()
}

fn bit(bytes: &[u8], index: u32) -> bool {
    bytes[(index / 8) as usize] >> (index % 8) & 1 != 0
}
