//! Measures one call of the engine, and the effect of group commit.
//!
//!     cargo run --release -p xact-consistency --example hot_path -- IMAGE
//!
//! IMAGE is an ext4 image with a journal and free space in its last 1000 blocks, which are
//! overwritten. The figures compare two versions of the engine on one machine, not two machines.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use xact_consistency::{Engine, EngineOptions, Handle};
use xact_device::{FileDevice, OpenMode};
use xact_types::BlockNr;

fn main() {
    let path = std::env::args().nth(1).expect("the path of an image");
    let device = Arc::new(FileDevice::open(path.as_ref(), OpenMode::ReadWrite).expect("opening the image"));
    let blocks = xact_device::BlockDevice::size_bytes(&*device) / 4096;
    let engine = xact_consistency::open(device, EngineOptions::default()).expect("opening the volume");
    let first = blocks - 1000;

    let mut handle = Handle::begin(&engine, 64).expect("a handle");
    for i in 0..64 {
        handle.update(BlockNr(first + i), |b| b[0] = 1).expect("a change");
    }
    report("update, cached and joined", 2_000_000, |n| {
        handle.update(BlockNr(first + n % 64), |b| b[(n % 4096) as usize] = n as u8).expect("a change");
    });
    drop(handle);
    report("read, cached", 2_000_000, |n| {
        std::hint::black_box(engine.read(BlockNr(first + n % 64)).expect("a read"));
    });
    report("begin and end of a handle", 2_000_000, |_| {
        drop(Handle::begin(&engine, 0).expect("a handle"));
    });
    report("commit of one block", 2_000, |n| {
        let mut handle = Handle::begin(&engine, 1).expect("a handle");
        handle.update(BlockNr(first + n % 64), |b| b[0] = n as u8).expect("a change");
        let commit = handle.commit_id();
        drop(handle);
        engine.commit(commit).expect("a commit");
    });
    let mut alone = 0.0;
    for threads in [1u64, 2, 4, 16] {
        let rate = synced_operations(&engine, first, threads);
        if threads == 1 {
            alone = rate;
        }
        println!(
            "{threads:>3} threads: {rate:>9.0} synced operations a second, {:.1} times one",
            rate / alone
        );
    }
    engine.close().expect("closing");
}

fn report(what: &str, times: u64, mut work: impl FnMut(u64)) {
    let started = Instant::now();
    (0..times).for_each(&mut work);
    println!("{:>9.0} ns  {what}", started.elapsed().as_nanos() as f64 / times as f64);
}

fn synced_operations(engine: &Arc<Engine>, first: u64, threads: u64) -> f64 {
    let done = AtomicU64::new(0);
    let started = Instant::now();
    std::thread::scope(|scope| {
        for thread in 0..threads {
            let done = &done;
            scope.spawn(move || {
                while started.elapsed() < Duration::from_secs(2) {
                    let mut handle = Handle::begin(engine, 1).expect("a handle");
                    handle
                        .update(BlockNr(first + thread), |b| b[0] = b[0].wrapping_add(1))
                        .expect("a change");
                    let commit = handle.commit_id();
                    drop(handle);
                    engine.commit(commit).expect("a commit");
                    done.fetch_add(1, Relaxed);
                }
            });
        }
    });
    done.load(Relaxed) as f64 / started.elapsed().as_secs_f64()
}
