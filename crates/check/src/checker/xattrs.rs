//! Extended attributes: in the inode's body, in blocks that inodes share, and in inodes of their
//! own.

use xact_layout::feature::incompat;
use xact_layout::inode::Inode;
use xact_layout::posix_acl::disk_to_wire;
use xact_layout::xattr::{Entries, Value, entries_in_block, entries_in_body, index, refcount};
use xact_types::{BlockNr, Ino, Result, Run, Site};

use super::Checker;

/// The space of an inode's attributes outside of the inode. A value that many attributes share
/// counts for each of them.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct InAttributes {
    pub blocks: u64,
    /// Inodes that hold values.
    pub inodes: u64,
}

impl std::ops::Add for InAttributes {
    type Output = InAttributes;

    fn add(self, other: InAttributes) -> InAttributes {
        InAttributes { blocks: self.blocks + other.blocks, inodes: self.inodes + other.inodes }
    }
}

/// An attribute block that several inodes use.
pub(crate) struct SharedBlock {
    /// The number of users by its own count.
    expected: u32,
    users: u32,
    takes: InAttributes,
}

impl Checker<'_> {
    /// Checks all attributes of an inode, and returns their space.
    pub(crate) fn check_xattrs(&mut self, ino: Ino, inode: &Inode) -> Result<InAttributes> {
        let site = Site::Inode(ino);
        let mut takes = InAttributes::default();
        match entries_in_body(inode.xattr_area()) {
            Ok(entries) => self.check_entries(entries, site, &mut takes),
            Err(what) => self.report.problem(site, what),
        }
        let Some(block) = self.attribute_block(inode) else { return Ok(takes) };
        if !self.volume.sb.contains(block, 1) {
            self.report.problem(site, format!("its attributes lie in {block}, outside the volume"));
            return Ok(takes);
        }
        if let Some(shared) = self.xattr_blocks.get_mut(&block.0) {
            shared.users += 1;
            return Ok(takes + shared.takes);
        }
        self.claim_run(ino, Run { start: block, len: 1 });
        let bytes = self.volume.block(block)?;
        let mut in_block = InAttributes { blocks: 1, inodes: 0 };
        match entries_in_block(&bytes, &self.volume.sb, block) {
            Ok(entries) => self.check_entries(entries, Site::Block(block), &mut in_block),
            Err(what) => self.report.problem(Site::Block(block), what),
        }
        let shared = SharedBlock { expected: refcount(&bytes), users: 1, takes: in_block };
        self.xattr_blocks.insert(block.0, shared);
        Ok(takes + in_block)
    }

    fn check_entries(&mut self, entries: Entries<'_>, site: Site, takes: &mut InAttributes) {
        for entry in entries {
            let entry = match entry {
                Ok(entry) => entry,
                Err(what) => return self.report.problem(site, what),
            };
            match entry.value {
                Value::Here(value) => {
                    let is_acl = matches!(entry.index, index::POSIX_ACL_ACCESS | index::POSIX_ACL_DEFAULT);
                    if is_acl && disk_to_wire(value).is_none() {
                        self.report.problem(site, "access control list is damaged");
                    }
                }
                Value::InInode { ino, size_bytes } if self.volume.sb.has_incompat(incompat::EA_INODE) => {
                    *self.value_users.entry(ino).or_default() += 1;
                    takes.blocks += u64::from(size_bytes.div_ceil(self.volume.sb.block_size()));
                    takes.inodes += 1;
                }
                Value::InInode { .. } => {
                    self.report.problem(site, "attribute value in an inode of its own, without ea_inode");
                }
            }
        }
    }

    /// Compares counts of users with the users, when all inodes are known.
    pub(crate) fn check_shared_xattrs(&mut self) {
        for (block, shared) in std::mem::take(&mut self.xattr_blocks) {
            if shared.expected != shared.users {
                let what =
                    format!("attribute block counts {} users and has {}", shared.expected, shared.users);
                self.report.problem(Site::Block(BlockNr(block)), what);
            }
        }
        let counts = std::mem::take(&mut self.value_counts);
        for (holder, users) in std::mem::take(&mut self.value_users) {
            if let Some(count) = counts.get(&holder).filter(|&&count| count != users) {
                let what = format!("is the value of {users} attributes and counts {count}");
                self.report.problem(Site::Inode(Ino(holder)), what);
            }
            let known = self.seen.get_mut(holder as usize).filter(|seen| seen.used && seen.is_value);
            match known {
                // One link stands for all the attributes that share the value.
                Some(seen) => seen.refs = 1,
                None => {
                    let what = format!("{users} attributes have their value in it, and it holds none");
                    self.report.problem(Site::Inode(Ino(holder)), what);
                }
            }
        }
    }
}
