//! Every field of every structure, set to five kinds of value on eight kinds of volume: `xact
//! check` and `e2fsck -fn` must agree whether the volume is sound.
//!
//! `debugfs` sets the fields of superblock, group descriptors and inodes, and corrects the
//! checksums. In other blocks of metadata ([`Structure::Block`]) every word at the head and at the
//! end is a field.
//!
//! A difference without a reason in [`expected`] is a finding, and so is a reason that no
//! difference needs.

pub mod classes;
pub mod expected;
mod structures;
mod volumes;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;
use xact_types::Error;

use crate::device::SimDevice;
use crate::image::Image;
use crate::resume::LineFile;
use crate::rng::Rng;
use crate::tools;
use classes::Classes;
use expected::{Direction, Expected};
use structures::Setter;
pub use structures::{Structure, VALUES};
pub use volumes::KINDS;
use volumes::SoundVolume;

/// One field of one structure, set to one kind of value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Case {
    volume: usize,
    structure: usize,
    field: usize,
    value: usize,
}

/// The result of a case.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// `debugfs` cannot set this, or the field has the value already.
    Skipped,
    Sound,
    /// Both find damage; the classes of problems that e2fsck reports.
    Damaged {
        classes: BTreeSet<String>,
    },
    Differ {
        direction: Direction,
        /// The first problem that one of them reports.
        what: String,
    },
}

/// All volumes and their cases.
pub struct Sweep {
    volumes: Vec<SoundVolume>,
    setter: Setter,
    cases: Vec<Case>,
}

/// Cases of one field that differ.
#[derive(Debug)]
struct Difference {
    count: u64,
    example: String,
    /// Index of the reason in [`expected::ALL`]; `None` if one case has none.
    reason: Option<usize>,
}

/// A damaged volume, and what e2fsck says about it: `Err` with its findings.
type Damaged = (Image, Result<(), String>);

/// Counts and differences of a run.
#[derive(Debug, Default)]
pub struct Summary {
    pub tried: u64,
    pub skipped: u64,
    pub sound: u64,
    /// Volumes that both find damaged, by class of problem.
    classes: Classes,
    /// By structure, field and direction.
    differences: BTreeMap<(String, String, Direction), Difference>,
    used: BTreeSet<usize>,
}

impl Sweep {
    /// Makes the volumes of the kinds named; of all if none is.
    pub fn new(kinds: &[String]) -> Result<Sweep, String> {
        if let Some(name) = kinds.iter().find(|name| !KINDS.iter().any(|kind| kind.name == **name)) {
            let names: Vec<&str> = KINDS.iter().map(|kind| kind.name).collect();
            return Err(format!("no kind of volume is called {name}; there are: {}", names.join(" ")));
        }
        let chosen = KINDS.iter().filter(|kind| kinds.is_empty() || kinds.iter().any(|k| k == kind.name));
        let volumes = chosen.map(SoundVolume::make).collect::<Result<Vec<_>, _>>()?;
        let setter = Setter::new(&volumes[0])?;
        let mut cases = Vec::new();
        for (volume, of) in volumes.iter().enumerate() {
            for (structure, it) in of.structures.iter().enumerate() {
                for field in 0..setter.list(it).len() {
                    cases.extend((0..VALUES.len()).map(|value| Case { volume, structure, field, value }));
                }
            }
        }
        Ok(Sweep { volumes, setter, cases })
    }

    pub fn len(&self) -> usize {
        self.cases.len()
    }

    pub fn is_empty(&self) -> bool {
        self.cases.is_empty()
    }

    /// `4k/group-0/flags/ones`.
    fn name(&self, case: Case) -> String {
        let volume = &self.volumes[case.volume];
        let structure = &volume.structures[case.structure];
        let field = &self.setter.list(structure)[case.field];
        format!("{}/{structure}/{field}/{}", volume.kind, VALUES[case.value])
    }

    /// Tries the case of this name, and returns the outcome with what both programs say.
    pub fn replay(&self, name: &str) -> Result<String, String> {
        let case = self.cases.iter().find(|case| self.name(**case) == name);
        let case = *case.ok_or_else(|| format!("no case is called {name}"))?;
        let Some(tried) = self.damaged(case)? else { return Ok("it cannot be set".into()) };
        let theirs = tried.1.err().unwrap_or_else(|| "clean".into());
        let ours = verdict(&tried.0).err().unwrap_or_else(|| "clean".into());
        Ok(format!("e2fsck: {theirs}\nxact:   {ours}"))
    }

    /// Tries all cases, or every `every`th, on two threads.
    pub fn run(&self, every: usize, resume: Option<&Resume>) -> Result<Summary, String> {
        const THREADS: usize = 2;
        let chosen: Vec<Case> = match every {
            1 => self.cases.clone(),
            _ => {
                let pick = |some: &[Case]| *Rng::of(&[name_sum(&self.name(some[0]))]).pick(some);
                self.cases.chunks(every).map(pick).collect()
            }
        };
        let next = AtomicUsize::new(0);
        let summary = Mutex::new(Summary::default());
        let failed = Mutex::new(None);
        std::thread::scope(|scope| {
            for _ in 0..THREADS {
                scope.spawn(|| {
                    while let Some(&case) = chosen.get(next.fetch_add(1, Ordering::Relaxed)) {
                        let name = self.name(case);
                        let outcome = match resume.and_then(|resume| resume.earlier.get(&name)) {
                            Some(known) => Ok(known.clone()),
                            None => self.outcome(case).and_then(|outcome| {
                                resume.map_or(Ok(()), |resume| resume.add(&name, &outcome))?;
                                Ok(outcome)
                            }),
                        };
                        match outcome {
                            Ok(outcome) => summary.lock().add(&name, &outcome),
                            Err(why) => {
                                *failed.lock() = Some(format!("{name}: {why}"));
                                return;
                            }
                        }
                    }
                });
            }
        });
        match failed.into_inner() {
            Some(why) => Err(why),
            None => Ok(summary.into_inner()),
        }
    }

    fn outcome(&self, case: Case) -> Result<Outcome, String> {
        let Some((image, theirs)) = self.damaged(case)? else { return Ok(Outcome::Skipped) };
        Ok(match (verdict(&image), theirs) {
            (Ok(()), Ok(())) => Outcome::Sound,
            (Err(_), Err(what)) => Outcome::Damaged { classes: classes::of_output(&what) },
            (Ok(()), Err(what)) => Outcome::Differ { direction: Direction::Overlooked, what },
            (Err(what), Ok(())) => Outcome::Differ { direction: Direction::FalseAlarm, what },
        })
    }

    /// The volume with the field set, and what e2fsck says; `None` if nothing is changed.
    fn damaged(&self, case: Case) -> Result<Option<Damaged>, String> {
        let volume = &self.volumes[case.volume];
        let seed = name_sum(&self.name(case));
        tools::with_file(&volume.image, |file| {
            let structure = &volume.structures[case.structure];
            let value = (case.field, case.value);
            let is_set = self.setter.set(&self.volumes, volume, structure, value, seed, file)?;
            let image = file.take().map_err(|e| format!("reading the image: {e}"))?;
            if !is_set {
                return Ok(None);
            }
            let theirs = tools::e2fsck_finds(file.path());
            Ok(Some((image, theirs)))
        })
    }
}

/// The verdict of `xact check`: `Err` with the first problems.
fn verdict(image: &Image) -> Result<(), String> {
    let checked =
        catch_unwind(AssertUnwindSafe(|| xact_check::check(SimDevice::new(image.clone()), &mut |_, _| ())));
    match checked {
        Err(_) => panic!("xact check panics"),
        Ok(Ok(report)) if report.is_sound() => Ok(()),
        Ok(Ok(report)) => Err(report.problems.iter().take(4).map(|p| format!("{p}; ")).collect()),
        Ok(Err(Error::Unsupported(features))) => Err(format!("unsupported: {features}")),
        Ok(Err(error)) => Err(error.to_string()),
    }
}

/// The same for the same name, forever.
fn name_sum(name: &str) -> u64 {
    name.bytes()
        .fold(0xcbf2_9ce4_8422_2325, |sum, byte| (sum ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3))
}

impl Summary {
    fn add(&mut self, name: &str, outcome: &Outcome) {
        match outcome {
            Outcome::Skipped => self.skipped += 1,
            Outcome::Sound => {
                self.tried += 1;
                self.sound += 1;
            }
            Outcome::Damaged { classes } => {
                self.tried += 1;
                self.classes.add(classes);
            }
            Outcome::Differ { direction, what } => {
                self.tried += 1;
                let reason =
                    expected::ALL.iter().position(|expected| expected.covers(name, *direction, what));
                self.used.extend(reason);
                let parts: Vec<&str> = name.split('/').collect();
                let key = (parts[1].to_owned(), parts[2].to_owned(), *direction);
                let example = || format!("{name}: {}", what.chars().take(240).collect::<String>());
                let first = || Difference { count: 0, example: example(), reason };
                let found = self.differences.entry(key).or_insert_with(first);
                found.count += 1;
                if found.reason.is_some() && reason.is_none() {
                    (found.example, found.reason) = (example(), None);
                }
            }
        }
    }

    /// Prints the differences by field, and returns the number without a reason.
    pub fn print(&self) -> usize {
        for ((structure, field, direction), found) in &self.differences {
            let Difference { count, example, reason } = found;
            let reason = reason.map_or("NO REASON", |index| expected::ALL[index].reason);
            println!("{count:5} {structure} {field}: {direction}: {reason}\n      {example}");
        }
        let differ: u64 = self.differences.values().map(|found| found.count).sum();
        println!(
            "{} cases tried, {} cannot be set; {} sound, {differ} differ",
            self.tried, self.skipped, self.sound
        );
        let (covered, enough) = (self.classes.covered(), classes::ENOUGH);
        println!(
            "{covered} classes of e2fsck's messages have at least {enough} volumes that both find damaged"
        );
        self.without_reason()
    }

    /// Volumes that both programs find damaged, by class of problem.
    pub fn classes(&self) -> &Classes {
        &self.classes
    }

    /// Fields of structures with a difference that has no reason.
    pub fn without_reason(&self) -> usize {
        self.differences.values().filter(|found| found.reason.is_none()).count()
    }

    /// Reasons that no difference of a whole sweep needs.
    pub fn unused_reasons(&self) -> Vec<&'static Expected> {
        (0..).zip(expected::ALL).filter(|(index, _)| !self.used.contains(index)).map(|(_, e)| e).collect()
    }
}

/// A file of the finished cases, so that a sweep can be done in several runs: a line for each, its
/// name and its outcome. The user makes sure that the code is the same in all runs.
pub struct Resume {
    earlier: HashMap<String, Outcome>,
    file: LineFile,
}

impl Resume {
    /// Errors: a file that cannot be written, or has other contents.
    pub fn open(path: &Path) -> Result<Resume, String> {
        let (file, lines) = LineFile::open(path)?;
        let mut earlier = HashMap::new();
        for line in &lines {
            let (name, outcome) =
                read(line).ok_or_else(|| format!("{}: '{line}' names no case", path.display()))?;
            earlier.insert(name, outcome);
        }
        Ok(Resume { earlier, file })
    }

    fn add(&self, name: &str, outcome: &Outcome) -> Result<(), String> {
        let text = match outcome {
            Outcome::Skipped => "skipped".to_owned(),
            Outcome::Sound => "sound".to_owned(),
            Outcome::Damaged { classes } => {
                format!("damaged {}", classes.iter().cloned().collect::<Vec<_>>().join("|"))
            }
            Outcome::Differ { direction, what } => format!("{direction} {}", what.replace('\n', " ")),
        };
        self.file.add(&format!("{name} {text}"))
    }
}

fn read(line: &str) -> Option<(String, Outcome)> {
    let (name, rest) = line.split_once(' ')?;
    let (first, what) = rest.split_once(' ').unwrap_or((rest, ""));
    let differ = |direction| Outcome::Differ { direction, what: what.to_owned() };
    let outcome = match first {
        "skipped" => Outcome::Skipped,
        "sound" => Outcome::Sound,
        "damaged" => Outcome::Damaged {
            classes: what.split('|').filter(|class| !class.is_empty()).map(str::to_owned).collect(),
        },
        "overlooked" => differ(Direction::Overlooked),
        "false-alarm" => differ(Direction::FalseAlarm),
        _ => return None,
    };
    Some((name.to_owned(), outcome))
}
