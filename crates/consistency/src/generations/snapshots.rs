//! Snapshots: generations that are kept.
//!
//! Creating one is a commit whose root lists its own map under a name. From then on:
//!
//! - What the snapshot has in the pool stays: a commit frees only what neither its own map nor any
//!   snapshot's has. (The newest would not be enough: a restore brings older places back.)
//! - What it has at home stays: no block is swept over it (`Held::home_is_free`), and new contents
//!   of blocks of files go the way of metadata, through the running commit to the pool
//!   (`redirect`). ext4's own allocator needs not know: where it gives a block that is free now and
//!   in use in the snapshot, its new contents go to the pool too.
//! - Deleting one is a commit that no longer lists it, and frees what neither the others nor the
//!   commit itself have. Until that commit is durable the snapshot is held like all others.
//! - Restoring one is a commit whose map is the snapshot's: all of the volume goes back at once, or
//!   after a crash none of it. The settings of the volume (its label, its modes) are not part of that: they are
//!   put into the snapshot's superblock, which the same commit writes. The snapshot stays, so what the volume has at
//!   home from then on is held, and the first change of it goes to the pool. Nothing may be open but the engine.
//!
//! A snapshot of chosen paths is made of one of the volume: see `part`.
//!
//! Data in the pool goes home by the sweep, as metadata does, when no snapshot is in the way.

use std::collections::BTreeSet;
use std::sync::Arc;

use xact_layout::generations::{
    Pointer, Root, SnapshotOf, SnapshotRecord, contents_sum, decode_snapshots, encode_snapshots,
};
use xact_layout::superblock::SUPERBLOCK_BYTES;
use xact_types::{BlockNr, Error, Result, SNAPSHOT_NAME_MAX, Site};

use super::commit::Way;
use super::export::{self, Seen};
use super::image::{GenerationImage, Lease};
use super::live::Logged;
use super::map::{Map, MapReader};
use super::part::SnapshotPart;
use super::pool::Pool;
use super::{Generations, GenerationsEngine, State, room};
use crate::cache::BlockSource;
use crate::engine::{BlockRef, Room};
use crate::fault::Fault;
use crate::shared::Shared;

/// A snapshot as a user sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SnapshotInfo {
    pub name: String,
    pub generation: u64,
    /// Seconds since 1970.
    pub time: u64,
    /// Bytes of the pool that deleting it alone would free: of what it alone has at once, and of what it alone
    /// keeps from its own place when the sweep has brought that home.
    pub own_bytes: u64,
    /// The files and folders that it has, from the volume's root and without one; none: all of the volume.
    pub paths: Vec<Vec<u8>>,
}

/// A snapshot with its map.
#[derive(Clone)]
pub(super) struct Kept {
    pub record: SnapshotRecord,
    pub map: Map,
    pub lease: Arc<Lease>,
}

impl Kept {
    fn new(record: SnapshotRecord, map: Map) -> Kept {
        Kept { record, map, lease: Arc::default() }
    }

    /// Whether it is one that somebody asked for.
    pub fn is_there(&self) -> bool {
        self.record.of != SnapshotOf::ToBeCut
    }

    /// The chosen paths; none: it is one of the volume.
    pub fn paths(&self) -> &[Vec<u8>] {
        if let SnapshotOf::Paths(paths) = &self.record.of { paths } else { &[] }
    }
}

/// What a commit changes of the list of snapshots.
pub(super) enum Change {
    Create {
        name: String,
        time: u64,
        of: SnapshotOf,
    },
    /// The snapshot with this index becomes one of chosen paths, with a map that the commit draws.
    Cut {
        index: usize,
        part: SnapshotPart,
        map: Map,
    },
    Delete {
        index: usize,
    },
    Restore {
        index: usize,
    },
}

/// A change with the places that the new list will take, none for an empty one.
pub(super) struct ListChange {
    pub change: Change,
    pub list: Option<BlockNr>,
}

/// The snapshots after a commit, and the list of them where it changed, with its place.
pub(super) struct Settled {
    pub snapshots: Vec<Kept>,
    pub list: Option<(BlockNr, Vec<u8>)>,
}

/// Reads the list that a root points to.
pub(super) fn read_list(reader: &MapReader, root: &Root) -> Result<Vec<Kept>> {
    let Some((first, blocks)) = root.snapshots else { return Ok(Vec::new()) };
    let mut bytes = vec![0; blocks as usize * reader.volume.block_size];
    reader.volume.read(first.place, &mut bytes)?;
    if contents_sum(BlockNr(0), &bytes) != first.sum {
        return Err(Error::corrupt(Site::Root, "checksum of the list of snapshots does not match"));
    }
    let kept = |record: SnapshotRecord| {
        let map = Map::new(root.map_levels, record.map);
        Kept::new(record, map)
    };
    Ok(decode_snapshots(&bytes, &root.shape)?.into_iter().map(kept).collect())
}

impl GenerationsEngine {
    /// Keeps what the next generation will be, which is made at once, under a name. What has been
    /// written to the engine when this is called is in it.
    ///
    /// Errors: `Usage` for a name that is taken or no name; `NoSpace`.
    pub fn create_snapshot(&self, name: &str, time: u64) -> Result<()> {
        self.create(name, time, SnapshotOf::Volume)
    }

    pub(super) fn create(&self, name: &str, time: u64, of: SnapshotOf) -> Result<()> {
        let bad = |c: char| c == '/' || c.is_control();
        if name.is_empty() || name.len() > SNAPSHOT_NAME_MAX || name.contains(bad) || name.starts_with('.') {
            return Err(Error::Usage(format!(
                "'{name}' is no name for a snapshot: up to {SNAPSHOT_NAME_MAX} bytes, no '/' and no dot first"
            )));
        }
        self.shared.change_snapshots(|snapshots| {
            if snapshots.iter().any(|kept| kept.record.name == name) {
                return Err(Error::Usage(format!("there is a snapshot '{name}' already")));
            }
            Ok(Change::Create { name: name.to_owned(), time, of })
        })
    }

    /// Deletes a snapshot and frees what it alone has kept. Works on a full volume too.
    ///
    /// Errors: `Usage` where there is none of this name.
    pub fn delete_snapshot(&self, name: &str) -> Result<()> {
        self.shared.change_snapshots(|snapshots| {
            let index = find(snapshots, name)?;
            Ok(Change::Delete { index })
        })
    }

    /// Makes the tree what it was when the snapshot was created; what was done since and is in no
    /// snapshot is gone. The snapshot stays, and so do the volume's settings. Nobody may have read anything by this
    /// engine yet.
    ///
    /// Errors: `Usage` where there is none of this name, and for one of chosen paths, which has not what the others
    /// would become; `NoSpace`.
    pub fn restore_snapshot(&self, name: &str) -> Result<()> {
        self.shared.change_snapshots(|snapshots| {
            let index = find(snapshots, name)?;
            if !snapshots[index].paths().is_empty() {
                return Err(Error::Usage(format!(
                    "the snapshot '{name}' has chosen paths only: mount the volume to restore them"
                )));
            }
            Ok(Change::Restore { index })
        })
    }

    /// The snapshots, from the oldest to the newest. Costs what the pool holds, and commits wait for that long.
    pub fn snapshots(&self) -> Result<Vec<SnapshotInfo>> {
        let state = self.shared.state.lock();
        let reader = &self.shared.reader;
        let displaced = self.shared.displaced(&state)?;
        let mut infos = Vec::new();
        for (index, kept) in state.snapshots.iter().enumerate().filter(|(_, kept)| kept.is_there()) {
            let mut own = displaced.by_one[index];
            let others = all_but(&state.snapshots, index, &state.map);
            kept.map.only_here(reader, &others, &mut |_| own += 1)?;
            let SnapshotRecord { generation, time, name, .. } = kept.record.clone();
            let own_bytes = own * self.shared.volume.block_size as u64;
            let paths = kept.paths().to_vec();
            infos.push(SnapshotInfo { name, generation, time, own_bytes, paths });
        }
        Ok(infos)
    }

    /// Their names and times alone, which cost nothing to find.
    pub fn snapshot_times(&self) -> Vec<(String, u64)> {
        let state = self.shared.state.lock();
        let there = state.snapshots.iter().filter(|kept| kept.is_there());
        there.map(|kept| (kept.record.name.clone(), kept.record.time)).collect()
    }

    /// The paths of a snapshot; none for one of the volume. Errors: `Usage` where there is none of this name.
    pub fn snapshot_paths(&self, name: &str) -> Result<Vec<Vec<u8>>> {
        let state = self.shared.state.lock();
        Ok(state.snapshots[find(&state.snapshots, name)?].paths().to_vec())
    }

    /// Whether anything was committed, or waits for a commit, that the newest snapshot of the volume does not have.
    pub fn has_changed_since_snapshot(&self) -> bool {
        let state = self.shared.state.lock();
        let whole = state.snapshots.iter().filter(|kept| kept.record.of == SnapshotOf::Volume);
        let newest = whole.map(|kept| kept.record.generation).max();
        newest != Some(state.root.generation)
            || self.shared.live.logged_blocks() > 0
            || !self.shared.metadata.is_unchanged()
    }

    /// Blocks that a snapshot and another, or the durable generation, have in different places, in the
    /// order of their numbers. Costs what differs, and commits wait for that long. A block may be there and
    /// have the same contents.
    pub fn changed_blocks(&self, old: &str, new: Option<&str>) -> Result<Vec<BlockNr>> {
        let state = self.shared.state.lock();
        let map = |name| find(&state.snapshots, name).map(|index| &state.snapshots[index].map);
        // What the log has since is as good as changed.
        let logged = if new.is_none() { self.shared.live.logged() } else { Logged::default() };
        let (old, new) = (map(old)?, new.map_or(Ok(&state.map), map)?);
        let mut changed: BTreeSet<BlockNr> = logged.into_keys().map(BlockNr).collect();
        old.differences(&self.shared.reader, new, &mut |block| changed.extend([block]))?;
        Ok(changed.into_iter().collect())
    }

    /// A snapshot as a read-only device; without a name the durable generation with what its log has, of an engine that
    /// is read-only itself: else the next commits would change what is read.
    ///
    /// Errors: `Usage`.
    pub fn image(&self, snapshot: Option<&str>) -> Result<Arc<GenerationImage>> {
        let state = self.shared.state.lock();
        let (map, logged, lease) = match snapshot {
            Some(name) => {
                let kept = &state.snapshots[find(&state.snapshots, name)?];
                (kept.map.clone(), Logged::default(), kept.lease.clone())
            }
            None if self.shared.read_only => (state.map.clone(), self.shared.live.logged(), Arc::default()),
            None => return Err(Error::Usage("what changes has no image: create a snapshot first".into())),
        };
        Ok(Arc::new(GenerationImage::new(self.shared.reader.clone(), map, logged, lease)))
    }
}

fn find(snapshots: &[Kept], name: &str) -> Result<usize> {
    let found = snapshots.iter().position(|kept| kept.record.name == name && kept.is_there());
    found.ok_or_else(|| Error::Usage(format!("there is no snapshot '{name}'")))
}

/// The maps of the other snapshots and of the volume.
fn all_but<'a>(snapshots: &'a [Kept], index: usize, newest: &'a Map) -> Vec<&'a Map> {
    let kept = snapshots.iter().enumerate().filter(|(other, _)| *other != index);
    kept.map(|(_, kept)| &kept.map).chain([newest]).collect()
}

impl Generations {
    pub(super) fn change_snapshots(&self, change: impl FnOnce(&[Kept]) -> Result<Change>) -> Result<()> {
        self.check_open()?;
        self.volume.poison.check()?;
        let _turn = self.pipeline.lead_alone();
        let changed = self.change_in_turn(change);
        self.room.set_held(!self.state.lock().snapshots.is_empty());
        changed
    }

    /// The caller leads.
    fn change_in_turn(&self, change: impl FnOnce(&[Kept]) -> Result<Change>) -> Result<()> {
        // Whatever can be refused is refused before the commit is closed.
        let change = {
            let mut state = self.state.lock();
            let change = change(&state.snapshots)?;
            if matches!(change, Change::Restore { .. }) && !self.metadata.is_unchanged() {
                return Err(Error::Usage("a volume in use cannot be restored: unmount it first".into()));
            }
            if matches!(change, Change::Create { .. }) {
                // What was accepted before it may have to go to the pool from now on, and so counts.
                self.room.set_held(true);
                self.room.check(Room::Any)?;
            }
            let records: usize = state.snapshots.iter().map(|kept| kept.record.count()).sum();
            let records = match &change {
                Change::Create { .. } => records + 1,
                Change::Cut { index, part, .. } => {
                    let of = SnapshotOf::Paths(part.paths.clone());
                    let now = &state.snapshots[*index].record;
                    records - now.count() + SnapshotRecord { of, ..now.clone() }.count()
                }
                Change::Delete { index } => records - state.snapshots[*index].record.count(),
                Change::Restore { .. } => records,
            };
            let blocks = list_blocks(records, self.volume.block_size);
            if let Change::Cut { index, part, .. } = &change {
                let needed = blocks + part.most_places(&self.reader, &state.snapshots[*index].map)?;
                let pool = self.pool(&mut state)?;
                if pool.free()
                    < room::for_all(self.reader.shape.places()) + self.room.promised_places() + needed
                {
                    return Err(Error::NoSpace);
                }
            }
            let pool = self.pool(&mut state)?;
            let list = if blocks > 0 { Some(pool.take_run(blocks)?) } else { None };
            if let Change::Delete { index } | Change::Cut { index, .. } = change {
                state.snapshots[index].lease.end();
            }
            ListChange { change, list }
        };
        self.guard(self.commit_running(Way::Snapshots(change)))
    }

    /// The block of the superblock as a restore leaves it: the snapshot's, with the settings of now.
    pub(super) fn restored_superblock(&self, state: &State, snapshot: &Map) -> Result<(BlockNr, BlockRef)> {
        let block_size = self.volume.block_size;
        let logged = self.live.logged();
        let now = Seen { reader: &self.reader, map: &state.map, logged: Some(&logged) };
        let then = Seen { reader: &self.reader, map: snapshot, logged: None };
        let mut superblock = export::superblock(&then, block_size)?;
        superblock.take_settings(&export::superblock(&now, block_size)?);
        superblock.seal();
        let (block, at) = (superblock.own_block(), superblock.own_offset());
        let mut contents = then.read_block(block)?.to_vec();
        contents[at..at + SUPERBLOCK_BYTES].copy_from_slice(superblock.as_bytes());
        Ok((block, contents.into()))
    }

    /// Frees what `map` no longer needs of the durable generation, and carries out a change of the
    /// list. After the last `take`.
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
        if !self.faults.has(Fault::FreeHeld) {
            others.extend(state.snapshots.iter().map(|kept| &kept.map));
        }
        state.map.only_here(&self.reader, &others, &mut |place| freed.push(place))?;
        let mut snapshots = state.snapshots.clone();
        let mut written = None;
        if let Some(ListChange { change, list }) = change {
            match change {
                Change::Create { name, time, of } => {
                    let record = SnapshotRecord { generation, time, map: map.root(), name, of };
                    snapshots.push(Kept::new(record, map.clone()));
                    root.has_moved_data = true;
                }
                Change::Cut { index, part, map: cut } => {
                    let mut others = all_but(&state.snapshots, index, map);
                    others.push(&cut);
                    let whole = &state.snapshots[index];
                    whole.map.only_here(&self.reader, &others, &mut |place| freed.push(place))?;
                    let of = SnapshotOf::Paths(part.paths);
                    let record = SnapshotRecord { map: cut.root(), of, ..whole.record.clone() };
                    snapshots[index] = Kept::new(record, cut);
                }
                Change::Delete { index } => {
                    let others = all_but(&state.snapshots, index, map);
                    let gone = &state.snapshots[index].map;
                    gone.only_here(&self.reader, &others, &mut |place| freed.push(place))?;
                    snapshots.remove(index);
                }
                Change::Restore { .. } => {}
            }
            if let Some((first, blocks)) = root.snapshots.take() {
                freed.extend((0..u64::from(blocks)).map(|n| first.place.offset(n)));
            }
            if let Some(place) = list {
                let records: Vec<SnapshotRecord> = snapshots.iter().map(|kept| kept.record.clone()).collect();
                let bytes = encode_snapshots(&records, self.volume.block_size);
                let pointer = Pointer { place, sum: contents_sum(BlockNr(0), &bytes) };
                root.snapshots = Some((pointer, (bytes.len() / self.volume.block_size) as u32));
                written = Some((place, bytes));
            }
        }
        freed.into_iter().try_for_each(|place| pool.release(place))?;
        Ok(Settled { snapshots, list: written })
    }
}

fn list_blocks(records: usize, block_size: usize) -> u64 {
    (records * xact_layout::generations::SNAPSHOT_RECORD_BYTES).div_ceil(block_size) as u64
}
