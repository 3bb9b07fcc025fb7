//! The calls for savepoints; [`crate::savepoint`] describes their effect.

use xact_types::Result;

use super::Transaction;
use crate::commit::changes::Changes;
use xact_fs::VersionedFs;

impl<B: VersionedFs> Transaction<B> {
    /// Makes a savepoint at the transaction's present state, like a nested begin. Returns its
    /// number, which is not reused. `EMFILE`, `ENOMEM`: the user has too many savepoints, or too
    /// large ones.
    pub fn savepoint(&self) -> Result<u64> {
        let mut guard = self.inner.write();
        guard.check_active()?;
        let inner = &mut *guard;
        self.make_room_for_copy(inner)?;
        inner.savepoints.make(&inner.overlay, self.base.block_size(), &self.memory.account())
    }

    /// Undoes all changes since a savepoint, and ends it and all later ones, like a nested abort.
    /// Returns the differences, for caches of the view. `Usage` if there is no savepoint with this
    /// number.
    pub fn roll_back(&self, savepoint: u64) -> Result<Changes> {
        let mut guard = self.inner.write();
        guard.check_active()?;
        let inner = &mut *guard;
        let saved = inner.savepoints.take(savepoint)?;
        let changes = inner.overlay.roll_back(saved, self.base.link_max());
        self.charge_memory(inner);
        inner.forget_writes();
        Ok(changes)
    }

    /// Ends a savepoint and all later ones, and keeps the changes since, like a nested commit.
    /// `Usage` if there is no savepoint with this number.
    pub fn release_savepoint(&self, savepoint: u64) -> Result<()> {
        let mut inner = self.inner.write();
        inner.check_active()?;
        inner.savepoints.take(savepoint)?;
        self.charge_memory(&inner);
        Ok(())
    }
}
