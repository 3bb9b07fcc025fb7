//! Many small files, and one large one; only the large one is synced, at its end.

use std::ffi::CString;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::mem::MaybeUninit;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use super::{Bench, because};
use crate::volume::Result;

const FOLDERS: u64 = 20;

fn paths(bench: &Bench<'_, '_>, count: u64) -> Vec<PathBuf> {
    let dir = bench.mount.dir();
    (0..count).map(|n| dir.join(format!("d{}", n % FOLDERS)).join(format!("file-{n}"))).collect()
}

pub fn create_stat_unlink(bench: &mut Bench<'_, '_>) -> Result<()> {
    let count = bench.count(20_000);
    let paths = paths(bench, count);
    for n in 0..FOLDERS {
        fs::create_dir(bench.mount.dir().join(format!("d{n}"))).map_err(because("mkdir"))?;
    }
    bench.mount.settle()?;
    bench.phase("create", "op", count as f64, |_| {
        paths.iter().try_for_each(|p| File::create(p).map(drop)).map_err(because("create"))
    })?;
    bench.phase("stat", "op", count as f64, |_| {
        paths.iter().try_for_each(|p| lstat(p)).map_err(because("stat"))
    })?;
    bench.phase("unlink", "op", count as f64, |_| {
        paths.iter().try_for_each(fs::remove_file).map_err(because("unlink"))
    })
}

/// lstat(2), the most frequent call of programs. The standard library's statx also asks for the
/// birth time, which the kernel does not cache for a FUSE file before the first request for it.
fn lstat(path: &Path) -> io::Result<()> {
    let path = CString::new(path.as_os_str().as_bytes())?;
    let mut stat = MaybeUninit::uninit();
    // SAFETY: a string with its NUL, and space for the result, which is not read.
    if unsafe { libc::lstat(path.as_ptr(), stat.as_mut_ptr()) } == 0 {
        return Ok(());
    }
    Err(io::Error::last_os_error())
}

/// 512-byte writes, one after the other, into files of 64 KiB.
pub fn small_writes(bench: &mut Bench<'_, '_>) -> Result<()> {
    const WRITE_BYTES: usize = 512;
    const WRITES: u64 = 128;
    let files = bench.count(400);
    let dir = bench.mount.dir().to_owned();
    bench.phase("write 512 B", "op", (files * WRITES) as f64, |_| {
        for n in 0..files {
            let file = File::create(dir.join(format!("small-{n}"))).map_err(because("create"))?;
            for w in 0..WRITES {
                file.write_all_at(&[w as u8; WRITE_BYTES], w * WRITE_BYTES as u64)
                    .map_err(because("write"))?;
            }
        }
        Ok(())
    })
}

pub fn sequential(bench: &mut Bench<'_, '_>) -> Result<()> {
    const CHUNK_BYTES: usize = 1 << 20;
    let mib = bench.count(1024);
    let path = bench.mount.dir().join("large");
    bench.phase("sequential write, fsync", "MiB", mib as f64, |_| {
        let mut file = File::create(&path).map_err(because("create"))?;
        let mut chunk = vec![0u8; CHUNK_BYTES];
        for n in 0..mib {
            chunk.fill(n as u8 | 1);
            file.write_all(&chunk).map_err(because("write"))?;
        }
        file.sync_all().map_err(because("fsync"))
    })?;
    bench.mount.cool()?;
    bench.phase("sequential read", "MiB", mib as f64, |_| {
        let mut file = File::open(&path).map_err(because("open"))?;
        let mut chunk = vec![0u8; CHUNK_BYTES];
        for n in 0..mib {
            file.read_exact(&mut chunk).map_err(because("read"))?;
            if chunk[0] != n as u8 | 1 || chunk[CHUNK_BYTES - 1] != n as u8 | 1 {
                return Err(format!("MiB {n} does not hold what was written"));
            }
        }
        Ok(())
    })
}
