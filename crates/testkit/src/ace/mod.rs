//! Bounded enumeration (ACE, of CrashMonkey, OSDI 2018): every sequence of one operation and every
//! sequence of two over a few names, with each way to make them durable at each position, on each
//! kind of volume. Small sequences find most of what large ones find, and show the cause.
//!
//! - `alphabet`: the operations and names
//! - this file: sequences, named by their numbers, and the exploration of many of them

mod alphabet;

use std::fmt;
use std::str::FromStr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Instant;

use parking_lot::Mutex;
use xact_consistency::Fault;
use xact_types::SimulatedClock;

use crate::crash::Effort;
use crate::driver::{Done, Driver, End, FileOps};
use crate::explorer::{ExploredStates, Finding, Plan, Recovered, Subject, Summary, explore_more};
use crate::files::FileWorkload;
use crate::image::Image;
use crate::model::{History, Op, State};
use crate::recording::{Recording, Time};
use crate::resume::Resume;
use crate::rng::Rng;
use crate::tree::Tree;
use crate::workloads::{self, random};

use alphabet::{Letter, Writer, letters};

/// One operation, and how it is made durable: 0 for not at all, else the number of the way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Step {
    letter: usize,
    sync: usize,
}

/// A sequence by its numbers. As text, `ace/adaptive/durable/12.0/7.3` does operation 12, then 7
/// with the third way to sync, in the setting `adaptive`; the preconditions of operation 12 were
/// durable before.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sequence {
    setting: &'static str,
    /// Whether the preconditions of the first operation are durable before it.
    durable: bool,
    steps: Vec<Step>,
}

impl fmt::Display for Sequence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ace/{}/{}", self.setting, if self.durable { "durable" } else { "fresh" })?;
        self.steps.iter().try_for_each(|step| write!(f, "/{}.{}", step.letter, step.sync))
    }
}

impl FromStr for Sequence {
    type Err = String;

    fn from_str(text: &str) -> Result<Sequence, String> {
        let bad = || format!("invalid sequence '{text}' (expected ace/adaptive/durable/12.0/7.3)");
        let mut fields = text.split('/');
        let mut field = || fields.next().ok_or_else(bad);
        if field()? != "ace" {
            return Err(bad());
        }
        let (setting, durable) = (field()?, field()? == "durable");
        let setting = SETTINGS.into_iter().find(|known| *known == setting).ok_or_else(bad)?;
        let step = |text: &str| {
            let (letter, sync) = text.split_once('.').ok_or_else(bad)?;
            Ok(Step { letter: letter.parse().map_err(|_| bad())?, sync: sync.parse().map_err(|_| bad())? })
        };
        let steps = fields.map(step).collect::<Result<_, String>>()?;
        Ok(Sequence { setting, durable, steps })
    }
}

/// The volumes and mount options of sequences; the first is the default of a mount.
pub const SETTINGS: [&str; 10] = [
    "adaptive",
    "ordered",
    "single",
    "writeback",
    "journal",
    "selective",
    "ext3",
    "generations",
    "intent-log",
    "none",
];

/// The workload with a setting's volume and options.
fn volume_of(setting: &str) -> FileWorkload {
    if setting == "none" {
        return FileWorkload { threads: Vec::new(), ..workloads::without_journal(random::mix) };
    }
    let like = match setting {
        "adaptive" => "adaptive-mix",
        "ordered" => "mix",
        "single" => "single-mix",
        "writeback" => "writeback-mix",
        "journal" => "journal-mix",
        "selective" => "selective-mix",
        "ext3" => "mix-ext3",
        "generations" => "gen-mix",
        "intent-log" => "gen-along-mix",
        other => unreachable!("no setting {other}"),
    };
    FileWorkload { threads: Vec::new(), ..workloads::find(like).expect("a workload of this name") }
}

/// FileOps without extents have no blocks that are reserved and not written, as in Linux.
fn is_there(op: &Op, setting: &str) -> bool {
    setting != "ext3" || !matches!(op, Op::Reserve { .. } | Op::ZeroRange { .. })
}

/// A sequence's operations: those before the recording, and those in it.
struct Script {
    before: Vec<Op>,
    ops: Vec<Op>,
}

/// The folder that always exists.
const FOLDER: &str = "/A";

fn first_state() -> State {
    let mut state = State::new(FIRST_FILE);
    state.apply(&Op::Mkdir { path: FOLDER.into(), perm: 0o755 }).expect("an empty volume takes a folder");
    state
}

const FIRST_FILE: u32 = 2;

impl Sequence {
    /// `None` if the operations cannot follow each other, or one of them has fewer ways to sync.
    fn write(&self, letters: &[Letter]) -> Option<Script> {
        let mut writer = Writer::new(first_state());
        let mut before = vec![Op::Mkdir { path: FOLDER.into(), perm: 0o755 }];
        for (n, step) in self.steps.iter().enumerate() {
            let letter = letters.get(step.letter)?;
            if !writer.prepare(letter) {
                return None;
            }
            if n == 0 && self.durable {
                before.append(&mut writer.ops);
            }
            if !writer.push(letter.op.clone()) {
                return None;
            }
            if let Some(nth) = step.sync.checked_sub(1) {
                writer.push(writer.syncs(&letter.op).into_iter().nth(nth)?);
            }
        }
        Some(Script { before, ops: writer.ops })
    }

    /// Every sequence of `length` operations in a setting that ends in a sync: those with `first`
    /// as their first operation and this preparation, so that threads can share the work.
    fn all_from(setting: &'static str, length: usize, first: usize, durable: bool) -> Vec<Sequence> {
        let letters = letters();
        let mut open = vec![Sequence { setting, durable, steps: Vec::new() }];
        for n in 0..length {
            let last = n + 1 == length;
            let mut next = Vec::new();
            for sequence in open {
                for letter in if n == 0 { first..first + 1 } else { 0..letters.len() } {
                    if !is_there(&letters[letter].op, setting) {
                        continue;
                    }
                    for sync in usize::from(last).. {
                        let mut longer = sequence.clone();
                        longer.steps.push(Step { letter, sync });
                        if longer.write(&letters).is_none() {
                            break;
                        }
                        next.push(longer);
                    }
                }
            }
            open = next;
        }
        open
    }

    /// A random sequence of `length` operations.
    fn random(setting: &'static str, length: usize, letters: &[Letter], rng: &mut Rng) -> Sequence {
        const WAYS: u64 = 6;
        loop {
            let steps = (1..=length).map(|n| {
                let least = u64::from(n == length);
                let letter = rng.below(letters.len() as u64) as usize;
                Step { letter, sync: (least + rng.below(WAYS)) as usize }
            });
            let steps = steps.collect();
            let sequence = Sequence { setting, durable: rng.one_in(2), steps };
            let is_there = sequence.steps.iter().all(|step| is_there(&letters[step.letter].op, setting));
            if is_there && sequence.write(letters).is_some() {
                return sequence;
            }
        }
    }
}

/// A sequence under the explorer. Within a setting, sequences differ only in their operations, so a
/// state that one of them has shown need not be examined again in another
/// (`explorer::ExploredStates`): all have the same clock, and sequences with a common beginning
/// leave the same devices.
pub struct AceWorkload {
    name: String,
    volume: FileWorkload,
    script: Script,
}

impl AceWorkload {
    /// Errors: a text that is not a sequence, or a sequence that is impossible.
    pub fn find(name: &str) -> Result<AceWorkload, String> {
        let sequence: Sequence = name.parse()?;
        AceWorkload::of(&sequence, &volume_of(sequence.setting), &letters())
            .ok_or_else(|| format!("the operations of {name} do not go together"))
    }

    /// With an ordering rule left out.
    pub fn without(mut self, fault: Fault) -> AceWorkload {
        self.volume.fault = Some(fault);
        self
    }

    fn of(sequence: &Sequence, volume: &FileWorkload, letters: &[Letter]) -> Option<AceWorkload> {
        let script = sequence.write(letters)?;
        Some(AceWorkload { name: sequence.to_string(), volume: volume.clone(), script })
    }
}

/// The times of sequences, and of the recovery of their crashes: in the past, since e2fsck dislikes
/// the future, and always the same, so that common parts of sequences leave the same devices.
const RECORDED_AT: u32 = 1_600_000_000;
const RECOVERED_AT: u32 = RECORDED_AT + 86_400;

fn perform(driver: &mut Driver, op: &Op) -> Done {
    let Op::Commit { ops, durable } = op else { return driver.run(op.clone()) };
    let end = if *durable { End::Commit } else { End::CommitOrdered };
    driver.transaction(|tx| {
        ops.iter().try_for_each(|op| tx.run(op.clone()))?;
        Ok(end)
    })
}

impl Subject for AceWorkload {
    type Run = History;
    type Tree = Tree;

    fn name(&self) -> &str {
        &self.name
    }

    fn record(&self, _seed: u64) -> Result<(Recording, History), String> {
        let _clock = SimulatedClock::start(RECORDED_AT);
        let (device, volume) = self.volume.start()?;
        let mut driver = Driver::new(&volume, device.clone(), "", FIRST_FILE);
        let mut work = || -> Done {
            self.script.before.iter().try_for_each(|op| perform(&mut driver, op))?;
            driver.sync()?;
            device.restart_recording();
            self.script.ops.iter().try_for_each(|op| perform(&mut driver, op))
        };
        work().map_err(|e| format!("{}: {e}", self.name))?;
        let recording = device.recording();
        let history = self.volume.history(vec![driver.finish()]);
        // Without this, actions that wait for a commit would keep the engine and its threads alive
        // after the drop: thousands of them in an enumeration.
        volume.poison("its run is over");
        Ok((recording, history))
    }

    fn moment(&self, run: &History, time: Time) -> u64 {
        run.moment(time)
    }

    fn recover(&self, image: &Image) -> Result<Recovered<Tree>, String> {
        let _clock = SimulatedClock::start(RECOVERED_AT);
        self.volume.recover(image)
    }

    fn judge(&self, run: &History, time: Time, tree: &Tree) -> Result<(), String> {
        self.volume.judge(run, time, tree)
    }

    fn promises_from(&self, recording: &Recording) -> usize {
        self.volume.promises_from(recording)
    }

    fn inspect(&self, image: &Image) -> Result<(), String> {
        self.volume.inspect(image)
    }

    fn second_opinion(&self, image: &Image, ours: &Tree) -> Option<Result<Tree, String>> {
        self.volume.second_opinion(image, ours)
    }

    fn story(&self, run: &History, time: Time) -> String {
        run.story(time)
    }

    fn difference(&self, ours: &Tree, theirs: &Tree) -> String {
        ours.difference(theirs)
    }
}

/// The sequences to explore, and the effort for each.
#[derive(Debug, Clone, Copy)]
pub struct Bounds {
    pub setting: &'static str,
    /// Operations of a sequence.
    pub length: usize,
    /// Picks this number of random sequences instead of all.
    pub sample: Option<u64>,
    /// Prints its progress now and then.
    pub progress: bool,
    /// A rule to leave out, to see whether the explorer notices.
    pub fault: Option<Fault>,
    pub plan: Plan,
}

impl Bounds {
    pub fn new(setting: &'static str, length: usize, seed: u64) -> Bounds {
        let plan = Plan {
            seed,
            effort: Effort { exhaustive: 2, per_point: 6, noise: false },
            nested_one_in: 0,
            inspect_one_in: 40,
            second_one_in: 0,
            rotten_one_in: 0,
            states: 10_000,
            threads: 1,
            progress: false,
            ..Plan::quick()
        };
        Bounds { setting, length, sample: None, progress: false, fault: None, plan }
    }
}

/// The result of many sequences; its time is that of the threads, divided by their number.
#[derive(Debug, Clone, Default)]
pub struct Outcome {
    pub sequences: u64,
    pub summary: Summary,
}

impl Outcome {
    pub fn row(&self) -> String {
        let seconds = self.summary.elapsed.as_secs_f64();
        format!(
            "{:<22}{:>9} sequences{:>9} states{:>9} recovered{:>9} known{:>8} by e2fsck{:>7} by the kernel{:>4} findings{:>9.1} s{:>8.0} states/s",
            self.summary.workload,
            self.sequences,
            self.summary.states,
            self.summary.recovered,
            self.summary.known,
            self.summary.inspected,
            self.summary.second_opinions,
            self.summary.findings.len(),
            seconds,
            self.summary.states as f64 / seconds.max(0.001),
        )
    }

    fn add(&mut self, other: Outcome) {
        self.sequences += other.sequences;
        let (sum, one) = (&mut self.summary, other.summary);
        sum.events += one.events;
        sum.points += one.points;
        sum.states += one.states;
        sum.recovered += one.recovered;
        sum.known += one.known;
        sum.nested += one.nested;
        sum.inspected += one.inspected;
        sum.second_opinions += one.second_opinions;
        sum.findings.extend(one.findings);
        sum.elapsed += one.elapsed;
    }
}

/// The exploration of many sequences, in parts.
struct Enumeration<'a> {
    bounds: &'a Bounds,
    resume: Option<&'a Resume>,
    letters: Vec<Letter>,
    volume: FileWorkload,
    parts: u64,
    started: Instant,
    total: Mutex<Outcome>,
    stop: AtomicBool,
}

impl<'a> Enumeration<'a> {
    /// The number of random sequences in a part.
    const DRAWN_AT_ONCE: u64 = 16;

    fn new(bounds: &'a Bounds, resume: Option<&'a Resume>) -> Enumeration<'a> {
        let letters = letters();
        let parts = match bounds.sample {
            Some(count) => count.div_ceil(Self::DRAWN_AT_ONCE),
            None => 2 * letters.len() as u64,
        };
        Enumeration {
            bounds,
            resume,
            letters,
            volume: FileWorkload { fault: bounds.fault, ..volume_of(bounds.setting) },
            parts,
            started: Instant::now(),
            total: Mutex::default(),
            stop: AtomicBool::new(false),
        }
    }

    /// The sequences of a part: those with a common beginning, or some random ones.
    fn part(&self, number: u64) -> Vec<Sequence> {
        let Bounds { setting, length, sample, plan, .. } = *self.bounds;
        if sample.is_none() {
            return Sequence::all_from(setting, length, number as usize / 2, number % 2 == 1);
        }
        let mut rng = Rng::of(&[plan.seed, number]);
        (0..Self::DRAWN_AT_ONCE).map(|_| Sequence::random(setting, length, &self.letters, &mut rng)).collect()
    }

    /// The result of a part, and whether it is complete.
    fn explore_part(&self, number: u64) -> Result<(Outcome, bool), String> {
        let began = Instant::now();
        let known = ExploredStates::of_many();
        let mut outcome = Outcome::default();
        let mut is_whole = true;
        for sequence in self.part(number) {
            is_whole = !self.stop.load(Relaxed) && outcome.summary.findings.len() < self.bounds.plan.findings;
            if !is_whole {
                break;
            }
            let workload = AceWorkload::of(&sequence, &self.volume, &self.letters)
                .expect("sequences are made of what goes together");
            let summary = explore_more(&workload, &self.bounds.plan, &known)?;
            outcome.add(Outcome { sequences: 1, summary });
        }
        outcome.summary.elapsed = began.elapsed();
        Ok((outcome, is_whole))
    }

    /// Explores one part after the other.
    fn work(&self, next: &AtomicU64) -> Result<(), String> {
        loop {
            let number = next.fetch_add(1, Relaxed);
            if number >= self.parts || self.stop.load(Relaxed) {
                return Ok(());
            }
            let outcome = match self.resume.and_then(|resume| resume.outcome(self.bounds, number)) {
                Some(earlier) => earlier.clone(),
                None => {
                    self.progress(number);
                    let (outcome, is_whole) = self.explore_part(number)?;
                    if let (Some(resume), true) = (self.resume, is_whole) {
                        resume.add(self.bounds, number, &outcome)?;
                    }
                    outcome
                }
            };
            let mut total = self.total.lock();
            total.add(outcome);
            if total.summary.findings.len() >= self.bounds.plan.findings {
                self.stop.store(true, Relaxed);
            }
        }
    }

    /// A line on standard error each minute, since all sequences of two operations take long.
    fn progress(&self, begun: u64) {
        static SHOWN: AtomicU64 = AtomicU64::new(0);
        let minute = self.started.elapsed().as_secs() / 60;
        if !self.bounds.progress || SHOWN.swap(minute, Relaxed) == minute {
            return;
        }
        let total = self.total.lock();
        eprintln!(
            "ace {} of {}: {begun} of {} parts, {} sequences, {} states, {} known, {} findings, {minute} min",
            self.bounds.setting,
            self.bounds.length,
            self.parts,
            total.sequences,
            total.summary.states,
            total.summary.known,
            total.summary.findings.len()
        );
    }
}

/// Explores every sequence within the bounds, on `threads` threads, except for the parts that
/// `resume` has; adds each finished part to it.
fn explore_all(bounds: &Bounds, threads: usize, resume: Option<&Resume>) -> Result<Outcome, String> {
    let enumeration = Enumeration::new(bounds, resume);
    let next = AtomicU64::new(0);
    let failure = Mutex::new(None);
    let threads = threads.max(1);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                if let Err(why) = enumeration.work(&next) {
                    enumeration.stop.store(true, Relaxed);
                    *failure.lock() = Some(why);
                }
            });
        }
    });
    if let Some(why) = failure.into_inner() {
        return Err(why);
    }
    let mut outcome = enumeration.total.into_inner();
    outcome.summary.workload = format!("ace {} of {}", bounds.setting, bounds.length);
    outcome.summary.elapsed /= threads as u32;
    Ok(outcome)
}

/// Explores (see `explore_all`), prints the row and the findings, and returns the outcome.
pub fn report_all(bounds: &Bounds, threads: usize, resume: Option<&Resume>) -> Result<Outcome, String> {
    let outcome = explore_all(bounds, threads, resume)?;
    println!("{}", outcome.row());
    outcome.summary.findings.iter().for_each(Finding::print);
    Ok(outcome)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_sequences_round_trip() {
        let letters = letters();
        let mut rng = Rng::new(1);
        for length in 1..=3 {
            let sequence = Sequence::random("selective", length, &letters, &mut rng);
            assert_eq!(sequence.to_string().parse::<Sequence>().unwrap(), sequence);
        }
        assert!("ace/nothing/fresh/1.1".parse::<Sequence>().is_err());
        assert!("ace/ordered/fresh/1".parse::<Sequence>().is_err());
    }

    #[test]
    fn all_of_one_operation_end_in_a_sync_and_differ() {
        let all: Vec<String> = (0..letters().len())
            .flat_map(|first| Sequence::all_from("ordered", 1, first, true))
            .map(|sequence| sequence.to_string())
            .collect();
        assert!(all.len() > 2 * letters().len(), "{}", all.len());
        assert!(all.iter().all(|name| !name.ends_with(".0")));
        let distinct: std::collections::HashSet<_> = all.iter().collect();
        assert_eq!(distinct.len(), all.len());
    }
}
