//! Random histories through the mount, by system calls: transactions, and calls outside of any,
//! while other threads keep the kernel's caches warm. A serial order must explain every history of
//! committed transactions and outside calls. Here it is the order of the commits, with transactions
//! that only read at their begin. It is replayed on a tree in memory, where each call must have the
//! same outcome.
//!
//! `HISTORIES` is the number of histories to try. A failure prints its seed, and `SEED` begins with
//! it.

#[allow(dead_code)]
mod common;

use std::ffi::CString;
use std::fs::{self, File, Permissions};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use common::Mounted;
use common::model_view::ModelView;
use xact_control::abi::Reason;
use xact_control::client::Channel;
use xact_fs::inode_ops::mem::MemTree;
use xact_fs::inode_ops::random::{Op, Outcome, Rng, run};
use xact_fs::{FileKind, RenameHow, View, XattrHow};
use xact_types::Ino;

/// Calls and their outcomes: those of a transaction, or one call outside.
struct Step {
    who: String,
    calls: Vec<(Op, Observed)>,
    /// The number of steps at its begin.
    begun_at: usize,
}

/// The outcome of a call, as far as a transaction guarantees it and as system calls and a [`View`]
/// can agree. All failures are equal.
#[derive(Debug, Clone, PartialEq)]
enum Observed {
    Failed,
    Done,
    /// Kind, permissions, size (of a folder: 0).
    Attr(FileKind, u16, u64),
    Bytes(Vec<u8>),
    Number(u64),
    Names(Vec<Vec<u8>>),
}

impl From<Outcome> for Observed {
    fn from(outcome: Outcome) -> Observed {
        match outcome.comparable() {
            Outcome::Errno(_) => Observed::Failed,
            Outcome::Done => Observed::Done,
            Outcome::Attr(attr) => Observed::Attr(attr.kind, attr.perm & 0o777, attr.size),
            Outcome::Bytes(bytes) => Observed::Bytes(bytes),
            Outcome::Number(number) => Observed::Number(number),
            Outcome::Names(names) => Observed::Names(names.into_iter().map(|(name, _)| name).collect()),
        }
    }
}

/// Whether system calls do the same as the operation of a view, without waiting.
fn is_usable(op: &Op) -> bool {
    match op {
        Op::Rename(_, _, how) => !matches!(how, RenameHow::Whiteout),
        Op::Write(_, _, _, how) => !how.append,
        Op::Stat(_)
        | Op::List(_)
        | Op::Read(..)
        | Op::Create(_)
        | Op::MakeDir(_)
        | Op::Link(..)
        | Op::Unlink(_)
        | Op::RemoveDir(_)
        | Op::Truncate(..)
        | Op::Chmod(..)
        | Op::SetXattr(..)
        | Op::GetXattr(..)
        | Op::RemoveXattr(..)
        | Op::ListXattrs(_) => true,
        _ => false,
    }
}

fn usable(rng: &mut Rng) -> Op {
    loop {
        let op = Op::random(rng);
        if is_usable(&op) {
            return op;
        }
    }
}

fn c(path: &str) -> CString {
    CString::new(path).unwrap()
}

fn check(result: libc::c_int) -> io::Result<()> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Does an operation below the folder `at`.
fn call(at: &Path, op: &Op) -> Observed {
    let done = |()| Observed::Done;
    let path = |name: &str| at.join(name);
    let c_path = |name: &str| CString::new(path(name).as_os_str().as_bytes()).unwrap();
    let open = |name: &str, write: bool| File::options().read(!write).write(write).open(path(name));
    let attr = |name: &str| {
        fs::symlink_metadata(path(name)).map(|m| {
            let perm = (m.permissions().mode() & 0o777) as u16;
            match m.is_dir() {
                true => Observed::Attr(FileKind::Directory, perm, 0),
                false => Observed::Attr(FileKind::Regular, perm, m.len()),
            }
        })
    };
    let result: io::Result<Observed> = match op {
        Op::Stat(name) => attr(name),
        Op::List(name) => fs::read_dir(path(name)).and_then(|entries| {
            let names: io::Result<Vec<_>> =
                entries.map(|e| e.map(|e| e.file_name().as_bytes().to_vec())).collect();
            let mut names = names?;
            names.extend([b".".to_vec(), b"..".to_vec()]);
            names.sort();
            Ok(Observed::Names(names))
        }),
        Op::Read(name, offset, len) => open(name, false).and_then(|file| {
            let mut bytes = vec![0; *len];
            let got = file.read_at(&mut bytes, *offset)?;
            bytes.truncate(got);
            Ok(Observed::Bytes(bytes))
        }),
        Op::Create(name) => {
            // SAFETY: a C string.
            let made = unsafe { libc::mknod(c_path(name).as_ptr(), libc::S_IFREG | 0o644, 0) };
            check(made).and_then(|()| attr(name))
        }
        Op::MakeDir(name) => fs::create_dir(path(name)).and_then(|()| attr(name)),
        Op::Link(from, to) => fs::hard_link(path(from), path(to)).and_then(|()| attr(to)),
        Op::Unlink(name) => fs::remove_file(path(name)).map(done),
        Op::RemoveDir(name) => fs::remove_dir(path(name)).map(done),
        Op::Rename(from, to, how) => {
            let flags = match how {
                RenameHow::NoReplace => libc::RENAME_NOREPLACE,
                RenameHow::Exchange => libc::RENAME_EXCHANGE,
                _ => 0,
            };
            let (from, to, cwd) = (c_path(from), c_path(to), libc::AT_FDCWD);
            // SAFETY: C strings.
            let moved = unsafe { libc::renameat2(cwd, from.as_ptr(), cwd, to.as_ptr(), flags) };
            check(moved).map(done)
        }
        Op::Write(name, offset, data, _) => open(name, true)
            .and_then(|file| file.write_all_at(data, *offset))
            .map(|()| Observed::Number(*offset)),
        // truncate(2) checks permissions itself, but root has all of them.
        Op::Truncate(name, size) => open(name, true).and_then(|file| file.set_len(*size)).map(done),
        Op::Chmod(name, perm) => {
            fs::set_permissions(path(name), Permissions::from_mode((*perm).into())).map(done)
        }
        Op::SetXattr(name, key, value, how) => {
            let flags = match how {
                XattrHow::Set => 0,
                XattrHow::Create => libc::XATTR_CREATE,
                XattrHow::Replace => libc::XATTR_REPLACE,
            };
            let (name, key) = (c_path(name), c(key));
            // SAFETY: C strings, and the given number of bytes.
            let set = unsafe {
                libc::lsetxattr(name.as_ptr(), key.as_ptr(), value.as_ptr().cast(), value.len(), flags)
            };
            check(set).map(done)
        }
        Op::GetXattr(name, key) => {
            let mut value = vec![0_u8; 256];
            let (name, key) = (c_path(name), c(key));
            // SAFETY: C strings, and a buffer of the given size.
            let len = unsafe {
                libc::lgetxattr(name.as_ptr(), key.as_ptr(), value.as_mut_ptr().cast(), value.len())
            };
            check(len as libc::c_int).map(|()| {
                value.truncate(len as usize);
                Observed::Bytes(value)
            })
        }
        Op::RemoveXattr(name, key) => {
            // SAFETY: C strings.
            check(unsafe { libc::lremovexattr(c_path(name).as_ptr(), c(key).as_ptr()) }).map(done)
        }
        Op::ListXattrs(name) => {
            let mut list = vec![0_u8; 1024];
            // SAFETY: a C string, and a buffer of the given size.
            let len =
                unsafe { libc::llistxattr(c_path(name).as_ptr(), list.as_mut_ptr().cast(), list.len()) };
            check(len as libc::c_int).map(|()| {
                let names = list[..len as usize].split(|&b| b == 0).filter(|name| !name.is_empty());
                let mut names: Vec<_> = names.map(<[u8]>::to_vec).collect();
                names.sort();
                Observed::Names(names)
            })
        }
        other => panic!("{other:?} is not usable"),
    };
    match result {
        Ok(said) => said,
        Err(e) if e.raw_os_error() == Some(libc::EIO) => panic!("{op:?}: {e}"),
        Err(_) => Observed::Failed,
    }
}

struct Open {
    channel: Channel,
    calls: Vec<(Op, Observed)>,
    root: PathBuf,
    begun_at: usize,
}

/// The events of one history.
struct History {
    steps: Vec<Step>,
    conflicts: usize,
}

/// Runs a history in the folder `name` of the mount, with up to `clients` transactions at a time.
fn history(mount: &Path, name: &str, rng: &mut Rng) -> Result<History, String> {
    let clients = 2 + rng.below(7) as usize;
    let folder = mount.join(name);
    let mut open: Vec<Open> = Vec::new();
    let mut steps: Vec<Step> = Vec::new();
    let mut conflicts = 0;
    for turn in 0..60 + 30 * clients {
        let choice = rng.below(10);
        let begun_at = steps.len();
        // The first calls create something to work on.
        if turn < 30 || choice == 1 {
            let op = usable(rng);
            let said = call(&folder, &op);
            steps.push(Step { who: format!("outside in turn {turn}"), calls: vec![(op, said)], begun_at });
        } else if choice == 0 && open.len() < clients {
            let channel = Channel::open(mount).unwrap();
            let (_, root) = channel.begin(0).unwrap();
            open.push(Open { channel, calls: Vec::new(), root: root.join(name), begun_at });
        } else if choice == 2 && !open.is_empty() {
            let Open { channel, calls, begun_at, .. } = open.remove(rng.below(open.len() as u64) as usize);
            match channel.commit(xact_control::abi::COMMIT_ORDERED) {
                Ok(()) => {
                    steps.push(Step { who: format!("transaction in turn {turn}"), calls, begun_at });
                }
                Err(e) if e.reason == Reason::Conflict => conflicts += 1,
                Err(e) => return Err(format!("a commit failed: {e:?}")),
            }
        } else if !open.is_empty() {
            let at = rng.below(open.len() as u64) as usize;
            let op = usable(rng);
            let said = call(&open[at].root, &op);
            open[at].calls.push((op, said));
        }
    }
    Ok(History { steps, conflicts })
}

/// Replays a step; the tree after it, or the difference.
fn replayed(tree: &MemTree, step: &Step) -> Result<MemTree, String> {
    let view = ModelView::with(tree.clone());
    for (op, said) in &step.calls {
        let again = Observed::from(run(&*view, op));
        if *said != again {
            return Err(format!("{}: {op:?} returned {said:?}, replayed {again:?}", step.who));
        }
    }
    Ok(view.tree())
}

/// Whether two trees are the same to a program, apart from times and sizes of folders.
fn is_same(a: &MemTree, b: &MemTree) -> bool {
    let dump = |tree: &MemTree| xact_fs::inode_ops::random::dump(&*ModelView::with(tree.clone()), false);
    dump(a) == dump(b)
}

/// Checks the serial order: that of the commits. A transaction without effect saw the tree at its
/// begin.
fn explained(steps: &[Step]) -> Result<MemTree, String> {
    let mut trees = vec![MemTree::new(4096)];
    for step in steps {
        let last = trees.last().expect("there is a first");
        let next = replayed(last, step).or_else(|why| {
            let then = &trees[step.begun_at];
            match replayed(then, step) {
                Ok(after) if is_same(then, &after) => Ok(last.clone()),
                _ => Err(why),
            }
        })?;
        trees.push(next);
    }
    Ok(trees.pop().expect("there is a last"))
}

/// Checks that every path of a tree looks on the mount as it does in the replay.
fn compare(folder: &Path, tree: MemTree) -> Result<(), String> {
    let view = ModelView::with(tree);
    let mut todo: Vec<String> = match call(folder, &Op::List(String::new())) {
        Observed::Names(names) => names.iter().filter_map(|n| below("", n)).collect(),
        other => return Err(format!("the folder's listing returned {other:?}")),
    };
    let mut in_replay = Vec::new();
    view.read_dir(Ino::ROOT, 0, &mut |item| {
        in_replay.extend(below("", item.name));
        true
    })
    .unwrap();
    in_replay.sort();
    if todo != in_replay {
        return Err(format!("in the end there is {todo:?}, replayed {in_replay:?}"));
    }
    while let Some(path) = todo.pop() {
        for op in [
            Op::ListXattrs(path.clone()),
            Op::GetXattr(path.clone(), "user.x"),
            Op::Stat(path.clone()),
            Op::Read(path.clone(), 0, 1 << 16),
            Op::List(path.clone()),
        ] {
            let (said, again) = (call(folder, &op), Observed::from(run(&*view, &op)));
            if said != again {
                return Err(format!("in the end {op:?} returned {said:?}, replayed {again:?}"));
            }
            if let (Op::List(_), Observed::Names(names)) = (&op, again) {
                todo.extend(names.iter().filter_map(|name| below(&path, name)));
            }
        }
    }
    Ok(())
}

/// The path of a name in a folder; none for `.` and `..`.
fn below(path: &str, name: &[u8]) -> Option<String> {
    let name = std::str::from_utf8(name).unwrap();
    let joined = if path.is_empty() { name.to_owned() } else { format!("{path}/{name}") };
    (name != "." && name != "..").then_some(joined)
}

/// Looks at everything repeatedly, so that the kernel has it cached, and asks at all times.
fn look_around(mount: &Path, stop: &AtomicBool) {
    while !stop.load(Ordering::Relaxed) {
        let mut todo = vec![mount.to_owned()];
        while let Some(dir) = todo.pop() {
            for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
                let path = entry.path();
                match fs::symlink_metadata(&path) {
                    Ok(m) if m.is_dir() => todo.push(path),
                    Ok(_) => drop(fs::read(&path)),
                    Err(_) => {}
                }
            }
        }
        thread::yield_now();
    }
}

fn number(name: &str, or: u64) -> u64 {
    std::env::var(name).map_or(or, |text| text.parse().unwrap_or_else(|e| panic!("{name}: {e}")))
}

#[test]
fn histories_are_serializable() {
    let mount = Mounted::on_a_volume();
    let (count, first) = (number("HISTORIES", 50), number("SEED", 1));
    let (mut transactions, mut outside, mut conflicts, mut rejected) = (0, 0, 0, 0);
    for seed in first..first + count {
        let name = format!("h{seed}");
        let folder = mount.at(&name);
        fs::create_dir(&folder).unwrap();
        let stop = AtomicBool::new(false);
        let history = thread::scope(|scope| {
            let looker = scope.spawn(|| look_around(&folder, &stop));
            let history = history(&mount.path(), &name, &mut Rng(seed));
            stop.store(true, Ordering::Relaxed);
            looker.join().unwrap();
            history
        });
        let result = history.and_then(|history| {
            let tree = explained(&history.steps)?;
            compare(&folder, tree)?;
            Ok(history)
        });
        let mut history =
            result.unwrap_or_else(|why| panic!("seed {seed}: {why}; again: SEED={seed} HISTORIES=1"));
        let of = |step: &&Step| step.who.starts_with("transaction");
        let committed = history.steps.iter().filter(of).count();
        transactions += committed;
        outside += history.steps.len() - committed;
        conflicts += history.conflicts;
        // The checker must find violations: without one of the commits, later calls are not
        // explained, or the final tree differs.
        if let Some(at) = history.steps.iter().position(|step| of(&step)) {
            history.steps[at].calls.clear();
            let other = explained(&history.steps).and_then(|tree| compare(&folder, tree));
            rejected += usize::from(other.is_err());
        }
    }
    println!("{count} histories: {transactions} commits, {outside} calls outside, {conflicts} conflicts");
    assert!(
        transactions as u64 > count && conflicts as u64 * 5 > count,
        "too few of either to mean anything"
    );
    assert!(rejected > 0, "the checker takes anything for serializable");
}
