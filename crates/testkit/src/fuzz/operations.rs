//! Operations on files, one after the other: outside and inside transactions, with syncs, remounts
//! and a crash at the end, on volumes of several kinds. Each outcome must be the model's, the final
//! tree one that the promises allow (docs/CRASH.md), and `xact check` must find no problem.

use std::sync::Arc;
use std::time::Duration;

use xact::{CommitWrites, DataMode, ModeChoice, Volume, VolumeOptions};

use crate::device::SimDevice;
use crate::driver::{Done, Driver, End, FileOps, Stop};
use crate::model::{History, Op, Promise};
use crate::rng::Rng;
use crate::tools::formatted;
use crate::tree::Tree;
use crate::workloads::random::{data_operation, name_operation};

const STEPS_MAX: usize = 150;
/// The most operations in a transaction.
const INSIDE_MAX: u64 = 8;
const FILES: [&str; 4] = ["/a", "/b", "/d/a", "/e/f"];

const FORMATS: [&[&str]; 5] = [
    &["-b", "1024", "-J", "size=1"],
    &["-b", "1024", "-J", "size=1", "-O", "^extents,^metadata_csum,^64bit,^flex_bg"],
    &["-b", "1024", "-J", "size=1", "-I", "128", "-O", "^metadata_csum,uninit_bg,^dir_index"],
    &["-b", "2048", "-J", "size=2", "-O", "orphan_file,metadata_csum_seed"],
    &["-b", "1024", "-O", "^has_journal"],
];

pub fn run(data: &[u8]) {
    let mut choices = Rng::given(data);
    let format = *choices.pick(&FORMATS);
    let has_journal = !format.contains(&"^has_journal");
    let commit_writes = *choices.pick(&[CommitWrites::Single, CommitWrites::TwoStep]);
    const DATA: [DataMode; 4] =
        [DataMode::Adaptive, DataMode::Ordered, DataMode::Journal, DataMode::Selective];
    let data = *choices.pick(&DATA);
    let options = VolumeOptions {
        commit_interval: Duration::from_secs(86_400),
        flusher: false,
        cache_bytes: 4 << 20,
        modes: ModeChoice {
            commit_writes: Some(commit_writes),
            // The mode with all data in the log needs a log.
            data: has_journal.then_some(data),
            ..ModeChoice::default()
        },
        ..VolumeOptions::default()
    };
    let mut run = Run::new(format, options);
    for _ in 0..STEPS_MAX {
        if choices.is_spent() {
            break;
        }
        if let Err(stop) = run.step(&mut choices) {
            panic!("{stop}\n{}", history(run.driver).story(u64::MAX));
        }
    }
    // Without a journal a crash may leave anything.
    let is_crash = choices.one_in(2) && has_journal;
    run.finish(is_crash);
}

/// With the promise that all of the modes above make.
fn history(driver: Driver) -> History {
    History { threads: vec![driver.finish()], promise: Promise::Sizes, goes_ahead: false }
}

struct Run {
    device: Arc<SimDevice>,
    options: VolumeOptions,
    volume: Arc<Volume>,
    driver: Driver,
    /// Blocks cannot be reserved for files that are mapped by pointers.
    has_extents: bool,
}

impl Run {
    fn new(format: &'static [&'static str], options: VolumeOptions) -> Run {
        let device = SimDevice::new(formatted(format, "8M"));
        let has_extents = !format.iter().any(|option| option.contains("^extents"));
        let volume = Volume::open(device.clone(), &options).expect("a new volume");
        let driver = Driver::new(&volume, device.clone(), "", 2);
        Run { device, options, volume, driver, has_extents }
    }

    fn step(&mut self, choices: &mut Rng) -> Done {
        let (driver, has_extents) = (&mut self.driver, self.has_extents);
        match choices.below(16) {
            0..=4 => name_operation(driver, choices),
            5..=9 => data_operation(driver, choices),
            10 => more(driver, choices, has_extents),
            11 => match choices.below(8) {
                0 => driver.sync(),
                n => sync_one(driver, FILES[n as usize % 4], n < 4),
            },
            12 | 13 => driver.transaction(|inside| {
                for _ in 0..choices.below(INSIDE_MAX) {
                    match choices.below(8) {
                        0..=2 => name_operation(inside, choices)?,
                        3..=6 => data_operation(inside, choices)?,
                        _ => more(inside, choices, has_extents)?,
                    }
                }
                Ok(*choices.pick(&[End::Commit, End::CommitOrdered, End::Abort]))
            }),
            14 => self.remount(),
            _ => more(driver, choices, has_extents),
        }
    }

    fn remount(&mut self) -> Done {
        self.driver.sync()?;
        self.volume.close().map_err(Stop::Failed)?;
        self.device.restart_recording();
        self.volume = Volume::open(self.device.clone(), &self.options).map_err(Stop::Failed)?;
        self.driver.reopened(&self.volume);
        Ok(())
    }

    /// Checks the result: after closing, or on a device that has everything that was written to it.
    fn finish(mut self, is_crash: bool) {
        if !is_crash {
            self.driver.sync().expect("the last sync");
            self.volume.close().expect("closing");
        }
        let end = self.device.tick();
        let image = self.device.image();
        let history = history(self.driver);
        let device = SimDevice::new(image);
        let volume = Volume::open(device.clone(), &self.options).expect("opening again");
        let tree = Tree::of_view(&*volume.base()).expect("reading all of it");
        volume.close().expect("closing again");
        if let Err(why) = history.judge(end, &tree) {
            panic!("{why}\n{}", history.story(u64::MAX));
        }
        let report = xact_check::check(device, &mut |_, _| ()).expect("a check");
        if let Some(problem) = report.problems.first() {
            panic!("{problem}\n{}", history.story(u64::MAX));
        }
    }
}

fn sync_one(driver: &mut Driver, path: &str, data_only: bool) -> Done {
    if data_only { driver.fdatasync(path) } else { driver.fsync(path) }
}

/// The operations that the random workloads leave out.
fn more(files: &mut impl FileOps, choices: &mut Rng, has_extents: bool) -> Done {
    let path = (*choices.pick(&FILES)).to_owned();
    match choices.below(8) {
        0 => files.run(Op::RemoveXattr { path, name: "user.one".into() }),
        1 => {
            let value = vec![7; choices.below(2000) as usize];
            files.set_xattr(&path, "user.two", &value)
        }
        2 | 3 if has_extents => {
            let (offset, len) = (choices.below(100_000), 1 + choices.below(50_000));
            files.run(Op::Reserve { path, offset, len, keep_size: choices.one_in(2) })
        }
        4 => files.write(&path, choices.below(300_000), 1 + choices.below(60_000)),
        5 => files.truncate(&path, choices.below(1_000_000)),
        6 => files.punch(&path, choices.below(100_000), 1 + choices.below(100_000)),
        _ => files.rename(&path, "/d/b"),
    }
}
