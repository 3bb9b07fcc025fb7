//! The property of access: through xact no user obtains or changes anything that plain calls on
//! ext4 with the same permissions would not give at the moment of the commit. Random trees and
//! random calls of four users and root on a mount, each with a process and groups. The kernel's own
//! ext4 is the oracle: every call is repeated there (see `world`).
//!
//! `cargo test` makes some ten thousand calls, and leaves out each [`AccessCheck`] in turn, which
//! must be found. `CALLS=1000000` makes more, `SEED=17 CALLS=1` repeats one history, `FAILURES=20`
//! continues after failures of 19 kinds. A program without test harness: its processes are users.

mod call;
#[allow(dead_code)]
#[path = "../common/mod.rs"]
mod common;
mod differences;
mod generator;
mod process;
mod step;
mod tag;
mod tree;
mod world;

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use call::Call;
use common::sh;
use generator::Generator;
use step::Step;
use world::{Violation, World};
use xact::{MemoryDevice, Volume, VolumeOptions};
use xact_fuse::{MountOptions, Session, serve};
use xact_types::AccessCheck;

/// Root's index among the users.
pub const ROOT: usize = 4;

// The ioctls of F2FS.
pub const START: u32 = 0xf501;
pub const COMMIT_ATOMIC: u32 = 0xf502;
pub const ABORT_ATOMIC: u32 = 0xf505;

/// Steps of one history.
const STEPS: usize = 400;

/// One of our volumes and one of the kernel's ext4, both mounted.
struct Both {
    dir: tempfile::TempDir,
    volume: Arc<Volume>,
    device: Arc<MemoryDevice>,
    session: Option<Session>,
}

impl Both {
    fn mount() -> Both {
        let dir = tempfile::tempdir().unwrap();
        common::set_mode(dir.path(), 0o755);
        sh(dir.path(), "truncate -s 64M image; mke2fs -q -t ext4 image; mkdir ours kernels");
        let device = Arc::new(MemoryDevice::from_bytes(std::fs::read(dir.path().join("image")).unwrap()));
        let volume = Volume::open(device.clone(), &VolumeOptions::default()).unwrap();
        let options = MountOptions::new(Path::new("a device in memory"));
        let session = serve(volume.clone(), &dir.path().join("ours"), &options).unwrap();
        sh(dir.path(), "mount -o loop,user_xattr,acl image kernels");
        Both { dir, volume, device, session: Some(session) }
    }

    fn ours(&self) -> PathBuf {
        self.dir.path().join("ours")
    }

    fn kernels(&self) -> PathBuf {
        self.dir.path().join("kernels")
    }

    /// Unmounts; the volume must be sound.
    fn close(mut self) {
        let session = self.session.take().unwrap();
        assert!(session.unmounter().unmount().unwrap(), "the mount is in use");
        session.wait();
        self.volume.health().unwrap();
        self.volume.close().unwrap();
        std::fs::write(self.dir.path().join("image.ours"), self.device.to_bytes()).unwrap();
        sh(self.dir.path(), "e2fsck -fn image.ours > out 2>&1 || { cat out; exit 1; }");
    }
}

impl Drop for Both {
    fn drop(&mut self) {
        if let Some(session) = &self.session {
            let _ = session.unmounter().unmount();
        }
        sh(self.dir.path(), "umount kernels");
    }
}

/// Runs steps in a folder of their own.
fn replay(world: &mut World, steps: &[Step]) -> Result<(), Violation> {
    world.begin_epoch();
    let planted: Vec<&Call> = steps.iter().map_while(planted).collect();
    let result = world.plant(&planted);
    let result = result.and_then(|()| steps[planted.len()..].iter().try_for_each(|step| world.step(step)));
    world.end_epoch();
    result
}

fn planted(step: &Step) -> Option<&Call> {
    match step {
        Step::Plain(who, call) if who.user == ROOT => Some(call),
        _ => None,
    }
}

/// A random history; if it fails, its steps.
fn history(world: &mut World, seed: u64) -> Result<(), (Vec<Step>, Violation)> {
    world.begin_epoch();
    let (mut generator, mut steps) = Generator::new(seed);
    let calls: Vec<&Call> = steps.iter().filter_map(planted).collect();
    let mut result = world.plant(&calls);
    let end = steps.len() + STEPS;
    while result.is_ok() && steps.len() < end {
        let step = generator.next(world);
        steps.push(step.clone());
        result = world.step(&step);
    }
    if result.is_ok() {
        steps.push(Step::Compare);
        result = world.step(&Step::Compare);
    }
    world.end_epoch();
    result.map_err(|violation| (steps, violation))
}

/// Leaves out steps that a failure does not need.
fn shorten(world: &mut World, mut steps: Vec<Step>) -> Vec<Step> {
    let deadline = Instant::now() + Duration::from_secs(60);
    let mut size = steps.len() / 2;
    while size > 0 && Instant::now() < deadline {
        let mut at = 0;
        let before = steps.len();
        while at < steps.len() && Instant::now() < deadline {
            let mut fewer = steps[..at].to_vec();
            fewer.extend_from_slice(&steps[(at + size).min(steps.len())..]);
            match replay(world, &fewer) {
                Err(_) => steps = fewer,
                Ok(()) => at += size,
            }
        }
        if size > 1 || steps.len() == before {
            size /= 2;
        }
    }
    steps
}

/// A failure, formatted for people.
fn report(world: &mut World, seed: u64, steps: Vec<Step>, violation: &Violation) -> String {
    let again = format!("SEED={seed} CALLS=1 cargo test --release -p xact-fuse --test strangers");
    let calls = steps.len();
    let steps = shorten(world, steps);
    world.history = Some(Vec::new());
    let last =
        replay(world, &steps).err().unwrap_or_else(|| Violation("not seen again when shortened".into()));
    let lines = world.history.take().unwrap_or_default().join("\n  ");
    format!(
        "seed {seed}, after {calls} steps: {}\nagain: {again}\nshortened:\n  {lines}\n  {}",
        violation.0, last.0
    )
}

/// A violation without the parts that differ between violations of the same kind.
fn kind(violation: &Violation) -> String {
    let words = violation.0.split_whitespace();
    let words = words.filter(|word| !word.contains(['/', '<', '[']) && word.trim_matches(':').len() > 1);
    words.filter(|word| !word.contains(|c: char| c.is_ascii_digit())).collect::<Vec<_>>().join(" ")
}

fn number(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|e| panic!("{name}: {e}")))
}

/// With all checks: this number of calls finds no violation.
fn nothing_is_found(world: &mut World, calls: u64, first: u64) {
    let (mut seed, until, started) = (first, world.counts.calls + calls, Instant::now());
    let mut kinds = std::collections::BTreeMap::new();
    let most = number("FAILURES").unwrap_or(1) as usize;
    while world.counts.calls < until && kinds.len() < most {
        let result = catch_unwind(AssertUnwindSafe(|| history(world, seed))).unwrap_or_else(|panic| {
            println!("seed {seed}: a panic");
            resume_unwind(panic)
        });
        if let Err((steps, violation)) = result {
            let seen: &mut u64 = kinds.entry(kind(&violation)).or_default();
            *seen += 1;
            if *seen == 1 {
                println!("{}", report(world, seed, steps, &violation));
            }
        }
        seed += 1;
    }
    let counts = &world.counts;
    println!("{} histories in {:.1} s: {counts:?}", seed - first, started.elapsed().as_secs_f64());
    assert!(kinds.is_empty(), "{kinds:#?}");
    // A single repeated history may have none of these.
    let enough = counts.commits > counts.calls / 1000 && counts.refused > counts.calls / 10_000;
    assert!(enough || counts.calls < 10_000, "too few to mean anything");
}

/// With a check left out, a violation is found soon, which does not exist with the check.
fn is_found(world: &mut World, check: AccessCheck) -> bool {
    let started = Instant::now();
    let mut seeds = 1..;
    let found = loop {
        let seed = seeds.next().expect("there are more");
        AccessCheck::leave_out(Some(check));
        let result = history(world, seed);
        AccessCheck::leave_out(None);
        if let Err((steps, violation)) = result {
            if let Err(violation) = replay(world, &steps) {
                panic!("with all checks: {}", report(world, seed, steps, &violation));
            }
            break Some((seed, violation));
        }
        if started.elapsed() > Duration::from_secs(60) {
            break None;
        }
    };
    let took = started.elapsed().as_secs_f64();
    match &found {
        Some((seed, violation)) => println!("{check:?} left out: seed {seed}, {took:.1} s: {}", violation.0),
        None => println!("{check:?} left out: not found in {took:.1} s"),
    }
    found.is_some()
}

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    if let [_, how, uid, groups] = arguments.as_slice()
        && how == "as"
    {
        return process::serve(uid, groups);
    }
    let both = Both::mount();
    let mut world = World::new(&both.ours(), &both.kernels());
    nothing_is_found(&mut world, number("CALLS").unwrap_or(40_000), number("SEED").unwrap_or(1));
    if number("CALLS").is_none() {
        let missed: Vec<_> =
            AccessCheck::ALL.into_iter().filter(|&check| !is_found(&mut world, check)).collect();
        assert!(missed.is_empty(), "left out, and not noticed: {missed:?}");
    }
    drop(world);
    both.close();
}
