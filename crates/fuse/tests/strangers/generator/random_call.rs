//! Random calls and their arguments.

use super::{APPEND_ONLY, Generator, IMMUTABLE, NAMES};
use crate::call::{Call, WRITE_APPEND, WRITE_CREATE, WRITE_TRUNCATE, What};
use crate::world::USERS;
use crate::{ROOT, tag};

pub(super) const ACL_ACCESS: &str = "system.posix_acl_access";
pub(super) const ACL_DEFAULT: &str = "system.posix_acl_default";

impl Generator {
    pub(super) fn mode(&mut self) -> u64 {
        self.pick(&[0o600, 0o644, 0o640, 0o666, 0o660, 0o400, 0o000, 0o777, 0o2755, 0o4755, 0o620, 0o604])
    }

    pub(super) fn dir_mode(&mut self) -> u64 {
        let modes =
            [0o700, 0o755, 0o755, 0o750, 0o770, 0o777, 0o711, 0o1777, 0o2775, 0o2755, 0o1775, 0o000, 0o500];
        self.pick(&modes)
    }

    pub(super) fn acl(&mut self) -> Vec<u8> {
        let perm = |g: &mut Generator| g.below(8) as u16;
        let mut entries: Vec<(u16, u16, u32)> = vec![(1, perm(self), u32::MAX)];
        let mut named = 0;
        for user in USERS.iter().take(ROOT) {
            if self.one_in(3) {
                entries.push((2, perm(self), user.uid));
                named += 1;
            }
        }
        entries.push((4, perm(self), u32::MAX));
        for group in [2001, 2100, 2200] {
            if self.one_in(4) {
                entries.push((8, perm(self), group));
                named += 1;
            }
        }
        if named > 0 || self.one_in(3) {
            entries.push((0x10, perm(self), u32::MAX));
        }
        entries.push((0x20, perm(self), u32::MAX));
        acl_bytes(&entries)
    }

    pub(super) fn contents(&mut self) -> Vec<u8> {
        let len = self.pick(&[11, 33, 500, 4096, 5000]);
        tag::contents(self.tag(), len)
    }

    pub(super) fn random_call(&mut self) -> Call {
        use What::*;
        let (path, other) = (self.path(), self.path());
        let what = self.pick(&[
            Stat,
            List,
            Read,
            Read,
            ReadLink,
            Write,
            Write,
            Write,
            Write,
            Create,
            Create,
            MakeDir,
            MakeDir,
            Symlink,
            MakeFifo,
            Link,
            Link,
            Unlink,
            Unlink,
            RemoveDir,
            Rename,
            Rename,
            Rename,
            Chmod,
            Chmod,
            Chown,
            Truncate,
            SetXattr,
            SetXattr,
            GetXattr,
            RemoveXattr,
            ListXattrs,
            SetFlags,
            GetFlags,
            Allocate,
            Copy,
            Unnamed,
            SetTimes,
            Access,
        ]);
        let call = Call::new(what, &path);
        match what {
            Read => call.numbers([self.below(2) * 4096, 5000, 0]),
            Write => {
                let offset = self.pick(&[0, 0, 11, 4096, 8191]);
                let how = self.pick(&[0, 0, 0, WRITE_APPEND, WRITE_TRUNCATE, WRITE_CREATE]);
                call.numbers([offset, how, 0]).bytes(self.contents())
            }
            Create | MakeFifo => call.number(self.mode()),
            MakeDir => call.number(self.dir_mode()),
            Symlink => call.other(&tag::text(self.tag())),
            Link => call.other(&other),
            Rename => {
                let flags = self.pick(&[0, 0, 0, libc::RENAME_NOREPLACE, libc::RENAME_EXCHANGE]);
                // Mostly in its folder, if its user may.
                let beside = match path.rsplit_once('/') {
                    Some((dir, _)) if !self.one_in(3) => format!("{dir}/{}", self.pick(&NAMES)),
                    _ => other,
                };
                call.other(&beside).number(flags.into())
            }
            Chmod => {
                let mode = if self.one_in(2) { self.mode() } else { self.dir_mode() };
                call.number(mode)
            }
            Chown => {
                let (user, group) = (self.pick(&USERS), self.pick(&USERS));
                let gid = u64::from(self.pick(group.groups)) + 1;
                let uid = if self.one_in(2) { u64::from(user.uid) + 1 } else { 0 };
                call.numbers([uid, if uid == 0 || self.one_in(2) { gid } else { 0 }, 0])
            }
            Truncate => call.number(self.pick(&[0, 11, 4096, 5000, 8192, 9000])),
            SetXattr => match self.below(4) {
                0 => call.other("user.a").bytes(self.contents()[..11].to_vec()),
                1 => call.other("user.b").bytes(self.contents()[..11].to_vec()).number(self.below(3)),
                2 => call.other(ACL_ACCESS).bytes(self.acl()),
                _ => call.other(ACL_DEFAULT).bytes(self.acl()),
            },
            GetXattr | RemoveXattr => {
                let name = self.pick(&["user.a", "user.b", ACL_ACCESS, ACL_DEFAULT]);
                call.other(name)
            }
            SetFlags => call.number(self.pick(&[0, 0, IMMUTABLE, APPEND_ONLY, 0x40])),
            Allocate => {
                let mode = self.pick(&[0, 1, 3, 0x10]);
                call.numbers([mode, self.below(3) * 4096, 4096])
            }
            Copy => call.other(&other).numbers([0, 0, 5000]),
            Unnamed => call.other(&other).number(self.mode()).bytes(self.contents()),
            SetTimes => call.number(self.pick(&[0, 1_000_000_000])),
            Access => call.number(self.below(8)),
            _ => call,
        }
    }
}

pub(super) fn acl_bytes(entries: &[(u16, u16, u32)]) -> Vec<u8> {
    let mut bytes = 2_u32.to_le_bytes().to_vec();
    for (tag, perm, id) in entries {
        bytes.extend(tag.to_le_bytes());
        bytes.extend(perm.to_le_bytes());
        bytes.extend(id.to_le_bytes());
    }
    bytes
}
