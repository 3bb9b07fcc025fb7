//! The crash states of a recording, as a plan chooses them.

use std::collections::HashSet;

use crate::crash::{CrashState, choices};
use crate::image::Image;
use crate::recording::{Cursor, Part, Recording, Time};
use crate::rng::Rng;

use super::job::Job;
use super::{Plan, Subject};

/// The distinct crash states of a recording, one after the other.
pub(super) struct States<'a> {
    cursor: Cursor<'a>,
    recording: &'a Recording,
    plan: Plan,
    /// Of a point that is left out because the run has too many: one in so many is kept.
    keep_one_in: u64,
    moment: Box<dyn Fn(Time) -> u64 + Send + 'a>,
    ready: Vec<Vec<Part>>,
    seen: HashSet<(u128, u64)>,
    given: u64,
    over: bool,
}

impl<'a> States<'a> {
    pub fn new<S: Subject>(job: &Job<'a, S>) -> States<'a> {
        let (subject, run) = (job.subject, job.run);
        let mut states = States {
            cursor: Cursor::at(job.recording, subject.promises_from(job.recording)),
            recording: job.recording,
            plan: *job.plan,
            keep_one_in: 1,
            moment: Box::new(move |time| subject.moment(run, time)),
            ready: Vec::new(),
            seen: HashSet::new(),
            given: 0,
            over: false,
        };
        let expected = job.recording.points() as u64 * job.plan.effort.per_point as u64 / 2;
        states.keep_one_in = expected.div_ceil(job.plan.states.max(1)).max(1);
        states.fill();
        states
    }

    fn fill(&mut self) {
        let point = self.cursor.point();
        let mut rng = Rng::of(&[self.plan.seed, point as u64]);
        // Around flushes everything is decided, so these points are never left out.
        let events = &self.recording.events;
        let near_flush =
            point == events.len() || events[point].is_flush() || (point > 0 && events[point - 1].is_flush());
        if near_flush || rng.one_in(self.keep_one_in) {
            let sectors: Vec<usize> = self.cursor.pending().iter().map(|&i| events[i].sectors()).collect();
            self.ready = choices(&sectors, &self.plan.effort, &mut rng);
            self.ready.reverse();
        }
    }

    pub fn next(&mut self) -> Option<(CrashState, Image)> {
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
            if self.seen.insert((image.digest(), (self.moment)(time))) {
                self.given += 1;
                return Some((CrashState { point: self.cursor.point(), parts, rotten: None }, image));
            }
        }
    }
}
