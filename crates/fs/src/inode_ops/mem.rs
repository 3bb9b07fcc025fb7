//! Inodes in memory, for tests of code over [`InodeOps`] without a volume.
//!
//! It asserts the contract of its callers (an added name does not exist yet, a removed directory is
//! empty), so that an operation that breaks the contract fails. A clone is a snapshot: inodes are
//! shared until one side changes them.

use std::collections::BTreeMap;
use std::sync::Arc;

use xact_types::{Errno, Error, FileBlock, Ino, Result, Timestamp};

use crate::api::{Allocate, Attr, DirItem, Entry, FileKind, Name, SeekTo};
use crate::inode_ops::{AttrChange, InodeOps, NewInode};
use crate::journal_modes::DataMode;

/// One inode. Blocks missing in `blocks` are holes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MemNode {
    pub attr: Attr,
    pub names: BTreeMap<Vec<u8>, (Entry, u64)>,
    pub parent: Ino,
    pub target: Vec<u8>,
    pub blocks: BTreeMap<FileBlock, Arc<[u8]>>,
    pub xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    pub holds: u64,
    next_cookie: u64,
}

/// See the module's head.
#[derive(Debug, Clone)]
pub struct MemTree {
    nodes: BTreeMap<Ino, Arc<MemNode>>,
    next_ino: u32,
    block_size: usize,
    link_max: u32,
    dir_nlink: bool,
    /// The clock of the tests: it advances by a second at each reading.
    clock: std::cell::Cell<i64>,
}

impl MemTree {
    /// An empty root directory.
    pub fn new(block_size: usize) -> MemTree {
        let mut tree = MemTree {
            nodes: BTreeMap::new(),
            next_ino: 11,
            block_size,
            link_max: 65_000,
            dir_nlink: true,
            clock: std::cell::Cell::new(1_000),
        };
        let root = NewInode {
            kind: FileKind::Directory,
            perm: 0o755,
            uid: 0,
            gid: 0,
            project: 0,
            rdev: 0,
            time: Timestamp { secs: 1_000, nanos: 0 },
            flags: 0,
        };
        tree.adopt(Ino::ROOT, Ino::ROOT, &root);
        tree.node_mut(Ino::ROOT).expect("just made").attr.nlink = 2;
        tree
    }

    pub fn set_link_max(&mut self, link_max: u32, dir_nlink: bool) {
        (self.link_max, self.dir_nlink) = (link_max, dir_nlink);
    }

    pub fn set_clock(&self, secs: i64) {
        self.clock.set(secs);
    }

    pub fn block_size(&self) -> usize {
        self.block_size
    }

    pub fn node(&self, ino: Ino) -> Result<&MemNode> {
        self.nodes.get(&ino).map(|node| &**node).ok_or(Error::Posix(Errno::ESTALE))
    }

    fn node_mut(&mut self, ino: Ino) -> Result<&mut MemNode> {
        self.nodes.get_mut(&ino).map(Arc::make_mut).ok_or(Error::Posix(Errno::ESTALE))
    }

    pub fn inodes(&self) -> impl Iterator<Item = (&Ino, &MemNode)> {
        self.nodes.iter().map(|(ino, node)| (ino, &**node))
    }

    /// Takes a number that no inode will get from `new_inode`.
    pub fn reserve(&mut self) -> Ino {
        let ino = Ino(self.next_ino);
        self.next_ino += 1;
        ino
    }

    /// Creates an inode with a given number.
    pub fn adopt(&mut self, ino: Ino, parent: Ino, new: &NewInode) {
        let attr = Attr {
            ino,
            kind: new.kind,
            perm: new.perm,
            uid: new.uid,
            gid: new.gid,
            project: new.project,
            nlink: 0,
            size: if new.kind == FileKind::Directory { self.block_size as u64 } else { 0 },
            sectors: 0,
            atime: new.time,
            mtime: new.time,
            ctime: new.time,
            crtime: Some(new.time),
            rdev: new.rdev,
            flags: new.flags,
            generation: ino.0,
        };
        let node = MemNode {
            attr,
            names: BTreeMap::new(),
            parent,
            target: Vec::new(),
            blocks: BTreeMap::new(),
            xattrs: BTreeMap::new(),
            holds: 0,
            next_cookie: 3,
        };
        let old = self.nodes.insert(ino, Arc::new(node));
        assert!(old.is_none(), "{ino} is in use");
    }

    pub fn release(&mut self, ino: Ino, count: u64) {
        let node = self.node_mut(ino).expect("held inodes exist");
        node.holds = node.holds.checked_sub(count).expect("no more releases than holds");
        self.free_if_dead(ino);
    }

    fn free_if_dead(&mut self, ino: Ino) {
        let node = &self.nodes[&ino];
        if node.attr.nlink == 0 && node.holds == 0 {
            assert!(node.names.is_empty(), "a directory goes with names in it");
            self.nodes.remove(&ino);
        }
    }

    pub fn block(&self, ino: Ino, block: FileBlock) -> Result<Option<Arc<[u8]>>> {
        Ok(self.node(ino)?.blocks.get(&block).cloned())
    }

    /// Replaces whole blocks (`None` makes a hole) and sets the size.
    pub fn install(
        &mut self,
        ino: Ino,
        blocks: Vec<(FileBlock, Option<Arc<[u8]>>)>,
        size: u64,
    ) -> Result<()> {
        let node = self.node_mut(ino)?;
        for (block, data) in blocks {
            match data {
                Some(data) => node.blocks.insert(block, data),
                None => node.blocks.remove(&block),
            };
        }
        self.set_size(ino, size)
    }

    pub fn seek_to(&self, ino: Ino, offset: u64, to: SeekTo) -> Result<u64> {
        let node = self.node(ino)?;
        let size = node.attr.size;
        if offset >= size {
            return Err(Error::Posix(Errno::ENXIO));
        }
        let bs = self.block_size as u64;
        let mut at = offset;
        while at < size {
            let is_data = node.blocks.contains_key(&FileBlock((at / bs) as u32));
            if is_data == (to == SeekTo::Data) {
                return Ok(at);
            }
            at = (at / bs + 1) * bs;
        }
        match to {
            SeekTo::Data => Err(Error::Posix(Errno::ENXIO)),
            SeekTo::Hole => Ok(size),
        }
    }

    pub fn list_from(&self, dir: Ino, cookie: u64, each: &mut dyn FnMut(DirItem<'_>) -> bool) -> Result<()> {
        let mut items: Vec<_> = self.node(dir)?.names.iter().collect();
        items.sort_by_key(|(_, (_, cookie))| *cookie);
        for (name, (entry, next_cookie)) in items {
            if *next_cookie > cookie
                && !each(DirItem { name, ino: entry.ino, kind: entry.kind, next_cookie: *next_cookie })
            {
                break;
            }
        }
        Ok(())
    }

    /// Makes a range read as zeros; whole blocks of it become holes.
    fn clear(&mut self, ino: Ino, start: u64, end: u64) -> Result<()> {
        self.zero(ino, start, end)?;
        let bs = self.block_size as u64;
        let whole = FileBlock(start.div_ceil(bs) as u32)..FileBlock((end / bs) as u32);
        self.node_mut(ino)?.blocks.retain(|block, _| !whole.contains(block));
        Ok(())
    }

    /// Zeroes the parts of a range that are not holes.
    fn zero(&mut self, ino: Ino, start: u64, end: u64) -> Result<()> {
        let bs = self.block_size as u64;
        let node = self.node_mut(ino)?;
        let (first, last) = (FileBlock((start / bs) as u32), FileBlock((end.div_ceil(bs)) as u32));
        for (block, data) in node.blocks.range_mut(first..last) {
            let from = u64::from(block.0) * bs;
            let (a, b) = (start.max(from) - from, end.min(from + bs) - from);
            Arc::make_mut(data)[a as usize..b as usize].fill(0);
        }
        Ok(())
    }
}

impl InodeOps for MemTree {
    fn attr(&mut self, ino: Ino) -> Result<Attr> {
        let mut attr = self.node(ino)?.attr;
        attr.sectors = (self.node(ino)?.blocks.len() * self.block_size / 512) as u64;
        Ok(attr)
    }

    fn set_attr(&mut self, ino: Ino, change: &AttrChange) -> Result<()> {
        change.apply_to(&mut self.node_mut(ino)?.attr);
        Ok(())
    }

    fn add_links(&mut self, ino: Ino, delta: i32) -> Result<()> {
        let attr = &mut self.node_mut(ino)?.attr;
        attr.nlink = attr.nlink.checked_add_signed(delta).expect("link count within its range");
        self.free_if_dead(ino);
        Ok(())
    }

    fn link_max(&self) -> u32 {
        self.link_max
    }

    fn dir_nlink(&self) -> bool {
        self.dir_nlink
    }

    fn target_max(&self) -> usize {
        (self.block_size - 1).min(4095)
    }

    fn new_inode(&mut self, parent: Ino, new: &NewInode) -> Result<Ino> {
        let ino = self.reserve();
        self.adopt(ino, parent, new);
        Ok(ino)
    }

    fn hold(&mut self, ino: Ino) -> Result<()> {
        self.node_mut(ino)?.holds += 1;
        Ok(())
    }

    fn entry(&mut self, dir: Ino, name: &Name) -> Result<Option<Entry>> {
        Ok(self.node(dir)?.names.get(name).map(|(entry, _)| *entry))
    }

    fn add_entry(&mut self, dir: Ino, name: &Name, entry: Entry) -> Result<()> {
        let node = self.node_mut(dir)?;
        let cookie = node.next_cookie;
        node.next_cookie += 1;
        let old = node.names.insert(name.to_vec(), (entry, cookie));
        assert!(old.is_none(), "a name is added that is there");
        Ok(())
    }

    fn remove_entry(&mut self, dir: Ino, name: &Name) -> Result<()> {
        let old = self.node_mut(dir)?.names.remove(name);
        assert!(old.is_some(), "a name is removed that is not there");
        Ok(())
    }

    fn set_entry(&mut self, dir: Ino, name: &Name, entry: Entry) -> Result<()> {
        let slot = self.node_mut(dir)?.names.get_mut(name).expect("a name is set that is not there");
        slot.0 = entry;
        Ok(())
    }

    fn is_empty(&mut self, dir: Ino) -> Result<bool> {
        Ok(self.node(dir)?.names.is_empty())
    }

    fn parent(&mut self, dir: Ino) -> Result<Ino> {
        Ok(self.node(dir)?.parent)
    }

    fn set_parent(&mut self, dir: Ino, parent: Ino) -> Result<()> {
        self.node_mut(dir)?.parent = parent;
        Ok(())
    }

    fn list(&mut self, dir: Ino, cookie: u64, each: &mut dyn FnMut(DirItem<'_>) -> bool) -> Result<()> {
        self.list_from(dir, cookie, each)
    }

    fn read_link(&mut self, ino: Ino) -> Result<Vec<u8>> {
        Ok(self.node(ino)?.target.clone())
    }

    fn set_link(&mut self, ino: Ino, target: &[u8]) -> Result<()> {
        let node = self.node_mut(ino)?;
        node.target = target.to_vec();
        node.attr.size = target.len() as u64;
        Ok(())
    }

    fn read(&mut self, ino: Ino, offset: u64, len: usize, out: &mut Vec<u8>) -> Result<()> {
        let node = self.node(ino)?;
        let end = offset.saturating_add(len as u64).min(node.attr.size);
        let bs = self.block_size as u64;
        let mut at = offset;
        while at < end {
            let stop = end.min((at / bs + 1) * bs);
            let within = (at % bs) as usize..(at % bs + stop - at) as usize;
            match node.blocks.get(&FileBlock((at / bs) as u32)) {
                Some(data) => out.extend_from_slice(&data[within]),
                None => out.resize(out.len() + within.len(), 0),
            }
            at = stop;
        }
        Ok(())
    }

    fn write(&mut self, ino: Ino, offset: u64, data: &[u8]) -> Result<()> {
        let bs = self.block_size;
        let node = self.node_mut(ino)?;
        let mut done = 0;
        while done < data.len() {
            let at = offset + done as u64;
            let within = (at % bs as u64) as usize;
            let count = (bs - within).min(data.len() - done);
            let block =
                node.blocks.entry(FileBlock((at / bs as u64) as u32)).or_insert_with(|| vec![0; bs].into());
            Arc::make_mut(block)[within..within + count].copy_from_slice(&data[done..done + count]);
            done += count;
        }
        node.attr.size = node.attr.size.max(offset + data.len() as u64);
        Ok(())
    }

    fn set_size(&mut self, ino: Ino, size: u64) -> Result<()> {
        let bs = self.block_size as u64;
        let node = self.node_mut(ino)?;
        let old = node.attr.size;
        node.attr.size = size;
        node.blocks.split_off(&FileBlock(size.div_ceil(bs) as u32));
        if size < old { self.zero(ino, size, size.div_ceil(bs) * bs) } else { Ok(()) }
    }

    fn allocate(&mut self, ino: Ino, offset: u64, len: u64, how: Allocate) -> Result<()> {
        let end = offset + len;
        let size = self.node(ino)?.attr.size;
        // Reserved blocks read as zeros and count as holes, so a reservation changes nothing here.
        match how {
            Allocate::Reserve { keep_size } => {
                if !keep_size && end > size {
                    self.node_mut(ino)?.attr.size = end;
                }
                Ok(())
            }
            Allocate::PunchHole | Allocate::ZeroRange { .. } => {
                let bs = self.block_size as u64;
                // A hole that reaches past the end of the file includes the whole last block.
                let end = match how {
                    Allocate::PunchHole if end > size => size.div_ceil(bs) * bs,
                    Allocate::PunchHole => end,
                    _ => end.min(size),
                };
                if offset < end {
                    self.clear(ino, offset, end)?;
                }
                if how == (Allocate::ZeroRange { keep_size: false }) {
                    self.node_mut(ino)?.attr.size = size.max(offset + len);
                }
                Ok(())
            }
        }
    }

    fn seek(&mut self, ino: Ino, offset: u64, to: SeekTo) -> Result<u64> {
        self.seek_to(ino, offset, to)
    }

    fn has_extents(&self) -> bool {
        true
    }

    fn has_projects(&self) -> bool {
        true
    }

    fn gives_group_of_folder(&self) -> bool {
        false
    }

    fn takes_file_mode(&self, _mode: DataMode) -> bool {
        true
    }

    fn size_max(&self, _flags: u32) -> u64 {
        u64::from(u32::MAX) * self.block_size as u64
    }

    fn xattr(&mut self, ino: Ino, name: &[u8]) -> Result<Option<Vec<u8>>> {
        Ok(self.node(ino)?.xattrs.get(name).cloned())
    }

    fn list_xattrs(&mut self, ino: Ino) -> Result<Vec<Vec<u8>>> {
        Ok(self.node(ino)?.xattrs.keys().cloned().collect())
    }

    fn set_xattr(&mut self, ino: Ino, name: &[u8], value: Option<&[u8]>) -> Result<()> {
        let xattrs = &mut self.node_mut(ino)?.xattrs;
        match value {
            Some(value) => xattrs.insert(name.to_vec(), value.to_vec()),
            None => xattrs.remove(name),
        };
        Ok(())
    }

    fn now(&self) -> Timestamp {
        self.clock.set(self.clock.get() + 1);
        Timestamp { secs: self.clock.get(), nanos: 0 }
    }
}
