//! A file of the finished parts of an exploration, so that it can be done in several runs of the
//! program.
//!
//! It has a line for each part of an enumeration, with its result:
//! `adaptive 2 1 17 1384 9021 4021 12043 301 0 4.250 REPLAY…` is part 17 of the sequences of 2
//! operations in the setting `adaptive` with seed 1: 1384 sequences, 9021 states examined by 4021
//! recoveries, 12,043 known, 301 by e2fsck, none by the kernel, in 4.25 s; and the findings. And
//! one for each run of a workload: `run long wrap 3 352 1500 3160 573 11 5.500 REPLAY…` is the long
//! one of `wrap` with seed 3: 352 writes and flushes, 1500 states, 3160 crashes of recoveries, 573
//! by e2fsck, 11 by the kernel. The user makes sure that the code is the same in all runs.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::Path;
use std::str::{FromStr, SplitWhitespace};
use std::time::Duration;

use parking_lot::Mutex;

use crate::ace::{Bounds, Outcome};
use crate::explorer::{Finding, Plan, Summary};

/// Setting, length, seed and number.
type Part = (String, usize, u64, u64);

/// `long` or `quick`, workload and seed.
type Run = (String, String, u64);

fn run_of(plan: &Plan, workload: &str) -> Run {
    let how = if plan.is_long() { "long" } else { "quick" };
    (how.to_owned(), workload.to_owned(), plan.seed)
}

fn part_of(bounds: &Bounds, number: u64) -> Part {
    (bounds.setting.to_owned(), bounds.length, bounds.plan.seed, number)
}

/// The results of earlier runs, and a file for those of this one.
pub struct Resume {
    earlier: HashMap<Part, Outcome>,
    runs: HashMap<Run, Summary>,
    file: LineFile,
}

/// A file to which each finished part adds a line.
pub(crate) struct LineFile(Mutex<File>);

impl LineFile {
    /// Opens or creates it, and returns its lines. A line without an end is from a run that was
    /// killed: it does not count, and is removed.
    pub(crate) fn open(path: &Path) -> Result<(LineFile, Vec<String>), String> {
        let with_path = |e: io::Error| format!("{}: {e}", path.display());
        let mut options = File::options();
        let mut file =
            options.read(true).write(true).create(true).truncate(false).open(path).map_err(with_path)?;
        let mut text = String::new();
        file.read_to_string(&mut text).map_err(with_path)?;
        text.truncate(text.rfind('\n').map_or(0, |end| end + 1));
        file.set_len(text.len() as u64).and_then(|()| file.seek(SeekFrom::End(0))).map_err(with_path)?;
        Ok((LineFile(Mutex::new(file)), text.lines().map(str::to_owned).collect()))
    }

    pub(crate) fn add(&self, line: &str) -> Result<(), String> {
        let written = self.0.lock().write_all(format!("{line}\n").as_bytes());
        written.map_err(|e| format!("noting what is done: {e}"))
    }
}

impl Resume {
    /// Errors: a file that cannot be written, or has other contents.
    pub fn open(path: &Path) -> Result<Resume, String> {
        let (file, lines) = LineFile::open(path)?;
        let (mut earlier, mut runs) = (HashMap::new(), HashMap::new());
        for line in &lines {
            if let Some((run, summary)) = line.strip_prefix("run ").and_then(read_run) {
                runs.insert(run, summary);
            } else if let Some((part, outcome)) = read(line) {
                earlier.insert(part, outcome);
            } else {
                return Err(format!("{}: '{line}' names no part", path.display()));
            }
        }
        Ok(Resume { earlier, runs, file })
    }

    /// The result of a workload by this plan in an earlier run.
    pub fn run(&self, workload: &str, plan: &Plan) -> Option<&Summary> {
        self.runs.get(&run_of(plan, workload))
    }

    /// Adds a finished run.
    pub fn add_run(&self, plan: &Plan, summary: &Summary) -> Result<(), String> {
        let Summary { workload, events, states, nested, inspected, second_opinions, elapsed, .. } = summary;
        let ((how, _, seed), seconds) = (run_of(plan, workload), elapsed.as_secs_f64());
        let run = format!("run {how} {workload} {seed} {events}");
        self.add_line(format!("{run} {states} {nested} {inspected} {second_opinions} {seconds:.3}"), summary)
    }

    fn add_line(&self, mut line: String, summary: &Summary) -> Result<(), String> {
        for finding in &summary.findings {
            line.push(' ');
            line.push_str(&finding.replay);
        }
        self.file.add(&line)
    }

    /// The result of a part in an earlier run.
    pub(crate) fn outcome(&self, bounds: &Bounds, number: u64) -> Option<&Outcome> {
        self.earlier.get(&part_of(bounds, number))
    }

    /// Adds a finished part.
    pub(crate) fn add(&self, bounds: &Bounds, number: u64, outcome: &Outcome) -> Result<(), String> {
        let (setting, length, seed, number) = part_of(bounds, number);
        let Summary { states, recovered, known, inspected, second_opinions, elapsed, .. } = outcome.summary;
        let (sequences, seconds) = (outcome.sequences, elapsed.as_secs_f64());
        let part = format!("{setting} {length} {seed} {number} {sequences}");
        self.add_line(
            format!("{part} {states} {recovered} {known} {inspected} {second_opinions} {seconds:.3}"),
            &outcome.summary,
        )
    }
}

fn next<T: FromStr>(words: &mut SplitWhitespace<'_>) -> Option<T> {
    words.next()?.parse().ok()
}

/// The findings in the rest of a line.
fn findings(words: &mut SplitWhitespace<'_>) -> Vec<Finding> {
    let found =
        |replay: &str| Finding { replay: replay.to_owned(), what: "in an earlier sitting".to_owned() };
    words.map(found).collect()
}

/// Parses the line after `run`.
fn read_run(line: &str) -> Option<(Run, Summary)> {
    let words = &mut line.split_whitespace();
    let run: Run = (next(words)?, next(words)?, next(words)?);
    let mut summary = Summary {
        workload: run.1.clone(),
        events: next(words)?,
        states: next(words)?,
        nested: next(words)?,
        inspected: next(words)?,
        second_opinions: next(words)?,
        elapsed: Duration::try_from_secs_f64(next(words)?).ok()?,
        ..Summary::default()
    };
    summary.findings = findings(words);
    Some((run, summary))
}

fn read(line: &str) -> Option<(Part, Outcome)> {
    let words = &mut line.split_whitespace();
    let part = (next(words)?, next(words)?, next(words)?, next(words)?);
    let sequences = next(words)?;
    let mut summary = Summary {
        states: next(words)?,
        recovered: next(words)?,
        known: next(words)?,
        inspected: next(words)?,
        second_opinions: next(words)?,
        elapsed: Duration::try_from_secs_f64(next(words)?).ok()?,
        ..Summary::default()
    };
    summary.findings = findings(words);
    Some((part, Outcome { sequences, summary }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_done_is_known_in_the_next_sitting() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("sittings");
        let bounds = Bounds::new("ordered", 2, 1);
        let finding = Finding { replay: "ace/ordered/fresh/1.1:1:00000000:p0:".into(), what: String::new() };
        let summary = Summary {
            states: 20,
            known: 30,
            elapsed: Duration::from_millis(1500),
            findings: vec![finding.clone()],
            ..Summary::default()
        };
        let first = Resume::open(&path).unwrap();
        assert!(first.outcome(&bounds, 7).is_none());
        first.add(&bounds, 7, &Outcome { sequences: 10, summary: summary.clone() }).unwrap();
        let run = Summary { workload: "wrap".to_owned(), events: 5, nested: 6, ..summary };
        let plan = Plan { seed: 3, ..Plan::thorough() };
        first.add_run(&plan, &run).unwrap();
        std::fs::OpenOptions::new().append(true).open(&path).unwrap().write_all(b"ordered 2 1 8 4").unwrap();

        for _ in 0..2 {
            let next = Resume::open(&path).unwrap();
            let known = next.outcome(&bounds, 7).unwrap();
            assert_eq!((known.sequences, known.summary.states, known.summary.known), (10, 20, 30));
            assert_eq!(known.summary.elapsed, Duration::from_millis(1500));
            assert_eq!(known.summary.findings[0].replay, finding.replay);
            assert!(next.outcome(&bounds, 8).is_none());
            assert!(next.outcome(&Bounds::new("ordered", 3, 1), 7).is_none());
            let run = next.run("wrap", &plan).unwrap();
            assert_eq!((run.events, run.states, run.nested, run.findings.len()), (5, 20, 6, 1));
            let others = [Plan { seed: 2, ..plan }, Plan { seed: 3, ..Plan::quick() }];
            assert!(others.iter().all(|other| next.run("wrap", other).is_none()));
            assert!(next.run("wra", &plan).is_none());
        }
        std::fs::write(&path, "something else\n").unwrap();
        assert!(Resume::open(&path).is_err());
    }
}
