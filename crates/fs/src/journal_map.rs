//! The block map of the journal's inode, which is rewritten when the journal changes its length.
//!
//! Unlike those of files, its nodes do not go through the log, because recovery must find the log
//! through them before it replays it. They are written to free blocks; a later commit changes the
//! inode to refer to them, and the changed bytes of the inode lie within one sector. No node
//! changes in place.

use std::sync::Arc;

use xact_consistency::Engine;
use xact_layout::extent::{
    END_OF_FILES, Expected, Extent, Index, MAX_DEPTH, MAX_WRITTEN_LEN, Node, ROOT_CAPACITY, RawEntry,
    block_capacity, write_block, write_root,
};
use xact_layout::inode::{BLOCK_AREA_BYTES, Inode, flag, inode_seed};
use xact_layout::superblock::Superblock;
use xact_types::{BlockNr, Error, FileBlock, Ino, Result, Run, Site};

/// The places of the journal's blocks.
#[derive(Debug, Clone, Default)]
pub(crate) struct JournalMap {
    /// Extents in the journal's order, from block 0 on, without holes.
    extents: Vec<Extent>,
    /// Blocks of the present tree.
    pub nodes: Vec<BlockNr>,
}

/// A tree that is not written yet.
pub(crate) struct NewTree {
    pub root: [u8; BLOCK_AREA_BYTES],
    pub nodes: Vec<(BlockNr, Vec<u8>)>,
}

impl JournalMap {
    /// The present map of the inode. Errors: `Unsupported` for an inode without extents.
    pub fn read(engine: &Arc<Engine>, sb: &Superblock, ino: Ino, inode: &Inode) -> Result<JournalMap> {
        if inode.flags() & flag::EXTENTS == 0 {
            return Err(Error::Unsupported(
                "changing the length of a journal whose inode has no extents".into(),
            ));
        }
        let mut map = JournalMap::default();
        let seed = inode_seed(sb, ino, inode.generation());
        let root = Node::root(inode.block_area(), sb, Site::Inode(ino))?;
        map.walk(engine, sb, seed, &root, END_OF_FILES)?;
        let mut next = FileBlock(0);
        for extent in &map.extents {
            if extent.at != next || extent.unwritten {
                return Err(Error::corrupt(Site::Inode(ino), "the journal has holes"));
            }
            next = extent.end();
        }
        Ok(map)
    }

    fn walk(
        &mut self,
        engine: &Arc<Engine>,
        sb: &Superblock,
        seed: u32,
        node: &Node<'_>,
        end: FileBlock,
    ) -> Result<()> {
        if node.depth() == 0 {
            self.extents.extend((0..node.len()).map(|i| node.extent(i)));
            return Ok(());
        }
        for i in 0..node.len() {
            let (child, expected) = (node.index(i).child, node.expected_child(i, end));
            let bytes = engine.read(child)?;
            self.nodes.push(child);
            let Expected { end, .. } = expected;
            let child = Node::in_block(&bytes, sb, seed, expected, Site::Block(child))?;
            self.walk(engine, sb, seed, &child, end)?;
        }
        Ok(())
    }

    pub fn blocks(&self) -> u32 {
        self.extents.last().map_or(0, |last| last.end().0)
    }

    /// The block after the last one.
    pub fn end(&self) -> BlockNr {
        self.extents.last().map_or(BlockNr(0), |last| last.run.end())
    }

    pub fn runs(&self) -> Vec<Run> {
        self.extents.iter().map(|extent| extent.run).collect()
    }

    /// Adds blocks at the end.
    pub fn push(&mut self, run: Run) {
        let mut rest = run;
        if let Some(last) = self.extents.last_mut()
            && last.run.end() == run.start
        {
            let more = rest.len.min(MAX_WRITTEN_LEN - last.run.len);
            last.run.len += more;
            rest = Run { start: rest.start.offset(more.into()), len: rest.len - more };
        }
        while rest.len > 0 {
            let len = rest.len.min(MAX_WRITTEN_LEN);
            let run = Run { len, ..rest };
            self.extents.push(Extent { at: FileBlock(self.blocks()), run, unwritten: false });
            rest = Run { start: rest.start.offset(len.into()), len: rest.len - len };
        }
    }

    /// Removes the last run, or the part of it after the first `least` blocks; `None` if there is
    /// none.
    pub fn pop(&mut self, least: u32) -> Option<Run> {
        let last = self.extents.last_mut().filter(|last| last.end().0 > least)?;
        if last.at.0 >= least {
            return self.extents.pop().map(|extent| extent.run);
        }
        let kept = least - last.at.0;
        let gone = Run { start: last.run.start.offset(kept.into()), len: last.run.len - kept };
        last.run.len = kept;
        Some(gone)
    }

    /// Number of nodes of a tree with this map.
    pub fn nodes_needed(&self, block_size: usize) -> usize {
        let capacity = block_capacity(block_size);
        let (mut entries, mut nodes) = (self.extents.len(), 0);
        while entries > ROOT_CAPACITY {
            entries = entries.div_ceil(capacity);
            nodes += entries;
        }
        nodes
    }

    /// The tree of this map, with its nodes in `places`, which has as many blocks as needed.
    pub fn tree(&self, sb: &Superblock, ino: Ino, generation: u32, places: &[BlockNr]) -> NewTree {
        let block_size = sb.block_size() as usize;
        let seed = inode_seed(sb, ino, generation);
        let mut places = places.iter();
        let mut nodes = Vec::new();
        let mut level: Vec<(FileBlock, RawEntry)> = self.extents.iter().map(|e| (e.at, e.encode())).collect();
        let mut depth = 0;
        while level.len() > ROOT_CAPACITY {
            let mut above = Vec::new();
            for part in level.chunks(block_capacity(block_size)) {
                let child = *places.next().expect("a place for each node");
                let entries: Vec<RawEntry> = part.iter().map(|(_, entry)| *entry).collect();
                let mut bytes = vec![0; block_size];
                write_block(&mut bytes, sb, seed, depth, &entries);
                nodes.push((child, bytes));
                let at = part[0].0;
                above.push((at, Index { at, child }.encode()));
            }
            level = above;
            depth += 1;
            assert!(depth <= MAX_DEPTH, "a journal of 2^32 blocks needs no deeper tree");
        }
        let entries: Vec<RawEntry> = level.into_iter().map(|(_, entry)| entry).collect();
        let mut root = [0; BLOCK_AREA_BYTES];
        write_root(&mut root, depth, &entries);
        NewTree { root, nodes }
    }
}

/// Runs of the journal that must never be taken or freed: those it was made with.
pub(crate) fn lasting_runs(runs: Vec<Run>, made_with: Option<u32>) -> Vec<Run> {
    let Some(mut left) = made_with else { return runs };
    let cut = runs.into_iter().map(|run| {
        let len = run.len.min(left);
        left -= len;
        Run { len, ..run }
    });
    cut.filter(|run| run.len > 0).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(runs: &[(u64, u32)]) -> JournalMap {
        let mut map = JournalMap::default();
        runs.iter().for_each(|&(start, len)| map.push(Run { start: BlockNr(start), len }));
        map
    }

    #[test]
    fn runs_join_up_to_an_extents_length() {
        let mut long = map(&[(100, 1000), (1100, 40_000), (90_000, 5)]);
        assert_eq!(long.blocks(), 41_005);
        assert_eq!(long.extents.len(), 3);
        assert_eq!((long.extents[0].run.len, long.extents[1].run.len), (MAX_WRITTEN_LEN, 8232));
        assert_eq!(long.pop(1000).unwrap(), Run { start: BlockNr(90_000), len: 5 });
        assert_eq!(long.pop(1000).unwrap(), Run { start: BlockNr(100 + 32_768), len: 8232 });
        assert_eq!(long.pop(1000).unwrap(), Run { start: BlockNr(1100), len: 31_768 });
        assert_eq!(long.pop(1000), None);
        assert_eq!((long.blocks(), long.end()), (1000, BlockNr(1100)));
    }

    #[test]
    fn a_tree_as_low_as_can_be() {
        let scattered = |count: u64| {
            let runs: Vec<(u64, u32)> = (0..count).map(|i| (i * 10, 3)).collect();
            map(&runs).nodes_needed(1024)
        };
        assert_eq!([4, 5, 84, 85, 336, 337].map(scattered), [0, 1, 1, 2, 4, 5 + 1]);
    }

    #[test]
    fn what_a_journal_was_made_with_lasts() {
        let run = |start: u64, len| Run { start: BlockNr(start), len };
        let all = vec![run(10, 5), run(100, 7), run(200, 3)];
        assert_eq!(lasting_runs(all.clone(), None), all);
        assert_eq!(lasting_runs(all.clone(), Some(8)), [run(10, 5), run(100, 3)]);
        assert_eq!(lasting_runs(all, Some(5)), [run(10, 5)]);
    }
}
