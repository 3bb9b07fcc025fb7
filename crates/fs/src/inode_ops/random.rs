//! Random operations on a small tree, through any [`View`], and their results.

use std::collections::BTreeMap;

use crate::{
    Allocate, Attr, Caller, FileKind, RenameHow, SeekTo, SetAttr, TimeChange, View, WriteHow, XattrHow,
};
use xact_types::{Errno, Error, Ino, Result};

pub const USER: Caller = Caller { uid: 1000, gid: 100, umask: 0o022 };

/// A small generator of pseudo-random numbers: tests are replayed by their seed.
#[derive(Debug, Clone)]
pub struct Rng(pub u64);

impl Rng {
    pub fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ z >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        (z ^ z >> 31) % end
    }

    fn pick<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.below(of.len() as u64) as usize]
    }

    fn path(&mut self) -> String {
        let depth = 1 + self.below(3);
        let parts: Vec<&str> = (0..depth).map(|_| self.pick(&["a", "b", "c", "d"])).collect();
        parts.join("/")
    }

    /// Offsets around the borders of blocks.
    fn offset(&mut self) -> u64 {
        let near = self.below(5) * 1024;
        match self.below(3) {
            0 => near,
            1 => near + self.below(40),
            _ => near.saturating_sub(self.below(40)),
        }
    }
}

#[derive(Debug, Clone)]
pub enum Op {
    Stat(String),
    List(String),
    Read(String, u64, usize),
    Seek(String, u64, SeekTo),
    ReadLink(String),
    Create(String),
    Fifo(String),
    MakeDir(String),
    Symlink(String, String),
    Link(String, String),
    Unlink(String),
    RemoveDir(String),
    Rename(String, String, RenameHow),
    Write(String, u64, Vec<u8>, WriteHow),
    Truncate(String, u64),
    Allocate(String, u64, u64, Allocate),
    Copy(String, u64, String, u64, u64),
    Chmod(String, u16),
    Chown(String, u32, u32),
    Utimens(String, TimeChange),
    SetXattr(String, &'static str, Vec<u8>, XattrHow),
    GetXattr(String, &'static str),
    RemoveXattr(String, &'static str),
    ListXattrs(String),
}

const XATTRS: [&str; 2] = ["user.x", "user.y"];

impl Op {
    pub fn random(rng: &mut Rng) -> Op {
        let path = rng.path();
        let how = WriteHow {
            append: rng.below(3) == 0,
            kill_suidgid: rng.below(2) == 0,
            by: Caller::ROOT,
            is_part: false,
        };
        match rng.below(30) {
            0 | 1 => Op::Stat(path),
            2 => Op::List(path),
            3 => Op::Read(path, rng.offset(), rng.below(3000) as usize),
            4 => Op::Seek(path, rng.offset(), rng.pick(&[SeekTo::Data, SeekTo::Hole])),
            5 => Op::ReadLink(path),
            6..=8 => Op::Create(path),
            9 => Op::Fifo(path),
            10..=12 => Op::MakeDir(path),
            13 => Op::Symlink(path, rng.path()),
            14 => Op::Link(path, rng.path()),
            15 => Op::Unlink(path),
            16 => Op::RemoveDir(path),
            17..=19 => {
                let all =
                    [RenameHow::Replace, RenameHow::NoReplace, RenameHow::Exchange, RenameHow::Whiteout];
                let how = if rng.below(2) == 0 { RenameHow::Replace } else { rng.pick(&all) };
                Op::Rename(path, rng.path(), how)
            }
            20..=22 => {
                let data = vec![1 + rng.below(200) as u8; 1 + rng.below(2500) as usize];
                Op::Write(path, rng.offset(), data, how)
            }
            23 => Op::Truncate(path, rng.offset()),
            24 => {
                let keep_size = rng.below(2) == 0;
                let all =
                    [Allocate::Reserve { keep_size }, Allocate::PunchHole, Allocate::ZeroRange { keep_size }];
                Op::Allocate(path, rng.offset(), 1 + rng.below(3000), rng.pick(&all))
            }
            25 => Op::Copy(path, rng.offset(), rng.path(), rng.offset(), rng.below(3000)),
            26 => match rng.below(2) {
                0 => Op::Chmod(path, rng.pick(&[0o644, 0o755, 0o6755, 0o2755])),
                _ => Op::Chown(path, rng.below(3) as u32, rng.below(3) as u32),
            },
            27 => Op::Utimens(path, TimeChange::Now),
            28 => Op::SetXattr(
                path,
                rng.pick(&XATTRS),
                vec![7; rng.below(20) as usize],
                rng.pick(&[XattrHow::Set, XattrHow::Create, XattrHow::Replace]),
            ),
            _ => match rng.below(3) {
                0 => Op::GetXattr(path, rng.pick(&XATTRS)),
                1 => Op::RemoveXattr(path, rng.pick(&XATTRS)),
                _ => Op::ListXattrs(path),
            },
        }
    }
}

/// The result of an operation.
#[derive(Clone, PartialEq, Eq)]
pub enum Outcome {
    Errno(Errno),
    Done,
    Attr(Attr),
    Bytes(Vec<u8>),
    Number(u64),
    Names(Vec<(Vec<u8>, FileKind)>),
}

impl std::fmt::Debug for Outcome {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Outcome::Errno(errno) => write!(f, "{errno}"),
            Outcome::Done => write!(f, "done"),
            Outcome::Attr(attr) => write!(f, "{attr:?}"),
            Outcome::Bytes(bytes) => write!(f, "{}", runs(bytes)),
            Outcome::Number(number) => write!(f, "{number}"),
            Outcome::Names(names) => write!(f, "{names:?}"),
        }
    }
}

impl Outcome {
    /// Clears the values that a transaction does not validate or in which two runs differ: inode
    /// numbers, times, estimates, and merged values (link counts, sizes of directories).
    pub fn comparable(mut self) -> Outcome {
        if let Outcome::Attr(attr) = &mut self {
            let zero = Default::default();
            *attr = Attr {
                ino: Ino(0),
                nlink: 0,
                sectors: 0,
                atime: zero,
                mtime: zero,
                ctime: zero,
                crtime: None,
                generation: 0,
                size: if attr.is_dir() { 0 } else { attr.size },
                flags: attr.flags & xact_layout::inode::flag::USER_MODIFIABLE,
                ..*attr
            };
        }
        self
    }

    /// Clears the space used, which is an estimate in a transaction, and the generation.
    pub fn exact(mut self) -> Outcome {
        if let Outcome::Attr(attr) = &mut self {
            (attr.sectors, attr.generation) = (0, 0);
        }
        self
    }
}

fn walk(t: &dyn View, path: &str) -> Result<Ino> {
    let mut at = Ino::ROOT;
    for name in path.split('/') {
        at = t.resolve(at, name.as_bytes())?.ino;
    }
    Ok(at)
}

/// The directory of a path's last name.
fn split<'a>(t: &dyn View, path: &'a str) -> Result<(Ino, &'a [u8])> {
    match path.rsplit_once('/') {
        Some((dir, name)) => Ok((walk(t, dir)?, name.as_bytes())),
        None => Ok((Ino::ROOT, path.as_bytes())),
    }
}

/// Runs an operation. The test fails on errors other than POSIX outcomes and conflicts.
pub fn run(t: &dyn View, op: &Op) -> Outcome {
    match try_run(t, op) {
        Ok(outcome) => outcome,
        Err(Error::Posix(errno)) => Outcome::Errno(errno),
        Err(conflict @ Error::Conflict { .. }) => Outcome::Errno(conflict.errno()),
        Err(other) => panic!("{op:?}: {other}"),
    }
}

fn try_run(t: &dyn View, op: &Op) -> Result<Outcome> {
    let done = |()| Outcome::Done;
    match op {
        Op::Stat(path) => {
            let (dir, name) = split(t, path)?;
            t.lookup(dir, name).map(Outcome::Attr)
        }
        Op::List(path) => {
            let dir = walk(t, path)?;
            let mut names = Vec::new();
            t.read_dir(dir, 0, &mut |item| {
                names.push((item.name.to_vec(), item.kind));
                true
            })?;
            names.sort_by(|a, b| a.0.cmp(&b.0));
            Ok(Outcome::Names(names))
        }
        Op::Read(path, offset, len) => {
            let ino = walk(t, path)?;
            let mut out = Vec::new();
            t.read(ino, *offset, *len, &mut out)?;
            Ok(Outcome::Bytes(out))
        }
        Op::Seek(path, offset, to) => {
            let ino = walk(t, path)?;
            t.seek(ino, *offset, *to).map(Outcome::Number)
        }
        Op::ReadLink(path) => {
            let ino = walk(t, path)?;
            t.read_link(ino).map(Outcome::Bytes)
        }
        Op::Create(path) => {
            let (dir, name) = split(t, path)?;
            t.make_node(&USER, dir, name, 0o100644, 0).map(Outcome::Attr)
        }
        Op::Fifo(path) => {
            let (dir, name) = split(t, path)?;
            t.make_node(&USER, dir, name, 0o010600, 0).map(Outcome::Attr)
        }
        Op::MakeDir(path) => {
            let (dir, name) = split(t, path)?;
            t.make_dir(&USER, dir, name, 0o755).map(Outcome::Attr)
        }
        Op::Symlink(path, target) => {
            let (dir, name) = split(t, path)?;
            t.make_symlink(&USER, dir, name, target.as_bytes()).map(Outcome::Attr)
        }
        Op::Link(from, to) => {
            let ino = walk(t, from)?;
            let (dir, name) = split(t, to)?;
            t.link(&USER, ino, dir, name).map(Outcome::Attr)
        }
        Op::Unlink(path) => {
            let (dir, name) = split(t, path)?;
            t.unlink(&USER, dir, name).map(done)
        }
        Op::RemoveDir(path) => {
            let (dir, name) = split(t, path)?;
            t.remove_dir(&USER, dir, name).map(done)
        }
        Op::Rename(from, to, how) => {
            let from = split(t, from)?;
            let to = split(t, to)?;
            t.rename(&USER, from, to, *how).map(done)
        }
        Op::Write(path, offset, data, how) => {
            let ino = walk(t, path)?;
            t.write(ino, *offset, data, *how).map(|written| Outcome::Number(written.offset))
        }
        Op::Truncate(path, size) => {
            let ino = walk(t, path)?;
            let change = SetAttr { size: Some(*size), ..SetAttr::default() };
            t.set_attr(&USER, ino, &change).map(done_attr)
        }
        Op::Allocate(path, offset, len, how) => {
            let ino = walk(t, path)?;
            t.allocate(&Caller::ROOT, ino, *offset, *len, *how).map(done)
        }
        Op::Copy(from, from_offset, to, to_offset, len) => {
            let (from, to) = (walk(t, from)?, walk(t, to)?);
            let how = WriteHow::default();
            t.copy_range((from, *from_offset), (to, *to_offset), *len, how).map(Outcome::Number)
        }
        Op::Chmod(path, perm) => {
            let ino = walk(t, path)?;
            let change = SetAttr { perm: Some(*perm), ..SetAttr::default() };
            t.set_attr(&USER, ino, &change).map(done_attr)
        }
        Op::Chown(path, uid, gid) => {
            let ino = walk(t, path)?;
            let change = SetAttr { uid: Some(*uid), gid: Some(*gid), ..SetAttr::default() };
            t.set_attr(&USER, ino, &change).map(done_attr)
        }
        Op::Utimens(path, time) => {
            let ino = walk(t, path)?;
            let change = SetAttr { mtime: Some(*time), atime: Some(*time), ..SetAttr::default() };
            t.set_attr(&USER, ino, &change).map(done_attr)
        }
        Op::SetXattr(path, name, value, how) => {
            let ino = walk(t, path)?;
            t.set_xattr(&USER, ino, name.as_bytes(), value, *how).map(done)
        }
        Op::GetXattr(path, name) => {
            let ino = walk(t, path)?;
            t.xattr(ino, name.as_bytes()).map(Outcome::Bytes)
        }
        Op::RemoveXattr(path, name) => {
            let ino = walk(t, path)?;
            t.remove_xattr(&USER, ino, name.as_bytes()).map(done)
        }
        Op::ListXattrs(path) => {
            let ino = walk(t, path)?;
            let mut names = t.list_xattrs(ino)?;
            names.sort();
            Ok(Outcome::Names(names.into_iter().map(|name| (name, FileKind::Regular)).collect()))
        }
    }
}

fn done_attr(_: Attr) -> Outcome {
    Outcome::Done
}

/// A tree by path: all that a program can see except inode numbers, the space used, sizes of
/// directories, and, unless asked for, times. A hard link has the first path of its inode.
pub fn dump(view: &dyn View, times: bool) -> BTreeMap<String, String> {
    let mut out = BTreeMap::new();
    let mut first: BTreeMap<Ino, String> = BTreeMap::new();
    let mut todo = vec![(String::from("/"), Ino::ROOT, Ino::ROOT)];
    while let Some((path, ino, above)) = todo.pop() {
        let a = view.attr(ino).unwrap_or_else(|e| panic!("{path} points at {ino}: {e}"));
        let when = if times { format!("{:?} {:?} {:?}", a.atime, a.mtime, a.ctime) } else { String::new() };
        let same = first.entry(ino).or_insert_with(|| path.clone()).clone();
        let mut contents = Vec::new();
        match a.kind {
            FileKind::Regular => view.read(ino, 0, a.size as usize, &mut contents).unwrap(),
            FileKind::Symlink => contents = view.read_link(ino).unwrap(),
            _ => {}
        }
        let mut names = view.list_xattrs(ino).unwrap();
        names.sort();
        let xattrs: Vec<_> = names
            .iter()
            .map(|n| (String::from_utf8_lossy(n).into_owned(), view.xattr(ino, n).unwrap()))
            .collect();
        let size = if a.is_dir() { 0 } else { a.size };
        let flags = a.flags & xact_layout::inode::flag::USER_MODIFIABLE;
        out.insert(
            path.clone(),
            format!(
                "{:?} {:o} {}:{} nlink {} size {size} flags {flags:x} {when} = {same} {} {xattrs:?}",
                a.kind,
                a.perm,
                a.uid,
                a.gid,
                a.nlink,
                runs(&contents)
            ),
        );
        if !a.is_dir() {
            continue;
        }
        let mut below = Vec::new();
        view.read_dir(ino, 0, &mut |item| {
            match item.name {
                b"." => assert_eq!(item.ino, ino),
                b".." => assert_eq!(item.ino, above, "`..` of {path}"),
                name => {
                    let name = std::str::from_utf8(name).unwrap();
                    below.push((format!("{}/{name}", path.trim_end_matches('/')), item.ino, ino));
                }
            }
            true
        })
        .unwrap();
        // Sorted: directories list names in any order.
        below.sort();
        todo.append(&mut below);
    }
    out
}

/// Bytes as runs of equal values, for readable failure messages.
fn runs(bytes: &[u8]) -> String {
    let runs = bytes.chunk_by(|a, b| a == b).map(|run| format!("{}*{}", run.len(), run[0]));
    runs.collect::<Vec<_>>().join("+")
}
