//! Operations that end in a closed generation, beside others in the next one: see
//! `xact_testkit::draining_ops`.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use xact_consistency::{Fsync, on_each_step};
use xact_fs::{Allocate, Caller, LiveFs, ModeChoice, RenameHow, SetAttr, View, VolumeOptions, XattrHow};
use xact_testkit::device::SimDevice;
use xact_testkit::draining_ops::{
    SHORT_LIVED_NR, crowded, ino, judge, make_durable, open, resize, run_all, stall_after, volume,
};
use xact_testkit::files::{Format, quiet_options};
use xact_testkit::generations;
use xact_testkit::rng::Rng;
use xact_testkit::stall::{Stall, await_closing};
use xact_testkit::tools::mount_for_ourselves;
use xact_types::{Error, Ino, Result};

const ROOT: Caller = Caller::ROOT;

#[test]
fn a_group_that_both_begin_to_use() {
    mount_for_ourselves().unwrap();
    let image = crowded(&volume());
    for fsync in [Fsync::Log, Fsync::Generation] {
        let (seen, findings) = run_all(&image, (fsync, None), |a, b| a < 3 && (b < 3 || b == SHORT_LIVED_NR));
        println!("{fsync:?}: {seen:?}");
        assert!(findings.is_empty(), "{} findings: {}", findings.len(), findings.join("\n"));
        assert!(seen.beside > seen.runs / 2, "{seen:?}");
    }
}

/// Threads that work in a folder each, and share two owners, while one generation after the other
/// is made. Each generation is sound after a crash, and so is the final volume.
#[test]
fn generations_of_many_threads_are_sound() {
    let count = if is_long() { 10_000 } else { 150 };
    let plain = Format {
        options: &["-b", "1024", "-g", "1024", "-O", "^has_journal,quota"],
        size: "16M",
        pool_bytes: None,
    };
    let image = generations::give(&plain.make(), 8 << 20);
    for fsync in [Fsync::Log, Fsync::Generation] {
        let device = SimDevice::new(image.clone());
        let modes = ModeChoice { fsync: Some(fsync), ..ModeChoice::default() };
        let base = xact_fs::open(device.clone(), &VolumeOptions { modes, ..quiet_options() }).unwrap();
        let (stop, done) = (AtomicBool::new(false), AtomicU64::new(0));
        std::thread::scope(|scope| {
            for thread in 0..6 {
                let (base, stop, done) = (&base, &stop, &done);
                let dir =
                    base.make_dir(&ROOT, Ino::ROOT, format!("t{thread}").as_bytes(), 0o755).unwrap().ino;
                scope.spawn(move || {
                    let mut rng = Rng::of(&[thread, fsync as u64]);
                    while !stop.load(Relaxed) {
                        any_operation(base, dir, &mut rng)
                            .unwrap_or_else(|error| panic!("thread {thread}: {error}"));
                        done.fetch_add(1, Relaxed);
                    }
                });
            }
            let mut findings = Vec::new();
            for generation in 0..count {
                make_durable(&base, fsync).unwrap();
                // No other thread makes a generation.
                if let Err(why) = judge(&device.image()) {
                    findings.push(format!("generation {generation}: {why}"));
                    break;
                }
            }
            stop.store(true, Relaxed);
            assert!(findings.is_empty(), "{fsync:?}: {findings:?}");
        });
        assert!(done.load(Relaxed) > count, "{done:?}");
        base.close().unwrap();
        generations::inspect(&device.image()).unwrap();
    }
}

fn any_operation(base: &LiveFs, dir: Ino, rng: &mut Rng) -> Result<()> {
    let names = [0; 2].map(|_| format!("{}", rng.below(12)).into_bytes());
    let [one, other] = &names;
    let done = match rng.below(12) {
        0..3 => base.make_node(&ROOT, dir, one, 0o100_644, 0).map(|_| ()),
        3 => base.unlink(&ROOT, dir, one),
        4 => base.rename(&ROOT, (dir, one), (dir, other), RenameHow::Replace),
        5 => base.make_dir(&ROOT, dir, format!("d{}", rng.below(3)).as_bytes(), 0o755).map(|_| ()),
        6 => base.remove_dir(&ROOT, dir, format!("d{}", rng.below(3)).as_bytes()),
        7 => resize(base, dir, one, rng.below(60_000)),
        8 => ino(base, dir, one).and_then(|ino| {
            base.allocate(&ROOT, ino, rng.below(50_000), 30_000, Allocate::Reserve { keep_size: false })
        }),
        9 => ino(base, dir, one).and_then(|ino| {
            let set = SetAttr { uid: Some(rng.below(3) as u32), ..SetAttr::default() };
            base.set_attr(&ROOT, ino, &set).map(|_| ())
        }),
        10 => ino(base, dir, one).and_then(|ino| {
            let value = vec![7; rng.below(700) as usize];
            base.set_xattr(&ROOT, ino, b"user.a", &value, XattrHow::Set)
        }),
        _ => {
            ino(base, dir, one).and_then(|ino| base.allocate(&ROOT, ino, 10_000, 20_000, Allocate::PunchHole))
        }
    };
    match done {
        Err(Error::Posix(_) | Error::NoSpace) => Ok(()),
        done => done,
    }
}

fn is_long() -> bool {
    std::env::var_os("LONG").is_some()
}

/// A sixth of the pairs, another one for each way of fsync; with `LONG` all of them.
#[test]
fn operations_end_in_the_generation_in_which_they_began() {
    mount_for_ourselves().unwrap();
    let image = volume();
    let all = is_long();
    for (part, fsync) in [(0, Fsync::Log), (2, Fsync::Generation)] {
        let (seen, findings) = run_all(&image, (fsync, None), |a, b| all || (a + b) % 6 == part);
        println!("{fsync:?}: {seen:?}");
        assert!(findings.is_empty(), "{} findings: {}", findings.len(), findings.join("\n"));
        assert!(seen.beside > seen.runs / 2, "{seen:?}");
    }
}

/// SNAP-6: a file is created in a generation and deleted while the generation is in memory. If no
/// operation has begun in the next one, the file is in neither. Otherwise the deletion comes after
/// the generation.
#[test]
fn a_deletion_joins_a_closed_generation() {
    mount_for_ourselves().unwrap();
    let image = volume();
    for something_has_begun in [false, true] {
        let (device, base) = open(&image, Fsync::Generation, None).unwrap();
        let [x, y] = [b"x", b"y"].map(|name| ino(&base, Ino::ROOT, name).unwrap());
        let file = base.make_node(&ROOT, y, b"short-lived", 0o100_644, 0).unwrap().ino;
        base.allocate(&ROOT, file, 0, 50_000, Allocate::Reserve { keep_size: false }).unwrap();
        let closed = base.engine().running();
        let stall = Arc::new(Stall::default());
        std::thread::scope(|scope| {
            let slow = scope.spawn(|| {
                stall_after(0, &stall);
                base.make_node(&ROOT, x, b"new", 0o100_644, 0).unwrap();
                on_each_step(None);
            });
            assert!(stall.is_stalled(|| slow.is_finished()));
            let leader = scope.spawn(|| base.engine().sync().unwrap());
            await_closing(base.engine(), closed).unwrap();
            if something_has_begun {
                base.make_node(&ROOT, y, b"other", 0o100_644, 0).unwrap();
            }
            base.unlink(&ROOT, y, b"short-lived").unwrap();
            stall.release();
            slow.join().unwrap();
            leader.join().unwrap();
        });
        let found = judge(&device.image()).unwrap();
        let has = |path: &str| found.entries.contains_key(path.as_bytes());
        assert!(has("/x/new") && !has("/y/other"));
        assert_eq!(has("/y/short-lived"), something_has_begun);
        device.restart_recording();
        base.engine().sync().unwrap();
        let written = device.recording().events.iter().filter(|event| !event.is_flush()).count();
        assert_eq!(written > 0, something_has_begun, "the next generation has nothing to write");
        base.close().unwrap();
    }
}
