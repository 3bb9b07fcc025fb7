//! What the engines do alike, written once.
//!
//! Each engine is a handle on something that its callers and its threads share: a volume, the
//! pipeline of commits, and the metadata on its way through them. What follows from these three alone
//! is here: the background thread, the poisoning, and most of the trait `Engine`.

use std::time::Duration;

use xact_types::{CommitId, Error, Result};

use crate::core::dirty_blocks::Metadata;
use crate::core::pipeline::Pipeline;
use crate::core::volume::Volume;

/// What an engine's callers and its threads share.
pub(crate) trait Shared: Send + Sync + 'static {
    fn volume(&self) -> &Volume;
    fn pipeline(&self) -> &Pipeline;
    fn metadata(&self) -> &Metadata;
    fn is_read_only(&self) -> bool;
    /// Age at which a commit is written without being asked for.
    fn commit_interval(&self) -> Duration;
    /// See [`crate::Engine::commit`].
    fn commit(&self, commit: CommitId) -> Result<()>;

    /// The same, not only for those who wait for it: where an engine has a shorter way for them, without that.
    fn commit_wholly(&self, commit: CommitId) -> Result<()> {
        self.commit(commit)
    }

    /// Body of the thread that commits what has become old or crowded; ends with the pipeline.
    fn commit_when_due(&self) {
        while let Some(due) = self.pipeline().wait_due(self.commit_interval()) {
            if !due.crowded && self.metadata().is_unchanged() && !self.pipeline().has_actions() {
                self.pipeline().is_young_again(due.commit);
                continue;
            }
            // A failure has poisoned the volume, which ends the loop.
            let _ = self.commit_wholly(due.commit);
        }
    }

    /// Any failure of the engine's own work leaves it in an unknown state: poison.
    fn guard<T>(&self, result: Result<T>) -> Result<T> {
        if let Err(error) = &result {
            self.poison(&error.to_string());
        }
        result
    }

    fn poison(&self, why: &str) {
        self.volume().poison.set(why);
        self.pipeline().give_up();
    }

    fn check_open(&self) -> Result<()> {
        if self.is_read_only() { Err(Error::ReadOnly) } else { Ok(()) }
    }
}

/// `Shared`'s access to the fields that every implementation has under the same names.
macro_rules! shared_fields {
    () => {
        fn volume(&self) -> &$crate::core::volume::Volume {
            &self.volume
        }

        fn pipeline(&self) -> &$crate::core::pipeline::Pipeline {
            &self.pipeline
        }

        fn metadata(&self) -> &$crate::core::dirty_blocks::Metadata {
            &self.metadata
        }

        fn is_read_only(&self) -> bool {
            self.read_only
        }

        fn commit_interval(&self) -> std::time::Duration {
            self.commit_interval
        }
    };
}

/// The methods of `Engine` that are the same in every engine; `$shared` is its field with the `Shared`.
macro_rules! engine_of_shared {
    ($shared:ident) => {
        fn block_size(&self) -> usize {
            self.$shared.volume.block_size
        }

        fn is_read_only(&self) -> bool {
            self.$shared.read_only
        }

        fn read(&self, block: BlockNr) -> Result<BlockRef> {
            self.$shared.metadata.read(block)
        }

        fn extend(&self, commit: CommitId, more: u32) -> Result<bool> {
            self.$shared.pipeline.extend(commit, more)
        }

        fn stop(&self, commit: CommitId, unused: u32) {
            self.$shared.pipeline.stop(commit, unused);
        }

        fn update(
            &self,
            commit: CommitId,
            block: BlockNr,
            change: &mut dyn FnMut(&mut [u8]),
        ) -> Result<bool> {
            self.$shared.metadata.update(commit, block, change)
        }

        fn update_each(
            &self,
            commit: CommitId,
            block: BlockNr,
            apart: bool,
            change: &mut dyn FnMut(crate::Version, &mut [u8]),
        ) -> Result<u32> {
            let added = self.$shared.metadata.update_each(commit, block, apart, change)?;
            self.$shared.pipeline.hand_on(commit, added.next);
            Ok(added.own + added.next)
        }

        fn read_own(&self, commit: CommitId, block: BlockNr) -> Result<BlockRef> {
            self.$shared.metadata.read_own(commit, block)
        }

        fn create(&self, commit: CommitId, block: BlockNr, contents: BlockRef) -> Result<bool> {
            self.$shared.metadata.create(commit, block, contents)
        }

        fn create_each(&self, commit: CommitId, block: BlockNr, contents: BlockRef) -> Result<bool> {
            self.$shared.metadata.create_each(commit, block, contents)
        }

        fn forget(&self, commit: CommitId, block: BlockNr) -> Result<()> {
            self.$shared.metadata.forget(commit, block)
        }

        fn commit(&self, commit: CommitId) -> Result<()> {
            self.$shared.commit(commit)
        }

        fn order_data(&self, commit: CommitId) {
            self.$shared.pipeline.order_data(commit);
        }

        fn durable(&self) -> CommitId {
            self.$shared.pipeline.durable()
        }

        fn running(&self) -> CommitId {
            self.$shared.pipeline.running()
        }

        fn sync(&self) -> Result<()> {
            if self.$shared.read_only {
                return Ok(());
            }
            self.$shared.commit_wholly(self.$shared.pipeline.running())
        }

        fn max_credits(&self) -> u32 {
            self.$shared.pipeline.max_alone()
        }

        fn poison(&self, why: &str) {
            self.$shared.poison(why);
        }

        fn pass_on_data(&self, start: BlockNr, blocks: u64) -> Result<()> {
            self.$shared.guard(self.$shared.volume.pass_on(start, blocks))
        }

        fn health(&self) -> Result<()> {
            self.$shared.volume.poison.check()
        }

        fn commit_times(&self) -> xact_types::LatencySnapshot {
            self.$shared.pipeline.times.snapshot()
        }

        fn held_up_times(&self) -> xact_types::LatencySnapshot {
            self.$shared.pipeline.held_up.snapshot()
        }

        fn waits_in_handles(&self) -> u64 {
            self.$shared.pipeline.waits_in_handles()
        }

        fn draining(&self) -> Option<CommitId> {
            let commit = self.$shared.metadata.draining();
            (commit.0 > 0).then_some(commit)
        }

        fn await_older(&self, commit: CommitId) -> Result<()> {
            self.$shared.pipeline.await_older(commit)
        }

        fn waits(&self) -> Option<crate::Waiting> {
            self.$shared.pipeline.waits()
        }
    };
}

pub(crate) use {engine_of_shared, shared_fields};
