//! Inodes and blocks that the volume itself uses: the resize inode, the orphan file and the orphan
//! list, multi-mount protection.

use xact_layout::feature::{compat, incompat, ro_compat};
use xact_layout::inode::{flag, inode_seed, mode};
use xact_layout::mmp::{MMP_BYTES, MmpBlock, SEQUENCE_CHECKING, SEQUENCE_CLEAN, SEQUENCE_MAX};
use xact_layout::{get_u32, orphan};
use xact_types::{BlockNr, GroupNr, Ino, Result, Run, Site};

use super::Checker;

/// The index in `i_block` of the list of reserved descriptor blocks.
const DOUBLE_INDIRECT: usize = 13;

impl Checker<'_> {
    pub(crate) fn check_special(&mut self) -> Result<()> {
        let inode = self.volume.inode(Ino::RESIZE)?;
        if self.volume.sb.has_compat(compat::RESIZE_INODE) {
            self.check_resize_inode()?;
        } else if inode.is_some_and(|inode| inode.block_area().iter().any(|&byte| byte != 0)) {
            self.report.problem(Site::Inode(Ino::RESIZE), "has blocks on a volume without resize_inode");
        }
        self.check_orphans()?;
        if self.volume.sb.has_incompat(incompat::MMP) {
            self.check_mmp()?;
        }
        Ok(())
    }

    /// The blocks reserved for more descriptors: one list of those in the first group, each of
    /// which lists its copies in the groups with backups.
    fn check_resize_inode(&mut self) -> Result<()> {
        let sb = &self.volume.sb;
        let site = Site::Inode(Ino::RESIZE);
        let Some(inode) = self.volume.inode(Ino::RESIZE)? else { return Ok(()) };
        let list = BlockNr(get_u32(inode.block_area(), 4 * DOUBLE_INDIRECT).into());
        let reserved = u32::from(sb.reserved_gdt_blocks());
        if list.0 == 0 {
            if reserved > 0 {
                self.report.problem(site, "the resize inode lists no reserved blocks");
            }
            return Ok(());
        }
        let others =
            (0..15).any(|slot| slot != DOUBLE_INDIRECT && get_u32(inode.block_area(), 4 * slot) != 0);
        let is_map = inode.flags() & (flag::EXTENTS | flag::INLINE_DATA) == 0;
        if !sb.contains(list, 1)
            || others
            || !is_map
            || inode.mode() & mode::TYPE_MASK != mode::REGULAR
            || inode.links_count() == 0
        {
            self.report.problem(site, "the resize inode is damaged");
            return Ok(());
        }
        if let Some(block) = self.used.claim(Run { start: list, len: 1 }) {
            self.report.problem(site, format!("claims {block}, which is used otherwise"));
        }
        let sb = &self.volume.sb;
        let bytes = self.volume.block(list)?;
        let per_array = sb.block_size() / 4;
        let first = sb.own_block().0 + 1 + u64::from(sb.gdt_blocks());
        let copies: Vec<GroupNr> =
            (1..sb.group_count()).map(GroupNr).filter(|&group| sb.has_backup(group)).collect();
        let mut expected = vec![0u64; per_array as usize];
        for i in 0..u64::from(reserved) {
            expected[((u64::from(sb.gdt_blocks()) + i) % u64::from(per_array)) as usize] = first + i;
        }
        let mut is_whole = lists(&bytes, &expected);
        if !is_whole {
            self.report.problem(Site::Block(list), "does not list the blocks reserved for descriptors");
        }
        for block in first..first + u64::from(reserved) {
            let mut expected = vec![0u64; per_array as usize];
            for (n, group) in copies.iter().enumerate().take(per_array as usize) {
                let sb = &self.volume.sb;
                expected[n] = block + sb.group_start(*group).0 - sb.group_start(GroupNr(0)).0;
            }
            if !self.volume.sb.contains(BlockNr(block), 1) {
                self.report
                    .problem(Site::Superblock, "more blocks are reserved for descriptors than there are");
                break;
            }
            let bytes = self.volume.block(BlockNr(block))?;
            if lists(&bytes, &expected) {
                continue;
            }
            is_whole = false;
            let what = "is reserved for descriptors and does not list its copies";
            // e2fsck compares a quarter of them. For the rest it only requires the same count of
            // numbers, of any blocks.
            let compared = block - first < u64::from(reserved) / 4;
            if compared || !self.lists_as_many(&bytes, &expected) {
                self.report.problem(Site::Block(BlockNr(block)), what);
            } else {
                self.report.remark(format!("{} {what}", BlockNr(block)));
            }
        }
        let listed = u64::from(reserved) * (1 + copies.len().min(per_array as usize) as u64);
        let (says, is) = (inode.sectors(&self.volume.sb), self.sectors(1 + listed));
        if is_whole && says != is {
            self.report.problem(site, format!("counts {says} sectors and has {is}"));
        }
        Ok(())
    }

    /// Whether a block lists as many block numbers as expected, all of them within the volume.
    fn lists_as_many(&self, bytes: &[u8], expected: &[u64]) -> bool {
        let numbers: Vec<u64> =
            bytes.chunks_exact(4).map(|word| get_u32(word, 0).into()).filter(|&number| number != 0).collect();
        numbers.len() == expected.iter().filter(|&&number| number != 0).count()
            && numbers.iter().all(|&number| self.volume.sb.contains(BlockNr(number), 1))
    }

    fn check_orphans(&mut self) -> Result<()> {
        let sb = &self.volume.sb;
        if sb.last_orphan() != 0 && !self.was_in_use() {
            let what =
                format!("inode {} waits for its deletion; mount the volume or recover it", sb.last_orphan());
            self.report.problem(Site::Superblock, what);
        }
        if !sb.has_compat(compat::ORPHAN_FILE) {
            return Ok(());
        }
        let ino = Ino(sb.orphan_file_inum());
        let Some(inode) = self.volume.inode(ino)? else {
            self.report.problem(Site::Superblock, "the orphan file's inode is out of range");
            return Ok(());
        };
        if !inode.size().is_multiple_of(sb.block_size().into()) {
            self.report.problem(Site::Inode(ino), "the orphan file has a part of a block");
        }
        let seed = inode_seed(sb, ino, inode.generation());
        let present = sb.has_ro_compat(ro_compat::ORPHAN_PRESENT);
        let blocks = (inode.size() / u64::from(sb.block_size())).min(1 << 13) as u32;
        let mapped = self.mapped_again(ino, &inode)?;
        for at in 0..blocks {
            let read = self.file_block(ino, &mapped, at);
            let Some((block, bytes)) = self.report.note(read)? else { return Ok(()) };
            let sound = orphan::verify(&bytes, &self.volume.sb, seed, block);
            if self.report.note(sound)?.is_none() {
                continue;
            }
            let entries = orphan::entries_per_block(bytes.len());
            if !self.was_in_use()
                && let Some(found) = (0..entries).find_map(|i| orphan::entry(&bytes, i))
            {
                let what = match present {
                    true => format!("{found} waits for its deletion; mount the volume or recover it"),
                    false => format!("the orphan file names {found}, and the volume was left cleanly"),
                };
                self.report.problem(Site::Block(block), what);
            }
        }
        Ok(())
    }

    fn check_mmp(&mut self) -> Result<()> {
        let block = BlockNr(self.volume.sb.mmp_block());
        if block <= self.volume.sb.own_block() || !self.volume.sb.contains(block, 1) {
            self.report.problem(Site::Superblock, "the mmp block lies outside the volume");
            return Ok(());
        }
        if let Some(block) = self.used.claim(Run { start: block, len: 1 }) {
            self.report
                .problem(Site::Superblock, format!("the mmp block is {block}, which is used otherwise"));
        }
        let bytes = self.volume.block(block)?;
        let bytes: &[u8; MMP_BYTES] = bytes[..MMP_BYTES].try_into().expect("blocks are not smaller");
        let mmp = self.report.note(MmpBlock::decode(bytes, &self.volume.sb, block))?;
        match mmp.map(|mmp| mmp.sequence()) {
            None | Some(SEQUENCE_CLEAN | ..=SEQUENCE_MAX) => {}
            Some(SEQUENCE_CHECKING) => {
                self.report.remark("the mmp block says that e2fsck has the volume".into());
            }
            Some(_) => self.report.problem(Site::Block(block), "the mmp block has an impossible sequence"),
        }
        Ok(())
    }
}

/// Whether a block lists exactly these block numbers.
fn lists(bytes: &[u8], expected: &[u64]) -> bool {
    bytes.chunks_exact(4).zip(expected).all(|(word, number)| u64::from(get_u32(word, 0)) == *number)
}
