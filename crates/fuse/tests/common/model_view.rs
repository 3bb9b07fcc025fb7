//! The model of a volume: a tree in memory, as a view.

use std::sync::Arc;

use parking_lot::Mutex;
use xact_fs::inode_ops::mem::MemTree;
use xact_fs::*;
use xact_types::{Ino, Result, unix_seconds};

/// A view over a tree in memory, which histories are replayed on.
pub struct ModelView(Mutex<MemTree>);

impl ModelView {
    pub fn with(tree: MemTree) -> Arc<ModelView> {
        Arc::new(ModelView(Mutex::new(tree)))
    }

    /// The tree as it is now.
    pub fn tree(&self) -> MemTree {
        self.0.lock().clone()
    }

    fn run<T>(&self, operation: impl FnOnce(&mut MemTree) -> Result<T>) -> Result<T> {
        let mut tree = self.0.lock();
        tree.set_clock(unix_seconds());
        operation(&mut tree)
    }
}

impl View for ModelView {
    fn lookup(&self, dir: Ino, name: &Name) -> Result<Attr> {
        self.run(|t| posix::lookup(t, dir, name))
    }
    fn attr(&self, ino: Ino) -> Result<Attr> {
        self.run(|t| posix::attr(t, ino))
    }
    fn set_attr(&self, caller: &Caller, ino: Ino, change: &SetAttr) -> Result<Attr> {
        self.run(|t| posix::set_attr(t, caller, ino, change))
    }
    fn read_link(&self, ino: Ino) -> Result<Vec<u8>> {
        self.run(|t| posix::read_link(t, ino))
    }
    fn make_node(&self, caller: &Caller, dir: Ino, name: &Name, mode: u16, rdev: u64) -> Result<Attr> {
        self.run(|t| posix::make_node(t, caller, dir, name, mode, rdev))
    }
    fn make_dir(&self, caller: &Caller, dir: Ino, name: &Name, perm: u16) -> Result<Attr> {
        self.run(|t| posix::make_dir(t, caller, dir, name, perm))
    }
    fn make_symlink(&self, caller: &Caller, dir: Ino, name: &Name, target: &[u8]) -> Result<Attr> {
        self.run(|t| posix::make_symlink(t, caller, dir, name, target))
    }
    fn make_unnamed(&self, caller: &Caller, dir: Ino, perm: u16) -> Result<Attr> {
        self.run(|t| posix::make_unnamed(t, caller, dir, perm))
    }
    fn link(&self, _: &Caller, ino: Ino, dir: Ino, name: &Name) -> Result<Attr> {
        self.run(|t| posix::link(t, ino, dir, name))
    }
    fn unlink(&self, _: &Caller, dir: Ino, name: &Name) -> Result<()> {
        self.run(|t| posix::unlink(t, dir, name))
    }
    fn remove_dir(&self, _: &Caller, dir: Ino, name: &Name) -> Result<()> {
        self.run(|t| posix::remove_dir(t, dir, name))
    }
    fn rename(&self, caller: &Caller, from: (Ino, &Name), to: (Ino, &Name), how: RenameHow) -> Result<()> {
        self.run(|t| posix::rename(t, caller, from, to, how))
    }
    fn read_dir(&self, dir: Ino, cookie: u64, each: &mut dyn FnMut(DirItem<'_>) -> bool) -> Result<()> {
        self.run(|t| posix::read_dir(t, dir, cookie, each))
    }
    fn hold(&self, ino: Ino) -> Result<()> {
        self.run(|t| t.hold(ino))
    }
    fn release(&self, ino: Ino, count: u64) {
        let _ = self.run(|t| {
            t.release(ino, count);
            Ok(())
        });
    }
    fn read(&self, ino: Ino, offset: u64, len: usize, out: &mut Vec<u8>) -> Result<()> {
        self.run(|t| posix::read(t, ino, offset, len, out))
    }
    fn write(&self, ino: Ino, offset: u64, data: &[u8], how: WriteHow) -> Result<Written> {
        self.run(|t| posix::write(t, ino, offset, data, how))
    }
    fn allocate(&self, caller: &Caller, ino: Ino, offset: u64, len: u64, how: Allocate) -> Result<()> {
        self.run(|t| posix::allocate(t, caller, ino, offset, len, how))
    }
    fn copy_range(&self, from: (Ino, u64), to: (Ino, u64), len: u64, how: WriteHow) -> Result<u64> {
        self.run(|t| posix::copy_range(t, from, to, len, how))
    }
    fn seek(&self, ino: Ino, offset: u64, to: SeekTo) -> Result<u64> {
        self.run(|t| posix::seek(t, ino, offset, to))
    }
    fn sync_file(&self, _: Ino, _: bool) -> Result<()> {
        Ok(())
    }
    fn sync_all(&self) -> Result<()> {
        Ok(())
    }
    fn xattr(&self, ino: Ino, name: &[u8]) -> Result<Vec<u8>> {
        self.run(|t| posix::xattr(t, ino, name))
    }
    fn list_xattrs(&self, ino: Ino) -> Result<Vec<Vec<u8>>> {
        self.run(|t| posix::list_xattrs(t, ino))
    }
    fn set_xattr(&self, caller: &Caller, ino: Ino, name: &[u8], value: &[u8], how: XattrHow) -> Result<()> {
        self.run(|t| posix::set_xattr(t, caller, ino, name, value, how))
    }
    fn remove_xattr(&self, caller: &Caller, ino: Ino, name: &[u8]) -> Result<()> {
        self.run(|t| posix::remove_xattr(t, caller, ino, name))
    }
    fn space(&self) -> Result<VolumeSpace> {
        let (blocks, inodes) = (1 << 20, 1 << 16);
        Ok(VolumeSpace {
            block_size: 4096,
            blocks,
            free_blocks: blocks / 2,
            available_blocks: blocks / 4,
            inodes,
            free_inodes: inodes - 11,
        })
    }
}
