//! The blocks of an inode: extent trees and block maps, walked to the last entry.

use xact_layout::extent::{END_OF_FILES, Expected, Extent, Node};
use xact_layout::get_u32;
use xact_layout::inode::{Inode, flag, inode_seed};
use xact_types::{BlockNr, Error, FileBlock, Ino, Result, Run, Site};

use super::Checker;

const DIRECT: usize = 12;

/// The size of the largest file that an inode's kind of map can hold, in bytes.
pub(crate) fn mapped_max(inode: &Inode, block_size: u64) -> u64 {
    if inode.flags() & flag::EXTENTS != 0 {
        return (block_size << 32) - 1;
    }
    let per_array = block_size / 4;
    (DIRECT as u64 + per_array + per_array.pow(2) + per_array.pow(3)) * block_size
}

/// The contents of an inode's map.
#[derive(Default)]
pub(crate) struct Mapped {
    /// In the order of the file, those that continue each other merged; only with `keep`.
    pub extents: Vec<Extent>,
    /// Blocks of the map itself; only with `keep`.
    pub nodes: Vec<BlockNr>,
    /// Data blocks and the blocks of the map itself.
    pub blocks: u64,
    /// The file block after the last written one.
    pub written_end: u64,
    /// The file block after the last one.
    pub end: u64,
}

impl Mapped {
    /// The file blocks with contents and their places, by a kept map.
    pub fn blocks(&self) -> impl Iterator<Item = (u32, BlockNr)> {
        self.extents.iter().filter(|extent| !extent.unwritten).flat_map(|extent| {
            (0..extent.run.len).map(|n| (extent.at.0 + n, extent.run.start.offset(n.into())))
        })
    }

    /// The first file block without contents before the end, by a kept map.
    pub fn first_hole(&self) -> Option<u32> {
        let mut next = 0;
        for extent in &self.extents {
            if extent.at.0 != next || extent.unwritten {
                return Some(next);
            }
            next = extent.end().0;
        }
        (u64::from(next) < self.end).then_some(next)
    }
}

/// A walk over one inode's map.
struct Walk {
    ino: Ino,
    keep: bool,
    mapped: Mapped,
    /// The walk met damage, so the totals mean nothing.
    broken: bool,
}

impl Checker<'_> {
    /// Claims all blocks of an inode. `None` if the map is damaged: then `i_blocks` and the size
    /// cannot be checked.
    pub(crate) fn walk_map(&mut self, ino: Ino, inode: &Inode, keep: bool) -> Result<Option<Mapped>> {
        let mut walk = Walk { ino, keep, mapped: Mapped::default(), broken: false };
        if inode.flags() & flag::EXTENTS != 0 {
            let sb = &self.volume.sb;
            if let Some(root) = self.report.note(Node::root(inode.block_area(), sb, Site::Inode(ino)))? {
                let seed = inode_seed(sb, ino, inode.generation());
                self.walk_node(&mut walk, root, END_OF_FILES, seed)?;
            } else {
                walk.broken = true;
            }
        } else {
            self.walk_pointers(&mut walk, inode)?;
        }
        Ok(if walk.broken { None } else { Some(walk.mapped) })
    }

    fn walk_node(&mut self, walk: &mut Walk, node: Node<'_>, end: FileBlock, seed: u32) -> Result<()> {
        if !node.fills_area() {
            let what = "has an extent node that says it holds fewer entries than fit";
            self.report.problem(Site::Inode(walk.ino), what);
        }
        for i in 0..node.len() {
            if node.depth() == 0 {
                self.claim_extent(walk, node.extent(i));
                continue;
            }
            let child = node.index(i).child;
            let expected: Expected = node.expected_child(i, end);
            if !self.claim_node(walk, child) {
                continue;
            }
            let bytes = self.volume.block(child)?;
            let site = Site::Block(child);
            match self.report.note(Node::in_block(&bytes, &self.volume.sb, seed, expected, site))? {
                // The depth decreases each time, so this ends.
                Some(below) => self.walk_node(walk, below, expected.end, seed)?,
                None => walk.broken = true,
            }
        }
        Ok(())
    }

    fn claim_extent(&mut self, walk: &mut Walk, extent: Extent) {
        let fresh = self.claim_run(walk.ino, extent.run);
        walk.mapped.blocks += u64::from(extent.run.len);
        let end = u64::from(extent.at.0) + u64::from(extent.run.len);
        walk.mapped.end = walk.mapped.end.max(end);
        if !extent.unwritten {
            walk.mapped.written_end = walk.mapped.written_end.max(end);
        }
        if !walk.keep {
            return;
        }
        if !fresh {
            self.shared_blocks += u64::from(extent.run.len);
            if self.shared_blocks > self.volume.sb.blocks_count() {
                return;
            }
        }
        let last = walk.mapped.extents.last_mut();
        match last.and_then(|last| Some((last.merged(&extent)?, last))) {
            Some((merged, last)) => *last = merged,
            None => walk.mapped.extents.push(extent),
        }
    }

    /// Claims a block of the map; false if it cannot be one, or was claimed before.
    fn claim_node(&mut self, walk: &mut Walk, block: BlockNr) -> bool {
        walk.mapped.blocks += 1;
        let fits = self.volume.sb.contains(block, 1);
        if !fits {
            self.report
                .problem(Site::Inode(walk.ino), format!("its map leads to {block}, outside the volume"));
        }
        let fresh = fits && self.claim_run(walk.ino, Run { start: block, len: 1 });
        walk.broken |= !fresh;
        if walk.keep && fresh {
            walk.mapped.nodes.push(block);
        }
        fresh
    }

    /// Claims blocks within the volume for an inode; false if one of them was claimed before.
    pub(crate) fn claim_run(&mut self, ino: Ino, run: Run) -> bool {
        match self.used.claim(run) {
            None => true,
            Some(block) => {
                self.report.problem(Site::Inode(ino), format!("claims {block}, which is used otherwise"));
                false
            }
        }
    }

    fn walk_pointers(&mut self, walk: &mut Walk, inode: &Inode) -> Result<()> {
        let per_array = (self.volume.block_size() / 4) as u64;
        let (mut at, mut span) = (0u64, 1u64);
        for slot in 0..DIRECT + 3 {
            let level = (slot + 1).saturating_sub(DIRECT);
            if level > 0 {
                span *= per_array;
            }
            self.walk_pointer(walk, get_u32(inode.block_area(), 4 * slot), level, at, span)?;
            at += span;
        }
        Ok(())
    }

    fn walk_pointer(
        &mut self,
        walk: &mut Walk,
        pointer: u32,
        level: usize,
        at: u64,
        span: u64,
    ) -> Result<()> {
        if pointer == 0 {
            return Ok(());
        }
        let block = BlockNr(pointer.into());
        if level == 0 {
            let run = Run { start: block, len: 1 };
            let fits = self.volume.sb.contains(block, 1);
            match u32::try_from(at) {
                Ok(at) if fits && at < END_OF_FILES.0 => {
                    self.claim_extent(walk, Extent { at: FileBlock(at), run, unwritten: false });
                }
                _ => {
                    let what = format!("its map leads to {block} for file block {at}, which cannot be");
                    self.report.problem(Site::Inode(walk.ino), what);
                    walk.broken = true;
                }
            }
            return Ok(());
        }
        if !self.claim_node(walk, block) {
            return Ok(());
        }
        let bytes = self.volume.block(block)?;
        let below = span / (bytes.len() / 4) as u64;
        for (slot, word) in bytes.chunks_exact(4).enumerate() {
            self.walk_pointer(walk, get_u32(word, 0), level - 1, at + slot as u64 * below, below)?;
        }
        Ok(())
    }

    /// The volume block of a file block, by a kept map.
    pub(crate) fn place(mapped: &Mapped, at: u32) -> Option<BlockNr> {
        let index = mapped.extents.partition_point(|extent| extent.at.0 <= at).checked_sub(1)?;
        let extent = &mapped.extents[index];
        (at < extent.end().0 && !extent.unwritten)
            .then(|| extent.run.start.offset(u64::from(at - extent.at.0)))
    }

    /// The contents of a small file by its kept map; holes are an error.
    pub(crate) fn file_block(&self, ino: Ino, mapped: &Mapped, at: u32) -> Result<(BlockNr, Vec<u8>)> {
        let place = Self::place(mapped, at);
        let block = place.ok_or(Error::corrupt(Site::Inode(ino), "has a hole where none may be"))?;
        Ok((block, self.volume.block(block)?))
    }
}
