//! Snapshots: generations that are kept.
//!
//! Creating one is a commit whose root lists its own map under a name. From then on:
//!
//! - The snapshot's pool blocks stay: a commit frees only blocks that neither its own map nor the
//!   map of any snapshot has. (It is not enough to look at the newest snapshot: after a restore,
//!   the volume may share blocks with an older one only.)
//! - Its blocks at home stay: nothing is written over them (`SnapshotRefs::home_is_free`), and new
//!   contents of blocks of files become part of the running commit and go to the pool, as metadata
//!   does (`redirect`). ext4's own allocator is not involved: if it allocates a block that is free
//!   now and in use in the snapshot, the new contents go to the pool too.
//! - Deleting one is a commit that no longer lists it, and frees what neither the other snapshots
//!   nor the commit itself have. Until that commit is durable the snapshot is held like all others.
//! - Restoring one is a commit whose map is the snapshot's: all of the volume changes back at once,
//!   or nothing of it if a crash comes first. The settings of the volume (its label, its modes) are
//!   not part of the snapshot: they are put into its superblock, which the same commit writes. The
//!   snapshot stays. So it holds all blocks that the restored volume has at home, and the first
//!   change of each goes to the pool. A restore must come before any file system reads through this
//!   engine, because the restore changes what the file system has read.
//!
//! A snapshot of chosen paths is made from one of the volume: see `partial`.
//!
//! Data in the pool is written home, as metadata is, when no snapshot has anything there.

use std::collections::BTreeSet;
use std::sync::Arc;

use xact_layout::generations::{
    Pointer, Root, SnapshotOf, SnapshotRecord, Target, decode_snapshots, encode_snapshots,
};
use xact_layout::superblock::SUPERBLOCK_BYTES;
use xact_types::{BlockNr, Error, Result, SNAPSHOT_NAME_MAX, Site};

use super::commit::CommitKind;
use super::export::{self, GenerationReader};
use super::image::{GenerationImage, Lease};
use super::map::{Map, MapReader};
use super::pool::Pool;
use super::published_map::Logged;
use super::{Generations, State, admission};
use crate::core::block::{BlockRef, BlockSource};
use crate::fault::Fault;
use crate::mechanism::ReserveClass;
use crate::snapshots::{PartialSnapshot, PoolUse, SnapshotImage, SnapshotInfo, Snapshots, UnprunedSnapshot};

/// A snapshot with its map.
#[derive(Clone)]
pub(super) struct SnapshotEntry {
    pub record: SnapshotRecord,
    pub map: Map,
    pub lease: Arc<Lease>,
}

impl SnapshotEntry {
    fn new(record: SnapshotRecord, map: Map) -> SnapshotEntry {
        SnapshotEntry { record, map, lease: Arc::default() }
    }

    /// Whether it is a snapshot that a user asked for.
    pub fn is_complete(&self) -> bool {
        self.record.of != SnapshotOf::ToBePruned
    }

    /// The chosen paths; none for a snapshot of the volume.
    pub fn paths(&self) -> &[Vec<u8>] {
        if let SnapshotOf::Paths(paths) = &self.record.of { paths } else { &[] }
    }
}

/// The change that a commit makes to the list of snapshots.
pub(super) enum Change {
    Create {
        name: String,
        time: u64,
        of: SnapshotOf,
    },
    /// The snapshot with this index becomes one of chosen paths, with a map that the commit writes.
    Prune {
        index: usize,
        part: PartialSnapshot,
        map: Map,
    },
    Delete {
        index: usize,
    },
    Restore {
        index: usize,
    },
}

/// A change with the first of the pool blocks that the new list will take; none for an empty list.
pub(super) struct ListChange {
    pub change: Change,
    pub list: Option<BlockNr>,
}

/// The snapshots after a commit, and their list if it changed, with its pool block.
pub(super) struct Settled {
    pub snapshots: Vec<SnapshotEntry>,
    pub list: Option<(BlockNr, Vec<u8>)>,
}

/// Reads the list that a root points to.
pub(super) fn read_list(reader: &MapReader, root: &Root) -> Result<Vec<SnapshotEntry>> {
    let Some((first, blocks)) = root.snapshots else { return Ok(Vec::new()) };
    let mut bytes = vec![0; blocks as usize * reader.volume.block_size];
    reader.volume.read(first.pool_block, &mut bytes)?;
    if !first.matches(Target::List, &bytes) {
        return Err(Error::corrupt(Site::Root, "checksum of the list of snapshots does not match"));
    }
    let kept = |record: SnapshotRecord| {
        let map = Map::new(root.map_levels, record.map);
        SnapshotEntry::new(record, map)
    };
    Ok(decode_snapshots(&bytes, &root.shape)?.into_iter().map(kept).collect())
}

impl Snapshots for Generations {
    fn generation(&self) -> u64 {
        self.state.lock().root.generation
    }

    fn create(&self, name: &str, time: u64) -> Result<()> {
        self.keep(name, time, SnapshotOf::Volume)
    }

    fn delete(&self, name: &str) -> Result<()> {
        self.change_snapshots(|snapshots| {
            let index = find(snapshots, name)?;
            Ok(Change::Delete { index })
        })
    }

    fn restore(&self, name: &str) -> Result<()> {
        self.change_snapshots(|snapshots| {
            let index = find(snapshots, name)?;
            if !snapshots[index].paths().is_empty() {
                return Err(Error::Usage(format!(
                    "the snapshot '{name}' has chosen paths only: mount the volume to restore them"
                )));
            }
            Ok(Change::Restore { index })
        })
    }

    fn list(&self) -> Result<Vec<SnapshotInfo>> {
        let state = self.state.lock();
        let reader = &self.reader;
        let displaced = self.displaced(&state)?;
        let mut infos = Vec::new();
        for (index, kept) in state.snapshots.iter().enumerate().filter(|(_, kept)| kept.is_complete()) {
            let mut own = displaced.by_one[index];
            let others = all_but(&state.snapshots, index, &state.map);
            kept.map.only_here(reader, &others, &mut |_| own += 1)?;
            let SnapshotRecord { generation, time, name, .. } = kept.record.clone();
            let own_bytes = own * self.core.volume.block_size as u64;
            let paths = kept.paths().to_vec();
            infos.push(SnapshotInfo { name, generation, time, own_bytes, paths });
        }
        Ok(infos)
    }

    fn times(&self) -> Vec<(String, u64)> {
        let state = self.state.lock();
        let there = state.snapshots.iter().filter(|kept| kept.is_complete());
        there.map(|kept| (kept.record.name.clone(), kept.record.time)).collect()
    }

    fn paths(&self, name: &str) -> Result<Vec<Vec<u8>>> {
        let state = self.state.lock();
        Ok(state.snapshots[find(&state.snapshots, name)?].paths().to_vec())
    }

    fn has_changed_since_newest(&self) -> bool {
        let state = self.state.lock();
        let whole = state.snapshots.iter().filter(|kept| kept.record.of == SnapshotOf::Volume);
        let newest = whole.map(|kept| kept.record.generation).max();
        newest != Some(state.root.generation)
            || self.published.logged_blocks() > 0
            || !self.core.blocks.is_unchanged()
    }

    fn changed_blocks(&self, old: &str, new: Option<&str>) -> Result<Vec<BlockNr>> {
        let state = self.state.lock();
        let map = |name| find(&state.snapshots, name).map(|index| &state.snapshots[index].map);
        // Blocks in the log since then count as changed.
        let logged = if new.is_none() { self.published.logged() } else { Logged::default() };
        let (old, new) = (map(old)?, new.map_or(Ok(&state.map), map)?);
        let mut changed: BTreeSet<BlockNr> = logged.into_keys().map(BlockNr).collect();
        old.differences(&self.reader, new, &mut |block| changed.extend([block]))?;
        Ok(changed.into_iter().collect())
    }

    fn image(&self, snapshot: Option<&str>) -> Result<Arc<dyn SnapshotImage>> {
        let state = self.state.lock();
        let (map, logged, lease) = match snapshot {
            Some(name) => {
                let kept = &state.snapshots[find(&state.snapshots, name)?];
                (kept.map.clone(), Logged::default(), kept.lease.clone())
            }
            None if self.core.read_only => (state.map.clone(), self.published.logged(), Arc::default()),
            None => return Err(Error::Usage("what changes has no image: create a snapshot first".into())),
        };
        Ok(Arc::new(GenerationImage::new(self.reader.clone(), map, logged, lease)))
    }

    fn begin_partial(&self, name: &str, time: u64) -> Result<Box<dyn UnprunedSnapshot + '_>> {
        Ok(Box::new(self.keep_unpruned(name, time)?))
    }

    fn pool_use(&self) -> Result<PoolUse> {
        self.count_pool_use()
    }

    fn is_pool_full(&self) -> bool {
        self.admission.is_full()
    }

    fn make_plain(&self) -> Result<()> {
        self.convert_to_plain()
    }
}

fn find(snapshots: &[SnapshotEntry], name: &str) -> Result<usize> {
    let found = snapshots.iter().position(|kept| kept.record.name == name && kept.is_complete());
    found.ok_or_else(|| Error::Usage(format!("there is no snapshot '{name}'")))
}

/// The maps of the other snapshots and of the volume.
fn all_but<'a>(snapshots: &'a [SnapshotEntry], index: usize, newest: &'a Map) -> Vec<&'a Map> {
    let kept = snapshots.iter().enumerate().filter(|(other, _)| *other != index);
    kept.map(|(_, kept)| &kept.map).chain([newest]).collect()
}

impl Generations {
    pub(super) fn keep(&self, name: &str, time: u64, of: SnapshotOf) -> Result<()> {
        let bad = |c: char| c == '/' || c.is_control();
        if name.is_empty() || name.len() > SNAPSHOT_NAME_MAX || name.contains(bad) || name.starts_with('.') {
            return Err(Error::Usage(format!(
                "invalid snapshot name '{name}': expected up to {SNAPSHOT_NAME_MAX} bytes without '/' and without a dot first"
            )));
        }
        self.change_snapshots(|snapshots| {
            if snapshots.iter().any(|kept| kept.record.name == name) {
                return Err(Error::Usage(format!("there is a snapshot '{name}' already")));
            }
            Ok(Change::Create { name: name.to_owned(), time, of })
        })
    }

    pub(super) fn change_snapshots(
        &self,
        change: impl FnOnce(&[SnapshotEntry]) -> Result<Change>,
    ) -> Result<()> {
        self.core.check_open()?;
        self.core.volume.poison.check()?;
        let _turn = self.core.pipeline.lead_alone();
        let changed = self.change_in_turn(change);
        self.admission.set_has_snapshots(!self.state.lock().snapshots.is_empty());
        changed
    }

    /// The caller leads.
    fn change_in_turn(&self, change: impl FnOnce(&[SnapshotEntry]) -> Result<Change>) -> Result<()> {
        // Everything that can be refused is refused before the commit is closed.
        let change = {
            let mut state = self.state.lock();
            let change = change(&state.snapshots)?;
            if matches!(change, Change::Restore { .. }) && !self.core.blocks.is_unchanged() {
                return Err(Error::Usage("a volume in use cannot be restored: unmount it first".into()));
            }
            if matches!(change, Change::Create { .. }) {
                // Data accepted before it may have to go to the pool from now on, and so counts.
                self.admission.set_has_snapshots(true);
                self.admission.check(ReserveClass::Any)?;
            }
            let records: usize = state.snapshots.iter().map(|kept| kept.record.count()).sum();
            let records = match &change {
                Change::Create { .. } => records + 1,
                Change::Prune { index, part, .. } => {
                    let of = SnapshotOf::Paths(part.paths.clone());
                    let now = &state.snapshots[*index].record;
                    records - now.count() + SnapshotRecord { of, ..now.clone() }.count()
                }
                Change::Delete { index } => records - state.snapshots[*index].record.count(),
                Change::Restore { .. } => records,
            };
            let blocks = list_blocks(records, self.core.volume.block_size);
            if let Change::Prune { index, part, .. } = &change {
                let needed = blocks + part.most_pool_blocks(&self.reader, &state.snapshots[*index].map)?;
                let pool = self.pool(&mut state)?;
                if pool.free()
                    < admission::for_all(self.reader.shape.pool_blocks())
                        + self.admission.reserved_pool_blocks()
                        + needed
                {
                    return Err(Error::NoSpace);
                }
            }
            let pool = self.pool(&mut state)?;
            let list = if blocks > 0 { Some(pool.take_run(blocks)?) } else { None };
            if let Change::Delete { index } | Change::Prune { index, .. } = change {
                state.snapshots[index].lease.end();
            }
            ListChange { change, list }
        };
        self.core.guard(self.commit_running(CommitKind::Snapshots(change)))
    }

    /// The block of the superblock after a restore: the snapshot's, with the present settings.
    pub(super) fn restored_superblock(&self, state: &State, snapshot: &Map) -> Result<(BlockNr, BlockRef)> {
        let block_size = self.core.volume.block_size;
        let logged = self.published.logged();
        let now = GenerationReader { reader: &self.reader, map: &state.map, logged: Some(&logged) };
        let then = GenerationReader { reader: &self.reader, map: snapshot, logged: None };
        let mut superblock = export::superblock(&then, block_size)?;
        superblock.take_settings(&export::superblock(&now, block_size)?);
        superblock.seal();
        let (block, at) = (superblock.own_block(), superblock.own_offset());
        let mut contents = then.read_block(block)?.to_vec();
        contents[at..at + SUPERBLOCK_BYTES].copy_from_slice(superblock.as_bytes());
        Ok((block, contents.into()))
    }

    /// Frees pool blocks of the durable generation that `map` no longer needs, and carries out a
    /// change of the list. Called after the last `take`.
    pub(super) fn settle_snapshots(
        &self,
        state: &State,
        pool: &mut Pool,
        generation: u64,
        map: &Map,
        change: Option<ListChange>,
        root: &mut Root,
    ) -> Result<Settled> {
        let mut freed = Vec::new();
        let mut others = vec![map];
        if !self.core.faults.has(Fault::FreeSnapshotBlocks) {
            others.extend(state.snapshots.iter().map(|kept| &kept.map));
        }
        state.map.only_here(&self.reader, &others, &mut |pool_block| freed.push(pool_block))?;
        let mut snapshots = state.snapshots.clone();
        let mut written = None;
        if let Some(ListChange { change, list }) = change {
            match change {
                Change::Create { name, time, of } => {
                    let record = SnapshotRecord { generation, time, map: map.root(), name, of };
                    snapshots.push(SnapshotEntry::new(record, map.clone()));
                    root.has_moved_data = true;
                }
                Change::Prune { index, part, map: pruned } => {
                    let mut others = all_but(&state.snapshots, index, map);
                    others.push(&pruned);
                    let whole = &state.snapshots[index];
                    whole.map.only_here(&self.reader, &others, &mut |pool_block| freed.push(pool_block))?;
                    let of = SnapshotOf::Paths(part.paths);
                    let record = SnapshotRecord { map: pruned.root(), of, ..whole.record.clone() };
                    snapshots[index] = SnapshotEntry::new(record, pruned);
                }
                Change::Delete { index } => {
                    let others = all_but(&state.snapshots, index, map);
                    let gone = &state.snapshots[index].map;
                    gone.only_here(&self.reader, &others, &mut |pool_block| freed.push(pool_block))?;
                    snapshots.remove(index);
                }
                Change::Restore { .. } => {}
            }
            if let Some((first, blocks)) = root.snapshots.take() {
                freed.extend((0..u64::from(blocks)).map(|n| first.pool_block.offset(n)));
            }
            if let Some(pool_block) = list {
                let records: Vec<SnapshotRecord> = snapshots.iter().map(|kept| kept.record.clone()).collect();
                let bytes = encode_snapshots(&records, self.core.volume.block_size);
                let pointer = Pointer::new(pool_block, generation, Target::List, &bytes);
                root.snapshots = Some((pointer, (bytes.len() / self.core.volume.block_size) as u32));
                written = Some((pool_block, bytes));
            }
        }
        freed.into_iter().try_for_each(|pool_block| pool.release(pool_block))?;
        Ok(Settled { snapshots, list: written })
    }
}

fn list_blocks(records: usize, block_size: usize) -> u64 {
    (records * xact_layout::generations::SNAPSHOT_RECORD_BYTES).div_ceil(block_size) as u64
}
