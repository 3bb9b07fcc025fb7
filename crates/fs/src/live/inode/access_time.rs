//! Access times: when a read sets one, and when that reaches the disk.
//!
//! A read that sets the time changes the inode in memory alone, as a write's times do
//! (`op::inode_ops`): the flusher, a sync, or the next change of the inode takes it along. Nobody
//! is reserved anything about it after a crash. A transaction's reads set none.
//!
//! On a mount, only reads that the kernel does not answer from its own cache come here.

use std::time::{Duration, Instant};

use parking_lot::RwLock;
use xact_layout::inode::{Inode, flag};
use xact_types::{Ino, Timestamp};

use crate::live::LiveFs;

/// When a read sets the access time (mount options of the same names).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum AccessTimes {
    #[default]
    NoAtime,
    /// Where it is not later than that of the last change, or is a day old.
    Relatime,
    StrictAtime,
}

/// How access times are kept.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct AccessOptions {
    pub times: AccessTimes,
    /// Not those of directories (`nodiratime`).
    pub not_of_directories: bool,
    /// Times that reads have set wait for another change of the inode, a sync, the unmount, or a
    /// day (`lazytime`).
    pub lazy: bool,
}

/// The age at which `relatime` sets a time whatever it is, and at which `lazytime` writes one.
const DAY_SECS: i64 = 24 * 60 * 60;
/// Inodes with nothing but a lazy access time that may wait in memory.
const LAZY_MAX: usize = 8192;

impl LiveFs {
    /// The inode was read; to be called without its lock.
    pub(in crate::live) fn note_access(&self, ino: Ino) {
        let options = &self.options.access;
        if options.times == AccessTimes::NoAtime || self.health.check_writable().is_err() {
            return;
        }
        let Some(cached) = self.inodes.peek(ino) else { return };
        let now = Timestamp::now();
        let due = |inode: &Inode| {
            inode.flags() & flag::NOATIME == 0
                && !(options.not_of_directories && inode.is_directory())
                && (options.times == AccessTimes::StrictAtime || is_stale(inode, now))
        };
        if !due(&cached.state.read().inode) {
            return;
        }
        let mut state = RwLock::write_arc(&cached.state);
        // Another thread may have been faster, or have deleted it.
        if !state.live || !due(&state.inode) {
            return;
        }
        // Where there is no room left, it is not worth an error.
        if self.writeback.reserve_inode(&cached).is_err() {
            return;
        }
        state.inode.set_atime(now);
        state.dirty = true;
        let lazy = options.lazy && self.page_cache.dirty_count() < LAZY_MAX;
        let after = if lazy { Duration::from_secs(DAY_SECS as u64) } else { Duration::ZERO };
        self.page_cache.mark_dirty_inode_from(ino, Instant::now() + after);
    }
}

/// `relatime_need_update`.
fn is_stale(inode: &Inode, now: Timestamp) -> bool {
    let atime = inode.atime();
    inode.mtime() >= atime || inode.ctime() >= atime || now.secs - atime.secs >= DAY_SECS
}
