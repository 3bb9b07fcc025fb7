//! One directory on the volume: its names, in a list of blocks or under a hash index.
//!
//! A directory is *linear* (a name may be in any block, and a look-up reads all) or *indexed* (file
//! block 0 is the root of an index by hash, see [`xact_layout::htree`]; names are in the leaves). A
//! linear directory becomes indexed when its first block overflows. Blocks are freed only with the
//! directory.
//!
//! Rules:
//! 1. The caller holds the directory's inode lock: exclusively for changes, else shared.
//! 2. A change is a few self-contained steps, and each leaves a consistent directory. In each step,
//!    all that can fail (reads, checks, [`DirBlocks::append`]) comes first, except errors of the
//!    engine itself. So a change that fails with `NoSpace` or `Corrupt` has changed no names; at
//!    most it has added space to the index.
//! 3. Checksums are verified whenever a block is read here, and updated with every change.
//! 4. After a crash, the engine's commits decide; this module does not order writes itself.

mod add;
mod index;
mod list;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use xact_consistency::{BlockRef, Engine, Handle};
use xact_layout::dirent::{DirFormat, Dots, Found, NAME_MAX_BYTES};
use xact_layout::feature::{compat, incompat, names};
use xact_layout::htree::{self, Index};
use xact_layout::inode::flag;
use xact_layout::superblock::Superblock;
use xact_types::{BlockNr, Errno, Error, FileBlock, Ino, Result, Site};

use crate::api::{Entry, FileKind, Name};

pub use list::{LISTING_START, ListItem};

/// Maximum blocks of the directory that [`Dir::add`] changes, including new ones: a leaf and its
/// new half, the index nodes above it and their new halves, the root. The blocks that
/// [`DirBlocks::append`] and [`DirBlocks::set_indexed`] change are not included.
pub const ADD_CREDITS: u32 = 7;
/// Maximum calls of [`DirBlocks::append`] in one [`Dir::add`]: two index nodes and a leaf.
pub const ADD_APPENDS: u32 = 3;
/// Blocks that [`Dir::remove`], [`Dir::set`], [`Dir::set_parent`] and [`Dir::init`] change.
pub const CHANGE_CREDITS: u32 = 1;

/// Access to a directory's blocks; implemented over the inode's extent tree.
pub trait DirBlocks {
    /// The directory's size in blocks.
    fn count(&self) -> u32;

    /// The place of a block below `count`. `Corrupt` for a hole.
    fn block(&self, at: FileBlock) -> Result<BlockNr>;

    /// The block's number and contents. They are read from the volume, except for a directory whose
    /// contents lie in its inode.
    fn contents(&self, engine: &Arc<Engine>, at: FileBlock) -> Result<(BlockNr, BlockRef)> {
        let block = self.block(at)?;
        Ok((block, engine.read(block)?))
    }

    /// Allocates one more block and extends the size. The caller sets the block's contents with
    /// `h.create`. An error changes nothing.
    fn append(&mut self, h: &mut Handle) -> Result<(FileBlock, BlockNr)>;

    /// Sets or clears [`flag::INDEX`] of the inode.
    fn set_indexed(&mut self, h: &mut Handle, indexed: bool) -> Result<()>;
}

/// The target of a name, as far as the directory stores it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DirEntry {
    pub ino: Ino,
    /// `None` on volumes without `filetype`, or if the entry has no type: the inode has it.
    pub kind: Option<FileKind>,
}

/// One directory, for the duration of one operation.
pub struct Dir<'a> {
    sb: &'a Superblock,
    engine: &'a Arc<Engine>,
    ino: Ino,
    format: DirFormat,
    indexed: bool,
    /// The inode has the index flag on a volume without `dir_index`: the first change must clear
    /// it.
    stale_flag: bool,
}

/// A name's entry and its block.
struct FoundEntry {
    block: BlockNr,
    found: Found,
}

impl<'a> Dir<'a> {
    /// `flags` and `generation` are those of the directory's inode.
    pub fn new(
        sb: &'a Superblock,
        engine: &'a Arc<Engine>,
        ino: Ino,
        generation: u32,
        flags: u32,
    ) -> Result<Dir<'a>> {
        for (bit, feature) in [(flag::ENCRYPT, incompat::ENCRYPT), (flag::CASEFOLD, incompat::CASEFOLD)] {
            if flags & bit != 0 {
                let feature = names(feature, incompat::NAMES);
                return Err(Error::Unsupported(format!("{feature} in the directory of {ino}")));
            }
        }
        let has_flag = flags & flag::INDEX != 0;
        let has_feature = sb.has_compat(compat::DIR_INDEX);
        if has_flag && !has_feature && sb.has_metadata_csum() {
            // As entry blocks, its index blocks would fail the checksums.
            let what = "directory has a hash index on a volume without dir_index";
            return Err(Error::corrupt(Site::Inode(ino), what));
        }
        Ok(Dir {
            sb,
            engine,
            ino,
            format: DirFormat::new(sb, ino, generation),
            indexed: has_flag && has_feature,
            stale_flag: has_flag && !has_feature,
        })
    }

    /// Looks up a name; the caller handles `.` and `..`.
    pub fn lookup(&self, blocks: &dyn DirBlocks, name: &Name) -> Result<Option<DirEntry>> {
        let place = self.locate(blocks, name)?;
        Ok(place.map(|FoundEntry { found, .. }| DirEntry {
            ino: found.ino,
            kind: FileKind::from_dirent_type(found.file_type),
        }))
    }

    /// `NoSpace` if `add` would fail because the index cannot grow: for callers that must know this
    /// before they change anything else.
    pub fn check_name_fits(&self, blocks: &dyn DirBlocks, name: &Name) -> Result<()> {
        if self.indexed { self.check_index_room(blocks, name) } else { Ok(()) }
    }

    /// Whether [`Self::add`] adds no block for this name, because it fits into an existing block.
    pub fn has_gap(&self, blocks: &dyn DirBlocks, name: &Name) -> Result<bool> {
        if self.indexed { self.leaf_has_gap(blocks, name) } else { self.linear_has_gap(blocks, name) }
    }

    /// Adds a new name. `NoSpace` also if the index cannot grow. See [`ADD_CREDITS`] and
    /// [`ADD_APPENDS`].
    pub fn add(
        &mut self,
        blocks: &mut dyn DirBlocks,
        h: &mut Handle,
        name: &Name,
        entry: Entry,
    ) -> Result<()> {
        assert_ordinary(name);
        self.clear_stale_flag(blocks, h)?;
        if self.indexed {
            self.add_indexed(blocks, h, name, entry)
        } else {
            self.add_linear(blocks, h, name, entry)
        }
    }

    /// Removes a name. `ENOENT` if it does not exist.
    pub fn remove(&self, blocks: &dyn DirBlocks, h: &mut Handle, name: &Name) -> Result<()> {
        assert_ordinary(name);
        let place = self.locate(blocks, name)?.ok_or(Errno::ENOENT)?;
        h.update(place.block, |bytes| {
            self.format.remove(bytes, &place.found);
            self.format.seal(bytes);
        })
    }

    /// Points a name at another inode. `ENOENT` if it does not exist.
    pub fn set(&self, blocks: &dyn DirBlocks, h: &mut Handle, name: &Name, entry: Entry) -> Result<()> {
        assert_ordinary(name);
        let place = self.locate(blocks, name)?.ok_or(Errno::ENOENT)?;
        h.update(place.block, |bytes| {
            self.format.set(bytes, place.found.at, entry.ino, entry.kind.dirent_type());
            self.format.seal(bytes);
        })
    }

    /// Whether the directory has no names except `.` and `..`. Reads every block, in the index or
    /// not.
    pub fn is_empty(&self, blocks: &dyn DirBlocks) -> Result<bool> {
        let first = self.first_block(blocks)?;
        if let First::Linear { dots, bytes, site } = &first
            && let Some(entry) = self.format.entries(bytes, dots.next, *site).next()
        {
            entry?;
            return Ok(false);
        }
        for at in 1..blocks.count() {
            let (block, bytes) = self.read(blocks, FileBlock(at))?;
            if self.indexed && htree::is_node(&self.format, &bytes) {
                continue;
            }
            self.format.verify(&bytes, Site::Block(block))?;
            if let Some(entry) = self.format.entries(&bytes, 0, Site::Block(block)).next() {
                entry?;
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// The inode of `..`.
    pub fn parent(&self, blocks: &dyn DirBlocks) -> Result<Ino> {
        Ok(match self.first_block(blocks)? {
            First::Linear { dots, .. } => dots.parent,
            First::Root { parent, .. } => parent,
        })
    }

    /// Points `..` at another directory.
    pub fn set_parent(&self, blocks: &dyn DirBlocks, h: &mut Handle, parent: Ino) -> Result<()> {
        let first = self.first_block(blocks)?;
        h.update(blocks.block(FileBlock(0))?, |bytes| match first {
            First::Linear { dots, .. } => {
                self.format.set(bytes, dots.parent_at, parent, FileKind::Directory.dirent_type());
                self.format.seal(bytes);
            }
            First::Root { index, .. } => htree::set_parent(&self.format, &index, bytes, parent),
        })
    }

    /// Gives a new directory its first block, which the caller has allocated.
    pub fn init(&self, h: &mut Handle, first: BlockNr, parent: Ino) -> Result<()> {
        h.create(first, self.format.first_block(self.ino, parent))
    }

    fn locate(&self, blocks: &dyn DirBlocks, name: &Name) -> Result<Option<FoundEntry>> {
        if self.indexed {
            return self.locate_indexed(blocks, name);
        }
        for at in 0..self.block_count(blocks)? {
            let (block, bytes) = self.read_entries(blocks, FileBlock(at))?;
            let site = Site::Block(block);
            let from = if at == 0 { self.format.dots(&bytes, self.ino, site)?.parent_at } else { 0 };
            if let Some(found) = self.format.find(&bytes, from, name, site)? {
                return Ok(Some(FoundEntry { block, found }));
            }
        }
        Ok(None)
    }

    /// The directory's size in blocks; an error if it has none.
    fn block_count(&self, blocks: &dyn DirBlocks) -> Result<u32> {
        match blocks.count() {
            0 => Err(Error::corrupt(Site::Inode(self.ino), "directory has no blocks")),
            count => Ok(count),
        }
    }

    fn first_block(&self, blocks: &dyn DirBlocks) -> Result<First> {
        self.block_count(blocks)?;
        if self.indexed {
            let (block, bytes) = self.read(blocks, FileBlock(0))?;
            let (info, index) = Index::root(&self.format, &bytes, self.ino, Site::Block(block))?;
            return Ok(First::Root { parent: info.parent, index });
        }
        let (block, bytes) = self.read_entries(blocks, FileBlock(0))?;
        let site = Site::Block(block);
        let dots = self.format.dots(&bytes, self.ino, site)?;
        Ok(First::Linear { dots, bytes, site })
    }

    /// Reads a block of entries.
    fn read_entries(&self, blocks: &dyn DirBlocks, at: FileBlock) -> Result<(BlockNr, BlockRef)> {
        let (block, bytes) = self.read(blocks, at)?;
        self.format.verify(&bytes, Site::Block(block))?;
        Ok((block, bytes))
    }

    /// Reads a block of any kind, without checks.
    fn read(&self, blocks: &dyn DirBlocks, at: FileBlock) -> Result<(BlockNr, BlockRef)> {
        if at.0 >= blocks.count() {
            return Err(Error::corrupt(Site::Inode(self.ino), "hash index leads out of the directory"));
        }
        blocks.contents(self.engine, at)
    }
}

/// Asserts that a name is valid; front ends check names (see [`crate::api::check_name`]).
fn assert_ordinary(name: &Name) {
    let fits = (1..=NAME_MAX_BYTES).contains(&name.len());
    assert!(fits && name != b"." && name != b"..", "an ordinary name");
}

/// A directory's first block, checked.
enum First {
    Linear { dots: Dots, bytes: BlockRef, site: Site },
    Root { parent: Ino, index: Index },
}
