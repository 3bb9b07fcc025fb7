//! The engine: one handle on a volume for all code above, whatever its mechanism.

use std::io::IoSlice;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Mutex, MutexGuard};
use xact_types::{BlockNr, CommitId, Error, LatencySnapshot, Result};

use crate::core::Core;
use crate::core::block::{BlockRef, NewData, Version};
use crate::core::pipeline::Action;
use crate::core::waits::{WaitRegistry, Waiting};
use crate::fault::Fault;
use crate::mechanism::{
    CommitsAhead, DataInLog, DataLog, DataWrite, EngineStats, Mechanism, ReserveClass, ResizableJournal,
};
use crate::options::Fsync;
use crate::recovery::RecoveryReport;
use crate::snapshots::Snapshots;

/// A consistency engine: with the jbd2 journal, with generations, or with neither.
///
/// All methods may be called from many threads. After a failed write or flush the engine is
/// poisoned: reads continue, everything else fails with [`xact_types::Error::Poisoned`].
pub struct Engine {
    core: Arc<Core>,
    mechanism: Arc<dyn Mechanism>,
    recovery: RecoveryReport,
}

impl Engine {
    /// An engine whose threads run, unless it is read-only.
    pub(crate) fn new(
        core: Arc<Core>,
        mechanism: Arc<dyn Mechanism>,
        recovery: RecoveryReport,
    ) -> Result<Arc<Engine>> {
        let engine = Engine::without_threads(core, mechanism, recovery);
        if !engine.core.read_only {
            engine.core.volume.watch_superblock();
            let (core, mechanism) = (engine.core.clone(), engine.mechanism.clone());
            engine.core.start_thread("xact-commit", move || commit_when_due(&core, &*mechanism))?;
            engine.mechanism.clone().start_threads()?;
        }
        Ok(engine)
    }

    pub(crate) fn without_threads(
        core: Arc<Core>,
        mechanism: Arc<dyn Mechanism>,
        recovery: RecoveryReport,
    ) -> Arc<Engine> {
        Arc::new(Engine { core, mechanism, recovery })
    }

    /// Block size of the volume in bytes.
    pub fn block_size(&self) -> usize {
        self.core.volume.block_size
    }

    /// Size of the ext4 volume, and of images of it, in bytes.
    pub fn volume_bytes(&self) -> u64 {
        self.core.volume.blocks * self.core.volume.block_size as u64
    }

    pub fn is_read_only(&self) -> bool {
        self.core.read_only
    }

    /// The report of the replay at opening.
    pub fn recovery(&self) -> &RecoveryReport {
        &self.recovery
    }

    /// The newest contents of a metadata block, committed or not.
    pub fn read(&self, block: BlockNr) -> Result<BlockRef> {
        self.core.blocks.read(block)
    }

    /// Joins the running commit, with credits to change `credits` distinct blocks. May wait until a
    /// commit has made space. `TooLarge` if no commit could ever take that many.
    pub fn start(&self, credits: u32) -> Result<CommitId> {
        self.start_for(credits, ReserveClass::Any)
    }

    /// As `start`, with the class of space that the operation may use.
    pub fn start_for(&self, credits: u32, class: ReserveClass) -> Result<CommitId> {
        self.core.check_open()?;
        self.mechanism.start(credits, class)
    }

    /// As `start_for`, for an operation that depends on no other change of the running commit,
    /// except those of operations ahead. With a batch, its changes can become durable before the
    /// rest of the commit, by [`Self::commit_ahead`]; then `end_ahead` or `fall_back` must follow
    /// before `stop`. Without one, the operation is an ordinary part of the commit. `waits`: for
    /// the commit before to be durable, if that is needed.
    pub(crate) fn start_ahead(
        &self,
        credits: u32,
        class: ReserveClass,
        waits: bool,
    ) -> Result<(CommitId, Option<u64>)> {
        self.core.check_open()?;
        match self.mechanism.ahead() {
            Some(ahead) => ahead.start_ahead(credits, class, waits),
            None => Ok((self.mechanism.start(credits, class)?, None)),
        }
    }

    /// An operation with a batch has made its last change.
    pub(crate) fn end_ahead(&self) {
        self.core.blocks.ahead.leave();
    }

    /// An operation with a batch is an ordinary part of the commit after all.
    pub(crate) fn fall_back(&self) {
        self.break_ahead();
        self.end_ahead();
    }

    /// Nothing goes ahead of the commit any more, nor what has joined a batch.
    pub(crate) fn break_ahead(&self) {
        self.core.blocks.ahead.break_off();
    }

    /// As `update_shared`, by an operation with a batch.
    pub(crate) fn update_shared_ahead(
        &self,
        commit: CommitId,
        block: BlockNr,
        change: &mut dyn FnMut(Version, &mut [u8]),
    ) -> Result<u32> {
        self.core.blocks.update_shared_ahead(commit, block, change)
    }

    /// An operation with a batch has changed or created a block of its own inode.
    pub(crate) fn note_ahead(&self, commit: CommitId, block: BlockNr) {
        self.core.blocks.note_ahead(commit, block);
    }

    /// Makes a change of the commit in the version ahead, by an operation with a batch; see
    /// [`crate::Handle::catch_up`].
    pub(crate) fn catch_up(
        &self,
        commit: CommitId,
        block: BlockNr,
        change: &mut dyn FnMut(&mut [u8]) -> bool,
    ) -> Result<bool> {
        self.core.blocks.catch_up(commit, block, change)
    }

    /// See [`crate::Handle::catch_up_data`].
    pub(crate) fn catch_up_data(&self, commit: CommitId, start: BlockNr, blocks: u64) {
        self.core.blocks.catch_up_data(commit, start, blocks);
    }

    /// See [`crate::Handle::contents_ahead`].
    pub(crate) fn contents_ahead(&self, commit: CommitId, block: BlockNr) -> Result<Option<BlockRef>> {
        self.core.blocks.contents_ahead(commit, block)
    }

    /// Whether an operation that begins now may go ahead of its commit.
    pub fn goes_ahead_now(&self) -> bool {
        self.mechanism.ahead().is_some_and(CommitsAhead::goes_ahead_now)
    }

    /// Whether operations can go ahead of their commit, now or later.
    pub fn can_go_ahead(&self) -> bool {
        self.mechanism.ahead().is_some()
    }

    /// Makes a batch durable: all changes of the handles that had it ([`crate::Handle::ahead`]),
    /// and all data whose `write_data` returned before the call. `commit` is the commit of the
    /// handles, of which the rest may stay in memory.
    pub fn commit_ahead(&self, commit: CommitId, batch: u64) -> Result<()> {
        match self.mechanism.ahead() {
            Some(ahead) => ahead.commit_ahead(commit, batch),
            None => self.mechanism.commit(commit),
        }
    }

    /// Whether commits can use up their space while the engine runs, so that data that is accepted
    /// now and committed later needs a reservation.
    pub fn limits_space(&self) -> bool {
        self.mechanism.space().is_some()
    }

    /// Reserves space for `blocks` blocks of file data and for the metadata that will map them. The
    /// caller reports the data as accepted, and [`ReserveClass::Upkeep`] writes it later. `NoSpace`
    /// if the space is too small; then nothing is reserved.
    pub fn reserve_space(&self, blocks: u64) -> Result<()> {
        self.mechanism.space().map_or(Ok(()), |space| space.reserve(blocks))
    }

    /// Releases `blocks` reserved blocks, which are part of a commit now or no longer needed.
    pub fn release_space(&self, blocks: u64) {
        if let Some(space) = self.mechanism.space() {
            space.release(blocks);
        }
    }

    /// Reserved blocks, if they reduce the space of other operations.
    pub fn reserved_space(&self) -> u64 {
        self.mechanism.space().map_or(0, |space| space.reserved())
    }

    /// Gives an open handle `more` credits. False, without a change, if the running commit has none
    /// left; then the operation must end and start over.
    pub fn extend(&self, commit: CommitId, more: u32) -> Result<bool> {
        self.core.pipeline.extend(commit, more)
    }

    /// Ends a handle; `unused` credits return to the commit.
    pub fn stop(&self, commit: CommitId, unused: u32) {
        self.core.pipeline.stop(commit, unused);
    }

    /// Changes a block within an open handle. `change` gets the newest contents, runs exactly once,
    /// under the block's own short lock, and must not call the engine. Returns whether the block
    /// was new to this commit, and so used a credit.
    pub fn update(
        &self,
        commit: CommitId,
        block: BlockNr,
        change: &mut dyn FnMut(&mut [u8]),
    ) -> Result<bool> {
        self.core.blocks.update(commit, block, change)
    }

    /// As `update`, for a block that several inodes share. The handle's commit may be closed while
    /// handles of the next commit have begun (SNAP-4) and have changed the block. Then `change`
    /// runs on the newest contents, and after that on those of its own commit. The closure runs
    /// once per version and must be idempotent across versions: it sets values that do not depend
    /// on other changes, adds to counts, and seals the result. With `per_version` it may make a
    /// different change to each version; if the handle's commit is closed and the block has only
    /// one version, it gets a second one.
    ///
    /// Returns the number of credits used: 0 to 2. Only `per_version` can use two.
    pub fn update_shared(
        &self,
        commit: CommitId,
        block: BlockNr,
        per_version: bool,
        change: &mut dyn FnMut(Version, &mut [u8]),
    ) -> Result<u32> {
        let added = self.core.blocks.update_shared(commit, block, per_version, change)?;
        self.core.pipeline.charge_next(commit, added.next);
        Ok(added.own + added.next)
    }

    /// The block's contents in the commit of an open handle: the newest ones, unless the next
    /// commit has changed the block.
    pub fn read_own(&self, commit: CommitId, block: BlockNr) -> Result<BlockRef> {
        self.core.blocks.read_own(commit, block)
    }

    /// The contents of a block before its first change in the commit of an open handle: those to
    /// which a change that cancels out returns. `None` if the commit has not changed the block, or
    /// the contents are not kept. A commit does not write a block that has them at its end.
    pub fn base(&self, commit: CommitId, block: BlockNr) -> Option<BlockRef> {
        self.core.blocks.base(commit, block)
    }

    /// Lets the commit of an open handle leave out a block that it has given first contents by
    /// [`Self::create_shared`], which have come back and which nothing refers to any more. To use
    /// it again, create it again. False, without a change, if an older commit has contents of it.
    pub fn leave_out(&self, commit: CommitId, block: BlockNr) -> bool {
        self.core.blocks.leave_out(commit, block)
    }

    /// As `update`, for a block whose old contents do not matter because it was just allocated:
    /// `contents` replaces them without a read.
    pub fn create(&self, commit: CommitId, block: BlockNr, contents: BlockRef) -> Result<bool> {
        self.core.blocks.create(commit, block, contents)
    }

    /// As `create`, for a block that several inodes share, with contents that belong to no inode
    /// yet.
    pub fn create_shared(&self, commit: CommitId, block: BlockNr, contents: BlockRef) -> Result<bool> {
        self.core.blocks.create_shared(commit, block, contents)
    }

    /// The file data that may go through the log, by `journal_data`.
    pub fn data_in_log(&self) -> DataInLog {
        self.mechanism.data_log().map_or(DataInLog::None, DataLog::data_in_log)
    }

    /// As `create`, for a block of file data. These contents are durable with the commit and go to
    /// their place later; `read_data` returns them from now on. Allowed only as far as
    /// `data_in_log` says.
    pub fn journal_data(&self, commit: CommitId, block: BlockNr, new: NewData) -> Result<bool> {
        match self.mechanism.data_log() {
            Some(log) => {
                let is_whole = new.changed.is_none();
                let added = log.journal_data(commit, block, new)?;
                if is_whole {
                    self.core.deferred.forget(commit, block, 1);
                }
                Ok(added)
            }
            None => Err(Error::Unsupported("file data in the log of this engine".into())),
        }
    }

    /// Whether the log holds, or will hold, a copy of any of these blocks of file data. Such a
    /// block must not be written by `write_data`: a replay would bring the copy back over it
    /// (JOJ-8).
    pub fn holds_data(&self, start: BlockNr, blocks: u64) -> bool {
        self.mechanism.data_log().is_some_and(|log| log.holds_data(start, blocks))
    }

    /// Whether blocks that were just allocated may get their first contents by `defer_data`.
    pub fn may_defer(&self, start: BlockNr, blocks: u64) -> Result<bool> {
        self.mechanism.may_defer(start, blocks)
    }

    /// Bytes of the contents that `defer_data` keeps in memory.
    pub fn deferred_bytes(&self) -> u64 {
        self.core.deferred.blocks() * self.block_size() as u64
    }

    /// Gives a newly allocated block of file data its first contents. They stay in memory, where
    /// `read_data` finds them, and are written to the block's place with the commit: a durable
    /// commit has them. They are never written if the commit frees the block before. Allowed where
    /// `may_defer` says so. The caller calls `order_data` too.
    pub fn defer_data(&self, commit: CommitId, block: BlockNr, contents: BlockRef) -> Result<()> {
        self.core.volume.poison.check()?;
        self.core.volume.check_writable(block, 1)?;
        self.core.deferred.defer(commit, block, contents);
        Ok(())
    }

    /// Whether contents of any of these blocks are only in memory, by `defer_data`.
    pub fn defers_data(&self, start: BlockNr, blocks: u64) -> bool {
        self.core.deferred.has(start, blocks)
    }

    /// Blocks of file data were freed: does what `forget` does, for those of them that the log
    /// holds, and drops contents that the commit has not written yet.
    pub fn forget_data(&self, commit: CommitId, start: BlockNr, blocks: u64) -> Result<()> {
        self.core.deferred.forget(commit, start, blocks);
        self.mechanism.data_log().map_or(Ok(()), |log| log.forget_data(commit, start, blocks))
    }

    /// The block was freed and is no longer metadata. It is dropped from the running commit and no
    /// longer written to its place, and a replay of earlier commits must not bring it back
    /// (revoke). Its new owner may write it only after `commit` is durable.
    ///
    /// A log takes a limited number of revokes in one commit; handles begin while half of it is
    /// left. So one handle forgets no more than [`xact_types::Steps::forgotten_blocks`] blocks on
    /// top of those that it has credits for. `TooLarge` if it forgets more.
    pub fn forget(&self, commit: CommitId, block: BlockNr) -> Result<()> {
        self.core.blocks.forget(commit, block)
    }

    /// Makes `commit`, in which a handle is open, wait for all data whose `write_data` has
    /// returned, in modes that do not order data anyway (`data=writeback`): the commit removes old
    /// contents that only this data replaces.
    pub fn order_data(&self, commit: CommitId) {
        self.core.pipeline.order_data(commit);
    }

    /// Runs `action` once the commit is durable, before the threads that wait for it are woken. If
    /// the engine is poisoned first, the action is dropped without a run. It must not wait for a
    /// commit.
    pub fn on_durable(&self, commit: CommitId, action: Action) {
        if self.core.faults.has(Fault::ActionsAtOnce) {
            return action();
        }
        self.core.pipeline.on_durable(commit, action);
    }

    /// Makes `commit` (running or older) durable and waits for it. Also makes all data durable
    /// whose `write_data` returned before the call, even if the commit was durable already.
    pub fn commit(&self, commit: CommitId) -> Result<()> {
        self.mechanism.commit(commit)
    }

    /// The newest durable commit.
    pub fn durable(&self) -> CommitId {
        self.core.pipeline.durable()
    }

    /// The commit that a handle started now would join.
    pub fn running(&self) -> CommitId {
        self.core.pipeline.running()
    }

    /// The time within which changes are committed without a request.
    pub fn commit_interval(&self) -> Duration {
        self.core.commit_interval
    }

    /// The running commit, or an earlier one, has changes that were accepted at `since` and were in
    /// memory alone until now. It is due as if they had joined it then.
    pub fn age_from(&self, since: Instant) {
        self.core.pipeline.age_from(since);
    }

    /// Makes all data durable whose `write_data` has returned, without a commit.
    pub fn flush_data(&self) -> Result<()> {
        self.core.check_open()?;
        self.mechanism.flush_data()
    }

    /// Makes all metadata changes and all written data durable.
    pub fn sync(&self) -> Result<()> {
        if self.core.read_only {
            return Ok(());
        }
        self.mechanism.commit_wholly(self.core.pipeline.running())
    }

    /// The most credits that one handle can have.
    pub fn max_credits(&self) -> u32 {
        self.core.pipeline.max_alone()
    }

    /// Reads file data; `buf` is a multiple of the block size.
    pub fn read_data(&self, start: BlockNr, buf: &mut [u8]) -> Result<()> {
        if self.core.deferred.blocks() == 0 {
            return self.mechanism.read_data(start, buf);
        }
        let block_size = self.block_size();
        // Looked up in this order: contents in the log are newer than deferred ones. The log loses
        // a block only after a commit, which has written the deferred contents.
        let logged: Vec<bool> = (0..(buf.len() / block_size) as u64)
            .map(|at| self.mechanism.data_log().is_some_and(|log| log.holds_data(start.offset(at), 1)))
            .collect();
        let deferred = self.core.deferred.in_memory(start, logged.len() as u64);
        // Contents that were not found are home.
        self.mechanism.read_data(start, buf)?;
        for (at, contents) in deferred.into_iter().filter(|(at, _)| !logged[*at as usize]) {
            buf[at as usize * block_size..][..block_size].copy_from_slice(&contents);
        }
        Ok(())
    }

    /// Writes file data to its place, from `start` on; the length of each buffer is a multiple of
    /// the block size.
    pub fn write_data(&self, start: BlockNr, bufs: &[IoSlice<'_>]) -> Result<()> {
        self.write_data_as(start, bufs, DataWrite::default())
    }

    /// The same, in a chosen way. `flush_data`, `commit` and `sync` cover the data in every case.
    pub fn write_data_as(&self, start: BlockNr, bufs: &[IoSlice<'_>], write: DataWrite) -> Result<()> {
        self.check_write(start, bufs)?;
        let blocks = self.core.volume.blocks_in(bufs.iter().map(|b| b.len()).sum())?;
        let written = if self.core.deferred.has(start, blocks) {
            self.write_over_deferred(start, bufs, write)
        } else {
            self.mechanism.write_data(start, bufs, write)
        };
        self.wrote(written)
    }

    /// Writes file data of which some replaces deferred contents.
    fn write_over_deferred(&self, start: BlockNr, bufs: &[IoSlice<'_>], write: DataWrite) -> Result<()> {
        let blocks = bufs.iter().flat_map(|buf| buf.chunks_exact(self.block_size()));
        let slices: Vec<IoSlice<'_>> = blocks.map(IoSlice::new).collect();
        let mut at = 0;
        while at < slices.len() {
            let (first, rest) = (start.offset(at as u64), &slices[at..]);
            if let Some((_guard, count)) = self.core.deferred.begin_overwrite(first, rest.len() as u64) {
                // Home, where the deferred contents would have gone.
                self.core.volume.write_for(first, &rest[..count as usize], write.hint)?;
                at += count as usize;
                continue;
            }
            let is_next = |count: &usize| self.core.deferred.has(first.offset(*count as u64), 1);
            let count = (1..rest.len()).find(is_next).unwrap_or(rest.len());
            self.mechanism.write_data(first, &rest[..count], write)?;
            at += count;
        }
        Ok(())
    }

    /// As `write_data`, for blocks that are in use in every state of the volume and that no code
    /// has read yet (tables that are not initialised). May be called within a handle.
    pub fn write_unread(&self, start: BlockNr, bufs: &[IoSlice<'_>]) -> Result<()> {
        self.check_write(start, bufs)?;
        self.wrote(self.mechanism.write_unread(start, bufs))
    }

    fn check_write(&self, start: BlockNr, bufs: &[IoSlice<'_>]) -> Result<()> {
        self.core.check_open()?;
        let volume = &self.core.volume;
        volume.check_writable(start, volume.blocks_in(bufs.iter().map(|b| b.len()).sum())?)
    }

    /// File data was written, or its write failed.
    fn wrote(&self, written: Result<()>) -> Result<()> {
        self.core.volume.note_data();
        if self.core.volume.poison.is_set() {
            self.core.pipeline.give_up();
        }
        written
    }

    /// Data written to the range is on the device when this returns, though not durable. A later
    /// flush has less to wait for.
    pub fn flush_page_cache_range(&self, start: BlockNr, blocks: u64) -> Result<()> {
        self.core.guard(self.core.volume.flush_page_cache_range(start, blocks))
    }

    /// The range holds no data any more (fstrim, `-o discard`).
    pub fn discard(&self, start: BlockNr, blocks: u64) -> Result<()> {
        self.core.check_open()?;
        self.core.volume.poison.check()?;
        if self.mechanism.may_discard() { self.core.volume.discard(start, blocks) } else { Ok(()) }
    }

    /// Whether blocks may have no space yet on a file system below the device. Then the two calls
    /// that follow are needed before the first write to a block, while a caller can still be
    /// refused.
    pub fn is_sparse(&self) -> bool {
        !self.core.read_only && self.core.volume.is_sparse()
    }

    /// The blocks of a range that may have no space below, in rising order.
    pub fn holes(&self, start: BlockNr, blocks: u64) -> Result<Vec<Range<u64>>> {
        self.core.volume.holes(start, blocks)
    }

    /// Takes space below for blocks, whose contents do not change. Errors: `HostFull`.
    pub fn allocate_below(&self, start: BlockNr, blocks: u64) -> Result<()> {
        self.core.volume.allocate(start, blocks)
    }

    /// Whether the file system below had no space when it was last asked for some.
    pub fn is_host_full(&self) -> bool {
        self.core.volume.is_host_full()
    }

    /// Stops all writing until the volume is opened again, with the reason for the log.
    pub fn poison(&self, why: &str) {
        self.core.poison(why);
    }

    /// Poisons the volume and fails if another program has changed its superblock.
    pub fn check_other_writers(&self) -> Result<()> {
        self.core.guard(self.core.volume.check_superblock())
    }

    /// `Ok` unless poisoned.
    pub fn health(&self) -> Result<()> {
        self.core.volume.poison.check()
    }

    /// Syncs, empties the log, marks the volume clean, and ends the engine's threads. The engine
    /// must not be used afterwards. On a poisoned engine: ends the threads and leaves the log for
    /// recovery.
    pub fn close(&self) -> Result<()> {
        if self.core.read_only {
            return Ok(());
        }
        let result = self.core.volume.poison.check().and_then(|()| self.sync());
        self.end_threads();
        result?;
        let _turn = self.core.pipeline.lead_alone();
        self.core.guard(self.mechanism.leave_clean())?;
        self.core.close();
        Ok(())
    }

    fn end_threads(&self) {
        self.mechanism.stop_threads();
        self.core.end_threads();
    }

    pub fn stats(&self) -> EngineStats {
        self.mechanism.stats()
    }

    /// How long each commit took, from its locking to its durability.
    pub fn commit_times(&self) -> LatencySnapshot {
        self.core.pipeline.times.snapshot()
    }

    /// How long operations had to wait at each commit until the next one was open.
    pub fn held_up_times(&self) -> LatencySnapshot {
        self.core.pipeline.held_up.snapshot()
    }

    /// How often an operation waited within its handle, for the device or for a thread that did. A
    /// commit cannot be closed during such a wait.
    pub fn waits_in_handles(&self) -> u64 {
        self.core.pipeline.waits_in_handles()
    }

    /// The commit that was closed while handles are still open in it and others begin in the next.
    pub fn draining(&self) -> Option<CommitId> {
        let commit = self.core.blocks.draining();
        (commit.0 > 0).then_some(commit)
    }

    /// Waits until no handle is open in a commit before `commit`, in which the caller has a handle.
    /// Needed before a change of shared blocks that cannot be made in two versions. The caller must
    /// hold no lock that is taken within handles.
    pub fn await_drained(&self, commit: CommitId) -> Result<()> {
        self.core.pipeline.await_drained(commit)
    }

    /// A guard for a thread that waits for a lock whose holders may wait for the device, or that
    /// works for long. While it is held, no commit in which the thread has a handle is closed, so
    /// that no other thread has to wait for it too. `None` if the thread has no handle.
    pub fn waits(&self) -> Option<Waiting> {
        self.core.pipeline.clone().begin_wait()
    }

    /// Sets what `commit` does from now on, if the mechanism has a choice. The volume's own
    /// settings become known only after it is open.
    pub fn set_fsync(&self, fsync: Fsync, ordered_data: bool) {
        self.mechanism.set_fsync(fsync, ordered_data);
    }

    /// The journal, if the volume has one. Its length can change.
    pub fn journal(&self) -> Option<&dyn ResizableJournal> {
        self.mechanism.journal()
    }

    /// The snapshots of a volume with generations.
    pub fn snapshots(&self) -> Option<&dyn Snapshots> {
        self.mechanism.snapshots()
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.end_threads();
    }
}

/// Body of the thread that commits when the running commit is old or full; ends with the pipeline.
fn commit_when_due(core: &Core, mechanism: &dyn Mechanism) {
    while let Some(due) = core.pipeline.wait_due(core.commit_interval) {
        if !due.crowded && core.blocks.is_unchanged() && !core.pipeline.has_actions() {
            core.pipeline.reset_age(due.commit);
            continue;
        }
        // A failure has poisoned the volume, which ends the loop.
        let _ = mechanism.commit_wholly(due.commit);
    }
}

/// Locks a mutex whose holders may wait for the device; see [`Engine::waits`].
pub fn lock_within<'a, T>(engine: &Engine, mutex: &'a Mutex<T>) -> MutexGuard<'a, T> {
    mutex.try_lock().unwrap_or_else(|| {
        let _waits = engine.waits();
        mutex.lock()
    })
}
