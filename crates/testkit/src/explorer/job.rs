//! All checks of one crashed device: recovery, oracle, other implementations, crashes of the
//! recovery.

use std::collections::HashSet;
use std::fmt::Write as _;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use parking_lot::Mutex;
use xact_device::SECTOR_BYTES;

use crate::crash::{CrashState, choices};
use crate::image::Image;
use crate::recording::{Cursor, Part, Recording};
use crate::rng::Rng;

use super::replay::{Replay, crash};
use super::report::{describe, describe_part};
use super::states::Left;
use super::{ExploredStates, Finding, Plan, Recovered, Subject};

/// The beginning of an error that was a panic.
const PANIC: &str = "panic: ";
/// Overwrites a sector with noise.
pub(super) fn rot(image: &mut Image, sector: u64) {
    let mut rng = Rng::of(&[sector, 0x0072_6f74]);
    let noise: Vec<u8> = (0..SECTOR_BYTES).map(|_| rng.next() as u8).collect();
    image.write(&noise, sector * SECTOR_BYTES as u64);
}

#[derive(Default)]
pub(super) struct Counts {
    pub states: AtomicU64,
    pub recovered: AtomicU64,
    pub known: AtomicU64,
    pub nested: AtomicU64,
    pub inspected: AtomicU64,
    pub second: AtomicU64,
    pub shown: AtomicU64,
}

pub(super) struct Job<'a, S: Subject> {
    pub subject: &'a S,
    pub plan: &'a Plan,
    pub recording: &'a Recording,
    pub run: &'a S::Run,
    shape: u32,
    known: &'a ExploredStates<S::Tree>,
    pub findings: Mutex<Vec<Finding>>,
    pub counts: Counts,
    pub stop: AtomicBool,
}

impl<'a, S: Subject> Job<'a, S> {
    pub fn new(
        subject: &'a S,
        plan: &'a Plan,
        recording: &'a Recording,
        run: &'a S::Run,
        known: &'a ExploredStates<S::Tree>,
    ) -> Job<'a, S> {
        Job {
            subject,
            plan,
            recording,
            run,
            shape: recording.shape(),
            known,
            findings: Mutex::new(Vec::new()),
            counts: Counts::default(),
            stop: AtomicBool::new(false),
        }
    }

    /// All checks of one crashed device, except for those that [`ExploredStates`] has done before.
    pub fn examine(&self, Left { state, image, device, moment }: Left) {
        let runs = self.known.meet(device, moment);
        let is_new = runs == 0;
        let count = if is_new { &self.counts.states } else { &self.counts.known };
        count.fetch_add(1, Relaxed);
        let lot = Rng::of(&[self.plan.seed, device as u64, moment, runs]).next();
        let samples = self.draw(lot);
        let time = self.recording.time_of(state.point);
        let path = [state];
        if samples == [false; 4] {
            if !is_new {
                return;
            }
            if let Some(tree) = self.known.tree(device) {
                if let Err(why) = self.subject.judge(self.run, time, &tree) {
                    self.found(&path, &why);
                }
                return;
            }
        }
        let [inspected, seconded, nested, rotten] = samples;
        self.counts.recovered.fetch_add(1, Relaxed);
        let recovered = match self.recover(&image) {
            Ok(recovered) => recovered,
            Err(why) => return self.found(&path, &format!("recovery: {why}")),
        };
        self.known.remember(device, &recovered.tree);
        if let Err(why) = self.subject.judge(self.run, time, &recovered.tree) {
            return self.found(&path, &why);
        }
        if inspected && let Err(why) = self.inspect(&recovered.closed) {
            return self.found(&path, &why);
        }
        if seconded && let Some(theirs) = self.subject.second_opinion(&image, &recovered.tree) {
            self.counts.second.fetch_add(1, Relaxed);
            // If the first sector of a torn commit block is whole, Linux since 6.7 accepts the
            // commit, and e2fsprogs drops it. Both are legal, since the commit was never reported
            // as durable.
            let torn = path[0].parts.iter().any(|p| matches!(p, Part::Sectors(_)));
            match theirs {
                Ok(theirs) if theirs == recovered.tree => {}
                Ok(theirs) if torn && self.subject.judge(self.run, time, &theirs).is_ok() => {}
                Ok(theirs) => {
                    let how = self.subject.difference(&recovered.tree, &theirs);
                    return self.found(&path, &format!("the kernel recovers another tree: {how}"));
                }
                Err(why) => return self.found(&path, &format!("the kernel's recovery: {why}")),
            }
        }
        if nested {
            self.crash_recovery(&path, &recovered.recording, &recovered.tree, self.plan.depth);
        }
        if rotten {
            let sectors = self.subject.guarded(&image);
            if sectors.is_empty() {
                return;
            }
            let [mut state] = path;
            let sector = *Rng::new(lot).pick(&sectors);
            state.rotten = Some(sector);
            let mut image = image;
            rot(&mut image, sector);
            self.examine_rotten(state, &image);
        }
    }

    /// The plan's samples that a state is in: to be inspected, to be recovered by the kernel, to
    /// have its recovery crashed, to lose a sector of the log.
    fn draw(&self, lot: u64) -> [bool; 4] {
        let Plan { inspect_one_in, second_one_in, nested_one_in, rotten_one_in, .. } = *self.plan;
        let mut turn = 0;
        [inspect_one_in, second_one_in, nested_one_in, rotten_one_in].map(|one_in| {
            turn += 16;
            drawn(lot.rotate_left(turn - 16), one_in)
        })
    }

    /// A device that lost a sector of the log must give an error, or be right.
    pub fn examine_rotten(&self, state: CrashState, image: &Image) {
        let time = self.recording.time_of(state.point);
        match self.recover(image) {
            Ok(recovered) => {
                if let Err(why) = self.subject.judge(self.run, time, &recovered.tree) {
                    self.found(&[state], &format!("with a rotten sector of the log: {why}"));
                }
            }
            Err(why) if why.starts_with(PANIC) => self.found(&[state], &why),
            Err(_) => {}
        }
    }

    /// Crashes a recovery at each of its own writes, and recovers again.
    fn crash_recovery(&self, path: &[CrashState], recording: &Recording, expected: &S::Tree, depth: usize) {
        if depth == 0 {
            return;
        }
        let mut seen = HashSet::new();
        let mut cursor = Cursor::new(recording);
        let expected_states = recording.points() as u64 * self.plan.nested_effort.per_point as u64;
        let keep_one_in = expected_states.div_ceil(self.plan.nested_states.max(1)).max(1);
        loop {
            let mut rng = Rng::of(&[self.plan.seed, path[0].point as u64, cursor.point() as u64]);
            if !rng.one_in(keep_one_in) {
                if !cursor.advance() {
                    break;
                }
                continue;
            }
            let sectors: Vec<usize> =
                cursor.pending().iter().map(|&i| recording.events[i].sectors()).collect();
            for parts in choices(&sectors, &self.plan.nested_effort, &mut rng) {
                let image = cursor.crash(&parts);
                if !seen.insert(image.digest()) || self.stop.load(Relaxed) {
                    continue;
                }
                let mut path = path.to_vec();
                path.push(CrashState { point: cursor.point(), parts, rotten: None });
                if let Some(again) = self.recover_again(&path, &image, expected)
                    && drawn(image.digest() as u64, 10 * self.plan.nested_one_in)
                {
                    self.crash_recovery(&path, &again.recording, expected, depth - 1);
                }
            }
            if !cursor.advance() {
                break;
            }
        }
    }

    fn recover_again(
        &self,
        path: &[CrashState],
        image: &Image,
        expected: &S::Tree,
    ) -> Option<Recovered<S::Tree>> {
        self.counts.nested.fetch_add(1, Relaxed);
        let again = match self.recover(image) {
            Ok(again) => again,
            Err(why) => {
                self.found(path, &format!("recovery after a crash in recovery: {why}"));
                return None;
            }
        };
        if again.tree != *expected {
            let how = self.subject.difference(expected, &again.tree);
            self.found(path, &format!("a crash in recovery changes the tree: {how}"));
            return None;
        }
        if drawn(image.digest() as u64, self.plan.inspect_one_in)
            && let Err(why) = self.inspect(&again.closed)
        {
            self.found(path, &why);
            return None;
        }
        Some(again)
    }

    pub fn replay_nested(
        &self,
        first: &CrashState,
        rest: &[CrashState],
        image: &Image,
    ) -> Result<(), String> {
        let mut path = vec![first.clone()];
        let mut recovered = self.recover(image)?;
        for state in rest {
            let image = crash(&recovered.recording, state)?;
            path.push(state.clone());
            match self.recover_again(&path, &image, &recovered.tree) {
                Some(again) => recovered.recording = again.recording,
                None => return Ok(()),
            }
        }
        Ok(())
    }

    pub fn recover(&self, image: &Image) -> Result<Recovered<S::Tree>, String> {
        match catch_unwind(AssertUnwindSafe(|| self.subject.recover(image))) {
            Ok(result) => result,
            Err(panic) => {
                let text = panic
                    .downcast_ref::<String>()
                    .cloned()
                    .or_else(|| panic.downcast_ref::<&str>().map(|s| (*s).to_owned()));
                Err(format!("{PANIC}{}", text.unwrap_or_default()))
            }
        }
    }

    fn inspect(&self, image: &Image) -> Result<(), String> {
        if !self.known.is_first_inspection(image.digest()) {
            return Ok(());
        }
        self.counts.inspected.fetch_add(1, Relaxed);
        self.subject.inspect(image)
    }

    fn found(&self, path: &[CrashState], what: &str) {
        let replay = Replay {
            workload: self.subject.name().to_owned(),
            seed: self.plan.seed,
            shape: self.shape,
            states: path.to_vec(),
        };
        let mut text = what.to_owned();
        self.describe_events(&path[0], &mut text);
        if !self.subject.repeats() {
            let story = self.subject.story(self.run, self.recording.time_of(path[0].point));
            let _ = write!(text, "\n{story}");
        }
        let finding = Finding { replay: replay.to_string(), what: text };
        let mut findings = self.findings.lock();
        findings.push(finding);
        if findings.len() >= self.plan.findings {
            self.stop.store(true, Relaxed);
        }
    }

    /// Adds the writes that the crash lost or tore.
    fn describe_events(&self, state: &CrashState, text: &mut String) {
        const SHOWN: usize = 12;
        let cursor = Cursor::at(self.recording, state.point);
        let mut shown = 0;
        for (&index, part) in cursor.pending().iter().zip(&state.parts) {
            if *part == Part::All {
                continue;
            }
            let event = &self.recording.events[index];
            shown += 1;
            if shown <= SHOWN {
                let tag = event.tag.as_deref().unwrap_or("");
                let _ = write!(text, "\n    {} {} {tag}", describe_part(part), describe(&event.action));
            }
        }
        if shown > SHOWN {
            let _ = write!(text, "\n    and {} more", shown - SHOWN);
        }
    }
}

/// Whether a state is in a sample of one in `n`; always the same for the same state.
fn drawn(lot: u64, n: u64) -> bool {
    n != 0 && Rng::new(lot).one_in(n)
}
