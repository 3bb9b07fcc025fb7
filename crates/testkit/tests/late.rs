//! SNAP-4: a generation is closed while operations go on in it, and others begin in the next one. Each is in the one in
//! which it began, wholly, and in no other: whatever blocks the two share.
//!
//! An operation is held back where it has begun a handle and before each of its changes of a block, one after the other; its generation is closed;
//! another operation runs to its end in the next; and then the first goes on. What a crash leaves of the first
//! generation has what the first operation did and nothing of the second, and e2fsck finds no fault in it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use xact_base::{Error, GroupNr, Ino, Result};
use xact_consistency::{Fault, Fsync, on_each_step};
use xact_fs::{
    Allocate, Base, Caller, ModeChoice, RenameHow, SetAttr, View, VolumeOptions, WriteHow, XattrHow,
};
use xact_layout::group::{BLOCK_UNINIT, GroupDesc, INODE_UNINIT, INODE_ZEROED};
use xact_layout::superblock::{SUPERBLOCK_BYTES, SUPERBLOCK_OFFSET, Superblock};
use xact_testkit::blocks::with_file;
use xact_testkit::device::SimDevice;
use xact_testkit::files::{Format, quiet_options, recover};
use xact_testkit::generations;
use xact_testkit::image::Image;
use xact_testkit::rng::Rng;
use xact_testkit::tools::{KernelMount, mount_for_ourselves, must_run};
use xact_testkit::tree::Tree;

const ROOT: Caller = Caller::ROOT;
/// Far longer than the work takes.
const PATIENCE: Duration = Duration::from_secs(20);
/// How long the second operation is given before it is taken to wait for a lock that the first one holds.
const MOMENT: Duration = Duration::from_millis(15);

/// Holds one thread back at one of its steps: when it has begun a handle, or before a change of a block.
#[derive(Default)]
struct Gate {
    state: Mutex<GateState>,
    changed: Condvar,
}

#[derive(Default)]
struct GateState {
    is_open: bool,
    holds_back: bool,
}

impl Gate {
    /// To be called by the thread: it is held back after so many steps.
    fn hold_back(self: &Arc<Gate>, mut steps: u64) {
        let gate = self.clone();
        on_each_step(Some(Box::new(move || {
            if steps == 0 {
                let mut state = gate.state.lock();
                state.holds_back = true;
                gate.changed.notify_all();
                while !state.is_open {
                    gate.changed.wait(&mut state);
                }
            }
            steps = steps.wrapping_sub(1);
        })));
    }

    fn is_held_back(&self, ended: impl Fn() -> bool) -> bool {
        let until = Instant::now() + PATIENCE;
        let mut state = self.state.lock();
        while !state.holds_back && !ended() {
            assert!(Instant::now() < until, "the operation neither ends nor changes anything");
            self.changed.wait_for(&mut state, Duration::from_micros(200));
        }
        state.holds_back
    }

    fn open(&self) {
        self.state.lock().is_open = true;
        self.changed.notify_all();
    }
}

type Operation = (&'static str, fn(&Base, Ino) -> Result<()>);

fn ino(base: &Base, dir: Ino, name: &[u8]) -> Result<Ino> {
    Ok(base.lookup(dir, name)?.ino)
}

fn name(n: u64) -> Vec<u8> {
    format!("a name that is long enough for a folder of several blocks {n}").into_bytes()
}

fn resize(base: &Base, dir: Ino, name: &[u8], size: u64) -> Result<()> {
    let set = SetAttr { size: Some(size), ..SetAttr::default() };
    base.set_attr(&ROOT, ino(base, dir, name)?, &set).map(|_| ())
}

const NEW_ID: &str = "chown to a new id";

/// Operations in a folder.
const OPERATIONS: [Operation; 15] = [
    ("make", |base, dir| base.make_node(&ROOT, dir, b"new", 0o100_644, 0).map(|_| ())),
    ("mkdir", |base, dir| base.make_dir(&ROOT, dir, b"new", 0o755).map(|_| ())),
    ("symlink", |base, dir| base.make_symlink(&ROOT, dir, b"new", &[b'x'; 200]).map(|_| ())),
    ("rename over", |base, dir| base.rename(&ROOT, (dir, &name(3)), (dir, &name(4)), RenameHow::Replace)),
    ("unlink", |base, dir| base.unlink(&ROOT, dir, &name(9))),
    ("unlink of many extents", |base, dir| base.unlink(&ROOT, dir, b"file")),
    ("unlink of what is open", |base, dir| base.unlink(&ROOT, dir, b"open")),
    ("release of what has no name", |base, dir| {
        let orphan = ino(base, dir, b"orphan-number")?;
        let mut number = Vec::new();
        base.read(orphan, 0, 4, &mut number)?;
        base.release(Ino(u32::from_le_bytes(number.try_into().expect("four bytes"))), 1);
        Ok(())
    }),
    ("rmdir", |base, dir| base.remove_dir(&ROOT, dir, b"empty")),
    ("truncate", |base, dir| resize(base, dir, b"file", 5000)),
    ("reserve", |base, dir| {
        base.allocate(&ROOT, ino(base, dir, b"file")?, 0, 300_000, Allocate::Reserve { keep_size: true })
    }),
    (NEW_ID, |base, dir| {
        let set = SetAttr { uid: Some(4000 + dir.0), ..SetAttr::default() };
        base.set_attr(&ROOT, ino(base, dir, &name(7))?, &set).map(|_| ())
    }),
    ("chown to a known id", |base, dir| {
        let set = SetAttr { uid: Some(1), ..SetAttr::default() };
        base.set_attr(&ROOT, ino(base, dir, &name(8))?, &set).map(|_| ())
    }),
    ("attribute of several files", |base, dir| {
        base.remove_xattr(&ROOT, ino(base, dir, b"shared")?, b"user.large")
    }),
    ("attribute", |base, dir| {
        base.set_xattr(&ROOT, ino(base, dir, b"file")?, b"user.more", &[2; 200], XattrHow::Set)
    }),
];

/// A volume of several groups, most of them untouched, with quotas and two folders of the same contents. The kernel
/// lets two files share a block of attributes.
fn volume() -> Image {
    let plain = Format {
        options: &["-b", "1024", "-g", "2048", "-N", "512", "-O", "^has_journal"],
        size: "16M",
        pool_bytes: None,
    };
    let image = with_file(&plain.make(), |file| {
        let mount = KernelMount::new(file.path(), "").unwrap();
        for dir in ["x", "y"] {
            let dir = mount.path().join(dir);
            std::fs::create_dir(&dir).unwrap();
            std::fs::write(dir.join("shared"), "").unwrap();
            xattr::set(dir.join("shared"), "user.large", &[7; 600]).unwrap();
        }
        mount.unmount();
        // Not every kernel mounts a volume that has them.
        must_run("tune2fs", &["-O", "quota", file.path().to_str().expect("a path of ours")]);
        Image::from_file(&std::fs::File::open(file.path()).unwrap()).map_err(|e| e.to_string())
    })
    .unwrap();
    let device = SimDevice::new(generations::give(&with_unwritten_tables(image), 4 << 20));
    let base = xact_fs::open(device.clone(), &quiet_options()).unwrap();
    base.make_node(&ROOT, Ino::ROOT, b"z", 0o100_644, 0).unwrap();
    for dir in [b"x", b"y"] {
        fill(&base, ino(&base, Ino::ROOT, dir).unwrap()).unwrap();
    }
    base.close().unwrap();
    device.image()
}

/// As mke2fs leaves tables of inodes that it does not write.
fn with_unwritten_tables(mut image: Image) -> Image {
    let mut bytes = [0; SUPERBLOCK_BYTES];
    image.read(&mut bytes, SUPERBLOCK_OFFSET);
    let sb = Superblock::decode(&bytes).unwrap();
    for group in (0..sb.group_count()).map(GroupNr) {
        let (block, at) = sb.desc_place(group);
        let at = block.0 * u64::from(sb.block_size()) + at as u64;
        let mut bytes = vec![0; usize::from(sb.desc_size())];
        image.read(&mut bytes, at);
        let mut desc = GroupDesc::new(&bytes);
        if desc.has_flag(INODE_UNINIT) {
            desc.set_flags(desc.flags() & !INODE_ZEROED);
            desc.seal(&sb, group);
            image.write(desc.as_bytes(), at);
        }
    }
    image
}

fn fill(base: &Base, dir: Ino) -> Result<()> {
    for n in 0..40 {
        let ino = base.make_node(&ROOT, dir, &name(n), 0o100_644, 0)?.ino;
        base.write(ino, 0, &[n as u8; 1500], WriteHow::default())?;
    }
    let owned = SetAttr { uid: Some(1), ..SetAttr::default() };
    base.set_attr(&ROOT, ino(base, dir, &name(0))?, &owned)?;
    base.make_dir(&ROOT, dir, b"empty", 0o755)?;
    for name in [b"open".as_slice(), b"orphan", b"orphan-number", b"file"] {
        base.make_node(&ROOT, dir, name, 0o100_644, 0)?;
    }
    let (number, orphan) = (ino(base, dir, b"orphan-number")?, ino(base, dir, b"orphan")?);
    base.write(number, 0, &orphan.0.to_le_bytes(), WriteHow::default())?;
    let file = ino(base, dir, b"file")?;
    for n in 0..40 {
        base.write(file, 2048 * n, &[7; 1024], WriteHow::default())?;
        base.sync_file(file, false)?;
    }
    base.set_xattr(&ROOT, file, b"user.large", &[1; 600], XattrHow::Set)
}

fn text(error: xact_base::Error) -> String {
    error.to_string()
}

/// Opens the volume, with a file in each folder that is open, and one that is open and has no name.
fn open(image: &Image, fsync: Fsync, fault: Option<Fault>) -> Result<(Arc<SimDevice>, Arc<Base>)> {
    let device = SimDevice::new(image.clone());
    let modes = ModeChoice { fsync: Some(fsync), ..ModeChoice::default() };
    let base = xact_fs::open(device.clone(), &VolumeOptions { modes, fault, ..quiet_options() })?;
    for dir in [b"x", b"y"] {
        let dir = ino(&base, Ino::ROOT, dir)?;
        base.hold(ino(&base, dir, b"open")?)?;
        base.hold(ino(&base, dir, b"orphan")?)?;
        base.unlink(&ROOT, dir, b"orphan")?;
    }
    base.engine().sync()?;
    Ok((device, base))
}

/// As a record of the log where that is how an fsync is served.
fn make_durable(base: &Base, fsync: Fsync) -> Result<()> {
    match fsync {
        Fsync::Log => base.engine().commit(base.engine().running()),
        Fsync::Generation => base.engine().sync(),
    }
}

/// How often what was seen.
#[derive(Debug, Default)]
struct Seen {
    runs: u64,
    /// In which the second operation had ended while the first was held back.
    beside: u64,
}

/// Runs `first` held back after `steps` steps, and `second` meanwhile; false where it has no more than that.
fn run(
    image: &Image,
    how: (Fsync, Option<Fault>),
    [first, second]: [&Operation; 2],
    steps: u64,
    seen: &mut Seen,
) -> std::result::Result<bool, String> {
    let (device, base) = open(image, how.0, how.1).map_err(text)?;
    let [x, y] = [b"x", b"y"].map(|name| ino(&base, Ino::ROOT, name).unwrap());
    let before = Tree::of_view(&*base)?;
    let gate = Arc::new(Gate::default());
    let slow = {
        let (base, gate, operation) = (base.clone(), gate.clone(), first.1);
        std::thread::spawn(move || {
            gate.hold_back(steps);
            let result = operation(&base, x);
            on_each_step(None);
            result
        })
    };
    if !gate.is_held_back(|| slow.is_finished()) {
        slow.join().unwrap().map_err(text)?;
        base.close().map_err(text)?;
        return Ok(false);
    }
    seen.runs += 1;
    let closed = base.engine().running();
    let leader = {
        let base = base.clone();
        std::thread::spawn(move || make_durable(&base, how.0))
    };
    let until = Instant::now() + PATIENCE;
    while base.engine().running() == closed {
        if Instant::now() > until {
            return Err("the generation is not closed while an operation is in it".into());
        }
        std::thread::yield_now();
    }
    let (done, is_done) = mpsc::channel();
    let beside = {
        let (base, operation) = (base.clone(), second.1);
        std::thread::spawn(move || {
            // Else one that gives back would begin in the generation that is closed; see the test of that.
            let set = SetAttr { perm: Some(0o600), ..SetAttr::default() };
            let result = ino(&base, Ino::ROOT, b"z").and_then(|z| base.set_attr(&ROOT, z, &set));
            let result = result.and_then(|_| operation(&base, y));
            // Who has gone on to listen no more has been told by the end of the thread.
            let _ = done.send(());
            result
        })
    };
    let ended = is_done.recv_timeout(MOMENT).is_ok();
    gate.open();
    slow.join().unwrap().map_err(|e| format!("the first: {e}"))?;
    beside.join().unwrap().map_err(|e| format!("the second: {e}"))?;
    leader.join().unwrap().map_err(|e| format!("the sync: {e}"))?;
    seen.beside += u64::from(ended);
    let first_generation = device.image();
    let after = Tree::of_view(&*base)?;
    make_durable(&base, how.0).map_err(text)?;
    let second_generation = device.image();
    base.engine().poison("a crash");
    let recovered = judge(&first_generation)?;
    for (part, legal) in [("/x", &after), ("/y", &before)] {
        let (found, legal) = (recovered.below(part), legal.below(part));
        // The entry of a new id is added beforehand, in a generation for itself.
        let is_ahead = part == "/x" && first.0 == NEW_ID && found == before.below(part);
        if found != legal && !is_ahead {
            let difference = found.difference(&legal);
            return Err(format!("{part} in the first generation, and as it should be: {difference}"));
        }
    }
    let recovered = judge(&second_generation)?;
    match recovered == after {
        true => Ok(true),
        false => Err(format!("the second generation: {}", recovered.difference(&after))),
    }
}

/// What is there after a crash, if it is sound.
fn judge(image: &Image) -> std::result::Result<Tree, String> {
    let recovered = recover(image, &quiet_options()).map_err(|e| format!("recovery: {e}"))?;
    let report = xact_check::check(SimDevice::new(recovered.closed.clone()), &mut |_, _| {}).map_err(text)?;
    if !report.is_sound() {
        return Err(format!("after recovery: {:?}", report.problems));
    }
    generations::inspect(&recovered.closed)?;
    Ok(recovered.tree)
}

fn run_all(
    image: &Image,
    how: (Fsync, Option<Fault>),
    chosen: impl Fn(usize, usize) -> bool,
) -> (Seen, Vec<String>) {
    let (mut seen, mut findings) = (Seen::default(), Vec::new());
    for (a, first) in OPERATIONS.iter().enumerate() {
        for second in OPERATIONS.iter().enumerate().filter(|(b, _)| chosen(a, *b)).map(|(_, second)| second) {
            for steps in 0.. {
                match run(image, how, [first, second], steps, &mut seen) {
                    Ok(true) => {}
                    Ok(false) => break,
                    Err(why) => {
                        findings.push(format!(
                            "{} held back at step {steps}, {} beside it: {why}",
                            first.0, second.0
                        ));
                        break;
                    }
                }
            }
        }
    }
    (seen, findings)
}

/// Whoever makes a file next makes it in a group that nobody has used.
fn crowded(image: &Image) -> Image {
    let device = SimDevice::new(image.clone());
    let base = xact_fs::open(device.clone(), &quiet_options()).unwrap();
    let full = base.make_dir(&ROOT, Ino::ROOT, b"full", 0o755).unwrap().ino;
    for n in 0.. {
        let sb = xact_fs::superblock::read(&**base.engine(), base.superblock()).unwrap();
        let (at, size) = (sb.desc_place(GroupNr(0)), usize::from(sb.desc_size()));
        let bytes = base.engine().read(at.0).unwrap();
        let descs: Vec<_> =
            bytes[at.1..].chunks(size).take(sb.group_count() as usize).map(GroupDesc::new).collect();
        let is_fresh = |desc: &&GroupDesc| desc.has_flag(INODE_UNINIT);
        // The last group's bitmap of blocks is never left out.
        if descs.iter().filter(is_fresh).count() == 2
            && descs.iter().map(GroupDesc::free_inodes).sum::<u32>() == 128
        {
            assert!(descs.iter().any(|desc| desc.has_flag(INODE_UNINIT) && desc.has_flag(BLOCK_UNINIT)));
            break;
        }
        base.make_node(&ROOT, full, format!("{n}").as_bytes(), 0o100_644, 0).unwrap();
    }
    base.close().unwrap();
    device.image()
}

#[test]
fn a_group_that_both_begin_to_use() {
    mount_for_ourselves().unwrap();
    let image = crowded(&volume());
    for fsync in [Fsync::Log, Fsync::Generation] {
        let (seen, findings) = run_all(&image, (fsync, None), |a, b| a < 3 && b < 3);
        println!("{fsync:?}: {seen:?}");
        assert!(findings.is_empty(), "{} findings: {}", findings.len(), findings.join("\n"));
        assert!(seen.beside > seen.runs / 2, "{seen:?}");
    }
}

/// Threads that work in a folder each, and share two owners, while one generation after the other is made. Each is sound
/// as a crash leaves it, and so is what is there in the end.
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
                // Nobody else makes one.
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

fn any_operation(base: &Base, dir: Ino, rng: &mut Rng) -> Result<()> {
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

/// A quarter of the pairs, another one for each way of fsync; with `LONG` all of them.
#[test]
fn operations_end_in_the_generation_in_which_they_began() {
    mount_for_ourselves().unwrap();
    let image = volume();
    let all = is_long();
    for (part, fsync) in [(0, Fsync::Log), (2, Fsync::Generation)] {
        let (seen, findings) = run_all(&image, (fsync, None), |a, b| all || (a + b) % 4 == part);
        println!("{fsync:?}: {seen:?}");
        assert!(findings.is_empty(), "{} findings: {}", findings.len(), findings.join("\n"));
        assert!(seen.beside > seen.runs / 2, "{seen:?}");
    }
}

/// SNAP-6: a file that was made in a generation and is deleted while that is in memory, and nothing has begun in the
/// next, is in neither. Where something has, the deletion comes after it.
#[test]
fn a_deletion_reaches_back_into_a_closed_generation() {
    mount_for_ourselves().unwrap();
    let image = volume();
    for something_has_begun in [false, true] {
        let (device, base) = open(&image, Fsync::Generation, None).unwrap();
        let [x, y] = [b"x", b"y"].map(|name| ino(&base, Ino::ROOT, name).unwrap());
        let file = base.make_node(&ROOT, y, b"short-lived", 0o100_644, 0).unwrap().ino;
        base.allocate(&ROOT, file, 0, 50_000, Allocate::Reserve { keep_size: false }).unwrap();
        let closed = base.engine().running();
        let gate = Arc::new(Gate::default());
        std::thread::scope(|scope| {
            let slow = scope.spawn(|| {
                gate.hold_back(0);
                base.make_node(&ROOT, x, b"new", 0o100_644, 0).unwrap();
                on_each_step(None);
            });
            assert!(gate.is_held_back(|| slow.is_finished()));
            let leader = scope.spawn(|| base.engine().sync().unwrap());
            let until = Instant::now() + PATIENCE;
            while base.engine().running() == closed {
                assert!(Instant::now() < until, "the generation is not closed");
                std::thread::yield_now();
            }
            if something_has_begun {
                base.make_node(&ROOT, y, b"other", 0o100_644, 0).unwrap();
            }
            base.unlink(&ROOT, y, b"short-lived").unwrap();
            gate.open();
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

#[test]
fn a_late_change_that_does_not_reach_its_generation_is_found() {
    mount_for_ourselves().unwrap();
    let fault = Some(Fault::LateInNewestOnly);
    let (seen, findings) = run_all(&volume(), (Fsync::Log, fault), |a, b| a == 0 && b == 0);
    assert!(!findings.is_empty(), "{seen:?}");
}
