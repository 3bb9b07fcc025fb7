//! [`InodeOps`] of a transaction: its overlay over the base as of its stamp. Reads of the base are
//! recorded.

mod contents;

use parking_lot::Mutex;
use xact_fs::quota::Payer;
use xact_fs::{
    Allocate, Attr, AttrChange, AttrSet, DataMode, DirItem, Entry, FileKind, InodeOps, Name, NewInode,
    SeekTo, SpaceLimits, Stamp, VersionedFs, is_persisted_folder,
};
use xact_types::{Errno, Error, Ino, Result, Timestamp};

use crate::contention::open_writes::OpenEntry;
use crate::overlay::{ADDED_COOKIES, Node, Overlay};
use crate::partial::pins::Pins;
use crate::validation::conflict::OPEN_HAS_WRITTEN;
use crate::validation::read_set::ReadSet;
use crate::validation::write_set::{Write, compared_attrs};

/// The overlay, for reading or for changes.
pub(crate) enum Access<'a> {
    Shared(&'a Overlay),
    Exclusive(&'a mut Overlay),
}

pub(crate) struct TxTree<'a, B: VersionedFs> {
    pub base: &'a B,
    /// The space that the transaction holds, if the operation may change it.
    pub space: Option<&'a B::Space>,
    pub stamp: Stamp,
    pub overlay: Access<'a>,
    pub reads: &'a Mutex<ReadSet>,
    /// Items that are read as of an older view.
    pub pins: Option<&'a Pins>,
    /// The transaction among the open ones, if the operation may change it.
    pub entry: Option<&'a OpenEntry>,
    /// Whether this operation has changed the overlay.
    pub changed: bool,
    /// Nodes that the operation may have changed, with the bytes that each used before.
    pub touched: Vec<(Ino, usize)>,
    /// A rollback may restore dropped items.
    pub has_savepoints: bool,
    /// Whether the folder of persisted transactions is visible, for internal transactions that
    /// change it.
    pub sees_persisted: bool,
}

impl<'a, B: VersionedFs> TxTree<'a, B> {
    pub fn new(base: &'a B, stamp: Stamp, overlay: Access<'a>, reads: &'a Mutex<ReadSet>) -> Self {
        TxTree {
            base,
            space: None,
            stamp,
            overlay,
            reads,
            pins: None,
            entry: None,
            changed: false,
            touched: Vec::new(),
            has_savepoints: false,
            sees_persisted: false,
        }
    }

    /// The view as of which an inode is read.
    fn stamp_of(&self, ino: Ino) -> Stamp {
        self.pins.and_then(|pins| pins.stamp_of(ino)).unwrap_or(self.stamp)
    }

    fn stamp_of_name(&self, dir: Ino, name: &Name) -> Stamp {
        self.pins.and_then(|pins| pins.stamp_of_name(dir, name)).unwrap_or(self.stamp)
    }

    fn held(&self) -> &'a B::Space {
        self.space.expect("a changing operation has it")
    }

    pub(crate) fn overlay(&self) -> &Overlay {
        match &self.overlay {
            Access::Shared(overlay) => overlay,
            Access::Exclusive(overlay) => overlay,
        }
    }

    pub(crate) fn overlay_mut(&mut self) -> &mut Overlay {
        match &mut self.overlay {
            Access::Shared(_) => unreachable!("a reading operation has tried to change something"),
            Access::Exclusive(overlay) => overlay,
        }
    }

    pub(crate) fn node(&self, ino: Ino) -> Option<&Node> {
        self.overlay().nodes.get(&ino)
    }

    pub(crate) fn is_born(&self, ino: Ino) -> bool {
        self.node(ino).is_some_and(|node| node.born)
    }

    /// The inode's node, for a change. All changes of the overlay use this function.
    pub(crate) fn node_mut(&mut self, ino: Ino) -> Result<&mut Node> {
        self.note_write(ino, &Write::Any)?;
        self.touch(ino);
        if self.node(ino).is_none() {
            let origin = self.base.attr_at(ino, self.stamp_of(ino))?;
            self.overlay_mut().nodes.insert(ino, Node::new(origin, false));
        }
        self.changed = true;
        Ok(self.overlay_mut().nodes.get_mut(&ino).expect("inserted above if it was missing"))
    }

    /// Records a change before it is made. In an eager transaction, a conflict if another open
    /// transaction has made it before (TX-4).
    fn note_write(&self, ino: Ino, write: &Write<'_>) -> Result<()> {
        if self.is_born(ino) {
            return Ok(());
        }
        let Some(by) = self.entry.and_then(|entry| entry.write(ino, write)) else { return Ok(()) };
        let mut reads = self.reads.lock();
        let path = match write {
            Write::Name(name) => reads.paths.of_name(ino, name),
            _ => reads.paths.of(ino),
        };
        // The failed write counts among the blocks that the transaction uses.
        if let Write::Blocks(blocks) = write {
            reads.blocks(ino, blocks.start.0.into()..blocks.end.0.into());
        }
        Err(Error::Conflict { path, why: OPEN_HAS_WRITTEN, conflicting_tx: Some(by) })
    }

    /// Call before a node is changed, added or removed.
    fn touch(&mut self, ino: Ino) {
        if self.touched.iter().all(|(touched, _)| *touched != ino) {
            let before = self.node(ino).map_or(0, Node::bytes);
            self.touched.push((ino, before));
        }
    }

    /// Drops an inode created in the transaction if nothing keeps it.
    fn drop_if_gone(&mut self, ino: Ino) {
        let link_max = self.base.link_max();
        if self.node(ino).is_some_and(|node| node.is_gone(link_max)) {
            let has_savepoints = self.has_savepoints;
            let overlay = self.overlay_mut();
            overlay.nodes.remove(&ino);
            if has_savepoints {
                overlay.unlinked_numbers.insert(ino);
            } else {
                self.base.unreserve_inode(self.held(), ino);
            }
        }
    }

    pub(crate) fn release(&mut self, ino: Ino, count: u64) {
        if self.is_born(ino)
            && let Ok(node) = self.node_mut(ino)
        {
            node.holds = node.holds.saturating_sub(count);
            self.drop_if_gone(ino);
        }
    }

    /// The base's entry of a name as of the stamp.
    fn base_entry(&self, dir: Ino, name: &Name) -> Result<Option<Entry>> {
        if self.is_born(dir) {
            Ok(None)
        } else {
            self.base.entry_at(dir, name, self.stamp_of_name(dir, name))
        }
    }

    fn hides(&self, dir: Ino, name: &Name) -> bool {
        !self.sees_persisted && is_persisted_folder(dir, name)
    }

    fn change_entry(&mut self, dir: Ino, name: &Name, now: Option<Entry>) -> Result<()> {
        self.note_write(dir, &Write::Name(name))?;
        let base = match self.node(dir).and_then(|node| node.names.get(name)) {
            Some(change) => change.base,
            None => self.base_entry(dir, name)?,
        };
        self.node_mut(dir)?.names.set(name, now, base);
        if let Some(entry) = now {
            self.reads.lock().paths.met(dir, name, entry.ino);
        }
        Ok(())
    }
}

impl<B: VersionedFs> InodeOps for TxTree<'_, B> {
    fn attr(&mut self, ino: Ino) -> Result<Attr> {
        match self.node(ino) {
            Some(node) => Ok(node.attr(self.base.link_max(), self.base.block_size())),
            None => self.base.attr_at(ino, self.stamp_of(ino)),
        }
    }

    fn depends_on(&mut self, ino: Ino, attrs: AttrSet) {
        if attrs.is_none() || self.is_born(ino) {
            return;
        }
        let mut reads = self.reads.lock();
        if let Some((seen, _)) = reads.attrs.get_mut(&ino) {
            *seen |= attrs;
            return;
        }
        let origin = match self.node(ino) {
            Some(node) => Ok(node.origin),
            None => self.base.attr_at(ino, self.stamp_of(ino)),
        };
        // Operations use inodes that they have just read, so this one exists.
        if let Ok(origin) = origin {
            reads.attrs.insert(ino, (attrs, origin));
        }
    }

    fn set_attr(&mut self, ino: Ino, change: &AttrChange) -> Result<()> {
        self.note_write(ino, &Write::Attrs(compared_attrs(change)))?;
        let changed = &mut self.node_mut(ino)?.changed;
        changed.perm = change.perm.or(changed.perm);
        changed.uid = change.uid.or(changed.uid);
        changed.gid = change.gid.or(changed.gid);
        changed.project = change.project.or(changed.project);
        changed.atime = change.atime.or(changed.atime);
        changed.mtime = change.mtime.or(changed.mtime);
        changed.ctime = change.ctime.or(changed.ctime);
        changed.flags = change.flags.or(changed.flags);
        Ok(())
    }

    fn add_links(&mut self, ino: Ino, delta: i32) -> Result<()> {
        let now = i64::from(self.attr(ino)?.nlink);
        if now + i64::from(delta) <= 0 {
            self.note_write(ino, &Write::Deletion)?;
        }
        let node = self.node_mut(ino)?;
        if node.origin.kind == FileKind::Directory && now + i64::from(delta) <= 0 {
            node.removed_dir = true;
        } else {
            node.links += i64::from(delta);
        }
        self.drop_if_gone(ino);
        Ok(())
    }

    fn add_subdirs(&mut self, dir: Ino, delta: i32) -> Result<()> {
        self.node_mut(dir)?.subdirs += i64::from(delta);
        Ok(())
    }

    fn link_max(&self) -> u32 {
        self.base.link_max()
    }

    fn dir_nlink(&self) -> bool {
        self.base.dir_nlink()
    }

    fn target_max(&self) -> usize {
        self.base.target_max()
    }

    fn new_inode(&mut self, parent: Ino, new: &NewInode) -> Result<Ino> {
        let is_dir = new.kind == FileKind::Directory;
        let payer = Payer { uid: new.uid, gid: new.gid, project: new.project };
        let ino = self.base.reserve_inode(self.held(), parent, is_dir, payer, SpaceLimits::Enforced)?;
        let size = if is_dir { u64::from(self.base.block_size()) } else { 0 };
        let origin = Attr {
            ino,
            kind: new.kind,
            perm: new.perm,
            uid: new.uid,
            gid: new.gid,
            project: new.project,
            nlink: 0,
            size,
            sectors: size / 512,
            atime: new.time,
            mtime: new.time,
            ctime: new.time,
            crtime: Some(new.time),
            rdev: new.rdev,
            flags: new.flags,
            generation: new.time.nanos,
        };
        self.changed = true;
        self.touch(ino);
        let old = self.overlay_mut().nodes.insert(ino, Node::new(origin, true));
        assert!(old.is_none(), "the base reserved {ino}, which the transaction uses");
        Ok(ino)
    }

    fn hold(&mut self, ino: Ino) -> Result<()> {
        if self.is_born(ino) {
            self.node_mut(ino)?.holds += 1;
            return Ok(());
        }
        // The base's inodes stay readable as long as the view is open.
        self.attr(ino).map(drop)
    }

    fn entry(&mut self, dir: Ino, name: &Name) -> Result<Option<Entry>> {
        if self.hides(dir, name) {
            return Ok(None);
        }
        if let Some(node) = self.node(dir) {
            if let Some(change) = node.names.get(name) {
                return Ok(change.now);
            }
            if node.born {
                return Ok(None);
            }
        }
        let entry = self.base.entry_at(dir, name, self.stamp_of_name(dir, name))?;
        let mut reads = self.reads.lock();
        reads.name(dir, name);
        if let Some(entry) = entry {
            reads.paths.met(dir, name, entry.ino);
        }
        Ok(entry)
    }

    fn check_name_fits(&mut self, dir: Ino, name: &Name) -> Result<()> {
        if self.hides(dir, name) { Err(Error::Posix(Errno::EPERM)) } else { Ok(()) }
    }

    fn add_entry(&mut self, dir: Ino, name: &Name, entry: Entry) -> Result<()> {
        self.change_entry(dir, name, Some(entry))
    }

    fn remove_entry(&mut self, dir: Ino, name: &Name) -> Result<()> {
        self.change_entry(dir, name, None)
    }

    fn set_entry(&mut self, dir: Ino, name: &Name, entry: Entry) -> Result<()> {
        self.change_entry(dir, name, Some(entry))
    }

    fn is_empty(&mut self, dir: Ino) -> Result<bool> {
        let node = self.node(dir);
        if node.is_some_and(|node| node.names.iter().any(|(_, change)| change.now.is_some())) {
            return Ok(false);
        }
        if node.is_some_and(|node| node.born) {
            return Ok(true);
        }
        let mut left = None;
        self.base.list_at(dir, 0, self.stamp_of(dir), &mut |item| {
            let removed = node.is_some_and(|node| node.names.get(item.name).is_some());
            if !removed {
                left = Some(item.name.to_vec());
            }
            removed
        })?;
        let mut reads = self.reads.lock();
        match &left {
            // The result depends only on the existence of this one name.
            Some(name) => reads.name(dir, name),
            None => {
                reads.emptied.insert(dir);
            }
        }
        Ok(left.is_none())
    }

    fn parent(&mut self, dir: Ino) -> Result<Ino> {
        if let Some(parent) = self.node(dir).and_then(|node| node.parent) {
            return Ok(parent);
        }
        let parent = self.base.parent_at(dir, self.stamp_of(dir))?;
        self.reads.lock().parents.insert(dir, parent);
        Ok(parent)
    }

    fn set_parent(&mut self, dir: Ino, parent: Ino) -> Result<()> {
        self.node_mut(dir)?.parent = Some(parent);
        Ok(())
    }

    /// Lists the base's names in its order, then the added names. A name keeps its cookie while it
    /// exists, so a listing in portions lists each remaining name exactly once.
    fn list(&mut self, dir: Ino, cookie: u64, each: &mut dyn FnMut(DirItem<'_>) -> bool) -> Result<()> {
        let node = self.node(dir);
        let mut stopped = false;
        if !node.is_some_and(|node| node.born) {
            self.reads.lock().listing(dir);
            if cookie < ADDED_COOKIES {
                // A kernel may use a name from this listing without a look-up.
                let mut listed = Vec::new();
                self.base.list_at(dir, cookie, self.stamp_of(dir), &mut |item| {
                    if self.hides(dir, item.name) {
                        return true;
                    }
                    let changed = node.and_then(|node| node.names.get(item.name));
                    let item = match changed.map(|change| (change.now, change.base)) {
                        None => item,
                        // An added name that others have made too, since the view of its pin: it
                        // follows below.
                        Some((None, _) | (_, None)) => return true,
                        Some((Some(now), _)) => DirItem { ino: now.ino, kind: now.kind, ..item },
                    };
                    let (name, ino) = (item.name.to_vec(), item.ino);
                    stopped = !each(item);
                    if !stopped && name != b"." && name != b".." {
                        listed.push((name, ino));
                    }
                    !stopped
                })?;
                let mut reads = self.reads.lock();
                listed.iter().for_each(|(name, ino)| reads.paths.met(dir, name, *ino));
            }
        }
        if stopped {
            return Ok(());
        }
        let added = node.into_iter().flat_map(|node| node.names.added_from(cookie.max(ADDED_COOKIES)));
        for (next_cookie, name, entry) in added {
            if !each(DirItem { name, ino: entry.ino, kind: entry.kind, next_cookie }) {
                break;
            }
        }
        Ok(())
    }

    fn read_link(&mut self, ino: Ino) -> Result<Vec<u8>> {
        match self.node(ino).and_then(|node| node.target.clone()) {
            Some(target) => Ok(target),
            // A target never changes, so there is nothing to record.
            None => self.base.read_link_at(ino, self.stamp_of(ino)),
        }
    }

    fn set_link(&mut self, ino: Ino, target: &[u8]) -> Result<()> {
        let node = self.node_mut(ino)?;
        node.target = Some(target.to_vec());
        node.file.size = target.len() as u64;
        Ok(())
    }

    fn read(&mut self, ino: Ino, offset: u64, len: usize, out: &mut Vec<u8>) -> Result<()> {
        self.read_range(ino, offset, len, out)
    }

    fn write(&mut self, ino: Ino, offset: u64, data: &[u8]) -> Result<()> {
        self.write_range(ino, offset, data)
    }

    fn set_size(&mut self, ino: Ino, size: u64) -> Result<()> {
        self.cut_or_grow(ino, size)
    }

    fn allocate(&mut self, ino: Ino, offset: u64, len: u64, how: Allocate) -> Result<()> {
        let end = offset.checked_add(len).ok_or(Error::Posix(Errno::EFBIG))?;
        self.allocate_range(ino, offset..end, how)
    }

    fn seek(&mut self, ino: Ino, offset: u64, to: SeekTo) -> Result<u64> {
        self.seek_from(ino, offset, to)
    }

    fn size_max(&self, flags: u32) -> u64 {
        self.base.size_max(flags)
    }

    fn has_extents(&self) -> bool {
        self.base.has_extents()
    }

    fn has_projects(&self) -> bool {
        self.base.has_projects()
    }

    fn gives_group_of_folder(&self) -> bool {
        self.base.gives_group_of_folder()
    }

    fn takes_file_mode(&self, mode: DataMode) -> bool {
        self.base.takes_file_mode(mode)
    }

    fn xattr(&mut self, ino: Ino, name: &[u8]) -> Result<Option<Vec<u8>>> {
        if let Some(node) = self.node(ino) {
            if let Some(value) = node.xattrs.get(name) {
                return Ok(value.clone());
            }
            if node.born {
                return Ok(None);
            }
        }
        let value = self.base.xattr_at(ino, name, self.stamp_of(ino))?;
        self.reads.lock().xattr(ino, name);
        Ok(value)
    }

    fn list_xattrs(&mut self, ino: Ino) -> Result<Vec<Vec<u8>>> {
        let mut names = Vec::new();
        if !self.is_born(ino) {
            names = self.base.list_xattrs_at(ino, self.stamp_of(ino))?;
            self.reads.lock().xattr_lists.insert(ino);
        }
        if let Some(node) = self.node(ino) {
            names.retain(|name| !node.xattrs.contains_key(name));
            names.extend(
                node.xattrs.iter().filter(|(_, value)| value.is_some()).map(|(name, _)| name.clone()),
            );
        }
        Ok(names)
    }

    fn set_xattr(&mut self, ino: Ino, name: &[u8], value: Option<&[u8]>) -> Result<()> {
        if let Some(value) = value {
            // Reported here, not at the commit. The commit checks again, because others may set
            // attributes, too.
            let mut changes = self.node(ino).map(|node| node.xattrs.clone()).unwrap_or_default();
            changes.insert(name.to_vec(), Some(value.to_vec()));
            let existing = (!self.is_born(ino)).then_some(ino);
            self.base.check_xattrs(existing, &changes)?;
        }
        self.note_write(ino, &Write::Xattr(name))?;
        let node = self.node_mut(ino)?;
        if node.born && value.is_none() {
            node.xattrs.remove(name);
        } else {
            node.xattrs.insert(name.to_vec(), value.map(<[u8]>::to_vec));
        }
        Ok(())
    }

    fn now(&self) -> Timestamp {
        self.base.now()
    }
}
