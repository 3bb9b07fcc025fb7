//! Space that open transactions hold is limited and charged, and never makes the volume full for
//! others.

use std::fs::OpenOptions;
use std::os::unix::fs::FileExt;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};

use xact_device::{FileDevice, OpenMode};
use xact_fs::volume::VolumeOptions;
use xact_fs::{Allocate, Caller, LiveFs, QuotaLimits, SetAttr, View, WriteHow, XattrHow};
use xact_types::{Errno, Error, Ino, Result};

use super::ops::Rng;
use super::real_volumes::Volume;
use crate::{Transaction, TxOptions};

const MIB: u64 = 1 << 20;
const ALICE: Caller = Caller { uid: 1001, gid: 2001, umask: 0 };
const BOB: Caller = Caller { uid: 1002, gid: 2002, umask: 0 };

/// A cache of which a transaction's contents may use an eighth.
const SMALL_CACHE: u64 = 4 * MIB;

fn open(volume: &Volume) -> Arc<LiveFs> {
    volume.open_with(SMALL_CACHE)
}

fn begin(base: &Arc<LiveFs>, caller: Caller) -> Transaction<LiveFs> {
    Transaction::begin(base, TxOptions { owner: caller.uid, ..TxOptions::default() })
}

fn new_file(view: &dyn View, by: Caller, name: &str) -> Result<Ino> {
    Ok(view.make_node(&by, Ino::ROOT, name.as_bytes(), 0o100_644, 0)?.ino)
}

fn write(view: &dyn View, by: Caller, ino: Ino, offset: u64, len: u64) -> Result<()> {
    let how = WriteHow { by, ..WriteHow::default() };
    view.write(ino, offset, &vec![by.uid as u8; len as usize], how).map(drop)
}

/// Writes a new file until an error; returns the number of written bytes and the error.
fn fill(view: &dyn View, by: Caller, name: &str) -> (u64, Error) {
    let ino = new_file(view, by, name).unwrap();
    let mut at = 0;
    loop {
        match write(view, by, ino, at, MIB / 4) {
            Ok(()) => at += MIB / 4,
            Err(error) => return (at, error),
        }
    }
}

fn free(base: &LiveFs) -> (u64, u64) {
    let space = base.space().unwrap();
    (space.free_blocks, space.free_inodes)
}

#[track_caller]
fn is_quota<T: std::fmt::Debug>(result: Result<T>) {
    assert!(matches!(result, Err(Error::Posix(Errno::EDQUOT))), "{result:?}");
}

#[track_caller]
fn is_revoked<T: std::fmt::Debug>(result: Result<T>) {
    assert!(matches!(result, Err(Error::SpaceRevoked)), "{result:?}");
}

fn close(base: Arc<LiveFs>, volume: &Volume, what: &str) {
    base.close().unwrap();
    drop(base);
    volume.check(what);
}

/// All transactions of a user together get a share of the free space; the rest stays for calls
/// outside.
#[test]
fn users_have_a_share() {
    let volume = Volume::new(128, &["-b", "4096", "-N", "4000"]);
    let base = open(&volume);
    let before = free(&base);
    let available = base.space().unwrap().available_blocks * 4096;
    let (one, two, other) = (begin(&base, ALICE), begin(&base, ALICE), begin(&base, BOB));
    let (taken, refused) = fill(&one, ALICE, "one");
    is_quota::<()>(Err(refused));
    assert!(taken > available / 2 - 2 * MIB && taken < available / 2 + 2 * MIB, "{taken} of {available}");
    let (more, refused) = fill(&two, ALICE, "two");
    is_quota::<()>(Err(refused));
    assert!(more <= 2 * MIB, "{more}");
    let (others, refused) = fill(&other, BOB, "other");
    is_quota::<()>(Err(refused));
    assert!(others > available / 4 - 2 * MIB && others < available / 4 + 2 * MIB, "{others} of {available}");
    let file = new_file(&*base, BOB, "outside").unwrap();
    write(&*base, BOB, file, 0, 10 * MIB).unwrap();
    base.sync_all().unwrap();
    let held = base.tx_space_use();
    assert!(held.bytes > taken + others - 3 * MIB && held.inodes == 3 && held.revoked == 0, "{held:?}");
    // A share of inodes, too.
    let count = (0..).find(|i| new_file(&two, ALICE, &format!("file{i}")).is_err()).unwrap();
    assert!(count > before.1 / 2 - 10 && count < before.1 / 2 + 10, "{count} of {}", before.1);
    is_quota(new_file(&one, ALICE, "file"));
    new_file(&other, BOB, "file").unwrap();
    new_file(&*base, ALICE, "another").unwrap();
    // After a refused write the transaction commits, and an abort gives all space back.
    one.commit().unwrap();
    drop((two, other));
    assert_eq!(base.tx_space_use(), xact_fs::TxSpaceUse { limit_percent: 50, ..Default::default() });
    for name in ["one", "outside", "another"] {
        base.unlink(&ALICE, Ino::ROOT, name.as_bytes()).unwrap();
    }
    base.sync_all().unwrap();
    assert_eq!(free(&base), before);
    close(base, &volume, "after shares");
}

/// Transactions of other users cannot use the blocks reserved for root, and a share of 100 % is all
/// the others.
#[test]
fn the_reserve_is_roots() {
    let volume = Volume::new(64, &["-b", "4096", "-m", "30"]);
    let device = Arc::new(FileDevice::open(&volume.image, OpenMode::ReadWrite).unwrap());
    let options = VolumeOptions {
        flusher: false,
        cache_bytes: SMALL_CACHE,
        tx_space_percent: 100,
        ..Default::default()
    };
    let base = xact_fs::open(device, &options).unwrap();
    let tx = begin(&base, ALICE);
    fill(&tx, ALICE, "file");
    let space = base.space().unwrap();
    assert!(space.available_blocks < 1024 && space.free_blocks >= space.blocks / 4, "{space:?}");
    drop(tx);
    close(base, &volume, "after all but the reserve");
}

/// A transaction of root has no limit, and is revoked like all others, without a trace.
#[test]
fn the_largest_gives_way() {
    for options in [&["-b", "4096", "-m", "0"][..], &["-b", "4096", "-m", "0", "-O", "^has_journal"]] {
        let volume = Volume::new(64, options);
        let base = open(&volume);
        let before = free(&base);
        let small = begin(&base, ALICE);
        let file = new_file(&small, ALICE, "small").unwrap();
        write(&small, ALICE, file, 0, 4 * MIB).unwrap();
        let large = begin(&base, Caller::ROOT);
        let (taken, full) = fill(&large, Caller::ROOT, "large");
        assert!(matches!(full, Error::NoSpace), "{full:?}");
        assert!(taken > 40 * MIB, "{taken}");
        let ino = large.lookup(Ino::ROOT, b"large").unwrap().ino;
        let savepoint = large.savepoint().unwrap();

        let outside = new_file(&*base, BOB, "outside").unwrap();
        write(&*base, BOB, outside, 0, 8 * MIB).unwrap();
        base.sync_all().unwrap();
        assert_eq!(base.tx_space_use().revoked, 1);

        assert!(large.is_doomed() && !small.is_doomed());
        is_revoked(write(&large, Caller::ROOT, ino, 0, 5));
        is_revoked(new_file(&large, Caller::ROOT, "more"));
        is_revoked(large.read(ino, 0, 4096, &mut Vec::new()));
        large.roll_back(savepoint).unwrap();
        is_revoked(large.try_commit(crate::Durability::Durable, &mut ()));
        is_revoked(large.commit());
        small.commit().unwrap();
        let mut bytes = Vec::new();
        base.read(file, 3 * MIB, 4096, &mut bytes).unwrap();
        assert_eq!(bytes, [ALICE.uid as u8; 4096]);
        for name in ["small", "outside"] {
            base.unlink(&ALICE, Ino::ROOT, name.as_bytes()).unwrap();
        }
        base.sync_all().unwrap();
        assert_eq!(free(&base), before);
        close(base, &volume, "after giving way");
    }
}

/// Inodes are revoked, too; their numbers are then reused, and the transaction does not give them
/// back again.
#[test]
fn inodes_give_way() {
    let volume = Volume::new(32, &["-b", "4096", "-N", "512"]);
    let base = open(&volume);
    let before = free(&base);
    let tx = begin(&base, Caller::ROOT);
    let full = (0..).map(|i| new_file(&tx, Caller::ROOT, &format!("inside{i}"))).find_map(Result::err);
    assert!(matches!(full, Some(Error::NoSpace)));
    for i in 0..100 {
        new_file(&*base, BOB, &format!("outside{i}")).unwrap();
    }
    is_revoked(tx.commit());
    base.sync_all().unwrap();
    assert_eq!(free(&base).1, before.1 - 100);
    close(base, &volume, "after inodes");
}

/// The commit of a transaction revokes others, and never itself.
#[test]
fn a_commit_finds_space() {
    let volume = Volume::new(64, &["-b", "4096", "-m", "0"]);
    let base = open(&volume);
    let (commits, holds) = (begin(&base, ALICE), begin(&base, Caller::ROOT));
    let (taken, _) = fill(&commits, ALICE, "commits");
    fill(&holds, Caller::ROOT, "holds");
    commits.commit().unwrap();
    is_revoked(holds.commit());
    let file = base.lookup(Ino::ROOT, b"commits").unwrap();
    assert_eq!(file.size, taken);
    close(base, &volume, "after a commit");
}

/// A request that no revocation could meet revokes nothing.
#[test]
fn hopeless_requests_take_nothing() {
    let volume = Volume::new(64, &["-b", "4096", "-m", "0"]);
    let base = open(&volume);
    let tx = begin(&base, ALICE);
    let (taken, _) = fill(&tx, ALICE, "inside");
    let file = new_file(&*base, BOB, "outside").unwrap();
    let keep = Allocate::Reserve { keep_size: true };
    let huge = base.allocate(&BOB, file, 0, 1 << 40, keep);
    assert!(matches!(huge, Err(Error::NoSpace)), "{huge:?}");
    let long = base.set_xattr(&BOB, file, b"user.x", &[7; 5000], XattrHow::Set);
    assert!(matches!(long, Err(Error::DoesNotFit(_))), "{long:?}");
    let staged = begin(&base, BOB);
    let file = new_file(&staged, BOB, "staged").unwrap();
    staged.allocate(&BOB, file, 0, 1 << 40, keep).unwrap();
    assert!(matches!(staged.commit(), Err(Error::NoSpace)));
    tx.commit().unwrap();
    assert_eq!(base.lookup(Ino::ROOT, b"inside").unwrap().size, taken);
    close(base, &volume, "after hopeless requests");
}

/// Space deleted outside while a transaction only reads is available on demand. The oldest views
/// expire first, and their space is freed although a younger view is open.
#[test]
fn deleted_space_is_free_for_others() {
    for cache in [SMALL_CACHE, 256 * MIB] {
        for punched in [false, true] {
            let volume = Volume::new(64, &["-b", "4096", "-m", "0"]);
            let base = volume.open_with(cache);
            let old = new_file(&*base, BOB, "old").unwrap();
            write(&*base, BOB, old, 0, 40 * MIB).unwrap();
            base.sync_all().unwrap();
            let looks = begin(&base, ALICE);
            looks.lookup(Ino::ROOT, b"old").unwrap();
            if punched {
                base.set_attr(&BOB, old, &SetAttr { size: Some(0), ..SetAttr::default() }).unwrap();
            } else {
                base.unlink(&BOB, Ino::ROOT, b"old").unwrap();
            }
            let younger = begin(&base, ALICE);
            for round in 0..4 {
                let new = new_file(&*base, BOB, &format!("new{round}")).unwrap();
                for part in 0..40 {
                    write(&*base, BOB, new, part * MIB, MIB).unwrap();
                }
                base.sync_all().unwrap();
                // With the small cache, the old versions of 40 MiB of new blocks expire the younger
                // view, too.
                if round == 0 && cache > SMALL_CACHE {
                    let gone = looks.lookup(Ino::ROOT, b"old");
                    assert!(matches!(gone, Err(Error::TooOld)), "{gone:?}");
                    assert_eq!(younger.lookup(Ino::ROOT, b"old").is_ok(), punched);
                    new_file(&younger, ALICE, "younger").unwrap();
                    younger.commit().unwrap();
                }
                base.unlink(&BOB, Ino::ROOT, format!("new{round}").as_bytes()).unwrap();
            }
            drop(looks);
            close(base, &volume, "after views");
        }
    }
}

/// Numbers of deleted inodes that only a view keeps are freed, too.
#[test]
fn deleted_inodes_are_free_for_others() {
    let volume = Volume::new(32, &["-b", "4096", "-N", "256"]);
    let base = open(&volume);
    let many = |round: u32| {
        for i in 0..150 {
            new_file(&*base, BOB, &format!("{round}-{i}")).unwrap();
        }
    };
    many(0);
    let looks = begin(&base, ALICE);
    looks.lookup(Ino::ROOT, b"0-0").unwrap();
    for i in 0..150 {
        base.unlink(&BOB, Ino::ROOT, format!("0-{i}").as_bytes()).unwrap();
    }
    many(1);
    assert!(matches!(looks.lookup(Ino::ROOT, b"0-0"), Err(Error::TooOld)));
    drop(looks);
    close(base, &volume, "after deleted inodes");
}

/// A volume of mke2fs with quotas, on which every user of the test has an entry.
fn with_quotas() -> Volume {
    let kinds =
        ["-b", "4096", "-O", "quota,project", "-I", "256", "-E", "quotatype=usrquota:grpquota:prjquota"];
    let volume = Volume::new(128, &kinds);
    let base = open_limited(&volume);
    for by in [ALICE, BOB] {
        let ino = new_file(&*base, by, &format!("entry{}", by.uid)).unwrap();
        let change = SetAttr { project: Some(by.uid), ..SetAttr::default() };
        base.set_attr(&Caller::ROOT, ino, &change).unwrap();
    }
    close(base, &volume, "with entries");
    volume
}

fn open_limited(volume: &Volume) -> Arc<LiveFs> {
    let device = Arc::new(FileDevice::open(&volume.image, OpenMode::ReadWrite).unwrap());
    let quota_limits = QuotaLimits { user: true, group: true, project: true };
    let options =
        VolumeOptions { flusher: false, cache_bytes: SMALL_CACHE, quota_limits, ..Default::default() };
    xact_fs::open(device, &options).unwrap()
}

const USERS: u32 = 3;
const GROUPS: u32 = 4;
/// Hard limits in an entry (`struct v2r1_disk_dqblk`).
const INODES_HARD: u64 = 8;
const KIBS_HARD: u64 = 32;

fn debugfs(volume: &Volume, request: &str) -> String {
    let out = Command::new("debugfs").arg("-R").arg(request).arg(&volume.image).output();
    String::from_utf8(out.expect("debugfs is needed (package e2fsprogs)").stdout).unwrap()
}

/// Writes a limit into a quota file, like quota tools.
fn limit(volume: &Volume, file: &str, id: u32, at: u64, value: u64) {
    let image = OpenOptions::new().read(true).write(true).open(&volume.image).unwrap();
    let size = 4096;
    for number in 0..4 {
        let block: u64 = debugfs(volume, &format!("bmap {file} {number}")).trim().parse().unwrap();
        for piece in (0..size).step_by(1024).filter(|piece| number * size + piece >= 2048 && block > 0) {
            for entry in (16..1024 - 71).step_by(72) {
                let place = block * size + piece + entry;
                let mut data = [0; 72];
                image.read_exact_at(&mut data, place).unwrap();
                let inodes = u64::from_le_bytes(data[24..32].try_into().unwrap());
                if u32::from_le_bytes(data[..4].try_into().unwrap()) == id && inodes > 0 && inodes < 1000 {
                    image.write_all_at(&value.to_le_bytes(), place + at).unwrap();
                    return;
                }
            }
        }
    }
    panic!("no entry of {id}");
}

/// Spilled contents count against the quotas of their file, like a write outside, until they are
/// given back or committed; the quota files on disk never include them.
#[test]
fn spilled_contents_are_charged() {
    let projects = with_quotas();
    let sb = debugfs(&projects, "stats -h");
    let line = sb.lines().find(|line| line.starts_with("Project quota inode:")).expect("a project quota");
    let projects_file = line.split_whitespace().last().unwrap();
    for (file, id) in [
        (&*format!("<{USERS}>"), 1001),
        (&*format!("<{GROUPS}>"), 2001),
        (&*format!("<{projects_file}>"), 1001),
    ] {
        let volume = with_quotas();
        limit(&volume, file, id, KIBS_HARD, 8 * 1024);
        let base = open_limited(&volume);
        let free_before = free(&base);
        if file != format!("<{USERS}>") && file != format!("<{GROUPS}>") {
            let change = SetAttr {
                project: Some(1001),
                flags: Some(xact_layout::inode::flag::PROJECT_INHERIT),
                ..SetAttr::default()
            };
            base.set_attr(&Caller::ROOT, Ino::ROOT, &change).unwrap();
        }
        for ends in ["abort", "commit"] {
            let tx = begin(&base, ALICE);
            let (taken, refused) = fill(&tx, ALICE, "inside");
            is_quota::<()>(Err(refused));
            assert!((7 * MIB..=9 * MIB).contains(&taken), "{file}: {taken}");
            let crashed = Volume::new(128, &["-b", "4096"]);
            base.sync_all().unwrap();
            std::fs::copy(&volume.image, &crashed.image).unwrap();
            close(open_limited(&crashed), &crashed, "after a crash in the midst");
            // It counts for calls outside, too.
            let outside = new_file(&*base, ALICE, "outside").unwrap();
            let refused = (0..8).find_map(|at| write(&*base, ALICE, outside, at * MIB, MIB).err());
            is_quota::<()>(Err(refused.expect("the limit is reached")));
            base.unlink(&ALICE, Ino::ROOT, b"outside").unwrap();
            // Other users have their own quotas.
            let others = begin(&base, Caller { uid: 1002, gid: 2002, umask: 0 });
            if file == format!("<{USERS}>") || file == format!("<{GROUPS}>") {
                let (taken, _) = fill(&others, BOB, "others");
                assert!(taken > 12 * MIB, "{taken}");
            }
            drop(others);
            if ends == "commit" {
                // Contents in memory count at the commit.
                let ino = tx.lookup(Ino::ROOT, b"inside").unwrap().ino;
                let cut = SetAttr { size: Some(7 * MIB), ..SetAttr::default() };
                tx.set_attr(&ALICE, ino, &cut).unwrap();
                tx.commit().unwrap();
            } else {
                drop(tx);
            }
        }
        let outside = new_file(&*base, ALICE, "outside").unwrap();
        write(&*base, ALICE, outside, 0, MIB / 2).unwrap();
        is_quota(write(&*base, ALICE, outside, MIB, 2 * MIB));
        base.unlink(&ALICE, Ino::ROOT, b"inside").unwrap();
        write(&*base, ALICE, outside, 0, 7 * MIB).unwrap();
        base.unlink(&ALICE, Ino::ROOT, b"outside").unwrap();
        base.sync_all().unwrap();
        assert_eq!(free(&base).1, free_before.1);
        close(base, &volume, "after quotas");
    }
}

/// Inodes created in a transaction are charged until they are deleted or given back.
#[test]
fn born_inodes_are_charged() {
    let volume = with_quotas();
    limit(&volume, &format!("<{USERS}>"), 1001, INODES_HARD, 20);
    let base = open_limited(&volume);
    let tx = begin(&base, ALICE);
    let make = |view: &dyn View, i: u32| new_file(view, ALICE, &format!("file{i}"));
    for i in 0..19 {
        make(&tx, i).unwrap();
    }
    is_quota(make(&tx, 19));
    is_quota(new_file(&*base, ALICE, "outside"));
    new_file(&tx, BOB, "bobs").unwrap();
    // A deleted inode is no longer charged.
    tx.unlink(&ALICE, Ino::ROOT, b"file3").unwrap();
    make(&tx, 19).unwrap();
    is_quota(make(&tx, 20));
    // After a partial commit the charge counts once.
    tx.commit_only(&["/file0", "/file1"], crate::Durability::Durable, &mut ()).unwrap();
    is_quota(make(&tx, 21));
    is_quota(new_file(&*base, ALICE, "outside"));
    tx.commit().unwrap();
    is_quota(new_file(&*base, ALICE, "outside"));
    base.unlink(&ALICE, Ino::ROOT, b"file0").unwrap();
    base.sync_all().unwrap();
    new_file(&*base, ALICE, "outside").unwrap();
    // A commit over the limit is refused, and leaves the charge unchanged.
    let tx = begin(&base, ALICE);
    is_quota(make(&tx, 30));
    drop(tx);
    // Quotas do not limit root, but its transactions are charged.
    let tx = begin(&base, Caller::ROOT);
    make(&tx, 40).unwrap();
    tx.commit().unwrap();
    close(base, &volume, "after inodes");
}

/// Threads commit large transactions, and write and delete outside, on a volume that is too small
/// for all: outside, no request that fits is refused, and no data is lost, taken twice, or read
/// wrongly.
#[test]
fn giving_way_beside_commits() {
    for kind in [&["-b", "1024", "-m", "0"][..], &["-b", "4096", "-m", "0", "-O", "^has_journal"]] {
        let volume = Volume::new(48, kind);
        let base = volume.open_with(2 * MIB);
        let before = free(&base);
        let (stop, revoked, committed) = (AtomicBool::new(false), AtomicU64::new(0), AtomicU64::new(0));
        std::thread::scope(|scope| {
            for thread in 0..4u32 {
                let (base, stop, revoked, committed) = (&base, &stop, &revoked, &committed);
                scope.spawn(move || {
                    let by = Caller { uid: if thread == 0 { 0 } else { 1000 + thread }, gid: 5, umask: 0 };
                    let mut rng = Rng(u64::from(thread));
                    while !stop.load(SeqCst) {
                        let tx = begin(base, by);
                        let name = format!("t{thread}");
                        let Ok(ino) = new_file(&tx, by, &name) else { continue };
                        let parts = rng.below(if thread == 0 { 80 } else { 30 });
                        let done =
                            (0..parts).all(|part| write(&tx, by, ino, part * MIB / 2, MIB / 2).is_ok());
                        let mut bytes = Vec::new();
                        for part in 0..parts {
                            bytes.clear();
                            match tx.read(ino, part * MIB / 2, 4096, &mut bytes) {
                                Ok(()) => assert!(bytes.iter().all(|byte| *byte == by.uid as u8)),
                                Err(Error::SpaceRevoked | Error::TooOld) => break,
                                Err(error) => panic!("{error}"),
                            }
                        }
                        if !done || rng.below(4) == 0 {
                            continue;
                        }
                        match tx.commit() {
                            Ok(()) => {
                                committed.fetch_add(1, SeqCst);
                                base.unlink(&by, Ino::ROOT, name.as_bytes()).unwrap();
                            }
                            Err(Error::SpaceRevoked) => _ = revoked.fetch_add(1, SeqCst),
                            Err(Error::NoSpace | Error::TooOld | Error::Conflict { .. }) => {}
                            Err(error) => panic!("{error}"),
                        }
                    }
                });
            }
            for round in 0..40 {
                let ino = new_file(&*base, BOB, "outside").unwrap();
                for part in 0..24 {
                    write(&*base, BOB, ino, part * MIB, MIB).unwrap_or_else(|e| panic!("round {round}: {e}"));
                }
                base.unlink(&BOB, Ino::ROOT, b"outside").unwrap();
            }
            stop.store(true, SeqCst);
        });
        println!(
            "{} committed, {} revoked at the commit, {:?}",
            committed.load(SeqCst),
            revoked.load(SeqCst),
            base.tx_space_use()
        );
        assert!(committed.load(SeqCst) > 0 && base.tx_space_use().revoked > 0);
        base.sync_all().unwrap();
        assert_eq!(free(&base), before);
        close(base, &volume, "after threads");
    }
}
