//! Permission bits and access control lists, for calls that the kernel does not check.
//!
//! On a mount the kernel checks permissions at each call by name or descriptor
//! (`default_permissions`). A call with an inode number, or one that walks folders in the daemon,
//! must check them here, by the same rules (`generic_permission`, `posix_acl_permission`).
//! Capabilities are not known: only user 0 bypasses the checks.

use xact_types::{Ino, Result};

use super::acl::{self, Acl};
use crate::inode_ops::InodeOps;

/// The identity of a caller, on which its permissions depend.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Credentials {
    pub uid: u32,
    pub gid: u32,
    /// Supplementary groups.
    pub groups: Vec<u32>,
}

impl Credentials {
    pub fn in_group(&self, gid: u32) -> bool {
        self.gid == gid || self.groups.contains(&gid)
    }
}

/// Requested access to an inode: the bits of one digit of a mode.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Access(pub(super) u16);

impl Access {
    pub const READ: Access = Access(4);
    /// Look up a name in a folder, or execute a file.
    pub const SEARCH: Access = Access(1);
    /// List a folder with the attributes of its entries.
    pub const LIST: Access = Access(4 | 1);
}

/// Whether the caller may have this access to an inode.
pub fn permits<T: InodeOps + ?Sized>(
    ops: &mut T,
    who: &Credentials,
    ino: Ino,
    access: Access,
) -> Result<bool> {
    if who.uid == 0 {
        return Ok(true);
    }
    let attr = ops.attr(ino)?;
    if who.uid == attr.uid {
        return Ok(attr.perm >> 6 & access.0 == access.0);
    }
    // These bits are the mask of an access list, so without any of them a list grants nothing.
    if attr.perm & 0o070 != 0
        && let Some(list) = ops.xattr(ino, acl::ACCESS)?
    {
        return Ok(Acl::decode(&list)?.permits(who, attr.gid, access));
    }
    let digit = if who.in_group(attr.gid) { attr.perm >> 3 } else { attr.perm };
    Ok(digit & access.0 == access.0)
}

/// Whether the caller may have this access to `ino` by an absolute path, which must lead there
/// without a symbolic link.
pub fn permits_path<T: InodeOps + ?Sized>(
    ops: &mut T,
    who: &Credentials,
    path: &[u8],
    ino: Ino,
    access: Access,
) -> Result<bool> {
    let mut at = Ino::ROOT;
    for name in path.split(|&byte| byte == b'/').filter(|name| !name.is_empty()) {
        if !ops.attr(at)?.is_dir() || !permits(ops, who, at, Access::SEARCH)? {
            return Ok(false);
        }
        let Some(entry) = ops.entry(at, name)? else { return Ok(false) };
        at = entry.ino;
    }
    Ok(at == ino && permits(ops, who, ino, access)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::inode_ops::mem::MemTree;
    use crate::posix::acl::encode_for_test;
    use crate::posix::{make_dir, make_node, set_attr, set_xattr};
    use crate::{Caller, SetAttr, XattrHow};

    const FILE: u16 = 0o100_000;
    const NOBODY: u32 = u32::MAX;

    fn who(uid: u32, gid: u32, groups: &[u32]) -> Credentials {
        Credentials { uid, gid, groups: groups.to_vec() }
    }

    /// `/d` of user 1 and `/d/f` of user 1 and group 10.
    fn ops() -> (MemTree, Ino, Ino) {
        let mut ops = MemTree::new(1024);
        let dir =
            make_dir(&mut ops, &Caller { uid: 1, gid: 10, umask: 0 }, Ino::ROOT, b"d", 0o755).unwrap().ino;
        let by = Caller { uid: 1, gid: 10, umask: 0 };
        let file = make_node(&mut ops, &by, dir, b"f", FILE | 0o640, 0).unwrap().ino;
        (ops, dir, file)
    }

    #[test]
    fn the_first_matching_digit_of_the_mode_decides() {
        let (mut ops, _, file) = ops();
        let mut reads = |who: Credentials| permits(&mut ops, &who, file, Access::READ).unwrap();
        assert!(reads(who(0, 0, &[])) && reads(who(1, 99, &[])) && reads(who(2, 10, &[])));
        assert!(reads(who(2, 20, &[30, 10])));
        assert!(!reads(who(2, 20, &[30])));
        let change = SetAttr { perm: Some(0o044), ..SetAttr::default() };
        set_attr(&mut ops, &Caller::ROOT, file, &change).unwrap();
        // The owner's digit counts for the owner, even if others have more.
        assert!(!permits(&mut ops, &who(1, 10, &[]), file, Access::READ).unwrap());
        assert!(permits(&mut ops, &who(2, 20, &[]), file, Access::READ).unwrap());
    }

    #[test]
    fn an_access_list_overrides_the_group_digit() {
        let (mut ops, _, file) = ops();
        // user::rw-, user:2:r--, user:3:---, group::---, group:30:r--, mask::r--, other::r--
        let list = encode_for_test(&[
            (1, 6, NOBODY),
            (2, 4, 2),
            (2, 0, 3),
            (4, 0, NOBODY),
            (8, 4, 30),
            (16, 4, NOBODY),
            (32, 4, NOBODY),
        ]);
        set_xattr(&mut ops, &Caller::ROOT, file, acl::ACCESS, &list, XattrHow::Set).unwrap();
        let mut reads = |who: Credentials| permits(&mut ops, &who, file, Access::READ).unwrap();
        assert!(reads(who(2, 99, &[])) && !reads(who(3, 30, &[])));
        // One of several groups is enough; a member of a listed group does not get the rights of
        // others.
        assert!(reads(who(4, 10, &[30])) && !reads(who(4, 10, &[])) && reads(who(4, 99, &[])));
    }

    #[test]
    fn the_mask_limits_all_but_owner_and_others() {
        let (mut ops, _, file) = ops();
        let list =
            encode_for_test(&[(1, 6, NOBODY), (2, 7, 2), (4, 7, NOBODY), (16, 1, NOBODY), (32, 4, NOBODY)]);
        set_xattr(&mut ops, &Caller::ROOT, file, acl::ACCESS, &list, XattrHow::Set).unwrap();
        let mut reads = |who: Credentials| permits(&mut ops, &who, file, Access::READ).unwrap();
        assert!(!reads(who(2, 99, &[])) && !reads(who(5, 10, &[])) && reads(who(5, 99, &[])));
    }

    #[test]
    fn a_path_needs_search_permission_on_each_folder() {
        let (mut ops, dir, file) = ops();
        let open = SetAttr { perm: Some(0o644), ..SetAttr::default() };
        set_attr(&mut ops, &Caller::ROOT, file, &open).unwrap();
        let stranger = who(2, 20, &[]);
        let reads = |ops: &mut MemTree, path: &[u8]| permits_path(ops, &stranger, path, file, Access::READ);
        assert!(reads(&mut ops, b"/d/f").unwrap());
        assert!(!reads(&mut ops, b"/d/g").unwrap() && !reads(&mut ops, b"/d").unwrap());
        assert!(!reads(&mut ops, b"/d/f/x").unwrap() && !reads(&mut ops, b"").unwrap());
        let shut = SetAttr { perm: Some(0o744), ..SetAttr::default() };
        set_attr(&mut ops, &Caller::ROOT, dir, &shut).unwrap();
        assert!(!reads(&mut ops, b"/d/f").unwrap());
    }
}
