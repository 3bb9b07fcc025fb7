//! Devices that lie: what they acknowledge is not so (docs/CRASH.md, "Devices that lie").
//!
//! Each lie is told once, at one call after the other. In the end the tree is right (survived), or
//! somebody was told of an error (told), or it is wrong and nobody knows (silent). What no file
//! system with ext4's format can notice is silent; everything else must not be.

use std::ops::Range;
use std::sync::Arc;

use xact::{Volume, VolumeOptions};
use xact_testkit::blocks::log_range;
use xact_testkit::device::{Call, Fault, Harm, SimDevice};
use xact_testkit::explorer::Subject;
use xact_testkit::files::{FileWorkload, quiet_options};
use xact_testkit::image::Image;
use xact_testkit::model::{History, stamp};
use xact_testkit::tree::Tree;
use xact_testkit::workloads;

/// What the bytes are that the device lies about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum About {
    Log,
    /// Metadata in its own place.
    Metadata,
    Data,
    Anything,
}

fn is_data(bytes: &[u8]) -> bool {
    stamp::read(bytes).is_some()
}

fn is_no_data(bytes: &[u8]) -> bool {
    !is_data(bytes)
}

impl About {
    /// Has the device lie about it: the ranges of bytes, and what they hold.
    fn inject(self, device: &SimDevice, log: &Range<u64>, fault: &Fault) {
        let end = xact_device::BlockDevice::size_bytes(device);
        let inject = |range, holding: fn(&[u8]) -> bool| {
            device.inject_where(Fault { range, ..fault.clone() }, holding);
        };
        match self {
            About::Log => inject(Some(log.clone()), |_| true),
            About::Metadata => {
                inject(Some(0..log.start), is_no_data);
                inject(Some(log.end..end), is_no_data);
            }
            About::Data => inject(None, is_data),
            About::Anything => inject(None, |_| true),
        }
    }
}

#[derive(Debug, Default)]
struct Outcomes {
    survived: u32,
    told: u32,
    silent: Vec<String>,
}

impl Outcomes {
    fn count(&mut self, tree: Result<Tree, String>, judge: impl Fn(&Tree) -> Result<(), String>) {
        match tree {
            Err(why) => {
                assert!(!why.is_empty(), "an error without a word");
                self.told += 1;
            }
            Ok(tree) => match judge(&tree) {
                Ok(()) => self.survived += 1,
                Err(why) => self.silent.push(why),
            },
        }
    }
}

/// A lie while the workload runs; afterwards the device is honest.
fn while_running(workload: &FileWorkload, about: About, call: Call, harm: Harm) -> Outcomes {
    let mut outcomes = Outcomes::default();
    let log = log_range(&workload.format.make()).unwrap();
    for nth in LIES {
        let fault = Fault { call, range: None, nth, for_good: false, harm };
        let run = workload.run_with(1, |device| about.inject(device, &log, &fault));
        let (device, history) = match run {
            Ok(run) => run,
            // What was read back was not what had been written.
            Err(why) => {
                outcomes.silent.push(why);
                continue;
            }
        };
        if device.strikes() == 0 {
            break;
        }
        if history.lanes.iter().flat_map(|lane| &lane.steps).any(|step| step.ended.is_none()) {
            outcomes.told += 1;
            continue;
        }
        let end = device.tick();
        let tree = workload.recover(&device.image()).map(|recovered| recovered.tree);
        outcomes.count(tree, |tree| workload.judge(&history, end, tree));
    }
    outcomes
}

/// A lie while a crashed volume is recovered and read.
fn while_recovering(workload: &FileWorkload, about: About, call: Call, harm: Harm) -> Outcomes {
    let mut outcomes = Outcomes::default();
    let (device, history) = workload.run_with(1, |_| ()).unwrap();
    let (image, end) = (device.image(), device.tick());
    let (before, log) = (device.recording().base, log_range(&image).unwrap());
    for nth in LIES {
        let device = SimDevice::remembering(image.clone(), before.clone());
        let fault = Fault { call, range: None, nth, for_good: false, harm };
        about.inject(&device, &log, &fault);
        let tree = read(&device, &quiet_options());
        if device.strikes() == 0 {
            break;
        }
        outcomes.count(tree, |tree| workload.judge(&history, end, tree));
    }
    outcomes
}

/// How many calls are lied to in turn.
const LIES: Range<u64> = 0..24;

fn read(device: &Arc<SimDevice>, options: &VolumeOptions) -> Result<Tree, String> {
    let volume = Volume::open(device.clone(), options).map_err(|e| e.to_string())?;
    let tree = Tree::of_view(&*volume.base())?;
    volume.close().map_err(|e| e.to_string())?;
    Ok(tree)
}

const ASTRAY: Harm = Harm::Astray(64 << 10);

/// What may come of a lie.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ends {
    /// The tree is right, every time.
    Well,
    /// The tree is right, or somebody is told; each of these at times.
    Told,
    /// Somebody is told, but for the log's last commit, which looks like one that a crash interrupted.
    ToldButLast,
    /// At times nobody can know.
    Silently,
}

use Ends::{Silently, Told, ToldButLast, Well};

/// The table of docs/CRASH.md.
const WRITES: &[(About, Call, Harm, Ends)] = &[
    (About::Anything, Call::Flush, Harm::Lie, Well),
    (About::Log, Call::Write, Harm::Lie, Silently),
    (About::Log, Call::Write, Harm::Noise, ToldButLast),
    (About::Log, Call::Write, ASTRAY, Silently),
    (About::Metadata, Call::Write, Harm::Lie, Silently),
    // The log has it still, and the recovery writes it again.
    (About::Metadata, Call::Write, Harm::Noise, Well),
    (About::Data, Call::Write, Harm::Lie, Silently),
    (About::Data, Call::Write, Harm::Noise, Silently),
    (About::Data, Call::Write, ASTRAY, Silently),
];

const READS: &[(About, Call, Harm, Ends)] = &[
    (About::Log, Call::Read, Harm::Error, Told),
    (About::Log, Call::Read, Harm::Noise, Told),
    (About::Log, Call::Read, Harm::Stale, Silently),
    (About::Log, Call::Read, ASTRAY, Silently),
    (About::Metadata, Call::Read, Harm::Error, Told),
    (About::Metadata, Call::Read, Harm::Noise, Told),
    (About::Metadata, Call::Read, Harm::Stale, Silently),
    (About::Metadata, Call::Read, ASTRAY, Silently),
    (About::Data, Call::Read, Harm::Error, Told),
    (About::Data, Call::Read, Harm::Noise, Silently),
    (About::Data, Call::Read, ASTRAY, Silently),
];

fn check(
    table: &[(About, Call, Harm, Ends)],
    workload: &str,
    run: fn(&FileWorkload, About, Call, Harm) -> Outcomes,
) {
    let workload = workloads::find(workload).unwrap();
    let mut wrong = Vec::new();
    for &(about, call, harm, ends) in table {
        let outcomes = run(&workload, about, call, harm);
        let Outcomes { survived, told, silent } = &outcomes;
        let line = format!(
            "{:<12}{call:?} of {about:?}, {harm:?}: {survived} survived, {told} told, {} silent",
            workload.name,
            silent.len()
        );
        println!("{line}");
        let fits = match ends {
            Well => *told == 0 && silent.is_empty() && *survived > 0,
            Told => *told > 0 && silent.is_empty(),
            ToldButLast => *told > 1 && silent.len() <= 1,
            Silently => !silent.is_empty(),
        };
        if !fits {
            wrong.push(format!("{line}; {}", silent.first().map_or("", |why| why)));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn lies_while_it_runs() {
    check(WRITES, "mix", while_running);
}

#[test]
fn lies_while_it_recovers() {
    check(READS, "mix", while_recovering);
}

/// A flush that the device only says it has done, and then a crash: what was acknowledged may be lost,
/// but what is there is a state that there was, and sound.
#[test]
fn a_lost_flush_and_a_crash() {
    use xact_testkit::recording::{Cursor, Part};
    for name in ["append", "single-append", "adaptive-mix"] {
        let workload = workloads::find(name).unwrap();
        let (mut states, mut told) = (0, 0);
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
                    Err(_) => told += 1,
                }
            }
        }
        println!("{name}: {states} states, {told} told");
        assert!(states > 20 && told < states / 2, "{name}: {told} of {states} told");
    }
}

/// The same, with nothing promised after the recording began.
fn unacknowledged(history: &History) -> History {
    let mut history = history.clone();
    for lane in &mut history.lanes {
        let prepared = lane.steps.iter().position(|step| !step.op.is_sync()).unwrap_or(0);
        lane.steps[prepared..].iter_mut().for_each(|step| step.ended = None);
    }
    history
}

/// The device itself: a write that goes astray is elsewhere, and only there.
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
