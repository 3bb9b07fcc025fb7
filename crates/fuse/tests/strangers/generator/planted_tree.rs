//! The tree that a history begins with.

use super::random_call::{ACL_ACCESS, ACL_DEFAULT};
use super::{APPEND_ONLY, Generator, IMMUTABLE, TOPS};
use crate::call::{Call, What};
use crate::step::{Actor, Step};
use crate::world::USERS;
use crate::{ROOT, tag};

impl Generator {
    /// The tree that a history begins with.
    pub(super) fn plant(&mut self) -> Vec<Step> {
        let root = Actor::user(ROOT);
        let mut plant = Vec::new();
        for (at, top) in TOPS.into_iter().enumerate() {
            plant.push(Call::new(What::MakeDir, top).number(0o755));
            let (uid, gid, mode) = match top {
                "t" => (0, 0, 0o1777),
                "g" => (0, 2100, 0o2775),
                "r" => (0, 0, 0o755),
                "w" => (0, 0, 0o777),
                _ => (
                    USERS[at].uid,
                    USERS[at].groups[0],
                    self.pick(&[0o700, 0o755, 0o755, 0o777, 0o711, 0o750]),
                ),
            };
            plant.push(Call::new(What::Chown, top).numbers([u64::from(uid) + 1, gid as u64 + 1, 0]));
            plant.push(Call::new(What::Chmod, top).number(mode));
            for name in ["a", "b", "d", "e", "d/a", "d/b", "d/d", "e/a", "d/d/a"] {
                if self.one_in(4) {
                    continue;
                }
                let path = format!("{top}/{name}");
                let is_dir = name.ends_with(['d', 'e']);
                let user = self.below(ROOT as u64 + 2).min(ROOT as u64) as usize;
                let user = if at < ROOT && !self.one_in(3) { at } else { user };
                let (uid, gid) = (u64::from(USERS[user].uid), u64::from(self.pick(USERS[user].groups)));
                if is_dir {
                    plant.push(Call::new(What::MakeDir, &path).number(0o755));
                } else if self.one_in(12) {
                    let target = tag::text(self.tag());
                    plant.push(Call::new(What::Symlink, &path).other(&target));
                    continue;
                } else {
                    plant.push(Call::new(What::Create, &path).number(0o644));
                    let len = self.pick(&[11, 500, 8192, 8192, 8192]);
                    let bytes = tag::contents(self.tag(), len);
                    plant.push(Call::new(What::Write, &path).bytes(bytes));
                }
                let mode = if is_dir { self.dir_mode() } else { self.mode() };
                plant.push(Call::new(What::Chown, &path).numbers([uid + 1, gid + 1, 0]));
                plant.push(Call::new(What::Chmod, &path).number(mode));
                if self.one_in(8) {
                    let name = if is_dir && self.one_in(2) { ACL_DEFAULT } else { ACL_ACCESS };
                    let acl = self.acl();
                    plant.push(Call::new(What::SetXattr, &path).other(name).bytes(acl));
                }
            }
        }
        for _ in 0..self.below(3) {
            let path = self.path();
            let flags = self.pick(&[IMMUTABLE, APPEND_ONLY]);
            plant.push(Call::new(What::SetFlags, &path).number(flags));
        }
        plant.into_iter().map(|call| Step::Plain(root, call)).collect()
    }
}
