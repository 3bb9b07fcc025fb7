//! Step 2: every inode of every table.

use xact_layout::feature::{compat, incompat, ro_compat};
use xact_layout::get_u16;
use xact_layout::group::INODE_UNINIT;
use xact_layout::inode::{GOOD_OLD_BYTES, Inode, flag, mode};
use xact_types::{BlockNr, GroupNr, Ino, Result, Run, Site};

use super::Checker;
use super::dirs::Directory;
use super::map::Mapped;
use super::xattrs::InAttributes;

/// Blocks of an inode table that are read at once.
const PIECE_BLOCKS: u32 = 64;
/// Smallest `i_extra_isize`: the field itself and the high half of the checksum.
const EXTRA_ISIZE_MIN: u16 = 4;

/// The findings about an inode number.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct InodeFindings {
    /// In use: it has links, or the volume itself uses it.
    pub used: bool,
    /// Its number, and perhaps blocks, belong to the volume: no name leads to it.
    pub internal: bool,
    /// `EXT4_FT_*` of its mode; 0 if it has none.
    pub file_type: u8,
    pub links: u16,
    /// Names that lead to it, `.` and `..` included.
    pub refs: u32,
    /// Holds an attribute's value.
    pub is_value: bool,
    /// Waits for its deletion, or for the end of a truncation.
    pub is_orphan: bool,
}

impl Checker<'_> {
    pub(crate) fn check_inodes(&mut self) -> Result<()> {
        let groups = self.volume.sb.group_count();
        for number in 0..groups {
            (self.progress)("inodes", f64::from(number) / f64::from(groups));
            self.check_table(GroupNr(number))?;
        }
        for ino in 1..self.volume.sb.first_inode().0 {
            // Reserved numbers are in use, whatever their inodes hold.
            self.seen[ino as usize].used = true;
            self.seen[ino as usize].internal |= Ino(ino) != Ino::ROOT;
        }
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
                if bytes.iter().any(|&byte| byte != 0) {
                    self.check_inode(ino, &Inode::new(bytes))?;
                }
                index += 1;
            }
        }
        Ok(())
    }

    fn check_inode(&mut self, ino: Ino, inode: &Inode) -> Result<()> {
        let site = Site::Inode(ino);
        let sb = &self.volume.sb;
        if !inode.checksum_matches(sb, ino) {
            self.report.problem(site, "checksum does not match");
            if inode.links_count() == 0 {
                return Ok(());
            }
        }
        // A deletion time in the first days of 1970 is a link of an orphan list that no longer
        // leads here.
        let first_days = self.volume.sb.inodes_count();
        let is_orphan = self.orphans.contains(&ino);
        if !is_orphan && (1..first_days).contains(&inode.dtime()) && self.volume.sb.mkfs_time() >= first_days
        {
            self.report.problem(site, "is part of an orphan list, and the list is not");
        }
        let internal = self.is_internal(ino);
        if inode.links_count() == 0 && !((internal || is_orphan) && inode.mode() != 0) {
            if inode.mode() != 0 && inode.dtime() == 0 && !internal {
                self.report.problem(site, "is deleted and has no time of deletion");
            }
            return Ok(());
        }
        let file_type = file_type(inode.mode());
        let is_value = inode.flags() & flag::EA_INODE != 0;
        self.seen[ino.0 as usize] = InodeFindings {
            used: true,
            internal,
            file_type,
            links: inode.links_count(),
            refs: 0,
            is_value,
            is_orphan,
        };
        if inode.dtime() != 0 && !internal && !is_orphan {
            self.report.problem(site, "is in use and has a time of deletion");
        }
        if let Some(count) = inode.value_users().filter(|_| is_value) {
            self.value_counts.insert(ino.0, count);
        }
        self.check_fields(ino, inode);
        if file_type == 0 {
            if !internal {
                self.report.problem(site, "unknown file type");
            }
            return Ok(());
        }
        let hidden = internal || is_value || is_orphan && inode.links_count() == 0;
        self.count_kind(file_type, hidden);
        let in_attributes = self.check_xattrs(ino, inode)?;
        self.check_contents(ino, inode, in_attributes)
    }

    /// Inodes that no name leads to.
    pub(crate) fn is_internal(&self, ino: Ino) -> bool {
        let sb = &self.volume.sb;
        ino < sb.first_inode() && ino != Ino::ROOT
            || sb.has_compat(compat::HAS_JOURNAL) && ino.0 == sb.journal_inum()
            || sb.has_compat(compat::ORPHAN_FILE) && ino.0 == sb.orphan_file_inum()
            || self.is_quota_file(ino)
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

    /// Fields that can be checked on their own.
    fn check_fields(&mut self, ino: Ino, inode: &Inode) {
        let sb = &self.volume.sb;
        let site = Site::Inode(ino);
        let flags = inode.flags();
        if usize::from(sb.inode_size()) > GOOD_OLD_BYTES + usize::from(EXTRA_ISIZE_MIN) {
            let extra = get_u16(inode.as_bytes(), GOOD_OLD_BYTES);
            let max = sb.inode_size() - GOOD_OLD_BYTES as u16;
            if extra != 0 && (extra < EXTRA_ISIZE_MIN || extra > max || extra % 4 != 0) {
                self.report.problem(site, format!("impossible size of its extra fields ({extra})"));
            }
        }
        let needs = [
            (flag::EXTENTS, sb.has_incompat(incompat::EXTENTS), "has extents on a volume without them"),
            (
                flag::INLINE_DATA,
                sb.has_incompat(incompat::INLINE_DATA),
                "has inline data on a volume without them",
            ),
            (flag::INDEX, sb.has_compat(compat::DIR_INDEX), "has a hash index on a volume without dir_index"),
            (
                flag::ENCRYPT,
                sb.has_incompat(incompat::ENCRYPT),
                "is encrypted on a volume without encryption",
            ),
            (flag::CASEFOLD, sb.has_incompat(incompat::CASEFOLD), "folds case on a volume without casefold"),
            (flag::VERITY, sb.has_ro_compat(ro_compat::VERITY), "has verity on a volume without it"),
            (
                flag::HUGE_FILE,
                sb.has_ro_compat(ro_compat::HUGE_FILE),
                "is huge on a volume without huge_file",
            ),
        ];
        for (bit, feature, what) in needs {
            if flags & bit != 0 && !feature {
                self.report.problem(site, what);
            }
        }
        if flags & flag::INDEX != 0 && !inode.is_directory() {
            self.report.problem(site, "has a hash index and is not a directory");
        }
        if flags & flag::EXTENTS != 0 && flags & flag::INLINE_DATA != 0 {
            self.report.problem(site, "has extents and inline data");
        }
    }

    fn check_contents(&mut self, ino: Ino, inode: &Inode, in_attributes: InAttributes) -> Result<()> {
        if ino == Ino::RESIZE || ino.0 == 1 {
            // The resize inode's map leads to blocks of the fixed metadata; see `special`.
            return Ok(());
        }
        let site = Site::Inode(ino);
        let kind = inode.mode() & mode::TYPE_MASK;
        let mapped = match kind {
            mode::REGULAR | mode::DIRECTORY | mode::SYMLINK => {
                if inode.flags() & flag::INLINE_DATA != 0 {
                    self.check_inline(ino, inode)?;
                    Some(Mapped::default())
                } else if kind == mode::SYMLINK && self.is_fast_symlink(inode, in_attributes) {
                    self.check_fast_symlink(ino, inode);
                    Some(Mapped::default())
                } else {
                    let keep = kind != mode::REGULAR || self.is_internal(ino);
                    self.walk_map(ino, inode, keep)?
                }
            }
            _ => {
                if inode.flags() & (flag::EXTENTS | flag::INDEX) != 0 {
                    self.report.problem(site, "is a device, FIFO or socket, and has extents or an index");
                }
                Some(Mapped::default())
            }
        };
        let Some(mapped) = mapped else {
            if kind == mode::DIRECTORY {
                self.directories.push(Directory::new(ino, inode, Mapped::default()));
            }
            return Ok(());
        };
        let blocks = mapped.blocks + in_attributes.blocks;
        self.count_usage(ino, inode, blocks, 1 + in_attributes.inodes);
        let sectors = blocks * u64::from(self.volume.sb.block_size() / 512);
        if inode.sectors(&self.volume.sb) != sectors {
            let what = format!("counts {} sectors and has {sectors}", inode.sectors(&self.volume.sb));
            self.report.problem(site, what);
        }
        if self.orphans.contains(&ino) {
            // It may be half truncated, and a directory is empty.
            return Ok(());
        }
        self.check_size(ino, inode, &mapped)?;
        if kind == mode::DIRECTORY {
            self.directories.push(Directory::new(ino, inode, mapped));
        }
        Ok(())
    }

    fn check_size(&mut self, ino: Ino, inode: &Inode, mapped: &Mapped) -> Result<()> {
        let site = Site::Inode(ino);
        let block_size = self.volume.block_size() as u64;
        let (size, inline) = (inode.size(), inode.flags() & flag::INLINE_DATA != 0);
        let reached = mapped.written_end.saturating_sub(1) * block_size;
        match inode.mode() & mode::TYPE_MASK {
            mode::REGULAR if inline => {}
            mode::REGULAR => {
                if mapped.written_end > 0 && size < reached {
                    self.report.problem(site, format!("has blocks behind its size of {size} bytes"));
                }
                if size.div_ceil(block_size) > u64::from(u32::MAX) {
                    self.report.problem(site, format!("its size of {size} bytes is beyond any file's"));
                }
            }
            mode::DIRECTORY if inline => {}
            mode::DIRECTORY if size == 0 || size % block_size != 0 || size / block_size != mapped.end => {
                let what = format!("its size of {size} bytes does not fit its {} blocks", mapped.end);
                self.report.problem(site, what);
            }
            mode::SYMLINK if mapped.blocks > 0 => {
                let (block, bytes) = match self.report.note(self.file_block(ino, mapped, 0))? {
                    Some(found) => found,
                    None => return Ok(()),
                };
                let len = bytes.iter().position(|&byte| byte == 0).unwrap_or(bytes.len());
                if len as u64 != size || mapped.end != 1 {
                    self.report.problem(Site::Block(block), "symbolic link's target does not fit its size");
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// A target in the inode: it has no blocks except those of attributes
    /// (`ext4_inode_is_fast_symlink`).
    fn is_fast_symlink(&self, inode: &Inode, in_attributes: InAttributes) -> bool {
        let sectors = in_attributes.blocks * u64::from(self.volume.sb.block_size() / 512);
        inode.flags() & flag::EXTENTS == 0 && inode.sectors(&self.volume.sb) == sectors
    }

    fn check_fast_symlink(&mut self, ino: Ino, inode: &Inode) {
        let area = inode.block_area();
        let len = area.iter().position(|&byte| byte == 0).unwrap_or(area.len());
        if len == area.len() || len as u64 != inode.size() || len == 0 {
            self.report.problem(Site::Inode(ino), "symbolic link's target does not fit its size");
        }
    }

    /// The block of attributes, if its number is within the volume.
    pub(crate) fn attribute_block(&self, inode: &Inode) -> Option<BlockNr> {
        Some(BlockNr(inode.xattr_block())).filter(|block| block.0 != 0)
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
