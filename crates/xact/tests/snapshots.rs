//! Snapshots through the library: what is seen, what a full pool does, what opening costs.

use std::sync::Arc;

use xact::mkfs::{MkfsOptions, mkfs_generations};
use xact::{BlockDevice, Error, Files, Ino, MemoryDevice, Volume, VolumeOptions};
use xact_consistency::{EngineOptions, GenerationsEngine};
use xact_device::CountingDevice;
use xact_fs::WriteHow;

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
    volume.base().write(ino, 0, contents, WriteHow::default())?;
    volume.sync()
}

/// A file of the snapshot, read from its exported image.
fn read_from(device: &Arc<dyn BlockDevice>, snapshot: &str, path: &str) -> Vec<u8> {
    let engine_options = EngineOptions { read_only: true, ..EngineOptions::default() };
    let engine = GenerationsEngine::open(device.clone(), engine_options).unwrap();
    let out = Arc::new(MemoryDevice::new(engine.volume_bytes()));
    engine.image(Some(snapshot)).unwrap().export(&*out).unwrap();
    let volume = Volume::open(out, &options()).unwrap();
    volume.base().read_file(path).unwrap()
}

#[test]
fn a_full_pool_says_so_and_recovers_when_a_snapshot_goes() {
    let device = made(24 * MIB, 4 * MIB);
    let volume = Volume::open(device.clone(), &options()).unwrap();
    let old = vec![1; 3 * MIB as usize];
    volume.base().write_file("/file", &old).unwrap();
    volume.create_snapshot("old").unwrap();
    let mut refused = 0;
    for round in 2..30u8 {
        let new = vec![round; 400 << 10];
        let made = volume.base().write_file(format!("/file{round}"), &new).and_then(|()| volume.sync());
        match made.and(overwrite(&volume, "file", &vec![round; 3 * MIB as usize])) {
            Ok(()) => {}
            Err(Error::NoSpace) => refused += 1,
            Err(other) => panic!("round {round}: {other}"),
        }
    }
    assert!(refused > 0, "four mebibytes of pool took everything");
    volume.health().expect("a full pool is no damage");
    assert!(matches!(volume.create_snapshot("another"), Err(Error::NoSpace)));
    volume.delete_snapshot("old").unwrap();
    overwrite(&volume, "file", &vec![77; 3 * MIB as usize]).unwrap();
    volume.close().unwrap();
    let volume = Volume::open(device, &options()).unwrap();
    assert_eq!(volume.base().read_file("/file").unwrap(), vec![77; 3 * MIB as usize]);
    assert!(volume.snapshots().unwrap().is_empty());
}

/// Two snapshots of a file that is written over hold the pool, though the first alone has little in it.
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
    volume.base().write_file("/file", &vec![1; LEN as usize]).unwrap();
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
    // What is only in memory until the next generation.
    volume.base().write_file("/small", b"small").unwrap();
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
        base.create_dir_all(format!("/d{dir}/deep")).unwrap();
        for n in 0..40 {
            base.write_file(format!("/d{dir}/deep/{n}"), b"as it was").unwrap();
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
    base.write_file("/d3/deep/7", b"modified under its name").unwrap();
    base.write_file("/d3/deep/new", b"new").unwrap();
    base.remove_file("/d4/deep/0").unwrap();
    base.rename_path("/d5/deep/1", "/d6/deep/renamed").unwrap();
    base.write_file("/d7/deep/other", b"takes the place").unwrap();
    base.rename_path("/d7/deep/other", "/d7/deep/2").unwrap();
    base.create_dir_all("/d8/folder/below").unwrap();
    base.rename_path("/d9/deep", "/d9/moved").unwrap();
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
    // What the engine compares is in proportion to what differs, however much there is.
    let engine = volume.base();
    engine.write_file("/d11/deep/39", b"one more").unwrap();
    volume.sync().unwrap();
    volume.close().unwrap();
    let options = EngineOptions { read_only: true, ..EngineOptions::default() };
    let engine = GenerationsEngine::open(device, options).unwrap();
    let (few, many) =
        (engine.changed_blocks("new", None).unwrap(), engine.changed_blocks("old", None).unwrap());
    assert!(few.len() < 16 && few.len() < many.len(), "{few:?} {many:?}");
}

/// Deleting files works on a full pool, and so do unmounting and mounting; the files that are left are
/// whole. What the pool does not take stays in memory, and `sync` says so, until its file is deleted.
#[test]
fn a_full_pool_lets_files_go() {
    let device = made(24 * MIB, 4 * MIB);
    let volume = Volume::open(device.clone(), &options()).unwrap();
    for n in 0..200 {
        volume.base().create_dir_all(format!("/{}", n % 20)).unwrap();
        volume.base().write_file(format!("/{}/{n}", n % 20), &vec![n as u8; 3000]).unwrap();
    }
    let filler = vec![1; 3 * MIB as usize];
    volume.base().write_file("/filler", &filler).unwrap();
    volume.create_snapshot("old").unwrap();
    let full = (2..30u8).find(|&round| overwrite(&volume, "filler", &vec![round; filler.len()]).is_err());
    assert!(full.is_some(), "four mebibytes of pool took everything");
    assert!(matches!(volume.base().write_file("/new", b"new"), Err(Error::NoSpace)));
    assert!(matches!(volume.sync(), Err(Error::NoSpace)), "what was overwritten has no place");
    volume.base().remove_file("/filler").unwrap();
    for n in 0..100 {
        volume.base().remove_file(format!("/{}/{n}", n % 20)).unwrap();
        if n % 10 == 0 {
            volume.sync().unwrap();
        }
    }
    volume.close().unwrap();
    let volume = Volume::open(device.clone(), &options()).unwrap();
    for n in 100..150 {
        volume.base().remove_file(format!("/{}/{n}", n % 20)).unwrap();
    }
    // A crash, with what nobody has synced: it may be there or not, and nothing else.
    volume.sync().unwrap();
    volume.base().remove_file("/19/199").unwrap();
    drop(volume);
    let volume = Volume::open(device.clone(), &options()).unwrap();
    for n in 150..199 {
        let contents = volume.base().read_file(format!("/{}/{n}", n % 20)).unwrap();
        assert_eq!(contents, vec![n as u8; 3000], "file {n}");
    }
    volume.delete_snapshot("old").unwrap();
    volume.base().write_file("/new", b"new").unwrap();
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
        volume.base().write_file("/overwritten", &contents(n)).unwrap();
        volume.base().write_file(format!("/only{n}"), &contents(100 + n)).unwrap();
        volume.create_snapshot(&format!("s{n}")).unwrap();
        overwrite(&volume, "overwritten", &contents(50 + n)).unwrap();
        // Given back, and taken by the next round's files.
        volume.base().write_file(format!("/only{n}"), b"").unwrap();
        volume.sync().unwrap();
    }
    volume.delete_snapshot("s2").unwrap();
    assert_eq!(volume.base().read_file("/overwritten").unwrap(), contents(54));
    volume.close().unwrap();
    for n in [1, 3, 4] {
        let name = format!("s{n}");
        assert_eq!(read_from(&device, &name, "/overwritten"), contents(n), "{name}");
        assert_eq!(read_from(&device, &name, &format!("/only{n}")), contents(100 + n), "{name}");
    }
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
            volume.base().write_file(format!("/{n}"), b"").unwrap();
        }
        volume.sync().unwrap();
        volume.base().write_file("/lost", b"lost").unwrap();
        drop(volume);
        let counting = Arc::new(CountingDevice::new(device));
        let engine = GenerationsEngine::open(counting.clone(), EngineOptions::default()).unwrap();
        assert_eq!(engine.snapshot_times().len(), snapshots);
        let counts = counting.counts();
        assert_eq!(counts.writes, 0, "nothing is written to read");
        reads.push(counts.reads);
    }
    assert_eq!(reads[0], reads[1], "superblock and two roots");
    assert!(reads[2] <= reads[0] + 1, "the list: {reads:?}");
}
