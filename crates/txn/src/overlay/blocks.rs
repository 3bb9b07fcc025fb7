//! Changed blocks of a file in a transaction.

use std::collections::BTreeMap;
use std::ops::Deref;

use xact_fs::BlockContents;
use xact_types::FileBlock;

/// Whole blocks by file block; `None` is a hole. The number of blocks with contents is stored,
/// because each read of the file's attributes needs it, and a file may have a million blocks.
#[derive(Debug, Default, Clone, PartialEq)]
pub(crate) struct Blocks {
    map: BTreeMap<FileBlock, Option<BlockContents>>,
    with_contents: u64,
}

impl Deref for Blocks {
    type Target = BTreeMap<FileBlock, Option<BlockContents>>;

    fn deref(&self) -> &Self::Target {
        &self.map
    }
}

impl Blocks {
    pub fn with_contents(&self) -> u64 {
        self.with_contents
    }

    /// Inserts a block; returns the previous one.
    pub fn insert(&mut self, at: FileBlock, block: Option<BlockContents>) -> Option<Option<BlockContents>> {
        self.with_contents += u64::from(block.is_some());
        let before = self.map.insert(at, block);
        self.note_gone(before.as_ref());
        before
    }

    pub fn insert_all(&mut self, blocks: impl IntoIterator<Item = (FileBlock, Option<BlockContents>)>) {
        for (at, block) in blocks {
            self.insert(at, block);
        }
    }

    pub fn remove(&mut self, at: FileBlock) -> Option<Option<BlockContents>> {
        let before = self.map.remove(&at);
        self.note_gone(before.as_ref());
        before
    }

    /// Drops all blocks from `end` on.
    pub fn cut(&mut self, end: FileBlock) {
        for block in self.map.split_off(&end).values() {
            self.note_gone(Some(block));
        }
    }

    fn note_gone(&mut self, block: Option<&Option<BlockContents>>) {
        self.with_contents -= u64::from(block.is_some_and(Option::is_some));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn those_with_contents_are_counted() {
        let mut blocks = Blocks::default();
        let contents = || Some(BlockContents::Memory([7].into()));
        for at in 0..4 {
            assert_eq!(blocks.insert(FileBlock(at), contents()), None);
        }
        assert_eq!(blocks.insert(FileBlock(1), contents()), Some(contents()));
        assert_eq!(blocks.insert(FileBlock(2), None), Some(contents()));
        assert_eq!((blocks.len(), blocks.with_contents()), (4, 3));
        assert_eq!(blocks.remove(FileBlock(2)), Some(None));
        assert_eq!(blocks.remove(FileBlock(9)), None);
        blocks.cut(FileBlock(1));
        assert_eq!((blocks.len(), blocks.with_contents()), (1, 1));
        assert_eq!(blocks.remove(FileBlock(0)), Some(contents()));
        assert_eq!(blocks, Blocks::default());
    }
}
