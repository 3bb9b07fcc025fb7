//! The orphan file: a hidden file whose blocks hold the numbers of orphans. With it, threads do not
//! contend for the superblock, and no inode changes because of its neighbour in the list.
//!
//! The feature `orphan_present` is set while the volume is in use. Only then does recovery read the
//! file, and systems that do not know the file mount the volume read-only.

use std::collections::HashMap;

use xact_consistency::Handle;
use xact_layout::feature::{compat, ro_compat};
use xact_layout::inode::inode_seed;
use xact_layout::orphan;
use xact_layout::superblock::Superblock;
use xact_types::{BlockNr, Error, FileBlock, Ino, Result, Run, Site};

use crate::alloc::Allocator;
use crate::extent::{Extents, Owner};
use crate::inode_table::InodeTable;
use crate::superblock;

/// The kernel's limit in bytes (`EXT4_MAX_ORPHAN_FILE_BLOCKS`).
const MAX_BYTES: u64 = 8 << 20;

pub(super) struct OrphanFile {
    sb: Superblock,
    seed: u32,
    blocks: Vec<Block>,
    /// Block at which the search for a free entry starts.
    cursor: usize,
}

struct Block {
    at: BlockNr,
    free: usize,
}

/// The entry of an orphan in the file.
#[derive(Debug, Clone, Copy)]
pub(super) struct Slot {
    block: usize,
    entry: usize,
}

impl OrphanFile {
    /// The orphan file with its orphans; `None` on a volume without the feature.
    pub fn open(alloc: &Allocator, table: &InodeTable) -> Result<Option<(OrphanFile, HashMap<Ino, Slot>)>> {
        let sb = alloc.superblock().clone();
        if !sb.has_compat(compat::ORPHAN_FILE) {
            return Ok(None);
        }
        let ino = Ino(sb.orphan_file_inum());
        let inode = table.read(ino)?;
        let corrupt = |what| Error::corrupt(Site::Inode(ino), what);
        let block_size = u64::from(sb.block_size());
        if !inode.is_regular() || inode.size() > MAX_BYTES || !inode.size().is_multiple_of(block_size) {
            return Err(corrupt("not an orphan file"));
        }
        let seed = inode_seed(&sb, ino, inode.generation());
        let count = (inode.size() / block_size) as u32;
        let mut file = OrphanFile { sb: sb.clone(), seed, blocks: Vec::new(), cursor: 0 };
        let owner = Owner { ino, generation: inode.generation() };
        Extents::new(alloc.engine(), &sb, alloc, owner).iterate(
            &inode,
            FileBlock(0)..FileBlock(count),
            &mut |extent| {
                let part = extent.part(extent.at, extent.end().min(FileBlock(count)));
                let is_next = !part.unwritten && part.at.0 as usize == file.blocks.len();
                if !is_next || !alloc.is_usable(part.run)? {
                    return Err(corrupt("the orphan file has a hole or blocks that cannot be its own"));
                }
                let Run { start, len } = part.run;
                let at = |i| start.offset(u64::from(i));
                file.blocks.extend((0..len).map(|i| Block { at: at(i), free: 0 }));
                Ok(true)
            },
        )?;
        if file.blocks.len() != count as usize {
            return Err(corrupt("the orphan file has a hole or blocks that cannot be its own"));
        }
        let slots = file.load(alloc)?;
        Ok(Some((file, slots)))
    }

    fn load(&mut self, alloc: &Allocator) -> Result<HashMap<Ino, Slot>> {
        let mut slots = HashMap::new();
        for (number, block) in self.blocks.iter_mut().enumerate() {
            let bytes = alloc.engine().read(block.at)?;
            orphan::verify(&bytes, &self.sb, self.seed, block.at)?;
            for entry in 0..orphan::entries_per_block(bytes.len()) {
                let Some(ino) = orphan::entry(&bytes, entry) else {
                    block.free += 1;
                    continue;
                };
                if ino < self.sb.first_inode() || self.sb.inode_place(ino).is_none() {
                    return Err(Error::corrupt(
                        Site::Inode(ino),
                        "cannot be an orphan, but is in the orphan file",
                    ));
                }
                if slots.insert(ino, Slot { block: number, entry }).is_some() {
                    return Err(Error::corrupt(Site::Inode(ino), "is in the orphan file twice"));
                }
            }
        }
        Ok(slots)
    }

    pub fn place(&self, slot: Slot) -> BlockNr {
        self.blocks[slot.block].at
    }

    /// The block for the next orphan; `None` if the file is full.
    pub fn place_of_next(&self) -> Option<BlockNr> {
        self.next().map(|number| self.blocks[number].at)
    }

    fn next(&self) -> Option<usize> {
        (self.cursor..self.blocks.len()).chain(0..self.cursor).find(|&i| self.blocks[i].free > 0)
    }

    /// Adds an orphan; `None` if the file, or the block for it, is full.
    pub fn add(&mut self, h: &mut Handle, ino: Ino) -> Result<Option<Slot>> {
        let Some(number) = self.next() else { return Ok(None) };
        let at = self.blocks[number].at;
        // An entry that a later commit has freed may still be in use in the handle's own commit.
        let (newest, own) = (h.read(at)?, h.read_own(at)?);
        let is_free = |bytes: &[u8], entry| orphan::entry(bytes, entry).is_none();
        let Some(entry) = (0..orphan::entries_per_block(newest.len()))
            .find(|&entry| is_free(&newest, entry) && is_free(&own, entry))
        else {
            return Ok(None);
        };
        h.update_shared(at, |_, bytes| {
            orphan::set_entry(bytes, entry, Some(ino));
            orphan::seal(bytes, &self.sb, self.seed, at);
        })?;
        self.blocks[number].free -= 1;
        self.cursor = number;
        Ok(Some(Slot { block: number, entry }))
    }

    pub fn remove(&mut self, h: &mut Handle, slot: Slot, ino: Ino) -> Result<()> {
        let at = self.blocks[slot.block].at;
        let found = h.update_shared(at, |_, bytes| {
            let found = orphan::entry(bytes, slot.entry) == Some(ino);
            if found {
                orphan::set_entry(bytes, slot.entry, None);
                orphan::seal(bytes, &self.sb, self.seed, at);
            }
            found
        })?;
        if !found.newest || found.draining == Some(false) {
            return Err(Error::corrupt(Site::Block(at), "the orphan file was changed by another writer"));
        }
        self.blocks[slot.block].free += 1;
        Ok(())
    }

    pub fn set_present(&self, h: &mut Handle, present: bool) -> Result<()> {
        superblock::update(h, &self.sb, |sb| {
            let others = sb.feature_ro_compat() & !ro_compat::ORPHAN_PRESENT;
            sb.set_feature_ro_compat(others | if present { ro_compat::ORPHAN_PRESENT } else { 0 });
        })
    }
}
