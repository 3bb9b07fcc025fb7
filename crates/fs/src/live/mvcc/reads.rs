//! The volume as of an instant: reads for the private views of transactions.
//!
//! Each takes the inode's lock shared for its own duration; see `mvcc::stamps` for why that is
//! enough to see the whole of one instant. The last two tell what has changed since, to those who
//! want to know before they ask for a commit.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;

use xact_types::{Errno, Error, FileBlock, Ino, Result};

use crate::api::{Attr, DirItem, Entry, FileKind, Name, SeekTo};
use crate::live::LiveFs;
use crate::live::inode::cached::{CachedInode, InodeState};
use crate::live::mvcc::stamps::{ChangedBy, Stamp};
use crate::live::mvcc::versions::Versions;

/// What becomes of the old versions of an inode that somebody else has locked.
#[derive(Clone, Copy)]
enum Busy {
    /// They stay until the next view ends.
    Skipped,
    Awaited,
}

/// Keeps the volume readable as of one instant until it is dropped.
pub struct ReadView {
    fs: Arc<LiveFs>,
    stamp: Stamp,
}

impl ReadView {
    pub fn stamp(&self) -> Stamp {
        self.stamp
    }

    pub fn fs(&self) -> &Arc<LiveFs> {
        &self.fs
    }
}

impl Drop for ReadView {
    fn drop(&mut self) {
        self.fs.views.close(self.stamp);
        self.fs.prune_versions(Busy::Skipped);
        // A failure poisons the volume, and whoever uses it next is told; a drop cannot.
        let _ = self.fs.reap_unlinked();
    }
}

impl LiveFs {
    /// Opens a view of this instant.
    pub fn open_view(self: &Arc<Self>) -> ReadView {
        ReadView { fs: self.clone(), stamp: self.views.open() }
    }

    /// Expires the oldest views until old versions take no more than their share of memory. The caller holds no lock of
    /// an inode.
    pub(in crate::live) fn limit_versions(&self) {
        let mut any = false;
        while self.kept_bytes.load(SeqCst) > self.options.versions_bytes && self.views.expire_oldest(None) {
            self.prune_versions(Busy::Skipped);
            any = true;
        }
        if any {
            // As when a view is dropped.
            let _ = self.reap_unlinked();
        }
    }

    /// Expires the oldest views, as many as it takes until something that they held can be used again; of those from
    /// before `below` alone, if that is given. False where there were none. The caller holds no lock of an inode.
    pub(in crate::live) fn expire_some_views(&self, below: Option<Stamp>) -> Result<bool> {
        let held = || (self.allocator.pending_blocks(), self.unlinked_kept.lock().len());
        let before = held();
        // What an expired view has left.
        self.prune_versions(Busy::Awaited);
        self.reap_unlinked()?;
        let mut any = false;
        loop {
            let now = held();
            if now.1 < before.1 || now.0 < before.0 {
                return Ok(true);
            }
            if !self.views.expire_oldest(below) {
                return Ok(any);
            }
            any = true;
            self.prune_versions(Busy::Awaited);
            self.reap_unlinked()?;
        }
    }

    /// `TooOld` for a view that is expired.
    pub(in crate::live) fn check_view(&self, stamp: Stamp) -> Result<()> {
        if self.views.is_expired(stamp) { Err(Error::TooOld) } else { Ok(()) }
    }

    /// Adds what an inode's old versions have grown or shrunk by to the volume's sum.
    pub(in crate::live) fn count_versions(&self, versions: &mut Versions) {
        // Two's complement: adding a negative number subtracts.
        self.kept_bytes.fetch_add(versions.uncounted() as u64, SeqCst);
    }

    fn prune_versions(&self, busy: Busy) {
        let oldest = self.views.oldest();
        let list: Vec<Ino> = self.versioned.lock().iter().copied().collect();
        for ino in list {
            let Some(cached) = self.inodes.peek(ino) else { continue };
            let state = match busy {
                Busy::Skipped => cached.state.try_write(),
                Busy::Awaited => Some(cached.state.write()),
            };
            let Some(mut state) = state else { continue };
            state.versions.prune(oldest);
            self.count_versions(&mut state.versions);
            if state.versions.is_empty() {
                self.versioned.lock().remove(&ino);
            }
        }
    }

    /// Runs `read` on an inode that existed at `stamp`; `ESTALE` where it did not.
    fn with_past<R>(
        &self,
        ino: Ino,
        stamp: Stamp,
        read: impl FnOnce(&CachedInode, &InodeState, &Attr) -> Result<R>,
    ) -> Result<R> {
        let cached = self.cached_inode(ino)?;
        let state = cached.state.read();
        self.check_view(stamp)?;
        let attr = self.past_attr(&cached, &state, stamp)?;
        read(&cached, &state, &attr)
    }

    pub(in crate::live) fn past_attr(
        &self,
        cached: &CachedInode,
        state: &InodeState,
        stamp: Stamp,
    ) -> Result<Attr> {
        match state.versions.attr_at(stamp) {
            Some(Some(attr)) => Ok(*attr),
            None if state.live => Ok(self.show_attr(cached, state)),
            _ => Err(Error::Posix(Errno::ESTALE)),
        }
    }

    pub fn attr_at(&self, ino: Ino, stamp: Stamp) -> Result<Attr> {
        self.with_past(ino, stamp, |_, _, attr| Ok(*attr))
    }

    pub fn entry_at(&self, dir: Ino, name: &Name, stamp: Stamp) -> Result<Option<Entry>> {
        self.with_past(dir, stamp, |_, state, attr| {
            check_dir(attr)?;
            match state.versions.name_at(name, stamp) {
                Some(entry) => Ok(entry),
                None => self.find_entry(dir, state, name),
            }
        })
    }

    pub fn parent_at(&self, dir: Ino, stamp: Stamp) -> Result<Ino> {
        self.with_past(dir, stamp, |_, state, attr| {
            check_dir(attr)?;
            state.versions.parent_at(stamp).map_or_else(|| self.dir_parent(dir, state), Ok)
        })
    }

    pub fn is_empty_at(&self, dir: Ino, stamp: Stamp) -> Result<bool> {
        let mut empty = true;
        self.list_at(dir, 0, stamp, &mut |_| {
            empty = false;
            false
        })?;
        Ok(empty)
    }

    /// Ordinary names, in the order of their cookies.
    pub fn list_at(
        &self,
        dir: Ino,
        cookie: u64,
        stamp: Stamp,
        each: &mut dyn FnMut(DirItem<'_>) -> bool,
    ) -> Result<()> {
        self.with_past(dir, stamp, |_, state, attr| {
            check_dir(attr)?;
            // Names that were there then and are not, or not so, now.
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
            self.list_entries(dir, state, cookie, &mut |item| {
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
            })?;
            if !stopped {
                for item in past {
                    if !each(item) {
                        break;
                    }
                }
            }
            Ok(())
        })
    }

    pub fn read_link_at(&self, ino: Ino, stamp: Stamp) -> Result<Vec<u8>> {
        // A link's target never changes, and an inode that a view can see is not deleted.
        self.with_past(ino, stamp, |_, state, _| self.link_target(ino, state))
    }

    /// A file block's contents; `None` for a hole. Bytes past the end of the file as of `stamp`
    /// are undefined.
    pub fn read_block_at(&self, ino: Ino, at: FileBlock, stamp: Stamp) -> Result<Option<Arc<[u8]>>> {
        self.with_past(ino, stamp, |cached, state, _| self.block_as_of(cached, state, at, stamp))
    }

    /// The next data or hole from `at` on, within the size as of `stamp`: `None` where there is
    /// no more data. A hole always follows: the end of the file.
    pub fn seek_at(&self, ino: Ino, at: FileBlock, to: SeekTo, stamp: Stamp) -> Result<Option<FileBlock>> {
        self.with_past(ino, stamp, |cached, state, attr| {
            let past = u32::try_from(attr.size.div_ceil(self.block_bytes())).unwrap_or(u32::MAX);
            let mut at = at.0;
            while at < past {
                let (data, run) = match state.versions.block_at(FileBlock(at), stamp) {
                    Some(crate::live::mvcc::versions::BlockVersion::Hole) => (false, 1),
                    Some(_) => (true, 1),
                    None => {
                        let (data, run) = self.has_data(cached, state, FileBlock(at))?;
                        let next = state.versions.blocks_at(FileBlock(at), stamp).next();
                        (data, next.map_or(run, |(next, _)| run.min(next.0 - at)))
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

    pub fn xattr_at(&self, ino: Ino, name: &[u8], stamp: Stamp) -> Result<Option<Vec<u8>>> {
        self.with_past(ino, stamp, |_, state, _| match state.versions.xattr_at(name, stamp) {
            Some(value) => Ok(value.cloned()),
            None => self.xattrs(ino).get(&state.inode, name),
        })
    }

    pub fn list_xattrs_at(&self, ino: Ino, stamp: Stamp) -> Result<Vec<Vec<u8>>> {
        self.with_past(ino, stamp, |_, state, _| {
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

    /// Who has changed any of these blocks of a file since a stamp whose view is open, if anybody
    /// has. Without a change of the volume since then it looks at one number.
    pub fn blocks_changed_since(
        &self,
        ino: Ino,
        blocks: Range<FileBlock>,
        since: Stamp,
    ) -> Result<Option<ChangedBy>> {
        self.with_changes(ino, since, since, |versions| {
            let changed = versions.any_block_changed_since(blocks, since);
            changed.map(|stamp| self.views.changed_by(stamp))
        })
        .map(|(changed, _)| changed.flatten())
    }

    /// Who has changed one of a file's blocks that are `wanted`, of those that changed after `after`,
    /// which is not before `since`, the stamp of an open view; and the stamp up to which all others
    /// were looked at.
    pub fn find_changed_block(
        &self,
        ino: Ino,
        since: Stamp,
        after: Stamp,
        wanted: &mut dyn FnMut(FileBlock) -> bool,
    ) -> Result<(Option<ChangedBy>, Stamp)> {
        self.with_changes(ino, since, after, |versions| {
            let found = versions.block_changes_after(after).iter().find(|(_, at)| wanted(*at));
            found.map(|(stamp, _)| self.views.changed_by(*stamp))
        })
        .map(|(found, newest)| (found.flatten(), newest))
    }

    /// Looks at an inode's old versions, if anything at all has changed after `after`; with the stamp
    /// up to which they are complete.
    fn with_changes<R>(
        &self,
        ino: Ino,
        since: Stamp,
        after: Stamp,
        look: impl FnOnce(&Versions) -> R,
    ) -> Result<(Option<R>, Stamp)> {
        if self.views.newest() == after {
            return Ok((None, after));
        }
        // An inode that has versions is in memory.
        let Some(cached) = self.inodes.peek(ino) else {
            self.check_view(since)?;
            return Ok((None, after));
        };
        let state = cached.state.read();
        self.check_view(since)?;
        let newest = self.views.newest();
        Ok((Some(look(&state.versions)), newest))
    }
}

fn check_dir(attr: &Attr) -> Result<()> {
    if attr.kind == FileKind::Directory { Ok(()) } else { Err(Error::Posix(Errno::ENOTDIR)) }
}
