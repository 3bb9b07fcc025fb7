//! What a workload did, when, and what it was promised.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::ops::RangeInclusive;
use std::sync::{Arc, OnceLock};

use crate::recording::Time;
use crate::tree::Tree;

use super::contents::Promise;
use super::op::Op;
use super::state::{Id, State};

/// One operation that changed something or asked for durability.
#[derive(Debug, Clone)]
pub struct Step {
    pub op: Op,
    pub began: Time,
    /// When it was acknowledged; `None` where it failed on the way and may have happened or not.
    pub ended: Option<Time>,
    /// Inodes it changed (for a sync: the one it is about).
    pub touched: Vec<Id>,
}

impl Step {
    pub fn acknowledged(&self, time: Time) -> bool {
        self.ended.is_some_and(|t| t < time)
    }
}

/// The operations of one thread, which has a folder to itself.
#[derive(Debug, Clone)]
pub struct Lane {
    /// Its folder; "" is the whole volume.
    pub prefix: String,
    pub steps: Vec<Step>,
    /// `states[i]` is the state after the first `i` steps.
    pub states: Vec<State>,
    /// `digests[i]` is a number for the first `i` steps and the state before them.
    digests: Vec<u64>,
    /// `covered[i]` is how many steps are there for good when step `i` is acknowledged.
    covered: Vec<usize>,
    /// All that happened to each file, so that judging one of its contents does not go through all states.
    files: HashMap<Id, Past>,
    /// The steps that sync everything.
    syncs: Vec<usize>,
    /// The names of each state that was asked for them.
    names: Vec<OnceLock<Arc<Names>>>,
}

/// What is where in a state.
#[derive(Debug)]
pub struct Names {
    /// Every name but the root's.
    pub paths: Vec<(Vec<u8>, Id)>,
    /// The link counts that `stat` should show.
    pub links: HashMap<Id, u32>,
}

/// What happened to one file.
#[derive(Debug, Clone, Default)]
pub struct Past {
    /// Its contents, each with the state that had it first; `None` where it is not there.
    contents: Vec<(usize, Option<Arc<Vec<u8>>>)>,
    /// The steps that changed or synced it.
    pub touching: Vec<usize>,
    /// Those that act on its inside as metadata does.
    pub forced: Vec<usize>,
    /// Those that renamed it over another file.
    pub replaced: Vec<usize>,
    /// Those that synced it alone.
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

    /// The states of a range in spans (first, last) that nothing forced divides, and that have the same contents.
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

impl Lane {
    /// Files get numbers from `first_id` on, which is above [`super::ROOT`].
    pub fn new(prefix: &str, first_id: Id) -> Lane {
        Lane {
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

    /// Takes a volume's tree for the state before all steps.
    pub fn begin_with(&mut self, tree: &Tree) {
        assert!(self.steps.is_empty(), "a lane begins once");
        self.states[0].adopt(tree);
        self.digests[0] = digest_of(&[&self.digests[0], &tree.digest()]);
        for (id, bytes) in self.states[0].files() {
            self.files.insert(id, Past { contents: vec![(0, Some(bytes.clone()))], ..Past::default() });
        }
    }

    pub fn now(&self) -> &State {
        self.states.last().expect("a lane has its first state")
    }

    /// Adds a step that the model agrees with.
    pub fn push(&mut self, op: Op, began: Time, ended: Option<Time>) -> Result<(), xact_types::Errno> {
        let mut state = self.now().clone();
        let mut touched = state.apply(&op)?;
        if let (true, Some(path)) = (op.is_sync(), op.path()) {
            touched = vec![state.resolve(path)?];
        }
        self.digests.push(digest_of(&[self.digests.last().expect("a lane has its first state"), &op]));
        self.steps.push(Step { op, began, ended, touched });
        self.states.push(state);
        self.names.push(OnceLock::new());
        self.covered.push(self.covers(self.steps.len() - 1));
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

    /// Notes the last step with the files that it is about.
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

    /// All that happened to a file.
    ///
    /// # Panics
    /// Of a file that never was.
    pub fn past(&self, id: Id) -> &Past {
        self.files.get(&id).expect("the file was there once")
    }

    /// Steps that had been called at `time`.
    fn called(&self, time: Time) -> usize {
        self.steps.partition_point(|s| s.began < time)
    }

    /// Steps that had begun at `time` to change something or to be promised: a sync that has not been
    /// acknowledged does neither.
    pub fn begun(&self, time: Time) -> usize {
        let called = self.called(time);
        let waits = |step: &Step| step.op.is_sync() && !step.acknowledged(time);
        called - usize::from(self.steps[..called].last().is_some_and(waits))
    }

    /// Steps that had ended when something began at `time`; those are what it covers.
    fn ended_before(&self, time: Time) -> usize {
        self.steps.iter().take_while(|s| s.acknowledged(time)).count()
    }

    /// How many steps must be there after a crash at `time`, for what this lane was promised.
    fn promised(&self, time: Time) -> usize {
        let acknowledged = self.steps.iter().zip(&self.covered).filter(|(step, _)| step.acknowledged(time));
        acknowledged.map(|(_, covered)| *covered).max().unwrap_or(0)
    }

    /// How many steps are promised by step `s`, once it is acknowledged.
    fn covers(&self, s: usize) -> usize {
        let step = &self.steps[s];
        match &step.op {
            Op::Sync => s,
            // One without effect is no commit.
            Op::Commit { durable: true, .. } if !self.states[s].same(&self.states[s + 1]) => s + 1,
            Op::Fsync { .. } => self.last_change(s, step.touched[0], true),
            Op::Fdatasync { .. } => self.last_change(s, step.touched[0], false),
            _ => 0,
        }
    }

    /// One past the last of the first `before` steps that an fsync (`all`) or fdatasync of `id`
    /// covers.
    fn last_change(&self, before: usize, id: Id, all: bool) -> usize {
        let covers = |n: usize, step: &Step| {
            let metadata = match &step.op {
                // Data, even where whole blocks come or go.
                Op::Truncate { .. } | Op::Commit { .. } => true,
                op if op.is_inside() => false,
                op if op.is_sync() => false,
                _ => all || self.states[n].node(id).is_none(),
            };
            metadata && step.touched.contains(&id)
        };
        (0..before).rev().find(|&n| covers(n, &self.steps[n])).map_or(0, |n| n + 1)
    }

    /// The state whose contents of `id` are durable at `time`, for what this lane was promised.
    fn synced(&self, time: Time, id: Id) -> usize {
        let last = |syncs: &[usize]| syncs.iter().rev().find(|&&s| self.steps[s].acknowledged(time)).copied();
        let own = self.files.get(&id).and_then(|past| last(&past.syncs));
        own.max(last(&self.syncs)).unwrap_or(0)
    }
}

/// A finished run.
#[derive(Debug, Clone, Default)]
pub struct History {
    pub lanes: Vec<Lane>,
    pub promise: Promise,
}

impl History {
    /// Two times with the same moment have the same legal trees; also times of two runs, each of one lane,
    /// under the same settings.
    ///
    /// For all that judging asks of a lane at a time is in it: how many steps had begun, the state before
    /// them and what they did (so the states between, and what each touched), and which promises among them
    /// were acknowledged. What lanes promise each other goes by when their steps began and ended, which two
    /// runs do not share.
    pub fn moment(&self, time: Time) -> u64 {
        let mut hasher = DefaultHasher::new();
        for lane in &self.lanes {
            let begun = lane.begun(time);
            lane.digests[begun].hash(&mut hasher);
            for step in &lane.steps[..begun] {
                let promise = step.op.is_sync() || matches!(step.op, Op::Commit { .. });
                (promise && step.acknowledged(time)).hash(&mut hasher);
                if self.lanes.len() > 1 {
                    (step.began, step.ended).hash(&mut hasher);
                }
            }
        }
        hasher.finish()
    }

    /// The steps begun by `time`, each with when it was and whether it was acknowledged; and how many
    /// of them are promised.
    pub fn story(&self, time: Time) -> String {
        let mut out = Vec::new();
        for (number, lane) in self.lanes.iter().enumerate() {
            out.push(format!("lane '{}'", lane.prefix));
            for (n, step) in lane.steps[..lane.called(time)].iter().enumerate() {
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

    /// Of `lane`, how many steps must be there after a crash at `time`.
    pub fn floor(&self, lane: usize, time: Time) -> usize {
        let own = self.lanes[lane].promised(time);
        self.syncs_elsewhere(lane, time)
            .map(|began| self.lanes[lane].ended_before(began))
            .fold(own, usize::max)
    }

    /// The state of `lane` whose contents of `id` are durable at `time`.
    pub fn synced(&self, lane: usize, time: Time, id: Id) -> usize {
        let own = self.lanes[lane].synced(time, id);
        self.syncs_elsewhere(lane, time)
            .map(|began| self.lanes[lane].ended_before(began))
            .fold(own, usize::max)
    }

    /// When the acknowledged syncs of other lanes began.
    fn syncs_elsewhere(&self, lane: usize, time: Time) -> impl Iterator<Item = Time> {
        self.lanes
            .iter()
            .enumerate()
            .filter(move |(n, _)| *n != lane)
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
