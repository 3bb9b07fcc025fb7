//! Step 1: the superblock, the group descriptors, and the positions of the fixed metadata.

use xact_layout::group::INODE_UNINIT;
use xact_layout::superblock::STATE_ERRORS;
use xact_types::{GroupNr, Result, Run, Site};

use super::Checker;

impl Checker<'_> {
    pub(crate) fn check_fixed(&mut self) -> Result<()> {
        let sb = &self.volume.sb;
        let checks = [
            (sb.free_blocks_count() > sb.blocks_count(), "more free blocks than blocks"),
            (sb.reserved_blocks_count() > sb.blocks_count() / 2, "more than half of the blocks are reserved"),
            (sb.free_inodes_count() > sb.inodes_count(), "more free inodes than inodes"),
        ];
        for (wrong, what) in checks {
            if wrong {
                self.report.problem(Site::Superblock, what);
            }
        }
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
            self.used.claim(Run { start: xact_types::BlockNr(0), len: 1 });
        }
        for number in 0..sb.group_count() {
            self.check_group(GroupNr(number));
        }
        Ok(())
    }

    fn check_group(&mut self, group: GroupNr) {
        let sb = &self.volume.sb;
        let desc = &self.volume.descs[group.0 as usize];
        let site = Site::Group(group);
        if !desc.checksum_matches(sb, group) {
            self.report.problem(site, "checksum does not match");
        }
        if sb.has_group_csum() && !desc.has_flag(INODE_UNINIT) && desc.itable_unused() > sb.inodes_per_group()
        {
            self.report.problem(site, "more unused inodes than inodes");
        }
        let start = sb.group_start(group);
        let base = sb.base_meta_blocks(group).min(sb.blocks_in_group(group));
        let parts = [
            (start, base, "superblock and descriptors"),
            (desc.block_bitmap(), 1, "block bitmap"),
            (desc.inode_bitmap(), 1, "inode bitmap"),
            (desc.inode_table(), sb.inode_table_blocks(), "inode table"),
        ];
        for (start, len, what) in parts.into_iter().filter(|part| part.1 > 0) {
            if !sb.contains(start, len.into()) {
                self.report.problem(site, format!("{what} lies outside the volume"));
            } else if let Some(block) = self.used.claim(Run { start, len }) {
                self.report.problem(site, format!("{what} shares {block} with other metadata"));
            }
        }
    }
}
