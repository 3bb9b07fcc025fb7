//! Reads of the present state under the inode's shared lock, one inode at a time, for callers
//! outside transactions.

use parking_lot::RwLockReadGuard;
use xact_types::{Errno, Error, FileBlock, Ino, Result};

use crate::api::{Attr, DirItem, FileKind, Name, SeekTo};
use crate::live::LiveFs;
use crate::live::inode::cached::{CachedInode, InodeState};

impl LiveFs {
    /// Runs `read` under the inode's shared lock; `ESTALE` if the number is not in use.
    pub(in crate::live) fn with_shared<R>(
        &self,
        ino: Ino,
        read: impl FnOnce(&CachedInode, &InodeState) -> Result<R>,
    ) -> Result<R> {
        self.health.check_served()?;
        let read_locked = || {
            let cached = self.cached_inode(ino)?;
            let state: RwLockReadGuard<'_, InodeState> = cached.state.read();
            if !state.live {
                return Err(Error::Posix(Errno::ESTALE));
            }
            read(&cached, &state)
        };
        self.health.note_corruption(read_locked())
    }

    pub(in crate::live) fn attr_now(&self, ino: Ino) -> Result<Attr> {
        self.with_shared(ino, |cached, state| Ok(self.show_attr(cached, state)))
    }

    pub(in crate::live) fn lookup_now(&self, dir: Ino, name: &Name) -> Result<Attr> {
        loop {
            let entry = self.with_shared(dir, |_, state| {
                self.find_entry(dir, state, name)?.ok_or(Error::Posix(Errno::ENOENT))
            })?;
            match self.attr_now(entry.ino) {
                // The inode was deleted between the two steps: look the name up again.
                Err(Error::Posix(Errno::ESTALE)) if self.still_names(dir, name, entry.ino)? => {
                    let site = xact_types::Site::Inode(dir);
                    return Err(Error::corrupt(site, "a name points at an inode that is not in use"));
                }
                Err(Error::Posix(Errno::ESTALE)) => {}
                result => return result,
            }
        }
    }

    fn still_names(&self, dir: Ino, name: &Name, ino: Ino) -> Result<bool> {
        self.with_shared(dir, |_, state| Ok(self.find_entry(dir, state, name)?.is_some_and(|e| e.ino == ino)))
    }

    pub(in crate::live) fn read_now(
        &self,
        ino: Ino,
        offset: u64,
        len: usize,
        out: &mut Vec<u8>,
    ) -> Result<()> {
        self.with_shared(ino, |cached, state| {
            if state.inode.is_directory() {
                return Err(Error::Posix(Errno::EISDIR));
            }
            if !state.inode.is_regular() {
                return Err(Error::Posix(Errno::EINVAL));
            }
            self.read_data(cached, state, offset, len, out)
        })
    }

    pub(in crate::live) fn list_now(
        &self,
        dir: Ino,
        cookie: u64,
        each: &mut dyn FnMut(DirItem<'_>) -> bool,
    ) -> Result<()> {
        self.with_shared(dir, |_, state| {
            require_dir(state)?;
            if state.inode.links_count() == 0 {
                return Err(Error::Posix(Errno::ENOENT));
            }
            for (own_cookie, name) in [(1, &b"."[..]), (2, b"..")] {
                if cookie < own_cookie {
                    let ino = match own_cookie {
                        1 => Ok(dir),
                        _ => self.dir_parent(dir, state),
                    };
                    let ino = match ino {
                        // Its block is damaged. The listing ends with that error.
                        Err(Error::Corrupt(_)) => continue,
                        ino => ino?,
                    };
                    if !each(DirItem { name, ino, kind: FileKind::Directory, next_cookie: own_cookie }) {
                        return Ok(());
                    }
                }
            }
            self.list_entries(dir, state, cookie, each)
        })
    }

    /// `SEEK_DATA` and `SEEK_HOLE`.
    pub(in crate::live) fn seek_data(
        &self,
        cached: &CachedInode,
        state: &InodeState,
        offset: u64,
        to: SeekTo,
    ) -> Result<u64> {
        if offset >= state.size {
            return Err(Error::Posix(Errno::ENXIO));
        }
        let bs = self.block_bytes();
        let mut at = offset / bs;
        while at * bs < state.size {
            let (data, run) = self.has_data(cached, state, FileBlock(at as u32))?;
            if data == (to == SeekTo::Data) {
                return Ok((at * bs).max(offset).min(state.size));
            }
            at += u64::from(run);
        }
        match to {
            SeekTo::Data => Err(Error::Posix(Errno::ENXIO)),
            SeekTo::Hole => Ok(state.size),
        }
    }
}

pub(in crate::live) fn require_dir(state: &InodeState) -> Result<()> {
    if state.inode.is_directory() { Ok(()) } else { Err(Error::Posix(Errno::ENOTDIR)) }
}
