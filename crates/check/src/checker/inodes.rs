//! Step 2: every inode of every table: which are in use, and for what.

use xact_layout::group::INODE_UNINIT;
use xact_layout::inode::{Inode, flag, mode};
use xact_types::{GroupNr, Ino, Result, Run, Site};

use super::Checker;
use super::found::InodeFindings;
use super::reserved::BAD_BLOCKS;

/// Blocks of an inode table that are read at once.
const PIECE_BLOCKS: u32 = 64;

impl Checker<'_> {
    pub(crate) fn check_inodes(&mut self) -> Result<()> {
        self.check_bad_blocks()?;
        let groups = self.volume.sb.group_count();
        for number in 0..groups {
            (self.progress)("inodes", f64::from(number) / f64::from(groups));
            self.check_table(GroupNr(number))?;
        }
        for ino in (1..self.volume.sb.first_inode().0).map(Ino) {
            // Reserved numbers are in use, whatever their inodes hold.
            let seen = self.seen.entry(ino);
            seen.used = true;
            seen.internal |= ino != Ino::ROOT;
        }
        self.check_large_files();
        Ok(())
    }

    fn check_table(&mut self, group: GroupNr) -> Result<()> {
        let sb = &self.volume.sb;
        let desc = &self.volume.descs[group.0 as usize];
        let unused = match sb.has_group_csum() {
            true if desc.has_flag(INODE_UNINIT) => sb.inodes_per_group(),
            true => desc.itable_unused().min(sb.inodes_per_group()),
            false => 0,
        };
        let count = sb.inodes_per_group() - unused;
        let (table, blocks) = (desc.inode_table(), count.div_ceil(sb.inodes_per_block()));
        if !sb.contains(table, sb.inode_table_blocks().into()) {
            return Ok(());
        }
        let size = usize::from(sb.inode_size());
        let mut index = 0;
        for first in (0..blocks).step_by(PIECE_BLOCKS as usize) {
            let len = PIECE_BLOCKS.min(blocks - first);
            let bytes = self.volume.blocks(Run { start: table.offset(first.into()), len })?;
            for bytes in bytes.chunks_exact(size).take((count - index) as usize) {
                let ino = self.volume.sb.inode_at(group, index);
                index += 1;
                let is_zero = bytes.iter().all(|&byte| byte == 0);
                let is_skipped = ino == BAD_BLOCKS
                    || is_zero && self.role(ino).is_none()
                    // In a bad block.
                    || self.seen.get(ino).used;
                if !is_skipped {
                    self.check_inode(ino, &Inode::new(bytes), is_zero)?;
                }
            }
        }
        Ok(())
    }

    fn check_inode(&mut self, ino: Ino, inode: &Inode, is_zero: bool) -> Result<()> {
        let site = Site::Inode(ino);
        let (links, role) = (inode.links_count(), self.role(ino));
        if !is_zero && !inode.checksum_matches(&self.volume.sb, ino) {
            self.report.problem(site, "checksum does not match");
            if links == 0 && role.is_none() {
                return Ok(());
            }
        }
        let is_orphan = self.orphans.contains(&ino);
        if !is_orphan && self.is_list_link(inode.dtime()) {
            self.report.problem(site, "is part of an orphan list, and the list is not");
        }
        let internal = role.is_some();
        let is_read = role.is_none_or(|role| self.check_role(ino, inode, role));
        if links == 0 && !internal && !(is_orphan && inode.mode() != 0) {
            if inode.mode() != 0 && inode.dtime() == 0 {
                self.report.problem(site, "is deleted and has no time of deletion");
            }
            return Ok(());
        }
        self.check_flags_of_all(ino, inode);
        let file_type = if is_read { file_type(inode.mode()) } else { 0 };
        let is_value = inode.flags() & flag::EA_INODE != 0;
        let is_indexed = inode.flags() & flag::INDEX != 0;
        *self.seen.entry(ino) = InodeFindings {
            used: true,
            internal,
            file_type,
            links,
            refs: 0,
            is_value,
            is_indexed,
            is_orphan,
        };
        if !is_read {
            return Ok(());
        }
        if let Some(count) = inode.value_users().filter(|_| is_value) {
            self.value_counts.insert(ino.0, count);
        }
        if !internal {
            self.check_flags(ino, inode);
            if inode.dtime() != 0 && !is_orphan {
                self.report.problem(site, "is in use and has a time of deletion");
            }
            self.check_fields(ino, inode);
            if file_type == 0 {
                self.report.problem(site, "unknown file type");
                return Ok(());
            }
        }
        let hidden = internal || is_value || is_orphan && links == 0;
        self.count_kind(file_type, hidden);
        let in_attributes = self.check_xattrs(ino, inode)?;
        self.check_contents(ino, inode, in_attributes)
    }

    /// Whether a deletion time is a link of an orphan list that does not lead here: it is in the
    /// first days of 1970, and the volume's own times are not.
    pub(crate) fn is_list_link(&self, dtime: u32) -> bool {
        let sb = &self.volume.sb;
        let numbers = 1..sb.inodes_count();
        let times = [sb.wtime(), sb.mtime(), sb.mkfs_time()];
        numbers.contains(&dtime) && !times.iter().any(|time| numbers.contains(time))
    }

    /// Inodes that no name leads to.
    pub(crate) fn is_internal(&self, ino: Ino) -> bool {
        ino == BAD_BLOCKS || self.role(ino).is_some()
    }

    fn count_kind(&mut self, file_type: u8, hidden: bool) {
        let totals = &mut self.report.totals;
        match file_type {
            _ if hidden => {}
            1 => totals.files += 1,
            2 => totals.directories += 1,
            7 => totals.symlinks += 1,
            _ => totals.others += 1,
        }
    }
}

/// `EXT4_FT_*` of a mode; 0 for none.
fn file_type(bits: u16) -> u8 {
    match bits & mode::TYPE_MASK {
        mode::REGULAR => 1,
        mode::DIRECTORY => 2,
        mode::CHARACTER => 3,
        mode::BLOCK => 4,
        mode::FIFO => 5,
        mode::SOCKET => 6,
        mode::SYMLINK => 7,
        _ => 0,
    }
}
