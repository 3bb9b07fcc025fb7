//! The calls of savepoints; what they undo is in [`crate::savepoint`].

use xact_types::Result;

use super::Transaction;
use crate::commit::changes::Changes;
use xact_fs::VersionedFs;

impl<B: VersionedFs> Transaction<B> {
    /// Marks the state of the transaction as it is now, to go back to; a begin within it. Returns
    /// the savepoint's number, which is not given again. `EMFILE`, `ENOMEM`: its user has too many,
    /// or too large ones.
    pub fn savepoint(&self) -> Result<u64> {
        let mut guard = self.inner.write();
        guard.check_active()?;
        let inner = &mut *guard;
        self.make_room_for_copy(inner)?;
        inner.savepoints.make(&inner.overlay, self.base.block_size(), &self.memory.account())
    }

    /// Undoes everything since a savepoint, which is gone with all later ones: the inner part is
    /// aborted. Returns what differs now, for those who cache the view. `Usage`: there is none of
    /// this number.
    pub fn roll_back(&self, savepoint: u64) -> Result<Changes> {
        let mut guard = self.inner.write();
        guard.check_active()?;
        let inner = &mut *guard;
        let saved = inner.savepoints.take(savepoint)?;
        let changes = inner.overlay.roll_back(saved, self.base.link_max());
        self.charge_memory(inner);
        Ok(changes)
    }

    /// Makes what was done since a savepoint part of what is around it; the savepoint is gone with
    /// all later ones. `Usage`: there is none of this number.
    pub fn release_savepoint(&self, savepoint: u64) -> Result<()> {
        let mut inner = self.inner.write();
        inner.check_active()?;
        inner.savepoints.take(savepoint)?;
        self.charge_memory(&inner);
        Ok(())
    }
}
