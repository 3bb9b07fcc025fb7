//! Lines that replay a finding.

use crate::crash::CrashState;
use crate::image::Image;
use crate::recording::{Cursor, Recording};

use super::job::{Job, rot};
use super::states::Left;
use super::{ExploredStates, Finding, Plan, Subject};

/// A replay line: `workload:seed:shape:state/state…`, the states of nested crashes after the first.
pub struct Replay {
    pub workload: String,
    pub seed: u64,
    /// [`Recording::shape`] of the run it was found in.
    pub shape: u32,
    pub states: Vec<CrashState>,
}

impl std::fmt::Display for Replay {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let states: Vec<String> = self.states.iter().map(|s| s.to_string()).collect();
        write!(f, "{}:{}:{:08x}:{}", self.workload, self.seed, self.shape, states.join("/"))
    }
}

impl std::str::FromStr for Replay {
    type Err = String;

    fn from_str(text: &str) -> Result<Replay, String> {
        let bad = || format!("invalid replay line '{text}' (expected workload:seed:shape:p12:+3-2/…)");
        let mut fields = text.splitn(4, ':');
        let mut field = || fields.next().ok_or_else(bad);
        let workload = field()?.to_owned();
        let seed = field()?.parse().map_err(|_| bad())?;
        let shape = u32::from_str_radix(field()?, 16).map_err(|_| bad())?;
        let states = field()?.split('/').map(str::parse).collect::<Result<_, _>>()?;
        Ok(Replay { workload, seed, shape, states })
    }
}

/// The result of a replay line.
pub struct Replayed {
    /// The operations done before the crash.
    pub story: String,
    /// `None`: this state is right now.
    pub finding: Option<Finding>,
}

/// Tries the states of one replay line again.
pub fn replay<S: Subject>(subject: &S, line: &Replay, plan: &Plan) -> Result<Replayed, String> {
    const TRIES: usize = 20;
    let mut last = None;
    for _ in 0..TRIES {
        let (recording, run) = subject.record(line.seed)?;
        let same = recording.shape() == line.shape;
        last = Some((recording, run));
        if same {
            break;
        }
    }
    let (recording, run) = last.expect("at least one run");
    if recording.shape() != line.shape {
        eprintln!("note: {TRIES} runs did not write what the run of this line wrote; trying it all the same");
    }
    let plan = Plan { inspect_one_in: 1, second_one_in: 1, nested_one_in: 0, rotten_one_in: 0, ..*plan };
    let known = ExploredStates::of_one();
    let job = Job::new(subject, &plan, &recording, &run, &known);
    let (first, rest) = line.states.split_first().ok_or("a replay line needs a crash state")?;
    let image = crash(&recording, first)?;
    let story = subject.story(&run, recording.time_of(first.point));
    if first.rotten.is_some() {
        job.examine_rotten(first.clone(), &image);
    } else if rest.is_empty() {
        let moment = subject.moment(&run, recording.time_of(first.point));
        job.examine(Left { state: first.clone(), device: image.digest(), image, moment });
    } else {
        job.replay_nested(first, rest, &image)?;
    }
    Ok(Replayed { story, finding: job.findings.into_inner().into_iter().next() })
}

pub(super) fn crash(recording: &Recording, state: &CrashState) -> Result<Image, String> {
    let cursor = Cursor::at(recording, state.point);
    if cursor.point() != state.point || cursor.pending().len() != state.parts.len() {
        return Err(format!(
            "{state}: this run has {} points and {} writes pending there",
            recording.points(),
            cursor.pending().len()
        ));
    }
    let mut image = cursor.crash(&state.parts);
    if let Some(sector) = state.rotten {
        rot(&mut image, sector);
    }
    Ok(image)
}
