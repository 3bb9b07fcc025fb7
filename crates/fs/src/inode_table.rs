//! The inode table: inodes by number. A read verifies their checksum, a write updates it.
//!
//! An inode's `i_dtime` belongs to the table, not to the inode in memory: it links the orphan list,
//! and adding or removing a neighbour changes it without that inode's lock. So
//! [`InodeTable::write`] leaves the field as it is on disk; [`InodeTable::create`] and
//! [`InodeTable::update`] set it.

use std::sync::Arc;

use xact_consistency::{Engine, Handle, Version};
use xact_layout::inode::Inode;
use xact_layout::superblock::Superblock;
use xact_types::{BlockNr, Error, Ino, Result, Site};

use crate::alloc::{Allocator, AllocatorCore};

/// Reads and writes the inodes of one volume. Clones refer to the same table.
#[derive(Clone)]
pub struct InodeTable {
    alloc: Arc<AllocatorCore>,
}

/// An inode's block, and its byte offset there.
#[derive(Clone, Copy)]
struct InodePlace {
    block: BlockNr,
    at: usize,
}

impl InodeTable {
    /// Credits of `write`, `create` and `update`.
    pub const CREDITS: u32 = 1;

    pub fn new(alloc: &Allocator) -> InodeTable {
        InodeTable { alloc: alloc.shared().clone() }
    }

    /// Reads an inode. It may be free: its link count and mode show that.
    ///
    /// Errors: `Corrupt` with the inode, for a number that is out of range or was never used, and
    /// for a checksum that does not match; `Corrupt` with its group, for a corrupt descriptor.
    pub fn read(&self, ino: Ino) -> Result<Inode> {
        let place = self.place(ino)?;
        let bytes = self.alloc.engine().read(place.block)?;
        self.decode(&bytes, place, ino)
    }

    /// Writes an inode within a handle, except its `i_dtime`.
    pub fn write(&self, h: &mut Handle, ino: Ino, inode: &Inode) -> Result<()> {
        let place = self.place(ino)?;
        h.update_shared(place.block, |_, bytes| {
            let mut inode = inode.clone();
            inode.set_dtime(self.raw(bytes, place).dtime());
            self.encode(bytes, place, ino, inode);
        })?;
        Ok(())
    }

    /// Writes all of a newly linked inode, over the old contents of its place.
    pub fn create(&self, h: &mut Handle, ino: Ino, inode: &Inode) -> Result<()> {
        let place = self.place(ino)?;
        h.update_shared(place.block, |_, bytes| self.encode(bytes, place, ino, inode.clone()))?;
        Ok(())
    }

    /// Gives the place of an inode that was made and freed in this handle's commit its former bytes
    /// back, if they are known, so that nothing remains of it (SNAP-6). They are as valid for a
    /// free inode as any: they were there before the number was used.
    pub fn restore_place(&self, h: &mut Handle, ino: Ino) -> Result<()> {
        let place = self.place(ino)?;
        let Some(base) = h.base(place.block) else { return Ok(()) };
        let range = place.at..place.at + usize::from(self.alloc.superblock().inode_size());
        h.update_shared(place.block, |_, bytes| bytes[range.clone()].copy_from_slice(&base[range.clone()]))?;
        Ok(())
    }

    /// The inode as it is ahead of the handle's commit; `None` if that is not known.
    pub fn read_ahead_of(&self, h: &Handle, ino: Ino) -> Result<Option<Inode>> {
        let place = self.place(ino)?;
        let bytes = h.contents_ahead(place.block)?;
        bytes.map(|bytes| self.decode(&bytes, place, ino)).transpose()
    }

    /// Writes an inode that the table has already ahead of the handle's commit. It is on no list of
    /// orphans. False: not ahead of it.
    pub fn catch_up(&self, h: &mut Handle, ino: Ino, inode: &Inode) -> Result<bool> {
        let place = self.place(ino)?;
        h.catch_up(place.block, |bytes| {
            self.encode(bytes, place, ino, inode.clone());
            true
        })
    }

    /// Changes fields of an inode in use ahead of the handle's commit, which has the change
    /// already. False: not ahead of it.
    pub fn catch_up_fields(
        &self,
        h: &mut Handle,
        ino: Ino,
        mut change: impl FnMut(&mut Inode),
    ) -> Result<bool> {
        let place = self.place(ino)?;
        h.catch_up(place.block, |bytes| self.change(bytes, place, ino, &mut change).is_ok())
    }

    /// Changes fields of an inode in the table. `change` must not call the engine.
    ///
    /// Errors: as `read`; they change nothing.
    pub fn update<R>(&self, h: &mut Handle, ino: Ino, mut change: impl FnMut(&mut Inode) -> R) -> Result<R> {
        let place = self.place(ino)?;
        h.update_shared(place.block, |_, bytes| self.change(bytes, place, ino, &mut change))?.both()
    }

    /// Sets the `i_dtime` of an inode to its own value in each version of the table. Without a
    /// value for a version, the inode may be unused in that version.
    pub fn set_dtime_apart(
        &self,
        h: &mut Handle,
        ino: Ino,
        dtime: impl Fn(Version) -> Option<u32>,
    ) -> Result<()> {
        let place = self.place(ino)?;
        let changed = h.update_per_version(place.block, |version, bytes| match dtime(version) {
            Some(dtime) => self.change(bytes, place, ino, &mut |inode| inode.set_dtime(dtime)),
            None => Ok(()),
        })?;
        changed.both()
    }

    fn change<R>(
        &self,
        bytes: &mut [u8],
        place: InodePlace,
        ino: Ino,
        change: &mut impl FnMut(&mut Inode) -> R,
    ) -> Result<R> {
        let mut inode = self.decode(bytes, place, ino)?;
        let result = change(&mut inode);
        self.encode(bytes, place, ino, inode);
        Ok(result)
    }

    pub fn engine(&self) -> &Arc<Engine> {
        self.alloc.engine()
    }

    /// The superblock as of opening: geometry and features.
    pub fn superblock(&self) -> &Superblock {
        self.alloc.superblock()
    }

    /// The metadata block of an inode.
    pub fn block_of(&self, ino: Ino) -> Result<BlockNr> {
        Ok(self.place(ino)?.block)
    }

    fn place(&self, ino: Ino) -> Result<InodePlace> {
        let sb = self.alloc.superblock();
        let Some((group, index)) = sb.inode_place(ino) else {
            return Err(Error::corrupt(Site::Inode(ino), "the inode number is out of range"));
        };
        let (table, ready) = self.alloc.inode_table(group)?;
        if index >= ready {
            return Err(Error::corrupt(Site::Inode(ino), "this inode was never used"));
        }
        let per_block = sb.inodes_per_block();
        Ok(InodePlace {
            block: table.offset(u64::from(index / per_block)),
            at: (index % per_block) as usize * usize::from(sb.inode_size()),
        })
    }

    fn raw(&self, bytes: &[u8], place: InodePlace) -> Inode {
        let size = usize::from(self.alloc.superblock().inode_size());
        Inode::new(&bytes[place.at..place.at + size])
    }

    fn decode(&self, bytes: &[u8], place: InodePlace, ino: Ino) -> Result<Inode> {
        let inode = self.raw(bytes, place);
        // A slot that was never used holds zeros and no checksum.
        let unused = inode.mode() == 0 && inode.as_bytes().iter().all(|&b| b == 0);
        if !unused && !inode.checksum_matches(self.alloc.superblock(), ino) {
            return Err(Error::corrupt(Site::Inode(ino), "checksum does not match"));
        }
        Ok(inode)
    }

    fn encode(&self, bytes: &mut [u8], place: InodePlace, ino: Ino, mut inode: Inode) {
        inode.seal(self.alloc.superblock(), ino);
        bytes[place.at..place.at + inode.as_bytes().len()].copy_from_slice(inode.as_bytes());
    }
}
