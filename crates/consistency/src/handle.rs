//! Handles: an operation's part of a commit, through which it changes blocks.

use std::sync::Arc;

use xact_types::{BlockNr, CommitId, Result};

use crate::core::block::{BlockRef, NewData, PerVersion, Version};
use crate::core::waits::Waiting;
use crate::engine::Engine;
use crate::mechanism::ReserveClass;

/// Blocks that one handle may forget without a credit for each. The smallest log of mke2fs takes
/// 15,000 in a commit.
pub const FORGOTTEN_AT_ONCE: u32 = 64;

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
}

impl Handle {
    /// Joins the running commit with credits for `credits` distinct blocks.
    pub fn begin(engine: &Arc<Engine>, credits: u32) -> Result<Handle> {
        Handle::begin_for(engine, credits, ReserveClass::Any)
    }

    /// As `begin`, with the class of space that the operation may use.
    pub fn begin_for(engine: &Arc<Engine>, credits: u32, class: ReserveClass) -> Result<Handle> {
        let commit = engine.start_for(credits, class)?;
        let mut handle = Handle {
            engine: engine.clone(),
            commit,
            class,
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

    pub fn engine(&self) -> &Arc<Engine> {
        &self.engine
    }

    /// The commit that will make this handle's changes durable.
    pub fn commit_id(&self) -> CommitId {
        self.commit
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

    /// Changes a block in place; `change` must not call the engine.
    pub fn update<R>(&mut self, block: BlockNr, change: impl FnOnce(&mut [u8]) -> R) -> Result<R> {
        self.before_change()?;
        let mut change = Some(change);
        let mut result = None;
        let added = self.engine.update(self.commit, block, &mut |bytes| {
            let change = change.take().expect("engine runs a change once");
            result = Some(change(bytes));
        })?;
        self.spend(added.into());
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
        let (mut newest, mut draining) = (None, None);
        let added = self.engine.update_shared(self.commit, block, per_version, &mut |version, bytes| {
            let result = Some(change(version, bytes));
            match version {
                Version::Newest => newest = result,
                Version::Draining => draining = result,
            }
        })?;
        self.spend(added);
        Ok(PerVersion { newest: newest.expect("engine runs every change"), draining })
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
        self.before_change()?;
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
