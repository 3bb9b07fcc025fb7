//! Snapshots of chosen files and folders.
//!
//! Such a snapshot is an image of its own: a volume with only the chosen files, the folders that
//! lead to them, and the metadata that every volume has. The file system's module `prune` knows
//! ext4 and finds the blocks of that image ([`PartialSnapshot`]); this module makes a map of them.
//!
//! 1. A commit keeps the whole volume as a snapshot under the name, marked as *to be pruned*.
//!    **Durable.** From here on nothing in the snapshot changes, and all other operations continue.
//! 2. The metadata blocks of the partial snapshot are made from it, in memory. This may take long.
//! 3. A second commit replaces the snapshot's map by that of the partial snapshot. In this map,
//!    metadata blocks that differ have pool blocks of their own. Other blocks stay where step 1
//!    keeps them, in the pool or at home. But fixed metadata is never held at home: the map has all
//!    of it that the partial snapshot needs (`snapshot_refs`). Blocks of files and folders at home
//!    are held by the partial snapshot's own bitmaps. The commit frees the pool blocks that only
//!    the replaced snapshot used.
//!
//! A crash before 1 is durable leaves nothing. Before 3 is durable, it leaves a snapshot that is to
//! be pruned: no list has it, it can be neither read nor restored, and the next opening for writing
//! deletes it (`drop_unpruned`). After 3 it leaves the partial snapshot. Both commits are like
//! those of any snapshot: 1 holds its blocks before anything may be written over them, and 3 frees
//! blocks only when it is durable.

use std::sync::Arc;

use parking_lot::MutexGuard;
use xact_layout::generations::{Pointer, SnapshotOf, Target, paths_text};
use xact_types::{BlockNr, Error, Result, SNAPSHOT_PATHS_MAX};

use super::Generations;
use super::image::GenerationImage;
use super::map::{Map, MapReader};
use super::pool::Pool;
use super::published_map::Logged;
use super::snapshots::{Change, SnapshotEntry};
use crate::core::block::BlockRef;
use crate::fault::Fault;
use crate::snapshots::{PartialSnapshot, SnapshotImage, UnprunedSnapshot};

impl PartialSnapshot {
    fn keeps(&self, block: BlockNr) -> bool {
        let index = self.kept.partition_point(|range| range.end <= block.0);
        self.kept.get(index).is_some_and(|range| range.contains(&block.0))
    }

    /// The blocks that it shares with the snapshot of the volume that it is pruned from. The cost
    /// grows with that snapshot's part of the pool.
    fn shared(&self, reader: &MapReader, whole: &Map) -> Result<Vec<(BlockNr, Pointer)>> {
        const CHUNK: usize = 1024;
        let (mut shared, mut from) = (Vec::new(), BlockNr(0));
        loop {
            let moved = whole.moved(reader, from, CHUNK)?;
            let kept =
                |(block, _): &&(BlockNr, Pointer)| self.keeps(*block) && !self.blocks.contains_key(block);
            shared.extend(moved.iter().filter(kept));
            match moved.last() {
                Some((last, _)) if moved.len() == CHUNK => from = last.offset(1),
                _ => return Ok(shared),
            }
        }
    }

    /// The most pool blocks that its commit takes, on top of those that every commit takes.
    pub(super) fn most_pool_blocks(&self, reader: &MapReader, whole: &Map) -> Result<u64> {
        let entries = self.blocks.len() + self.zeros.len() + self.shared(reader, whole)?.len();
        Ok(self.blocks.len() as u64 + reader.most_nodes(entries as u64))
    }

    /// Its map, written; its blocks and nodes are added to `out`.
    pub(super) fn write_map(
        &self,
        reader: &MapReader,
        whole: &Map,
        generation: u64,
        pool: &mut Pool,
        out: &mut Vec<(BlockNr, BlockRef)>,
    ) -> Result<Map> {
        let mut map = Map::new(reader.levels(), None);
        for (block, pointer) in self.shared(reader, whole)? {
            map.set(reader, block, Some(pointer))?;
        }
        for &block in &self.zeros {
            map.set(reader, block, Some(Pointer::ZEROS))?;
        }
        for (&block, contents) in &self.blocks {
            let pool_block = pool.take()?;
            let pointer = Pointer::new(pool_block, generation, Target::Block(block), contents);
            map.set(reader, block, Some(pointer))?;
            out.push((pool_block, contents.clone()));
        }
        map.write(reader, generation, &mut || pool.take(), out)?;
        Ok(map)
    }
}

/// Between the two commits of a snapshot of chosen paths.
pub(super) struct Unpruned<'g> {
    generations: &'g Generations,
    name: String,
    generation: u64,
    image: Arc<GenerationImage>,
    is_finished: bool,
    /// Makes other such snapshots wait; `drop_unpruned` would delete theirs.
    _turn: MutexGuard<'g, ()>,
}

impl Generations {
    /// The first commit. See [`crate::Snapshots::begin_partial`].
    pub(super) fn keep_unpruned(&self, name: &str, time: u64) -> Result<Unpruned<'_>> {
        let turn = self.pruning.lock();
        let unmarked = self.core.faults.has(Fault::UnprunedUnmarked);
        self.keep(name, time, if unmarked { SnapshotOf::Volume } else { SnapshotOf::ToBePruned })?;
        let state = self.state.lock();
        // Two snapshots never have the same name.
        let kept = state.snapshots.iter().find(|kept| kept.record.name == name);
        let kept = kept.ok_or_else(|| missing(name))?;
        Ok(Unpruned {
            generations: self,
            name: name.to_owned(),
            generation: kept.record.generation,
            image: Arc::new(self.image_of(kept)),
            is_finished: false,
            _turn: turn,
        })
    }
}

impl UnprunedSnapshot for Unpruned<'_> {
    fn image(&self) -> Arc<dyn SnapshotImage> {
        self.image.clone()
    }

    /// The second commit.
    fn finish(mut self: Box<Self>, part: PartialSnapshot) -> Result<()> {
        let len = paths_text(&part.paths).len();
        if len == 0 || len > SNAPSHOT_PATHS_MAX {
            return Err(Error::Usage(format!(
                "the paths of a snapshot take at most {SNAPSHOT_PATHS_MAX} bytes together: choose a folder"
            )));
        }
        self.generations.change_snapshots(|snapshots| {
            let index = snapshots.iter().position(|kept| kept.record.generation == self.generation);
            let index = index.ok_or_else(|| missing(&self.name))?;
            let map = Map::new(self.generations.reader.levels(), None);
            Ok(Change::Prune { index, part, map })
        })?;
        self.is_finished = true;
        Ok(())
    }
}

impl Drop for Unpruned<'_> {
    fn drop(&mut self) {
        if !self.is_finished {
            // If this fails, the next opening does it. The caller has the first error.
            let _ = self.generations.drop_unpruned();
        }
    }
}

fn missing(name: &str) -> Error {
    Error::Usage(format!("there is no snapshot '{name}'"))
}

impl Generations {
    fn image_of(&self, kept: &SnapshotEntry) -> GenerationImage {
        GenerationImage::new(self.reader.clone(), kept.map.clone(), Logged::default(), kept.lease.clone())
    }

    /// Deletes snapshots that are still to be pruned, which no thread uses. No thread may prune one
    /// at that time.
    pub(super) fn drop_unpruned(&self) -> Result<()> {
        while self.state.lock().snapshots.iter().any(|kept| !kept.is_complete()) {
            self.change_snapshots(|snapshots| {
                let index = snapshots.iter().position(|kept| !kept.is_complete());
                Ok(Change::Delete { index: index.expect("only this function deletes them") })
            })?;
        }
        Ok(())
    }
}
