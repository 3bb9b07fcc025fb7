//! SNAP-4: a generation is closed while operations continue in it, and others begin in the next
//! one. Each operation is entirely in the one in which it began, whatever blocks the two
//! generations share.
//!
//! An operation stalls where it has begun a handle, or before one of its changes of a block, each
//! of these points in turn. Its generation is closed, another operation runs to its end in the next
//! one, and then the first continues. A crash that leaves the first generation has all changes of
//! the first operation and none of the second, and e2fsck accepts it.

use std::sync::Arc;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use xact_consistency::{Fault, Fsync, on_each_step};
use xact_fs::{
    Allocate, Caller, LiveFs, ModeChoice, RenameHow, SetAttr, View, VolumeOptions, WriteHow, XattrHow,
};
use xact_layout::group::{BLOCK_UNINIT, GroupDesc, INODE_UNINIT, INODE_ZEROED};
use xact_layout::superblock::{SUPERBLOCK_BYTES, SUPERBLOCK_OFFSET, Superblock};
use xact_types::{GroupNr, Ino, Result};

use crate::canaries::Found;
use crate::device::SimDevice;
use crate::files::{Format, quiet_options, recover};
use crate::generations;
use crate::image::Image;
use crate::stall::{Stall, await_closing};
use crate::tools::{KernelMount, must_run, with_file};
use crate::tree::Tree;

const ROOT: Caller = Caller::ROOT;
/// The time after which the second operation is assumed to wait for a lock of the first one.
const MOMENT: Duration = Duration::from_millis(15);

/// Stalls this thread after `steps` steps: when it has begun a handle, or before a change of a
/// block.
pub fn stall_after(mut steps: u64, stall: &Arc<Stall>) {
    let stall = stall.clone();
    on_each_step(Some(Box::new(move || {
        if steps == 0 {
            stall.pass();
        }
        steps = steps.wrapping_sub(1);
    })));
}

pub type Operation = (&'static str, fn(&LiveFs, Ino) -> Result<()>);

pub fn ino(base: &LiveFs, dir: Ino, name: &[u8]) -> Result<Ino> {
    Ok(base.lookup(dir, name)?.ino)
}

/// Names so long that a few fill a block of a folder.
pub fn name(n: u64) -> Vec<u8> {
    format!("a name that is long enough for a folder of several blocks {n}").into_bytes()
}

pub fn resize(base: &LiveFs, dir: Ino, name: &[u8], size: u64) -> Result<()> {
    let set = SetAttr { size: Some(size), ..SetAttr::default() };
    base.set_attr(&ROOT, ino(base, dir, name)?, &set).map(|_| ())
}

const NEW_ID: &str = "chown to a new id";

/// Operations in a folder.
pub const OPERATIONS: [Operation; 15] = [
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

/// Two operations, of which the second undoes the first. They run only beside another one, since
/// each begins in a generation of its own. A group that they are the first to use is unused again.
const SHORT_LIVED: Operation = ("mkdir and rmdir", |base, dir| {
    base.make_dir(&ROOT, dir, b"new", 0o755)?;
    base.remove_dir(&ROOT, dir, b"new")
});
/// The number of `SHORT_LIVED` among the operations that run beside another one.
pub const SHORT_LIVED_NR: usize = OPERATIONS.len();

/// A volume of several groups, most of them untouched, with quotas and two folders of the same
/// contents. The kernel lets two files share a block of attributes: the caller has made sure that
/// it can mount.
pub fn volume() -> Image {
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

/// As mke2fs leaves inode tables that it does not write.
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

fn fill(base: &LiveFs, dir: Ino) -> Result<()> {
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

fn text(error: xact_types::Error) -> String {
    error.to_string()
}

/// Opens the volume, with an open file in each folder, and an open one without a name.
pub fn open(image: &Image, fsync: Fsync, fault: Option<Fault>) -> Result<(Arc<SimDevice>, Arc<LiveFs>)> {
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

/// As a record of the log if `fsync` says so.
pub fn make_durable(base: &LiveFs, fsync: Fsync) -> Result<()> {
    match fsync {
        Fsync::Log | Fsync::File => base.engine().commit(base.engine().running()),
        Fsync::Generation => base.engine().sync(),
    }
}

/// The numbers of pairs and their outcomes.
#[derive(Debug, Default)]
pub struct PairCounts {
    pub runs: u64,
    /// Runs in which the second operation ended while the first was stalled.
    pub beside: u64,
}

/// Runs `first` stalled after `steps` steps, and `second` during the stall; false if it has no more
/// than that number of steps.
fn run(
    image: &Image,
    how: (Fsync, Option<Fault>),
    [first, second]: [&Operation; 2],
    steps: u64,
    seen: &mut PairCounts,
) -> std::result::Result<bool, String> {
    let (device, base) = open(image, how.0, how.1).map_err(text)?;
    let [x, y] = [b"x", b"y"].map(|name| ino(&base, Ino::ROOT, name).unwrap());
    let before = Tree::of_view(&*base)?;
    let stall = Arc::new(Stall::default());
    let slow = {
        let (base, stall, operation) = (base.clone(), stall.clone(), first.1);
        std::thread::spawn(move || {
            stall_after(steps, &stall);
            let result = operation(&base, x);
            on_each_step(None);
            result
        })
    };
    if !stall.is_stalled(|| slow.is_finished()) {
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
    await_closing(base.engine(), closed)?;
    let (done, is_done) = mpsc::channel();
    let beside = {
        let (base, operation) = (base.clone(), second.1);
        std::thread::spawn(move || {
            // Otherwise a removal would begin in the closed generation; it has a test of its own.
            let set = SetAttr { perm: Some(0o600), ..SetAttr::default() };
            let result = ino(&base, Ino::ROOT, b"z").and_then(|z| base.set_attr(&ROOT, z, &set));
            let result = result.and_then(|_| operation(&base, y));
            // A receiver that no longer listens sees the end of the thread.
            let _ = done.send(());
            result
        })
    };
    let ended = is_done.recv_timeout(MOMENT).is_ok();
    stall.release();
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
        // The entry of a new id is added beforehand, in a generation of its own.
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

/// The tree after a crash, if it is sound.
pub fn judge(image: &Image) -> std::result::Result<Tree, String> {
    let recovered = recover(image, &quiet_options()).map_err(|e| format!("recovery: {e}"))?;
    let report = xact_check::check(SimDevice::new(recovered.closed.clone()), &mut |_, _| {}).map_err(text)?;
    if !report.is_sound() {
        return Err(format!("after recovery: {:?}", report.problems));
    }
    generations::inspect(&recovered.closed)?;
    Ok(recovered.tree)
}

/// Runs the pairs that `chosen` selects, at each step, up to the first finding of a pair.
pub fn run_all(
    image: &Image,
    how: (Fsync, Option<Fault>),
    chosen: impl Fn(usize, usize) -> bool,
) -> (PairCounts, Vec<String>) {
    let (mut seen, mut findings) = (PairCounts::default(), Vec::new());
    for (a, first) in OPERATIONS.iter().enumerate() {
        let beside = OPERATIONS.iter().chain([&SHORT_LIVED]).enumerate();
        for second in beside.filter(|(b, _)| chosen(a, *b)).map(|(_, second)| second) {
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

/// The next new file is made in a group that has no files yet.
pub fn crowded(image: &Image) -> Image {
    let device = SimDevice::new(image.clone());
    let base = xact_fs::open(device.clone(), &quiet_options()).unwrap();
    let full = base.make_dir(&ROOT, Ino::ROOT, b"full", 0o755).unwrap().ino;
    for n in 0.. {
        let sb = xact_fs::superblock::read(base.engine(), base.superblock()).unwrap();
        let (at, size) = (sb.desc_place(GroupNr(0)), usize::from(sb.desc_size()));
        let bytes = base.engine().read(at.0).unwrap();
        let descs: Vec<_> =
            bytes[at.1..].chunks(size).take(sb.group_count() as usize).map(GroupDesc::new).collect();
        let is_fresh = |desc: &&GroupDesc| desc.has_flag(INODE_UNINIT);
        // The last group's bitmap of blocks always exists.
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

/// Searches for a run that reveals the fault. Errors: none does.
pub fn hunt(fault: Fault) -> std::result::Result<Found, String> {
    let started = Instant::now();
    let (seen, findings) = run_all(&volume(), (Fsync::Log, Some(fault)), |a, b| a == 0 && b == 0);
    let what = findings.into_iter().next().ok_or(format!("{fault:?} was not found in {seen:?}"))?;
    let replay = "cargo test --release -p xact-testkit --test late".into();
    Ok(Found { states: seen.runs, runs: 1, elapsed: started.elapsed(), replay, what })
}
