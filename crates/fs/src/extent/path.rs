//! Paths from the root of an extent tree to the leaf for a file block.

use xact_consistency::BlockRef;
use xact_layout::extent::{END_OF_FILES, Expected, Node, RawEntry};
use xact_layout::inode::Inode;
use xact_types::{BlockNr, Error, FileBlock, Result, Run, Site};

use super::{Extents, accepted};

/// A node on the path to a leaf, copied for a change.
pub(super) struct Level {
    /// `None` for the root, which lies in the inode.
    pub block: Option<BlockNr>,
    pub depth: u16,
    pub entries: Vec<RawEntry>,
    /// The entry on the path; in the leaf, the last one at or before the file block.
    pub at: usize,
    /// All entries lie before this file block.
    pub end: FileBlock,
}

/// Levels from the root to a leaf.
pub(super) struct TreePath {
    pub levels: Vec<Level>,
}

impl TreePath {
    pub fn leaf(&self) -> &Level {
        self.levels.last().expect("a path has a root")
    }
}

impl Extents<'_> {
    /// Runs `look` on the leaf for `at`, and on the file block where the next leaf starts.
    /// Allocates nothing.
    pub(super) fn with_leaf<R>(
        &self,
        inode: &Inode,
        at: FileBlock,
        look: impl FnOnce(Node<'_>, FileBlock) -> Result<R>,
    ) -> Result<R> {
        let mut bytes: BlockRef;
        let mut node = self.root(inode)?;
        let mut end = END_OF_FILES;
        while node.depth() > 0 {
            // A file block before the first entry belongs to the first leaf.
            let i = node.count_up_to(at).saturating_sub(1);
            let expected = node.expected_child(i, end);
            let child = node.index(i).child;
            bytes = self.engine.read(child)?;
            node = self.child(&bytes, child, expected)?;
            end = expected.end;
        }
        look(node, end)
    }

    /// Copies of the nodes down to the leaf for `at`.
    pub(super) fn path(&self, inode: &Inode, at: FileBlock) -> Result<TreePath> {
        let mut levels = Vec::new();
        let mut bytes: BlockRef;
        let mut node = self.root(inode)?;
        let (mut block, mut end) = (None, END_OF_FILES);
        loop {
            let i = node.count_up_to(at).saturating_sub(1);
            levels.push(Level {
                block,
                depth: node.depth(),
                entries: node.raw_entries().to_vec(),
                at: i,
                end,
            });
            if node.depth() == 0 {
                return Ok(TreePath { levels });
            }
            let expected = node.expected_child(i, end);
            let child = node.index(i).child;
            bytes = self.engine.read(child)?;
            node = self.child(&bytes, child, expected)?;
            (block, end) = (Some(child), expected.end);
        }
    }

    pub(super) fn root<'b>(&self, inode: &'b Inode) -> Result<Node<'b>> {
        Node::root(inode.block_area(), self.sb, Site::Inode(self.owner.ino))
    }

    pub(super) fn child<'b>(
        &self,
        bytes: &'b BlockRef,
        block: BlockNr,
        expected: Expected,
    ) -> Result<Node<'b>> {
        accepted::node(bytes, block, self.owner, expected, || {
            self.check_usable(Run { start: block, len: 1 })?;
            Node::in_block(bytes, self.sb, self.seed(), expected, Site::Block(block))
        })
    }

    /// `Corrupt` for blocks that cannot belong to a file.
    pub(super) fn check_usable(&self, run: Run) -> Result<()> {
        if !self.blocks.is_usable(run)? {
            return Err(Error::corrupt(
                Site::Inode(self.owner.ino),
                "file claims blocks of the volume's own metadata",
            ));
        }
        Ok(())
    }
}
