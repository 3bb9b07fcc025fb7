//! Fields of an inode in use that can be checked on their own, and its flags.

use xact_layout::extent::Node;
use xact_layout::feature::{compat, incompat, ro_compat};
use xact_layout::inode::{GOOD_OLD_BYTES, Inode, flag};
use xact_layout::{get_u16, get_u32};
use xact_types::{Ino, Site};

use super::Checker;
use super::reserved::BAD_BLOCKS;

/// Smallest `i_extra_isize`: the field itself and the high half of the checksum.
const EXTRA_ISIZE_MIN: u16 = 4;
/// Times in seconds, each with the field that extends it.
const TIMES: [(usize, usize); 4] = [(0x08, 0x8C), (0x0C, 0x84), (0x10, 0x88), (0x90, 0x94)];

impl Checker<'_> {
    pub(crate) fn check_fields(&mut self, ino: Ino, inode: &Inode) {
        let sb = &self.volume.sb;
        let site = Site::Inode(ino);
        let extra = get_extra(inode);
        let extra_max = sb.inode_size() - GOOD_OLD_BYTES as u16;
        if extra != 0 && (extra < EXTRA_ISIZE_MIN || extra > extra_max || !extra.is_multiple_of(4)) {
            self.report.problem(site, format!("impossible size of its extra fields ({extra})"));
        }
        let is_large_dir =
            inode.is_directory() && inode.size_hi() != 0 && !sb.has_incompat(incompat::LARGEDIR);
        let wrong = [
            (inode.faddr() != 0, "has a fragment, which ext4 never has"),
            (is_large_dir, "is a folder of 4 GiB or more on a volume without large_dir"),
            (
                inode.file_acl_hi() != 0 && !sb.has_incompat(incompat::SIXTY_FOUR_BIT),
                "has a high half of its attribute block's number on a volume without 64bit",
            ),
            (
                inode.xattr_block() != 0 && !sb.has_compat(compat::EXT_ATTR),
                "has an attribute block on a volume without ext_attr",
            ),
            (
                inode.blocks_hi() != 0 && !sb.has_ro_compat(ro_compat::HUGE_FILE),
                "has a high half of its count of sectors on a volume without huge_file",
            ),
            (
                has_old_time(inode),
                "has a time between 2310 and 2378, as old kernels stored times before 1970",
            ),
        ];
        for (_, what) in wrong.into_iter().filter(|(is_wrong, _)| *is_wrong) {
            self.report.problem(site, what);
        }
    }

    /// Flags that reserved inodes must not have either.
    pub(crate) fn check_flags_of_all(&mut self, ino: Ino, inode: &Inode) {
        let sb = &self.volume.sb;
        let flags = inode.flags();
        let is_used = inode.links_count() != 0 || matches!(ino, BAD_BLOCKS | Ino::ROOT | Ino::JOURNAL);
        let is_both = flags & flag::EXTENTS != 0 && flags & flag::INLINE_DATA != 0;
        let wrong = [
            (
                flags & flag::EXTENTS != 0 && !sb.has_incompat(incompat::EXTENTS) && is_used,
                "has extents on a volume without them",
            ),
            (
                flags & flag::CASEFOLD != 0 && !sb.has_incompat(incompat::CASEFOLD),
                "folds case on a volume without casefold",
            ),
            (flags & flag::CASEFOLD != 0 && !inode.is_directory(), "folds case and is not a directory"),
            (
                is_both && sb.has_incompat(incompat::EXTENTS | incompat::INLINE_DATA),
                "has extents and inline data",
            ),
        ];
        for (_, what) in wrong.into_iter().filter(|(is_wrong, _)| *is_wrong) {
            self.report.problem(Site::Inode(ino), what);
        }
    }

    pub(crate) fn check_flags(&mut self, ino: Ino, inode: &Inode) {
        let sb = &self.volume.sb;
        let site = Site::Inode(ino);
        let flags = inode.flags();
        let needs = [
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
            (flag::IMAGIC, sb.has_compat(compat::IMAGIC_INODES), "is an AFS inode on a volume without them"),
        ];
        for (bit, feature, what) in needs {
            if flags & bit != 0 && !feature {
                self.report.problem(site, what);
            }
        }
        let is_map = flags & (flag::EXTENTS | flag::INLINE_DATA) == 0
            && (inode.is_regular() || inode.is_directory())
            && sb.has_incompat(incompat::EXTENTS);
        if is_map && Node::root(inode.block_area(), sb, site).is_ok() {
            self.report.problem(site, "has an extent tree and not the flag of one");
        }
    }
}

/// `i_extra_isize` as it is stored; 0 in inodes that do not have it.
fn get_extra(inode: &Inode) -> u16 {
    match inode.as_bytes().len() {
        len if len > GOOD_OLD_BYTES + usize::from(EXTRA_ISIZE_MIN) => {
            get_u16(inode.as_bytes(), GOOD_OLD_BYTES)
        }
        _ => 0,
    }
}

/// Whether a time has the sign of one before 1970 and both bits of the epoch set.
fn has_old_time(inode: &Inode) -> bool {
    let bytes = inode.as_bytes();
    let end = GOOD_OLD_BYTES + usize::from(inode.extra_isize());
    TIMES.into_iter().any(|(at, extra)| {
        end >= extra + 4 && get_u32(bytes, at) >> 31 != 0 && get_u32(bytes, extra) & 3 == 3
    })
}
