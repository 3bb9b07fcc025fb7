//! The live file system on volumes of mke2fs: contents, views and errors of single operations;
//! after each test, e2fsck finds the volume consistent.

use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;

use tempfile::TempDir;
use xact_consistency::test_engine::{TestEngine, fail_after};
use xact_device::{BlockDevice, FileDevice, OpenMode};
use xact_layout::quota::{QuotaEntry, QuotaKind, entry_at};
use xact_layout::superblock::{SUPERBLOCK_BYTES, SUPERBLOCK_OFFSET, Superblock};
use xact_types::{Errno, Error, Ino, Result, Timestamp};

use crate::api::{Allocate, Caller, RenameHow, SeekTo, SetAttr, View, WriteHow, XattrHow};
use crate::live::{LiveFs, LiveOptions};
use crate::quota::{Charge, Payer, QuotaLimits, Wanted};
use crate::versioned_fs::ReadAsOf;
use crate::volume::VolumeOptions;

struct TestVolume {
    _dir: TempDir,
    image: PathBuf,
}

impl TestVolume {
    /// A volume of `size_mib` made by mke2fs with `options`.
    fn new(size_mib: u64, options: &[&str]) -> TestVolume {
        let dir = TempDir::new().unwrap();
        let image = dir.path().join("volume");
        std::fs::File::create(&image).unwrap().set_len(size_mib << 20).unwrap();
        let made = Command::new("mke2fs")
            .args(["-q", "-F", "-t", "ext4"])
            .args(options)
            .arg(&image)
            .output()
            .unwrap();
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
        TestVolume { _dir: dir, image }
    }

    fn open(&self) -> Arc<LiveFs> {
        self.open_with(VolumeOptions::default())
    }

    fn open_with(&self, options: VolumeOptions) -> Arc<LiveFs> {
        let device = Arc::new(FileDevice::open(&self.image, OpenMode::ReadWrite).unwrap());
        crate::volume::open(device, &VolumeOptions { flusher: false, ..options }).unwrap()
    }

    fn check(&self) {
        let check = Command::new("e2fsck").arg("-fn").arg(&self.image).output().unwrap();
        assert!(check.status.success(), "{}", String::from_utf8_lossy(&check.stdout));
        let mut superblock = [0; SUPERBLOCK_BYTES];
        let device = FileDevice::open(&self.image, OpenMode::ReadOnly).unwrap();
        device.read_at(&mut superblock, SUPERBLOCK_OFFSET).unwrap();
        assert_eq!(Superblock::decode(&superblock).unwrap().error_count(), 0);
    }
}

const ROOT: Caller = Caller::ROOT;

fn file(fs: &LiveFs, dir: Ino, name: &str) -> Ino {
    fs.make_node(&ROOT, dir, name.as_bytes(), 0o100644, 0).unwrap().ino
}

fn content(fs: &LiveFs, ino: Ino) -> Vec<u8> {
    let mut out = Vec::new();
    fs.read(ino, 0, 1 << 30, &mut out).unwrap();
    out
}

fn pattern(len: usize, seed: u8) -> Vec<u8> {
    (0..len).map(|i| (i as u8).wrapping_mul(31).wrapping_add(seed)).collect()
}

#[test]
fn changes_survive_a_close_and_satisfy_e2fsck() {
    for options in [&["-b", "4096"][..], &["-b", "1024"], &["-b", "2048", "-O", "^has_journal"]] {
        let volume = TestVolume::new(32, options);
        let fs = volume.open();
        let dir = fs.make_dir(&ROOT, Ino::ROOT, b"dir", 0o755).unwrap().ino;
        let mut inos = Vec::new();
        for i in 0..300 {
            let ino = file(&fs, dir, &format!("file-{i}"));
            fs.write(ino, 0, &pattern(i * 37, i as u8), WriteHow::default()).unwrap();
            inos.push(ino);
        }
        fs.make_symlink(&ROOT, dir, b"short", b"file-1").unwrap();
        fs.make_symlink(&ROOT, dir, b"long", &[b'x'; 300]).unwrap();
        fs.link(&ROOT, inos[5], Ino::ROOT, b"linked").unwrap();
        fs.rename(&ROOT, (dir, b"file-7"), (Ino::ROOT, b"moved"), RenameHow::Replace).unwrap();
        for i in (0..300).filter(|i| i % 3 == 0) {
            fs.unlink(&ROOT, dir, format!("file-{i}").as_bytes()).unwrap();
        }
        fs.sync_all().unwrap();
        let big = file(&fs, Ino::ROOT, "big");
        let data = pattern(3 << 20, 9);
        fs.write(big, 0, &data, WriteHow::default()).unwrap();
        fs.sync_file(big, false).unwrap();
        fs.write(big, 5 << 20, b"far", WriteHow::default()).unwrap();
        fs.set_attr(&ROOT, big, &SetAttr { size: Some((1 << 20) + 77), ..SetAttr::default() }).unwrap();
        assert_eq!(content(&fs, big), data[..(1 << 20) + 77]);
        fs.set_attr(&ROOT, big, &SetAttr { size: Some((1 << 20) + 5000), ..SetAttr::default() }).unwrap();
        let mut expected = data[..(1 << 20) + 77].to_vec();
        expected.resize((1 << 20) + 5000, 0);
        assert_eq!(content(&fs, big), expected);
        fs.allocate(&Caller::ROOT, big, 4096, 8192, Allocate::PunchHole).unwrap();
        expected[4096..12288].fill(0);
        assert_eq!(content(&fs, big), expected);
        assert_eq!(fs.seek(big, 0, SeekTo::Hole).unwrap(), 4096);
        assert_eq!(fs.seek(big, 4096, SeekTo::Data).unwrap(), 12288);
        fs.close().unwrap();
        drop(fs);
        volume.check();

        let fs = volume.open();
        let dir = fs.lookup(Ino::ROOT, b"dir").unwrap().ino;
        assert_eq!(content(&fs, fs.lookup(dir, b"file-100").unwrap().ino), pattern(3700, 100));
        assert_eq!(content(&fs, fs.lookup(Ino::ROOT, b"big").unwrap().ino), expected);
        assert_eq!(fs.read_link(fs.lookup(dir, b"long").unwrap().ino).unwrap(), [b'x'; 300]);
        assert_eq!(fs.lookup(Ino::ROOT, b"linked").unwrap().nlink, 2);
        let mut names = 0;
        fs.read_dir(dir, 0, &mut |_| {
            names += 1;
            true
        })
        .unwrap();
        assert_eq!(names, 2 + 2 + 300 - 100 - 1);
        fs.close().unwrap();
        drop(fs);
        volume.check();
    }
}

/// An operation that fails after its first changed block poisons the volume, whichever block that
/// is. One that fails at its first block changes nothing.
#[test]
fn an_operation_that_fails_half_way_poisons_the_volume() {
    for fails_at in 0..8 {
        let volume = TestVolume::new(8, &["-b", "1024"]);
        let device = FileDevice::open(&volume.image, OpenMode::ReadWrite).unwrap();
        let mut bytes = [0; 1024];
        device.read_at(&mut bytes, 1024).unwrap();
        let sb = Superblock::decode(&bytes).unwrap();
        let engine = TestEngine::new(Arc::new(device), 1024).engine;
        let options = LiveOptions { flusher: false, ..LiveOptions::default() };
        let fs = LiveFs::open(engine.clone(), sb, options).unwrap();
        fail_after(Some(fails_at));
        let made = fs.make_dir(&ROOT, Ino::ROOT, b"d", 0o755);
        fail_after(None);
        let failed_half_way = made.is_err() && fails_at > 0;
        assert_eq!(engine.health().is_err(), failed_half_way, "failure at change {fails_at}: {made:?}");
        assert!(made.is_err() || fails_at > 4, "a folder takes more changes");
    }
}

/// A cut to the file's own size frees what was reserved past its end, as on ext4.
#[test]
fn a_cut_to_the_own_size_frees_what_is_reserved_past_the_end() {
    for options in [&["-b", "1024"][..], &["-b", "4096"]] {
        let volume = TestVolume::new(16, options);
        let fs = volume.open();
        let ino = file(&fs, Ino::ROOT, "reserved");
        fs.write(ino, 0, &[7; 5000], WriteHow::default()).unwrap();
        fs.sync_all().unwrap();
        let before = fs.attr(ino).unwrap().sectors;
        fs.allocate(&ROOT, ino, 0, 1 << 20, Allocate::Reserve { keep_size: true }).unwrap();
        assert!(fs.attr(ino).unwrap().sectors > before + 1000);
        fs.set_attr(&ROOT, ino, &SetAttr { size: Some(5000), ..SetAttr::default() }).unwrap();
        assert_eq!(fs.attr(ino).unwrap().sectors, before);
        assert_eq!(content(&fs, ino), [7; 5000]);
        fs.close().unwrap();
        drop(fs);
        volume.check();
    }
}

#[test]
fn handles_name_files_in_use_only() {
    let volume = TestVolume::new(16, &[]);
    let fs = volume.open();
    let ino = file(&fs, Ino::ROOT, "f");
    assert_eq!(fs.by_handle(ino).unwrap().ino, ino);
    assert!(fs.by_handle(Ino::ROOT).unwrap().is_dir());
    fs.hold(ino).unwrap();
    fs.unlink(&ROOT, Ino::ROOT, b"f").unwrap();
    // No name; the journal; never used; out of range.
    for stale in [ino, Ino(8), Ino(ino.0 + 100), Ino(0), Ino(u32::MAX)] {
        assert_eq!(fs.by_handle(stale).unwrap_err().errno(), Errno::ESTALE, "{stale}");
    }
    fs.release(ino, 1);
    fs.close().unwrap();
}

#[test]
fn a_held_file_lives_until_it_is_released() {
    let volume = TestVolume::new(16, &[]);
    let fs = volume.open();
    let ino = file(&fs, Ino::ROOT, "held");
    fs.write(ino, 0, b"still here", WriteHow::default()).unwrap();
    fs.hold(ino).unwrap();
    let before = fs.space().unwrap().free_inodes;
    fs.unlink(&ROOT, Ino::ROOT, b"held").unwrap();
    assert_eq!(content(&fs, ino), b"still here");
    fs.release(ino, 1);
    assert!(fs.attr(ino).is_err());
    assert_eq!(fs.space().unwrap().free_inodes, before + 1);
    fs.close().unwrap();
    drop(fs);
    volume.check();
}

#[test]
fn a_view_sees_one_instant() {
    let volume = TestVolume::new(16, &["-b", "4096"]);
    let fs = volume.open();
    let ino = file(&fs, Ino::ROOT, "a");
    fs.write(ino, 0, &pattern(10_000, 1), WriteHow::default()).unwrap();
    fs.sync_all().unwrap();
    let view = fs.open_view();
    let then = fs.attr(ino).unwrap();
    fs.write(ino, 4096, b"changed", WriteHow::default()).unwrap();
    fs.set_attr(&ROOT, ino, &SetAttr { size: Some(100), ..SetAttr::default() }).unwrap();
    fs.sync_all().unwrap();
    fs.rename(&ROOT, (Ino::ROOT, b"a"), (Ino::ROOT, b"b"), RenameHow::Replace).unwrap();
    fs.unlink(&ROOT, Ino::ROOT, b"b").unwrap();
    let other = file(&fs, Ino::ROOT, "c");
    fs.write(other, 0, &pattern(100_000, 7), WriteHow::default()).unwrap();
    fs.sync_all().unwrap();
    assert_eq!(fs.attr_at(ino, view.stamp()).unwrap(), then);
    assert_eq!(fs.entry_at(Ino::ROOT, b"a", view.stamp()).unwrap().unwrap().ino, ino);
    assert!(fs.entry_at(Ino::ROOT, b"c", view.stamp()).unwrap().is_none());
    assert!(fs.attr_at(other, view.stamp()).is_err());
    let mut names = Vec::new();
    fs.list_at(Ino::ROOT, 0, view.stamp(), &mut |item| {
        names.push(item.name.to_vec());
        true
    })
    .unwrap();
    names.sort();
    assert_eq!(names, [b"a".to_vec(), b"lost+found".to_vec()]);
    let mut data = Vec::new();
    for at in 0..3 {
        let block = fs.read_block_at(ino, xact_types::FileBlock(at), view.stamp()).unwrap().unwrap();
        data.extend_from_slice(&block);
    }
    assert_eq!(data[..10_000], pattern(10_000, 1));
    drop(view);
    assert!(fs.attr(ino).is_err());
    fs.close().unwrap();
    drop(fs);
    volume.check();
}

/// A name within a file gives `ENOTDIR`. The look-ups that only guess the locks of an operation
/// once took the file for a directory without blocks, and recorded corruption in the superblock:
/// the kernel then clears the orphan list.
#[test]
fn a_name_within_a_file_is_not_corruption() {
    let volume = TestVolume::new(16, &[]);
    let fs = volume.open();
    let (a, b): (&[u8], &[u8]) = (b"a", b"b");
    let ino = file(&fs, Ino::ROOT, "a");
    let not_a_directory = |result: Result<(), Error>| {
        assert!(matches!(result, Err(Error::Posix(Errno::ENOTDIR))), "{result:?}");
    };
    not_a_directory(fs.lookup(ino, b).map(drop));
    not_a_directory(fs.unlink(&ROOT, ino, b));
    not_a_directory(fs.remove_dir(&ROOT, ino, b));
    not_a_directory(fs.rename(&ROOT, (ino, b), (Ino::ROOT, b), RenameHow::Replace));
    not_a_directory(fs.rename(&ROOT, (Ino::ROOT, a), (ino, b), RenameHow::Replace));
    fs.close().unwrap();
    drop(fs);
    volume.check();
}

#[test]
fn times_keep_their_nanoseconds() {
    let volume = TestVolume::new(16, &[]);
    let fs = volume.open();
    let ino = file(&fs, Ino::ROOT, "a");
    let time = Timestamp { secs: 5_000_000_000, nanos: 123_456_789 };
    let change = SetAttr { mtime: Some(crate::api::TimeChange::To(time)), ..SetAttr::default() };
    fs.set_attr(&ROOT, ino, &change).unwrap();
    fs.close().unwrap();
    drop(fs);
    let fs = volume.open();
    assert_eq!(fs.lookup(Ino::ROOT, b"a").unwrap().mtime, time);
    fs.close().unwrap();
}

#[test]
fn a_full_volume_returns_no_space_and_can_delete() {
    let volume = TestVolume::new(8, &["-b", "1024"]);
    let fs = volume.open();
    let ino = file(&fs, Ino::ROOT, "big");
    let chunk = pattern(64 << 10, 3);
    let mut offset = 0;
    let error = loop {
        match fs.write(ino, offset, &chunk, WriteHow::default()) {
            Ok(_) => offset += chunk.len() as u64,
            Err(error) => break error,
        }
    };
    assert!(matches!(error, xact_types::Error::NoSpace), "{error}");
    fs.sync_all().unwrap();
    assert_eq!(fs.attr(ino).unwrap().size, offset);
    fs.unlink(&ROOT, Ino::ROOT, b"big").unwrap();
    let again = file(&fs, Ino::ROOT, "again");
    fs.write(again, 0, &chunk, WriteHow::default()).unwrap();
    fs.close().unwrap();
    drop(fs);
    volume.check();
}

/// On a volume without a free block, operations that need no block work, as on ext4. The others are
/// refused and change nothing.
#[test]
fn operations_without_new_blocks_work_on_a_full_volume() {
    for options in [&["-b", "1024", "-I", "256"][..], &["-b", "1024", "-I", "256", "-O", "^dir_index"]] {
        let volume = TestVolume::new(8, options);
        let fs = volume.open();
        let ino = file(&fs, Ino::ROOT, "attributes");
        let set = |name: &str, len: usize| {
            fs.set_xattr(&ROOT, ino, format!("user.{name}").as_bytes(), &vec![7; len], XattrHow::Set)
        };
        let other = file(&fs, Ino::ROOT, "bare");
        set("long", 500).unwrap();
        let dir = fs.make_dir(&ROOT, Ino::ROOT, b"folder", 0o755).unwrap().ino;
        let big = file(&fs, Ino::ROOT, "big");
        let zeros = vec![0; 1024];
        let mut offset = 0;
        while fs.write(big, offset, &zeros, WriteHow::default()).is_ok() {
            offset += 1024;
        }
        fs.sync_all().unwrap();
        let full = |result: Result<()>| assert!(matches!(result, Err(Error::NoSpace)), "{result:?}");

        // A shorter value, and one more in the same block.
        set("long", 400).unwrap();
        set("more", 100).unwrap();
        set("long", 450).unwrap();
        full(fs.set_xattr(&ROOT, other, b"user.long", &[7; 500], XattrHow::Set));
        fs.set_xattr(&ROOT, other, b"user.s", &[7; 20], XattrHow::Set).unwrap();
        full(fs.make_dir(&ROOT, dir, b"inner", 0o755).map(drop));
        full(fs.make_symlink(&ROOT, dir, b"link", &[b'x'; 200]).map(drop));
        fs.make_symlink(&ROOT, dir, b"link", b"short").unwrap();
        fs.link(&ROOT, ino, dir, b"hard").unwrap();
        fs.rename(&ROOT, (Ino::ROOT, b"bare"), (dir, b"moved"), RenameHow::Replace).unwrap();
        // Add names until the folder's block is full.
        let name = |i: usize| format!("a name of some length, to fill a block soon, {i}");
        let refused = (0..100).find(|&i| fs.make_node(&ROOT, dir, name(i).as_bytes(), 0o100644, 0).is_err());
        let refused = refused.expect("names fill a block of 1024 bytes");
        assert!(refused > 5, "{refused}");
        full(fs.make_node(&ROOT, dir, name(refused).as_bytes(), 0o100644, 0).map(drop));
        full(fs.rename(&ROOT, (Ino::ROOT, b"attributes"), (dir, [b'x'; 200].as_slice()), RenameHow::Replace));

        fs.unlink(&ROOT, Ino::ROOT, b"big").unwrap();
        fs.make_node(&ROOT, dir, name(refused).as_bytes(), 0o100644, 0).unwrap();
        let mut value = fs.xattr(ino, b"user.long").unwrap();
        value.dedup();
        assert_eq!(value, [7]);
        fs.close().unwrap();
        drop(fs);
        volume.check();
    }
}

/// Large reads bypass the cache and return the right bytes, for ranges that are partly in memory,
/// on the device, a hole, or past the end, with any alignment of their ends.
#[test]
fn large_reads_bypass_the_cache_and_see_cached_pages() {
    const LEN: usize = 5 << 20;
    for block_bytes in ["1024", "4096"] {
        let volume = TestVolume::new(64, &["-b", block_bytes]);
        let mut model = pattern(LEN, 3);
        model[2 << 20..3 << 20].fill(0);
        let fs = volume.open();
        let ino = file(&fs, Ino::ROOT, "large");
        fs.write(ino, 0, &model[..2 << 20], WriteHow::default()).unwrap();
        fs.write(ino, 3 << 20, &model[3 << 20..], WriteHow::default()).unwrap();
        fs.sync_all().unwrap();
        drop(fs);
        let fs = volume.open();
        let ino = fs.lookup(Ino::ROOT, b"large").unwrap().ino;
        let newer = pattern(300_000, 90);
        fs.write(ino, 700_001, &newer, WriteHow::default()).unwrap();
        model[700_001..1_000_001].copy_from_slice(&newer);
        for (offset, len) in [
            (0, LEN),
            (1, LEN),
            (511, 1 << 20),
            (690_000, 1 << 20),
            ((2 << 20) - 1, 2 << 20),
            (LEN - 400_000, LEN),
        ] {
            let mut out = b"kept".to_vec();
            fs.read(ino, offset as u64, len, &mut out).unwrap();
            assert_eq!(&out[..4], b"kept");
            assert!(out[4..] == model[offset..(offset + len).min(LEN)], "{len} bytes at {offset}");
        }
    }
}

/// A change of owner, group or project is refused by the limits of those ids that it changes to,
/// and by no others: the file is already charged to the ids that stay, however full they are. The
/// limits of a kind that the mount does not enforce count for nothing.
#[test]
fn only_the_limits_of_new_payers_refuse_a_change_of_payers() {
    const KINDS: [QuotaKind; 3] = QuotaKind::ALL;
    let kinds = |set: u32| (0..3).filter(move |bit| set >> bit & 1 != 0);
    let options = ["-b", "1024", "-O", "quota,project", "-I", "256"];
    let types = ["-E", "quotatype=usrquota:grpquota:prjquota"];
    let volume = TestVolume::new(32, &[&options[..], &types].concat());
    for enforced in 0..8u32 {
        let is_on = |kind: QuotaKind| kinds(enforced).any(|at| KINDS[at] == kind);
        let quota_limits = QuotaLimits {
            user: is_on(QuotaKind::User),
            group: is_on(QuotaKind::Group),
            project: is_on(QuotaKind::Project),
        };
        let fs = volume.open_with(VolumeOptions { quota_limits, ..VolumeOptions::default() });
        for (n, (over, moved)) in (0..8).flat_map(|over| (0..8).map(move |moved| (over, moved))).enumerate() {
            // By space and by number of files; with the pages on the volume or still in memory.
            let (by_space, synced) = (n % 2 == 0, n % 3 == 0);
            let own = 1000 * (enforced + 1) + 2 * n as u32;
            let target: [u32; 3] = std::array::from_fn(|at| own + (moved >> at & 1));
            let change = |ids: [u32; 3]| {
                let of = |kind: QuotaKind| KINDS.iter().position(|k| *k == kind).map(|at| ids[at]);
                let (uid, gid) = (of(QuotaKind::User), of(QuotaKind::Group));
                SetAttr { uid, gid, project: of(QuotaKind::Project), ..SetAttr::default() }
            };
            let ino = file(&fs, Ino::ROOT, &format!("{enforced}-{n}"));
            fs.set_attr(&ROOT, ino, &change([own; 3])).unwrap();
            fs.write(ino, 0, &pattern(8000, 1), WriteHow::default()).unwrap();
            if synced {
                fs.sync_file(ino, false).unwrap();
            }
            // Another file of the target, which fills its limit of files.
            let other = file(&fs, Ino::ROOT, &format!("{enforced}-{n}-other"));
            fs.set_attr(&ROOT, other, &change(target)).unwrap();
            fs.sync_file(other, false).unwrap();
            for at in kinds(over) {
                let (bytes, inodes) = if by_space { (1024, 0) } else { (0, 1) };
                fs.quotas.limit(KINDS[at], target[at], bytes, inodes).unwrap();
            }
            let user = Caller { uid: own, gid: own, umask: 0 };
            let outcome = fs.set_attr(&user, ino, &change(target)).err().map(|error| error.errno());
            let refused = enforced & over & moved != 0;
            let what = format!("{enforced:03b} enforced, {over:03b} over the limit, {moved:03b} changed");
            assert_eq!(outcome, refused.then_some(Errno::EDQUOT), "{what}");
            // Root is not limited.
            fs.set_attr(&ROOT, ino, &change(target)).unwrap();
        }
        fs.close().unwrap();
        drop(fs);
        volume.check();
    }
}

/// The options of mke2fs for a volume with quota files of all kinds.
const QUOTA_FILES: [&str; 8] =
    ["-b", "1024", "-O", "quota,project", "-I", "256", "-E", "quotatype=usrquota:grpquota:prjquota"];

fn charge(id: u32, bytes: u64, inodes: u64) -> Charge {
    Charge { payer: Payer { uid: id, gid: id, project: id }, bytes, inodes }
}

/// A file of 8 KiB that belongs to the user and the group `id`.
fn charged_file(fs: &LiveFs, id: u32) -> Ino {
    let ino = file(fs, Ino::ROOT, &format!("of {id}"));
    fs.set_attr(&ROOT, ino, &SetAttr { uid: Some(id), gid: Some(id), ..SetAttr::default() }).unwrap();
    fs.write(ino, 0, &pattern(8000, 1), WriteHow::default()).unwrap();
    fs.sync_file(ino, false).unwrap();
    ino
}

#[test]
fn hard_limits_count_usage_reservations_and_new_charges() {
    const ID: u32 = 500;
    let volume = TestVolume::new(32, &QUOTA_FILES);
    let quota_limits = QuotaLimits { user: true, ..QuotaLimits::default() };
    let fs = volume.open_with(VolumeOptions { quota_limits, ..VolumeOptions::default() });
    charged_file(&fs, ID);
    let entry = fs.quotas.entry(QuotaKind::User, ID).unwrap();
    assert_eq!((entry.id(), entry.curspace(), entry.curinodes()), (ID, 8192, 1));
    fs.quotas.limit(QuotaKind::User, ID, 10_240, 3).unwrap();
    // The group's limit is not enforced.
    fs.quotas.limit(QuotaKind::Group, ID, 1024, 1).unwrap();
    let wanted = |bytes, inodes| Wanted { now: None, more: charge(ID, bytes, inodes) };
    let is_refused = |wanted: &[Wanted], moving: &[Charge]| match fs.quotas.check(wanted, moving) {
        Err(error) => {
            assert_eq!(error.errno(), Errno::EDQUOT);
            true
        }
        Ok(()) => false,
    };
    assert!(!is_refused(&[wanted(2048, 2)], &[]));
    assert!(is_refused(&[wanted(2049, 0)], &[]) && is_refused(&[wanted(0, 3)], &[]));
    assert!(is_refused(&[wanted(1024, 0), wanted(1025, 0)], &[]), "the sum counts");
    assert!(is_refused(&[wanted(0, 1), wanted(0, 2)], &[]), "the sum counts");
    let stays = Wanted { now: Some(charge(ID, 0, 0).payer), ..wanted(9999, 9) };
    let moves = Wanted { now: Some(charge(ID + 1, 0, 0).payer), ..wanted(9999, 9) };
    assert!(!is_refused(&[stays], &[]) && is_refused(&[moves], &[]));
    let other = Wanted { now: None, more: charge(ID + 1, 1 << 40, 1 << 20) };
    assert!(!is_refused(&[other], &[]), "an id without an entry has no limits");

    fs.quotas.reserve(&charge(ID, 1024, 1), false).unwrap();
    assert!(!is_refused(&[wanted(1024, 1)], &[]));
    assert!(is_refused(&[wanted(1025, 0)], &[]) && is_refused(&[wanted(0, 2)], &[]));
    assert!(!is_refused(&[wanted(2048, 2)], &[charge(ID, 1024, 1)]), "the reservation ends with it");
    assert!(is_refused(&[wanted(2048, 2)], &[charge(ID + 1, 1024, 1)]), "it is another's");
    for beyond in [charge(ID, 1025, 0), charge(ID, 0, 2)] {
        assert_eq!(fs.quotas.reserve(&beyond, false).unwrap_err().errno(), Errno::EDQUOT);
    }
    assert!(!is_refused(&[wanted(1024, 1)], &[]), "what was refused is not reserved");
    fs.quotas.reserve(&charge(ID, 4096, 4), true).unwrap();
    assert!(is_refused(&[wanted(1, 0)], &[]) && is_refused(&[wanted(0, 1)], &[]));
    fs.quotas.release(&charge(ID, 4096, 4));
    assert!(!is_refused(&[wanted(1024, 1)], &[]) && is_refused(&[wanted(1025, 1)], &[]));
    assert_eq!(fs.quotas.reservations(), 1);
    fs.quotas.release(&charge(ID, 1024, 1));
    assert_eq!(fs.quotas.reservations(), 0);

    // A limit that is exceeded refuses no charge of the other kind.
    fs.quotas.limit(QuotaKind::User, ID, 1024, 3).unwrap();
    assert!(is_refused(&[wanted(1, 0)], &[]) && !is_refused(&[wanted(0, 1)], &[]));
    fs.quotas.limit(QuotaKind::User, ID, 0, 1).unwrap();
    assert!(!is_refused(&[wanted(1 << 40, 0)], &[]) && is_refused(&[wanted(0, 1)], &[]));
    fs.close().unwrap();
    drop(fs);
    volume.check();
}

#[test]
fn soft_limits_count_after_their_grace_time() {
    const ID: u32 = 500;
    const WEEK: u64 = 7 * 86_400;
    let volume = TestVolume::new(32, &QUOTA_FILES);
    let quota_limits = QuotaLimits { user: true, ..QuotaLimits::default() };
    let fs = volume.open_with(VolumeOptions { quota_limits, ..VolumeOptions::default() });
    let ino = charged_file(&fs, ID);
    let entry = |kind| fs.quotas.entry(kind, ID).unwrap();
    for kind in [QuotaKind::User, QuotaKind::Group] {
        let soft = |entry: &mut QuotaEntry| {
            entry.set_bsoftlimit(8);
            entry.set_isoftlimit(1);
        };
        fs.quotas.edit(kind, ID, soft).unwrap();
    }
    let is_refused = |bytes, inodes| {
        fs.quotas.check(&[Wanted { now: None, more: charge(ID, bytes, inodes) }], &[]).is_err()
    };
    // At the limits no time runs.
    let user = Caller { uid: ID, gid: ID, umask: 0 };
    let sync = |len: usize| {
        fs.set_attr(&ROOT, ino, &SetAttr { size: Some(len as u64), ..SetAttr::default() }).unwrap();
        fs.write(ino, 0, &pattern(len, 1), WriteHow::default()).unwrap();
        fs.sync_file(ino, false).unwrap();
    };
    sync(8192);
    assert_eq!((entry(QuotaKind::User).btime(), entry(QuotaKind::User).itime()), (0, 0));
    let now = || xact_types::unix_seconds() as u64;
    let before = now();
    sync(8193);
    let until = entry(QuotaKind::User).btime();
    assert!((before + WEEK..=now() + WEEK).contains(&until), "{until}");
    assert_eq!((entry(QuotaKind::User).itime(), entry(QuotaKind::Group).btime()), (0, 0));
    assert!(!is_refused(1 << 30, 1));
    // The time runs from the first excess on.
    fs.quotas.edit(QuotaKind::User, ID, |entry| entry.set_btime(until + 5)).unwrap();
    sync(9300);
    assert_eq!(entry(QuotaKind::User).btime(), until + 5);
    fs.quotas.edit(QuotaKind::User, ID, |entry| entry.set_btime(1)).unwrap();
    assert!(is_refused(1, 0) && !is_refused(0, 1));
    sync(8000);
    assert_eq!(entry(QuotaKind::User).btime(), 0);
    assert!(!is_refused(1 << 30, 0));

    let dir = fs.make_dir(&ROOT, Ino::ROOT, b"dir", 0o777).unwrap().ino;
    fs.set_attr(&ROOT, dir, &SetAttr { perm: Some(0o777), ..SetAttr::default() }).unwrap();
    fs.make_node(&user, dir, b"second", 0o100_644, 0).unwrap();
    fs.sync_all().unwrap();
    let until = entry(QuotaKind::User).itime();
    assert!((before + WEEK..=now() + WEEK).contains(&until), "{until}");
    assert_eq!((entry(QuotaKind::User).btime(), entry(QuotaKind::Group).itime()), (0, 0));
    fs.quotas.edit(QuotaKind::User, ID, |entry| entry.set_itime(1)).unwrap();
    assert!(is_refused(0, 1) && !is_refused(1, 0));
    assert_eq!(fs.make_node(&user, dir, b"third", 0o100_644, 0).unwrap_err().errno(), Errno::EDQUOT);
    fs.unlink(&ROOT, dir, b"second").unwrap();
    fs.sync_all().unwrap();
    assert_eq!((entry(QuotaKind::User).itime(), entry(QuotaKind::User).curinodes()), (0, 1));
    fs.make_node(&user, dir, b"third", 0o100_644, 0).unwrap();
    fs.close().unwrap();
    drop(fs);
    volume.check();
}

/// Ids whose paths through the tree part at each level, and more than a leaf has.
#[test]
fn entries_of_many_ids_are_found_by_e2fsck_and_after_a_mount() {
    let volume = TestVolume::new(32, &QUOTA_FILES);
    let ids: Vec<u32> = (1..40).chain([255, 256, 257, 65_535, 65_536, 1 << 24, u32::MAX - 1]).collect();
    let fs = volume.open();
    let blocks = fs.quotas.blocks();
    for &id in &ids {
        charged_file(&fs, id);
    }
    assert!(fs.quotas.blocks() > blocks);
    let usage = |fs: &LiveFs| -> Vec<_> {
        let of = |&id: &u32| {
            let entry = fs.quotas.entry(QuotaKind::User, id).unwrap();
            (entry.id(), entry.curspace(), entry.curinodes())
        };
        ids.iter().map(of).collect()
    };
    let expected: Vec<_> = ids.iter().map(|&id| (id, 8192, 1)).collect();
    assert_eq!(usage(&fs), expected);
    fs.close().unwrap();
    drop(fs);
    volume.check();
    let fs = volume.open();
    assert_eq!(usage(&fs), expected);
    assert!(fs.quotas.entry(QuotaKind::User, 41).is_none());
    // The last leaf has free entries, which an id that is added now takes.
    charged_file(&fs, 41);
    fs.close().unwrap();
    drop(fs);
    volume.check();
}

/// Each is found before anything depends on it.
#[test]
fn damaged_quota_files_are_refused() {
    use std::os::unix::fs::FileExt;

    let volume = TestVolume::new(32, &QUOTA_FILES);
    let fs = volume.open();
    for id in [1, 2, 3] {
        charged_file(&fs, id);
    }
    fs.close().unwrap();
    drop(fs);
    // The offset of a piece of the users' file, which is inode 3.
    let offset_of = |piece: u32| {
        let request = format!("bmap <3> {piece}");
        let output = Command::new("debugfs").args(["-R", &request]).arg(&volume.image).output().unwrap();
        let block: u64 = String::from_utf8(output.stdout).unwrap().trim().parse().unwrap();
        assert_ne!(block, 0, "piece {piece}");
        block * 1024
    };
    let image = std::fs::File::options().read(true).write(true).open(&volume.image).unwrap();
    let word = |at: u64| {
        let mut word = [0; 4];
        image.read_exact_at(&mut word, at).unwrap();
        u32::from_le_bytes(word)
    };
    let (info, root) = (offset_of(0), offset_of(1));
    let pieces = word(info + 20);
    let second = offset_of(word(root));
    let third = offset_of(word(second));
    let leaf = offset_of(word(offset_of(word(third))));
    let first_entry = leaf + entry_at(0) as u64;
    let second_entry = leaf + entry_at(1) as u64;
    let same_id = word(first_entry);
    let open = || {
        let device = Arc::new(FileDevice::open(&volume.image, OpenMode::ReadWrite).unwrap());
        crate::volume::open(device, &VolumeOptions { flusher: false, ..VolumeOptions::default() })
    };
    for (what, at, value) in [
        ("magic number", info, 0),
        ("version", info + 4, 2),
        ("a root beyond the pieces", info + 20, 1),
        ("leaves beyond the pieces", info + 20, 2),
        ("more pieces than blocks", info + 20, pieces + 1000),
        ("a pointer to the info", root + 4 * 9, 0x8000_0000),
        ("a pointer behind the last piece", root + 4 * 9, pieces),
        ("a loop", second + 4 * 9, 1),
        ("a node with two parents", root + 4 * 9, word(root)),
        ("two entries of one id", second_entry, same_id),
    ] {
        let was = word(at);
        image.write_all_at(&u32::to_le_bytes(value), at).unwrap();
        let error = open().map(drop).expect_err(what);
        assert!(matches!(error, Error::Corrupt(_)), "{what}: {error}");
        image.write_all_at(&was.to_le_bytes(), at).unwrap();
    }
    open().unwrap().close().unwrap();
    volume.check();
}
