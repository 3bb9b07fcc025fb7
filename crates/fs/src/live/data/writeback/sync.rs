//! fsync and fdatasync.

use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Instant;

use xact_types::Result;

use super::{Scope, WritebackRequest};
use crate::live::LiveFs;
use crate::live::inode::cached::CachedInode;

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
        self.write_back(cached, how)?;
        let last_commit = how.awaited(&cached.state.read());
        // Read before the flush: data that is written during it waits for the next one.
        let placed = cached.placed.load(SeqCst);
        if last_commit > self.engine.durable() {
            self.engine.commit(last_commit)?;
        } else if cached.placed_durable.load(SeqCst) < placed {
            self.engine.flush_data()?;
        }
        cached.placed_durable.fetch_max(placed, SeqCst);
        Ok(())
    }
}
