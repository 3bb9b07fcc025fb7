//! Lying devices, which acknowledge calls that did not happen (docs/CRASH.md, "Devices that lie").
//!
//! Each lie happens once, at one call after the other. In the end the tree is right (survived), or
//! an error was reported (reported), or it is wrong and no error was reported (silent). Faults that
//! no file system with ext4's format can notice are silent; all others must not be.

use std::ops::Range;
use std::sync::Arc;

use xact::{Volume, VolumeOptions};
use xact_device::SECTOR_BYTES;
use xact_testkit::blocks::log_range;
use xact_testkit::device::{Call, Fault, Harm, SimDevice};
use xact_testkit::explorer::Subject;
use xact_testkit::files::{FileWorkload, quiet_options};
use xact_testkit::image::Image;
use xact_testkit::model::{History, stamp};
use xact_testkit::tree::Tree;
use xact_testkit::workloads;

/// The kind of bytes that the device lies about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Target {
    Log,
    /// Metadata in its own place.
    Metadata,
    Data,
    Anything,
}

/// A read of file data may begin in a part that is not written.
fn is_data(bytes: &[u8]) -> bool {
    bytes.chunks(SECTOR_BYTES).any(|sector| stamp::read(sector).is_some())
}

fn is_no_data(bytes: &[u8]) -> bool {
    !is_data(bytes)
}

impl Target {
    /// Makes the device lie target them: the ranges of bytes, and their contents.
    fn inject(self, device: &SimDevice, log: &Range<u64>, fault: &Fault) {
        let end = xact_device::BlockDevice::size_bytes(device);
        let inject = |range, holding: fn(&[u8]) -> bool| {
            device.inject_where(Fault { range, ..fault.clone() }, holding);
        };
        match self {
            Target::Log => inject(Some(log.clone()), |_| true),
            Target::Metadata => {
                inject(Some(0..log.start), is_no_data);
                inject(Some(log.end..end), is_no_data);
            }
            Target::Data => inject(None, is_data),
            Target::Anything => inject(None, |_| true),
        }
    }
}

#[derive(Debug, Default)]
struct Outcomes {
    survived: u32,
    reported: u32,
    silent: Vec<String>,
}

impl Outcomes {
    fn count(&mut self, tree: Result<Tree, String>, judge: impl Fn(&Tree) -> Result<(), String>) {
        match tree {
            Err(why) => {
                assert!(!why.is_empty(), "an error without a word");
                self.reported += 1;
            }
            Ok(tree) => match judge(&tree) {
                Ok(()) => self.survived += 1,
                Err(why) => self.silent.push(why),
            },
        }
    }
}

/// A lie while the workload runs; afterwards the device is honest.
fn while_running(workload: &FileWorkload, target: Target, call: Call, harm: Harm) -> Outcomes {
    let mut outcomes = Outcomes::default();
    let log = log_range(&workload.format.make()).unwrap();
    for nth in LIES {
        let fault = Fault { call, range: None, nth, for_good: false, harm };
        let run = workload.run_with(1, |device| target.inject(device, &log, &fault));
        let (device, history) = match run {
            Ok(run) => run,
            // The read data differs from the written data.
            Err(why) => {
                outcomes.silent.push(why);
                continue;
            }
        };
        if device.strikes() == 0 {
            break;
        }
        if history.threads.iter().flat_map(|thread| &thread.steps).any(|step| step.ended.is_none()) {
            outcomes.reported += 1;
            continue;
        }
        let end = device.tick();
        let tree = workload.recover(&device.image()).map(|recovered| recovered.tree);
        outcomes.count(tree, |tree| workload.judge(&history, end, tree));
    }
    outcomes
}

/// A lie while a crashed volume is recovered and read.
fn while_recovering(workload: &FileWorkload, target: Target, call: Call, harm: Harm) -> Outcomes {
    let mut outcomes = Outcomes::default();
    let (device, history) = workload.run_with(1, |_| ()).unwrap();
    let (image, end) = (device.image(), device.tick());
    let (before, log) = (device.recording().base, log_range(&image).unwrap());
    for nth in LIES {
        let device = SimDevice::remembering(image.clone(), before.clone());
        let fault = Fault { call, range: None, nth, for_good: false, harm };
        target.inject(&device, &log, &fault);
        let tree = read(&device, &quiet_options());
        if device.strikes() == 0 {
            break;
        }
        outcomes.count(tree, |tree| workload.judge(&history, end, tree));
    }
    outcomes
}

/// The calls that are lied to, in turn.
const LIES: Range<u64> = 0..24;

fn read(device: &Arc<SimDevice>, options: &VolumeOptions) -> Result<Tree, String> {
    let volume = Volume::open(device.clone(), options).map_err(|e| e.to_string())?;
    let tree = Tree::of_view(&*volume.base())?;
    volume.close().map_err(|e| e.to_string())?;
    Ok(tree)
}

const ASTRAY: Harm = Harm::Astray(64 << 10);

/// The legal results of a lie.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ends {
    /// The tree is right, every time.
    Well,
    /// The tree is right, or an error is reported; each of these at times.
    Reported,
    /// An error is reported, except for the log's last commit, which looks like one that a crash
    /// interrupted.
    ReportedButLast,
    /// At times the fault cannot be noticed.
    Silently,
}

use Ends::{Reported, ReportedButLast, Silently, Well};

/// The table of docs/CRASH.md.
const WRITES: &[(Target, Call, Harm, Ends)] = &[
    (Target::Anything, Call::Flush, Harm::Lie, Well),
    (Target::Log, Call::Write, Harm::Lie, Silently),
    (Target::Log, Call::Write, Harm::Noise, ReportedButLast),
    (Target::Log, Call::Write, ASTRAY, Silently),
    (Target::Data, Call::Write, Harm::Lie, Silently),
    (Target::Data, Call::Write, Harm::Noise, Silently),
    (Target::Data, Call::Write, ASTRAY, Silently),
];

/// In a journal so small that blocks are written home all the time.
const WRITES_HOME: &[(Target, Call, Harm, Ends)] = &[
    (Target::Metadata, Call::Write, Harm::Lie, Silently),
    (Target::Metadata, Call::Write, Harm::Noise, Reported),
];

const READS: &[(Target, Call, Harm, Ends)] = &[
    (Target::Log, Call::Read, Harm::Error, Reported),
    (Target::Log, Call::Read, Harm::Noise, Reported),
    (Target::Log, Call::Read, Harm::Stale, Silently),
    (Target::Log, Call::Read, ASTRAY, Silently),
    (Target::Metadata, Call::Read, Harm::Error, Reported),
    (Target::Metadata, Call::Read, Harm::Noise, Reported),
    (Target::Metadata, Call::Read, Harm::Stale, Silently),
    (Target::Metadata, Call::Read, ASTRAY, Reported),
    (Target::Data, Call::Read, Harm::Error, Reported),
    (Target::Data, Call::Read, Harm::Noise, Silently),
    (Target::Data, Call::Read, ASTRAY, Silently),
];

fn check(
    table: &[(Target, Call, Harm, Ends)],
    workload: &str,
    run: fn(&FileWorkload, Target, Call, Harm) -> Outcomes,
) {
    let workload = workloads::find(workload).unwrap();
    let mut wrong = Vec::new();
    for &(target, call, harm, ends) in table {
        let outcomes = run(&workload, target, call, harm);
        let Outcomes { survived, reported, silent } = &outcomes;
        let line = format!(
            "{:<12}{call:?} of {target:?}, {harm:?}: {survived} survived, {reported} reported, {} silent",
            workload.name,
            silent.len()
        );
        println!("{line}");
        let fits = match ends {
            Well => *reported == 0 && silent.is_empty() && *survived > 0,
            Reported => *reported > 0 && silent.is_empty(),
            ReportedButLast => *reported > 1 && silent.len() <= 1,
            Silently => !silent.is_empty(),
        };
        if !fits {
            wrong.push(format!("{line}; {}", silent.first().map_or("", |why| why)));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn lies_while_a_workload_runs() {
    check(WRITES, "mix", while_running);
    check(WRITES_HOME, "wrap", while_running);
}

#[test]
fn lies_during_a_recovery() {
    check(READS, "mix", while_recovering);
}

/// A flush that the device only acknowledges, and then a crash: acknowledged changes may be lost,
/// but the tree is an earlier state, and sound.
#[test]
fn a_lost_flush_and_a_crash() {
    use xact_testkit::recording::{Cursor, Part};
    for name in ["append", "single-append", "adaptive-mix"] {
        let workload = workloads::find(name).unwrap();
        let (mut states, mut reported) = (0, 0);
        for nth in 0..20 {
            let fault = Fault { call: Call::Flush, range: None, nth, for_good: true, harm: Harm::Lie };
            let (device, history) = workload.run_with(1, |device| device.inject(fault)).unwrap();
            let recording = device.recording();
            let cursor = Cursor::at(&recording, recording.events.len());
            let pending = cursor.pending().len();
            for kept in [0, pending / 2, pending.saturating_sub(1), pending] {
                let parts = (0..pending).map(|n| if n < kept { Part::All } else { Part::None });
                states += 1;
                match workload.recover(&cursor.crash(&parts.collect::<Vec<_>>())) {
                    Ok(recovered) => {
                        unacknowledged(&history).judge(recording.end, &recovered.tree).unwrap();
                        workload.inspect(&recovered.closed).unwrap();
                    }
                    Err(_) => reported += 1,
                }
            }
        }
        println!("{name}: {states} states, {reported} reported");
        assert!(states > 20 && reported < states / 2, "{name}: {reported} of {states} reported");
    }
}

/// The same, with no promise after the recording began.
fn unacknowledged(history: &History) -> History {
    let mut history = history.clone();
    for thread in &mut history.threads {
        let prepared = thread.steps.iter().position(|step| !step.op.is_sync()).unwrap_or(0);
        thread.steps[prepared..].iter_mut().for_each(|step| step.ended = None);
    }
    history
}

/// The device itself: a misdirected write is elsewhere, and only there.
#[test]
fn an_astray_write_goes_where_it_should_not() {
    let device = SimDevice::new(Image::new(1 << 20));
    device.inject(Fault {
        call: Call::Write,
        range: None,
        nth: 0,
        for_good: false,
        harm: Harm::Astray(8192),
    });
    xact_device::BlockDevice::write_at(&*device, &[7; 512], 4096).unwrap();
    let byte = |at| {
        let mut one = [0];
        device.image().read(&mut one, at);
        one[0]
    };
    assert_eq!((byte(4096), byte(4096 + 8192), device.strikes()), (0, 7, 1));
}
