//! The properties that a new inode inherits from its folder: group, ACLs, flags, project, and data
//! mode.

use xact_layout::inode::flag;
use xact_types::{Ino, Result, Timestamp};

use super::acl::{self, Acl};
use super::attr::flags_for_kind;
use super::{PERM_MASK, SGID};
use crate::api::{Attr, Caller, FileKind};
use crate::file_mode::FILE_MODE;
use crate::inode_ops::{AttrSet, InodeOps, NewInode};
use crate::journal_modes::DataMode;

/// A new inode with the properties that it inherits from its folder, read before the first change.
pub(super) struct InodePlan {
    pub(super) new: NewInode,
    /// Derived from the folder's default ACL.
    access_acl: Option<Vec<u8>>,
    default_acl: Option<Vec<u8>>,
    /// The folder's choice of a data mode.
    file_mode: Option<Vec<u8>>,
}

impl InodePlan {
    /// `perm`: permission bits before the umask.
    pub(super) fn in_dir<T: InodeOps + ?Sized>(
        ops: &mut T,
        caller: &Caller,
        dir: &Attr,
        kind: FileKind,
        perm: u16,
        now: Timestamp,
    ) -> Result<InodePlan> {
        ops.depends_on(dir.ino, AttrSet::MODE | AttrSet::FLAGS);
        let mut perm = perm & PERM_MASK;
        let mut gid = caller.gid;
        if ops.gives_group_of_folder() {
            ops.depends_on(dir.ino, AttrSet::OWNER);
            gid = dir.gid;
        } else if dir.perm & SGID != 0 {
            ops.depends_on(dir.ino, AttrSet::OWNER);
            gid = dir.gid;
            if kind == FileKind::Directory {
                perm |= SGID;
            }
        }
        let mut access_acl = None;
        let mut default_acl = None;
        // A default ACL replaces the umask; the bits of a symbolic link have no effect.
        if kind == FileKind::Symlink {
            perm = 0o777;
        } else if let Some(value) = ops.xattr(dir.ino, acl::DEFAULT)? {
            let (access, bits) = Acl::decode(&value)?.for_new(perm);
            perm = perm & !0o777 | bits;
            access_acl = (!access.is_minimal()).then(|| access.encode());
            default_acl = (kind == FileKind::Directory).then_some(value);
        } else {
            perm &= !(caller.umask & 0o777);
        }
        let mapped = matches!(kind, FileKind::Regular | FileKind::Directory | FileKind::Symlink);
        let map = if mapped && ops.has_extents() { flag::EXTENTS } else { 0 };
        let flags = flags_for_kind(kind, dir.flags & flag::INHERITED) | map;
        let project = inherited_project(ops, dir).unwrap_or(0);
        let new = NewInode { kind, perm, uid: caller.uid, gid, project, rdev: 0, time: now, flags };
        let file_mode = match kind {
            FileKind::Regular | FileKind::Directory => ops.xattr(dir.ino, FILE_MODE)?,
            _ => None,
        };
        // Linux may have stored any value.
        let file_mode = file_mode.filter(|word| DataMode::from_file_word(word).is_some());
        Ok(InodePlan { new, access_acl, default_acl, file_mode })
    }

    pub(super) fn make<T: InodeOps + ?Sized>(&self, ops: &mut T, dir: Ino) -> Result<Ino> {
        let ino = ops.new_inode(dir, &self.new)?;
        if let Some(value) = &self.access_acl {
            ops.set_xattr(ino, acl::ACCESS, Some(value))?;
        }
        if let Some(value) = &self.default_acl {
            ops.set_xattr(ino, acl::DEFAULT, Some(value))?;
        }
        if let Some(word) = &self.file_mode {
            ops.set_xattr(ino, FILE_MODE, Some(word))?;
        }
        Ok(ino)
    }
}

/// The project that new inodes in `dir` inherit.
pub(super) fn inherited_project<T: InodeOps + ?Sized>(ops: &T, dir: &Attr) -> Option<u32> {
    (ops.has_projects() && dir.flags & flag::PROJECT_INHERIT != 0).then_some(dir.project)
}
