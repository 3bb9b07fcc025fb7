//! A volume in memory, blocks to take, and a strict reader of whole trees.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::sync::Arc;

use xact_consistency::test_engine::TestEngine;
use xact_consistency::{Engine, Handle};
use xact_device::MemoryDevice;
use xact_layout::extent::{END_OF_FILES, Expected, Extent, Index, Node, ROOT_CAPACITY, empty_root};
use xact_layout::feature::ro_compat;
use xact_layout::inode::{Inode, flag};
use xact_layout::superblock::Superblock;
use xact_types::{BlockNr, Error, FileBlock, Ino, Result, Run};

use super::super::{Extents, Owner};
use crate::metadata_blocks::MetadataBlocks;

pub const BLOCK_SIZE: usize = 1024;
/// Nodes use blocks below this one, data those above. So a tree of one-block extents can get deep
/// on a small device, of which only the lower part exists.
pub const DATA_FROM: u64 = 20_000;
pub const BLOCKS: u64 = 4_000_000_000;

/// Provides node blocks, and tracks the linked ones.
#[derive(Default)]
pub struct TestBlocks {
    pub taken: RefCell<BTreeSet<BlockNr>>,
    pub linked: RefCell<BTreeSet<BlockNr>>,
    /// Maximum number of blocks in use.
    pub limit: RefCell<Option<usize>>,
}

/// Substitutes for the bitmap and descriptor of a group of eight blocks, so that credits are used.
fn bitmap_of(block: BlockNr) -> (BlockNr, BlockNr) {
    let group = block.0 / 8;
    (BlockNr(DATA_FROM + 2 * group), BlockNr(DATA_FROM + 2 * group + 1))
}

impl MetadataBlocks for TestBlocks {
    fn take(&self, goal: BlockNr) -> Result<BlockNr> {
        let used = self.taken.borrow().len() + self.linked.borrow().len();
        if self.limit.borrow().is_some_and(|limit| used >= limit) {
            return Err(Error::NoSpace);
        }
        let free = |b: &BlockNr| !self.taken.borrow().contains(b) && !self.linked.borrow().contains(b);
        let from = goal.0.max(2);
        let block = (from..DATA_FROM).chain(2..from).map(BlockNr).find(free).expect("enough for a test");
        self.taken.borrow_mut().insert(block);
        Ok(block)
    }

    fn give_back(&self, block: BlockNr) {
        assert!(self.taken.borrow_mut().remove(&block), "{block} was not taken");
    }

    fn link(&self, handle: &mut Handle, block: BlockNr) -> Result<()> {
        self.give_back(block);
        assert!(self.linked.borrow_mut().insert(block), "{block} is linked twice");
        let (bitmap, descriptor) = bitmap_of(block);
        handle.update(bitmap, |_| ())?;
        handle.update(descriptor, |_| ())
    }

    fn is_usable(&self, _run: Run) -> Result<bool> {
        Ok(true)
    }

    fn free(&self, handle: &mut Handle, block: BlockNr) -> Result<()> {
        assert!(self.linked.borrow_mut().remove(&block), "{block} was not linked");
        let (bitmap, descriptor) = bitmap_of(block);
        handle.update(bitmap, |_| ())?;
        handle.update(descriptor, |_| ())
    }
}

pub struct Volume {
    pub engine: Arc<Engine>,
    pub test_engine: TestEngine,
    pub sb: Superblock,
    pub blocks: TestBlocks,
    pub inode: Inode,
}

pub const OWNER: Owner = Owner { ino: Ino(12), generation: 77 };

impl Volume {
    pub fn new() -> Volume {
        let device = MemoryDevice::new((DATA_FROM + DATA_FROM / 4 + 2) * BLOCK_SIZE as u64);
        let test_engine = TestEngine::new(Arc::new(device), BLOCK_SIZE);
        let mut sb = Superblock::zeroed();
        sb.set_blocks_count(BLOCKS);
        sb.set_first_data_block(1);
        sb.set_blocks_per_group(8192);
        sb.set_inodes_per_group(1024);
        sb.set_feature_ro_compat(ro_compat::METADATA_CSUM);
        let mut inode = Inode::zeroed(256);
        inode.set_flags(flag::EXTENTS);
        inode.set_block_area(&empty_root());
        Volume { engine: test_engine.engine.clone(), test_engine, sb, blocks: TestBlocks::default(), inode }
    }

    pub fn extents(&self) -> Extents<'_> {
        Extents::new(&self.engine, &self.sb, &self.blocks, OWNER)
    }

    /// Runs `change` with the extents and the inode in a handle of `credits`.
    pub fn change<R>(
        &mut self,
        credits: u32,
        change: impl FnOnce(&Extents<'_>, &mut Handle, &mut Inode) -> Result<R>,
    ) -> Result<R> {
        let mut handle = Handle::begin(&self.engine, credits)?;
        let mut inode = self.inode.clone();
        let result = change(&self.extents(), &mut handle, &mut inode);
        self.inode = inode;
        assert!(self.blocks.taken.borrow().is_empty(), "a block was taken and neither linked nor given back");
        result
    }

    /// Reads the whole tree, checks the module's invariants, and returns the extents and the depth.
    pub fn check(&self) -> (Vec<Extent>, u16) {
        let site = xact_types::Site::Inode(OWNER.ino);
        let root = Node::root(self.inode.block_area(), &self.sb, site).unwrap();
        let (mut extents, mut nodes) = (Vec::new(), BTreeSet::new());
        self.check_node(root, END_OF_FILES, &mut extents, &mut nodes);
        if let [only] = root.raw_entries()
            && root.depth() > 0
        {
            let bytes = self.engine.read(Index::decode(only).child).unwrap();
            let len = xact_layout::get_u16(&bytes, 2);
            assert!(usize::from(len) > ROOT_CAPACITY, "the root could hold its only child's entries");
        }
        assert_eq!(nodes, *self.blocks.linked.borrow(), "linked blocks are the nodes of the tree");
        let data: u64 = extents.iter().map(|e| u64::from(e.run.len)).sum();
        assert_eq!(self.inode.sectors(&self.sb), (data + nodes.len() as u64) * 2, "i_blocks");
        (extents, root.depth())
    }

    fn check_node(
        &self,
        node: Node<'_>,
        end: FileBlock,
        extents: &mut Vec<Extent>,
        nodes: &mut BTreeSet<BlockNr>,
    ) {
        for i in 0..node.len() {
            if node.depth() == 0 {
                let extent = node.extent(i);
                if i > 0 {
                    assert_eq!(node.extent(i - 1).merged(&extent), None, "extents could be one");
                }
                extents.push(extent);
                continue;
            }
            let child = node.index(i).child;
            assert!(nodes.insert(child), "{child} is in the tree twice");
            let expected: Expected = node.expected_child(i, end);
            let bytes = self.engine.read(child).unwrap();
            let below = self.extents().child(&bytes, child, expected).unwrap();
            assert!(!below.is_empty(), "empty node in {child}");
            self.check_node(below, expected.end, extents, nodes);
        }
    }
}
