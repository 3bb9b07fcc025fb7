//! Loads inodes from the inode table, and returns their attributes.

use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;

use xact_layout::inode::Inode;
use xact_types::{Errno, Error, Ino, Result, Site};

use super::cached::{CachedInode, InodeState};
use super::device_number;
use crate::api::{Attr, FileKind};
use crate::live::LiveFs;
use crate::live::data::inline::is_inline;
use crate::quota::project_of;

impl LiveFs {
    /// The inode, loaded. It may not be in use ([`InodeState::live`]).
    pub(in crate::live) fn cached_inode(&self, ino: Ino) -> Result<Arc<CachedInode>> {
        let cached = self.inodes.get(ino);
        if !cached.loaded.load(SeqCst) {
            self.load(&cached)?;
        }
        Ok(cached)
    }

    fn load(&self, cached: &CachedInode) -> Result<()> {
        let mut state = cached.state.write();
        if cached.loaded.load(SeqCst) {
            return Ok(());
        }
        // A number out of range is the caller's mistake, not corruption.
        if cached.ino.0 == 0 || cached.ino.0 > self.sb.inodes_count() {
            return Err(Error::Posix(Errno::ESTALE));
        }
        let inode = self.table.read(cached.ino)?;
        let in_use = inode.mode() != 0 && (inode.links_count() > 0 || self.orphans.contains(cached.ino));
        *state = if in_use {
            if FileKind::from_mode(inode.mode()).is_none() {
                return Err(Error::corrupt(Site::Inode(cached.ino), "unknown file type"));
            }
            let charged = self.quotas.charge_of(cached.ino, &inode);
            InodeState { charged, ..InodeState::loaded(inode, self.inodes.dropped_commit()) }
        } else {
            InodeState { inode, ..InodeState::free(self.sb.inode_size()) }
        };
        cached.loaded.store(true, SeqCst);
        Ok(())
    }

    /// As [`Self::attr_of`], for a caller that may compare the times with later times.
    pub(in crate::live) fn show_attr(&self, cached: &CachedInode, state: &InodeState) -> Attr {
        cached.unseen_times.store(false, SeqCst);
        self.attr_of(cached, state)
    }

    /// Sectors that `stat` adds for contents in the inode, as the kernel does
    /// (`ext4_file_getattr`). Programs such as `tar -S` take a file without sectors for a hole.
    fn inline_sectors(state: &InodeState) -> u64 {
        let counts = is_inline(state) && state.inode.is_regular();
        if counts { state.size.div_ceil(512) } else { 0 }
    }

    /// The attributes that `stat` returns. The caller holds the inode's lock.
    pub(in crate::live) fn attr_of(&self, cached: &CachedInode, state: &InodeState) -> Attr {
        let inode: &Inode = &state.inode;
        let kind = FileKind::from_mode(inode.mode()).expect("checked when the inode was loaded");
        let is_device = matches!(kind, FileKind::CharDevice | FileKind::BlockDevice);
        Attr {
            ino: cached.ino,
            kind,
            perm: inode.mode() & 0o7777,
            uid: inode.uid(),
            gid: inode.gid(),
            project: project_of(&self.sb, inode),
            nlink: u32::from(inode.links_count()),
            size: state.size,
            sectors: inode.sectors(&self.sb)
                + cached.pages.lock().reserved * (self.block_bytes() / 512)
                + LiveFs::inline_sectors(state),
            atime: inode.atime(),
            mtime: inode.mtime(),
            ctime: inode.ctime(),
            crtime: inode.crtime(),
            rdev: if is_device { device_number::decode(inode.block_area()) } else { 0 },
            flags: inode.flags(),
            generation: inode.generation(),
        }
    }
}
