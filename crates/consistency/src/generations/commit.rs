//! Making one generation; the argument is at the head of `generations.rs`.

use std::collections::BTreeMap;
use std::io::IoSlice;
use std::sync::Arc;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};

use xact_layout::generations::{Pointer, ROOT_BYTES, Root, contents_sum};
use xact_types::{BlockNr, Result};

use super::live::LoggedBlock;
use super::log::{self, Log};
use super::map::{Map, MapReader};
use super::pool::Pool;
use super::snapshots::{Change, ListChange, Settled};
use super::{Generations, State, room, root, sweep};
use crate::core::block::{BlockRef, Record};
use crate::core::dirty_blocks::{Frozen, FrozenBlock};
use crate::fault::Fault;

/// Blocks that one commit sweeps home at the least, where there is pressure.
const MIN_SWEEP: usize = 16;

/// Most blocks that one commit may change; see `room`.
pub(super) fn max_credits(reader: &MapReader) -> u32 {
    credits_within(reader, room::of_a_commit(reader.shape.places()))
}

/// Blocks that a commit may change which takes at most `room` places, with its map nodes.
pub(super) fn credits_within(reader: &MapReader, room: u64) -> u32 {
    // Swept blocks change nodes of the map too, and the snapshot list takes some blocks.
    let nodes = |blocks: u64| reader.most_nodes(blocks + sweep_size(blocks as usize) as u64);
    let (mut least, mut most) = (0, room);
    while least < most {
        let middle = (least + most).div_ceil(2);
        if middle + nodes(middle) <= room {
            least = middle;
        } else {
            most = middle - 1;
        }
    }
    u32::try_from(least).unwrap_or(u32::MAX)
}

/// What a commit brings home besides its own blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Sweep {
    /// As much as it changes, if the pool fills up and they are found soon.
    AsDue,
    /// The same, wherever they are.
    Thorough,
    /// Many, however empty the pool is.
    All,
}

/// Blocks that a commit brings home which does nothing else; they are in memory meanwhile.
const SWEEP_ALL_BLOCKS: usize = 1024;

/// Moved blocks that a commit looks at for each that it sweeps home.
const SWEEP_EFFORT: usize = 8;

fn sweep_size(blocks: usize) -> usize {
    blocks.max(MIN_SWEEP)
}

/// How a commit becomes durable.
pub(super) enum Way {
    /// By a record in the log, if it has room for it.
    Log,
    Generation,
    /// As a generation that changes the snapshots.
    Snapshots(ListChange),
}

/// New contents by block, `None` for freed ones.
type Changes = BTreeMap<u64, Option<LoggedBlock>>;

/// A generation on its way: what is to be written where.
struct Draft {
    map: Map,
    out: Vec<(BlockNr, BlockRef)>,
    /// Blocks that the sweep brings home; they hold their contents until readers go by the new map.
    swept: Vec<FrozenBlock>,
}

impl Generations {
    /// Leader: closes the running commit, makes it durable, and tells who waits.
    pub(super) fn commit_running(&self, way: Way) -> Result<()> {
        // What a snapshot has, data in place included, is what was done before it: nobody begins meanwhile.
        let stops = matches!(way, Way::Snapshots(_));
        let commit = if stops { self.core.pipeline.lock()? } else { self.core.pipeline.spawn()? };
        // See `redirect`: no data is written in place from here until all know of the snapshot.
        let creates = matches!(&way, Way::Snapshots(ListChange { change: Change::Create { .. }, .. }));
        let gate = creates.then(|| self.redirect.gate.write());
        let frozen = self.core.blocks.freeze(commit, |_, _| {});
        if stops {
            self.core.pipeline.switch();
        }
        let mut state = self.state.lock();
        let nothing = match way {
            Way::Log => frozen.is_empty(),
            Way::Generation => frozen.is_empty() && self.live.logged_blocks() == 0,
            Way::Snapshots(_) => false,
        };
        if nothing {
            // But data that was written before must become durable all the same.
            self.core.volume.flush()?;
        } else {
            self.commits.fetch_add(1, Relaxed);
            self.committed_blocks.fetch_add(frozen.blocks.len() as u64, Relaxed);
            if matches!(way, Way::Log) && self.write_record(commit, &mut state.log, &frozen)? {
                // What is not in memory is read as the log has it from here on.
                frozen.blocks.iter().for_each(|block| block.slot.lock_any().committing = None);
                self.data_is_logged(&frozen);
                self.redirect.published(commit, true);
            } else {
                let change = if let Way::Snapshots(change) = way { Some(change) } else { None };
                self.write_generation(&mut state, frozen, change, Sweep::AsDue)?;
                self.redirect.published(commit, false);
                drop(gate);
                self.make_room(&mut state)?;
            }
            self.count_logged();
        }
        drop(state);
        self.core.pipeline.finish(commit);
        Ok(())
    }

    /// What the next generation changes: what was logged since the last one, and `frozen` after it.
    fn changes_since_root(&self, frozen: &Frozen, change: Option<&ListChange>) -> Changes {
        let mut changes = Changes::new();
        // What was done since a snapshot is gone when that is restored.
        if !matches!(change, Some(ListChange { change: Change::Restore { .. }, .. })) {
            changes.extend(self.live.logged());
        }
        changes.extend(frozen.forgotten.iter().map(|block| (block.0, None)));
        changes.extend(frozen.blocks.iter().map(|block| {
            let changed = LoggedBlock { contents: block.contents.clone(), data: block.data };
            (block.slot.block.0, Some(changed))
        }));
        changes
    }

    /// Makes the generation that has what was logged and the changes of `frozen`, and in which some blocks
    /// are swept home. False where there was nothing to do.
    fn write_generation(
        &self,
        state: &mut State,
        frozen: Frozen,
        mut change: Option<ListChange>,
        sweep: Sweep,
    ) -> Result<bool> {
        self.pool(state)?;
        let mut pool = state.pool.take().expect("was just read");
        let generation = state.root.generation + 1;
        let mut draft = Draft { map: state.map.clone(), out: Vec::new(), swept: Vec::new() };
        if let Some(ListChange { change: Change::Restore { index }, .. }) = &change {
            draft.map = state.snapshots[*index].map.clone();
        }
        let mut changes = self.changes_since_root(&frozen, change.as_ref());
        if let Some(ListChange { change: Change::Restore { index }, .. }) = &change {
            let (block, contents) = self.restored_superblock(state, &state.snapshots[*index].map)?;
            changes.insert(block.0, Some(LoggedBlock { contents, data: false }));
        }
        let sweeping = sweep == Sweep::All || sweep::is_due(&pool, changes.len());
        self.place_blocks(state, &mut pool, &changes, sweeping, &mut draft)?;
        if sweeping && !matches!(&change, Some(ListChange { change: Change::Restore { .. }, .. })) {
            let (count, effort) = match sweep {
                Sweep::AsDue => (sweep_size(changes.len()), SWEEP_EFFORT),
                Sweep::Thorough => (sweep_size(changes.len()), usize::MAX),
                Sweep::All => (SWEEP_ALL_BLOCKS, usize::MAX),
            };
            let found = self.find_sweepable(state, &draft.map, count, effort)?;
            self.bring_home(found, &mut draft)?;
        }
        if draft.out.is_empty() && changes.is_empty() && change.is_none() {
            state.pool = Some(pool);
            return Ok(false);
        }
        let Draft { mut map, mut out, swept } = draft;
        map.write(&self.reader, generation, &mut || pool.take(), &mut out)?;
        if let Some(ListChange { change: Change::Cut { index, part, map }, .. }) = &mut change {
            *map = part.draw(&self.reader, &state.snapshots[*index].map, generation, &mut pool, &mut out)?;
        }
        let mut root = state.root.clone();
        if root.log.is_none() && self.uses_log() {
            root.log = log::take_area(&self.reader, &mut pool);
        }
        // From here on nothing is taken any more: see `pool`.
        let Settled { snapshots, list } =
            self.settle_snapshots(state, &mut pool, generation, &map, change, &mut root)?;
        pool.write_changed(&mut out);
        out.sort_unstable_by_key(|(place, _)| *place);
        self.core.volume.write_sorted(&out)?;
        if let Some((place, bytes)) = list {
            self.core.volume.write(place, &[IoSlice::new(&bytes)])?;
        }
        let slot = if self.core.faults.has(Fault::OneRootSlot) { state.slot } else { 1 - state.slot };
        if state.has_torn_root && !self.core.faults.has(Fault::KeepTornRoot) {
            root::write_slot(&self.core.volume, &root.shape, slot, &[0; ROOT_BYTES])?;
        }
        // Durable by this flush: that nothing is left of a torn root in the slot, where a part of the one
        // that is written next could complete it. And all that the root will lead to, and all data whose write returned
        // before the operations that refer to it ended, since those ended before the commit was
        // closed. Without it the root could be durable alone, and lead to what was there before.
        if !self.core.faults.has(Fault::NoFlushBeforeRoot) {
            self.core.volume.flush()?;
        }
        let root = Root { generation, map: map.root(), used: pool.used(), bitmaps: pool.bitmaps(), ..root };
        root::write_root(&self.core.volume, &root, slot)?;
        // Durable by this flush: the generation. Without it a caller would be told that something is
        // safe which a crash undoes, the places of the generation before would be written while it
        // is still the one on disk, and the next root would go to its slot.
        if !self.core.faults.has(Fault::NoFlushAfterRoot) {
            self.core.volume.flush()?;
        }
        self.swept_blocks.fetch_add(swept.len() as u64, Relaxed);
        self.live.publish(generation, map.clone());
        self.redirect.active.store(root.has_moved_data, SeqCst);
        if root.snapshots != state.root.snapshots {
            let held = self.held.read().with(&snapshots);
            *self.held.write() = Arc::new(held);
        }
        // What is not in memory is read by the new map from here on.
        for block in frozen.blocks.iter().chain(&swept) {
            block.slot.lock_any().committing = None;
        }
        self.data_is_placed(&frozen);
        // The root has made an end of the log before it; see `log` 5.
        let log = if self.uses_log() { Log::begin(&root) } else { None };
        let sweep_at = state.sweep_at;
        *state = State { root, slot, map, snapshots, pool: Some(pool), log, sweep_at, has_torn_root: false };
        Ok(true)
    }

    /// Gives every changed block its place: in the pool, or home while the commit sweeps. File data goes home wherever
    /// no snapshot has anything there: what is there is what an unsynced write may overwrite, or nothing; or the
    /// durable generation has the block in the pool. Before the root a crash may leave it there in part; then
    /// what counts is what the log says of it, if that is more than what was never synced.
    fn place_blocks(
        &self,
        state: &State,
        pool: &mut Pool,
        changes: &Changes,
        sweeping: bool,
        draft: &mut Draft,
    ) -> Result<()> {
        let held = self.held.read().clone();
        for (&number, contents) in changes {
            let block = BlockNr(number);
            let Some(contents) = contents else {
                draft.map.set(&self.reader, block, None)?;
                continue;
            };
            let durable = state.map.get(&self.reader, block)?;
            let overwrite = self.core.faults.has(Fault::OverwritePlace);
            let anyway = self.core.faults.has(Fault::SweepOverHome) && self.homes.may_ever(block);
            let home = match contents.data {
                true => self.core.faults.has(Fault::OverwriteHeld) || held.home_is_free(block)?,
                false => {
                    sweeping && (anyway || self.homes.is_free(&self.reader, &state.map, &held, block)?)
                }
            };
            let contents = &contents.contents;
            let place = match durable {
                Some(pointer) if overwrite => pointer.place,
                _ if home => block,
                _ => pool.take()?,
            };
            let pointer = Pointer { place, sum: contents_sum(block, contents) };
            draft.map.set(&self.reader, block, (place != block).then_some(pointer))?;
            draft.out.push((place, contents.clone()));
        }
        Ok(())
    }

    /// Makes a generation of what was logged, if anything was.
    pub(super) fn end_log(&self, state: &mut State) -> Result<()> {
        if self.live.logged_blocks() > 0 {
            self.write_generation(state, Frozen::default(), None, Sweep::AsDue)?;
        }
        Ok(())
    }

    /// Brings blocks home that this commit does not change.
    fn bring_home(&self, blocks: Vec<(BlockNr, Pointer)>, draft: &mut Draft) -> Result<()> {
        for (block, pointer) in blocks {
            let contents = self.reader.read(block, pointer)?;
            draft.map.set(&self.reader, block, None)?;
            draft.out.push((block, contents.clone()));
            // Until readers go by the new map they must not go by the old one to a place that the
            // commit after this one may use.
            self.core.blocks.cache.with(block, |slot, kept| {
                kept.committing = Some(contents.clone());
                let slot = slot.clone();
                let record = Record::Copy;
                draft.swept.push(FrozenBlock { slot, contents, record, is_whole: true, data: false });
            });
        }
        Ok(())
    }

    /// The pool's bitmap, read where this is the first that needs it.
    pub(super) fn pool<'a>(&self, state: &'a mut State) -> Result<&'a mut Pool> {
        if state.pool.is_none() {
            state.pool = Some(Pool::read(&self.core.volume, &state.root)?);
        }
        Ok(state.pool.as_mut().expect("was just read"))
    }

    /// Brings home whatever may be, in generations that change nothing else.
    pub(super) fn sweep_all(&self, state: &mut State) -> Result<()> {
        while self.write_generation(state, Frozen::default(), None, Sweep::All)? {}
        Ok(())
    }

    /// Sweeps until there is room for all, in generations that change nothing else. Where that does not
    /// help, the pool is full of what is kept; see `room`.
    pub(super) fn make_room(&self, state: &mut State) -> Result<()> {
        let enough = room::for_all(self.reader.shape.places());
        loop {
            let free = state.pool.as_ref().map_or(0, Pool::free);
            if free >= enough || !self.write_generation(state, Frozen::default(), None, Sweep::Thorough)? {
                self.core.pipeline.limit_credits(self.room.set(free));
                return Ok(());
            }
        }
    }
}
