//! SNAP-4: making a commit, or a generation, blocks no operation. Only callers that need the
//! changes of a stalled operation wait for it: other operations continue, and so does the sync of
//! another file.

use std::cell::Cell;
use std::io::{self, IoSlice};
use std::sync::Arc;
use std::sync::mpsc;
use std::time::Duration;

use xact_consistency::{Engine, EngineOptions, Handle, ReserveClass, open_generations, open_journal};
use xact_device::{BlockDevice, MemoryDevice};
use xact_fs::mkfs::{MkfsOptions, mkfs, mkfs_generations};
use xact_fs::{Allocate, Caller, LiveFs, RenameHow, SetAttr, View, VolumeOptions, WriteHow, XattrHow};
use xact_layout::superblock::{SUPERBLOCK_BYTES, SUPERBLOCK_OFFSET};
use xact_testkit::draining_ops::{Operation, ino, name};
use xact_testkit::stall::{Stall, TIMEOUT, await_closing};
use xact_types::{BlockNr, Error, Ino, Result};

const ROOT: Caller = Caller::ROOT;
const MIB: u64 = 1 << 20;

thread_local! {
    /// Reads that this thread may still do before the device stalls it; `None`: any number.
    static LEFT: Cell<Option<u64>> = const { Cell::new(None) };
}

/// A device that stalls a chosen thread at one of its reads.
struct StallingDevice {
    inner: MemoryDevice,
    stall: Stall,
}

impl StallingDevice {
    fn over(bytes: Vec<u8>) -> Arc<StallingDevice> {
        Arc::new(StallingDevice { inner: MemoryDevice::from_bytes(bytes), stall: Stall::default() })
    }

    fn pass(&self) {
        match LEFT.get() {
            None => {}
            Some(0) => {
                self.stall.pass();
                LEFT.set(None);
            }
            Some(left) => LEFT.set(Some(left - 1)),
        }
    }
}

impl BlockDevice for StallingDevice {
    fn size_bytes(&self) -> u64 {
        self.inner.size_bytes()
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        // A commit compares the superblock before its write. It waits for that read as for the
        // write, which is not stalled here either.
        if (offset, buf.len()) != (SUPERBLOCK_OFFSET, SUPERBLOCK_BYTES) {
            self.pass();
        }
        self.inner.read_at(buf, offset)
    }

    fn write_at(&self, buf: &[u8], offset: u64) -> io::Result<()> {
        self.inner.write_at(buf, offset)
    }

    fn write_vectored_at(&self, bufs: &[IoSlice<'_>], offset: u64) -> io::Result<()> {
        self.inner.write_vectored_at(bufs, offset)
    }

    fn flush(&self) -> io::Result<()> {
        self.inner.flush()
    }

    fn discard(&self, offset: u64, len: u64) -> io::Result<()> {
        self.inner.discard(offset, len)
    }

    fn is_read_only(&self) -> bool {
        false
    }
}

/// Fresh volumes of both kinds, of four groups.
fn volumes() -> [(&'static str, Vec<u8>); 2] {
    let journal = MemoryDevice::new(32 * MIB);
    let format = MkfsOptions { block_size: Some(1024), zeroed: true, ..MkfsOptions::default() };
    mkfs(&journal, &format).unwrap();
    let generations = Arc::new(MemoryDevice::new(40 * MIB));
    let device: Arc<dyn BlockDevice> = generations.clone();
    mkfs_generations(&device, &format, Some(8 * MIB)).unwrap();
    [("journal", journal.to_bytes()), ("generations", generations.to_bytes())]
}

/// A quarter of the cache is for blocks of metadata.
const CACHE_BYTES: u64 = 4 * MIB;
/// Blocks that the volumes leave free: far more than the cache holds.
const FREE: std::ops::Range<u64> = 24_500..28_000;

fn quiet() -> VolumeOptions {
    let commit_interval = Duration::from_secs(3600);
    VolumeOptions { flusher: false, commit_interval, cache_bytes: CACHE_BYTES, ..VolumeOptions::default() }
}

/// Keeps the cached inodes in memory, and of the blocks that they came from only dirty ones.
fn forget_blocks(base: &LiveFs) {
    FREE.for_each(|block| drop(base.engine().read(BlockNr(block)).unwrap()));
}

/// A folder whose operations need many metadata blocks: many names, a fragmented file, attributes
/// in a block of their own.
fn fill(bytes: Vec<u8>) -> Result<Vec<u8>> {
    let device = StallingDevice::over(bytes);
    let base = xact_fs::open(device.clone(), &quiet())?;
    base.make_dir(&ROOT, Ino::ROOT, b"fast", 0o755)?;
    let slow = base.make_dir(&ROOT, Ino::ROOT, b"slow", 0o755)?.ino;
    for n in 0..120 {
        let ino = base.make_node(&ROOT, slow, &name(n), 0o100_644, 0)?.ino;
        base.write(ino, 0, &[n as u8; 3000], WriteHow::default())?;
    }
    let file = base.make_node(&ROOT, slow, b"file", 0o100_644, 0)?.ino;
    let between = base.make_node(&ROOT, slow, b"between", 0o100_644, 0)?.ino;
    // Every other block of both, so that neither has two in a row.
    for n in 0..300 {
        for ino in [file, between] {
            base.write(ino, 2048 * n, &[7; 1024], WriteHow::default())?;
            base.sync_file(ino, false)?;
        }
    }
    base.set_xattr(&ROOT, file, b"user.large", &[1; 600], XattrHow::Set)?;
    base.close()?;
    Ok(device.inner.to_bytes())
}

/// Operations in the folder whose inodes are in memory, and none of its blocks.
const OPERATIONS: [Operation; 12] = [
    ("make", |base, slow| base.make_node(&ROOT, slow, b"new", 0o100_644, 0).map(|_| ())),
    ("mkdir", |base, slow| base.make_dir(&ROOT, slow, b"new", 0o755).map(|_| ())),
    ("symlink", |base, slow| base.make_symlink(&ROOT, slow, b"new", &[b'x'; 200]).map(|_| ())),
    ("chmod", |base, slow| {
        let file = ino(base, slow, &name(7))?;
        base.set_attr(&ROOT, file, &SetAttr { perm: Some(0o600), ..SetAttr::default() }).map(|_| ())
    }),
    ("rename over", |base, slow| base.rename(&ROOT, (slow, &name(3)), (slow, &name(4)), RenameHow::Replace)),
    ("unlink", |base, slow| base.unlink(&ROOT, slow, &name(9))),
    ("unlink of many extents", |base, slow| base.unlink(&ROOT, slow, b"file")),
    ("truncate", |base, slow| {
        let file = ino(base, slow, b"file")?;
        base.set_attr(&ROOT, file, &SetAttr { size: Some(5000), ..SetAttr::default() }).map(|_| ())
    }),
    ("punch", |base, slow| {
        let file = ino(base, slow, b"file")?;
        base.allocate(&ROOT, file, 10_000, 200_000, Allocate::PunchHole)
    }),
    ("reserve", |base, slow| {
        let file = ino(base, slow, b"file")?;
        base.allocate(&ROOT, file, 0, 300_000, Allocate::Reserve { keep_size: true })
    }),
    ("set an attribute", |base, slow| {
        let file = ino(base, slow, b"file")?;
        base.set_xattr(&ROOT, file, b"user.more", &[2; 100], XattrHow::Set)
    }),
    ("write and fsync", |base, slow| {
        let file = ino(base, slow, b"file")?;
        base.write(file, 100_000, &[9; 9000], WriteHow::default())?;
        base.sync_file(file, false)
    }),
];

/// Work on other files, including their syncs.
fn work_elsewhere(base: &LiveFs, round: u8) -> Result<()> {
    let fast = ino(base, Ino::ROOT, b"fast")?;
    for n in 0..5 {
        let (old, new) = (format!("{n}").into_bytes(), format!("{n}-renamed").into_bytes());
        let file = base.make_node(&ROOT, fast, &old, 0o100_644, 0)?.ino;
        base.write(file, 0, &[round; 5000], WriteHow::default())?;
        base.sync_file(file, false)?;
        base.rename(&ROOT, (fast, &old), (fast, &new), RenameHow::Replace)?;
        base.set_attr(&ROOT, file, &SetAttr { size: Some(10), ..SetAttr::default() })?;
        base.engine().sync()?;
        base.unlink(&ROOT, fast, &new)?;
    }
    Ok(())
}

#[test]
fn no_stalled_operation_delays_the_sync_of_another() {
    for (kind, bytes) in volumes() {
        let bytes = fill(bytes).unwrap();
        for (what, operation) in OPERATIONS {
            let mut reads = 0;
            while stalled_at(reads, &bytes, operation, &format!("{kind}: {what}, at read {reads}")) {
                reads += 1;
            }
            assert!(reads > 0, "{kind}: {what} reads nothing");
        }
    }
}

/// Stalls an operation at one of its reads, and works elsewhere during that time; false if it has
/// fewer reads.
fn stalled_at(read: u64, bytes: &[u8], operation: fn(&LiveFs, Ino) -> Result<()>, at: &str) -> bool {
    let device = StallingDevice::over(bytes.to_vec());
    let base = xact_fs::open(device.clone(), &quiet()).unwrap();
    let slow = ino(&base, Ino::ROOT, b"slow").unwrap();
    for known in [&name(3), &name(4), &name(7), &name(9), b"file".as_slice()] {
        ino(&base, slow, known).unwrap();
    }
    forget_blocks(&base);
    // Otherwise both would wait for a block that both need.
    work_elsewhere(&base, 1).unwrap();
    let within = base.engine().waits_in_handles();
    let slowly = {
        let base = base.clone();
        std::thread::spawn(move || {
            LEFT.set(Some(read));
            let result = operation(&base, slow);
            LEFT.set(None);
            result
        })
    };
    let held = device.stall.is_stalled(|| slowly.is_finished());
    if held {
        let (done, is_done) = mpsc::channel();
        let others = base.clone();
        let elsewhere = std::thread::spawn(move || {
            let result = work_elsewhere(&others, 2);
            let _ = done.send(());
            result
        });
        is_done.recv_timeout(TIMEOUT).unwrap_or_else(|_| panic!("{at}: others are held up"));
        elsewhere.join().unwrap().unwrap();
        assert!(!slowly.is_finished(), "{at}: the read was to be held back");
    }
    device.stall.release();
    slowly.join().unwrap().unwrap_or_else(|error| panic!("{at}: {error}"));
    assert_eq!(base.engine().waits_in_handles() - within, 0, "{at}: a handle waited for the device");
    base.close().unwrap();
    held
}

/// The engine of a volume of that kind, which makes no automatic commits.
fn engine(kind: &str, device: &Arc<StallingDevice>) -> Arc<Engine> {
    let options = EngineOptions { commit_interval: Duration::from_secs(3600), ..EngineOptions::default() };
    match kind {
        "journal" => open_journal(device.clone(), options).unwrap(),
        _ => open_generations(device.clone(), options).unwrap(),
    }
}

/// If a handle waits for the device all the same, only callers of its own commit wait.
#[test]
fn a_handle_that_waits_for_the_device_delays_its_commit_alone() {
    for (kind, bytes) in volumes() {
        let device = StallingDevice::over(bytes);
        let engine = engine(kind, &device);
        let free = FREE.end;
        let change = |block: u64| {
            let mut handle = Handle::begin(&engine, 1).unwrap();
            handle.update(BlockNr(block), |bytes| bytes.fill(1)).unwrap();
            handle.commit_id()
        };
        let commit = change(free + 1);
        std::thread::scope(|scope| {
            let slow = scope.spawn(|| {
                LEFT.set(Some(0));
                change(free)
            });
            assert!(device.stall.is_stalled(|| false));
            // Another operation on the same block waits for the device, too.
            let same = scope.spawn(|| change(free));
            let sync = scope.spawn(|| engine.commit(commit));
            std::thread::sleep(Duration::from_millis(100));
            let (done, is_done) = mpsc::channel();
            for thread in 1..5 {
                let done = done.clone();
                scope.spawn(move || {
                    for n in 0..120 {
                        change(free + 1000 * thread + n);
                    }
                    done.send(()).unwrap();
                });
            }
            let ended = (0..4).all(|_| is_done.recv_timeout(TIMEOUT).is_ok());
            let waits = !sync.is_finished() && !slow.is_finished() && !same.is_finished();
            device.stall.release();
            assert!(ended, "{kind}: the begin of an operation waits for another's read");
            assert!(waits, "{kind}: a commit ends with the operations in it");
            assert_eq!(slow.join().unwrap(), commit);
            sync.join().unwrap().unwrap();
            assert!(engine.durable() >= commit && engine.waits_in_handles() > 0);
        });
        engine.close().unwrap();
    }
}

/// The commit of a large transaction takes long. Only callers that want its changes durable wait
/// for it.
#[test]
fn long_work_delays_only_callers_of_its_commit() {
    const LARGE: u32 = 500;
    for (kind, bytes) in volumes() {
        let engine = &engine(kind, &StallingDevice::over(bytes));
        let free = FREE.end;
        let change = |handle: &mut Handle, block: u64| {
            handle.update(BlockNr(free + block), |bytes| bytes.fill(1)).unwrap();
        };
        let mut large = Handle::begin(engine, LARGE).unwrap();
        change(&mut large, 0);
        let commit = large.commit_id();
        std::thread::scope(|scope| {
            let sync = scope.spawn(move || engine.commit(commit));
            std::thread::sleep(Duration::from_millis(100));
            let (done, is_done) = mpsc::channel();
            scope.spawn(move || {
                for n in 1..100 {
                    let mut handle = Handle::begin(engine, 1).unwrap();
                    change(&mut handle, n);
                    // With generations the next one is open by then.
                    assert_eq!(handle.commit_id() == commit, kind == "journal");
                }
                done.send(()).unwrap();
            });
            let ended = is_done.recv_timeout(TIMEOUT).is_ok();
            let waits = !sync.is_finished();
            drop(large);
            assert!(ended, "{kind}: the begin of an operation waits for another's long work");
            assert!(waits, "{kind}: a commit ends with the operations in it");
            sync.join().unwrap().unwrap();
        });
        engine.close().unwrap();
    }
}

/// A closed generation with an open handle in it, and the engine.
fn closed_with_one_in_it(test: impl FnOnce(&Arc<Engine>, Handle)) {
    let [_, (kind, bytes)] = volumes();
    let engine = &engine(kind, &StallingDevice::over(bytes));
    let mut late = Handle::begin(engine, 100).unwrap();
    late.update(BlockNr(FREE.end), |bytes| bytes.fill(1)).unwrap();
    let closed = late.commit_id();
    std::thread::scope(|scope| {
        let sync = scope.spawn(|| engine.sync());
        await_closing(engine, closed).unwrap();
        test(engine, late);
        sync.join().unwrap().unwrap();
    });
    engine.close().unwrap();
}

/// Callers that wait for the generation also wait for operations that join it late, so these are
/// few.
#[test]
fn few_operations_join_a_closed_generation() {
    closed_with_one_in_it(|engine, late| {
        let begin = || Handle::begin_for(engine, 1, ReserveClass::Upkeep).unwrap().commit_id();
        let back = (0..1000).take_while(|_| begin() == late.commit_id()).count();
        assert!((1..1000).contains(&back), "{back} began in the closed one");
    });
    closed_with_one_in_it(|engine, late| {
        assert!(Handle::begin(engine, 1).unwrap().commit_id() > late.commit_id());
        // An operation has begun in the next one.
        assert!(Handle::begin_for(engine, 1, ReserveClass::Removal).unwrap().commit_id() > late.commit_id());
    });
}

/// Two inodes claim a block that should belong to one.
#[test]
fn a_block_that_two_inodes_claim_is_reported_as_damage() {
    closed_with_one_in_it(|engine, mut late| {
        let block = BlockNr(FREE.end + 1);
        Handle::begin(engine, 1).unwrap().update(block, |bytes| bytes.fill(2)).unwrap();
        let results = [
            late.update(block, |bytes| bytes.fill(3)),
            late.create(block, vec![3; engine.block_size()]),
            late.forget(block),
        ];
        assert!(results.iter().all(|result| matches!(result, Err(Error::Corrupt(_)))), "{results:?}");
        assert_eq!(engine.read(block).unwrap()[0], 2);
    });
}
