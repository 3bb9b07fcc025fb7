//! [`InodeOps`] of the live volume: names, attributes and data, within one operation.

use xact_layout::inode::{self, flag};
use xact_types::{Errno, Error, FileBlock, Ino, Result, Site, Timestamp};

use std::sync::atomic::Ordering::Relaxed;

use crate::alloc::Purpose;
use crate::api::{Allocate, Attr, DirItem, Entry, FileKind, Name, SeekTo};
use crate::extent::Mapping;
use crate::file_mode::FILE_MODE;
use crate::inode_ops::{AttrChange, InodeOps, NewInode};
use crate::journal_modes::{DataMode, InodeUpdate};
use crate::live::data::inline::is_inline;
use crate::live::data::remove::Removal;
use crate::live::op::{Locked, Operation};
use crate::posix::acl;
use crate::quota::{Charge, Payer, Wanted};
use crate::versioned_fs::limits::InodeLimits;

/// Bytes of a symbolic link's target that fit into the inode, including the terminating NUL.
pub(in crate::live) const FAST_LINK_BYTES: usize = inode::BLOCK_AREA_BYTES;
/// Maximum blocks that a new name adds to a directory: leaves, index nodes, and extent-tree nodes
/// for them.
const NAME_GROWTH: u64 = 16;

/// Period in which the times of one write also count for the next one, if no caller has read them
/// in between: a tick of the kernel's coarse clock, as in its multigrain timestamps. With an fsync
/// after each small write, the inode is then committed every few milliseconds and not every time.
const TIME_GRAIN_NANOS: i128 = 4_000_000;

impl Locked {
    /// Whether the present times also count for the write that wants to set these.
    fn times_still_count(&self, change: &AttrChange) -> bool {
        let within = |new: Option<Timestamp>, old: Timestamp| {
            new.is_none_or(|new| (0..TIME_GRAIN_NANOS).contains(&(nanos(new) - nanos(old))))
        };
        let inode = &self.state.inode;
        self.cached.unseen_times.load(Relaxed)
            && change.atime.is_none()
            && within(change.mtime, inode.mtime())
            && within(change.ctime, inode.ctime())
    }
}

fn nanos(time: Timestamp) -> i128 {
    i128::from(time.secs) * 1_000_000_000 + i128::from(time.nanos)
}

impl Operation<'_> {
    pub(in crate::live) fn keep_attr(&mut self, ino: Ino) -> Result<()> {
        if let Some(change) = self.seen_change(ino) {
            let fs = self.fs;
            let locked = self.state(ino)?;
            let old = fs.attr_of(&locked.cached, &locked.state);
            let kept = locked.state.versions.keep_attr(&change, || old);
            fs.mvcc.note_versioned(ino, &change, kept);
        }
        Ok(())
    }

    /// Call before a change of an inode's own fields: begins the handle, keeps the old version, and
    /// marks the inode to be stored.
    pub(in crate::live) fn change_inode(&mut self, ino: Ino) -> Result<()> {
        self.begin_inode_change(ino)?;
        self.touch(ino);
        Ok(())
    }

    /// Call before a change of an inode that is stored in the running commit.
    fn begin_inode_change(&mut self, ino: Ino) -> Result<()> {
        self.state(ino)?;
        self.begin_block_change()?;
        self.keep_attr(ino)?;
        // The caller sees the new times.
        self.state(ino)?.cached.unseen_times.store(false, Relaxed);
        Ok(())
    }

    fn keep_name(&mut self, dir: Ino, name: &Name, old: Option<Entry>) -> Result<()> {
        if let Some(change) = self.seen_change(dir) {
            let fs = self.fs;
            let kept = self.state(dir)?.state.versions.keep_name(&change, name, old);
            fs.mvcc.note_versioned(dir, &change, kept);
        }
        self.keep_attr(dir)
    }

    fn check_dir(&mut self, dir: Ino) -> Result<()> {
        if self.state(dir)?.state.inode.is_directory() { Ok(()) } else { Err(Error::Posix(Errno::ENOTDIR)) }
    }

    /// Creates an inode with a number that was already taken.
    pub(in crate::live) fn make_inode(&mut self, ino: Ino, new: &NewInode) -> Result<()> {
        let fs = self.fs;
        self.lock_new(ino)?;
        // Reads that may fail come before the bitmap changes.
        if let Ok(block) = fs.table.block_of(ino) {
            fs.engine.read(block)?;
        }
        fs.allocator.read_ahead_inode(ino);
        self.begin_block_change()?;
        let (_, handle, _, state) = self.parts(ino);
        assert!(!state.live, "a new inode's number is in use");
        fs.allocator.link_inode(handle, ino, new.kind == FileKind::Directory)?;
        // From here on the number must not be given back.
        self.touch(ino);
        if let Some(change) = &self.change {
            fs.mvcc.note_born(ino, change);
        }
        let (_, handle, cached, state) = self.parts(ino);
        cached.forget_file_mode();
        let versions = std::mem::take(&mut state.versions);
        let old_generation = state.inode.generation();
        *state = crate::live::inode::cached::InodeState::loaded(
            fs.fresh_inode(new, old_generation),
            handle.commit_id(),
        );
        state.versions = versions;
        state.born = handle.commit_id();
        if new.kind == FileKind::Directory {
            fs.health.forget_folder_damage(ino);
        }
        // Write all of it now, over the bytes of the number's previous inode; later changes are
        // written at the end of the operation.
        fs.table.create(handle, ino, &state.inode)
    }
}

impl InodeOps for Operation<'_> {
    fn attr(&mut self, ino: Ino) -> Result<Attr> {
        let fs = self.fs;
        let locked = self.state(ino)?;
        Ok(fs.attr_of(&locked.cached, &locked.state))
    }

    fn set_attr(&mut self, ino: Ino, change: &AttrChange) -> Result<()> {
        // The times of a write are written with its data (delayed inode update).
        let only_times =
            AttrChange { atime: None, mtime: None, ctime: None, ..*change } == AttrChange::default();
        let delayed = self.fs.modes.timestamps == InodeUpdate::Delayed;
        if only_times && delayed && self.wrote.contains(&ino) && self.handle.is_none() {
            if self.state(ino)?.times_still_count(change) {
                return Ok(());
            }
            self.begin_memory_change()?;
            self.keep_attr(ino)?;
            let locked = self.state(ino)?;
            locked.state.dirty = true;
            locked.cached.unseen_times.store(true, Relaxed);
        } else {
            if change.project.is_some() && !self.state(ino)?.state.inode.has_project() {
                // The inode was created with fewer extra fields.
                return Err(Error::Posix(Errno::EOVERFLOW));
            }
            self.change_payer(ino, change)?;
            self.begin_inode_change(ino)?;
            if only_times {
                self.touch_times(ino);
            } else {
                self.touch(ino);
            }
        }
        let inode = &mut self.state(ino)?.state.inode;
        if let Some(perm) = change.perm {
            inode.set_mode(inode.mode() & inode::mode::TYPE_MASK | perm & 0o7777);
        }
        if let Some(uid) = change.uid {
            inode.set_uid(uid);
        }
        if let Some(gid) = change.gid {
            inode.set_gid(gid);
        }
        if let Some(project) = change.project {
            inode.set_project(project);
        }
        if let Some(time) = change.atime {
            inode.set_atime(time);
        }
        if let Some(time) = change.mtime {
            inode.set_mtime(time);
        }
        if let Some(time) = change.ctime {
            inode.set_ctime(time);
        }
        if let Some(flags) = change.flags {
            let kept = inode.flags() & !flag::USER_MODIFIABLE;
            inode.set_flags(kept | flags & flag::USER_MODIFIABLE);
        }
        Ok(())
    }

    fn add_links(&mut self, ino: Ino, delta: i32) -> Result<()> {
        self.change_inode(ino)?;
        self.names_change(ino);
        let fs = self.fs;
        let (_, handle, _, state) = self.parts(ino);
        let old = u32::from(state.inode.links_count());
        let new = i64::from(old) + i64::from(delta);
        let new =
            u16::try_from(new).map_err(|_| Error::corrupt(Site::Inode(ino), "link count is out of range"))?;
        state.inode.set_links_count(new);
        if new == 0 && old > 0 {
            fs.orphans.add(handle, ino)?;
            self.unlinked.push(ino);
        } else if new > 0 && old == 0 && fs.orphans.contains(ino) {
            fs.orphans.remove(handle, ino)?;
        }
        Ok(())
    }

    fn link_max(&self) -> u32 {
        self.fs.link_max()
    }

    fn dir_nlink(&self) -> bool {
        self.fs.dir_nlink()
    }

    fn target_max(&self) -> usize {
        self.fs.target_max()
    }

    fn new_inode(&mut self, parent: Ino, new: &NewInode) -> Result<Ino> {
        self.state(parent)?;
        self.fs.health.check_writable()?;
        let payer = Payer { uid: new.uid, gid: new.gid, project: new.project };
        let bytes = if new.kind == FileKind::Directory { self.fs.block_bytes() } else { 0 };
        self.reserve_quota(Wanted { now: None, more: Charge { payer, bytes, inodes: 1 } });
        // A new folder's first block; the access lists inherited from the parent.
        let inherits = self.xattr(parent, acl::DEFAULT)?.is_some();
        let growth = u64::from(new.kind == FileKind::Directory) + u64::from(inherits);
        self.reserve_growth(growth, |_| Ok(growth))?;
        let ino = self.fs.take_inode(parent, new.kind == FileKind::Directory)?;
        self.taken.push(ino);
        self.make_inode(ino, new)?;
        // It is linked now and must not be given back.
        self.taken.retain(|&taken| taken != ino);
        self.made.push(ino);
        Ok(ino)
    }

    fn hold(&mut self, ino: Ino) -> Result<()> {
        let locked = self.state(ino)?;
        locked.cached.holds.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
        // An inode created without a name (O_TMPFILE): a crash must not leak it.
        if locked.state.inode.links_count() == 0 && !self.fs.orphans.contains(ino) {
            self.change_inode(ino)?;
            let (fs, handle, _, _) = self.parts(ino);
            fs.orphans.add(handle, ino)?;
        }
        Ok(())
    }

    fn entry(&mut self, dir: Ino, name: &Name) -> Result<Option<Entry>> {
        self.check_dir(dir)?;
        let fs = self.fs;
        let locked = self.state(dir)?;
        fs.find_entry(dir, &locked.state, name)
    }

    fn check_name_fits(&mut self, dir: Ino, name: &Name) -> Result<()> {
        self.check_dir(dir)?;
        let fs = self.fs;
        let locked = self.state(dir)?;
        fs.check_name_fits(dir, &locked.state, name)?;
        self.reserve_growth(NAME_GROWTH, |op| {
            let state = &op.state(dir)?.state;
            let fits = !is_inline(state) && fs.has_gap(dir, state, name)?;
            Ok(if fits { 0 } else { NAME_GROWTH })
        })
    }

    fn add_entry(&mut self, dir: Ino, name: &Name, entry: Entry) -> Result<()> {
        self.check_dir(dir)?;
        self.begin_block_change()?;
        self.keep_name(dir, name, None)?;
        self.add_name(dir, name, entry)?;
        self.note_name(dir, name, entry);
        Ok(())
    }

    fn remove_entry(&mut self, dir: Ino, name: &Name) -> Result<()> {
        let old = self.entry(dir, name)?;
        self.begin_block_change()?;
        self.keep_name(dir, name, old)?;
        self.remove_name(dir, name, old)?;
        old.into_iter().for_each(|old| self.names_change(old.ino));
        self.state(dir)?.state.versions.forget_absent_name(name);
        Ok(())
    }

    fn set_entry(&mut self, dir: Ino, name: &Name, entry: Entry) -> Result<()> {
        let old = self.entry(dir, name)?;
        self.begin_block_change()?;
        // This commit removes the old inode's name: by then the new inode's data must be on the
        // device, in any mode.
        self.handle.as_ref().expect("within a block change").order_data();
        self.keep_name(dir, name, old)?;
        self.set_name(dir, name, old, entry)?;
        [Some(entry), old].into_iter().flatten().for_each(|changed| self.names_change(changed.ino));
        Ok(())
    }

    fn folder_moves(&mut self) {
        self.moves_folder = true;
    }

    fn is_empty(&mut self, dir: Ino) -> Result<bool> {
        self.check_dir(dir)?;
        let fs = self.fs;
        let locked = self.state(dir)?;
        fs.dir_is_empty(dir, &locked.state)
    }

    fn parent(&mut self, dir: Ino) -> Result<Ino> {
        self.check_dir(dir)?;
        let fs = self.fs;
        let locked = self.state(dir)?;
        fs.dir_parent(dir, &locked.state)
    }

    fn set_parent(&mut self, dir: Ino, parent: Ino) -> Result<()> {
        self.check_dir(dir)?;
        self.begin_block_change()?;
        let fresh = self.state(dir)?.state.inode.size() == 0;
        if let Some(change) = self.seen_change(dir)
            && !fresh
        {
            let old = self.parent(dir)?;
            let kept = self.state(dir)?.state.versions.keep_parent(&change, old);
            self.fs.mvcc.note_versioned(dir, &change, kept);
        }
        if fresh { self.init_dir(dir, parent) } else { self.set_dotdot(dir, parent) }
    }

    fn list(&mut self, dir: Ino, cookie: u64, each: &mut dyn FnMut(DirItem<'_>) -> bool) -> Result<()> {
        self.check_dir(dir)?;
        let fs = self.fs;
        let locked = self.state(dir)?;
        fs.list_entries(dir, &locked.state, cookie, each)
    }

    fn read_link(&mut self, ino: Ino) -> Result<Vec<u8>> {
        let fs = self.fs;
        let locked = self.state(ino)?;
        fs.link_target(ino, &locked.state)
    }

    fn set_link(&mut self, ino: Ino, target: &[u8]) -> Result<()> {
        if target.len() as u64 >= self.fs.block_bytes() {
            return Err(Error::Posix(Errno::ENAMETOOLONG));
        }
        self.change_inode(ino)?;
        let (fs, handle, cached, state) = self.parts(ino);
        if target.len() < FAST_LINK_BYTES {
            let mut area = [0; FAST_LINK_BYTES];
            area[..target.len()].copy_from_slice(target);
            state.inode.set_flags(state.inode.flags() & !flag::EXTENTS);
            state.inode.set_block_area(&area);
        } else {
            let run = fs.allocator.take(fs.allocator.goal_for(ino), 1, Purpose::Metadata, None)?;
            fs.allocator.link(handle, run)?;
            let extents = fs.extents(cached.ino, state);
            extents.insert(handle, &mut state.inode, FileBlock(0), run, false)?;
            let mut contents = vec![0; fs.block_bytes() as usize];
            contents[..target.len()].copy_from_slice(target);
            handle.create(run.start, contents)?;
        }
        state.inode.set_size(target.len() as u64);
        state.size = target.len() as u64;
        Ok(())
    }

    fn read(&mut self, ino: Ino, offset: u64, len: usize, out: &mut Vec<u8>) -> Result<()> {
        let fs = self.fs;
        let locked = self.state(ino)?;
        fs.check_is_file(&locked.cached, &locked.state)?;
        fs.read_data(&locked.cached, &locked.state, offset, len, out)
    }

    fn write(&mut self, ino: Ino, offset: u64, data: &[u8]) -> Result<()> {
        let fs = self.fs;
        let locked = self.state(ino)?;
        fs.check_is_file(&locked.cached, &locked.state)?;
        fs.check_writable_map(&locked.state)?;
        if !is_inline(&locked.state) {
            return self.write_pages(ino, offset, data);
        }
        let pages = data.len() as u64 / fs.block_bytes() + 2;
        self.with_writeback_reserved(ino, (1, pages), |op| {
            op.unpack_inline(ino)?;
            op.write_pages(ino, offset, data)
        })
    }

    fn set_size(&mut self, ino: Ino, size: u64) -> Result<()> {
        let fs = self.fs;
        let locked = self.state(ino)?;
        fs.check_is_file(&locked.cached, &locked.state)?;
        let old = locked.state.size;
        // A cut to the file's own size frees what is reserved past its end, as in ext4.
        if size == old && !fs.has_blocks_past_end(&locked.cached, &locked.state)? {
            return Ok(());
        }
        if size > old {
            if !is_inline(&locked.state) {
                return self.grow(ino, size);
            }
            return self.with_writeback_reserved(ino, (1, 1), |op| {
                op.unpack_inline(ino)?;
                op.grow(ino, size)
            });
        }
        self.unpack_inline(ino)?;
        let bs = fs.block_bytes();
        let first = size.div_ceil(bs);
        let locked = self.state(ino)?;
        if fs.has_block_map(&locked.state)
            && let Ok(first) = u32::try_from(first)
        {
            fs.read_ahead_removal(ino, &locked.state, FileBlock(first), FileBlock(u32::MAX))?;
        }
        self.change_inode(ino)?;
        if size == 0 {
            fs.page_cache.note_emptied(ino);
        }
        let keep = self.seen_change(ino);
        let locked = self.state(ino)?;
        if let Some(change) = &keep
            && size < old
            && size % bs != 0
        {
            fs.keep_block(&locked.cached, &mut locked.state, FileBlock((size / bs) as u32), change)?;
        }
        locked.state.size = size;
        let on_disk = locked.state.inode.size().min(size);
        locked.state.inode.set_size(on_disk);
        if first > u64::from(u32::MAX) || !fs.has_block_map(&locked.state) {
            return Ok(());
        }
        self.remove_range(ino, FileBlock(first as u32), FileBlock(u32::MAX), Removal::Truncated)
    }

    fn allocate(&mut self, ino: Ino, offset: u64, len: u64, how: Allocate) -> Result<()> {
        self.allocate_range(ino, offset, len, how)
    }

    fn seek(&mut self, ino: Ino, offset: u64, to: SeekTo) -> Result<u64> {
        let fs = self.fs;
        let locked = self.state(ino)?;
        fs.check_is_file(&locked.cached, &locked.state)?;
        fs.seek_data(&locked.cached, &locked.state, offset, to)
    }

    fn size_max(&self, flags: u32) -> u64 {
        self.fs.size_max(flags)
    }

    fn has_extents(&self) -> bool {
        self.fs.has_extents()
    }

    fn has_projects(&self) -> bool {
        self.fs.has_projects()
    }

    fn gives_group_of_folder(&self) -> bool {
        self.fs.gives_group_of_folder()
    }

    fn takes_file_mode(&self, mode: DataMode) -> bool {
        self.fs.takes_file_mode(mode)
    }

    fn xattr(&mut self, ino: Ino, name: &[u8]) -> Result<Option<Vec<u8>>> {
        let fs = self.fs;
        let locked = self.state(ino)?;
        fs.xattrs(ino).get(&locked.state.inode, name)
    }

    fn list_xattrs(&mut self, ino: Ino) -> Result<Vec<Vec<u8>>> {
        let fs = self.fs;
        let locked = self.state(ino)?;
        fs.xattrs(ino).list(&locked.state.inode)
    }

    fn set_xattr(&mut self, ino: Ino, name: &[u8], value: Option<&[u8]>) -> Result<()> {
        let fs = self.fs;
        let old = self.xattr(ino, name)?;
        if value.is_some() {
            self.reserve_growth(1, |op| fs.xattrs(ino).growth(&op.state(ino)?.state.inode, name, value))?;
        }
        self.begin_block_change()?;
        self.keep_attr(ino)?;
        if let Some(change) = self.seen_change(ino) {
            let kept = self.state(ino)?.state.versions.keep_xattr(&change, name, old);
            fs.mvcc.note_versioned(ino, &change, kept);
        }
        let (fs, handle, _, state) = self.parts(ino);
        // `set` checks that the value fits before it changes anything.
        fs.xattrs(ino).set(handle, &mut state.inode, name, value)?;
        if name == FILE_MODE {
            self.state(ino)?.cached.forget_file_mode();
        }
        self.touch(ino);
        Ok(())
    }
}

impl Operation<'_> {
    /// Writes to a file that is not inline.
    fn write_pages(&mut self, ino: Ino, offset: u64, data: &[u8]) -> Result<()> {
        let fs = self.fs;
        self.begin_memory_change()?;
        self.keep_attr(ino)?;
        let (keep, privileges) = (self.seen_change(ino), self.privileges());
        let locked = self.state(ino)?;
        fs.write_data(&locked.cached, &mut locked.state, offset, data, keep, privileges)?;
        self.wrote.insert(ino);
        if fs.modes.inode_update == InodeUpdate::Immediate {
            self.update_size_at_once(ino, offset, offset + data.len() as u64)?;
        }
        Ok(())
    }

    /// Makes a file that is not inline longer.
    fn grow(&mut self, ino: Ino, size: u64) -> Result<()> {
        let fs = self.fs;
        self.begin_memory_change()?;
        self.keep_attr(ino)?;
        let (keep, privileges) = (self.seen_change(ino), self.privileges());
        let locked = self.state(ino)?;
        fs.writeback.reserve_inode(&locked.cached)?;
        fs.clear_tail(&locked.cached, &mut locked.state, keep, privileges)?;
        locked.state.size = size;
        locked.state.dirty = true;
        fs.page_cache.mark_dirty_inode(ino);
        self.wrote.insert(ino);
        Ok(())
    }

    /// Moves the size on disk at once through the blocks of the write that already have a place, as
    /// `ext4_da_write_end`. It does not while the block that contains the old end is dirty and its
    /// tail was cleared in memory only: truncated bytes could otherwise reappear (R11).
    fn update_size_at_once(&mut self, ino: Ino, offset: u64, end: u64) -> Result<()> {
        let fs = self.fs;
        let bs = fs.block_bytes();
        let locked = self.state(ino)?;
        let first = FileBlock((offset / bs) as u32);
        let Mapping::Written { len, .. } = fs.extents(ino, &locked.state).map(&locked.state.inode, first)?
        else {
            return Ok(());
        };
        let reached = end.min((u64::from(first.0) + u64::from(len)) * bs);
        let size = locked.state.inode.size();
        locked.state.tail_cleared &= locked.cached.pages.lock().is_dirty((size / bs) as u32);
        if reached > size && !locked.state.tail_cleared {
            self.change_inode(ino)?;
            self.state(ino)?.state.inode.set_size(reached);
        }
        Ok(())
    }
}

impl crate::live::LiveFs {
    pub(in crate::live) fn link_target(
        &self,
        ino: Ino,
        state: &crate::live::inode::cached::InodeState,
    ) -> Result<Vec<u8>> {
        if !state.inode.is_symlink() {
            return Err(Error::Posix(Errno::EINVAL));
        }
        if is_inline(state) {
            return self.inline_contents(ino, state);
        }
        let len = state.inode.size() as usize;
        if len < FAST_LINK_BYTES && state.inode.flags() & flag::EXTENTS == 0 {
            return Ok(state.inode.block_area()[..len].to_vec());
        }
        if len as u64 >= self.block_bytes() {
            return Err(Error::corrupt(Site::Inode(ino), "symbolic link is longer than a block"));
        }
        match self.extents(ino, state).map(&state.inode, FileBlock(0))? {
            Mapping::Written { start, .. } => Ok(self.engine.read(start)?[..len].to_vec()),
            _ => Err(Error::corrupt(Site::Inode(ino), "symbolic link has no block")),
        }
    }
}
