//! The contents of an inode: its blocks against its counts and its size, and what each kind of file
//! may have.

use xact_layout::feature::{compat, ro_compat};
use xact_layout::inode::{BLOCK_AREA_BYTES, Inode, flag, mode};
use xact_types::{BlockNr, Ino, Result, Site};

use super::Checker;
use super::dirs::Directory;
use super::map::{Mapped, mapped_max};
use super::xattrs::InAttributes;

/// Files of this size and more need `large_file`.
const LARGE_BYTES: u64 = 1 << 31;

impl Checker<'_> {
    pub(crate) fn check_contents(
        &mut self,
        ino: Ino,
        inode: &Inode,
        in_attributes: InAttributes,
    ) -> Result<()> {
        if inode.is_regular() && inode.size() >= LARGE_BYTES {
            self.large_file.get_or_insert(ino);
        }
        let site = Site::Inode(ino);
        if inode.flags() & flag::INDEX != 0 && !inode.is_directory() {
            self.report.problem(site, "has a hash index and is not a directory");
        }
        let kind = inode.mode() & mode::TYPE_MASK;
        if inode.size() > mapped_max(inode, self.volume.block_size() as u64) && kind != mode::DIRECTORY {
            self.report.problem(site, format!("its size of {} bytes is beyond any file's", inode.size()));
        }
        if ino == Ino::RESIZE && inode.is_regular() {
            // Its map leads to blocks of the fixed metadata; see `special`.
            return Ok(());
        }
        let is_inline = inode.flags() & flag::INLINE_DATA != 0;
        let mapped = match kind {
            mode::REGULAR | mode::DIRECTORY if is_inline => {
                self.check_inline(ino, inode)?;
                Some(Mapped::default())
            }
            mode::SYMLINK if self.is_internal(ino) => Some(Mapped::default()),
            mode::SYMLINK => self.check_link(ino, inode, in_attributes)?,
            mode::REGULAR | mode::DIRECTORY => {
                let keep = kind == mode::DIRECTORY || self.is_internal(ino);
                self.walk_map(ino, inode, keep)?
            }
            0 => Some(Mapped::default()),
            _ => {
                self.check_special_file(ino, inode);
                Some(Mapped::default())
            }
        };
        let Some(mapped) = mapped else {
            if kind == mode::DIRECTORY {
                self.directories.push(Directory::new(ino, inode, Mapped::default()));
            }
            return Ok(());
        };
        self.check_sectors(ino, inode, &mapped, in_attributes);
        if self.orphans.contains(&ino) {
            // It may be half truncated, and a directory is empty.
            return Ok(());
        }
        if !is_inline {
            self.check_size(ino, inode, &mapped);
        }
        if kind == mode::DIRECTORY {
            self.directories.push(Directory::new(ino, inode, mapped));
        }
        Ok(())
    }

    fn check_sectors(&mut self, ino: Ino, inode: &Inode, mapped: &Mapped, in_attributes: InAttributes) {
        let blocks = mapped.blocks + in_attributes.blocks;
        self.count_usage(ino, inode, blocks, 1 + in_attributes.inodes);
        let (says, is) = (inode.sectors(&self.volume.sb), self.sectors(blocks));
        if says != is {
            self.report.problem(Site::Inode(ino), format!("counts {says} sectors and has {is}"));
        }
    }

    /// Sectors of 512 bytes.
    pub(crate) fn sectors(&self, blocks: u64) -> u64 {
        blocks * u64::from(self.volume.sb.block_size() / 512)
    }

    fn check_size(&mut self, ino: Ino, inode: &Inode, mapped: &Mapped) {
        let site = Site::Inode(ino);
        let block_size = self.volume.block_size() as u64;
        let size = inode.size();
        match inode.mode() & mode::TYPE_MASK {
            mode::REGULAR => {
                // The Merkle tree of a file with verity lies behind its end.
                let has_verity = inode.flags() & flag::VERITY != 0;
                let reached = mapped.written_end.saturating_sub(1) * block_size;
                if mapped.written_end > 0 && size < reached && !has_verity {
                    self.report.problem(site, format!("has blocks behind its size of {size} bytes"));
                }
            }
            mode::DIRECTORY if size == 0 || size % block_size != 0 || size / block_size != mapped.end => {
                let what = format!("its size of {size} bytes does not fit its {} blocks", mapped.end);
                self.report.problem(site, what);
            }
            _ => {}
        }
    }

    /// A device, FIFO or socket has no contents.
    fn check_special_file(&mut self, ino: Ino, inode: &Inode) {
        let site = Site::Inode(ino);
        let flags = inode.flags();
        if flags & (flag::EXTENTS | flag::INDEX | flag::INLINE_DATA) != 0 {
            self.report.problem(site, "is a device, FIFO or socket, and has contents or an index");
        }
        if flags & (flag::IMMUTABLE | flag::APPEND) != 0 {
            self.report.problem(site, "is a device, FIFO or socket, and immutable or append-only");
        }
        if inode.size() != 0 {
            let what = format!("is a device, FIFO or socket, and has a size of {} bytes", inode.size());
            self.report.problem(site, what);
        }
    }

    /// A symbolic link, with its target in the inode, in inline data or in one block.
    fn check_link(&mut self, ino: Ino, inode: &Inode, in_attributes: InAttributes) -> Result<Option<Mapped>> {
        let site = Site::Inode(ino);
        let flags = inode.flags();
        if flags & (flag::IMMUTABLE | flag::APPEND) != 0 {
            self.report.problem(site, "is a symbolic link, and immutable or append-only");
        }
        if flags & flag::INLINE_DATA != 0 {
            self.check_inline(ino, inode)?;
            return Ok(Some(Mapped::default()));
        }
        // As `ext4_inode_is_fast_symlink`: no blocks except those of attributes.
        let is_fast = flags & flag::EXTENTS == 0
            && inode.sectors(&self.volume.sb) == self.sectors(in_attributes.blocks);
        if is_fast {
            self.check_target(site, inode.block_area(), inode.size());
            return Ok(Some(Mapped::default()));
        }
        let Some(mapped) = self.walk_map(ino, inode, true)? else { return Ok(None) };
        if self.orphans.contains(&ino) {
            return Ok(Some(mapped));
        }
        let first = Self::first_place(&mapped);
        match first {
            // No kernel gives a block to a target that fits the inode.
            Some(block) if mapped.blocks == 1 && inode.size() >= BLOCK_AREA_BYTES as u64 => {
                let bytes = self.volume.block(block)?;
                self.check_target(Site::Block(block), &bytes, inode.size());
            }
            _ => self.report.problem(site, "symbolic link does not have one block for its target"),
        }
        Ok(Some(mapped))
    }

    /// The target ends with a zero.
    fn check_target(&mut self, site: Site, area: &[u8], size: u64) {
        let len = area.iter().position(|&byte| byte == 0).unwrap_or(area.len());
        if len == area.len() || len as u64 != size || len == 0 {
            self.report.problem(site, "symbolic link's target does not fit its size");
        }
    }

    /// The block of file block 0, by a kept map.
    fn first_place(mapped: &Mapped) -> Option<BlockNr> {
        mapped.extents.first().filter(|extent| extent.at.0 == 0).map(|extent| extent.run.start)
    }

    pub(crate) fn check_large_files(&mut self) {
        if let Some(ino) = self.large_file
            && !self.volume.sb.has_ro_compat(ro_compat::LARGE_FILE)
        {
            let what = "is a file of 2 GiB or more on a volume without large_file";
            self.report.problem(Site::Inode(ino), what);
        }
    }

    /// The block of attributes, if it has one.
    pub(crate) fn attribute_block(&self, inode: &Inode) -> Option<BlockNr> {
        let block = BlockNr(inode.xattr_block());
        (block.0 != 0 && self.volume.sb.has_compat(compat::EXT_ATTR)).then_some(block)
    }
}
