//! Extended attributes: in the inode's body, in blocks that inodes share, and in inodes of their own.

use xact_base::{BlockNr, Ino, Result, Run, Site};
use xact_layout::feature::incompat;
use xact_layout::inode::Inode;
use xact_layout::posix_acl::disk_to_wire;
use xact_layout::xattr::{Entries, Value, entries_in_block, entries_in_body, index, refcount};

use crate::Checker;

/// An attribute block that inodes have in common.
pub(crate) struct SharedBlock {
    /// Users by its own count.
    expected: u32,
    users: u32,
}

impl Checker<'_> {
    /// Checks all attributes of an inode. Gives the number of blocks that they take: 0 or 1.
    pub(crate) fn check_xattrs(&mut self, ino: Ino, inode: &Inode) -> Result<u64> {
        let site = Site::Inode(ino);
        match entries_in_body(inode.xattr_area()) {
            Ok(entries) => self.check_entries(entries, site),
            Err(what) => self.report.problem(site, what),
        }
        let Some(block) = self.attribute_block(inode) else { return Ok(0) };
        if !self.volume.sb.contains(block, 1) {
            self.report.problem(site, format!("its attributes lie in {block}, outside the volume"));
            return Ok(0);
        }
        if let Some(shared) = self.xattr_blocks.get_mut(&block.0) {
            shared.users += 1;
            return Ok(1);
        }
        self.claim_run(ino, Run { start: block, len: 1 });
        let bytes = self.volume.block(block)?;
        self.xattr_blocks.insert(block.0, SharedBlock { expected: refcount(&bytes), users: 1 });
        match entries_in_block(&bytes, &self.volume.sb, block) {
            Ok(entries) => self.check_entries(entries, Site::Block(block)),
            Err(what) => self.report.problem(Site::Block(block), what),
        }
        Ok(1)
    }

    fn check_entries(&mut self, entries: Entries<'_>, site: Site) {
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
                Value::InInode(holder) if self.volume.sb.has_incompat(incompat::EA_INODE) => {
                    *self.value_users.entry(holder).or_default() += 1;
                }
                Value::InInode(_) => {
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
        for (holder, users) in std::mem::take(&mut self.value_users) {
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
