//! Reads of the base under the inode's shared lock, for callers outside of any transaction: the
//! present state, one inode at a time.

use parking_lot::RwLockReadGuard;
use xact_types::{Errno, Error, FileBlock, Ino, Result};

use super::Base;
use super::cell::{Cell, State};
use crate::api::{Attr, DirItem, FileKind, Name, SeekTo};

impl Base {
    /// Runs `read` under the inode's shared lock; `ESTALE` where the number is not in use.
    pub(super) fn with_shared<R>(
        &self,
        ino: Ino,
        read: impl FnOnce(&Cell, &State) -> Result<R>,
    ) -> Result<R> {
        self.check_served()?;
        let read_locked = || {
            let cell = self.cell(ino)?;
            let state: RwLockReadGuard<'_, State> = cell.state.read();
            if !state.live {
                return Err(Error::Posix(Errno::ESTALE));
            }
            read(&cell, &state)
        };
        self.judged(read_locked())
    }

    pub(super) fn attr_now(&self, ino: Ino) -> Result<Attr> {
        self.with_shared(ino, |cell, state| Ok(self.show_attr(cell, state)))
    }

    pub(super) fn lookup_now(&self, dir: Ino, name: &Name) -> Result<Attr> {
        loop {
            let entry = self.with_shared(dir, |_, state| {
                self.find_entry(dir, state, name)?.ok_or(Error::Posix(Errno::ENOENT))
            })?;
            match self.attr_now(entry.ino) {
                // Unlinked and gone between the two steps: look again.
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

    pub(super) fn read_now(&self, ino: Ino, offset: u64, len: usize, out: &mut Vec<u8>) -> Result<()> {
        self.with_shared(ino, |cell, state| {
            if state.inode.is_directory() {
                return Err(Error::Posix(Errno::EISDIR));
            }
            if !state.inode.is_regular() {
                return Err(Error::Posix(Errno::EINVAL));
            }
            self.read_data(cell, state, offset, len, out)
        })
    }

    pub(super) fn list_now(
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
                    let ino = if own_cookie == 1 { dir } else { self.dir_parent(dir, state)? };
                    if !each(DirItem { name, ino, kind: FileKind::Directory, next_cookie: own_cookie }) {
                        return Ok(());
                    }
                }
            }
            self.list_entries(dir, state, cookie, each)
        })
    }

    /// `SEEK_DATA` and `SEEK_HOLE`.
    pub(super) fn seek_data(&self, cell: &Cell, state: &State, offset: u64, to: SeekTo) -> Result<u64> {
        if offset >= state.size {
            return Err(Error::Posix(Errno::ENXIO));
        }
        let bs = self.block_bytes();
        let mut at = offset / bs;
        while at * bs < state.size {
            let (data, run) = self.has_data(cell, state, FileBlock(at as u32))?;
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

pub(super) fn require_dir(state: &State) -> Result<()> {
    if state.inode.is_directory() { Ok(()) } else { Err(Error::Posix(Errno::ENOTDIR)) }
}
