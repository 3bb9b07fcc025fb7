//! Extended attributes of an inode: in its body if they fit, else in its attribute block.
//!
//! Layer: above the codec (`xact_layout::xattr`) and the engine. The caller owns the inode in
//! memory, holds its lock and writes it back; this module changes its attribute area, `i_file_acl`
//! and `i_blocks`, and the block through the caller's handle.
//!
//! Several inodes may share a block (the kernel does that with equal contents). Only the last user
//! of a block changes it in place; others decrement its count and use a block of their own. xact
//! itself never shares blocks, so a count only falls.
//!
//! ACLs are stored in ext4's own format, but passed in that of the system calls.

use std::collections::BTreeMap;
use std::sync::Arc;

use xact_consistency::{BlockRef, Engine, Handle};
use xact_layout::feature::compat;
use xact_layout::inode::{Inode, flag};
use xact_layout::posix_acl::{disk_to_wire, wire_to_disk};
use xact_layout::superblock::Superblock;
use xact_layout::xattr::{
    Attribute, Entries, MAX_NAME_BYTES, Value, entries_in_block, entries_in_body, fits_block, fits_body,
    full_name, index, refcount, set_refcount, split_name, write_block, write_body,
};
use xact_types::{BlockNr, Errno, Error, FileBlock, Ino, Result, Run, Site};

use crate::extent::{Extents, Mapping, Owner};
use crate::inode_table::InodeTable;
use crate::metadata_blocks::{CREDITS_PER_BLOCK, MetadataBlocks};

/// Maximum size of a value (`XATTR_SIZE_MAX`); a volume's block size is usually smaller.
const MAX_VALUE_BYTES: usize = 65536;

/// Maximum size of a value in an inode of its own (`EXT4_XATTR_SIZE_MAX`).
const MAX_VALUE_IN_INODE_BYTES: u64 = 1 << 24;

/// The attributes of one inode. Names are full (`user.comment`).
#[derive(Clone, Copy)]
pub struct Xattrs<'a> {
    engine: &'a Arc<Engine>,
    sb: &'a Superblock,
    blocks: &'a dyn MetadataBlocks,
    table: &'a InodeTable,
    ino: Ino,
}

/// A change of an inode's attribute block.
enum XattrBlockChange {
    None,
    /// Write this list.
    Write(Vec<Attribute>),
    Drop,
}

/// Changes of an inode's attributes by name; `None` removes the attribute.
pub type XattrChanges = BTreeMap<Vec<u8>, Option<Vec<u8>>>;

/// The attributes of an inode, by place.
#[derive(Clone)]
struct Lists {
    body: Vec<Attribute>,
    block: Vec<Attribute>,
}

impl<'a> Xattrs<'a> {
    /// Credits of [`Xattrs::set`]: a new block, and the old one, which is decremented or freed.
    pub const SET_CREDITS: u32 = 1 + CREDITS_PER_BLOCK + 1 + CREDITS_PER_BLOCK;
    /// Credits of [`Xattrs::drop_all`].
    pub const DROP_CREDITS: u32 = 1 + CREDITS_PER_BLOCK;

    pub fn new(
        engine: &'a Arc<Engine>,
        sb: &'a Superblock,
        blocks: &'a dyn MetadataBlocks,
        table: &'a InodeTable,
        ino: Ino,
    ) -> Xattrs<'a> {
        Xattrs { engine, sb, blocks, table, ino }
    }

    /// The value of an attribute; `None` if the inode does not have it.
    ///
    /// Errors: `EOPNOTSUPP` for a name that ext4 cannot store.
    pub fn get(&self, inode: &Inode, name: &[u8]) -> Result<Option<Vec<u8>>> {
        let (index, rest) = split_name(name).ok_or(Errno::EOPNOTSUPP)?;
        let body = self.body(inode)?;
        if let Some(value) = self.find(body, Site::Inode(self.ino), index, rest)? {
            return Ok(Some(value));
        }
        let Some((block, bytes)) = self.block(inode)? else {
            return Ok(None);
        };
        self.find(self.in_block(block, &bytes)?, Site::Block(block), index, rest)
    }

    /// Full names of all named attributes, those in the body first.
    pub fn list(&self, inode: &Inode) -> Result<Vec<Vec<u8>>> {
        let mut names = Vec::new();
        let mut add = |entries: Entries<'_>, site: Site| {
            for entry in entries {
                let entry = entry.map_err(|what| Error::corrupt(site, what))?;
                // `system.data` holds contents, and no other `system` attribute is visible.
                if entry.index != index::SYSTEM {
                    names.extend(full_name(entry.index, entry.name));
                }
            }
            Ok::<(), Error>(())
        };
        add(self.body(inode)?, Site::Inode(self.ino))?;
        if let Some((block, bytes)) = self.block(inode)? {
            add(self.in_block(block, &bytes)?, Site::Block(block))?;
        }
        Ok(names)
    }

    /// Sets or removes an attribute. Removing a missing attribute changes nothing.
    ///
    /// Errors, before any change: `NoSpace` if the attributes do not fit or no block is free;
    /// `EOPNOTSUPP` for a name that ext4 cannot store; `ERANGE` for a name that is too long;
    /// `E2BIG` for a value beyond 64 KiB; `EINVAL` for an invalid ACL.
    pub fn set(
        &self,
        handle: &mut Handle,
        inode: &mut Inode,
        name: &[u8],
        value: Option<&[u8]>,
    ) -> Result<()> {
        let before = self.lists(inode)?;
        let mut after = before.clone();
        self.place(&mut after, inode, name, value)?;
        let block_change = match after.block {
            listed if listed == before.block => XattrBlockChange::None,
            listed if listed.is_empty() => XattrBlockChange::Drop,
            listed => XattrBlockChange::Write(listed),
        };
        let old_block = Some(BlockNr(inode.xattr_block())).filter(|block| block.0 != 0);
        self.change_block(handle, inode, old_block, block_change)?;
        if after.body != before.body {
            write_body(inode.xattr_area_mut(), &after.body);
        }
        Ok(())
    }

    /// Upper bound of the blocks that [`Self::set`] takes minus those that it frees; with its
    /// errors. A shared block may have become this inode's own by then, but not the other way
    /// round.
    pub fn growth(&self, inode: &Inode, name: &[u8], value: Option<&[u8]>) -> Result<u64> {
        let before = self.lists(inode)?;
        let mut after = before.clone();
        self.place(&mut after, inode, name, value)?;
        if after.block.is_empty() || after.block == before.block {
            return Ok(0);
        }
        let alone = self.block(inode)?.is_some_and(|(_, bytes)| refcount(&bytes) == 1);
        Ok(u64::from(!alone))
    }

    /// Checks that the inode can hold these changes, made one after the other; with the errors of
    /// [`Xattrs::set`].
    pub fn check(&self, inode: &Inode, changes: &XattrChanges) -> Result<()> {
        let mut lists = self.lists(inode)?;
        for (name, value) in changes {
            self.place(&mut lists, inode, name, value.as_deref())?;
        }
        Ok(())
    }

    fn lists(&self, inode: &Inode) -> Result<Lists> {
        let body = owned(self.body(inode)?, Site::Inode(self.ino))?;
        let block = match self.block(inode)? {
            Some((block, bytes)) => owned(self.in_block(block, &bytes)?, Site::Block(block))?,
            None => Vec::new(),
        };
        Ok(Lists { body, block })
    }

    /// Places an attribute: in the inode if it fits, else in the block.
    fn place(&self, lists: &mut Lists, inode: &Inode, name: &[u8], value: Option<&[u8]>) -> Result<()> {
        let new = self.attribute(name, value)?;
        let (index, rest) = split_name(name).ok_or(Errno::EOPNOTSUPP)?;
        let others = |attribute: &Attribute| (attribute.index, &attribute.name[..]) != (index, rest);
        lists.body.retain(others);
        lists.block.retain(others);
        if let Some(new) = new {
            lists.body.push(new);
            if !fits_body(&lists.body, inode.xattr_area().len()) {
                lists.block.extend(lists.body.pop());
            }
        }
        match fits_block(&lists.block, self.engine.block_size()) {
            true => Ok(()),
            false => Err(Error::DoesNotFit("the inode for extended attributes")),
        }
    }

    /// Releases the attribute block of an inode that is deleted.
    pub fn drop_all(&self, handle: &mut Handle, inode: &mut Inode) -> Result<()> {
        let Some((block, bytes)) = self.block(inode)? else {
            return Ok(());
        };
        self.in_block(block, &bytes)?;
        self.change_block(handle, inode, Some(block), XattrBlockChange::Drop)
    }

    /// The attribute in its format on disk.
    fn attribute(&self, name: &[u8], value: Option<&[u8]>) -> Result<Option<Attribute>> {
        let (index, rest) = split_name(name).ok_or(Errno::EOPNOTSUPP)?;
        if rest.len() > MAX_NAME_BYTES {
            return Err(Errno::ERANGE.into());
        }
        let Some(value) = value else {
            return Ok(None);
        };
        if value.len() > MAX_VALUE_BYTES {
            return Err(Errno::E2BIG.into());
        }
        // On a volume without the feature, e2fsck reports attributes as corruption.
        if !self.sb.has_compat(compat::EXT_ATTR) {
            return Err(Error::Unsupported("attributes without the feature ext_attr".into()));
        }
        let value = if is_acl(index) { wire_to_disk(value).ok_or(Errno::EINVAL)? } else { value.to_vec() };
        Ok(Some(Attribute { index, name: rest.to_vec(), value }))
    }

    fn find(&self, entries: Entries<'_>, site: Site, index: u8, name: &[u8]) -> Result<Option<Vec<u8>>> {
        for entry in entries {
            let entry = entry.map_err(|what| Error::corrupt(site, what))?;
            if (entry.index, entry.name) != (index, name) {
                continue;
            }
            let value = match entry.value {
                Value::Here(value) => value.to_vec(),
                Value::InInode { ino, size_bytes } => self.value_in_inode(Ino(ino), size_bytes.into())?,
            };
            if !is_acl(index) {
                return Ok(Some(value));
            }
            let wire = disk_to_wire(&value);
            return wire.map(Some).ok_or(Error::corrupt(site, "access control list is corrupt"));
        }
        Ok(None)
    }

    /// A value in the blocks of an inode of its own (feature `ea_inode`).
    fn value_in_inode(&self, ino: Ino, size_bytes: u64) -> Result<Vec<u8>> {
        let corrupt = |what| Err(Error::corrupt(Site::Inode(ino), what));
        let inode = self.table.read(ino)?;
        if inode.flags() & flag::EA_INODE == 0 || !inode.is_regular() {
            return corrupt("holds no attribute value, though an attribute refers to it");
        }
        if inode.size() > MAX_VALUE_IN_INODE_BYTES {
            return corrupt("attribute value is too long");
        }
        if inode.size() != size_bytes {
            return corrupt("attribute value differs in length from its attribute");
        }
        let owner = Owner { ino, generation: inode.generation() };
        let extents = Extents::new(self.engine, self.sb, self.blocks, owner);
        let block_size = u64::from(self.sb.block_size());
        let mut value = vec![0; inode.size().next_multiple_of(block_size) as usize];
        for (at, block) in value.chunks_mut(block_size as usize).enumerate() {
            match extents.map(&inode, FileBlock(at as u32))? {
                Mapping::Written { start, .. } => self.engine.read_data(start, block)?,
                _ => return corrupt("attribute value has a hole"),
            }
        }
        value.truncate(inode.size() as usize);
        Ok(value)
    }

    fn body<'i>(&self, inode: &'i Inode) -> Result<Entries<'i>> {
        entries_in_body(inode.xattr_area()).map_err(|what| Error::corrupt(Site::Inode(self.ino), what))
    }

    /// The inode's attribute block.
    fn block(&self, inode: &Inode) -> Result<Option<(BlockNr, BlockRef)>> {
        let block = BlockNr(inode.xattr_block());
        if block.0 == 0 {
            return Ok(None);
        }
        if !self.blocks.is_usable(Run { start: block, len: 1 })? {
            return Err(Error::corrupt(Site::Inode(self.ino), "attribute block cannot belong to a file"));
        }
        Ok(Some((block, self.engine.read(block)?)))
    }

    fn in_block<'b>(&self, block: BlockNr, bytes: &'b [u8]) -> Result<Entries<'b>> {
        entries_in_block(bytes, self.sb, block).map_err(|what| Error::corrupt(Site::Block(block), what))
    }

    fn change_block(
        &self,
        handle: &mut Handle,
        inode: &mut Inode,
        old: Option<BlockNr>,
        change: XattrBlockChange,
    ) -> Result<()> {
        let mut list = match change {
            XattrBlockChange::None => return Ok(()),
            XattrBlockChange::Drop => {
                if let Some(old) = old {
                    self.release(handle, old)?;
                    inode.set_xattr_block(0);
                    let sectors = inode.sectors(self.sb);
                    inode.set_sectors(self.sb, sectors.saturating_sub(self.sectors_per_block()));
                }
                return Ok(());
            }
            XattrBlockChange::Write(list) => list,
        };
        if let Some(old) = old {
            self.await_other_users(handle, old)?;
            // Decided under the block's own lock, because other users hold the locks of other
            // inodes.
            let ours = handle.update(old, |bytes| {
                let ours = refcount(bytes) == 1;
                if ours {
                    write_block(bytes, self.sb, old, 1, &mut list);
                }
                ours
            })?;
            if ours {
                return Ok(());
            }
        }
        let new = self.blocks.take(old.unwrap_or_else(|| self.goal()))?;
        self.blocks.link(handle, new)?;
        let mut bytes = vec![0; self.engine.block_size()];
        write_block(&mut bytes, self.sb, new, 1, &mut list);
        handle.create(new, bytes)?;
        inode.set_xattr_block(new.0);
        match old {
            Some(old) => self.release(handle, old)?,
            None => {
                let sectors = inode.sectors(self.sb) + self.sectors_per_block();
                inode.set_sectors(self.sb, sectors);
            }
        }
        Ok(())
    }

    /// Waits for the previous commit if the block has several users (xact creates no such blocks).
    /// Two commits must not decrement its count at the same time: the last user in one would not be
    /// the last in the other.
    fn await_other_users(&self, handle: &Handle, block: BlockNr) -> Result<()> {
        if refcount(&self.engine.read(block)?) > 1 { handle.await_drained() } else { Ok(()) }
    }

    /// Decrements the count of a block; its last user frees it.
    fn release(&self, handle: &mut Handle, block: BlockNr) -> Result<()> {
        self.await_other_users(handle, block)?;
        let last = handle.update(block, |bytes| {
            let users = refcount(bytes);
            if users > 1 {
                set_refcount(bytes, self.sb, block, users - 1);
            }
            users <= 1
        })?;
        if last {
            handle.forget(block)?;
            self.blocks.free(handle, block)?;
        }
        Ok(())
    }

    /// Goal for a first block: the inode's group.
    fn goal(&self) -> BlockNr {
        let group = self.ino.0.saturating_sub(1) / self.sb.inodes_per_group();
        let start = u64::from(self.sb.first_data_block());
        BlockNr(start + u64::from(group) * u64::from(self.sb.blocks_per_group()))
    }

    fn sectors_per_block(&self) -> u64 {
        u64::from(self.sb.block_size() / 512)
    }
}

fn is_acl(index: u8) -> bool {
    matches!(index, index::POSIX_ACL_ACCESS | index::POSIX_ACL_DEFAULT)
}

fn value_here(value: Value<'_>) -> Result<&[u8]> {
    match value {
        Value::Here(value) => Ok(value),
        // Such volumes are opened read-only.
        Value::InInode { .. } => {
            Err(Error::Unsupported("changing attribute values in inodes of their own".into()))
        }
    }
}

fn owned(entries: Entries<'_>, site: Site) -> Result<Vec<Attribute>> {
    entries
        .map(|entry| {
            let entry = entry.map_err(|what| Error::corrupt(site, what))?;
            let value = value_here(entry.value)?.to_vec();
            Ok(Attribute { index: entry.index, name: entry.name.to_vec(), value })
        })
        .collect()
}
