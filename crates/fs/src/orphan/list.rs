//! The orphan list: `s_last_orphan` and the `i_dtime` of the inodes on it.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use xact_consistency::{Handle, Version};
use xact_layout::superblock::Superblock;
use xact_types::{BlockNr, Error, Ino, Result, Site};

use crate::alloc::Allocator;
use crate::inode_table::InodeTable;
use crate::superblock;

#[derive(Clone)]
pub(super) struct OrphanList {
    sb: Superblock,
    head: Option<Ino>,
    links: HashMap<Ino, Links>,
}

/// An orphan's neighbours. `previous`, towards the head, is not on disk.
#[derive(Clone, Copy, Default)]
struct Links {
    previous: Option<Ino>,
    next: Option<Ino>,
}

/// A pointer on disk to an orphan.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum At {
    /// The link in this orphan.
    Link(Ino),
    Head,
}

/// New targets of pointers.
pub(super) type Changes = BTreeMap<At, Option<Ino>>;

fn on_disk(ino: Option<Ino>) -> u32 {
    ino.map_or(0, |ino| ino.0)
}

impl OrphanList {
    pub fn open(alloc: &Allocator, table: &InodeTable) -> Result<OrphanList> {
        let sb = alloc.superblock().clone();
        let newest = superblock::read(alloc.engine(), &sb)?;
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

    /// The orphan whose link points to this one.
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

    /// The changes on disk that make an inode the first of the list.
    pub fn adds(&self, ino: Ino) -> Changes {
        Changes::from([(At::Link(ino), self.head), (At::Head, Some(ino))])
    }

    pub fn add(&mut self, ino: Ino) {
        let next = self.head.replace(ino);
        self.links.insert(ino, Links { previous: None, next });
        if let Some(next) = next {
            self.link(next).previous = Some(ino);
        }
    }

    /// The changes on disk that take an inode off the list, if it is on it.
    pub fn removes(&self, ino: Ino) -> Changes {
        let Some(&Links { previous, next }) = self.links.get(&ino) else { return Changes::new() };
        Changes::from([(At::Link(ino), None), (previous.map_or(At::Head, At::Link), next)])
    }

    pub fn remove(&mut self, ino: Ino) {
        let Some(Links { previous, next }) = self.links.remove(&ino) else { return };
        match previous {
            Some(previous) => self.link(previous).next = next,
            None => self.head = next,
        }
        if let Some(next) = next {
            self.link(next).previous = previous;
        }
    }
}

/// Writes changes of the list. `older`: the changes for the version in the handle's commit, if the
/// next commit has another list.
pub(super) fn write(
    h: &mut Handle,
    sb: &Superblock,
    table: &InodeTable,
    newest: &Changes,
    older: Option<&Changes>,
) -> Result<()> {
    let older = older.unwrap_or(newest);
    let places: BTreeSet<At> = newest.keys().chain(older.keys()).copied().collect();
    for at in places {
        let (newest, older) = (newest.get(&at).copied(), older.get(&at).copied());
        let leads_to = |version| if version == Version::Newest { newest } else { older };
        match (at, newest == older) {
            (At::Head, true) => {
                superblock::update(h, sb, |sb| sb.set_last_orphan(on_disk(newest.flatten())))?;
            }
            (At::Head, false) => superblock::update_per_version(h, sb, |version, sb| {
                if let Some(to) = leads_to(version) {
                    sb.set_last_orphan(on_disk(to));
                }
            })?,
            (At::Link(ino), true) => {
                table.update(h, ino, |inode| inode.set_dtime(on_disk(newest.flatten())))?;
            }
            (At::Link(ino), false) => {
                table.set_dtime_apart(h, ino, |version| leads_to(version).map(on_disk))?;
            }
        }
    }
    Ok(())
}
