//! The orphan list: `s_last_orphan` and the `i_dtime` of the inodes on it.

use std::collections::HashMap;

use xact_base::{BlockNr, Error, Ino, Result, Site};
use xact_consistency::Handle;
use xact_layout::superblock::Superblock;

use crate::alloc::Allocator;
use crate::inode_table::InodeTable;
use crate::superblock;

pub(super) struct OrphanList {
    sb: Superblock,
    head: Option<Ino>,
    links: HashMap<Ino, Links>,
}

/// An orphan's neighbours; towards the head is `previous`, which is not on disk.
#[derive(Clone, Copy, Default)]
struct Links {
    previous: Option<Ino>,
    next: Option<Ino>,
}

fn on_disk(ino: Option<Ino>) -> u32 {
    ino.map_or(0, |ino| ino.0)
}

impl OrphanList {
    pub fn open(alloc: &Allocator, table: &InodeTable) -> Result<OrphanList> {
        let sb = alloc.superblock().clone();
        let newest = superblock::read(&**alloc.engine(), &sb)?;
        let mut list = OrphanList { sb, head: None, links: HashMap::new() };
        let mut previous = None;
        let mut next = newest.last_orphan();
        while next != 0 {
            let ino = Ino(next);
            if ino < list.sb.first_inode() {
                return Err(Error::corrupt(Site::Inode(ino), "a reserved inode is on the orphan list"));
            }
            if list.links.insert(ino, Links { previous, next: None }).is_some() {
                return Err(Error::corrupt(Site::Inode(ino), "the orphan list comes back to this inode"));
            }
            match previous {
                Some(previous) => list.link(previous).next = Some(ino),
                None => list.head = Some(ino),
            }
            next = table.read(ino)?.dtime();
            previous = Some(ino);
        }
        Ok(list)
    }

    pub fn iter(&self) -> impl Iterator<Item = Ino> {
        self.links.keys().copied()
    }

    pub fn contains(&self, ino: Ino) -> bool {
        self.links.contains_key(&ino)
    }

    /// The orphan whose link leads to this one.
    pub fn previous(&self, ino: Ino) -> Option<Ino> {
        self.links.get(&ino)?.previous
    }

    /// The block with the list's head.
    pub fn head_block(&self) -> BlockNr {
        self.sb.own_block()
    }

    fn link(&mut self, ino: Ino) -> &mut Links {
        self.links.get_mut(&ino).expect("a neighbour is on the list")
    }

    pub fn add(&mut self, h: &mut Handle, table: &InodeTable, ino: Ino) -> Result<()> {
        let next = self.head;
        table.update(h, ino, |inode| inode.set_dtime(on_disk(next)))?;
        self.set_head(h, Some(ino))?;
        self.links.insert(ino, Links { previous: None, next });
        if let Some(next) = next {
            self.link(next).previous = Some(ino);
        }
        Ok(())
    }

    pub fn remove(&mut self, h: &mut Handle, table: &InodeTable, ino: Ino) -> Result<()> {
        let Some(&Links { previous, next }) = self.links.get(&ino) else { return Ok(()) };
        table.update(h, ino, |inode| inode.set_dtime(0))?;
        match previous {
            Some(previous) => table.update(h, previous, |inode| inode.set_dtime(on_disk(next)))?,
            None => self.set_head(h, next)?,
        }
        self.links.remove(&ino);
        if let Some(previous) = previous {
            self.link(previous).next = next;
        }
        if let Some(next) = next {
            self.link(next).previous = previous;
        }
        Ok(())
    }

    fn set_head(&mut self, h: &mut Handle, head: Option<Ino>) -> Result<()> {
        superblock::update(h, &self.sb, |sb| sb.set_last_orphan(on_disk(head)))?;
        self.head = head;
        Ok(())
    }
}
