//! Runs concurrent histories, and checks that they are serializable.

use std::sync::Arc;

use xact_fs::{VersionedFs, View};
use xact_types::Error;

use super::ops::{Op, Outcome, Rng, dump, run};
use crate::mem_fs::MemFs;
use crate::{Isolation, Transaction, TxOptions};

struct Open<B: VersionedFs> {
    tx: Transaction<B>,
    done: Vec<(Op, Outcome)>,
    begun_at: usize,
}

/// The operations of one transaction or outside call, in the order in which they took effect.
struct Step {
    name: String,
    ops: Vec<(Op, Outcome)>,
}

/// Runs random transactions and outside operations in one thread. Then it replays only the
/// committed ones on `replay` (a volume with the same state), in the order of their commits: each
/// call must have the same result, and the tree must be the same. A transaction without an effect
/// is replayed at its begin. Returns the numbers of commits and of conflicts, or a description of
/// the difference.
pub(crate) fn history<B: VersionedFs + View>(
    seed: u64,
    rng: &mut Rng,
    base: &Arc<B>,
    replay: &Arc<MemFs>,
    isolation: Isolation,
    usable: impl Fn(&Op) -> bool,
) -> Result<(usize, usize), String> {
    let mut open: Vec<Open<B>> = Vec::new();
    // Effects by position: a reader has the position of the last effect before it.
    let mut steps: Vec<Step> = Vec::new();
    let mut readers: Vec<(usize, Step)> = Vec::new();
    let (mut committed, mut conflicts) = (0, 0);
    for turn in 0..120 {
        let choice = rng.below(10);
        let op = Op::random(rng);
        match choice {
            0 if open.len() < 4 => {
                let options = TxOptions { isolation, ..TxOptions::default() };
                let tx = Transaction::begin(base, options);
                open.push(Open { tx, done: Vec::new(), begun_at: steps.len() });
            }
            1 if usable(&op) => {
                let outcome = run(&**base, &op);
                steps.push(Step { name: format!("outside in turn {turn}"), ops: vec![(op, outcome)] });
            }
            2 if !open.is_empty() => {
                let Open { tx, done, begun_at } = open.remove(rng.below(open.len() as u64) as usize);
                let has_effect = tx.has_effect();
                match tx.commit() {
                    Ok(()) if has_effect => {
                        committed += 1;
                        steps.push(Step { name: format!("transaction in turn {turn}"), ops: done });
                    }
                    Ok(()) => {
                        readers.push((begun_at, Step { name: format!("reader in turn {turn}"), ops: done }));
                    }
                    Err(Error::Conflict { .. }) => conflicts += 1,
                    Err(other) => return Err(format!("seed {seed}: {other}")),
                }
            }
            _ if !open.is_empty() && usable(&op) => {
                let at = rng.below(open.len() as u64) as usize;
                let outcome = run(&open[at].tx, &op);
                open[at].done.push((op, outcome));
            }
            _ => {}
        }
    }
    drop(open);

    for at in 0..=steps.len() {
        for (_, reader) in readers.iter().filter(|(begun, _)| *begun == at) {
            check(seed, &MemFs::with(replay.tree()), reader)?;
        }
        if let Some(step) = steps.get(at) {
            check(seed, replay, step)?;
        }
    }
    let (now, then) = (dump(&**base, false), dump(&**replay, false));
    if let Some((path, says)) = then.iter().find(|(path, says)| now.get(*path) != Some(says)) {
        return Err(format!("seed {seed}: {path} is {:?}, replayed {says:?}", now.get(path)));
    }
    if now.len() != then.len() {
        return Err(format!("seed {seed}: more names than in the replay"));
    }
    Ok((committed, conflicts))
}

fn check(seed: u64, replay: &Arc<MemFs>, step: &Step) -> Result<(), String> {
    for (op, outcome) in &step.ops {
        let (outcome, again) = (outcome.clone().comparable(), run(&**replay, op).comparable());
        if outcome != again {
            return Err(format!(
                "seed {seed}, {}: {op:?} outcome {outcome:?}, replayed {again:?}",
                step.name
            ));
        }
    }
    Ok(())
}
