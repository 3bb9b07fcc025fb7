//! The commit interval bounds what a crash loses, data included.

use std::sync::Arc;
use std::time::{Duration, Instant};

use xact::mkfs::{JournalSize, MkfsOptions, mkfs, mkfs_generations};
use xact::{BlockDevice, Caller, Ino, MemoryDevice, Volume, VolumeOptions};
use xact_fs::WriteHow;

const INTERVAL: Duration = Duration::from_millis(200);
/// For a busy machine: far below the time that data may stay in the cache with long intervals.
const MARGIN: Duration = Duration::from_millis(1500);
const APPEND: usize = 1000;

/// The size of the log on what a crash leaves of the device.
fn size_after_crash(bytes: Vec<u8>) -> u64 {
    let options = VolumeOptions { flusher: false, ..VolumeOptions::default() };
    let volume = Volume::open(Arc::new(MemoryDevice::from_bytes(bytes)), &options).unwrap();
    let size = volume.base().lookup(Ino::ROOT, b"log").map_or(0, |attr| attr.size);
    volume.close().unwrap();
    size
}

/// A program appends to a log and never syncs; after a while the power fails.
#[test]
fn a_growing_log_loses_no_more_than_an_interval() {
    for generations in [false, true] {
        let device = Arc::new(MemoryDevice::new(16 << 20));
        let format = MkfsOptions { block_size: Some(1024), ..MkfsOptions::default() };
        if generations {
            let device: Arc<dyn BlockDevice> = device.clone();
            mkfs_generations(&device, &format, Some(4 << 20)).unwrap();
        } else {
            mkfs(&*device, &MkfsOptions { journal: JournalSize::Bytes(1 << 20), ..format }).unwrap();
        }
        let options = VolumeOptions { commit_interval: INTERVAL, ..VolumeOptions::default() };
        let volume = Volume::open(device.clone(), &options).unwrap();
        let base = volume.base();
        let log = base.make_node(&Caller::ROOT, Ino::ROOT, b"log", 0o100644, 0).unwrap().ino;
        let began = Instant::now();
        let mut sizes = vec![(began, 0)];
        while began.elapsed() < INTERVAL + MARGIN + Duration::from_millis(300) {
            let size = (sizes.len() * APPEND) as u64;
            base.write(log, size - APPEND as u64, &[7; APPEND], WriteHow::default()).unwrap();
            sizes.push((Instant::now(), size));
            std::thread::sleep(Duration::from_millis(10));
        }
        let crash = Instant::now();
        let left = size_after_crash(device.to_bytes());
        let promised = sizes.iter().rev().find(|(at, _)| crash - *at > INTERVAL + MARGIN).unwrap().1;
        assert!(promised > 0, "the log was long enough");
        assert!(left >= promised, "{left} bytes of the log are left, of {promised} that were old enough");
        volume.close().unwrap();
    }
}
