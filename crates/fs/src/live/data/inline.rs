//! Files and directories whose contents lie in their inode (feature `inline_data`): the first 60
//! bytes in `i_block`, the rest as the attribute `system.data`.
//!
//! ```text
//! file       i_block: bytes 0..60                     system.data: bytes 60.. of the file
//! directory  i_block: inode of `..`, then entries     system.data: more entries
//! ```
//!
//! A regular file may be larger than its bytes: `mke2fs -d` makes such inodes of files that are one
//! hole. Behind its bytes it reads as zeros, as in the kernel.
//!
//! Inline contents are read in place. Before their first change they get an ordinary block, and
//! never become inline again; xact creates no inline inodes.
//!
//! Crash argument: one commit has the block's bit in the bitmap and the inode that maps the block
//! instead of holding the bytes. The contents of a directory are in the commit itself; those of a
//! file are written as data, and so flushed before the commit record. A crash before the commit
//! leaves the inode as it was.

use std::io::IoSlice;

use xact_layout::dirent::{DirEntry, DirFormat, Packer, entry_bytes};
use xact_layout::get_u32;
use xact_layout::inode::{BLOCK_AREA_BYTES, flag};
use xact_types::{BlockNr, Error, FileBlock, Ino, Result, Site};

use crate::alloc::Purpose;
use crate::api::FileKind;
use crate::live::LiveFs;
use crate::live::inode::cached::InodeState;
use crate::live::op::Operation;

/// The attribute with the contents that do not fit into `i_block`.
const REST: &[u8] = b"system.data";
/// Offset of a directory's first entry, after the number of its parent.
const ENTRIES_AT: usize = 4;

/// Credits for giving an inode its first block: bitmap, descriptor, the block, the inode.
pub(in crate::live) const UNPACK_CREDITS: u32 = 4;

pub(in crate::live) fn is_inline(state: &InodeState) -> bool {
    state.inode.flags() & flag::INLINE_DATA != 0
}

impl LiveFs {
    /// The bytes in an inline inode, which may continue behind the size of a file.
    fn inline_bytes(&self, ino: Ino, state: &InodeState) -> Result<Vec<u8>> {
        let mut bytes = state.inode.block_area().to_vec();
        bytes.extend(self.xattrs(ino).get(&state.inode, REST)?.unwrap_or_default());
        Ok(bytes)
    }

    /// The contents of an inline file or symbolic link, without the zeros behind its bytes.
    pub(in crate::live) fn inline_contents(&self, ino: Ino, state: &InodeState) -> Result<Vec<u8>> {
        let mut bytes = self.inline_bytes(ino, state)?;
        let size = usize::try_from(state.inode.size()).unwrap_or(usize::MAX);
        if size > bytes.len() && !state.inode.is_regular() {
            return Err(Error::corrupt(Site::Inode(ino), "file is larger than the contents in its inode"));
        }
        bytes.truncate(size);
        Ok(bytes)
    }

    /// The contents of an inline directory in the format of a directory block.
    pub(in crate::live) fn inline_dir_block(&self, ino: Ino, state: &InodeState) -> Result<Vec<u8>> {
        let site = Site::Inode(ino);
        let format = DirFormat::new(&self.sb, ino, state.inode.generation());
        let bytes = self.inline_bytes(ino, state)?;
        let (first, rest) = bytes.split_at(BLOCK_AREA_BYTES);
        let parent = Ino(get_u32(first, 0));
        let empty = format.first_block(ino, parent);
        let mut packer = Packer::new(&format, &empty[..format.dots(&empty, ino, site)?.parent_at]);
        packer.push(&DirEntry { ino: parent, file_type: FileKind::Directory.dirent_type(), name: b".." });
        let mut used = 2 * entry_bytes(2);
        for area in [&first[ENTRIES_AT..], rest] {
            for entry in format.entries_of_area(area, site) {
                let entry = entry?;
                used += entry_bytes(entry.name.len());
                if used > format.entries_end() {
                    return Err(Error::corrupt(site, "entries in the inode are too many for a block"));
                }
                packer.push(&entry);
            }
        }
        Ok(packer.finish())
    }
}

impl Operation<'_> {
    /// Call before a change of contents: gives an inline inode a block for them.
    pub(in crate::live) fn unpack_inline(&mut self, ino: Ino) -> Result<()> {
        let fs = self.fs;
        let locked = self.state(ino)?;
        if !is_inline(&locked.state) {
            return Ok(());
        }
        let is_dir = locked.state.inode.is_directory();
        let contents = match is_dir {
            true => fs.inline_dir_block(ino, &locked.state)?,
            false => fs.inline_contents(ino, &locked.state)?,
        };
        self.begin_memory_change()?;
        let place = match contents.is_empty() {
            true => None,
            false => {
                let purpose = Purpose::Data { privileged: self.privileges().reserve || is_dir };
                Some(fs.allocator.take(fs.allocator.goal_for(ino), 1, purpose, None)?)
            }
        };
        let mut block = contents;
        block.resize(fs.block_bytes() as usize, 0);
        // Written before the handle begins: a handle must not wait for the device.
        let written = match place {
            Some(run) if !is_dir => fs.engine.write_data(run.start, &[IoSlice::new(&block)]),
            _ => Ok(()),
        };
        if let Err(error) = written.and_then(|()| self.change_inode(ino)) {
            place.into_iter().for_each(|run| fs.allocator.give_back(run));
            return Err(error);
        }
        let (_, handle, cached, state) = self.parts(ino);
        fs.xattrs(ino).set(handle, &mut state.inode, REST, None)?;
        let unmapped = fs.unmapped_inode();
        state.inode.set_flags(state.inode.flags() & !flag::INLINE_DATA | unmapped.flags());
        state.inode.set_block_area(unmapped.block_area());
        if let Some(run) = place {
            if is_dir {
                handle.create(run.start, block)?;
                state.inode.set_size(fs.block_bytes());
                state.size = fs.block_bytes();
            } else {
                cached.note_placed();
            }
            fs.allocator.link(handle, run)?;
            fs.extents(ino, state).insert(handle, &mut state.inode, FileBlock(0), run, false)?;
        }
        self.touch(ino);
        Ok(())
    }
}

/// The block number in errors about an inline directory, whose only block has none.
pub(in crate::live) const NO_BLOCK: BlockNr = BlockNr(0);
