//! The trait that the engines implement, and the handle through which operations use it.

use std::io::IoSlice;
use std::ops::Range;
use std::sync::Arc;

use parking_lot::{Mutex, MutexGuard};
use xact_device::{DeviceCounts, Waits};
use xact_types::{BlockNr, CommitId, Error, LatencySnapshot, Result};

use crate::core::pipeline::Waiting;
use crate::generations::GenerationsEngine;
use crate::journal::JournalEngine;

/// The contents of a metadata block at one moment; later changes make new ones.
pub type BlockRef = Arc<[u8]>;

/// Figures of a running engine.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct EngineStats {
    /// Commits that became durable.
    pub commits: u64,
    /// Blocks in those commits.
    pub committed_blocks: u64,
    /// Of those, blocks of file data.
    pub journaled_data_blocks: u64,
    /// Blocks that checkpoints wrote to their own place.
    pub checkpoint_writes: u64,
    /// Blocks that never went to their place, since a later commit changed or freed them (JOJ-6).
    pub checkpoint_writes_saved: u64,
    /// Metadata blocks that were looked for: found in memory, and read.
    pub metadata_hits: u64,
    pub metadata_misses: u64,
    pub device: DeviceCounts,
}

/// What an operation may use of the room that is left for commits. Only an engine whose commits can
/// fill their room for good tells them apart: generations, whose pool snapshots keep full.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Room {
    /// What is there for everybody.
    #[default]
    Any,
    /// What is kept so that files can be deleted on a full volume.
    Removal,
    /// The last of it: for the rest of what has begun, for what was promised ([`Engine::promise`]), and for
    /// unmounting.
    Upkeep,
}

/// What file data may go through the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DataInLog {
    None,
    /// What a caller waits for, a little at a time.
    Synced,
    /// Any, as much as fits; and what has to be there with its commit or not at all.
    All,
}

/// New contents of a block of file data, for the log.
pub struct NewData {
    pub contents: BlockRef,
    /// Where they differ from what the block holds; none where that is of no interest.
    pub changed: Option<Range<usize>>,
}

/// Which contents of a block a change is run on; see [`Engine::update_each`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Version {
    /// The newest.
    Newest,
    /// Those of the commit that the change is part of, where the one after it has others already.
    Older,
}

/// What a change gave, by version.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Each<R> {
    pub newest: R,
    /// None where there is but one.
    pub older: Option<R>,
}

impl<R> Each<R> {
    /// What goes with a version of another block that the same operation changes.
    pub fn of(&self, version: Version) -> &R {
        match (version, &self.older) {
            (Version::Older, Some(older)) => older,
            _ => &self.newest,
        }
    }
}

impl<R> Each<Result<R>> {
    /// The newest, if neither is an error.
    pub fn both(self) -> Result<R> {
        self.older.transpose()?;
        self.newest
    }
}

/// How file data is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct DataWrite {
    pub waits: Waits,
    /// What it may use of the room that is left.
    pub room: Room,
}

/// A consistency engine: the jbd2 journal, the generations, or none.
///
/// All methods may be called from many threads. After a failed write or flush the engine is
/// poisoned: reads go on, everything else gives [`xact_types::Error::Poisoned`].
pub trait Engine: Send + Sync + 'static {
    /// Block size of the volume in bytes.
    fn block_size(&self) -> usize;

    fn is_read_only(&self) -> bool;

    /// The newest contents of a metadata block, committed or not.
    fn read(&self, block: BlockNr) -> Result<BlockRef>;

    /// Joins the running commit, with room for changes to `credits` distinct blocks. May wait for
    /// a commit to give room. `TooLarge` where no commit could ever take that many.
    fn start(&self, credits: u32) -> Result<CommitId>;

    /// As `start`, with what the operation may use of the room that is left.
    fn start_for(&self, credits: u32, room: Room) -> Result<CommitId> {
        let _ = room;
        self.start(credits)
    }

    /// Whether commits can fill their room for good, so that what is accepted now and committed later needs a
    /// promise.
    fn limits_room(&self) -> bool {
        false
    }

    /// Promises room for so many blocks, of file data and of what will lead to it, which a caller is told are
    /// accepted and which are written by [`Room::Upkeep`] later. `NoSpace` where there is none, and then none is
    /// promised.
    fn promise(&self, _blocks: u64) -> Result<()> {
        Ok(())
    }

    /// So many blocks that were promised are part of a commit, or no longer needed.
    fn end_promise(&self, _blocks: u64) {}

    /// Blocks that are promised, where that leaves others less.
    fn promised(&self) -> u64 {
        0
    }

    /// Gives an open handle room for `more` blocks; false (and no change) where the running
    /// commit has none left, in which case the operation must end and start anew.
    fn extend(&self, commit: CommitId, more: u32) -> Result<bool>;

    /// Ends a handle; `unused` credits return to the commit.
    fn stop(&self, commit: CommitId, unused: u32);

    /// Changes a block within an open handle. `change` sees and edits the newest contents, runs
    /// exactly once, under the block's own short lock, and must not call the engine.
    /// Returns whether the block was new to this commit (and so used a credit).
    fn update(&self, commit: CommitId, block: BlockNr, change: &mut dyn FnMut(&mut [u8])) -> Result<bool>;

    /// As `update` for a block that several inodes share. The commit of the handle may be closed while those of the
    /// next have begun (SNAP-4) and have changed the block: then `change` runs on the newest contents, and after that on
    /// those of its own commit. Both must come to what is right for the version: it sets values that do not depend on what others
    /// have done, adds to counts, and seals what it changed. With `apart` it may be another one for each version,
    /// and where there is but one yet, of a handle whose commit is closed, that becomes two.
    ///
    /// Returns how many credits that took: 0 to 2, of which one is with `apart` alone.
    fn update_each(
        &self,
        commit: CommitId,
        block: BlockNr,
        _apart: bool,
        change: &mut dyn FnMut(Version, &mut [u8]),
    ) -> Result<u32> {
        self.update(commit, block, &mut |bytes| change(Version::Newest, bytes)).map(u32::from)
    }

    /// What the commit of an open handle has of a block: the newest contents, unless the commit after it has changed
    /// them.
    fn read_own(&self, _commit: CommitId, block: BlockNr) -> Result<BlockRef> {
        self.read(block)
    }

    /// As `update` for a block whose old contents are of no interest (just allocated): `contents`
    /// replaces them without a read.
    fn create(&self, commit: CommitId, block: BlockNr, contents: BlockRef) -> Result<bool>;

    /// As `create` for a block that several inodes share, with contents that hold nothing of any yet.
    fn create_each(&self, commit: CommitId, block: BlockNr, contents: BlockRef) -> Result<bool> {
        self.create(commit, block, contents)
    }

    /// What file data may go through the log, by `journal_data`.
    fn data_in_log(&self) -> DataInLog {
        DataInLog::None
    }

    /// As `create`, for a block of file data: these contents are durable with the commit, go to
    /// their place later, and are what `read_data` gives from now on. Only where `data_in_log` says so.
    fn journal_data(&self, _commit: CommitId, _block: BlockNr, _new: NewData) -> Result<bool> {
        Err(Error::Unsupported("file data in the log of this engine".into()))
    }

    /// Whether the log holds, or will hold, a copy of any of these blocks of file data. Such a block
    /// must not be written by `write_data`: a replay would bring the copy back over it (JOJ-8).
    fn holds_data(&self, _start: BlockNr, _blocks: u64) -> bool {
        false
    }

    /// Blocks of file data were freed: what `forget` does for those of them that the log holds.
    fn forget_data(&self, _commit: CommitId, _start: BlockNr, _blocks: u64) -> Result<()> {
        Ok(())
    }

    /// The block was freed and is no longer metadata: it is dropped from the running commit, it
    /// is not written to its place any more, and a replay of earlier commits must not bring it
    /// back (revoke). Its new owner may write it only after `commit` is durable.
    ///
    /// A log has room for so many of these in a commit; handles begin while it has half of it. So one handle
    /// forgets no more than [`FORGOTTEN_AT_ONCE`] blocks besides those that it has credits for. `TooLarge`
    /// where they do more.
    fn forget(&self, commit: CommitId, block: BlockNr) -> Result<()>;

    /// `commit`, which a handle is open in, must not be durable before all data whose `write_data` has returned,
    /// wherever that is not so anyway (`data=writeback`): it takes old contents away that only those replace.
    fn order_data(&self, commit: CommitId) {
        let _ = commit;
    }

    /// Runs `action` once the commit is durable, before those who wait for it are woken. It is
    /// dropped unrun if the engine is poisoned first. It must not wait for a commit.
    fn on_durable(&self, commit: CommitId, action: Box<dyn FnOnce() + Send>);

    /// Makes `commit` (running or older) durable and waits for it. Also makes all data durable
    /// whose `write_data` returned before the call, where it is durable already too.
    fn commit(&self, commit: CommitId) -> Result<()>;

    /// The newest durable commit.
    fn durable(&self) -> CommitId;

    /// The commit that a handle started now would join.
    fn running(&self) -> CommitId;

    /// Makes all data durable whose `write_data` has returned, without a commit.
    fn flush_data(&self) -> Result<()>;

    /// Makes all metadata changes and all written data durable.
    fn sync(&self) -> Result<()>;

    /// Credits that one handle can have at the most.
    fn max_credits(&self) -> u32;

    /// Reads file data; `buf` is a multiple of the block size.
    fn read_data(&self, start: BlockNr, buf: &mut [u8]) -> Result<()>;

    /// Writes file data to its place, from `start` on; each buffer is a multiple of the block size.
    fn write_data(&self, start: BlockNr, bufs: &[IoSlice<'_>]) -> Result<()> {
        self.write_data_as(start, bufs, DataWrite::default())
    }

    /// The same in a way that is chosen. What makes data durable covers it in any.
    fn write_data_as(&self, start: BlockNr, bufs: &[IoSlice<'_>], write: DataWrite) -> Result<()>;

    /// Data that was written to the range is on the device when this returns, though not durable: what makes it so has
    /// less to wait for.
    fn pass_on_data(&self, _start: BlockNr, _blocks: u64) -> Result<()> {
        Ok(())
    }

    /// As `write_data`, for blocks that are in use in every state of the volume and that none has ever
    /// read (tables that are not initialised yet). May be called within a handle.
    fn write_unread(&self, start: BlockNr, bufs: &[IoSlice<'_>]) -> Result<()> {
        self.write_data(start, bufs)
    }

    /// The range holds nothing any more (fstrim, `-o discard`).
    fn discard(&self, start: BlockNr, blocks: u64) -> Result<()>;

    /// Stops all writing for good, with the reason for the log.
    fn poison(&self, why: &str);

    /// `Ok` unless poisoned.
    fn health(&self) -> Result<()>;

    /// Syncs, empties the log, marks the volume clean, ends the engine's threads. Nothing may use
    /// the engine afterwards. On a poisoned engine: ends the threads, leaves the log for recovery.
    fn close(&self) -> Result<()>;

    fn stats(&self) -> EngineStats;

    /// How long each commit took, from its locking to its durability.
    fn commit_times(&self) -> LatencySnapshot {
        LatencySnapshot::default()
    }

    /// The engine as that of a volume with a journal, whose length can change.
    fn journal(&self) -> Option<&JournalEngine> {
        None
    }

    /// How long operations that were to begin had to wait at each commit, until the next one was open.
    fn held_up_times(&self) -> LatencySnapshot {
        LatencySnapshot::default()
    }

    /// How often an operation waited within its handle, for the device or for somebody who did: what a commit
    /// cannot be closed for meanwhile.
    fn waits_in_handles(&self) -> u64 {
        0
    }

    /// The commit that was closed and in which handles are still open, while others begin in the next.
    fn draining(&self) -> Option<CommitId> {
        None
    }

    /// Waits until no handle of an earlier commit than this one, in which the caller has one, is open: for changes of
    /// shared blocks that cannot be made in two versions. The caller holds no lock that is taken within handles.
    fn await_older(&self, _commit: CommitId) -> Result<()> {
        Ok(())
    }

    /// To be held by a thread while it waits for a lock under which others may wait for the device, or works for long:
    /// no commit is closed meanwhile in which it has a handle, so that nobody else is held up for it. `None`
    /// where it has none.
    fn waits(&self) -> Option<Waiting> {
        None
    }

    /// The engine as that of a volume with generations, for its snapshots.
    fn generations(&self) -> Option<&GenerationsEngine> {
        None
    }
}

/// Takes a lock under which others may wait for the device; see [`Engine::waits`].
pub fn lock_within<'a, T>(engine: &dyn Engine, mutex: &'a Mutex<T>) -> MutexGuard<'a, T> {
    mutex.try_lock().unwrap_or_else(|| {
        let _waits = engine.waits();
        mutex.lock()
    })
}

/// Blocks that one handle may forget without a credit for each. The smallest log of mke2fs has room for 15,000
/// in a commit.
pub const FORGOTTEN_AT_ONCE: u32 = 64;

/// A handle of more credits than this is at work for long (ten thousand new files: some hundred milliseconds).
/// Ordinary operations, quotas included, ask for fewer.
const LONG_WORK_CREDITS: u32 = 256;

/// An operation's part of a commit. Dropping it ends the part.
pub struct Handle {
    engine: Arc<dyn Engine>,
    commit: CommitId,
    room: Room,
    /// Blocks that may still be added.
    credits: u32,
    /// Where it is large, the leader alone waits for it, as for one that waits for the device: whoever wants to begin
    /// an operation goes on in the same commit meanwhile.
    long_work: Option<Waiting>,
    /// False only after a `renew` that failed.
    open: bool,
    /// Whether a block was changed through it.
    changed: bool,
}

impl Handle {
    /// Joins the running commit with room for `credits` distinct blocks.
    pub fn begin(engine: &Arc<dyn Engine>, credits: u32) -> Result<Handle> {
        Handle::begin_for(engine, credits, Room::Any)
    }

    /// As `begin`, with what the operation may use of the room that is left.
    pub fn begin_for(engine: &Arc<dyn Engine>, credits: u32, room: Room) -> Result<Handle> {
        let commit = engine.start_for(credits, room)?;
        let mut handle = Handle {
            engine: engine.clone(),
            commit,
            room,
            credits,
            long_work: None,
            open: true,
            changed: false,
        };
        handle.note_long_work();
        handle.before_step();
        Ok(handle)
    }

    fn note_long_work(&mut self) {
        self.long_work = (self.credits > LONG_WORK_CREDITS).then(|| self.engine.waits()).flatten();
    }

    pub fn engine(&self) -> &Arc<dyn Engine> {
        &self.engine
    }

    /// The commit that will make this handle's changes durable.
    pub fn commit_id(&self) -> CommitId {
        self.commit
    }

    pub fn credits(&self) -> u32 {
        self.credits
    }

    /// Whether a block was changed through this handle: what fails after that is half done.
    pub fn has_changed(&self) -> bool {
        self.changed
    }

    /// Makes sure that `credits` blocks may still be added; false where this commit is too full.
    pub fn ensure(&mut self, credits: u32) -> Result<bool> {
        if self.credits >= credits {
            return Ok(true);
        }
        let more = credits - self.credits;
        let extended = self.engine.extend(self.commit, more)?;
        if extended {
            self.credits += more;
        }
        Ok(extended)
    }

    /// Ends this part and begins another, perhaps of a later commit. The caller has left the
    /// volume in a state that stands by itself.
    pub fn renew(&mut self, credits: u32) -> Result<()> {
        self.long_work = None;
        self.engine.stop(self.commit, std::mem::take(&mut self.credits));
        self.open = false;
        self.commit = self.engine.start_for(credits, self.room)?;
        self.open = true;
        self.credits = credits;
        self.note_long_work();
        Ok(())
    }

    /// Newest contents, this handle's changes included.
    pub fn read(&self, block: BlockNr) -> Result<BlockRef> {
        self.engine.read(block)
    }

    /// Changes a block in place; `change` must not call the engine.
    pub fn update<R>(&mut self, block: BlockNr, change: impl FnOnce(&mut [u8]) -> R) -> Result<R> {
        self.before_step();
        let mut change = Some(change);
        let mut result = None;
        let added = self.engine.update(self.commit, block, &mut |bytes| {
            let change = change.take().expect("engine runs a change once");
            result = Some(change(bytes));
        })?;
        self.spend(added.into());
        Ok(result.expect("engine runs every change"))
    }

    /// Changes a block that several inodes share; see [`Engine::update_each`].
    pub fn update_each<R>(
        &mut self,
        block: BlockNr,
        change: impl FnMut(Version, &mut [u8]) -> R,
    ) -> Result<Each<R>> {
        self.update_versions(block, false, change)
    }

    /// The same with another change for each version.
    pub fn update_apart<R>(
        &mut self,
        block: BlockNr,
        change: impl FnMut(Version, &mut [u8]) -> R,
    ) -> Result<Each<R>> {
        self.update_versions(block, true, change)
    }

    fn update_versions<R>(
        &mut self,
        block: BlockNr,
        apart: bool,
        mut change: impl FnMut(Version, &mut [u8]) -> R,
    ) -> Result<Each<R>> {
        self.before_step();
        let (mut newest, mut older) = (None, None);
        let added = self.engine.update_each(self.commit, block, apart, &mut |version, bytes| {
            let result = Some(change(version, bytes));
            match version {
                Version::Newest => newest = result,
                Version::Older => older = result,
            }
        })?;
        self.spend(added);
        Ok(Each { newest: newest.expect("engine runs every change"), older })
    }

    /// What this handle's commit has of a block; see [`Engine::read_own`].
    pub fn read_own(&self, block: BlockNr) -> Result<BlockRef> {
        self.engine.read_own(self.commit, block)
    }

    /// See [`Engine::await_older`].
    pub fn await_older(&self) -> Result<()> {
        self.engine.await_older(self.commit)
    }

    /// Gives a block that several inodes share its first contents; see [`Engine::create_each`].
    pub fn create_each(&mut self, block: BlockNr, contents: impl Into<BlockRef>) -> Result<()> {
        self.before_step();
        let added = self.engine.create_each(self.commit, block, contents.into())?;
        self.spend(added.into());
        Ok(())
    }

    /// For tests that hold an operation back between its changes.
    fn before_step(&self) {
        #[cfg(feature = "faults")]
        crate::fault::before_step();
    }

    /// Gives a newly allocated block its first contents.
    pub fn create(&mut self, block: BlockNr, contents: impl Into<BlockRef>) -> Result<()> {
        self.before_step();
        let added = self.engine.create(self.commit, block, contents.into())?;
        self.spend(added.into());
        Ok(())
    }

    /// Puts contents of a block of file data into the commit; see [`Engine::journal_data`].
    pub fn journal_data(&mut self, block: BlockNr, new: NewData) -> Result<()> {
        let added = self.engine.journal_data(self.commit, block, new)?;
        self.spend(added.into());
        Ok(())
    }

    /// Blocks of file data were freed; see [`Engine::forget_data`].
    pub fn forget_data(&mut self, start: BlockNr, blocks: u64) -> Result<()> {
        self.engine.forget_data(self.commit, start, blocks)
    }

    /// A metadata block was freed; see [`Engine::forget`].
    pub fn forget(&mut self, block: BlockNr) -> Result<()> {
        self.before_step();
        self.engine.forget(self.commit, block)?;
        self.changed = true;
        Ok(())
    }

    /// See [`Engine::order_data`].
    pub fn order_data(&self) {
        self.engine.order_data(self.commit);
    }

    /// Runs `action` when this handle's commit is durable; see [`Engine::on_durable`].
    pub fn on_durable(&self, action: impl FnOnce() + Send + 'static) {
        self.engine.on_durable(self.commit, Box::new(action));
    }

    fn spend(&mut self, added: u32) {
        self.changed = true;
        assert!(self.credits >= added, "operation changed more blocks than it has credits for");
        self.credits -= added;
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        if self.open {
            self.engine.stop(self.commit, self.credits);
        }
    }
}
