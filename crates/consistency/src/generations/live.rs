//! The map that readers go by: that of the durable generation.

use std::sync::Arc;

use parking_lot::RwLock;
use xact_base::{BlockNr, Error, Result};

use super::map::{Map, MapReader};
use crate::cache::BlockSource;
use crate::engine::BlockRef;

pub(super) struct Live {
    reader: Arc<MapReader>,
    current: RwLock<(u64, Map)>,
}

impl Live {
    pub fn new(reader: Arc<MapReader>, generation: u64, map: Map) -> Live {
        Live { reader, current: RwLock::new((generation, map)) }
    }

    /// Whether a block is in the pool.
    pub fn has_moved(&self, block: BlockNr) -> Result<bool> {
        loop {
            let (generation, map) = self.current.read().clone();
            match map.get(&self.reader, block) {
                // As in `read_block`.
                Err(Error::Corrupt(_)) if self.current.read().0 != generation => {}
                found => return Ok(found?.is_some()),
            }
        }
    }

    /// The generation is durable: readers go by its map from now on.
    pub fn publish(&self, generation: u64, map: Map) {
        *self.current.write() = (generation, map);
    }
}

impl BlockSource for Live {
    /// The caller holds the block's slot in the cache, so no commit moves this block meanwhile: a
    /// commit has the contents of its blocks in memory. But the nodes of the map on the way may be
    /// replaced, and their places used again by the commit after the next. That shows as a wrong
    /// checksum, and the way is looked up again in the newer map.
    fn read_block(&self, block: BlockNr) -> Result<BlockRef> {
        loop {
            let (generation, map) = self.current.read().clone();
            let found = match map.get(&self.reader, block) {
                Ok(Some(pointer)) => self.reader.read(block, pointer),
                Ok(None) => return self.reader.volume.read_block(block),
                Err(error) => Err(error),
            };
            match found {
                Err(Error::Corrupt(_)) if self.current.read().0 != generation => {}
                found => return found,
            }
        }
    }
}
