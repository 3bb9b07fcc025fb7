//! The crash explorer: stops a recorded run at every write and flush, makes the devices that a
//! crash there may leave, recovers each, crashes the recovery too, and asks the oracle.
//!
//! It knows nothing of file systems: what is recorded, recovered and judged is a [`Subject`]'s.
//!
//! - `plan`: how much of it; `states`: which devices
//! - `job`: what is done with one device; `known`: what need not be done again
//! - `report`, `replay`: findings, and the lines that bring them back

mod job;
mod known;
mod plan;
mod replay;
mod report;
mod states;

use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

use parking_lot::Mutex;

use crate::image::Image;
use crate::recording::{Event, Recording, Time};

pub use known::Known;
pub use plan::Plan;
pub use replay::{Replay, Replayed, replay};
pub use report::{Finding, Summary, report};

use job::Job;
use report::progress;
use states::States;

/// What the explorer crashes.
pub trait Subject: Sync {
    /// What the oracle knows of a recorded run: what was done and what was acknowledged when.
    type Run: Sync;
    /// What a recovered device holds, for the oracle and for comparing recoveries.
    type Tree: PartialEq + Clone + Send;

    /// Name in replay lines.
    fn name(&self) -> &str;

    /// Runs the workload on a recording device. The same seed gives the same run.
    fn record(&self, seed: u64) -> Result<(Recording, Self::Run), String>;

    /// Two times with equal moments have the same legal states; those of two runs that are explored with one
    /// [`Known`], too.
    fn moment(&self, run: &Self::Run, time: Time) -> u64;

    /// Opens the crashed device as a user would.
    fn recover(&self, image: &Image) -> Result<Recovered<Self::Tree>, String>;

    /// Whether a crash at `time` may leave `tree`; if not, why.
    fn judge(&self, run: &Self::Run, time: Time, tree: &Self::Tree) -> Result<(), String>;

    /// Checks a recovered and cleanly closed device by other means (e2fsck).
    fn inspect(&self, image: &Image) -> Result<(), String>;

    /// What another implementation finds on the crashed device; `None` where there is none. Given what was
    /// recovered by ours, to leave out what legitimately differs.
    fn second_opinion(&self, image: &Image, ours: &Self::Tree) -> Option<Result<Self::Tree, String>>;

    /// Crashes before this point of the recording are not looked at, since they may leave anything.
    fn promises_from(&self, recording: &Recording) -> usize {
        let _ = recording;
        0
    }

    /// Sectors whose loss must be noticed, or not matter: the copies in the journal.
    fn guarded(&self, image: &Image) -> Vec<u64> {
        let _ = image;
        Vec::new()
    }

    /// How many times as long as most subjects' a state of this one takes; plans that thin out try as many times fewer.
    fn weight(&self) -> u64 {
        1
    }

    /// The kinds of writes there are: one crash around each kind is tried however few states a plan has.
    fn kind(&self, recording: &Recording, event: &Event) -> u64 {
        let _ = (recording, event);
        0
    }

    /// Whether two runs with one seed do the same; if not, findings tell what was done.
    fn repeats(&self) -> bool {
        true
    }

    /// What had been done by `time`, for those who look into a finding.
    fn story(&self, run: &Self::Run, time: Time) -> String {
        let _ = (run, time);
        String::new()
    }

    /// How two trees differ, for findings.
    fn difference(&self, ours: &Self::Tree, theirs: &Self::Tree) -> String;
}

/// A device after recovery.
pub struct Recovered<Tree> {
    pub tree: Tree,
    /// What recovery wrote, up to the point where the device is usable.
    pub recording: Recording,
    /// The device after a clean close.
    pub closed: Image,
}

/// Explores one workload.
pub fn explore<S: Subject>(subject: &S, plan: &Plan) -> Result<Summary, String> {
    explore_more(subject, plan, &Known::of_one())
}

/// Explores one of several workloads that have something in common: `known` is of those before.
pub fn explore_more<S: Subject>(subject: &S, plan: &Plan, known: &Known<S::Tree>) -> Result<Summary, String> {
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
