//! Differences are reported by path; partial commits and aborts take exactly the selected changes
//! and those that must stay with them.

use std::sync::Arc;

use xact_fs::{RenameHow, SetAttr, TimeChange, View, WriteHow, XattrHow};
use xact_types::{Error, Ino};

use super::ops::{Op, Rng, USER, dump, run};
use crate::mem_fs::MemFs;
use crate::{Difference, Durability, Reader, Side, Transaction, TxOptions, TxState};

type Tx = Transaction<MemFs>;

fn s(text: &str) -> String {
    text.to_string()
}

fn do_all(view: &dyn View, ops: &[Op]) {
    for op in ops {
        let outcome = run(view, op);
        assert!(!matches!(outcome, super::ops::Outcome::Errno(_)), "{op:?}: {outcome:?}");
    }
}

fn mv(from: &str, to: &str) -> Op {
    Op::Rename(s(from), s(to), RenameHow::Replace)
}

fn write(path: &str, text: &str) -> Op {
    Op::Write(s(path), 0, text.as_bytes().to_vec(), WriteHow::default())
}

fn begin(base: &Arc<MemFs>) -> Tx {
    Transaction::begin(base, TxOptions::default())
}

/// A tree with the files `a` (with "old"), `b`, `d/x`, `d/y`, and the folders `d`, `e` and `e/f`.
fn base() -> Arc<MemFs> {
    let base = MemFs::new(1024);
    do_all(
        &*base,
        &[
            Op::Create(s("a")),
            write("a", "old"),
            Op::Create(s("b")),
            Op::MakeDir(s("d")),
            Op::Create(s("d/x")),
            Op::Create(s("d/y")),
            Op::MakeDir(s("e")),
            Op::MakeDir(s("e/f")),
        ],
    );
    base
}

fn shown(difference: &Difference) -> String {
    let text = |path: &[u8]| String::from_utf8(path.to_vec()).unwrap();
    let from = difference.from.as_deref().map(|from| format!("{} -> ", text(from))).unwrap_or_default();
    format!("{:?} {from}{}", difference.what, text(&difference.path))
}

fn diff(tx: &Tx) -> Vec<String> {
    tx.diff().unwrap().iter().map(shown).collect()
}

fn commit_only(tx: &Tx, path: &str) -> xact_types::Result<()> {
    tx.commit_only(&[path], Durability::Durable, &mut ()).map(drop)
}

#[test]
fn a_diff_lists_each_change_by_path() {
    let base = base();
    let tx = begin(&base);
    assert_eq!(diff(&tx), [""; 0]);
    do_all(
        &tx,
        &[
            write("a", "new"),
            Op::Chmod(s("b"), 0o600),
            Op::MakeDir(s("n")),
            Op::Create(s("n/1")),
            mv("d", "n/d"),
            Op::Unlink(s("n/d/x")),
            write("n/d/y", "moved and written"),
            Op::Link(s("b"), s("also-b")),
            Op::Create(s("gone")),
            Op::Unlink(s("gone")),
            Op::Utimens(s("e/f"), TimeChange::Now),
        ],
    );
    assert_eq!(
        diff(&tx),
        [
            "Modified /a",
            "Added /also-b",
            // It has two names; one is shown.
            "Attributes /also-b",
            "Deleted /d/x",
            "Attributes /e/f",
            "Added /n",
            "Added /n/1",
            "Renamed /d -> /n/d",
            "Modified /n/d/y",
        ]
    );
    let all = tx.diff().unwrap();
    let modified = &all[0];
    let (old, new) = (modified.old.unwrap(), modified.new.unwrap());
    assert_eq!((old.size, new.size, old.ino), (3, 3, new.ino));
    let contents = |side| {
        let mut out = Vec::new();
        tx.peek_contents(&Reader::Anybody, side, old.ino, 0, 100, &mut out).unwrap();
        out
    };
    assert_eq!((contents(Side::Old), contents(Side::New)), (b"old".to_vec(), b"new".to_vec()));
    tx.commit().unwrap();
    base.assert_idle();
}

#[test]
fn writing_a_new_file_over_an_old_one_is_a_modification() {
    let base = base();
    let tx = begin(&base);
    do_all(&tx, &[Op::Create(s("tmp")), write("tmp", "longer"), mv("tmp", "a")]);
    let all = tx.diff().unwrap();
    assert_eq!(all.iter().map(shown).collect::<Vec<_>>(), ["Modified /a"]);
    let sizes = (all[0].old.unwrap().size, all[0].new.unwrap().size);
    assert_eq!(sizes, (3, 6));
    assert_ne!(all[0].old.unwrap().ino, all[0].new.unwrap().ino);
}

#[test]
fn a_diff_does_not_count_as_read() {
    let base = base();
    let tx = begin(&base);
    let a = tx.lookup(Ino::ROOT, b"b").unwrap();
    do_all(&tx, &[Op::Create(s("mine"))]);
    let c = base.lookup(Ino::ROOT, b"a").unwrap();
    tx.peek_attr(Side::Old, c.ino).unwrap();
    tx.peek_contents(&Reader::Anybody, Side::New, c.ino, 0, 100, &mut Vec::new()).unwrap();
    do_all(&*base, &[write("a", "others")]);
    tx.commit().unwrap();
    assert_eq!(a.kind, xact_fs::FileKind::Regular);
}

#[test]
fn a_part_is_committed_with_what_it_needs() {
    let base = base();
    let tx = begin(&base);
    do_all(
        &tx,
        &[
            Op::MakeDir(s("n")),
            Op::MakeDir(s("n/m")),
            Op::Create(s("n/m/1")),
            write("n/m/1", "one"),
            Op::Create(s("n/2")),
            mv("d/x", "n/m/x"),
            write("a", "new"),
            Op::Unlink(s("b")),
        ],
    );
    let in_view = dump(&tx, false);
    commit_only(&tx, "n/m/1").unwrap();
    let names: Vec<String> = dump(&*base, false).into_keys().collect();
    assert_eq!(names, ["/", "/a", "/b", "/d", "/d/x", "/d/y", "/e", "/e/f", "/n", "/n/m", "/n/m/1"]);
    assert_eq!(diff(&tx), ["Modified /a", "Deleted /b", "Added /n/2", "Renamed /d/x -> /n/m/x"]);
    // Selected by the old path.
    commit_only(&tx, "/d/x/").unwrap();
    assert_eq!(diff(&tx), ["Modified /a", "Deleted /b", "Added /n/2"]);
    assert_eq!(dump(&tx, false), in_view, "the view has changed");
    tx.abort_only(&["b"]).unwrap();
    assert!(matches!(tx.abort_only(&["b"]), Err(Error::Usage(_))));
    assert_eq!(diff(&tx), ["Modified /a", "Added /n/2"]);
    tx.commit().unwrap();
    let names: Vec<String> = dump(&*base, false).into_keys().collect();
    assert_eq!(
        names,
        ["/", "/a", "/b", "/d", "/d/y", "/e", "/e/f", "/n", "/n/2", "/n/m", "/n/m/1", "/n/m/x"]
    );
    base.assert_idle();
}

#[test]
fn aborted_parts_are_restored() {
    let base = base();
    let before = dump(&*base, false);
    let tx = begin(&base);
    do_all(
        &tx,
        &[
            write("d/x", "written and deleted"),
            Op::Unlink(s("d/x")),
            Op::Unlink(s("d/y")),
            Op::RemoveDir(s("d")),
            Op::SetXattr(s("a"), "user.x", vec![1], XattrHow::Set),
            Op::Create(s("e/new")),
        ],
    );
    // The folder is restored with the file, but without the other file.
    tx.abort_only(&["d/x"]).unwrap();
    assert_eq!(diff(&tx), ["Attributes /a", "Deleted /d/y", "Added /e/new"]);
    tx.abort_only(&["d", "a", "e"]).unwrap();
    assert_eq!(diff(&tx), [""; 0]);
    assert_eq!(dump(&tx, false), before);
    assert!(!tx.has_effect());
    tx.commit().unwrap();
    base.assert_idle();
}

#[test]
fn folders_moved_into_each_other_stay_together() {
    let base = base();
    let tx = begin(&base);
    // e/f moves to the top, and e into it: /f/e.
    do_all(&tx, &[mv("e/f", "f"), mv("e", "f/e")]);
    assert!(matches!(commit_only(&tx, "f/e"), Err(Error::Usage(_))));
    assert!(matches!(tx.abort_only(&["e/f"]), Err(Error::Usage(_))));
    assert_eq!(tx.state(), TxState::Active);
    commit_only(&tx, "e/f").unwrap();
    tx.commit().unwrap();
    assert!(dump(&*base, false).contains_key("/f/e"));
    base.assert_idle();
}

/// A part is validated with all reads, and the rest continues with a view as of that commit.
#[test]
fn a_partial_commit_validates_all_reads() {
    let base = base();
    let tx = begin(&base);
    do_all(&tx, &[Op::Read(s("b"), 0, 10), Op::Create(s("1")), Op::Create(s("2")), write("d/y", "mine")]);
    do_all(&*base, &[write("a", "others")]);
    commit_only(&tx, "1").unwrap();
    // After the commit it sees the changes of others up to then, and their later changes of items
    // that it has read or written still conflict.
    assert_eq!(run(&tx, &Op::Read(s("a"), 0, 3)), super::ops::Outcome::Bytes(b"oth".to_vec()));
    do_all(&*base, &[write("d/y", "others")]);
    let refused = tx.try_commit(Durability::Durable, &mut ());
    assert!(matches!(refused, Err(Error::Conflict { path, .. }) if path == "/d/y"));
    // The part without a conflict is still listed; an abort of the other would not help, because it
    // was read.
    assert_eq!(diff(&tx), ["Added /2", "Modified /d/y"]);
    tx.abort();
    base.assert_idle();
}

#[test]
fn a_refused_commit_leaves_the_transaction_as_it_was() {
    let base = base();
    let tx = begin(&base);
    do_all(&tx, &[Op::Create(s("new")), write("new", "x"), write("a", "mine")]);
    let in_view = dump(&tx, false);
    do_all(&*base, &[write("a", "others")]);
    assert!(tx.try_commit(Durability::Durable, &mut ()).is_err());
    assert_eq!((tx.state(), dump(&tx, false)), (TxState::Active, in_view));
    assert!(tx.commit().is_err());
    assert_eq!(tx.state(), TxState::Aborted);
    base.assert_idle();
}

/// Random transactions, committed in parts in random order: the view never changes, each part
/// leaves a valid tree, and in the end the base equals the view.
#[test]
fn all_parts_are_the_whole() {
    let mut parts = 0;
    for seed in 0..400 {
        let mut rng = Rng(70_000 + seed);
        let base = MemFs::new(1024);
        for _ in 0..60 {
            run(&*base, &Op::random(&mut rng));
        }
        let tx = begin(&base);
        for _ in 0..rng.below(150) {
            run(&tx, &Op::random(&mut rng));
        }
        let in_view = dump(&tx, false);
        loop {
            let all = tx.diff().unwrap();
            if all.is_empty() {
                break;
            }
            let at = rng.below(all.len() as u64) as usize;
            match tx.commit_only(&[&all[at].path], Durability::Durable, &mut ()) {
                Ok(_) => parts += 1,
                Err(Error::Usage(_)) => {
                    tx.commit_only(&[b"/"], Durability::Durable, &mut ()).unwrap();
                }
                Err(other) => panic!("seed {seed}: {other}"),
            }
            let now = dump(&tx, false);
            for (path, says) in &in_view {
                assert_eq!(
                    now.get(path),
                    Some(says),
                    "seed {seed}: {path} in the view after {}",
                    shown(&all[at])
                );
            }
            assert!(tx.diff().unwrap().len() < all.len(), "seed {seed}: no effect of {}", shown(&all[at]));
            check_links(&base, seed);
        }
        tx.commit().unwrap();
        assert_eq!(dump(&*base, false), in_view, "seed {seed}");
        base.assert_idle();
    }
    assert!(parts > 1000, "{parts} parts");
}

/// Random transactions, aborted in parts: in the end no change is left.
#[test]
fn all_parts_aborted_leave_no_change() {
    for seed in 0..400 {
        let mut rng = Rng(90_000 + seed);
        let base = MemFs::new(1024);
        for _ in 0..60 {
            run(&*base, &Op::random(&mut rng));
        }
        let before = dump(&*base, false);
        let tx = begin(&base);
        for _ in 0..rng.below(150) {
            run(&tx, &Op::random(&mut rng));
        }
        loop {
            let all = tx.diff().unwrap();
            if all.is_empty() {
                break;
            }
            let at = rng.below(all.len() as u64) as usize;
            match tx.abort_only(&[&all[at].path]) {
                Ok(()) => {}
                Err(Error::Usage(_)) => tx.abort_only(&[b"/"]).unwrap(),
                Err(other) => panic!("seed {seed}: {other}"),
            }
            // The rest could be committed: the view is a valid tree.
            dump(&tx, false);
        }
        assert_eq!(dump(&tx, false), before, "seed {seed}");
        tx.commit().unwrap();
        assert_eq!(dump(&*base, false), before, "seed {seed}");
        base.assert_idle();
    }
}

/// Checks that each link count is the number of names, and no inode is without a name.
fn check_links(base: &Arc<MemFs>, seed: u64) {
    let tree = base.tree();
    let mut names = std::collections::BTreeMap::<Ino, u32>::new();
    for (_, node) in tree.inodes() {
        for (entry, _) in node.names.values() {
            *names.entry(entry.ino).or_default() += 1;
        }
    }
    for (ino, node) in tree.inodes().filter(|(ino, _)| **ino != Ino::ROOT) {
        let links = if node.attr.is_dir() { 1 } else { node.attr.nlink };
        assert_eq!(names.get(ino).copied().unwrap_or(0), links, "seed {seed}: names of {ino}");
    }
}

#[test]
fn attributes_of_a_part() {
    let base = base();
    let tx = begin(&base);
    let a = tx.lookup(Ino::ROOT, b"a").unwrap();
    let owner = SetAttr { uid: Some(5), ..SetAttr::default() };
    tx.set_attr(&USER, a.ino, &owner).unwrap();
    do_all(&tx, &[Op::Create(s("1"))]);
    commit_only(&tx, "1").unwrap();
    assert_eq!(base.lookup(Ino::ROOT, b"a").unwrap().uid, a.uid);
    commit_only(&tx, "a").unwrap();
    assert_eq!(base.lookup(Ino::ROOT, b"a").unwrap().uid, 5);
}
