//! One directory on the volume: its names, in a list of blocks or under a hash index.
//!
//! A directory is *linear* (names in any block, found by looking through all) or *indexed* (file
//! block 0 is the root of an index by hash, see [`xact_layout::htree`]; names are in the leaves).
//! A linear directory becomes an indexed one when its first block overflows. Blocks are never
//! given back before the directory is removed.
//!
//! Rules:
//! 1. The caller holds the directory's inode lock: for changes alone, for the rest shared.
//! 2. A change is a few self-contained steps, each of which leaves a sound directory. All that can
//!    fail but for the engine itself (reading, checking, [`DirBlocks::append`]) comes first in a
//!    step. So a change that fails with `NoSpace` or `Corrupt` has changed no names; at most it
//!    has made room in the index.
//! 3. Checksums are compared whenever a block is read here and stored with every change.
//! 4. A crash leaves what the commits of the engine say; nothing here has an order of its own.

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

/// Blocks of the directory that [`Dir::add`] changes at the most, new ones included: a leaf and its
/// new half, the index nodes above it and their new halves, the root. What [`DirBlocks::append`]
/// and [`DirBlocks::set_indexed`] touch comes on top.
pub const ADD_CREDITS: u32 = 7;
/// Calls of [`DirBlocks::append`] in one [`Dir::add`] at the most: two index nodes and a leaf.
pub const ADD_APPENDS: u32 = 3;
/// Blocks that [`Dir::remove`], [`Dir::set`], [`Dir::set_parent`] and [`Dir::init`] change.
pub const CHANGE_CREDITS: u32 = 1;

/// How a directory reaches its blocks; implemented over the inode's extent tree.
pub trait DirBlocks {
    /// Blocks of the directory: its size in blocks.
    fn count(&self) -> u32;

    /// Where a block below `count` lies. `Corrupt` for a hole.
    fn block(&self, at: FileBlock) -> Result<BlockNr>;

    /// The block and what is in it. Only a directory without blocks, which lies in its inode, gives
    /// something else than what the volume has there.
    fn contents(&self, engine: &Arc<Engine>, at: FileBlock) -> Result<(BlockNr, BlockRef)> {
        let block = self.block(at)?;
        Ok((block, engine.read(block)?))
    }

    /// Allocates one more block and grows the size by it. The block's contents are set by the
    /// caller with `h.create`. Where it fails nothing has changed.
    fn append(&mut self, h: &mut Handle) -> Result<(FileBlock, BlockNr)>;

    /// Sets or clears [`flag::INDEX`] of the inode.
    fn set_indexed(&mut self, h: &mut Handle, indexed: bool) -> Result<()>;
}

/// What a name points at, as the directory tells it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DirEntry {
    pub ino: Ino,
    /// `None` on volumes without `filetype`, and where the entry does not say: ask the inode.
    pub kind: Option<FileKind>,
}

/// One directory, for the time of one operation.
pub struct Dir<'a> {
    sb: &'a Superblock,
    engine: &'a Arc<Engine>,
    ino: Ino,
    format: DirFormat,
    indexed: bool,
    /// The inode says "indexed" on a volume without `dir_index`: the first change must clear that.
    stale_flag: bool,
}

/// A name with the block that it is in.
struct Place {
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
            // Its index blocks could not be checked as the entry blocks that they would be.
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

    /// Looks for an ordinary name; `.` and `..` are the caller's.
    pub fn lookup(&self, blocks: &dyn DirBlocks, name: &Name) -> Result<Option<DirEntry>> {
        let place = self.locate(blocks, name)?;
        Ok(place.map(|Place { found, .. }| DirEntry {
            ino: found.ino,
            kind: FileKind::from_dirent_type(found.file_type),
        }))
    }

    /// `NoSpace` where `add` would say so because the index can grow no more: for callers that must
    /// know before they change anything else.
    pub fn check_name_fits(&self, blocks: &dyn DirBlocks, name: &Name) -> Result<()> {
        if self.indexed { self.check_index_room(blocks, name) } else { Ok(()) }
    }

    /// Whether [`Self::add`] adds no block for this name: there is room in the block that it goes
    /// to.
    pub fn has_gap(&self, blocks: &dyn DirBlocks, name: &Name) -> Result<bool> {
        if self.indexed { self.leaf_has_gap(blocks, name) } else { self.linear_has_gap(blocks, name) }
    }

    /// Adds a name that is not there. `NoSpace` also where the index can grow no more.
    /// See [`ADD_CREDITS`] and [`ADD_APPENDS`].
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

    /// Removes a name. `ENOENT` where it is not there.
    pub fn remove(&self, blocks: &dyn DirBlocks, h: &mut Handle, name: &Name) -> Result<()> {
        assert_ordinary(name);
        let place = self.locate(blocks, name)?.ok_or(Errno::ENOENT)?;
        h.update(place.block, |bytes| {
            self.format.remove(bytes, &place.found);
            self.format.seal(bytes);
        })
    }

    /// Points a name at another inode. `ENOENT` where it is not there.
    pub fn set(&self, blocks: &dyn DirBlocks, h: &mut Handle, name: &Name, entry: Entry) -> Result<()> {
        assert_ordinary(name);
        let place = self.locate(blocks, name)?.ok_or(Errno::ENOENT)?;
        h.update(place.block, |bytes| {
            self.format.set(bytes, place.found.at, entry.ino, entry.kind.dirent_type());
            self.format.seal(bytes);
        })
    }

    /// Whether there are no names but `.` and `..`. Looks at every block, in the index or not.
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

    /// What `..` points at.
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

    fn locate(&self, blocks: &dyn DirBlocks, name: &Name) -> Result<Option<Place>> {
        if self.indexed {
            return self.locate_indexed(blocks, name);
        }
        for at in 0..self.block_count(blocks)? {
            let (block, bytes) = self.read_entries(blocks, FileBlock(at))?;
            let site = Site::Block(block);
            let from = if at == 0 { self.format.dots(&bytes, self.ino, site)?.parent_at } else { 0 };
            if let Some(found) = self.format.find(&bytes, from, name, site)? {
                return Ok(Some(Place { block, found }));
            }
        }
        Ok(None)
    }

    /// Blocks of the directory, at least one.
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

    /// Reads a block of whatever kind, unchecked.
    fn read(&self, blocks: &dyn DirBlocks, at: FileBlock) -> Result<(BlockNr, BlockRef)> {
        if at.0 >= blocks.count() {
            return Err(Error::corrupt(Site::Inode(self.ino), "hash index leads out of the directory"));
        }
        blocks.contents(self.engine, at)
    }
}

/// Names are checked where they come in (see [`crate::api::check_name`]).
fn assert_ordinary(name: &Name) {
    let fits = (1..=NAME_MAX_BYTES).contains(&name.len());
    assert!(fits && name != b"." && name != b"..", "an ordinary name");
}

/// A directory's first block, checked.
enum First {
    Linear { dots: Dots, bytes: BlockRef, site: Site },
    Root { parent: Ino, index: Index },
}
