//! The time of opening after a crash, by engine, volume size, files, snapshots, and operations
//! since the last commit (SNAP-8), and the requests to the device of one more committed file.
//! Prints a table.
//!
//!     cargo run --release -p xact-bench --example mount_time [FOLDER]
//!
//! FOLDER (default: the current one) needs space for sparse images with some 2 GB in them. The
//! page cache is warm; the counts of reads do not depend on that.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use xact::device::CountingDevice;
use xact::mkfs::{MkfsOptions, mkfs, mkfs_generations};
use xact::{BlockDevice, Caller, FileDevice, Ino, OpenMode, PathExt, Volume, VolumeOptions};

struct Case {
    generations: bool,
    size_mib: u64,
    files: u64,
    snapshots: u64,
    /// Done after the last commit, and lost; in the journal they are committed and not home.
    operations: u64,
}

fn options() -> VolumeOptions {
    VolumeOptions {
        flusher: false,
        commit_interval: Duration::from_secs(86_400),
        cache_bytes: 1 << 30,
        ..VolumeOptions::default()
    }
}

fn open(path: &Path) -> Arc<dyn BlockDevice> {
    Arc::new(FileDevice::open(path, OpenMode::ReadWrite).expect("opening the image"))
}

/// Fills the volume and leaves it as a crash would.
fn prepare(case: &Case, path: &Path) -> xact::Result<()> {
    let file = std::fs::File::create(path).expect("making the image");
    file.set_len(case.size_mib << 20).expect("sizing the image");
    let device = open(path);
    // As many inodes as the most files need, so that volumes differ in nothing else.
    let ratio = (case.size_mib << 20) / (case.files + case.operations + 1000) / 2;
    let mkfs_options = MkfsOptions {
        block_size: Some(4096),
        inode_ratio: Some(ratio.clamp(1024, 16384) as u32),
        zeroed: true,
        ..MkfsOptions::default()
    };
    if case.generations {
        mkfs_generations(&device, &mkfs_options, Some(((case.size_mib << 20) / 4).min(512 << 20)))?;
    } else {
        mkfs(&*device, &mkfs_options)?;
    }
    let volume = Volume::open(device, &options())?;
    let base = volume.base();
    for n in 0..case.files {
        if n.is_multiple_of(1000) {
            volume.create_dir_all(format!("/d{}", n / 1000))?;
        }
        volume.write(format!("/d{}/f{n}", n / 1000), b"")?;
    }
    volume.sync()?;
    for n in 0..case.snapshots {
        volume.create_snapshot(&format!("s{n}"))?;
    }
    volume.create_dir_all("/more")?;
    let more = base.lookup(Ino::ROOT, b"more")?.ino;
    for n in 0..case.operations {
        base.make_node(&Caller::ROOT, more, format!("o{n}").as_bytes(), 0o100644, 0)?;
    }
    if !case.generations {
        volume.sync()?;
    }
    Ok(())
}

/// Reads, writes and bytes written that a file more and its commit ask of the device.
fn create_and_commit(path: &Path) -> xact::Result<(u64, u64, u64)> {
    let counting = Arc::new(CountingDevice::new(open(path)));
    let volume = Volume::open(counting.clone(), &options())?;
    volume.base().attr(Ino::ROOT)?;
    let before = counting.counts();
    volume.base().make_node(&Caller::ROOT, Ino::ROOT, b"one-more", 0o100_644, 0)?;
    volume.sync()?;
    let after = counting.counts();
    let written = after.written_bytes - before.written_bytes;
    Ok((after.reads - before.reads, after.writes - before.writes, written))
}

fn main() -> xact::Result<()> {
    let folder = PathBuf::from(std::env::args().nth(1).unwrap_or_else(|| ".".into()));
    let path = folder.join("mount-time.img");
    let base = Case { generations: true, size_mib: 1024, files: 1000, snapshots: 0, operations: 1 };
    let cases = [
        Case { size_mib: 64, ..base },
        Case { size_mib: 1024, ..base },
        Case { size_mib: 65536, ..base },
        Case { size_mib: 65536, files: 1_000_000, ..base },
        Case { size_mib: 65536, files: 1_000_000, snapshots: 64, ..base },
        Case { size_mib: 65536, snapshots: 64, ..base },
        Case { size_mib: 65536, operations: 100_000, ..base },
        Case { generations: false, size_mib: 64, ..base },
        Case { generations: false, size_mib: 65536, ..base },
        Case { generations: false, size_mib: 65536, files: 1_000_000, ..base },
        Case { generations: false, operations: 20_000, ..base },
    ];
    println!(
        "engine       size MiB    files  snapshots  operations  open ms (best of 5)  reads  read KiB  writes  \
         create: reads  writes  KiB"
    );
    for case in cases {
        prepare(&case, &path)?;
        let mut best = Duration::MAX;
        let mut counts = Default::default();
        for _ in 0..if case.generations { 5 } else { 1 } {
            let counting = Arc::new(CountingDevice::new(open(&path)));
            let begun = Instant::now();
            let volume = Volume::open(counting.clone(), &options())?;
            volume.base().attr(Ino::ROOT)?;
            best = best.min(begun.elapsed());
            counts = counting.counts();
            drop(volume);
        }
        let (create_reads, create_writes, create_bytes) = create_and_commit(&path)?;
        println!(
            "{:<12} {:>8} {:>8} {:>10} {:>11} {:>20.2} {:>6} {:>9} {:>7} {:>14} {:>7} {:>4}",
            if case.generations { "generations" } else { "journal" },
            case.size_mib,
            case.files,
            case.snapshots,
            case.operations,
            best.as_secs_f64() * 1e3,
            counts.reads,
            counts.read_bytes >> 10,
            counts.writes,
            create_reads,
            create_writes,
            create_bytes >> 10,
        );
    }
    let _ = std::fs::remove_file(&path);
    Ok(())
}
