//! The locks of an operation.

use parking_lot::RwLock;
use xact_types::{Errno, Error, Ino, Result};

use super::{Locked, Operation};

impl Operation<'_> {
    /// Locks an inode of the lock hint; called in rising order.
    pub(super) fn lock(&mut self, ino: Ino) -> Result<()> {
        let cached = self.fs.cached_inode(ino)?;
        let state = RwLock::write_arc(&cached.state);
        self.locked.insert(ino, Locked { cached, state });
        Ok(())
    }

    /// The inode's state; locks the inode if it is not yet locked. `ESTALE` if it is not in use.
    pub(in crate::live) fn state(&mut self, ino: Ino) -> Result<&mut Locked> {
        let locked = self.any_state(ino)?;
        if !locked.state.live {
            return Err(Error::Posix(Errno::ESTALE));
        }
        Ok(locked)
    }

    /// As [`Self::state`], but also for an inode that is not in use.
    pub(in crate::live) fn any_state(&mut self, ino: Ino) -> Result<&mut Locked> {
        if !self.locked.contains_key(&ino) {
            self.lock_later(ino)?;
        }
        Ok(self.locked.get_mut(&ino).expect("locked above"))
    }

    /// Locks an inode that was not in the hint.
    fn lock_later(&mut self, ino: Ino) -> Result<()> {
        // Another operation may have changed the inode in a later commit than this one's.
        assert!(self.handle.is_none(), "an operation met a new inode after its handle began");
        let cached = self.fs.cached_inode(ino)?;
        let above_all = self.locked.last_key_value().is_none_or(|(last, _)| *last < ino);
        let guard = if above_all {
            Some(RwLock::write_arc(&cached.state))
        } else {
            RwLock::try_write_arc(&cached.state)
        };
        match guard {
            Some(state) => {
                self.locked.insert(ino, Locked { cached, state });
                Ok(())
            }
            None => {
                self.missing.insert(ino);
                // No caller sees this error: `run` checks `missing` first.
                Err(Error::Posix(Errno::EAGAIN))
            }
        }
    }

    /// Locks the inode of a new number, before the operation's handle begins. A caller with a stale
    /// number may hold that lock, and wait for locks of this operation, so the lock is only tried.
    pub fn lock_new(&mut self, ino: Ino) -> Result<()> {
        if self.locked.contains_key(&ino) {
            return Ok(());
        }
        let cached = self.fs.inodes.get_free(ino);
        match RwLock::try_write_arc(&cached.state) {
            Some(state) => {
                self.locked.insert(ino, Locked { cached, state });
                Ok(())
            }
            None => {
                self.number_is_held = true;
                // No caller sees this error, as in `lock_later`.
                Err(Error::Posix(Errno::EAGAIN))
            }
        }
    }
}
