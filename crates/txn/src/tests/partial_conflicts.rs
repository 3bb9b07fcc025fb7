//! Conflicts of transactions that are committed or aborted in parts: the other changes can be
//! committed, nothing that depends on a conflict is, and a change that was left out never
//! overwrites what others have changed.

use std::sync::Arc;

use xact_fs::{RenameHow, View, WriteHow};
use xact_types::{Error, Ino, Result};

use super::ops::{Op, Outcome, Rng, dump, run};
use crate::mem_fs::MemFs;
use crate::{
    Difference, Durability, Isolation, PersistedInfo, Transaction, TxOptions, persisted_transactions,
};

type Tx = Transaction<MemFs>;

fn s(text: &str) -> String {
    text.to_string()
}

fn write(path: &str, text: &str) -> Op {
    Op::Write(s(path), 0, text.as_bytes().to_vec(), WriteHow::default())
}

fn read(path: &str) -> Op {
    Op::Read(s(path), 0, 100)
}

fn mv(from: &str, to: &str) -> Op {
    Op::Rename(s(from), s(to), RenameHow::Replace)
}

fn do_all(view: &dyn View, ops: &[Op]) {
    for op in ops {
        let outcome = run(view, op);
        assert!(!matches!(outcome, Outcome::Errno(_)), "{op:?}: {outcome:?}");
    }
}

/// A tree with the files `a`, `b` and `d/x`, which contain their names, and the folders `d` and
/// `e`.
fn base() -> Arc<MemFs> {
    let base = MemFs::new(1024);
    do_all(&*base, &[Op::MakeDir(s("d")), Op::MakeDir(s("e"))]);
    for path in ["a", "b", "d/x"] {
        do_all(&*base, &[Op::Create(s(path)), write(path, path)]);
    }
    base
}

fn begin(base: &Arc<MemFs>) -> Tx {
    Transaction::begin(base, TxOptions { id: 1, ..TxOptions::default() })
}

fn commit_only(tx: &Tx, path: &str) -> Result<Option<Error>> {
    tx.commit_only(&[path], Durability::Durable, &mut ())
}

/// Asserts that this is a conflict on a path.
fn conflict<R: std::fmt::Debug>(result: Result<R>, on: &str) {
    match result {
        Err(Error::Conflict { path, .. }) => assert_eq!(path, on),
        other => panic!("no conflict on {on}: {other:?}"),
    }
}

fn contents(view: &dyn View, path: &str) -> String {
    match run(view, &read(path)) {
        Outcome::Bytes(bytes) => String::from_utf8(bytes).unwrap(),
        other => panic!("{path}: {other:?}"),
    }
}

/// Kinds of conflicts on one path: the change inside, the same change outside, and the path.
fn conflicts() -> Vec<(Vec<Op>, Vec<Op>, &'static str)> {
    vec![
        (vec![read("a"), write("a", "mine")], vec![write("a", "others")], "/a"),
        // The whole block is replaced, without a read.
        (vec![Op::Write(s("a"), 0, vec![b'm'; 1024], WriteHow::default())], vec![write("a", "others")], "/a"),
        (vec![Op::Create(s("d/new"))], vec![Op::Create(s("d/new")), write("d/new", "others")], "/d/new"),
        (vec![Op::Unlink(s("a"))], vec![Op::Unlink(s("a")), Op::Create(s("a"))], "/a"),
        (vec![Op::Chmod(s("a"), 0o600)], vec![Op::Chmod(s("a"), 0o640)], "/a"),
        // Others replace the file by a rename, as editors do.
        (
            vec![read("a"), write("a", "mine")],
            vec![Op::Create(s("e/tmp")), write("e/tmp", "others"), mv("e/tmp", "a")],
            "/a",
        ),
        (vec![write("d/x", "mine")], vec![Op::Unlink(s("d/x"))], "/d/x"),
        (vec![Op::Link(s("b"), s("d/link"))], vec![Op::Create(s("d/link"))], "/d/link"),
    ]
}

/// Each has read the listing of the root and of `d`, and makes `e/other`.
fn with_conflict(inside: &[Op], outside: &[Op], isolation: Isolation) -> (Arc<MemFs>, Tx) {
    let base = base();
    let tx = Transaction::begin(&base, TxOptions { id: 1, isolation, ..TxOptions::default() });
    tx.read_dir(Ino::ROOT, 0, &mut |_| true).unwrap();
    do_all(&tx, &[Op::List(s("d"))]);
    do_all(&tx, inside);
    do_all(&tx, &[Op::Create(s("e/other")), write("e/other", "mine"), write("b", "mine")]);
    do_all(&*base, outside);
    (base, tx)
}

#[test]
fn the_other_changes_can_be_committed() {
    for isolation in [Isolation::Serializable, Isolation::Snapshot] {
        for (inside, outside, path) in conflicts() {
            let (base, tx) = with_conflict(&inside, &outside, isolation);
            let theirs = dump(&*base, false);
            conflict(tx.try_commit(Durability::Durable, &mut ()), path);
            let left = commit_only(&tx, "e/other").unwrap_or_else(|e| panic!("{inside:?}: {e}"));
            conflict(left.map_or(Ok(()), Err), path);
            assert_eq!(contents(&*base, "e/other"), "mine");
            let mut listed = Vec::new();
            let d = tx.lookup(Ino::ROOT, b"d").unwrap().ino;
            tx.read_dir(d, 0, &mut |item| {
                listed.push(item.name.to_vec());
                true
            })
            .unwrap();
            listed.sort();
            assert!(listed.windows(2).all(|pair| pair[0] != pair[1]), "{inside:?}: listed twice: {listed:?}");
            // The rest stays a conflict with what others have done, whatever is committed next.
            conflict(tx.try_commit(Durability::Durable, &mut ()), path);
            if path != "/d/link" {
                commit_only(&tx, "b").unwrap();
                assert_eq!(contents(&*base, "b"), "mine");
            }
            conflict(tx.try_commit(Durability::Durable, &mut ()), path);
            conflict(commit_only(&tx, path), path);
            // It has not overwritten the others' change.
            for (at, says) in theirs {
                if at == path || at.starts_with("/d/") {
                    assert_eq!(dump(&*base, false).get(&at), Some(&says), "{inside:?}: {at}");
                }
            }
            tx.abort_only(&[path]).unwrap();
            tx.commit().unwrap();
            base.assert_idle();
        }
    }
}

#[test]
fn the_conflicting_change_can_be_dropped() {
    for isolation in [Isolation::Serializable, Isolation::Snapshot] {
        for (inside, outside, path) in conflicts() {
            let (base, tx) = with_conflict(&inside, &outside, isolation);
            conflict(tx.try_commit(Durability::Durable, &mut ()), path);
            tx.abort_only(&[path]).unwrap();
            tx.try_commit(Durability::Durable, &mut ()).unwrap_or_else(|e| panic!("{inside:?}: {e}"));
            assert_eq!(contents(&*base, "e/other"), "mine");
            // The changes of a file with a new link are shown, and dropped, under that name.
            assert_eq!(contents(&*base, "b"), if path == "/d/link" { "b" } else { "mine" });
            base.assert_idle();
        }
    }
}

/// The same after the volume was closed and opened again, in between or before the conflict.
#[test]
fn persisted_transactions_have_the_same_ways_out() {
    let again = |base: &Arc<MemFs>| MemFs::with(base.tree());
    let reopen = |base: &Arc<MemFs>| Tx::reopen(base, 1, &Arc::default()).unwrap();
    for (inside, outside, path) in conflicts() {
        for order in 0..3 {
            for drops in [false, true] {
                let first = if order == 0 { Vec::new() } else { outside.clone() };
                let (mut base, mut tx) = with_conflict(&inside, &first, Isolation::Serializable);
                tx.persist(PersistedInfo::default()).unwrap();
                // The changes of a file with a new link are shown under that name.
                if order == 2 && !drops && path != "/d/link" {
                    commit_only(&tx, "b").map(drop).unwrap_or_else(|e| conflict(Err::<(), _>(e), path));
                }
                drop(tx);
                base = again(&base);
                if order == 0 {
                    do_all(&*base, &outside);
                }
                tx = reopen(&base);
                let what = format!("{inside:?} order {order}, {drops}");
                assert!(tx.try_commit(Durability::Durable, &mut ()).is_err(), "{what}");
                if drops {
                    tx.abort_only(&[path]).unwrap();
                    drop(tx);
                    base = again(&base);
                    tx = reopen(&base);
                    tx.commit().unwrap_or_else(|e| panic!("{what}: {e}"));
                    assert_eq!(persisted_transactions(&*base).unwrap(), [0_u64; 0]);
                } else {
                    commit_only(&tx, "e/other").unwrap_or_else(|e| panic!("{what}: {e}"));
                    drop(tx);
                    base = again(&base);
                    tx = reopen(&base);
                    assert!(tx.try_commit(Durability::Durable, &mut ()).is_err(), "{what}, after a part");
                    conflict(commit_only(&tx, path), path);
                }
                assert_eq!(contents(&*base, "e/other"), "mine", "{what}");
            }
        }
    }
}

/// Changes that the chosen ones depend on are conflicts as ever.
#[test]
fn nothing_that_depends_on_a_conflict_is_committed() {
    let cases: Vec<(Vec<Op>, Vec<Op>, &str, &str)> = vec![
        // A new folder that others have made too.
        (vec![Op::MakeDir(s("n")), Op::Create(s("n/1"))], vec![Op::MakeDir(s("n"))], "n/1", "/n"),
        // A new folder within a folder that others have removed.
        (vec![Op::MakeDir(s("e/n")), Op::Create(s("e/n/1"))], vec![Op::RemoveDir(s("e"))], "e/n/1", "/e"),
        // A file in a folder that is renamed, where others took the new name, or moved the folder.
        (vec![mv("d", "f"), write("f/x", "mine")], vec![Op::MakeDir(s("f"))], "f/x", "/f"),
        (vec![mv("d", "f"), write("f/x", "mine")], vec![mv("d", "e/d")], "f/x", "/d"),
        // A new link of a file that others have written, if the transaction has written it too.
        (vec![write("a", "mine"), Op::Link(s("a"), s("link"))], vec![write("a", "others")], "link", "/link"),
        // One end of a rename: both are chosen.
        (vec![mv("a", "c")], vec![Op::Create(s("c"))], "a", "/c"),
        (vec![mv("a", "c"), write("c", "mine")], vec![write("a", "others")], "a", "/c"),
        // A folder that was emptied, and in which others have made a file.
        (vec![Op::Unlink(s("d/x")), Op::RemoveDir(s("d"))], vec![Op::Create(s("d/y"))], "d", "/d"),
        // A file that was only read: it may have led to the chosen change.
        (vec![read("a"), write("b", "mine")], vec![write("a", "others")], "b", "/a"),
        // A listing that others have changed beside what the transaction changes.
        (vec![Op::List(s("e")), Op::Create(s("e/1"))], vec![Op::Create(s("e/2"))], "e/1", "/e"),
        // The same, where names made and removed again leave no change of the folder.
        (
            vec![Op::List(s("e")), Op::Create(s("e/t")), Op::Unlink(s("e/t")), write("b", "mine")],
            vec![Op::Create(s("e/2"))],
            "b",
            "/e",
        ),
        // A folder moved, while others moved a folder above.
        (vec![mv("d", "e/d"), write("b", "mine")], vec![Op::MakeDir(s("g")), mv("e", "g/e")], "d", "/e"),
        // The permission of the folder above.
        (vec![Op::Chmod(s("d"), 0o700), write("d/x", "mine")], vec![Op::Chmod(s("d"), 0o711)], "d/x", "/d"),
    ];
    for (inside, outside, chosen, path) in cases {
        let base = base();
        let tx = begin(&base);
        do_all(&tx, &inside);
        do_all(&*base, &outside);
        let before = dump(&*base, true);
        match commit_only(&tx, chosen) {
            Err(Error::Conflict { path: at, .. }) => assert_eq!(at, path, "{inside:?}"),
            other => panic!("{inside:?} with {outside:?}: {chosen} gave {other:?}"),
        }
        assert_eq!(dump(&*base, true), before, "{inside:?} leaves a trace");
        tx.abort();
        base.assert_idle();
    }
}

/// A file that is left out is seen as before, with the transaction's own changes: its difference
/// does not mix with what others have written.
#[test]
fn what_is_left_out_is_seen_as_before() {
    let base = base();
    let long = |byte: u8| Op::Write(s("a"), 0, vec![byte; 4096], WriteHow::default());
    do_all(&*base, &[long(b'o')]);
    let tx = begin(&base);
    do_all(&tx, &[Op::Write(s("a"), 1024, vec![b'm'; 1024], WriteHow::default()), Op::Create(s("e/1"))]);
    let ino = base.lookup(Ino::ROOT, b"a").unwrap().ino;
    do_all(&*base, &[long(b'n')]);
    commit_only(&tx, "e/1").unwrap();
    let mut seen = Vec::new();
    tx.read(ino, 0, 4096, &mut seen).unwrap();
    let expected: Vec<u8> =
        [(b'o', 1), (b'm', 1), (b'o', 2)].iter().flat_map(|(b, n)| vec![*b; n * 1024]).collect();
    assert!(seen == expected, "the view mixes the versions");
    // Dropped, the file is the others'.
    tx.abort_only(&["a"]).unwrap();
    seen.clear();
    tx.read(ino, 0, 4096, &mut seen).unwrap();
    assert!(seen == vec![b'n'; 4096]);
    tx.commit().unwrap();
    base.assert_idle();
}

/// Reads after a drop count again.
#[test]
fn reads_after_a_drop_count() {
    for (again, path) in [(read("a"), "/a"), (Op::List(s("d")), "/d")] {
        let base = base();
        let tx = begin(&base);
        do_all(
            &tx,
            &[read("a"), write("a", "mine"), Op::Create(s("d/n")), Op::List(s("d")), write("b", "mine")],
        );
        do_all(&*base, &[write("a", "others"), Op::Create(s("d/n"))]);
        tx.abort_only(&["a", "d/n"]).unwrap();
        do_all(&tx, &[again]);
        conflict(tx.commit(), path);
        base.assert_idle();
    }
}

fn ino_of(view: &dyn View, path: &[u8]) -> Option<Ino> {
    let mut names = path.split(|byte| *byte == b'/').filter(|name| !name.is_empty());
    names.try_fold(Ino::ROOT, |dir, name| view.lookup(dir, name).ok().map(|entry| entry.ino))
}

/// Whether a difference may change what is at a path: it is on the way to it, or below it.
fn concerns(difference: &Difference, at: &str) -> bool {
    let below = |a: &str, b: &str| a == b || a.strip_prefix(b).is_some_and(|rest| rest.starts_with('/'));
    let paths = [Some(&difference.path), difference.from.as_ref(), difference.was_at.as_ref()];
    paths.into_iter().flatten().any(|path| {
        let path = String::from_utf8_lossy(path);
        below(at, &path) || below(&path, at)
    })
}

/// Random transactions with random changes outside, in parts: whatever is committed, no change of
/// the others is lost, and the tree stays a tree.
#[test]
fn no_change_of_others_is_lost() {
    let (mut parts, mut left, mut refused, mut compared) = (0, 0, 0, 0);
    for seed in 0..600 {
        let mut rng = Rng(400_000 + seed);
        let base = MemFs::new(1024);
        for _ in 0..60 {
            run(&*base, &Op::random(&mut rng));
        }
        let tx = begin(&base);
        for _ in 0..rng.below(60) {
            run(&tx, &Op::random(&mut rng));
        }
        for round in 0..6 {
            for _ in 0..rng.below(4) {
                run(&*base, &Op::random(&mut rng));
            }
            let all = tx.diff().unwrap();
            if all.is_empty() {
                break;
            }
            let path = all[rng.below(all.len() as u64) as usize].path.clone();
            let before = tx.diff().unwrap().len();
            if rng.below(4) == 0 {
                assert!(matches!(tx.abort_only(&[&path]), Ok(()) | Err(Error::Usage(_))));
                continue;
            }
            let theirs = MemFs::with(base.tree());
            let changed: Vec<_> =
                all.iter().flat_map(|d| [&d.old, &d.new]).flatten().map(|attr| attr.ino).collect();
            match tx.commit_only(&[&path], Durability::Durable, &mut ()) {
                Ok(met) => {
                    parts += 1;
                    left += usize::from(met.is_some());
                    assert!(tx.diff().unwrap().len() < before, "seed {seed} round {round}: no effect");
                    let now = dump(&*base, false);
                    for (at, says) in dump(&*theirs, false) {
                        // Changes of a file with two names may be shown under the other one.
                        let has_one_name = |says: &String| says.contains(" nlink 1 ");
                        let is_alone = has_one_name(&says) && now.get(&at).is_none_or(has_one_name);
                        // A file that others have renamed is changed at its new place.
                        let is_changed =
                            ino_of(&*base, at.as_bytes()).is_some_and(|ino| changed.contains(&ino));
                        if is_alone && !is_changed && !all.iter().any(|d| concerns(d, &at)) {
                            assert_eq!(now.get(&at), Some(&says), "seed {seed} round {round}: {at}");
                            compared += 1;
                        }
                    }
                    if let Some(Error::Conflict { .. }) = met {
                        let whole = tx.try_commit(Durability::Durable, &mut ());
                        assert!(matches!(whole, Err(Error::Conflict { .. })), "seed {seed}: {whole:?}");
                    }
                }
                Err(Error::Conflict { .. }) => {
                    refused += 1;
                    assert_eq!(dump(&*base, true), dump(&*theirs, true), "seed {seed}");
                }
                Err(Error::Usage(_)) => {}
                Err(other) => panic!("seed {seed}: {other}"),
            }
            dump(&*base, false);
        }
        tx.abort();
        base.assert_idle();
    }
    assert!(
        parts > 300 && left > 10 && refused > 100 && compared > 1000,
        "{parts} parts, {left} with conflicts, {refused} refused, {compared} files compared"
    );
}
