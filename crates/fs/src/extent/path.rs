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

    /// The place of a block of a file whose tree is not the newest: `read` returns the contents of
    /// its nodes. `None` for a hole, for unwritten blocks, or if `read` knows no contents.
    pub fn place_in(
        &self,
        inode: &Inode,
        at: FileBlock,
        read: &dyn Fn(BlockNr) -> Result<Option<BlockRef>>,
    ) -> Result<Option<BlockNr>> {
        let mut bytes: BlockRef;
        let mut node = self.root(inode)?;
        let mut end = END_OF_FILES;
        while node.depth() > 0 {
            let i = node.count_up_to(at).saturating_sub(1);
            let expected = node.expected_child(i, end);
            let child = node.index(i).child;
            let Some(contents) = read(child)? else { return Ok(None) };
            bytes = contents;
            node = self.child(&bytes, child, expected)?;
            end = expected.end;
        }
        let Some(last) = node.count_up_to(at).checked_sub(1) else { return Ok(None) };
        let extent = node.extent(last);
        if extent.unwritten || at >= extent.end() {
            return Ok(None);
        }
        let place = extent.part(at, extent.end()).run;
        self.check_usable(place)?;
        Ok(Some(place.start))
    }

    /// The runs of a file whose tree is in the inode alone; `None` for another one.
    pub fn runs_in_inode(&self, inode: &Inode) -> Result<Option<Vec<Run>>> {
        let root = self.root(inode)?;
        Ok((root.depth() == 0).then(|| (0..root.len()).map(|i| root.extent(i).run).collect()))
    }

    /// Whether `each` is true for all nodes of the tree outside the inode, with their newest
    /// contents.
    pub fn all_nodes(
        &self,
        inode: &Inode,
        each: &mut dyn FnMut(BlockNr, &BlockRef) -> Result<bool>,
    ) -> Result<bool> {
        self.all_nodes_below(self.root(inode)?, END_OF_FILES, each)
    }

    fn all_nodes_below(
        &self,
        node: Node<'_>,
        end: FileBlock,
        each: &mut dyn FnMut(BlockNr, &BlockRef) -> Result<bool>,
    ) -> Result<bool> {
        if node.depth() == 0 {
            return Ok(true);
        }
        for i in 0..node.len() {
            let (child, expected) = (node.index(i).child, node.expected_child(i, end));
            let bytes = self.engine.read(child)?;
            let below = self.child(&bytes, child, expected)?;
            if !each(child, &bytes)? || !self.all_nodes_below(below, expected.end, each)? {
                return Ok(false);
            }
        }
        Ok(true)
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
