//! Counts in one file from several threads. Each count is a transaction, which is repeated after a
//! conflict.

use std::sync::Arc;
use std::thread;

use xact::{MemoryDevice, PathExt, Volume, VolumeOptions, mkfs};

const THREADS: u32 = 4;
const COUNTS: u32 = 25;
/// Attempts of one count. A transaction that loses often is given priority.
const ATTEMPTS: u32 = 1000;

fn main() -> xact::Result<()> {
    let device = Arc::new(MemoryDevice::new(64 << 20));
    mkfs::mkfs(&*device, &Default::default())?;
    let volume = Volume::open(device, &VolumeOptions::default())?;
    volume.write("/counter", "0")?;

    thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS).map(|_| scope.spawn(|| count(&volume))).collect();
        threads.into_iter().try_for_each(|thread| thread.join().expect("no thread panics"))
    })?;

    let counted = volume.read_to_string("/counter")?;
    println!("{THREADS} threads have counted to {counted}");
    assert_eq!(counted, (THREADS * COUNTS).to_string(), "no count is lost");
    volume.close()
}

fn count(volume: &Volume) -> xact::Result<()> {
    for _ in 0..COUNTS {
        volume.retry(ATTEMPTS, |transaction| {
            let counter: u32 = transaction.read_to_string("/counter")?.parse().expect("it is a number");
            transaction.write("/counter", (counter + 1).to_string())
        })?;
    }
    Ok(())
}
