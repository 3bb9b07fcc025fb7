//! The crash states of a recording that a plan chooses.

use std::collections::HashSet;

use crate::crash::{CrashState, choices};
use crate::image::Image;
use crate::recording::{Cursor, Event, Part, Recording, Time};
use crate::rng::Rng;

use super::job::Job;
use super::{Plan, Subject};

/// A crash state, and the device that it leaves.
pub(super) struct Left {
    pub state: CrashState,
    pub image: Image,
    /// The image's digest.
    pub device: u128,
    pub moment: u64,
}

/// The distinct crash states of a recording, one after the other.
pub(super) struct States<'a> {
    cursor: Cursor<'a>,
    recording: &'a Recording,
    plan: Plan,
    /// If the run has too many points, one in this number is kept.
    keep_one_in: u64,
    /// The same for points around flushes, which only plans that thin out skip.
    near_flush_one_in: u64,
    /// Points that are never skipped: the first one behind a write of each kind, and the last of
    /// all.
    first_of_kind: HashSet<usize>,
    moment: Box<dyn Fn(Time) -> u64 + Send + 'a>,
    ready: Vec<Vec<Part>>,
    seen: HashSet<(u128, u64)>,
    given: u64,
    over: bool,
}

impl<'a> States<'a> {
    pub fn new<S: Subject>(job: &Job<'a, S>) -> States<'a> {
        let first_of_kind = if job.plan.thins_out { first_of_kind(job) } else { HashSet::new() };
        let (subject, run) = (job.subject, job.run);
        let mut states = States {
            cursor: Cursor::at(job.recording, subject.promises_from(job.recording)),
            recording: job.recording,
            plan: *job.plan,
            keep_one_in: 1,
            near_flush_one_in: 1,
            first_of_kind,
            moment: Box::new(move |time| subject.moment(run, time)),
            ready: Vec::new(),
            seen: HashSet::new(),
            given: 0,
            over: false,
        };
        let expected = job.recording.points() as u64 * job.plan.effort.per_point as u64 / 2;
        states.keep_one_in = expected.div_ceil(job.plan.states.max(1)).max(1);
        if job.plan.thins_out {
            let near = (0..job.recording.points()).filter(|&point| states.is_near_flush(point)).count();
            let expected = (near * job.plan.effort.per_point) as u64;
            // Half for these, half for the others.
            states.near_flush_one_in = expected.div_ceil((job.plan.states / 2).max(1)).max(1);
            states.keep_one_in *= 4;
        }
        states.fill();
        states
    }

    /// The legal outcome changes around flushes.
    fn is_near_flush(&self, point: usize) -> bool {
        let events = &self.recording.events;
        point == events.len() || events[point].is_flush() || (point > 0 && events[point - 1].is_flush())
    }

    fn fill(&mut self) {
        let point = self.cursor.point();
        let mut rng = Rng::of(&[self.plan.seed, point as u64]);
        let events = &self.recording.events;
        let drawn = match self.is_near_flush(point) {
            true => self.near_flush_one_in == 1 || rng.one_in(self.near_flush_one_in),
            false => rng.one_in(self.keep_one_in),
        };
        if drawn || self.first_of_kind.contains(&point) {
            let sectors: Vec<usize> = self.cursor.pending().iter().map(|&i| events[i].sectors()).collect();
            self.ready = choices(&sectors, &self.plan.effort, &mut rng);
            self.ready.reverse();
        }
    }

    pub fn next(&mut self) -> Option<Left> {
        loop {
            if self.over || self.given >= self.plan.states {
                return None;
            }
            let Some(parts) = self.ready.pop() else {
                if self.cursor.advance() {
                    self.fill();
                } else {
                    self.over = true;
                }
                continue;
            };
            let image = self.cursor.crash(&parts);
            let time = self.recording.time_of(self.cursor.point());
            let (device, moment) = (image.digest(), (self.moment)(time));
            if self.seen.insert((device, moment)) {
                self.given += 1;
                let state = CrashState { point: self.cursor.point(), parts, rotten: None };
                return Some(Left { state, image, device, moment });
            }
        }
    }
}

/// The points just behind the first write or flush of each kind, and the last point.
fn first_of_kind<S: Subject>(job: &Job<'_, S>) -> HashSet<usize> {
    let mut kinds = HashSet::new();
    let events = job.recording.events.iter().enumerate();
    let mut is_new = |event: &Event| kinds.insert((event.is_flush(), job.subject.kind(job.recording, event)));
    let last = job.recording.events.len();
    events.filter(|(_, event)| is_new(event)).map(|(at, _)| at + 1).chain([last]).collect()
}
