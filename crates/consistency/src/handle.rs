//! Handles: an operation's part of a commit, through which it changes blocks.

use std::sync::Arc;

use xact_types::{BlockNr, CommitId, Result};

use crate::core::block::{BlockRef, NewData, PerVersion, Version};
use crate::core::waits::Waiting;
use crate::engine::Engine;
use crate::mechanism::ReserveClass;

/// A handle with more credits than this works for long (ten thousand new files take some hundred
/// milliseconds). Ordinary operations, quotas included, ask for fewer.
const LONG_WORK_CREDITS: u32 = 256;

/// An operation's part of a commit. Dropping it ends the part.
pub struct Handle {
    engine: Arc<Engine>,
    commit: CommitId,
    class: ReserveClass,
    /// Blocks that may still be added.
    credits: u32,
    /// For a large handle: only the leader waits for it, as for one that waits for the device.
    /// Other operations begin in the same commit until it ends.
    long_work: Option<Waiting>,
    /// False only after a `renew` that failed.
    open: bool,
    /// Whether a block was changed through it.
    changed: bool,
    /// The batch in which its changes become durable ahead of the commit.
    ahead: Option<u64>,
    /// Blocks that `update` has changed, while the caller lists them.
    updates: Option<Vec<BlockNr>>,
}

impl Handle {
    /// Joins the running commit with credits for `credits` distinct blocks.
    pub fn begin(engine: &Arc<Engine>, credits: u32) -> Result<Handle> {
        Handle::begin_for(engine, credits, ReserveClass::Any)
    }

    /// As `begin`, with the class of space that the operation may use.
    pub fn begin_for(engine: &Arc<Engine>, credits: u32, class: ReserveClass) -> Result<Handle> {
        let commit = engine.start_for(credits, class)?;
        Ok(Handle::begun(engine, (commit, None), credits, class))
    }

    /// As `begin_for`, for an operation that depends on no other change of the running commit,
    /// except those of operations ahead. Its changes can become durable ahead of the commit, if
    /// [`Self::ahead`] says so. `waits`: for the commit before to be durable, if that is needed.
    pub fn begin_ahead(
        engine: &Arc<Engine>,
        credits: u32,
        class: ReserveClass,
        waits: bool,
    ) -> Result<Handle> {
        Ok(Handle::begun(engine, engine.start_ahead(credits, class, waits)?, credits, class))
    }

    fn begun(
        engine: &Arc<Engine>,
        (commit, ahead): (CommitId, Option<u64>),
        credits: u32,
        class: ReserveClass,
    ) -> Handle {
        let mut handle = Handle {
            engine: engine.clone(),
            commit,
            class,
            credits,
            long_work: None,
            open: true,
            changed: false,
            ahead,
            updates: None,
        };
        handle.note_long_work();
        handle.before_step();
        handle
    }

    fn note_long_work(&mut self) {
        self.long_work = (self.credits > LONG_WORK_CREDITS).then(|| self.engine.waits()).flatten();
    }

    pub fn engine(&self) -> &Arc<Engine> {
        &self.engine
    }

    /// The commit that will make this handle's changes durable.
    pub fn commit_id(&self) -> CommitId {
        self.commit
    }

    /// The batch that [`Engine::commit_ahead`] makes durable, if all changes so far are in it.
    pub fn ahead(&self) -> Option<u64> {
        self.ahead
    }

    /// The changes of this handle do not go ahead of the commit after all.
    pub fn fall_back(&mut self) {
        if self.ahead.take().is_some() {
            self.engine.fall_back();
        }
    }

    /// Makes a change ahead of the commit that the newest contents have already. `change` returns
    /// false for contents that cannot have it. False if the change was not made: then this handle's
    /// changes do not go ahead of the commit. Only for a handle with [`Self::ahead`].
    pub fn catch_up(&mut self, block: BlockNr, mut change: impl FnMut(&mut [u8]) -> bool) -> Result<bool> {
        self.before_change()?;
        let made = self.ahead.is_some() && self.engine.catch_up(self.commit, block, &mut change)?;
        if !made {
            self.fall_back();
        }
        Ok(made)
    }

    /// Lets contents of file data in these blocks go ahead, if they are part of this commit.
    pub fn catch_up_data(&self, start: BlockNr, blocks: u64) {
        if self.ahead.is_some() {
            self.engine.catch_up_data(self.commit, start, blocks);
        }
    }

    /// The contents of a block as they are or will be durable ahead of this handle's commit; `None`
    /// if they are not known.
    pub fn contents_ahead(&self, block: BlockNr) -> Result<Option<BlockRef>> {
        self.engine.contents_ahead(self.commit, block)
    }

    fn note_ahead(&self, block: BlockNr) {
        if self.ahead.is_some() {
            self.engine.note_ahead(self.commit, block);
        }
    }

    pub fn credits(&self) -> u32 {
        self.credits
    }

    /// Whether a block was changed through this handle. An operation that fails after that is half
    /// done.
    pub fn has_changed(&self) -> bool {
        self.changed
    }

    /// Makes sure that `credits` blocks may still be added; false if this commit is too full.
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

    /// Ends this part and begins another, perhaps of a later commit. The caller has left the volume
    /// in a consistent state.
    pub fn renew(&mut self, credits: u32) -> Result<()> {
        self.long_work = None;
        // The next change may be part of another commit.
        self.fall_back();
        self.engine.stop(self.commit, std::mem::take(&mut self.credits));
        self.open = false;
        self.commit = self.engine.start_for(credits, self.class)?;
        self.open = true;
        self.credits = credits;
        self.note_long_work();
        Ok(())
    }

    /// Newest contents, with this handle's changes.
    pub fn read(&self, block: BlockNr) -> Result<BlockRef> {
        self.engine.read(block)
    }

    /// From now on, lists the blocks that [`Self::update`] changes.
    pub fn list_updates(&mut self) {
        self.updates = Some(Vec::new());
    }

    /// Ends the list, and returns it.
    pub fn take_updates(&mut self) -> Vec<BlockNr> {
        self.updates.take().unwrap_or_default()
    }

    /// Changes a block in place; `change` must not call the engine.
    pub fn update<R>(&mut self, block: BlockNr, change: impl FnOnce(&mut [u8]) -> R) -> Result<R> {
        self.before_change()?;
        let mut change = Some(change);
        let mut result = None;
        if let Some(updates) = &mut self.updates {
            updates.push(block);
        }
        let added = self.engine.update(self.commit, block, &mut |bytes| {
            let change = change.take().expect("engine runs a change once");
            result = Some(change(bytes));
        })?;
        self.spend(added.into());
        self.note_ahead(block);
        Ok(result.expect("engine runs every change"))
    }

    /// Changes a block that several inodes share; see [`Engine::update_shared`].
    pub fn update_shared<R>(
        &mut self,
        block: BlockNr,
        change: impl FnMut(Version, &mut [u8]) -> R,
    ) -> Result<PerVersion<R>> {
        self.update_versions(block, false, change)
    }

    /// The same, with a different change for each version.
    pub fn update_per_version<R>(
        &mut self,
        block: BlockNr,
        change: impl FnMut(Version, &mut [u8]) -> R,
    ) -> Result<PerVersion<R>> {
        self.update_versions(block, true, change)
    }

    fn update_versions<R>(
        &mut self,
        block: BlockNr,
        per_version: bool,
        mut change: impl FnMut(Version, &mut [u8]) -> R,
    ) -> Result<PerVersion<R>> {
        self.before_change()?;
        if per_version {
            self.fall_back();
        }
        let (mut newest, mut draining, mut ahead) = (None, None, None);
        let mut note = |version, bytes: &mut [u8]| {
            let result = Some(change(version, bytes));
            match version {
                Version::Newest => newest = result,
                Version::Draining => draining = result,
                Version::Ahead => ahead = result,
            }
        };
        let added = match self.ahead {
            Some(_) => self.engine.update_shared_ahead(self.commit, block, &mut note)?,
            None => self.engine.update_shared(self.commit, block, per_version, &mut note)?,
        };
        self.spend(added);
        Ok(PerVersion { newest: newest.expect("engine runs every change"), draining, ahead })
    }

    /// The contents of a block before this handle's commit; see [`Engine::base`].
    pub fn base(&self, block: BlockNr) -> Option<BlockRef> {
        self.engine.base(self.commit, block)
    }

    /// Lets this handle's commit leave out a block; see [`Engine::leave_out`].
    pub fn leave_out(&mut self, block: BlockNr) -> bool {
        self.engine.leave_out(self.commit, block)
    }

    /// The contents of a block in this handle's commit; see [`Engine::read_own`].
    pub fn read_own(&self, block: BlockNr) -> Result<BlockRef> {
        self.engine.read_own(self.commit, block)
    }

    /// See [`Engine::await_drained`].
    pub fn await_drained(&self) -> Result<()> {
        self.engine.await_drained(self.commit)
    }

    /// Gives a block that several inodes share its first contents; see [`Engine::create_shared`].
    pub fn create_shared(&mut self, block: BlockNr, contents: impl Into<BlockRef>) -> Result<()> {
        self.before_change()?;
        self.fall_back();
        let added = self.engine.create_shared(self.commit, block, contents.into())?;
        self.spend(added.into());
        Ok(())
    }

    /// For tests that stall an operation between its changes.
    fn before_step(&self) {
        #[cfg(feature = "faults")]
        crate::fault::before_step();
    }

    /// The same before a change, and for tests in which a change fails.
    fn before_change(&self) -> Result<()> {
        self.before_step();
        #[cfg(feature = "faults")]
        crate::test_engine::before_change()?;
        Ok(())
    }

    /// Gives a newly allocated block its first contents.
    pub fn create(&mut self, block: BlockNr, contents: impl Into<BlockRef>) -> Result<()> {
        self.before_change()?;
        let added = self.engine.create(self.commit, block, contents.into())?;
        self.spend(added.into());
        self.note_ahead(block);
        Ok(())
    }

    /// Puts contents of a block of file data into the commit; see [`Engine::journal_data`].
    pub fn journal_data(&mut self, block: BlockNr, new: NewData) -> Result<()> {
        let added = self.engine.journal_data(self.commit, block, new)?;
        self.spend(added.into());
        self.note_ahead(block);
        Ok(())
    }

    /// Puts contents of a new block of file data into its place with the commit; see
    /// [`Engine::defer_data`].
    pub fn defer_data(&mut self, block: BlockNr, contents: BlockRef) -> Result<()> {
        self.engine.defer_data(self.commit, block, contents)
    }

    /// Blocks of file data were freed; see [`Engine::forget_data`].
    pub fn forget_data(&mut self, start: BlockNr, blocks: u64) -> Result<()> {
        self.fall_back();
        self.engine.forget_data(self.commit, start, blocks)
    }

    /// A metadata block was freed; see [`Engine::forget`].
    pub fn forget(&mut self, block: BlockNr) -> Result<()> {
        self.before_change()?;
        self.fall_back();
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
        if self.ahead.is_some() {
            // It frees something.
            self.engine.break_ahead();
        }
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
        if self.ahead.is_some() {
            self.engine.end_ahead();
        }
        if self.open {
            self.engine.stop(self.commit, self.credits);
        }
    }
}
