//! Transactions on real volumes of mke2fs behave as in memory; e2fsck finds the volumes consistent.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;

use tempfile::TempDir;
use xact_device::{CountingDevice, FileDevice, OpenMode};
use xact_fs::volume::VolumeOptions;
use xact_fs::{Allocate, Attr, Caller, LiveFs, SetAttr, View, WriteHow, XattrHow};
use xact_types::{Error, Ino};

use super::history::history;
use super::ops::{Op, Rng, USER, dump, run};
use crate::mem_fs::MemFs;
use crate::{Durability, Isolation, Transaction, TxOptions};

pub(super) struct Volume {
    _dir: TempDir,
    pub image: PathBuf,
}

impl Volume {
    pub fn new(size_mib: u64, options: &[&str]) -> Volume {
        let dir = TempDir::new().unwrap();
        let image = dir.path().join("volume");
        std::fs::File::create(&image).unwrap().set_len(size_mib << 20).unwrap();
        let mke2fs =
            Command::new("mke2fs").args(["-q", "-F", "-t", "ext4"]).args(options).arg(&image).output();
        let mke2fs = mke2fs.expect("mke2fs is needed (package e2fsprogs)");
        assert!(mke2fs.status.success(), "{}", String::from_utf8_lossy(&mke2fs.stderr));
        Volume { _dir: dir, image }
    }

    pub fn open(&self) -> Arc<LiveFs> {
        self.open_with(VolumeOptions::default().cache_bytes)
    }

    pub fn open_with(&self, cache_bytes: u64) -> Arc<LiveFs> {
        let device = Arc::new(FileDevice::open(&self.image, OpenMode::ReadWrite).unwrap());
        let options = VolumeOptions { flusher: false, cache_bytes, ..VolumeOptions::default() };
        xact_fs::open(device, &options).unwrap()
    }

    pub fn check(&self, what: &str) {
        let check = Command::new("e2fsck").arg("-fn").arg(&self.image).output();
        let check = check.expect("e2fsck is needed (package e2fsprogs)");
        assert!(check.status.success(), "{what}: {}", String::from_utf8_lossy(&check.stdout));
    }
}

pub(super) fn begin(base: &Arc<LiveFs>) -> Transaction<LiveFs> {
    Transaction::begin(base, TxOptions::default())
}

/// Number of spilled blocks of a transaction.
pub(super) fn spilled_blocks(tx: &Transaction<LiveFs>) -> usize {
    tx.with_overlay(|overlay| {
        let blocks = overlay.nodes.values().flat_map(|node| node.file.blocks.values().flatten());
        blocks.filter(|block| block.in_memory().is_none()).count()
    })
}

/// All inodes of a view by path, with the attributes that a commit must not change.
fn attributes(view: &dyn View) -> BTreeMap<String, Attr> {
    let mut out = BTreeMap::new();
    let mut todo = vec![(String::new(), Ino::ROOT)];
    while let Some((path, ino)) = todo.pop() {
        let mut attr = view.attr(ino).unwrap();
        (attr.sectors, attr.generation) = (0, 0);
        attr.flags &= xact_layout::inode::flag::USER_MODIFIABLE;
        if attr.is_dir() {
            attr.size = 0;
            view.read_dir(ino, 2, &mut |item| {
                todo.push((format!("{path}/{}", String::from_utf8_lossy(item.name)), item.ino));
                true
            })
            .unwrap();
        }
        out.insert(path, attr);
    }
    out
}

/// Random operations in transactions on one volume and outside on another have the same results and
/// leave the same tree, also after both were reopened. Inode numbers, times and owners are the same
/// in the transaction and after its commit. e2fsck finds no problem.
#[test]
fn inside_and_commit_is_the_same_as_outside() {
    let kinds: [&[&str]; 3] = [&["-b", "1024"], &["-b", "4096"], &["-b", "1024", "-O", "^has_journal"]];
    for seed in 0..24 {
        let mut rng = Rng(seed);
        let options = kinds[seed as usize % kinds.len()];
        let volumes = [Volume::new(16, options), Volume::new(16, options)];
        let [one, two] = [volumes[0].open(), volumes[1].open()];
        for round in 0..8 {
            let tx = begin(&one);
            for step in 0..rng.below(50) {
                let op = Op::random(&mut rng);
                // Blocks reserved by fallocate are data to one and a hole to the other.
                if matches!(op, Op::Seek(..)) {
                    continue;
                }
                let inside = run(&tx, &op).comparable();
                let outside = run(&*two, &op).comparable();
                assert_eq!(inside, outside, "seed {seed}, round {round}, step {step}: {op:?}");
            }
            // A net effect always remains, so that times of directories are committed.
            let last = Op::Create(format!("round-{round}"));
            assert_eq!(run(&tx, &last).comparable(), run(&*two, &last).comparable());
            let in_view = attributes(&tx);
            tx.commit().unwrap_or_else(|e| panic!("seed {seed}, round {round}: {e}"));
            assert_eq!(attributes(&*one), in_view, "seed {seed}, round {round}");
            assert_eq!(dump(&*one, false), dump(&*two, false), "seed {seed}, round {round}");
        }
        let before = dump(&*one, true);
        one.close().unwrap();
        two.close().unwrap();
        drop((one, two));
        for volume in &volumes {
            volume.check(&format!("seed {seed}"));
        }
        let again = volumes[0].open();
        assert_eq!(dump(&*again, true), before, "seed {seed}, opened again");
        again.close().unwrap();
    }
}

/// Concurrent histories on a real volume are serializable: they are replayed on a tree in memory.
#[test]
fn histories_are_serializable() {
    let (mut committed, mut conflicts) = (0, 0);
    for round in 0..4 {
        let volume = Volume::new(32, &["-b", "1024"]);
        let base = volume.open();
        base.remove_dir(&USER, Ino::ROOT, b"lost+found").unwrap();
        let replay = MemFs::new(1024);
        for seed in 0..40 {
            let mut rng = Rng(1000 * round + seed);
            for _ in 0..20 {
                let op = Op::random(&mut rng);
                run(&*base, &op);
                run(&*replay, &op);
            }
            // Blocks reserved by fallocate are data to one and a hole to the other.
            let usable = |op: &Op| !matches!(op, Op::Seek(..));
            let seed = rng.0;
            let (c, f) = history(seed, &mut rng, &base, &replay, Isolation::Serializable, usable).unwrap();
            committed += c;
            conflicts += f;
        }
        base.close().unwrap();
        drop(base);
        volume.check(&format!("round {round}"));
    }
    assert!(committed > 100, "{committed} commits");
    assert!(conflicts > 50, "{conflicts} conflicts");
}

/// Threads increment counters in two files together in transactions, while other transactions read
/// them: no reader sees them differ, and no increment is lost.
#[test]
fn counters_in_two_files_stay_equal() {
    let volume = Volume::new(32, &["-b", "4096"]);
    let base = volume.open();
    let files = [b"a", b"b"].map(|name| base.make_node(&USER, Ino::ROOT, name, 0o100644, 0).unwrap().ino);
    for file in files {
        base.write(file, 0, &[0; 8], WriteHow::default()).unwrap();
    }
    let look = |view: &dyn View| {
        files.map(|file| {
            let mut bytes = Vec::new();
            view.read(file, 0, 8, &mut bytes).unwrap();
            u64::from_le_bytes(bytes.try_into().unwrap())
        })
    };
    let raise = || {
        let tx = begin(&base);
        let [a, b] = look(&tx);
        assert_eq!(a, b);
        for file in files {
            match tx.write(file, 0, &(a + 1).to_le_bytes(), WriteHow::default()) {
                Ok(_) => {}
                Err(Error::Conflict { .. }) => return 0,
                Err(other) => panic!("{other}"),
            }
        }
        match tx.commit_with(Durability::Ordered) {
            Ok(()) => 1,
            Err(Error::Conflict { path, .. }) => {
                assert!(path.starts_with("<inode"), "{path}");
                0
            }
            Err(other) => panic!("{other}"),
        }
    };
    let raised: u64 = std::thread::scope(|scope| {
        let writers: Vec<_> =
            (0..3).map(|_| scope.spawn(|| (0..200).map(|_| raise()).sum::<u64>())).collect();
        for _ in 0..300 {
            let tx = begin(&base);
            let [a, b] = look(&tx);
            assert_eq!(a, b);
            tx.commit().unwrap();
        }
        writers.into_iter().map(|writer| writer.join().unwrap()).sum()
    });
    assert!(raised >= 200, "one transaction always commits");
    assert_eq!(look(&*base), [raised; 2]);
    base.close().unwrap();
    drop(base);
    volume.check("after counters");
}

/// Concurrent transactions in different folders never conflict, even with concurrent changes
/// outside.
#[test]
fn different_folders_never_conflict() {
    let volume = Volume::new(64, &["-b", "4096"]);
    let base = volume.open();
    for i in 0..4 {
        base.make_dir(&USER, Ino::ROOT, format!("dir-{i}").as_bytes(), 0o755).unwrap();
    }
    std::thread::scope(|scope| {
        for i in 0..4 {
            let base = &base;
            scope.spawn(move || {
                let dir = base.resolve(Ino::ROOT, format!("dir-{i}").as_bytes()).unwrap().ino;
                for n in 0..25 {
                    let tx = begin(base);
                    for k in 0..4 {
                        let name = format!("{n}-{k}");
                        let ino = tx.make_node(&USER, dir, name.as_bytes(), 0o100644, 0).unwrap().ino;
                        tx.write(ino, 0, &vec![k as u8; 3000 * k], WriteHow::default()).unwrap();
                    }
                    if n > 0 {
                        tx.unlink(&USER, dir, format!("{}-0", n - 1).as_bytes()).unwrap();
                    }
                    tx.commit().unwrap();
                }
            });
        }
        for n in 0..50 {
            base.make_node(&USER, Ino::ROOT, format!("out-{n}").as_bytes(), 0o100644, 0).unwrap();
        }
    });
    let mut names = 0;
    for path in dump(&*base, false).keys() {
        names += usize::from(path.starts_with("/dir-"));
    }
    assert_eq!(names, 4 + 4 * (25 * 4 - 24));
    base.close().unwrap();
    drop(base);
    volume.check("after threads");
}

/// A commit without enough space leaves no trace, and the volume usable.
#[test]
fn a_full_volume_refuses_a_commit_and_stays_usable() {
    let volume = Volume::new(16, &["-b", "1024", "-m", "0"]);
    let base = volume.open();
    let keep = base.make_node(&USER, Ino::ROOT, b"keep", 0o100644, 0).unwrap().ino;
    base.write(keep, 0, &vec![1; 5 << 20], WriteHow::default()).unwrap();
    let before = dump(&*base, true);
    let tx = begin(&base);
    let ino = tx.make_node(&USER, Ino::ROOT, b"big", 0o100644, 0).unwrap().ino;
    for i in 0..20 {
        tx.write(ino, i << 20, &vec![2; 1 << 20], WriteHow::default()).unwrap();
    }
    assert!(matches!(tx.commit(), Err(Error::NoSpace)));
    assert_eq!(dump(&*base, true), before);
    base.unlink(&USER, Ino::ROOT, b"keep").unwrap();
    let tx = begin(&base);
    let ino = tx.make_node(&USER, Ino::ROOT, b"big", 0o100644, 0).unwrap().ino;
    tx.write(ino, 0, &vec![2; 8 << 20], WriteHow::default()).unwrap();
    tx.commit().unwrap();
    base.close().unwrap();
    drop(base);
    volume.check("after a full volume");
}

/// Space reserved by fallocate in a transaction is allocated by the commit, or the commit fails; no
/// block is taken twice.
#[test]
fn fallocate_finds_its_space_at_the_commit() {
    let volume = Volume::new(32, &["-b", "1024", "-m", "0"]);
    let base = volume.open();
    let old = base.make_node(&USER, Ino::ROOT, b"old", 0o100644, 0).unwrap().ino;
    base.write(old, 100 << 10, &[1; 100 << 10], WriteHow::default()).unwrap();
    base.sync_all().unwrap();
    let before = dump(&*base, true);
    let keep = Allocate::Reserve { keep_size: true };

    let tx = begin(&base);
    let new = tx.make_node(&USER, Ino::ROOT, b"new", 0o100644, 0).unwrap().ino;
    tx.allocate(&Caller::ROOT, new, 0, 100 << 20, keep).unwrap();
    assert!(matches!(tx.commit(), Err(Error::NoSpace)));
    drop(tx);
    assert_eq!(dump(&*base, true), before);

    let tx = begin(&base);
    let new = tx.make_node(&USER, Ino::ROOT, b"new", 0o100644, 0).unwrap().ino;
    tx.allocate(&Caller::ROOT, new, 5000, 1 << 20, Allocate::Reserve { keep_size: false }).unwrap();
    tx.write(new, 200 << 10, &[2; 3000], WriteHow::default()).unwrap();
    tx.allocate(&Caller::ROOT, old, 0, 300 << 10, keep).unwrap();
    tx.allocate(&Caller::ROOT, old, 110 << 10, 20 << 10, Allocate::ZeroRange { keep_size: true }).unwrap();
    let in_view = dump(&tx, true);
    let free = base.space().unwrap().free_blocks;
    tx.commit().unwrap();
    assert_eq!(dump(&*base, true), in_view);
    assert_eq!(base.attr(new).unwrap().sectors / 2, 1025);
    // One more for a node of its extent tree.
    assert_eq!(base.attr(old).unwrap().sectors / 2, 301);
    base.sync_all().unwrap();
    let taken = free - base.space().unwrap().free_blocks;
    assert!((1225..1240).contains(&taken), "{taken} blocks for 1025 + 200");
    base.close().unwrap();
    drop((tx, base));
    volume.check("after fallocate");
    assert_eq!(dump(&*volume.open(), true), in_view);
}

/// A cut to the file's own size frees what was reserved past its end, in a transaction as well.
#[test]
fn a_cut_to_the_own_size_frees_reserved_space() {
    let volume = Volume::new(32, &["-b", "1024"]);
    let base = volume.open();
    let old = base.make_node(&USER, Ino::ROOT, b"old", 0o100644, 0).unwrap().ino;
    base.write(old, 0, &[1; 5000], WriteHow::default()).unwrap();
    base.sync_all().unwrap();
    let before = base.attr(old).unwrap().sectors;
    let keep = Allocate::Reserve { keep_size: true };
    base.allocate(&Caller::ROOT, old, 0, 1 << 20, keep).unwrap();
    let tx = begin(&base);
    let cut = SetAttr { size: Some(5000), ..SetAttr::default() };
    tx.set_attr(&Caller::ROOT, old, &cut).unwrap();
    let new = tx.make_node(&USER, Ino::ROOT, b"new", 0o100644, 0).unwrap().ino;
    tx.allocate(&Caller::ROOT, new, 0, 1 << 20, keep).unwrap();
    tx.set_attr(&Caller::ROOT, new, &SetAttr { size: Some(0), ..cut }).unwrap();
    tx.commit().unwrap();
    assert_eq!(base.attr(old).unwrap().sectors, before);
    assert_eq!(base.attr(new).unwrap().sectors, 0);
    base.close().unwrap();
    drop((tx, base));
    volume.check("after the cut");
}

/// Thousands of files, and random blocks of one file, fit into a journal of ordinary size.
#[test]
fn large_commits_fit() {
    let volume = Volume::new(256, &["-b", "4096"]);
    let base = volume.open();
    let file = base.make_node(&USER, Ino::ROOT, b"database", 0o100644, 0).unwrap().ino;
    base.write(file, 0, &vec![0; 16 << 20], WriteHow::default()).unwrap();
    base.sync_all().unwrap();
    let tx = begin(&base);
    let mut rng = Rng(5);
    for _ in 0..500 {
        tx.write(file, rng.below(4096) * 4096, &[7; 4096], WriteHow::default()).unwrap();
    }
    for d in 0..20 {
        let dir = tx.make_dir(&USER, Ino::ROOT, format!("dir-{d}").as_bytes(), 0o755).unwrap().ino;
        for i in 0..100 {
            let ino =
                tx.make_node(&USER, dir, format!("a file of some name {i}").as_bytes(), 0o100644, 0).unwrap();
            tx.write(ino.ino, 0, &[d as u8; 5000], WriteHow::default()).unwrap();
        }
    }
    let in_view = dump(&tx, true);
    tx.commit().unwrap();
    assert_eq!(dump(&*base, true), in_view);
    base.close().unwrap();
    // Both keep the image locked.
    drop((tx, base));
    volume.check("after a large commit");
    assert_eq!(dump(&*volume.open(), true), in_view);
}

/// Deleted space that an open transaction may still read does not make the volume full for others:
/// that transaction's view then becomes too old, and only it fails.
#[test]
fn an_open_transaction_does_not_make_the_volume_full() {
    let volume = Volume::new(16, &["-b", "1024", "-m", "0"]);
    let base = volume.open();
    let fill = |name: &[u8]| -> xact_types::Result<()> {
        let file = base.make_node(&USER, Ino::ROOT, name, 0o100644, 0)?;
        for at in 0..9 {
            base.write(file.ino, at << 20, &vec![7; 1 << 20], WriteHow::default())?;
        }
        base.sync_all()
    };
    fill(b"one").unwrap();
    let one = base.lookup(Ino::ROOT, b"one").unwrap();
    let tx = begin(&base);
    run(&tx, &Op::Create("new".into()));
    let reader = begin(&base);
    base.unlink(&USER, Ino::ROOT, b"one").unwrap();
    let mut read = Vec::new();
    tx.read(one.ino, 5 << 20, 100, &mut read).unwrap();
    assert_eq!(read, [7; 100]);
    fill(b"two").unwrap();
    assert!(matches!(tx.read(one.ino, 0, 100, &mut read), Err(Error::TooOld)));
    assert!(matches!(tx.commit(), Err(Error::TooOld)));
    // A transaction without changes still commits.
    reader.commit().unwrap();
    let next = begin(&base);
    run(&next, &Op::Create("next".into()));
    next.commit().unwrap();
    base.close().unwrap();
    volume.check("after a snapshot that was too old");
}

/// If old versions exceed their shares of memory and of the volume, the oldest view becomes too
/// old, and both are freed.
#[test]
fn old_versions_have_a_limit() {
    let volume = Volume::new(16, &["-b", "4096"]);
    let device = Arc::new(FileDevice::open(&volume.image, OpenMode::ReadWrite).unwrap());
    // An eighth of this is for old versions.
    let options = VolumeOptions { flusher: false, cache_bytes: 16 << 20, ..VolumeOptions::default() };
    let options = VolumeOptions { version_space_percent: 1, ..options };
    let base = xact_fs::open(device, &options).unwrap();
    let file = base.make_node(&USER, Ino::ROOT, b"f", 0o100644, 0).unwrap();
    let write = |byte: u8, mib: u64| {
        for at in 0..mib {
            base.write(file.ino, at << 20, &vec![byte; 1 << 20], WriteHow::default()).unwrap();
        }
    };
    write(1, 4);
    let oldest = begin(&base);
    write(2, 1);
    let later = begin(&base);
    let seen = |tx: &Transaction<LiveFs>| {
        let mut read = Vec::new();
        tx.read(file.ino, 0, 1, &mut read).map(|()| read[0])
    };
    assert_eq!((seen(&oldest).unwrap(), seen(&later).unwrap()), (1, 2));
    write(3, 1);
    assert!(base.version_bytes() <= 2 << 20);
    assert!(matches!(seen(&oldest), Err(Error::TooOld)));
    assert_eq!(seen(&later).unwrap(), 2);
    drop((oldest, later));
    assert_eq!((base.version_bytes(), base.spilled_versions()), (0, 0));
    base.close().unwrap();
    volume.check("after a limit on old versions");
}

/// A file created and deleted in a transaction causes no I/O, even if it was written and synced.
#[test]
fn a_file_created_and_deleted_inside_causes_no_io() {
    let volume = Volume::new(16, &["-b", "1024"]);
    let file = Arc::new(FileDevice::open(&volume.image, OpenMode::ReadWrite).unwrap());
    let device = Arc::new(CountingDevice::new(file));
    let options = VolumeOptions { flusher: false, ..VolumeOptions::default() };
    let base = xact_fs::open(device.clone(), &options).unwrap();
    base.sync_all().unwrap();
    let before = device.counts();
    for _ in 0..10 {
        let tx = begin(&base);
        let file = tx.make_node(&USER, Ino::ROOT, b"log", 0o100644, 0).unwrap();
        tx.write(file.ino, 0, &vec![7; 3 << 20], WriteHow::default()).unwrap();
        tx.sync_file(file.ino, false).unwrap();
        tx.unlink(&USER, Ino::ROOT, b"log").unwrap();
        tx.sync_all().unwrap();
        tx.commit().unwrap();
    }
    let after = device.counts();
    assert_eq!((after.writes, after.flushes), (before.writes, before.flushes));
    base.close().unwrap();
}

/// Attributes that an inode cannot hold are refused at the call; if another commit has used the
/// space since, at the commit. They never fail half-way through it, which would poison the volume.
#[test]
fn attributes_that_do_not_fit_are_refused_and_stop_nothing() {
    let volume = Volume::new(16, &["-b", "1024"]);
    let base = volume.open();
    let old = base.make_node(&Caller::ROOT, Ino::ROOT, b"old", 0o100_644, 0).unwrap().ino;
    let set = |view: &dyn View, ino, name: &[u8], len| {
        view.set_xattr(&Caller::ROOT, ino, name, &vec![7; len], XattrHow::Set)
    };
    let tx = begin(&base);
    let new = tx.make_node(&Caller::ROOT, Ino::ROOT, b"new", 0o100_644, 0).unwrap().ino;
    for ino in [old, new] {
        set(&tx, ino, b"user.one", 700).unwrap();
        assert!(matches!(set(&tx, ino, b"user.two", 700), Err(Error::DoesNotFit(_))));
        assert!(matches!(set(&tx, ino, b"user.three", 5000), Err(Error::DoesNotFit(_))));
        set(&tx, ino, b"user.four", 100).unwrap();
    }
    // Another attribute is not a conflict, but both do not fit.
    set(&*base, old, b"user.five", 700).unwrap();
    let refused = tx.commit();
    assert!(matches!(refused, Err(Error::DoesNotFit(_))), "{refused:?}");
    base.engine().health().unwrap();

    let tx = begin(&base);
    tx.make_node(&Caller::ROOT, Ino::ROOT, b"new", 0o100_644, 0).unwrap();
    tx.commit().unwrap();
    base.close().unwrap();
    volume.check("after a refused commit");
}
