//! A persisted transaction is the same after a reopening, and takes effect at most once.

use std::collections::BTreeMap;
use std::sync::Arc;

use xact_fs::{Caller, PERSISTED_FOLDER, RenameHow, VersionedFs, View, WriteHow};
use xact_types::{Error, Ino};

use super::ops::{Op, Rng, dump, run};
use super::real_volumes::{Volume, spilled_blocks};
use crate::mem_fs::MemFs;
use crate::{Durability, Isolation, PersistedInfo, Transaction, TxOptions, TxState, persisted_transactions};

const ID: u64 = 7;

fn s(text: &str) -> String {
    text.to_string()
}

fn write(path: &str, text: &str) -> Op {
    Op::Write(s(path), 0, text.as_bytes().to_vec(), WriteHow::default())
}

fn begin<B: VersionedFs>(base: &Arc<B>) -> Transaction<B> {
    Transaction::begin(base, TxOptions { id: ID, ..TxOptions::default() })
}

fn info() -> PersistedInfo {
    PersistedInfo {
        gid: 3,
        label: b"make install".to_vec(),
        begun: 1_700_000_000,
        deadline: Some(1_800_000_000),
    }
}

/// The same volume, reopened, without old versions.
fn again(base: &Arc<MemFs>) -> Arc<MemFs> {
    MemFs::with(base.tree())
}

fn reopen<B: VersionedFs>(base: &Arc<B>) -> Transaction<B> {
    Transaction::reopen(base, ID, &Arc::default()).unwrap()
}

/// The whole tree without the folder of persisted transactions.
fn visible(view: &dyn View, times: bool) -> BTreeMap<String, String> {
    let mut all = dump(view, times);
    all.retain(|path, _| path != "/" && !path.starts_with(&format!("/{PERSISTED_FOLDER}")));
    all
}

/// The differences with the changed attributes, without inode numbers.
fn diff<B: VersionedFs>(tx: &Transaction<B>) -> Vec<String> {
    let attr = |attr: Option<xact_fs::Attr>| {
        attr.map(|a| (a.kind, a.perm, a.uid, a.gid, a.nlink, a.size, a.mtime, a.ctime))
    };
    let all = tx.diff().unwrap().into_iter();
    all.map(|d| format!("{:?} {:?} {:?} {:?} {:?}", d.what, d.path, d.from, attr(d.old), attr(d.new)))
        .collect()
}

fn grown(rng: &mut Rng) -> Arc<MemFs> {
    let base = MemFs::new(1024);
    for _ in 0..60 {
        run(&*base, &Op::random(rng));
    }
    base
}

fn list_root(view: &dyn View) {
    view.read_dir(Ino::ROOT, 0, &mut |item| {
        assert_ne!(item.name, PERSISTED_FOLDER.as_bytes());
        true
    })
    .unwrap();
}

fn folder_is_gone(base: &dyn View) {
    assert_eq!(persisted_transactions(base).unwrap(), [0; 0]);
    assert!(base.lookup(Ino::ROOT, PERSISTED_FOLDER.as_bytes()).is_err(), "the folder stays");
}

/// Random transactions have the same differences, view and committed tree with a stop in between.
#[test]
fn a_stop_makes_no_difference() {
    let mut effects = 0;
    for seed in 0..400 {
        let mut rng = Rng(110_000 + seed);
        let base = grown(&mut rng);
        let tx = begin(&base);
        for _ in 0..rng.below(150) {
            run(&tx, &Op::random(&mut rng));
        }
        tx.persist(info()).unwrap();
        assert_eq!(persisted_transactions(&*base).unwrap(), [ID]);
        let (differences, view) = (diff(&tx), visible(&tx, true));

        let stopped = again(&base);
        let other = reopen(&stopped);
        assert_eq!((other.options(), other.persisted_info()), (tx.options(), Some(info())), "seed {seed}");
        assert_eq!(diff(&other), differences, "seed {seed}");
        assert_eq!(visible(&other, true), view, "seed {seed}");

        tx.commit().unwrap_or_else(|e| panic!("seed {seed}: {e}"));
        other.commit().unwrap_or_else(|e| panic!("seed {seed}, after a stop: {e}"));
        effects += usize::from(!differences.is_empty());
        assert_eq!(visible(&*stopped, true), visible(&*base, true), "seed {seed}");
        for base in [&base, &stopped] {
            folder_is_gone(&**base);
            base.assert_idle();
        }
    }
    assert!(effects > 300, "{effects} transactions with an effect");
}

/// The same with partial commits and aborts, with a stop before each.
#[test]
fn parts_with_a_stop_before_each() {
    let mut parts = 0;
    for seed in 0..150 {
        let mut rng = Rng(120_000 + seed);
        let mut base = grown(&mut rng);
        let tx = begin(&base);
        for _ in 0..rng.below(100) {
            run(&tx, &Op::random(&mut rng));
        }
        tx.persist(info()).unwrap();
        let in_view = visible(&tx, false);
        drop(tx);
        loop {
            base = again(&base);
            let tx = reopen(&base);
            let all = tx.diff().unwrap();
            if all.is_empty() {
                tx.commit().unwrap();
                break;
            }
            let at = rng.below(all.len() as u64) as usize;
            match tx.commit_only(&[&all[at].path], Durability::Durable, &mut ()) {
                Ok(_) => parts += 1,
                Err(Error::Usage(_)) => _ = tx.commit_only(&[b"/"], Durability::Durable, &mut ()).unwrap(),
                Err(other) => panic!("seed {seed}: {other}"),
            }
            assert_eq!(visible(&tx, false), in_view, "seed {seed}");
        }
        assert_eq!(visible(&*base, false), in_view, "seed {seed}");
        folder_is_gone(&*base);
        base.assert_idle();
    }
    assert!(parts > 300, "{parts} parts");
}

/// After a crash just after a partial commit, the predicted rest is as good as the actual one.
#[test]
fn the_predicted_rest_equals_the_actual_one() {
    let mut rests = 0;
    for seed in 0..200 {
        let mut rng = Rng(130_000 + seed);
        let base = grown(&mut rng);
        let tx = begin(&base);
        for _ in 0..rng.below(100) {
            run(&tx, &Op::random(&mut rng));
        }
        tx.persist(info()).unwrap();
        let in_view = visible(&tx, false);
        let all = tx.diff().unwrap();
        if all.is_empty() {
            continue;
        }
        let at = rng.below(all.len() as u64) as usize;
        let commits = base.commits();
        base.fail_commits_after(commits + 1);
        match tx.commit_only(&[&all[at].path], Durability::Durable, &mut ()) {
            Ok(_) => rests += 1,
            Err(Error::Usage(_)) => continue,
            Err(other) => panic!("seed {seed}: {other}"),
        }
        assert_eq!(base.commits(), commits + 1, "the record was written again");
        let stopped = again(&base);
        let other = reopen(&stopped);
        assert_eq!(visible(&other, false), in_view, "seed {seed}");
        other.commit().unwrap_or_else(|e| panic!("seed {seed}: {e}"));
        assert_eq!(visible(&*stopped, false), in_view, "seed {seed}");
    }
    assert!(rests > 100, "{rests} rests");
}

/// A tree with the files `a` (with "old"), `b`, and `d/x`.
fn small() -> Arc<MemFs> {
    let base = MemFs::new(1024);
    for op in
        [Op::Create(s("a")), write("a", "old"), Op::Create(s("b")), Op::MakeDir(s("d")), Op::Create(s("d/x"))]
    {
        run(&*base, &op);
    }
    base
}

/// Persists a transaction with the calls `inside`, runs `outside` before the volume is reopened,
/// and then commits.
fn commit_after(inside: &[Op], outside: &[Op], isolation: Isolation) -> xact_types::Result<()> {
    let base = small();
    let tx = Transaction::begin(&base, TxOptions { id: ID, isolation, ..TxOptions::default() });
    for op in inside.iter().chain([&Op::Create(s("mine"))]) {
        run(&tx, op);
    }
    tx.persist(info()).unwrap();
    drop(tx);
    for op in outside {
        run(&*base, op);
    }
    let base = again(&base);
    let tx = reopen(&base);
    let result = tx.try_commit(Durability::Durable, &mut ());
    assert_eq!(result.is_err(), base.lookup(Ino::ROOT, b"mine").is_err());
    assert_eq!(result.is_err(), persisted_transactions(&*base).unwrap() == [ID]);
    if result.is_err() {
        tx.abort_persisted().unwrap();
        folder_is_gone(&*base);
    }
    drop(tx);
    base.assert_idle();
    result
}

#[test]
fn offline_changes_of_items_that_were_read_conflict() {
    let read = |path: &str| Op::Read(s(path), 0, 10);
    let conflicts: &[(&[Op], &[Op], &str)] = &[
        (&[read("a")], &[write("a", "new")], "/a"),
        (&[write("a", "mine")], &[write("a", "new")], "/a"),
        (&[Op::Truncate(s("a"), 0)], &[write("a", "new")], "/a"),
        (&[Op::List(s("d"))], &[Op::Create(s("d/y"))], "/d"),
        (&[Op::Stat(s("nothing"))], &[Op::Create(s("nothing"))], "/nothing"),
        (&[Op::Create(s("d/z"))], &[Op::Create(s("d/z"))], "/d/z"),
        (&[read("a")], &[Op::Unlink(s("a"))], "/a"),
        (&[write("b", "x")], &[Op::Unlink(s("b"))], "/b"),
        (&[Op::Unlink(s("d/x")), Op::RemoveDir(s("d"))], &[Op::Create(s("d/y"))], "/d"),
        (&[Op::Stat(s("a"))], &[Op::Chmod(s("a"), 0o600)], "/a"),
        (
            &[Op::ListXattrs(s("a"))],
            &[Op::SetXattr(s("a"), "user.x", b"1".to_vec(), xact_fs::XattrHow::Set)],
            "/a",
        ),
    ];
    for (inside, outside, at) in conflicts {
        let outcome = commit_after(inside, outside, Isolation::Serializable);
        let conflict_at = if let Err(Error::Conflict { path, .. }) = &outcome { path } else { "no conflict" };
        assert!(conflict_at.starts_with(at), "{inside:?}, {outside:?}: {outcome:?}");
    }
    let free: &[(&[Op], &[Op])] = &[
        (&[read("a")], &[write("b", "new")]),
        (&[Op::Create(s("d/z"))], &[Op::Create(s("d/y"))]),
        (&[write("a", "mine")], &[Op::Link(s("a"), s("d/a"))]),
        (&[read("a")], &[write("a", "new"), write("a", "old")]),
    ];
    for (inside, outside) in free {
        let outcome = commit_after(inside, outside, Isolation::Serializable);
        assert!(outcome.is_ok(), "{inside:?}, {outside:?}: {outcome:?}");
    }
    commit_after(&[read("a")], &[write("a", "new")], Isolation::Snapshot).unwrap();
}

/// If the number of a deleted file was reused, the new file is not changed by the comparison.
#[test]
fn a_reused_number_is_a_conflict_and_not_touched() {
    let base = small();
    let tx = begin(&base);
    run(&tx, &write("a", "mine"));
    let ino = tx.lookup(Ino::ROOT, b"a").unwrap().ino;
    tx.persist(info()).unwrap();
    drop(tx);
    run(&*base, &Op::Unlink(s("a")));
    run(&*base, &Op::Create(s("other")));
    let base = again(&base);
    let tx = reopen(&base);
    let other = base.lookup(Ino::ROOT, b"other").unwrap();
    let mut seen = Vec::new();
    if other.ino == ino {
        tx.read(ino, 0, 10, &mut seen).unwrap();
        assert_eq!(seen, b"");
    }
    for n in 0..20 {
        run(&tx, &Op::Create(format!("new{n}")));
    }
    assert_eq!(tx.diff().unwrap().len(), 21);
    assert!(matches!(tx.commit(), Err(Error::Conflict { path, .. }) if path == "/a"));
    folder_is_gone(&*base);
    base.assert_idle();
}

/// A conflict at a write dooms the transaction after a reopening, too.
#[test]
fn a_doomed_transaction_stays_doomed() {
    let base = small();
    let tx = begin(&base);
    run(&tx, &Op::Create(s("mine")));
    run(&*base, &write("a", "new"));
    run(&tx, &write("a", "mine"));
    assert!(tx.is_doomed());
    tx.persist(info()).unwrap();
    drop(tx);
    let base = again(&base);
    let tx = reopen(&base);
    assert!(tx.is_doomed());
    assert!(matches!(tx.commit(), Err(Error::Conflict { path, .. }) if path == "/a"));
    folder_is_gone(&*base);
}

#[test]
fn an_abort_removes_the_file_and_a_drop_does_not() {
    let base = small();
    for decided in [true, false] {
        let tx = begin(&base);
        run(&tx, &write("new", "x"));
        run(&tx, &Op::Create(s("new")));
        tx.persist(info()).unwrap();
        let durable = base.durable();
        if decided {
            tx.abort_persisted().unwrap();
            assert!(base.durable() > durable, "an abort is durable");
            folder_is_gone(&*base);
        } else {
            tx.abort();
            assert_eq!(persisted_transactions(&*base).unwrap(), [ID]);
        }
        assert_eq!(tx.state(), TxState::Aborted);
    }
    let again = again(&base);
    let tx = reopen(&again);
    tx.commit().unwrap();
    assert!(again.lookup(Ino::ROOT, b"new").is_ok());
}

/// Later changes are persisted by the next call, and not before.
#[test]
fn a_reopening_restores_the_last_persisted_state() {
    let base = small();
    let tx = begin(&base);
    list_root(&tx);
    run(&tx, &Op::Create(s("one")));
    tx.persist(info()).unwrap();
    list_root(&tx);
    assert!(tx.make_dir(&Caller::ROOT, Ino::ROOT, PERSISTED_FOLDER.as_bytes(), 0o755).is_err());
    assert!(tx.lookup(Ino::ROOT, PERSISTED_FOLDER.as_bytes()).is_err());
    let commits = base.commits();
    tx.update_persisted().unwrap();
    assert_eq!(base.commits(), commits, "nothing has changed");
    run(&tx, &Op::Create(s("two")));
    assert_eq!(reopen(&again(&base)).diff().unwrap().len(), 1);
    tx.update_persisted().unwrap();
    assert_eq!(reopen(&again(&base)).diff().unwrap().len(), 2);
    tx.abort_only(&["one"]).unwrap();
    assert_eq!(reopen(&again(&base)).diff().unwrap().len(), 1);
    // An earlier transaction neither sees the new folder nor conflicts with it.
    let other = Transaction::begin(&base, TxOptions::default());
    list_root(&other);
    run(&other, &Op::Create(s("three")));
    tx.commit().unwrap();
    assert!(matches!(other.commit(), Err(Error::Conflict { path, .. }) if path == "/"), "of the name two");
    let other = Transaction::begin(&base, TxOptions::default());
    list_root(&other);
    run(&other, &Op::Create(s("three")));
    let tx = begin(&base);
    tx.persist(info()).unwrap();
    other.commit().unwrap();
}

#[test]
fn a_foreign_folder_of_that_name_is_refused_and_not_changed() {
    let base = small();
    base.make_dir(&Caller::ROOT, Ino::ROOT, PERSISTED_FOLDER.as_bytes(), 0o755).unwrap();
    let tx = begin(&base);
    run(&tx, &Op::Create(s("one")));
    assert!(matches!(tx.persist(info()), Err(Error::Usage(_))));
    assert_eq!(tx.persisted_info(), None);
    tx.commit().unwrap();
    let folder = base.lookup(Ino::ROOT, PERSISTED_FOLDER.as_bytes()).unwrap().ino;
    // A user who may write to the folder could commit on behalf of any user.
    base.make_node(&Caller::ROOT, folder, b"7", 0o100_600, 0).unwrap();
    assert!(matches!(persisted_transactions(&*base), Err(Error::Usage(_))));
    assert!(matches!(Transaction::reopen(&base, ID, &Arc::default()), Err(Error::Usage(_))));
}

/// A file with another owner in its head is refused.
#[test]
fn it_belongs_to_the_owner_of_its_file() {
    let base = small();
    let tx = Transaction::begin(&base, TxOptions { id: ID, owner: 5, ..TxOptions::default() });
    run(&tx, &Op::Create(s("one")));
    tx.persist(info()).unwrap();
    tx.abort();
    let folder = base.lookup(Ino::ROOT, PERSISTED_FOLDER.as_bytes()).unwrap().ino;
    let file = base.lookup(folder, b"7").unwrap();
    assert_eq!((file.uid, file.gid, file.perm), (5, 3, 0o600));
    assert_eq!(reopen(&base).options().owner, 5);
    let other = xact_fs::SetAttr { uid: Some(6), ..xact_fs::SetAttr::default() };
    base.set_attr(&Caller::ROOT, file.ino, &other).unwrap();
    assert!(matches!(Transaction::reopen(&base, ID, &Arc::default()), Err(Error::Corrupt(_))));
}

/// Persisted transactions on real volumes with each engine, with more contents than fit in memory;
/// e2fsck finds the volumes consistent.
#[test]
fn persisted_transactions_work_on_real_volumes() {
    for options in [&["-b", "1024"][..], &["-b", "4096"], &["-b", "1024", "-O", "^has_journal"]] {
        for seed in 0..4 {
            let volumes = [Volume::new(48, options), Volume::new(48, options)];
            let mut trees = Vec::new();
            for (volume, stops) in volumes.iter().zip([false, true]) {
                let mut rng = Rng(seed);
                let mut base = volume.open_with(8 << 20);
                for _ in 0..40 {
                    run(&*base, &Op::random(&mut rng));
                }
                run(&*base, &Op::Create(s("large")));
                run(&*base, &Op::Write(s("large"), 0, vec![1; 100_000], WriteHow::default()));
                let mut tx = begin(&base);
                for _ in 0..60 {
                    run(&tx, &Op::random(&mut rng));
                }
                run(&tx, &Op::Create(s("new")));
                for part in 0..12 {
                    run(
                        &tx,
                        &Op::Write(s("new"), part * 300_000, vec![part as u8; 300_000], WriteHow::default()),
                    );
                }
                run(&tx, &Op::Write(s("large"), 5000, vec![2; 3000], WriteHow::default()));
                run(&tx, &Op::Rename(s("large"), s("renamed"), RenameHow::Replace));
                assert!(spilled_blocks(&tx) > 0);
                tx.persist(info()).unwrap();
                let view = visible(&tx, true);
                if stops {
                    drop(tx);
                    base.close().unwrap();
                    drop(base);
                    volume.check("while one is persisted");
                    base = volume.open_with(8 << 20);
                    tx = reopen(&base);
                    assert!(spilled_blocks(&tx) > 0);
                }
                assert_eq!(visible(&tx, true), view, "seed {seed}");
                tx.commit_only(&["renamed"], Durability::Durable, &mut ()).unwrap();
                assert_eq!(persisted_transactions(&*base).unwrap(), [ID]);
                tx.commit().unwrap();
                folder_is_gone(&*base);
                trees.push(visible(&*base, false));
                drop(tx);
                base.close().unwrap();
                drop(base);
                volume.check("in the end");
            }
            assert_eq!(trees[0], trees[1], "seed {seed}");
        }
    }
}

/// A file with changed bytes is refused.
#[test]
fn a_damaged_file_is_refused() {
    let base = small();
    let tx = begin(&base);
    run(&tx, &Op::Create(s("new")));
    run(&tx, &write("new", "contents"));
    tx.persist(info()).unwrap();
    tx.abort();
    let folder = base.lookup(Ino::ROOT, PERSISTED_FOLDER.as_bytes()).unwrap().ino;
    let file = base.lookup(folder, b"7").unwrap();
    for at in (0..file.size).step_by(5) {
        let mut byte = Vec::new();
        base.read(file.ino, at, 1, &mut byte).unwrap();
        let wrong = [byte[0] ^ 4];
        base.write(file.ino, at, &wrong, WriteHow::default()).unwrap();
        let opened = Transaction::reopen(&base, ID, &Arc::default());
        base.write(file.ino, at, &byte, WriteHow::default()).unwrap();
        // Only padding lies between the head and the contents.
        let padding = opened.is_ok();
        assert!(padding || matches!(opened, Err(Error::Corrupt(_))), "at {at}");
        assert!(!padding || byte == [0], "at {at}");
    }
    reopen(&base).commit().unwrap();
    folder_is_gone(&*base);
    base.assert_idle();
}
