//! A conflict on contents is reported at the write that finds it (TX-4), on both file systems.

use std::sync::Arc;

use xact_fs::{Allocate, Caller, VersionedFs, View, WriteHow};
use xact_types::{Error, Ino};

use super::ops::{Op, dump, run};
use super::real_volumes::Volume;
use crate::mem_fs::MemFs;
use crate::{Durability, Isolation, Side, Transaction, TxOptions, TxState};

const BLOCK: u64 = 1024;

fn write(path: &str, offset: u64, len: usize) -> Op {
    Op::Write(path.into(), offset, vec![9; len], WriteHow::default())
}

fn append(path: &str) -> Op {
    Op::Write(
        path.into(),
        0,
        vec![8; 10],
        WriteHow { append: true, kill_suidgid: false, by: Caller::ROOT, is_part: false },
    )
}

fn truncate(path: &str, size: u64) -> Op {
    Op::Truncate(path.into(), size)
}

fn allocate(path: &str, at: u64, len: u64, how: Allocate) -> Op {
    Op::Allocate(path.into(), at, len, how)
}

/// Creates `a` with eight and a half blocks, and an empty `b`.
fn filled<B: View>(base: &B) {
    let long = Op::Write("a".into(), 0, vec![1; 8704], WriteHow::default());
    for op in [Op::Create("a".into()), long, Op::Create("b".into())] {
        run(base, &op);
    }
}

fn begin<B: VersionedFs>(base: &Arc<B>, id: u64, isolation: Isolation) -> Transaction<B> {
    Transaction::begin(base, TxOptions { id, isolation, ..TxOptions::default() })
}

/// Runs a test on both file systems. Only the real one knows the conflicting transaction.
fn on_both(test: impl Fn(&dyn Fn() -> Arc<MemFs>), on_real: impl Fn(&dyn Fn() -> Arc<xact_fs::LiveFs>)) {
    test(&|| {
        let base = MemFs::new(BLOCK as u32);
        filled(&*base);
        base
    });
    let volume = Volume::new(16, &["-b", "1024"]);
    let base = volume.open();
    on_real(&|| {
        for name in [b"a", b"b"] {
            let _ = base.unlink(&Caller::ROOT, Ino::ROOT, name);
        }
        filled(&*base);
        base.clone()
    });
}

/// Runs the calls `inside`, of which only the last one finds the changes that `outside` has made.
fn conflicts_at_once<B: VersionedFs + View>(fresh: &dyn Fn() -> Arc<B>) {
    let zero = Allocate::ZeroRange { keep_size: true };
    let reserve = Allocate::Reserve { keep_size: false };
    let pairs: &[(&[Op], Op)] = &[
        (&[write("a", 1024, 1024)], write("a", 1024, 1)),
        (&[write("a", 1030, 10)], write("a", 2047, 1)),
        (&[write("a", 0, 4096)], write("a", 3000, 1)),
        // In the page with the end of the file, and after it.
        (&[append("a")], append("a")),
        (&[write("a", 9216, 1024)], write("a", 8192, 4)),
        (&[truncate("a", 20_000)], write("a", 8192, 4)),
        (&[allocate("a", 10_000, 1024, reserve)], write("a", 8192, 4)),
        (&[truncate("a", 100)], write("a", 5000, 1)),
        (&[truncate("a", 100)], write("a", 10, 1)),
        (&[truncate("a", 1024)], write("a", 1024, 1)),
        (&[write("a", 4096, 10)], truncate("a", 100)),
        (&[write("a", 4096, 1024)], truncate("a", 0)),
        (&[allocate("a", 1024, 2048, Allocate::PunchHole)], write("a", 2500, 1)),
        (&[allocate("a", 1000, 10, Allocate::PunchHole)], write("a", 0, 1)),
        (&[allocate("a", 1024, 2048, zero)], write("a", 2500, 1)),
        (&[write("a", 1024, 1)], allocate("a", 1024, 1024, Allocate::PunchHole)),
        (&[write("b", 0, 100), Op::Copy("b".into(), 0, "a".into(), 0, 100)], write("a", 0, 1)),
        // A block that it has written before, at its next write to the file.
        (&[write("a", 0, 10), write("a", 4096, 10)], write("a", 4096, 1)),
    ];
    for isolation in [Isolation::Serializable, Isolation::Snapshot] {
        for (inside, outside) in pairs {
            let base = fresh();
            let tx = begin(&base, 0, isolation);
            let (last, first) = inside.split_last().unwrap();
            for op in first {
                run(&tx, op);
            }
            run(&*base, outside);
            assert!(!tx.is_doomed(), "{inside:?} with {outside:?}");
            let before = dump(&*base, true);
            run(&tx, last);
            assert!(tx.is_doomed(), "{inside:?} with {outside:?} under {isolation:?}");
            let Err(Error::Conflict { path, conflicting_tx, .. }) = tx.commit() else {
                panic!("{inside:?} was committed")
            };
            assert_eq!((&*path, conflicting_tx), ("/a", None));
            assert_eq!(dump(&*base, true), before, "{inside:?} with {outside:?} leaves a trace");
        }
    }
}

#[test]
fn a_write_on_changed_contents_fails_at_once() {
    on_both(|fresh| conflicts_at_once(fresh), |fresh| conflicts_at_once(fresh));
}

/// Changes of other blocks do not conflict, and changes of blocks that were only read are left to
/// the commit.
fn left_alone<B: VersionedFs + View>(fresh: &dyn Fn() -> Arc<B>) {
    let base = fresh();
    let tx = begin(&base, 0, Isolation::Serializable);
    for round in 0..3 {
        for at in [1u64, 3, 5] {
            run(&*base, &write("a", at * BLOCK, 1024));
            run(&tx, &write("a", (at - 1) * BLOCK + round, 7));
        }
    }
    run(&*base, &append("a"));
    run(&tx, &write("a", 0, 1024));
    assert!(!tx.is_doomed());
    tx.commit().unwrap();

    let base = fresh();
    let tx = begin(&base, 0, Isolation::Serializable);
    run(&tx, &Op::Read("a".into(), 0, 100));
    run(&*base, &write("a", 0, 10));
    run(&tx, &write("a", 4096, 10));
    assert!(!tx.is_doomed());
    assert!(matches!(tx.commit(), Err(Error::Conflict { .. })));
}

#[test]
fn changes_of_other_blocks_do_not_collide() {
    on_both(|fresh| left_alone(fresh), |fresh| left_alone(fresh));
}

/// A block that the transaction wrote first and others changed later is reported at the next write
/// to the file.
fn overtaken<B: VersionedFs + View>(fresh: &dyn Fn() -> Arc<B>, knows_author: bool) {
    let base = fresh();
    let [one, two] = [71, 72].map(|id| begin(&base, id, Isolation::Serializable));
    // Both may write the same block: as long as neither commits, there is no conflict.
    for tx in [&one, &two, &one, &two] {
        run(tx, &write("a", 4096, 10));
        run(tx, &write("b", 0, 10));
    }
    run(&one, &write("a", 0, 10));
    one.commit().unwrap();
    assert!(!two.is_doomed());
    run(&two, &write("a", 2048, 10));
    assert!(two.is_doomed());
    let Err(Error::Conflict { path, conflicting_tx, .. }) = two.commit() else { panic!("both committed") };
    assert_eq!((&*path, conflicting_tx), ("/a", knows_author.then_some(71)));
}

#[test]
fn the_second_of_two_writers_of_one_block_conflicts() {
    on_both(|fresh| overtaken(fresh, false), |fresh| overtaken(fresh, true));
}

/// A doomed transaction can be read and rolled back, but not committed, whatever is rolled back.
/// Its other changes can be committed, and all of it after the change that was refused is dropped.
#[test]
fn a_doomed_transaction_does_not_commit() {
    let base = MemFs::new(BLOCK as u32);
    filled(&*base);
    let tx = begin(&base, 0, Isolation::Serializable);
    run(&tx, &Op::Create("new".into()));
    let savepoint = tx.savepoint().unwrap();
    run(&*base, &write("a", 0, 1));
    let a = tx.lookup(Ino::ROOT, b"a").unwrap().ino;
    assert!(matches!(tx.write(a, 0, b"x", WriteHow::default()), Err(Error::Conflict { .. })));
    // All changes fail with the conflict, reads do not.
    let made = tx.make_dir(&Caller::ROOT, Ino::ROOT, b"dir", 0o755);
    assert!(matches!(made, Err(Error::Conflict { path, .. }) if path == "/a"));
    let mut out = Vec::new();
    tx.read(a, 0, 1, &mut out).unwrap();
    assert_eq!(out, [1]);
    tx.roll_back(savepoint).unwrap();
    assert!(matches!(tx.try_commit(Durability::Durable, &mut ()), Err(Error::Conflict { .. })));
    assert_eq!(tx.state(), TxState::Active);
    let diff = tx.diff().unwrap();
    assert_eq!(diff.iter().map(|one| &*one.path).collect::<Vec<_>>(), [b"/new"]);
    assert!(tx.peek_attr(Side::New, a).is_ok());
    let left = tx.commit_only(&["/new"], Durability::Durable, &mut ()).unwrap();
    assert!(matches!(left, Some(Error::Conflict { path, .. }) if path == "/a"));
    assert!(base.lookup(Ino::ROOT, b"new").is_ok());
    // Without a net effect it would be a reader, which always commits; but one of its writes
    // failed.
    assert!(matches!(tx.try_commit(Durability::Durable, &mut ()), Err(Error::Conflict { .. })));
    assert!(matches!(tx.commit_only(&["/a"], Durability::Durable, &mut ()), Err(Error::Usage(_))));
    tx.abort_only(&["/a"]).unwrap();
    assert!(!tx.is_doomed());
    run(&tx, &Op::Create("later".into()));
    tx.commit().unwrap();
    assert!(base.lookup(Ino::ROOT, b"later").is_ok());
    base.assert_idle();

    // A file that was written before others changed it, and that has a new link.
    let base = MemFs::new(BLOCK as u32);
    filled(&*base);
    let tx = begin(&base, 0, Isolation::Serializable);
    for op in [write("a", 0, 10), Op::Link("a".into(), "link".into()), write("b", 0, 10)] {
        run(&tx, &op);
    }
    run(&*base, &write("a", 0, 1));
    run(&tx, &write("a", 2048, 10));
    assert!(tx.is_doomed());
    assert!(matches!(tx.commit_only(&["/link"], Durability::Durable, &mut ()), Err(Error::Conflict { .. })));
    tx.commit_only(&["/b"], Durability::Durable, &mut ()).unwrap();
    tx.abort_only(&["/link"]).unwrap();
    assert!(!tx.is_doomed());
    tx.commit().unwrap();
    base.assert_idle();
}

/// A call that needs a version which was evicted dooms the transaction, whatever call it is; and so
/// does the end of the view, if there is anything to commit.
#[test]
fn a_transaction_that_is_too_old_is_doomed() {
    type Call = fn(&Transaction<MemFs>, Ino) -> xact_types::Result<()>;
    let calls: [Call; 7] = [
        |tx, _| tx.lookup(Ino::ROOT, b"a").map(drop),
        |tx, ino| tx.attr(ino).map(drop),
        |tx, ino| tx.hold(ino),
        |tx, _| tx.read_dir(Ino::ROOT, 0, &mut |_| true),
        |tx, ino| tx.read(ino, 0, 10, &mut Vec::new()),
        |tx, _| tx.make_dir(&Caller::ROOT, Ino::ROOT, b"dir", 0o755).map(drop),
        |tx, ino| tx.write(ino, 0, b"x", WriteHow::default()).map(drop),
    ];
    for (at, call) in calls.into_iter().enumerate() {
        for changes in [false, true] {
            let base = MemFs::new(BLOCK as u32);
            filled(&*base);
            let a = base.lookup(Ino::ROOT, b"a").unwrap().ino;
            let tx = begin(&base, 0, Isolation::Serializable);
            if changes {
                run(&tx, &Op::Create("new".into()));
            }
            base.expire_views();
            // A reader of one instant always commits, unless a read has failed.
            assert_eq!(tx.is_doomed(), changes);
            assert!(matches!(call(&tx, a), Err(Error::TooOld)), "call {at}");
            assert!(tx.is_doomed(), "call {at}");
            assert!(matches!(tx.try_commit(Durability::Durable, &mut ()), Err(Error::TooOld)), "call {at}");
            assert!(matches!(tx.commit(), Err(Error::TooOld)), "call {at}");
            assert!(!tx.is_doomed());
            base.assert_idle();
        }
    }
    let base = MemFs::new(BLOCK as u32);
    filled(&*base);
    let tx = begin(&base, 0, Isolation::Serializable);
    run(&tx, &Op::Read("a".into(), 0, 10));
    base.expire_views();
    tx.commit().unwrap();
}

/// It can be persisted, and stays too old.
#[test]
fn a_transaction_that_is_too_old_is_persisted() {
    let base = MemFs::new(BLOCK as u32);
    filled(&*base);
    let tx = begin(&base, 5, Isolation::Serializable);
    run(&tx, &Op::Read("a".into(), 0, 10));
    run(&tx, &Op::Create("new".into()));
    base.expire_views();
    tx.persist(crate::PersistedInfo::default()).unwrap();
    drop(tx);
    let base = MemFs::with(base.tree());
    let tx = crate::Transaction::reopen(&base, 5, &Arc::default()).unwrap();
    assert!(tx.is_doomed());
    assert!(matches!(tx.commit(), Err(Error::TooOld)));
}

/// Changes of its own partial commit do not count as changes of others.
#[test]
fn its_own_commit_dooms_nothing() {
    let volume = Volume::new(16, &["-b", "1024"]);
    let base = volume.open();
    filled(&*base);
    let tx = begin(&base, 0, Isolation::Serializable);
    run(&tx, &write("a", 0, 10));
    run(&tx, &write("b", 0, 10));
    run(&*base, &write("a", 4096, 1));
    tx.commit_only(&["/a"], Durability::Ordered, &mut ()).unwrap();
    for path in ["a", "b"] {
        run(&tx, &write(path, 0, 20));
        run(&tx, &write(path, 4096, 20));
    }
    tx.commit().unwrap();
    base.sync_all().unwrap();
    drop(base);
    volume.check("after a commit in parts");
}
