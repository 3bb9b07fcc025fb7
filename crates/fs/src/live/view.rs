//! [`View`] of the live volume: each call is one operation, visible to all when it returns.

use std::sync::atomic::Ordering::SeqCst;

use xact_consistency::{Fault, ReserveClass};
use xact_types::{Errno, Error, Ino, Result};

use crate::api::{
    Allocate, Attr, Caller, DirItem, Name, RenameHow, SeekTo, SetAttr, View, VolumeSpace, WriteHow, Written,
    XattrHow,
};
use crate::live::LiveFs;
use crate::live::data::writeback::WritebackRequest;
use crate::live::op::Budget;
use crate::live::op::FAST_LINK_BYTES;
use crate::posix::{self, lock_hint};

/// Maximum bytes that one step of a copy moves under its locks.
const COPY_STEP_BYTES: u64 = 1 << 20;

impl LiveFs {
    /// Number of holds of an inode ([`View::hold`]).
    pub fn holds(&self, ino: Ino) -> u64 {
        self.inodes.holds(ino)
    }

    /// As [`View::hold`], for an inode that does not exist yet: its number is reserved for the
    /// caller.
    pub fn hold_reserved(&self, ino: Ino) {
        self.inodes.get_free(ino).holds.fetch_add(1, SeqCst);
    }
}

impl View for LiveFs {
    fn lookup(&self, dir: Ino, name: &Name) -> Result<Attr> {
        self.lookup_now(dir, name)
    }

    fn attr(&self, ino: Ino) -> Result<Attr> {
        self.attr_now(ino)
    }

    fn set_attr(&self, caller: &Caller, ino: Ino, change: &SetAttr) -> Result<Attr> {
        let budget = if change.size.is_some() { Budget::REMOVE } else { Budget::CHANGE };
        self.run(&lock_hint::on(ino), budget.by(self.privileges(caller)), |op| {
            posix::set_attr(op, caller, ino, change)
        })
    }

    fn read_link(&self, ino: Ino) -> Result<Vec<u8>> {
        let target = self.with_shared(ino, |_, state| self.link_target(ino, state))?;
        self.note_access(ino);
        Ok(target)
    }

    fn make_node(&self, caller: &Caller, dir: Ino, name: &Name, mode: u16, rdev: u64) -> Result<Attr> {
        self.run(&lock_hint::within(dir), Budget::ADD.by(self.privileges(caller)), |op| {
            posix::make_node(op, caller, dir, name, mode, rdev)
        })
    }

    fn by_handle(&self, ino: Ino) -> Result<Attr> {
        if self.is_own_inode(ino) {
            return Err(Error::Posix(Errno::ESTALE));
        }
        let attr = self.attr(ino)?;
        if attr.nlink == 0 { Err(Error::Posix(Errno::ESTALE)) } else { Ok(attr) }
    }

    fn make_dir(&self, caller: &Caller, dir: Ino, name: &Name, perm: u16) -> Result<Attr> {
        self.run(&lock_hint::within(dir), Budget::ADD.by(self.privileges(caller)), |op| {
            posix::make_dir(op, caller, dir, name, perm)
        })
    }

    fn make_symlink(&self, caller: &Caller, dir: Ino, name: &Name, target: &[u8]) -> Result<Attr> {
        let growth = u64::from(target.len() >= FAST_LINK_BYTES);
        let budget = Budget { growth, ..Budget::ADD };
        self.run(&lock_hint::within(dir), budget.by(self.privileges(caller)), |op| {
            posix::make_symlink(op, caller, dir, name, target)
        })
    }

    fn make_unnamed(&self, caller: &Caller, dir: Ino, perm: u16) -> Result<Attr> {
        self.run(&lock_hint::within(dir), Budget::ADD.by(self.privileges(caller)), |op| {
            posix::make_unnamed(op, caller, dir, perm)
        })
    }

    fn link(&self, caller: &Caller, ino: Ino, dir: Ino, name: &Name) -> Result<Attr> {
        self.run(&lock_hint::link(ino, dir), Budget::ADD.by(self.privileges(caller)), |op| {
            posix::link(op, ino, dir, name)
        })
    }

    fn unlink(&self, _: &Caller, dir: Ino, name: &Name) -> Result<()> {
        self.run(&self.with_child(dir, name), Budget::REMOVE, |op| posix::unlink(op, dir, name))
    }

    fn remove_dir(&self, _: &Caller, dir: Ino, name: &Name) -> Result<()> {
        self.run(&self.with_child(dir, name), Budget::REMOVE, |op| posix::remove_dir(op, dir, name))
    }

    fn rename(&self, caller: &Caller, from: (Ino, &Name), to: (Ino, &Name), how: RenameHow) -> Result<()> {
        self.write_back_before_replacing(from, to)?;
        self.run(&lock_hint::rename(from.0, to.0), Budget::ADD.by(self.privileges(caller)), |op| {
            posix::rename(op, caller, from, to, how)
        })
    }

    fn read_dir(&self, dir: Ino, cookie: u64, each: &mut dyn FnMut(DirItem<'_>) -> bool) -> Result<()> {
        self.list_now(dir, cookie, each)?;
        self.note_access(dir);
        Ok(())
    }

    fn hold(&self, ino: Ino) -> Result<()> {
        self.with_shared(ino, |cached, _| {
            cached.holds.fetch_add(1, SeqCst);
            Ok(())
        })
    }

    fn release(&self, ino: Ino, count: u64) {
        let Some(cached) = self.inodes.peek(ino) else { return };
        let nameless = {
            let state = cached.state.read();
            let before = cached.holds.fetch_sub(count, SeqCst);
            assert!(before >= count, "more releases than holds of {ino}");
            before == count && state.live && state.inode.links_count() == 0
        };
        drop(cached);
        if nameless && !self.engine.is_read_only() {
            // A failure poisons the volume; the caller cannot return an error.
            let _ = self.delete_if_unused(ino);
        }
    }

    fn is_in_memory(&self, ino: Ino, offset: u64, len: u64) -> bool {
        let Some(cached) = self.inodes.peek(ino) else { return false };
        let Some(state) = cached.state.try_read() else { return false };
        let end = offset.saturating_add(len).min(state.size);
        let block = self.block_bytes();
        cached.pages.lock().has_all(offset / block..end.div_ceil(block))
    }

    fn read(&self, ino: Ino, offset: u64, len: usize, out: &mut Vec<u8>) -> Result<()> {
        self.read_now(ino, offset, len, out)?;
        if len > 0 {
            self.note_access(ino);
        }
        Ok(())
    }

    fn write(&self, ino: Ino, offset: u64, data: &[u8], how: WriteHow) -> Result<Written> {
        self.throttle(ino)?;
        let budget = Budget::CHANGE.by(self.privileges(&how.by));
        let written = self.run(&lock_hint::on(ino), budget, |op| {
            let written = posix::write(op, ino, offset, data, how)?;
            op.note_part(ino, how.is_part);
            Ok(written)
        });
        if written.is_err() {
            self.writeback.parts.end(ino);
        }
        written
    }

    fn end_write(&self, ino: Ino) {
        self.writeback.parts.end(ino);
    }

    fn allocate(&self, caller: &Caller, ino: Ino, offset: u64, len: u64, how: Allocate) -> Result<()> {
        // Pages without a block are written first, so that every block of the range is mapped or a
        // hole.
        let cached = self.cached_inode(ino)?;
        self.write_back(&cached, WritebackRequest::DATA)?;
        let class = if how == Allocate::PunchHole { ReserveClass::Removal } else { ReserveClass::Any };
        let budget = Budget { class, ..Budget::REMOVE }.by(self.privileges(caller));
        self.run(&lock_hint::on(ino), budget, |op| posix::allocate(op, caller, ino, offset, len, how))
    }

    fn copy_range(&self, from: (Ino, u64), to: (Ino, u64), len: u64, how: WriteHow) -> Result<u64> {
        let mut copied = 0;
        while copied < len {
            self.throttle(to.0)?;
            let (source, target) = ((from.0, from.1 + copied), (to.0, to.1 + copied));
            let step = (len - copied).min(COPY_STEP_BYTES);
            let budget = Budget::CHANGE.by(self.privileges(&how.by));
            let result = self.run(&lock_hint::copy_range(from.0, to.0), budget, |op| {
                posix::copy_range(op, source, target, step, how)
            });
            match result {
                Ok(0) => break,
                Ok(count) => copied += count,
                Err(_) if copied > 0 => break,
                Err(error) => return Err(error),
            }
        }
        Ok(copied)
    }

    fn seek(&self, ino: Ino, offset: u64, to: SeekTo) -> Result<u64> {
        self.with_shared(ino, |cached, state| {
            if !state.inode.is_regular() {
                return Err(Error::Posix(Errno::EINVAL));
            }
            self.seek_data(cached, state, offset, to)
        })
    }

    fn sync_file(&self, ino: Ino, data_only: bool) -> Result<()> {
        self.engine.health()?;
        let cached = self.cached_inode(ino)?;
        self.sync_inode(&cached, data_only)
    }

    fn sync_all(&self) -> Result<()> {
        self.engine.health()?;
        self.write_back_all(None)?;
        self.engine.sync()
    }

    fn xattr(&self, ino: Ino, name: &[u8]) -> Result<Vec<u8>> {
        self.run(&lock_hint::on(ino), Budget::CHANGE, |op| posix::xattr(op, ino, name))
    }

    fn list_xattrs(&self, ino: Ino) -> Result<Vec<Vec<u8>>> {
        self.with_shared(ino, |_, state| self.xattrs(ino).list(&state.inode))
    }

    fn set_xattr(&self, caller: &Caller, ino: Ino, name: &[u8], value: &[u8], how: XattrHow) -> Result<()> {
        self.run(&lock_hint::on(ino), Budget::ADD.by(self.privileges(caller)), |op| {
            posix::set_xattr(op, caller, ino, name, value, how)
        })
    }

    fn remove_xattr(&self, caller: &Caller, ino: Ino, name: &[u8]) -> Result<()> {
        self.run(&lock_hint::on(ino), Budget::REMOVE, |op| posix::remove_xattr(op, caller, ino, name))
    }

    fn space(&self) -> Result<VolumeSpace> {
        let space = self.allocator.space()?;
        Ok(match self.options.minix_df {
            true => VolumeSpace { blocks: self.sb.blocks_count(), ..space },
            false => space,
        })
    }
}

impl LiveFs {
    /// The directory and the inode of the name, so that the first attempt locks both.
    fn with_child(&self, dir: Ino, name: &Name) -> Vec<Ino> {
        let child = self.with_shared(dir, |_, state| self.find_entry(dir, state, name));
        std::iter::once(dir).chain(child.ok().flatten().map(|entry| entry.ino)).collect()
    }

    /// ext4's protection of "write a new file, rename it over the old one" without fsync
    /// (`auto_da_alloc`): the new file's data and size are on the device before the rename commits.
    /// The size may have grown without any data.
    fn write_back_before_replacing(&self, from: (Ino, &Name), to: (Ino, &Name)) -> Result<()> {
        let replaced = self.with_shared(to.0, |_, state| self.find_entry(to.0, state, to.1));
        if !matches!(replaced, Ok(Some(_))) || self.options.faults.has(Fault::RenameBeforeData) {
            return Ok(());
        }
        let source = self.with_shared(from.0, |_, state| self.find_entry(from.0, state, from.1));
        let Ok(Some(entry)) = source else { return Ok(()) };
        let Some(cached) = self.inodes.peek(entry.ino) else { return Ok(()) };
        self.write_back(&cached, WritebackRequest::DATA)
    }
}
