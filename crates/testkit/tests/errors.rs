//! Devices that fail: acknowledged changes stay, the volume reports the error and writes no more.

use std::sync::Arc;
use std::time::Duration;

use xact::{Caller, Error, Ino, PathExt, Volume, VolumeOptions};
use xact_fs::{FileKind, SetAttr, View, WriteHow};
use xact_testkit::damage::exercise;
use xact_testkit::device::{Call, Fault, Harm, SimDevice};
use xact_testkit::explorer::Subject;
use xact_testkit::files::FileWorkload;
use xact_testkit::image::Image;
use xact_testkit::model::History;
use xact_testkit::recording::{Cursor, Part};
use xact_testkit::tools::{ImageFile, formatted, must_run};
use xact_testkit::workloads;

/// Runs the workload until the fault occurs, then crashes: of the unflushed writes, none, all or a
/// part is left.
fn survives(name: &str, fault: &Fault) -> bool {
    let workload = workloads::find(name).unwrap();
    let (device, history) = workload.run_with(1, |device: &SimDevice| device.inject(fault.clone())).unwrap();
    let recording = device.recording();
    let bitten = recording.events.iter().any(|e| e.outcome != xact_testkit::recording::Outcome::Done);
    let point = recording.events.len();
    let cursor = Cursor::at(&recording, point);
    let pending = cursor.pending().len();
    let mut choices = vec![vec![Part::None; pending], vec![Part::All; pending]];
    for n in 0..pending.min(20) {
        let mut one = vec![Part::All; pending];
        one[n] = Part::None;
        choices.push(one);
    }
    for parts in choices {
        judge(&workload, &history, &cursor, &parts, recording.end, fault);
    }
    bitten
}

fn judge(w: &FileWorkload, history: &History, cursor: &Cursor<'_>, parts: &[Part], end: u64, fault: &Fault) {
    let recovered = w.recover(&cursor.crash(parts)).unwrap_or_else(|e| panic!("{fault:?}: {e}"));
    w.judge(history, end, &recovered.tree).unwrap_or_else(|e| panic!("{fault:?}: {e}"));
    w.inspect(&recovered.closed).unwrap_or_else(|e| panic!("{fault:?}: {e}"));
}

fn every(call: Call, name: &str, step: usize) {
    let mut bites = 0;
    for nth in (0..60).step_by(step) {
        for for_good in [false, true] {
            bites += survives(name, &Fault { call, range: None, nth, for_good, harm: Harm::Error }) as u32;
        }
    }
    assert!(bites > 10, "the faults must bite, {bites} did");
}

#[test]
fn failed_writes() {
    every(Call::Write, "mix", 3);
    every(Call::Write, "tx", 3);
    every(Call::Write, "tx-ext3", 5);
    // Small contents go along in the commit, so there are fewer writes.
    every(Call::Write, "adaptive-tx", 2);
    every(Call::Write, "gen-mix", 5);
}

#[test]
fn failed_flushes() {
    every(Call::Flush, "append", 3);
    every(Call::Flush, "tx", 3);
    every(Call::Flush, "single-mix", 3);
}

/// A failed read affects the caller alone.
#[test]
fn failed_reads() {
    for name in ["mix", "tx", "orphans", "fragments"] {
        for nth in 0..16 {
            survives(
                name,
                &Fault { call: Call::Read, range: None, nth, for_good: nth % 2 == 0, harm: Harm::Error },
            );
        }
    }
}

/// Volumes of all kinds. A recovery repairs them, or e2fsck if there is no journal.
const FORMATS: [(&str, &[&str]); 4] = [
    ("ext4", &["-b", "1024", "-J", "size=1"]),
    ("ext3", &["-b", "1024", "-J", "size=1", "-O", "^extents,^metadata_csum,^64bit,^flex_bg"]),
    ("ext2", &["-b", "1024", "-O", "^has_journal,^extents,^metadata_csum,^64bit,^flex_bg"]),
    ("no journal", &["-b", "1024", "-O", "^has_journal"]),
];

fn options() -> VolumeOptions {
    VolumeOptions {
        commit_interval: Duration::from_secs(86_400),
        flusher: false,
        cache_bytes: 8 << 20,
        ..VolumeOptions::default()
    }
}

fn make(view: &dyn View, n: u64) -> Result<(), Error> {
    let mode = FileKind::Regular.mode_bits() | 0o644;
    let ino = view.make_node(&Caller::ROOT, Ino::ROOT, format!("file-{n}").as_bytes(), mode, 0)?.ino;
    view.write(ino, 0, &contents(n), WriteHow::default())?;
    view.sync_file(ino, false)
}

fn contents(n: u64) -> Vec<u8> {
    (0..700 * (1 + n % 20)).map(|i| (i * 7 + n) as u8).collect()
}

/// The volume after its repair.
fn repaired(image: &Image, has_journal: bool) -> Arc<Volume> {
    let mut image = image.clone();
    if !has_journal {
        let mut file = ImageFile::default();
        file.put(&image).unwrap();
        let path = file.path().to_str().unwrap().to_owned();
        // 1 is "corrected".
        must_run("sh", &["-c", &format!("e2fsck -fy {path} || test $? -eq 1")]);
        image = Image::from_file(&std::fs::File::open(file.path()).unwrap()).unwrap();
    }
    Volume::open(SimDevice::new(image), &options()).expect("opening what is repaired")
}

/// Creates files, each with its fsync, until the device fails; checks the volume then and
/// afterwards.
fn fails_at(format: (&str, &[&str]), fault: &Fault) -> bool {
    const FILES: u64 = 24;
    let what = format!("{}, {fault:?}", format.0);
    let device = SimDevice::new(formatted(format.1, "8M"));
    let volume = Volume::open(device.clone(), &options()).unwrap();
    let view = volume.base();
    make(&*view, 0).unwrap();
    device.inject(fault.clone());
    let Some((made, error)) = (1..FILES).find_map(|n| make(&*view, n).err().map(|error| (n, error))) else {
        return false;
    };
    assert!(matches!(error, Error::Io { .. } | Error::Poisoned(_)), "{what}: the caller got '{error}'");
    assert!(volume.health().is_err(), "{what}: the volume still writes");
    assert!(make(&*view, FILES).is_err(), "{what}: something is made after the error");
    assert!(view.sync_all().is_err(), "{what}: a sync claims what a failed one has lost");
    // Existing data can still be read.
    let mut bytes = Vec::new();
    let first = view.lookup(Ino::ROOT, b"file-0").unwrap();
    view.read(first.ino, 0, first.size as usize, &mut bytes).unwrap();
    assert_eq!(bytes, contents(0), "{what}");
    let _ = volume.close();
    device.clear_faults();

    let volume = repaired(&device.image(), !format.1.iter().any(|option| option.contains("^has_journal")));
    let view = volume.base();
    for n in 0..made {
        let attr = view.lookup(Ino::ROOT, format!("file-{n}").as_bytes());
        let attr = attr.unwrap_or_else(|error| panic!("{what}: the synced file {n} is missing: {error}"));
        let mut bytes = Vec::new();
        view.read(attr.ino, 0, attr.size as usize, &mut bytes).unwrap();
        assert_eq!(bytes, contents(n), "{what}: file {n}, synced");
    }
    make(&*view, FILES).unwrap();
    volume.close().unwrap();
    true
}

#[test]
fn the_volume_stops_at_the_error_and_keeps_synced_files() {
    for format in FORMATS {
        for call in [Call::Write, Call::Flush] {
            let mut bites = 0;
            for nth in [0, 1, 2, 3, 5, 8, 13, 21] {
                for for_good in [false, true] {
                    let fault = Fault { call, range: None, nth, for_good, harm: Harm::Error };
                    bites += u32::from(fails_at(format, &fault));
                }
            }
            assert!(bites >= 10, "{}: {call:?} failed {bites} times only", format.0);
        }
    }
}

/// A failed read is reported to its caller; the volume continues, and the next read succeeds.
#[test]
fn a_failed_read_affects_its_caller_alone() {
    for (name, mke2fs) in FORMATS {
        let (errors, image) = exercise(formatted(mke2fs, "8M"));
        assert!(!errors.iter().any(|error| !matches!(error, Error::Posix(_))), "{name}: {errors:?}");
        let mut bites = 0;
        for nth in 0..12 {
            let device = SimDevice::new(image.clone());
            let volume = Volume::open(device.clone(), &options()).unwrap();
            // The first commit has to read the superblock that it changes, and a failure there
            // stops all writing.
            let change = SetAttr { perm: Some(0o700), ..SetAttr::default() };
            volume.base().set_attr(&Caller::ROOT, Ino::ROOT, &change).unwrap();
            volume.sync().unwrap();
            device.inject(Fault { call: Call::Read, range: None, nth, for_good: false, harm: Harm::Error });
            let first = make(&*volume.base(), nth);
            bites += u32::from(first.is_err());
            if let Err(error) = first {
                assert!(matches!(error, Error::Io { .. }), "{name}, read {nth}: got '{error}'");
                volume.health().unwrap_or_else(|e| panic!("{name}, read {nth}: stopped by it: {e}"));
                make(&*volume.base(), 100 + nth).unwrap_or_else(|e| panic!("{name}, read {nth}: then {e}"));
            }
            device.clear_faults();
            volume.close().unwrap();
        }
        assert!(bites > 0, "{name}: no read was asked for");
    }
}

/// Dirty data of a file whose extents cannot be read waits; dirty data of other files is written
/// back.
#[test]
fn a_file_without_space_delays_no_other() {
    const FILES: u64 = 5;
    const OTHERS: u64 = 2000;
    const NEW: u8 = 0xee;
    // A node of an extent tree in a block of its own (`ext4_extent_header.eh_magic`).
    let is_leaf = |bytes: &[u8]| bytes.starts_with(&[0x0a, 0xf3]);
    let device = SimDevice::new(formatted(&["-b", "1024", "-J", "size=1", "-N", "4096"], "16M"));
    let small = VolumeOptions { cache_bytes: 256 << 10, ..options() };
    let volume = Volume::open(device.clone(), &small).unwrap();
    let view = volume.base();
    let file = |name: &str| {
        let mode = FileKind::Regular.mode_bits() | 0o644;
        view.make_node(&Caller::ROOT, Ino::ROOT, name.as_bytes(), mode, 0).unwrap().ino
    };
    let files: Vec<Ino> = (0..FILES).map(|n| file(&format!("file-{n}"))).collect();
    for &ino in &files {
        view.write(ino, 0, &[1; 3000], WriteHow::default()).unwrap();
    }
    let scattered = file("scattered");
    for n in 0..400 {
        view.write(scattered, n * 8192, &[1; 1024], WriteHow::default()).unwrap();
    }
    for n in 0..OTHERS {
        file(&format!("other-{n}"));
    }
    view.sync_all().unwrap();
    for &ino in files.iter().chain([&scattered]) {
        view.write(ino, 0, &[NEW; 1024], WriteHow::default()).unwrap();
    }
    // Evicts the positions of the blocks from the cache.
    for n in 0..OTHERS {
        view.lookup(Ino::ROOT, format!("other-{n}").as_bytes()).unwrap();
    }
    let fault = Fault { call: Call::Read, range: None, nth: 0, for_good: true, harm: Harm::Error };
    device.inject_where(fault, is_leaf);
    let error = view.sync_all().unwrap_err();
    assert!(matches!(error, Error::Io { .. }) && device.strikes() > 0, "{error}");
    device.clear_faults();
    let after = Volume::open(SimDevice::new(device.image()), &options()).unwrap();
    for n in 0..FILES {
        let bytes = after.read(format!("/file-{n}")).unwrap();
        assert!(
            bytes[..1024] == [NEW; 1024] && bytes[1024..] == [1; 1976],
            "file {n} was kept from being written"
        );
    }
    after.close().unwrap();
    // It waits for its extents, and no longer.
    view.sync_all().unwrap();
    volume.close().unwrap();
}
