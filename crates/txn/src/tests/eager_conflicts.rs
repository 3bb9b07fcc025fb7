//! Conflicts between open transactions (TX-4): an eager one fails at the change, on both file
//! systems.

use std::sync::{Arc, Barrier};

use xact_fs::{Allocate, Caller, RenameHow, VersionedFs, View, WriteHow, XattrHow};
use xact_types::{Error, Ino};

use super::ops::{Op, dump, run};
use super::real_volumes::Volume;
use crate::contention::ContentionManager;
use crate::mem_fs::MemFs;
use crate::{AbortHistory, ConflictDetection, Isolation, PersistedInfo, Transaction, TxOptions};

use ConflictDetection::{Eager, Lazy};

const FIRST: u64 = 71;
const SECOND: u64 = 72;

fn write(path: &str, offset: u64, len: usize) -> Op {
    Op::Write(path.into(), offset, vec![9; len], WriteHow::default())
}

/// Begins transactions of one volume.
struct Pair<B: VersionedFs> {
    base: Arc<B>,
    contention: Arc<ContentionManager>,
}

impl<B: VersionedFs + View> Pair<B> {
    /// A volume with the files `a`, of eight and a half blocks, and `b`, and the empty folder `d`.
    fn new(base: Arc<B>) -> Pair<B> {
        let long = Op::Write("a".into(), 0, vec![1; 8704], WriteHow::default());
        for op in [Op::Create("a".into()), long, Op::Create("b".into()), Op::MakeDir("d".into())] {
            run(&*base, &op);
        }
        Pair { base, contention: Arc::default() }
    }

    fn begin(&self, id: u64, detection: ConflictDetection) -> Transaction<B> {
        let options = TxOptions { id, detection, isolation: Isolation::Snapshot, ..TxOptions::default() };
        Transaction::begin_after(&self.base, options, &self.contention, &AbortHistory::default())
    }

    fn ino(&self, name: &str) -> Ino {
        self.base.lookup(Ino::ROOT, name.as_bytes()).unwrap().ino
    }
}

/// Fails unless the transaction is doomed by a conflict at `path` with the open transaction `by`.
#[track_caller]
fn assert_doomed<B: VersionedFs>(tx: &Transaction<B>, path: &str, by: u64) {
    assert!(tx.is_doomed());
    match tx.commit() {
        Err(Error::Conflict { path: at, why, conflicting_tx }) => {
            let found = (&*at, why, conflicting_tx);
            assert_eq!(found, (path, "it has an uncommitted change", Some(by)));
        }
        other => panic!("{other:?}"),
    }
}

fn chmod(perm: u16) -> Op {
    Op::Chmod("a".into(), perm)
}

fn xattr(name: &'static str) -> Op {
    Op::SetXattr("a".into(), name, b"1".to_vec(), XattrHow::Set)
}

fn create(path: &str) -> Op {
    Op::Create(path.into())
}

/// Pairs of changes of two transactions, and the path of their conflict.
fn colliding() -> Vec<(Op, Op, &'static str)> {
    let remove = || Op::Unlink("a".into());
    let remove_dir = || Op::RemoveDir("d".into());
    let truncate = |size| Op::Truncate("a".into(), size);
    let punch = || Op::Allocate("a".into(), 1024, 2048, Allocate::PunchHole);
    let link = |from: &str| Op::Link(from.into(), "c".into());
    let rename = Op::Rename("a".into(), "c".into(), RenameHow::Replace);
    vec![
        (write("a", 1024, 10), write("a", 2047, 1), "/a"),
        (truncate(100), write("a", 5000, 1), "/a"),
        (write("a", 5000, 1), truncate(4096), "/a"),
        (punch(), write("a", 2500, 1), "/a"),
        (write("a", 2500, 1), punch(), "/a"),
        // Both change the size.
        (truncate(20_000), truncate(30_000), "/a"),
        (write("b", 0, 1), write("b", 9000, 1), "/b"),
        (create("new"), create("new"), "/new"),
        (create("new"), Op::MakeDir("new".into()), "/new"),
        (remove(), remove(), "/a"),
        (link("a"), link("b"), "/c"),
        (create("c"), rename.clone(), "/c"),
        (rename, create("c"), "/c"),
        (chmod(0o600), chmod(0o640), "/a"),
        (Op::Chown("a".into(), 1, 1), Op::Chown("a".into(), 2, 2), "/a"),
        (xattr("user.x"), xattr("user.x"), "/a"),
        // A file or folder that one changes and the other deletes.
        (remove(), write("a", 0, 1), "/a"),
        (write("a", 0, 1), remove(), "/a"),
        (remove_dir(), create("d/x"), "/d/x"),
        (create("d/x"), remove_dir(), "/d"),
    ]
}

/// Pairs of changes that both commit.
fn apart() -> Vec<(Op, Op)> {
    vec![
        (write("a", 0, 1024), write("a", 1024, 1024)),
        (create("new"), create("other")),
        (create("d/x"), create("d/y")),
        (chmod(0o600), write("a", 0, 1)),
        (xattr("user.x"), xattr("user.y")),
        (chmod(0o600), create("d/x")),
        (Op::Link("a".into(), "c".into()), write("a", 0, 1)),
    ]
}

/// Runs a test on both file systems.
fn on_both(memory: impl Fn(&dyn Fn() -> Pair<MemFs>), real: impl Fn(&dyn Fn() -> Pair<xact_fs::LiveFs>)) {
    memory(&|| Pair::new(MemFs::new(1024)));
    let volume = Volume::new(16, &["-b", "1024"]);
    let base = volume.open();
    real(&|| {
        for name in ["a", "b", "c", "new", "other"] {
            let _ = base.unlink(&Caller::ROOT, Ino::ROOT, name.as_bytes());
        }
        for op in [Op::Unlink("d/x".into()), Op::Unlink("d/y".into()), Op::RemoveDir("d".into())] {
            run(&*base, &op);
        }
        Pair::new(base.clone())
    });
}

fn fail_at_the_change<B: VersionedFs + View>(fresh: &dyn Fn() -> Pair<B>) {
    for first_is in [Lazy, Eager] {
        for (at, (one, two, path)) in colliding().into_iter().enumerate() {
            let pair = fresh();
            let (first, second) = (pair.begin(FIRST, first_is), pair.begin(SECOND, Eager));
            run(&first, &one);
            run(&second, &two);
            assert!(!first.is_doomed(), "pair {at}");
            assert!(second.is_doomed(), "pair {at}");
            let before = dump(&*pair.base, true);
            assert_doomed(&second, path, FIRST);
            assert_eq!(dump(&*pair.base, true), before, "pair {at} leaves a trace");
            first.commit().unwrap();
        }
        for (at, (one, two)) in apart().into_iter().enumerate() {
            let pair = fresh();
            let (first, second) = (pair.begin(FIRST, first_is), pair.begin(SECOND, Eager));
            run(&first, &one);
            run(&second, &two);
            assert!(!first.is_doomed() && !second.is_doomed(), "pair {at}");
            first.commit().unwrap();
            second.commit().unwrap_or_else(|e| panic!("pair {at}: {e}"));
        }
    }
}

#[test]
fn an_eager_transaction_fails_at_the_change() {
    on_both(|fresh| fail_at_the_change(fresh), |fresh| fail_at_the_change(fresh));
}

/// A lazy transaction that changes what an eager one has changed continues, and the first commit
/// wins.
fn do_not_disturb<B: VersionedFs + View>(fresh: &dyn Fn() -> Pair<B>) {
    for first_is in [Lazy, Eager] {
        for (at, (one, two, _)) in colliding().into_iter().enumerate() {
            let pair = fresh();
            let (first, second) = (pair.begin(FIRST, first_is), pair.begin(SECOND, Lazy));
            run(&first, &one);
            run(&second, &two);
            assert!(!first.is_doomed() && !second.is_doomed(), "pair {at}");
            second.commit().unwrap_or_else(|e| panic!("pair {at}: {e}"));
        }
    }
}

#[test]
fn a_lazy_transaction_is_not_disturbed() {
    on_both(|fresh| do_not_disturb(fresh), |fresh| do_not_disturb(fresh));
}

/// Changes from before the begin of the eager transaction count, and those of transactions that
/// have ended or cannot commit do not.
#[test]
fn only_open_transactions_count() {
    let pair = Pair::new(MemFs::new(1024));
    let first = pair.begin(FIRST, Lazy);
    run(&first, &write("a", 0, 1));
    run(&first, &create("new"));
    let second = pair.begin(SECOND, Eager);
    run(&second, &create("new"));
    assert_doomed(&second, "/new", FIRST);

    // None is eager for a time, in which the lazy one changes more.
    run(&first, &write("a", 4096, 1));
    let second = pair.begin(SECOND, Eager);
    run(&second, &write("a", 4096, 1));
    assert_doomed(&second, "/a", FIRST);

    first.abort();
    let second = pair.begin(SECOND, Eager);
    for op in [write("a", 0, 1), write("a", 4096, 1), create("new")] {
        run(&second, &op);
    }
    second.commit().unwrap();

    // Changes that are visible in the view of a later begin are not in the way.
    let first = pair.begin(FIRST, Lazy);
    run(&first, &write("a", 0, 1));
    first.commit().unwrap();
    let (second, third) = (pair.begin(SECOND, Eager), pair.begin(73, Eager));
    run(&second, &write("a", 0, 1));
    run(&third, &write("b", 0, 1));
    run(&third, &write("a", 0, 1));
    assert!(third.is_doomed());
    // The doomed one is still open, and the other one may change what it has changed.
    run(&second, &write("b", 0, 1));
    second.commit().unwrap();
    assert_doomed(&third, "/a", SECOND);
    pair.base.assert_idle();
}

/// Undone changes are no longer in the way, and the others still are.
#[test]
fn undone_changes_do_not_count() {
    let pair = Pair::new(MemFs::new(1024));
    let first = pair.begin(FIRST, Eager);
    run(&first, &write("b", 0, 1));
    let savepoint = first.savepoint().unwrap();
    run(&first, &write("a", 0, 1));
    run(&first, &create("new"));
    let second = pair.begin(SECOND, Eager);
    run(&second, &write("a", 1024, 1));
    first.roll_back(savepoint).unwrap();
    run(&second, &write("a", 0, 1));
    run(&second, &create("new"));
    assert!(!second.is_doomed());
    run(&second, &write("b", 0, 1));
    assert_doomed(&second, "/b", FIRST);

    // A name that was made and removed, and a file whose changes were dropped or committed.
    let second = pair.begin(SECOND, Eager);
    run(&first, &create("new"));
    run(&first, &Op::Unlink("new".into()));
    run(&second, &create("new"));
    assert!(!second.is_doomed());
    run(&first, &write("a", 0, 1));
    first.abort_only(&["/a"]).unwrap();
    run(&second, &write("a", 0, 1));
    assert!(!second.is_doomed());
    second.commit().unwrap();
    first.commit_only(&["/b"], crate::Durability::Durable, &mut ()).unwrap();
    let third = pair.begin(73, Eager);
    run(&third, &write("b", 0, 1));
    third.commit().unwrap();
    first.commit().unwrap();
    pair.base.assert_idle();
}

/// The doom ends when the changes of the refused file are dropped, as after every conflict on
/// contents; a call that was refused half-way makes the rest indivisible.
#[test]
fn the_refused_file_can_be_dropped_unless_the_call_is_half_done() {
    let pair = Pair::new(MemFs::new(1024));
    let first = pair.begin(FIRST, Lazy);
    run(&first, &write("a", 0, 1));
    let second = pair.begin(SECOND, Eager);
    run(&second, &create("other"));
    run(&second, &write("a", 4096, 1));
    run(&second, &write("a", 0, 1));
    assert!(second.is_doomed());
    second.abort_only(&["/a"]).unwrap();
    assert!(!second.is_doomed());
    second.commit().unwrap();
    // Its name is removed before the deletion of the file is refused; and a new inode exists before
    // its name is refused.
    run(&first, &write("b", 0, 1));
    run(&first, &create("d/x"));
    for (refused, at) in [(Op::Unlink("b".into()), "/b"), (create("d/x"), "/d/x")] {
        let third = pair.begin(73, Eager);
        run(&third, &create("more"));
        run(&third, &refused);
        let only = third.commit_only(&["/more"], crate::Durability::Durable, &mut ());
        assert!(matches!(only, Err(Error::Conflict { path, .. }) if path == at));
        let _ = third.abort_only(&[at]);
        assert_doomed(&third, at, FIRST);
    }
    first.commit().unwrap();
    pair.base.assert_idle();
}

/// A persisted transaction stays eager, and its changes from before the unmount count.
#[test]
fn a_reopened_transaction_is_as_it_was() {
    for detection in [Eager, Lazy] {
        let pair = Pair::new(MemFs::new(1024));
        let first = pair.begin(FIRST, detection);
        run(&first, &write("a", 0, 1));
        first.persist(PersistedInfo::default()).unwrap();
        drop(first);
        let base = MemFs::with(pair.base.tree());
        let pair = Pair { base, contention: Arc::default() };
        let first = Transaction::reopen(&pair.base, FIRST, &pair.contention).unwrap();
        assert_eq!(first.options().detection, detection);
        let second = pair.begin(SECOND, Eager);
        run(&second, &write("b", 0, 1));
        run(&first, &write("b", 0, 1));
        assert_eq!(first.is_doomed(), detection == Eager);
        run(&second, &write("a", 0, 1));
        // A doomed one is not in the way.
        assert_eq!(second.is_doomed(), detection == Lazy);
    }
}

/// Exactly one of two eager transactions that change one block at the same time fails; and names
/// that are made and removed without end do not fill the memory.
#[test]
fn one_of_two_eager_ones_goes_on() {
    let pair = Pair::new(MemFs::new(1024));
    let a = pair.ino("a");
    for _ in 0..200 {
        let two = [pair.begin(FIRST, Eager), pair.begin(SECOND, Eager)];
        let start = Barrier::new(2);
        let done: Vec<bool> = std::thread::scope(|scope| {
            let write = |tx: &Transaction<MemFs>| {
                start.wait();
                tx.write(a, 0, b"x", WriteHow::default()).is_ok()
            };
            let threads: Vec<_> = two.iter().map(|tx| scope.spawn(move || write(tx))).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        assert_eq!(done.iter().filter(|done| **done).count(), 1);
    }
    let (first, _eager) = (pair.begin(FIRST, Lazy), pair.begin(SECOND, Eager));
    for n in 0..20_000 {
        let name = format!("{n}");
        run(&first, &Op::Create(name.clone()));
        run(&first, &Op::Unlink(name));
    }
    assert!(pair.contention.recorded_items() < 10_000);
}

/// Nothing is recorded while no eager transaction is open.
#[test]
fn without_eager_ones_nothing_is_recorded() {
    let pair = Pair::new(MemFs::new(1024));
    let first = pair.begin(FIRST, Lazy);
    let second = pair.begin(SECOND, Eager);
    run(&first, &write("a", 0, 1));
    assert!(pair.contention.recorded_items() > 0);
    drop(second);
    assert_eq!(pair.contention.recorded_items(), 0);
    run(&first, &create("new"));
    assert_eq!(pair.contention.recorded_items(), 0);
}
