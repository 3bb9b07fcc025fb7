//! A sparse image on a host file system that is full: each block has space on the host before it is
//! written, a full host is "no space", and the volume works on.

use std::collections::BTreeMap;
use std::io;
use std::ops::Range;
use std::sync::{Arc, Mutex};

use xact::check::check;
use xact::mkfs::{MkfsOptions, mkfs, mkfs_generations};
use xact::{BlockDevice, Error, MemoryDevice, OpenOptions, PathExt, TxOptions, Volume, VolumeOptions};

const PAGE: u64 = 4096;
const SIZE: u64 = 96 << 20;

/// A sparse file in memory. A write to a page without space is noted: it is one that a full host
/// would have made fail.
struct Sparse {
    inner: Arc<dyn BlockDevice>,
    host: Mutex<Host>,
}

struct Host {
    backed: Vec<bool>,
    /// Pages that were written. As on a real host, other pages count as holes, backed or not.
    written: Vec<bool>,
    /// Pages that the host can still give.
    left: usize,
    unbacked_write: Option<u64>,
}

fn pages(offset: u64, len: u64) -> Range<usize> {
    (offset / PAGE) as usize..(offset + len).div_ceil(PAGE) as usize
}

impl Sparse {
    fn used(&self) -> usize {
        self.host.lock().unwrap().backed.iter().filter(|backed| **backed).count()
    }

    /// The image is replaced by a copy in which each page of zeros is a hole (`cp --sparse`).
    fn becomes_a_copy(&self) {
        let mut page = [0; PAGE as usize];
        let mut host = self.host.lock().unwrap();
        for number in 0..host.backed.len() {
            self.inner.read_at(&mut page, number as u64 * PAGE).unwrap();
            let is_hole = page.iter().all(|byte| *byte == 0);
            (host.backed[number], host.written[number]) = (!is_hole, !is_hole);
        }
    }
}

impl BlockDevice for Sparse {
    fn size_bytes(&self) -> u64 {
        self.inner.size_bytes()
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        self.inner.read_at(buf, offset)
    }

    fn write_at(&self, buf: &[u8], offset: u64) -> io::Result<()> {
        let mut host = self.host.lock().unwrap();
        for page in pages(offset, buf.len() as u64) {
            if !host.backed[page] {
                host.unbacked_write.get_or_insert(offset);
            }
            host.written[page] = true;
        }
        self.inner.write_at(buf, offset)
    }

    fn flush(&self) -> io::Result<()> {
        Ok(())
    }

    fn discard(&self, offset: u64, len: u64) -> io::Result<()> {
        let mut host = self.host.lock().unwrap();
        let whole = offset.div_ceil(PAGE) as usize..((offset + len) / PAGE) as usize;
        for page in whole {
            host.left += usize::from(host.backed[page]);
            (host.backed[page], host.written[page]) = (false, false);
            self.inner.write_at(&[0; PAGE as usize], page as u64 * PAGE)?;
        }
        Ok(())
    }

    fn is_read_only(&self) -> bool {
        false
    }

    fn is_sparse(&self) -> bool {
        true
    }

    fn holes(&self, offset: u64, len: u64) -> io::Result<Vec<Range<u64>>> {
        let host = self.host.lock().unwrap();
        let holes = pages(offset, len).filter(|page| !host.written[*page]);
        Ok(holes
            .map(|page| {
                let start = page as u64 * PAGE;
                start.max(offset)..(start + PAGE).min(offset + len)
            })
            .collect())
    }

    fn allocate(&self, offset: u64, len: u64) -> io::Result<()> {
        let mut host = self.host.lock().unwrap();
        for page in pages(offset, len) {
            if !host.backed[page] {
                if host.left == 0 {
                    return Err(io::ErrorKind::StorageFull.into());
                }
                host.left -= 1;
                host.backed[page] = true;
            }
        }
        Ok(())
    }
}

struct Random(u64);

impl Random {
    fn below(&mut self, below: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.0 >> 33) % below
    }
}

fn device(block_size: u32, generations: bool) -> Arc<Sparse> {
    let inner: Arc<dyn BlockDevice> = Arc::new(MemoryDevice::new(SIZE));
    let options = MkfsOptions { block_size: Some(block_size), zeroed: true, ..MkfsOptions::default() };
    if generations {
        mkfs_generations(&inner, &options, Some(8 << 20)).unwrap();
    } else {
        mkfs(&*inner, &options).unwrap();
    }
    let count = (SIZE / PAGE) as usize;
    let mut written = vec![false; count];
    let mut page = [0; PAGE as usize];
    for (number, written) in written.iter_mut().enumerate() {
        inner.read_at(&mut page, number as u64 * PAGE).unwrap();
        *written = page.iter().any(|byte| *byte != 0);
    }
    let host = Host { backed: written.clone(), written, left: 1 << 14, unbacked_write: None };
    Arc::new(Sparse { inner, host: Mutex::new(host) })
}

/// Returns how often the host was full.
fn work(device: &Arc<Sparse>, discard: bool, random: &mut Random, steps: u64) -> u64 {
    let options = || VolumeOptions { discard, ..VolumeOptions::default() };
    let mut volume = Volume::open(device.clone(), &options()).unwrap();
    let mut files: BTreeMap<String, Vec<u8>> = BTreeMap::new();
    let (mut full, mut number) = (0, 0);
    for step in 0..steps {
        let old = match random.below(2) {
            0 => files.keys().nth(random.below(files.len().max(1) as u64) as usize).cloned(),
            _ => None,
        };
        number += 1;
        let name = old.unwrap_or_else(|| format!("/d{}/f{number}", number % 5));
        let len = [200, 5000, 300_000][random.below(3) as usize];
        let contents = vec![number as u8; random.below(len) as usize];
        let folder = name.rsplit_once('/').unwrap().0;
        let done = match random.below(12) {
            0..=4 => volume.create_dir_all(folder).and_then(|()| volume.write(&name, &contents)),
            5 | 6 => {
                let transaction = volume.begin(TxOptions::default());
                let done =
                    transaction.create_dir_all(folder).and_then(|()| transaction.write(&name, &contents));
                done.and_then(|()| transaction.commit())
            }
            7 | 8 => {
                if files.remove(&name).is_some() {
                    volume.remove_file(&name).expect("files can be deleted on a full host");
                }
                continue;
            }
            9 => {
                // Others use the host too.
                let mut host = device.host.lock().unwrap();
                host.left = [0, 0, 0, 16, 512, 2048][random.below(6) as usize];
                continue;
            }
            10 => {
                volume.sync().expect("accepted changes have space");
                if random.below(8) == 0 {
                    volume.trim(0..u64::MAX, 0).unwrap();
                }
                continue;
            }
            _ if step % 5 == 0 => {
                volume.close().expect("accepted changes have space");
                if random.below(2) == 0 {
                    device.becomes_a_copy();
                }
                device.host.lock().unwrap().left += 4096;
                volume = Volume::open(device.clone(), &options()).unwrap();
                continue;
            }
            _ => continue,
        };
        match done {
            Ok(()) => drop(files.insert(name, contents)),
            Err(Error::HostFull | Error::NoSpace) => {
                full += u64::from(matches!(done, Err(Error::HostFull)));
                // A plain write is truncated first, and so may have done a part of its work.
                if volume.exists(&name).unwrap() {
                    volume.remove_file(&name).expect("files can be deleted on a full host");
                }
                files.remove(&name);
            }
            Err(error) => panic!("step {step}: {error}"),
        }
        volume.health().unwrap();
        let unbacked = device.host.lock().unwrap().unbacked_write;
        assert_eq!(unbacked, None, "step {step}: a write to a place without space on the host");
    }
    for (name, contents) in &files {
        assert!(volume.read(name).unwrap() == *contents, "{name}");
    }
    volume.close().unwrap();
    assert_eq!(device.host.lock().unwrap().unbacked_write, None);
    let report = check(device.clone(), &mut |_, _| ()).unwrap();
    assert!(report.problems.is_empty(), "{:?}", report.problems);
    let volume = Volume::open(device.clone(), &options()).unwrap();
    for (name, contents) in &files {
        assert!(volume.read(name).unwrap() == *contents, "{name} after another opening");
    }
    volume.close().unwrap();
    full
}

#[test]
fn a_full_host_is_no_space_and_nothing_else() {
    for (seed, generations) in [(1, false), (2, true), (3, false), (4, true)] {
        for block_size in [1024, 4096] {
            let device = device(block_size, generations);
            let full = work(&device, seed > 2, &mut Random(seed), 1500);
            println!("seed {seed}, blocks of {block_size}: {full} times full");
            assert!(full > 10, "the host was full {full} times");
        }
    }
}

#[test]
fn a_volume_goes_on_when_the_host_has_space_again() {
    let device = device(4096, false);
    let volume = Volume::open(device.clone(), &VolumeOptions::default()).unwrap();
    device.host.lock().unwrap().left = 1000;
    let big = vec![1; 16 << 20];
    assert!(matches!(volume.write("/big", &big), Err(Error::HostFull)));
    volume.health().unwrap();
    device.host.lock().unwrap().left = 10_000;
    volume.write("/big", &big).unwrap();
    volume.sync().unwrap();
    // Deleting alone gives no space back, but what was deleted is used again.
    let used = device.used();
    device.host.lock().unwrap().left = 0;
    volume.remove_file("/big").unwrap();
    volume.write("/again", &big[..15 << 20]).unwrap();
    volume.remove_file("/again").unwrap();
    assert_eq!(device.used(), used);
    volume.trim(0..u64::MAX, 0).unwrap();
    assert!(device.used() + (14 << 20) / 4096 < used, "{used} pages, then {}", device.used());
    volume.close().unwrap();
    assert_eq!(device.host.lock().unwrap().unbacked_write, None);
}

#[test]
fn a_mount_needs_space_for_its_log() {
    for generations in [false, true] {
        let device = device(4096, generations);
        device.host.lock().unwrap().left = 100;
        assert!(matches!(Volume::open(device.clone(), &VolumeOptions::default()), Err(Error::HostFull)));
        let read_only = VolumeOptions { read_only: true, ..VolumeOptions::default() };
        Volume::open(device.clone(), &read_only).unwrap().close().unwrap();
        device.host.lock().unwrap().left = 10_000;
        Volume::open(device, &VolumeOptions::default()).unwrap().close().unwrap();
    }
}

/// Metadata in the pool whose home is a hole stays there while the host is full.
#[test]
fn metadata_is_not_written_home_into_holes() {
    let device = device(1024, true);
    let volume = Volume::open(device.clone(), &VolumeOptions::default()).unwrap();
    for number in 0..6000 {
        let folder = format!("/d{}", number % 50);
        volume.create_dir_all(&folder).unwrap();
        volume.write(format!("{folder}/{number}"), b"").unwrap();
        if number % 500 == 0 {
            volume.sync().unwrap();
        }
    }
    volume.close().unwrap();
    device.becomes_a_copy();
    let volume = Volume::open(device.clone(), &VolumeOptions::default()).unwrap();
    device.host.lock().unwrap().left = 0;
    for round in 0..6 {
        for number in 0..6000 {
            let path = format!("/d{}/{number}", number % 50);
            OpenOptions::new()
                .write(true)
                .open(&*volume, &path)
                .unwrap()
                .set_permissions(0o600 + round)
                .unwrap();
        }
        volume.sync().unwrap();
    }
    volume.close().unwrap();
    assert_eq!(device.host.lock().unwrap().unbacked_write, None);
    let report = check(device.clone(), &mut |_, _| ()).unwrap();
    assert!(report.problems.is_empty(), "{:?}", report.problems);
}
