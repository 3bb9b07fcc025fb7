//! Pairs of calls inside and outside a transaction conflict exactly if they must, and the refused
//! commit reports the path.

use xact_fs::{Allocate, Caller, RenameHow, SeekTo, TimeChange, WriteHow, XattrHow};
use xact_types::Error;

use super::ops::{Op, dump, run};
use crate::mem_fs::MemFs;
use crate::{Isolation, Transaction, TxOptions};

fn s(text: &str) -> String {
    text.to_string()
}

fn write(path: &str, offset: u64, len: usize) -> Op {
    Op::Write(s(path), offset, vec![9; len], WriteHow::default())
}

fn append(path: &str) -> Op {
    Op::Write(
        s(path),
        0,
        vec![8; 10],
        WriteHow { append: true, kill_suidgid: false, by: Caller::ROOT, is_part: false },
    )
}

fn mv(from: &str, to: &str) -> Op {
    Op::Rename(s(from), s(to), RenameHow::Replace)
}

/// A tree with `a` (8 KiB), `b` (empty), and the folders `d` (with `d/x`) and `e` (empty).
fn base() -> std::sync::Arc<MemFs> {
    let base = MemFs::new(1024);
    let ops = [
        Op::Create(s("a")),
        Op::Write(s("a"), 0, vec![1; 8192], WriteHow::default()),
        Op::Create(s("b")),
        Op::MakeDir(s("d")),
        Op::Create(s("d/x")),
        Op::MakeDir(s("e")),
        Op::MakeDir(s("f")),
        Op::MakeDir(s("f/g")),
        Op::SetXattr(s("a"), "user.x", vec![1], XattrHow::Set),
    ];
    for op in &ops {
        assert!(!matches!(run(&*base, op), super::ops::Outcome::Errno(_)), "{op:?}");
    }
    base
}

/// Runs `inside` in a transaction, `outside` in the middle of it, and commits.
fn outcome(isolation: Isolation, inside: &[Op], outside: &[Op]) -> Result<(), String> {
    let base = base();
    let tx = Transaction::begin(&base, TxOptions { isolation, ..TxOptions::default() });
    for op in inside {
        run(&tx, op);
    }
    for op in outside {
        run(&*base, op);
    }
    let before = dump(&*base, true);
    let result = match tx.commit() {
        Ok(()) => Ok(()),
        Err(Error::Conflict { path, why, .. }) => {
            assert!(!why.is_empty());
            assert_eq!(dump(&*base, true), before, "a conflict leaves a trace");
            Err(path)
        }
        Err(other) => panic!("{other}"),
    };
    base.assert_idle();
    result
}

#[track_caller]
fn collides(inside: &[Op], outside: &[Op], path: &str) {
    assert_eq!(
        outcome(Isolation::Serializable, inside, outside),
        Err(s(path)),
        "{inside:?} with {outside:?}"
    );
}

#[track_caller]
fn passes(inside: &[Op], outside: &[Op]) {
    assert_eq!(outcome(Isolation::Serializable, inside, outside), Ok(()), "{inside:?} with {outside:?}");
}

#[test]
fn changes_of_names_that_were_read_conflict() {
    let create = |path: &str| Op::Create(s(path));
    passes(&[create("d/new")], &[create("d/other")]);
    passes(&[Op::MakeDir(s("d/new"))], &[Op::MakeDir(s("d/other"))]);
    passes(&[Op::Unlink(s("d/x"))], &[create("d/other")]);
    collides(&[create("d/new")], &[create("d/new")], "/d/new");
    collides(&[create("d/new")], &[Op::Unlink(s("d/x")), Op::RemoveDir(s("d"))], "/d");
    collides(&[Op::Unlink(s("a"))], &[Op::Unlink(s("a"))], "/a");
    collides(&[Op::Unlink(s("a"))], &[mv("b", "a")], "/a");
    collides(&[mv("a", "d/a")], &[mv("a", "e/a")], "/a");
    collides(&[mv("a", "d/a")], &[create("d/a")], "/d/a");
    // A name that was missing at the look-up and exists now.
    collides(&[Op::Stat(s("d/new")), create("e/new")], &[create("d/new")], "/d/new");
    passes(&[Op::Stat(s("d/new")), create("e/new")], &[create("d/other")]);
    // A name that was added and removed still counts as looked up.
    collides(&[create("d/n"), Op::Unlink(s("d/n")), create("e/n")], &[create("d/n")], "/d/n");
}

#[test]
fn changes_of_listed_or_emptied_folders_conflict() {
    let create = |path: &str| Op::Create(s(path));
    collides(&[Op::List(s("d")), create("e/new")], &[create("d/new")], "/d");
    passes(&[Op::List(s("d")), create("e/new")], &[write("d/x", 0, 5)]);
    collides(&[Op::RemoveDir(s("e"))], &[create("e/new")], "/e");
    // The failed removal depends only on the one name that was found.
    passes(&[Op::RemoveDir(s("d")), create("b2")], &[create("d/new")]);
    collides(&[Op::RemoveDir(s("d")), create("b2")], &[Op::Unlink(s("d/x"))], "/d/x");
}

#[test]
fn changes_of_the_same_blocks_conflict() {
    // Different blocks of one file, the same block, and blocks past the end.
    passes(&[write("a", 0, 1024)], &[write("a", 4096, 1024)]);
    passes(&[write("a", 0, 10)], &[write("a", 1024, 10)]);
    collides(&[write("a", 0, 10)], &[write("a", 100, 10)], "/a");
    collides(&[append("a")], &[append("a")], "/a");
    passes(&[write("a", 0, 10)], &[append("a")]);
    collides(&[Op::Read(s("a"), 0, 100), append("b")], &[write("a", 50, 1)], "/a");
    passes(&[Op::Read(s("a"), 0, 100), append("b")], &[write("a", 5000, 1)]);
    collides(&[Op::Read(s("a"), 8000, 1000), append("b")], &[append("a")], "/a");
    collides(&[Op::Read(s("a"), 4096, 10), append("b")], &[Op::Truncate(s("a"), 100)], "/a");
    collides(&[write("a", 4096, 1024)], &[Op::Truncate(s("a"), 100)], "/a");
    collides(&[Op::Truncate(s("a"), 100)], &[write("a", 5000, 1)], "/a");
    collides(&[write("a", 0, 10)], &[Op::Unlink(s("a"))], "/a");
    collides(&[Op::Allocate(s("a"), 1024, 1024, Allocate::PunchHole)], &[write("a", 1500, 1)], "/a");
    collides(
        &[Op::Seek(s("a"), 0, SeekTo::Hole), append("b")],
        &[Op::Allocate(s("a"), 2048, 1024, Allocate::PunchHole)],
        "/a",
    );
    collides(&[Op::Copy(s("a"), 0, s("b"), 0, 2000)], &[write("a", 1, 1)], "/a");
    passes(&[Op::Copy(s("a"), 0, s("b"), 0, 2000)], &[write("a", 4000, 1)]);
}

#[test]
fn changes_of_attributes_that_were_read_conflict() {
    let chmod = |path: &str| Op::Chmod(s(path), 0o600);
    passes(&[write("a", 0, 1)], &[chmod("a")]);
    collides(&[chmod("a")], &[Op::Chmod(s("a"), 0o640)], "/a");
    collides(&[Op::Stat(s("a")), append("b")], &[chmod("a")], "/a");
    collides(&[Op::Stat(s("a")), append("b")], &[write("a", 0, 1)], "/a");
    collides(&[Op::Utimens(s("a"), TimeChange::Now)], &[write("a", 0, 1)], "/a");
    collides(&[Op::Chown(s("a"), 1, 1)], &[Op::Chown(s("a"), 2, 2)], "/a");
    // A folder's times, size and link count are merged from all changes.
    passes(&[Op::Stat(s("d")), append("b")], &[Op::MakeDir(s("d/new"))]);
    collides(&[Op::Stat(s("d")), append("b")], &[chmod("d")], "/d");
    // The mode of a folder decides the group of a new name.
    collides(&[Op::Create(s("d/new"))], &[Op::Chmod(s("d"), 0o2755)], "/d");
    passes(&[Op::Link(s("b"), s("d/b"))], &[Op::Link(s("b"), s("e/b"))]);
}

#[test]
fn changes_of_extended_attributes_conflict_by_name() {
    let set = |name, value| Op::SetXattr(s("a"), name, vec![value], XattrHow::Set);
    passes(&[set("user.y", 2)], &[write("a", 0, 1)]);
    passes(&[set("user.x", 2)], &[set("user.y", 3)]);
    collides(&[set("user.x", 2)], &[set("user.x", 3)], "/a");
    collides(&[Op::GetXattr(s("a"), "user.x"), append("b")], &[set("user.x", 3)], "/a");
    passes(&[Op::GetXattr(s("a"), "user.x"), append("b")], &[set("user.y", 3)]);
    collides(&[Op::ListXattrs(s("a")), append("b")], &[set("user.y", 3)], "/a");
    collides(&[Op::GetXattr(s("a"), "user.y"), append("b")], &[set("user.y", 3)], "/a");
}

/// Each move alone is allowed; both together would put `d` and `e` below each other.
#[test]
fn two_moves_cannot_make_a_loop() {
    for isolation in [Isolation::Serializable, Isolation::Snapshot] {
        let result = outcome(isolation, &[mv("f/g", "e/g"), mv("d", "e/g/d")], &[mv("e", "d/e")]);
        assert!(result.is_err(), "{isolation:?}");
        let result = outcome(isolation, &[mv("d", "f/g/d")], &[mv("f", "e/f")]);
        assert_eq!(result, Err(s("/f")), "{isolation:?}");
        let result = outcome(isolation, &[Op::RemoveDir(s("e"))], &[Op::Create(s("e/new"))]);
        assert_eq!(result, Err(s("/e")), "{isolation:?}");
    }
}

#[test]
fn readers_always_commit() {
    passes(&[Op::Read(s("a"), 0, 8192), Op::List(s("d"))], &[write("a", 0, 9), Op::Unlink(s("d/x"))]);
    // An item that was created and removed leaves nothing to commit.
    passes(
        &[Op::Read(s("a"), 0, 8192), Op::Create(s("tmp")), append("tmp"), Op::Unlink(s("tmp"))],
        &[write("a", 0, 9)],
    );
}

/// `lsattr` in a transaction conflicts with `chattr` outside.
#[test]
fn changes_of_flags_that_were_read_conflict() {
    use xact_fs::{SetAttr, View};
    let base = base();
    let tx = Transaction::begin(&base, TxOptions::default());
    run(&tx, &append("b"));
    let ino = tx.lookup(xact_types::Ino::ROOT, b"d").unwrap().ino;
    let nodump = SetAttr { flags: Some(xact_layout::inode::flag::NODUMP), ..SetAttr::default() };
    base.set_attr(&Caller::ROOT, ino, &nodump).unwrap();
    assert!(matches!(tx.commit(), Err(Error::Conflict { path, .. }) if path == "/d"));
}
