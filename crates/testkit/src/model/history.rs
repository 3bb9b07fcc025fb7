//! The history of a workload: its operations, their times, and the promises that it got.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::ops::RangeInclusive;
use std::sync::{Arc, OnceLock};

use crate::recording::Time;
use crate::tree::Tree;

use super::contents::Promise;
use super::op::Op;
use super::state::{Content, Id, State};

/// One operation that changed something or asked for durability.
#[derive(Debug, Clone)]
pub struct Step {
    pub op: Op,
    pub began: Time,
    /// The time of its acknowledgement; `None` if it failed on the way and may have happened or
    /// not.
    pub ended: Option<Time>,
    /// Inodes that it changed (for a sync: the synced one).
    pub touched: Vec<Id>,
}

impl Step {
    pub fn acknowledged(&self, time: Time) -> bool {
        self.ended.is_some_and(|t| t < time)
    }
}

/// The operations of one thread, which has a folder to itself.
#[derive(Debug, Clone)]
pub struct ThreadHistory {
    /// Its folder; "" is the whole volume.
    pub prefix: String,
    pub steps: Vec<Step>,
    /// `states[i]` is the state after the first `i` steps.
    pub states: Vec<State>,
    /// `digests[i]` identifies the first `i` steps and the state before them.
    digests: Vec<u64>,
    /// `covered[i]` is the number of steps that are durable when step `i` is acknowledged.
    covered: Vec<Covered>,
    /// The history of each file, so that judging one does not have to search all states.
    files: HashMap<Id, Past>,
    /// The steps that sync everything.
    syncs: Vec<usize>,
    /// The names of each state, computed on first use.
    names: Vec<OnceLock<Arc<Names>>>,
}

/// The number of steps that a step promises, once it is acknowledged.
#[derive(Debug, Clone, Copy)]
struct Covered {
    /// If each step waits for all before it.
    steps: usize,
    /// If an fsync need not wait for others (`goes_ahead`): of all steps.
    others: usize,
    /// Then, and of the steps on the synced file.
    of_file: usize,
}

/// The names of a state.
#[derive(Debug)]
pub struct Names {
    /// Every name but the root's.
    pub paths: Vec<(Vec<u8>, Id)>,
    /// The link counts that `stat` should show.
    pub links: HashMap<Id, u32>,
}

/// The history of one file.
#[derive(Debug, Clone, Default)]
pub struct Past {
    /// Its contents, each with the first state that has them; `None` while it does not exist.
    contents: Vec<(usize, Option<Arc<Vec<u8>>>)>,
    /// The steps that changed or synced it.
    pub touching: Vec<usize>,
    /// Steps that change its inside as metadata operations do.
    pub forced: Vec<usize>,
    /// Steps that renamed it over another file.
    pub replaced: Vec<usize>,
    /// Steps that synced it alone.
    syncs: Vec<usize>,
}

impl Past {
    /// Its contents after `v` steps.
    pub fn at(&self, v: usize) -> Option<&Arc<Vec<u8>>> {
        let after = self.contents.partition_point(|(first, _)| *first <= v);
        self.contents[..after].last().and_then(|(_, bytes)| bytes.as_ref())
    }

    /// The first state that has it.
    pub fn born(&self) -> Option<usize> {
        self.contents.iter().find(|(_, bytes)| bytes.is_some()).map(|(first, _)| *first)
    }

    /// The spans (first, last) of a range of states with the same contents, divided at the steps in
    /// `forced`.
    pub fn spans(
        &self,
        range: RangeInclusive<usize>,
    ) -> impl DoubleEndedIterator<Item = (usize, usize, &Arc<Vec<u8>>)> {
        let (start, end) = range.into_inner();
        let changes = self.contents.iter().map(|(first, _)| *first);
        let mut firsts: Vec<usize> = changes
            .chain(self.forced.iter().map(|s| s + 1))
            .filter(|first| (start + 1..=end).contains(first))
            .chain((start <= end).then_some(start))
            .collect();
        firsts.sort_unstable();
        firsts.dedup();
        let lasts: Vec<usize> = firsts.iter().skip(1).map(|next| next - 1).chain([end]).collect();
        firsts.into_iter().zip(lasts).filter_map(|(first, last)| Some((first, last, self.at(first)?)))
    }
}

impl ThreadHistory {
    /// FileOps get numbers from `first_id` on, which is above [`super::ROOT`].
    pub fn new(prefix: &str, first_id: Id) -> ThreadHistory {
        ThreadHistory {
            prefix: prefix.to_owned(),
            steps: Vec::new(),
            states: vec![State::new(first_id)],
            digests: vec![digest_of(&[&prefix, &first_id])],
            covered: Vec::new(),
            files: HashMap::new(),
            syncs: Vec::new(),
            names: vec![OnceLock::new()],
        }
    }

    /// Takes a volume's tree as the state before all steps.
    pub fn begin_with(&mut self, tree: &Tree) {
        assert!(self.steps.is_empty(), "a history begins once");
        self.states[0].adopt(tree);
        self.digests[0] = digest_of(&[&self.digests[0], &tree.digest()]);
        for (id, bytes) in self.states[0].files() {
            self.files.insert(id, Past { contents: vec![(0, Some(bytes.clone()))], ..Past::default() });
        }
    }

    pub fn now(&self) -> &State {
        self.states.last().expect("a history has its first state")
    }

    /// Adds a step that the model agrees with.
    pub fn push(&mut self, op: Op, began: Time, ended: Option<Time>) -> Result<(), xact_types::Errno> {
        let mut state = self.now().clone();
        let mut touched = state.apply(&op)?;
        if let (true, Some(path)) = (op.is_sync(), op.path()) {
            touched = vec![state.resolve(path)?];
        }
        self.digests.push(digest_of(&[self.digests.last().expect("a history has its first state"), &op]));
        self.steps.push(Step { op, began, ended, touched });
        self.states.push(state);
        self.names.push(OnceLock::new());
        let step = self.steps.len() - 1;
        let of_file = self.covers(step, true);
        let syncs_file = self.steps[step].op.is_sync()
            && self.steps[step]
                .touched
                .iter()
                .any(|id| self.states[step].node(*id).is_some_and(|n| n.file().is_some()));
        let others = if syncs_file { 0 } else { of_file };
        self.covered.push(Covered { steps: self.covers(step, false), others, of_file });
        self.note_last();
        Ok(())
    }

    /// The names of the state after `k` steps.
    pub fn names(&self, k: usize) -> &Names {
        self.names[k].get_or_init(|| {
            let state = &self.states[k];
            Arc::new(Names { paths: state.paths(), links: state.all_links() })
        })
    }

    /// Notes the last step at the files that it changed or synced.
    fn note_last(&mut self) {
        let s = self.steps.len() - 1;
        let step = &self.steps[s];
        if step.op == Op::Sync {
            self.syncs.push(s);
        }
        for &id in &step.touched {
            let bytes = self.states[s + 1].node(id).and_then(|node| node.file());
            if bytes.is_none() && !self.files.contains_key(&id) {
                continue;
            }
            let past = self.files.entry(id).or_default();
            past.touching.push(s);
            if super::contents::forces(&step.op) {
                past.forced.push(s);
            }
            if self.states[s].is_replaced_by(&step.op, id) {
                past.replaced.push(s);
            }
            if step.op.is_sync() {
                past.syncs.push(s);
            }
            let before = past.contents.last().and_then(|(_, bytes)| bytes.as_ref());
            if before.map(Arc::as_ptr) != bytes.map(Arc::as_ptr) {
                past.contents.push((s + 1, bytes.cloned()));
            }
        }
    }

    /// The history of a file.
    ///
    /// # Panics
    /// For a file that never existed.
    pub fn past(&self, id: Id) -> &Past {
        self.files.get(&id).expect("the file was there once")
    }

    /// The number of steps, `k` or more, up to which an fsync may have made a file's data durable
    /// if the volume is otherwise as after `k` steps: until a step changes more of the file than
    /// its data, or shortens it, or a folder moves, or a transaction is committed.
    pub fn reach(&self, id: Id, k: usize, begun: usize) -> usize {
        let touching = &self.past(id).touching;
        let ends = |s: usize| match &self.steps[s].op {
            Op::Rename { .. } if self.moves_folder(s) => true,
            Op::Commit { .. } => true,
            Op::Truncate { .. } => touching.contains(&s) && !self.grows(s),
            op => !op.is_sync() && !op.is_inside() && touching.contains(&s),
        };
        (k..begun).find(|&s| ends(s)).unwrap_or(begun)
    }

    /// Whether a truncation makes its file longer.
    fn grows(&self, s: usize) -> bool {
        let length = |state: &State| state.node(self.steps[s].touched[0])?.file().map(|bytes| bytes.len());
        length(&self.states[s]) < length(&self.states[s + 1])
    }

    /// Steps that had been called at `time`.
    pub fn called(&self, time: Time) -> usize {
        self.steps.partition_point(|s| s.began < time)
    }

    /// Steps that had begun at `time` to change something or to give a promise: a sync that was not
    /// acknowledged does neither.
    pub fn begun(&self, time: Time) -> usize {
        let called = self.called(time);
        let waits = |step: &Step| step.op.is_sync() && !step.acknowledged(time);
        called - usize::from(self.steps[..called].last().is_some_and(waits))
    }

    /// Steps that had ended when a step began at `time`, which covers them.
    fn ended_before(&self, time: Time) -> usize {
        self.steps.iter().take_while(|s| s.acknowledged(time)).count()
    }

    /// The number of steps that must be present after a crash at `time`, by this thread's promises.
    fn promised(&self, time: Time, goes_ahead: bool) -> usize {
        let acknowledged = self.steps.iter().zip(&self.covered).filter(|(step, _)| step.acknowledged(time));
        acknowledged.map(|(_, all)| if goes_ahead { all.others } else { all.steps }).max().unwrap_or(0)
    }

    /// The number of steps after which a file's names and attributes must be at `time`, by syncs of
    /// it alone, if an fsync need not wait for others.
    pub fn needed(&self, time: Time, id: Id) -> usize {
        let syncs = self.files.get(&id).map_or(&[][..], |past| &past.syncs);
        let acknowledged = syncs.iter().filter(|&&s| self.steps[s].acknowledged(time));
        acknowledged.map(|&s| self.covered[s].of_file).max().unwrap_or(0)
    }

    /// The numbers of steps after which a file may be if everything else is as after `k` steps, by
    /// syncs of it alone among the first `called` steps: its names and attributes, and with a new
    /// file its existence. The file depends on its folder, and on nothing else that these steps
    /// have changed.
    pub fn apart(&self, id: Id, k: usize, called: usize) -> Vec<usize> {
        let Some(past) = self.files.get(&id) else { return Vec::new() };
        let end = (k..called).find(|&s| self.ties(s, id)).unwrap_or(called);
        let syncs = past.syncs.iter().copied().filter(|s| (k..=end).contains(s) && *s < called);
        syncs.filter(|&s| self.states[k].node(id).is_some() || self.name_fits(id, k, s)).collect()
    }

    /// Whether step `s` does more to a file than to change its data and attributes, or to make it;
    /// or moves a folder, or commits a transaction.
    fn ties(&self, s: usize, id: Id) -> bool {
        match &self.steps[s].op {
            op if self.moves_folder(s) || matches!(op, Op::Commit { .. }) => true,
            Op::Create { .. } => false,
            Op::Link { .. } | Op::Unlink { .. } | Op::Rename { .. } => self.steps[s].touched.contains(&id),
            _ => false,
        }
    }

    /// Whether the name that a file has after `s` steps is free after `k`, in the same folder.
    fn name_fits(&self, id: Id, k: usize, s: usize) -> bool {
        let Some(path) = self.names(s).paths.iter().find(|(_, named)| *named == id).map(|(path, _)| path)
        else {
            return false;
        };
        let path = std::str::from_utf8(path).expect("names of tests are text");
        let (dir, _) = path.rsplit_once('/').expect("absolute path");
        let before = &self.states[k];
        before.resolve(path).is_err()
            && before.resolve(dir).is_ok_and(|id| self.states[s].resolve(dir) == Ok(id))
    }

    /// The files that were synced alone after the first `k` steps: others cannot be apart.
    pub fn synced_after(&self, k: usize) -> impl Iterator<Item = Id> {
        let synced = move |past: &Past| past.syncs.last().is_some_and(|&s| s >= k);
        self.files.iter().filter(move |(_, past)| synced(past)).map(|(id, _)| *id)
    }

    fn moves_folder(&self, s: usize) -> bool {
        let is_folder = |path: &str| {
            let state = &self.states[s];
            let node = state.resolve(path).ok().and_then(|id| state.node(id));
            node.is_some_and(|node| matches!(node.content, Content::Dir(_)))
        };
        matches!(&self.steps[s].op, Op::Rename { from, to, .. } if is_folder(from) || is_folder(to))
    }

    /// The number of steps that step `s` promises, once it is acknowledged.
    fn covers(&self, s: usize, goes_ahead: bool) -> usize {
        let step = &self.steps[s];
        match &step.op {
            Op::Sync => s,
            // A commit without effect promises nothing.
            Op::Commit { durable: true, .. } if !self.states[s].same(&self.states[s + 1]) => s + 1,
            Op::Fsync { .. } => self.last_change(s, step.touched[0], true, goes_ahead),
            Op::Fdatasync { .. } => self.last_change(s, step.touched[0], false, goes_ahead),
            _ => 0,
        }
    }

    /// One past the last of the first `before` steps that an fsync (`all`) or fdatasync of `id`
    /// covers. If it may go ahead, a truncation that makes the file longer is a change of its data
    /// alone.
    fn last_change(&self, before: usize, id: Id, all: bool, goes_ahead: bool) -> usize {
        let covers = |n: usize, step: &Step| {
            let metadata = match &step.op {
                Op::Truncate { .. } if goes_ahead => !self.grows(n),
                // A change of data, even if whole blocks are allocated or freed.
                Op::Truncate { .. } | Op::Commit { .. } => true,
                op if op.is_inside() => false,
                op if op.is_sync() => false,
                _ => all || self.states[n].node(id).is_none(),
            };
            metadata && step.touched.contains(&id)
        };
        (0..before).rev().find(|&n| covers(n, &self.steps[n])).map_or(0, |n| n + 1)
    }

    /// The state whose contents of `id` are durable at `time`, by this thread's promises.
    fn synced(&self, time: Time, id: Id) -> usize {
        let last = |syncs: &[usize]| syncs.iter().rev().find(|&&s| self.steps[s].acknowledged(time)).copied();
        let own = self.files.get(&id).and_then(|past| last(&past.syncs));
        own.max(last(&self.syncs)).unwrap_or(0)
    }
}

/// A finished run.
#[derive(Debug, Clone, Default)]
pub struct History {
    pub threads: Vec<ThreadHistory>,
    pub promise: Promise,
    /// An fsync of a file need not wait for changes of others.
    pub goes_ahead: bool,
}

impl History {
    /// Two times with the same moment have the same legal trees; also times of two runs, each of
    /// one thread, under the same settings.
    ///
    /// It includes everything that judging needs to know of a thread at a time: the number of steps
    /// that had begun, the state before them and their operations (so the states between, and the
    /// files that each touched), and which of their promises were acknowledged. Promises between
    /// threads depend on the times at which their steps began and ended, which two runs do not
    /// share.
    pub fn moment(&self, time: Time) -> u64 {
        let mut hasher = DefaultHasher::new();
        for thread in &self.threads {
            // A sync that has only begun may have made its file durable, if it need not wait for
            // others.
            let begun = if self.goes_ahead { thread.called(time) } else { thread.begun(time) };
            thread.digests[begun].hash(&mut hasher);
            for step in &thread.steps[..begun] {
                let promise = step.op.is_sync() || matches!(step.op, Op::Commit { .. });
                (promise && step.acknowledged(time)).hash(&mut hasher);
                if self.threads.len() > 1 {
                    (step.began, step.ended).hash(&mut hasher);
                }
            }
        }
        hasher.finish()
    }

    /// The steps begun by `time`, each with its time and its acknowledgement, and the number of
    /// promised ones.
    pub fn story(&self, time: Time) -> String {
        let mut out = Vec::new();
        for (number, thread) in self.threads.iter().enumerate() {
            out.push(format!("thread '{}'", thread.prefix));
            for (n, step) in thread.steps[..thread.called(time)].iter().enumerate() {
                let ended = match step.ended {
                    Some(t) if t < time => format!("{t}"),
                    _ => "not acknowledged".to_owned(),
                };
                out.push(format!(
                    "{:4}  {}..{ended}  {} (files {:?})",
                    n + 1,
                    step.began,
                    step.op,
                    step.touched
                ));
            }
            out.push(format!("the first {} are promised", self.floor(number, time)));
        }
        out.join("\n")
    }

    /// The number of steps of `thread` that must be present after a crash at `time`.
    pub fn floor(&self, thread: usize, time: Time) -> usize {
        let own = self.threads[thread].promised(time, self.goes_ahead);
        self.syncs_elsewhere(thread, time)
            .map(|began| self.threads[thread].ended_before(began))
            .fold(own, usize::max)
    }

    /// The state of `thread` whose contents of `id` are durable at `time`.
    pub fn synced(&self, thread: usize, time: Time, id: Id) -> usize {
        let own = self.threads[thread].synced(time, id);
        self.syncs_elsewhere(thread, time)
            .map(|began| self.threads[thread].ended_before(began))
            .fold(own, usize::max)
    }

    /// The start times of other threads' acknowledged syncs.
    fn syncs_elsewhere(&self, thread: usize, time: Time) -> impl Iterator<Item = Time> {
        self.threads
            .iter()
            .enumerate()
            .filter(move |(n, _)| *n != thread)
            .flat_map(|(_, l)| &l.steps)
            .filter(move |s| s.op == Op::Sync && s.acknowledged(time))
            .map(|s| s.began)
    }
}

fn digest_of(parts: &[&dyn std::fmt::Debug]) -> u64 {
    let mut hasher = DefaultHasher::new();
    hasher.write(format!("{parts:?}").as_bytes());
    hasher.finish()
}
