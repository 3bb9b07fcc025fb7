//! Writes one generation; the crash argument is at the head of `generations/mod.rs`.

use std::collections::BTreeMap;
use std::io::IoSlice;
use std::sync::Arc;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};

use xact_layout::generations::{Pointer, ROOT_BYTES, Root, Target};
use xact_types::{BlockNr, Result};

use super::log::{self, Log};
use super::map::{Map, MapReader, most_nodes};
use super::pool::Pool;
use super::published_map::LoggedBlock;
use super::snapshots::{Change, ListChange, Settled};
use super::{Generations, State, admission, root, writeback_home};
use crate::core::block::{BlockRef, Record};
use crate::core::dirty_blocks::{Frozen, FrozenBlock};
use crate::fault::Fault;

/// Blocks that one commit writes home, at least, under pressure.
const HOME_BLOCKS_MIN: usize = 16;

/// Most blocks that one commit may change; see `admission`.
pub(super) fn max_credits(reader: &MapReader) -> u32 {
    credits_within(reader, admission::of_a_commit(reader.shape.pool_blocks()))
}

/// Blocks that a commit may change if it is to take at most `room` pool blocks, map nodes included.
pub(super) fn credits_within(reader: &MapReader, room: u64) -> u32 {
    // Blocks written home also change nodes of the map, and the snapshot list takes some blocks.
    let nodes = |blocks: u64| reader.most_nodes(blocks + home_blocks(blocks as usize) as u64);
    u32::try_from(admission::most_within(room, room, nodes)).unwrap_or(u32::MAX)
}

/// The most pool blocks that a commit of `credits` blocks takes on a volume of this size.
pub(super) fn blocks_taken(volume_blocks: u64, block_size: u32, credits: u32) -> u64 {
    let changed = u64::from(credits) + home_blocks(credits as usize) as u64;
    u64::from(credits) + most_nodes(volume_blocks, block_size as usize, changed)
}

/// The blocks that a commit writes home in addition to its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum WritebackHome {
    /// As many as it changes, if the pool fills up and such blocks are found soon.
    AsDue,
    /// The same, however long the search takes.
    Thorough,
    /// Many, however empty the pool is.
    All,
}

/// Moved blocks that a commit examines for each block that it writes home.
const HOME_EFFORT: usize = 8;

fn home_blocks(blocks: usize) -> usize {
    blocks.max(HOME_BLOCKS_MIN)
}

/// How a commit becomes durable.
pub(super) enum CommitKind {
    /// By a record in the log, if it fits.
    Log,
    Generation,
    /// As a generation that changes the snapshots.
    Snapshots(ListChange),
}

/// New contents by block, `None` for freed ones.
type Changes = BTreeMap<u64, Option<LoggedBlock>>;

/// A generation on its way: the blocks to write, with their places.
struct Draft {
    map: Map,
    out: Vec<(BlockNr, BlockRef)>,
    /// Blocks that the commit writes home. They hold their contents until readers use the new map.
    homebound: Vec<FrozenBlock>,
}

impl Generations {
    /// Leader: closes the running commit, makes it durable, and wakes its waiters.
    pub(super) fn commit_running(&self, kind: CommitKind) -> Result<()> {
        // A snapshot holds everything done before it, data in place included. So no operation
        // begins until it is made.
        let stops = matches!(kind, CommitKind::Snapshots(_));
        let commit =
            if stops { self.core.pipeline.lock()? } else { self.core.pipeline.close_and_open_next()? };
        // See `redirect`: from here on no data is written in place until all threads see the
        // snapshot.
        let creates =
            matches!(&kind, CommitKind::Snapshots(ListChange { change: Change::Create { .. }, .. }));
        let gate = creates.then(|| self.redirect.gate.write());
        let mut frozen = self.core.blocks.freeze(commit, |_, _| {});
        let deferred = self.core.deferred.begin(commit, self.core.faults);
        if stops {
            self.core.pipeline.switch();
        }
        deferred.write(&self.core.volume)?;
        self.drop_unknown(&mut frozen)?;
        let mut state = self.state.lock();
        let nothing = match kind {
            CommitKind::Log => frozen.is_empty(),
            CommitKind::Generation => frozen.is_empty() && self.published.logged_blocks() == 0,
            CommitKind::Snapshots(_) => false,
        };
        if nothing {
            // But data that was written before must become durable all the same.
            self.core.volume.flush()?;
        } else {
            self.commits.fetch_add(1, Relaxed);
            self.committed_blocks.fetch_add(frozen.blocks.len() as u64, Relaxed);
            if matches!(kind, CommitKind::Log) && self.write_record(commit, &mut state.log, &frozen)? {
                // From here on, blocks that are not in memory are read from the log.
                frozen.blocks.iter().for_each(|block| block.slot.lock_any().committing = None);
                self.data_is_logged(&frozen);
                self.redirect.published(commit, true);
            } else {
                let change = if let CommitKind::Snapshots(change) = kind { Some(change) } else { None };
                self.write_generation(&mut state, frozen, change, WritebackHome::AsDue)?;
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

    /// Drops the freed blocks that neither the map nor the log has: they were new in this commit,
    /// or are at home. Nothing would be read there.
    fn drop_unknown(&self, frozen: &mut Frozen) -> Result<()> {
        let mut known = Vec::new();
        for &block in &frozen.forgotten {
            if self.published.has_moved(block)? {
                known.push(block);
            }
        }
        frozen.forgotten = known;
        Ok(())
    }

    /// The changes of the next generation: those logged since the last one, and `frozen` after
    /// them.
    fn changes_since_root(&self, frozen: &Frozen, change: Option<&ListChange>) -> Changes {
        let mut changes = Changes::new();
        // A restore discards the changes since its snapshot.
        if !matches!(change, Some(ListChange { change: Change::Restore { .. }, .. })) {
            changes.extend(self.published.logged());
        }
        changes.extend(frozen.forgotten.iter().map(|block| (block.0, None)));
        changes.extend(frozen.blocks.iter().map(|block| {
            let changed = LoggedBlock { contents: block.contents.clone(), data: block.data };
            (block.slot.block.0, Some(changed))
        }));
        changes
    }

    /// Writes the generation with the logged changes and those of `frozen`, and writes some blocks
    /// home. False if there was nothing to do.
    fn write_generation(
        &self,
        state: &mut State,
        frozen: Frozen,
        mut change: Option<ListChange>,
        homeward: WritebackHome,
    ) -> Result<bool> {
        self.pool(state)?;
        let mut pool = state.pool.take().expect("was just read");
        let generation = state.root.generation + 1;
        let mut draft = Draft { map: state.map.clone(), out: Vec::new(), homebound: Vec::new() };
        if let Some(ListChange { change: Change::Restore { index }, .. }) = &change {
            draft.map = state.snapshots[*index].map.clone();
        }
        let mut changes = self.changes_since_root(&frozen, change.as_ref());
        if let Some(ListChange { change: Change::Restore { index }, .. }) = &change {
            let (block, contents) = self.restored_superblock(state, &state.snapshots[*index].map)?;
            changes.insert(block.0, Some(LoggedBlock { contents, data: false }));
        }
        let writes_home = homeward == WritebackHome::All || writeback_home::is_due(&pool, changes.len());
        self.place_blocks(state, &mut pool, &changes, writes_home, &mut draft)?;
        if writes_home && !matches!(&change, Some(ListChange { change: Change::Restore { .. }, .. })) {
            let (count, effort) = match homeward {
                WritebackHome::AsDue => (home_blocks(changes.len()), HOME_EFFORT),
                WritebackHome::Thorough => (home_blocks(changes.len()), usize::MAX),
                WritebackHome::All => (self.core.steps.home_blocks, usize::MAX),
            };
            let found = self.find_homebound(state, &draft.map, count, effort)?;
            self.bring_home(found, &mut draft)?;
        }
        if draft.out.is_empty() && changes.is_empty() && change.is_none() {
            state.pool = Some(pool);
            return Ok(false);
        }
        let Draft { mut map, mut out, homebound } = draft;
        map.write(&self.reader, generation, &mut || pool.take(), &mut out)?;
        if let Some(ListChange { change: Change::Prune { index, part, map }, .. }) = &mut change {
            *map =
                part.write_map(&self.reader, &state.snapshots[*index].map, generation, &mut pool, &mut out)?;
        }
        let mut root = state.root.clone();
        if root.log.is_none() && self.uses_log() {
            root.log = log::take_area(&self.reader, &mut pool);
        }
        // No pool block is taken from here on: see `pool`.
        let Settled { snapshots, list } =
            self.settle_snapshots(state, &mut pool, generation, &map, change, &mut root)?;
        pool.write_changed(&mut out);
        out.sort_unstable_by_key(|(pool_block, _)| *pool_block);
        self.core.volume.write_sorted(&out)?;
        if let Some((pool_block, bytes)) = list {
            self.core.volume.write(pool_block, &[IoSlice::new(&bytes)])?;
        }
        let slot = if self.core.faults.has(Fault::OneRootSlot) { state.slot } else { 1 - state.slot };
        if state.has_torn_root && !self.core.faults.has(Fault::KeepTornRoot) {
            root::write_slot(&self.core.volume, &root.shape, slot, &[0; ROOT_BYTES])?;
        }
        // Durable by this flush: that no part of a torn root is left in the slot, where it could
        // complete a later torn root. Also everything that the root will lead to, and all data
        // whose write returned before the operations that refer to it ended, since those ended
        // before the commit was closed. Without the flush the root could be durable alone, and lead
        // to the previous contents of these blocks.
        if !self.core.faults.has(Fault::NoFlushBeforeRoot) {
            self.core.volume.flush()?;
        }
        let root = Root { generation, map: map.root(), used: pool.used(), bitmaps: pool.bitmaps(), ..root };
        root::write_root(&self.core.volume, &root, slot)?;
        // Durable by this flush: the generation. Without it a caller would take changes for safe
        // that a crash undoes, the pool blocks of the previous generation would be overwritten
        // while it is still the one on disk, and the next root would go to its slot.
        if !self.core.faults.has(Fault::NoFlushAfterRoot) {
            self.core.volume.flush()?;
        }
        self.blocks_written_home.fetch_add(homebound.len() as u64, Relaxed);
        self.published.publish(generation, map.clone());
        self.redirect.active.store(root.has_moved_data, SeqCst);
        if root.snapshots != state.root.snapshots {
            let refs = self.snapshot_refs.read().with(&snapshots);
            *self.snapshot_refs.write() = Arc::new(refs);
        }
        // From here on, blocks that are not in memory are read by the new map.
        for block in frozen.blocks.iter().chain(&homebound) {
            block.slot.lock_any().committing = None;
        }
        self.data_is_placed(&frozen);
        // The root has ended the log before it; see `log` 5.
        let log = if self.uses_log() { Log::begin(&root) } else { None };
        let home_cursor = state.home_cursor;
        *state =
            State { root, slot, map, snapshots, pool: Some(pool), log, home_cursor, has_torn_root: false };
        Ok(true)
    }

    /// Gives every changed block its place: in the pool, or home if the commit writes blocks back.
    /// File data goes home unless a snapshot has anything there. The home then holds data that an
    /// unsynced write may overwrite, or nothing; or the durable generation has the block in the
    /// pool. A crash before the root may leave a part of the new data there. After it, the log's
    /// record of the block counts if it holds more than data that was never synced.
    fn place_blocks(
        &self,
        state: &State,
        pool: &mut Pool,
        changes: &Changes,
        writes_home: bool,
        draft: &mut Draft,
    ) -> Result<()> {
        let refs = self.snapshot_refs.read().clone();
        let birth = state.root.generation + 1;
        for (&number, contents) in changes {
            let block = BlockNr(number);
            let Some(contents) = contents else {
                draft.map.set(&self.reader, block, None)?;
                continue;
            };
            let durable = state.map.get(&self.reader, block)?;
            let overwrite = self.core.faults.has(Fault::OverwritePlace);
            let anyway = self.core.faults.has(Fault::WritebackOverHome) && self.homes.may_ever(block);
            let home = match contents.data {
                true => self.core.faults.has(Fault::OverwriteSnapshotData) || refs.home_is_free(block)?,
                false => {
                    writes_home
                        && (anyway || self.homes.is_free(&self.reader, &state.map, &refs, block)?)
                        && self.home_has_space(block)?
                }
            };
            let contents = &contents.contents;
            let pool_block = match durable {
                Some(pointer) if overwrite => pointer.pool_block,
                _ if home => block,
                _ => pool.take()?,
            };
            let pointer = Pointer::new(pool_block, birth, Target::Block(block), contents);
            draft.map.set(&self.reader, block, (pool_block != block).then_some(pointer))?;
            draft.out.push((pool_block, contents.clone()));
        }
        Ok(())
    }

    /// Makes a generation of the logged changes, if there are any.
    pub(super) fn end_log(&self, state: &mut State) -> Result<()> {
        if self.published.logged_blocks() > 0 {
            self.write_generation(state, Frozen::default(), None, WritebackHome::AsDue)?;
        }
        Ok(())
    }

    /// Writes blocks home that this commit does not change.
    fn bring_home(&self, blocks: Vec<(BlockNr, Pointer)>, draft: &mut Draft) -> Result<()> {
        for (block, pointer) in blocks {
            let contents = self.reader.read(block, pointer)?;
            draft.map.set(&self.reader, block, None)?;
            draft.out.push((block, contents.clone()));
            // Until readers use the new map, they must not follow the old one to a pool block that
            // the commit after this one may use.
            self.core.blocks.cache.with(block, |slot, kept| {
                kept.committing = Some(contents.clone());
                let slot = slot.clone();
                let record = Record::Copy;
                draft.homebound.push(FrozenBlock { slot, contents, record, is_whole: true, data: false });
            });
        }
        Ok(())
    }

    /// The pool's bitmap, read from the device on first use.
    pub(super) fn pool<'a>(&self, state: &'a mut State) -> Result<&'a mut Pool> {
        if state.pool.is_none() {
            state.pool = Some(Pool::read(&self.core.volume, &state.root)?);
        }
        Ok(state.pool.as_mut().expect("was just read"))
    }

    /// Writes all blocks home that may go there, in generations without other changes.
    pub(super) fn write_all_home(&self, state: &mut State) -> Result<()> {
        while self.write_generation(state, Frozen::default(), None, WritebackHome::All)? {}
        Ok(())
    }

    /// Writes blocks home until any operation may begin, in generations without other changes. If
    /// that does not help, snapshots fill the pool; see `admission`.
    pub(super) fn make_room(&self, state: &mut State) -> Result<()> {
        let enough = admission::for_all(self.reader.shape.pool_blocks());
        loop {
            let free = state.pool.as_ref().map_or(0, Pool::free);
            if free >= enough
                || !self.write_generation(state, Frozen::default(), None, WritebackHome::Thorough)?
            {
                self.core.pipeline.limit_credits(self.admission.set(free));
                return Ok(());
            }
        }
    }
}
