//! Extended attributes: in the inode's body, in blocks that inodes share, and in inodes of their
//! own.

use xact_layout::feature::incompat;
use xact_layout::inode::{Inode, flag};
use xact_layout::posix_acl::disk_to_wire;
use xact_layout::xattr::{
    Entries, Entry, Value, entries_in_block, entries_in_body, hash_matches, index, refcount,
};
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

/// A list of attributes that is checked.
struct List<'l> {
    /// The bytes that offsets of values count in.
    area: &'l [u8],
    site: Site,
    /// In a block, each entry has a prefix and a hash.
    is_block: bool,
    /// The inode that it belongs to, or the first of them.
    owner: Ino,
    owner_generation: u32,
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
        let generation = inode.generation();
        let area = inode.xattr_area();
        let list = List { area, site, is_block: false, owner: ino, owner_generation: generation };
        let is_file = !self.is_internal(ino);
        // Nothing reads those of the volume's own inodes.
        match entries_in_body(if is_file { area } else { &[] }) {
            Ok(entries) => self.check_entries(entries, &list, &mut takes)?,
            Err(what) => self.report.problem(site, what),
        }
        let Some(block) = self.attribute_block(inode) else { return Ok(takes) };
        if !self.volume.sb.contains(block, 1) {
            if is_file {
                self.report.problem(site, format!("its attributes lie in {block}, outside the volume"));
            }
            return Ok(takes);
        }
        if let Some(shared) = self.xattr_blocks.get_mut(&block.0) {
            shared.users += 1;
            return Ok(takes + shared.takes);
        }
        self.claim_run(ino, Run { start: block, len: 1 });
        let bytes = self.volume.block(block)?;
        let mut in_block = InAttributes { blocks: 1, inodes: 0 };
        let list = List { area: &bytes, site: Site::Block(block), is_block: true, ..list };
        match entries_in_block(&bytes, &self.volume.sb, block) {
            Ok(entries) => self.check_entries(entries, &list, &mut in_block)?,
            Err(what) => self.report.problem(Site::Block(block), what),
        }
        let shared = SharedBlock { expected: refcount(&bytes), users: 1, takes: in_block };
        self.xattr_blocks.insert(block.0, shared);
        Ok(takes + in_block)
    }

    fn check_entries(
        &mut self,
        entries: Entries<'_>,
        list: &List<'_>,
        takes: &mut InAttributes,
    ) -> Result<()> {
        let site = list.site;
        if entries.overlap() {
            self.report.problem(site, "values of attributes overlap");
        }
        for entry in entries {
            let entry = match entry {
                Ok(entry) => entry,
                Err(what) => {
                    self.report.problem(site, what);
                    break;
                }
            };
            if list.is_block && entry.index == 0 {
                self.report.problem(site, "attribute has no prefix");
            }
            match entry.value {
                Value::Here(value) => {
                    let is_acl = matches!(entry.index, index::POSIX_ACL_ACCESS | index::POSIX_ACL_DEFAULT);
                    if is_acl && disk_to_wire(value).is_none() {
                        self.report.problem(site, "access control list is damaged");
                    }
                    let has_hash = list.is_block || entry.hash != 0;
                    if has_hash && !hash_matches(&entry, list.area, None) {
                        self.report.problem(site, "hash of an attribute does not match");
                    }
                }
                Value::InInode { ino, size_bytes } if self.volume.sb.has_incompat(incompat::EA_INODE) => {
                    *self.value_users.entry(ino).or_default() += 1;
                    takes.inodes += 1;
                    if self.check_value(&entry, Ino(ino), list)? {
                        takes.blocks += u64::from(size_bytes.div_ceil(self.volume.sb.block_size()));
                    }
                }
                Value::InInode { .. } => {
                    self.report.problem(site, "attribute value in an inode of its own, without ea_inode");
                }
            }
        }
        Ok(())
    }

    /// Compares an entry with the inode that holds its value. Returns whether the value counts for
    /// the owner: that of Lustre, which knows the one inode that it belongs to, does not.
    fn check_value(&mut self, entry: &Entry<'_>, holder: Ino, list: &List<'_>) -> Result<bool> {
        let sb = &self.volume.sb;
        let inode = self.volume.inode(holder)?.filter(|_| holder >= sb.first_inode());
        let Some(inode) = inode else {
            self.report.problem(list.site, format!("attribute value in {holder}, which cannot be"));
            return Ok(true);
        };
        // The kernel keeps the hash of the value where other inodes have the time of access.
        if hash_matches(entry, list.area, Some(inode.atime_lo())) {
            return Ok(true);
        }
        let of_lustre = inode.mtime_lo() == list.owner.0 && inode.generation() == list.owner_generation;
        if !of_lustre && inode.flags() & flag::EA_INODE != 0 {
            self.report.problem(list.site, "hash of an attribute does not match that of its value");
        }
        Ok(!of_lustre)
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
            let known = self.seen.used_mut(Ino(holder)).filter(|seen| seen.is_value);
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
