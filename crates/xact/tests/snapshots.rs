//! Snapshots through the library: what is seen, what a full pool does, what opening costs.

use std::sync::Arc;

use xact::mkfs::{MkfsOptions, mkfs_generations};
use xact::{BlockDevice, Error, FileDevice, Ino, MemoryDevice, OpenMode, PathExt, Volume, VolumeOptions};
use xact_consistency::{EngineOptions, open_generations};
use xact_device::CountingDevice;
use xact_fs::{Allocate, SetAttr, WriteHow};

const MIB: u64 = 1 << 20;

fn options() -> VolumeOptions {
    VolumeOptions { flusher: false, ..VolumeOptions::default() }
}

fn made(size: u64, pool: u64) -> Arc<dyn BlockDevice> {
    let device: Arc<dyn BlockDevice> = Arc::new(MemoryDevice::new(size));
    let options = MkfsOptions { block_size: Some(1024), zeroed: true, ..MkfsOptions::default() };
    mkfs_generations(&device, &options, Some(pool)).unwrap();
    device
}

/// Writes over a file of the root folder from its start, in place where the volume does so.
fn overwrite(volume: &Volume, name: &str, contents: &[u8]) -> xact::Result<()> {
    let ino = volume.base().lookup(Ino::ROOT, name.as_bytes())?.ino;
    for (n, part) in contents.chunks(64 << 10).enumerate() {
        volume.base().write(ino, (n as u64) << 16, part, WriteHow::default())?;
    }
    volume.sync()
}

/// Overwrites a file of the root folder that a snapshot has in place, block by block and each
/// durable before the next, until the pool is full.
fn fill_pool(volume: &Volume, name: &str) {
    let ino = volume.base().lookup(Ino::ROOT, name.as_bytes()).unwrap().ino;
    let blocks = volume.base().attr(ino).unwrap().size / 1024;
    let filled = (0..blocks).find(|&n| {
        let write = volume.base().write(ino, n * 1024, &[3; 1024], WriteHow::default());
        write.and_then(|_| volume.base().sync_file(ino, false)).is_err()
    });
    assert!(filled.is_some(), "the pool took everything");
}

/// A file of the snapshot, read from its exported image.
fn read_from(device: &Arc<dyn BlockDevice>, snapshot: &str, path: &str) -> Vec<u8> {
    let engine_options = EngineOptions { read_only: true, ..EngineOptions::default() };
    let engine = open_generations(device.clone(), engine_options).unwrap();
    let out = Arc::new(MemoryDevice::new(engine.volume_bytes()));
    engine.snapshots().unwrap().image(Some(snapshot)).unwrap().export(&*out).unwrap();
    let volume = Volume::open(out, &options()).unwrap();
    volume.read(path).unwrap()
}

#[test]
fn a_full_pool_says_so_and_recovers_when_a_snapshot_goes() {
    let device = made(24 * MIB, 4 * MIB);
    let volume = Volume::open(device.clone(), &options()).unwrap();
    let old = vec![1; 3 * MIB as usize];
    volume.write("/file", &old).unwrap();
    volume.write("/filler", &old[..MIB as usize]).unwrap();
    volume.create_snapshot("old").unwrap();
    let mut refused = 0;
    for round in 2..30u8 {
        let new = vec![round; 400 << 10];
        let made = volume.write(format!("/file{round}"), &new).and_then(|()| volume.sync());
        match made.and(overwrite(&volume, "file", &vec![round; 3 * MIB as usize])) {
            Ok(()) => {}
            Err(Error::NoSpace) => refused += 1,
            Err(other) => panic!("round {round}: {other}"),
        }
    }
    assert!(refused > 0, "four mebibytes of pool took everything");
    volume.health().expect("a full pool does not poison the volume");
    fill_pool(&volume, "filler");
    assert!(matches!(volume.create_snapshot("another"), Err(Error::NoSpace)));
    volume.delete_snapshot("old").unwrap();
    overwrite(&volume, "file", &vec![77; 3 * MIB as usize]).unwrap();
    volume.close().unwrap();
    let volume = Volume::open(device, &options()).unwrap();
    assert_eq!(volume.read("/file").unwrap(), vec![77; 3 * MIB as usize]);
    assert!(volume.snapshots().unwrap().is_empty());
}

/// Two snapshots of an overwritten file fill the pool, though the first alone has little in it.
#[test]
fn who_holds_the_pool_is_told() {
    let device = made(48 * MIB, 8 * MIB);
    let volume = Volume::open(device, &options()).unwrap();
    const LEN: u64 = MIB;
    let pool = || {
        let pool = volume.pool_use().unwrap().unwrap();
        let parts = pool.snapshots_bytes + pool.displaced_bytes + pool.newest_bytes + pool.log_bytes;
        assert_eq!(parts, pool.used_bytes, "{pool:?}");
        pool
    };
    volume.write("/file", vec![1; LEN as usize]).unwrap();
    volume.sync().unwrap();
    let empty = pool();
    assert_eq!((empty.snapshots_bytes, empty.displaced_bytes), (0, 0));
    assert!(empty.log_bytes > 0 && empty.size_bytes > 7 * MIB, "{empty:?}");
    volume.create_snapshot("first").unwrap();
    overwrite(&volume, "file", &vec![2; LEN as usize]).unwrap();
    // The first has its contents at home, so the volume's own are in the pool on its account.
    let one = pool();
    assert!(one.displaced_bytes >= LEN && one.snapshots_bytes < LEN / 4, "{one:?}");
    assert!(volume.snapshots().unwrap()[0].own_bytes >= LEN);
    volume.create_snapshot("second").unwrap();
    overwrite(&volume, "file", &vec![3; LEN as usize]).unwrap();
    let two = pool();
    assert!(two.displaced_bytes >= LEN && two.snapshots_bytes >= LEN, "{two:?}");
    let own: Vec<u64> = volume.snapshots().unwrap().iter().map(|snapshot| snapshot.own_bytes).collect();
    assert!(own.iter().all(|own| *own >= LEN), "each holds the place of one version: {own:?}");
    // This change is only in memory until the next generation.
    volume.write("/small", b"small").unwrap();
    assert!(volume.pool_use().unwrap().unwrap().in_flight_bytes > 0);
    volume.delete_snapshot("second").unwrap();
    assert!(pool().used_bytes + LEN <= two.used_bytes, "{:?}", pool());
    volume.delete_snapshot("first").unwrap();
    let none = pool();
    assert_eq!((none.snapshots_bytes, none.displaced_bytes), (0, 0));
}

/// Every kind of change, by path, between snapshots and against now.
#[test]
fn what_differs_is_told_by_path() {
    let device = made(48 * MIB, 8 * MIB);
    let volume = Volume::open(device.clone(), &options()).unwrap();
    let base = volume.base();
    for dir in 0..12 {
        volume.create_dir_all(format!("/d{dir}/deep")).unwrap();
        for n in 0..40 {
            volume.write(format!("/d{dir}/deep/{n}"), b"as it was").unwrap();
        }
    }
    volume.create_snapshot("old").unwrap();
    let lines = |old: &str, new: Option<&str>| -> Vec<String> {
        let found = volume.diff_snapshots(old, new).unwrap();
        let text = |path: &[u8]| String::from_utf8_lossy(path).into_owned();
        let line = |d: &xact::Difference| match &d.from {
            Some(from) => format!("{:?} {} -> {}", d.what, text(from), text(&d.path)),
            None => format!("{:?} {}", d.what, text(&d.path)),
        };
        found.iter().map(line).collect()
    };
    assert_eq!(lines("old", None), Vec::<String>::new(), "nothing has happened");
    volume.write("/d3/deep/7", b"modified under its name").unwrap();
    volume.write("/d3/deep/new", b"new").unwrap();
    volume.remove_file("/d4/deep/0").unwrap();
    volume.rename("/d5/deep/1", "/d6/deep/renamed").unwrap();
    volume.write("/d7/deep/other", b"takes the place").unwrap();
    volume.rename("/d7/deep/other", "/d7/deep/2").unwrap();
    volume.create_dir_all("/d8/folder/below").unwrap();
    volume.rename("/d9/deep", "/d9/moved").unwrap();
    let changed = base.lookup(Ino::ROOT, b"d10").unwrap().ino;
    let change = xact::SetAttr { perm: Some(0o700), ..Default::default() };
    base.set_attr(&xact::Caller::ROOT, changed, &change).unwrap();
    let expected = [
        "Attributes /d10",
        "Modified /d3/deep/7",
        "Added /d3/deep/new",
        "Deleted /d4/deep/0",
        "Renamed /d5/deep/1 -> /d6/deep/renamed",
        "Modified /d7/deep/2",
        "Added /d8/folder",
        "Added /d8/folder/below",
        "Renamed /d9/deep -> /d9/moved",
    ];
    assert_eq!(lines("old", None), expected);
    volume.create_snapshot("new").unwrap();
    assert_eq!(lines("old", Some("new")), expected);
    assert_eq!(lines("new", None), Vec::<String>::new());
    // The other way round: what a restore would do.
    let back = lines("new", Some("old"));
    assert!(back.contains(&"Deleted /d3/deep/new".into()), "{back:?}");
    assert!(back.contains(&"Added /d4/deep/0".into()), "{back:?}");
    assert!(back.contains(&"Renamed /d6/deep/renamed -> /d5/deep/1".into()), "{back:?}");
    assert!(matches!(volume.diff_snapshots("none", None), Err(Error::Usage(_))));
    // The cost of a comparison is in proportion to the differences, not to the contents.
    volume.write("/d11/deep/39", b"one more").unwrap();
    volume.sync().unwrap();
    volume.close().unwrap();
    let options = EngineOptions { read_only: true, ..EngineOptions::default() };
    let engine = open_generations(device, options).unwrap();
    let (few, many) = (
        engine.snapshots().unwrap().changed_blocks("new", None).unwrap(),
        engine.snapshots().unwrap().changed_blocks("old", None).unwrap(),
    );
    assert!(few.len() < 16 && few.len() < many.len(), "{few:?} {many:?}");
}

/// Accepted overwrites have their space in the pool, even if it fills before they are written back.
#[test]
fn what_was_accepted_finds_room_in_a_pool_that_fills() {
    let device = made(24 * MIB, 4 * MIB);
    let volume = Volume::open(device.clone(), &options()).unwrap();
    let (old, filler) = (vec![1; 1 << 20], vec![1; 2 << 20]);
    volume.write("/file", &old).unwrap();
    volume.write("/filler", &filler).unwrap();
    volume.create_snapshot("old").unwrap();
    let ino = |name: &str| volume.base().lookup(Ino::ROOT, name.as_bytes()).unwrap().ino;
    let (file, other) = (ino("file"), ino("filler"));
    volume.base().write(file, 0, &vec![2; 1 << 20], WriteHow::default()).unwrap();
    fill_pool(&volume, "filler");
    assert!(matches!(volume.base().write(other, 0, &filler, WriteHow::default()), Err(Error::NoSpace)));
    volume.sync().expect("what was accepted is promised its places");
    volume.health().unwrap();
    assert_eq!(volume.read("/file").unwrap(), vec![2; 1 << 20]);
    drop(volume);
    assert_eq!(read_from(&device, "old", "/file"), old);
    let volume = Volume::open(device.clone(), &options()).unwrap();
    assert_eq!(volume.read("/file").unwrap(), vec![2; 1 << 20]);
    volume.delete_snapshot("old").unwrap();
    volume.base().write(other, 0, &filler, WriteHow::default()).unwrap();
    volume.close().unwrap();
    let report = xact_check::check(device, &mut |_, _| ()).unwrap();
    assert!(report.is_sound(), "{:?}", report.problems);
}

/// Whatever the use of the pool, an operation on contents fails with "no space" or its result
/// reaches the device: parts of blocks, reserved ranges, holes, sizes, and snapshots of dirty
/// files.
#[test]
fn no_sync_says_that_there_is_no_space() {
    const FILES: usize = 6;
    const LEN: usize = 96 << 10;
    let device = made(16 * MIB, 4 * MIB);
    let volume = Volume::open(device.clone(), &options()).unwrap();
    let caller = xact_fs::Caller::ROOT;
    let mut seed = 7u64;
    let mut random = |below: usize| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (seed >> 33) as usize % below
    };
    let names: Vec<String> = (0..FILES).map(|n| format!("/{n}")).collect();
    let mut files: Vec<(Ino, Vec<u8>)> = Vec::new();
    for name in &names {
        volume.write(name, vec![9; LEN / 2]).unwrap();
        files.push((volume.base().lookup(Ino::ROOT, &name.as_bytes()[1..]).unwrap().ino, vec![9; LEN / 2]));
    }
    let (mut refused, mut snapshots) = (0, 0);
    for round in 0..3000 {
        let chosen = random(FILES);
        let (ino, model) = &mut files[chosen];
        let offset = random(LEN - 1);
        let len = 1 + random((LEN - offset).min(if round % 3 == 0 { 40_000 } else { 900 }));
        let (from, to) = (offset as u64, (offset + len) as u64);
        let base = volume.base();
        let (kind, before) = (random(8), base.attr(*ino).unwrap());
        let result = match kind {
            0..=3 => base.write(*ino, from, &vec![round as u8; len], WriteHow::default()).map(|_| {
                model.resize(model.len().max(offset + len), 0);
                model[offset..offset + len].fill(round as u8);
            }),
            4 => base.allocate(&caller, *ino, from, len as u64, Allocate::PunchHole).map(|()| {
                let end = (offset + len).min(model.len());
                model[offset.min(end)..end].fill(0);
            }),
            5 => base
                .allocate(&caller, *ino, from, len as u64, Allocate::ZeroRange { keep_size: false })
                .map(|()| {
                    model.resize(model.len().max(offset + len), 0);
                    model[offset..offset + len].fill(0);
                }),
            6 => base
                .allocate(&caller, *ino, from, len as u64, Allocate::Reserve { keep_size: false })
                .map(|()| model.resize(model.len().max(offset + len), 0)),
            _ => {
                let change = SetAttr { size: Some(to), ..SetAttr::default() };
                base.set_attr(&caller, *ino, &change).map(|_| model.resize(to as usize, 0))
            }
        };
        match result {
            Ok(()) => {}
            Err(Error::NoSpace) => {
                refused += 1;
                if kind <= 3 {
                    let blocks = base.attr(*ino).unwrap().sectors;
                    assert_eq!(blocks, before.sectors, "a write that is refused leaves no blocks");
                }
                // An operation that is refused may have been done in part, as by POSIX.
                *model = volume.read(&names[chosen]).unwrap();
            }
            Err(other) => panic!("round {round}: {other}"),
        }
        if random(40) == 0 {
            volume.sync().unwrap_or_else(|error| panic!("round {round}: {error}"));
        }
        if random(60) == 0 {
            match volume.create_snapshot(&format!("s{round}")) {
                Ok(()) => snapshots += 1,
                Err(Error::NoSpace) => {
                    for info in volume.snapshots().unwrap() {
                        volume.delete_snapshot(&info.name).unwrap();
                    }
                }
                Err(other) => panic!("round {round}: {other}"),
            }
        }
    }
    assert!(refused > 50 && snapshots > 5, "{refused} refused, {snapshots} snapshots");
    volume.sync().unwrap();
    drop(volume);
    let volume = Volume::open(device.clone(), &options()).unwrap();
    for (name, (_, model)) in names.iter().zip(&files) {
        assert!(volume.read(name).unwrap() == *model, "{name}");
    }
    volume.close().unwrap();
    let report = xact_check::check(device, &mut |_, _| ()).unwrap();
    assert!(report.is_sound(), "{:?}", report.problems);
}

/// Deleting files works on a full pool, and so do unmounting and mounting. The remaining files are
/// complete. A change for which the pool has no space is refused at once.
#[test]
fn a_full_pool_lets_files_go() {
    let device = made(24 * MIB, 4 * MIB);
    let volume = Volume::open(device.clone(), &options()).unwrap();
    for n in 0..200 {
        volume.create_dir_all(format!("/{}", n % 20)).unwrap();
        volume.write(format!("/{}/{n}", n % 20), vec![n as u8; 3000]).unwrap();
    }
    let filler = vec![1; 3 * MIB as usize];
    volume.write("/filler", &filler).unwrap();
    volume.create_snapshot("old").unwrap();
    fill_pool(&volume, "filler");
    assert!(matches!(volume.write("/new", b"new"), Err(Error::NoSpace)));
    volume.sync().expect("what has no place was not accepted");
    volume.remove_file("/filler").unwrap();
    for n in 0..100 {
        volume.remove_file(format!("/{}/{n}", n % 20)).unwrap();
        if n % 10 == 0 {
            volume.sync().unwrap();
        }
    }
    volume.close().unwrap();
    let volume = Volume::open(device.clone(), &options()).unwrap();
    for n in 100..150 {
        volume.remove_file(format!("/{}/{n}", n % 20)).unwrap();
    }
    // A crash with a change that was not synced: the change is complete or absent.
    volume.sync().unwrap();
    volume.remove_file("/19/199").unwrap();
    drop(volume);
    let volume = Volume::open(device.clone(), &options()).unwrap();
    for n in 150..199 {
        let contents = volume.read(format!("/{}/{n}", n % 20)).unwrap();
        assert_eq!(contents, vec![n as u8; 3000], "file {n}");
    }
    volume.delete_snapshot("old").unwrap();
    volume.write("/new", b"new").unwrap();
    volume.close().unwrap();
    let report = xact_check::check(device, &mut |_, _| ()).unwrap();
    assert!(report.is_sound(), "{:?}", report.problems);
}

#[test]
fn overwritten_and_reused_blocks_stay_as_the_snapshots_have_them() {
    let device = made(32 * MIB, 8 * MIB);
    let volume = Volume::open(device.clone(), &options()).unwrap();
    let contents = |n: u8| vec![n; 300 << 10];
    for n in 1..=4 {
        volume.write("/overwritten", contents(n)).unwrap();
        volume.write(format!("/only{n}"), contents(100 + n)).unwrap();
        volume.create_snapshot(&format!("s{n}")).unwrap();
        overwrite(&volume, "overwritten", &contents(50 + n)).unwrap();
        // Given back, and taken by the next round's files.
        volume.write(format!("/only{n}"), b"").unwrap();
        volume.sync().unwrap();
    }
    volume.delete_snapshot("s2").unwrap();
    assert_eq!(volume.read("/overwritten").unwrap(), contents(54));
    volume.close().unwrap();
    for n in [1, 3, 4] {
        let name = format!("s{n}");
        assert_eq!(read_from(&device, &name, "/overwritten"), contents(n), "{name}");
        assert_eq!(read_from(&device, &name, &format!("/only{n}")), contents(100 + n), "{name}");
    }
}

/// SNAP-8, of the whole volume, and a look at its root: groups are read when they are first needed.
#[test]
fn opening_a_volume_costs_the_same_whatever_its_size() {
    let mut reads = Vec::new();
    for size in [1 << 10, 16 << 10, 256 << 10].map(|mib| mib * MIB) {
        let file = tempfile::NamedTempFile::new().unwrap();
        file.as_file().set_len(size).unwrap();
        let device: Arc<dyn BlockDevice> =
            Arc::new(FileDevice::open(file.path(), OpenMode::ReadWrite).unwrap());
        let format = MkfsOptions { block_size: Some(4096), zeroed: true, ..MkfsOptions::default() };
        mkfs_generations(&device, &format, Some(256 * MIB)).unwrap();
        Volume::open(device.clone(), &options()).unwrap().write("/file", b"").unwrap();
        let counting = Arc::new(CountingDevice::new(device));
        let volume = Volume::open(counting.clone(), &options()).unwrap();
        assert!(volume.base().lookup(Ino::ROOT, b"lost+found").is_ok());
        reads.push(counting.counts().reads);
        assert_eq!(counting.counts().writes, 0, "nothing is written to read");
    }
    // A path of the map is a node longer where the volume is 512 times as large.
    assert!(reads[2] <= reads[0] + 2, "{reads:?}");
}

/// A crash leaves nothing to be read but the two roots and the list of snapshots.
#[test]
fn opening_the_engine_costs_the_same_whatever_happened() {
    let mut reads = Vec::new();
    for (size, files, snapshots) in [(16 * MIB, 0, 0), (256 * MIB, 3000, 0), (256 * MIB, 3000, 8)] {
        let device = made(size, 8 * MIB);
        let volume = Volume::open(device.clone(), &options()).unwrap();
        for n in 0..snapshots {
            volume.create_snapshot(&format!("s{n}")).unwrap();
        }
        for n in 0..files {
            volume.write(format!("/{n}"), b"").unwrap();
        }
        volume.sync().unwrap();
        volume.write("/lost", b"lost").unwrap();
        drop(volume);
        let counting = Arc::new(CountingDevice::new(device));
        let engine = open_generations(counting.clone(), EngineOptions::default()).unwrap();
        assert_eq!(engine.snapshots().unwrap().times().len(), snapshots);
        let counts = counting.counts();
        assert_eq!(counts.writes, 0, "nothing is written to read");
        reads.push(counts.reads);
    }
    assert_eq!(reads[0], reads[1], "superblock and two roots");
    assert!(reads[2] <= reads[0] + 1, "the list: {reads:?}");
}
