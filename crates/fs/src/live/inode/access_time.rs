//! Access times: when a read sets one, and when it reaches the disk.
//!
//! A read that sets the time changes the inode in memory only, as a write's times do
//! (`op::inode_ops`): the flusher, a sync, or the next change of the inode writes it. A crash may
//! lose it. A transaction's reads set no access times.
//!
//! On a mount, reads that the kernel answers from its own cache do not get here.

use std::time::{Duration, Instant};

use parking_lot::RwLock;
use xact_layout::inode::{Inode, flag};
use xact_types::{Ino, Timestamp};

use crate::live::LiveFs;

/// The rule by which a read sets the access time (mount options of the same names).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum AccessTimes {
    #[default]
    NoAtime,
    /// If it is not later than the time of the last change, or is a day old.
    Relatime,
    StrictAtime,
}

/// Options for access times.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct AccessOptions {
    pub times: AccessTimes,
    /// Reads of directories set no times (`nodiratime`).
    pub skip_directories: bool,
    /// Times set by reads are written with another change of the inode, by a sync or the unmount,
    /// or after a day (`lazytime`).
    pub lazy: bool,
}

/// Age at which `relatime` always sets a time, and at which `lazytime` writes one.
const DAY_SECS: i64 = 24 * 60 * 60;
/// Maximum number of inodes that may be dirty with a lazy access time only.
const LAZY_MAX: usize = 8192;

impl LiveFs {
    /// Sets the access time of an inode that was read, if due; called without its lock.
    pub(in crate::live) fn note_access(&self, ino: Ino) {
        let options = &self.options.access;
        if options.times == AccessTimes::NoAtime || self.health.check_writable().is_err() {
            return;
        }
        let Some(cached) = self.inodes.peek(ino) else { return };
        let now = Timestamp::now();
        let due = |inode: &Inode| {
            inode.flags() & flag::NOATIME == 0
                && !(options.skip_directories && inode.is_directory())
                && (options.times == AccessTimes::StrictAtime || is_stale(inode, now))
        };
        if !due(&cached.state.read().inode) {
            return;
        }
        let mut state = RwLock::write_arc(&cached.state);
        // Another thread may have set the time, or deleted the inode.
        if !state.live || !due(&state.inode) {
            return;
        }
        // If no space is left, the access time is not worth an error.
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
