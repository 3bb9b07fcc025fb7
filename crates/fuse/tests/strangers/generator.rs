//! Random histories: a tree of modes, owners, ACLs and flags, then calls of all users. Names are
//! few, so that calls collide. While a transaction is open, other users often remove a permission
//! on something that it has touched.

use std::collections::VecDeque;

use xact_fs::inode_ops::random::Rng;

use crate::call::{Call, WRITE_APPEND, WRITE_CREATE, WRITE_TRUNCATE, What};
use crate::step::{Actor, Savepoint, Step};
use crate::world::{USERS, World};
use crate::{ROOT, tag};
use xact_control::abi as control;

/// Folders at the top: of each user, for all, of a group, of root, with setgid and sticky.
const TOPS: [&str; 8] = ["h0", "h1", "h2", "h3", "t", "g", "r", "w"];
/// `c` is unused at first.
const NAMES: [&str; 7] = ["a", "b", "d", "e", "a", "d", "c"];

const ACL_ACCESS: &str = "system.posix_acl_access";
const ACL_DEFAULT: &str = "system.posix_acl_default";
pub const IMMUTABLE: u64 = 0x10;
pub const APPEND_ONLY: u64 = 0x20;

pub struct Generator {
    rng: Rng,
    pending: VecDeque<Step>,
    next_tag: u64,
    next_tx: usize,
    /// Hostile steps among twelve: those that remove permissions from an open transaction.
    hostile: u64,
    theme: Theme,
    /// Paths that exist.
    there: Vec<String>,
}

/// The kind of steps that are frequent in a history.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Theme {
    Mixed,
    Commits,
    Lists,
    Savepoints,
    Sections,
}

impl Generator {
    /// With the steps that a history begins with.
    pub fn new(seed: u64) -> (Generator, Vec<Step>) {
        let mut rng = Rng(seed.wrapping_mul(0x5851_f42d_4c95_7f2d));
        let themes = [Theme::Mixed, Theme::Commits, Theme::Lists, Theme::Savepoints, Theme::Sections];
        let theme = themes[rng.below(5) as usize];
        let hostile = if theme == Theme::Commits { 4 } else { rng.below(4) };
        let (pending, there) = Default::default();
        let mut generator = Generator { rng, pending, next_tag: 1, next_tx: 1, hostile, theme, there };
        let planted = generator.plant();
        (generator, planted)
    }

    fn below(&mut self, end: u64) -> u64 {
        self.rng.below(end)
    }

    fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }

    fn pick<T: Clone>(&mut self, of: &[T]) -> T {
        of[self.below(of.len() as u64) as usize].clone()
    }

    fn tag(&mut self) -> u64 {
        self.next_tag += 1;
        self.next_tag
    }

    fn user(&mut self) -> Actor {
        Actor::user(self.below(ROOT as u64) as usize)
    }

    fn anybody(&mut self) -> Actor {
        let user = self.below(ROOT as u64 + 1) as usize;
        Actor { user, mortal: user != ROOT && self.one_in(8) }
    }

    fn path(&mut self) -> String {
        if !self.there.is_empty() && !self.one_in(3) {
            let at = self.below(self.there.len() as u64) as usize;
            return self.there[at].clone();
        }
        let mut path = self.pick(&TOPS).to_owned();
        for _ in 0..self.below(3).max(self.rng.below(3)) {
            path = format!("{path}/{}", self.pick(&NAMES));
        }
        path
    }

    fn mode(&mut self) -> u64 {
        self.pick(&[0o600, 0o644, 0o640, 0o666, 0o660, 0o400, 0o000, 0o777, 0o2755, 0o4755, 0o620, 0o604])
    }

    fn dir_mode(&mut self) -> u64 {
        let modes =
            [0o700, 0o755, 0o755, 0o750, 0o770, 0o777, 0o711, 0o1777, 0o2775, 0o2755, 0o1775, 0o000, 0o500];
        self.pick(&modes)
    }

    fn acl(&mut self) -> Vec<u8> {
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

    fn contents(&mut self) -> Vec<u8> {
        let len = self.pick(&[11, 33, 500, 4096, 5000]);
        tag::contents(self.tag(), len)
    }

    /// The tree that a history begins with.
    fn plant(&mut self) -> Vec<Step> {
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

    pub fn next(&mut self, world: &World) -> Step {
        loop {
            if let Some(step) = self.pending.pop_front() {
                return step;
            }
            self.think(world);
        }
    }

    fn think(&mut self, world: &World) {
        self.there = world.tree().keys().filter(|path| !path.is_empty()).cloned().collect();
        let open: Vec<usize> = world.open().collect();
        if open.is_empty() || open.len() < 4 && self.one_in(12) {
            let (by, snapshot) = (self.user(), !self.one_in(3));
            let by = if self.one_in(8) { Actor::mortal(by.user) } else { by };
            let tx = self.next_tx;
            self.next_tx += 1;
            self.pending.push_back(Step::Begin { by, tx, snapshot });
            return;
        }
        let tx = self.pick(&open);
        if self.below(12) < self.hostile && self.hostility(world, tx) {
            return;
        }
        if self.one_in(5) {
            match self.theme {
                Theme::Mixed => {}
                Theme::Commits => {
                    return self.pending.push_back(Step::Commit { tx, flags: control::COMMIT_ORDERED });
                }
                Theme::Lists => return self.look(world, tx),
                Theme::Savepoints => return self.savepoints(world, tx),
                Theme::Sections => return self.sections(world),
            }
        }
        match self.below(40) {
            0..14 => self.inside(world, tx),
            14..24 => {
                let (by, call) = (self.anybody(), self.random_call());
                self.pending.push_back(Step::Plain(by, call));
            }
            24..27 => {
                let flags = match self.below(8) {
                    0 => control::COMMIT_RETAIN,
                    1 => control::COMMIT_CONSOLIDATE,
                    2 => 0,
                    3 => control::COMMIT_ONLY,
                    _ => control::COMMIT_ORDERED,
                };
                self.pending.push_back(Step::Commit { tx, flags });
            }
            27 => {
                let end = if self.one_in(2) { Step::Abort { tx } } else { Step::Leave { tx } };
                self.pending.push_back(end);
            }
            28..30 => self.savepoints(world, tx),
            30..34 => self.look(world, tx),
            34..36 => self.sections(world),
            36 => self.mappings(),
            37 => self.keeping(world, tx),
            38 => {
                let (by, path) = (self.anybody(), self.path());
                let command = self.pick(&STRAY);
                let fill = self.pick(&[0, 0, 1, 3, 0xff]);
                // Commands that end transactions have no effect there. Commands that wait are not
                // tested here.
                self.pending.push_back(Step::Stray { by, path, command, fill });
            }
            _ => {
                if self.one_in(6) {
                    let user = self.below(ROOT as u64) as usize;
                    self.pending.push_back(Step::Kill { user });
                }
            }
        }
    }

    /// A call in a transaction, preferably one that changes something and that its user may make.
    fn inside(&mut self, world: &World, tx: usize) {
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
    fn hostility(&mut self, world: &World, tx: usize) -> bool {
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

    fn savepoints(&mut self, world: &World, tx: usize) {
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
    fn foreign_part(&mut self, world: &World, tx: usize) {
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

    fn look(&mut self, world: &World, tx: usize) {
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

    fn sections(&mut self, world: &World) {
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

    fn mappings(&mut self) {
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

    fn keeping(&mut self, world: &World, tx: usize) {
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

    fn random_call(&mut self) -> Call {
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

fn acl_bytes(entries: &[(u16, u16, u32)]) -> Vec<u8> {
    let mut bytes = 2_u32.to_le_bytes().to_vec();
    for (tag, perm, id) in entries {
        bytes.extend(tag.to_le_bytes());
        bytes.extend(perm.to_le_bytes());
        bytes.extend(id.to_le_bytes());
    }
    bytes
}

const STRAY: [u32; 20] = [
    control::IOC_VERSION,
    control::IOC_BEGIN,
    control::IOC_COMMIT,
    control::IOC_ABORT,
    control::IOC_STATUS,
    control::IOC_SELECT,
    control::IOC_DROP,
    control::IOC_KEEP,
    control::IOC_ATTACH,
    control::IOC_INFO,
    control::IOC_DIFF,
    control::IOC_READ,
    control::IOC_SAVEPOINT,
    control::IOC_ROLLBACK,
    control::IOC_SNAPSHOT,
    control::IOC_SNAPSHOT_PATHS,
    control::IOC_SNAPSHOT_DIFF,
    control::IOC_COUNTERS,
    control::IOC_MODES,
    control::IOC_POOL,
];
