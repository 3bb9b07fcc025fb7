//! The operations of a transaction; each runs the same code as outside ([`xact_fs::posix`]).

use parking_lot::RwLockUpgradableReadGuard;
use xact_fs::posix;
use xact_fs::{
    Allocate, Attr, Caller, DirItem, Entry, InodeOps, Name, RenameHow, SeekTo, SetAttr, VersionedFs, View,
    VolumeSpace, WriteHow, Written, XattrHow,
};
use xact_types::{Ino, Result};

use super::Transaction;
use crate::tx_tree::{Access, TxTree};

impl<B: VersionedFs> View for Transaction<B> {
    fn lookup(&self, dir: Ino, name: &Name) -> Result<Attr> {
        self.look(|tree| posix::lookup(tree, dir, name))
    }

    fn resolve(&self, dir: Ino, name: &Name) -> Result<Entry> {
        self.look(|tree| posix::resolve(tree, dir, name))
    }

    fn attr(&self, ino: Ino) -> Result<Attr> {
        self.look(|tree| posix::attr(tree, ino))
    }

    fn set_attr(&self, caller: &Caller, ino: Ino, change: &SetAttr) -> Result<Attr> {
        self.change(|tree| posix::set_attr(tree, caller, ino, change))
    }

    fn read_link(&self, ino: Ino) -> Result<Vec<u8>> {
        self.look(|tree| posix::read_link(tree, ino))
    }

    fn make_node(&self, caller: &Caller, dir: Ino, name: &Name, mode: u16, rdev: u64) -> Result<Attr> {
        self.change(|tree| posix::make_node(tree, caller, dir, name, mode, rdev))
    }

    fn make_dir(&self, caller: &Caller, dir: Ino, name: &Name, perm: u16) -> Result<Attr> {
        self.change(|tree| posix::make_dir(tree, caller, dir, name, perm))
    }

    fn make_symlink(&self, caller: &Caller, dir: Ino, name: &Name, target: &[u8]) -> Result<Attr> {
        self.change(|tree| posix::make_symlink(tree, caller, dir, name, target))
    }

    fn make_unnamed(&self, caller: &Caller, dir: Ino, perm: u16) -> Result<Attr> {
        self.change(|tree| posix::make_unnamed(tree, caller, dir, perm))
    }

    fn link(&self, _caller: &Caller, ino: Ino, dir: Ino, name: &Name) -> Result<Attr> {
        self.change(|tree| posix::link(tree, ino, dir, name))
    }

    fn unlink(&self, _caller: &Caller, dir: Ino, name: &Name) -> Result<()> {
        self.change(|tree| posix::unlink(tree, dir, name))
    }

    fn remove_dir(&self, _caller: &Caller, dir: Ino, name: &Name) -> Result<()> {
        self.change(|tree| posix::remove_dir(tree, dir, name))
    }

    fn rename(&self, caller: &Caller, from: (Ino, &Name), to: (Ino, &Name), how: RenameHow) -> Result<()> {
        self.change(|tree| posix::rename(tree, caller, from, to, how))
    }

    fn read_dir(&self, dir: Ino, cookie: u64, each: &mut dyn FnMut(DirItem<'_>) -> bool) -> Result<()> {
        self.look(|tree| posix::read_dir(tree, dir, cookie, each))
    }

    fn hold(&self, ino: Ino) -> Result<()> {
        let inner = self.inner.upgradable_read();
        inner.check_active()?;
        if inner.overlay.nodes.get(&ino).is_some_and(|node| node.born) {
            let mut inner = RwLockUpgradableReadGuard::upgrade(inner);
            let node = inner.overlay.nodes.get_mut(&ino).expect("found above");
            node.holds += 1;
            return Ok(());
        }
        // The base's inodes stay readable as long as the view is open.
        let mut tree = TxTree::new(&*self.base, inner.stamp, Access::Shared(&inner.overlay), &self.reads);
        tree.pins = Some(&inner.pins);
        let result = tree.attr(ino).map(drop);
        inner.note_failure(&result);
        result
    }

    fn release(&self, ino: Ino, count: u64) {
        // A transaction that has ended has no holds.
        let _ = self.change_in(&mut self.inner.write(), |tree| {
            tree.release(ino, count);
            Ok(())
        });
    }

    fn size(&self, ino: Ino) -> Result<u64> {
        self.look(|tree| Ok(tree.attr(ino)?.size))
    }

    fn read(&self, ino: Ino, offset: u64, len: usize, out: &mut Vec<u8>) -> Result<()> {
        self.look(|tree| posix::read(tree, ino, offset, len, out))
    }

    fn write(&self, ino: Ino, offset: u64, data: &[u8], how: WriteHow) -> Result<Written> {
        self.add_contents(|tree| posix::write(tree, ino, offset, data, how))
    }

    fn allocate(&self, caller: &Caller, ino: Ino, offset: u64, len: u64, how: Allocate) -> Result<()> {
        self.change(|tree| posix::allocate(tree, caller, ino, offset, len, how))
    }

    fn copy_range(&self, from: (Ino, u64), to: (Ino, u64), len: u64, how: WriteHow) -> Result<u64> {
        self.add_contents(|tree| posix::copy_range(tree, from, to, len, how))
    }

    fn seek(&self, ino: Ino, offset: u64, to: SeekTo) -> Result<u64> {
        self.look(|tree| posix::seek(tree, ino, offset, to))
    }

    fn sync_file(&self, _ino: Ino, _data_only: bool) -> Result<()> {
        // Only the commit makes changes durable.
        self.inner.read().check_active()
    }

    fn sync_all(&self) -> Result<()> {
        self.inner.read().check_active()
    }

    fn xattr(&self, ino: Ino, name: &[u8]) -> Result<Vec<u8>> {
        self.look(|tree| posix::xattr(tree, ino, name))
    }

    fn list_xattrs(&self, ino: Ino) -> Result<Vec<Vec<u8>>> {
        self.look(|tree| posix::list_xattrs(tree, ino))
    }

    fn set_xattr(&self, caller: &Caller, ino: Ino, name: &[u8], value: &[u8], how: XattrHow) -> Result<()> {
        self.change(|tree| posix::set_xattr(tree, caller, ino, name, value, how))
    }

    fn remove_xattr(&self, caller: &Caller, ino: Ino, name: &[u8]) -> Result<()> {
        self.change(|tree| posix::remove_xattr(tree, caller, ino, name))
    }

    fn space(&self) -> Result<VolumeSpace> {
        self.inner.read().check_active()?;
        self.base.space()
    }
}
