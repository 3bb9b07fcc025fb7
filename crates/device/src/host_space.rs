//! The space of an image file on its host file system: which parts have none, and taking it.
//!
//! A write into a hole of a sparse file takes space on the host, and fails if the host is full. A
//! failed write poisons the volume. So the layers above take the space first, by `fallocate`, when
//! they can still answer a caller with "no space".
//!
//! Crash argument: there is no order to keep. A range that `fallocate` has given space reads as
//! zeros until it is written, as the hole did. If the host loses the range in a crash, it is a hole
//! again, and [`holes`] says so at the next opening.
//!
//! [`holes`] may count a range as a hole that has space: `SEEK_DATA` skips ranges that have space
//! and were never written. Another `fallocate` of such a range does no harm.
//!
//! Limits: a host that copies on write (Btrfs, ZFS, an image that shares blocks with a copy of it)
//! may need space again for each overwrite, which no call can take in advance.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::AsRawFd;

/// Whether the host can give space to a part of the file. Tries it on the first sector, which has
/// space already in any volume.
pub fn can_allocate(file: &File) -> bool {
    match allocate(file, 0, crate::SECTOR_BYTES as u64) {
        Err(e) => is_full(&e),
        Ok(()) => true,
    }
}

/// Whether an error means that the host is full.
pub fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

/// The holes within a range, in rising order. A file system that does not know them
/// has none.
pub fn holes(file: &File, offset: u64, len: u64) -> io::Result<Vec<Range<u64>>> {
    let end = offset.saturating_add(len);
    let mut found = Vec::new();
    let mut at = offset;
    while at < end {
        let hole = match seek(file, at, libc::SEEK_HOLE)? {
            Some(hole) if hole < end => hole,
            _ => break,
        };
        let data = seek(file, hole, libc::SEEK_DATA)?.map_or(end, |data| data.min(end));
        if data <= hole {
            break;
        }
        found.push(hole..data);
        at = data;
    }
    Ok(found)
}

/// `None` past the last data, or if the file system does not know.
fn seek(file: &File, offset: u64, whence: libc::c_int) -> io::Result<Option<u64>> {
    // SAFETY: lseek takes a descriptor that `file` keeps open and no memory. All reads and writes
    // of the file name their offset, so its position does not matter.
    let at = unsafe { libc::lseek(file.as_raw_fd(), offset as libc::off_t, whence) };
    if at >= 0 {
        return Ok(Some(at as u64));
    }
    match io::Error::last_os_error() {
        e if matches!(e.raw_os_error(), Some(libc::ENXIO | libc::EINVAL | libc::EOPNOTSUPP)) => Ok(None),
        e => Err(e),
    }
}

/// `fallocate` of a range within the file.
pub fn allocate(file: &File, offset: u64, len: u64) -> io::Result<()> {
    loop {
        let (from, bytes) = (offset as libc::off_t, len as libc::off_t);
        // SAFETY: fallocate takes a descriptor that `file` keeps open and no memory.
        if unsafe { libc::fallocate(file.as_raw_fd(), libc::FALLOC_FL_KEEP_SIZE, from, bytes) } == 0 {
            return Ok(());
        }
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{FileExt, MetadataExt};

    use super::*;

    #[test]
    fn holes_get_space() {
        let file = tempfile::tempfile().unwrap();
        file.set_len(1 << 20).unwrap();
        if !can_allocate(&file) {
            println!("no fallocate here");
            return;
        }
        file.write_all_at(&[1; 65536], 128 << 10).unwrap();
        let found = holes(&file, 0, 1 << 20).unwrap();
        assert!(found.iter().any(|hole| hole.end == 128 << 10), "{found:?}");
        assert_eq!(found.last(), Some(&(192 << 10..1 << 20)));
        assert_eq!(holes(&file, 130 << 10, 4096).unwrap(), []);
        assert_eq!(holes(&file, 180 << 10, 20 << 10).unwrap().first(), Some(&(192 << 10..200 << 10)));
        let before = file.metadata().unwrap().blocks();
        allocate(&file, 512 << 10, 256 << 10).unwrap();
        let after = file.metadata().unwrap();
        assert!(after.blocks() >= before + 512, "{before} and {}", after.blocks());
        assert_eq!(after.len(), 1 << 20);
        let mut read = [1; 4096];
        file.read_exact_at(&mut read, 600 << 10).unwrap();
        assert_eq!(read, [0; 4096]);
    }
}
