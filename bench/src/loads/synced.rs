//! Small writes, each made durable before the next.

use std::fs::File;
use std::io::Write;
use std::ops::Range;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::time::Instant;

use super::side_by_side::{Tally, take_turns};
use super::{Bench, Rated, because};
use crate::system::{Source, System};
use crate::volume::{Device, Mount, Result};

const BLOCK_BYTES: usize = 4096;

/// 4 KiB appended, fsync.
pub fn append(bench: &mut Bench<'_, '_>) -> Result<()> {
    let count = bench.count(3000);
    bench.phase(APPEND, "op", count as f64, |mount| append_to(&mount.dir().join("log"), count))
}

/// The same a hundred at a time, xact and others in turns, each with a loop device of its own, and
/// xact a second time directly on an image. One of the devices has no file system: the time of a 4
/// KiB write and a flush there is the lower bound for any file system.
pub fn append_in_turns(bench: &mut Bench<'_, '_>) -> Result<()> {
    const EACH: u64 = 100;
    const BYTES: u64 = 1 << 30;
    let turns = bench.count(3000 / EACH);
    let device = Device::new(&bench.supplies.join("bare.bin"), BYTES, Source::Loop)?;
    device.fill()?;
    let bare = Bare::open(&device)?;
    const IMAGE: System = System::XACT.named("xact on an image", "").given(Source::Image);
    bench.beside(&[IMAGE, System::KERNEL, System::FUSE2FS], BYTES, |places| {
        let mut tallies = vec![Tally::default(); places.len() + 1];
        take_turns(turns, tallies.len(), |which, turn| {
            let tally = &mut tallies[which];
            match places.get(which) {
                Some(place) => place.turn(turn, &|mount, turn| append_turn(mount, turn, EACH), tally),
                None => {
                    let before = device.counts()?;
                    let rated = rated(EACH, || bare.write_and_flush(turn * EACH..(turn + 1) * EACH))?;
                    tally.add(rated, (device.counts()? - before).without_lone_flushes());
                    Ok(())
                }
            }
        })?;
        let names = places.iter().map(|place| place.system().name).chain(["the device alone"]);
        let sample = |(name, tally): (&str, Tally)| tally.sample(format!("{APPEND}: {name}"), "op");
        Ok(names.zip(tallies).map(sample).collect())
    })
}

fn append_turn(mount: &Mount<'_>, turn: u64, count: u64) -> Result<Rated> {
    let log = mount.dir().join(format!("log-{turn}"));
    rated(count, || append_to(&log, count))
}

/// The speed of `work`, for its `count` units.
fn rated(count: u64, work: impl FnOnce() -> Result<()>) -> Result<Rated> {
    let started = Instant::now();
    work()?;
    Ok(Rated { rate: count as f64 / started.elapsed().as_secs_f64(), units: count as f64 })
}

/// A device without a file system, written past the page cache as file systems do.
struct Bare(File);

/// Aligned for direct writes.
#[repr(align(4096))]
struct Page([u8; BLOCK_BYTES]);

impl Bare {
    fn open(device: &Device) -> Result<Bare> {
        let file = File::options().write(true).custom_flags(libc::O_DIRECT).open(device.path());
        file.map(Bare).map_err(because("open the device"))
    }

    fn write_and_flush(&self, blocks: Range<u64>) -> Result<()> {
        for n in blocks {
            let page = Page([n as u8; BLOCK_BYTES]);
            self.0.write_all_at(&page.0, n * BLOCK_BYTES as u64).map_err(because("write"))?;
            self.0.sync_data().map_err(because("fdatasync"))?;
        }
        Ok(())
    }
}

const APPEND: &str = "append 4K + fsync";

fn append_to(log: &Path, count: u64) -> Result<()> {
    let mut file = File::create(log).map_err(because("create"))?;
    for n in 0..count {
        file.write_all(&[n as u8; BLOCK_BYTES]).map_err(because("append"))?;
        file.sync_all().map_err(because("fsync"))?;
    }
    Ok(())
}

/// 4 KiB somewhere in a file of 16 MiB, fdatasync.
pub fn overwrite(bench: &mut Bench<'_, '_>) -> Result<()> {
    const BLOCKS: u64 = 4096;
    let count = bench.count(3000);
    let path = bench.mount.dir().join("table");
    let file = File::create(&path).map_err(because("create"))?;
    for n in 0..BLOCKS {
        file.write_all_at(&[n as u8; BLOCK_BYTES], n * BLOCK_BYTES as u64).map_err(because("fill"))?;
    }
    file.sync_all().map_err(because("fsync"))?;
    bench.mount.settle()?;
    bench.phase("overwrite 4K + fdatasync", "op", count as f64, |_| {
        for n in 0..count {
            // A walk that visits the blocks in an order without use for read-ahead or merging.
            let block = n * 2_654_435_761 % BLOCKS;
            file.write_all_at(&[!n as u8; BLOCK_BYTES], block * BLOCK_BYTES as u64)
                .map_err(because("overwrite"))?;
            file.sync_data().map_err(because("fdatasync"))?;
        }
        Ok(())
    })
}
