//! Plans and applies a change of one leaf, with its effects on the nodes above.
//!
//! Every change is a splice: some contiguous entries of a node are replaced by others. The effect
//! on the parent is again a splice of its entries, and so on up to the root:
//!
//! | entries of the node after the splice | change of the node | splice of the parent |
//! |---|---|---|
//! | none | freed | its entry is removed |
//! | few, and a neighbour has few | merged with the neighbour, which is freed | one entry for two |
//! | up to its capacity | written | its entry, if the first file block changed |
//! | more | split in two | two entries for one |
//!
//! The entries of a root that overflows move into a new node below it. If a root's only child fits
//! into it, the root takes the child's entries.

use std::ops::Range;

use xact_consistency::{BlockRef, Handle};
use xact_layout::extent::{
    END_OF_FILES, Expected, Index, MAX_DEPTH, ROOT_CAPACITY, RawEntry, block_capacity, write_block,
    write_root,
};
use xact_layout::get_u32;
use xact_layout::inode::Inode;
use xact_types::{BlockNr, Errno, FileBlock, Result};

use super::Extents;
use super::path::{Level, TreePath};

/// New contents of a node.
struct NodeWrite {
    block: BlockNr,
    depth: u16,
    entries: Vec<RawEntry>,
}

/// The writes of a change, planned for one state of the tree.
#[derive(Default)]
struct TreePlan {
    changed: Vec<NodeWrite>,
    /// New nodes, in blocks taken for them.
    created: Vec<NodeWrite>,
    freed: Vec<BlockNr>,
    root: Option<(u16, Vec<RawEntry>)>,
}

/// A complete plan. It is applied, or its drop gives the taken blocks back.
pub(super) struct Change<'a> {
    extents: Extents<'a>,
    plan: TreePlan,
}

impl<'a> Extents<'a> {
    /// Plans the replacement of the entries `range` of the path's leaf. Changes nothing on the
    /// volume.
    pub(super) fn plan(&self, path: &TreePath, range: Range<usize>, with: &[RawEntry]) -> Result<Change<'a>> {
        // On an error its drop gives the taken blocks back.
        let mut change = Change { extents: *self, plan: TreePlan::default() };
        change.splice(path, path.levels.len() - 1, range, with)?;
        change.pull_up(path)?;
        Ok(change)
    }
}

impl Change<'_> {
    fn splice(
        &mut self,
        path: &TreePath,
        level: usize,
        range: Range<usize>,
        with: &[RawEntry],
    ) -> Result<()> {
        let node = &path.levels[level];
        if node.entries[range.clone()] == *with {
            return Ok(());
        }
        let shrinks = with.len() < range.len();
        let at_end = range.end == node.entries.len();
        let mut entries = node.entries.clone();
        entries.splice(range, with.iter().copied());

        let Some(block) = node.block else {
            return self.new_root(node.depth, entries);
        };
        let parent = &path.levels[level - 1];
        let own = parent.at..parent.at + 1;
        let capacity = self.capacity();
        if entries.is_empty() {
            self.plan.freed.push(block);
            return self.splice(path, level - 1, own, &[]);
        }
        if shrinks
            && entries.len() <= capacity / 4
            && let Some(merge) = self.merge_with_neighbour(parent, node, &entries)?
        {
            let (range, index) = (merge.parent_range, index_of(&merge.entries, merge.block));
            self.plan.changed.push(NodeWrite {
                block: merge.block,
                depth: node.depth,
                entries: merge.entries,
            });
            self.plan.freed.push(merge.freed);
            return self.splice(path, level - 1, range, &[index]);
        }
        if entries.len() <= capacity {
            let index = index_of(&entries, block);
            self.plan.changed.push(NodeWrite { block, depth: node.depth, entries });
            return self.splice(path, level - 1, own, &[index]);
        }
        // A file that grows at its end leaves full nodes behind; elsewhere both halves get free
        // slots.
        let keep = if at_end { capacity } else { entries.len() / 2 };
        let right = entries.split_off(keep);
        let new = self.take(block)?;
        let indexes = [index_of(&entries, block), index_of(&right, new)];
        self.plan.changed.push(NodeWrite { block, depth: node.depth, entries });
        self.plan.created.push(NodeWrite { block: new, depth: node.depth, entries: right });
        self.splice(path, level - 1, own, &indexes)
    }

    fn new_root(&mut self, depth: u16, entries: Vec<RawEntry>) -> Result<()> {
        if entries.len() <= ROOT_CAPACITY {
            let depth = if entries.is_empty() { 0 } else { depth };
            self.plan.root = Some((depth, entries));
            return Ok(());
        }
        if depth == MAX_DEPTH {
            return Err(Errno::EFBIG.into());
        }
        let new = self.take(self.extents.first_node_goal())?;
        self.plan.root = Some((depth + 1, vec![index_of(&entries, new)]));
        self.plan.created.push(NodeWrite { block: new, depth, entries });
        Ok(())
    }

    /// Merges the node with a neighbour under the same parent, if both have few entries. The left
    /// one of the two stays.
    fn merge_with_neighbour(
        &self,
        parent: &Level,
        node: &Level,
        entries: &[RawEntry],
    ) -> Result<Option<Merge>> {
        let own = node.block.expect("the root has no neighbours");
        let room = self.capacity() / 2 - entries.len();
        if parent.at + 1 < parent.entries.len() {
            let (block, right) = self.read_child(parent, parent.at + 1)?;
            if right.len() <= room {
                let entries = [entries, &right].concat();
                let parent_range = parent.at..parent.at + 2;
                return Ok(Some(Merge { parent_range, block: own, entries, freed: block }));
            }
        }
        if parent.at > 0 {
            let (block, left) = self.read_child(parent, parent.at - 1)?;
            if left.len() <= room {
                let entries = [&left, entries].concat();
                let parent_range = parent.at - 1..parent.at + 1;
                return Ok(Some(Merge { parent_range, block, entries, freed: own }));
            }
        }
        Ok(None)
    }

    fn read_child(&self, parent: &Level, i: usize) -> Result<(BlockNr, Vec<RawEntry>)> {
        let index = Index::decode(&parent.entries[i]);
        let end = parent.entries.get(i + 1).map_or(parent.end, |next| Index::decode(next).at);
        let expected = Expected { depth: parent.depth - 1, first: index.at, end };
        Ok((index.child, self.read_node(index.child, expected)?))
    }

    fn read_node(&self, block: BlockNr, expected: Expected) -> Result<Vec<RawEntry>> {
        let bytes = self.extents.engine.read(block)?;
        Ok(self.extents.child(&bytes, block, expected)?.raw_entries().to_vec())
    }

    /// Moves the entries of the root's only child into the root, as long as they fit.
    fn pull_up(&mut self, path: &TreePath) -> Result<()> {
        let root = &path.levels[0];
        let (mut depth, mut entries) = match &self.plan.root {
            Some((depth, entries)) => (*depth, entries.clone()),
            None => (root.depth, root.entries.clone()),
        };
        while depth > 0
            && let [only] = entries[..]
        {
            let index = Index::decode(&only);
            // A new node has more entries than a root can hold.
            if self.plan.created.iter().any(|node| node.block == index.child) {
                break;
            }
            depth -= 1;
            let planned = self.plan.changed.iter().position(|node| node.block == index.child);
            entries = match planned {
                Some(i) => self.plan.changed[i].entries.clone(),
                None => {
                    self.read_node(index.child, Expected { depth, first: index.at, end: END_OF_FILES })?
                }
            };
            if entries.len() > ROOT_CAPACITY {
                break;
            }
            if let Some(i) = planned {
                self.plan.changed.swap_remove(i);
            }
            self.plan.freed.push(index.child);
            self.plan.root = Some((depth, entries.clone()));
        }
        Ok(())
    }

    fn take(&mut self, goal: BlockNr) -> Result<BlockNr> {
        self.extents.blocks.take(goal)
    }

    fn capacity(&self) -> usize {
        block_capacity(self.extents.engine.block_size())
    }

    /// Writes the plan, and counts `added` and `removed` data blocks in addition to the nodes.
    pub(super) fn apply(
        mut self,
        handle: &mut Handle,
        inode: &mut Inode,
        added: u64,
        removed: u64,
    ) -> Result<()> {
        let Extents { sb, blocks, .. } = self.extents;
        let seed = self.extents.seed();
        let plan = std::mem::take(&mut self.plan);
        let (created, freed) = (plan.created.len() as u64, plan.freed.len() as u64);
        for node in plan.created {
            blocks.link(handle, node.block)?;
            let mut bytes = vec![0; self.extents.engine.block_size()];
            write_block(&mut bytes, sb, seed, node.depth, &node.entries);
            handle.create(node.block, BlockRef::from(bytes))?;
        }
        for node in plan.changed {
            handle.update(node.block, |bytes| write_block(bytes, sb, seed, node.depth, &node.entries))?;
        }
        for block in plan.freed {
            handle.forget(block)?;
            blocks.free(handle, block)?;
        }
        if let Some((depth, entries)) = plan.root {
            let mut area = *inode.block_area();
            write_root(&mut area, depth, &entries);
            inode.set_block_area(&area);
        }
        self.extents.account(inode, added + created, removed + freed);
        Ok(())
    }
}

impl Drop for Change<'_> {
    fn drop(&mut self) {
        for node in &self.plan.created {
            self.extents.blocks.give_back(node.block);
        }
    }
}

/// The merge of two nodes.
struct Merge {
    /// The entries of the two nodes in their parent.
    parent_range: Range<usize>,
    /// The node that stays, with all entries.
    block: BlockNr,
    entries: Vec<RawEntry>,
    freed: BlockNr,
}

fn index_of(entries: &[RawEntry], child: BlockNr) -> RawEntry {
    Index { at: FileBlock(get_u32(&entries[0], 0)), child }.encode()
}

impl Extents<'_> {
    /// Goal for the first node outside the inode: in the inode's group, but not directly after the
    /// data, which will grow there.
    fn first_node_goal(&self) -> BlockNr {
        let group = (self.owner.ino.0.saturating_sub(1)) / self.sb.inodes_per_group();
        let start = u64::from(self.sb.first_data_block());
        BlockNr(start + u64::from(group) * u64::from(self.sb.blocks_per_group()))
    }
}
