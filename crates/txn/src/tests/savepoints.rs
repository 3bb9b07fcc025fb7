//! A rollback undoes exactly the changes since its savepoint.

use std::sync::Arc;

use xact_fs::{View, WriteHow};
use xact_types::{Error, Ino};

use super::ops::{Op, Rng, USER, dump, run};
use crate::mem_fs::MemFs;
use crate::{Durability, Transaction, TxOptions};

fn grown(rng: &mut Rng) -> Arc<MemFs> {
    let base = MemFs::new(1024);
    for _ in 0..60 {
        run(&*base, &Op::random(rng));
    }
    base
}

/// Random operations with nested savepoints: after a rollback the view is as at the savepoint,
/// including times; a release changes nothing; and in the end the view is committed.
#[test]
fn a_rollback_undoes_the_inner_part_only() {
    let mut rolled_back = 0;
    for seed in 0..300 {
        let mut rng = Rng(20_000 + seed);
        let base = grown(&mut rng);
        let tx = Transaction::begin(&base, TxOptions::default());
        let mut open = Vec::new();
        for _ in 0..120 {
            match rng.below(12) {
                0 => open.push((tx.savepoint().unwrap(), dump(&tx, true))),
                1 if !open.is_empty() => {
                    let at = rng.below(open.len() as u64) as usize;
                    let (number, was) = open.drain(at..).next().unwrap();
                    let before = dump(&tx, true);
                    let changes = tx.roll_back(number).unwrap();
                    assert_eq!(dump(&tx, true), was, "seed {seed}");
                    assert!(
                        before == was || !changes.inodes.is_empty(),
                        "seed {seed}: caches are not notified"
                    );
                    rolled_back += 1;
                }
                2 if !open.is_empty() => {
                    let at = rng.below(open.len() as u64) as usize;
                    let before = dump(&tx, true);
                    let (number, _) = open.drain(at..).next().unwrap();
                    tx.release_savepoint(number).unwrap();
                    assert_eq!(dump(&tx, true), before, "seed {seed}");
                    assert!(matches!(tx.roll_back(number), Err(Error::Usage(_))));
                }
                _ => {
                    run(&tx, &Op::random(&mut rng));
                }
            }
        }
        let in_view = dump(&tx, false);
        tx.commit().unwrap();
        assert_eq!(dump(&*base, false), in_view, "seed {seed}");
        base.assert_idle();
    }
    assert!(rolled_back > 500, "{rolled_back} rollbacks");
}

#[test]
fn reads_in_an_undone_part_are_still_validated() {
    let base = MemFs::new(1024);
    run(&*base, &Op::Create("a".into()));
    let tx = Transaction::begin(&base, TxOptions::default());
    run(&tx, &Op::Create("new".into()));
    let savepoint = tx.savepoint().unwrap();
    run(&tx, &Op::Read("a".into(), 0, 10));
    tx.roll_back(savepoint).unwrap();
    run(&*base, &Op::Write("a".into(), 0, vec![1], WriteHow::default()));
    assert!(matches!(tx.commit(), Err(Error::Conflict { path, .. }) if path == "/a"));
    base.assert_idle();
}

/// Held files are deleted when the part that created them is undone.
#[test]
fn an_undone_file_is_deleted_even_if_held() {
    let base = MemFs::new(1024);
    let tx = Transaction::begin(&base, TxOptions::default());
    let unnamed = tx.make_unnamed(&USER, Ino::ROOT, 0o600).unwrap();
    let savepoint = tx.savepoint().unwrap();
    let made = tx.make_node(&USER, Ino::ROOT, b"made", 0o100600, 0).unwrap();
    tx.hold(made.ino).unwrap();
    tx.roll_back(savepoint).unwrap();
    assert!(tx.attr(made.ino).is_err());
    // Its number is not reused during the transaction, because the kernel may still know it.
    let next = tx.make_node(&USER, Ino::ROOT, b"next", 0o100600, 0).unwrap();
    assert_ne!(next.ino, made.ino);
    tx.release(made.ino, 1);
    // Earlier files still exist.
    assert_eq!(tx.attr(unnamed.ino).unwrap().nlink, 0);
    tx.release(unnamed.ino, 1);
    tx.commit().unwrap();
    base.assert_idle();
}

#[test]
fn partial_commits_are_refused_with_open_savepoints() {
    let base = MemFs::new(1024);
    let tx = Transaction::begin(&base, TxOptions::default());
    run(&tx, &Op::Create("a".into()));
    let savepoint = tx.savepoint().unwrap();
    assert!(matches!(tx.commit_only(&["a"], Durability::Durable, &mut ()), Err(Error::Usage(_))));
    assert!(matches!(tx.abort_only(&["a"]), Err(Error::Usage(_))));
    tx.release_savepoint(savepoint).unwrap();
    tx.abort_only(&["a"]).unwrap();
    tx.commit().unwrap();
    base.assert_idle();
}
