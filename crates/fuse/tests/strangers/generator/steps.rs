//! Steps of a transaction's user and of others: calls in the view, the removal of a permission,
//! savepoints, lists of changes, atomic writes, mappings, and transactions that are left open.

use super::random_call::{ACL_ACCESS, ACL_DEFAULT, acl_bytes};
use super::{APPEND_ONLY, Generator, IMMUTABLE};
use crate::ROOT;
use crate::call::{Call, What};
use crate::step::{Actor, Savepoint, Step};
use crate::world::{USERS, World};
use xact_control::abi as control;

impl Generator {
    /// A call in a transaction, preferably one that changes something and that its user may make.
    pub(super) fn inside(&mut self, world: &World, tx: usize) {
        let mut call = self.random_call();
        if self.one_in(2) {
            let own = world.owner(tx).map_or(0, |who| who.user);
            let change = |path: &str| match path.split_once('/') {
                Some((_, rest)) => format!("h{own}/{rest}"),
                None => path.to_owned(),
            };
            call.path = change(&call.path);
            if matches!(call.what, What::Rename | What::Link | What::Copy | What::Unnamed) {
                call.other = change(&call.other);
            }
        }
        // An inode that is created without a name gets the mode and group from its folder at that
        // time. It may be linked into another folder later.
        if call.what == What::Unnamed
            && let Some((dir, _)) = call.other.rsplit_once('/')
        {
            call.path = dir.to_owned();
        }
        // The copied contents may be older than at the commit.
        if call.what == What::Copy {
            call = Call::new(What::Read, &call.path).numbers([0, 100, 0]);
        }
        self.pending.push_back(Step::In { tx, call });
    }

    /// Removes a permission on something that a transaction has touched.
    pub(super) fn hostility(&mut self, world: &World, tx: usize) -> bool {
        let touched = world.touched(tx);
        if touched.is_empty() {
            return false;
        }
        let mut path = self.pick(&touched);
        while self.one_in(2)
            && let Some((dir, _)) = path.rsplit_once('/')
        {
            path = dir.to_owned();
        }
        let by = if self.one_in(3) { self.anybody() } else { Actor::user(ROOT) };
        let uid = u64::from(self.pick(&USERS).uid);
        let owner = world.owner(tx).map_or(0, |who| USERS[who.user].uid);
        let call = match self.below(11) {
            0 => Call::new(What::Chmod, &path).number(self.mode()),
            1 => Call::new(What::Chmod, &path).number(self.dir_mode()),
            2 => Call::new(What::Chmod, &path).number(self.pick(&[0o600, 0o700, 0o1777, 0o1755, 0o2777])),
            3 => Call::new(What::Chown, &path).numbers([uid + 1, 0, 0]),
            4 => Call::new(What::Chown, &path).numbers([0, self.pick(&[1, 2101, 2201]), 0]),
            5 | 6 => {
                // The same for all but the user of the transaction: the mode stays.
                let mode = world.tree().get(&path).map_or(0o777, |entry| entry.mode) as u16;
                let (user, group, others) = (mode >> 6 & 7, mode >> 3 & 7, mode & 7);
                let (all, named) = (u32::MAX, (2, 0, owner));
                let denial = [(1, user, all), named, (4, group, all), (16, group, all), (32, others, all)];
                Call::new(What::SetXattr, &path).other(ACL_ACCESS).bytes(acl_bytes(&denial))
            }
            10 => Call::new(What::SetXattr, &path).other(ACL_ACCESS).bytes(self.acl()),
            7 => Call::new(What::RemoveXattr, &path).other(ACL_ACCESS),
            8 => Call::new(What::SetFlags, &path).number(self.pick(&[IMMUTABLE, APPEND_ONLY])),
            _ => Call::new(What::SetXattr, &path).other(ACL_DEFAULT).bytes(self.acl()),
        };
        self.pending.push_back(Step::Plain(by, call));
        if self.one_in(3) {
            self.pending.push_back(Step::Commit { tx, flags: control::COMMIT_ORDERED });
        }
        true
    }

    pub(super) fn savepoints(&mut self, world: &World, tx: usize) {
        if self.one_in(3) {
            return self.foreign_part(world, tx);
        }
        let foreign: Vec<Actor> = world.foreign().collect();
        if !foreign.is_empty() && self.one_in(2) {
            let by = self.pick(&foreign);
            let what = self.pick(&[Savepoint::Make, Savepoint::RollBack, Savepoint::Release]);
            let number = self.below(4);
            self.pending.push_back(Step::Foreign { by, what, number });
            if by.mortal && self.one_in(2) {
                self.inside(world, tx);
                self.pending.push_back(Step::Kill { user: by.user });
            }
            return;
        }
        if self.one_in(2) {
            let user = self.user().user;
            let to = Actor { user, mortal: !self.one_in(3) };
            let path = self.path();
            let path =
                if self.one_in(2) { path } else { path[..path.find('/').unwrap_or(path.len())].to_owned() };
            self.pending.push_back(Step::PassView { tx, path, to });
            return;
        }
        let what = self.pick(&[Savepoint::Make, Savepoint::Make, Savepoint::RollBack, Savepoint::Release]);
        let nth = self.below(3) as usize;
        self.pending.push_back(Step::Savepoint { tx, what, nth });
    }

    /// Another user has a descriptor of the view, makes a savepoint and dies, or ends a savepoint
    /// of another process.
    pub(super) fn foreign_part(&mut self, world: &World, tx: usize) {
        let to = Actor::mortal(self.below(ROOT as u64) as usize);
        let path = self.pick(&["t", "g", "w", "r"]).to_owned();
        self.pending.push_back(Step::PassView { tx, path, to });
        self.inside(world, tx);
        let (what, number) = (self.pick(&[Savepoint::Make, Savepoint::RollBack]), self.below(3));
        if what == Savepoint::RollBack {
            self.pending.push_back(Step::Savepoint { tx, what: Savepoint::Make, nth: 0 });
            self.inside(world, tx);
        }
        self.pending.push_back(Step::Foreign { by: to, what, number });
        self.inside(world, tx);
        self.pending.push_back(Step::Kill { user: to.user });
        self.inside(world, tx);
        self.pending.push_back(Step::Commit { tx, flags: control::COMMIT_ORDERED });
    }

    pub(super) fn look(&mut self, world: &World, tx: usize) {
        let owner = world.owner(tx).unwrap_or(Actor::user(0));
        let by = if self.one_in(3) { self.anybody() } else { owner };
        match self.below(8) {
            0 => {
                let next = self.one_in(2);
                self.pending.push_back(Step::Info { by, tx, next });
            }
            1 => {
                // A user renames a folder of others in its own folder, which shows the folder's
                // contents.
                let (own, name) = (owner.user, self.pick(&["d", "e"]));
                let rename = Call::new(What::Rename, &format!("h{own}/{name}")).other(&format!("h{own}/c"));
                self.pending.push_back(Step::In { tx, call: rename });
                self.pending.push_back(Step::Diff {
                    by: owner,
                    tx,
                    by_file: true,
                    passed: false,
                    again: false,
                });
            }
            2..4 => {
                let (by_file, passed, again) =
                    (!self.one_in(3), by != owner && self.one_in(2), self.one_in(6));
                if passed {
                    self.pending.push_back(Step::PassChannel { tx, to: by });
                }
                self.pending.push_back(Step::Diff { by, tx, by_file, passed, again });
            }
            4..7 => {
                let by_file = self.one_in(2);
                self.pending.push_back(Step::ReadSides { by, tx, by_file });
            }
            _ => {
                let touched = world.touched(tx);
                let path =
                    if !touched.is_empty() && self.one_in(2) { self.pick(&touched) } else { self.path() };
                let (of_view, new) = (self.one_in(2), self.one_in(2));
                let by = if self.one_in(2) { Actor::user(ROOT) } else { by };
                self.pending.push_back(Step::ReadNumber { by, tx, path, of_view, new });
            }
        }
    }

    pub(super) fn sections(&mut self, world: &World) {
        let by = self.anybody();
        if world.has_section(by) {
            if self.one_in(2) {
                let (page, tag) = (self.below(2), self.tag());
                self.pending.push_back(Step::Section { by, page, tag });
            } else if by.mortal && self.one_in(2) {
                self.pending.push_back(Step::Kill { user: by.user });
            } else if self.one_in(8) {
                self.pending.push_back(Step::LetGo { by });
            } else {
                let commit = self.one_in(2);
                self.pending.push_back(Step::EndSection { by, commit });
            }
            return;
        }
        let files = world.tree().iter().filter(|(_, entry)| entry.is_file() && entry.bytes.len() >= 8192);
        let files: Vec<(String, u32)> = files.map(|(path, entry)| (path.clone(), entry.uid)).collect();
        let (path, by) = if files.is_empty() || self.one_in(3) {
            (self.path(), by)
        } else {
            let (path, uid) = self.pick(&files);
            let owner = USERS.iter().position(|user| user.uid == uid).unwrap_or(by.user);
            (path, Actor { user: owner, mortal: self.one_in(2) && owner != ROOT })
        };
        let flags = self.pick(&[libc::O_RDONLY, libc::O_RDWR, libc::O_RDWR]) as u64;
        let start = Step::Start { by, path: path.clone(), flags };
        if self.one_in(2) {
            self.pending.push_back(start);
            return;
        }
        // Another user stores into the same file.
        let (other, tag) = (self.anybody(), self.tag());
        let other = if self.one_in(2) { Actor { user: by.user, mortal: !by.mortal } } else { other };
        let offset = self.below(700) * 11;
        let end = match (by.mortal, self.one_in(2)) {
            (true, true) => Step::Kill { user: by.user },
            (_, commit) => Step::EndSection { by, commit },
        };
        let (unmap, map) = (Step::Unmap { by: other }, Step::Map { by: other, path });
        let store = match self.one_in(2) {
            true => Step::Store { by: other, offset, tag },
            false => Step::StoreUnder { by: other, offset, tag, section: by, written: self.tag() },
        };
        self.pending.extend([unmap, map, start, store, end]);
    }

    pub(super) fn mappings(&mut self) {
        let by = self.anybody();
        match self.below(3) {
            0 => {
                let path = self.path();
                self.pending.push_back(Step::Map { by, path });
            }
            1 => {
                let (offset, tag) = (self.below(700) * 11, self.tag());
                self.pending.push_back(Step::Store { by, offset, tag });
            }
            _ => self.pending.push_back(Step::Unmap { by }),
        }
    }

    pub(super) fn keeping(&mut self, world: &World, tx: usize) {
        let owner = world.owner(tx).unwrap_or(Actor::user(0));
        let other = self.anybody();
        match self.below(6) {
            0 => {
                let path = self.path();
                self.pending.push_back(Step::Select { tx, path });
            }
            1 => {
                let path = self.path();
                self.pending.push_back(Step::Select { tx, path });
                self.pending.push_back(Step::DropSelected { tx });
            }
            2 => self.pending.push_back(Step::Keep { tx }),
            _ => {
                self.pending.push_back(Step::Keep { tx });
                self.pending.push_back(Step::Leave { tx });
                self.pending.push_back(Step::Attach { by: other, tx });
                self.pending.push_back(Step::Attach { by: owner, tx });
            }
        }
    }
}
