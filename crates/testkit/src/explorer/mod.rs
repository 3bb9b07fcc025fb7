//! The crash explorer: stops a recorded run at every write and flush, builds the devices that a
//! crash there may leave, recovers each, crashes the recovery too, and asks the oracle.
//!
//! It knows nothing of file systems: a [`Subject`] records, recovers and judges.
//!
//! - `plan`: the amount of work; `states`: the devices to try
//! - `job`: the checks of one device; `known`: the checks to skip
//! - `report`, `replay`: findings, and the lines that repeat them

mod explored;
mod job;
mod plan;
mod replay;
mod report;
mod states;

use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

use parking_lot::Mutex;

use crate::image::Image;
use crate::recording::{Event, Recording, Time};

pub use explored::ExploredStates;
pub use plan::Plan;
pub use replay::{Replay, Replayed, replay};
pub use report::{Finding, Summary, report};

use job::Job;
use report::progress;
use states::States;

/// The subject of an exploration.
pub trait Subject: Sync {
    /// The oracle's knowledge of a recorded run: the operations, and the times of their
    /// acknowledgements.
    type Run: Sync;
    /// The contents of a recovered device, for the oracle and for comparing recoveries.
    type Tree: PartialEq + Clone + Send;

    /// Name in replay lines.
    fn name(&self) -> &str;

    /// Runs the workload on a recording device. The same seed gives the same run.
    fn record(&self, seed: u64) -> Result<(Recording, Self::Run), String>;

    /// Two times with equal moments have the same legal states; also times of two runs that are
    /// explored with one [`ExploredStates`].
    fn moment(&self, run: &Self::Run, time: Time) -> u64;

    /// Opens the crashed device as a user would.
    fn recover(&self, image: &Image) -> Result<Recovered<Self::Tree>, String>;

    /// Whether a crash at `time` may leave `tree`; if not, the reason.
    fn judge(&self, run: &Self::Run, time: Time, tree: &Self::Tree) -> Result<(), String>;

    /// Checks a recovered and cleanly closed device by other means (e2fsck).
    fn inspect(&self, image: &Image) -> Result<(), String>;

    /// The tree that another implementation finds on the crashed device; `None` if there is none.
    /// `ours` is the tree of our recovery, to leave out legitimate differences.
    fn second_opinion(&self, image: &Image, ours: &Self::Tree) -> Option<Result<Self::Tree, String>>;

    /// Crashes before this point of the recording are skipped, since they may leave anything.
    fn promises_from(&self, recording: &Recording) -> usize {
        let _ = recording;
        0
    }

    /// Sectors whose loss must be noticed or be harmless: the copies in the journal.
    fn guarded(&self, image: &Image) -> Vec<u64> {
        let _ = image;
        Vec::new()
    }

    /// The time of one of this subject's states, as a multiple of most subjects'; plans that thin
    /// out try that many times fewer.
    fn weight(&self) -> u64 {
        1
    }

    /// The kind of a write: one crash around each kind is tried, however few states a plan has.
    fn kind(&self, recording: &Recording, event: &Event) -> u64 {
        let _ = (recording, event);
        0
    }

    /// Whether two runs with one seed are equal; if not, findings list the operations.
    fn repeats(&self) -> bool {
        true
    }

    /// The operations done by `time`, for the reader of a finding.
    fn story(&self, run: &Self::Run, time: Time) -> String {
        let _ = (run, time);
        String::new()
    }

    /// The difference of two trees, for findings.
    fn difference(&self, ours: &Self::Tree, theirs: &Self::Tree) -> String;
}

/// A device after recovery.
pub struct Recovered<Tree> {
    pub tree: Tree,
    /// The writes of the recovery, up to the point at which the device is usable.
    pub recording: Recording,
    /// The device after a clean close.
    pub closed: Image,
}

/// Explores one workload.
pub fn explore<S: Subject>(subject: &S, plan: &Plan) -> Result<Summary, String> {
    explore_more(subject, plan, &ExploredStates::of_one())
}

/// Explores one of several related workloads; `explored` has the states of the earlier ones.
pub fn explore_more<S: Subject>(
    subject: &S,
    plan: &Plan,
    known: &ExploredStates<S::Tree>,
) -> Result<Summary, String> {
    let started = Instant::now();
    let plan = &plan.thinned(subject.weight());
    let (recording, run) = subject.record(plan.seed)?;
    let job = Job::new(subject, plan, &recording, &run, known);
    let queue = Mutex::new(States::new(&job));
    let work = || {
        while !job.stop.load(Relaxed) {
            let Some(state) = queue.lock().next() else { break };
            job.examine(state);
            progress(&job, started);
        }
    };
    if plan.threads > 1 {
        std::thread::scope(|scope| (0..plan.threads).for_each(|_| drop(scope.spawn(work))));
    } else {
        work();
    }
    let states = job.counts.states.load(Relaxed);
    Ok(Summary {
        workload: subject.name().to_owned(),
        events: recording.events.len(),
        points: recording.points(),
        states,
        recovered: job.counts.recovered.load(Relaxed),
        known: job.counts.known.load(Relaxed),
        nested: job.counts.nested.load(Relaxed),
        inspected: job.counts.inspected.load(Relaxed),
        second_opinions: job.counts.second.load(Relaxed),
        findings: job.findings.into_inner(),
        elapsed: started.elapsed(),
    })
}
