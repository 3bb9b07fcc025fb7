//! Random operations have the same results inside and outside a transaction; concurrent histories
//! are serializable.

use std::sync::Arc;

use super::history::history;
use super::ops::{Op, Outcome, Rng, dump, run};
use crate::mem_fs::MemFs;
use crate::{Isolation, Transaction, TxOptions};
use xact_types::Error;

/// A volume with a tree from random operations.
fn grown(rng: &mut Rng, ops: u64) -> Arc<MemFs> {
    let base = MemFs::new(1024);
    for _ in 0..ops {
        run(&*base, &Op::random(rng));
    }
    base
}

/// The same operations in a transaction and outside return the same results and leave the same
/// tree: contents, attributes, times, owners, inode numbers.
#[test]
fn inside_and_commit_is_the_same_as_outside() {
    'seeds: for seed in 0..600 {
        let mut rng = Rng(seed);
        let plain = grown(&mut rng, 60);
        let base = MemFs::with(plain.tree());
        // Several transactions of different sizes, one after the other.
        for round in 0..4 {
            let tx = Transaction::begin(&base, TxOptions::default());
            for step in 0..rng.below(40) {
                let op = Op::random(&mut rng);
                let outside = run(&*plain, &op).exact();
                let inside = run(&tx, &op).exact();
                assert_eq!(inside, outside, "seed {seed}, round {round}, step {step}: {op:?}");
            }
            let commits = base.commits();
            tx.commit().unwrap();
            // Without a net effect not even times of directories are written.
            let times = base.commits() > commits;
            let (inside, outside) = (dump(&*base, times), dump(&*plain, times));
            for (path, says) in &outside {
                assert_eq!(inside.get(path), Some(says), "seed {seed}, round {round}, {path}");
            }
            assert_eq!(inside.len(), outside.len(), "seed {seed}, round {round}");
            if !times {
                continue 'seeds;
            }
        }
        base.assert_idle();
    }
}

/// An abort leaves everything unchanged.
#[test]
fn an_abort_leaves_no_trace() {
    for seed in 0..100 {
        let mut rng = Rng(1000 + seed);
        let base = grown(&mut rng, 60);
        let before = dump(&*base, true);
        let tx = Transaction::begin(&base, TxOptions::default());
        for _ in 0..40 {
            let op = Op::random(&mut rng);
            run(&tx, &op);
        }
        assert_eq!(dump(&*base, true), before);
        drop(tx);
        assert_eq!(dump(&*base, true), before);
        base.assert_idle();
    }
}

#[test]
fn histories_are_serializable() {
    let (mut committed, mut conflicts) = (0, 0);
    for seed in 10_000..20_000 {
        let (c, f) = history_in_memory(seed, Isolation::Serializable).unwrap();
        committed += c;
        conflicts += f;
    }
    // The test is meaningful only with many commits and many conflicts.
    assert!(committed > 1000, "{committed} commits");
    assert!(conflicts > 1000, "{conflicts} conflicts");
}

/// If only writes are validated, the checker finds histories that are not serializable.
#[test]
fn the_checker_rejects_histories_of_snapshot_isolation() {
    let rejected = (0..500).filter(|&seed| history_in_memory(seed, Isolation::Snapshot).is_err()).count();
    assert!(rejected > 0);
}

fn history_in_memory(seed: u64, isolation: Isolation) -> Result<(usize, usize), String> {
    let mut rng = Rng(seed);
    let base = grown(&mut rng, 80);
    let replay = MemFs::with(base.tree());
    let outcome = history(seed, &mut rng, &base, &replay, isolation, |_| true);
    base.assert_idle();
    outcome
}

/// If only writes are validated, two transactions may each read items that the other one writes.
#[test]
fn snapshot_isolation_lets_two_read_what_the_other_writes() {
    let base = MemFs::new(1024);
    let write = |path: &str, byte: u8| Op::Write(path.into(), 0, vec![byte; 10], Default::default());
    for path in ["a", "b"] {
        run(&*base, &Op::Create(path.into()));
        run(&*base, &write(path, 1));
    }
    let attempt = |isolation, byte| {
        let options = TxOptions { isolation, ..TxOptions::default() };
        let [one, two] = [(); 2].map(|()| Transaction::begin(&base, options));
        run(&one, &Op::Read("a".into(), 0, 10));
        run(&two, &Op::Read("b".into(), 0, 10));
        run(&one, &write("b", byte));
        run(&two, &write("a", byte));
        one.commit().unwrap();
        two.commit()
    };
    assert!(attempt(Isolation::Snapshot, 2).is_ok());
    assert!(matches!(attempt(Isolation::Serializable, 3), Err(Error::Conflict { .. })));
}

/// Commits from many threads: none is lost or half visible, and no thread hangs.
#[test]
fn counters_in_two_files_stay_equal() {
    let base = MemFs::new(1024);
    for path in ["a", "b"] {
        run(&*base, &Op::Create(path.into()));
        run(&*base, &Op::Write(path.into(), 0, vec![0; 8], Default::default()));
    }
    let add = |base: &Arc<MemFs>| {
        let tx = Transaction::begin(base, TxOptions::default());
        for path in ["a", "b"] {
            let Outcome::Bytes(bytes) = run(&tx, &Op::Read(path.into(), 0, 8)) else { panic!("no bytes") };
            let next = (u64::from_le_bytes(bytes.try_into().unwrap()) + 1).to_le_bytes().to_vec();
            run(&tx, &Op::Write(path.into(), 0, next, Default::default()));
        }
        tx.commit().is_ok()
    };
    let done: u64 = std::thread::scope(|scope| {
        let threads: Vec<_> =
            (0..4).map(|_| scope.spawn(|| (0..200).map(|_| u64::from(add(&base))).sum::<u64>())).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).sum()
    });
    for path in ["a", "b"] {
        let outcome = run(&*base, &Op::Read(path.into(), 0, 8));
        assert_eq!(outcome, Outcome::Bytes(done.to_le_bytes().to_vec()));
    }
    assert!(done > 0);
    base.assert_idle();
}
