//! The map that readers use: that of the durable generation, with the blocks that the log has made
//! durable since then.

use std::sync::Arc;

use parking_lot::RwLock;
use xact_types::{BlockNr, Error, Result};

use super::map::{Map, MapReader};
use crate::core::block::{BlockRef, BlockSource};
use crate::core::cache::BlockMap;

/// Blocks as the log leaves them, by number; `None`: freed, and so at home if it is in use at all.
pub(super) type Logged = BlockMap<Option<LoggedBlock>>;

#[derive(Clone)]
pub(super) struct LoggedBlock {
    pub contents: BlockRef,
    /// It is file data.
    pub data: bool,
}

pub(super) struct PublishedMap {
    reader: Arc<MapReader>,
    current: RwLock<Current>,
}

struct Current {
    generation: u64,
    map: Map,
    logged: Logged,
}

impl PublishedMap {
    pub fn new(reader: Arc<MapReader>, generation: u64, map: Map, logged: Logged) -> PublishedMap {
        PublishedMap { reader, current: RwLock::new(Current { generation, map, logged }) }
    }

    fn generation(&self) -> u64 {
        self.current.read().generation
    }

    /// The log's contents of a block, or the map to look in.
    fn find(&self, block: BlockNr) -> Found {
        let current = self.current.read();
        match current.logged.get(&block.0) {
            Some(logged) => Found::Logged(logged.as_ref().map(|logged| logged.contents.clone())),
            None => Found::In(current.generation, current.map.clone()),
        }
    }

    /// Whether a block is not at home.
    pub fn has_moved(&self, block: BlockNr) -> Result<bool> {
        loop {
            match self.find(block) {
                Found::Logged(contents) => return Ok(contents.is_some()),
                Found::In(generation, map) => match map.get(&self.reader, block) {
                    // As in `read_block`.
                    Err(Error::Corrupt(_)) if self.generation() != generation => {}
                    found => return Ok(found?.is_some()),
                },
            }
        }
    }

    /// The generation is durable: from now on readers use its map, which includes everything that
    /// was logged.
    pub fn publish(&self, generation: u64, map: Map) {
        *self.current.write() = Current { generation, map, logged: Logged::default() };
    }

    /// A record of the log is durable: readers see these blocks as it leaves them.
    pub fn add_logged(&self, blocks: impl Iterator<Item = (u64, Option<LoggedBlock>)>) {
        self.current.write().logged.extend(blocks);
    }

    /// The blocks that were logged since the durable generation.
    pub fn logged(&self) -> Logged {
        self.current.read().logged.clone()
    }

    pub fn logged_blocks(&self) -> usize {
        self.current.read().logged.len()
    }

    /// The log's contents of a block, if it is file data.
    pub fn logged_data(&self, block: BlockNr) -> Option<BlockRef> {
        let current = self.current.read();
        let logged = current.logged.get(&block.0)?.as_ref()?;
        logged.data.then(|| logged.contents.clone())
    }

    /// Whether the log has file data of any of these blocks.
    pub fn has_logged_data(&self, start: BlockNr, blocks: u64) -> bool {
        let current = self.current.read();
        let is_data = |logged: &Option<LoggedBlock>| logged.as_ref().is_some_and(|logged| logged.data);
        (start.0..start.0 + blocks).any(|block| current.logged.get(&block).is_some_and(is_data))
    }

    pub fn is_logged_as_freed(&self, block: BlockNr) -> bool {
        self.current.read().logged.get(&block.0).is_some_and(Option::is_none)
    }
}

enum Found {
    Logged(Option<BlockRef>),
    In(u64, Map),
}

impl BlockSource for PublishedMap {
    /// The caller holds the block's slot in the cache, so no commit moves this block during the
    /// read: a commit has the contents of its blocks in memory, and so has the log. But nodes of
    /// the map on the way may be replaced, and their pool blocks reused by the commit after the
    /// next. The checksum is then wrong, and the block is looked up again in the newer map.
    fn read_block(&self, block: BlockNr) -> Result<BlockRef> {
        loop {
            let (generation, map) = match self.find(block) {
                Found::Logged(Some(contents)) => return Ok(contents),
                Found::Logged(None) => return self.reader.volume.read_block(block),
                Found::In(generation, map) => (generation, map),
            };
            let found = match map.get(&self.reader, block) {
                Ok(Some(pointer)) => self.reader.read(block, pointer),
                Ok(None) => return self.reader.volume.read_block(block),
                Err(error) => Err(error),
            };
            match found {
                Err(Error::Corrupt(_)) if self.generation() != generation => {}
                found => return found,
            }
        }
    }
}
