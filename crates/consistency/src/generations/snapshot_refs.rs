//! The blocks that snapshots have in their own places, where nothing may be written.
//!
//! A snapshot has a block at home if its bitmap says that the block is in use and its map has no
//! pointer for it. This holds for blocks of files as for metadata, since ext4's bitmaps do not
//! distinguish them.
//!
//! A snapshot of chosen paths needs parts of the fixed metadata (descriptors, bitmaps, tables). Its
//! map has all of these parts. So the snapshot has no fixed metadata at home, whatever its bitmap
//! says (`partial` 3).

use std::collections::HashMap;
use std::sync::{Arc, OnceLock};

use parking_lot::RwLock;
use xact_layout::superblock::Superblock;
use xact_types::{BlockNr, GroupNr, Result};

use super::export::{self, GenerationReader};
use super::map::{Map, MapReader};
use super::snapshots::SnapshotEntry;
use crate::core::block::BlockRef;

/// The snapshots as writers need to see them.
pub(super) struct SnapshotRefs {
    reader: Arc<MapReader>,
    /// The geometry of the groups, which is the same in all generations.
    superblock: Superblock,
    snapshots: Vec<Snapshot>,
    /// Sorted ranges of the fixed metadata, read when first needed.
    fixed: Arc<OnceLock<Vec<(u64, u64)>>>,
    /// Block bitmaps of groups that were looked up, by snapshot.
    groups: RwLock<HashMap<GroupNr, Arc<[Usage]>>>,
}

struct Snapshot {
    map: Map,
    /// It is of chosen paths.
    is_partial: bool,
}

/// The blocks of a group that a snapshot uses.
enum Usage {
    Nothing,
    /// The bitmap was never written: no file has a block there, but fixed metadata may be.
    Fixed,
    Bitmap(BlockRef),
}

impl SnapshotRefs {
    pub fn new(reader: Arc<MapReader>, superblock: Superblock, snapshots: &[SnapshotEntry]) -> SnapshotRefs {
        let snapshot =
            |kept: &SnapshotEntry| Snapshot { map: kept.map.clone(), is_partial: !kept.paths().is_empty() };
        let snapshots = snapshots.iter().map(snapshot).collect();
        SnapshotRefs { reader, superblock, snapshots, fixed: Arc::default(), groups: RwLock::default() }
    }

    /// The same volume with other snapshots.
    pub fn with(&self, snapshots: &[SnapshotEntry]) -> SnapshotRefs {
        let refs = SnapshotRefs::new(self.reader.clone(), self.superblock.clone(), snapshots);
        SnapshotRefs { fixed: self.fixed.clone(), ..refs }
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
        for (snapshot, usage) in self.snapshots.iter().zip(self.usage(block)?.iter()) {
            if self.has_at_home(&snapshot.map, usage, block)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// The snapshots, by their places in the list, that have something in this block's own place.
    pub fn holders_of_home(&self, block: BlockNr) -> Result<Vec<usize>> {
        let mut holders = Vec::new();
        for (index, (snapshot, usage)) in self.snapshots.iter().zip(self.usage(block)?.iter()).enumerate() {
            if self.has_at_home(&snapshot.map, usage, block)? {
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
            Usage::Nothing | Usage::Fixed => false,
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
        for Snapshot { map, is_partial } in &self.snapshots {
            let seen = GenerationReader { reader: &self.reader, map, logged: None };
            usage.push(match (export::block_bitmap(&seen, &self.superblock, group)?, is_partial) {
                (Some(bitmap), false) => Usage::Bitmap(bitmap),
                (Some(bitmap), true) => Usage::Bitmap(self.without_fixed(&seen, group, &bitmap)?),
                (None, false) => Usage::Fixed,
                (None, true) => Usage::Nothing,
            });
        }
        let usage: Arc<[Usage]> = usage.into();
        self.groups.write().insert(group, usage.clone());
        Ok(usage)
    }

    /// The bitmap of a group with the bits of files and folders alone.
    fn without_fixed(&self, seen: &GenerationReader<'_>, group: GroupNr, bitmap: &[u8]) -> Result<BlockRef> {
        let fixed = match self.fixed.get() {
            Some(known) => known,
            // All generations agree on the fixed metadata, so any of them gives it for all.
            None => {
                let found = export::fixed_metadata(seen, &self.superblock)?;
                self.fixed.get_or_init(|| found)
            }
        };
        let mut bits = bitmap.to_vec();
        let start = self.superblock.group_start(group).0;
        let end = start + u64::from(self.superblock.blocks_in_group(group));
        let first = fixed.partition_point(|range| range.1 <= start);
        for &(from, to) in fixed[first..].iter().take_while(|range| range.0 < end) {
            for index in from.max(start) - start..to.min(end) - start {
                bits[(index / 8) as usize] &= !(1 << (index % 8));
            }
        }
        Ok(bits.into())
    }
}
