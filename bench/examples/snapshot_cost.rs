//! The cost of snapshots on a volume with many files: making and deleting one, comparing two, and
//! the slowdown of a load like PostMark's with a growing number of them (SNAP-10). Prints a table
//! of device writes, which do not depend on other load, and of times relative to those without a
//! snapshot.
//!
//!     cargo run --release -p xact-bench --example snapshot_cost [FILES] [FOLDER]
//!
//! FILES: 100,000 by default. FOLDER (default: the current one) needs space for a sparse image of
//! 4 GiB.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use xact::mkfs::{MkfsOptions, mkfs_generations};
use xact::{BlockDevice, FileDevice, OpenMode, PathExt, Volume, VolumeOptions};

/// Transactions of the load in PostMark's sense: a file made or deleted, and one read or appended
/// to.
const TRANSACTIONS: u64 = 4000;
const TRANSACTION_FILES: u64 = 2000;

struct Measured {
    volume: Arc<Volume>,
    random: u64,
}

impl Measured {
    /// Runs `work`, and returns its time and its writes to the device.
    fn of(
        &mut self,
        work: impl FnOnce(&mut Measured) -> xact::Result<()>,
    ) -> xact::Result<(Duration, u64, u64)> {
        let (before, begun) = (self.volume.stats().device, Instant::now());
        work(self)?;
        let (after, took) = (self.volume.stats().device, begun.elapsed());
        Ok((took, after.writes - before.writes, after.written_bytes - before.written_bytes))
    }

    fn random(&mut self, below: u64) -> u64 {
        self.random =
            self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.random >> 33) % below
    }

    fn transactions(&mut self) -> xact::Result<()> {
        let volume = self.volume.clone();
        for n in 0..TRANSACTIONS {
            let file = self.random(TRANSACTION_FILES);
            let path = format!("/load/{}/{file}", file % 40);
            let size = 500 + self.random(16_000) as usize;
            match self.random(2) {
                0 => drop(volume.remove_file(&path)),
                _ => volume.write(&path, vec![n as u8; size])?,
            }
            let file = self.random(TRANSACTION_FILES);
            let path = format!("/load/{}/{file}", file % 40);
            if let Ok(mut contents) = volume.read(&path)
                && self.random(2) == 0
            {
                contents.extend(vec![n as u8; size / 4]);
                volume.write(&path, &contents)?;
            }
        }
        self.volume.sync()
    }
}

fn main() -> xact::Result<()> {
    let mut args = std::env::args().skip(1);
    let files: u64 = args.next().map_or(100_000, |text| text.parse().expect("a number of files"));
    let path = PathBuf::from(args.next().unwrap_or_else(|| ".".into())).join("snapshot-cost.img");
    let image = std::fs::File::create(&path).expect("making the image");
    image.set_len(4 << 30).expect("sizing the image");
    let device: Arc<dyn BlockDevice> =
        Arc::new(FileDevice::open(&path, OpenMode::ReadWrite).expect("opening the image"));
    let options = MkfsOptions { block_size: Some(4096), zeroed: true, ..MkfsOptions::default() };
    mkfs_generations(&device, &options, Some(1 << 30))?;
    let volume = Volume::open(device, &VolumeOptions { flusher: false, ..VolumeOptions::default() })?;
    for n in 0..files {
        if n.is_multiple_of(1000) {
            volume.create_dir_all(format!("/d{}", n / 1000))?;
        }
        volume.write(format!("/d{}/f{n}", n / 1000), b"")?;
    }
    for n in 0..TRANSACTION_FILES {
        volume.create_dir_all(format!("/load/{}", n % 40))?;
        volume.write(format!("/load/{}/{n}", n % 40), [7; 4000])?;
    }
    volume.sync()?;
    let mut measured = Measured { volume: volume.clone(), random: 1 };
    println!("{files} files");
    println!("what                                        ms  writes  KiB written");
    let report = |what: &str, (took, writes, bytes): (Duration, u64, u64)| {
        println!("{what:<38} {:>7.1} {writes:>7} {:>12}", took.as_secs_f64() * 1e3, bytes >> 10);
    };
    report("create a snapshot", measured.of(|m| m.volume.create_snapshot("one"))?);
    volume.write("/d0/f0", b"changed")?;
    report("commit a change of one file", measured.of(|m| m.volume.sync())?);
    report("compare with now", measured.of(|m| m.volume.diff_snapshots("one", None).map(drop))?);
    report("delete the snapshot", measured.of(|m| m.volume.delete_snapshot("one"))?);
    // One run for nothing, so that all start from files of the same age.
    measured.transactions()?;
    let (alone, ..) = measured.of(Measured::transactions)?;
    let mut kept = 0;
    for count in [0, 1, 16, 64] {
        while kept < count {
            volume.create_snapshot(&format!("s{kept}"))?;
            kept += 1;
        }
        let (took, writes, bytes) = measured.of(Measured::transactions)?;
        report(&format!("{TRANSACTIONS} transactions, {count} snapshots"), (took, writes, bytes));
        println!("{:>38}{:.2} times the time without any", "", took.as_secs_f64() / alone.as_secs_f64());
    }
    volume.close()?;
    std::fs::remove_file(&path).expect("removing the image");
    Ok(())
}
