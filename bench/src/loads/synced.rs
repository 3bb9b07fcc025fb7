//! Small writes, each made durable before the next.

use std::fs::File;
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::Instant;

use super::{Bench, Rated, because, in_turns};
use crate::system::System;
use crate::volume::Result;

const BLOCK_BYTES: usize = 4096;

/// 4 KiB appended, fsync.
pub fn append(bench: &mut Bench<'_, '_>) -> Result<()> {
    let count = bench.count(3000);
    bench.phase(APPEND, "op", count as f64, |mount| append_to(&mount.dir().join("log"), count))
}

/// The same a hundred at a time, xact and others in turns, each with a loop device of its own.
pub fn append_in_turns(bench: &mut Bench<'_, '_>) -> Result<()> {
    const EACH: u64 = 100;
    let turns = bench.count(3000 / EACH);
    bench.beside(&[System::KERNEL, System::FUSE2FS], 1 << 30, |places| {
        in_turns(places, turns, APPEND, "op", &|mount, turn| {
            let started = Instant::now();
            append_to(&mount.dir().join(format!("log-{turn}")), EACH)?;
            Ok(Rated { rate: EACH as f64 / started.elapsed().as_secs_f64(), units: EACH as f64 })
        })
    })
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
            // A walk that visits the blocks in no order that read-ahead or merging could use.
            let block = n * 2_654_435_761 % BLOCKS;
            file.write_all_at(&[!n as u8; BLOCK_BYTES], block * BLOCK_BYTES as u64)
                .map_err(because("overwrite"))?;
            file.sync_data().map_err(because("fdatasync"))?;
        }
        Ok(())
    })
}
