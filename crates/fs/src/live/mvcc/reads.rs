//! Reads of the volume as of an instant, for the private views of transactions.
//!
//! Each read takes the inode's lock shared for its own duration; `mvcc::stamps` explains why that
//! is enough for a consistent view of one instant. The last two calls report changes since that
//! instant, for transactions that check for conflicts before their commit.

use std::ops::Range;
use std::sync::Arc;

use xact_types::{Errno, Error, FileBlock, Ino, Result};

use crate::api::{Attr, DirItem, Entry, FileKind, Name, SeekTo};
use crate::live::LiveFs;
use crate::live::inode::cached::{CachedInode, InodeState};
use crate::live::mvcc::read_view::ReadView;
use crate::live::mvcc::versions::{OldBlock, Versions};
use crate::versioned_fs::read_as_of::{ChangedBy, ReadAsOf, Stamp};

impl LiveFs {
    /// Runs `read` on an inode that existed at `stamp`; `ESTALE` if it did not.
    fn with_inode_at<R>(
        &self,
        ino: Ino,
        stamp: Stamp,
        read: impl FnOnce(&CachedInode, &InodeState, &Attr) -> Result<R>,
    ) -> Result<R> {
        let cached = self.cached_inode(ino)?;
        let state = cached.state.read();
        self.mvcc.check_view(stamp)?;
        let attr = self.attr_as_of(&cached, &state, stamp)?;
        read(&cached, &state, &attr)
    }

    pub(in crate::live) fn attr_as_of(
        &self,
        cached: &CachedInode,
        state: &InodeState,
        stamp: Stamp,
    ) -> Result<Attr> {
        if !state.live || self.mvcc.is_born_after(cached.ino, stamp) {
            return Err(Error::Posix(Errno::ESTALE));
        }
        match state.versions.attr_at(stamp) {
            Some(attr) => Ok(*attr),
            None => Ok(self.show_attr(cached, state)),
        }
    }

    /// Runs `look` on an inode's old versions, unless nothing on the volume has changed after
    /// `after`. Also returns the stamp up to which the versions are complete.
    fn with_changes<R>(
        &self,
        ino: Ino,
        since: Stamp,
        after: Stamp,
        look: impl FnOnce(&Versions) -> R,
    ) -> Result<(Option<R>, Stamp)> {
        if self.mvcc.stamps().newest() == after {
            return Ok((None, after));
        }
        // An inode that has versions is in memory.
        let Some(cached) = self.inodes.peek(ino) else {
            self.mvcc.check_view(since)?;
            return Ok((None, after));
        };
        let state = cached.state.read();
        self.mvcc.check_view(since)?;
        let newest = self.mvcc.stamps().newest();
        Ok((Some(look(&state.versions)), newest))
    }
}

impl ReadAsOf for LiveFs {
    type ReadView = ReadView;

    fn open_view(self: &Arc<Self>) -> ReadView {
        ReadView::open(self)
    }

    fn stamp(view: &ReadView) -> Stamp {
        view.stamp()
    }

    fn check_stamp(&self, stamp: Stamp) -> Result<()> {
        self.mvcc.check_view(stamp)
    }

    fn attr_at(&self, ino: Ino, stamp: Stamp) -> Result<Attr> {
        self.with_inode_at(ino, stamp, |_, _, attr| Ok(*attr))
    }

    fn entry_at(&self, dir: Ino, name: &Name, stamp: Stamp) -> Result<Option<Entry>> {
        self.with_inode_at(dir, stamp, |_, state, attr| {
            check_dir(attr)?;
            match state.versions.name_at(name, stamp) {
                Some(entry) => Ok(entry),
                None => self.find_entry(dir, state, name),
            }
        })
    }

    fn parent_at(&self, dir: Ino, stamp: Stamp) -> Result<Ino> {
        self.with_inode_at(dir, stamp, |_, state, attr| {
            check_dir(attr)?;
            state.versions.parent_at(stamp).map_or_else(|| self.dir_parent(dir, state), Ok)
        })
    }

    /// Names other than `.` and `..`, in the order of their cookies.
    fn list_at(
        &self,
        dir: Ino,
        cookie: u64,
        stamp: Stamp,
        each: &mut dyn FnMut(DirItem<'_>) -> bool,
    ) -> Result<()> {
        self.with_inode_at(dir, stamp, |_, state, attr| {
            check_dir(attr)?;
            // Names whose entries at `stamp` differ from the present ones.
            let mut past = Vec::new();
            for (name, entry) in state.versions.names_at(stamp) {
                if let Some(entry) = entry {
                    let key = self.name_key(dir, state, name)?;
                    if key >= cookie {
                        past.push(DirItem { name, ino: entry.ino, kind: entry.kind, next_cookie: key + 1 });
                    }
                }
            }
            past.sort_by_key(|item| item.next_cookie);
            let mut past = past.into_iter().peekable();
            let mut stopped = false;
            let listed = self.list_entries(dir, state, cookie, &mut |item| {
                while let Some(earlier) = past.next_if(|earlier| earlier.next_cookie <= item.next_cookie) {
                    if !each(earlier) {
                        stopped = true;
                        return false;
                    }
                }
                if state.versions.name_at(item.name, stamp).is_some() {
                    return true;
                }
                stopped = !each(item);
                !stopped
            });
            // Damage of the present folder, which ends the listing, hides no earlier names.
            if !stopped {
                for item in past {
                    if !each(item) {
                        return Ok(());
                    }
                }
            }
            listed
        })
    }

    fn read_link_at(&self, ino: Ino, stamp: Stamp) -> Result<Vec<u8>> {
        // A link's target never changes, and an inode that a view can see is not deleted.
        self.with_inode_at(ino, stamp, |_, state, _| self.link_target(ino, state))
    }

    /// A file block's contents; `None` for a hole. Bytes past the end of the file as of `stamp`
    /// are undefined.
    fn read_block_at(&self, ino: Ino, at: FileBlock, stamp: Stamp) -> Result<Option<Arc<[u8]>>> {
        self.with_inode_at(ino, stamp, |cached, state, _| self.block_as_of(cached, state, at, stamp))
    }

    /// The next data or hole from `at` on, within the size as of `stamp`; `None` if no data
    /// follows. A hole always follows: the end of the file.
    fn seek_at(&self, ino: Ino, at: FileBlock, to: SeekTo, stamp: Stamp) -> Result<Option<FileBlock>> {
        self.with_inode_at(ino, stamp, |cached, state, attr| {
            let past = u32::try_from(attr.size.div_ceil(self.block_bytes())).unwrap_or(u32::MAX);
            let mut at = at.0;
            while at < past {
                let (data, run) = match state.versions.block_at(FileBlock(at), stamp) {
                    Some(OldBlock::Hole) => (false, 1),
                    Some(_) => (true, 1),
                    None => {
                        let (data, run) = self.has_data(cached, state, FileBlock(at))?;
                        let next = state.versions.next_block_at(FileBlock(at), stamp);
                        (data, next.map_or(run, |next| run.min(next.0 - at)))
                    }
                };
                if data == (to == SeekTo::Data) {
                    return Ok(Some(FileBlock(at)));
                }
                at = at.saturating_add(run);
            }
            Ok((to == SeekTo::Hole).then_some(FileBlock(past)))
        })
    }

    fn xattr_at(&self, ino: Ino, name: &[u8], stamp: Stamp) -> Result<Option<Vec<u8>>> {
        self.with_inode_at(ino, stamp, |_, state, _| match state.versions.xattr_at(name, stamp) {
            Some(value) => Ok(value.cloned()),
            None => self.xattrs(ino).get(&state.inode, name),
        })
    }

    fn list_xattrs_at(&self, ino: Ino, stamp: Stamp) -> Result<Vec<Vec<u8>>> {
        self.with_inode_at(ino, stamp, |_, state, _| {
            let mut names = self.xattrs(ino).list(&state.inode)?;
            for (name, there) in state.versions.xattrs_at(stamp) {
                names.retain(|n| n != name);
                if there {
                    names.push(name.to_vec());
                }
            }
            Ok(names)
        })
    }

    /// The author of a change of these blocks since the stamp of an open view, if there is one. If
    /// nothing on the volume has changed since, this reads one number.
    fn blocks_changed_since(
        &self,
        ino: Ino,
        blocks: Range<FileBlock>,
        since: Stamp,
    ) -> Result<Option<ChangedBy>> {
        self.with_changes(ino, since, since, |versions| versions.any_block_changed_since(blocks, since))
            .map(|(changed, _)| changed.flatten())
    }

    /// The author of a change after `after` of blocks for which `wanted` returns true, if there is
    /// one; and the stamp up to which all changes were examined. `since` is the stamp of an open
    /// view, and `after` is not older.
    fn find_changed_block(
        &self,
        ino: Ino,
        since: Stamp,
        after: Stamp,
        wanted: &mut dyn FnMut(Range<FileBlock>) -> bool,
    ) -> Result<(Option<ChangedBy>, Stamp)> {
        self.with_changes(ino, since, after, |versions| versions.find_block_change_after(after, wanted))
            .map(|(found, newest)| (found.flatten(), newest))
    }
}

fn check_dir(attr: &Attr) -> Result<()> {
    if attr.kind == FileKind::Directory { Ok(()) } else { Err(Error::Posix(Errno::ENOTDIR)) }
}
