//! [`View`] of the file system in memory, for operations outside transactions.

use xact_fs::posix;
use xact_fs::{
    Allocate, Attr, Caller, DirItem, InodeOps, Name, RenameHow, SeekTo, SetAttr, View, VolumeSpace, WriteHow,
    Written, XattrHow,
};
use xact_types::{Ino, Result};

use super::MemFs;

/// Operations outside transactions.
impl View for MemFs {
    fn lookup(&self, dir: Ino, name: &Name) -> Result<Attr> {
        self.outside(|t| posix::lookup(t, dir, name))
    }

    fn attr(&self, ino: Ino) -> Result<Attr> {
        self.outside(|t| posix::attr(t, ino))
    }

    fn set_attr(&self, caller: &Caller, ino: Ino, change: &SetAttr) -> Result<Attr> {
        self.outside(|t| posix::set_attr(t, caller, ino, change))
    }

    fn read_link(&self, ino: Ino) -> Result<Vec<u8>> {
        self.outside(|t| posix::read_link(t, ino))
    }

    fn make_node(&self, caller: &Caller, dir: Ino, name: &Name, mode: u16, rdev: u64) -> Result<Attr> {
        self.outside(|t| posix::make_node(t, caller, dir, name, mode, rdev))
    }

    fn make_dir(&self, caller: &Caller, dir: Ino, name: &Name, perm: u16) -> Result<Attr> {
        self.outside(|t| posix::make_dir(t, caller, dir, name, perm))
    }

    fn make_symlink(&self, caller: &Caller, dir: Ino, name: &Name, target: &[u8]) -> Result<Attr> {
        self.outside(|t| posix::make_symlink(t, caller, dir, name, target))
    }

    fn make_unnamed(&self, caller: &Caller, dir: Ino, perm: u16) -> Result<Attr> {
        self.outside(|t| posix::make_unnamed(t, caller, dir, perm))
    }

    fn link(&self, _: &Caller, ino: Ino, dir: Ino, name: &Name) -> Result<Attr> {
        self.outside(|t| posix::link(t, ino, dir, name))
    }

    fn unlink(&self, _: &Caller, dir: Ino, name: &Name) -> Result<()> {
        self.outside(|t| posix::unlink(t, dir, name))
    }

    fn remove_dir(&self, _: &Caller, dir: Ino, name: &Name) -> Result<()> {
        self.outside(|t| posix::remove_dir(t, dir, name))
    }

    fn rename(&self, caller: &Caller, from: (Ino, &Name), to: (Ino, &Name), how: RenameHow) -> Result<()> {
        self.outside(|t| posix::rename(t, caller, from, to, how))
    }

    fn read_dir(&self, dir: Ino, cookie: u64, each: &mut dyn FnMut(DirItem<'_>) -> bool) -> Result<()> {
        self.outside(|t| posix::read_dir(t, dir, cookie, each))
    }

    fn hold(&self, ino: Ino) -> Result<()> {
        self.outside(|t| t.hold(ino))
    }

    fn release(&self, ino: Ino, count: u64) {
        self.outside(|t| t.release(ino, count));
    }

    fn read(&self, ino: Ino, offset: u64, len: usize, out: &mut Vec<u8>) -> Result<()> {
        self.outside(|t| posix::read(t, ino, offset, len, out))
    }

    fn write(&self, ino: Ino, offset: u64, data: &[u8], how: WriteHow) -> Result<Written> {
        self.outside(|t| posix::write(t, ino, offset, data, how))
    }

    fn allocate(&self, caller: &Caller, ino: Ino, offset: u64, len: u64, how: Allocate) -> Result<()> {
        self.outside(|t| posix::allocate(t, caller, ino, offset, len, how))
    }

    fn copy_range(&self, from: (Ino, u64), to: (Ino, u64), len: u64, how: WriteHow) -> Result<u64> {
        self.outside(|t| posix::copy_range(t, from, to, len, how))
    }

    fn seek(&self, ino: Ino, offset: u64, to: SeekTo) -> Result<u64> {
        self.outside(|t| posix::seek(t, ino, offset, to))
    }

    fn sync_file(&self, _: Ino, _: bool) -> Result<()> {
        Ok(())
    }

    fn sync_all(&self) -> Result<()> {
        Ok(())
    }

    fn xattr(&self, ino: Ino, name: &[u8]) -> Result<Vec<u8>> {
        self.outside(|t| posix::xattr(t, ino, name))
    }

    fn list_xattrs(&self, ino: Ino) -> Result<Vec<Vec<u8>>> {
        self.outside(|t| posix::list_xattrs(t, ino))
    }

    fn set_xattr(&self, caller: &Caller, ino: Ino, name: &[u8], value: &[u8], how: XattrHow) -> Result<()> {
        self.outside(|t| posix::set_xattr(t, caller, ino, name, value, how))
    }

    fn remove_xattr(&self, caller: &Caller, ino: Ino, name: &[u8]) -> Result<()> {
        self.outside(|t| posix::remove_xattr(t, caller, ino, name))
    }

    fn space(&self) -> Result<VolumeSpace> {
        Ok(VolumeSpace {
            block_size: self.block_size,
            blocks: 0,
            free_blocks: 0,
            available_blocks: 0,
            inodes: 0,
            free_inodes: 0,
        })
    }
}
