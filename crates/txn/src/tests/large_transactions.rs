//! Transactions larger than the journal, or than the limit of memory, commit as a whole (TX-16).

use xact_fs::{Allocate, LiveFs, View, WriteHow};
use xact_types::{Error, Ino};

use super::ops::{USER, dump};
use super::real_volumes::{Volume, begin, spilled_blocks};
use crate::Transaction;

fn make_dirs(tx: &Transaction<LiveFs>, count: u32) {
    for i in 0..count {
        tx.make_dir(&USER, Ino::ROOT, format!("dir-{i}").as_bytes(), 0o755).unwrap();
    }
}

/// For more metadata than the journal holds, the journal gets longer; it has its original length
/// again after a clean close, and after a crash.
#[test]
fn a_commit_larger_than_the_journal() {
    let volume = Volume::new(64, &["-b", "1024", "-J", "size=1", "-N", "16000"]);
    let base = volume.open();
    let made = base.engine().journal().unwrap().size();
    let tx = begin(&base);
    make_dirs(&tx, 4000);
    let in_view = dump(&tx, false);
    tx.commit().unwrap();
    let long = base.engine().journal().unwrap().size();
    assert!(long.blocks > 4 * made.blocks && long.made_with == Some(made.blocks), "{long:?}");
    // After a crash the log has the whole commit; the next opening restores the journal's length.
    let crashed = Volume::new(64, &["-b", "1024", "-J", "size=1", "-N", "16000"]);
    std::fs::copy(&volume.image, &crashed.image).unwrap();
    // Another transaction, which removes them all again.
    drop(tx);
    let tx = begin(&base);
    for i in 0..4000 {
        tx.remove_dir(&USER, Ino::ROOT, format!("dir-{i}").as_bytes()).unwrap();
    }
    tx.commit().unwrap();
    base.close().unwrap();
    drop((tx, base));
    volume.check("after a large removal");
    let base = volume.open();
    assert_eq!(base.engine().journal().unwrap().size(), made);
    assert_eq!(dump(&*base, false).len(), 2, "only the root and lost+found are left");

    let base = crashed.open();
    assert_eq!(base.engine().journal().unwrap().size(), made);
    assert_eq!(dump(&*base, false), in_view);
    base.close().unwrap();
    drop(base);
    crashed.check("after a crash with a long journal");
}

/// One transaction removes empty folders that have more blocks than the journal can revoke in one
/// commit; it takes several commits if needed.
#[test]
fn large_folders_are_removed_whatever_the_journal_can_revoke() {
    let volume = Volume::new(128, &["-b", "1024", "-J", "size=1"]);
    let base = volume.open();
    // A block of 1 KiB has three names of this length.
    const NAMES: u32 = 12_000;
    let file = base.make_node(&USER, Ino::ROOT, b"file", 0o100644, 0).unwrap().ino;
    let dirs: Vec<String> = (0..5).map(|i| format!("dir-{i}")).collect();
    for dir in &dirs {
        let ino = base.make_dir(&USER, Ino::ROOT, dir.as_bytes(), 0o755).unwrap().ino;
        let name = |i: u32| format!("{i:0>255}").into_bytes();
        for i in 0..NAMES {
            base.link(&USER, file, ino, &name(i)).unwrap();
        }
        assert!(base.attr(ino).unwrap().size > 4 << 20);
        for i in 0..NAMES {
            base.unlink(&USER, ino, &name(i)).unwrap();
        }
    }
    base.sync_all().unwrap();
    let tx = begin(&base);
    for dir in &dirs {
        tx.remove_dir(&USER, Ino::ROOT, dir.as_bytes()).unwrap();
    }
    tx.commit().unwrap();
    drop(tx);
    base.engine().health().unwrap();
    base.make_dir(&USER, Ino::ROOT, b"and-on", 0o755).unwrap();
    base.close().unwrap();
    drop(base);
    volume.check("after the removal of large folders");
}

/// A journal can get longer only if the volume has space, and its inode has extents.
#[test]
fn a_commit_that_no_journal_takes_is_refused() {
    let refused = |options: &[&str], filled: usize| {
        let volume = Volume::new(64, options);
        let base = volume.open();
        let file = base.make_node(&USER, Ino::ROOT, b"filler", 0o100644, 0).unwrap().ino;
        base.write(file, 0, &vec![1; filled << 20], WriteHow::default()).unwrap();
        base.sync_all().unwrap();
        let before = dump(&*base, true);
        let tx = begin(&base);
        make_dirs(&tx, 4000);
        let refused = tx.commit().unwrap_err();
        assert_eq!(dump(&*base, true), before);
        base.make_dir(&USER, Ino::ROOT, b"one", 0o755).unwrap();
        base.close().unwrap();
        drop((tx, base));
        volume.check("after a refusal");
        refused
    };
    let full = refused(&["-b", "1024", "-J", "size=1", "-N", "16000"], 44);
    assert!(matches!(full, Error::NoSpace), "{full:?}");
    let ext3 = refused(&["-b", "1024", "-J", "size=1", "-N", "16000", "-O", "^extents,^64bit"], 1);
    assert!(matches!(ext3, Error::TooLarge { .. }), "{ext3:?}");
}

const MIB: u64 = 1 << 20;
/// A cache of which a transaction's contents may use an eighth.
const SMALL_CACHE: u64 = 4 * MIB;

fn new_file(tx: &dyn View, name: &str) -> Ino {
    tx.make_node(&USER, Ino::ROOT, name.as_bytes(), 0o100644, 0).unwrap().ino
}

fn write(tx: &dyn View, ino: Ino, offset: u64, byte: u8, len: u64) {
    tx.write(ino, offset, &vec![byte; len as usize], WriteHow::default()).unwrap();
}

/// Contents beyond a share of the cache are spilled to the volume before the commit, which does not
/// write them again. They always read correctly, also after changes.
#[test]
fn contents_beyond_memory_are_spilled() {
    let volume = Volume::new(128, &["-b", "4096"]);
    let base = volume.open_with(SMALL_CACHE);
    let old = new_file(&*base, "old");
    write(&*base, old, 0, 1, 8 * MIB);
    base.sync_all().unwrap();
    let tx = begin(&base);
    let new = new_file(&tx, "new");
    for part in 0..24 {
        write(&tx, new, part * MIB, part as u8 + 1, MIB);
        if part % 3 == 0 {
            write(&tx, old, part / 3 * MIB + 100, 77, MIB - 200);
        }
    }
    let in_memory = tx.with_overlay(|overlay| overlay.in_memory.len() as u64 * 4096);
    assert!(in_memory <= 2 * MIB, "{in_memory} bytes are in memory");
    assert!(spilled_blocks(&tx) > 28 * 256);
    // Spilled blocks are changed in part, truncated, and punched out.
    write(&tx, new, 3 * MIB + 10, 99, 5000);
    let how = Allocate::PunchHole;
    tx.allocate(&USER, new, 5 * MIB + 100, MIB, how).unwrap();
    let cut = xact_fs::SetAttr { size: Some(20 * MIB + 7), ..xact_fs::SetAttr::default() };
    tx.set_attr(&USER, new, &cut).unwrap();
    write(&tx, new, 22 * MIB, 5, 3);
    let in_view = dump(&tx, false);
    let before = base.engine().stats().device.written_bytes;
    tx.commit().unwrap();
    let written = base.engine().stats().device.written_bytes - before;
    assert!(written < 4 * MIB, "the commit wrote {written} bytes");
    assert_eq!(dump(&*base, false), in_view);
    base.close().unwrap();
    drop((tx, base));
    volume.check("after spilling");
    assert_eq!(dump(&*volume.open(), false), in_view);
}

/// Spilled contents that were not committed leave no trace after an abort, a rollback, or a crash.
#[test]
fn spilled_contents_leave_no_trace_without_a_commit() {
    let volume = Volume::new(64, &["-b", "1024"]);
    let base = volume.open_with(SMALL_CACHE);
    let kept = new_file(&*base, "kept");
    write(&*base, kept, 0, 1, MIB);
    base.sync_all().unwrap();
    let (before, free) = (dump(&*base, true), base.space().unwrap().free_blocks);
    let tx = begin(&base);
    let new = new_file(&tx, "new");
    write(&tx, new, 0, 2, 4 * MIB);
    let savepoint = tx.savepoint().unwrap();
    let in_part = dump(&tx, true);
    for part in 0..8 {
        write(&tx, new, (2 + part) * MIB, 3, MIB);
        write(&tx, kept, part * 100_000, 4, 90_000);
    }
    assert!(spilled_blocks(&tx) > 4096 && base.space().unwrap().free_blocks < free - 4096);
    let crashed = Volume::new(64, &["-b", "1024"]);
    std::fs::copy(&volume.image, &crashed.image).unwrap();
    tx.roll_back(savepoint).unwrap();
    assert_eq!(dump(&tx, true), in_part);
    tx.abort();
    assert_eq!(base.space().unwrap().free_blocks, free);
    assert_eq!(dump(&*base, true), before);
    base.close().unwrap();
    drop((tx, base));
    volume.check("after an abort");

    let base = crashed.open();
    assert_eq!(dump(&*base, true), before);
    assert_eq!(base.space().unwrap().free_blocks, free);
    base.close().unwrap();
    drop(base);
    crashed.check("after a crash");
}

/// A file deleted inside is not spilled later, and a full volume is reported by the write that does
/// not fit.
#[test]
fn spilling_on_a_full_volume() {
    let volume = Volume::new(32, &["-b", "4096"]);
    let base = volume.open_with(SMALL_CACHE);
    let tx = begin(&base);
    let gone = new_file(&tx, "gone");
    write(&tx, gone, 0, 1, MIB / 4);
    tx.unlink(&USER, Ino::ROOT, b"gone").unwrap();
    assert_eq!(base.engine().stats().device.written_bytes, 0);
    let new = new_file(&tx, "new");
    let parts = (0..64).map(|part| tx.write(new, part * MIB, &vec![3; MIB as usize], WriteHow::default()));
    let refused = parts.filter_map(Result::err).next().unwrap();
    assert!(matches!(refused, Error::NoSpace), "{refused:?}");
    // The transaction continues: a part that fits is committed.
    let cut = xact_fs::SetAttr { size: Some(4 * MIB), ..xact_fs::SetAttr::default() };
    tx.set_attr(&USER, new, &cut).unwrap();
    tx.commit().unwrap();
    assert_eq!(base.attr(new).unwrap().size, 4 * MIB);
    base.close().unwrap();
    drop((tx, base));
    volume.check("after a full volume");
}
