//! The blocks in the log for each setting, read from the log on the device.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use xact::mkfs::{MkfsOptions, mkfs};
use xact::{
    BlockDevice, Caller, DataMode, Durability, Ino, InodeUpdate, MemoryDevice, ModeChoice, SetAttr,
    TxOptions, View, Volume, VolumeOptions,
};
use xact_check::Use;
use xact_consistency::recovery::inspect::{LoggedState, inspect};
use xact_fs::WriteHow;
use xact_layout::inode::Inode;

const BLOCK: u64 = 4096;
const KIB: u64 = 1024;
const ROOT: Caller = Caller::ROOT;

struct Setup {
    device: Arc<dyn BlockDevice>,
    volume: Arc<Volume>,
    base: Arc<dyn View>,
}

/// The contents that one or several commits add to the log.
#[derive(Debug, Default)]
struct Logged {
    /// Blocks of data, by file.
    data: BTreeMap<Ino, u64>,
    /// Inodes whose block is in the log, with the size and the time of the newest copy.
    inodes: BTreeMap<Ino, (u64, i64)>,
}

impl Setup {
    fn new(modes: ModeChoice, cache_bytes: u64) -> Setup {
        let device = Arc::new(MemoryDevice::new(64 << 20));
        mkfs(&*device, &MkfsOptions { block_size: Some(BLOCK as u32), ..MkfsOptions::default() }).unwrap();
        let options = VolumeOptions { modes, cache_bytes, flusher: false, ..VolumeOptions::default() };
        let volume = Volume::open(device.clone(), &options).unwrap();
        let base = volume.base();
        Setup { device, volume, base }
    }

    fn file(&self, name: &str) -> Ino {
        self.base.make_node(&ROOT, Ino::ROOT, name.as_bytes(), 0o100_644, 0).unwrap().ino
    }

    fn write(&self, ino: Ino, offset: u64, len: u64) {
        self.base.write(ino, offset, &vec![7; len as usize], WriteHow::default()).unwrap();
    }

    fn fsync(&self, ino: Ino) {
        self.base.sync_file(ino, false).unwrap();
    }

    fn cut(&self, ino: Ino, size: u64) {
        self.base.set_attr(&ROOT, ino, &SetAttr { size: Some(size), ..SetAttr::default() }).unwrap();
    }

    /// Number of the newest transaction in the log.
    fn newest(&self) -> u32 {
        inspect(&self.device).unwrap().transactions.last().map_or(0, |transaction| transaction.sequence)
    }

    /// The contents of the transactions after number `before`.
    fn logged_since(&self, before: u32) -> Logged {
        let log = inspect(&self.device).unwrap();
        let all = log.transactions.iter();
        let new: Vec<_> = all.filter(|transaction| transaction.sequence > before).collect();
        assert!(new.iter().all(|transaction| transaction.state == LoggedState::Complete), "{new:?}");
        let copies = || new.iter().flat_map(|transaction| &transaction.copies);
        let wanted: BTreeSet<_> = copies().map(|copy| copy.home).collect();
        let uses = xact_check::uses(self.device.clone(), &wanted).unwrap();
        let mut logged = Logged::default();
        for copy in copies() {
            match uses[&copy.home] {
                Use::Data(ino) => *logged.data.entry(ino).or_default() += 1,
                Use::Inodes(first, last) => {
                    let mut bytes = vec![0; BLOCK as usize];
                    self.device.read_at(&mut bytes, log.place(copy.at).unwrap().0 * BLOCK).unwrap();
                    for (ino, bytes) in (first.0..=last.0).zip(bytes.chunks(256)) {
                        let inode = Inode::new(bytes);
                        logged.inodes.insert(Ino(ino), (inode.size(), inode.mtime().secs));
                    }
                }
                _ => {}
            }
        }
        logged
    }

    /// Blocks of the file's data in what `work` commits.
    fn data_of(&self, ino: Ino, work: impl FnOnce()) -> u64 {
        let before = self.newest();
        work();
        self.logged_since(before).data.get(&ino).copied().unwrap_or(0)
    }
}

fn adaptive() -> Setup {
    Setup::new(ModeChoice { data: Some(DataMode::Adaptive), ..ModeChoice::default() }, 64 << 20)
}

/// The four kinds of write of the paper on delayed inode update, to a file of 14 KiB: unaligned and
/// allocating; size-changing in an existing block; aligned and allocating; size-preserving. The
/// third number is the size that stock ext4 gives the inode at once.
const WRITES: [(u64, u64, u64); 4] =
    [(14 * KIB, 6 * KIB, 16), (14 * KIB, KIB, 15), (16 * KIB, 4 * KIB, 14), (4 * KIB, 2 * KIB, 14)];

/// DIU-1, DIU-2: the part of a file that was written and not synced that another file's fsync
/// commits, for each kind of write and each pair of settings.
#[test]
fn another_files_fsync_commits_what_the_settings_say() {
    use InodeUpdate::{Delayed, Immediate};
    for (inode_update, timestamps) in
        [(Delayed, Delayed), (Delayed, Immediate), (Immediate, Delayed), (Immediate, Immediate)]
    {
        for (offset, len, at_once) in WRITES {
            let modes = ModeChoice {
                data: Some(DataMode::Ordered),
                inode_update: Some(inode_update),
                timestamps: Some(timestamps),
                ..ModeChoice::default()
            };
            let setup = Setup::new(modes, 64 << 20);
            // Enough files that the two share no block of the inode table.
            let files: Vec<Ino> = (0..40).map(|n| setup.file(&format!("f{n}"))).collect();
            let (a, b) = (files[0], files[39]);
            for ino in [a, b] {
                setup.write(ino, 0, 14 * KIB);
                let then = Some(xact::TimeChange::To(xact::Timestamp { secs: 1000, nanos: 0 }));
                setup.base.set_attr(&ROOT, ino, &SetAttr { mtime: then, ..SetAttr::default() }).unwrap();
            }
            setup.volume.sync().unwrap();
            let before = setup.newest();
            setup.write(b, offset, len);
            setup.write(a, offset, len);
            setup.fsync(a);
            let logged = setup.logged_since(before);
            let what = format!("{len} bytes at {offset}, {inode_update:?}, {timestamps:?}: {logged:?}");
            assert_eq!(logged.inodes[&a].0, (offset + len).max(14 * KIB), "{what}");
            assert!(logged.inodes[&a].1 > 1000, "{what}");
            let size = if inode_update == Immediate { at_once * KIB } else { 14 * KIB };
            match logged.inodes.get(&b) {
                Some((found, time)) => {
                    assert!(timestamps == Immediate || size > 14 * KIB, "{what}");
                    assert_eq!(*found, size, "{what}");
                    assert!(*time > 1000, "{what}");
                }
                None => assert!(timestamps == Delayed && size == 14 * KIB, "{what}"),
            }
            setup.fsync(b);
            let logged = setup.logged_since(before);
            assert_eq!(logged.inodes[&b].0, (offset + len).max(14 * KIB), "{what}");
        }
    }
}

/// DIU-3: data that leaves for want of memory takes the inode's times along, though nothing of the
/// inode but them has changed.
#[test]
fn data_that_memory_is_short_of_takes_its_inode_along() {
    const FILE: u64 = 2 << 20;
    let modes = ModeChoice { data: Some(DataMode::Ordered), ..ModeChoice::default() };
    // Half of it is for data, of which half may be dirty.
    let setup = Setup::new(modes, 4 << 20);
    let files: Vec<Ino> = (0..40).map(|n| setup.file(&format!("f{n}"))).collect();
    let (a, b) = (files[0], files[39]);
    setup.write(b, 0, FILE);
    let then = Some(xact::TimeChange::To(xact::Timestamp { secs: 1000, nanos: 0 }));
    setup.base.set_attr(&ROOT, b, &SetAttr { mtime: then, ..SetAttr::default() }).unwrap();
    setup.volume.sync().unwrap();
    let (before, overwritten) = (setup.newest(), setup.volume.written_blocks().overwritten);
    for offset in (0..FILE).step_by(64 << 10) {
        setup.write(b, offset, 64 << 10);
    }
    assert!(setup.volume.written_blocks().overwritten > overwritten, "memory was not short");
    setup.write(a, 0, 100);
    setup.fsync(a);
    let logged = setup.logged_since(before);
    let (size, time) = logged.inodes[&b];
    assert!(size == FILE && time > 1000, "{logged:?}");
}

/// JOJ-8, a new file without a known pattern: at most the data that a device writes in about the
/// time of a flush joins the commit.
#[test]
fn a_first_sync_by_its_size() {
    for (blocks, copies) in [(1, 1), (32, 32), (33, 0)] {
        let setup = adaptive();
        let file = setup.file("new");
        let logged = setup.data_of(file, || {
            setup.write(file, 0, blocks * BLOCK);
            setup.fsync(file);
        });
        assert_eq!(logged, copies, "{blocks} blocks");
    }
}

/// JOJ-8, a log that only grows: small appends join their commits, so that each is one write and
/// one flush. Large ones do so until the file is known as a log, whose data would all be written
/// twice.
#[test]
fn a_log_that_grows() {
    for name in ["messages", "db-journal", "db-wal"] {
        let setup = adaptive();
        let log = setup.file(name);
        let mut size = 0;
        let mut append = |len: u64| {
            setup.write(log, size, len);
            size += len;
            setup.fsync(log);
        };
        for n in 0..20 {
            let copies = setup.data_of(log, || append(17 * BLOCK));
            assert_eq!(copies, if n < 8 { 17 } else { 0 }, "append {n} to {name}");
        }
        assert_eq!(setup.data_of(log, || append(16 * BLOCK)), 16, "{name}");
    }
}

/// JOJ-8, a write-ahead log in its second round (SQLite's WAL): nothing but the data needs a
/// commit, and a crash must not leave a part of it.
#[test]
fn a_log_that_is_written_again() {
    let setup = adaptive();
    let log = setup.file("log");
    setup.write(log, 0, 40 * BLOCK);
    setup.volume.sync().unwrap();
    for n in 0..40 {
        let before = setup.volume.stats().device;
        let copies = setup.data_of(log, || {
            setup.write(log, n * BLOCK, BLOCK);
            setup.base.sync_file(log, true).unwrap();
        });
        assert_eq!(copies, 1, "round two, block {n}");
        let after = setup.volume.stats().device;
        assert_eq!((after.writes - before.writes, after.flushes - before.flushes), (1, 1), "block {n}");
    }
}

/// A small overwrite is never written in place, whatever makes it durable and whether metadata has
/// to be committed or not. So a crash leaves all of it or nothing.
#[test]
fn what_a_small_sync_overwrites_is_in_its_commit() {
    type Sync = fn(&Setup, Ino);
    let fsync: Sync = |setup, ino| setup.fsync(ino);
    let fdatasync: Sync = |setup, ino| setup.base.sync_file(ino, true).unwrap();
    // As the background does it, after which the fsync finds no dirty data.
    let early: Sync = |setup, ino| {
        setup.volume.sync().unwrap();
        setup.fsync(ino);
    };
    for (name, sync) in [("fsync", fsync), ("fdatasync", fdatasync), ("sync before an fsync", early)] {
        for blocks in [1, 4, 32, 33] {
            let setup = adaptive();
            let ino = setup.file("file");
            setup.write(ino, 0, 80 * BLOCK);
            setup.fsync(ino);
            let times = setup.base.attr(ino).unwrap();
            let copies = setup.data_of(ino, || {
                setup.write(ino, 7 * BLOCK, blocks * BLOCK);
                // Within a tick of the kernel's clock, a write changes no time.
                let then = |time| Some(xact::TimeChange::To(time));
                let back =
                    SetAttr { mtime: then(times.mtime), atime: then(times.atime), ..SetAttr::default() };
                setup.base.set_attr(&ROOT, ino, &back).unwrap();
                sync(&setup, ino);
            });
            // 128 KiB is the limit.
            assert_eq!(copies, if blocks <= 32 { blocks } else { 0 }, "{name} of {blocks} blocks");
        }
    }
    // Large as the sync may be: it overwrites little, and what it adds is not linked before.
    let setup = adaptive();
    let ino = setup.file("file");
    setup.write(ino, 0, 4 * BLOCK);
    setup.volume.sync().unwrap();
    let copies = setup.data_of(ino, || {
        setup.write(ino, 0, 100 * BLOCK);
        setup.fsync(ino);
    });
    assert_eq!(copies, 4);
}

/// The cost of a sync in each data setting: writes, flushes and KiB of an fsync of 8 KiB that were
/// appended, and of an fdatasync of 8 KiB that were overwritten. The guide has these numbers.
#[test]
fn what_a_sync_costs_in_each_data_setting() {
    use DataMode::{Adaptive, Journal, Ordered, Selective, Writeback};
    for (mode, append, overwrite) in [
        (Ordered, (2, 2, 28), (1, 1, 8)),
        (Adaptive, (1, 1, 28), (1, 1, 16)),
        (Selective, (2, 2, 28), (1, 1, 16)),
        (Journal, (1, 1, 28), (1, 1, 16)),
        (Writeback, (2, 1, 28), (1, 1, 8)),
    ] {
        let setup = Setup::new(ModeChoice { data: Some(mode), ..ModeChoice::default() }, 64 << 20);
        let ino = setup.file("file");
        setup.write(ino, 0, 4 * BLOCK);
        setup.volume.sync().unwrap();
        let cost = |offset: u64, data_only: bool| {
            let before = setup.volume.stats().device;
            setup.write(ino, offset, 2 * BLOCK);
            setup.base.sync_file(ino, data_only).unwrap();
            let after = setup.volume.stats().device;
            let kib = (after.written_bytes - before.written_bytes) / KIB;
            (after.writes - before.writes, after.flushes - before.flushes, kib)
        };
        assert_eq!(cost(4 * BLOCK, false), append, "{mode:?}, append");
        assert_eq!(cost(0, true), overwrite, "{mode:?}, overwrite");
    }
}

/// With `selective` and `journal`, a large sync is one commit, too, up to a quarter of the journal.
#[test]
fn a_large_sync_is_one_commit_where_overwritten_data_is_journaled() {
    for mode in [DataMode::Selective, DataMode::Journal] {
        let setup = Setup::new(ModeChoice { data: Some(mode), ..ModeChoice::default() }, 64 << 20);
        let ino = setup.file("file");
        setup.write(ino, 0, 200 * BLOCK);
        setup.volume.sync().unwrap();
        // So that the running commit is not empty.
        for n in 0..30 {
            setup.file(&format!("f{n}"));
        }
        let before = setup.newest();
        setup.write(ino, 0, 200 * BLOCK);
        setup.fsync(ino);
        let log = inspect(&setup.device).unwrap();
        let mut new = log.transactions.iter().filter(|transaction| transaction.sequence > before);
        assert!(new.any(|transaction| transaction.copies.len() > 200), "{mode:?}");
    }
}

/// JOJ-4: a file's own mode counts for it, whatever the volume's is: blocks of the file in the log
/// after an append of 40 blocks, an overwrite of 4, and one of 40, each with fdatasync.
#[test]
fn a_file_has_a_mode_of_its_own() {
    use DataMode::{Adaptive, Journal, Ordered, Selective, Writeback};
    for volume in [Writeback, Ordered, Journal, Selective, Adaptive] {
        for (word, logged) in [
            ("none", [0, 0, 0]),
            ("ordered", [0, 0, 0]),
            ("data", [40, 4, 40]),
            ("selective", [0, 4, 40]),
            ("adaptive", [0, 4, 0]),
        ] {
            let setup = Setup::new(ModeChoice { data: Some(volume), ..ModeChoice::default() }, 64 << 20);
            let ino = setup.file("file");
            let choose = |word: &str| {
                let how = xact_fs::XattrHow::Set;
                setup.base.set_xattr(&ROOT, ino, b"user.xact.data", word.as_bytes(), how).unwrap();
            };
            choose("ordered");
            setup.write(ino, 0, 80 * BLOCK);
            setup.volume.sync().unwrap();
            choose(word);
            for ((offset, blocks), copies) in [(80, 40), (3, 4), (10, 40)].into_iter().zip(logged) {
                let found = setup.data_of(ino, || {
                    setup.write(ino, offset * BLOCK, blocks * BLOCK);
                    setup.base.sync_file(ino, true).unwrap();
                });
                assert_eq!(found, copies, "{word} on {volume:?}, {blocks} blocks at {offset}");
            }
            // Out of the journal again, as soon as the copies are home.
            choose("ordered");
            setup.volume.sync().unwrap();
            let found = setup.data_of(ino, || {
                setup.write(ino, 60 * BLOCK, BLOCK);
                setup.base.sync_file(ino, true).unwrap();
            });
            assert_eq!(found, 0, "ordered after {word} on {volume:?}");
        }
    }
}

/// A change within one sector survives as a whole in its place, too.
#[test]
fn a_sector_that_needs_no_commit_is_written_in_place() {
    let setup = adaptive();
    let ino = setup.file("file");
    setup.write(ino, 0, 4 * BLOCK);
    setup.volume.sync().unwrap();
    for (at, len, copies) in [(BLOCK + 512, 512, 0), (BLOCK + 100, 8, 0), (BLOCK + 1000, 100, 1)] {
        let logged = setup.data_of(ino, || {
            setup.write(ino, at, len);
            setup.base.sync_file(ino, true).unwrap();
        });
        assert_eq!(logged, copies, "{len} bytes at {at}");
    }
}

/// JOJ-8, a rollback journal that is truncated after each transaction (TRUNCATE), deleted (DELETE),
/// or overwritten from its start (PERSIST): large syncs go through the journal as soon as the
/// pattern is known.
#[test]
fn a_journal_that_is_begun_anew() {
    const LEN: u64 = 100 * BLOCK;
    for name in ["db-journal", "db-wal", "letters"] {
        let setup = adaptive();
        let copies: Vec<u64> = (0..5)
            .map(|_| {
                let ino = match setup.base.lookup(Ino::ROOT, name.as_bytes()) {
                    Ok(attr) => attr.ino,
                    Err(_) => setup.file(name),
                };
                let copies = setup.data_of(ino, || {
                    setup.write(ino, 0, LEN);
                    setup.fsync(ino);
                });
                setup.cut(ino, 0);
                copies
            })
            .collect();
        assert_eq!(copies, [0, 0, 100, 100, 100], "TRUNCATE, {name}");
        // Truncated data is never written home.
        let saved = setup.volume.stats().checkpoint_writes_saved;
        setup.volume.sync().unwrap();
        assert!(setup.volume.stats().checkpoint_writes_saved >= saved + 100);

        let setup = adaptive();
        let mut last = 0;
        for _ in 0..8 {
            let ino = setup.file(name);
            last = setup.data_of(ino, || {
                setup.write(ino, 0, LEN);
                setup.fsync(ino);
            });
            setup.base.unlink(&ROOT, Ino::ROOT, name.as_bytes()).unwrap();
            setup.volume.sync().unwrap();
        }
        assert_eq!(last, 100, "DELETE, {name}");

        let setup = adaptive();
        let ino = setup.file(name);
        for round in 0..5 {
            let copies = setup.data_of(ino, || {
                // Each is a little longer, so that there is a commit; its header comes last.
                setup.write(ino, 0, LEN + round * BLOCK);
                setup.fsync(ino);
            });
            setup.write(ino, 0, BLOCK);
            setup.fsync(ino);
            // The first block was written with its header alone, so it is in the log from then on.
            assert_eq!(copies > 1, round >= 2, "PERSIST, {name}, round {round}: {copies}");
        }
    }
}

/// JOJ-5, JOJ-8: a file that changes from one way to the other and back keeps its newest contents
/// through a crash, even while the log has older ones.
#[test]
fn habits_change_safely() {
    let setup = adaptive();
    let ino = setup.file("file");
    for round in 0..12u64 {
        let fill = round as u8 + 1;
        let len = if round % 3 == 2 { 200 * BLOCK } else { 5 * BLOCK };
        setup.base.write(ino, 0, &vec![fill; len as usize], WriteHow::default()).unwrap();
        setup.fsync(ino);
        // The present contents of the device, recovered as after a crash.
        let mut bytes = vec![0; setup.device.size_bytes() as usize];
        setup.device.read_at(&mut bytes, 0).unwrap();
        let crashed =
            Volume::open(Arc::new(MemoryDevice::from_bytes(bytes)), &VolumeOptions::default()).unwrap();
        let mut read = Vec::new();
        crashed.base().read(ino, 0, len as usize, &mut read).unwrap();
        assert!(read.len() == len as usize && read.iter().all(|&byte| byte == fill), "round {round}");
        crashed.close().unwrap();
        if round % 4 == 3 {
            setup.cut(ino, round % 2 * 3000);
        }
    }
}

/// A transaction with little data is one write and one flush, with the data in it. More data is too
/// much for the log, and some modes keep data out of it.
#[test]
fn contents_of_small_transactions_travel_in_the_commit() {
    use DataMode::{Adaptive, Journal, Ordered, Selective};
    for (mode, small, large) in [(Adaptive, 6, 0), (Journal, 6, 40), (Ordered, 0, 0), (Selective, 0, 0)] {
        let setup = Setup::new(ModeChoice { data: Some(mode), ..ModeChoice::default() }, 64 << 20);
        let ino = setup.file("file");
        setup.write(ino, 0, 40 * BLOCK);
        setup.fsync(ino);
        for (blocks, logged) in [(6, small), (40, large)] {
            let before = setup.volume.stats().device;
            let data = setup.data_of(ino, || {
                let transaction = setup.volume.begin(TxOptions::default()).into_shared();
                // Every second block, so that each is a separate piece of the file.
                for at in 0..blocks / 2 {
                    let contents = vec![9; BLOCK as usize];
                    transaction.write(ino, 2 * at * BLOCK, &contents, WriteHow::default()).unwrap();
                }
                transaction
                    .write(ino, 80 * BLOCK, &vec![9; (blocks / 2 * BLOCK) as usize], WriteHow::default())
                    .unwrap();
                transaction.commit().unwrap();
            });
            assert_eq!(data, logged, "{mode:?}, {blocks} blocks");
            let after = setup.volume.stats().device;
            let (writes, flushes) = (after.writes - before.writes, after.flushes - before.flushes);
            // Contents that go to their places are flushed before the commit that refers to them.
            assert_eq!(flushes, if logged > 0 { 1 } else { 2 }, "{mode:?}, {blocks} blocks");
            assert_eq!(writes == 1, logged > 0, "{mode:?}, {blocks} blocks: {writes} writes");
        }
    }
}

/// A small transaction overwrites blocks in place: its commit has the data and the inode in it, and
/// neither bitmaps nor extents. A reader of an older instant sees the old data.
#[test]
fn what_a_small_transaction_overwrites_keeps_its_place() {
    let setup = adaptive();
    let ino = setup.file("file");
    setup.write(ino, 0, 40 * BLOCK);
    setup.fsync(ino);
    let earlier = setup.volume.begin(TxOptions::default()).into_shared();
    let commit = |fill: u8| {
        let before = setup.newest();
        let transaction = setup.volume.begin(TxOptions::default()).into_shared();
        transaction.write(ino, 10 * BLOCK, &vec![fill; 2 * BLOCK as usize], WriteHow::default()).unwrap();
        transaction.write(ino, 20 * BLOCK + 5, &[fill; 10], WriteHow::default()).unwrap();
        transaction.commit().unwrap();
        let log = inspect(&setup.device).unwrap();
        let new = log.transactions.iter().filter(|transaction| transaction.sequence > before);
        new.flat_map(|transaction| &transaction.copies).map(|copy| copy.home).collect::<BTreeSet<_>>()
    };
    let homes = commit(8);
    assert_eq!(homes.len(), 4, "three blocks of data and one of inodes: {homes:?}");
    assert_eq!(commit(9), homes);
    let read = |view: &dyn View, offset: u64| {
        let mut read = Vec::new();
        view.read(ino, offset, 1, &mut read).unwrap();
        read[0]
    };
    for offset in [10 * BLOCK, 11 * BLOCK, 20 * BLOCK + 5] {
        assert_eq!((read(&*earlier, offset), read(&*setup.base, offset)), (7, 9));
    }
    assert_eq!(read(&*setup.base, 20 * BLOCK), 7);
}

/// TX-9, TX-10: commits that wait for a durable one write nothing. The changes of the last of them
/// are written once, with it.
#[test]
fn what_is_replaced_before_a_durable_commit_is_never_written() {
    // More than any commit carries, and all of them together less than the limit of one commit: the
    // space of a replaced block in it is not freed.
    const BLOCKS: u64 = 20;
    let setup = adaptive();
    let ino = setup.file("file");
    setup.write(ino, 0, BLOCKS * BLOCK);
    setup.fsync(ino);
    let before = setup.volume.stats().device;
    let commit = |fill: u8, blocks: u64, durability| {
        let transaction = setup.volume.begin(TxOptions::default()).into_shared();
        transaction.write(ino, 0, &vec![fill; (blocks * BLOCK) as usize], WriteHow::default()).unwrap();
        transaction.commit_with(durability).unwrap();
        setup.volume.stats().device
    };
    let data = setup.data_of(ino, || {
        for fill in 1..5 {
            let after = commit(fill, BLOCKS, Durability::Consolidated);
            assert_eq!((after.writes, after.flushes), (before.writes, before.flushes), "commit {fill}");
        }
        let after = commit(5, 1, Durability::Durable);
        assert_eq!((after.writes, after.flushes), (before.writes + 1, before.flushes + 1));
    });
    assert_eq!(data, BLOCKS);
    let mut read = Vec::new();
    setup.base.read(ino, 0, (BLOCKS * BLOCK) as usize, &mut read).unwrap();
    assert!(read[..BLOCK as usize].iter().all(|&byte| byte == 5));
    assert!(read[BLOCK as usize..].iter().all(|&byte| byte == 4));
}
