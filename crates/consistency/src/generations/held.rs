//! What the snapshots hold in its own place, and so nobody may write there.
//!
//! A snapshot has a block at home if its bitmap says that the block is in use and its map has no
//! pointer for it. That goes for blocks of files as for metadata: ext4's bitmaps know no difference.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::RwLock;
use xact_base::{BlockNr, GroupNr, Result};
use xact_layout::superblock::Superblock;

use super::export::{self, Seen};
use super::map::{Map, MapReader};
use crate::engine::BlockRef;

/// The snapshots as those see them who write.
pub(super) struct Held {
    reader: Arc<MapReader>,
    /// For where groups lie, in which all generations agree.
    superblock: Superblock,
    snapshots: Vec<Map>,
    /// Block bitmaps of groups that were asked about, by snapshot.
    groups: RwLock<HashMap<GroupNr, Arc<[Usage]>>>,
}

/// What a snapshot uses of a group.
enum Usage {
    /// Its bitmap was never written: no file has a block there, but fixed metadata may be.
    Fixed,
    Bitmap(BlockRef),
}

impl Held {
    pub fn new(reader: Arc<MapReader>, superblock: Superblock, snapshots: Vec<Map>) -> Held {
        Held { reader, superblock, snapshots, groups: RwLock::default() }
    }

    /// The same volume with other snapshots.
    pub fn with(&self, snapshots: Vec<Map>) -> Held {
        Held::new(self.reader.clone(), self.superblock.clone(), snapshots)
    }

    /// Whether a snapshot may have data of a file in this block's own place.
    pub fn has_data(&self, block: BlockNr) -> Result<bool> {
        Ok(!self.snapshots.is_empty() && self.usage(block)?.iter().any(|usage| self.in_use(usage, block)))
    }

    /// Whether no snapshot has anything in this block's own place.
    pub fn home_is_free(&self, block: BlockNr) -> Result<bool> {
        if self.snapshots.is_empty() {
            return Ok(true);
        }
        for (map, usage) in self.snapshots.iter().zip(self.usage(block)?.iter()) {
            if self.has_at_home(map, usage, block)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// The snapshots, by their places in the list, that have something in this block's own place.
    pub fn holders_of_home(&self, block: BlockNr) -> Result<Vec<usize>> {
        let mut holders = Vec::new();
        for (index, (map, usage)) in self.snapshots.iter().zip(self.usage(block)?.iter()).enumerate() {
            if self.has_at_home(map, usage, block)? {
                holders.push(index);
            }
        }
        Ok(holders)
    }

    fn has_at_home(&self, map: &Map, usage: &Usage, block: BlockNr) -> Result<bool> {
        let may_use = matches!(usage, Usage::Fixed) || self.in_use(usage, block);
        Ok(may_use && map.get(&self.reader, block)?.is_none())
    }

    fn in_use(&self, usage: &Usage, block: BlockNr) -> bool {
        match usage {
            Usage::Fixed => false,
            Usage::Bitmap(bits) => {
                let index = block.0 - self.superblock.group_start(self.superblock.group_of(block)).0;
                bits[(index / 8) as usize] & 1 << (index % 8) != 0
            }
        }
    }

    fn usage(&self, block: BlockNr) -> Result<Arc<[Usage]>> {
        let group = self.superblock.group_of(block);
        if let Some(known) = self.groups.read().get(&group) {
            return Ok(known.clone());
        }
        let mut usage = Vec::with_capacity(self.snapshots.len());
        for map in &self.snapshots {
            let seen = Seen { reader: &self.reader, map, logged: None };
            usage.push(match export::block_bitmap(&seen, &self.superblock, group)? {
                Some(bitmap) => Usage::Bitmap(bitmap),
                None => Usage::Fixed,
            });
        }
        let usage: Arc<[Usage]> = usage.into();
        self.groups.write().insert(group, usage.clone());
        Ok(usage)
    }
}
