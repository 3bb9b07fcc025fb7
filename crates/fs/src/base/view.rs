//! The base as a [`View`]: each call is one operation, visible to everybody when it returns.

use std::sync::atomic::Ordering::SeqCst;

use xact_consistency::{Fault, ReserveClass};
use xact_types::{Errno, Error, Ino, Result};

use super::Base;
use super::op::Needs;
use super::tree::FAST_LINK_BYTES;
use super::writeback::WriteBack;
use crate::api::{
    Allocate, Attr, Caller, DirItem, Name, RenameHow, SeekTo, SetAttr, View, VolumeSpace, WriteHow, XattrHow,
};
use crate::posix::{self, hint};

/// Bytes that one copy moves under its locks at the most.
const COPY_STEP_BYTES: u64 = 1 << 20;

impl Base {
    /// How often an inode is held ([`View::hold`]).
    pub fn holds(&self, ino: Ino) -> u64 {
        self.cells.peek(ino).map_or(0, |cell| cell.holds.load(SeqCst))
    }

    /// As [`View::hold`], of an inode that is yet to be made: its number is reserved for the caller.
    pub fn hold_reserved(&self, ino: Ino) {
        self.cell_of_free(ino).holds.fetch_add(1, SeqCst);
    }
}

impl View for Base {
    fn lookup(&self, dir: Ino, name: &Name) -> Result<Attr> {
        self.lookup_now(dir, name)
    }

    fn attr(&self, ino: Ino) -> Result<Attr> {
        self.attr_now(ino)
    }

    fn set_attr(&self, caller: &Caller, ino: Ino, change: &SetAttr) -> Result<Attr> {
        let needs = if change.size.is_some() { Needs::REMOVE } else { Needs::CHANGE };
        self.run(&hint::on(ino), needs.by(self.rights(caller)), |tree| {
            posix::set_attr(tree, caller, ino, change)
        })
    }

    fn read_link(&self, ino: Ino) -> Result<Vec<u8>> {
        let target = self.with_shared(ino, |_, state| self.link_target(ino, state))?;
        self.note_access(ino);
        Ok(target)
    }

    fn make_node(&self, caller: &Caller, dir: Ino, name: &Name, mode: u16, rdev: u64) -> Result<Attr> {
        self.run(&hint::within(dir), Needs::ADD.by(self.rights(caller)), |tree| {
            posix::make_node(tree, caller, dir, name, mode, rdev)
        })
    }

    fn make_dir(&self, caller: &Caller, dir: Ino, name: &Name, perm: u16) -> Result<Attr> {
        self.run(&hint::within(dir), Needs::ADD.by(self.rights(caller)), |tree| {
            posix::make_dir(tree, caller, dir, name, perm)
        })
    }

    fn make_symlink(&self, caller: &Caller, dir: Ino, name: &Name, target: &[u8]) -> Result<Attr> {
        let growth = u64::from(target.len() >= FAST_LINK_BYTES);
        let needs = Needs { growth, ..Needs::ADD };
        self.run(&hint::within(dir), needs.by(self.rights(caller)), |tree| {
            posix::make_symlink(tree, caller, dir, name, target)
        })
    }

    fn make_unnamed(&self, caller: &Caller, dir: Ino, perm: u16) -> Result<Attr> {
        self.run(&hint::within(dir), Needs::ADD.by(self.rights(caller)), |tree| {
            posix::make_unnamed(tree, caller, dir, perm)
        })
    }

    fn link(&self, caller: &Caller, ino: Ino, dir: Ino, name: &Name) -> Result<Attr> {
        self.run(&hint::link(ino, dir), Needs::ADD.by(self.rights(caller)), |tree| {
            posix::link(tree, ino, dir, name)
        })
    }

    fn unlink(&self, _: &Caller, dir: Ino, name: &Name) -> Result<()> {
        self.run(&self.with_child(dir, name), Needs::REMOVE, |tree| posix::unlink(tree, dir, name))
    }

    fn remove_dir(&self, _: &Caller, dir: Ino, name: &Name) -> Result<()> {
        self.run(&self.with_child(dir, name), Needs::REMOVE, |tree| posix::remove_dir(tree, dir, name))
    }

    fn rename(&self, caller: &Caller, from: (Ino, &Name), to: (Ino, &Name), how: RenameHow) -> Result<()> {
        self.write_back_before_replacing(from, to)?;
        self.run(&hint::rename(from.0, to.0), Needs::ADD.by(self.rights(caller)), |tree| {
            posix::rename(tree, caller, from, to, how)
        })
    }

    fn read_dir(&self, dir: Ino, cookie: u64, each: &mut dyn FnMut(DirItem<'_>) -> bool) -> Result<()> {
        self.list_now(dir, cookie, each)?;
        self.note_access(dir);
        Ok(())
    }

    fn hold(&self, ino: Ino) -> Result<()> {
        self.with_shared(ino, |cell, _| {
            cell.holds.fetch_add(1, SeqCst);
            Ok(())
        })
    }

    fn release(&self, ino: Ino, count: u64) {
        let Some(cell) = self.cells.peek(ino) else { return };
        let nameless = {
            let state = cell.state.read();
            let before = cell.holds.fetch_sub(count, SeqCst);
            assert!(before >= count, "more releases than holds of {ino}");
            before == count && state.live && state.inode.links_count() == 0
        };
        drop(cell);
        if nameless && !self.engine.is_read_only() {
            // A failure poisons the volume; the caller has nobody to tell.
            let _ = self.delete_if_unused(ino);
        }
    }

    fn is_in_memory(&self, ino: Ino, offset: u64, len: u64) -> bool {
        let Some(cell) = self.cells.peek(ino) else { return false };
        let Some(state) = cell.state.try_read() else { return false };
        let end = offset.saturating_add(len).min(state.size);
        let block = self.block_bytes();
        let pages = cell.pages.lock();
        (offset / block..end.div_ceil(block)).all(|at| pages.map.contains_key(&(at as u32)))
    }

    fn read(&self, ino: Ino, offset: u64, len: usize, out: &mut Vec<u8>) -> Result<()> {
        self.read_now(ino, offset, len, out)?;
        if len > 0 {
            self.note_access(ino);
        }
        Ok(())
    }

    fn write(&self, ino: Ino, offset: u64, data: &[u8], how: WriteHow) -> Result<u64> {
        self.throttle(ino)?;
        let needs = Needs::CHANGE.by(self.rights(&how.by));
        self.run(&hint::on(ino), needs, |tree| posix::write(tree, ino, offset, data, how))
    }

    fn allocate(&self, caller: &Caller, ino: Ino, offset: u64, len: u64, how: Allocate) -> Result<()> {
        // Pages that wait for a block are written first, so that the range is mapped or a hole.
        let cell = self.cell(ino)?;
        self.write_back(&cell, WriteBack::DATA)?;
        let room = if how == Allocate::PunchHole { ReserveClass::Removal } else { ReserveClass::Any };
        let needs = Needs { room, ..Needs::REMOVE }.by(self.rights(caller));
        self.run(&hint::on(ino), needs, |tree| posix::allocate(tree, caller, ino, offset, len, how))
    }

    fn copy_range(&self, from: (Ino, u64), to: (Ino, u64), len: u64, how: WriteHow) -> Result<u64> {
        let mut copied = 0;
        while copied < len {
            self.throttle(to.0)?;
            let (source, target) = ((from.0, from.1 + copied), (to.0, to.1 + copied));
            let step = (len - copied).min(COPY_STEP_BYTES);
            let needs = Needs::CHANGE.by(self.rights(&how.by));
            let result = self.run(&hint::copy_range(from.0, to.0), needs, |tree| {
                posix::copy_range(tree, source, target, step, how)
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
        self.with_shared(ino, |cell, state| {
            if !state.inode.is_regular() {
                return Err(Error::Posix(Errno::EINVAL));
            }
            self.seek_data(cell, state, offset, to)
        })
    }

    fn sync_file(&self, ino: Ino, data_only: bool) -> Result<()> {
        self.engine.health()?;
        let cell = self.cell(ino)?;
        self.sync_cell(&cell, data_only)
    }

    fn sync_all(&self) -> Result<()> {
        self.engine.health()?;
        self.write_back_all(None)?;
        self.engine.sync()
    }

    fn xattr(&self, ino: Ino, name: &[u8]) -> Result<Vec<u8>> {
        self.run(&hint::on(ino), Needs::CHANGE, |tree| posix::xattr(tree, ino, name))
    }

    fn list_xattrs(&self, ino: Ino) -> Result<Vec<Vec<u8>>> {
        self.with_shared(ino, |_, state| self.xattrs(ino).list(&state.inode))
    }

    fn set_xattr(&self, caller: &Caller, ino: Ino, name: &[u8], value: &[u8], how: XattrHow) -> Result<()> {
        self.run(&hint::on(ino), Needs::ADD.by(self.rights(caller)), |tree| {
            posix::set_xattr(tree, ino, name, value, how)
        })
    }

    fn remove_xattr(&self, _: &Caller, ino: Ino, name: &[u8]) -> Result<()> {
        self.run(&hint::on(ino), Needs::REMOVE, |tree| posix::remove_xattr(tree, ino, name))
    }

    fn space(&self) -> Result<VolumeSpace> {
        self.allocator.space()
    }
}

impl Base {
    /// The directory and what the name points at now, so that both are locked at the first try.
    fn with_child(&self, dir: Ino, name: &Name) -> Vec<Ino> {
        let child = self.with_shared(dir, |_, state| self.find_entry(dir, state, name));
        std::iter::once(dir).chain(child.ok().flatten().map(|entry| entry.ino)).collect()
    }

    /// ext4's protection of "write a new file, rename it over the old one" without fsync
    /// (`auto_da_alloc`): the new file's data is on the device before the rename commits, and its size,
    /// which may have grown without any data.
    fn write_back_before_replacing(&self, from: (Ino, &Name), to: (Ino, &Name)) -> Result<()> {
        let replaced = self.with_shared(to.0, |_, state| self.find_entry(to.0, state, to.1));
        if !matches!(replaced, Ok(Some(_))) || self.options.faults.has(Fault::RenameBeforeData) {
            return Ok(());
        }
        let source = self.with_shared(from.0, |_, state| self.find_entry(from.0, state, from.1));
        let Ok(Some(entry)) = source else { return Ok(()) };
        let Some(cell) = self.cells.peek(entry.ino) else { return Ok(()) };
        self.write_back(&cell, WriteBack::DATA)
    }
}
