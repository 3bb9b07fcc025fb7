//! SNAP-12 on a volume with generations: an fsync of one file does not wait for other files'
//! changes. What it writes, what a crash leaves then, and when it makes everything durable after
//! all.

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use xact::convert::to_plain;
use xact::mkfs::{MkfsOptions, mkfs_generations};
use xact::{
    BlockDevice, Caller, Fsync, Ino, MemoryDevice, ModeChoice, PathExt, RenameHow, SetAttr, View, Volume,
    VolumeOptions,
};
use xact_fs::WriteHow;
use xact_types::Steps;

const ROOT: Caller = Caller::ROOT;
const BLOCK: u64 = 4096;
const OLD: u8 = 1;
const NEW: u8 = 2;

/// A volume with a durable file of 64 KiB, "/old/file".
struct Setup {
    device: Arc<dyn BlockDevice>,
    volume: Arc<Volume>,
    base: Arc<dyn View>,
    file: Ino,
}

/// Only the test itself commits.
fn options(fsync: Fsync) -> VolumeOptions {
    VolumeOptions {
        modes: ModeChoice { fsync: Some(fsync), ..ModeChoice::default() },
        flusher: false,
        commit_interval: Duration::from_secs(86_400),
        dirty_blocks: Some(u32::MAX),
        ..VolumeOptions::default()
    }
}

fn copy(device: &Arc<dyn BlockDevice>) -> Arc<dyn BlockDevice> {
    let mut bytes = vec![0; device.size_bytes() as usize];
    device.read_at(&mut bytes, 0).unwrap();
    Arc::new(MemoryDevice::from_bytes(bytes))
}

fn assert_sound(device: Arc<dyn BlockDevice>) {
    let report = xact_check::check(device, &mut |_, _| ()).unwrap();
    // No fsync writes the superblock's counts: each opening for writing takes them from the groups.
    let wrong: Vec<_> = report.problems.iter().filter(|p| !p.what.starts_with("counts ")).collect();
    assert!(wrong.is_empty(), "{wrong:?}");
}

impl Setup {
    fn new(fsync: Fsync) -> Setup {
        Setup::with(options(fsync))
    }

    fn with(options: VolumeOptions) -> Setup {
        let device: Arc<dyn BlockDevice> = Arc::new(MemoryDevice::new(192 << 20));
        let format = MkfsOptions { block_size: Some(BLOCK as u32), zeroed: true, ..MkfsOptions::default() };
        mkfs_generations(&device, &format, Some(32 << 20)).unwrap();
        let volume = Volume::open(device.clone(), &options).unwrap();
        let base = volume.base();
        let folder = base.make_dir(&ROOT, Ino::ROOT, b"old", 0o755).unwrap().ino;
        base.make_dir(&ROOT, Ino::ROOT, b"new", 0o755).unwrap();
        let file = base.make_node(&ROOT, folder, b"file", 0o100_644, 0).unwrap().ino;
        base.write(file, 0, &vec![OLD; 16 * BLOCK as usize], WriteHow::default()).unwrap();
        volume.sync().unwrap();
        Setup { device, volume, base, file }
    }

    fn make_others(&self, count: u64) {
        let folder = self.base.lookup(Ino::ROOT, b"new").unwrap().ino;
        for n in 0..count {
            let name = format!("file-{n}");
            let ino = self.base.make_node(&ROOT, folder, name.as_bytes(), 0o100_644, 0).unwrap().ino;
            self.base.write(ino, 0, &[NEW; 100], WriteHow::default()).unwrap();
        }
    }

    fn write(&self, block: u64) {
        self.base.write(self.file, block * BLOCK, &[NEW; BLOCK as usize], WriteHow::default()).unwrap();
    }

    /// The volume as a crash would leave it now, opened and found sound.
    fn crashed(&self) -> Arc<Volume> {
        let left = copy(&self.device);
        assert_sound(copy(&left));
        Volume::open(left, &options(Fsync::File)).unwrap()
    }
}

/// Bytes and flushes of an fsync after the file's block `block` was written and `others` files were
/// made.
fn cost(fsync: Fsync, others: u64, block: u64) -> (u64, u64) {
    let setup = Setup::new(fsync);
    setup.make_others(others);
    setup.write(block);
    let before = setup.volume.stats().device;
    setup.base.sync_file(setup.file, false).unwrap();
    let after = setup.volume.stats().device;
    let cost = (after.written_bytes - before.written_bytes, after.flushes - before.flushes);
    println!("{fsync:?}: {} bytes, {} flushes for block {block} beside {others} new files", cost.0, cost.1);
    let left = setup.crashed();
    let contents = left.read("/old/file").unwrap();
    let at = block as usize * BLOCK as usize;
    assert!(
        contents[at..].len() >= BLOCK as usize && contents[at..][..BLOCK as usize].iter().all(|b| *b == NEW)
    );
    cost
}

#[test]
fn its_cost_does_not_depend_on_new_files() {
    for block in [3, 16] {
        for others in [0, 1000, 5000] {
            let (bytes, flushes) = cost(Fsync::File, others, block);
            assert!(bytes <= 16 << 10, "{bytes} bytes beside {others} new files");
            assert_eq!(flushes, 1);
        }
    }
    let (bytes, _) = cost(Fsync::Log, 1000, 3);
    assert!(bytes > 64 << 10, "with fsync=log, all changes are written: {bytes}");
}

/// Each fsync leaves a sound volume, with the file and without the others. The next whole commit
/// has them too.
#[test]
fn records_ahead_and_whole_ones_follow_each_other() {
    let setup = Setup::new(Fsync::File);
    for round in 0..4u64 {
        setup.make_others((round + 1) * 500);
        for append in 0..3 {
            let block = 16 + 3 * round + append;
            setup.write(block);
            setup.write(round);
            setup.base.sync_file(setup.file, append == 1).unwrap();
            let left = setup.crashed();
            let contents = left.read("/old/file").unwrap();
            assert_eq!(contents.len() as u64, (block + 1) * BLOCK);
            assert!(contents[..((round + 1) * BLOCK) as usize].iter().all(|b| *b == NEW));
            assert!(contents[16 * BLOCK as usize..].iter().all(|b| *b == NEW));
            let newest = format!("/new/file-{}", (round + 1) * 500 - 1);
            assert!(!left.exists(newest).unwrap(), "a file that was not synced");
            left.close().unwrap();
        }
        // A record of everything, or a generation.
        let folder = setup.base.lookup(Ino::ROOT, b"new").unwrap().ino;
        if round % 2 == 0 {
            setup.base.sync_file(folder, false).unwrap()
        } else {
            setup.volume.sync().unwrap()
        }
        let left = setup.crashed();
        assert!(left.exists(format!("/new/file-{}", (round + 1) * 500 - 1)).unwrap());
        setup.volume.remove_file("/new/file-0").unwrap();
        for n in 1..(round + 1) * 500 {
            setup.volume.remove_file(format!("/new/file-{n}")).unwrap();
        }
    }
    let device = copy(&setup.device);
    to_plain(&device).unwrap();
    assert_sound(device);
    setup.volume.close().unwrap();
    assert_sound(setup.device.clone());
}

/// Data that was written back before the fsync, since memory was short, goes ahead with it.
#[test]
fn data_that_is_on_the_device_already() {
    const BLOCKS: u64 = 2000;
    let setup = Setup::with(VolumeOptions { cache_bytes: 4 << 20, ..options(Fsync::File) });
    setup.make_others(500);
    let before = setup.volume.stats().device.written_bytes;
    (16..BLOCKS).for_each(|block| setup.write(block));
    assert!(setup.volume.stats().device.written_bytes > before);
    setup.base.sync_file(setup.file, false).unwrap();
    let left = setup.crashed();
    let contents = left.read("/old/file").unwrap();
    assert_eq!(contents.len() as u64, BLOCKS * BLOCK);
    assert!(contents[16 * BLOCK as usize..].iter().all(|b| *b == NEW));
    assert!(!left.exists("/new/file-0").unwrap());
}

/// A change of the file, or of a folder above it.
type Change = fn(&Setup);

/// The file depends on more than its data and blocks: then the fsync is one of everything.
#[test]
fn a_file_with_other_changes_takes_everything_along() {
    let changes: [(&str, Change); 5] = [
        ("/old/file", |setup| {
            let set = SetAttr { perm: Some(0o600), ..SetAttr::default() };
            setup.base.set_attr(&ROOT, setup.file, &set).unwrap();
        }),
        ("/old/renamed", |setup| setup.volume.rename("/old/file", "/old/renamed").unwrap()),
        ("/old/second", |setup| setup.volume.hard_link("/old/file", "/old/second").unwrap()),
        ("/moved/file", |setup| {
            let (from, to) = ((Ino::ROOT, &b"old"[..]), (Ino::ROOT, &b"moved"[..]));
            setup.base.rename(&ROOT, from, to, RenameHow::Replace).unwrap();
        }),
        ("/old/file", |setup| {
            setup
                .base
                .set_attr(&ROOT, setup.file, &SetAttr { size: Some(BLOCK), ..SetAttr::default() })
                .unwrap();
        }),
    ];
    for (path, change) in changes {
        let setup = Setup::new(Fsync::File);
        setup.make_others(500);
        change(&setup);
        setup.write(20);
        setup.base.sync_file(setup.file, false).unwrap();
        let left = setup.crashed();
        assert_eq!(left.read(path).unwrap().len() as u64, 21 * BLOCK, "{path}");
        assert!(left.exists("/new/file-499").unwrap(), "{path}: it came before");
    }
}

/// Threads that fsync old files beside a thread that makes new ones: each file is as its last fsync
/// left it.
#[test]
fn many_threads_at_once() {
    const THREADS: usize = 4;
    const ROUNDS: u64 = 60;
    let setup = Setup::new(Fsync::File);
    let base = &setup.base;
    let files: Vec<Ino> = (0..THREADS)
        .map(|n| base.make_node(&ROOT, Ino::ROOT, format!("own-{n}").as_bytes(), 0o100_644, 0).unwrap().ino)
        .collect();
    setup.volume.sync().unwrap();
    thread::scope(|scope| {
        for &file in &files {
            scope.spawn(move || {
                for round in 0..ROUNDS {
                    base.write(file, round * 1000, &[NEW; 1000], WriteHow::default()).unwrap();
                    base.sync_file(file, round % 3 == 0).unwrap();
                }
            });
        }
        scope.spawn(|| setup.make_others(2000));
        scope.spawn(|| {
            for n in 0..5 {
                thread::sleep(Duration::from_millis(3));
                if n % 2 == 0 {
                    setup.volume.sync().unwrap()
                } else {
                    base.sync_file(Ino::ROOT, false).unwrap()
                }
            }
        });
    });
    let left = setup.crashed();
    for n in 0..THREADS {
        let contents = left.read(format!("/own-{n}")).unwrap();
        assert_eq!(contents.len() as u64, ROUNDS * 1000);
        assert!(contents.iter().all(|b| *b == NEW));
    }
    setup.volume.close().unwrap();
    assert_sound(setup.device.clone());
}

/// A change that went ahead is durable, and later ones in the same commit undo it: the block is as
/// it was before the commit, and the commit has to write it all the same.
#[test]
fn changes_that_cancel_what_went_ahead() {
    for whole in ["a record", "a generation"] {
        let setup = Setup::with(VolumeOptions {
            steps: Steps { ahead_blocks: 1, ..Steps::default() },
            ..options(Fsync::File)
        });
        // It takes no block, so the bitmap of blocks has the changes of the old file alone.
        let new = setup.base.lookup(Ino::ROOT, b"new").unwrap().ino;
        setup.base.make_node(&ROOT, new, b"file-999", 0o100_644, 0).unwrap();
        setup.write(16);
        let before = setup.volume.stats().device.written_bytes;
        setup.base.sync_file(setup.file, false).unwrap();
        assert!(setup.volume.stats().device.written_bytes - before <= 16 << 10, "it went ahead");
        let shorter = SetAttr { size: Some(16 * BLOCK), ..SetAttr::default() };
        setup.base.set_attr(&ROOT, setup.file, &shorter).unwrap();
        match whole {
            "a record" => setup.base.sync_file(new, false).unwrap(),
            _ => setup.volume.sync().unwrap(),
        }
        let left = setup.crashed();
        assert_eq!(left.read("/old/file").unwrap().len() as u64, 16 * BLOCK, "{whole}");
        assert!(left.exists("/new/file-999").unwrap());
        setup.volume.close().unwrap();
        assert_sound(setup.device.clone());
    }
}
