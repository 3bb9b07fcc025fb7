//! fsync and fdatasync.

use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Instant;

use xact_consistency::Fault;
use xact_types::Result;

use super::{Scope, WritebackRequest};
use crate::live::LiveFs;
use crate::live::inode::cached::{CachedInode, InodeState};

impl LiveFs {
    /// `fsync` and `fdatasync`.
    pub(in crate::live) fn sync_inode(&self, cached: &Arc<CachedInode>, data_only: bool) -> Result<()> {
        let began = Instant::now();
        self.make_durable(cached, data_only)?;
        self.writeback.sync_times.add(began.elapsed());
        Ok(())
    }

    fn make_durable(&self, cached: &Arc<CachedInode>, data_only: bool) -> Result<()> {
        let scope = if data_only { Scope::Data } else { Scope::Inode };
        let how = WritebackRequest { scope, synced: true };
        self.catch_up(cached)?;
        self.write_back(cached, how)?;
        let (last_commit, batch) = {
            let state = cached.state.read();
            (how.awaited(&state), self.goes_ahead(&state).then_some(state.last_batch))
        };
        // Read before the flush: data that is written during it waits for the next one.
        let placed = cached.placed.load(SeqCst);
        if last_commit > self.engine.durable() {
            match batch {
                Some(batch) => self.engine.commit_ahead(last_commit, batch)?,
                None => self.engine.commit(last_commit)?,
            }
        } else if cached.placed_durable.load(SeqCst) < placed {
            self.engine.flush_data()?;
        }
        cached.placed_durable.fetch_max(placed, SeqCst);
        Ok(())
    }

    /// Whether all changes of an inode that are not durable can be so without the rest of their
    /// commit: since the last durable commit, write-back alone has changed the inode, with its data
    /// and blocks, and has gone ahead. So its names and the blocks that it had are durable. No
    /// folder above it has moved since.
    pub(super) fn goes_ahead(&self, state: &InodeState) -> bool {
        let durable = self.engine.durable();
        let is_alone =
            state.last_whole_commit <= durable || self.options.faults.has(Fault::AheadDespiteOthers);
        is_alone && state.inode.is_regular() && self.writeback.moved_folder() <= durable
    }
}
