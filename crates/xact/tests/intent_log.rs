//! The intent log of a volume with generations: the readers that see the records of an fsync.

use std::sync::Arc;

use xact::convert::to_plain;
use xact::mkfs::{MkfsOptions, mkfs_generations};
use xact::{BlockDevice, Caller, Fsync, Ino, MemoryDevice, ModeChoice, PathExt, Volume, VolumeOptions};
use xact_consistency::{Engine, EngineOptions, open_generations};
use xact_device::CountingDevice;

const FILES: u64 = 12;

fn options() -> VolumeOptions {
    VolumeOptions { flusher: false, ..VolumeOptions::default() }
}

fn contents(n: u64) -> Vec<u8> {
    vec![n as u8 + 1; 3000 + 500 * n as usize]
}

fn copy(device: &Arc<dyn BlockDevice>) -> Arc<dyn BlockDevice> {
    let mut bytes = vec![0; device.size_bytes() as usize];
    device.read_at(&mut bytes, 0).unwrap();
    Arc::new(MemoryDevice::from_bytes(bytes))
}

fn engine(device: &Arc<dyn BlockDevice>) -> Arc<Engine> {
    let read_only = EngineOptions { read_only: true, ..EngineOptions::default() };
    open_generations(device.clone(), read_only).unwrap()
}

/// The findings of a check except those about the superblock's counts, which no fsync writes: every
/// opening for writing takes them from the groups.
fn problems(report: &xact_check::Report) -> Vec<String> {
    let counts = |problem: &&xact_check::Problem| !problem.what.starts_with("counts ");
    report.problems.iter().filter(counts).map(|problem| format!("{problem:?}")).collect()
}

/// A volume as a crash leaves it: a snapshot without files, and files in a folder that were synced
/// separately since then; one of them deleted.
fn crashed(fsync: Fsync) -> Arc<dyn BlockDevice> {
    let device: Arc<dyn BlockDevice> = Arc::new(MemoryDevice::new(32 << 20));
    let format = MkfsOptions { block_size: Some(1024), zeroed: true, ..MkfsOptions::default() };
    mkfs_generations(&device, &format, Some(8 << 20)).unwrap();
    let modes = ModeChoice { fsync: Some(fsync), ..ModeChoice::default() };
    let volume = Volume::open(device.clone(), &VolumeOptions { modes, ..options() }).unwrap();
    let base = volume.base();
    volume.create_snapshot("before").unwrap();
    let folder = base.make_dir(&Caller::ROOT, Ino::ROOT, b"folder", 0o755).unwrap().ino;
    for n in 0..FILES {
        volume.write(format!("/folder/{n}"), contents(n)).unwrap();
        base.sync_file(base.lookup(folder, n.to_string().as_bytes()).unwrap().ino, false).unwrap();
    }
    volume.remove_file("/folder/0").unwrap();
    base.sync_file(folder, false).unwrap();
    device
}

fn assert_is_there(volume: &Volume) {
    assert!(volume.read("/folder/0").is_err(), "it was deleted");
    for n in 1..FILES {
        assert_eq!(volume.read(format!("/folder/{n}")).unwrap(), contents(n), "file {n}");
    }
}

#[test]
fn everybody_sees_it_and_nobody_writes_to_see() {
    let device = crashed(Fsync::Log);
    let generation = engine(&device).snapshots().unwrap().generation();
    assert!(generation < 5, "generation {generation}: no fsync made one");
    let counting = Arc::new(CountingDevice::new(device.clone()));
    let shared: Arc<dyn BlockDevice> = counting.clone();
    let engine = engine(&shared);
    let image = engine.snapshots().unwrap().image(None).unwrap();
    let out: Arc<dyn BlockDevice> = Arc::new(MemoryDevice::new(engine.volume_bytes()));
    image.export(&*out).unwrap();
    let report = xact_check::check(copy(&out), &mut |_, _| ()).unwrap();
    assert!(problems(&report).is_empty(), "the export: {:?}", report.problems);
    assert_is_there(&Volume::open(out, &options()).unwrap());
    assert_is_there(&Volume::open(shared.clone(), &VolumeOptions { read_only: true, ..options() }).unwrap());
    let report = xact_check::check(shared, &mut |_, _| ()).unwrap();
    assert!(problems(&report).is_empty(), "{:?}", report.problems);
    assert_eq!(report.totals.files, FILES - 1);
    assert_eq!(counting.counts().writes, 0);
}

#[test]
fn what_follows_a_crash_goes_on_from_it() {
    let device = crashed(Fsync::Log);
    // Once more, with nothing done but reading.
    assert_is_there(&Volume::open(device.clone(), &options()).unwrap());
    let converted = copy(&device);
    let volume = Volume::open(converted.clone(), &options()).unwrap();
    volume.delete_snapshot("before").unwrap();
    drop(volume);
    to_plain(&converted).unwrap();
    assert_is_there(&Volume::open(converted, &options()).unwrap());
    let volume = Volume::open(device.clone(), &options()).unwrap();
    let changes = volume.diff_snapshots("before", None).unwrap();
    assert!(changes.len() as u64 >= FILES, "{changes:?}");
    volume.create_snapshot("after").unwrap();
    volume.write("/folder/5", b"changed").unwrap();
    volume.close().unwrap();
    let engine = engine(&device);
    let image = engine.snapshots().unwrap().image(Some("after")).unwrap();
    assert_is_there(&Volume::open(image, &VolumeOptions { read_only: true, ..options() }).unwrap());
}

/// The paper's way is a setting, which a volume keeps.
#[test]
fn each_fsync_may_be_a_generation() {
    let device = crashed(Fsync::Generation);
    let before = engine(&device).snapshots().unwrap().generation();
    assert!(before > FILES, "generation {before}");
    let report = xact_check::check(copy(&device), &mut |_, _| ()).unwrap();
    assert!(problems(&report).is_empty(), "{:?}", report.problems);
    for (fsync, generations) in [(Fsync::Generation, 5), (Fsync::Log, 1)] {
        let volume = Volume::open(device.clone(), &options()).unwrap();
        volume.store_modes(ModeChoice { fsync: Some(fsync), ..ModeChoice::default() }).unwrap();
        volume.close().unwrap();
        let begun = engine(&device).snapshots().unwrap().generation();
        let volume = Volume::open(device.clone(), &options()).unwrap();
        let base = volume.base();
        let folder = base.lookup(Ino::ROOT, b"folder").unwrap().ino;
        for n in 0..5u16 {
            let change = xact::SetAttr { perm: Some(0o700 + n), ..xact::SetAttr::default() };
            base.set_attr(&Caller::ROOT, folder, &change).unwrap();
            base.sync_file(folder, false).unwrap();
        }
        drop(base);
        drop(volume);
        assert_eq!(engine(&device).snapshots().unwrap().generation() - begun, generations, "{fsync:?}");
    }
}
