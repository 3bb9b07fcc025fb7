//! The time of an append of 4 KiB with fsync in this process, beside a raw write and fdatasync of a
//! file.
//!
//!     cargo run --release -p xact-bench --example sync_path -- FOLDER [ROUNDS]
//!
//! Alternates, in files that are filled before: a raw 4 KiB, as many raw bytes as the commit has,
//! the append with the default settings, and with sub-block records. Prints medians in
//! microseconds, and ratios to the raw writes of the same bytes.

use std::error::Error;
use std::fs::File;
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use xact::WriteHow;
use xact::mkfs::{MkfsOptions, mkfs};
use xact::{Caller, FileDevice, Ino, LogRecords, ModeChoice, OpenMode, View, Volume, VolumeOptions};

const BLOCK: u64 = 4096;
const IMAGE_BYTES: u64 = 256 << 20;
const SYNCS: u64 = 100;

fn filled(path: &Path, bytes: u64) -> std::io::Result<File> {
    let mut file = File::options().create(true).truncate(true).read(true).write(true).open(path)?;
    for _ in 0..bytes >> 20 {
        file.write_all(&vec![0x5a; 1 << 20])?;
    }
    file.sync_all()?;
    Ok(file)
}

/// Appends to a file of a volume in an image.
struct Appender {
    volume: Arc<Volume>,
    base: Arc<dyn View>,
    ino: Ino,
    size: u64,
}

impl Appender {
    fn new(path: &Path, modes: ModeChoice) -> Result<Appender, Box<dyn Error>> {
        drop(filled(path, IMAGE_BYTES)?);
        let device = Arc::new(FileDevice::open(path, OpenMode::ReadWrite)?);
        mkfs(&*device, &MkfsOptions { block_size: Some(BLOCK as u32), ..MkfsOptions::default() })?;
        let volume = Volume::open(device, &VolumeOptions { modes, ..VolumeOptions::default() })?;
        let base = volume.base();
        let ino = base.make_node(&Caller::ROOT, Ino::ROOT, b"file", 0o100_644, 0)?.ino;
        volume.sync()?;
        Ok(Appender { volume, base, ino, size: 0 })
    }

    fn append(&mut self) -> Result<(), Box<dyn Error>> {
        self.base.write(self.ino, self.size, &[7; BLOCK as usize], WriteHow::default())?;
        self.base.sync_file(self.ino, false)?;
        self.size += BLOCK;
        Ok(())
    }

    /// Bytes that one append writes.
    fn cost(&mut self) -> Result<u64, Box<dyn Error>> {
        let before = self.volume.stats().device.written_bytes;
        self.append()?;
        Ok(self.volume.stats().device.written_bytes - before)
    }
}

fn median(mut times: Vec<Duration>) -> f64 {
    times.sort_unstable();
    times[times.len() / 2].as_secs_f64() * 1e6
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args().skip(1);
    let folder = PathBuf::from(args.next().ok_or("usage: sync_path FOLDER [ROUNDS]")?);
    let rounds: u64 = args.next().map_or(Ok(10), |text| text.parse())?;
    let raw = filled(&folder.join("raw"), IMAGE_BYTES)?;
    let sub_block = ModeChoice { log_records: Some(LogRecords::SubBlock), ..ModeChoice::default() };
    let mut copies = Appender::new(&folder.join("copies.img"), ModeChoice::default())?;
    let mut patches = Appender::new(&folder.join("patches.img"), sub_block)?;
    copies.append()?;
    patches.append()?;
    let (copied, patched) = (copies.cost()?, patches.cost()?);
    let mut times: [Vec<Duration>; 5] = Default::default();
    let mut timed = |what: usize, work: &mut dyn FnMut() -> Result<(), Box<dyn Error>>| {
        let began = Instant::now();
        let done = work();
        times[what].push(began.elapsed());
        done
    };
    let mut at = 0;
    for _ in 0..rounds {
        for _ in 0..SYNCS {
            for (what, bytes) in [(0, BLOCK), (1, copied), (2, patched)] {
                timed(what, &mut || {
                    raw.write_all_at(&vec![1; bytes as usize], at)?;
                    Ok(raw.sync_data()?)
                })?;
                at = (at + bytes) % (IMAGE_BYTES - (1 << 20));
            }
            timed(3, &mut || copies.append())?;
            timed(4, &mut || patches.append())?;
        }
    }
    let [small, same_as_copies, same_as_patches, copies_took, patches_took] = times.map(median);
    println!("raw write and fdatasync, 4 KiB:      {small:8.1} us");
    for (name, bytes, raw, took) in
        [("copies", copied, same_as_copies, copies_took), ("patches", patched, same_as_patches, patches_took)]
    {
        println!(
            "append and fsync, {name:<8} {:>3} KiB: {took:8.1} us, raw {raw:8.1} us: {:.2} times that, {:.2} times 4 KiB",
            bytes >> 10,
            took / raw,
            took / small
        );
    }
    copies.volume.close()?;
    patches.volume.close()?;
    Ok(())
}
