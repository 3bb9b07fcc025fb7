//! Orphan clean-up when a volume is opened for writing.
//!
//! The orphan list names inodes whose deletion or truncation a crash interrupted. Clean-up goes
//! through `delete` and `data::remove`, so a crash during it leaves the rest of the list for the
//! next one.

use parking_lot::RwLock;
use xact_types::{FileBlock, Result};

use crate::live::LiveFs;
use crate::live::op::UnfinishedRemoval;

impl LiveFs {
    /// Finishes the deletions and truncations that a crash interrupted (`ext4_orphan_cleanup`).
    pub(in crate::live) fn clean_up_orphans(&self) -> Result<()> {
        let orphans = self.orphans.list();
        if !orphans.is_empty() {
            self.allocator.read_groups()?;
        }
        for ino in orphans {
            let cached = self.cached_inode(ino)?;
            let mut state = RwLock::write_arc(&cached.state);
            if !state.live {
                // The orphan chain goes through the inode's own bytes, so it was in use.
                state.live = true;
            }
            if state.inode.links_count() == 0 {
                self.delete(&cached, &mut state)?;
            } else {
                let first = state.inode.size().div_ceil(self.block_bytes());
                let first = FileBlock(u32::try_from(first).unwrap_or(u32::MAX));
                let rest = UnfinishedRemoval { ino, first, past: FileBlock(u32::MAX), hold: None };
                self.finish_removal(&cached, &mut state, &rest)?;
            }
        }
        Ok(())
    }
}
