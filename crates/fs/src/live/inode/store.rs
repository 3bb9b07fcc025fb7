//! Stores an inode in the inode table, within a handle.

use xact_consistency::{Fault, Handle};
use xact_types::Result;

use super::cached::{CachedInode, InodeState};
use crate::live::LiveFs;

impl LiveFs {
    /// Stores the inode, updates its quota charge, and records the commit that carries both.
    pub(in crate::live) fn store_inode(
        &self,
        handle: &mut Handle,
        cached: &CachedInode,
        state: &mut InodeState,
    ) -> Result<()> {
        self.store_times(handle, cached, state)?;
        state.last_data_commit = state.last_commit;
        Ok(())
    }

    /// As [`Self::store_inode`], if only times have changed since it was stored.
    pub(in crate::live) fn store_times(
        &self,
        handle: &mut Handle,
        cached: &CachedInode,
        state: &mut InodeState,
    ) -> Result<()> {
        if self.options.faults.has(Fault::SizeBeforeData) {
            let size = state.size;
            state.inode.set_size(size);
        }
        self.table.write(handle, cached.ino, &state.inode)?;
        if self.quotas.is_on() {
            let charge = self.quotas.charge_of(cached.ino, &state.inode);
            self.quotas.transfer(handle, &state.charged, &charge)?;
            state.charged = charge;
        }
        state.note_change(handle);
        state.dirty = state.inode.size() != state.size;
        Ok(())
    }
}
