//! Paths through the hash index: down to the leaf of a hash, and on to the next leaf.

use xact_consistency::BlockRef;
use xact_layout::dirhash::DirHasher;
use xact_layout::htree::{Index, MAX_DEPTH};
use xact_types::{BlockNr, Error, FileBlock, Result, Site};

use super::{Dir, DirBlocks, FoundEntry};
use crate::api::Name;

/// An index block on a path, and the branch taken.
pub(super) struct IndexStep {
    pub file_block: FileBlock,
    pub block: BlockNr,
    pub bytes: BlockRef,
    pub index: Index,
    pub at: usize,
}

impl IndexStep {
    fn target(&self) -> FileBlock {
        self.index.block(&self.bytes, self.at)
    }

    /// The hash at which the next branch begins.
    fn next_hash(&self) -> Option<u32> {
        let next = self.at + 1;
        (next < self.index.count()).then(|| self.index.hash(&self.bytes, next))
    }
}

/// The path from the root to one leaf.
pub(super) struct IndexPath {
    /// The hash function given by the root.
    pub hasher: DirHasher,
    /// Steps from the root on; `None` after the last.
    steps: [Option<IndexStep>; MAX_DEPTH],
    depth: usize,
}

impl IndexPath {
    pub fn depth(&self) -> usize {
        self.depth
    }

    pub fn step(&self, level: usize) -> &IndexStep {
        assert!(level < self.depth, "level of an index");
        self.steps[level].as_ref().expect("steps above the depth")
    }

    /// The index block directly above the leaf.
    pub fn last(&self) -> &IndexStep {
        self.step(self.depth - 1)
    }

    pub fn leaf(&self) -> FileBlock {
        self.last().target()
    }

    /// The hash at which the leaf begins.
    pub fn hash(&self) -> u32 {
        let step = (0..self.depth).rev().map(|level| self.step(level)).find(|step| step.at > 0);
        step.map_or(0, |step| step.index.hash(&step.bytes, step.at))
    }

    /// The hash at which the next leaf begins; `None` at the last leaf.
    pub fn next_hash(&self) -> Option<u32> {
        (0..self.depth).rev().find_map(|level| self.step(level).next_hash())
    }

    /// Whether a block is an index block on this path.
    pub fn is_index_block(&self, block: FileBlock) -> bool {
        (0..self.depth).any(|level| self.step(level).file_block == block)
            || (0..self.depth - 1).any(|level| {
                let step = self.step(level);
                step.index.branches(&step.bytes).any(|branch| branch.block == block)
            })
    }
}

impl Dir<'_> {
    /// Reads the root. The path is complete after `descend`.
    fn open_index(&self, blocks: &dyn DirBlocks) -> Result<IndexPath> {
        self.block_count(blocks)?;
        let file_block = FileBlock(0);
        let (block, bytes) = self.read(blocks, file_block)?;
        let (info, index) = Index::root(&self.format, &bytes, self.ino, Site::Block(block))?;
        let hasher = DirHasher::new(self.sb, info.hash_version);
        let root = IndexStep { file_block, block, bytes, index, at: 0 };
        let mut path = IndexPath { hasher, steps: Default::default(), depth: 1 + usize::from(info.levels) };
        path.steps[0] = Some(root);
        Ok(path)
    }

    /// The hash function of the directory; without an index, the one that it would get.
    pub(super) fn hasher(&self, blocks: &dyn DirBlocks) -> Result<DirHasher> {
        if self.indexed { Ok(self.open_index(blocks)?.hasher) } else { Ok(DirHasher::default_of(self.sb)) }
    }

    /// The path to the first leaf that may have names with the hash that `hash_of` returns.
    pub(super) fn probe(
        &self,
        blocks: &dyn DirBlocks,
        hash_of: impl FnOnce(&DirHasher) -> u32,
    ) -> Result<(u32, IndexPath)> {
        let mut path = self.open_index(blocks)?;
        let hash = hash_of(&path.hasher);
        let root = path.steps[0].as_mut().expect("an open index has a root");
        root.at = root.index.find(&root.bytes, hash);
        for level in 1..path.depth {
            let mut step = self.read_step(blocks, path.step(level - 1).target())?;
            step.at = step.index.find(&step.bytes, hash);
            path.steps[level] = Some(step);
        }
        Ok((hash, path))
    }

    /// Moves to the next leaf, which must exist.
    pub(super) fn advance(&self, blocks: &dyn DirBlocks, path: &mut IndexPath) -> Result<()> {
        let level = (0..path.depth)
            .rev()
            .find(|&level| path.step(level).next_hash().is_some())
            .expect("the caller has checked that a next leaf exists");
        path.steps[level].as_mut().expect("steps above the depth").at += 1;
        for below in level + 1..path.depth {
            path.steps[below] = Some(self.read_step(blocks, path.step(below - 1).target())?);
        }
        Ok(())
    }

    /// Reads an index node. A root or a leaf in its place does not look like a node, or has another
    /// checksum. The depth is limited, so a loop of nodes ends.
    fn read_step(&self, blocks: &dyn DirBlocks, file_block: FileBlock) -> Result<IndexStep> {
        let (block, bytes) = self.read(blocks, file_block)?;
        let index = Index::node(&self.format, &bytes, Site::Block(block))?;
        Ok(IndexStep { file_block, block, bytes, index, at: 0 })
    }

    pub(super) fn locate_indexed(&self, blocks: &dyn DirBlocks, name: &Name) -> Result<Option<FoundEntry>> {
        let (hash, mut path) = self.probe(blocks, |hasher| hasher.hash(name).major)?;
        for _ in 0..blocks.count() {
            let (block, bytes) = self.read_leaf(blocks, &path)?;
            if let Some(found) = self.format.find(&bytes, 0, name, Site::Block(block))? {
                return Ok(Some(FoundEntry { block, found }));
            }
            // Names with one hash may fill several leaves.
            match path.next_hash() {
                Some(next) if next & !1 == hash => self.advance(blocks, &mut path)?,
                _ => return Ok(None),
            }
        }
        Err(self.too_many_leaves())
    }

    /// The error of a walk that has visited more leaves than the directory has blocks.
    pub(super) fn too_many_leaves(&self) -> Error {
        Error::corrupt(Site::Inode(self.ino), "hash index leads to a block more than once")
    }

    pub(super) fn out_of_order(&self, block: BlockNr) -> Error {
        Error::corrupt(Site::Block(block), "hash index is out of order")
    }

    /// Reads the leaf at the end of a path.
    pub(super) fn read_leaf(&self, blocks: &dyn DirBlocks, path: &IndexPath) -> Result<(BlockNr, BlockRef)> {
        let leaf = path.leaf();
        if (0..path.depth).any(|level| path.step(level).file_block == leaf) {
            return Err(Error::corrupt(Site::Block(path.last().block), "hash index leads to itself"));
        }
        self.read_entries(blocks, leaf)
    }
}
