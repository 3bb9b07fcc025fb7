//! SNAP-12 on a volume with generations: an fsync of one file does not wait for other files'
//! changes. What it writes, what a crash leaves then, and when it makes everything durable after
//! all.

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use xact::convert::to_plain;
use xact::mkfs::{MkfsOptions, mkfs_generations};
use xact::{
    BlockDevice, Caller, Fsync, Ino, MemoryDevice, ModeChoice, PathExt, Paths, RenameHow, SetAttr, View,
    Volume, VolumeOptions,
};
use xact_fs::{WriteHow, XattrHow};
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

    /// A new file with a text as long as its path.
    fn make(&self, path: &str) -> Ino {
        let (dir, name) = path.rsplit_once('/').unwrap();
        let dir = self.volume.metadata(if dir.is_empty() { "/" } else { dir }).unwrap().ino;
        let ino = self.base.make_node(&ROOT, dir, name.as_bytes(), 0o100_644, 0).unwrap().ino;
        self.base.write(ino, 0, path.as_bytes(), WriteHow::default()).unwrap();
        ino
    }

    /// Bytes and flushes of an fsync.
    fn sync(&self, ino: Ino) -> (u64, u64) {
        let before = self.volume.stats().device;
        self.base.sync_file(ino, false).unwrap();
        let after = self.volume.stats().device;
        (after.written_bytes - before.written_bytes, after.flushes - before.flushes)
    }

    /// An fsync that goes ahead of the commit.
    #[track_caller]
    fn sync_ahead(&self, ino: Ino, what: &str) {
        let (bytes, flushes) = self.sync(ino);
        println!("{what}: {bytes} bytes, {flushes} flushes");
        assert!(bytes <= 16 << 10, "{what}: {bytes} bytes");
        assert_eq!(flushes, 1, "{what}");
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
            // Too large for the inode.
            setup.base.set_xattr(&ROOT, setup.file, b"user.a", &[1; 1000], XattrHow::Set).unwrap();
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

/// Attributes that change, and perhaps data with them, cost as much as data alone.
#[test]
fn changed_attributes_go_ahead() {
    let changes: [(&str, Change); 4] = [
        ("chmod", |setup| {
            let set = SetAttr { perm: Some(0o600), ..SetAttr::default() };
            setup.base.set_attr(&ROOT, setup.file, &set).unwrap();
        }),
        ("chown", |setup| {
            let set = SetAttr { uid: Some(7), gid: Some(8), ..SetAttr::default() };
            setup.base.set_attr(&ROOT, setup.file, &set).unwrap();
        }),
        ("an attribute", |setup| {
            setup.base.set_xattr(&ROOT, setup.file, b"user.a", b"value", XattrHow::Set).unwrap();
        }),
        ("chmod and an append", |setup| {
            let set = SetAttr { perm: Some(0o600), ..SetAttr::default() };
            setup.base.set_attr(&ROOT, setup.file, &set).unwrap();
            setup.write(16);
        }),
    ];
    for (what, change) in changes {
        let setup = Setup::new(Fsync::File);
        setup.make_others(5000);
        change(&setup);
        setup.sync_ahead(setup.file, what);
        let left = setup.crashed();
        let (found, ours) =
            (left.metadata("/old/file").unwrap(), setup.volume.metadata("/old/file").unwrap());
        assert_eq!(
            (found.perm, found.uid, found.gid, found.size),
            (ours.perm, ours.uid, ours.gid, ours.size)
        );
        let value = |volume: &Volume| volume.base().xattr(found.ino, b"user.a").ok();
        assert_eq!(value(&left), value(&setup.volume), "{what}");
        assert!(!left.exists("/new/file-0").unwrap(), "{what}: a file that was not synced");
        // Data and attributes that follow in the same commit go ahead too.
        setup.write(17);
        setup.sync_ahead(setup.file, "another append");
    }
}

/// A new file in a folder that is durable: its fsync writes its inode, its name and its data.
#[test]
fn a_new_file_goes_ahead() {
    for (folder, others) in [("/old", 0), ("/old", 5000), ("/new", 5000)] {
        let setup = Setup::new(Fsync::File);
        setup.make_others(others);
        let path = format!("{folder}/mail");
        let file = setup.make(&path);
        setup.sync_ahead(file, &format!("{path} beside {others} new files"));
        let left = setup.crashed();
        assert_eq!(left.read(&path).unwrap(), path.as_bytes());
        assert!(!left.exists("/new/file-0").unwrap(), "a file that was not synced");
        // The file grows, gets other attributes, and another one is made beside it.
        setup.base.write(file, path.len() as u64, &[NEW; 5000], WriteHow::default()).unwrap();
        setup.sync_ahead(file, "an append");
        let set = SetAttr { perm: Some(0o400), ..SetAttr::default() };
        setup.base.set_attr(&ROOT, file, &set).unwrap();
        setup.sync_ahead(file, "chmod");
        let second = setup.make(&format!("{folder}/mail-2"));
        setup.sync_ahead(second, "a second file");
        let left = setup.crashed();
        assert_eq!(left.read(&path).unwrap().len(), path.len() + 5000);
        assert_eq!(left.metadata(&path).unwrap().perm, 0o400);
        assert!(left.exists(format!("{folder}/mail-2")).unwrap());
        left.close().unwrap();
        // The commit with everything else contains both.
        setup.base.sync_file(setup.volume.metadata("/new").unwrap().ino, false).unwrap();
        let left = setup.crashed();
        assert_eq!(left.read(&path).unwrap().len(), path.len() + 5000);
        assert_eq!(left.exists(format!("/new/file-{}", others.max(1) - 1)).unwrap(), others > 0);
        setup.volume.close().unwrap();
        assert_sound(setup.device.clone());
    }
}

/// Changes that follow in the same commit: the commit has them, and leaves no trace of what the
/// record ahead had before.
#[test]
fn what_follows_a_new_file_that_went_ahead() {
    type Then = fn(&Setup);
    let cases: [(&str, &[&str], Then); 8] = [
        ("deleted", &[], |setup| setup.volume.remove_file("/old/mail").unwrap()),
        ("renamed", &["/old/other"], |setup| setup.volume.rename("/old/mail", "/old/other").unwrap()),
        ("moved", &["/new/mail"], |setup| setup.volume.rename("/old/mail", "/new/mail").unwrap()),
        ("linked", &["/old/mail", "/new/mail"], |setup| {
            setup.volume.hard_link("/old/mail", "/new/mail").unwrap()
        }),
        ("renamed over", &["/old/file"], |setup| setup.volume.rename("/old/mail", "/old/file").unwrap()),
        ("replaced", &["/old/mail"], |setup| {
            setup.make("/old/m");
            setup.volume.rename("/old/m", "/old/mail").unwrap();
        }),
        ("made again", &["/old/mail"], |setup| {
            setup.volume.remove_file("/old/mail").unwrap();
            setup.make("/old/mail");
        }),
        ("in a folder that grows", &["/old/mail", "/old/n-999"], |setup| {
            for n in 0..1000 {
                setup.make(&format!("/old/n-{n}"));
            }
        }),
    ];
    for (n, (what, paths, then)) in cases.into_iter().enumerate() {
        let setup = Setup::new(Fsync::File);
        setup.make_others(500);
        let file = setup.make("/old/mail");
        setup.sync_ahead(file, what);
        then(&setup);
        if n % 2 == 0 {
            // A record of everything, without the data of files that are not synced.
            setup.base.sync_file(setup.volume.metadata("/new").unwrap().ino, false).unwrap();
        } else {
            setup.volume.sync().unwrap();
        }
        let left = setup.crashed();
        for path in ["/old/mail", "/old/other", "/new/mail", "/old/m"] {
            assert_eq!(left.exists(path).unwrap(), paths.contains(&path), "{what}: {path}");
        }
        for path in paths {
            let ino = setup.volume.metadata(path).unwrap().ino;
            assert_eq!(left.metadata(path).unwrap().ino, ino, "{what}: {path}");
            if n % 2 == 1 || ino == file {
                assert_eq!(left.read(path).unwrap(), setup.volume.read(path).unwrap(), "{what}: {path}");
            }
        }
        left.close().unwrap();
        setup.volume.close().unwrap();
        assert_sound(setup.device.clone());
    }
}

/// A snapshot is a commit: it has the files that went ahead of it, and keeps them. New files go
/// ahead beside an older snapshot too.
#[test]
fn new_files_and_snapshots() {
    let setup = Setup::new(Fsync::File);
    for round in 0..3 {
        setup.make_others(500 * (round + 1));
        let path = format!("/old/mail-{round}");
        let file = setup.make(&path);
        setup.sync_ahead(file, &path);
        let name = format!("snapshot-{round}");
        setup.volume.create_snapshot(&name).unwrap();
        setup.volume.remove_file(&path).unwrap();
        setup.base.sync_file(setup.volume.metadata("/old").unwrap().ino, false).unwrap();
        let left = setup.crashed();
        assert!(!left.exists(&path).unwrap());
        let snapshot = left.open_snapshot(&name).unwrap();
        let paths = Paths::of(snapshot.view().unwrap());
        assert_eq!(paths.read(&path).unwrap(), path.as_bytes());
        assert!(paths.exists(format!("/new/file-{}", 500 * (round + 1) - 1)).unwrap());
        drop((paths, snapshot));
        left.close().unwrap();
        for n in 0..500 * (round + 1) {
            setup.volume.remove_file(format!("/new/file-{n}")).unwrap();
        }
    }
    setup.volume.close().unwrap();
    assert_sound(setup.device.clone());
}

/// A file whose name the durable folder cannot take as it is: the fsync is one of everything.
#[test]
fn a_new_file_that_depends_on_other_changes() {
    let cases: [(&str, Change); 6] = [
        ("/old/file", |setup| {
            // The durable folder has this name.
            setup.volume.remove_file("/old/file").unwrap();
            setup.make("/old/file");
        }),
        ("/old/folder/file", |setup| {
            setup.volume.create_dir("/old/folder").unwrap();
            setup.make("/old/folder/file");
        }),
        ("/old/name", |setup| {
            setup.make("/old/first");
            setup.volume.rename("/old/first", "/old/name").unwrap();
        }),
        ("/old/name", |setup| {
            setup.make("/old/first");
            setup.volume.hard_link("/old/first", "/old/name").unwrap();
        }),
        ("/moved/name", |setup| {
            setup.volume.rename("/old", "/moved").unwrap();
            setup.make("/moved/name");
        }),
        ("/old/name", |setup| {
            let file = setup.make("/old/name");
            setup.base.set_xattr(&ROOT, file, b"user.a", &[1; 1000], XattrHow::Set).unwrap();
        }),
    ];
    for (path, make) in cases {
        let setup = Setup::new(Fsync::File);
        setup.make_others(500);
        make(&setup);
        let (bytes, _) = setup.sync(setup.volume.metadata(path).unwrap().ino);
        assert!(bytes > 16 << 10, "{path}: {bytes} bytes");
        let left = setup.crashed();
        assert_eq!(left.read(path).unwrap(), setup.volume.read(path).unwrap());
        assert!(left.exists("/new/file-499").unwrap(), "{path}: it came before");
    }
}

/// Threads that deliver mail into one folder, each file synced, beside a thread that makes files
/// and one that commits: each file exists.
#[test]
fn many_new_files_at_once() {
    const THREADS: usize = 4;
    const FILES: usize = 60;
    let setup = Setup::new(Fsync::File);
    let (base, folder) = (&setup.base, setup.volume.metadata("/old").unwrap().ino);
    thread::scope(|scope| {
        for thread in 0..THREADS {
            scope.spawn(move || {
                for n in 0..FILES {
                    let name = format!("mail-{thread}-{n}");
                    let made = base.make_node(&ROOT, folder, name.as_bytes(), 0o100_644, 0).unwrap();
                    base.write(made.ino, 0, name.as_bytes(), WriteHow::default()).unwrap();
                    base.sync_file(made.ino, n % 3 == 0).unwrap();
                    if n % 7 == 0 {
                        base.unlink(&ROOT, folder, name.as_bytes()).unwrap();
                    }
                }
            });
        }
        scope.spawn(|| setup.make_others(2000));
        scope.spawn(|| {
            for _ in 0..5 {
                thread::sleep(Duration::from_millis(3));
                base.sync_file(Ino::ROOT, false).unwrap()
            }
        });
    });
    let left = setup.crashed();
    for (thread, n) in (0..THREADS).flat_map(|thread| (0..FILES).map(move |n| (thread, n))) {
        let name = format!("mail-{thread}-{n}");
        let contents = left.read(format!("/old/{name}"));
        assert!(n % 7 == 0 || contents.unwrap() == name.as_bytes(), "{name}");
    }
    setup.volume.close().unwrap();
    assert_sound(setup.device.clone());
}
