//! The cost of an fsync on a volume with generations, by the log and as a generation, and the time
//! that operations wait while a commit is closed (SNAP-4, SNAP-12): for each other, for slow reads,
//! and for large transactions. Prints four tables.
//!
//!     cargo run --release -p xact-bench --example generations_cost
//!
//! The volume is in memory: device writes, bytes and flushes are counted, and do not depend on the
//! machine. The times do.

use std::io::{self, IoSlice};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use xact::WriteHow;
use xact::mkfs::{MkfsOptions, mkfs_generations};
use xact::{BlockDevice, Caller, Fsync, Ino, MemoryDevice, ModeChoice, View, Volume, VolumeOptions};

const BLOCK: usize = 4096;
const SYNCS: u64 = 1000;

fn volume(fsync: Fsync) -> xact::Result<Arc<Volume>> {
    let device: Arc<dyn BlockDevice> = Arc::new(MemoryDevice::new(512 << 20));
    let format = MkfsOptions { block_size: Some(BLOCK as u32), ..MkfsOptions::default() };
    mkfs_generations(&device, &format, Some(64 << 20))?;
    let modes = ModeChoice { fsync: Some(fsync), ..ModeChoice::default() };
    let commit_interval = Duration::from_secs(86_400);
    Volume::open(device, &VolumeOptions { modes, commit_interval, ..VolumeOptions::default() })
}

fn make(base: &dyn View, dir: Ino, name: &str) -> xact::Result<Ino> {
    Ok(base.make_node(&Caller::ROOT, dir, name.as_bytes(), 0o100_644, 0)?.ino)
}

/// A turn of a thread that has endless work in limited space.
fn make_and_delete(base: &dyn View, dir: Ino, turn: u64) -> xact::Result<()> {
    let name = format!("{}", turn % 1000);
    make(base, dir, &name)?;
    base.unlink(&Caller::ROOT, dir, name.as_bytes())
}

/// Writes, KiB and flushes of each of many fsyncs, including those that they cause later. Before
/// each, 4 KiB are appended to the file, and `others` files are made elsewhere.
fn cost(fsync: Fsync, others: u64, append: bool) -> xact::Result<(f64, f64, f64)> {
    let syncs = if others < 1000 { SYNCS } else { SYNCS / 10 };
    let volume = volume(fsync)?;
    let base = volume.base();
    let file = make(&*base, Ino::ROOT, "file")?;
    let elsewhere = base.make_dir(&Caller::ROOT, Ino::ROOT, b"elsewhere", 0o755)?.ino;
    volume.sync()?;
    let before = volume.stats().device;
    for n in 0..syncs {
        for other in 0..others {
            make(&*base, elsewhere, &format!("{n}-{other}"))?;
        }
        if append {
            base.write(file, n * BLOCK as u64, &[7; BLOCK], WriteHow::default())?;
        } else {
            let set = xact::SetAttr { perm: Some(0o600 + (n % 2) as u16), ..xact::SetAttr::default() };
            base.set_attr(&Caller::ROOT, file, &set)?;
        }
        base.sync_file(file, false)?;
    }
    volume.sync()?;
    let after = volume.stats().device;
    volume.close()?;
    let each = |before: u64, after: u64| (after - before) as f64 / syncs as f64;
    Ok((
        each(before.writes, after.writes),
        each(before.written_bytes, after.written_bytes) / 1024.0,
        each(before.flushes, after.flushes),
    ))
}

/// Threads that make files, while generations are made one after the other.
fn held_up(threads: u64) -> xact::Result<()> {
    const GENERATIONS: u64 = 200;
    let volume = volume(Fsync::Log)?;
    let (stop, made) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| -> xact::Result<()> {
        let base = volume.base();
        for thread in 0..threads {
            let dir = base.make_dir(&Caller::ROOT, Ino::ROOT, format!("t{thread}").as_bytes(), 0o755)?.ino;
            let (base, stop, made) = (base.clone(), &stop, &made);
            scope.spawn(move || {
                for n in 0.. {
                    if stop.load(Relaxed) {
                        return;
                    }
                    make_and_delete(&*base, dir, n).expect("making and deleting a file");
                    made.fetch_add(1, Relaxed);
                }
            });
        }
        for _ in 0..GENERATIONS {
            std::thread::sleep(Duration::from_millis(5));
            volume.sync()?;
        }
        stop.store(true, Relaxed);
        Ok(())
    })?;
    let waits = volume.held_up_times().summary();
    let commits = volume.commit_times().summary();
    println!(
        "| {threads} | {} | {:.0?} | {:.0?} | {:.0?} | {:.0?} |",
        made.load(Relaxed),
        waits.median,
        waits.p99,
        waits.worst,
        commits.median
    );
    volume.close()
}

/// A device in memory whose reads take a while, from a moment on.
struct SlowReads {
    inner: MemoryDevice,
    slow: AtomicBool,
}

const READ_TIME: Duration = Duration::from_millis(2);

impl BlockDevice for SlowReads {
    fn size_bytes(&self) -> u64 {
        self.inner.size_bytes()
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        if self.slow.load(Relaxed) {
            std::thread::sleep(READ_TIME);
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

/// Threads that delete files that are not cached, on a device with slow reads, while one makes and
/// deletes files and another makes generations.
fn held_up_by_reads(threads: u64) -> xact::Result<()> {
    const FILES: u64 = 4000;
    let device = Arc::new(SlowReads { inner: MemoryDevice::new(512 << 20), slow: AtomicBool::new(false) });
    let volume_device: Arc<dyn BlockDevice> = device.clone();
    let format = MkfsOptions { block_size: Some(1024), ..MkfsOptions::default() };
    mkfs_generations(&volume_device, &format, Some(64 << 20))?;
    let options = VolumeOptions { commit_interval: Duration::from_secs(86_400), ..VolumeOptions::default() };
    let volume = Volume::open(volume_device.clone(), &options)?;
    let base = volume.base();
    for thread in 0..threads {
        let dir = base.make_dir(&Caller::ROOT, Ino::ROOT, format!("t{thread}").as_bytes(), 0o755)?.ino;
        for n in 0..FILES {
            let file = make(&*base, dir, &format!("{n}"))?;
            base.write(file, 0, &[1; 2000], WriteHow::default())?;
        }
    }
    drop(base);
    volume.close()?;
    let volume = Volume::open(volume_device, &options)?;
    device.slow.store(true, Relaxed);
    let (stop, deleted, made) = (AtomicBool::new(false), AtomicU64::new(0), AtomicU64::new(0));
    std::thread::scope(|scope| -> xact::Result<()> {
        let base = volume.base();
        for thread in 0..threads {
            let dir = base.lookup(Ino::ROOT, format!("t{thread}").as_bytes())?.ino;
            let (base, stop, deleted) = (base.clone(), &stop, &deleted);
            scope.spawn(move || {
                // Far from each other, so that each meets blocks that are not in memory.
                for n in (0..FILES).map(|n| n * 1009 % FILES).take_while(|_| !stop.load(Relaxed)) {
                    base.unlink(&Caller::ROOT, dir, format!("{n}").as_bytes()).expect("deleting a file");
                    deleted.fetch_add(1, Relaxed);
                }
            });
        }
        let maker = base.make_dir(&Caller::ROOT, Ino::ROOT, b"made", 0o755)?.ino;
        let (maker_base, stop_making, made) = (base.clone(), &stop, &made);
        scope.spawn(move || {
            for n in 0.. {
                if stop_making.load(Relaxed) {
                    return;
                }
                make_and_delete(&*maker_base, maker, n).expect("making and deleting a file");
                made.fetch_add(1, Relaxed);
            }
        });
        for _ in 0..100 {
            std::thread::sleep(Duration::from_millis(10));
            volume.sync()?;
        }
        stop.store(true, Relaxed);
        Ok(())
    })?;
    let waits = volume.held_up_times().summary();
    println!(
        "| {threads} | {} | {} | {:.0?} | {:.0?} | {:.0?} | {} |",
        deleted.load(Relaxed),
        made.load(Relaxed),
        waits.median,
        waits.p99,
        waits.worst,
        volume.waits_in_handles(),
    );
    volume.close()
}

/// A thread whose transactions make `files` files each, and one that makes and deletes files one by
/// one, while generations are made.
fn held_up_by_transactions(files: u64) -> xact::Result<()> {
    const TRANSACTIONS: u64 = 20;
    let volume = volume(Fsync::Log)?;
    let (stop, made) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| -> xact::Result<()> {
        let base = volume.base();
        let elsewhere = base.make_dir(&Caller::ROOT, Ino::ROOT, b"elsewhere", 0o755)?.ino;
        let (volume, stop, made) = (&volume, &stop, &made);
        scope.spawn(move || {
            for n in 0.. {
                if stop.load(Relaxed) {
                    return;
                }
                make_and_delete(&*base, elsewhere, n).expect("making and deleting a file");
                made.fetch_add(1, Relaxed);
            }
        });
        scope.spawn(move || {
            for n in 0..TRANSACTIONS {
                let transaction = volume.begin(xact::TxOptions::default()).into_shared();
                let name = format!("tx{n}");
                let dir = transaction.make_dir(&Caller::ROOT, Ino::ROOT, name.as_bytes(), 0o755);
                let dir = dir.expect("making a folder").ino;
                for file in 0..files {
                    make(&*transaction, dir, &format!("{file}")).expect("making a file");
                }
                transaction.commit_with(xact::Durability::Ordered).expect("a commit");
            }
            stop.store(true, Relaxed);
        });
        while !stop.load(Relaxed) {
            std::thread::sleep(Duration::from_millis(5));
            volume.sync()?;
        }
        Ok(())
    })?;
    let waits = volume.held_up_times().summary();
    println!(
        "| {files} | {} | {:.0?} | {:.0?} | {:.0?} |",
        made.load(Relaxed),
        waits.median,
        waits.p99,
        waits.worst
    );
    volume.close()
}

fn main() -> xact::Result<()> {
    println!("| each fsync after | fsync= | writes | KiB | flushes |\n|---|---|---|---|---|");
    for (what, others, append) in [
        ("a chmod", 0, false),
        ("an append of 4 KiB", 0, true),
        ("that and 10 new files", 10, true),
        ("that and 100 new files", 100, true),
        ("that and 1,000 new files", 1000, true),
    ] {
        for (name, fsync) in [("generation", Fsync::Generation), ("log", Fsync::Log), ("file", Fsync::File)] {
            let (writes, kib, flushes) = cost(fsync, others, append)?;
            println!("| {what} | {name} | {writes:.2} | {kib:.1} | {flushes:.2} |");
        }
    }
    println!("\n| threads | files made and deleted | held up: median | p99 | worst | commit: median |");
    println!("|---|---|---|---|---|---|");
    [1, 4, 16].into_iter().try_for_each(held_up)?;
    println!(
        "\n| threads that delete, reads of 2 ms | deleted | made and deleted by another | held up: median | p99 | worst | waits in handles |"
    );
    println!("|---|---|---|---|---|---|---|");
    [1, 4, 16].into_iter().try_for_each(held_up_by_reads)?;
    println!("\n| files of a transaction | made and deleted by another | held up: median | p99 | worst |");
    println!("|---|---|---|---|---|");
    [100, 1000, 5000].into_iter().try_for_each(held_up_by_transactions)
}
